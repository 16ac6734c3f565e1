//! Certificates of pods in projected volumes: their requests, files and replacements.

use crate::fake::Fake;
use crate::volumes::{pod, put};
use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use kaji_builtins::{Deps, certificates::podcertificaterequests};
use kaji_meta::{ManualClock, SeededRandom};
use kaji_resource::testing::TestContext;
use serde_json::{Value, json};
use std::sync::Arc;

const CHAIN: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

fn prepared(key_type: &str) -> (Fake, Value) {
    let fake = Fake::new();
    let node = json!({"metadata": {"name": "node-1", "uid": "node-uid"}});
    *fake.objects.node.lock().unwrap() = Some(std::sync::Arc::new(serde_json::from_value(node).unwrap()));
    put(&fake, "/api/v1/namespaces/n/serviceaccounts/sa", json!({"metadata": {"uid": "sa-uid"}}));
    let certificate = json!({
        "signerName": "example.com/signer",
        "keyType": key_type,
        "maxExpirationSeconds": 7200,
        "userAnnotations": {"example.com/a": "b"},
        "credentialBundlePath": "bundle.pem",
        "keyPath": "key.pem",
        "certificateChainPath": "chain.pem",
    });
    let pod = pod(json!({}), json!({"projected": {"sources": [{"podCertificate": certificate}]}}));
    (fake, pod)
}

async fn set_up(fake: &Fake, pod: &Value) -> Result<String, String> {
    let parsed = serde_json::from_value(pod.clone()).unwrap();
    fake.cx.volumes.set_up(&fake.cx, &parsed).await.map_err(|error| error.to_string())?;
    let files = fake.dir.path().join("kubelet/pods/u/volumes/kubernetes.io~projected/v");
    let read = |name: &str| std::fs::read_to_string(files.join(name)).unwrap();
    assert_eq!(read("bundle.pem"), format!("{}{}", read("key.pem"), read("chain.pem")));
    assert_eq!(read("chain.pem"), CHAIN);
    Ok(read("key.pem"))
}

/// The paths of the requests, in the order in which they were made.
fn requests(fake: &Fake) -> Vec<String> {
    let objects = fake.objects.objects.lock().unwrap();
    objects.keys().filter(|path| path.contains("podcertificaterequests")).cloned().collect()
}

fn decide(fake: &Fake, request: &str, status: Value) {
    fake.objects.objects.lock().unwrap().get_mut(request).unwrap()["status"] = status;
}

