// Package clients tries client-go against a cluster: create, list, informer, patch, apply, delete.
package clients

import (
	"context"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applyv1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const name = "from-go"

func await(t *testing.T, changes <-chan string, wanted string) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		select {
		case change := <-changes:
			if change == wanted {
				return
			}
		case <-timeout:
			t.Fatalf("never %s", wanted)
		}
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func TestClient(t *testing.T) {
	for _, kind := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		t.Run(kind, func(t *testing.T) { walk(t, kind) })
	}
}

func walk(t *testing.T, contentType string) {
	ctx := t.Context()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.ContentType = contentType
	config.AcceptContentTypes = contentType
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	maps := client.CoreV1().ConfigMaps("default")
	selected := func(o *metav1.ListOptions) { o.LabelSelector = "by=go" }
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithNamespace("default"), informers.WithTweakListOptions(selected))
	changes := make(chan string, 100)
	informer := factory.Core().V1().ConfigMaps().Informer()
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { changes <- "ADDED " + o.(*corev1.ConfigMap).Data["k"] },
		UpdateFunc: func(_, o any) { changes <- "MODIFIED " + o.(*corev1.ConfigMap).Data["k"] },
		DeleteFunc: func(any) { changes <- "DELETED" },
	})
	if err != nil {
		t.Fatal(err)
	}
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	factory.Start(stop.Done())
	factory.WaitForCacheSync(stop.Done())

	ok := must[*corev1.ConfigMap](t)
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"by": "go"}},
		Data:       map[string]string{"k": "1"},
	}
	ok(maps.Create(ctx, object, metav1.CreateOptions{}))
	if _, err := maps.Create(ctx, object, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Fatalf("a second create: %v", err)
	}
	await(t, changes, "ADDED 1")
	list := must[*corev1.ConfigMapList](t)(maps.List(ctx, metav1.ListOptions{LabelSelector: "by=go"}))
	if len(list.Items) != 1 {
		t.Fatalf("listed %d", len(list.Items))
	}
	patch := []byte(`{"data":{"k":"2"}}`)
	ok(maps.Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}))
	await(t, changes, "MODIFIED 2")
	apply := applyv1.ConfigMap(name, "default").WithData(map[string]string{"l": "3"})
	applied := ok(maps.Apply(ctx, apply, metav1.ApplyOptions{FieldManager: "go-test"}))
	if len(applied.Data) != 2 {
		t.Fatalf("applied %v", applied.Data)
	}
	if err := maps.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, changes, "DELETED")
	if _, err := maps.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("after its deletion: %v", err)
	}
}
