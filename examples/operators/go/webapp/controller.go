package main

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/kaji-k8s/kaji/examples/operators/go/webapp/api/v1"
)

const (
	// name of the operator in leases, labels and events.
	name = "webapp-operator"
	// finalizer holds an object until its host is given back.
	finalizer = "apps.example.com/host"
)

// reconciler is the control loop: from a WebApp to its host, deployment and service, and back to its status.
type reconciler struct {
	client.Client
	events events.EventRecorder
	hosts  hosts
}

func (r *reconciler) setUp(mgr ctrl.Manager) error {
	// The deployment and the service bring the loop back when they change.
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1.WebApp{}).
		Owns(&appsv1.Deployment{}).
		Owns(&corev1.Service{}).
		Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	app := &v1.WebApp{}
	if err := r.Get(ctx, req.NamespacedName, app); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	app.SetDefaults()
	if !app.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.cleanUp(ctx, app)
	}
	if controllerutil.AddFinalizer(app, finalizer) {
		if err := r.Update(ctx, app); err != nil {
			return ctrl.Result{}, err
		}
	}
	holder, err := r.hosts.claim(ctx, app.Spec.Host, owner(app))
	if err != nil {
		return ctrl.Result{}, err
	}
	if holder != owner(app) {
		message := fmt.Sprintf("%s belongs to %s", app.Spec.Host, holder)
		// Nothing tells when it becomes free.
		return ctrl.Result{RequeueAfter: 5 * time.Second}, r.report(ctx, app, 0, "HostTaken", message)
	}
	if err := r.service(ctx, app); err != nil {
		return ctrl.Result{}, fmt.Errorf("service: %w", err)
	}
	ready, err := r.deployment(ctx, app)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("deployment: %w", err)
	}
	reason := "WaitingForReplicas"
	if ready == *app.Spec.Replicas {
		reason = "AllReplicasReady"
	}
	message := fmt.Sprintf("%d of %d replicas are ready", ready, *app.Spec.Replicas)
	return ctrl.Result{}, r.report(ctx, app, ready, reason, message)
}

// cleanUp does what garbage collection does not: owned objects go by themselves.
func (r *reconciler) cleanUp(ctx context.Context, app *v1.WebApp) error {
	if !controllerutil.ContainsFinalizer(app, finalizer) {
		return nil
	}
	if err := r.hosts.release(ctx, app.Spec.Host, owner(app)); err != nil {
		return err
	}
	r.events.Eventf(app, nil, corev1.EventTypeNormal, "HostReleased", "Reconcile", "%s is free again", app.Spec.Host)
	controllerutil.RemoveFinalizer(app, finalizer)
	return r.Update(ctx, app)
}

// report writes the status, and an event when the condition's reason is another than before.
func (r *reconciler) report(ctx context.Context, app *v1.WebApp, replicas int32, reason, message string) error {
	before := app.DeepCopy()
	ready := metav1.Condition{
		Type: "Ready", Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: app.Generation,
	}
	app.Status.URL = ""
	if reason == "AllReplicasReady" {
		ready.Status = metav1.ConditionTrue
		app.Status.URL = "http://" + app.Spec.Host
	}
	app.Status.ObservedGeneration, app.Status.ReadyReplicas = app.Generation, replicas
	meta.SetStatusCondition(&app.Status.Conditions, ready)
	if equality.Semantic.DeepEqual(before.Status, app.Status) {
		return nil
	}
	if err := r.Status().Patch(ctx, app, client.MergeFrom(before)); err != nil {
		return err
	}
	old := meta.FindStatusCondition(before.Status.Conditions, "Ready")
	if old == nil || old.Reason != reason {
		kind := corev1.EventTypeNormal
		if reason == "HostTaken" {
			kind = corev1.EventTypeWarning
		}
		r.events.Eventf(app, nil, kind, reason, "Reconcile", "%s", message)
	}
	return nil
}

// deployment makes the deployment what the spec says, and says how many copies of that are ready.
func (r *reconciler) deployment(ctx context.Context, app *v1.WebApp) (int32, error) {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: app.Namespace, Name: app.Name}}
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, d, func() error {
		d.Labels = labels(app)
		d.Spec.Replicas = app.Spec.Replicas
		if d.CreationTimestamp.IsZero() {
			d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels(app)}
		}
		d.Spec.Template.Labels = labels(app)
		// What the API server and others set in a container stays.
		if len(d.Spec.Template.Spec.Containers) == 0 {
			d.Spec.Template.Spec.Containers = make([]corev1.Container, 1)
		}
		container := &d.Spec.Template.Spec.Containers[0]
		container.Name, container.Image = "web", app.Spec.Image
		container.Env = []corev1.EnvVar{{Name: "HOST", Value: app.Spec.Host}}
		container.Ports = []corev1.ContainerPort{
			{Name: "http", ContainerPort: *app.Spec.Port, Protocol: corev1.ProtocolTCP},
		}
		return controllerutil.SetControllerReference(app, d, r.Scheme())
	})
	// Before the deployment's own controller has looked, or while old copies are there, ready ones may be others.
	if d.Status.ObservedGeneration < d.Generation || d.Status.Replicas > d.Status.UpdatedReplicas {
		return 0, err
	}
	return d.Status.ReadyReplicas, err
}

func (r *reconciler) service(ctx context.Context, app *v1.WebApp) error {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: app.Namespace, Name: app.Name}}
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, s, func() error {
		s.Labels = labels(app)
		s.Spec.Selector = labels(app)
		s.Spec.Ports = []corev1.ServicePort{
			{Name: "http", Port: 80, TargetPort: intstr.FromString("http"), Protocol: corev1.ProtocolTCP},
		}
		return controllerutil.SetControllerReference(app, s, r.Scheme())
	})
	return err
}

func owner(app *v1.WebApp) string { return app.Namespace + "/" + app.Name }

func labels(app *v1.WebApp) map[string]string {
	return map[string]string{"app.kubernetes.io/name": app.Name, "app.kubernetes.io/managed-by": name}
}
