package site

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// Finalizer holds a site until its farewell is said.
const Finalizer = "web.example.com/farewell"

// Reconciler makes a config map and a deployment of each site.
type Reconciler struct {
	client.Client
	Farewells chan<- string
}

// SetupWithManager registers the reconciler.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&Site{}).
		Owns(&corev1.ConfigMap{}).
		Owns(&appsv1.Deployment{}).
		Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	site := &Site{}
	if err := r.Get(ctx, req.NamespacedName, site); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !site.DeletionTimestamp.IsZero() {
		if controllerutil.RemoveFinalizer(site, Finalizer) {
			r.Farewells <- site.Name
			return ctrl.Result{}, r.Update(ctx, site)
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(site, Finalizer) {
		if err := r.Update(ctx, site); err != nil {
			return ctrl.Result{}, err
		}
	}

	page := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: site.Name + "-page", Namespace: site.Namespace}}
	if _, err := controllerutil.CreateOrUpdate(ctx, r.Client, page, func() error {
		page.Data = map[string]string{"index.html": site.Spec.Greeting}
		return controllerutil.SetControllerReference(site, page, r.Scheme())
	}); err != nil {
		return ctrl.Result{}, fmt.Errorf("config map: %w", err)
	}
	if err := r.Apply(ctx, deployment(site), client.FieldOwner("site"), client.ForceOwnership); err != nil {
		return ctrl.Result{}, fmt.Errorf("deployment: %w", err)
	}

	before := site.deepCopy()
	site.Status.ObservedGeneration = site.Generation
	site.Status.ConfigMap = page.Name
	meta.SetStatusCondition(&site.Status.Conditions, metav1.Condition{
		Type: "Ready", Status: metav1.ConditionTrue, Reason: "Served", ObservedGeneration: site.Generation,
	})
	return ctrl.Result{}, r.Status().Patch(ctx, site, client.MergeFrom(before))
}

func deployment(site *Site) *appsv1ac.DeploymentApplyConfiguration {
	labels := map[string]string{"site": site.Name}
	container := corev1ac.Container().WithName("web").WithImage("nginx:1.29").
		WithPorts(corev1ac.ContainerPort().WithName("http").WithContainerPort(80))
	return appsv1ac.Deployment(site.Name, site.Namespace).
		WithLabels(labels).
		WithOwnerReferences(metav1ac.OwnerReference().
			WithAPIVersion(GroupVersion.String()).WithKind("Site").
			WithName(site.Name).WithUID(site.UID).
			WithController(true).WithBlockOwnerDeletion(true)).
		WithSpec(appsv1ac.DeploymentSpec().
			WithReplicas(*site.Spec.Replicas).
			WithSelector(metav1ac.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(corev1ac.PodTemplateSpec().
				WithLabels(labels).
				WithSpec(corev1ac.PodSpec().WithContainers(container))))
}
