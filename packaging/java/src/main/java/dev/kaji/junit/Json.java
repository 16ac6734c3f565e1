package dev.kaji.junit;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** JSON, so that no library is forced on tests: objects are maps, arrays lists, numbers Long or Double. */
final class Json {
  private static final int DEEPEST = 100;

  private final String text;
  private int at;

  private Json(String text) {
    this.text = text;
  }

  /** Reads a document. */
  static Object parse(String text) {
    Json json = new Json(text);
    Object value = json.value(0);
    json.blanks();
    if (json.at < text.length()) {
      throw json.error("the end");
    }
    return value;
  }

  /** An object, which a value has to be. */
  @SuppressWarnings("unchecked")
  static Map<String, Object> object(Object value) {
    if (value instanceof Map<?, ?>) {
      return (Map<String, Object>) value;
    }
    throw new ControlException("not an object in an answer of kaji: " + value);
  }

  /** A member, which has to be a string. */
  static String string(Map<String, Object> object, String name) {
    if (object.get(name) instanceof String text) {
      return text;
    }
    throw new ControlException("an answer of kaji has no text " + name + ", but " + object.keySet());
  }

  /** A member, which has to be a whole number. */
  static long number(Map<String, Object> object, String name) {
    if (object.get(name) instanceof Long number) {
      return number;
    }
    throw new ControlException("an answer of kaji has no number " + name + ", but " + object.keySet());
  }

  /** A member, which has to be an array. */
  @SuppressWarnings("unchecked")
  static List<Object> list(Map<String, Object> object, String name) {
    if (object.get(name) instanceof List<?> list) {
      return (List<Object>) list;
    }
    throw new ControlException("an answer of kaji has no list " + name + ", but " + object.keySet());
  }

  /** Writes maps, iterables, text, numbers and booleans. */
  static String write(Object value) {
    StringBuilder out = new StringBuilder();
    write(value, out);
    return out.toString();
  }

  private static void write(Object value, StringBuilder out) {
    if (value instanceof Map<?, ?> map) {
      String separator = "{";
      for (Map.Entry<?, ?> member : map.entrySet()) {
        out.append(separator);
        text(String.valueOf(member.getKey()), out);
        out.append(':');
        write(member.getValue(), out);
        separator = ",";
      }
      out.append(map.isEmpty() ? "{}" : "}");
    } else if (value instanceof Iterable<?> items) {
      out.append('[');
      String separator = "";
      for (Object item : items) {
        out.append(separator);
        write(item, out);
        separator = ",";
      }
      out.append(']');
    } else if (value == null || value instanceof Number || value instanceof Boolean) {
      out.append(value);
    } else {
      text(value.toString(), out);
    }
  }

  private static void text(String text, StringBuilder out) {
    out.append('"');
    for (char c : text.toCharArray()) {
      if (c == '"' || c == '\\') {
        out.append('\\').append(c);
      } else if (c < ' ') {
        out.append(String.format("\\u%04x", (int) c));
      } else {
        out.append(c);
      }
    }
    out.append('"');
  }

  private Object value(int depth) {
    if (depth > DEEPEST) {
      throw error("less depth");
    }
    blanks();
    switch (at < text.length() ? text.charAt(at) : '\0') {
      case '{':
        return members(depth);
      case '[':
        return items(depth);
      case '"':
        return string();
      case 't':
        return word("true", Boolean.TRUE);
      case 'f':
        return word("false", Boolean.FALSE);
      case 'n':
        return word("null", null);
      default:
        return number();
    }
  }

  private Map<String, Object> members(int depth) {
    Map<String, Object> members = new LinkedHashMap<>();
    for (boolean first = true; more('{', '}', first); first = false) {
      blanks();
      String name = string();
      blanks();
      expect(':');
      members.put(name, value(depth + 1));
    }
    return members;
  }

  private List<Object> items(int depth) {
    List<Object> items = new ArrayList<>();
    for (boolean first = true; more('[', ']', first); first = false) {
      items.add(value(depth + 1));
    }
    return items;
  }

  /** Whether another item comes; passes what is before it. */
  private boolean more(char open, char close, boolean first) {
    if (first) {
      expect(open);
    }
    blanks();
    if (at < text.length() && text.charAt(at) == close) {
      at++;
      return false;
    }
    if (!first) {
      expect(',');
    }
    return true;
  }

  private String string() {
    expect('"');
    StringBuilder string = new StringBuilder();
    while (true) {
      if (at >= text.length() || text.charAt(at) < ' ') {
        throw error("the end of a string");
      }
      char c = text.charAt(at++);
      if (c == '"') {
        return string.toString();
      }
      string.append(c == '\\' ? escaped() : c);
    }
  }

  private char escaped() {
    char c = at < text.length() ? text.charAt(at++) : '\0';
    switch (c) {
      case '"', '\\', '/':
        return c;
      case 'b':
        return '\b';
      case 'f':
        return '\f';
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'u':
        if (at + 4 <= text.length() && text.substring(at, at + 4).matches("[0-9a-fA-F]{4}")) {
          at += 4;
          return (char) Integer.parseInt(text.substring(at - 4, at), 16);
        }
        break;
      default:
        break;
    }
    throw error("an escape sequence");
  }

  private Object number() {
    int from = at;
    while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
      at++;
    }
    String number = text.substring(from, at);
    try {
      return number.matches("-?[0-9]+") ? (Object) Long.valueOf(number) : Double.valueOf(number);
    } catch (NumberFormatException notANumber) {
      throw error("a value");
    }
  }

  private Object word(String word, Object value) {
    if (!text.startsWith(word, at)) {
      throw error("a value");
    }
    at += word.length();
    return value;
  }

  private void expect(char c) {
    if (at >= text.length() || text.charAt(at) != c) {
      throw error(String.valueOf(c));
    }
    at++;
  }

  private void blanks() {
    while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
      at++;
    }
  }

  private ControlException error(String expected) {
    return new ControlException("kaji did not answer with JSON: " + expected + " was expected at character " + at);
  }
}
