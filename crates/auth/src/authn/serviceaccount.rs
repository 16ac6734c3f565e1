//! Tokens of service accounts, issued by TokenRequest: claims and their validation.
//!
//! Invariants:
//! - A signature is verified once in a while; that the account and the object a token is bound to still exist, with
//!   the same uid, is checked on every use. A token ends with either, at the latest a minute after its deletion was due.
//! - Claims and texts are upstream's (`pkg/serviceaccount`).

use super::{
    AuthenticationError, Identity, KeySet, SigningKey, TokenAuthenticator, Verdict,
    cache::{Cache, GOOD_FOR},
    intersection,
    jwt::{self, Claims, Token, Untimely},
    keys::KeyError,
};
use crate::names::{SERVICE_ACCOUNT_PREFIX, SERVICE_ACCOUNTS};
use kaji_meta::{Clock, GroupResource, Random, Status, object, random, text::quote};
use kaji_resource::{Api, BoxFuture, UserInfo};
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

/// The lifetime that kubelets ask for, in seconds; tokens with it outlive it, for clients that do not reload theirs.
const EXTENDED_WHEN: i64 = 60 * 60 + 7;
/// How long those live, in seconds: a year.
const EXTENDED_TO: i64 = 365 * 24 * 60 * 60;
/// Where the credential's id is in a user's attributes (KEP-4193).
pub(crate) const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The object that a token is bound to: the token is valid until the object is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoundTo {
    /// `Pod`, `Secret` or `Node`.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
}

/// What a service account's token shall say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenOrder {
    /// Namespace of the service account.
    pub namespace: String,
    /// Name of the service account.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Audiences; empty for the API server's own.
    pub audiences: Vec<String>,
    /// Lifetime in seconds.
    pub expiration_seconds: i64,
    /// What the token is bound to.
    pub bound: Option<BoundTo>,
    /// The bound pod's node: name and uid (empty when there is no such node).
    pub node: Option<(String, String)>,
}

/// A signed token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedToken {
    /// The JWT.
    pub token: String,
    /// The expiry that its owner gets.
    pub expires: jiff::Timestamp,
    /// The lifetime granted, in seconds.
    pub expiration_seconds: i64,
    /// The audiences it is good for.
    pub audiences: Vec<String>,
}

/// Signs tokens.
pub struct Issuer {
    /// `iss`
    pub name: String,
    /// The key.
    pub key: Arc<SigningKey>,
    /// The API server's own audiences.
    pub audiences: Vec<String>,
    /// Whether kubelets' tokens outlive what they say (`--service-account-extend-token-expiration`).
    pub extend: bool,
    /// The longest lifetime, in seconds.
    pub longest: Option<i64>,
    /// For `jti`.
    pub random: Arc<dyn Random>,
}

impl Issuer {
    /// Signs a token.
    pub fn issue(&self, order: &TokenOrder, now: jiff::Timestamp) -> Result<IssuedToken, KeyError> {
        let audiences = if order.audiences.is_empty() { &self.audiences } else { &order.audiences };
        let granted = order.expiration_seconds.min(self.longest.unwrap_or(i64::MAX));
        let for_pod = order.bound.as_ref().is_some_and(|b| b.kind == "Pod");
        let own = audiences.iter().all(|a| self.audiences.contains(a));
        let extended = self.extend && for_pod && own && granted == EXTENDED_WHEN;
        let second = now.as_second();
        let mut private = json!({
            "namespace": order.namespace,
            "serviceaccount": {"name": order.name, "uid": order.uid},
        });
        if let Some(bound) = &order.bound {
            private[bound.kind.to_lowercase()] = json!({"name": bound.name, "uid": bound.uid});
        }
        if let Some((name, uid)) = order.node.as_ref().filter(|_| for_pod) {
            let mut node = json!({"name": name});
            if !uid.is_empty() {
                node["uid"] = uid.as_str().into();
            }
            private["node"] = node;
        }
        if extended {
            private["warnafter"] = second.saturating_add(granted).into();
        }
        let claims = json!({
            "iss": self.name,
            "sub": user_name(&order.namespace, &order.name),
            "aud": audiences,
            "iat": second,
            "nbf": second,
            "exp": second.saturating_add(if extended { EXTENDED_TO } else { granted }),
            "jti": random::uid(&*self.random),
            "kubernetes.io": private,
        });
        Ok(IssuedToken {
            token: jwt::sign(&self.key, &claims)?,
            expires: now
                .saturating_add(jiff::SignedDuration::from_secs(granted))
                .unwrap_or(jiff::Timestamp::MAX),
            expiration_seconds: granted,
            audiences: audiences.clone(),
        })
    }
}

