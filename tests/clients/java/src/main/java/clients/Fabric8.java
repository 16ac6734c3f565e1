package clients;

import io.fabric8.kubernetes.api.model.ConfigMap;
import io.fabric8.kubernetes.api.model.ConfigMapBuilder;
import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.fabric8.kubernetes.client.KubernetesClientException;
import io.fabric8.kubernetes.client.Watcher;
import io.fabric8.kubernetes.client.WatcherException;
import io.fabric8.kubernetes.client.informers.ResourceEventHandler;
import java.io.File;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/** fabric8's client, which opens watches as WebSockets. */
public final class Fabric8 {
  private static final String NAME = "from-fabric8";

  public static void main(String[] args) throws Exception {
    Checks checks = new Checks();
    Config config = Config.fromKubeconfig(new File(args[0]));
    try (KubernetesClient client = new KubernetesClientBuilder().withConfig(config).build()) {
      var maps = client.configMaps().inNamespace("default");
      maps.withName(NAME).delete();
      BlockingQueue<String> changes = new LinkedBlockingQueue<>();
      var informer = maps.withLabel("by", "fabric8").inform(handler(changes));
      checks.check("the informer has synced", informer.hasSynced());
      BlockingQueue<String> watched = new LinkedBlockingQueue<>();
      var watch = maps.withName(NAME).watch(watcher(watched));

      ConfigMap map = new ConfigMapBuilder().withNewMetadata().withName(NAME).addToLabels("by", "fabric8")
          .endMetadata().addToData("k", "1").build();
      ConfigMap created = maps.resource(map).create();
      checks.check("created", created.getData().get("k").equals("1"));
      try {
        maps.resource(map).create();
        throw new AssertionError("a second create went through");
      } catch (KubernetesClientException e) {
        checks.check("conflict", e.getCode() == 409 && e.getStatus().getReason().equals("AlreadyExists"));
      }
      checks.await(changes, "ADDED 1");
      checks.await(watched, "ADDED");
      checks.check("listed", maps.withLabel("by", "fabric8").list().getItems().size() == 1);

      maps.withName(NAME).edit(m -> new ConfigMapBuilder(m).addToData("k", "2").build());
      checks.await(changes, "MODIFIED 2");
      checks.await(watched, "MODIFIED");
      checks.check("in the cache", informer.getStore().list().get(0).getData().get("k").equals("2"));

      ConfigMap applied = new ConfigMapBuilder().withNewMetadata().withName(NAME).endMetadata()
          .addToData("l", "3").build();
      checks.check("applied", maps.resource(applied).fieldManager("f8").serverSideApply().getData().size() == 2);

      maps.withName(NAME).delete();
      checks.await(changes, "DELETED");
      checks.await(watched, "DELETED");
      checks.check("gone", maps.withName(NAME).get() == null);
      checks.check("version", client.getKubernetesVersion().getMajor().equals("1"));
      watch.close();
      informer.stop();
    }
    checks.done("fabric8");
    System.exit(0);
  }

  private static ResourceEventHandler<ConfigMap> handler(BlockingQueue<String> changes) {
    return new ResourceEventHandler<>() {
      @Override
      public void onAdd(ConfigMap map) {
        changes.add("ADDED " + map.getData().get("k"));
      }

      @Override
      public void onUpdate(ConfigMap before, ConfigMap map) {
        changes.add("MODIFIED " + map.getData().get("k"));
      }

      @Override
      public void onDelete(ConfigMap map, boolean unknown) {
        changes.add("DELETED");
      }
    };
  }

  private static Watcher<ConfigMap> watcher(BlockingQueue<String> changes) {
    return new Watcher<>() {
      @Override
      public void eventReceived(Action action, ConfigMap map) {
        changes.add(action.name());
      }

      @Override
      public void onClose(WatcherException cause) {
        changes.add("CLOSED");
      }
    };
  }
}
