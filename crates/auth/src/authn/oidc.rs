//! Tokens of OpenID Connect issuers. Source: upstream's `plugin/pkg/authenticator/token/oidc`.
//!
//! Invariants:
//! - Keys come from the issuer over HTTPS, are kept, and are asked for again when a token names one that is not known,
//!   at most every [`PAUSE`] seconds: rotating keys logs nobody out, and nobody can make the server ask more often.
//! - A token without an expiry counts as expired.

use super::{
    Identity, KeySet, Refusal, TokenAuthenticator, Verdict,
    cache::{Cache, GOOD_FOR},
    config::{ClaimOrPrefix, JwtAuthenticator},
    intersection,
    jwt::{Claims, Token, seconds, strings},
    serviceaccount::{CREDENTIAL_ID, list},
};
use futures_util::lock::Mutex;
use kaji_meta::{Clock, text::quote};
use kaji_resource::{BoxFuture, UserInfo};
use serde_json::Value;
use std::sync::{Arc, PoisonError, RwLock};

/// Seconds between two questions to an issuer.
const PAUSE: i64 = 10;
/// Seconds by which a token may be early. Source: go-oidc, `nbf`.
const EARLY: i64 = 60;
/// Google's issuer, and what its tokens may call it. Source: OpenID Connect Core 1.0, GoogleIss.
const GOOGLE: (&str, &str) = ("https://accounts.google.com", "accounts.google.com");
/// What a client is told of an issuer that is down; the log says more.
const NO_KEYS: &str = "failed to verify signature: fetching keys failed";
/// What an issuer may sign with, unless flags say otherwise.
const ALGORITHMS: [&str; 9] =
    ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512"];

/// Gets documents of an issuer.
pub trait Fetch: Send + Sync + 'static {
    /// The body of a successful answer, at most some MiB; `Err` says what went wrong.
    fn get<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<Vec<u8>, String>>;
}

/// Knows the tokens of one issuer.
pub struct Oidc {
    rule: JwtAuthenticator,
    algorithms: Vec<String>,
    fetch: Arc<dyn Fetch>,
    clock: Arc<dyn Clock>,
    keys: RwLock<Option<Arc<KeySet>>>,
    /// When the issuer was asked last; held while it is.
    asked: Mutex<Option<jiff::Timestamp>>,
    known: Cache<Identity>,
}

impl Oidc {
    /// For a validated rule. Without `algorithms` every asymmetric one is taken.
    pub fn new(
        rule: JwtAuthenticator,
        algorithms: Vec<String>,
        fetch: Arc<dyn Fetch>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let all = || ALGORITHMS.iter().map(|a| (*a).to_owned()).collect();
        let algorithms = Some(algorithms).filter(|a| !a.is_empty()).unwrap_or_else(all);
        Oidc {
            rule,
            algorithms,
            fetch,
            clock,
            keys: RwLock::default(),
            asked: Mutex::default(),
            known: Cache::new(GOOD_FOR),
        }
    }

    async fn check(&self, text: &str) -> Verdict {
        let now = self.clock.now();
        if let Some(identity) = self.known.get(text, now) {
            return Ok(Some(identity));
        }
        let Some(token) = Token::parse(text).filter(|t| self.issued(&t.claims)) else { return Ok(None) };
        let bad = |why: String| Refusal::new(format!("oidc: verify token: {why}"));
        self.check_signature(&token, now).await.map_err(bad)?;
        self.check_claims(&token.claims, now).map_err(bad)?;
        let user = self.user(&token.claims)?;
        let identity = Identity { user, ..Identity::default() };
        self.known.put(text, identity.clone(), now);
        Ok(Some(identity))
    }

    fn issued(&self, claims: &Claims) -> bool {
        let (issuer, ours) = (claims.text("iss"), self.rule.issuer.url.as_str());
        issuer == ours || (ours, issuer) == GOOGLE
    }

    async fn check_signature(&self, token: &Token<'_>, now: jiff::Timestamp) -> Result<(), String> {
        if !self.algorithms.contains(&token.algorithm) {
            return Err(format!(
                "oidc: id token signed with unsupported algorithm, expected {} got {}",
                list(&self.algorithms),
                quote(&token.algorithm)
            ));
        }
        let signed = |keys: &KeySet| token.verify(keys.candidates(&token.key_id));
        let before = self.current();
        if before.as_deref().is_some_and(signed) {
            return Ok(());
        }
        let after = self.renewed(before.as_ref(), now).await?;
        if signed(&after) {
            Ok(())
        } else {
            Err("failed to verify signature: failed to verify id token signature".into())
        }
    }

    fn current(&self) -> Option<Arc<KeySet>> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The issuer's keys, asked for if they are still those that did not help and the last question was long ago.
    async fn renewed(&self, seen: Option<&Arc<KeySet>>, now: jiff::Timestamp) -> Result<Arc<KeySet>, String> {
        let mut asked = self.asked.lock().await;
        let current = self.current();
        if let Some(keys) = current.filter(|c| !seen.is_some_and(|s| Arc::ptr_eq(s, c))) {
            return Ok(keys);
        }
        if asked.is_some_and(|t| now.as_second() - t.as_second() < PAUSE) {
            return seen.cloned().ok_or_else(|| NO_KEYS.to_owned());
        }
        *asked = Some(now);
        let fetched = self.ask().await.map_err(|why| {
            tracing::warn!(issuer = %self.rule.issuer.url, %why, "cannot get an issuer's keys");
            NO_KEYS.to_owned()
        })?;
        let keys = Arc::new(fetched);
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Some(keys.clone());
        Ok(keys)
    }

