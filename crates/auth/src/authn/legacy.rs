//! Tokens of service accounts that live in secrets of type `kubernetes.io/service-account-token` and never expire.
//!
//! Invariant: such a token is good only while its secret holds exactly it. Source: upstream's `pkg/serviceaccount/legacy.go`.

use super::{
    AuthenticationError, Identity, KeyError, KeySet, SigningKey, TokenAuthenticator, Verdict, intersection,
    jwt,
    jwt::Claims,
    serviceaccount::{Objects, Signed, list, user, user_name},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kaji_meta::{Clock, GroupResource, object, text::quote};
use kaji_resource::{Api, BoxFuture, FieldManagement, UpdateOptions};
use serde_json::{Value, json};
use std::sync::{Arc, Weak};

/// `iss` of these tokens.
const ISSUER: &str = "kubernetes/serviceaccount";
const CLAIM: &str = "kubernetes.io/serviceaccount/";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

/// The secret that a token is for, and its account.
#[derive(Clone, Copy, Debug)]
pub struct SecretToken<'a> {
    /// Namespace of both.
    pub namespace: &'a str,
    /// Name of the service account.
    pub account: &'a str,
    /// Its uid.
    pub account_uid: &'a str,
    /// Name of the secret.
    pub secret: &'a str,
}

/// Signs a token for a secret.
pub fn legacy_token(key: &SigningKey, token: &SecretToken<'_>) -> Result<String, KeyError> {
    let mut claims = json!({"iss": ISSUER, "sub": user_name(token.namespace, token.account)});
    for (name, value) in [
        ("namespace", token.namespace),
        ("secret.name", token.secret),
        ("service-account.name", token.account),
        ("service-account.uid", token.account_uid),
    ] {
        claims[format!("{CLAIM}{name}")] = value.into();
    }
    jwt::sign(key, &claims)
}

/// Knows these tokens.
pub struct LegacyTokens {
    signed: Signed,
    audiences: Vec<String>,
    objects: Objects,
    clock: Arc<dyn Clock>,
    lookup: bool,
}

impl LegacyTokens {
    /// For tokens of these keys. `audiences` are the API server's own: such tokens are good for nothing else.
    pub fn new(keys: KeySet, audiences: Vec<String>, api: Weak<dyn Api>, clock: Arc<dyn Clock>) -> Self {
        let signed = Signed::new(vec![ISSUER.into()], keys);
        LegacyTokens { signed, audiences, objects: Objects(api), clock, lookup: true }
    }

    /// Takes a signature's word for it, as `--service-account-lookup=false` demands: such tokens never end.
    #[must_use]
    pub fn without_lookup(mut self) -> Self {
        self.lookup = false;
        self
    }

    async fn check(&self, text: &str, wanted: &[String]) -> Verdict {
        let now = self.clock.now();
        let Some(claims) = self.signed.claims(text, now)? else { return Ok(None) };
        let given =
            Some(claims.audiences()).filter(|a| !a.is_empty()).unwrap_or_else(|| self.audiences.clone());
        let audiences = intersection(&given, wanted);
        if audiences.is_empty() {
            return Err(AuthenticationError::new(format!(
                "token audiences {} is invalid for the target audiences {}",
                list(&given),
                list(wanted)
            )));
        }
        let about = about(&claims)?;
        let warnings = if self.lookup { self.alive(&about, text, now).await? } else { vec![] };
        let user = user(about.namespace, about.account, about.account_uid);
        Ok(Some(Identity { user, audiences, warnings }))
    }

