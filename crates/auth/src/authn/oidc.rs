//! Tokens of OpenID Connect issuers. Source: upstream's `plugin/pkg/authenticator/token/oidc`.
//!
//! Invariants:
//! - Keys come from the issuer over HTTPS, are kept, and are fetched again when a token names one that is not known,
//!   at most every [`PAUSE`] seconds: rotating keys invalidates no session, and no client can make the server fetch more often.
//! - A request that is cancelled does not end a fetch that others wait for.
//! - A token without an expiry counts as expired.

use super::{
    AuthenticationError, Identity, KeySet, TokenAuthenticator, Verdict,
    cache::{Cache, GOOD_FOR},
    config::{ClaimOrPrefix, ConfigError, JwtAuthenticator, JwtIssuer},
    expressions::Expressions,
    intersection,
    jwt::{Claims, Token, seconds, strings},
    serviceaccount::{CREDENTIAL_ID, list},
};
use futures_util::future::{FutureExt, Shared};
use kaji_meta::{Clock, object, text::quote};
use kaji_resource::{BoxFuture, UserInfo};
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Seconds between two questions to an issuer.
const PAUSE: i64 = 10;
/// Seconds by which a token may be early. Source: go-oidc, `nbf`.
const EARLY: i64 = 60;
/// Google's issuer, and what its tokens may call it. Source: OpenID Connect Core 1.0, GoogleIss.
const GOOGLE: (&str, &str) = ("https://accounts.google.com", "accounts.google.com");
/// The error for clients while an issuer is unavailable; the log has the details.
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
    expressions: Expressions,
    algorithms: Vec<String>,
    fetch: Arc<dyn Fetch>,
    clock: Arc<dyn Clock>,
    keys: RwLock<Option<Arc<KeySet>>>,
    fetching: Mutex<Fetching>,
    known: Cache<Identity>,
}

/// A request to the issuer. All callers that wait for its answer drive it, so that it goes on when the first is cancelled.
type Question = Shared<BoxFuture<'static, Result<Arc<KeySet>, String>>>;

#[derive(Default)]
struct Fetching {
    /// When the issuer was called last.
    last: Option<jiff::Timestamp>,
    /// What it has not answered yet.
    open: Option<Question>,
}

