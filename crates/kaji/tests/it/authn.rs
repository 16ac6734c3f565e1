//! Authentication over real TLS: tokens, certificates, proxies, impersonation.

use crate::common::{
    TestCluster,
    api::Api,
    clients,
    issuer::{self, provider},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use kaji::StoreKind;
use kaji_resource::Verb;
use kaji_server::pki::Identity;
use kube::client::Body;
use serde_json::{Value, json};

/// A client that trusts the cluster and has these credentials.
async fn client(test: &TestCluster, user: Value) -> kube::Client {
    clients::client(&test.cluster.url(), &test.cluster.pki.ca.certificate, user).await
}

fn certificate(identity: &Identity) -> Value {
    clients::certificate(&identity.certificate, &identity.key)
}

/// Code and body of an answer; a body is sent as JSON with POST.
async fn ask(
    client: &kube::Client,
    path: &str,
    headers: &[(&str, &str)],
    body: Value,
) -> (StatusCode, Value) {
    let mut request = Request::builder().uri(path).header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = match body {
        Value::Null => request.method("GET").body(Body::empty()),
        body => request.method("POST").body(Body::from(body.to_string().into_bytes())),
    };
    let answer = client.send(request.unwrap()).await.unwrap();
    let status = answer.status();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

async fn get(client: &kube::Client, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
    let (status, body) = ask(client, path, headers, Value::Null).await;
    (status.as_u16(), body["message"].as_str().unwrap_or_default().to_owned())
}

async fn create(client: &kube::Client, path: &str, body: Value) -> Value {
    let (status, answer) = ask(client, path, &[], body).await;
    assert_eq!(status, StatusCode::CREATED, "{path}: {answer}");
    answer
}

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

async fn account(admin: &kube::Client, name: &str) {
    create(admin, ACCOUNTS, json!({"metadata": {"name": name}})).await;
}

async fn token(admin: &kube::Client, account: &str) -> String {
    let answer = create(admin, &format!("{ACCOUNTS}/{account}/token"), json!({"spec": {}})).await;
    assert_eq!(answer["spec"]["audiences"], json!(["https://kubernetes.default.svc.cluster.local"]));
    assert_eq!(answer["spec"]["expirationSeconds"], 3600);
    answer["status"]["token"].as_str().unwrap().to_owned()
}

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const UNAUTHORIZED: (u16, &str) = (401, "Unauthorized");

fn text((code, message): &(u16, String)) -> (u16, &str) {
    (*code, message)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_good_while_its_account_lives() {
    let test = TestCluster::start(0).await;
    let admin = test.kube().await;
    account(&admin, "robot").await;
    let token = token(&admin, "robot").await;
    let robot = client(&test, json!({"token": token})).await;
    assert_eq!(get(&robot, "/api", &[]).await.0, 200);
    let refused = get(&robot, "/api/v1/nodes", &[]).await;
    assert_eq!(refused.0, 403);
    assert!(
        refused.1.contains(r#"User "system:serviceaccount:default:robot" cannot list resource "nodes""#),
        "{refused:?}"
    );

    let review = |token: &str| json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "spec": {"token": token}});
    let status = create(&admin, REVIEWS, review(&token)).await["status"].clone();
    assert_eq!(status["authenticated"], true);
    assert_eq!(
        status["user"]["groups"],
        json!(["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"])
    );
    assert!(
        status["user"]["extra"]["authentication.kubernetes.io/credential-id"][0]
            .as_str()
            .unwrap()
            .starts_with("JTI=")
    );

    let tampered = client(&test, json!({"token": format!("{token}x")})).await;
    // Not even for paths that need no rights.
    assert_eq!(text(&get(&tampered, "/livez", &[]).await), UNAUTHORIZED);

    let accounts: kube::Api<k8s_openapi::api::core::v1::ServiceAccount> =
        kube::Api::default_namespaced(admin.clone());
    accounts.delete("robot", &Default::default()).await.unwrap();
    assert_eq!(text(&get(&robot, "/api", &[]).await), UNAUTHORIZED);
    let status = create(&admin, REVIEWS, review(&token)).await["status"].clone();
    assert_eq!(status, json!({"user": {}, "error": r#"serviceaccounts "robot" not found"#}));
    account(&admin, "robot").await;
    assert_eq!(text(&get(&robot, "/api", &[]).await), UNAUTHORIZED);

    let stack = &test.cluster.stack;
    let page = stack.metrics.render(&stack.engine, &stack.flow);
    for line in
        ["authenticated_user_requests{username=\"other\"} ", "authentication_attempts{result=\"success\"} "]
    {
        assert!(page.contains(line), "{line}");
    }
    // The tampered one, and that of a robot that was gone, twice.
    assert!(page.contains("authentication_attempts{result=\"error\"} 3\n"));
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn impersonates_users() {
    let test = TestCluster::start(0).await;
    let admin = test.kube().await;
    let nodes = "/api/v1/nodes";
    let refused = get(&admin, nodes, &[("impersonate-user", "bob")]).await;
    assert_eq!(refused.0, 403);
    assert!(refused.1.contains(r#"User "bob" cannot list resource "nodes""#), "{refused:?}");
    let masters = [("impersonate-user", "bob"), ("impersonate-group", "system:masters")];
    assert_eq!(get(&admin, nodes, &masters).await.0, 200);
    assert_eq!(get(&admin, nodes, &[("impersonate-group", "g")]).await.0, 400);
    let me = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let (_, whoami) =
        ask(&admin, me, &[masters[0], masters[1], ("impersonate-extra-a%2fb", "c")], json!({})).await;
    assert_eq!(
        whoami["status"]["userInfo"],
        json!({"username": "bob", "groups": ["system:masters", "system:authenticated"], "extra": {"a/b": ["c"]}})
    );

    account(&admin, "robot").await;
    let robot = client(&test, json!({"token": token(&admin, "robot").await})).await;
    let refused = get(&robot, nodes, &masters).await;
    assert_eq!(refused.0, 403);
    assert!(refused.1.contains(r#"cannot impersonate-on:user-info:list resource "nodes""#), "{refused:?}");
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_count_for_what_their_authority_is() {
    let test = TestCluster::start(0).await;
    let proxy = client(&test, certificate(&test.cluster.pki.front_proxy_client)).await;
    let carol = [("x-remote-user", "carol"), ("x-remote-group", "system:masters")];
    let nodes = "/api/v1/nodes";
    assert_eq!(get(&proxy, nodes, &carol).await.0, 200);
    assert_eq!(text(&get(&proxy, "/livez", &[]).await), UNAUTHORIZED);
    // Headers of other clients do not count.
    let anonymous = client(&test, json!({})).await;
    let refused = get(&anonymous, nodes, &carol).await;
    assert_eq!(refused.0, 403);
    assert!(refused.1.contains(r#"User "system:anonymous""#), "{refused:?}");
    assert_eq!(get(&anonymous, "/livez", &[]).await.0, 200);
    let untrusted = rcgen::generate_simple_self_signed(vec!["mallory".into()]).unwrap();
    let untrusted =
        Identity { certificate: untrusted.cert.pem(), key: untrusted.signing_key.serialize_pem() };
    let untrusted = client(&test, certificate(&untrusted)).await;
    assert_eq!(text(&get(&untrusted, "/livez", &[]).await), UNAUTHORIZED);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_gets_a_token_and_others_can_verify_it() {
    let test = TestCluster::start(1).await;
    let admin = test.kube().await;
    account(&admin, "robot").await;
    let secret = json!({
        "metadata": {"name": "s", "annotations": {"kubernetes.io/service-account.name": "robot"}},
        "type": "kubernetes.io/service-account-token",
    });
    create(&admin, "/api/v1/namespaces/default/secrets", secret).await;
    let api = Api(&test);
    let mut token = String::new();
    api.until("/v1/secrets", "s", |secret| {
        let found = secret.and_then(|s| s["data"]["token"].as_str()).unwrap_or_default();
        token = String::from_utf8(STANDARD.decode(found).unwrap()).unwrap();
        !token.is_empty()
    })
    .await;
    let robot = client(&test, json!({"token": token})).await;
    assert_eq!(get(&robot, "/api", &[]).await.0, 200);
    let marked = api.ok(Verb::Get, "/v1/secrets/s?namespace=default", Value::Null).await;
    assert!(marked["metadata"]["labels"]["kubernetes.io/legacy-token-last-used"].is_string());

    let (_, configuration) = ask(&admin, "/.well-known/openid-configuration", &[], Value::Null).await;
    assert_eq!(configuration["issuer"], "https://kubernetes.default.svc.cluster.local");
    assert!(configuration["jwks_uri"].as_str().unwrap().ends_with("/openid/v1/jwks"));
    let (_, keys) = ask(&admin, "/openid/v1/jwks", &[], Value::Null).await;
    assert_eq!(keys["keys"][0]["alg"], "ES256");

    api.ok(Verb::Delete, "/v1/secrets/s?namespace=default", Value::Null).await;
    assert_eq!(text(&get(&robot, "/api", &[]).await), UNAUTHORIZED);
    test.stop().await;
}

/// Answers a review: the token `dave` is that of Dave, an administrator.
fn reviewed(mut review: Value) -> Value {
    assert_eq!(review["apiVersion"], "authentication.k8s.io/v1beta1");
    let user = json!({"username": "dave", "uid": "4", "groups": ["system:masters"]});
    review["status"] = match review["spec"]["token"].as_str().unwrap() {
        "dave" => json!({"authenticated": true, "user": user}),
        _ => json!({"error": "never heard of it"}),
    };
    review
}

#[tokio::test(flavor = "multi_thread")]
async fn issuers_of_others_and_files_of_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let (issuer, authority) = provider(&dir.path().join("provider"), |path, sent| {
        assert_eq!(path, "/review");
        reviewed(serde_json::from_slice(sent).unwrap()).to_string()
    })
    .await;
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthenticationConfiguration",
        "jwt": [{
            "issuer": {"url": issuer.name, "audiences": ["kaji"], "certificateAuthority": authority},
            "claimMappings": {"username": {"claim": "sub", "prefix": "theirs:"}},
        }],
        "anonymous": {"enabled": true, "conditions": [{"path": "/livez"}]},
    });
    let (config, tokens) = (dir.path().join("authn.yaml"), dir.path().join("tokens.csv"));
    std::fs::write(&config, configuration.to_string()).unwrap();
    std::fs::write(&tokens, "s3cret,root,1,\"system:masters,devs\"\n").unwrap();
    let reviewer = dir.path().join("reviewer.kubeconfig");
    let kubeconfig = clients::kubeconfig(&format!("{}/review", issuer.name), &authority, json!({}));
    std::fs::write(&reviewer, kubeconfig.to_string()).unwrap();
    let test = TestCluster::start_over(dir, 0, StoreKind::Memory, |options| {
        options.authn.authentication_config = Some(config);
        options.authn.token_auth_file = Some(tokens);
        options.authn.authentication_token_webhook_config_file = Some(reviewer);
    })
    .await;
    let token = |audience| issuer::token(&issuer, "alice", audience);
    let alice = client(&test, json!({"token": token("kaji")})).await;
    let refused = get(&alice, "/api/v1/nodes", &[]).await;
    assert_eq!(refused.0, 403);
    assert!(refused.1.contains(r#"User "theirs:system:serviceaccount:ns:alice""#), "{refused:?}");
    let other_audience = client(&test, json!({"token": token("vault")})).await;
    assert_eq!(text(&get(&other_audience, "/livez", &[]).await), UNAUTHORIZED);
    for known in ["s3cret", "dave"] {
        let root = client(&test, json!({"token": known})).await;
        assert_eq!(get(&root, "/api/v1/nodes", &[]).await.0, 200, "{known}");
    }
    let root = client(&test, json!({"token": "s3cret"})).await;
    let review = json!({"spec": {"token": "mallory"}});
    let status = create(&root, REVIEWS, review).await["status"].clone();
    assert_eq!(status, json!({"user": {}, "error": "never heard of it"}));
    let anonymous = client(&test, json!({})).await;
    assert_eq!(get(&anonymous, "/livez", &[]).await.0, 200);
    assert_eq!(text(&get(&anonymous, "/readyz", &[]).await), UNAUTHORIZED);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unused_tokens_are_watched() {
    let test = TestCluster::start(0).await;
    let maps = kaji_meta::GroupResource::new("", "configmaps");
    let name = "kube-apiserver-legacy-service-account-token-tracking";
    let map =
        kaji_resource::ObjectReader::get(&*test.cluster.stack.engine, &maps, "kube-system", name).unwrap();
    let since = map["data"]["since"].as_str().unwrap();
    assert!(jiff::civil::Date::strptime("%Y-%m-%d", since).is_ok(), "{since}");
    test.stop().await;
}
