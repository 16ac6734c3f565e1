package dev.kaji.junit;

/** What is done to the base, once, before it is forked for each test: definitions, webhooks, accounts. */
@FunctionalInterface
public interface KajiSetup {
  /**
   * Sets the base up.
   *
   * @throws Exception when that fails: then no test with this set-up runs
   */
  void setUp(Cluster base) throws Exception;

  /** Nothing. */
  final class None implements KajiSetup {
    @Override
    public void setUp(Cluster base) {}
  }
}
