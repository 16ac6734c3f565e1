package dev.kaji.junit;

import java.util.Optional;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.ExtensionConfigurationException;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.ExtensionContext.Namespace;
import org.junit.jupiter.api.extension.ParameterContext;
import org.junit.jupiter.api.extension.ParameterResolutionException;
import org.junit.jupiter.api.extension.ParameterResolver;
import org.junit.platform.commons.support.AnnotationSupport;
import org.junit.platform.commons.support.ReflectionSupport;

/** One process of {@code kaji envtest serve} for equal {@link KajiCluster}s of a run, one fork a test. */
public final class KajiExtension implements BeforeAllCallback, ParameterResolver {
  private static final Namespace NAMESPACE = Namespace.create(KajiExtension.class);

  /** A missing program, or a set-up that fails, is reported once for the class. */
  @Override
  public void beforeAll(ExtensionContext context) {
    control(context);
  }

  @Override
  public boolean supportsParameter(ParameterContext parameter, ExtensionContext context) {
    return parameter.getParameter().getType() == Cluster.class;
  }

  @Override
  public Cluster resolveParameter(ParameterContext parameter, ExtensionContext context) {
    if (context.getTestMethod().isEmpty()) {
      throw new ParameterResolutionException(
          "a Cluster is a test's own: it is a parameter of a test or of @BeforeEach; what tests share is set up by @KajiCluster(setup = …)");
    }
    return context.getStore(NAMESPACE).getOrComputeIfAbsent(Fork.class, key -> new Fork(control(context).base().fork()), Fork.class).cluster();
  }

  private static Control control(ExtensionContext context) {
    KajiCluster wanted = annotation(context);
    // The annotation is the key: equal ones have equal members.
    return context.getRoot().getStore(NAMESPACE).getOrComputeIfAbsent(wanted, KajiExtension::start, Running.class).control();
  }

  private static KajiCluster annotation(ExtensionContext context) {
    for (Class<?> place = context.getRequiredTestClass(); place != null; place = place.getEnclosingClass()) {
      Optional<KajiCluster> found = AnnotationSupport.findAnnotation(place, KajiCluster.class);
      if (found.isPresent()) {
        return found.get();
      }
    }
    throw new ExtensionConfigurationException(context.getRequiredTestClass().getName() + " has no @KajiCluster, which says what its clusters have");
  }

  private static Running start(KajiCluster wanted) {
    Control control = Control.with().controllers(wanted.controllers()).nodes(wanted.nodes()).arguments(wanted.arguments()).start();
    try {
      ReflectionSupport.newInstance(wanted.setup()).setUp(control.base());
    } catch (Throwable error) {
      try {
        control.close();
      } catch (RuntimeException second) {
        error.addSuppressed(second);
      }
      throw new ControlException("the set-up " + wanted.setup().getName() + " failed: " + error, error);
    }
    return new Running(control);
  }

  // JUnit before 5.13 closes nothing but CloseableResources, later ones what is AutoCloseable.
  @SuppressWarnings("deprecation")
  private record Running(Control control) implements ExtensionContext.Store.CloseableResource, AutoCloseable {
    @Override
    public void close() {
      control.close();
    }
  }

  @SuppressWarnings("deprecation")
  private record Fork(Cluster cluster) implements ExtensionContext.Store.CloseableResource, AutoCloseable {
    @Override
    public void close() {
      cluster.close();
    }
  }
}
