package main

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var groupVersion = schema.GroupVersion{Group: "db.example.com", Version: "v1"}

func addToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(groupVersion, &Database{}, &DatabaseList{})
	metav1.AddToGroupVersion(scheme, groupVersion)
	return nil
}

// DatabaseSpec is the desired state.
type DatabaseSpec struct {
	// Host is the name that it is reached at.
	Host string `json:"host"`
}

// DatabaseStatus is how it goes.
type DatabaseStatus struct {
	// Ready says whether all that it needs is there.
	Ready bool `json:"ready"`
	// Host is the name that it is reached at.
	Host string `json:"host"`
}

// Database is a database. manifests/database-crd.yaml defines it for the API server.
type Database struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   DatabaseSpec   `json:"spec"`
	Status DatabaseStatus `json:"status,omitzero"`
}

// DatabaseList is a list of them.
type DatabaseList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Database `json:"items"`
}

// DeepCopy copies all that it refers to.
func (d *Database) DeepCopy() *Database {
	return &Database{TypeMeta: d.TypeMeta, ObjectMeta: *d.ObjectMeta.DeepCopy(), Spec: d.Spec, Status: d.Status}
}

// DeepCopyObject implements runtime.Object.
func (d *Database) DeepCopyObject() runtime.Object { return d.DeepCopy() }

// DeepCopyObject implements runtime.Object.
func (l *DatabaseList) DeepCopyObject() runtime.Object {
	out := &DatabaseList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopy())
	}
	return out
}
