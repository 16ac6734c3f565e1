//! What admission plugins see and may do.

use super::Env;
use expect_test::expect;
use kaji_engine::{Admission, Attributes};
use kaji_meta::{Status, object};
use kaji_resource::BoxFuture;
use serde_json::json;
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
async fn every_write_passes() {
    let plugin = Arc::new(Labeller::default());
    let env = Env::with(vec![plugin.clone()]).await;
    let path = "v1/configmaps/default/a";
    let made = env.create("v1/configmaps/default", json!({"metadata": {"name": "a"}})).await;
    assert_eq!(made.body["metadata"]["labels"]["admitted"], "yes", "{}", made.show());
    // What a plugin sets belongs to nobody.
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
