//! Admission webhooks over real TLS: what upstream's end-to-end tests ask of them (`test/e2e/apimachinery/webhook.go`), and
//! webhooks that hang, lie or die.

mod hostile;
mod kinds;

use crate::common::{TestCluster, api::Api, https::Https};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kaji_resource::Verb;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// What webhooks were asked: path with query, and the request.
type Asked = Arc<Mutex<Vec<(String, Value)>>>;

/// A server of webhooks.
struct Hooks {
    url: String,
    /// PEM, in base64 as configurations have it.
    bundle: String,
    asked: Asked,
    _dir: tempfile::TempDir,
}

impl Hooks {
    /// Starts a webhook server; the path of a call says what the webhook does.
    async fn start() -> Hooks {
        let dir = tempfile::tempdir().unwrap();
        let server = Https::bind(dir.path()).await;
        Hooks::serve(dir, server)
    }

    fn serve(dir: tempfile::TempDir, server: Https) -> Hooks {
        let (url, asked) = (server.url.clone(), Asked::default());
        let seen = asked.clone();
        let pki = server.serve_late(move |path, sent| {
            let review: Value = serde_json::from_slice(&sent).unwrap();
            seen.lock().unwrap().push((path.clone(), review["request"].clone()));
            async move {
                if path.starts_with("/hang") {
                    std::future::pending::<()>().await;
                }
                hostile::answer(&path, &review)
            }
        });
        Hooks { url, bundle: STANDARD.encode(&pki.ca.certificate), asked, _dir: dir }
    }

    /// A webhook at a path, for writes of config maps; `change` may say otherwise.
    fn hook(&self, path: &str, change: Value) -> Value {
        let mut hook = json!({
            "name": format!("{}.example.com", path.trim_start_matches('/').replace('/', "-")),
            "clientConfig": {"url": format!("{}{path}", self.url), "caBundle": self.bundle},
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
            "sideEffects": "None", "admissionReviewVersions": ["v1", "v1beta1"],
        });
        if let Some(change) = change.as_object() {
            hook.as_object_mut().unwrap().extend(change.clone());
        }
        hook
    }

    fn take(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    /// The paths that were asked since the last time, in order.
    fn paths(&self) -> String {
        let paths: Vec<String> =
            self.take().into_iter().map(|(path, _)| path.replace("?timeout=10s", "")).collect();
        paths.join(" ")
    }
}

const GROUP: &str = "admissionregistration.k8s.io/v1";

async fn configure(api: &Api<'_>, kind: &str, name: &str, webhooks: Vec<Value>) {
    let path = format!("{GROUP}/{}s", kind.to_lowercase());
    let object = json!({"apiVersion": GROUP, "kind": kind, "metadata": {"name": name}, "webhooks": webhooks});
    api.ok(Verb::Create, &path, object).await;
}

async fn validating(api: &Api<'_>, name: &str, webhooks: Vec<Value>) {
    configure(api, "ValidatingWebhookConfiguration", name, webhooks).await;
}

async fn mutating(api: &Api<'_>, name: &str, webhooks: Vec<Value>) {
    configure(api, "MutatingWebhookConfiguration", name, webhooks).await;
}

const MAPS: &str = "/v1/configmaps?namespace=default";

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"start": "yes"}})
}

fn one(name: &str) -> String {
    format!("/v1/configmaps/{name}?namespace=default")
}

#[tokio::test]
async fn objects_are_changed_in_order_and_again_if_need_be() {
    let cluster = TestCluster::start(0).await;
    let (api, hooks) = (Api(&cluster), Hooks::start().await);
    mutating(&api, "b", vec![hooks.hook("/add/three/if/two", json!({}))]).await;
    mutating(
        &api,
        "a",
        vec![
            hooks.hook("/add/one", json!({"reinvocationPolicy": "IfNeeded"})),
            hooks.hook("/add/two/if/one", json!({})),
        ],
    )
    .await;
    let made = api.ok(Verb::Create, MAPS, map("m")).await;
    assert_eq!(made["data"], json!({"start": "yes", "one": "1", "two": "1", "three": "1"}));
    // Those after the first changed the object, so the first was asked again, and had nothing to add.
    assert_eq!(hooks.paths(), "/add/one /add/two/if/one /add/three/if/two /add/one");
    // A webhook that changes nothing causes no second call.
    api.ok(Verb::Update, &one("m"), made).await;
    assert_eq!(hooks.paths(), "/add/one /add/two/if/one /add/three/if/two");
    cluster.stop().await;
}

