//! An issuer, its tokens, and what becomes of them.

use super::*;
use crate::authn::{
    IssuerDocuments, SigningKey,
    config::OidcFlags,
    jwt::sign,
    testing::{ec_key, now_or_never},
};
use kaji_meta::ManualClock;
use serde_json::json;
use std::{
    sync::{
        Mutex as Lock,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
};

/// An issuer with keys that can be replaced; `None` for one that is down.
struct Provider {
    keys: Lock<Option<KeySet>>,
    asked: AtomicUsize,
}

impl Fetch for Provider {
    fn get<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<Vec<u8>, String>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let keys = self.keys.lock().unwrap();
        let answer = keys.as_ref().ok_or_else(|| "down".to_owned()).map(|keys| {
            let documents = IssuerDocuments::new("https://i", "https://i/keys", keys).unwrap();
            match url {
                "https://i/.well-known/openid-configuration" => documents.configuration,
                "https://i/keys" => documents.keys,
                other => panic!("{other}"),
            }
        });
        Box::pin(std::future::ready(answer.map(String::into_bytes)))
    }
}

struct Setting {
    key: SigningKey,
    provider: Arc<Provider>,
    clock: Arc<ManualClock>,
    oidc: Oidc,
}

fn setting() -> Setting {
    let key = ec_key();
    let provider = Arc::new(Provider {
        keys: Lock::new(Some(KeySet::new([key.public.clone()]))),
        asked: AtomicUsize::new(0),
    });
    let clock = Arc::new(ManualClock::new(jiff::Timestamp::from_second(1_000_000).unwrap()));
    let flags = OidcFlags {
        issuer_url: "https://i".into(),
        client_id: "kaji".into(),
        username_claim: Some("email".into()),
        groups_claim: "groups".into(),
        groups_prefix: "oidc:".into(),
        required: vec![("hd".into(), "example.com".into())],
        ..OidcFlags::default()
    };
    let rule = flags.configuration().jwt.remove(0);
    let oidc = Oidc::new(rule, vec![], provider.clone(), clock.clone()).unwrap();
    Setting { key, provider, clock, oidc }
}

fn claims() -> Value {
    json!({"iss": "https://i", "aud": "kaji", "exp": 1_000_100, "email": "a@example.com", "hd": "example.com",
        "groups": ["devs"], "jti": "1"})
}

impl Setting {
    fn ask(&self, key: &SigningKey, claims: &Value) -> String {
        let token = sign(key, claims).unwrap();
        match now_or_never(self.oidc.authenticate(&token, &[])) {
            Ok(Some(i)) => format!("{} {:?} {:?}", i.user.name, i.user.groups, i.user.extra),
            Ok(None) => "none".into(),
            Err(refusal) => refusal.0,
        }
    }

    fn with(&self, name: &str, value: Value) -> String {
        let mut claims = claims();
        claims[name] = value;
        self.ask(&self.key, &claims)
    }
}

