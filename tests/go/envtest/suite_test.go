// Package envtest runs an operator's suite as kubebuilder lays it out. Nothing in it knows of Kaji but
// [TestControllersOnDemand]: KUBEBUILDER_ASSETS decides what it runs against.
package envtest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kaji-k8s/kaji/tests/go/envtest/site"
)

var (
	env       *envtest.Environment
	k8s       client.Client
	mgr       manager.Manager
	farewells = make(chan string, 16)
)

func scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, site.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
}

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctrl.SetLogger(zap.New(zap.UseDevMode(true)))
	env = &envtest.Environment{CRDDirectoryPaths: []string{"crd"}, ErrorIfCRDPathMissing: true}
	started := time.Now()
	config, err := env.Start()
	if err != nil {
		return 1, err
	}
	fmt.Printf("the environment was ready after %v\n", time.Since(started).Round(time.Millisecond))
	defer func() {
		started := time.Now()
		if stopped := env.Stop(); stopped != nil {
			code, err = 1, stopped
		}
		fmt.Printf("the environment ended after %v\n", time.Since(started).Round(time.Millisecond))
	}()
	mgr, err = ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme(),
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return 1, err
	}
	err = mgr.GetFieldIndexer().IndexField(context.Background(), &site.Site{}, "spec.greeting", func(o client.Object) []string {
		return []string{o.(*site.Site).Spec.Greeting}
	})
	if err != nil {
		return 1, err
	}
	if err := (&site.Reconciler{Client: mgr.GetClient(), Farewells: farewells}).SetupWithManager(mgr); err != nil {
		return 1, err
	}
	if k8s, err = client.New(config, client.Options{Scheme: mgr.GetScheme()}); err != nil {
		return 1, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- mgr.Start(ctx) }()
	code = m.Run()
	cancel()
	return code, <-ended
}

func namespace(t *testing.T, c client.Client) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	must(t, c.Create(t.Context(), ns))
	return ns.Name
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until check says that all is as it should be, and fails with what was wrong last.
func eventually(t *testing.T, check func(ctx context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("%v: %v", err, last)
	}
}

func gone(c client.Client, object client.Object) func(context.Context) error {
	return func(ctx context.Context) error {
		err := c.Get(ctx, client.ObjectKeyFromObject(object), object)
		if err == nil {
			return fmt.Errorf("%s is still there", object.GetName())
		}
		return client.IgnoreNotFound(err)
	}
}

func newSite(namespace, name, greeting string) *site.Site {
	return &site.Site{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       site.SiteSpec{Greeting: greeting},
	}
}

func TestReconcile(t *testing.T) {
	ns := namespace(t, k8s)
	s := newSite(ns, "hello", "good morning")
	must(t, k8s.Create(t.Context(), s))
	if s.Spec.Replicas == nil || *s.Spec.Replicas != 2 {
		t.Fatalf("the definition's default is missing: %+v", s.Spec)
	}
	key := client.ObjectKeyFromObject(s)
	eventually(t, func(ctx context.Context) error {
		if err := k8s.Get(ctx, key, s); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(s.Status.Conditions, "Ready") || !controllerutil.ContainsFinalizer(s, site.Finalizer) {
			return fmt.Errorf("not ready: %+v", s.Status)
		}
		return nil
	})
	page := &corev1.ConfigMap{}
	must(t, k8s.Get(t.Context(), types.NamespacedName{Namespace: ns, Name: s.Status.ConfigMap}, page))
	if page.Data["index.html"] != "good morning" || !metav1.IsControlledBy(page, s) {
		t.Fatalf("%+v", page)
	}
	web := &appsv1.Deployment{}
	must(t, k8s.Get(t.Context(), key, web))
	if *web.Spec.Replicas != 2 || web.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType || !metav1.IsControlledBy(web, s) {
		t.Fatalf("%+v", web)
	}

	// A new generation is followed, and changes by others are reverted.
	patch := client.MergeFrom(s.DeepCopyObject().(client.Object))
	replicas := int32(5)
	s.Spec.Replicas, s.Spec.Greeting = &replicas, "good night"
	must(t, k8s.Patch(t.Context(), s, patch))
	if s.Generation != 2 {
		t.Fatalf("generation %d", s.Generation)
	}
	must(t, k8s.Delete(t.Context(), page))
	eventually(t, func(ctx context.Context) error {
		if err := k8s.Get(ctx, key, web); err != nil {
			return err
		}
		if err := k8s.Get(ctx, client.ObjectKeyFromObject(page), page); err != nil {
			return err
		}
		if *web.Spec.Replicas != 5 || page.Data["index.html"] != "good night" {
			return fmt.Errorf("%d replicas, %v", *web.Spec.Replicas, page.Data)
		}
		return nil
	})
	if len(web.ManagedFields) != 1 || web.ManagedFields[0].Manager != "site" || web.ManagedFields[0].Operation != metav1.ManagedFieldsOperationApply {
		t.Fatalf("%+v", web.ManagedFields)
	}
}

