package dev.kaji.junit;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import org.junit.jupiter.api.Test;

class ConnectionTest {
  private static final String KUBECONFIG =
      """
      {"apiVersion": "v1",
       "clusters": [{"cluster": {"certificate-authority-data": "Y2E=", "server": "https://127.0.0.1:1"}, "name": "base"}],
       "users": [{"name": "base", "user": {"client-certificate-data": "Y2VydA==", "client-key-data": "a2V5"}}]}
      """;
  private final Connection connection = new Connection("https://127.0.0.1:1", KUBECONFIG, Path.of("/tmp/kubeconfig"));

  @Test
  void hasThePartsOfItsKubeconfig() {
    assertEquals("ca", connection.caCertificate());
    assertEquals("cert", connection.clientCertificate());
    assertEquals("key", connection.clientKey());
  }

  @Test
  void aPartThatIsNotThereIsNamed() {
    ControlException error = assertThrows(ControlException.class, connection::token);
    assertEquals("the kubeconfig of https://127.0.0.1:1 has no token", error.getMessage());
  }

  @Test
  void certificatesThatAreNoneAreRefused() {
    ControlException error = assertThrows(ControlException.class, connection::sslContext);
    assertTrue(error.getMessage().startsWith("the certificates of a kubeconfig of kaji cannot be used"), error.getMessage());
  }

  @Test
  void anotherTextIsRefused() {
    for (String text : new String[] {"", "clusters: []", "{}", "{\"clusters\": [1]}", "[]"}) {
      assertThrows(ControlException.class, new Connection("https://127.0.0.1:1", text, Path.of("/tmp/kubeconfig"))::caCertificate, text);
    }
  }

  @Test
  void keysAreNotInItsText() {
    assertFalse(connection.toString().contains("a2V5"), connection.toString());
  }
}
