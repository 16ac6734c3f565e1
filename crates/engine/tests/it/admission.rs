//! What admission plugins see and may do.

use super::{Env, env::Answer};
use expect_test::expect;
use kaji_engine::{Admission, Attributes};
use kaji_meta::{Status, object};
use kaji_resource::BoxFuture;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// Labels what is written and notes what it sees; refuses what is annotated `refuse`.
#[derive(Default)]
struct Labeller {
    seen: Mutex<Vec<String>>,
}

impl Labeller {
    fn note(&self, phase: &str, a: &Attributes<'_>) {
        let object = a.new_object().map(|o| format!("{} {}", object::kind(o), object::name(o)));
        let old = a.old.map(object::name);
        let options = a.options.to_value();
        self.seen.lock().unwrap().push(format!(
            "{phase} {} {} {}/{}/{} {} object {object:?} old {old:?} dry {} options {options}",
            a.operation.as_str(),
            a.kind,
            a.resource.resource,
            a.namespace,
            a.name,
            a.subresource,
            a.dry_run
        ));
    }
}

impl Admission for Labeller {
    fn name(&self) -> &'static str {
        "Labeller"
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.resource.resource != "namespaces"
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            self.note("admit", a);
            if a.subresource.is_empty()
                && let Some(o) = a.object.as_deref_mut()
            {
                object::set_at(o, &["metadata", "labels", "admitted"], "yes");
            }
            Ok(())
        })
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            self.note("validate", a);
            match a.new_object().and_then(|o| object::annotation(o, "refuse")) {
                Some(reason) => Err(a.forbidden(reason)),
                None => Ok(()),
            }
        })
    }
}

