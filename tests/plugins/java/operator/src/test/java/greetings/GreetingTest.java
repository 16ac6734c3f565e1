package greetings;

import static greetings.Definitions.client;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kaji.junit.Cluster;
import dev.kaji.junit.Fault;
import dev.kaji.junit.KajiCluster;
import io.fabric8.kubernetes.api.model.ConfigMap;
import io.fabric8.kubernetes.api.model.ObjectMetaBuilder;
import io.fabric8.kubernetes.api.model.apps.Deployment;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.javaoperatorsdk.operator.Operator;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.RepeatedTest;
import org.junit.jupiter.api.Test;

/** An operator of the Java Operator SDK: one set-up, a fork for each test, the operator behind the fault layer. */
@KajiCluster(
    setup = Definitions.class,
    controllers = {"namespace-controller", "garbage-collector-controller", "deployment-controller", "replicaset-controller"})
class GreetingTest {
  private static final String CLIENT = "fabric8-kubernetes-client";
  private KubernetesClient own;
  private Operator operator;

  @BeforeEach
  void start(Cluster cluster) {
    own = client(cluster.connection());
    KubernetesClient met = client(cluster.faultsConnection());
    operator = new Operator(settings -> settings.withKubernetesClient(met));
    operator.register(new GreetingReconciler());
  }

  @AfterEach
  void stop() {
    operator.stop();
    own.close();
  }

  private void greet(String text) {
    Greeting greeting = new Greeting();
    greeting.setMetadata(new ObjectMetaBuilder().withName("hello").withNamespace("default").build());
    greeting.setSpec(new Greeting.Spec());
    greeting.getSpec().text = text;
    greeting.getSpec().replicas = 2;
    own.resource(greeting).serverSideApply();
  }

  private void isSaid(String text) {
    own.resources(Greeting.class).inNamespace("default").withName("hello")
        .waitUntilCondition(found -> found != null && found.getStatus() != null && text.equals(found.getStatus().said), 60, TimeUnit.SECONDS);
    assertEquals(text, own.configMaps().inNamespace("default").withName("hello").get().getData().get("text"));
  }

  @Test
  void aGreetingGetsItsObjectsAndTheyGoWithIt(Cluster cluster) {
    operator.start();
    greet("good morning");
    isSaid("good morning");
    Deployment deployment =
        own.apps().deployments().inNamespace("default").withName("hello")
            .waitUntilCondition(found -> found != null && found.getStatus() != null && Integer.valueOf(2).equals(found.getStatus().getReplicas()), 60, TimeUnit.SECONDS);
    assertEquals("Greeting", deployment.getMetadata().getOwnerReferences().get(0).getKind());
    greet("good evening");
    isSaid("good evening");
    own.resources(Greeting.class).inNamespace("default").withName("hello").delete();
    own.resources(Greeting.class).inNamespace("default").withName("hello").waitUntilCondition(found -> found == null, 60, TimeUnit.SECONDS);
    own.configMaps().inNamespace("default").withName("hello").waitUntilCondition(found -> found == null, 60, TimeUnit.SECONDS);
    own.pods().inNamespace("default").withLabel("greeting", "hello").informOnCondition(pods -> pods.isEmpty()).orTimeout(60, TimeUnit.SECONDS).join();
    assertTrue(cluster.faults().requests().stream().anyMatch(request -> request.client().equals(CLIENT)));
  }

  @Test
  void writesThatFailAreDoneAgain(Cluster cluster) {
    cluster.arm(
        new Fault("unavailable", CLIENT, "create", "configmaps", 1),
        new Fault("answer-lost", CLIENT, "create", "configmaps", 2),
        new Fault("conflict", CLIENT, "patch", "deployments.apps", 1));
    operator.start();
    greet("good night");
    isSaid("good night");
    assertTrue(cluster.faults().fired().stream().anyMatch(fault -> fault.kind().equals("answer-lost")), () -> cluster.faults().toString());
  }

  @RepeatedTest(10)
  void eachTestHasAClusterOfItsOwn() {
    assertEquals(0, own.resources(Greeting.class).inNamespace("default").list().getItems().size());
    ConfigMap map = new ConfigMap();
    map.setMetadata(new ObjectMetaBuilder().withName("mine").withNamespace("default").build());
    own.resource(map).create();
    greet("hello");
  }
}
