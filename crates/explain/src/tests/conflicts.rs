//! Applies that were refused or that hang: which manager holds each field, which request set it, which webhook does not answer.

use crate::testing::{Fixture, fixture};
use expect_test::expect;
use serde_json::{Value, json};

const CONFLICT: &str = "Apply failed with 2 conflicts: conflicts with \"scaler\" with subresource \"scale\" using apps/v1:\n- .spec.replicas\nconflicts with \"editor\" using apps/v1:\n- .spec.template.spec.containers[name=\"web\"].image";

fn deployment(replicas: u32) -> Value {
    let entry = |manager: &str, subresource: &str, fields: Value| {
        json!({"manager": manager, "operation": "Update", "subresource": subresource, "apiVersion": "apps/v1",
            "time": "2026-01-01T00:02:00Z", "fieldsV1": {"f:spec": fields}})
    };
    let image =
        json!({"f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"web\"}": {"f:image": {}}}}}});
    json!({"kind": "Deployment", "name": "web", "metadata": {"managedFields": [
            entry("scaler", "scale", json!({"f:replicas": {}})),
            entry("editor", "", image),
            // Later than the refusal, and no answer to it.
            {"manager": "kubelet", "subresource": "status", "operation": "Update", "time": "2026-01-01T00:08:00Z"},
        ]},
        "spec": {"replicas": replicas, "template": {"spec": {"containers": [{"name": "web", "image": "web:2"}]}}},
        "status": {"replicas": replicas, "updatedReplicas": replicas, "availableReplicas": replicas}})
}

fn refusal(name: &str, rule: &str, message: &str) -> Value {
    json!({"kind": "Refusal", "name": name, "user": "bob", "verb": "patch", "fieldManager": "mine", "count": 1,
        "lastTimestamp": "2026-01-01T00:05:00Z", "message": message, "rule": {"kind": rule},
        "object": {"group": "apps", "resource": "deployments", "namespace": "d", "name": name}})
}

fn revision(number: u32, user: &str, state: &Value) -> Value {
    json!({"kind": "Revision", "name": format!("web.{number}"), "object": {"group": "apps", "resource": "deployments", "name": "web"},
        "revision": number.to_string(), "time": format!("2026-01-01T00:00:{number:02}Z"),
        "change": if number == 1 { "Created" } else { "Modified" },
        "user": user, "userAgent": "kubectl/v1.37", "fieldManager": "m", "verb": "patch", "state": state})
}

fn server() -> Fixture {
    let mut first = deployment(1);
    first["spec"]["template"]["spec"]["containers"][0]["image"] = json!("web:1");
    let mut second = first.clone();
    second["spec"]["template"]["spec"]["containers"][0]["image"] = json!("web:2");
    fixture(&[
        deployment(5),
        refusal("web", "FieldManager", CONFLICT),
        revision(1, "ann", &first),
        revision(2, "cid", &second),
        revision(3, "autoscaler", &deployment(5)),
    ])
}