#[tokio::test]
async fn every_write_passes_admission() {
    let plugin = Arc::new(Labeller::default());
    let env = Env::with(vec![plugin.clone()]).await;
    let path = "v1/configmaps/default/a";
    let made = env.create("v1/configmaps/default", json!({"metadata": {"name": "a"}})).await;
    assert_eq!(made.body["metadata"]["labels"]["admitted"], "yes", "{}", made.show());
    // What a plugin sets has no field manager.
    expect!["null"].assert_eq(&made.body["metadata"]["managedFields"].to_string());
    assert_eq!(env.put(path, made.body.clone()).await.body, made.body);
    env.patch("merge", &format!("{path}?dryRun=All"), json!({"data": {"x": "y"}})).await;
    env.create("v1/configmaps/default", json!({"metadata": {"generateName": "g-"}})).await;
    let refused = json!({"metadata": {"name": "r", "annotations": {"refuse": "not today"}}});
    expect![[r#"403 Forbidden: configmaps "r" is forbidden: not today"#]]
        .assert_eq(&env.create("v1/configmaps/default", refused).await.brief());
    env.delete(path, json!({"preconditions": {"uid": made.body["metadata"]["uid"]}})).await;
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 1}});
    assert_eq!(env.create("apps/v1/deployments/default", deployment).await.code, 201);
    env.patch("merge", "apps/v1/deployments/default/d/scale", json!({"spec": {"replicas": 2}})).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}});
    assert_eq!(env.create("v1/pods/default", &pod).await.code, 201);
    env.create("v1/pods/default/p/binding", json!({"metadata": {"name": "p"}, "target": {"name": "n"}}))
        .await;
    expect![[r#"
        admit CREATE /v1, Kind=ConfigMap configmaps/default/a  object Some("ConfigMap a") old None dry false options {"apiVersion":"meta.k8s.io/v1","kind":"CreateOptions"}
        validate CREATE /v1, Kind=ConfigMap configmaps/default/a  object Some("ConfigMap a") old None dry false options {"apiVersion":"meta.k8s.io/v1","kind":"CreateOptions"}
        admit UPDATE /v1, Kind=ConfigMap configmaps/default/a  object Some("ConfigMap a") old Some("a") dry false options {"apiVersion":"meta.k8s.io/v1","kind":"UpdateOptions"}
        validate UPDATE /v1, Kind=ConfigMap configmaps/default/a  object Some("ConfigMap a") old Some("a") dry false options {"apiVersion":"meta.k8s.io/v1","kind":"UpdateOptions"}
        admit UPDATE /v1, Kind=ConfigMap configmaps/default/a  object Some("ConfigMap a") old Some("a") dry true options {"apiVersion":"meta.k8s.io/v1","dryRun":["All"],"kind":"UpdateOptions"}
        validate UPDATE /v1, Kind=ConfigMap configmaps/default/a  object Some("ConfigMap a") old Some("a") dry true options {"apiVersion":"meta.k8s.io/v1","dryRun":["All"],"kind":"UpdateOptions"}
        admit CREATE /v1, Kind=ConfigMap configmaps/default/  object Some("ConfigMap ") old None dry false options {"apiVersion":"meta.k8s.io/v1","kind":"CreateOptions"}
        validate CREATE /v1, Kind=ConfigMap configmaps/default/g-8rrfv  object Some("ConfigMap g-8rrfv") old None dry false options {"apiVersion":"meta.k8s.io/v1","kind":"CreateOptions"}
        admit CREATE /v1, Kind=ConfigMap configmaps/default/r  object Some("ConfigMap r") old None dry false options {"apiVersion":"meta.k8s.io/v1","kind":"CreateOptions"}
        validate CREATE /v1, Kind=ConfigMap configmaps/default/r  object Some("ConfigMap r") old None dry false options {"apiVersion":"meta.k8s.io/v1","kind":"CreateOptions"}
        admit DELETE /v1, Kind=ConfigMap configmaps/default/a  object None old Some("a") dry false options {"apiVersion":"meta.k8s.io/v1","kind":"DeleteOptions","preconditions":{"uid":"f893a2ee-fb32-455e-b1c1-8690ee42c90b"}}
        validate DELETE /v1, Kind=ConfigMap configmaps/default/a  object None old Some("a") dry false options {"apiVersion":"meta.k8s.io/v1","kind":"DeleteOptions","preconditions":{"uid":"f893a2ee-fb32-455e-b1c1-8690ee42c90b"}}
        admit CREATE apps/v1, Kind=Deployment deployments/default/d  object Some("Deployment d") old None dry false options {"apiVersion":"meta.k8s.io/v1","kind":"CreateOptions"}
        validate CREATE apps/v1, Kind=Deployment deployments/default/d  object Some("Deployment d") old None dry false options {"apiVersion":"meta.k8s.io/v1","kind":"CreateOptions"}
        admit UPDATE autoscaling/v1, Kind=Scale deployments/default/d scale object Some("Scale d") old Some("d") dry false options {"apiVersion":"meta.k8s.io/v1","kind":"UpdateOptions"}
        validate UPDATE autoscaling/v1, Kind=Scale deployments/default/d scale object Some("Scale d") old Some("d") dry false options {"apiVersion":"meta.k8s.io/v1","kind":"UpdateOptions"}
        admit CREATE /v1, Kind=Pod pods/default/p  object Some("Pod p") old None dry false options {"apiVersion":"meta.k8s.io/v1","kind":"CreateOptions"}
        validate CREATE /v1, Kind=Pod pods/default/p  object Some("Pod p") old None dry false options {"apiVersion":"meta.k8s.io/v1","kind":"CreateOptions"}
        admit CREATE /v1, Kind=Binding pods/default/p binding object Some("Binding p") old None dry false options {"apiVersion":"meta.k8s.io/v1","kind":"CreateOptions"}
        validate CREATE /v1, Kind=Binding pods/default/p binding object Some("Binding p") old None dry false options {"apiVersion":"meta.k8s.io/v1","kind":"CreateOptions"}
        admit UPDATE /v1, Kind=Pod pods/default/p  object Some("Pod p") old Some("p") dry false options {"apiVersion":"meta.k8s.io/v1","kind":"UpdateOptions"}
        validate UPDATE /v1, Kind=Pod pods/default/p  object Some("Pod p") old Some("p") dry false options {"apiVersion":"meta.k8s.io/v1","kind":"UpdateOptions"}"#]].assert_eq(&plugin.seen.lock().unwrap().join("\n"));
}

/// Each object of a collection is shown, and none is named: the request names none.
#[tokio::test]
async fn objects_of_collections_have_no_name() {
    let plugin = Arc::new(Labeller::default());
    let env = Env::with(vec![plugin.clone()]).await;
    env.create("v1/configmaps/default", json!({"metadata": {"name": "a"}})).await;
    plugin.seen.lock().unwrap().clear();
    let all = env.request(kaji_resource::Verb::DeleteCollection, "v1/configmaps/default", "");
    assert_eq!(env.send(all).await.code, 200);
    expect![[r#"
        admit DELETE /v1, Kind=ConfigMap configmaps/default/  object None old Some("a") dry false options {"apiVersion":"meta.k8s.io/v1","kind":"DeleteOptions"}
        validate DELETE /v1, Kind=ConfigMap configmaps/default/  object None old Some("a") dry false options {"apiVersion":"meta.k8s.io/v1","kind":"DeleteOptions"}"#]]
    .assert_eq(&plugin.seen.lock().unwrap().join("\n"));
}

/// Changes metadata of what is written; null removes.
#[derive(Default)]
struct Rewriter(Mutex<Value>);

impl Admission for Rewriter {
    fn name(&self) -> &'static str {
        "Rewriter"
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.resource.resource == "configmaps"
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let changes = self.0.lock().unwrap().clone();
            let Some(object) = a.object.as_deref_mut() else { return Ok(()) };
            for (field, value) in changes.as_object().into_iter().flatten() {
                object::set_at(object, &["metadata", field], value.clone());
                if value.is_null() {
                    object::remove_at(object, &["metadata", field]);
                }
            }
            Ok(())
        })
    }
}

