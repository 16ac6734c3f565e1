package dev.kaji.junit;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.time.Duration;
import java.time.Instant;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Nested;
import org.junit.jupiter.api.RepeatedTest;
import org.junit.jupiter.api.Test;

@KajiCluster(setup = KajiExtensionTest.Shared.class, controllers = "namespace-controller")
class KajiExtensionTest {
  private static final AtomicInteger SETUPS = new AtomicInteger();
  private Cluster ofBeforeEach;
  private Api api;

  static final class Shared implements KajiSetup {
    @Override
    public void setUp(Cluster base) throws Exception {
      SETUPS.incrementAndGet();
      assertEquals(201, new Api(base.connection()).create("shared"));
    }
  }

  @BeforeEach
  void take(Cluster cluster) throws Exception {
    ofBeforeEach = cluster;
    api = new Api(cluster.connection());
  }

  @RepeatedTest(20)
  void aClusterOfItsOwn(Cluster cluster) throws Exception {
    assertSame(ofBeforeEach, cluster);
    assertTrue(api.has("shared"));
    assertFalse(api.has("own"));
    assertEquals(201, api.create("own"));
    assertEquals(1, SETUPS.get());
  }

  @Test
  void faultsComeAboutOnce(Cluster cluster) throws Exception {
    Api met = new Api(cluster.faultsConnection());
    cluster.arm(new Fault("unavailable", "api-test", "create", "configmaps", 1), new Fault("answer-lost", "api-test", "create", "configmaps", 2));
    assertEquals(503, met.create("refused"));
    assertThrows(IOException.class, () -> met.create("lost"));
    assertEquals(201, met.create("made"));
    assertTrue(api.has("lost"));
    assertFalse(api.has("refused"));
    FaultReport report = cluster.faults();
    assertEquals(2, report.fired().size());
    assertEquals("answer-lost", report.fired().get(1).kind());
    assertEquals(0, report.armed().size());
    FaultReport.Request first = report.requests().get(0);
    assertEquals("api-test", first.client());
    assertEquals(503, first.code());
    assertEquals(0, cluster.waitForKill(0, Duration.ZERO));
    assertEquals(0, cluster.disarm().armed().size());
  }

  @Test
  void aPlanIsTakenAsItIsWritten(Cluster cluster) throws Exception {
    String plan = "faults: [{kind: too-many-requests, at: {client: any, verb: create, resource: configmaps, nth: 1}}]";
    assertEquals(1, cluster.arm(plan, "api-test").armed().size());
    assertEquals(429, new Api(cluster.faultsConnection()).create("one"));
  }

  @Test
  void timeIsMoved(Cluster cluster) throws Exception {
    assertEquals(Duration.ofHours(1), cluster.advance(Duration.ofHours(1)));
    assertEquals(Duration.ofHours(1), cluster.ahead());
    assertEquals(201, api.create("later"));
    Matcher created = Pattern.compile("\"creationTimestamp\":\"([^\"]+)\"").matcher(api.get("/api/v1/namespaces/default/configmaps/later").body());
    assertTrue(created.find());
    assertTrue(Instant.parse(created.group(1)).isAfter(Instant.now().plusSeconds(3000)), created.group(1));
  }

  @Test
  void aForkOfAForkHasWhatTheFirstOneHas(Cluster cluster) throws Exception {
    assertEquals(201, api.create("before"));
    try (Cluster second = cluster.fork("second")) {
      assertEquals("second", second.name());
      assertTrue(new Api(second.connection()).has("before"));
      assertNotEquals(cluster.connection().url(), second.connection().url());
    }
    assertTrue(Files.exists(cluster.connection().kubeconfigFile()));
  }

  @Test
  void whatIsRefusedSaysWhy(Cluster cluster) {
    ControlException name = assertThrows(ControlException.class, () -> cluster.fork("No Name"));
    assertTrue(name.getMessage().contains("is no name"), name.getMessage());
    ControlException fault = assertThrows(ControlException.class, () -> cluster.arm("faults: 3", null));
    assertFalse(fault.getMessage().isEmpty());
  }

  @Nested
  class InAnotherClass {
    @Test
    void theSetUpIsShared(Cluster cluster) throws Exception {
      assertTrue(new Api(cluster.connection()).has("shared"));
      assertEquals(1, SETUPS.get());
    }
  }
}
