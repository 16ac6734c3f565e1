//! Definitions and what they ask of objects: names, authorities, approvals; lists, embedded objects, changed schemas.
//!
//! The rows are those of apiextensions-apiserver's `test/integration` (`apiapproval`, `basic`, `cabundle`, `listtype`,
//! `objectmeta`).

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code: a panic is a failure")]

mod common;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use common::{TestCluster, api::Api};
use kaji_resource::Verb;
use serde_json::{Value, json};

const CRDS: &str = "apiextensions.k8s.io/v1/customresourcedefinitions";

/// A definition of `PLURAL.GROUP` with a schema's properties.
fn definition(group: &str, plural: &str, properties: Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")}, "spec": {"group": group, "scope": "Cluster",
            "names": {"plural": plural, "singular": format!("{plural}singular"), "kind": format!("Kind{plural}")},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}}]}})
}

/// A condition's status and reason.
fn condition(definition: Option<&Value>, kind: &str) -> String {
    let all = definition.and_then(|d| d["status"]["conditions"].as_array()).cloned().unwrap_or_default();
    let found = all.iter().find(|c| c["type"] == kind);
    found.map_or("none".into(), |c| format!("{} {}", c["status"], c["reason"]).replace('"', ""))
}

async fn until(api: &Api<'_>, name: &str, kind: &str, wanted: &str) {
    api.until(CRDS, name, |d| condition(d, kind) == wanted).await;
}

async fn established(api: &Api<'_>, definition: Value) {
    let name = definition["metadata"]["name"].as_str().unwrap().to_owned();
    api.ok(Verb::Create, CRDS, definition).await;
    until(api, &name, "Established", "True InitialNamesAccepted").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_had_by_one() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    established(&api, definition("example.com", "firsts", json!({}))).await;
    let mut second = definition("example.com", "seconds", json!({}));
    second["spec"]["names"]["kind"] = "Kindfirsts".into();
    api.ok(Verb::Create, CRDS, second).await;
    until(&api, "seconds.example.com", "NamesAccepted", "False KindConflict").await;
    until(&api, "seconds.example.com", "Established", "False NotAccepted").await;
    // In another group the names are free.
    let mut third = definition("example.org", "thirds", json!({}));
    third["spec"]["names"]["kind"] = "Kindfirsts".into();
    established(&api, third).await;
    api.ok(Verb::Delete, &format!("{CRDS}/firsts.example.com"), Value::Null).await;
    until(&api, "seconds.example.com", "NamesAccepted", "True NoConflicts").await;
    until(&api, "seconds.example.com", "Established", "True InitialNamesAccepted").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorities_and_approvals() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let good = cluster.cluster.pki.ca.certificate.as_bytes();
    let converted = |plural: &str, bundle: &[u8]| {
        let mut definition = definition("example.com", plural, json!({}));
        definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
            "conversionReviewVersions": ["v1"], "clientConfig": {"caBundle": BASE64_STANDARD.encode(bundle),
                "service": {"namespace": "default", "name": "example"}}}});
        definition
    };
    // Unusable authorities are taken, but nothing is served by them.
    api.ok(Verb::Create, CRDS, converted("bads", b"\n")).await;
    until(&api, "bads.example.com", "Established", "False InvalidCABundle").await;
    let replace = |bundle: &[u8]| {
        json!([{"op": "replace", "path": "/spec/conversion/webhook/clientConfig/caBundle",
            "value": BASE64_STANDARD.encode(bundle)}])
    };
    let bad = format!("{CRDS}/bads.example.com");
    api.ok(Verb::Patch, &bad, replace(b"\n\n")).await;
    api.ok(Verb::Patch, &bad, replace(good)).await;
    until(&api, "bads.example.com", "Established", "True InitialNamesAccepted").await;
    let (code, message) = api.refused(Verb::Patch, &bad, replace(b"\n")).await;
    assert_eq!(
        (code, message.as_str()),
        (
            422,
            "CustomResourceDefinition.apiextensions.k8s.io \"bads.example.com\" is invalid: spec.conversion.webhookClientConfig.caBundle: Invalid value: \"Cg==\": unable to load root certificates: unable to parse bytes as PEM block"
        )
    );
    established(&api, converted("goods", good)).await;
    established(&api, converted("nones", b"")).await;

    let approved = |plural: &str, annotation: &str| {
        let mut definition = definition("sigs.k8s.io", plural, json!({}));
        definition["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": annotation});
        definition
    };
    for (plural, annotation, wanted) in [
        ("approveds", "https://github.com/kubernetes/kubernetes/pull/79724", "True ApprovedAnnotation"),
        ("bypasseds", "unapproved, experimental", "False UnapprovedAnnotation"),
    ] {
        let name = format!("{plural}.sigs.k8s.io");
        established(&api, approved(plural, annotation)).await;
        until(&api, &name, "KubernetesAPIApprovalPolicyConformant", wanted).await;
    }
    assert_eq!(api.refused(Verb::Create, CRDS, approved("missings", "")).await.0, 422);
    let other = api.ok(Verb::Get, &format!("{CRDS}/goods.example.com"), Value::Null).await;
    assert_eq!(condition(Some(&other), "KubernetesAPIApprovalPolicyConformant"), "none");
    cluster.stop().await;
}

