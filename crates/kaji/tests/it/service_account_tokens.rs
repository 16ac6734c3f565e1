//! Each way in which a service account's token is good or not, as its bearer and as a TokenReview see it; and what
//! becomes of tokens when keys change.

use crate::common::TestCluster;
use expect_test::expect;
use http::{Method, Request};
use http_body_util::BodyExt;
use kaji::StoreKind;
use kaji_auth::authn::{Issuer, SigningKey, TokenOrder};
use kaji_meta::SystemRandom;
use kube::client::Body;
use serde_json::{Value, json};
use std::{fmt::Write, sync::Arc};

const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Code and body of an answer.
async fn ask(client: &kube::Client, method: Method, path: &str, body: Value) -> (u16, Value) {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string().into_bytes()) };
    let answer = client.send(request.body(body).unwrap()).await.unwrap();
    let code = answer.status().as_u16();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

/// Makes an object; its uid.
async fn create(admin: &kube::Client, path: &str, body: Value) -> String {
    let (code, answer) = ask(admin, Method::POST, path, body).await;
    assert_eq!(code, 201, "{path}: {answer}");
    answer["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

async fn delete(admin: &kube::Client, path: &str) {
    let (code, answer) =
        ask(admin, Method::DELETE, &format!("{path}?gracePeriodSeconds=0"), Value::Null).await;
    assert_eq!(code, 200, "{path}: {answer}");
}

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

/// Asks for a token.
async fn request(admin: &kube::Client, account: &str, spec: Value) -> String {
    let path = format!("{ACCOUNTS}/{account}/token");
    let (code, answer) = ask(admin, Method::POST, &path, json!({"spec": spec})).await;
    assert_eq!(code, 201, "{answer}");
    answer["status"]["token"].as_str().unwrap().to_owned()
}

async fn bound(admin: &kube::Client, kind: &str, name: &str) -> String {
    request(admin, "robot", json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name}})).await
}

/// Signs as a cluster does, at whatever time and with whatever claims.
fn signer(pem: &str) -> Issuer {
    Issuer {
        name: ISSUER.into(),
        key: Arc::new(SigningKey::from_pem(pem).unwrap()),
        audiences: vec![ISSUER.into()],
        extend: false,
        longest: None,
        random: Arc::new(SystemRandom),
    }
}

/// What happened to each token.
struct Table<'a> {
    test: &'a TestCluster,
    admin: kube::Client,
    text: String,
    /// Uids and what is written for them.
    uids: Vec<(String, &'static str)>,
}

