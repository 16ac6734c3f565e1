package dev.kaji.junit;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.Map;

/** A client of nothing but the JDK, with the parts of a connection. */
final class Api {
  private static final String MAPS = "/api/v1/namespaces/default/configmaps";
  private final Connection connection;
  private final HttpClient client;

  Api(Connection connection) {
    this.connection = connection;
    client = HttpClient.newBuilder().sslContext(connection.sslContext()).proxy(HttpClient.Builder.NO_PROXY).build();
  }

  /** Creates a config map; the answer's code. */
  int create(String name) throws Exception {
    String body = Json.write(Map.of("apiVersion", "v1", "kind", "ConfigMap", "metadata", Map.of("name", name)));
    return send("POST", MAPS, body).statusCode();
  }

  boolean has(String name) throws Exception {
    return get(MAPS + "/" + name).statusCode() == 200;
  }

  HttpResponse<String> get(String path) throws Exception {
    return send("GET", path, "");
  }

  private HttpResponse<String> send(String method, String path, String body) throws Exception {
    HttpRequest request =
        HttpRequest.newBuilder(URI.create(connection.url() + path))
            .header("Content-Type", "application/json")
            .header("User-Agent", "api-test/1")
            .method(method, HttpRequest.BodyPublishers.ofString(body))
            .build();
    return client.send(request, HttpResponse.BodyHandlers.ofString());
  }
}
