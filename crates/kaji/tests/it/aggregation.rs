//! Group versions that an extension server serves behind the cluster's own: a real server over real TLS in this process.

mod discovery;
pub mod extension;
mod local;
mod wire;

use crate::common::{
    TestCluster,
    access::{admin, ask, ok, person},
    api::Api,
};
pub use extension::own_address;
use extension::{ECHOES, Extension, NAME, create, delete};
use kaji_resource::Verb;
use serde_json::{Value, json};

const API_SERVICES: &str = "apiregistration.k8s.io/v1/apiservices";

/// Waits until an APIService's condition has a reason; the whole condition.
pub async fn reason(cluster: &TestCluster, name: &str, reason: &str) -> Value {
    let mut found = Value::Null;
    let looks = |object: Option<&Value>| {
        found = object.map_or(Value::Null, |o| o["status"]["conditions"][0].clone());
        found["reason"] == reason
    };
    Api(cluster).until(API_SERVICES, name, looks).await;
    found
}

/// A header of an echoed request.
fn header(said: &Value, name: &str) -> Vec<String> {
    let prefix = format!("{name}: ");
    let all =
        said["headers"].as_array().unwrap().iter().filter_map(|h| h.as_str().unwrap().strip_prefix(&prefix));
    all.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_learns_of_a_requests_trace() {
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c";
    let endpoint = kaji_traces::Endpoint::Unix("/nonexistent/otel.sock".into());
    let traces = kaji_traces::Config { endpoint, per_million: 0 };
    let cluster = TestCluster::start_with(|options| options.traces = Some(traces)).await;
    let extension = Extension::start(&cluster).await;
    extension.join(&cluster).await;
    reason(&cluster, NAME, "Passed").await;
    let request = format!("GET {ECHOES}/a\ntraceparent: {TRACE}-b7ad6b7169203331-01");
    let said = ok(&cluster, &admin(), &request, Value::Null).await;
    let [parent] = &header(&said, "traceparent")[..] else { panic!("{said}") };
    assert!(parent.starts_with(TRACE) && parent.ends_with("-01"), "{parent}");
    assert!(!parent.contains("b7ad6b7169203331"), "{parent}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_answered_by_the_server() {
    let cluster = TestCluster::start(0).await;
    let extension = Extension::start(&cluster).await;
    extension.join(&cluster).await;
    let condition = reason(&cluster, NAME, "Passed").await;
    assert_eq!((&condition["status"], &condition["message"]), (&json!("True"), &json!("all checks passed")));
    let said = ok(
        &cluster,
        &admin(),
        &format!(
            "GET {ECHOES}/a%20b?labelSelector=a%3Db\nx-remote-user: root\nX-Remote-Group: evil\nx-remote-extra-foo: bar\nx_remote_user: root\nx-forwarded-for: 1.1.1.1\nx-forwarded-user: root\nauthorization: Bearer x\nimpersonate-user: bob\nimpersonate-group: system:masters\nx-private: kept"
        ),
        Value::Null,
    )
    .await;
    assert_eq!(said["target"], format!("{ECHOES}/a%20b?labelSelector=a%3Db"));
    assert_eq!(header(&said, "x-remote-user"), ["bob"]);
    assert_eq!(header(&said, "x-remote-group"), ["system:authenticated", "system:masters"]);
    assert_eq!(header(&said, "x-remote-extra-foo"), [""; 0]);
    assert_eq!(header(&said, "authorization"), [""; 0]);
    assert_eq!(header(&said, "impersonate-user"), [""; 0]);
    for claim in ["x_remote_user", "x-forwarded-for", "x-forwarded-user"] {
        assert_eq!(header(&said, claim), [""; 0], "{claim}");
    }
    assert_eq!(header(&said, "x-private"), ["kept"]);
    assert_eq!(header(&said, "audit-id").len(), 1);
    assert_eq!(*extension.state.client.lock().unwrap(), "front-proxy-client");
    // Any verb, with its body; whatever the server answers.
    let said = ok(&cluster, &admin(), &format!("POST {ECHOES}"), json!({"kind": "Echo"})).await;
    assert_eq!((said["method"].as_str(), said["body"].as_str()), (Some("POST"), Some(r#"{"kind":"Echo"}"#)));
    let (code, said) = ask(&cluster, &admin(), &format!("DELETE {ECHOES}/missing"), &Value::Null).await;
    assert_eq!((code, &said["method"]), (404, &json!("DELETE")));
    let list = ok(&cluster, &admin(), "GET /apis/ext.example.com/v1", Value::Null).await;
    assert_eq!(list["resources"][0]["name"], "echoes");
    // Without an APIService it is this server's again.
    delete(&cluster, "apiregistration.k8s.io", "apiservices", "", NAME).await;
    Api(&cluster).until(API_SERVICES, NAME, |o| o.is_none()).await;
    assert_eq!(ask(&cluster, &admin(), &format!("GET {ECHOES}"), &Value::Null).await.0, 404);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorizes_requests_before_forwarding() {
    let cluster = TestCluster::start(0).await;
    let extension = Extension::start(&cluster).await;
    extension.join(&cluster).await;
    reason(&cluster, NAME, "Passed").await;
    let alice = person("alice");
    let (code, said) = ask(&cluster, &alice, &format!("GET {ECHOES}"), &Value::Null).await;
    assert_eq!(code, 403, "{said}");
    assert_eq!(
        said["message"],
        r#"echoes.ext.example.com is forbidden: User "alice" cannot list resource "echoes" in API group "ext.example.com" in the namespace "default""#
    );
    let (code, _) = ask(&cluster, &alice, &format!("GET {ECHOES}\nx-remote-user: admin"), &Value::Null).await;
    assert_eq!(code, 403);
    assert!(extension.seen().is_empty());
    let rules = json!([{"apiGroups": ["ext.example.com"], "resources": ["echoes"], "verbs": ["list"]}]);
    let rbac = "rbac.authorization.k8s.io";
    create(&cluster, rbac, "clusterroles", "", json!({"metadata": {"name": "echo"}, "rules": rules})).await;
    let subjects = json!([{"apiGroup": rbac, "kind": "User", "name": "alice"}]);
    let role = json!({"apiGroup": rbac, "kind": "ClusterRole", "name": "echo"});
    let binding = json!({"metadata": {"name": "echo"}, "roleRef": role, "subjects": subjects});
    create(&cluster, rbac, "clusterrolebindings", "", binding).await;
    let said = ok(&cluster, &alice, &format!("GET {ECHOES}"), Value::Null).await;
    assert_eq!(header(&said, "x-remote-user"), ["alice"]);
    // A watch is not a list, in whatever words it is asked for; a list goes on as one.
    for query in ["watch=1&watch=0", "watch=f", "watch", "watch=&watch=false"] {
        let (code, _) = ask(&cluster, &alice, &format!("GET {ECHOES}?{query}"), &Value::Null).await;
        assert_eq!(code, 403, "{query}");
    }
    let said =
        ok(&cluster, &alice, &format!("GET {ECHOES}?x=2&watch=0&watch=1&x=1&watch=1;"), Value::Null).await;
    assert_eq!(said["target"], format!("{ECHOES}?watch=false&x=2&x=1"));
    assert_eq!(ask(&cluster, &alice, &format!("POST {ECHOES}"), &json!({})).await.0, 403);
    cluster.stop().await;
}

/// An extension server sends what it gets back to where it came from.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loop_ends_after_a_few_passes() {
    let cluster = TestCluster::start(0).await;
    let extension = Extension::start(&cluster).await;
    extension.join(&cluster).await;
    reason(&cluster, NAME, "Passed").await;
    let back = kaji_server::LocalService::new(cluster.cluster.stack.clone(), admin());
    *extension.state.relay.lock().unwrap() = Some(back);
    let (code, said) = ask(&cluster, &admin(), &format!("GET {ECHOES}/relay"), &Value::Null).await;
    assert_eq!((code, &said["kind"], &said["code"]), (508, &json!("Status"), &json!(508)), "{said}");
    let passes = extension.seen();
    assert_eq!(passes.len(), 4);
    assert_eq!(header(&passes[3], "via"), ["1.1 kube-aggregator"; 4]);
    extension.state.relay.lock().unwrap().take();
    cluster.stop().await;
}

/// One reason after the other, as its causes are removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_say_what_is_missing() {
    let cluster = TestCluster::start(0).await;
    let extension = Extension::start(&cluster).await;
    let mut object = extension.api_service();
    object["spec"]["service"]["port"] = 443.into();
    create(&cluster, "apiregistration.k8s.io", "apiservices", "", object).await;
    let condition = reason(&cluster, NAME, "ServiceNotFound").await;
    assert_eq!(condition["message"], r#"service/ext in "default" is not present"#);
    let (code, text) = ask(&cluster, &admin(), &format!("GET {ECHOES}"), &Value::Null).await;
    assert_eq!((code, text), (503, json!("service unavailable\n")));
    let service = json!({"metadata": {"name": "ext"}, "spec": {"ports": [{"name": "web", "port": 80}]}});
    create(&cluster, "", "services", "default", service).await;
    let condition = reason(&cluster, NAME, "ServicePortError").await;
    assert_eq!(condition["message"], r#"service/ext in "default" is not listening on port 443"#);
    let patch = json!([{"op": "replace", "path": "/spec/ports", "value": [{"name": "https", "port": 443}]}]);
    let api = Api(&cluster);
    api.ok(Verb::Patch, "/v1/services/ext?namespace=default", patch).await;
    let condition = reason(&cluster, NAME, "EndpointsNotFound").await;
    assert_eq!(condition["message"], r#"cannot find endpointslices for service/ext in "default""#);
    let Some(address) = own_address() else {
        crate::common::skipped("aggregation-endpoints", "endpoints need an address that is no loopback");
        return drop(cluster.stop().await);
    };
    let slice = |name: &str, port_name: &str, ready: bool| {
        json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "ext"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address.to_string()], "conditions": {"ready": ready}}],
            "ports": [{"name": port_name, "port": extension.port, "protocol": "TCP"}],
        })
    };
    create(&cluster, "discovery.k8s.io", "endpointslices", "default", slice("a", "https", false)).await;
    let condition = reason(&cluster, NAME, "MissingEndpoints").await;
    assert_eq!(
        condition["message"],
        r#"endpointslices for service/ext in "default" have no addresses with port name "https""#
    );
    create(&cluster, "discovery.k8s.io", "endpointslices", "default", slice("b", "https", true)).await;
    reason(&cluster, NAME, "Passed").await;
    let said = ok(&cluster, &admin(), &format!("GET {ECHOES}"), Value::Null).await;
    assert_eq!(header(&said, "x-remote-user"), ["admin"]);
    let page = ok(&cluster, &admin(), "GET /metrics", Value::Null).await;
    let page = page.as_str().unwrap();
    assert!(page.contains(r#"aggregator_unavailable_apiservice{name="v1.ext.example.com"} 0"#), "{page}");
    assert!(page.contains(r#"aggregator_unavailable_apiservice{name="v1.apps"} 0"#));
    // A service that goes takes everything with it.
    delete(&cluster, "", "services", "default", "ext").await;
    reason(&cluster, NAME, "ServiceNotFound").await;
    assert_eq!(ask(&cluster, &admin(), &format!("GET {ECHOES}"), &Value::Null).await.0, 503);
    let lost =
        r#"aggregator_unavailable_apiservice_total{name="v1.ext.example.com",reason="ServiceNotFound"} 1"#;
    // It is counted once it is written.
    crate::common::until("the loss is counted", async || {
        let page = ok(&cluster, &admin(), "GET /metrics", Value::Null).await;
        page.as_str().unwrap().contains(lost)
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejects_extension_servers_with_untrusted_certificates() {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let cluster = TestCluster::start(0).await;
    let extension = Extension::start(&cluster).await;
    create(&cluster, "", "services", "default", extension.external()).await;
    let mut object = extension.api_service();
    object["spec"]["caBundle"] = STANDARD.encode(&cluster.cluster.pki.ca.certificate).into();
    create(&cluster, "apiregistration.k8s.io", "apiservices", "", object).await;
    let condition = reason(&cluster, NAME, "FailedDiscoveryCheck").await;
    let message = condition["message"].as_str().unwrap();
    let url = format!("https://ext.default.svc:{}/apis/ext.example.com/v1", extension.port);
    assert!(
        message.starts_with(&format!("failing or missing response from {url}: Get \"{url}\": ")),
        "{message}"
    );
    assert!(message.contains("x509"), "{message}");
    assert_eq!(ask(&cluster, &admin(), &format!("GET {ECHOES}"), &Value::Null).await.0, 503);
    // insecureSkipTLSVerify accepts every certificate.
    let api = Api(&cluster);
    let patch = json!([{"op": "remove", "path": "/spec/caBundle"},
        {"op": "add", "path": "/spec/insecureSkipTLSVerify", "value": true}]);
    api.ok(Verb::Patch, &format!("{API_SERVICES}/{NAME}"), patch).await;
    reason(&cluster, NAME, "Passed").await;
    ok(&cluster, &admin(), &format!("GET {ECHOES}"), Value::Null).await;
    cluster.stop().await;
}
