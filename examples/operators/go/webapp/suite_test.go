package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	v1 "github.com/kaji-k8s/kaji/examples/operators/go/webapp/api/v1"
)

// beOperator in the environment of this program makes it the operator, as its user starts it.
const beOperator = "BE_WEBAPP_OPERATOR"

var (
	k8s      client.Client
	one, two *exec.Cmd
)

// TestMain runs two instances of the operator, as its service account, against the cluster of the kubeconfig: one leads, the
// other stands by and serves the webhooks.
func TestMain(m *testing.M) {
	if os.Getenv(beOperator) != "" {
		main()
		return
	}
	ctrl.SetLogger(zap.New())
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx := context.Background()
	existing := true
	env := &envtest.Environment{
		UseExistingCluster: &existing,
		CRDInstallOptions: envtest.CRDInstallOptions{
			Paths:           []string{"../../manifests/webapp-crd.yaml"},
			CleanUpAfterUse: true,
		},
		WebhookInstallOptions: envtest.WebhookInstallOptions{Paths: []string{"../../manifests/webapp-webhooks.yaml"}},
	}
	config, err := env.Start()
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, env.Stop()) }()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		return 1, err
	}
	if k8s, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return 1, err
	}
	rights, err := documents("../../manifests/webapp-rbac.yaml")
	if err != nil {
		return 1, err
	}
	for _, object := range rights {
		if err := client.IgnoreAlreadyExists(k8s.Create(ctx, object)); err != nil {
			return 1, err
		}
	}
	dir, err := os.MkdirTemp("", "webapp")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := writeKubeconfig(ctx, config, kubeconfig); err != nil {
		return 1, err
	}

	defer func() {
		for _, operator := range []*exec.Cmd{one, two} {
			err = errors.Join(err, stop(operator))
		}
		webhooks := env.WebhookInstallOptions
		for _, webhook := range webhooks.MutatingWebhooks {
			err = errors.Join(err, k8s.Delete(ctx, webhook))
		}
		for _, webhook := range webhooks.ValidatingWebhooks {
			err = errors.Join(err, k8s.Delete(ctx, webhook))
		}
		for _, object := range rights {
			err = errors.Join(err, k8s.Delete(ctx, object))
		}
	}()
	if one, err = start(kubeconfig); err != nil {
		return 1, err
	}
	if err := until(ctx, func(ctx context.Context) error { _, err := leader(ctx); return err }); err != nil {
		return 1, fmt.Errorf("no process leads: %w", err)
	}
	serving := env.WebhookInstallOptions
	two, err = start(kubeconfig, "--webhook-cert-dir", serving.LocalServingCertDir, "--webhook-host", serving.LocalServingHost,
		"--webhook-port", strconv.Itoa(serving.LocalServingPort))
	if err != nil {
		return 1, err
	}
	address := net.JoinHostPort(serving.LocalServingHost, strconv.Itoa(serving.LocalServingPort))
	if err := until(ctx, func(context.Context) error { return dial(address) }); err != nil {
		return 1, fmt.Errorf("no process serves webhooks: %w", err)
	}
	return m.Run(), nil
}

// documents reads the objects of a file.
func documents(path string) ([]*unstructured.Unstructured, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	var objects []*unstructured.Unstructured
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); err == io.EOF {
			return objects, nil
		} else if err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
}

// writeKubeconfig writes that of the operator's account, which may do what its roles say.
func writeKubeconfig(ctx context.Context, config *rest.Config, path string) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	request := &authenticationv1.TokenRequest{}
	if err := k8s.SubResource("token").Create(ctx, account, request); err != nil {
		return err
	}
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{
		Server: config.Host, CertificateAuthorityData: config.CAData, CertificateAuthority: config.CAFile,
	}
	file.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: request.Status.Token}
	file.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	file.CurrentContext = "c"
	return clientcmd.WriteToFile(*file, path)
}

func start(kubeconfig string, args ...string) (*exec.Cmd, error) {
	operator := exec.Command(os.Args[0], args...)
	operator.Env = append(os.Environ(), beOperator+"=true", "KUBECONFIG="+kubeconfig)
	operator.Stdout, operator.Stderr = os.Stdout, os.Stderr
	return operator, operator.Start()
}

// stop ends an instance as a cluster would.
func stop(operator *exec.Cmd) error {
	if operator == nil || operator.Process == nil || operator.ProcessState != nil {
		return nil
	}
	if err := operator.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return operator.Wait()
}

// leader returns the holder of the lease.
func leader(ctx context.Context) (string, error) {
	lease := &coordinationv1.Lease{}
	if err := k8s.Get(ctx, types.NamespacedName{Namespace: "default", Name: name}, lease); err != nil {
		return "", err
	}
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		return "", errors.New("the lease has no holder")
	}
	return *lease.Spec.HolderIdentity, nil
}

func dial(address string) error {
	connection, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return err
	}
	return connection.Close()
}

// until waits until check says that all is as it should be, and fails with what was wrong last.
func until(ctx context.Context, check func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 90*time.Second, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	return nil
}

func eventually(t *testing.T, check func(context.Context) error) {
	t.Helper()
	must(t, until(t.Context(), check))
}

// missing says whether there is no such object.
func missing(ctx context.Context, object client.Object) error {
	err := k8s.Get(ctx, client.ObjectKeyFromObject(object), object)
	if err == nil {
		return fmt.Errorf("%s is still there", object.GetName())
	}
	return client.IgnoreNotFound(err)
}

func gone(t *testing.T, object client.Object) {
	t.Helper()
	eventually(t, func(ctx context.Context) error { return missing(ctx, object) })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