/// `system:serviceaccount:NAMESPACE:NAME`
pub(crate) fn user_name(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}")
}

/// The user that a service account is.
pub(crate) fn user(namespace: &str, name: &str, uid: &str) -> UserInfo {
    UserInfo {
        name: user_name(namespace, name),
        uid: uid.to_owned(),
        groups: vec![SERVICE_ACCOUNTS.into(), format!("{SERVICE_ACCOUNTS}:{namespace}")],
        extra: BTreeMap::new(),
    }
}

/// Tokens of some issuers, with signatures that verify.
pub(crate) struct Signed {
    issuers: Vec<String>,
    keys: KeySet,
    verified: Cache<Arc<Claims>>,
}

impl Signed {
    pub(crate) fn new(issuers: Vec<String>, keys: KeySet) -> Self {
        Signed { issuers, keys, verified: Cache::new(GOOD_FOR) }
    }

    /// The claims of a token of one of the issuers; `None` for all others.
    pub(crate) fn claims(
        &self,
        text: &str,
        now: jiff::Timestamp,
    ) -> Result<Option<Arc<Claims>>, AuthenticationError> {
        if let Some(known) = self.verified.get(text, now) {
            return Ok(Some(known));
        }
        let Some(token) = Token::parse(text) else { return Ok(None) };
        if !self.issuers.iter().any(|i| i == token.claims.text("iss")) {
            return Ok(None);
        }
        if self.keys.candidates(&token.key_id).next().is_none() {
            return Err(AuthenticationError::new("invalid signature, no keys found"));
        }
        if !token.verify(self.keys.candidates(&token.key_id)) {
            return Err(AuthenticationError::new("invalid signature"));
        }
        let claims = Arc::new(token.claims);
        self.verified.put(text, claims.clone(), now);
        Ok(Some(claims))
    }
}

/// The cluster's objects, as far as tokens refer to them.
#[derive(Clone)]
pub(crate) struct Objects(pub(crate) Weak<dyn Api>);

impl Objects {
    /// An object that may have been made or removed a moment ago, also by another server.
    ///
    /// # Errors
    /// Whether it is there cannot be read.
    pub(crate) async fn get(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Value>>, AuthenticationError> {
        let Some(api) = self.0.upgrade() else { return Ok(None) };
        let read = async {
            let resource = GroupResource::new("", resource);
            if api.lags() {
                api.sync().await?;
            }
            // A cache that lacks a change may show what is gone.
            let cached = api.readable(&resource).ok().and_then(|()| api.get(&resource, namespace, name));
            if cached.is_some() {
                return Ok(cached);
            }
            api.sync().await?;
            api.get_or_read(&resource, namespace, name).await
        };
        read.await.map_err(|status: Status| AuthenticationError::new(status.message))
    }
}

/// Knows the tokens that [`Issuer`] signs.
pub struct ServiceAccountTokens {
    signed: Signed,
    audiences: Vec<String>,
    objects: Objects,
    clock: Arc<dyn Clock>,
}

impl ServiceAccountTokens {
    /// For tokens of these issuers and keys; the first issuer signs, the others are being rotated out. `audiences` are
    /// the API server's own.
    pub fn new(
        issuers: Vec<String>,
        keys: KeySet,
        audiences: Vec<String>,
        api: Weak<dyn Api>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        ServiceAccountTokens { signed: Signed::new(issuers, keys), audiences, objects: Objects(api), clock }
    }

    async fn check(&self, text: &str, wanted: &[String]) -> Verdict {
        let now = self.clock.now();
        let Some(claims) = self.signed.claims(text, now)? else { return Ok(None) };
        let mut given = claims.audiences();
        if given.is_empty() {
            given = self.audiences.clone();
        }
        let audiences = intersection(&given, wanted);
        if audiences.is_empty() {
            return Err(AuthenticationError::new(format!(
                "token audiences {} is invalid for the target audiences {}",
                list(&given),
                list(wanted)
            )));
        }
        claims.check_times(now).map_err(|why| AuthenticationError::new(untimely(why)))?;
        let user = self.alive(&claims, now).await?;
        Ok(Some(Identity { user, audiences, warnings: vec![] }))
    }

