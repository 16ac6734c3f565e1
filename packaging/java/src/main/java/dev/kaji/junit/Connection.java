package dev.kaji.junit;

import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Base64;
import java.util.Map;
import javax.net.ssl.SSLContext;

/**
 * How a client gets to a cluster, for any client: {@code Config.fromKubeconfig(connection.kubeconfig())} of fabric8,
 * {@code ClientBuilder.kubeconfig} of the official one, or the parts of it.
 *
 * @param url the server
 * @param kubeconfig the text of a kubeconfig with certificates in it
 * @param kubeconfigFile a file with it, for {@code KUBECONFIG} of other processes; it is there as long as the cluster is
 */
public record Connection(String url, String kubeconfig, Path kubeconfigFile) {
  static Connection of(Map<String, Object> access) {
    return new Connection(Json.string(access, "url"), Json.string(access, "kubeconfig"), Path.of(Json.string(access, "kubeconfigFile")));
  }

  /** The certificate authority of the server, PEM. */
  public String caCertificate() {
    return pem("clusters", "cluster", "certificate-authority-data");
  }

  /** The client's certificate, PEM. Service accounts have none. */
  public String clientCertificate() {
    return pem("users", "user", "client-certificate-data");
  }

  /** The client's key, PEM. Service accounts have none. */
  public String clientKey() {
    return pem("users", "user", "client-key-data");
  }

  /** The token of a service account. */
  public String token() {
    return value("users", "user", "token");
  }

  /** For clients of the JDK: it trusts the server's authority alone, and has the client's certificate, if there is one. */
  public SSLContext sslContext() {
    boolean certificate = find("users", "user", "client-key-data") != null;
    return Tls.context(caCertificate(), certificate ? clientCertificate() : null, certificate ? clientKey() : null);
  }

  private String pem(String list, String kind, String name) {
    return new String(Base64.getDecoder().decode(value(list, kind, name)), StandardCharsets.US_ASCII);
  }

  private String value(String list, String kind, String name) {
    String value = find(list, kind, name);
    if (value == null) {
      throw new ControlException("the kubeconfig of " + url + " has no " + name);
    }
    return value;
  }

  /** The kubeconfig is the control's, JSON with one cluster and one user. */
  private String find(String list, String kind, String name) {
    Map<String, Object> config = Json.object(Json.parse(kubeconfig));
    for (Object entry : Json.list(config, list)) {
      if (Json.object(Json.object(entry).get(kind)).get(name) instanceof String value) {
        return value;
      }
    }
    return null;
  }

  /** Without keys, for logs. */
  @Override
  public String toString() {
    return "Connection[" + url + ", " + kubeconfigFile + "]";
  }
}