fn object(kind: &str, name: &str, fields: Value) -> Value {
    let mut object = json!({"apiVersion": "example.com/v1", "kind": kind, "metadata": {"name": name}});
    for (k, v) in fields.as_object().unwrap() {
        object[k] = v.clone();
    }
    object
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_without_duplicates() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let integer = json!({"type": "integer"});
    let map = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"],
        "items": {"type": "object", "required": ["a", "b"], "properties": {"a": integer, "b": integer}}});
    let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object",
        "x-kubernetes-map-type": "atomic", "additionalProperties": integer}});
    let properties = json!({"good-map": map, "good-set": set, "bad-map": map, "bad-set": set});
    established(&api, definition("example.com", "lists", properties)).await;
    let path = "example.com/v1/lists";
    let (maps, sets) = (
        json!([{"a": 1, "b": 1, "c": "1"}, {"a": 1, "b": 2, "c": "2"}, {"a": 1, "b": 3, "c": "3"}]),
        json!([{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 1}, {"a": 1, "b": 4}]),
    );
    let twice = |list: &Value| {
        let mut list = list.clone();
        let first = list[0].clone();
        list.as_array_mut().unwrap().push(first);
        list
    };
    let fields =
        json!({"good-map": maps, "good-set": sets, "bad-map": twice(&maps), "bad-set": twice(&sets)});
    let (code, message) = api.refused(Verb::Create, path, object("Kindlists", "x", fields)).await;
    assert_eq!(code, 422);
    assert!(
        message.contains("bad-map[3]: Duplicate value") && message.contains("bad-set[4]: Duplicate value"),
        "{message}"
    );
    assert!(!message.contains("good-"), "{message}");
    let mut made = api
        .ok(Verb::Create, path, object("Kindlists", "x", json!({"good-map": maps, "good-set": sets})))
        .await;
    // The keys become fewer, so that the map has duplicates that it had before: those are forgiven, new ones are not.
    let patch = json!([{"op": "replace",
        "path": "/spec/versions/0/schema/openAPIV3Schema/properties/good-map/x-kubernetes-list-map-keys", "value": ["a"]}]);
    api.ok(Verb::Patch, &format!("{CRDS}/lists.example.com"), patch).await;
    let fresh = object("Kindlists", "y", json!({"good-map": maps}));
    while api.raw(Verb::Create, &format!("{path}?dryRun=All"), "application/json", &fresh).await.code != 422 {
        tokio::task::yield_now().await;
    }
    made["metadata"]["labels"] = json!({"changed": "yes"});
    let made = api.ok(Verb::Update, &format!("{path}/x"), made).await;
    let mut worse = made.clone();
    worse["good-set"] = twice(&sets);
    let (code, message) = api.refused(Verb::Update, &format!("{path}/x"), worse).await;
    assert!(code == 422 && message.contains("good-set[4]: Duplicate value"), "{message}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_objects() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let embedded = |inner: Value| {
        json!({"type": "object", "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": true, "properties": inner})
    };
    let mut defaults = embedded(json!({}));
    defaults["default"] = json!({"apiVersion": "v1", "kind": "Pod", "labels": {"foo": "bar"}});
    let properties = json!({"embedded": embedded(json!({})), "nested": embedded(json!({"embedded": embedded(json!({}))})),
        "plain": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}, "defaults": defaults});
    established(&api, definition("example.com", "holders", properties)).await;
    let path = "example.com/v1/holders";
    let one = |meta: Value| json!({"apiVersion": "foo/v1", "kind": "Foo", "metadata": meta});
    let given = one(json!({"name": "foo", "unspecified": "bar"}));
    let mut nested = given.clone();
    nested["embedded"] = given.clone();
    let fields = json!({"embedded": given, "plain": given, "nested": nested});
    let made = api.ok(Verb::Create, path, object("Kindholders", "x", fields)).await;
    let pruned = one(json!({"name": "foo"}));
    let mut both = pruned.clone();
    both["embedded"] = pruned.clone();
    assert_eq!((&made["embedded"], &made["plain"], &made["nested"]), (&pruned, &given, &both));
    assert_eq!(made["defaults"], json!({"apiVersion": "v1", "kind": "Pod", "labels": {"foo": "bar"}}));

    let typed =
        object("Kindholders", "y", json!({"embedded": one(json!({"name": "instance", "namespace": 42}))}));
    let (code, message) = api.refused(Verb::Create, path, typed).await;
    assert!(code == 422 && message.contains("embedded.metadata: Invalid value"), "{code} {message}");
    let wrong = json!({"apiVersion": "foo/v1", "kind": "%", "metadata": {"name": ".."}});
    let mut nested = wrong.clone();
    nested["embedded"] = wrong.clone();
    let mut invalid = object("Kindholders", "z", json!({"embedded": wrong, "nested": nested}));
    invalid["metadata"]["labels"] = json!({"foo": "x y"});
    let mut update = made.clone();
    for field in ["embedded", "nested"] {
        update[field] = invalid[field].clone();
    }
    update["metadata"]["labels"] = json!({"foo": "x y"});
    for (verb, path, object) in
        [(Verb::Create, path.to_owned(), invalid), (Verb::Update, format!("{path}/x"), update)]
    {
        let (code, message) = api.refused(verb, &path, object).await;
        assert_eq!(code, 422);
        for wanted in [
            "metadata.labels: Invalid value: \"x y\"",
            " embedded.kind: Invalid value: \"%\"",
            " embedded.metadata.name: Invalid value: \"..\"",
            " nested.kind: Invalid value: \"%\"",
            " nested.metadata.name: Invalid value: \"..\"",
            " nested.embedded.kind: Invalid value: \"%\"",
            " nested.embedded.metadata.name: Invalid value: \"..\"",
        ] {
            assert!(message.contains(wanted), "no {wanted} in {message}");
        }
    }
    cluster.stop().await;
}
