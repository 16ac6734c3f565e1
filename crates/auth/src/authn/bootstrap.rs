//! Bootstrap tokens: secrets of `kube-system` with which a machine joins the cluster.
//! Source: Kubernetes, "Authenticating with Bootstrap Tokens".
//!
//! Invariant: a token that is not exactly right is not known, whatever the reason; only the log says why.

use super::{Identity, TokenAuthenticator, Verdict, legacy::same, serviceaccount::Objects};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kaji_meta::{Clock, Time, object};
use kaji_resource::{Api, BoxFuture, UserInfo};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    sync::{Arc, Weak},
};

const DEFAULT_GROUP: &str = "system:bootstrappers";

/// Knows bootstrap tokens.
pub struct BootstrapTokens {
    objects: Objects,
    clock: Arc<dyn Clock>,
}

impl BootstrapTokens {
    /// Over the cluster's secrets.
    pub fn new(api: Weak<dyn Api>, clock: Arc<dyn Clock>) -> Self {
        BootstrapTokens { objects: Objects(api), clock }
    }

    async fn check(&self, token: &str) -> Option<UserInfo> {
        let (id, secret) = parse(token)?;
        let name = format!("bootstrap-token-{id}");
        let found = self.objects.get("secrets", "kube-system", &name).await;
        let found = found.inspect_err(|error| {
            tracing::warn!(secret = %name, %error, "the secret of a bootstrap token cannot be read");
        });
        let found = found.ok()??;
        match matches(&found, id, secret, self.clock.now()) {
            Ok(groups) => {
                Some(UserInfo { name: format!("system:bootstrap:{id}"), groups, ..UserInfo::default() })
            }
            Err(why) => {
                tracing::info!(secret = %name, why, "the bootstrap token secret that a bearer token names is not valid for it");
                None
            }
        }
    }
}

impl TokenAuthenticator for BootstrapTokens {
    fn authenticate<'a>(&'a self, token: &'a str, _: &'a [String]) -> BoxFuture<'a, Verdict> {
        Box::pin(
            async move { Ok(self.check(token).await.map(|user| Identity { user, ..Identity::default() })) },
        )
    }
}

/// Id and secret of `[a-z0-9]{6}.[a-z0-9]{16}`.
fn parse(token: &str) -> Option<(&str, &str)> {
    let plain = |s: &str| s.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase());
    let (id, secret) = token.split_once('.')?;
    (id.len() == 6 && secret.len() == 16 && plain(id) && plain(secret)).then_some((id, secret))
}

/// The groups of a token that a secret is good for, or why it is not.
fn matches(found: &Value, id: &str, secret: &str, now: jiff::Timestamp) -> Result<Vec<String>, &'static str> {
    let data = |key: &str| {
        let bytes = STANDARD.decode(object::str_at(found, &["data", key])).unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_default()
    };
    if object::deletion_timestamp(found).is_some() {
        return Err("it is deleted and awaits removal");
    }
    if object::str_at(found, &["type"]) != "bootstrap.kubernetes.io/token" {
        return Err("it is of another type");
    }
    if !same(data("token-secret").as_bytes(), secret.as_bytes()) {
        return Err("token-secret differs");
    }
    if data("token-id") != id {
        return Err("token-id differs");
    }
    let expiration = data("expiration");
    if !expiration.is_empty() && !Time::parse(&expiration).is_ok_and(|end| end.timestamp() > now) {
        return Err("it has expired");
    }
    if data("usage-bootstrap-authentication") != "true" {
        return Err("it is not for authentication");
    }
    let mut groups = BTreeSet::from([DEFAULT_GROUP.to_owned()]);
    for group in data("auth-extra-groups").split(',').filter(|g| !g.is_empty()) {
        if !is_group(group) {
            return Err("auth-extra-groups names a group that it must not");
        }
        groups.insert(group.to_owned());
    }
    Ok(groups.into_iter().collect())
}

/// `system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]`
fn is_group(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("system:bootstrappers:") else { return false };
    let plain = |b: u8| b.is_ascii_digit() || b.is_ascii_lowercase();
    rest.len() <= 256
        && rest.bytes().all(|b| plain(b) || b == b':' || b == b'-')
        && rest.bytes().last().is_some_and(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::testing::{World, now_or_never};
    use serde_json::json;

    fn ask(token: &str, change: impl Fn(&mut Value)) -> Option<UserInfo> {
        let world = World::default();
        let mut secret = json!({
            "metadata": {"namespace": "kube-system", "name": "bootstrap-token-abcdef"},
            "type": "bootstrap.kubernetes.io/token",
            "data": {},
        });
        for (key, value) in [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-authentication", "true"),
            ("expiration", "2026-01-01T00:00:01Z"),
            ("auth-extra-groups", "system:bootstrappers:workers,system:bootstrappers:a-1"),
        ] {
            secret["data"][key] = STANDARD.encode(value).into();
        }
        change(&mut secret);
        world.put("secrets", secret);
        let tokens = BootstrapTokens::new(world.weak(), world.clock.clone());
        now_or_never(tokens.authenticate(token, &[])).unwrap().map(|i| i.user)
    }

    #[test]
    fn accepts_valid_and_rejects_invalid_tokens() {
        let good = "abcdef.0123456789abcdef";
        let user = ask(good, |_| {}).unwrap();
        assert_eq!(user.name, "system:bootstrap:abcdef");
        assert_eq!(
            user.groups,
            ["system:bootstrappers", "system:bootstrappers:a-1", "system:bootstrappers:workers"]
        );
        for bad in
            ["", "abcdef", "abcdef.0123456789abcdee", "ABCDEF.0123456789abcdef", "abcdeg.0123456789abcdef"]
        {
            assert_eq!(ask(bad, |_| {}), None, "{bad}");
        }
        let set = |key: &'static str, value: &'static str| {
            move |s: &mut Value| s["data"][key] = STANDARD.encode(value).into()
        };
        assert!(ask(good, set("expiration", "")).is_some());
        assert!(ask(good, set("expiration", "9999-12-31T23:59:59Z")).is_some());
        for (key, value) in [
            ("expiration", "2026-01-01T00:00:00Z"),
            ("expiration", "soon"),
            ("token-id", "abcdeg"),
            ("usage-bootstrap-authentication", "True"),
            ("auth-extra-groups", "system:masters"),
            ("auth-extra-groups", "system:bootstrappers:a,system:bootstrappers:"),
            ("auth-extra-groups", "system:bootstrappers:a-"),
        ] {
            assert_eq!(ask(good, set(key, value)), None, "{key} {value}");
        }
        assert_eq!(ask(good, |s| s["type"] = "Opaque".into()), None);
        assert_eq!(ask(good, |s| s["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into()), None);
    }
}
