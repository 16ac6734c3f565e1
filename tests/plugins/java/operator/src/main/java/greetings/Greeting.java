package greetings;

import io.fabric8.kubernetes.api.model.Namespaced;
import io.fabric8.kubernetes.client.CustomResource;
import io.fabric8.kubernetes.model.annotation.Group;
import io.fabric8.kubernetes.model.annotation.Version;

/** A text that a config map and a deployment have to have. */
@Group("greetings.example.com")
@Version("v1")
public class Greeting extends CustomResource<Greeting.Spec, Greeting.Status> implements Namespaced {
  private static final long serialVersionUID = 1L;

  /** What is wanted. */
  public static class Spec {
    public String text;
    public int replicas;
  }

  /** What there is. */
  public static class Status {
    public String said;
  }
}
