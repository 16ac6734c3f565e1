//! Each way in which a service account's token is not good, and what a good one says.

use super::*;
use crate::authn::{
    PublicKey,
    testing::{World, ec_key, ec_pem, now_or_never},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use expect_test::expect;
use kaji_meta::{SeededRandom, object::set_at};

const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

struct Setting {
    world: World,
    issuer: Issuer,
    tokens: ServiceAccountTokens,
}

fn setting() -> Setting {
    let world = World::default();
    let account = json!({"metadata": {"namespace": "ns", "name": "sa", "uid": "u1"}});
    world.put("serviceaccounts", account);
    world.put("pods", json!({"metadata": {"namespace": "ns", "name": "p", "uid": "u2"}}));
    world.put("secrets", json!({"metadata": {"namespace": "ns", "name": "s", "uid": "u3"}}));
    world.put("nodes", json!({"metadata": {"name": "n", "uid": "u4"}}));
    let key = ec_key();
    let keys = KeySet::new([ec_key().public, key.public.clone()]);
    let issuer = Issuer {
        name: ISSUER.into(),
        key: Arc::new(key),
        audiences: vec![ISSUER.into(), "extra".into()],
        extend: true,
        longest: None,
        random: Arc::new(SeededRandom::new(1)),
    };
    let tokens = ServiceAccountTokens::new(
        vec![ISSUER.into(), "https://old".into()],
        keys,
        issuer.audiences.clone(),
        world.weak(),
        world.clock.clone(),
    );
    Setting { world, issuer, tokens }
}

fn order() -> TokenOrder {
    TokenOrder {
        namespace: "ns".into(),
        name: "sa".into(),
        uid: "u1".into(),
        expiration_seconds: 3600,
        ..TokenOrder::default()
    }
}

fn bound(kind: &str, name: &str, uid: &str) -> TokenOrder {
    TokenOrder { bound: Some(BoundTo { kind: kind.into(), name: name.into(), uid: uid.into() }), ..order() }
}

impl Setting {
    fn issue(&self, order: &TokenOrder) -> String {
        self.issuer.issue(order, self.world.clock.now()).unwrap().token
    }

    fn ask(&self, token: &str) -> Verdict {
        now_or_never(self.tokens.authenticate(token, &[ISSUER.into()]))
    }

    fn refused(&self, token: &str) -> String {
        self.ask(token).unwrap_err().0
    }

    /// A token with claims and header changed before it is signed.
    fn forged(&self, key: &SigningKey, change: impl Fn(&mut Value)) -> String {
        let token = self.issue(&order());
        let mut claims = Value::Object(Token::parse(&token).unwrap().claims.0);
        change(&mut claims);
        jwt::sign(key, &claims).unwrap()
    }
}

fn payload(token: &str) -> Value {
    Value::Object(Token::parse(token).unwrap().claims.0)
}

#[test]
fn claims_are_upstreams() {
    let setting = setting();
    let order = TokenOrder { node: Some(("n".into(), "u4".into())), ..bound("Pod", "p", "u2") };
    let token = setting.issue(&order);
    expect![[r#"{"aud":["https://kubernetes.default.svc.cluster.local","extra"],"exp":1767229200,"iat":1767225600,"iss":"https://kubernetes.default.svc.cluster.local","jti":"910a2dec-8902-4cc1-beeb-8da1658eec67","kubernetes.io":{"namespace":"ns","node":{"name":"n","uid":"u4"},"pod":{"name":"p","uid":"u2"},"serviceaccount":{"name":"sa","uid":"u1"}},"nbf":1767225600,"sub":"system:serviceaccount:ns:sa"}"#]]
    .assert_eq(&payload(&token).to_string());
    let parsed = Token::parse(&token).unwrap();
    assert_eq!((parsed.algorithm.as_str(), &parsed.key_id), ("ES256", &setting.issuer.key.id));
    let user = setting.ask(&token).unwrap().unwrap().user;
    expect![[r#"
        UserInfo {
            name: "system:serviceaccount:ns:sa",
            uid: "u1",
            groups: [
                "system:serviceaccounts",
                "system:serviceaccounts:ns",
            ],
            extra: {
                "authentication.kubernetes.io/credential-id": [
                    "JTI=910a2dec-8902-4cc1-beeb-8da1658eec67",
                ],
                "authentication.kubernetes.io/node-name": [
                    "n",
                ],
                "authentication.kubernetes.io/node-uid": [
                    "u4",
                ],
                "authentication.kubernetes.io/pod-name": [
                    "p",
                ],
                "authentication.kubernetes.io/pod-uid": [
                    "u2",
                ],
            },
        }
    "#]]
    .assert_debug_eq(&user);
}

#[test]
fn extends_tokens_of_kubelets() {
    let mut setting = setting();
    let lifetime = |setting: &Setting, order: &TokenOrder| {
        let now = setting.world.clock.now();
        let issued = setting.issuer.issue(order, now).unwrap();
        let claims = payload(&issued.token);
        let warn = claims["kubernetes.io"]["warnafter"].as_i64().map(|t| t - now.as_second());
        (
            issued.expires.as_second() - now.as_second(),
            claims["exp"].as_i64().unwrap() - now.as_second(),
            warn,
        )
    };
    let pod = TokenOrder { expiration_seconds: EXTENDED_WHEN, ..bound("Pod", "p", "u2") };
    assert_eq!(lifetime(&setting, &pod), (3607, 31_536_000, Some(3607)));
    let other_audience = TokenOrder { audiences: vec!["vault".into()], ..pod.clone() };
    assert_eq!(lifetime(&setting, &other_audience), (3607, 3607, None));
    let unbound = TokenOrder { bound: None, ..pod.clone() };
    assert_eq!(lifetime(&setting, &unbound), (3607, 3607, None));
    setting.issuer.extend = false;
    assert_eq!(lifetime(&setting, &pod), (3607, 3607, None));
    setting.issuer.longest = Some(600);
    assert_eq!(lifetime(&setting, &pod), (600, 600, None));
}

#[test]
fn rejects_expired_tokens() {
    let setting = setting();
    let token = setting.issue(&order());
    let minutes = |m: i64| setting.world.clock.advance(jiff::SignedDuration::from_mins(m));
    assert!(setting.ask(&token).is_ok());
    minutes(61);
    assert!(setting.ask(&token).is_ok());
    minutes(1);
    assert_eq!(setting.refused(&token), "service account token has expired");
    let key = setting.issuer.key.clone();
    let ahead = setting.world.clock.now().as_second() + 61;
    let early = setting.forged(&key, |c| c["nbf"] = ahead.into());
    assert_eq!(setting.refused(&early), "service account token is not valid yet");
    let early = setting.forged(&key, |c| c["iat"] = ahead.into());
    assert_eq!(setting.refused(&early), "service account token is issued in the future");
}

#[test]
fn rejects_forged_tokens() {
    let setting = setting();
    let token = setting.issue(&order());
    let (head, signature) = token.rsplit_once('.').unwrap();
    let (header, body) = head.split_once('.').unwrap();
    let part = |v: Value| URL_SAFE_NO_PAD.encode(v.to_string());
    let id = setting.issuer.key.id.as_str();
    let mut masters = payload(&token);
    masters["sub"] = "system:serviceaccount:kube-system:root".into();
    let spki = setting.issuer.key.public.spki();
    // The public key taken for a shared secret.
    let confused = {
        let head = format!("{}.{body}", part(json!({"alg": "HS256", "kid": id})));
        let mac = ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &spki), head.as_bytes());
        format!("{head}.{}", URL_SAFE_NO_PAD.encode(mac))
    };
    let invalid = "invalid signature";
    for (title, token, refusal) in [
        ("none", format!("{}.{body}.", part(json!({"alg": "none", "kid": id}))), invalid),
        ("no kid, none", format!("{}.{body}.", part(json!({"alg": "none"}))), invalid),
        (
            "other algorithm",
            format!("{}.{body}.{signature}", part(json!({"alg": "ES384", "kid": id}))),
            invalid,
        ),
        ("confusion", confused, invalid),
        ("claims changed", format!("{header}.{}.{signature}", part(masters)), invalid),
        ("signature changed", format!("{head}.{}", URL_SAFE_NO_PAD.encode([7; 64])), invalid),
        ("signature cut", format!("{head}.AAAA"), invalid),
        ("signature empty", format!("{head}."), invalid),
        (
            "unknown kid",
            format!("{}.{body}.{signature}", part(json!({"alg": "ES256", "kid": "x"}))),
            "invalid signature, no keys found",
        ),
        ("unknown key", setting.forged(&ec_key(), |_| {}), "invalid signature, no keys found"),
    ] {
        assert_eq!(setting.refused(&token), refusal, "{title}");
    }
    let huge = format!("{head}.{}", "A".repeat(jwt::MAX_TOKEN));
    for foreign in ["", "x", "a.b.c", "{}", huge.as_str()] {
        assert_eq!(setting.ask(foreign), Ok(None));
    }
}

#[test]
fn rejects_other_issuers_and_audiences() {
    let setting = setting();
    let key = setting.issuer.key.clone();
    let from = |issuer: &str| setting.forged(&key, |c| c["iss"] = issuer.into());
    assert_eq!(setting.ask(&from("https://other")), Ok(None));
    assert!(setting.ask(&from("https://old")).unwrap().is_some(), "tokens of a rotated issuer stay valid");
    let vault = setting.issue(&TokenOrder { audiences: vec!["vault".into()], ..order() });
    assert_eq!(
        setting.refused(&vault),
        r#"token audiences ["vault"] is invalid for the target audiences ["https://kubernetes.default.svc.cluster.local"]"#
    );
    let both = ["vault".to_owned(), "x".to_owned()];
    let found = now_or_never(setting.tokens.authenticate(&vault, &both)).unwrap().unwrap();
    assert_eq!(found.audiences, ["vault"]);
}

#[test]
fn rejects_token_of_deleted_account() {
    let deleted = |seconds: i64| {
        move |w: &World| {
            let at = w.clock.now() - jiff::SignedDuration::from_secs(seconds);
            w.change("serviceaccounts", "ns", "sa", |a| {
                set_at(a, &["metadata", "deletionTimestamp"], at.to_string())
            });
        }
    };
    let check = |change: &dyn Fn(&World)| {
        let setting = setting();
        let token = setting.issue(&order());
        assert!(setting.ask(&token).is_ok());
        change(&setting.world);
        setting.ask(&token).err().map(|r| r.0).unwrap_or_default()
    };
    assert_eq!(check(&|w| w.delete("serviceaccounts", "ns", "sa")), r#"serviceaccounts "sa" not found"#);
    assert_eq!(
        check(&|w| w.change("serviceaccounts", "ns", "sa", |a| set_at(a, &["metadata", "uid"], "u9"))),
        "service account UID (u9) does not match claim (u1)"
    );
    assert_eq!(check(&deleted(60)), "");
    assert_eq!(check(&deleted(61)), "service account ns/sa has been deleted");
}

#[test]
fn rejects_token_of_deleted_bound_object() {
    for (kind, resource, name, uid) in
        [("Pod", "pods", "p", "u2"), ("Secret", "secrets", "s", "u3"), ("Node", "nodes", "n", "u4")]
    {
        let namespace = if kind == "Node" { "" } else { "ns" };
        let check = |change: &dyn Fn(&World)| {
            let setting = setting();
            let token = setting.issue(&bound(kind, name, uid));
            assert!(setting.ask(&token).is_ok(), "{kind}");
            change(&setting.world);
            setting.refused(&token)
        };
        let invalidated = "service account token has been invalidated";
        assert_eq!(check(&|w| w.delete(resource, namespace, name)), invalidated);
        let old = &|w: &World| {
            let at = w.clock.now() - jiff::SignedDuration::from_secs(61);
            w.change(resource, namespace, name, |o| {
                set_at(o, &["metadata", "deletionTimestamp"], at.to_string())
            });
        };
        assert_eq!(check(old), invalidated);
        let kind = kind.to_lowercase();
        assert_eq!(
            check(&|w| w.change(resource, namespace, name, |o| set_at(o, &["metadata", "uid"], "u9"))),
            format!("{kind} UID (u9) does not match service account {kind} ref claim ({uid})")
        );
    }
    // A pod's node is information, not a bond.
    let setting = setting();
    let order = TokenOrder { node: Some(("n".into(), "u4".into())), ..bound("Pod", "p", "u2") };
    let token = setting.issue(&order);
    setting.world.delete("nodes", "", "n");
    assert!(setting.ask(&token).unwrap().is_some());
}

#[test]
fn keys_of_every_form_read_the_same() {
    let pem = ec_pem();
    let key = SigningKey::from_pem(&pem).unwrap();
    assert_eq!(PublicKey::all_from_pem(&pem).unwrap(), std::slice::from_ref(&key.public));
    assert_eq!(PublicKey::from_spki(&key.public.spki()).unwrap(), key.public);
    assert_eq!(PublicKey::from_jwk(&key.public.jwk()).unwrap(), key.public);
    let message = b"message";
    let signature = key.sign(message).unwrap();
    assert!(key.public.verifies("ES256", message, &signature));
    for wrong in ["ES384", "RS256", "HS256", "none", ""] {
        assert!(!key.public.verifies(wrong, message, &signature), "{wrong}");
    }
    assert!(!format!("{key:?}").contains("pair"));
    assert_eq!(PublicKey::all_from_pem("").unwrap_err(), KeyError::Empty);
    assert!(SigningKey::from_pem("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").is_err());
}
