//! Authorizers: webhooks, in their order among others, and a file that changes while the cluster runs.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok, person},
    clients,
    https::Https,
};
use http::Request;
use kaji::{AuthzOptions, StoreKind};
use kaji_auth::authn::{Issuer, SigningKey, TokenOrder};
use kaji_meta::SystemRandom;
use serde_json::{Value, json};
use std::{fmt::Write, path::Path, sync::Arc};

/// The service's answer to a review, which depends on the user.
fn decided(review: &mut Value) -> u16 {
    assert_eq!(review["apiVersion"], "authorization.k8s.io/v1");
    review["status"] = match review["spec"]["user"].as_str().unwrap() {
        "wanda" => json!({"allowed": true, "reason": "she is one of us"}),
        "denis" => json!({"allowed": false, "denied": true, "reason": "not <him>"}),
        "both" => json!({"allowed": true, "denied": true}),
        "broken" => return 400,
        _ => json!({"allowed": false, "reason": "never heard of them"}),
    };
    200
}

/// A service on a port of its own: the kubeconfig file that leads to it.
async fn service(dir: &Path) -> String {
    let https = Https::bind(dir).await;
    let url = format!("{}/decide", https.url);
    let pki = https.serve(|path, sent| {
        assert_eq!(path, "/decide");
        let mut review = serde_json::from_slice(sent).unwrap();
        let code = decided(&mut review);
        (code, review.to_string())
    });
    let kubeconfig = clients::kubeconfig(&url, &pki.ca.certificate, json!({}));
    let path = dir.join("kubeconfig");
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

fn configuration(kubeconfig: &str, policy: &str, others: &[&str]) -> String {
    conditional(kubeconfig, policy, others, &[])
}

fn conditional(kubeconfig: &str, policy: &str, others: &[&str], conditions: &[&str]) -> String {
    let conditions: Vec<Value> = conditions.iter().map(|c| json!({"expression": c})).collect();
    let webhook = json!({
        "timeout": "30s",
        // Longer than any test: how often it is asked does not hang on how long this takes.
        "unauthorizedTTL": "10m",
        "subjectAccessReviewVersion": "v1",
        "failurePolicy": policy,
        "matchConditionSubjectAccessReviewVersion": "v1",
        "matchConditions": conditions,
        "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": kubeconfig},
    });
    let mut authorizers = vec![json!({"type": "Webhook", "name": "elsewhere", "webhook": webhook})];
    authorizers.extend(others.iter().map(|kind| json!({"type": kind, "name": kind.to_lowercase()})));
    json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration", "authorizers": authorizers})
        .to_string()
}

/// The answer that each user gets for pods.
async fn each_user(test: &TestCluster, text: &mut String) {
    for name in ["wanda", "denis", "both", "broken", "rosa", "nobody"] {
        let request = "GET /api/v1/namespaces/default/pods";
        let (code, answer) = ask(test, &person(name), request, &Value::Null).await;
        let said = answer["message"].as_str().or(answer.as_str()).unwrap_or_default().trim_end().to_owned();
        writeln!(text, "{name} {code} {said}").unwrap();
    }
}

fn metrics(test: &TestCluster) -> String {
    let stack = &test.cluster.stack;
    stack.metrics.render(&stack.engine, &stack.flow)
}