impl Table<'_> {
    async fn row(&mut self, title: &str, token: &str, namespace: &str) {
        let mut config = kube::Config::new(self.test.cluster.url().parse().unwrap());
        let authority = kaji_server::pki::certificates(&self.test.cluster.pki.ca.certificate).unwrap();
        config.root_cert = Some(authority);
        let bearer = kube::Client::try_from(config).unwrap();
        let get = Request::get(format!("/api/v1/namespaces/{namespace}/pods"));
        let get = get.header("authorization", format!("Bearer {token}")).body(Body::empty()).unwrap();
        let answer = bearer.send(get).await.unwrap();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let status: Value = serde_json::from_slice(&bytes).unwrap();
        let mut line = format!("{title}\n  {status}\n");
        if !token.is_empty() {
            let review = json!({"spec": {"token": token}});
            let path = "/apis/authentication.k8s.io/v1/tokenreviews";
            let (_, answer) = ask(&self.admin, Method::POST, path, review).await;
            let status = &answer["status"];
            let said = status["error"].as_str().or(status["user"]["username"].as_str()).unwrap_or_default();
            writeln!(line, "  {}: {said}", status["authenticated"] == true).unwrap();
        }
        for (uid, name) in &self.uids {
            line = line.replace(uid, name);
        }
        self.text += &line;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn accepts_valid_and_rejects_other_tokens() {
    let test = TestCluster::start(0).await;
    let admin = test.kube().await;
    create(&admin, "/api/v1/namespaces", json!({"metadata": {"name": "other"}})).await;
    let robot = || json!({"metadata": {"name": "robot"}});
    let uid = create(&admin, ACCOUNTS, robot()).await;
    let order = TokenOrder {
        namespace: "default".into(),
        name: "robot".into(),
        uid: uid.clone(),
        expiration_seconds: 3600,
        ..TokenOrder::default()
    };
    let signer = signer(&test.cluster.pki.service_account.private);
    let now = jiff::Timestamp::now();
    let at = |hours: i64| signer.issue(&order, now + jiff::SignedDuration::from_hours(hours)).unwrap().token;
    let mut table =
        Table { test: &test, admin: admin.clone(), text: String::new(), uids: vec![(uid, "OLD")] };
    let good = request(&admin, "robot", json!({})).await;
    table.row("good", &good, "default").await;
    table.row("good, but for another namespace", &good, "other").await;
    table.row("none", "", "default").await;
    table.row("expired", &at(-2), "default").await;
    table.row("not yet valid", &at(1), "default").await;
    let vault = request(&admin, "robot", json!({"audiences": ["vault"]})).await;
    table.row("for another audience", &vault, "default").await;
    let other_namespace = TokenOrder { namespace: "other".into(), ..order.clone() };
    let other_namespace = signer.issue(&other_namespace, now).unwrap().token;
    table.row("of another namespace's account", &other_namespace, "other").await;
    create(&admin, "/api/v1/namespaces/other/serviceaccounts", robot()).await;
    let (_, account) =
        ask(&admin, Method::GET, "/api/v1/namespaces/other/serviceaccounts/robot", Value::Null).await;
    table.uids.push((account["metadata"]["uid"].as_str().unwrap().to_owned(), "OTHER"));
    table.row("of another namespace's account of that name", &other_namespace, "other").await;
    let foreign = Issuer {
        name: "https://elsewhere".into(),
        ..self::signer(&test.cluster.pki.service_account.private)
    };
    table.row("of another issuer", &foreign.issue(&order, now).unwrap().token, "default").await;
    let other_key = rcgen::KeyPair::generate().unwrap().serialize_pem();
    table.row("of another key", &self::signer(&other_key).issue(&order, now).unwrap().token, "default").await;
    table.row("tampered with", &format!("{good}AA"), "default").await;
    table.row("no token at all", "mallory", "default").await;
    expect![[r#"
        good
          {"apiVersion":"v1","code":403,"details":{"kind":"pods"},"kind":"Status","message":"pods is forbidden: User \"system:serviceaccount:default:robot\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"","metadata":{},"reason":"Forbidden","status":"Failure"}
          true: system:serviceaccount:default:robot
        good, but for another namespace
          {"apiVersion":"v1","code":403,"details":{"kind":"pods"},"kind":"Status","message":"pods is forbidden: User \"system:serviceaccount:default:robot\" cannot list resource \"pods\" in API group \"\" in the namespace \"other\"","metadata":{},"reason":"Forbidden","status":"Failure"}
          true: system:serviceaccount:default:robot
        none
          {"apiVersion":"v1","code":403,"details":{"kind":"pods"},"kind":"Status","message":"pods is forbidden: User \"system:anonymous\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"","metadata":{},"reason":"Forbidden","status":"Failure"}
        expired
          {"apiVersion":"v1","code":401,"kind":"Status","message":"Unauthorized","metadata":{},"reason":"Unauthorized","status":"Failure"}
          false: service account token has expired
        not yet valid
          {"apiVersion":"v1","code":401,"kind":"Status","message":"Unauthorized","metadata":{},"reason":"Unauthorized","status":"Failure"}
          false: service account token is not valid yet
        for another audience
          {"apiVersion":"v1","code":401,"kind":"Status","message":"Unauthorized","metadata":{},"reason":"Unauthorized","status":"Failure"}
          false: token audiences ["vault"] is invalid for the target audiences ["https://kubernetes.default.svc.cluster.local"]
        of another namespace's account
          {"apiVersion":"v1","code":401,"kind":"Status","message":"Unauthorized","metadata":{},"reason":"Unauthorized","status":"Failure"}
          false: serviceaccounts "robot" not found
        of another namespace's account of that name
          {"apiVersion":"v1","code":401,"kind":"Status","message":"Unauthorized","metadata":{},"reason":"Unauthorized","status":"Failure"}
          false: service account UID (OTHER) does not match claim (OLD)
        of another issuer
          {"apiVersion":"v1","code":401,"kind":"Status","message":"Unauthorized","metadata":{},"reason":"Unauthorized","status":"Failure"}
          false: invalid bearer token
        of another key
          {"apiVersion":"v1","code":401,"kind":"Status","message":"Unauthorized","metadata":{},"reason":"Unauthorized","status":"Failure"}
          false: invalid signature, no keys found
        tampered with
          {"apiVersion":"v1","code":401,"kind":"Status","message":"Unauthorized","metadata":{},"reason":"Unauthorized","status":"Failure"}
          false: invalid signature
        no token at all
          {"apiVersion":"v1","code":401,"kind":"Status","message":"Unauthorized","metadata":{},"reason":"Unauthorized","status":"Failure"}
          false: invalid bearer token
    "#]].assert_eq(&table.text);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_ends_with_what_it_is_bound_to() {
    let test = TestCluster::start(0).await;
    let admin = test.kube().await;
    let robot = || json!({"metadata": {"name": "robot"}});
    let uid = create(&admin, ACCOUNTS, robot()).await;
    let mut table =
        Table { test: &test, admin: admin.clone(), text: String::new(), uids: vec![(uid, "OLD")] };
    let pod = json!({
        "metadata": {"name": "it"},
        "spec": {"serviceAccountName": "robot", "containers": [{"name": "c", "image": "i"}]},
    });
    for (kind, path, body) in [
        ("Pod", "/api/v1/namespaces/default/pods", pod),
        ("Secret", "/api/v1/namespaces/default/secrets", json!({"metadata": {"name": "it"}})),
        ("Node", "/api/v1/nodes", json!({"metadata": {"name": "it"}})),
    ] {
        table.uids.push((create(&admin, path, body.clone()).await, "FIRST"));
        let token = bound(&admin, kind, "it").await;
        table.row(kind, &token, "default").await;
        delete(&admin, &format!("{path}/it")).await;
        table.row(&format!("{kind}, deleted"), &token, "default").await;
        table.uids.push((create(&admin, path, body).await, "SECOND"));
        table.row(&format!("{kind}, made again"), &token, "default").await;
    }
    let token = request(&admin, "robot", json!({})).await;
    delete(&admin, &format!("{ACCOUNTS}/robot")).await;
    table.row("account, deleted", &token, "default").await;
    table.uids.push((create(&admin, ACCOUNTS, robot()).await, "NEW"));
    table.row("account, made again", &token, "default").await;
    expect![[r#"
        Pod
          {"apiVersion":"v1","code":403,"details":{"kind":"pods"},"kind":"Status","message":"pods is forbidden: User \"system:serviceaccount:default:robot\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"","metadata":{},"reason":"Forbidden","status":"Failure"}
          true: system:serviceaccount:default:robot
        Pod, deleted
          {"apiVersion":"v1","code":401,"kind":"Status","message":"Unauthorized","metadata":{},"reason":"Unauthorized","status":"Failure"}
          false: service account token has been invalidated
        Pod, made again
          {"apiVersion":"v1","code":401,"kind":"Status","message":"Unauthorized","metadata":{},"reason":"Unauthorized","status":"Failure"}
          false: pod UID (SECOND) does not match service account pod ref claim (FIRST)
        Secret
          {"apiVersion":"v1","code":403,"details":{"kind":"pods"},"kind":"Status","message":"pods is forbidden: User \"system:serviceaccount:default:robot\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"","metadata":{},"reason":"Forbidden","status":"Failure"}
          true: system:serviceaccount:default:robot
        Secret, deleted
          {"apiVersion":"v1","code":401,"kind":"Status","message":"Unauthorized","metadata":{},"reason":"Unauthorized","status":"Failure"}
          false: service account token has been invalidated
        Secret, made again
          {"apiVersion":"v1","code":401,"kind":"Status","message":"Unauthorized","metadata":{},"reason":"Unauthorized","status":"Failure"}
          false: secret UID (SECOND) does not match service account secret ref claim (FIRST)
        Node
          {"apiVersion":"v1","code":403,"details":{"kind":"pods"},"kind":"Status","message":"pods is forbidden: User \"system:serviceaccount:default:robot\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"","metadata":{},"reason":"Forbidden","status":"Failure"}
          true: system:serviceaccount:default:robot
        Node, deleted
          {"apiVersion":"v1","code":401,"kind":"Status","message":"Unauthorized","metadata":{},"reason":"Unauthorized","status":"Failure"}
          false: service account token has been invalidated
        Node, made again
          {"apiVersion":"v1","code":401,"kind":"Status","message":"Unauthorized","metadata":{},"reason":"Unauthorized","status":"Failure"}
          false: node UID (SECOND) does not match service account node ref claim (FIRST)
        account, deleted
          {"apiVersion":"v1","code":401,"kind":"Status","message":"Unauthorized","metadata":{},"reason":"Unauthorized","status":"Failure"}
          false: serviceaccounts "robot" not found
        account, made again
          {"apiVersion":"v1","code":401,"kind":"Status","message":"Unauthorized","metadata":{},"reason":"Unauthorized","status":"Failure"}
          false: service account UID (NEW) does not match claim (OLD)
    "#]].assert_eq(&table.text);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn key_rotation_keeps_tokens_valid() {
    let test = TestCluster::start_in(tempfile::tempdir().unwrap(), 0, StoreKind::Disk).await;
    let admin = test.kube().await;
    create(&admin, ACCOUNTS, json!({"metadata": {"name": "robot"}})).await;
    let old = request(&admin, "robot", json!({})).await;
    let dir = test.stop().await;
    let (first, second) = (dir.path().join("pki/sa.pub"), dir.path().join("second.key"));
    std::fs::write(&second, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();

    let test = TestCluster::start_over(dir, 0, StoreKind::Disk, |options| {
        options.authn.service_account_signing_key_file = Some(second.clone());
        options.authn.service_account_key_files = vec![first];
    })
    .await;
    let admin = test.kube().await;
    let new = request(&admin, "robot", json!({})).await;
    assert_ne!(new.split_once('.').unwrap().0, old.split_once('.').unwrap().0, "another key signs");
    let mut table = Table { test: &test, admin: admin.clone(), text: String::new(), uids: vec![] };
    table.row("old", &old, "default").await;
    table.row("new", &new, "default").await;
    let (_, keys) = ask(&admin, Method::GET, "/openid/v1/jwks", Value::Null).await;
    assert_eq!(keys["keys"].as_array().unwrap().len(), 2, "others verify both, too");
    let (text, dir) = (table.text, test.stop().await);

    let test = TestCluster::start_over(dir, 0, StoreKind::Disk, |options| {
        options.authn.service_account_signing_key_file = Some(second);
    })
    .await;
    let mut table = Table { test: &test, admin: test.kube().await, text, uids: vec![] };
    table.row("old, its key withdrawn", &old, "default").await;
    table.row("new, still", &new, "default").await;
    expect![[r#"
        old
          {"apiVersion":"v1","code":403,"details":{"kind":"pods"},"kind":"Status","message":"pods is forbidden: User \"system:serviceaccount:default:robot\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"","metadata":{},"reason":"Forbidden","status":"Failure"}
          true: system:serviceaccount:default:robot
        new
          {"apiVersion":"v1","code":403,"details":{"kind":"pods"},"kind":"Status","message":"pods is forbidden: User \"system:serviceaccount:default:robot\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"","metadata":{},"reason":"Forbidden","status":"Failure"}
          true: system:serviceaccount:default:robot
        old, its key withdrawn
          {"apiVersion":"v1","code":401,"kind":"Status","message":"Unauthorized","metadata":{},"reason":"Unauthorized","status":"Failure"}
          false: invalid signature, no keys found
        new, still
          {"apiVersion":"v1","code":403,"details":{"kind":"pods"},"kind":"Status","message":"pods is forbidden: User \"system:serviceaccount:default:robot\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"","metadata":{},"reason":"Forbidden","status":"Failure"}
          true: system:serviceaccount:default:robot
    "#]].assert_eq(&table.text);
    test.stop().await;
}
