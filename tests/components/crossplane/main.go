// What a cluster has beside Crossplane itself: a registry with packages, and functions that Crossplane calls with mutual
// TLS. Nodes are simulated, so this process answers in place of the pods of every Function, at the names of their Services:
// it shows the certificate that Crossplane has put into the Secret of the Function which the client asks for.
//
//	stand-ins --registry ADDRESS --certificate FILE --key FILE --functions ADDRESS REPOSITORY:TAG=FILE…
//
// FILE is the package's YAML. What a function does depends on its input: see compose.go.
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	fnv1 "github.com/crossplane/crossplane/v2/proto/fn/v1"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	registryAt := flag.String("registry", "127.0.0.1:443", "where the registry listens")
	functionsAt := flag.String("functions", "127.0.0.1:9443", "where the functions listen")
	certificate := flag.String("certificate", "", "the registry's certificate")
	key := flag.String("key", "", "its key")
	flag.Parse()
	packages := registry.New(registry.Logger(log.Default()))
	for _, arg := range flag.Args() {
		if err := push(packages, arg); err != nil {
			log.Fatalf("%s: %v", arg, err)
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		log.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", *functionsAt)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{"h2"},
		GetConfigForClient: secrets{client}.configFor,
	})))
	fnv1.RegisterFunctionRunnerServiceServer(server, functions{})
	go func() { log.Fatal(server.Serve(listener)) }()
	log.Fatal(http.ListenAndServeTLS(*registryAt, *certificate, *key, packages))
}

// Sends requests to a handler in this process.
type direct struct{ handler http.Handler }

func (d direct) RoundTrip(request *http.Request) (*http.Response, error) {
	served := request.Clone(request.Context())
	if served.Body == nil {
		served.Body = http.NoBody
	}
	recorder := httptest.NewRecorder()
	d.handler.ServeHTTP(recorder, served)
	response := recorder.Result()
	response.Request = request
	return response, nil
}

// Puts a package into the registry: an image with a layer that has package.yaml, marked as Crossplane's builder does.
func push(packages http.Handler, arg string) error {
	reference, file, found := strings.Cut(arg, "=")
	if !found {
		return errors.New("is not REPOSITORY:TAG=FILE")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	writer := tar.NewWriter(&archive)
	if err := writer.WriteHeader(&tar.Header{Name: "package.yaml", Mode: 0o644, Size: int64(len(text))}); err != nil {
		return err
	}
	if _, err := writer.Write(text); err != nil {
		return err
	}
	if err := writer.Close(); err != nil {
		return err
	}
	image, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{
		Layer:       static.NewLayer(archive.Bytes(), types.OCIUncompressedLayer),
		Annotations: map[string]string{"io.crossplane.xpkg": "base"},
	})
	if err != nil {
		return err
	}
	tag, err := name.NewTag("127.0.0.1/"+reference, name.Insecure)
	if err != nil {
		return err
	}
	return remote.Write(tag, image, remote.WithTransport(direct{packages}))
}

// The Secrets with the certificates of functions.
type secrets struct{ client dynamic.Interface }

// The TLS configuration of the function with the Service that the client asks for.
func (s secrets) configFor(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	function, rest, _ := strings.Cut(hello.ServerName, ".")
	namespace, _, _ := strings.Cut(rest, ".")
	secret, err := s.secretOf(hello.Context(), function, namespace)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", hello.ServerName, err)
	}
	pair, err := tls.X509KeyPair(secret["tls.crt"], secret["tls.key"])
	if err != nil {
		return nil, err
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(secret["ca.crt"]) {
		return nil, errors.New("the Secret has no CA")
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"h2"},
		Certificates: []tls.Certificate{pair},
		ClientCAs:    clients,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}, nil
}

func (s secrets) secretOf(ctx context.Context, function, namespace string) (map[string][]byte, error) {
	revisions, err := s.client.Resource(schema.GroupVersionResource{Group: "pkg.crossplane.io", Version: "v1", Resource: "functionrevisions"}).
		List(ctx, metav1.ListOptions{LabelSelector: "pkg.crossplane.io/package=" + function})
	if err != nil {
		return nil, err
	}
	for _, revision := range revisions.Items {
		wanted, _, _ := unstructured.NestedString(revision.Object, "spec", "tlsServerSecretName")
		if state, _, _ := unstructured.NestedString(revision.Object, "spec", "desiredState"); state != "Active" || wanted == "" {
			continue
		}
		secret, err := s.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).
			Namespace(namespace).Get(ctx, wanted, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		data, _, err := unstructured.NestedStringMap(secret.Object, "data")
		if err != nil {
			return nil, err
		}
		decoded := map[string][]byte{}
		for key, value := range data {
			if decoded[key], err = base64.StdEncoding.DecodeString(value); err != nil {
				return nil, err
			}
		}
		return decoded, nil
	}
	return nil, errors.New("no active FunctionRevision names a Secret")
}