#[tokio::test]
async fn tells_what_holds_the_fields_of_an_apply() {
    expect![[r#"
        Deployment d/web: an apply was refused: other field managers hold .spec.replicas, .spec.template.spec.containers[name="web"].image (scaler, editor)
          known    patch of deployments/web by bob, field manager mine, at 2026-01-01T00:05:00Z
          known    .spec.replicas is held by field manager scaler (subresource scale), by Update at 2026-01-01T00:02:00Z; it is 5
          known    .spec.replicas was last changed by user autoscaler (kubectl/v1.37) in revision 3 at 2026-01-01T00:00:03Z
          known    .spec.template.spec.containers[name="web"].image is held by field manager editor, by Update at 2026-01-01T00:02:00Z; it is "web:2"
          known    .spec.template.spec.containers[name="web"].image was last changed by user cid (kubectl/v1.37) in revision 2 at 2026-01-01T00:00:02Z
          fix      say the values that are there in the configuration (.spec.replicas: 5, .spec.template.spec.containers[name="web"].image: "web:2"): they have several managers then
          fix      or leave .spec.replicas, .spec.template.spec.containers[name="web"].image out of the configuration: they stay with scaler, editor
          fix      or kubectl apply --server-side --force-conflicts: it overwrites .spec.replicas: 5, .spec.template.spec.containers[name="web"].image: "web:2", and takes them from scaler, editor, which may write them again
    "#]].assert_eq(&server().why("deployment/web").await);
}

#[tokio::test]
async fn tells_the_same_of_the_text_of_the_refusal() {
    let printed =
        format!("error: {CONFLICT}\nPlease review the fields above--they currently have other managers.");
    let server = server();
    let found = server.why_text(&printed, None).await;
    assert_eq!(found, server.why("deployment/web").await);
    let named = server.why_text(&printed, Some("deployment/web")).await;
    assert!(named.contains("last changed by user cid (kubectl/v1.37) in revision 2"), "{named}");
    assert_eq!(
        server.why_text(&printed, Some("deployment/other")).await,
        "error: deployments.apps \"other\" not found\n"
    );
    // A server that remembers nothing.
    let other = fixture(&[deployment(5)]).not_serving("kaji.dev").not_serving("history.kaji.dev");
    expect![[r#"
        Apply: an apply was refused: other field managers hold .spec.replicas, .spec.template.spec.containers[name="web"].image (scaler, editor)
          known    .spec.replicas is held by field manager scaler (subresource scale), by a create, update or patch of apps/v1
          known    .spec.template.spec.containers[name="web"].image is held by field manager editor, by a create, update or patch of apps/v1
          fix      kaji why KIND/NAME 'Apply failed …' says more: the text does not name the object
          fix      leave the fields out; or say the values that they have; or kubectl apply --server-side --force-conflicts takes them
    "#]].assert_eq(&other.why_text(&printed, None).await);
    assert_eq!(server.why_text("Apply failed with what?", None).await, "no refusal\n");
}

#[tokio::test]
async fn what_the_caller_may_not_read_is_not_said() {
    let blind = server().forbidding("/revisions");
    let text = blind.why("deployment/web").await;
    assert!(!text.contains("cid") && !text.contains("autoscaler"), "{text}");
    assert!(text.contains("unknown  ") && text.contains("revisions is forbidden"), "{text}");
    // The object of the refusal cannot be read: no more than the text says.
    let blind = server().forbidding("/deployments/");
    let text = blind.why_text(CONFLICT, None).await;
    assert!(!text.contains("web:2") && !text.contains("is 5"), "{text}");
    assert!(text.contains(".spec.replicas is held by field manager scaler (subresource scale)"), "{text}");
}

#[tokio::test]
async fn a_conflict_is_over_when_the_manager_gave_the_field_up_or_the_apply_went_through() {
    let mut given_up = deployment(5);
    given_up["metadata"]["managedFields"] =
        json!([{"manager": "mine", "operation": "Apply", "time": "2026-01-01T00:01:00Z"}]);
    let mut forced = deployment(5);
    let entries = forced["metadata"]["managedFields"].as_array_mut().unwrap();
    entries.push(json!({"manager": "mine", "operation": "Apply", "time": "2026-01-01T00:06:00Z"}));
    for object in [given_up, forced] {
        let server = fixture(&[object, refusal("web", "FieldManager", CONFLICT)]);
        assert_eq!(server.why("deployment/web").await, "Deployment d/web: nothing is wrong with it\n");
    }
}

#[tokio::test]
async fn values_of_secrets_are_not_shown() {
    let message = "Apply failed with 1 conflict: conflict with \"editor\" using v1: .data.p";
    let server = fixture(&[json!({"kind": "Secret", "name": "s", "data": {"p": "aHVudGVyMg=="},
        "metadata": {"managedFields": [{"manager": "editor", "operation": "Update", "time": "2026-01-01T00:02:00Z",
            "fieldsV1": {"f:data": {"f:p": {}}}}]}})]);
    let text = server.why_text(message, Some("secret/s")).await;
    assert!(
        text.contains(".data.p is held by field manager editor") && !text.contains("aHVudGVyMg"),
        "{text}"
    );
}

#[tokio::test]
async fn tells_the_webhook_that_an_apply_waits_for() {
    let message = |name: &str| {
        format!(
            "Internal error occurred: failed calling webhook \"{name}\": failed to call webhook: Post \"https://a/b\": context deadline exceeded"
        )
    };
    let hook = |policy: &str, name: &str| {
        json!({"kind": "ValidatingWebhookConfiguration", "name": name, "webhooks": [{
            "name": format!("{name}.acme.example.com"), "failurePolicy": policy, "timeoutSeconds": 30,
            "clientConfig": {"url": "https://a/b"},
            "rules": [{"operations": ["*"], "apiGroups": ["apps"], "resources": ["deployments"]}]}]})
    };
    let decision = json!({"kind": "Decision", "name": "hook", "namespace": "default", "component": "admission-webhooks", "count": 1,
        "object": {"group": "admissionregistration.k8s.io", "resource": "validatingwebhookconfigurations", "name": "slow"},
        "lastTimestamp": "2026-01-01T00:05:00Z", "message": message("slow.acme.example.com").strip_prefix("Internal error occurred: ")});
    let quiet = |name: &str| {
        let mut object = deployment(1);
        (object["metadata"], object["name"]) = (json!({}), json!(name));
        object
    };
    let server = fixture(&[
        quiet("web"),
        quiet("other"),
        hook("Fail", "guard"),
        hook("Ignore", "slow"),
        refusal("web", "Webhook", &message("guard.acme.example.com")),
        refusal("new", "Webhook", &message("guard.acme.example.com")),
        decision,
        json!({"kind": "ConfigMap", "name": "m"}),
    ]);
    let mut text = String::new();
    for subject in ["deployment/web", "deployment/new", "deployment/other", "configmap/m"] {
        text += &server.why(subject).await;
    }
    text += &server.why_text(&message("guard.acme.example.com"), None).await;
    expect![[r#"
        Deployment d/web: a write of it hung until webhook guard.acme.example.com had timed out
          known    patch of deployments/web by bob, field manager mine, at 2026-01-01T00:05:00Z
          known    Internal error occurred: failed calling webhook "guard.acme.example.com": failed to call webhook: Post "https://a/b": context deadline exceeded
          known    validatingwebhookconfiguration/guard names it: https://a/b, which each request waits for up to 30 s
          known    failurePolicy is Fail: it refuses * of deployments
          fix      kaji why validatingwebhookconfiguration/guard
        Deployment d/web: writes of it wait for webhook slow.acme.example.com, which does not answer
          known    its last call failed at 2026-01-01T00:05:00Z: failed calling webhook "slow.acme.example.com": failed to call webhook: Post "https://a/b": context deadline exceeded
          known    validatingwebhookconfiguration/slow names it: https://a/b, which each request waits for up to 30 s
          known    failurePolicy is Ignore: requests pass without it
          fix      kaji why validatingwebhookconfiguration/slow
        deployments "new" not found: a write of it hung until webhook guard.acme.example.com had timed out
          known    patch of deployments/new by bob, field manager mine, at 2026-01-01T00:05:00Z
          known    Internal error occurred: failed calling webhook "guard.acme.example.com": failed to call webhook: Post "https://a/b": context deadline exceeded
          known    validatingwebhookconfiguration/guard names it: https://a/b, which each request waits for up to 30 s
          known    failurePolicy is Fail: it refuses * of deployments
          fix      kaji why validatingwebhookconfiguration/guard
        Deployment d/other: writes of it wait for webhook slow.acme.example.com, which does not answer
          known    its last call failed at 2026-01-01T00:05:00Z: failed calling webhook "slow.acme.example.com": failed to call webhook: Post "https://a/b": context deadline exceeded
          known    validatingwebhookconfiguration/slow names it: https://a/b, which each request waits for up to 30 s
          known    failurePolicy is Ignore: requests pass without it
          fix      kaji why validatingwebhookconfiguration/slow
        ConfigMap d/m: nothing is wrong with it
        Write: a write of it hung until webhook guard.acme.example.com had timed out
          known    validatingwebhookconfiguration/guard names it: https://a/b, which each request waits for up to 30 s
          known    failurePolicy is Fail: it refuses * of deployments
          fix      kaji why validatingwebhookconfiguration/guard
    "#]].assert_eq(&text);
}