/// The answers are those of an API server of upstream's to the same changes by a webhook.
#[tokio::test]
async fn changes_of_system_fields_are_treated_as_upstream_does() {
    let plugin = Arc::new(Rewriter::default());
    let env = Env::with(vec![plugin.clone()]).await;
    let text = "1999-01-01T00:00:00Z";
    let mut out = String::new();
    for (i, change) in [
        json!({"name": "other"}),
        json!({"name": "Bad_Name"}),
        json!({"name": null}),
        json!({"namespace": "kube-system"}),
        json!({"namespace": null}),
        json!({"deletionTimestamp": text}),
        json!({"deletionGracePeriodSeconds": 7}),
        json!({"uid": "1"}),
        json!({"resourceVersion": "1"}),
        json!({"resourceVersion": "x"}),
        json!({"creationTimestamp": text}),
        json!({"generation": 77}),
        json!({"generation": -7}),
        json!({"selfLink": "/x"}),
    ]
    .into_iter()
    .enumerate()
    {
        let mut show = |verb: &str, answer: Answer| {
            let shown = match answer.code {
                200 | 201 => {
                    let mut meta = answer.body["metadata"].clone();
                    for field in ["managedFields", "resourceVersion", "namespace", "annotations"] {
                        object::remove_at(&mut meta, &[field]);
                    }
                    for field in ["uid", "creationTimestamp"] {
                        assert_ne!(meta[field], change[field]);
                        object::remove_at(&mut meta, &[field]);
                    }
                    meta.to_string()
                }
                _ => answer.brief(),
            };
            out += &format!("{change} {verb}: {shown}\n");
        };
        let named = |name: &str| json!({"metadata": {"name": name, "annotations": {"a": name}}});
        *plugin.0.lock().unwrap() = change.clone();
        show("create", env.create("v1/configmaps/default", named(&format!("c{i}"))).await);
        let path = |name: &str| format!("v1/configmaps/default/{name}{i}");
        *plugin.0.lock().unwrap() = Value::Null;
        env.create("v1/configmaps/default", named(&format!("u{i}"))).await;
        *plugin.0.lock().unwrap() = change.clone();
        show("update", env.put(&path("u"), named(&format!("u{i}"))).await);
    }
    expect![[r#"
        {"name":"other"} create: {"name":"other"}
        {"name":"other"} update: 422 Invalid: ConfigMap "other" is invalid: metadata.name: Invalid value: "other": field is immutable
        {"name":"Bad_Name"} create: 422 Invalid: ConfigMap "Bad_Name" is invalid: metadata.name: Invalid value: "Bad_Name": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
        {"name":"Bad_Name"} update: 422 Invalid: ConfigMap "Bad_Name" is invalid: metadata.name: Invalid value: "Bad_Name": field is immutable
        {"name":null} create: 422 Invalid: ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required
        {"name":null} update: 422 Invalid: ConfigMap "" is invalid: [metadata.name: Required value: name or generateName is required, metadata.name: Invalid value: "": field is immutable]
        {"namespace":"kube-system"} create: 400 BadRequest: the namespace of the provided object does not match the namespace sent on the request
        {"namespace":"kube-system"} update: 400 BadRequest: the namespace of the provided object does not match the namespace sent on the request
        {"namespace":null} create: {"name":"c4"}
        {"namespace":null} update: {"name":"u4"}
        {"deletionTimestamp":"1999-01-01T00:00:00Z"} create: {"deletionTimestamp":"1999-01-01T00:00:00Z","name":"c5"}
        {"deletionTimestamp":"1999-01-01T00:00:00Z"} update: 422 Invalid: ConfigMap "u5" is invalid: metadata.deletionTimestamp: Invalid value: "1999-01-01T00:00:00Z": field is immutable
        {"deletionGracePeriodSeconds":7} create: {"deletionGracePeriodSeconds":7,"name":"c6"}
        {"deletionGracePeriodSeconds":7} update: 422 Invalid: ConfigMap "u6" is invalid: metadata.deletionGracePeriodSeconds: Invalid value: 7: field is immutable
        {"uid":"1"} create: {"name":"c7"}
        {"uid":"1"} update: 422 Invalid: ConfigMap "u7" is invalid: metadata.uid: Invalid value: "1": field is immutable
        {"resourceVersion":"1"} create: 500 : resourceVersion should not be set on objects to be created
        {"resourceVersion":"1"} update: 409 Conflict: Operation cannot be fulfilled on configmaps "u8": the object has been modified; please apply your changes to the latest version and try again
        {"resourceVersion":"x"} create: {"name":"c9"}
        {"resourceVersion":"x"} update: 500 : strconv.ParseUint: parsing "x": invalid syntax
        {"creationTimestamp":"1999-01-01T00:00:00Z"} create: {"name":"c10"}
        {"creationTimestamp":"1999-01-01T00:00:00Z"} update: {"name":"u10"}
        {"generation":77} create: {"generation":77,"name":"c11"}
        {"generation":77} update: {"name":"u11"}
        {"generation":-7} create: 422 Invalid: ConfigMap "c12" is invalid: metadata.generation: Invalid value: -7: must be greater than or equal to 0
        {"generation":-7} update: {"name":"u12"}
        {"selfLink":"/x"} create: {"name":"c13"}
        {"selfLink":"/x"} update: {"name":"u13"}
    "#]].assert_eq(&out);
}
