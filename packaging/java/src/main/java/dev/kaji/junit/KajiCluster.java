package dev.kaji.junit;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Inherited;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;
import org.junit.jupiter.api.extension.ExtendWith;

/**
 * The tests of a class have a {@link Cluster} each, as a parameter of the test or of its {@code @BeforeEach}: a fork of one that is set up
 * once. Classes with equal annotations share the process and the set-up.
 */
@Documented
@Inherited
@Target({ElementType.TYPE, ElementType.ANNOTATION_TYPE})
@Retention(RetentionPolicy.RUNTIME)
@ExtendWith(KajiExtension.class)
public @interface KajiCluster {
  /** What is done to the base, once. The class has a constructor without parameters. */
  Class<? extends KajiSetup> setup() default KajiSetup.None.class;

  /** Control loops of the clusters, as kube-controller-manager's {@code --controllers}. */
  String[] controllers() default {};

  /** Simulated nodes. */
  int nodes() default 0;

  /** More flags of {@code kaji envtest serve}. */
  String[] arguments() default {};
}
