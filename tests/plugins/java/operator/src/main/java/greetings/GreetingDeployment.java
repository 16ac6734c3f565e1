package greetings;

import io.fabric8.kubernetes.api.model.apps.Deployment;
import io.fabric8.kubernetes.api.model.apps.DeploymentBuilder;
import io.javaoperatorsdk.operator.api.reconciler.Context;
import io.javaoperatorsdk.operator.processing.dependent.kubernetes.CRUDKubernetesDependentResource;
import io.javaoperatorsdk.operator.processing.dependent.kubernetes.KubernetesDependent;
import java.util.Map;

/** The deployment of a greeting. */
@KubernetesDependent
public class GreetingDeployment extends CRUDKubernetesDependentResource<Deployment, Greeting> {
  @Override
  protected Deployment desired(Greeting greeting, Context<Greeting> context) {
    String name = greeting.getMetadata().getName();
    Map<String, String> labels = Map.of("greeting", name);
    return new DeploymentBuilder()
        .withNewMetadata().withName(name).withNamespace(greeting.getMetadata().getNamespace()).endMetadata()
        .withNewSpec()
        .withReplicas(greeting.getSpec().replicas)
        .withNewSelector().withMatchLabels(labels).endSelector()
        .withNewTemplate()
        .withNewMetadata().withLabels(labels).endMetadata()
        .withNewSpec()
        .addNewContainer().withName("greeter").withImage("greeter").addNewEnv().withName("TEXT").withValue(greeting.getSpec().text).endEnv().endContainer()
        .endSpec()
        .endTemplate()
        .endSpec()
        .build();
  }
}
