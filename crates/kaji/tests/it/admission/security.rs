//! Pod security: the levels of namespaces, and exemptions.

use super::pod;
use crate::common::{TestCluster, api::Api};
use kaji_engine::ApiResponse;
use kaji_resource::Verb;
use serde_json::{Value, json};

const NAMESPACES: &str = "/v1/namespaces";

fn namespace(name: &str, labels: Value) -> Value {
    let labels: serde_json::Map<String, Value> = labels
        .as_object()
        .unwrap()
        .iter()
        .map(|(k, v)| (format!("pod-security.kubernetes.io/{k}"), v.clone()))
        .collect();
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

async fn account(api: &Api<'_>, namespace: &str) {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    api.ok(Verb::Create, &format!("/v1/serviceaccounts?namespace={namespace}"), account).await;
}

async fn create(api: &Api<'_>, path: &str, body: Value) -> ApiResponse {
    api.raw(Verb::Create, path, "application/json", &body).await
}

fn notes(response: &ApiResponse) -> String {
    let short =
        |(k, v): &(String, String)| format!("{}={v}", k.trim_start_matches("pod-security.kubernetes.io/"));
    response.annotations.iter().map(short).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_say_what_pods_may_do() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let labels =
        json!({"enforce": "baseline", "audit": "restricted", "warn": "restricted", "warn-version": "v1.7"});
    api.ok(Verb::Create, NAMESPACES, namespace("strict", labels)).await;
    account(&api, "strict").await;
    let pods = "/v1/pods?namespace=strict";
    let refused = create(&api, pods, pod("x", json!({"hostPID": true}))).await;
    assert_eq!((refused.code, refused.warnings.len()), (403, 0));
    assert!(notes(&refused).contains("enforce-policy=baseline:latest"));
    let body: Value = serde_json::from_slice(&refused.body.into_bytes().unwrap()).unwrap();
    assert_eq!(
        body["message"],
        r#"pods "x" is forbidden: violates PodSecurity "baseline:latest": host namespaces (hostPID=true)"#
    );
    let made = create(&api, pods, pod("p", json!({}))).await;
    assert_eq!(made.code, 201);
    let warning = r#"would violate PodSecurity "restricted:v1.7": runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true)"#;
    assert_eq!(made.warnings, [warning]);
    assert!(notes(&made).starts_with(
        r#"audit-violations=would violate PodSecurity "restricted:latest": allowPrivilegeEscalation"#
    ));
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
        "spec": {"hostPID": true, "containers": [{"name": "c", "image": "i"}]}}}});
    let made = create(&api, "apps/v1/deployments?namespace=strict", deployment).await;
    let warning =
        warning.replace("restricted:v1.7\": ", "restricted:v1.7\": host namespaces (hostPID=true), ");
    assert_eq!((made.code, made.warnings), (201, vec![warning]));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn labels_are_judged_with_the_pods_that_are_there() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let (code, message) = api
        .refused(Verb::Create, NAMESPACES, namespace("bad", json!({"enforce": "x", "warn-version": "2"})))
        .await;
    assert_eq!(code, 422);
    assert_eq!(
        message,
        r#"Namespace "bad" is invalid: [metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: "x": must be one of privileged, baseline, restricted, metadata.labels[pod-security.kubernetes.io/warn-version]: Invalid value: "2": must be "latest" or "v1.x"]"#
    );
    api.ok(Verb::Create, NAMESPACES, namespace("n", json!({}))).await;
    account(&api, "n").await;
    for name in ["b", "a"] {
        api.ok(Verb::Create, "/v1/pods?namespace=n", pod(name, json!({"hostIPC": true}))).await;
    }
    let raised = api
        .raw(
            Verb::Update,
            "/v1/namespaces/n",
            "application/json",
            &namespace("n", json!({"enforce": "baseline"})),
        )
        .await;
    assert_eq!(raised.code, 200);
    assert_eq!(
        raised.warnings,
        [
            r#"existing pods in namespace "n" violate the new PodSecurity enforce level "baseline:latest""#,
            "a (and 1 other pod): host namespaces",
        ]
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_sets_defaults_and_exempts() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("admission.yaml");
    std::fs::write(
        &file,
        r#"
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {enforce: baseline}
    exemptions: {namespaces: [free], runtimeClasses: [kata]}
"#,
    )
    .unwrap();
    let cluster = TestCluster::start_with(|options| options.admission.config_file = Some(file)).await;
    let api = Api(&cluster);
    let open = || json!({"hostPID": true});
    let made = create(&api, NAMESPACES, namespace("free", json!({"enforce": "restricted"}))).await;
    assert_eq!(
        made.warnings,
        [
            r#"namespace "free" is exempt from Pod Security, and the policy (enforce=restricted:latest) will be ignored"#
        ]
    );
    account(&api, "free").await;
    let made = create(&api, "/v1/pods?namespace=free", pod("p", open())).await;
    assert_eq!((made.code, notes(&made).as_str()), (201, "exempt=namespace"));
    assert_eq!(create(&api, "/v1/pods?namespace=default", pod("p", open())).await.code, 403);
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"}, "handler": "kata"});
    api.ok(Verb::Create, "node.k8s.io/v1/runtimeclasses", class).await;
    let mut spec = open();
    spec["runtimeClassName"] = json!("kata");
    let made = create(&api, "/v1/pods?namespace=default", pod("p", spec)).await;
    assert_eq!((made.code, notes(&made).as_str()), (201, "exempt=runtimeClass"));
    cluster.stop().await;
}
