package greetings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.fabric8.kubernetes.api.model.ObjectMetaBuilder;
import io.javaoperatorsdk.operator.Operator;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;

/**
 * jenvtest, and kube-api-test that came of it, find kaji in the place of kube-apiserver and etcd: in k8s/VERSION-OS-ARCHITECTURE of
 * JENVTEST_DIR and KUBE_API_TEST_DIR.
 */
@EnabledIfEnvironmentVariable(named = "JENVTEST_DIR", matches = ".+")
class AssetsTest {
  @Test
  void jenvtestRunsIt() throws Exception {
    var config = io.javaoperatorsdk.jenvtest.KubeAPIServerConfigBuilder.anAPIServerConfig().withOfflineMode(true).build();
    var server = new io.javaoperatorsdk.jenvtest.KubeAPIServer(config);
    server.start();
    try {
      operate(server.getKubeConfigYaml());
    } finally {
      server.stop();
    }
  }

  @Test
  void kubeApiTestRunsIt() throws Exception {
    var config = io.fabric8.kubeapitest.KubeAPIServerConfigBuilder.anAPIServerConfig().withOfflineMode(true).build();
    var server = new io.fabric8.kubeapitest.KubeAPIServer(config);
    server.start();
    try {
      operate(server.getKubeConfigYaml());
    } finally {
      server.stop();
    }
  }

  private static void operate(String kubeconfig) throws Exception {
    try (KubernetesClient client = new KubernetesClientBuilder().withConfig(Config.fromKubeconfig(kubeconfig)).build()) {
      assertTrue(client.getKubernetesVersion().getGitVersion().contains("kaji"), client.getKubernetesVersion().getGitVersion());
      Definitions.apply(client);
      Operator operator = new Operator(settings -> settings.withKubernetesClient(client).withCloseClientOnStop(false));
      operator.register(new GreetingReconciler());
      operator.start();
      Greeting greeting = new Greeting();
      greeting.setMetadata(new ObjectMetaBuilder().withName("hello").withNamespace("default").build());
      greeting.setSpec(new Greeting.Spec());
      greeting.getSpec().text = "good morning";
      client.resource(greeting).create();
      client.configMaps().inNamespace("default").withName("hello").waitUntilCondition(found -> found != null, 60, TimeUnit.SECONDS);
      assertEquals("good morning", client.configMaps().inNamespace("default").withName("hello").get().getData().get("text"));
      operator.stop();
    }
  }
}