    async fn ask(&self) -> Result<KeySet, String> {
        let issuer = &self.rule.issuer;
        let default = || format!("{}/.well-known/openid-configuration", issuer.url.trim_end_matches('/'));
        let discovery = issuer.discovery_url.clone().unwrap_or_else(default);
        let parse = |bytes: Vec<u8>| serde_json::from_slice::<Value>(&bytes).map_err(|e| e.to_string());
        let document = parse(self.fetch.get(&discovery).await?)?;
        let text = |key: &str| document.get(key).and_then(Value::as_str).unwrap_or_default();
        if text("issuer") != issuer.url {
            return Err(format!("expected issuer {:?}, got {:?}", issuer.url, text("issuer")));
        }
        let keys_at = text("jwks_uri");
        if !keys_at.starts_with("https://") {
            return Err("the provider names no jwks_uri over https".into());
        }
        let keys = KeySet::from_jwks(&parse(self.fetch.get(keys_at).await?)?);
        if keys.is_empty() { Err("the provider has no usable keys".into()) } else { Ok(keys) }
    }

    fn check_claims(&self, claims: &Claims, now: jiff::Timestamp) -> Result<(), String> {
        let (given, wanted) = (claims.audiences(), &self.rule.issuer.audiences);
        if intersection(&given, wanted).is_empty() {
            let expected = match wanted.as_slice() {
                [one] => quote(one),
                many => format!("in {}", list(many)),
            };
            return Err(format!("oidc: expected audience {expected} got {}", list(&given)));
        }
        let time = |name: &str| match claims.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                seconds(value).map(Some).map_err(|_| format!("oidc: malformed jwt: {name} is no number"))
            }
        };
        let date = |t: i64| jiff::Timestamp::from_second(t).map_or_else(|_| t.to_string(), |t| t.to_string());
        let (until, from) = (time("exp")?.unwrap_or_default(), time("nbf")?);
        if until < now.as_second() {
            return Err(format!("oidc: token is expired (Token Expiry: {})", date(until)));
        }
        if let Some(from) = from.filter(|t| now.as_second().saturating_add(EARLY) < *t) {
            let (now, from) = (date(now.as_second()), date(from));
            return Err(format!("oidc: current time {now} before the nbf (not before) time: {from}"));
        }
        Ok(())
    }

    /// Who the claims say, once they are verified.
    fn user(&self, claims: &Claims) -> Result<UserInfo, Refusal> {
        let mappings = &self.rule.claim_mappings;
        let text = |claim: &str, what: &str| {
            text(claims, claim)
                .map_err(|why| Refusal::new(format!("oidc: parse {what} {}: {why}", quote(claim))))
        };
        let name = text(&mappings.username.claim, "username claims")?;
        if mappings.username.claim == "email" {
            match claims.0.get("email_verified") {
                None | Some(Value::Bool(true)) => {}
                Some(Value::Bool(false) | Value::Null) => {
                    return Err(Refusal::new("oidc: email not verified"));
                }
                Some(other) => {
                    let why = mismatch(other, "bool");
                    return Err(Refusal::new(format!("oidc: parse 'email_verified' claim: {why}")));
                }
            }
        }
        let groups = self.groups(claims)?;
        let uid = match mappings.uid.claim.as_str() {
            "" => String::new(),
            claim => text(claim, "uid claim")?,
        };
        let mut user =
            UserInfo { name: prefixed(&mappings.username, &name), uid, groups, ..UserInfo::default() };
        let id = claims.text("jti");
        if !id.is_empty() {
            user.extra.insert(CREDENTIAL_ID.into(), vec![format!("JTI={id}")]);
        }
        self.required(claims)?;
        Ok(user)
    }

    fn groups(&self, claims: &Claims) -> Result<Vec<String>, Refusal> {
        let mapping = &self.rule.claim_mappings.groups;
        let value = claims.0.get(&mapping.claim).filter(|_| !mapping.claim.is_empty());
        let odd = match value {
            // A user without the groups that the issuer meant could do what a deny rule forbids.
            None if elsewhere(claims, &mapping.claim) => {
                let text =
                    "oidc: could not expand distributed claims: they are not supported by this server yet";
                return Err(Refusal::new(text));
            }
            None | Some(Value::Null) => return Ok(vec![]),
            Some(Value::Array(many)) => many.iter().find(|g| !g.is_string()).and(value),
            Some(one) => Some(one).filter(|g| !g.is_string()),
        };
        match odd {
            Some(odd) => {
                let (claim, why) = (quote(&mapping.claim), mismatch(odd, "string"));
                Err(Refusal::new(format!("oidc: parse groups claim {claim}: {why}")))
            }
            None => Ok(strings(value).iter().map(|g| prefixed(mapping, g)).collect()),
        }
    }

    /// Claims that must be there with a value.
    fn required(&self, claims: &Claims) -> Result<(), Refusal> {
        for rule in &self.rule.claim_validation_rules {
            let (claim, want) = (&rule.claim, &rule.required_value);
            if !claims.0.contains_key(claim) {
                return Err(Refusal::new(format!("oidc: required claim {claim} not present in ID token")));
            }
            let got = text(claims, claim)
                .map_err(|why| Refusal::new(format!("oidc: parse claim {claim}: {why}")))?;
            if got != *want {
                return Err(Refusal::new(format!(
                    "oidc: required claim {claim} value does not match. Got = {got}, want = {want}"
                )));
            }
        }
        Ok(())
    }
}