/// Waits for the file to be looked at.
async fn reloaded(test: &TestCluster, status: &str) {
    let wanted = format!("status=\"{status}\"");
    let counted = |l: &str| l.contains("automatic_reloads_total{") && l.contains(&wanted);
    crate::common::until(&wanted, async || metrics(test).lines().any(counted)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_decides_and_the_file_changes() {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = service(&dir.path().join("service")).await;
    let file = dir.path().join("authz.yaml");
    std::fs::write(&file, configuration(&kubeconfig, "NoOpinion", &["Node", "RBAC"])).unwrap();
    let options = AuthzOptions::file(&file);
    let test = TestCluster::start_over(dir, 0, StoreKind::Memory, |o| o.authz = options).await;
    let subjects = ["rosa", "denis", "broken"]
        .map(|name| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}));
    let binding = json!({
        "metadata": {"name": "viewers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:aggregate-to-view"},
        "subjects": subjects,
    });
    let bindings = "POST /apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    ok(&test, &admin(), bindings, binding).await;
    let mut text = String::new();
    each_user(&test, &mut text).await;
    // A file that cannot be used changes nothing.
    std::fs::write(&file, configuration(&kubeconfig, "NoOpinion", &["Node"])).unwrap();
    reloaded(&test, "failure").await;
    each_user(&test, &mut text).await;
    std::fs::write(&file, configuration(&kubeconfig, "Deny", &["Node", "RBAC"])).unwrap();
    reloaded(&test, "success").await;
    text += "without an answer: no\n";
    each_user(&test, &mut text).await;
    let page = metrics(&test);
    let ours = |l: &&str| l.starts_with("apiserver_authorization_") && l.contains("_total");
    // Servers have names that differ.
    let short = |l: &str| match l.split_once("apiserver_id_hash=") {
        Some((head, rest)) => {
            let others = rest.split_once(',').map_or("", |(_, others)| others);
            format!("{head}{}", others.split('}').next().unwrap_or_default())
        }
        None => l.to_owned(),
    };
    let mut lines: Vec<String> = page.lines().filter(ours).map(short).collect();
    lines.sort();
    text += &lines.join("\n");
    expect_test::expect![[r#"
        wanda 200 
        denis 403 pods is forbidden: User "denis" cannot list resource "pods" in API group "" in the namespace "default": not <him>
        both 500 Internal Server Error: "/api/v1/namespaces/default/pods": webhook subject access review returned both allow and deny response
        broken 200 
        rosa 200 
        nobody 403 pods is forbidden: User "nobody" cannot list resource "pods" in API group "" in the namespace "default": never heard of them
        wanda 200 
        denis 403 pods is forbidden: User "denis" cannot list resource "pods" in API group "" in the namespace "default": not <him>
        both 500 Internal Server Error: "/api/v1/namespaces/default/pods": webhook subject access review returned both allow and deny response
        broken 200 
        rosa 200 
        nobody 403 pods is forbidden: User "nobody" cannot list resource "pods" in API group "" in the namespace "default": never heard of them
        without an answer: no
        wanda 200 
        denis 403 pods is forbidden: User "denis" cannot list resource "pods" in API group "" in the namespace "default": not <him>
        both 500 Internal Server Error: "/api/v1/namespaces/default/pods": webhook subject access review returned both allow and deny response
        broken 500 Internal Server Error: "/api/v1/namespaces/default/pods": /decide answered 400 Bad Request
        rosa 200 
        nobody 403 pods is forbidden: User "nobody" cannot list resource "pods" in API group "" in the namespace "default": never heard of them
        apiserver_authorization_config_controller_automatic_reloads_total{status="failure"
        apiserver_authorization_config_controller_automatic_reloads_total{status="success"
        apiserver_authorization_decisions_total{decision="allowed",name="elsewhere",type="Webhook"} 3
        apiserver_authorization_decisions_total{decision="allowed",name="rbac",type="RBAC"} 5
        apiserver_authorization_decisions_total{decision="denied",name="elsewhere",type="Webhook"} 7
        apiserver_authorization_webhook_evaluations_fail_open_total{name="elsewhere",result="error"} 2
        apiserver_authorization_webhook_evaluations_total{name="elsewhere",result="error"} 3
        apiserver_authorization_webhook_evaluations_total{name="elsewhere",result="success"} 10"#]].assert_eq(&text);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn evaluates_match_conditions_before_webhooks_and_policies() {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = service(&dir.path().join("service")).await;
    let file = dir.path().join("authz.yaml");
    let conditions = [
        "request.user in ['wanda', 'denis', 'broken', 'admin']",
        "request.user != 'broken' || request.resourceAttributes.?labelSelector.requirements[0].key.value() == 'x'",
    ];
    let others = ["ABAC", "Node", "RBAC"];
    std::fs::write(&file, conditional(&kubeconfig, "Deny", &others, &conditions)).unwrap();
    let policies = dir.path().join("policies");
    std::fs::write(
        &policies,
        "# one a line\n{\"user\": \"nobody\", \"readonly\": true, \"resource\": \"pods\"}\n",
    )
    .unwrap();
    let mut options = AuthzOptions::file(&file);
    options.authorization_policy_file = Some(policies);
    let test = TestCluster::start_over(dir, 0, StoreKind::Memory, |o| o.authz = options).await;
    let mut text = String::new();
    each_user(&test, &mut text).await;
    let delete = "DELETE /api/v1/namespaces/default/pods/x";
    let (code, answer) = ask(&test, &person("nobody"), delete, &Value::Null).await;
    writeln!(text, "{code} {}", answer["message"]).unwrap();
    let page = metrics(&test);
    let ours = |l: &&str| {
        l.starts_with("apiserver_authorization_match_condition_e")
            && !l.contains("_bucket")
            && !l.contains("_sum")
    };
    let mut lines: Vec<&str> = page.lines().filter(ours).collect();
    lines.sort_unstable();
    text += &lines.join("\n");
    expect_test::expect![[r#"
        wanda 200 
        denis 403 pods is forbidden: User "denis" cannot list resource "pods" in API group "" in the namespace "default": not <him>
        both 403 pods is forbidden: User "both" cannot list resource "pods" in API group "" in the namespace "default": No policy matched.
        broken 500 Internal Server Error: "/api/v1/namespaces/default/pods": cel evaluation error: expression 'request.user != 'broken' || request.resourceAttributes.?labelSelector.requirements[0].key.value() == 'x'' resulted in error: optional.none() dereference
        rosa 403 pods is forbidden: User "rosa" cannot list resource "pods" in API group "" in the namespace "default": No policy matched.
        nobody 200 
        403 "pods \"x\" is forbidden: User \"nobody\" cannot delete resource \"pods\" in API group \"\" in the namespace \"default\": No policy matched."
        apiserver_authorization_match_condition_evaluation_errors_total{name="elsewhere",type="Webhook"} 1
        apiserver_authorization_match_condition_evaluation_seconds_count{name="elsewhere",type="Webhook"} 7
        apiserver_authorization_match_condition_exclusions_total{name="elsewhere",type="Webhook"} 4"#]].assert_eq(&text);
    test.stop().await;
}

/// Clients without valid credentials, or with those of another cluster, get nothing: the codes of every verb.
#[tokio::test(flavor = "multi_thread")]
async fn identities_that_count_for_nothing() {
    let test = TestCluster::start(0).await;
    let root = admin();
    for name in ["here", "there"] {
        ok(&test, &root, "POST /api/v1/namespaces", json!({"metadata": {"name": name}})).await;
        let account = json!({"metadata": {"name": "robot"}});
        ok(&test, &root, &format!("POST /api/v1/namespaces/{name}/serviceaccounts"), account).await;
        let binding = json!({
            "metadata": {"name": "robot"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": name}],
        });
        let bindings = format!("POST /apis/rbac.authorization.k8s.io/v1/namespaces/{name}/rolebindings");
        ok(&test, &root, &bindings, binding).await;
    }
    let token = async |namespace: &str, spec: Value| {
        let path = format!("POST /api/v1/namespaces/{namespace}/serviceaccounts/robot/token");
        let answer = ok(&test, &root, &path, json!({"spec": spec})).await;
        answer["status"]["token"].as_str().unwrap().to_owned()
    };
    let order = TokenOrder {
        namespace: "here".into(),
        name: "robot".into(),
        expiration_seconds: 600,
        ..TokenOrder::default()
    };
    let past = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(2);
    let good = token("here", json!({})).await;
    let (mut forged, last) = (good.clone(), if good.ends_with('A') { "B" } else { "A" });
    forged.replace_range(
        good.len() - 8..good.len() - 7,
        if &good[good.len() - 8..good.len() - 7] == last { "C" } else { last },
    );
    let identities = [
        ("none", None),
        ("nonsense", Some("nonsense".to_owned())),
        ("forged", Some(forged)),
        ("expired", Some(signer(&test).issue(&order, past).unwrap().token)),
        ("for others", Some(token("here", json!({"audiences": ["vault"]})).await)),
        ("from elsewhere", Some(token("there", json!({})).await)),
        ("good", Some(good)),
    ];
    let mut text = String::new();
    for (name, token) in &identities {
        writeln!(text, "{name}: {}", every_verb(&test, token.as_deref()).await).unwrap();
    }
    let account = "DELETE /api/v1/namespaces/here/serviceaccounts/robot";
    ok(&test, &root, account, Value::Null).await;
    let good = identities.last().unwrap().1.as_deref();
    writeln!(text, "revoked: {}", every_verb(&test, good).await).unwrap();
    expect_test::expect![[r#"
        none: 24 x 403
        nonsense: 24 x 401
        forged: 24 x 401
        expired: 24 x 401
        for others: 24 x 401
        from elsewhere: 24 x 403
        good: 9 x 200, 3 x 400, 1 x 403, 9 x 404, 2 x 422
        revoked: 24 x 401
    "#]]
    .assert_eq(&text);
    test.stop().await;
}

/// Signs as the cluster does.
fn signer(test: &TestCluster) -> Issuer {
    let name = "https://kubernetes.default.svc.cluster.local";
    Issuer {
        name: name.into(),
        key: Arc::new(SigningKey::from_pem(&test.cluster.pki.service_account.private).unwrap()),
        audiences: vec![name.into()],
        extend: false,
        longest: None,
        random: Arc::new(SystemRandom),
    }
}

/// The codes that a client with this token gets for everything that can be done to things in `here`.
async fn every_verb(test: &TestCluster, token: Option<&str>) -> String {
    let mut config = kube::Config::new(test.cluster.url().parse().unwrap());
    config.root_cert = Some(kaji_server::pki::certificates(&test.cluster.pki.ca.certificate).unwrap());
    let client = kube::Client::try_from(config).unwrap();
    let mut codes = std::collections::BTreeMap::<u16, usize>::new();
    for resource in [
        "api/v1/namespaces/here/pods",
        "api/v1/namespaces/here/secrets",
        "apis/apps/v1/namespaces/here/deployments",
    ] {
        for (method, rest) in [
            ("GET", ""),
            ("GET", "?watch=1&timeoutSeconds=1"),
            ("GET", "/x"),
            ("POST", "?dryRun=All"),
            ("PUT", "/x"),
            ("PATCH", "/x"),
            ("DELETE", "/x"),
            ("DELETE", "?dryRun=All"),
        ] {
            let mut request = Request::builder().method(method).uri(format!("/{resource}{rest}"));
            request = request.header(
                "content-type",
                if method == "PATCH" { "application/merge-patch+json" } else { "application/json" },
            );
            if let Some(token) = token {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let body = if matches!(method, "POST" | "PUT" | "PATCH") { b"{}".to_vec() } else { vec![] };
            let answer = client.send(request.body(kube::client::Body::from(body)).unwrap()).await.unwrap();
            // Whether there is such a thing is nothing that they hear.
            *codes.entry(answer.status().as_u16()).or_default() += 1;
        }
    }
    codes.iter().map(|(code, times)| format!("{times} x {code}")).collect::<Vec<_>>().join(", ")
}