    /// Whether secret and account are still what the token says; texts to warn with.
    async fn alive(
        &self,
        about: &SecretToken<'_>,
        text: &str,
        now: jiff::Timestamp,
    ) -> Result<Vec<String>, AuthenticationError> {
        let SecretToken { namespace, account: name, account_uid: uid, secret: secret_name } = *about;
        let gone = || AuthenticationError::new("Token has been invalidated");
        let secret = self.objects.get("secrets", namespace, secret_name).await?.ok_or_else(gone)?;
        if object::deletion_timestamp(&secret).is_some() {
            return Err(gone());
        }
        let kept = STANDARD.decode(object::str_at(&secret, &["data", "token"])).unwrap_or_default();
        if !same(&kept, text.as_bytes()) {
            return Err(AuthenticationError::new("Token does not match server's copy"));
        }
        let Some(account) = self.objects.get("serviceaccounts", namespace, name).await? else {
            return Err(AuthenticationError::new(format!("serviceaccounts {} not found", quote(name))));
        };
        if object::deletion_timestamp(&account).is_some() {
            return Err(AuthenticationError::new(format!(
                "ServiceAccount {namespace}/{name} has been deleted"
            )));
        }
        let actual = object::uid(&account);
        if actual != uid {
            let text = format!("ServiceAccount UID ({actual}) does not match claim ({uid})");
            return Err(AuthenticationError::new(text));
        }
        self.mark_used(namespace, &secret, now).await;
        if object::label(&secret, INVALID_SINCE).is_some_and(|since| !since.is_empty()) {
            return Err(AuthenticationError::new(format!(
                "the token in secret {namespace}/{secret_name} for service account {namespace}/{name} has been marked invalid. Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the '{INVALID_SINCE}' label from the secret to temporarily allow use of this token"
            )));
        }
        let listed = object::arr_at(&account, &["secrets"]);
        let generated = listed.iter().any(|r| object::str_at(r, &["name"]) == secret_name);
        Ok(generated
            .then(|| "Use tokens from the TokenRequest API or manually created secret-based tokens instead of auto-generated secret-based tokens.".to_owned())
            .into_iter()
            .collect())
    }

    /// Records on the secret, once a day, that its token is in use. A failure to write has no effect on the request.
    async fn mark_used(&self, namespace: &str, secret: &Value, now: jiff::Timestamp) {
        let day = |t: jiff::Timestamp| t.strftime("%Y-%m-%d").to_string();
        let today = day(now);
        let tomorrow = now.saturating_add(jiff::SignedDuration::from_hours(24)).map(day);
        let known = object::label(secret, LAST_USED);
        if known == Some(&*today) || tomorrow.is_ok_and(|t| known == Some(&*t)) {
            return;
        }
        let Some(api) = self.objects.0.upgrade() else { return };
        let (name, uid) = (object::name(secret), object::uid(secret));
        let label = |found: &mut Value| {
            if object::uid(found) == uid {
                object::set_at(found, &["metadata", "labels", LAST_USED], today.as_str());
            }
            Ok(())
        };
        let secrets = GroupResource::new("", "secrets");
        if let Err(error) = api
            .update(&secrets, namespace, name, UpdateOptions::new("", FieldManagement::Record), &label)
            .await
        {
            tracing::warn!(%namespace, %name, error = %error.message, "cannot label a token secret with its last use");
        }
    }
}

impl TokenAuthenticator for LegacyTokens {
    fn authenticate<'a>(&'a self, token: &'a str, audiences: &'a [String]) -> BoxFuture<'a, Verdict> {
        Box::pin(self.check(token, audiences))
    }
}

/// What the claims say, all of them given and agreeing.
fn about(claims: &Claims) -> Result<SecretToken<'_>, AuthenticationError> {
    let claim = |name: &str, title: &str| {
        let value = claims.0.get(&format!("{CLAIM}{name}")).and_then(Value::as_str).unwrap_or_default();
        if value.is_empty() {
            Err(AuthenticationError::new(format!("{title} claim is missing")))
        } else {
            Ok(value)
        }
    };
    if claims.text("sub").is_empty() {
        return Err(AuthenticationError::new("sub claim is missing"));
    }
    let about = SecretToken {
        namespace: claim("namespace", "namespace")?,
        secret: claim("secret.name", "secretName")?,
        account: claim("service-account.name", "serviceAccountName")?,
        account_uid: claim("service-account.uid", "serviceAccountUID")?,
    };
    if claims.text("sub") != user_name(about.namespace, about.account) {
        return Err(AuthenticationError::new("sub claim is invalid"));
    }
    Ok(about)
}

