// Package v1 is the kind: what its users write and what they read. manifests/webapp-crd.yaml defines it for the API server.
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of the kind.
var GroupVersion = schema.GroupVersion{Group: "apps.example.com", Version: "v1"}

// AddToScheme registers the kind.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &WebApp{}, &WebAppList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// WebAppSpec is the desired state.
type WebAppSpec struct {
	// Image is what runs; with a tag that is not latest, or a digest.
	Image string `json:"image"`
	// Replicas is how many copies run; 2 if it is left out.
	Replicas *int32 `json:"replicas,omitempty"`
	// Port is the one that the application listens on; 80 if it is left out.
	Port *int32 `json:"port,omitempty"`
	// Host is the name that it is reachable by; name.namespace.example.com if it is left out.
	Host string `json:"host,omitempty"`
}

// WebAppStatus is how it goes.
type WebAppStatus struct {
	// ObservedGeneration is the generation of the spec that this is about.
	ObservedGeneration int64 `json:"observedGeneration"`
	// ReadyReplicas is how many copies are ready.
	ReadyReplicas int32 `json:"readyReplicas"`
	// URL is where it is reachable, once it is.
	URL string `json:"url,omitempty"`
	// Conditions: Ready, whether all copies run the image.
	Conditions []metav1.Condition `json:"conditions"`
}

// WebApp is a web application: so many copies of an image behind a service, reachable at a host.
type WebApp struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   WebAppSpec   `json:"spec"`
	Status WebAppStatus `json:"status,omitzero"`
}

// WebAppList is a list of them.
type WebAppList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []WebApp `json:"items"`
}

// SetDefaults fills in what the user left out. The webhook does it when the object is written; the controller as well, for
// objects from before there was a webhook.
func (a *WebApp) SetDefaults() {
	if a.Spec.Replicas == nil {
		replicas := int32(2)
		a.Spec.Replicas = &replicas
	}
	if a.Spec.Port == nil {
		port := int32(80)
		a.Spec.Port = &port
	}
	if a.Spec.Host == "" {
		a.Spec.Host = a.Name + "." + a.Namespace + ".example.com"
	}
}
