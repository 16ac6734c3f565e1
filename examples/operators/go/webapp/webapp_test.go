package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/kaji-k8s/kaji/examples/operators/go/webapp/api/v1"
)

func namespace(t *testing.T) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	must(t, k8s.Create(t.Context(), ns))
	t.Cleanup(func() {
		// The test's own context has ended by then. While there is an operator, finalizers are done with.
		ctx := context.Background()
		must(t, k8s.Delete(ctx, ns))
		must(t, until(ctx, func(ctx context.Context) error { return missing(ctx, ns) }))
	})
	return ns.Name
}

func newApp(namespace, name, image string) *v1.WebApp {
	return &v1.WebApp{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1.WebAppSpec{Image: image},
	}
}

// ready waits for the condition to be so, for what is wanted now.
func ready(t *testing.T, app *v1.WebApp, status metav1.ConditionStatus) metav1.Condition {
	t.Helper()
	var found metav1.Condition
	eventually(t, func(ctx context.Context) error {
		if err := k8s.Get(ctx, client.ObjectKeyFromObject(app), app); err != nil {
			return err
		}
		condition := meta.FindStatusCondition(app.Status.Conditions, "Ready")
		if condition == nil || condition.Status != status || condition.ObservedGeneration != app.Generation {
			return fmt.Errorf("status %+v", app.Status)
		}
		found = *condition
		return nil
	})
	return found
}

func hostOf(t *testing.T, host string) string {
	t.Helper()
	holder, err := hosts{client: k8s, namespace: "default"}.holder(t.Context(), host)
	must(t, err)
	return holder
}

func TestFromCreationToGarbage(t *testing.T) {
	ns := namespace(t)
	app := newApp(ns, "shop", "nginx:1.29")
	must(t, k8s.Create(t.Context(), app))
	host := "shop." + ns + ".example.com"
	if s := app.Spec; *s.Replicas != 2 || *s.Port != 80 || s.Host != host {
		t.Fatalf("not as the webhook completes it: %+v", s)
	}
	condition := ready(t, app, metav1.ConditionTrue)
	if condition.Reason != "AllReplicasReady" || condition.Message != "2 of 2 replicas are ready" {
		t.Fatalf("%+v", condition)
	}
	if s := app.Status; s.ObservedGeneration != 1 || s.ReadyReplicas != 2 || s.URL != "http://"+host {
		t.Fatalf("%+v", s)
	}
	if !controllerutil.ContainsFinalizer(app, finalizer) || hostOf(t, host) != ns+"/shop" {
		t.Fatal(app.Finalizers, hostOf(t, host))
	}
	deployment, service := &appsv1.Deployment{}, &corev1.Service{}
	for _, child := range []client.Object{deployment, service} {
		must(t, k8s.Get(t.Context(), client.ObjectKeyFromObject(app), child))
		if !metav1.IsControlledBy(child, app) {
			t.Fatalf("%+v", child.GetOwnerReferences())
		}
	}

	// What it is changed to, it becomes; what is taken away comes back.
	patch := client.MergeFrom(app.DeepCopy())
	replicas := int32(3)
	app.Spec.Replicas, app.Spec.Image = &replicas, "nginx:1.30"
	must(t, k8s.Patch(t.Context(), app, patch))
	must(t, k8s.Delete(t.Context(), service))
	ready(t, app, metav1.ConditionTrue)
	if app.Generation != 2 || app.Status.ReadyReplicas != 3 {
		t.Fatalf("%d %+v", app.Generation, app.Status)
	}
	must(t, k8s.Get(t.Context(), client.ObjectKeyFromObject(app), deployment))
	if image := deployment.Spec.Template.Spec.Containers[0].Image; image != "nginx:1.30" {
		t.Fatal(image)
	}
	eventually(t, func(ctx context.Context) error {
		return k8s.Get(ctx, client.ObjectKeyFromObject(app), &corev1.Service{})
	})
	eventually(t, func(ctx context.Context) error {
		events := &eventsv1.EventList{}
		if err := k8s.List(ctx, events, client.InNamespace(ns)); err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.ReportingController == name && event.Reason == "AllReplicasReady" && event.Regarding.Name == "shop" {
				return nil
			}
		}
		return fmt.Errorf("no event among %d", len(events.Items))
	})

	// Its end: the finalizer gives the host back, garbage collection takes what it owned.
	must(t, k8s.Delete(t.Context(), app))
	gone(t, app)
	if holder := hostOf(t, host); holder != "" {
		t.Fatal(holder)
	}
	gone(t, deployment)
	gone(t, service)
	eventually(t, func(ctx context.Context) error {
		pods := &corev1.PodList{}
		if err := k8s.List(ctx, pods, client.InNamespace(ns)); err != nil || len(pods.Items) == 0 {
			return err
		}
		return fmt.Errorf("%d pods are left", len(pods.Items))
	})
}

