// What the functions do. An input of the kind Response, as for the function which Crossplane's own tests use, has the answer
// in it. Without an input, a ConfigMap and a Deployment are composed of the composite resource's spec, and it is asked for
// a ConfigMap and for a schema that are no part of it.
package main

import (
	"context"
	"fmt"
	"strconv"

	fnv1 "github.com/crossplane/crossplane/v2/proto/fn/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

type functions struct {
	fnv1.UnimplementedFunctionRunnerServiceServer
}

func (functions) RunFunction(_ context.Context, request *fnv1.RunFunctionRequest) (*fnv1.RunFunctionResponse, error) {
	response := &fnv1.RunFunctionResponse{Desired: &fnv1.State{}, Context: request.GetContext()}
	proto.Merge(response.GetDesired(), request.GetDesired())
	var err error
	switch kind := text(request.GetInput(), "kind"); kind {
	case "Response":
		err = given(request, response)
	case "":
		err = application(request, response)
	default:
		err = fmt.Errorf("there is no input of the kind %q", kind)
	}
	if err != nil {
		response.Results = append(response.Results, &fnv1.Result{Severity: fnv1.Severity_SEVERITY_FATAL, Message: err.Error()})
	}
	response.Meta = &fnv1.ResponseMeta{Tag: request.GetMeta().GetTag(), Ttl: durationpb.New(60e9)}
	return response, nil
}

// Lays the response of the input over what the functions before have asked for.
func given(request *fnv1.RunFunctionRequest, response *fnv1.RunFunctionResponse) error {
	written, err := protojson.Marshal(request.GetInput().GetFields()["response"])
	if err != nil {
		return err
	}
	wanted := &fnv1.RunFunctionResponse{}
	if err := protojson.Unmarshal(written, wanted); err != nil {
		return err
	}
	proto.Merge(response, wanted)
	return nil
}

func application(request *fnv1.RunFunctionRequest, response *fnv1.RunFunctionResponse) error {
	composite := request.GetObserved().GetComposite().GetResource()
	spec := composite.GetFields()["spec"].GetStructValue()
	if message := text(spec, "fail"); message != "" {
		return fmt.Errorf("asked to fail: %s", message)
	}
	name := text(composite.GetFields()["metadata"].GetStructValue(), "name")
	namespace := text(composite.GetFields()["metadata"].GetStructValue(), "namespace")
	if namespace == "" {
		namespace = text(spec, "namespace")
	}
	replicas := spec.GetFields()["replicas"].GetNumberValue()
	metadata := func() map[string]any {
		return map[string]any{"name": name, "namespace": namespace, "labels": map[string]any{"app": name}}
	}
	resources := map[string]map[string]any{
		"settings": {
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(),
			"data": map[string]any{"text": text(spec, "text"), "replicas": strconv.Itoa(int(replicas))},
		},
	}
	if image := text(spec, "image"); image != "" {
		resources["workload"] = map[string]any{
			"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(),
			"spec": map[string]any{
				"replicas": replicas,
				"selector": map[string]any{"matchLabels": map[string]any{"app": name}},
				"template": map[string]any{
					"metadata": map[string]any{"labels": map[string]any{"app": name}},
					"spec":     map[string]any{"containers": []any{map[string]any{"name": "main", "image": image}}},
				},
			},
		}
	}
	available := request.GetObserved().GetResources()["workload"].GetResource().GetFields()["status"].GetStructValue().GetFields()["availableReplicas"].GetNumberValue()
	response.Desired.Resources = map[string]*fnv1.Resource{}
	for key, resource := range resources {
		object, err := structpb.NewStruct(resource)
		if err != nil {
			return err
		}
		ready := fnv1.Ready_READY_FALSE
		if _, seen := request.GetObserved().GetResources()[key]; seen && (key != "workload" || available == replicas) {
			ready = fnv1.Ready_READY_TRUE
		}
		response.Desired.Resources[key] = &fnv1.Resource{Resource: object, Ready: ready}
	}
	return about(request, response, namespace, available)
}

// The status of the composite resource, with what is not its own in it.
func about(request *fnv1.RunFunctionRequest, response *fnv1.RunFunctionResponse, namespace string, available float64) error {
	response.Requirements = &fnv1.Requirements{
		Resources: map[string]*fnv1.ResourceSelector{"shared": {
			ApiVersion: "v1", Kind: "ConfigMap", Namespace: &namespace, Match: &fnv1.ResourceSelector_MatchName{MatchName: "shared"},
		}},
		Schemas: map[string]*fnv1.SchemaSelector{"deployment": {ApiVersion: "apps/v1", Kind: "Deployment"}},
	}
	shared := ""
	for _, item := range request.GetRequiredResources()["shared"].GetItems() {
		shared = text(item.GetResource().GetFields()["data"].GetStructValue(), "text")
	}
	described := text(request.GetRequiredSchemas()["deployment"].GetOpenapiV3(), "description")
	status, err := structpb.NewStruct(map[string]any{"status": map[string]any{"available": available, "shared": shared, "schema": described}})
	if err != nil {
		return err
	}
	response.Desired.Composite = &fnv1.Resource{Resource: status}
	response.Conditions = []*fnv1.Condition{{Type: "Composed", Status: fnv1.Status_STATUS_CONDITION_TRUE, Reason: "ByTheTest"}}
	response.Results = []*fnv1.Result{{Severity: fnv1.Severity_SEVERITY_NORMAL, Message: "composed " + strconv.Itoa(len(response.GetDesired().GetResources()))}}
	return nil
}

func text(object *structpb.Struct, key string) string {
	return object.GetFields()[key].GetStringValue()
}
