// Package site is an operator as kubebuilder lays them out: a kind and its reconciler.
package site

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of the kind.
var GroupVersion = schema.GroupVersion{Group: "web.example.com", Version: "v1"}

// AddToScheme registers the kind.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &Site{}, &SiteList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// SiteSpec is the desired state.
type SiteSpec struct {
	Greeting string `json:"greeting"`
	Replicas *int32 `json:"replicas,omitempty"`
}

// SiteStatus is what there is.
type SiteStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	ConfigMap          string             `json:"configMap,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// Site is a greeting that is served.
type Site struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   SiteSpec   `json:"spec"`
	Status SiteStatus `json:"status,omitempty"`
}

// SiteList is a list of sites.
type SiteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Site `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (s *Site) DeepCopyObject() runtime.Object { return s.deepCopy() }

func (s *Site) deepCopy() *Site {
	out := &Site{TypeMeta: s.TypeMeta, Spec: s.Spec, Status: s.Status}
	s.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	if s.Spec.Replicas != nil {
		replicas := *s.Spec.Replicas
		out.Spec.Replicas = &replicas
	}
	out.Status.Conditions = nil
	for _, condition := range s.Status.Conditions {
		out.Status.Conditions = append(out.Status.Conditions, *condition.DeepCopy())
	}
	return out
}

// DeepCopyObject implements runtime.Object.
func (l *SiteList) DeepCopyObject() runtime.Object {
	out := &SiteList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].deepCopy())
	}
	return out
}
