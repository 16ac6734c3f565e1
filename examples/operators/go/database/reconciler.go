package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// label on credentials: the name of the database.
const label = "db.example.com/database"

// hosts is the config map that all databases share: the database of each host.
var hosts = types.NamespacedName{Namespace: "default", Name: "database-hosts"}

// reconciler is the control loop: from databases to what they need. Objects that are owned go with their database; the shared
// entry does not.
type reconciler struct {
	client.Client
	// live reads past the cache.
	live client.Reader
	bug  string
}

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	db := &Database{}
	err := r.Get(ctx, req.NamespacedName, db)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	// What is about to go needs nothing, and could not own anything.
	if err == nil && db.DeletionTimestamp.IsZero() {
		if err := r.supply(ctx, db); err != nil {
			return ctrl.Result{}, err
		}
	}
	if r.bug == missedState {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, r.removeHostsOfNone(ctx)
}

func (r *reconciler) supply(ctx context.Context, db *Database) error {
	// The cache may show one that is gone, or is about to be: what is made for it is collected at once.
	present := &Database{}
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(db), present); err != nil {
		return client.IgnoreNotFound(err)
	}
	if present.UID != db.UID || !present.DeletionTimestamp.IsZero() {
		return nil
	}
	if err := r.credentials(ctx, db); err != nil {
		return err
	}
	if err := r.settingsAndService(ctx, db); err != nil {
		return err
	}
	if err := r.register(ctx, db); err != nil {
		return err
	}
	return r.report(ctx, db)
}

func (r *reconciler) credentials(ctx context.Context, db *Database) error {
	found := &corev1.SecretList{}
	if err := r.List(ctx, found, client.InNamespace(db.Namespace), client.MatchingLabels{label: db.Name}); err != nil {
		return err
	}
	for i := range found.Items {
		if metav1.IsControlledBy(&found.Items[i], db) {
			return nil
		}
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{label: db.Name}, Name: db.Name + "-credentials"},
		StringData: map[string]string{"password": rand.Text()},
	}
	if r.bug == staleRead {
		secret.GenerateName, secret.Name = db.Name+"-credentials-", ""
	}
	return r.create(ctx, db, secret)
}

func (r *reconciler) settingsAndService(ctx context.Context, db *Database) error {
	settings := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: db.Name + "-settings"},
		Data:       map[string]string{"host": db.Spec.Host},
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: db.Name},
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Port: 5432}}},
	}
	made, err := r.ensure(ctx, db, settings, &corev1.ConfigMap{})
	if err != nil || (r.bug == crashBetweenWrites && !made) {
		return err
	}
	_, err = r.ensure(ctx, db, service, &corev1.Service{})
	return err
}

// ensure creates an object unless the cache shows it, and says whether it did.
func (r *reconciler) ensure(ctx context.Context, db *Database, wanted, found client.Object) (bool, error) {
	err := r.Get(ctx, types.NamespacedName{Namespace: db.Namespace, Name: wanted.GetName()}, found)
	if err == nil {
		return false, former(db, found)
	}
	if client.IgnoreNotFound(err) != nil {
		return false, err
	}
	return true, r.create(ctx, db, wanted)
}

// former is an error for an object of a database of the same name that is gone, as long as garbage collection has not found it.
func former(db *Database, found client.Object) error {
	if metav1.IsControlledBy(found, db) {
		return nil
	}
	return fmt.Errorf("%s is of another database", found.GetName())
}

// create makes an object of a database. That it is there already is as well, if it is this one's.
func (r *reconciler) create(ctx context.Context, db *Database, object client.Object) error {
	object.SetNamespace(db.Namespace)
	if err := controllerutil.SetControllerReference(db, object, r.Scheme()); err != nil {
		return err
	}
	err := r.Create(ctx, object)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		return err
	}
	return former(db, object)
}

// register enters the database's host.
func (r *reconciler) register(ctx context.Context, db *Database) error {
	entered, err := r.readHosts(ctx)
	if err != nil || entered[db.Spec.Host] == db.Name {
		return err
	}
	return r.patchHosts(ctx, db.Spec.Host, db.Name)
}

// removeHostsOfNone removes hosts that no database has.
func (r *reconciler) removeHostsOfNone(ctx context.Context) error {
	entered, err := r.readHosts(ctx)
	if err != nil {
		return err
	}
	databases := &DatabaseList{}
	if err := r.List(ctx, databases); err != nil {
		return err
	}
	for _, db := range databases.Items {
		delete(entered, db.Spec.Host)
	}
	for host := range maps.Keys(entered) {
		if err := r.patchHosts(ctx, host, nil); err != nil {
			return err
		}
	}
	return nil
}

func (r *reconciler) readHosts(ctx context.Context) (map[string]string, error) {
	list := &corev1.ConfigMap{}
	err := client.IgnoreNotFound(r.live.Get(ctx, hosts, list))
	return list.Data, err
}

// patchHosts sets the database of a host, or removes it.
func (r *reconciler) patchHosts(ctx context.Context, host string, database any) error {
	patch, err := json.Marshal(map[string]any{"data": map[string]any{host: database}})
	if err != nil {
		return err
	}
	list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: hosts.Namespace, Name: hosts.Name}}
	return r.Patch(ctx, list, client.RawPatch(types.MergePatchType, patch))
}

// removals removes the host of a database when its deletion is seen.
func (r *reconciler) removals() handler.EventHandler {
	return handler.Funcs{
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			db, ok := e.Object.(*Database)
			if !ok {
				return
			}
			if err := r.patchHosts(ctx, db.Spec.Host, nil); err != nil {
				ctrl.Log.Error(err, "the host stays")
			}
		},
	}
}

// report writes the status, if it is another than before.
func (r *reconciler) report(ctx context.Context, db *Database) error {
	status := DatabaseStatus{Ready: true, Host: db.Spec.Host}
	if db.Status == status {
		return nil
	}
	before := db.DeepCopy()
	db.Status = status
	return r.Status().Patch(ctx, db, client.MergeFrom(before))
}
