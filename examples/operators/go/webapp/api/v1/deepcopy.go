package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Larger operators have controller-gen write this file.

// DeepCopy copies all that it refers to.
func (a *WebApp) DeepCopy() *WebApp {
	out := &WebApp{TypeMeta: a.TypeMeta, ObjectMeta: *a.ObjectMeta.DeepCopy(), Spec: a.Spec, Status: a.Status}
	if a.Spec.Replicas != nil {
		replicas := *a.Spec.Replicas
		out.Spec.Replicas = &replicas
	}
	if a.Spec.Port != nil {
		port := *a.Spec.Port
		out.Spec.Port = &port
	}
	if a.Status.Conditions != nil {
		out.Status.Conditions = make([]metav1.Condition, len(a.Status.Conditions))
		for i := range a.Status.Conditions {
			a.Status.Conditions[i].DeepCopyInto(&out.Status.Conditions[i])
		}
	}
	return out
}

// DeepCopyObject implements runtime.Object.
func (a *WebApp) DeepCopyObject() runtime.Object { return a.DeepCopy() }

// DeepCopyObject implements runtime.Object.
func (l *WebAppList) DeepCopyObject() runtime.Object {
	out := &WebAppList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopy())
	}
	return out
}