func TestWhatCannotWorkIsRefused(t *testing.T) {
	ns := namespace(t)
	refused := func(err error, because string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), because) {
			t.Fatal(err)
		}
	}
	refused(k8s.Create(t.Context(), newApp(ns, "loose", "nginx")),
		`admission webhook "validate.webapps.apps.example.com" denied the request: WebApp.apps.example.com "loose" is invalid: `+
			`spec.image: Invalid value: "nginx": needs a tag other than latest, or a digest`)
	many := newApp(ns, "many", "nginx:1")
	replicas := int32(101)
	many.Spec.Replicas = &replicas
	refused(k8s.Create(t.Context(), many), "spec.replicas in body should be less than or equal to 100")

	first := newApp(ns, "first", "nginx:1")
	must(t, k8s.Create(t.Context(), first))
	ready(t, first, metav1.ConditionTrue)
	second := newApp(ns, "second", "nginx:1")
	second.Spec.Host = first.Spec.Host
	refused(k8s.Create(t.Context(), second), "belongs to "+ns+"/first")
	patch := client.MergeFrom(first.DeepCopy())
	first.Spec.Host = "moved.example.com"
	refused(k8s.Patch(t.Context(), first, patch), "a host cannot be changed")
}

func TestTheHostIsTaken(t *testing.T) {
	ns := namespace(t)
	app := newApp(ns, "late", "nginx:1")
	must(t, k8s.Create(t.Context(), app))
	ready(t, app, metav1.ConditionTrue)
	// Another object gets it nevertheless.
	set := func(holder string) {
		t.Helper()
		list := &corev1.ConfigMap{}
		must(t, k8s.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "webapp-hosts"}, list))
		patch := client.MergeFrom(list.DeepCopy())
		list.Data[app.Spec.Host] = holder
		must(t, k8s.Patch(t.Context(), list, patch))
	}
	set("far/away")
	patch := client.MergeFrom(app.DeepCopy())
	one := int32(1)
	app.Spec.Replicas = &one
	must(t, k8s.Patch(t.Context(), app, patch))
	condition := ready(t, app, metav1.ConditionFalse)
	if condition.Reason != "HostTaken" || condition.Message != app.Spec.Host+" belongs to far/away" || app.Status.URL != "" {
		t.Fatalf("%+v", condition)
	}
	set(ns + "/late")
	ready(t, app, metav1.ConditionTrue)
}

// TestTakeover is the last one: of the two instances, it leaves one.
func TestTakeover(t *testing.T) {
	before, err := leader(t.Context())
	must(t, err)
	must(t, stop(one))
	eventually(t, func(ctx context.Context) error {
		if now, err := leader(ctx); err != nil || now != before {
			return err
		}
		return fmt.Errorf("%s still leads", before)
	})
	app := newApp(namespace(t), "later", "nginx:1")
	must(t, k8s.Create(t.Context(), app))
	ready(t, app, metav1.ConditionTrue)
}
