//! The `AuthenticationConfiguration` file: issuers of JWTs, and which requests may be anonymous.
//! Source: Kubernetes, "Authenticating", using authentication configuration.
//!
//! Invariant: a field that is not understood is refused, and so is one that is understood but not supported: a rule that
//! is not enforced is worse than none.

mod flags;
#[cfg(test)]
mod tests;
mod validation;

use super::Anonymous;
pub use flags::OidcFlags;
use serde::Deserialize;

/// The file.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct AuthenticationConfiguration {
    /// `apiserver.config.k8s.io/v1`, `v1beta1` or `v1alpha1`
    pub api_version: String,
    /// `AuthenticationConfiguration`
    pub kind: String,
    /// Issuers.
    pub jwt: Vec<JwtAuthenticator>,
    /// Requests without credentials.
    pub anonymous: Option<AnonymousConfig>,
}

/// Which requests may be anonymous.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct AnonymousConfig {
    /// Whether any may.
    pub enabled: bool,
    /// Where; everywhere without any.
    pub conditions: Vec<AnonymousCondition>,
}

/// A place.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct AnonymousCondition {
    /// The whole path.
    pub path: String,
}

/// An issuer and what its claims mean.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct JwtAuthenticator {
    /// The issuer of tokens.
    pub issuer: JwtIssuer,
    /// What has to be true of claims.
    pub claim_validation_rules: Vec<ClaimRule>,
    /// What they mean.
    pub claim_mappings: ClaimMappings,
    /// What has to be true of users.
    pub user_validation_rules: Vec<UserRule>,
}

/// The issuer of tokens.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct JwtIssuer {
    /// `iss`, and where discovery is.
    pub url: String,
    /// Where discovery is instead, the whole URL of the document.
    #[serde(rename = "discoveryURL")]
    pub discovery_url: Option<String>,
    /// Certificates that the issuer's is verified with, PEM; the machine's without it.
    pub certificate_authority: String,
    /// Audiences, one of which a token must be for.
    pub audiences: Vec<String>,
    /// `MatchAny`
    pub audience_match_policy: String,
    /// Not supported: this server has no egress configuration.
    pub egress_selector_type: String,
}

/// What has to be true of claims: that one has a value, or what an expression says.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct ClaimRule {
    /// The claim.
    pub claim: String,
    /// Its value, a text.
    pub required_value: String,
    /// CEL over `claims`.
    pub expression: String,
    /// What a token is refused with when the expression says no.
    pub message: String,
}

/// What has to be true of a user.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct UserRule {
    /// CEL over `user`.
    pub expression: String,
    /// What a token is refused with when it says no.
    pub message: String,
}

/// What claims mean.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct ClaimMappings {
    /// The user's name.
    pub username: ClaimOrPrefix,
    /// Groups.
    pub groups: ClaimOrPrefix,
    /// Uid.
    pub uid: ClaimOrExpression,
    /// Further attributes.
    pub extra: Vec<ExtraMapping>,
}

/// A further attribute of a user.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct ExtraMapping {
    /// Its key, a path with a domain before it.
    pub key: String,
    /// CEL over `claims`: a text or several. Without any there is no such attribute.
    pub value_expression: String,
}

/// A claim and what is put before its value.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct ClaimOrPrefix {
    /// The claim.
    pub claim: String,
    /// Required with a claim for names and groups; may be empty.
    pub prefix: Option<String>,
    /// CEL over `claims`, in its place.
    pub expression: String,
}

/// A claim; its value is taken as it is.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct ClaimOrExpression {
    /// The claim.
    pub claim: String,
    /// CEL over `claims`, in its place.
    pub expression: String,
}

/// Why a configuration is refused.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// The versions of the file's format.
const VERSIONS: [&str; 3] =
    ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"];

impl AuthenticationConfiguration {
    /// The values without configuration.
    pub fn empty() -> Self {
        AuthenticationConfiguration {
            api_version: VERSIONS[0].into(),
            kind: "AuthenticationConfiguration".into(),
            ..AuthenticationConfiguration::default()
        }
    }
}

impl AnonymousConfig {
    /// The anonymous authenticator of the chain.
    pub fn rule(&self) -> Anonymous {
        match (self.enabled, self.conditions.as_slice()) {
            (false, _) => Anonymous::Nowhere,
            (true, []) => Anonymous::Everywhere,
            (true, conditions) => Anonymous::At(conditions.iter().map(|c| c.path.clone()).collect()),
        }
    }
}
