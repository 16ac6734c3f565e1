package dev.kaji.junit;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.ConnectException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class ControlTest {
  @TempDir Path folder;

  private Path script(String name, String text) throws IOException {
    Path script = Files.writeString(folder.resolve(name), "#!/bin/sh\n" + text + "\n");
    return Files.setPosixFilePermissions(script, PosixFilePermissions.fromString("rwxr-xr-x"));
  }

  @Test
  void theProgramIsThatOfTheEnvironmentOrOfThePath() throws IOException {
    String path = "/nowhere::" + folder;
    assertEquals("/x/kaji", Control.program("/x/kaji", path));
    ControlException missing = assertThrows(ControlException.class, () -> Control.program(null, path));
    assertEquals("there is no kaji: install it so that it is on the PATH, or set KAJI to the binary", missing.getMessage());
    Files.writeString(folder.resolve("kaji"), "not a program");
    assertThrows(ControlException.class, () -> Control.program("", path));
    Files.delete(folder.resolve("kaji"));
    assertEquals(script("kaji", "exit").toString(), Control.program("", path));
    assertThrows(ControlException.class, () -> Control.program(null, null));
  }

  @Test
  void aProgramThatIsNotThereIsNamed() {
    ControlException error = assertThrows(ControlException.class, () -> Control.with().binary(Path.of("/nowhere/kaji")).start());
    assertTrue(error.getMessage().startsWith("/nowhere/kaji cannot be started"), error.getMessage());
  }

  @Test
  void aProgramThatEndsSaysSo() throws IOException {
    Path ends = script("ends", "exit 7");
    ControlException error = assertThrows(ControlException.class, () -> Control.with().binary(ends).start());
    assertEquals("kaji envtest serve ended with 7; its errors are on the standard error", error.getMessage());
  }

  @Test
  void garbageInsteadOfAnAnnouncementIsRefused() throws IOException {
    Path prints = script("prints", "echo 'Usage: something'; cat >/dev/null");
    assertThrows(ControlException.class, () -> Control.with().binary(prints).start());
    Path lacks = script("lacks", "echo '{\"control\": 1}'; cat >/dev/null");
    ControlException error = assertThrows(ControlException.class, () -> Control.with().binary(lacks).start());
    assertEquals("an answer of kaji has no text control, but [control]", error.getMessage());
  }

  @Test
  void aFlagThatDoesNotExistIsAnError() {
    ControlException error = assertThrows(ControlException.class, () -> Control.with().arguments("--no-such-flag").start());
    assertTrue(error.getMessage().startsWith("kaji envtest serve ended with "), error.getMessage());
  }

  @Test
  void aRequestAfterTheEndSaysSo() {
    Control control = Control.with().start();
    control.close();
    ControlException error = assertThrows(ControlException.class, () -> control.base().fork());
    assertTrue(error.getMessage().contains("kaji envtest serve has ended with 0"), error.getMessage());
    control.close();
  }

  @Test
  void aServiceAccountHasATokenAndNoCertificate() throws Exception {
    try (Control control = Control.with().controllers("serviceaccount-controller").start()) {
      Connection connection = control.base().connectionOf("default/default", true);
      assertTrue(connection.token().split("\\.").length == 3);
      assertTrue(connection.caCertificate().startsWith("-----BEGIN CERTIFICATE-----"));
      assertThrows(ControlException.class, connection::clientKey);
      // Without a certificate the user is anonymous: the token is for the client to send.
      assertEquals(403, new Api(connection).create("refused"));
    }
  }

  /** A test's process that is killed closes nothing. */
  public static final class Killed {
    public static void main(String[] arguments) throws IOException {
      System.out.println(Control.with().start().url());
      System.in.read();
    }
  }

  @Test
  void itEndsWithAProcessThatIsKilled() throws Exception {
    String classes = System.getProperty("surefire.test.class.path", System.getProperty("java.class.path"));
    String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
    Process killed = new ProcessBuilder(java, "-cp", classes, Killed.class.getName()).redirectError(ProcessBuilder.Redirect.INHERIT).start();
    URI url;
    try (BufferedReader output = new BufferedReader(new InputStreamReader(killed.getInputStream()))) {
      url = URI.create(output.readLine());
      assertTrue(listens(url));
    } finally {
      killed.destroyForcibly();
    }
    assertTrue(killed.waitFor(30, TimeUnit.SECONDS));
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
    while (listens(url)) {
      assertTrue(System.nanoTime() < deadline, "the control is still there");
      Thread.onSpinWait();
    }
  }

  private static boolean listens(URI url) throws IOException {
    try (Socket socket = new Socket()) {
      socket.connect(new InetSocketAddress(url.getHost(), url.getPort()), 5000);
      return true;
    } catch (ConnectException refused) {
      return false;
    }
  }
}
