//! Definitions and what they ask of objects: names, authorities, approvals; lists, embedded objects, changed schemas.
//!
//! The rows are those of apiextensions-apiserver's `test/integration` (`apiapproval`, `basic`, `cabundle`, `listtype`,
//! `objectmeta`).

use crate::common::{TestCluster, api::Api};
use base64::{Engine as _, prelude::BASE64_STANDARD};
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
async fn built_in_resources_and_versions_are_not_taken_over() {
    const SERVICES: &str = "apiregistration.k8s.io/v1/apiservices";
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let before = api.ok(Verb::Get, &format!("{SERVICES}/v1.apps"), Value::Null).await;
    for (group, plural, reason) in [
        ("apiregistration.k8s.io", "apiservices", "OverlappingBuiltInResource"),
        ("networking.k8s.io", "foos", "InstanceDeletionCompleted"),
    ] {
        let mut unapproved = definition(group, plural, json!({}));
        unapproved["metadata"]["annotations"] =
            json!({"api-approved.kubernetes.io": "unapproved, for a test"});
        unapproved["metadata"]["finalizers"] = json!(["example.com/kept"]);
        established(&api, unapproved).await;
        let name = format!("{plural}.{group}");
        api.ok(Verb::Delete, &format!("{CRDS}/{name}"), Value::Null).await;
        until(&api, &name, "Terminating", &format!("False {reason}")).await;
        let release = json!([{"op": "remove", "path": "/metadata/finalizers"}]);
        api.ok(Verb::Patch, &format!("{CRDS}/{name}"), release).await;
    }
    // The built-in kind has its objects still, and no definition's kind is served beside it.
    let after = api.ok(Verb::Get, &format!("{SERVICES}/v1.apps"), Value::Null).await;
    assert_eq!((&after["metadata"]["uid"], &after["spec"]), (&before["metadata"]["uid"], &before["spec"]));
    let registry = cluster.cluster.stack.engine.registry();
    let mut custom = registry.iter().filter(|resource| resource.def.kind.starts_with("Kind"));
    assert!(custom.all(|resource| resource.def.versions.iter().all(|version| !version.served)));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requires_approval_for_protected_groups() {
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
async fn rejects_duplicates_in_set_and_map_lists() {
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
    // The keys become fewer, so that the map has duplicates that it had before: those are forgiven.
    let patch = json!([{"op": "replace",
        "path": "/spec/versions/0/schema/openAPIV3Schema/properties/good-map/x-kubernetes-list-map-keys", "value": ["a"]}]);
    api.ok(Verb::Patch, &format!("{CRDS}/lists.example.com"), patch).await;
    let fresh = object("Kindlists", "y", json!({"good-map": maps}));
    while api.raw(Verb::Create, &format!("{path}?dryRun=All"), "application/json", &fresh).await.code != 422 {
        tokio::task::yield_now().await;
    }
    made["metadata"]["labels"] = json!({"changed": "yes"});
    let made = api.ok(Verb::Update, &format!("{path}/x"), made).await;
    // As upstream has it, even new ones are, as long as there are old ones.
    let mut worse = made.clone();
    worse["good-set"] = twice(&sets);
    api.ok(Verb::Update, &format!("{path}/x"), worse).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validates_embedded_objects() {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_become_embedded_later() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    established(&api, definition("example.com", "laters", json!({"embedded": free}))).await;
    let path = "example.com/v1/laters";
    let embedded = json!({"apiVersion": "foo/v1", "kind": "Foo", "other": 1, "metadata": {"name": "foo", "unknown": 42,
        "annotations": {"foo": 42, "bar": "abc"}, "labels": {"invalid": "x y"}}});
    api.ok(Verb::Create, path, object("Kindlaters", "x", json!({"embedded": embedded}))).await;
    let patch = json!([{"op": "add",
        "path": "/spec/versions/0/schema/openAPIV3Schema/properties/embedded/x-kubernetes-embedded-resource", "value": true}]);
    api.ok(Verb::Patch, &format!("{CRDS}/laters.example.com"), patch).await;
    // What cannot be metadata is not shown; what is metadata, if of no use, is.
    let mut shown = loop {
        let shown = api.ok(Verb::Get, &format!("{path}/x"), Value::Null).await;
        if shown["embedded"] != embedded {
            break shown;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(shown["embedded"]["metadata"], json!({"name": "foo", "labels": {"invalid": "x y"}}));
    assert_eq!(shown["embedded"]["other"], 1);
    shown["embedded"]["metadata"]["labels"]["more"] = "changed".into();
    let (code, message) = api.refused(Verb::Update, &format!("{path}/x"), shown.clone()).await;
    assert!(
        code == 422 && message.contains("embedded.metadata.labels: Invalid value: \"x y\""),
        "{code} {message}"
    );
    shown["embedded"]["metadata"]["labels"]["invalid"] = "fixed".into();
    let mut fixed = api.ok(Verb::Update, &format!("{path}/x"), shown).await;
    fixed["embedded"]["metadata"]["labels"]["invalid"] = 42.into();
    assert_eq!(api.refused(Verb::Update, &format!("{path}/x"), fixed).await.0, 422);
    api.ok(Verb::Delete, &format!("{path}/x"), Value::Null).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zeros_nulls_and_defaults() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let mut properties = json!({});
    let (mut given, mut expected) = (json!({}), json!({}));
    for (kind, zero) in [
        ("string", json!("")),
        ("boolean", json!(false)),
        ("number", json!(0)),
        ("integer", json!(0)),
        ("array", json!([])),
        ("object", json!({})),
    ] {
        let mut schema = json!({"type": kind});
        match kind {
            "array" => schema["items"] = json!({"type": "string"}),
            "object" => schema["properties"] = json!({"a": {"type": "string"}}),
            _ => {}
        }
        properties[kind] = schema.clone();
        (given[kind], expected[kind]) = (zero.clone(), zero.clone());
        let key = |suffix: &str| format!("{kind}_{suffix}");
        let (mut nullable, mut default) = (schema.clone(), schema);
        nullable["nullable"] = true.into();
        default["default"] = zero.clone();
        properties[key("null")] = nullable.clone();
        (given[key("null")], expected[key("null")]) = (Value::Null, Value::Null);
        properties[key("default")] = default.clone();
        expected[key("default")] = zero.clone();
        // A null is replaced by the default, unless it may be there.
        properties[key("replaced")] = default;
        (given[key("replaced")], expected[key("replaced")]) = (Value::Null, zero.clone());
        nullable["default"] = zero;
        properties[key("kept")] = nullable;
        (given[key("kept")], expected[key("kept")]) = (Value::Null, Value::Null);
    }
    established(&api, definition("example.com", "zeros", properties)).await;
    let path = "example.com/v1/zeros";
    let made = api.ok(Verb::Create, path, object("Kindzeros", "x", given)).await;
    let mut fields = made.as_object().unwrap().clone();
    ["apiVersion", "kind", "metadata"].iter().for_each(|f| drop(fields.remove(*f)));
    assert_eq!(Value::Object(fields), expected);
    // Without a default it means that the field is absent; but an element of a list cannot be.
    let null = object("Kindzeros", "y", json!({"integer": null}));
    assert!(api.ok(Verb::Create, path, null).await.get("integer").is_none());
    let null = object("Kindzeros", "z", json!({"array": [null]}));
    let (code, message) = api.refused(Verb::Create, path, null).await;
    let wanted = "array[0]: Invalid value: \"null\": array[0] in body must be of type string: \"null\"";
    assert!(code == 422 && message.contains(wanted), "{code} {message}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemas_that_are_refused() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let (root, string) = ("spec.validation.openAPIV3Schema", json!({"type": "string"}));
    let within = |p: Value| json!({"type": "object", "properties": {"p": p}});
    for (schema, wanted) in [
        (
            json!({"x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-int-or-string": true}),
            ".x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if x-kubernetes-int-or-string is true",
        ),
        (
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-int-or-string": true}),
            ".x-kubernetes-embedded-resource: Invalid value: true: must be false if x-kubernetes-int-or-string is true",
        ),
        (
            json!({"type": "object", "x-kubernetes-embedded-resource": true}),
            ".properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ),
        (
            json!({"type": "array", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
            ".type: Invalid value: \"array\": must be object if x-kubernetes-embedded-resource is true",
        ),
        (
            json!({"type": "", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
            ".type: Required value: must be object if x-kubernetes-embedded-resource is true",
        ),
        (
            json!({"type": "object", "properties": {"p": {"x-kubernetes-int-or-string": true}},
                "not": {"properties": {"p": {"x-kubernetes-int-or-string": true}}}}),
            ".not.properties[p].x-kubernetes-int-or-string: Forbidden: must be false to be structural",
        ),
        (json!({"properties": {}}), ".type: Required value: must not be empty at the root"),
        (
            within(json!({"type": "array", "items": {}})),
            ".properties[p].items.type: Required value: must not be empty for specified array items",
        ),
        (
            within(
                json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "string"}, {"type": "integer"}]}),
            ),
            ".properties[p].anyOf[0].type: Forbidden: must be empty to be structural",
        ),
        (
            within(json!({"type": "array", "items": [string, string]})),
            ".properties[p].items: Forbidden: items must be a schema object and not an array",
        ),
        (
            json!({"type": "object", "additionalProperties": false}),
            ".additionalProperties: Forbidden: must not be used at the root",
        ),
        (
            within(json!({"type": "array", "items": string, "uniqueItems": true})),
            ".properties[p].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ),
        (json!({"type": "object", "$ref": "#/definitions/x"}), ".$ref: Forbidden: $ref is not supported"),
    ] {
        let mut definition = definition("example.com", "refuseds", json!({}));
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema.clone();
        let (code, message) = api.refused(Verb::Create, CRDS, definition).await;
        assert!(code == 422 && message.contains(&format!("{root}{wanted}")), "{schema}: {code} {message}");
    }
    cluster.stop().await;
}
