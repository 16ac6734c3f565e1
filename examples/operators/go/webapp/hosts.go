package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// hosts has the owner of each host. A config map in the operator's namespace stands for what a real operator would ask a DNS
// server: something outside, which garbage collection knows nothing of. That is why a WebApp has a finalizer.
type hosts struct {
	client    client.Client
	namespace string
}

// holder returns the owner of this host, as namespace/name; "" if there is none.
func (h hosts) holder(ctx context.Context, host string) (string, error) {
	list, err := h.read(ctx)
	return list.Data[host], err
}

// claim takes the host, unless another has it, and returns the owner of the host.
func (h hosts) claim(ctx context.Context, host, owner string) (string, error) {
	list, err := h.read(ctx)
	if err != nil || list.Data[host] != "" {
		return list.Data[host], err
	}
	if list.Data == nil {
		list.Data = map[string]string{}
	}
	list.Data[host] = owner
	return owner, h.write(ctx, list)
}

// release gives the host back, if it is theirs.
func (h hosts) release(ctx context.Context, host, owner string) error {
	list, err := h.read(ctx)
	if err != nil || list.Data[host] != owner {
		return err
	}
	delete(list.Data, host)
	return h.write(ctx, list)
}

func (h hosts) read(ctx context.Context) (*corev1.ConfigMap, error) {
	list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: h.namespace, Name: "webapp-hosts"}}
	return list, client.IgnoreNotFound(h.client.Get(ctx, client.ObjectKeyFromObject(list), list))
}

// write puts back what was read, unless another writer wrote in between: then it is a conflict, and tried again later.
func (h hosts) write(ctx context.Context, list *corev1.ConfigMap) error {
	if list.ResourceVersion == "" {
		return h.client.Create(ctx, list)
	}
	return h.client.Update(ctx, list)
}
