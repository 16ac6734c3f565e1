package dev.kaji.junit;

/** The control refused a request, or did not start. */
public class ControlException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  ControlException(String message) {
    super(message);
  }

  ControlException(String message, Throwable cause) {
    super(message, cause);
  }
}
