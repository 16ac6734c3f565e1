package dev.kaji.junit;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class JsonTest {
  private static final String DOCUMENT = "{\"a\": [1, -2.5e3, \"x\\n\\u00e9\\\"\\/\", true, false, null, {}, []], \"b\":{\"c\":\"d\"}}";

  @Test
  void readsEachKindOfValue() {
    Map<String, Object> read = Json.object(Json.parse(DOCUMENT));
    assertEquals(Arrays.asList(1L, -2500.0, "x\né\"/", true, false, null, Map.of(), List.of()), Json.list(read, "a"));
    assertEquals("d", Json.string(Json.object(read.get("b")), "c"));
  }

  @Test
  void readsWhatItWrites() {
    Object read = Json.parse(DOCUMENT);
    assertEquals(read, Json.parse(Json.write(read)));
    assertEquals("{\"faults\":[{\"nth\":1}],\"t\":\"\\u0001\\\\\"}", Json.write(new java.util.TreeMap<>(Map.of("faults", List.of(Map.of("nth", 1)), "t", "\u0001\\"))));
  }

  @Test
  void aDocumentThatIsCutOffIsRefusedWhereverItIsCut() {
    for (int length = 0; length < DOCUMENT.length(); length++) {
      String cut = DOCUMENT.substring(0, length);
      assertThrows(ControlException.class, () -> Json.parse(cut), cut);
    }
  }

  @ParameterizedTest
  @ValueSource(strings = {"Error: no", "{\"a\" 1}", "[1,]", "[1 2]", "{1:2}", "\"\\x\"", "\"\\u00g0\"", "nul", "1.2.3", "--1", "99999999999999999999", "{} {}", "\"a\nb\""})
  void garbageIsRefused(String text) {
    ControlException refused = assertThrows(ControlException.class, () -> Json.parse(text));
    assertTrue(refused.getMessage().startsWith("kaji did not answer with JSON: "), refused.getMessage());
  }

  @Test
  void depthIsBounded() {
    assertThrows(ControlException.class, () -> Json.parse("[".repeat(100_000)));
  }

  @Test
  void membersHaveToBeOfTheirKind() {
    Map<String, Object> object = Json.object(Json.parse("{\"a\":1}"));
    assertEquals("an answer of kaji has no text a, but [a]", assertThrows(ControlException.class, () -> Json.string(object, "a")).getMessage());
    assertThrows(ControlException.class, () -> Json.number(object, "b"));
    assertThrows(ControlException.class, () -> Json.list(object, "a"));
    assertThrows(ControlException.class, () -> Json.object(object.get("a")));
  }
}
