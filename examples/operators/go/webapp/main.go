// An operator as it is put to use: a controller for WebApp objects, their webhooks, and leader election.
//
// Start with api/v1/types.go (the kind), then controller.go (what is done about it).
package main

import (
	"flag"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	webhookserver "sigs.k8s.io/controller-runtime/pkg/webhook"

	v1 "github.com/kaji-k8s/kaji/examples/operators/go/webapp/api/v1"
)

// options are the command line's.
type options struct {
	namespace      string
	metricsAddress string
	webhookCertDir string
	webhookHost    string
	webhookPort    int
}

func main() {
	var o options
	flag.StringVar(&o.namespace, "namespace", "default", "The operator's own namespace: the lease and the list of hosts are there.")
	flag.StringVar(&o.metricsAddress, "metrics-bind-address", "0", "Where metrics are served; 0 is nowhere.")
	flag.StringVar(&o.webhookCertDir, "webhook-cert-dir", "", "A folder with tls.crt and tls.key; no webhooks are served without it.")
	flag.StringVar(&o.webhookHost, "webhook-host", "127.0.0.1", "The address that webhooks are served on.")
	flag.IntVar(&o.webhookPort, "webhook-port", 9443, "The port that webhooks are served on.")
	flag.Parse()
	ctrl.SetLogger(zap.New())
	mgr, err := newManager(ctrl.GetConfigOrDie(), o)
	if err == nil {
		err = mgr.Start(ctrl.SetupSignalHandler())
	}
	if err != nil {
		ctrl.Log.Error(err, "the operator ended")
		os.Exit(1)
	}
}

// newManager puts the operator together.
func newManager(config *rest.Config, o options) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: o.metricsAddress},
		WebhookServer: webhookserver.NewServer(webhookserver.Options{
			Host: o.webhookHost, Port: o.webhookPort, CertDir: o.webhookCertDir,
		}),
		// Every instance answers webhooks; one of them runs the controller.
		LeaderElection:                true,
		LeaderElectionID:              name,
		LeaderElectionNamespace:       o.namespace,
		LeaderElectionReleaseOnCancel: true,
		// Of all the cluster's config maps, one is read.
		Client: client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.ConfigMap{}}}},
	})
	if err != nil {
		return nil, err
	}
	hosts := hosts{client: mgr.GetClient(), namespace: o.namespace}
	reconciler := &reconciler{Client: mgr.GetClient(), events: mgr.GetEventRecorder(name), hosts: hosts}
	if err := reconciler.setUp(mgr); err != nil {
		return nil, err
	}
	if o.webhookCertDir != "" {
		if err := (&webhook{hosts: hosts}).setUp(mgr); err != nil {
			return nil, err
		}
	}
	return mgr, nil
}