/// Whether two secrets are the same, in a time that does not tell where they differ.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |seen, (x, y)| seen | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::testing::{World, ec_key, now_or_never};
    use kaji_meta::object::set_at;

    /// A refusal, and what brings it about.
    type Case = (&'static str, fn(&World));

    fn world() -> (World, String, LegacyTokens) {
        signed_by(&ec_key())
    }

    fn signed_by(key: &SigningKey) -> (World, String, LegacyTokens) {
        let about = SecretToken { namespace: "ns", account: "sa", account_uid: "u1", secret: "s" };
        let token = legacy_token(key, &about).unwrap();
        let world = World::default();
        world.put("serviceaccounts", json!({"metadata": {"namespace": "ns", "name": "sa", "uid": "u1"}}));
        world.put(
            "secrets",
            json!({"metadata": {"namespace": "ns", "name": "s", "uid": "u2"}, "data": {"token": STANDARD.encode(&token)}}),
        );
        let keys = KeySet::new([key.public.clone()]);
        let tokens = LegacyTokens::new(keys, vec!["api".into()], world.weak(), world.clock.clone());
        (world, token, tokens)
    }

    fn ask(tokens: &LegacyTokens, token: &str) -> Verdict {
        now_or_never(tokens.authenticate(token, &["api".into()]))
    }

    #[test]
    fn accepts_token_and_records_use() {
        let (world, token, tokens) = world();
        let found = ask(&tokens, &token).unwrap().unwrap();
        assert_eq!(found.user.name, "system:serviceaccount:ns:sa");
        assert_eq!(found.user.groups, ["system:serviceaccounts", "system:serviceaccounts:ns"]);
        assert_eq!((found.user.uid.as_str(), found.warnings.len()), ("u1", 0));
        let secret = world.get("secrets", "ns", "s").unwrap();
        assert_eq!(object::label(&secret, LAST_USED), Some("2026-01-01"));
        let only_for = now_or_never(tokens.authenticate(&token, &["other".into()])).unwrap_err();
        assert_eq!(only_for.0, r#"token audiences ["api"] is invalid for the target audiences ["other"]"#);
    }

    #[test]
    fn rejects_token_of_deleted_secret_or_account() {
        let cases: [Case; 7] = [
            ("Token has been invalidated", |w| w.delete("secrets", "ns", "s")),
            ("Token has been invalidated", |w| {
                w.change("secrets", "ns", "s", |s| {
                    set_at(s, &["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z")
                });
            }),
            ("Token does not match server's copy", |w| {
                w.change("secrets", "ns", "s", |s| set_at(s, &["data", "token"], STANDARD.encode("x")));
            }),
            (r#"serviceaccounts "sa" not found"#, |w| w.delete("serviceaccounts", "ns", "sa")),
            ("ServiceAccount ns/sa has been deleted", |w| {
                w.change("serviceaccounts", "ns", "sa", |s| {
                    set_at(s, &["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
                });
            }),
            ("ServiceAccount UID (u9) does not match claim (u1)", |w| {
                w.change("serviceaccounts", "ns", "sa", |s| set_at(s, &["metadata", "uid"], "u9"));
            }),
            ("has been marked invalid", |w| {
                w.change("secrets", "ns", "s", |s| {
                    set_at(s, &["metadata", "labels", INVALID_SINCE], "2025-01-01")
                });
            }),
        ];
        for (text, change) in cases {
            let (world, token, tokens) = world();
            assert!(ask(&tokens, &token).is_ok(), "{text}");
            change(&world);
            let refusal = ask(&tokens, &token).unwrap_err();
            assert!(refusal.0.contains(text), "{refusal}");
        }
    }

    #[test]
    fn accepts_token_without_lookup() {
        let (world, token, tokens) = world();
        let tokens = tokens.without_lookup();
        world.delete("secrets", "ns", "s");
        assert!(ask(&tokens, &token).unwrap().is_some());
    }

    #[test]
    fn warns_when_it_was_generated() {
        let (world, token, tokens) = world();
        world.change("serviceaccounts", "ns", "sa", |s| set_at(s, &["secrets"], json!([{"name": "s"}])));
        assert!(
            ask(&tokens, &token).unwrap().unwrap().warnings[0]
                .starts_with("Use tokens from the TokenRequest API")
        );
    }

    #[test]
    fn claims_must_agree() {
        let key = ec_key();
        let (_world, _, tokens) = signed_by(&key);
        let unsigned_name = legacy_token(
            &key,
            &SecretToken { namespace: "ns", account: "sa", account_uid: "u1", secret: "" },
        );
        assert_eq!(ask(&tokens, &unsigned_name.unwrap()).unwrap_err().0, "secretName claim is missing");
        let other = jwt::sign(&key, &json!({"iss": "x"})).unwrap();
        assert_eq!(ask(&tokens, &other), Ok(None));
    }
}