#[tokio::test]
async fn sends_admission_reviews() {
    let cluster = TestCluster::start(0).await;
    let (api, hooks) = (Api(&cluster), Hooks::start().await);
    validating(&api, "a", vec![hooks.hook("/yes", json!({"timeoutSeconds": 3}))]).await;
    api.ok(Verb::Create, &format!("{MAPS}&fieldManager=me"), map("m")).await;
    let (path, request) = hooks.take().remove(0);
    assert_eq!(path, "/yes?timeout=3s");
    let known = |key: &str| request[key].clone();
    assert_eq!(known("kind"), json!({"group": "", "version": "v1", "kind": "ConfigMap"}));
    assert_eq!(known("requestResource"), json!({"group": "", "version": "v1", "resource": "configmaps"}));
    assert_eq!(known("userInfo"), json!({"username": "tester", "groups": ["system:masters"]}));
    assert_eq!(
        [known("name"), known("namespace"), known("operation"), known("dryRun"), known("oldObject")],
        [json!("m"), json!("default"), json!("CREATE"), json!(false), Value::Null]
    );
    let options = json!({"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions", "fieldManager": "me"});
    assert_eq!(known("options"), options);
    assert_eq!(known("object")["data"], json!({"start": "yes"}));
    // It is the object as it will be stored.
    assert!(known("object")["metadata"]["uid"].is_string());
    let patch = json!([{"op": "add", "path": "/data/x", "value": "y"}]);
    api.ok(Verb::Patch, &one("m"), patch).await;
    let (_, request) = hooks.take().remove(0);
    assert_eq!((&request["operation"], &request["oldObject"]["data"]["x"]), (&json!("UPDATE"), &Value::Null));
    assert_eq!(
        (&request["object"]["data"]["x"], &request["options"]["kind"]),
        (&json!("y"), &json!("UpdateOptions"))
    );
    api.ok(Verb::Delete, &one("m"), json!({"gracePeriodSeconds": 0, "propagationPolicy": "Orphan"})).await;
    let (_, request) = hooks.take().remove(0);
    assert_eq!((&request["operation"], &request["object"]), (&json!("DELETE"), &Value::Null));
    assert_eq!(request["oldObject"]["data"]["x"], "y");
    assert_eq!(
        request["options"],
        json!({"apiVersion": "meta.k8s.io/v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0,
            "propagationPolicy": "Orphan"})
    );
    cluster.stop().await;
}