#[tokio::test]
async fn a_certificate_is_asked_for_once_and_replaced_in_time() {
    let (fake, pod) = prepared("ED25519");
    for _ in 0..2 {
        let refusal = set_up(&fake, &pod).await.unwrap_err();
        assert!(refusal.ends_with("credential bundle is not issued yet"), "{refusal}");
    }
    let first = requests(&fake);
    assert_eq!(first.len(), 1);
    let request = fake.objects.objects.lock().unwrap()[&first[0]].clone();
    let mut spec = request["spec"].clone();
    let stub = STANDARD.decode(spec["stubPKCS10Request"].take().as_str().unwrap()).unwrap();
    expect_test::expect![[r#"{"maxExpirationSeconds":7200,"nodeName":"node-1","nodeUID":"node-uid","podName":"p","podUID":"u","serviceAccountName":"sa","serviceAccountUID":"sa-uid","signerName":"example.com/signer","stubPKCS10Request":null,"unverifiedUserAnnotations":{"example.com/a":"b"}}"#]]
        .assert_eq(&spec.to_string());
    assert_eq!(request["metadata"]["ownerReferences"][0]["uid"], "u");
    let issued = json!({
        "conditions": [{"type": "Issued", "status": "True"}],
        "certificateChain": format!("said\n{CHAIN}"),
        "beginRefreshAt": "2026-01-01T01:00:00Z",
        "notAfter": "2026-01-01T02:00:00Z",
    });
    decide(&fake, &first[0], issued);
    let key = set_up(&fake, &pod).await.unwrap();
    let pair = rcgen::KeyPair::from_pem(&key).unwrap();
    assert!(stub.windows(32).any(|part| part == pair.public_key_raw()), "the request has the key");
    fake.clock.advance(jiff::SignedDuration::from_mins(59));
    assert_eq!(set_up(&fake, &pod).await.unwrap(), key);
    assert_eq!(requests(&fake).len(), 1);
    fake.clock.advance(jiff::SignedDuration::from_mins(20));
    assert_eq!(set_up(&fake, &pod).await.unwrap(), key, "until the next one is issued");
    let second = requests(&fake);
    assert_eq!(second.len(), 2);
    let next = second.iter().find(|path| **path != first[0]).unwrap();
    let denied = json!({"conditions": [{"type": "Denied", "reason": "NotNow", "message": "said \"no\""}]});
    decide(&fake, next, denied);
    for _ in 0..2 {
        let refusal = set_up(&fake, &pod).await.unwrap_err();
        let expected =
            "PodCertificateRequest was permanently denied: reason=\"NotNow\" message=\"said \\\"no\\\"\"";
        assert!(refusal.ends_with(expected), "{refusal}");
    }
    assert_eq!(requests(&fake).len(), 2);
    let events = fake.api.events.lock().unwrap().join("\n");
    assert!(
        events.starts_with("CertificateOverdueForRefresh: PodCertificate refresh overdue\nDenied: "),
        "{events}"
    );
}

#[tokio::test]
async fn a_request_that_was_deleted_is_made_again_and_unknown_keys_are_refused() {
    let (fake, pod) = prepared("ECDSAP256");
    set_up(&fake, &pod).await.unwrap_err();
    let first = requests(&fake);
    fake.objects.objects.lock().unwrap().remove(&first[0]);
    set_up(&fake, &pod).await.unwrap_err();
    assert_eq!(requests(&fake).len(), 0, "it may not be seen yet");
    fake.clock.advance(jiff::SignedDuration::from_mins(16));
    set_up(&fake, &pod).await.unwrap_err();
    set_up(&fake, &pod).await.unwrap_err();
    assert_eq!(requests(&fake).len(), 1);

    let (fake, pod) = prepared("RSA2048");
    let refusal = set_up(&fake, &pod).await.unwrap_err();
    assert!(refusal.contains("while generating keypair: unknown key type \"RSA2048\""), "{refusal}");
    assert_eq!(requests(&fake).len(), 0);
}

/// What the API server says of a request.
fn validated(mut request: Value) -> String {
    let (clock, random) = (ManualClock::new(Timestamp::UNIX_EPOCH), SeededRandom::new(7));
    let def = podcertificaterequests::def(&Deps::new(Arc::new(clock), Arc::new(random)));
    request["metadata"]["name"] = "r".into();
    let test = TestContext::default();
    def.hooks.default("v1", &mut request);
    let errors = def.hooks.validate_create(&test.ctx(&request, "", "v1"), &request);
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn keys_of_each_type_are_proved_to_the_api_server() {
    let mut lengths = String::new();
    for key_type in ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"] {
        let (fake, pod) = prepared(key_type);
        set_up(&fake, &pod).await.unwrap_err();
        let name = requests(&fake).remove(0);
        let request = fake.objects.objects.lock().unwrap()[&name].clone();
        assert_eq!(validated(request.clone()), "", "{key_type}");
        let mut stub = STANDARD.decode(request["spec"]["stubPKCS10Request"].as_str().unwrap()).unwrap();

        let issued = json!({
            "conditions": [{"type": "Issued", "status": "True"}],
            "certificateChain": CHAIN,
            "beginRefreshAt": "2026-01-01T01:00:00Z",
            "notAfter": "2026-01-01T02:00:00Z",
        });
        decide(&fake, &name, issued);
        let key = set_up(&fake, &pod).await.unwrap();
        assert!(key.starts_with("-----BEGIN PRIVATE KEY-----\n"), "{key_type}");
        if key_type != "ED25519" {
            let key = kaji_auth::authn::SigningKey::from_pem(&key).unwrap().public.spki();
            assert!(stub.windows(key.len()).any(|part| part == key), "{key_type}: the request has the key");
            lengths += &format!("{key_type} {}\n", key.len());
        }

        let last = stub.len() - 3;
        stub[last] ^= 1;
        let mut broken = request;
        broken["spec"]["stubPKCS10Request"] = STANDARD.encode(stub).into();
        let refused = "spec.stubPKCS10Request: Invalid value: invalid signature";
        assert_eq!(validated(broken), refused, "{key_type}");
    }
    expect_test::expect![[r#"
        RSA3072 422
        RSA4096 550
        ECDSAP256 91
        ECDSAP384 120
        ECDSAP521 158
    "#]]
    .assert_eq(&lengths);
}