#[test]
fn maps_claims_to_user() {
    let s = setting();
    let alice = r#"a@example.com ["oidc:devs"] {"authentication.kubernetes.io/credential-id": ["JTI=1"]}"#;
    assert_eq!(s.ask(&s.key, &claims()), alice);
    assert_eq!(s.with("groups", json!("devs")), alice);
    assert_eq!(s.with("aud", json!(["x", "kaji"])), alice);
    assert_eq!(s.with("email_verified", json!(true)), alice);
    assert_eq!(s.provider.asked.load(Ordering::Relaxed), 2);
    for (name, value, refusal) in [
        ("iss", json!("https://j"), "none"),
        ("aud", json!("x"), r#"oidc: verify token: oidc: expected audience "kaji" got ["x"]"#),
        ("aud", json!(null), r#"oidc: verify token: oidc: expected audience "kaji" got []"#),
        (
            "exp",
            json!(999_999),
            "oidc: verify token: oidc: token is expired (Token Expiry: 1970-01-12T13:46:39Z)",
        ),
        (
            "exp",
            json!(null),
            "oidc: verify token: oidc: token is expired (Token Expiry: 1970-01-01T00:00:00Z)",
        ),
        ("exp", json!("1"), "oidc: verify token: oidc: malformed jwt: exp is no number"),
        (
            "nbf",
            json!(1_000_061),
            "oidc: verify token: oidc: current time 1970-01-12T13:46:40Z before the nbf (not before) time: 1970-01-12T13:47:41Z",
        ),
        ("email_verified", json!(false), "oidc: email not verified"),
        (
            "email_verified",
            json!("true"),
            "oidc: parse 'email_verified' claim: json: cannot unmarshal string into Go value of type bool",
        ),
        (
            "email",
            json!(7),
            r#"oidc: parse username claims "email": json: cannot unmarshal number into Go value of type string"#,
        ),
        (
            "groups",
            json!([7]),
            r#"oidc: parse groups claim "groups": json: cannot unmarshal array into Go value of type string"#,
        ),
        ("hd", json!("x"), "oidc: required claim hd value does not match. Got = x, want = example.com"),
        ("hd", json!(1), "oidc: parse claim hd: json: cannot unmarshal number into Go value of type string"),
    ] {
        assert_eq!(s.with(name, value), refusal, "{name}");
    }
    assert_eq!(
        s.ask(&ec_key(), &claims()),
        "oidc: verify token: failed to verify signature: failed to verify id token signature"
    );
}

#[test]
fn a_token_ends_at_the_moment_that_it_names() {
    let s = setting();
    let end = jiff::Timestamp::from_second(1_000_100).unwrap();
    s.clock.set(end);
    assert!(s.ask(&s.key, &claims()).starts_with("a@example.com"));
    // Another token: what is known of the first is kept.
    s.clock.set(end + jiff::SignedDuration::from_millis(1));
    assert_eq!(
        s.with("jti", json!("2")),
        "oidc: verify token: oidc: token is expired (Token Expiry: 1970-01-12T13:48:20Z)"
    );
}

#[test]
fn rejects_distributed_group_claims() {
    let s = setting();
    let mut claims = claims();
    claims.as_object_mut().unwrap().remove("groups");
    assert!(s.ask(&s.key, &claims).starts_with("a@example.com []"));
    claims["_claim_names"] = json!({"groups": "src"});
    claims["_claim_sources"] = json!({"src": {"endpoint": "https://g"}});
    assert!(s.ask(&s.key, &claims).starts_with("oidc: could not expand distributed claims"));
}

#[test]
fn algorithms_are_what_is_configured() {
    let s = setting();
    let rule = s.oidc.rule.clone();
    let oidc = Oidc::new(rule, vec!["RS256".into()], s.provider.clone(), s.clock.clone()).unwrap();
    let refusal = now_or_never(oidc.authenticate(&sign(&s.key, &claims()).unwrap(), &[])).unwrap_err();
    let text = r#"oidc: verify token: oidc: id token signed with unsupported algorithm, expected ["RS256"] got "ES256""#;
    assert_eq!(refusal.0, text);
    assert_eq!(s.provider.asked.load(Ordering::Relaxed), 0);
}

#[test]
fn googles_issuer_has_two_names() {
    let s = setting();
    let mut rule = s.oidc.rule.clone();
    rule.issuer.url = GOOGLE.0.into();
    let oidc = Oidc::new(rule, vec![], s.provider.clone(), s.clock.clone()).unwrap();
    for (issuer, known) in [(GOOGLE.0, true), (GOOGLE.1, true), ("https://i", false)] {
        assert_eq!(oidc.issued(&Claims(json!({"iss": issuer}).as_object().unwrap().clone())), known);
    }
    assert!(!s.oidc.issued(&Claims(json!({"iss": GOOGLE.1}).as_object().unwrap().clone())));
}

#[test]
fn fetches_rotated_keys_at_bounded_rate() {
    let s = setting();
    let asked = || s.provider.asked.load(Ordering::Relaxed);
    let good = |answer: String| answer.starts_with("a@example.com");
    assert!(good(s.ask(&s.key, &claims())));
    let new = ec_key();
    *s.provider.keys.lock().unwrap() = Some(KeySet::new([new.public.clone()]));
    for _ in 0..3 {
        assert!(!good(s.ask(&new, &claims())));
    }
    assert_eq!(asked(), 2);
    s.clock.advance(jiff::SignedDuration::from_secs(PAUSE));
    assert!(good(s.ask(&new, &claims())));
    assert_eq!(asked(), 4);
}

#[test]
fn retries_unavailable_issuer() {
    let s = setting();
    let keys = s.provider.keys.lock().unwrap().take();
    let down = "oidc: verify token: failed to verify signature: fetching keys failed";
    assert_eq!(s.ask(&s.key, &claims()), down);
    *s.provider.keys.lock().unwrap() = keys;
    assert_eq!(s.ask(&s.key, &claims()), down, "not again at once");
    s.clock.advance(jiff::SignedDuration::from_secs(PAUSE));
    assert!(s.ask(&s.key, &claims()).starts_with("a@example.com"));
}

#[test]
fn maps_claims_by_expressions() {
    let s = setting();
    let rule = json!({
        "issuer": {"url": "https://i", "audiences": ["kaji"]},
        "claimMappings": {
            "username": {"expression": "claims.email_verified ? claims.email : 'unverified:' + claims.email"},
            "groups": {"expression": "claims.groups.map(g, 'x:' + g)"},
            "uid": {"expression": "claims.?uid.orValue('')"},
            "extra": [
                {"key": "example.com/host", "valueExpression": "claims.hd"},
                {"key": "example.com/none", "valueExpression": "claims.?none.orValue('')"},
            ],
        },
        "claimValidationRules": [
            {"expression": "claims.exp - claims.iat <= 3600.0", "message": "lives too long"},
            {"claim": "hd", "requiredValue": "example.com"},
        ],
        "userValidationRules": [{"expression": "!user.username.startsWith('system:')", "message": "reserved"}],
    });
    let rule: JwtAuthenticator = serde_json::from_value(rule).unwrap();
    let s = Setting { oidc: Oidc::new(rule, vec![], s.provider.clone(), s.clock.clone()).unwrap(), ..s };
    let ask = |changes: Value| {
        let mut claims = claims();
        claims["email_verified"] = true.into();
        claims["iat"] = 1_000_000.into();
        for (key, value) in changes.as_object().unwrap() {
            claims[key] = value.clone();
        }
        s.ask(&s.key, &claims)
    };
    let texts = [
        ask(json!({})),
        ask(json!({"email_verified": false, "groups": [], "hd": "example.com"})),
        ask(json!({"email": ""})),
        ask(json!({"email": 1})),
        ask(json!({"email": "system:admin"})),
        ask(json!({"groups": "devs"})),
        ask(json!({"groups": [1]})),
        ask(json!({"uid": 1})),
        ask(json!({"iat": 0})),
        ask(json!({"iat": "x"})),
        ask(json!({"hd": "example.org"})),
        ask(json!({"hd": {"a": 1}})),
    ];
    expect_test::expect![[r#"
        a@example.com ["x:devs"] {"authentication.kubernetes.io/credential-id": ["JTI=1"], "example.com/host": ["example.com"]}
        unverified:a@example.com [] {"authentication.kubernetes.io/credential-id": ["JTI=1"], "example.com/host": ["example.com"]}
        oidc: empty username via CEL expression is not allowed
        oidc: error evaluating username claim expression: username claim expression must return a string
        oidc: error evaluating user info validation rule: validation expression '!user.username.startsWith('system:')' failed: reserved
        oidc: error evaluating group claim expression: expression 'claims.groups.map(g, 'x:' + g)' resulted in error: got 'types.String', expected iterable type
        oidc: error evaluating group claim expression: expression 'claims.groups.map(g, 'x:' + g)' resulted in error: no such overload
        oidc: error evaluating uid claim expression: uid claim expression must return a string
        oidc: error evaluating claim validation expression: validation expression 'claims.exp - claims.iat <= 3600.0' failed: lives too long
        oidc: error evaluating claim validation expression: expression 'claims.exp - claims.iat <= 3600.0' resulted in error: no such overload
        oidc: required claim hd value does not match. Got = example.org, want = example.com
        oidc: error evaluating extra claim expression: claims.hd: expression must return a string or a list of strings"#]].assert_eq(&texts.join("\n"));
}

/// An issuer that takes its time: each answer is there when it is looked for the second time.
struct Slow(Arc<Provider>);

impl Fetch for Slow {
    fn get<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<Vec<u8>, String>> {
        Box::pin(async move {
            let mut looked = false;
            std::future::poll_fn(|cx| {
                cx.waker().wake_by_ref();
                if std::mem::replace(&mut looked, true) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            self.0.get(url).await
        })
    }
}

/// A caller that is cancelled while keys are fetched does not end the fetch for the others.
#[test]
fn cancelled_request_does_not_end_key_fetch() {
    let s = setting();
    let rule = s.oidc.rule.clone();
    let oidc = Oidc::new(rule, vec![], Arc::new(Slow(s.provider.clone())), s.clock.clone()).unwrap();
    let token = sign(&s.key, &claims()).unwrap();
    let mut looks = 0;
    // Each is dropped after its first look.
    while !matches!(oidc.authenticate(&token, &[]).now_or_never(), Some(Ok(Some(_)))) {
        looks += 1;
        assert!(looks < 10, "no caller ever gets an answer");
    }
    assert_eq!(s.provider.asked.load(Ordering::Relaxed), 2, "one question: its two documents");
}