#[tokio::test]
async fn returns_refusals_warnings_and_annotations() {
    let cluster = TestCluster::start(0).await;
    let (api, hooks) = (Api(&cluster), Hooks::start().await);
    mutating(&api, "m", vec![hooks.hook("/add/one", json!({}))]).await;
    validating(&api, "v", vec![hooks.hook("/warn", json!({})), hooks.hook("/no/if/bad", json!({}))]).await;
    let answer = api.raw(Verb::Create, MAPS, "application/json", &map("m")).await;
    assert_eq!(answer.code, 201);
    assert_eq!(answer.warnings, ["be careful"]);
    let notes: Vec<String> = answer.annotations.iter().map(|(k, v)| format!("{k}={v}")).collect();
    expect_test::expect![[r#"
        mutation.webhook.admission.k8s.io/round_0_index_0={"configuration":"m","webhook":"add-one.example.com","mutated":true}
        patch.webhook.admission.k8s.io/round_0_index_0={"configuration":"m","webhook":"add-one.example.com","patch":[{"op":"add","path":"/data/one","value":"1"}],"patchType":"JSONPatch"}
        warn.example.com/seen=yes"#]].assert_eq(&notes.join("\n"));
    let mut bad = map("n");
    bad["data"]["bad"] = json!("1");
    assert_eq!(
        api.refused(Verb::Create, MAPS, bad).await,
        (403, "admission webhook \"no-if-bad.example.com\" denied the request: it is bad".into())
    );
    // A removal is refused as well, and what was refused is still there.
    let patch = json!([{"op": "add", "path": "/data/bad", "value": "y"}]);
    assert_eq!(api.refused(Verb::Patch, &one("m"), patch).await.0, 403);
    assert_eq!(api.ok(Verb::Get, &one("m"), Value::Null).await["data"], json!({"start": "yes", "one": "1"}));
    cluster.stop().await;
}

/// A configuration counts from the moment that its write is acknowledged, and so does its removal.
#[tokio::test]
async fn configurations_count_at_once() {
    let cluster = TestCluster::start(0).await;
    let (api, hooks) = (Api(&cluster), Hooks::start().await);
    for round in 0..20 {
        validating(&api, "v", vec![hooks.hook("/no", json!({}))]).await;
        assert_eq!(api.refused(Verb::Create, MAPS, map("m")).await.0, 400, "round {round}");
        // The configurations themselves are no webhook's business.
        let path = format!("{GROUP}/validatingwebhookconfigurations/v");
        let update = json!([{"op": "replace", "path": "/webhooks/0/rules/0/operations", "value": ["DELETE"]},
            {"op": "replace", "path": "/webhooks/0/rules/0/resources", "value": ["*"]},
            {"op": "replace", "path": "/webhooks/0/rules/0/apiGroups", "value": ["*"]}]);
        api.ok(Verb::Patch, &path, update).await;
        api.ok(Verb::Create, MAPS, map("m")).await;
        assert_eq!(api.refused(Verb::Delete, &one("m"), Value::Null).await.0, 400, "round {round}");
        api.ok(Verb::Delete, &path, Value::Null).await;
        api.ok(Verb::Delete, &one("m"), Value::Null).await;
    }
    cluster.stop().await;
}

#[tokio::test]
async fn dry_runs_call_only_webhooks_without_side_effects() {
    let cluster = TestCluster::start(0).await;
    let (api, hooks) = (Api(&cluster), Hooks::start().await);
    mutating(&api, "a", vec![hooks.hook("/add/one", json!({"sideEffects": "NoneOnDryRun"}))]).await;
    let made = api.ok(Verb::Create, &format!("{MAPS}&dryRun=All"), map("m")).await;
    assert_eq!(made["data"]["one"], "1");
    assert_eq!(hooks.take().remove(0).1["dryRun"], true);
    assert_eq!(api.refused(Verb::Get, &one("m"), Value::Null).await.0, 404);
    cluster.stop().await;
}

#[tokio::test]
async fn calls_webhooks_that_selectors_and_conditions_match() {
    let cluster = TestCluster::start(0).await;
    let (api, hooks) = (Api(&cluster), Hooks::start().await);
    let hook = hooks.hook(
        "/no",
        json!({
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
            "objectSelector": {"matchLabels": {"checked": "yes"}},
            "matchConditions": [
                {"name": "not-mine", "expression": "request.userInfo.username != 'root'"},
                {"name": "not-spared", "expression": "!has(object.data.spared)"},
            ],
        }),
    );
    validating(&api, "v", vec![hook]).await;
    let mut checked = map("m");
    checked["metadata"]["labels"] = json!({"checked": "yes"});
    assert_eq!(api.refused(Verb::Create, MAPS, checked.clone()).await.0, 400);
    let other_namespace = "/v1/configmaps?namespace=kube-system&dryRun=All";
    api.ok(Verb::Create, other_namespace, checked.clone()).await;
    api.ok(Verb::Create, MAPS, map("m")).await;
    let mut spared = checked.clone();
    spared["metadata"]["name"] = json!("spared");
    spared["data"]["spared"] = json!("1");
    api.ok(Verb::Create, MAPS, spared).await;
    let root = kaji_resource::UserInfo {
        name: "root".into(),
        groups: vec!["system:masters".into()],
        ..Default::default()
    };
    checked["metadata"]["name"] = json!("mine");
    let answer = api.raw_as(root, Verb::Create, MAPS, "application/json", &checked).await;
    assert_eq!(answer.code, 201);
    assert_eq!(hooks.paths(), "/no");
    cluster.stop().await;
}

/// A service is found through its endpoints; this one is another name for the machine.
#[tokio::test]
async fn calls_webhooks_through_services() {
    let cluster = TestCluster::start(0).await;
    let dir = tempfile::tempdir().unwrap();
    let server = Https::bind_as(dir.path(), &["hooks.default.svc"]).await;
    let (api, hooks) = (Api(&cluster), Hooks::serve(dir, server));
    let port: u64 = hooks.url.rsplit(':').next().unwrap().parse().unwrap();
    let place = json!({"namespace": "default", "name": "hooks", "path": "/no", "port": port});
    let hook = hooks.hook("/no", json!({"clientConfig": {"service": place, "caBundle": hooks.bundle}}));
    validating(&api, "v", vec![hook]).await;
    let (code, message) = api.refused(Verb::Create, MAPS, map("m")).await;
    assert_eq!(
        (code, message.replace(&port.to_string(), "PORT").as_str()),
        (
            500,
            "Internal error occurred: failed calling webhook \"no.example.com\": failed to call webhook: Post \"https://hooks.default.svc:PORT/no?timeout=10s\": service \"hooks\" not found"
        )
    );
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hooks"},
        "spec": {"type": "ExternalName", "externalName": "localhost"}});
    api.ok(Verb::Create, "/v1/services?namespace=default", service).await;
    assert_eq!(
        api.refused(Verb::Create, MAPS, map("m")).await,
        (400, "admission webhook \"no.example.com\" denied the request without explanation".into())
    );
    cluster.stop().await;
}
