package shared

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kaji-k8s/kaji/tests/go/envtest/site"
)

// program is in the environment: the binary.
const program = "KAJI"

var (
	control *Control
	scheme  = runtime.NewScheme()
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// run sets one cluster up: the definitions are there in each fork of it.
func run(m *testing.M) (code int, err error) {
	if os.Getenv(program) == "" {
		fmt.Println("there is no", program)
		return 0, nil
	}
	ctrl.SetLogger(zap.New())
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), site.AddToScheme(scheme)); err != nil {
		return 1, err
	}
	if control, err = Start(os.Getenv(program), "--controllers=namespace-controller,garbage-collector-controller"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, control.Stop()) }()
	config, err := control.Base.Config()
	if err != nil {
		return 1, err
	}
	if _, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{Paths: []string{"../crd"}}); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// fork makes a cluster of the test's own.
func fork(t *testing.T) *Cluster {
	t.Helper()
	cluster, err := control.Base.Fork(t.Context())
	must(t, err)
	t.Cleanup(func() {
		if err := cluster.Delete(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return cluster
}

func clientOf(t *testing.T, cluster *Cluster) client.Client {
	t.Helper()
	config, err := cluster.Config()
	must(t, err)
	c, err := client.New(config, client.Options{Scheme: scheme})
	must(t, err)
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// operate runs the operator until the returned function is called.
func operate(t *testing.T, rc *rest.Config) (stop func()) {
	t.Helper()
	again := true
	mgr, err := ctrl.NewManager(rc, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
		// One a test.
		Controller: config.Controller{SkipNameValidation: &again},
	})
	must(t, err)
	must(t, (&site.Reconciler{Client: mgr.GetClient(), Farewells: make(chan string, 16)}).SetupWithManager(mgr))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Log("the manager ended:", err)
		}
	}
}

func newSite() *site.Site {
	replicas := int32(1)
	return &site.Site{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello"},
		Spec:       site.SiteSpec{Greeting: "good morning", Replicas: &replicas},
	}
}

func waitReady(t *testing.T, c client.Client) {
	t.Helper()
	s := newSite()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(s), s)
		return err == nil && meta.IsStatusConditionTrue(s.Status.Conditions, "Ready"), client.IgnoreNotFound(err)
	})
	must(t, err)
}

// TestForks has a hundred clusters, eight at a time, all from one set-up.
func TestForks(t *testing.T) {
	began, turns := time.Now(), make(chan struct{}, 8)
	t.Run("all", func(t *testing.T) {
		for i := range 100 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				turns <- struct{}{}
				defer func() { <-turns }()
				c := clientOf(t, fork(t))
				sites := &site.SiteList{}
				must(t, c.List(t.Context(), sites))
				if len(sites.Items) > 0 {
					t.Fatal("there are sites of another test")
				}
				must(t, c.Create(t.Context(), newSite()))
			})
		}
	})
	t.Logf("100 forks after %v", time.Since(began).Round(time.Millisecond))
}

// TestFaults runs the operator behind the fault layer.
func TestFaults(t *testing.T) {
	cluster := fork(t)
	at := func(verb, resource string) Point {
		return Point{Client: "shared.test", Verb: verb, Resource: resource, Nth: 1}
	}
	must(t, cluster.Arm(t.Context(),
		Fault{Kind: "answer-lost", At: at("create", "configmaps")},
		Fault{Kind: "unavailable", At: at("patch", "deployments.apps")},
		Fault{Kind: "conflict", At: at("update", "sites.web.example.com")},
	))
	config, err := cluster.FaultsConfig()
	must(t, err)
	defer operate(t, config)()
	c := clientOf(t, cluster)
	must(t, c.Create(t.Context(), newSite()))
	waitReady(t, c)
	report, err := cluster.Faults(t.Context())
	must(t, err)
	if len(report.Fired) != 3 || len(report.Armed) != 0 {
		t.Fatalf("%+v", report)
	}
}

// TestKill ends the operator between two writes, and starts it again with a view from before.
func TestKill(t *testing.T) {
	cluster := fork(t)
	point := Point{Client: "shared.test", Verb: "create", Resource: "configmaps", Nth: 1}
	must(t, cluster.Arm(t.Context(), Fault{Kind: "stale-view", At: point}))
	config, err := cluster.FaultsConfig()
	must(t, err)
	stop := operate(t, config)
	c := clientOf(t, cluster)
	must(t, c.Create(t.Context(), newSite()))
	kills, err := cluster.WaitForKill(t.Context(), 0)
	must(t, err)
	if kills != 1 {
		t.Fatalf("%d kills", kills)
	}
	stop()
	defer operate(t, config)()
	waitReady(t, c)
	maps := &corev1.ConfigMapList{}
	must(t, c.List(t.Context(), maps, client.InNamespace("default")))
	if len(maps.Items) != 1 {
		t.Fatalf("%d config maps", len(maps.Items))
	}
}

// TestClock moves the time of one cluster.
func TestClock(t *testing.T) {
	cluster := fork(t)
	must(t, cluster.Advance(t.Context(), 24*3600))
	s := newSite()
	must(t, clientOf(t, cluster).Create(t.Context(), s))
	if ahead := time.Until(s.CreationTimestamp.Time); ahead < 23*time.Hour {
		t.Fatalf("ahead by %v", ahead)
	}
}
