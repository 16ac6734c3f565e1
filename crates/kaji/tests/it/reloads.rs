//! Files that are followed while a cluster runs: issuers of tokens, authorities, the serving certificate.

use crate::common::{TestCluster, clients, issuer};
use http::Request;
use http_body_util::BodyExt;
use kaji::StoreKind;
use kaji_server::Certificates;
use kube::client::Body;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::{Value, json};
use std::{path::Path, time::Duration};

/// A client that trusts a certificate and has these credentials.
async fn client(test: &TestCluster, trust: &str, user: Value) -> kube::Client {
    clients::client(&test.cluster.url(), trust, user).await
}

/// The answer to a request for nodes; `None` if the connection fails.
async fn told(client: &kube::Client) -> Option<String> {
    let request = Request::get("/api/v1/nodes").body(Body::empty()).unwrap();
    let answer = client.send(request).await.ok()?;
    let bytes = answer.into_body().collect().await.ok()?.to_bytes();
    let status: Value = serde_json::from_slice(&bytes).unwrap();
    Some(status["message"].as_str().unwrap_or_default().to_owned())
}

/// Waits until the answer contains this.
async fn until(client: &kube::Client, text: &str) {
    crate::common::until(text, async || told(client).await.is_some_and(|t| t.contains(text))).await;
}

/// Waits until a metric is as wanted.
async fn counted(test: &TestCluster, what: &str, status: &str, times: u32) {
    crate::common::reloaded(&test.cluster, what, status, times).await;
}

/// Puts a new content in a file's place, as a whole.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

const UNAUTHORIZED: &str = "Unauthorized";

#[tokio::test(flavor = "multi_thread")]
async fn issuers_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let (issuer, authority) =
        issuer::provider(&dir.path().join("provider"), |path, _| panic!("{path}")).await;
    let configuration = |jwt: Value| json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": jwt});
    let with = |name: &str| {
        configuration(json!([{
            "issuer": {"url": issuer.name, "audiences": ["kaji"], "certificateAuthority": authority},
            "claimMappings": {
                "username": {"expression": format!("'{name}:' + claims.sub.split(':')[3]")},
                "groups": {"expression": "['oidc:' + claims['kubernetes.io'].namespace]"},
                "extra": [{"key": "example.com/jti", "valueExpression": "claims.jti"}],
            },
            "claimValidationRules": [{"expression": "claims.sub.endsWith(':alice')", "message": "only Alice"}],
            "userValidationRules": [{"expression": "!user.username.startsWith('system:')"}],
        }]))
    };
    let file = dir.path().join("authn.yaml");
    std::fs::write(&file, configuration(json!([])).to_string()).unwrap();
    let path = file.clone();
    let test = TestCluster::start_over(dir, 0, StoreKind::Memory, |options| {
        options.authn.authentication_config = Some(path);
    })
    .await;
    let trust = test.cluster.pki.ca.certificate.clone();
    let of = async |name: &str| {
        client(&test, &trust, json!({"token": issuer::token(&issuer, name, "kaji")})).await
    };
    let (alice, bob) = (of("alice").await, of("bob").await);
    assert_eq!(told(&alice).await.as_deref(), Some(UNAUTHORIZED));
    replace(&file, &with("a").to_string());
    until(&alice, r#"User "a:alice" cannot list"#).await;
    assert_eq!(told(&bob).await.as_deref(), Some(UNAUTHORIZED));
    // What cannot be used changes nothing: an expression that is none, another rule for anonymous requests.
    replace(&file, &with("b' +").to_string());
    counted(&test, "authentication", "failure", 1).await;
    let mut other = with("b");
    other["anonymous"] = json!({"enabled": false});
    replace(&file, &other.to_string());
    counted(&test, "authentication", "failure", 2).await;
    assert!(told(&alice).await.unwrap().contains(r#"User "a:alice" cannot list"#));
    replace(&file, &with("c").to_string());
    until(&alice, r#"User "c:alice" cannot list"#).await;
    // What an issuer said that is none any more counts for nothing at once.
    replace(&file, &configuration(json!([])).to_string());
    until(&alice, UNAUTHORIZED).await;
    counted(&test, "authentication", "success", 3).await;
    test.stop().await;
}

/// An authority, and a client that it signed for: certificate and key.
fn authority(name: &str) -> (String, Value) {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, format!("{name}'s authority"));
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let signed = params.signed_by(&key, &issuer).unwrap();
    (issuer.pem(), clients::certificate(&signed.pem(), &key.serialize_pem()))
}

#[tokio::test(flavor = "multi_thread")]
async fn authorities_come_and_go_under_open_connections() {
    let dir = tempfile::tempdir().unwrap();
    let ((one, alice), (two, bob)) = (authority("alice"), authority("bob"));
    let file = dir.path().join("clients.pem");
    std::fs::write(&file, &one).unwrap();
    let path = file.clone();
    let test = TestCluster::start_over(dir, 0, StoreKind::Memory, |options| {
        options.authn.client_ca_file = Some(path);
    })
    .await;
    let trust = test.cluster.pki.ca.certificate.clone();
    let (alice, bob) = (client(&test, &trust, alice).await, client(&test, &trust, bob).await);
    assert!(told(&alice).await.unwrap().contains(r#"User "alice" cannot list"#));
    assert_eq!(told(&bob).await.as_deref(), Some(UNAUTHORIZED));
    replace(&file, &format!("{one}\n{two}"));
    until(&bob, r#"User "bob" cannot list"#).await;
    // Nonsense changes nothing, and what follows it counts again.
    replace(&file, "nonsense");
    replace(&file, &two);
    until(&alice, UNAUTHORIZED).await;
    assert!(told(&bob).await.unwrap().contains(r#"User "bob" cannot list"#));
    // The cluster's own authority stays.
    let admin = test.kube().await;
    assert_eq!(told(&admin).await.as_deref(), Some(""));
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_serving_certificate_is_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let made = || {
        let made =
            Certificates::in_memory(vec!["127.0.0.1".into()], jiff::Timestamp::now()).unwrap().current();
        (made.ca.certificate.clone(), made.serving.clone())
    };
    let ((trust, first), (other_trust, second)) = (made(), made());
    let (certificate, key) = (dir.path().join("tls.crt"), dir.path().join("tls.key"));
    std::fs::write(&certificate, &first.certificate).unwrap();
    std::fs::write(&key, &first.key).unwrap();
    let paths = (certificate.clone(), key.clone());
    let test = TestCluster::start_over(dir, 0, StoreKind::Memory, |options| {
        (options.serving.files.tls_cert_file, options.serving.files.tls_private_key_file) =
            (Some(paths.0), Some(paths.1));
    })
    .await;
    let ours = client(&test, &trust, json!({})).await;
    assert!(told(&ours).await.unwrap().contains("system:anonymous"));
    // A new connection each time: a client that trusts the other authority does not get through yet.
    assert_eq!(told(&client(&test, &other_trust, json!({})).await).await, None);
    let mut news = test.cluster.certificates.subscribe();
    // Alone it fits no key, and changes nothing.
    replace(&certificate, &second.certificate);
    assert!(told(&client(&test, &trust, json!({})).await).await.is_some());
    replace(&key, &second.key);
    tokio::time::timeout(Duration::from_secs(60), news.changed()).await.unwrap().unwrap();
    assert!(told(&client(&test, &other_trust, json!({})).await).await.is_some());
    assert_eq!(told(&client(&test, &trust, json!({})).await).await, None);
    assert_eq!(test.cluster.certificates.trust(), second.certificate);
    test.stop().await;
}
