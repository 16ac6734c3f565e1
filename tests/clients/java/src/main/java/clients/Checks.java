package clients;

import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;

/** Counts what holds, and ends the program with what does not. */
final class Checks {
  private int passed;

  void check(String what, boolean holds) {
    if (!holds) {
      throw new AssertionError(what);
    }
    passed++;
  }

  /** Takes changes until the wanted one has come. */
  void await(BlockingQueue<String> changes, String wanted) throws InterruptedException {
    for (String change; (change = changes.poll(30, TimeUnit.SECONDS)) != null; ) {
      if (change.equals(wanted)) {
        passed++;
        return;
      }
    }
    throw new AssertionError("never " + wanted);
  }

  void done(String client) {
    System.out.println(client + ": " + passed + " passed");
  }
}
