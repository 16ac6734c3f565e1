package clients;

import io.kubernetes.client.custom.V1Patch;
import io.kubernetes.client.informer.ResourceEventHandler;
import io.kubernetes.client.informer.SharedInformerFactory;
import io.kubernetes.client.openapi.ApiClient;
import io.kubernetes.client.openapi.ApiException;
import io.kubernetes.client.openapi.apis.CoreV1Api;
import io.kubernetes.client.openapi.models.V1ConfigMap;
import io.kubernetes.client.openapi.models.V1ConfigMapList;
import io.kubernetes.client.openapi.models.V1ObjectMeta;
import io.kubernetes.client.util.CallGeneratorParams;
import io.kubernetes.client.util.Config;
import io.kubernetes.client.util.PatchUtils;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/** The project's own Java client. */
public final class Official {
  private static final String NAME = "from-java";
  private static final String SELECTOR = "by=java";

  public static void main(String[] args) throws Exception {
    Checks checks = new Checks();
    ApiClient client = Config.fromConfig(args[0]);
    client.setReadTimeout(0);
    CoreV1Api core = new CoreV1Api(client);
    BlockingQueue<String> changes = new LinkedBlockingQueue<>();
    SharedInformerFactory factory = new SharedInformerFactory(client);
    factory.sharedIndexInformerFor(
        (CallGeneratorParams p) -> core.listNamespacedConfigMap("default").labelSelector(SELECTOR)
            .resourceVersion(p.resourceVersion).timeoutSeconds(p.timeoutSeconds).watch(p.watch).buildCall(null),
        V1ConfigMap.class, V1ConfigMapList.class, Duration.ofMinutes(5).toMillis())
        .addEventHandler(handler(changes));
    factory.startAllRegisteredInformers();

    V1ConfigMap map = new V1ConfigMap().data(Map.of("k", "1"))
        .metadata(new V1ObjectMeta().name(NAME).labels(Map.of("by", "java")));
    checks.check("created", core.createNamespacedConfigMap("default", map).execute().getData().get("k").equals("1"));
    try {
      core.createNamespacedConfigMap("default", map).execute();
      throw new AssertionError("a second create went through");
    } catch (ApiException e) {
      checks.check("conflict", e.getCode() == 409);
    }
    checks.await(changes, "ADDED 1");
    V1ConfigMapList list = core.listNamespacedConfigMap("default").labelSelector(SELECTOR).execute();
    checks.check("listed", list.getItems().size() == 1);
    V1ConfigMap patched = PatchUtils.patch(V1ConfigMap.class,
        () -> core.patchNamespacedConfigMap(NAME, "default", new V1Patch("{\"data\":{\"k\":\"2\"}}")).buildCall(null),
        V1Patch.PATCH_FORMAT_STRATEGIC_MERGE_PATCH, client);
    checks.check("patched", patched.getData().get("k").equals("2"));
    checks.await(changes, "MODIFIED 2");
    core.deleteNamespacedConfigMap(NAME, "default").execute();
    checks.await(changes, "DELETED");
    try {
      core.readNamespacedConfigMap(NAME, "default").execute();
      throw new AssertionError("still there after its deletion");
    } catch (ApiException e) {
      checks.check("gone", e.getCode() == 404);
    }
    factory.stopAllRegisteredInformers();
    checks.done("client-java");
    System.exit(0);
  }

  private static ResourceEventHandler<V1ConfigMap> handler(BlockingQueue<String> changes) {
    return new ResourceEventHandler<>() {
      @Override
      public void onAdd(V1ConfigMap map) {
        changes.add("ADDED " + map.getData().get("k"));
      }

      @Override
      public void onUpdate(V1ConfigMap before, V1ConfigMap map) {
        changes.add("MODIFIED " + map.getData().get("k"));
      }

      @Override
      public void onDelete(V1ConfigMap map, boolean unknown) {
        changes.add("DELETED");
      }
    };
  }
}
