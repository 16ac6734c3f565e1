package dev.kaji.junit;

import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** A cluster: {@link #connection} for the test, {@link #faultsConnection} for the client under test, if it is to meet faults. */
public final class Cluster implements AutoCloseable {
  private final Control control;
  private final String name;
  private final Connection connection;
  private final Connection faultsConnection;

  Cluster(Control control, Map<String, Object> description) {
    this.control = control;
    name = Json.string(description, "name");
    connection = Connection.of(description);
    faultsConnection = Connection.of(Json.object(description.get("faults")));
  }

  /** Its name in the control. */
  public String name() {
    return name;
  }

  /** The server's own connection, of an administrator. */
  public Connection connection() {
    return connection;
  }

  /** The same with the fault layer of {@code kaji test} in front. */
  public Connection faultsConnection() {
    return faultsConnection;
  }

  /** The connection of a service account, {@code namespace/name}. */
  public Connection connectionOf(String serviceAccount, boolean faults) {
    return Connection.of(request("POST", "kubeconfig", Json.write(Map.of("serviceAccount", serviceAccount, "faults", faults))));
  }

  /** Another cluster that begins as this one is. */
  public Cluster fork() {
    return new Cluster(control, request("POST", "forks", "{}"));
  }

  /** Another cluster that begins as this one is, with a name. */
  public Cluster fork(String name) {
    return new Cluster(control, request("POST", "forks", Json.write(Map.of("name", name))));
  }

  /** Ends it. */
  @Override
  public void close() {
    request("DELETE", "", "");
  }

  /** Moves the cluster's clock forward; how far it is ahead then. */
  public Duration advance(Duration by) {
    return ahead(request("POST", "clock", Json.write(Map.of("advanceSeconds", by.toMillis() / 1000.0))));
  }

  /** How far the cluster's clock is ahead. */
  public Duration ahead() {
    return ahead(request("GET", "clock", ""));
  }

  private static Duration ahead(Map<String, Object> clock) {
    return clock.get("aheadSeconds") instanceof Number seconds ? Duration.ofMillis(Math.round(seconds.doubleValue() * 1000)) : Duration.ZERO;
  }

  /** Brings faults about. Points are counted from here. */
  public FaultReport arm(Fault... faults) {
    return arm(Json.write(Map.of("faults", List.of(faults).stream().map(Fault::value).toList())), null);
  }

  /**
   * Brings the faults of a plan about, as {@code kaji test} writes it, JSON or YAML.
   *
   * @param client stands in for the clients of the plan's points; null leaves them
   */
  public FaultReport arm(String plan, String client) {
    return FaultReport.of(request("PUT", "faults" + query(client == null ? Map.of() : Map.of("client", client)), plan));
  }

  /** What came about, and the requests of the client under test. */
  public FaultReport faults() {
    return FaultReport.of(request("GET", "faults", ""));
  }

  /** No more faults. */
  public FaultReport disarm() {
    return FaultReport.of(request("DELETE", "faults", ""));
  }

  /** Waits until the client was to be killed more than {@code after} times, for a minute at most; how often it was. */
  public long waitForKill(long after, Duration atMost) {
    return Json.number(request("GET", "kills" + query(Map.of("after", after, "seconds", atMost.toSeconds())), ""), "kills");
  }

  /** Gives back the leases that a killed client holds. */
  public void releaseLeases() {
    request("DELETE", "leases", "");
  }

  private Map<String, Object> request(String method, String part, String body) {
    return control.request(method, "clusters/" + encoded(name) + (part.isEmpty() ? "" : "/" + part), body);
  }

  private static String query(Map<String, ?> parameters) {
    StringBuilder query = new StringBuilder();
    new TreeMap<>(parameters).forEach((key, value) -> query.append(query.isEmpty() ? '?' : '&').append(key).append('=').append(encoded(String.valueOf(value))));
    return query.toString();
  }

  private static String encoded(String text) {
    return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
  }

  @Override
  public String toString() {
    return "Cluster[" + name + ", " + connection.url() + "]";
  }
}
