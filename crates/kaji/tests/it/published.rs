//! What the server says about itself, over TLS: discovery in both forms, OpenAPI, version. Built-in kinds are there,
//! custom ones come and go with their definition.

use crate::common::{TestCluster, api::Api};
use expect_test::expect;
use http::{Request, Response, header};
use kaji_resource::Verb;
use kaji_schema::{protobuf, types};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const CRDS: &str = "apiextensions.k8s.io/v1/customresourcedefinitions";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// GETs by a client without opinions of its own.
struct Http(kube::Client);

impl Http {
    async fn get(&self, path: &str, headers: &[(header::HeaderName, &str)]) -> Response<String> {
        self.raw(path, headers).await.map(|bytes| String::from_utf8(bytes).unwrap())
    }

    async fn raw(&self, path: &str, headers: &[(header::HeaderName, &str)]) -> Response<Vec<u8>> {
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let response = self.0.send(request.body(kube::client::Body::empty()).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect_bytes().await.unwrap();
        Response::from_parts(parts, bytes.to_vec())
    }

    async fn json(&self, path: &str, accept: &str) -> Value {
        let answer = self.get(path, &[(header::ACCEPT, accept)]).await;
        assert_eq!(answer.status(), 200, "{path}: {}", answer.body());
        serde_json::from_str(answer.body()).unwrap()
    }

    /// Definitions of OpenAPI v2 by name, of custom kinds only.
    async fn definitions(&self) -> Vec<(String, Value)> {
        let document = self.json("/openapi/v2", "application/json").await;
        let all = document["definitions"].as_object().unwrap();
        assert!(all.contains_key("io.k8s.api.core.v1.Pod"));
        all.iter()
            .filter(|(k, _)| k.starts_with("com.example."))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    }

    /// Waits until discovery shows these versions of the test's group.
    async fn versions(&self, wanted: &[&str]) {
        loop {
            let list = self.json("/apis", AGGREGATED).await;
            let group = items(&list["items"]).find(|g| g["metadata"]["name"] == "example.com").cloned();
            let found: Vec<String> =
                group.iter().flat_map(|g| items(&g["versions"])).map(|v| text(&v["version"])).collect();
            if found == wanted {
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().unwrap().iter()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn content_type(answer: &Response<String>) -> String {
    answer.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_takes_the_form_that_is_asked_for() {
    let cluster = TestCluster::start(0).await;
    let http = Http(cluster.kube().await);
    for (path, legacy) in [("/api", "APIVersions"), ("/apis", "APIGroupList")] {
        let both = format!("{AGGREGATED},application/json");
        let reversed = format!("application/json,{AGGREGATED}");
        let aggregated = "APIGroupDiscoveryList";
        let cases = [
            (AGGREGATED, aggregated),
            (both.as_str(), aggregated),
            (reversed.as_str(), legacy),
            ("application/json", legacy),
            ("*/*", legacy),
            ("application/json;g=apidiscovery.k8s.io;v=v0;as=APIGroupDiscoveryList,application/json", legacy),
        ];
        for (accept, kind) in cases {
            let answer = http.get(path, &[(header::ACCEPT, accept)]).await;
            let body: Value = serde_json::from_str(answer.body()).unwrap();
            assert_eq!(body["kind"], kind, "{path} as {accept}");
            let wanted = if kind == aggregated { AGGREGATED } else { "application/json" };
            assert_eq!(content_type(&answer), wanted, "{path} as {accept}");
        }
        assert_eq!(http.get(path, &[(header::ACCEPT, "application/json;as=Other")]).await.status(), 406);
        // A client that has it already gets 304.
        let first = http.get(path, &[(header::ACCEPT, AGGREGATED)]).await;
        let etag = first.headers()[header::ETAG].to_str().unwrap();
        let again = http.get(path, &[(header::ACCEPT, AGGREGATED), (header::IF_NONE_MATCH, etag)]).await;
        assert_eq!((again.status().as_u16(), again.body().as_str()), (304, ""));
    }
    let version = http.json("/version", "*/*").await;
    assert_eq!((&version["major"], &version["minor"]), (&json!("1"), &json!("37")));
    assert!(text(&version["gitVersion"]).starts_with("v1.37."));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_takes_the_encoding_that_is_asked_for() {
    const YAML: &str = "application/yaml";
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    let cluster = TestCluster::start(0).await;
    let http = Http(cluster.kube().await);
    let aggregated = AGGREGATED.strip_prefix("application/json").unwrap();
    let cases = [
        ("/api", "", "APIVersions", ""),
        ("/apis", "", "APIGroupList", "v1"),
        ("/apis/apps", "", "APIGroup", "v1"),
        ("/api/v1", "", "APIResourceList", ""),
        ("/apis/apps/v1", "", "APIResourceList", "v1"),
        ("/api", aggregated, "APIGroupDiscoveryList", "apidiscovery.k8s.io/v2"),
        ("/apis", aggregated, "APIGroupDiscoveryList", "apidiscovery.k8s.io/v2"),
    ];
    for (path, form, kind, api_version) in cases {
        let yaml = http.get(path, &[(header::ACCEPT, &format!("{YAML}{form}"))]).await;
        assert_eq!(
            (yaml.status().as_u16(), content_type(&yaml)),
            (200, format!("{YAML}{form}")),
            "{path}{form}"
        );
        let mut json = http.json(path, &format!("application/json{form}")).await;
        assert_eq!(serde_saphyr::from_str::<Value>(yaml.body()).unwrap(), json, "{path}{form}");
        assert_eq!(json["kind"], kind);
        let binary = http.raw(path, &[(header::ACCEPT, &format!("{PROTOBUF}{form}"))]).await;
        assert_eq!(binary.headers()[header::CONTENT_TYPE], format!("{PROTOBUF}{form}"));
        let envelope = protobuf::open(binary.body()).unwrap();
        assert_eq!(
            (envelope.kind.as_str(), envelope.api_version.as_str()),
            (kind, api_version),
            "{path}{form}"
        );
        let package = if form.is_empty() { "apimachinery.pkg.apis.meta.v1" } else { "api.apidiscovery.v2" };
        let schema = types::lookup(&format!("io.k8s.{package}.{kind}")).unwrap();
        let decoded = protobuf::decode(&schema, envelope.raw).unwrap();
        for field in ["items", "groups", "versions", "resources"] {
            let length = |value: &mut Value| value[field].take().as_array().map_or(0, Vec::len);
            assert_eq!(length(&mut decoded.clone()), length(&mut json), "{path}{form} {field}");
        }
    }
    for (path, accept) in
        [("/version", YAML), ("/version", PROTOBUF), ("/api/v1", "text/plain"), ("/apis", "text/plain")]
    {
        // In protobuf, the refusal is no text.
        let refused = http.raw(path, &[(header::ACCEPT, accept)]).await;
        assert_eq!(refused.status(), 406, "{path} as {accept}");
    }
    cluster.stop().await;
}

/// Both forms say the same: groups, versions with the preferred one first, resources with kind, scope and verbs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_forms_of_discovery_agree() {
    let cluster = TestCluster::start(0).await;
    let http = Http(cluster.kube().await);
    let (list, groups) = (http.json("/apis", AGGREGATED).await, http.json("/apis", "application/json").await);
    let names: Vec<String> = items(&list["items"]).map(|g| text(&g["metadata"]["name"])).collect();
    assert_eq!(names, items(&groups["groups"]).map(|g| text(&g["name"])).collect::<Vec<_>>());
    assert!(names.len() > 15 && !names.contains(&String::new()));
    let core = http.json("/api", AGGREGATED).await;
    for group in items(&list["items"]).chain(items(&core["items"])) {
        let name = group["metadata"]["name"].as_str().unwrap_or_default();
        let versions: Vec<String> = items(&group["versions"]).map(|v| text(&v["version"])).collect();
        if !name.is_empty() {
            let one = http.json(&format!("/apis/{name}"), "application/json").await;
            let same = items(&groups["groups"]).find(|g| g["name"] == name).unwrap();
            assert_eq!(
                (&one["versions"], &one["preferredVersion"]),
                (&same["versions"], &same["preferredVersion"])
            );
            assert_eq!(items(&one["versions"]).map(|v| text(&v["version"])).collect::<Vec<_>>(), versions);
            assert_eq!(one["preferredVersion"], one["versions"][0]);
        }
        for version in items(&group["versions"]) {
            let root = if name.is_empty() { "/api".to_owned() } else { format!("/apis/{name}") };
            let path = format!("{root}/{}", text(&version["version"]));
            let legacy = http.json(&path, "application/json").await;
            assert_eq!(resources(version), legacy_resources(&legacy), "{path}");
        }
    }
    cluster.stop().await;
}

type Shown = BTreeSet<(String, String, bool, String)>;

fn resources(version: &Value) -> Shown {
    let mut all = Shown::new();
    for r in items(&version["resources"]) {
        let name = text(&r["resource"]);
        let namespaced = r["scope"] == "Namespaced";
        // A resource that only has subresources has neither kind nor verbs of its own.
        if r["verbs"].as_array().is_some_and(|v| !v.is_empty()) {
            all.insert((name.clone(), text(&r["responseKind"]["kind"]), namespaced, r["verbs"].to_string()));
        }
        for s in r["subresources"].as_array().into_iter().flatten() {
            let kind = text(&s["responseKind"]["kind"]);
            all.insert((
                format!("{name}/{}", text(&s["subresource"])),
                kind,
                namespaced,
                s["verbs"].to_string(),
            ));
        }
    }
    all
}

fn legacy_resources(list: &Value) -> Shown {
    items(&list["resources"])
        .map(|r| (text(&r["name"]), text(&r["kind"]), r["namespaced"] == true, r["verbs"].to_string()))
        .collect()
}

fn definition(versions: &[&str]) -> Value {
    let bars = json!({"type": "array", "description": "Bars and how old they are.", "items": {"type": "object",
        "required": ["name"], "properties": {"name": {"type": "string"}, "age": {"type": "string", "pattern": "^[0-9]+$"}}}});
    let schema = json!({"type": "object", "description": "Foo for a test", "properties": {
        "spec": {"type": "object", "properties": {"bars": bars}},
        "template": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
        "status": {"type": "object", "nullable": true, "properties": {"free": {"x-kubernetes-int-or-string": true}}}}});
    let versions: Vec<Value> = versions
        .iter()
        .enumerate()
        .map(|(i, name)| json!({"name": name, "served": true, "storage": i == 0, "schema": {"openAPIV3Schema": schema}}))
        .collect();
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "foos.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo", "shortNames": ["fo"]},
            "versions": versions}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_kinds_are_published_and_withdrawn() {
    let cluster = TestCluster::start(0).await;
    let (api, http) = (Api(&cluster), Http(cluster.kube().await));
    let names = |all: &[(String, Value)]| all.iter().map(|(k, _)| k.clone()).collect::<Vec<_>>();
    let path = format!("{CRDS}/foos.example.com");
    api.ok(Verb::Create, CRDS, definition(&["v5", "v6alpha1"])).await;
    http.versions(&["v5", "v6alpha1"]).await;
    let both = http.definitions().await;
    assert_eq!(
        names(&both),
        [
            "com.example.v5.Foo",
            "com.example.v5.FooList",
            "com.example.v6alpha1.Foo",
            "com.example.v6alpha1.FooList"
        ]
    );
    let mut shown = both[0].1.clone();
    for own in ["apiVersion", "kind", "metadata"] {
        assert!(shown["properties"].as_object_mut().unwrap().remove(own).is_some());
    }
    expect![[r#"
        {
          "description": "Foo for a test",
          "properties": {
            "spec": {
              "properties": {
                "bars": {
                  "description": "Bars and how old they are.",
                  "items": {
                    "properties": {
                      "age": {
                        "pattern": "^[0-9]+$",
                        "type": "string"
                      },
                      "name": {
                        "type": "string"
                      }
                    },
                    "required": [
                      "name"
                    ],
                    "type": "object"
                  },
                  "type": "array"
                }
              },
              "type": "object"
            },
            "status": {},
            "template": {
              "x-kubernetes-embedded-resource": true,
              "x-kubernetes-preserve-unknown-fields": true
            }
          },
          "type": "object",
          "x-kubernetes-group-version-kind": [
            {
              "group": "example.com",
              "kind": "Foo",
              "version": "v5"
            }
          ]
        }"#]]
    .assert_eq(&format!("{shown:#}"));
    let index = http.json("/openapi/v3", "application/json").await;
    let address = text(&index["paths"]["apis/example.com/v5"]["serverRelativeURL"]);
    let document = http.json(&address, "application/json").await;
    assert_eq!(
        document["components"]["schemas"]["com.example.v5.Foo"]["properties"]["status"]["nullable"],
        true
    );
    assert!(
        document["paths"]["/apis/example.com/v5/namespaces/{namespace}/foos/{name}"]["patch"].is_object()
    );

    // A version gets another name, then is not served any more; the other stays as it is.
    api.ok(Verb::Patch, &path, json!([{"op": "replace", "path": "/spec/versions/1/name", "value": "v4"}]))
        .await;
    http.versions(&["v5", "v4"]).await;
    let renamed = http.definitions().await;
    assert_eq!(
        names(&renamed),
        ["com.example.v4.Foo", "com.example.v4.FooList", "com.example.v5.Foo", "com.example.v5.FooList"]
    );
    assert_eq!(renamed[2], both[0]);
    api.ok(Verb::Patch, &path, json!([{"op": "replace", "path": "/spec/versions/1/served", "value": false}]))
        .await;
    http.versions(&["v5"]).await;
    assert_eq!(http.definitions().await, &both[..2]);
    assert_eq!(http.get("/apis/example.com/v4", &[]).await.status(), 404);
    assert_eq!(http.get("/openapi/v3/apis/example.com/v4", &[]).await.status(), 404);

    api.ok(Verb::Delete, &path, Value::Null).await;
    http.versions(&[]).await;
    assert_eq!(http.definitions().await, []);
    assert_eq!(http.get(&address, &[]).await.status(), 404);
    cluster.stop().await;
}

/// What is no stored resource has no table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reviews_have_no_table() {
    let cluster = TestCluster::start(0).await;
    let client = cluster.kube().await;
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}});
    for (accept, code) in [("application/json;as=Table;v=v1;g=meta.k8s.io", 406), ("application/json", 201)] {
        let request = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, accept)
            .body(review.to_string().into_bytes().into())
            .unwrap();
        assert_eq!(client.send(request).await.unwrap().status(), code, "{accept}");
    }
    cluster.stop().await;
}