    /// Whether what the token refers to is still there; the user if so.
    async fn alive(&self, claims: &Claims, now: jiff::Timestamp) -> Result<UserInfo, AuthenticationError> {
        let none = Map::new();
        let private = claims.0.get("kubernetes.io").and_then(Value::as_object).unwrap_or(&none);
        let reference = |key: &str| private.get(key).filter(|v| v.is_object());
        let namespace = private.get("namespace").and_then(Value::as_str).unwrap_or_default();
        let (name, uid) = name_and_uid(reference("serviceaccount"));
        let Some(account) = self.objects.get("serviceaccounts", namespace, name).await? else {
            return Err(AuthenticationError::new(format!("serviceaccounts {} not found", quote(name))));
        };
        let actual = object::uid(&account);
        if actual != uid {
            let text = format!("service account UID ({actual}) does not match claim ({uid})");
            return Err(AuthenticationError::new(text));
        }
        if long_deleted(&account, now) {
            return Err(AuthenticationError::new(format!(
                "service account {namespace}/{name} has been deleted"
            )));
        }
        let mut user = user(namespace, name, uid);
        let mut extra = |key: &str, value: &str| {
            if !value.is_empty() {
                user.extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_owned()]);
            }
        };
        if let Some(secret) = reference("secret") {
            self.bound("secrets", namespace, secret, now).await?;
        }
        if let Some(pod) = reference("pod") {
            self.bound("pods", namespace, pod, now).await?;
            let (name, uid) = name_and_uid(Some(pod));
            extra("pod-name", name);
            extra("pod-uid", uid);
        }
        if let Some(node) = reference("node") {
            // A pod's token says where the pod is; only without one is the node what it is bound to.
            if reference("pod").is_none() {
                self.bound("nodes", "", node, now).await?;
            }
            let (name, uid) = name_and_uid(Some(node));
            extra("node-name", name);
            extra("node-uid", uid);
        }
        stale(claims, private, now);
        let id = claims.text("jti");
        if !id.is_empty() {
            user.extra.insert(CREDENTIAL_ID.into(), vec![format!("JTI={id}")]);
        }
        Ok(user)
    }

    async fn bound(
        &self,
        resource: &str,
        namespace: &str,
        reference: &Value,
        now: jiff::Timestamp,
    ) -> Result<(), AuthenticationError> {
        let (name, uid) = name_and_uid(Some(reference));
        let gone = || AuthenticationError::new("service account token has been invalidated");
        let found = self.objects.get(resource, namespace, name).await?.ok_or_else(gone)?;
        let actual = object::uid(&found);
        if actual != uid {
            let (title, kind) = match resource {
                "secrets" => ("secret", "secret"),
                "pods" => ("pod", "pod"),
                _ => ("node", "node"),
            };
            return Err(AuthenticationError::new(format!(
                "{title} UID ({actual}) does not match service account {kind} ref claim ({uid})"
            )));
        }
        if long_deleted(&found, now) { Err(gone()) } else { Ok(()) }
    }
}

impl TokenAuthenticator for ServiceAccountTokens {
    fn authenticate<'a>(&'a self, token: &'a str, audiences: &'a [String]) -> BoxFuture<'a, Verdict> {
        Box::pin(self.check(token, audiences))
    }
}

fn untimely(why: Untimely) -> &'static str {
    match why {
        Untimely::Expired => "service account token has expired",
        Untimely::NotYet => "service account token is not valid yet",
        Untimely::FromTheFuture => "service account token is issued in the future",
        Untimely::Malformed => {
            "service account token claims could not be validated due to unexpected validation error"
        }
    }
}

/// Logs the account that still uses a token beyond the lifetime that was requested, because it was extended.
fn stale(claims: &Claims, private: &Map<String, Value>, now: jiff::Timestamp) {
    let after = private.get("warnafter").and_then(|v| jwt::seconds(v).ok()).filter(|t| *t != 0);
    if let Some(after) = after.filter(|t| now.as_second() > *t) {
        let seconds = now.as_second() - after;
        tracing::info!(subject = claims.text("sub"), seconds, "a token is used past its warning threshold");
    }
}

fn name_and_uid(reference: Option<&Value>) -> (&str, &str) {
    let text = |key: &str| reference.and_then(|r| r.get(key)).and_then(Value::as_str).unwrap_or_default();
    (text("name"), text("uid"))
}

/// Whether an object's deletion was due longer ago than clocks may be apart.
fn long_deleted(object: &Value, now: jiff::Timestamp) -> bool {
    object::deletion_timestamp(object).is_some_and(|t| {
        t.parse().is_ok_and(|t: jiff::Timestamp| t.as_second() < now.as_second() - jwt::LEEWAY)
    })
}

/// A list as Go's `%q` prints it.
pub(crate) fn list(texts: &[String]) -> String {
    format!("[{}]", texts.iter().map(|t| quote(t)).collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests;
