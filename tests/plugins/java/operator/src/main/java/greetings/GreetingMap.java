package greetings;

import io.fabric8.kubernetes.api.model.ConfigMap;
import io.fabric8.kubernetes.api.model.ConfigMapBuilder;
import io.javaoperatorsdk.operator.api.reconciler.Context;
import io.javaoperatorsdk.operator.processing.dependent.kubernetes.CRUDKubernetesDependentResource;
import io.javaoperatorsdk.operator.processing.dependent.kubernetes.KubernetesDependent;
import java.util.Map;

/** The config map of a greeting. */
@KubernetesDependent
public class GreetingMap extends CRUDKubernetesDependentResource<ConfigMap, Greeting> {
  @Override
  protected ConfigMap desired(Greeting greeting, Context<Greeting> context) {
    return new ConfigMapBuilder()
        .withNewMetadata().withName(greeting.getMetadata().getName()).withNamespace(greeting.getMetadata().getNamespace()).endMetadata()
        .withData(Map.of("text", greeting.getSpec().text))
        .build();
  }
}
