package greetings;

import dev.kaji.junit.Cluster;
import dev.kaji.junit.Connection;
import dev.kaji.junit.KajiSetup;
import io.fabric8.kubernetes.api.model.apiextensions.v1.CustomResourceDefinition;
import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import java.io.InputStream;
import java.util.concurrent.TimeUnit;

/** What all tests have. */
final class Definitions implements KajiSetup {
  @Override
  public void setUp(Cluster base) throws Exception {
    try (KubernetesClient client = client(base.connection())) {
      apply(client);
    }
  }

  /** The client of a connection. */
  static KubernetesClient client(Connection connection) {
    return new KubernetesClientBuilder().withConfig(Config.fromKubeconfig(connection.kubeconfig())).build();
  }

  /** Applies the definition of greetings, and waits until it is served. */
  static void apply(KubernetesClient client) throws Exception {
    try (InputStream file = Definitions.class.getResourceAsStream("/greetings.yaml")) {
      CustomResourceDefinition definition = client.apiextensions().v1().customResourceDefinitions().load(file).item();
      client.resource(definition).serverSideApply();
      client
          .resource(definition)
          .waitUntilCondition(
              found -> found != null && found.getStatus() != null && found.getStatus().getConditions().stream().anyMatch(c -> c.getType().equals("Established") && c.getStatus().equals("True")),
              30,
              TimeUnit.SECONDS);
    }
  }
}