func TestFinalizer(t *testing.T) {
	ns := namespace(t, k8s)
	s := newSite(ns, "short", "hi")
	must(t, k8s.Create(t.Context(), s))
	eventually(t, func(ctx context.Context) error {
		if err := k8s.Get(ctx, client.ObjectKeyFromObject(s), s); err != nil {
			return err
		}
		if !controllerutil.ContainsFinalizer(s, site.Finalizer) {
			return fmt.Errorf("no finalizer yet")
		}
		return nil
	})
	must(t, k8s.Delete(t.Context(), s))
	for name := ""; name != "short"; {
		select {
		case name = <-farewells:
		case <-time.After(20 * time.Second):
			t.Fatal("no farewell")
		}
	}
	eventually(t, gone(k8s, s))
}

func TestDefinitionIsEnforced(t *testing.T) {
	ns := namespace(t, k8s)
	err := k8s.Create(t.Context(), newSite(ns, "mute", ""))
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.greeting") {
		t.Fatal(err)
	}
	many := newSite(ns, "many", "hi")
	replicas := int32(11)
	many.Spec.Replicas = &replicas
	if err := k8s.Create(t.Context(), many); !apierrors.IsInvalid(err) {
		t.Fatal(err)
	}
}

func TestStatusIsApart(t *testing.T) {
	ns := namespace(t, k8s)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "p"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodFailed},
	}
	must(t, k8s.Create(t.Context(), pod))
	if pod.Status.Phase != corev1.PodPending {
		t.Fatal(pod.Status.Phase)
	}
	// No node: nothing but the test writes the status, and no controller waits for the grace period.
	pod.Status.Phase = corev1.PodSucceeded
	pod.Spec.Containers[0].Image = "not this one"
	must(t, k8s.Status().Update(t.Context(), pod))
	must(t, k8s.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
	if pod.Status.Phase != corev1.PodSucceeded || pod.Spec.Containers[0].Image != "nginx" {
		t.Fatalf("%s %v", pod.Status.Phase, pod.Spec.Containers)
	}
	stale := pod.DeepCopy()
	pod.Labels = map[string]string{"a": "b"}
	must(t, k8s.Update(t.Context(), pod))
	if err := k8s.Update(t.Context(), stale); !apierrors.IsConflict(err) {
		t.Fatal(err)
	}
	must(t, k8s.Delete(t.Context(), pod))
	eventually(t, gone(k8s, pod))
}

