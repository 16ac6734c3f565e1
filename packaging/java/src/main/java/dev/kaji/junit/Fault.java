package dev.kaji.junit;

import java.util.LinkedHashMap;
import java.util.Map;

/**
 * A fault at the nth request of a client with a verb to a resource, as {@code kaji test} writes it: {@code answer-lost}, {@code kill},
 * {@code conflict}, {@code unavailable} and others.
 *
 * @param kind its kind
 * @param client the product of the client's {@code User-Agent}
 * @param verb as in RBAC
 * @param resource the plural, with its group: {@code deployments.apps}
 * @param nth counted from 1, from when the faults are armed
 */
public record Fault(String kind, String client, String verb, String resource, int nth) {
  static Fault of(Object value) {
    Map<String, Object> fault = Json.object(value);
    Map<String, Object> at = Json.object(fault.get("at"));
    int nth = Math.toIntExact(Json.number(at, "nth"));
    return new Fault(Json.string(fault, "kind"), Json.string(at, "client"), Json.string(at, "verb"), Json.string(at, "resource"), nth);
  }

  Map<String, Object> value() {
    Map<String, Object> at = new LinkedHashMap<>();
    at.put("client", client);
    at.put("verb", verb);
    at.put("resource", resource);
    at.put("nth", nth);
    Map<String, Object> fault = new LinkedHashMap<>();
    fault.put("kind", kind);
    fault.put("at", at);
    return fault;
  }
}
