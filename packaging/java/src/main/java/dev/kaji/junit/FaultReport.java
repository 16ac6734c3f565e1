package dev.kaji.junit;

import java.util.List;
import java.util.Map;

/**
 * What came about.
 *
 * @param armed faults that have yet to come about
 * @param fired faults that have come about
 * @param kills how often the client under test was to be killed
 * @param requests those of the client under test, and events of its watches
 */
public record FaultReport(List<Fault> armed, List<Fault> fired, long kills, List<Request> requests) {
  /**
   * A request.
   *
   * @param client the product of its {@code User-Agent}
   * @param verb as in RBAC
   * @param resource the plural, with its group
   * @param nth of this client, verb and resource
   * @param namespace empty without one
   * @param name empty without one
   * @param code 0 for an answer that was lost, and for an event
   */
  public record Request(String client, String verb, String resource, long nth, String namespace, String name, long code) {
    static Request of(Object value) {
      Map<String, Object> request = Json.object(value);
      String namespace = (String) request.getOrDefault("namespace", "");
      String name = (String) request.getOrDefault("name", "");
      long code = request.containsKey("code") ? Json.number(request, "code") : 0;
      return new Request(
          Json.string(request, "client"), Json.string(request, "verb"), Json.string(request, "resource"), Json.number(request, "nth"), namespace, name, code);
    }
  }

  static FaultReport of(Map<String, Object> report) {
    return new FaultReport(
        Json.list(report, "armed").stream().map(Fault::of).toList(),
        Json.list(report, "fired").stream().map(Fault::of).toList(),
        Json.number(report, "kills"),
        Json.list(report, "requests").stream().map(Request::of).toList());
  }
}
