package dev.kaji.junit;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.platform.engine.discovery.DiscoverySelectors.selectClass;

import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;
import org.junit.platform.launcher.listeners.SummaryGeneratingListener;

/** The message of a mistake in a class of tests. */
class MisuseTest {
  @ExtendWith(KajiExtension.class)
  static class WithoutAnnotation {
    @Test
    void test(Cluster cluster) {}
  }

  @KajiCluster
  static class BeforeAllOfTests {
    @BeforeAll
    static void setUp(Cluster cluster) {}

    @Test
    void test() {}
  }

  static final class Failing implements KajiSetup {
    @Override
    public void setUp(Cluster base) {
      throw new IllegalStateException("no definitions");
    }
  }

  @KajiCluster(setup = Failing.class)
  static class WithASetUpThatFails {
    @Test
    void test(Cluster cluster) {}
  }

  private static String failureOf(Class<?> test) {
    SummaryGeneratingListener listener = new SummaryGeneratingListener();
    LauncherFactory.create().execute(LauncherDiscoveryRequestBuilder.request().selectors(selectClass(test)).build(), listener);
    assertEquals(1, listener.getSummary().getFailures().size());
    return String.valueOf(listener.getSummary().getFailures().get(0).getException().getMessage());
  }

  @Test
  void aClassWithoutTheAnnotation() {
    String failure = failureOf(WithoutAnnotation.class);
    assertEquals(WithoutAnnotation.class.getName() + " has no @KajiCluster, which says what its clusters have", failure);
  }

  @Test
  void aClusterThatIsNoTestsOwn() {
    String failure = failureOf(BeforeAllOfTests.class);
    assertTrue(failure.contains("a Cluster is a test's own"), failure);
  }

  @Test
  void aSetUpThatFails() {
    String failure = failureOf(WithASetUpThatFails.class);
    assertEquals("the set-up " + Failing.class.getName() + " failed: java.lang.IllegalStateException: no definitions", failure);
  }
}
