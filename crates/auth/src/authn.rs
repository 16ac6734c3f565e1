//! Authentication: the user that a request or a token comes from.
//!
//! Invariants:
//! - A credential that is given and not good is refused; it never makes its bearer anonymous.
//! - Errors and logs never hold a credential.
//! - Every authenticated user is in `system:authenticated`, once.

mod bootstrap;
mod cache;
mod config;
mod discovery;
mod expressions;
mod jwt;
mod keys;
mod legacy;
mod oidc;
mod request;
mod requestheader;
mod serviceaccount;
pub mod subject;
#[cfg(test)]
mod testing;
mod tokenfile;
mod union;
mod webhook;

pub use bootstrap::BootstrapTokens;
pub use cache::Cache;
pub use config::{AnonymousConfig, AuthenticationConfiguration, ConfigError, JwtAuthenticator, OidcFlags};
pub use discovery::IssuerDocuments;
pub use jwt::{Claims, MAX_TOKEN, Token, Untimely};
pub use keys::{KeyError, KeySet, PublicKey, SigningKey, pkcs8_from_pem, traditional_pem};
pub use legacy::{LegacyTokens, SecretToken, legacy_token};
pub use oidc::{Fetch, Oidc};
pub use request::{Anonymous, Certificates, Chain, anonymous};
pub use requestheader::{ClusterAuthenticationInfo, RequestHeader, unescape_key};
pub use serviceaccount::{BoundTo, IssuedToken, Issuer, ServiceAccountTokens, TokenOrder};
pub use tokenfile::{TokenFile, TokenFileError};
pub use union::{Agnostic, Swappable, TokenChain};
pub use webhook::{Review, Webhook};

use crate::names::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED};
use kaji_resource::{BoxFuture, UserInfo};

/// What an authenticator found out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub user: UserInfo,
    /// The requested audiences that the credential is valid for.
    pub audiences: Vec<String>,
    /// Texts for the `Warning` header.
    pub warnings: Vec<String>,
}

/// Why a credential is refused, in words that may be shown.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct AuthenticationError(pub String);

const NO_CREDENTIALS: &str = "no credentials";

impl AuthenticationError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        AuthenticationError(text.into())
    }

    /// The request has no credential.
    pub(crate) fn no_credentials() -> Self {
        AuthenticationError::new(NO_CREDENTIALS)
    }

    /// Whether the request has no credential at all, in contrast to one that was refused.
    pub fn is_for_no_credentials(&self) -> bool {
        self.0 == NO_CREDENTIALS
    }

    /// Several of them, as upstream's aggregate prints them.
    pub(crate) fn all(refusals: Vec<AuthenticationError>) -> Option<Self> {
        let mut texts: Vec<String> = vec![];
        for AuthenticationError(text) in refusals {
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        match texts.as_slice() {
            [] => None,
            [one] => Some(AuthenticationError(one.clone())),
            many => Some(AuthenticationError(format!("[{}]", many.join(", ")))),
        }
    }
}

/// A user; none if the credential is not for this authenticator; an error if it is and is not valid.
pub type Verdict = Result<Option<Identity>, AuthenticationError>;

/// Knows bearer tokens of one kind.
pub trait TokenAuthenticator: Send + Sync + 'static {
    /// The user that a token belongs to, for one of these audiences (never empty).
    fn authenticate<'a>(&'a self, token: &'a str, audiences: &'a [String]) -> BoxFuture<'a, Verdict>;
}

/// The members of both lists, in the order of the first.
pub(crate) fn intersection(of: &[String], with: &[String]) -> Vec<String> {
    of.iter().filter(|a| with.contains(a)).cloned().collect()
}

/// Puts an authenticated user into `system:authenticated`, unless something says otherwise.
pub(crate) fn add_authenticated(user: &mut UserInfo) {
    let classified = |g: &String| g == AUTHENTICATED || g == UNAUTHENTICATED;
    if user.name != ANONYMOUS && !user.groups.iter().any(classified) {
        user.groups.push(AUTHENTICATED.into());
    }
}
