//! Paths and methods: what is there, and in which words it is said that something is not.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok},
};
use serde_json::{Value, json};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn definition(plural: &str, kind: &str, scope: &str, subresources: Value) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.ex.io")},
        "spec": {"group": "ex.io", "scope": scope, "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema, "subresources": subresources}]}})
}

/// Answers to these requests, one a line.
async fn answers(test: &TestCluster, requests: &str) -> String {
    let mut seen = String::new();
    for request in requests.lines().map(str::trim).filter(|r| !r.is_empty()) {
        let (code, answer) = ask(test, &admin(), request, &Value::Null).await;
        let said = match (&answer["message"], &answer["kind"], answer.as_str()) {
            (Value::String(message), ..) => message.clone(),
            (_, Value::String(kind), _) => kind.clone(),
            (.., Some(text)) => format!("{:?}", &text[..text.len().min(140)]),
            _ => "something".to_owned(),
        };
        seen += &format!("{request}: {code} {said}\n");
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn built_in_resources_have_upstreams_routes() {
    let test = TestCluster::start(0).await;
    let requests = "
        GET /api/v1/foos
        GET /api/v2/pods
        GET /apis/apps/v7/deployments
        GET /apis/apps/v1/foos/x/y
        GET /apis/none.io/v1/things
        POST /apis/none.io/v1/things
        GET /api/v1/namespaces/default/nodes
        POST /api/v1/configmaps
        PUT /api/v1/configmaps
        PATCH /api/v1/configmaps
        PATCH /api/v1/namespaces/default/configmaps
        PUT /api/v1/namespaces/default/configmaps
        DELETE /api/v1/configmaps
        GET /api/v1/configmaps/x
        DELETE /api/v1/configmaps/x
        POST /api/v1/namespaces/default/configmaps/x
        PATCH /api/v1/nodes
        HEAD /api/v1/nodes
        OPTIONS /api/v1/nodes
        FOO /api/v1/nodes
        FOO /api/v1/foos
        FOO /apis/none.io/v1/foos
        POST /api/v1/bindings
        GET /api/v1/bindings
        GET /api/v1/namespaces/default/bindings
        GET /apis/authorization.k8s.io/v1/subjectaccessreviews
        GET /apis/authorization.k8s.io/v1/subjectaccessreviews/x
        POST /apis/authorization.k8s.io/v1/subjectaccessreviews/x
        POST /apis/authorization.k8s.io/v1/localsubjectaccessreviews
        PATCH /api/v1/componentstatuses/x
        GET /api/v1/componentstatuses?watch=1
        GET /api/v1/namespaces/default/pods/x/nope
        GET /api/v1/namespaces/default/pods/x/eviction
        POST /api/v1/namespaces/default/pods/x/status
        DELETE /api/v1/namespaces/default/pods/x/status
        GET /api/v1/namespaces/default/pods/x/status/more
        GET /api/v1/namespaces/default/pods/x/exec/more
        GET /api/v1/namespaces/default/finalize
        GET /api/v1/namespaces/default/status
        GET /api/v1/namespaces/default/status?export=true
        POST /api/v1/namespaces/default
        DELETE /api/v1/namespaces
        GET /apis/apps/v1/namespaces/default/status
        GET /api/v1/watch
        GET /apis/apps/v1/watch/
        POST /api/v1/watch/namespaces/default/configmaps
        DELETE /api/v1/watch/namespaces/default/configmaps/x
        GET /api/v1/watch/foos
        GET /api/v1/watch/bindings
        GET /api/v1/watch/watch/pods
        GET /api/v1/watch/namespaces/default/status
        GET /api/v1/watch/namespaces/default/pods/x/log
        GET /api/v1/proxy/namespaces/default/pods/x
    ";
    expect_test::expect![[r#"
        GET /api/v1/foos: 404 the server could not find the requested resource
        GET /api/v2/pods: 404 the server could not find the requested resource
        GET /apis/apps/v7/deployments: 404 the server could not find the requested resource
        GET /apis/apps/v1/foos/x/y: 404 the server could not find the requested resource
        GET /apis/none.io/v1/things: 404 "404 page not found\n"
        POST /apis/none.io/v1/things: 404 "404 page not found\n"
        GET /api/v1/namespaces/default/nodes: 404 the server could not find the requested resource
        POST /api/v1/configmaps: 405 the server does not allow this method on the requested resource
        PUT /api/v1/configmaps: 405 the server does not allow this method on the requested resource
        PATCH /api/v1/configmaps: 405 the server does not allow this method on the requested resource
        PATCH /api/v1/namespaces/default/configmaps: 405 the server does not allow this method on the requested resource
        PUT /api/v1/namespaces/default/configmaps: 405 the server does not allow this method on the requested resource
        DELETE /api/v1/configmaps: 405 the server does not allow this method on the requested resource
        GET /api/v1/configmaps/x: 404 the server could not find the requested resource
        DELETE /api/v1/configmaps/x: 404 the server could not find the requested resource
        POST /api/v1/namespaces/default/configmaps/x: 405 the server does not allow this method on the requested resource
        PATCH /api/v1/nodes: 405 the server does not allow this method on the requested resource
        HEAD /api/v1/nodes: 405 the server does not allow this method on the requested resource
        OPTIONS /api/v1/nodes: 405 the server does not allow this method on the requested resource
        FOO /api/v1/nodes: 405 the server does not allow this method on the requested resource
        FOO /api/v1/foos: 404 the server could not find the requested resource
        FOO /apis/none.io/v1/foos: 404 "404 page not found\n"
        POST /api/v1/bindings: 404 the server could not find the requested resource
        GET /api/v1/bindings: 404 the server could not find the requested resource
        GET /api/v1/namespaces/default/bindings: 405 the server does not allow this method on the requested resource
        GET /apis/authorization.k8s.io/v1/subjectaccessreviews: 405 the server does not allow this method on the requested resource
        GET /apis/authorization.k8s.io/v1/subjectaccessreviews/x: 404 the server could not find the requested resource
        POST /apis/authorization.k8s.io/v1/subjectaccessreviews/x: 404 the server could not find the requested resource
        POST /apis/authorization.k8s.io/v1/localsubjectaccessreviews: 404 the server could not find the requested resource
        PATCH /api/v1/componentstatuses/x: 405 the server does not allow this method on the requested resource
        GET /api/v1/componentstatuses?watch=1: 405 watch is not supported on resources of kind "componentstatuses"
        GET /api/v1/namespaces/default/pods/x/nope: 404 the server could not find the requested resource
        GET /api/v1/namespaces/default/pods/x/eviction: 405 the server does not allow this method on the requested resource
        POST /api/v1/namespaces/default/pods/x/status: 405 the server does not allow this method on the requested resource
        DELETE /api/v1/namespaces/default/pods/x/status: 405 the server does not allow this method on the requested resource
        GET /api/v1/namespaces/default/pods/x/status/more: 404 the server could not find the requested resource
        GET /api/v1/namespaces/default/pods/x/exec/more: 404 the server could not find the requested resource
        GET /api/v1/namespaces/default/finalize: 405 the server does not allow this method on the requested resource
        GET /api/v1/namespaces/default/status: 200 Namespace
        GET /api/v1/namespaces/default/status?export=true: 400 the export parameter, deprecated since v1.14, is no longer supported
        POST /api/v1/namespaces/default: 405 the server does not allow this method on the requested resource
        DELETE /api/v1/namespaces: 405 the server does not allow this method on the requested resource
        GET /apis/apps/v1/namespaces/default/status: 404 the server could not find the requested resource
        GET /api/v1/watch: 500 "Internal Server Error: \"/api/v1/watch\": failed to create RequestInfo: unable to determine kind and namespace from url, /api/v1/watch\n"
        GET /apis/apps/v1/watch/: 500 "Internal Server Error: \"/apis/apps/v1/watch/\": failed to create RequestInfo: unable to determine kind and namespace from url, /apis/apps/v1/"
        POST /api/v1/watch/namespaces/default/configmaps: 405 the server does not allow this method on the requested resource
        DELETE /api/v1/watch/namespaces/default/configmaps/x: 405 the server does not allow this method on the requested resource
        GET /api/v1/watch/foos: 404 the server could not find the requested resource
        GET /api/v1/watch/bindings: 404 the server could not find the requested resource
        GET /api/v1/watch/watch/pods: 404 the server could not find the requested resource
        GET /api/v1/watch/namespaces/default/status: 404 the server could not find the requested resource
        GET /api/v1/watch/namespaces/default/pods/x/log: 404 the server could not find the requested resource
        GET /api/v1/proxy/namespaces/default/pods/x: 404 the server could not find the requested resource
    "#]].assert_eq(&answers(&test, requests).await);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_are_taken_as_they_are() {
    let test = TestCluster::start(0).await;
    let requests = "
        GET //api/v1/pods
        GET /api//v1/pods
        GET /api/v1//pods
        GET /apis//v1/pods
        GET /api/v1/namespaces//pods
        GET /api/v1/namespaces/default//pods
        GET /api/v1/namespaces/default/pods//
        GET /api/v1/namespaces/default/pods//log
        GET /api/v1/namespaces//status
        GET /api/v1/nodes//status
        GET /api/v1/./pods
        GET /api/v1/../v1/pods
        GET /api/v1/namespaces/default/../kube-system/pods
        GET /api/v1/namespaces/default/configmaps/..
        GET /api/v1/namespaces/default/configmaps/%2e%2e
        GET /api/v1/namespaces/default/configmaps/a%2fb
        GET /api/v1/namespaces/default%2fconfigmaps
        GET /api%2fv1/pods
        GET /api/v1/pods%3fwatch=1
        GET /api/v1/p%6fds
        GET /api/v1/namespaces/default/configmaps/a%20b
        GET /API/v1/pods
        GET /api/v1/Pods
        GET /api/v1/namespaces/default/
        GET /api/v1/
        GET /apis/apps/v1/
        GET /version/
        GET //version
        GET /livez/
        GET /livez/ping
        GET /metrics/
    ";
    expect_test::expect![[r#"
        GET //api/v1/pods: 404 "404 page not found\n"
        GET /api//v1/pods: 404 the server could not find the requested resource
        GET /api/v1//pods: 404 the server could not find the requested resource
        GET /apis//v1/pods: 404 "404 page not found\n"
        GET /api/v1/namespaces//pods: 200 PodList
        GET /api/v1/namespaces/default//pods: 404 the server could not find the requested resource
        GET /api/v1/namespaces/default/pods//: 200 PodList
        GET /api/v1/namespaces/default/pods//log: 400 name must be provided
        GET /api/v1/namespaces//status: 400 name must be provided
        GET /api/v1/nodes//status: 400 name must be provided
        GET /api/v1/./pods: 404 the server could not find the requested resource
        GET /api/v1/../v1/pods: 404 the server could not find the requested resource
        GET /api/v1/namespaces/default/../kube-system/pods: 404 the server could not find the requested resource
        GET /api/v1/namespaces/default/configmaps/..: 400 Name parameter invalid: "..": may not be '..'
        GET /api/v1/namespaces/default/configmaps/%2e%2e: 400 Name parameter invalid: "..": may not be '..'
        GET /api/v1/namespaces/default/configmaps/a%2fb: 404 the server could not find the requested resource
        GET /api/v1/namespaces/default%2fconfigmaps: 200 ConfigMapList
        GET /api%2fv1/pods: 200 PodList
        GET /api/v1/pods%3fwatch=1: 404 the server could not find the requested resource
        GET /api/v1/p%6fds: 200 PodList
        GET /api/v1/namespaces/default/configmaps/a%20b: 404 configmaps "a b" not found
        GET /API/v1/pods: 404 "404 page not found\n"
        GET /api/v1/Pods: 404 the server could not find the requested resource
        GET /api/v1/namespaces/default/: 200 Namespace
        GET /api/v1/: 200 APIResourceList
        GET /apis/apps/v1/: 200 APIResourceList
        GET /version/: 200 something
        GET //version: 404 "404 page not found\n"
        GET /livez/: 404 "404 page not found\n"
        GET /livez/ping: 200 "ok"
        GET /metrics/: 404 "404 page not found\n"
    "#]].assert_eq(&answers(&test, requests).await);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_are_there_for_the_methods_that_upstream_takes() {
    let test = TestCluster::start(0).await;
    let requests = "
        POST /version
        HEAD /version
        POST /healthz
        POST /api
        PUT /apis
        POST /apis/apps
        POST /apis/apps/v1
        POST /api/v1
        POST /openapi/v3
        POST /nothing
        GET /api/v2
        GET /apis/apps/v7
        GET /apis/none.io
        GET /apis/none.io/v1
    ";
    expect_test::expect![[r#"
        POST /version: 405 the server does not allow this method on the requested resource
        HEAD /version: 405 the server does not allow this method on the requested resource
        POST /healthz: 200 "ok"
        POST /api: 405 the server does not allow this method on the requested resource
        PUT /apis: 200 APIGroupList
        POST /apis/apps: 200 APIGroup
        POST /apis/apps/v1: 405 the server does not allow this method on the requested resource
        POST /api/v1: 405 the server does not allow this method on the requested resource
        POST /openapi/v3: 200 something
        POST /nothing: 404 "404 page not found\n"
        GET /api/v2: 404 the server could not find the requested resource
        GET /apis/apps/v7: 404 the server could not find the requested resource
        GET /apis/none.io: 404 "404 page not found\n"
        GET /apis/none.io/v1: 404 "404 page not found\n"
    "#]]
    .assert_eq(&answers(&test, requests).await);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_resources_have_the_routes_of_their_handler() {
    let test = TestCluster::start(0).await;
    let scale = json!({"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}});
    for crd in
        [definition("foos", "Foo", "Namespaced", scale), definition("bars", "Bar", "Cluster", json!({}))]
    {
        ok(&test, &admin(), &format!("POST {CRDS}"), crd).await;
    }
    let foo =
        json!({"apiVersion": "ex.io/v1", "kind": "Foo", "metadata": {"name": "f"}, "spec": {"replicas": 1}});
    crate::common::until("the definitions are served", async || {
        ask(&test, &admin(), "GET /apis/ex.io/v1/foos", &Value::Null).await.0 == 200
            && ask(&test, &admin(), "GET /apis/ex.io/v1/bars", &Value::Null).await.0 == 200
    })
    .await;
    ok(&test, &admin(), "POST /apis/ex.io/v1/namespaces/default/foos", foo).await;
    let requests = "
        GET /apis/ex.io/v9
        GET /apis/ex.io/v9/foos
        GET /apis/ex.io/v1/nope
        POST /apis/ex.io/v1
        POST /apis/ex.io/v1/foos
        DELETE /apis/ex.io/v1/foos
        GET /apis/ex.io/v1/foos/f
        PUT /apis/ex.io/v1/namespaces/default/foos
        PATCH /apis/ex.io/v1/namespaces/default/foos
        GET /apis/ex.io/v1/namespaces/default/bars
        POST /apis/ex.io/v1/namespaces/default/bars
        PUT /apis/ex.io/v1/bars
        GET /apis/ex.io/v1/bars/b/status
        GET /apis/ex.io/v1/bars/b/nope
        GET /apis/ex.io/v1/namespaces/default/foos/f/status
        GET /apis/ex.io/v1/namespaces/default/foos/f/status/more
        GET /apis/ex.io/v1/namespaces/default/foos/f/scale
        GET /apis/ex.io/v1/namespaces/default/foos/f/scale?export=true
        GET /apis/ex.io/v1/namespaces/default/foos/f?export=true
        GET /apis/ex.io/v1/namespaces/default/foos/f/nope
        POST /apis/ex.io/v1/namespaces/default/foos/f/status
        DELETE /apis/ex.io/v1/namespaces/default/foos/f/scale
        GET /apis/ex.io/v1/namespaces/default/foos//status
        HEAD /apis/ex.io/v1/namespaces/default/foos
        OPTIONS /apis/ex.io/v1/namespaces/default/foos
        GET /apis/ex.io/v1/proxy/namespaces/default/foos/f
        GET /apis/ex.io/v1/watch/namespaces/default/foos/f/status
        GET /apis/ex.io/v1/watch
        GET //apis/ex.io/v1/foos
        GET /apis//ex.io/v1/foos
        GET /apis/ex.io//v1/foos
        GET /apis/ex.io/v1//foos
        GET /apis/ex.io/v1/namespaces//foos
        GET /apis/ex.io/v1/namespaces/default//foos
        GET /apis/ex.io/v1/namespaces/default/foos/f%2fstatus
        GET /apis/ex.io/v1/namespaces/default
    ";
    expect_test::expect![[r#"
        GET /apis/ex.io/v9: 404 "404 page not found\n"
        GET /apis/ex.io/v9/foos: 404 "404 page not found\n"
        GET /apis/ex.io/v1/nope: 404 "404 page not found\n"
        POST /apis/ex.io/v1: 200 APIResourceList
        POST /apis/ex.io/v1/foos: 404 "404 page not found\n"
        DELETE /apis/ex.io/v1/foos: 404 "404 page not found\n"
        GET /apis/ex.io/v1/foos/f: 404 "404 page not found\n"
        PUT /apis/ex.io/v1/namespaces/default/foos: 400 name must be provided
        PATCH /apis/ex.io/v1/namespaces/default/foos: 400 name must be provided
        GET /apis/ex.io/v1/namespaces/default/bars: 404 "404 page not found\n"
        POST /apis/ex.io/v1/namespaces/default/bars: 404 "404 page not found\n"
        PUT /apis/ex.io/v1/bars: 400 name must be provided
        GET /apis/ex.io/v1/bars/b/status: 404 bars.ex.io "b" not found
        GET /apis/ex.io/v1/bars/b/nope: 404 bars.ex.io "b" not found
        GET /apis/ex.io/v1/namespaces/default/foos/f/status: 200 Foo
        GET /apis/ex.io/v1/namespaces/default/foos/f/status/more: 200 Foo
        GET /apis/ex.io/v1/namespaces/default/foos/f/scale: 200 Scale
        GET /apis/ex.io/v1/namespaces/default/foos/f/scale?export=true: 400 the export parameter, deprecated since v1.14, is no longer supported
        GET /apis/ex.io/v1/namespaces/default/foos/f?export=true: 400 the export parameter, deprecated since v1.14, is no longer supported
        GET /apis/ex.io/v1/namespaces/default/foos/f/nope: 404 foos.ex.io "f" not found
        POST /apis/ex.io/v1/namespaces/default/foos/f/status: 405 create is not supported on resources of kind "foos.ex.io"
        DELETE /apis/ex.io/v1/namespaces/default/foos/f/scale: 405 delete is not supported on resources of kind "foos.ex.io"
        GET /apis/ex.io/v1/namespaces/default/foos//status: 405 list is not supported on resources of kind "foos.ex.io"
        HEAD /apis/ex.io/v1/namespaces/default/foos: 200 FooList
        OPTIONS /apis/ex.io/v1/namespaces/default/foos: 405  is not supported on resources of kind "foos.ex.io"
        GET /apis/ex.io/v1/proxy/namespaces/default/foos/f: 405 proxy is not supported on resources of kind "foos.ex.io"
        GET /apis/ex.io/v1/watch/namespaces/default/foos/f/status: 405 watch is not supported on resources of kind "foos.ex.io"
        GET /apis/ex.io/v1/watch: 500 "Internal Server Error: \"/apis/ex.io/v1/watch\": failed to create RequestInfo: unable to determine kind and namespace from url, /apis/ex.io/v1"
        GET //apis/ex.io/v1/foos: 404 "404 page not found\n"
        GET /apis//ex.io/v1/foos: 404 "404 page not found\n"
        GET /apis/ex.io//v1/foos: 404 "404 page not found\n"
        GET /apis/ex.io/v1//foos: 404 "404 page not found\n"
        GET /apis/ex.io/v1/namespaces//foos: 200 FooList
        GET /apis/ex.io/v1/namespaces/default//foos: 404 "404 page not found\n"
        GET /apis/ex.io/v1/namespaces/default/foos/f%2fstatus: 200 Foo
        GET /apis/ex.io/v1/namespaces/default: 404 "404 page not found\n"
    "#]].assert_eq(&answers(&test, requests).await);
    test.stop().await;
}