/// Whether a claim is to be asked for elsewhere (OpenID Connect Core 1.0, 5.6.2).
fn elsewhere(claims: &Claims, claim: &str) -> bool {
    let at = |name: &str, key: &str| claims.0.get(name)?.get(key);
    let source = at("_claim_names", claim).and_then(Value::as_str);
    source.and_then(|s| at("_claim_sources", s)?.get("endpoint")).is_some_and(|e| e != "")
}

fn prefixed(of: &ClaimOrPrefix, value: &str) -> String {
    format!("{}{value}", of.prefix.as_deref().unwrap_or_default())
}

/// A claim that is a text, or what is wrong with it, in the words of Go's decoder.
fn text(claims: &Claims, claim: &str) -> Result<String, String> {
    match claims.0.get(claim) {
        Some(Value::String(text)) => Ok(text.clone()),
        // As Go decodes it.
        Some(Value::Null) => Ok(String::new()),
        Some(other) => Err(mismatch(other, "string")),
        None => Err("claim not present".into()),
    }
}

fn mismatch(value: &Value, wanted: &str) -> String {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    format!("json: cannot unmarshal {found} into Go value of type {wanted}")
}

impl TokenAuthenticator for Oidc {
    fn authenticate<'a>(&'a self, token: &'a str, _: &'a [String]) -> BoxFuture<'a, Verdict> {
        Box::pin(self.check(token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::{
        IssuerDocuments, SigningKey,
        config::OidcFlags,
        jwt::sign,
        testing::{ec_key, now_or_never},
    };
    use kaji_meta::ManualClock;
    use serde_json::json;
    use std::sync::{
        Mutex as Lock,
        atomic::{AtomicUsize, Ordering},
    };

    /// An issuer whose keys can be replaced; `None` for one that is down.
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
        let oidc = Oidc::new(rule, vec![], provider.clone(), clock.clone());
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
                Ok(None) => "nobody".into(),
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
    fn claims_make_a_user() {
        let s = setting();
        let alice =
            r#"a@example.com ["oidc:devs"] {"authentication.kubernetes.io/credential-id": ["JTI=1"]}"#;
        assert_eq!(s.ask(&s.key, &claims()), alice);
        assert_eq!(s.with("groups", json!("devs")), alice);
        assert_eq!(s.with("aud", json!(["x", "kaji"])), alice);
        assert_eq!(s.with("email_verified", json!(true)), alice);
        assert_eq!(s.provider.asked.load(Ordering::Relaxed), 2);
        for (name, value, refusal) in [
            ("iss", json!("https://j"), "nobody"),
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
            (
                "hd",
                json!(1),
                "oidc: parse claim hd: json: cannot unmarshal number into Go value of type string",
            ),
        ] {
            assert_eq!(s.with(name, value), refusal, "{name}");
        }
        assert_eq!(
            s.ask(&ec_key(), &claims()),
            "oidc: verify token: failed to verify signature: failed to verify id token signature"
        );
    }

    #[test]
    fn groups_that_are_elsewhere_are_missed() {
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
        let oidc = Oidc::new(rule, vec!["RS256".into()], s.provider.clone(), s.clock.clone());
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
        let oidc = Oidc::new(rule, vec![], s.provider.clone(), s.clock.clone());
        for (issuer, known) in [(GOOGLE.0, true), (GOOGLE.1, true), ("https://i", false)] {
            assert_eq!(oidc.issued(&Claims(json!({"iss": issuer}).as_object().unwrap().clone())), known);
        }
        assert!(!s.oidc.issued(&Claims(json!({"iss": GOOGLE.1}).as_object().unwrap().clone())));
    }

    #[test]
    fn keys_rotate_and_questions_are_rare() {
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
    fn an_issuer_that_is_down_is_asked_again() {
        let s = setting();
        let keys = s.provider.keys.lock().unwrap().take();
        let down = "oidc: verify token: failed to verify signature: fetching keys failed";
        assert_eq!(s.ask(&s.key, &claims()), down);
        *s.provider.keys.lock().unwrap() = keys;
        assert_eq!(s.ask(&s.key, &claims()), down, "not again at once");
        s.clock.advance(jiff::SignedDuration::from_secs(PAUSE));
        assert!(s.ask(&s.key, &claims()).starts_with("a@example.com"));
    }
}
