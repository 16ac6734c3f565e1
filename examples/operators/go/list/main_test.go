package main

import (
	"bufio"
	"context"
	"io"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// TestPrintsWhatThereIs runs against the cluster of the kubeconfig.
func TestPrintsWhatThereIs(t *testing.T) {
	existing := true
	env := &envtest.Environment{
		UseExistingCluster: &existing,
		CRDInstallOptions: envtest.CRDInstallOptions{
			Paths:           []string{"../../manifests/samples.yaml"},
			CleanUpAfterUse: true,
		},
	}
	config, err := env.Start()
	must(t, err)
	defer func() { must(t, env.Stop()) }()
	k8s, err := client.New(config, client.Options{})
	must(t, err)
	first, second := sample("first", "good morning"), sample("second", "good night")
	must(t, k8s.Create(t.Context(), first))
	must(t, k8s.Create(t.Context(), second))

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, in := io.Pipe()
	go func() {
		run(ctx, dynamic.NewForConfigOrDie(config), in)
		in.Close()
	}()
	lines := bufio.NewScanner(out)
	shows(t, lines, "2 samples", "  default/first: map[message:good morning]", "  default/second: map[message:good night]")
	must(t, k8s.Delete(t.Context(), first))
	shows(t, lines, "1 samples", "  default/second: map[message:good night]")
	must(t, k8s.Delete(t.Context(), second))
	shows(t, lines, "0 samples")
	// It ends when its context is cancelled.
	cancel()
	for lines.Scan() {
	}
}

// shows reads on until these lines have come, one after another.
func shows(t *testing.T, lines *bufio.Scanner, wanted ...string) {
	t.Helper()
	for lines.Scan() && lines.Text() != wanted[0] {
	}
	if lines.Text() != wanted[0] {
		t.Fatalf("it ended without %q", wanted[0])
	}
	for _, line := range wanted[1:] {
		if !lines.Scan() || lines.Text() != line {
			t.Fatalf("%q instead of %q", lines.Text(), line)
		}
	}
}

func sample(name, message string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1",
		"kind":       "Sample",
		"metadata":   map[string]any{"namespace": "default", "name": name},
		"spec":       map[string]any{"message": message},
	}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
