package greetings;

import io.fabric8.kubernetes.api.model.ConfigMap;
import io.javaoperatorsdk.operator.api.reconciler.Cleaner;
import io.javaoperatorsdk.operator.api.reconciler.Context;
import io.javaoperatorsdk.operator.api.reconciler.ControllerConfiguration;
import io.javaoperatorsdk.operator.api.reconciler.DeleteControl;
import io.javaoperatorsdk.operator.api.reconciler.Reconciler;
import io.javaoperatorsdk.operator.api.reconciler.UpdateControl;
import io.javaoperatorsdk.operator.api.reconciler.Workflow;
import io.javaoperatorsdk.operator.api.reconciler.dependent.Dependent;
import io.javaoperatorsdk.operator.processing.retry.GradualRetry;

/** Says in the status what the config map says. A cleaner, so that there is a finalizer. */
@Workflow(dependents = {@Dependent(type = GreetingMap.class), @Dependent(type = GreetingDeployment.class)})
@ControllerConfiguration
@GradualRetry(initialInterval = 100)
public class GreetingReconciler implements Reconciler<Greeting>, Cleaner<Greeting> {
  @Override
  public UpdateControl<Greeting> reconcile(Greeting greeting, Context<Greeting> context) {
    String said = context.getSecondaryResource(ConfigMap.class).map(map -> map.getData().get("text")).orElse(null);
    Greeting changed = new Greeting();
    changed.getMetadata().setName(greeting.getMetadata().getName());
    changed.getMetadata().setNamespace(greeting.getMetadata().getNamespace());
    Greeting.Status status = new Greeting.Status();
    status.said = said;
    changed.setStatus(status);
    return UpdateControl.patchStatus(changed);
  }

  @Override
  public DeleteControl cleanup(Greeting greeting, Context<Greeting> context) {
    return DeleteControl.defaultDelete();
  }
}