impl Oidc {
    /// For a rule. Without `algorithms` every asymmetric one is taken.
    ///
    /// # Errors
    /// A rule that is none.
    pub fn new(
        rule: JwtAuthenticator,
        algorithms: Vec<String>,
        fetch: Arc<dyn Fetch>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ConfigError> {
        let expressions = rule.compile()?;
        let all = || ALGORITHMS.iter().map(|a| (*a).to_owned()).collect();
        let algorithms = Some(algorithms).filter(|a| !a.is_empty()).unwrap_or_else(all);
        Ok(Oidc {
            rule,
            expressions,
            algorithms,
            fetch,
            clock,
            keys: RwLock::default(),
            fetching: Mutex::default(),
            known: Cache::new(GOOD_FOR),
        })
    }

    /// Gets the issuer's keys, so that the first token finds them.
    ///
    /// # Errors
    /// Why there are none.
    pub async fn prepare(&self) -> Result<(), String> {
        let renewed = self.renewed(None, self.clock.now()).await;
        renewed.map(drop).map_err(|_| {
            let url = quote(&self.rule.issuer.url);
            format!("oidc: authenticator for issuer {url} is not healthy: its keys cannot be got")
        })
    }

    async fn check(&self, text: &str) -> Verdict {
        let now = self.clock.now();
        if let Some(identity) = self.known.get(text, now) {
            return Ok(Some(identity));
        }
        let Some(token) = Token::parse(text).filter(|t| self.issued(&t.claims)) else { return Ok(None) };
        let bad = |why: String| AuthenticationError::new(format!("oidc: verify token: {why}"));
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

    /// The issuer's keys, fetched if they are still those that did not help and the last question was long ago.
    async fn renewed(&self, seen: Option<&Arc<KeySet>>, now: jiff::Timestamp) -> Result<Arc<KeySet>, String> {
        let question = {
            let mut fetching = self.fetching.lock().unwrap_or_else(PoisonError::into_inner);
            let current = self.current();
            if let Some(keys) = current.filter(|c| !seen.is_some_and(|s| Arc::ptr_eq(s, c))) {
                return Ok(keys);
            }
            let recently = fetching.last.is_some_and(|t| now.as_second() - t.as_second() < PAUSE);
            match &fetching.open {
                Some(open) if recently => open.clone(),
                None if recently => return seen.cloned().ok_or_else(|| NO_KEYS.to_owned()),
                _ => {
                    fetching.last = Some(now);
                    let question = fetch_keys(self.rule.issuer.clone(), self.fetch.clone());
                    let question = async move { question.await.map(Arc::new) }.boxed().shared();
                    fetching.open.insert(question).clone()
                }
            }
        };
        let answer = question.clone().await;
        self.answered(&question, &answer);
        answer.map_err(|_| NO_KEYS.to_owned())
    }

    /// The first caller that gets an answer stores it for all.
    fn answered(&self, question: &Question, answer: &Result<Arc<KeySet>, String>) {
        let mut fetching = self.fetching.lock().unwrap_or_else(PoisonError::into_inner);
        if !fetching.open.as_ref().is_some_and(|open| open.ptr_eq(question)) {
            return;
        }
        fetching.open = None;
        match answer {
            Ok(keys) => {
                *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Some(keys.clone());
            }
            Err(why) => tracing::warn!(issuer = %self.rule.issuer.url, %why, "cannot get an issuer's keys"),
        }
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
        // The second of its end has begun: a part of it is too late, as for Go.
        if (now.as_second(), now.subsec_nanosecond()) > (until, 0) {
            return Err(format!("oidc: token is expired (Token Expiry: {})", date(until)));
        }
        if let Some(from) = from.filter(|t| now.as_second().saturating_add(EARLY) < *t) {
            let (now, from) = (date(now.as_second()), date(from));
            return Err(format!("oidc: current time {now} before the nbf (not before) time: {from}"));
        }
        Ok(())
    }

    /// The user that verified claims name.
    fn user(&self, claims: &Claims) -> Result<UserInfo, AuthenticationError> {
        let expressions = &self.expressions;
        let json = Value::Object(claims.0.clone());
        let name = match expressions.username(&json)? {
            Some(name) => name,
            None => self.name(claims)?,
        };
        let groups = match expressions.groups(&json)? {
            Some(groups) => groups,
            None => self.groups(claims)?,
        };
        let uid = match (expressions.uid(&json)?, self.rule.claim_mappings.uid.claim.as_str()) {
            (Some(uid), _) => uid,
            (None, "") => String::new(),
            (None, claim) => wanted(claims, claim, "uid claim")?,
        };
        let mut user = UserInfo { name, uid, groups, ..UserInfo::default() };
        let id = claims.text("jti");
        if !id.is_empty() {
            user.extra.insert(CREDENTIAL_ID.into(), vec![format!("JTI={id}")]);
        }
        expressions.extend(&mut user, &json)?;
        self.required(claims)?;
        expressions.check_claims(&json)?;
        expressions.check_user(&user)?;
        Ok(user)
    }

    /// The name that a claim holds.
    fn name(&self, claims: &Claims) -> Result<String, AuthenticationError> {
        let mapping = &self.rule.claim_mappings.username;
        let name = wanted(claims, &mapping.claim, "username claims")?;
        if mapping.claim == "email" {
            match claims.0.get("email_verified") {
                None | Some(Value::Bool(true)) => {}
                Some(Value::Bool(false) | Value::Null) => {
                    return Err(AuthenticationError::new("oidc: email not verified"));
                }
                Some(other) => {
                    let why = mismatch(other, "bool");
                    return Err(AuthenticationError::new(format!(
                        "oidc: parse 'email_verified' claim: {why}"
                    )));
                }
            }
        }
        Ok(prefixed(mapping, &name))
    }

    fn groups(&self, claims: &Claims) -> Result<Vec<String>, AuthenticationError> {
        let mapping = &self.rule.claim_mappings.groups;
        let value = claims.0.get(&mapping.claim).filter(|_| !mapping.claim.is_empty());
        let odd = match value {
            // A user without the groups that the issuer meant could do what a deny rule forbids.
            None if is_distributed(claims, &mapping.claim) => {
                let text =
                    "oidc: could not expand distributed claims: they are not supported by this server yet";
                return Err(AuthenticationError::new(text));
            }
            None | Some(Value::Null) => return Ok(vec![]),
            Some(Value::Array(many)) => many.iter().find(|g| !g.is_string()).and(value),
            Some(one) => Some(one).filter(|g| !g.is_string()),
        };
        match odd {
            Some(odd) => {
                let (claim, why) = (quote(&mapping.claim), mismatch(odd, "string"));
                Err(AuthenticationError::new(format!("oidc: parse groups claim {claim}: {why}")))
            }
            None => Ok(strings(value).iter().map(|g| prefixed(mapping, g)).collect()),
        }
    }

    /// Claims that must be there with a value.
    fn required(&self, claims: &Claims) -> Result<(), AuthenticationError> {
        for rule in self.rule.claim_validation_rules.iter().filter(|r| r.expression.is_empty()) {
            let (claim, want) = (&rule.claim, &rule.required_value);
            if !claims.0.contains_key(claim) {
                return Err(AuthenticationError::new(format!(
                    "oidc: required claim {claim} not present in ID token"
                )));
            }
            let got = text(claims, claim)
                .map_err(|why| AuthenticationError::new(format!("oidc: parse claim {claim}: {why}")))?;
            if got != *want {
                return Err(AuthenticationError::new(format!(
                    "oidc: required claim {claim} value does not match. Got = {got}, want = {want}"
                )));
            }
        }
        Ok(())
    }
}

/// Whether a claim is a distributed one (OpenID Connect Core 1.0, 5.6.2).
fn is_distributed(claims: &Claims, claim: &str) -> bool {
    let at = |name: &str, key: &str| claims.0.get(name)?.get(key);
    let source = at("_claim_names", claim).and_then(Value::as_str);
    source.and_then(|s| at("_claim_sources", s)?.get("endpoint")).is_some_and(|e| e != "")
}

fn prefixed(of: &ClaimOrPrefix, value: &str) -> String {
    format!("{}{value}", of.prefix.as_deref().unwrap_or_default())
}

/// A claim that has to be a text.
fn wanted(claims: &Claims, claim: &str, what: &str) -> Result<String, AuthenticationError> {
    text(claims, claim)
        .map_err(|why| AuthenticationError::new(format!("oidc: parse {what} {}: {why}", quote(claim))))
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
    let found = object::json_type(value);
    format!("json: cannot unmarshal {found} into Go value of type {wanted}")
}

impl TokenAuthenticator for Oidc {
    fn authenticate<'a>(&'a self, token: &'a str, _: &'a [String]) -> BoxFuture<'a, Verdict> {
        Box::pin(self.check(token))
    }
}

/// The issuer's keys, by its discovery document.
async fn fetch_keys(issuer: JwtIssuer, fetch: Arc<dyn Fetch>) -> Result<KeySet, String> {
    let default = || format!("{}/.well-known/openid-configuration", issuer.url.trim_end_matches('/'));
    let discovery = issuer.discovery_url.clone().unwrap_or_else(default);
    let parse = |bytes: Vec<u8>| serde_json::from_slice::<Value>(&bytes).map_err(|e| e.to_string());
    let document = parse(fetch.get(&discovery).await?)?;
    let text = |key: &str| document.get(key).and_then(Value::as_str).unwrap_or_default();
    if text("issuer") != issuer.url {
        return Err(format!("expected issuer {:?}, got {:?}", issuer.url, text("issuer")));
    }
    let keys_at = text("jwks_uri");
    if !keys_at.starts_with("https://") {
        return Err("the provider names no jwks_uri over https".into());
    }
    let keys = KeySet::from_jwks(&parse(fetch.get(keys_at).await?)?);
    if keys.is_empty() { Err("the provider has no usable keys".into()) } else { Ok(keys) }
}

#[cfg(test)]
mod tests;
