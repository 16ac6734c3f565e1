// The smallest operator there is: it lists the samples.example.com of all namespaces each second and prints them.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	// The cluster of the kubeconfig; inside of a pod, the one that the pod is in.
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		log.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	run(context.Background(), client, os.Stdout)
}

func run(ctx context.Context, client dynamic.Interface, out io.Writer) {
	// No type stands for the kind: its name is enough, and objects are maps.
	samples := client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "samples"})
	eachSecond := time.NewTicker(time.Second)
	defer eachSecond.Stop()
	for {
		if list, err := samples.List(ctx, metav1.ListOptions{}); err != nil {
			// It may be gone by the next second.
			fmt.Fprintf(out, "cannot list samples: %v\n", err)
		} else {
			fmt.Fprintf(out, "%d samples\n", len(list.Items))
			for _, sample := range list.Items {
				fmt.Fprintf(out, "  %s/%s: %v\n", sample.GetNamespace(), sample.GetName(), sample.Object["spec"])
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-eachSecond.C:
		}
	}
}
