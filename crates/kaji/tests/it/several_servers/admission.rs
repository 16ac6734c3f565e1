//! Policies, webhooks and quotas that are written at one server.

use super::Servers;
use crate::common::{
    TestCluster,
    access::{admin, ask, ok},
    https::Https,
    until,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

const REGISTRATION: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}})
}

/// What a creation that is not persisted would come to: code and object, or the refusal.
async fn tried(server: &TestCluster) -> (u16, Value) {
    ask(server, &admin(), &format!("POST {MAPS}?dryRun=All"), &map("tried")).await
}

/// The rule that is about config maps.
fn rules() -> Value {
    json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}])
}

/// Makes a policy of a kind at a server, and binds it.
async fn policy(server: &TestCluster, kind: &str, mut spec: Value, binding: Value) {
    spec["matchConstraints"] = json!({"resourceRules": rules()});
    let object = json!({"metadata": {"name": "p"}, "spec": spec});
    ok(server, &admin(), &format!("POST {REGISTRATION}/{kind}admissionpolicies"), object).await;
    let object = json!({"metadata": {"name": "p"}, "spec": binding});
    ok(server, &admin(), &format!("POST {REGISTRATION}/{kind}admissionpolicybindings"), object).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_count_at_both_servers() {
    let Some(servers) = Servers::start("policies_count_at_both_servers").await else { return };
    let (a, b) = (&servers.a, &servers.b);
    let spec = json!({"validations": [{"expression": "object.data.k != 'v'", "message": "no v"}]});
    policy(a, "validating", spec, json!({"policyName": "p", "validationActions": ["Deny"]})).await;
    until("the other refuses", async || tried(b).await.0 == 422).await;
    let (_, refusal) = tried(b).await;
    assert!(refusal["message"].as_str().unwrap().ends_with("denied request: no v"), "{refusal}");
    // What one takes back, too.
    ok(b, &admin(), &format!("DELETE {REGISTRATION}/validatingadmissionpolicybindings/p"), Value::Null).await;
    until("the first accepts again", async || tried(a).await.0 == 201).await;

    let expression = "[JSONPatch{op: 'add', path: '/data/added', value: 'yes'}]";
    let spec = json!({"failurePolicy": "Fail", "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}]});
    policy(a, "mutating", spec, json!({"policyName": "p"})).await;
    until("the other changes the object", async || tried(b).await.1["data"]["added"] == "yes").await;
    let path = format!("{REGISTRATION}/mutatingadmissionpolicies/p");
    ok(b, &admin(), &format!("DELETE {path}"), Value::Null).await;
    until("the first changes it no more", async || tried(a).await.1["data"] == json!({"k": "v"})).await;
    servers.stop().await;
}

/// A review's answer: what is asked at `/no` is refused, at `/add` changed.
fn review(path: &str, sent: &[u8]) -> (u16, String) {
    let sent: Value = serde_json::from_slice(sent).unwrap();
    let patch = STANDARD.encode(json!([{"op": "add", "path": "/data/added", "value": "yes"}]).to_string());
    let mut response = json!({"uid": sent["request"]["uid"], "allowed": path != "/no"});
    if path == "/add" {
        response["patchType"] = "JSONPatch".into();
        response["patch"] = patch.into();
    }
    let review =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    (200, review.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_count_at_both_servers() {
    let Some(servers) = Servers::start("webhooks_count_at_both_servers").await else { return };
    let (a, b) = (&servers.a, &servers.b);
    let dir = tempfile::tempdir().unwrap();
    let hooks = Https::bind(dir.path()).await;
    let url = hooks.url.clone();
    let bundle = STANDARD.encode(&hooks.serve(review).ca.certificate);
    let configuration = |path: &str| {
        json!({"metadata": {"name": "w"}, "webhooks": [{"name": "w.example.com", "rules": rules(),
            "clientConfig": {"url": format!("{url}{path}"), "caBundle": bundle},
            "sideEffects": "None", "admissionReviewVersions": ["v1"]}]})
    };
    let (mutating, validating) = (
        format!("{REGISTRATION}/mutatingwebhookconfigurations"),
        format!("{REGISTRATION}/validatingwebhookconfigurations"),
    );
    ok(a, &admin(), &format!("POST {mutating}"), configuration("/add")).await;
    until("the other changes the object", async || tried(b).await.1["data"]["added"] == "yes").await;
    ok(b, &admin(), &format!("DELETE {mutating}/w"), Value::Null).await;
    until("the first changes it no more", async || tried(a).await.1["data"] == json!({"k": "v"})).await;
    ok(a, &admin(), &format!("POST {validating}"), configuration("/no")).await;
    until("the other refuses", async || tried(b).await.0 >= 400).await;
    // Another webhook in the same configuration.
    let kinder = json!({"webhooks": configuration("/yes")["webhooks"]});
    ok(b, &admin(), &format!("PATCH {validating}/w"), kinder).await;
    until("the first accepts", async || tried(a).await.0 == 201).await;
    servers.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_servers_spend_one_quota() {
    let Some(servers) = Servers::start("both_servers_spend_one_quota").await else { return };
    let (a, b) = (&servers.a, &servers.b);
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let (hard, none) = (json!({"configmaps": "10"}), json!({"configmaps": "0"}));
    let object = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    let mut made = ok(a, &admin(), &format!("POST {quotas}"), object).await;
    made["status"] = json!({"hard": hard, "used": none});
    ok(a, &admin(), &format!("PUT {quotas}/q/status"), made).await;
    // A read of the other has it from then on.
    ok(b, &admin(), &format!("GET {quotas}/q"), Value::Null).await;
    let creations = (0..40).map(|i| {
        let server = if i % 2 == 0 { a } else { b };
        async move { ask(server, &admin(), &format!("POST {MAPS}"), &map(&format!("m{i}"))).await.0 }
    });
    let codes = futures_util::future::join_all(creations).await;
    let count = |wanted| codes.iter().filter(|code| **code == wanted).count();
    assert_eq!((count(201), count(403)), (10, 30), "{codes:?}");
    for server in [a, b] {
        let quota = ok(server, &admin(), &format!("GET {quotas}/q"), Value::Null).await;
        assert_eq!(quota["status"]["used"], hard);
    }
    assert_eq!(servers.keys("/registry/configmaps/default/m").await.len(), 10);
    servers.stop().await;
}