func TestApply(t *testing.T) {
	ns := namespace(t, k8s)
	settings := func(key, value string) *corev1ac.ConfigMapApplyConfiguration {
		return corev1ac.ConfigMap("settings", ns).WithData(map[string]string{key: value})
	}
	must(t, k8s.Apply(t.Context(), settings("a", "1"), client.FieldOwner("one")))
	must(t, k8s.Apply(t.Context(), settings("b", "1"), client.FieldOwner("two")))
	err := k8s.Apply(t.Context(), settings("a", "2"), client.FieldOwner("two"))
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "one": .data.a`) {
		t.Fatal(err)
	}
	must(t, k8s.Apply(t.Context(), settings("a", "2"), client.FieldOwner("two"), client.ForceOwnership))
	found := &corev1.ConfigMap{}
	must(t, k8s.Get(t.Context(), types.NamespacedName{Namespace: ns, Name: "settings"}, found))
	if len(found.Data) != 1 || found.Data["a"] != "2" {
		t.Fatal(found.Data)
	}
	dry := corev1ac.ConfigMap("settings", ns).WithData(map[string]string{"c": "3"})
	must(t, k8s.Apply(t.Context(), dry, client.FieldOwner("three"), client.DryRunAll))
	must(t, k8s.Get(t.Context(), client.ObjectKeyFromObject(found), found))
	if _, there := found.Data["c"]; there {
		t.Fatal(found.Data)
	}
}

func TestCache(t *testing.T) {
	ns := namespace(t, k8s)
	for i := range 5 {
		s := newSite(ns, fmt.Sprint("s", i), []string{"even", "odd"}[i%2])
		s.Labels = map[string]string{"number": fmt.Sprint(i)}
		must(t, k8s.Create(t.Context(), s))
	}
	cached := mgr.GetClient()
	eventually(t, func(ctx context.Context) error {
		sites := &site.SiteList{}
		if err := cached.List(ctx, sites, client.InNamespace(ns), client.MatchingFields{"spec.greeting": "even"}); err != nil {
			return err
		}
		if len(sites.Items) != 3 {
			return fmt.Errorf("%d even ones", len(sites.Items))
		}
		return nil
	})
	sites := &site.SiteList{}
	must(t, cached.List(t.Context(), sites, client.InNamespace(ns), client.MatchingLabels{"number": "4"}))
	if len(sites.Items) != 1 || sites.Items[0].Name != "s4" {
		t.Fatal(sites.Items)
	}
	// Pages, as the server cuts them.
	names, list := 0, &site.SiteList{}
	for {
		must(t, k8s.List(t.Context(), list, client.InNamespace(ns), client.Limit(2), client.Continue(list.Continue)))
		names += len(list.Items)
		if list.Continue == "" {
			break
		}
	}
	if names != 5 {
		t.Fatal(names)
	}
	metadata := &metav1.PartialObjectMetadataList{}
	metadata.SetGroupVersionKind(site.GroupVersion.WithKind("SiteList"))
	must(t, k8s.List(t.Context(), metadata, client.InNamespace(ns)))
	if len(metadata.Items) != 5 {
		t.Fatal(metadata.Items)
	}
	must(t, k8s.DeleteAllOf(t.Context(), &site.Site{}, client.InNamespace(ns)))
	eventually(t, func(ctx context.Context) error {
		if err := k8s.List(ctx, sites, client.InNamespace(ns)); err != nil || len(sites.Items) == 0 {
			return err
		}
		return fmt.Errorf("%d left", len(sites.Items))
	})
}

func TestUsers(t *testing.T) {
	admin, err := env.AddUser(envtest.User{Name: "boss", Groups: []string{"system:masters"}}, nil)
	must(t, err)
	boss, err := client.New(admin.Config(), client.Options{})
	must(t, err)
	must(t, boss.List(t.Context(), &corev1.NamespaceList{}))
	user, err := env.AddUser(envtest.User{Name: "guest", Groups: []string{"visitors"}}, nil)
	must(t, err)
	guest, err := client.New(user.Config(), client.Options{})
	must(t, err)
	err = guest.List(t.Context(), &corev1.SecretList{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "guest" cannot list resource "secrets"`) {
		t.Fatal(err)
	}
	kubectl, err := admin.Kubectl()
	must(t, err)
	out, problems, err := kubectl.Run("get", "namespaces", "default", "--output=name")
	if err != nil {
		t.Skipf("no kubectl: %v %v", err, problems)
	}
	if text := fmt.Sprint(out); text != "namespace/default\n" {
		t.Fatal(text)
	}
}

func TestManyAtOnce(t *testing.T) {
	var group sync.WaitGroup
	for i := range 6 {
		group.Go(func() {
			own := &envtest.Environment{CRDDirectoryPaths: []string{"crd"}}
			config, err := own.Start()
			if err != nil {
				t.Error(err)
				return
			}
			defer func() {
				if err := own.Stop(); err != nil {
					t.Error(err)
				}
			}()
			c, err := client.New(config, client.Options{Scheme: scheme()})
			if err != nil {
				t.Error(err)
				return
			}
			// Each holds its own objects only.
			if err := c.Create(t.Context(), newSite("default", fmt.Sprint("of-", i), "hi")); err != nil {
				t.Error(err)
			}
			sites := &site.SiteList{}
			if err := c.List(t.Context(), sites); err != nil || len(sites.Items) != 1 {
				t.Error(err, len(sites.Items))
			}
		})
	}
	group.Wait()
}

// TestControllersOnDemand asks Kaji for the loops that an API server alone lacks.
func TestControllersOnDemand(t *testing.T) {
	own := &envtest.Environment{CRDDirectoryPaths: []string{"crd"}}
	own.ControlPlane.GetAPIServer().Configure().Set("kaji-controllers", "garbagecollector,namespace")
	config, err := own.Start()
	must(t, err)
	defer func() { must(t, own.Stop()) }()
	c, err := client.New(config, client.Options{Scheme: scheme()})
	must(t, err)
	ns := namespace(t, c)
	owner := newSite(ns, "owner", "hi")
	must(t, c.Create(t.Context(), owner))
	owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "owned"}}
	must(t, controllerutil.SetControllerReference(owner, owned, c.Scheme()))
	must(t, c.Create(t.Context(), owned))
	must(t, c.Delete(t.Context(), owner))
	eventually(t, gone(c, owned))

	must(t, c.Create(t.Context(), newSite(ns, "last", "hi")))
	home := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
	must(t, c.Delete(t.Context(), home))
	eventually(t, gone(c, home))
	eventually(t, gone(c, newSite(ns, "last", "hi")))
}
