//! The `--oidc-*` flags as a configuration with one issuer.

use super::{
    AuthenticationConfiguration, ClaimMappings, ClaimOrPrefix, ClaimRule, JwtAuthenticator, JwtIssuer,
};

/// Upstream's `--oidc-*` flags, before they are taken for a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OidcFlags {
    /// `--oidc-issuer-url`
    pub issuer_url: String,
    /// `--oidc-client-id`
    pub client_id: String,
    /// The content of `--oidc-ca-file`.
    pub authority: String,
    /// `--oidc-username-claim`; `sub` without it.
    pub username_claim: Option<String>,
    /// `--oidc-username-prefix`; `-` for none.
    pub username_prefix: String,
    /// `--oidc-groups-claim`
    pub groups_claim: String,
    /// `--oidc-groups-prefix`
    pub groups_prefix: String,
    /// `--oidc-required-claim`, pairs of claim and value.
    pub required: Vec<(String, String)>,
}

impl OidcFlags {
    /// The configuration that says the same.
    pub fn configuration(self) -> AuthenticationConfiguration {
        let claim = self.username_claim.unwrap_or_else(|| "sub".into());
        let prefix = match self.username_prefix.as_str() {
            "-" => String::new(),
            // Names of other issuers must not be mistaken for each other's.
            "" if claim != "email" => format!("{}#", self.issuer_url),
            prefix => prefix.to_owned(),
        };
        let groups = match self.groups_claim.as_str() {
            "" => ClaimOrPrefix::default(),
            claim => ClaimOrPrefix {
                claim: claim.to_owned(),
                prefix: Some(self.groups_prefix),
                ..ClaimOrPrefix::default()
            },
        };
        let rule = |(claim, required_value)| ClaimRule { claim, required_value, ..ClaimRule::default() };
        let jwt = JwtAuthenticator {
            issuer: JwtIssuer {
                url: self.issuer_url,
                certificate_authority: self.authority,
                audiences: vec![self.client_id],
                ..JwtIssuer::default()
            },
            claim_validation_rules: self.required.into_iter().map(rule).collect(),
            claim_mappings: ClaimMappings {
                username: ClaimOrPrefix { claim, prefix: Some(prefix), ..ClaimOrPrefix::default() },
                groups,
                ..ClaimMappings::default()
            },
            ..JwtAuthenticator::default()
        };
        AuthenticationConfiguration { jwt: vec![jwt], ..AuthenticationConfiguration::empty() }
    }
}
