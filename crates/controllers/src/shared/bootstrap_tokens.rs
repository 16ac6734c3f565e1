//! Bootstrap tokens: secrets with which new nodes and the cluster come to trust each other. One loop signs the public
//! `cluster-info` with them, one deletes those that have expired.
//!
//! Source: Kubernetes, "Authenticating with Bootstrap Tokens".

use base64::{Engine, engine::general_purpose::STANDARD};
use kaji_meta::Time;
use kaji_runtime::objects::{BOOTSTRAP_TOKEN, Secret};

/// Where tokens are.
pub const NAMESPACE: &str = "kube-system";

/// Whether a secret is a token.
pub fn is_token(secret: &Secret) -> bool {
    secret.kind == BOOTSTRAP_TOKEN && secret.metadata.namespace == NAMESPACE
}

/// The text under a key, `""` if there is none.
pub fn text(secret: &Secret, key: &str) -> String {
    let bytes = secret.data.get(key).and_then(|value| STANDARD.decode(value).ok());
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
}

/// How long a token is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    Forever,
    Until(jiff::Timestamp),
    /// It has expired, or says nothing that could be understood.
    Over,
}

pub fn validity(secret: &Secret, now: jiff::Timestamp) -> Validity {
    let expiration = text(secret, "expiration");
    if expiration.is_empty() {
        return Validity::Forever;
    }
    match Time::parse(&expiration).map(Time::timestamp) {
        Ok(end) if end > now => Validity::Until(end),
        _ => Validity::Over,
    }
}
