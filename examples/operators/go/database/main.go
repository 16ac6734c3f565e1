// An operator with mistakes that can be switched on, for `kaji test` to find: one of each class. rust/database is the same.
//
// A Database gets credentials (a secret), settings (a config map), a service, and an entry in the config map database-hosts, which
// all databases share. Without --bug each of these is looked at by itself and made what it should be, whatever came before.
//
//   - stale-read: whether there are credentials is decided by what the cache shows, and their name is generated. A cache that is
//     behind makes a second secret.
//   - missed-state: the shared entry is removed when the deletion is seen. One that is not seen leaves it for ever.
//   - crash-between-writes: the service is made together with the settings, if there are none. A crash between leaves no service.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// The mistakes.
const (
	staleRead          = "stale-read"
	missedState        = "missed-state"
	crashBetweenWrites = "crash-between-writes"
)

var bugs = []string{staleRead, missedState, crashBetweenWrites}

func main() {
	bug := flag.String("bug", "", "Switches a mistake on: "+strings.Join(bugs, ", ")+".")
	flag.Parse()
	ctrl.SetLogger(zap.New())
	if *bug != "" && !slices.Contains(bugs, *bug) {
		fmt.Fprintf(os.Stderr, "there is no mistake %q\n", *bug)
		os.Exit(2)
	}
	mgr, err := newManager(ctrl.GetConfigOrDie(), *bug)
	if err == nil {
		err = mgr.Start(ctrl.SetupSignalHandler())
	}
	if err != nil {
		ctrl.Log.Error(err, "the operator ended")
		os.Exit(1)
	}
}

// newManager puts the operator together.
func newManager(config *rest.Config, bug string) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, addToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return nil, err
	}
	r := &reconciler{Client: mgr.GetClient(), live: mgr.GetAPIReader(), bug: bug}
	build := ctrl.NewControllerManagedBy(mgr).
		For(&Database{}).
		Owns(&corev1.Secret{}).
		Owns(&corev1.ConfigMap{}).
		Owns(&corev1.Service{})
	if bug == missedState {
		build = build.Watches(&Database{}, r.removals())
	}
	return mgr, build.Complete(r)
}
