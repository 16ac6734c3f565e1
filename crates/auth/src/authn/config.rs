//! The `AuthenticationConfiguration` file: issuers of JWTs and who may be anonymous.
//! Source: Kubernetes, "Authenticating", using authentication configuration.
//!
//! Invariant: a field that is not understood is refused, and so is one that is understood but not supported yet
//! (expressions): a rule that is not enforced is worse than none.

use super::{Anonymous, PublicKey};
use kaji_meta::field::{Error, ErrorList, Path};
use serde::Deserialize;
use std::collections::BTreeMap;

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

/// Who may be anonymous.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct AnonymousConfig {
    /// Whether anybody may.
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
    /// Who signs.
    pub issuer: JwtIssuer,
    /// What has to be true of claims.
    pub claim_validation_rules: Vec<ClaimRule>,
    /// What they mean.
    pub claim_mappings: ClaimMappings,
    /// What has to be true of users; expressions, not supported yet.
    pub user_validation_rules: Vec<UserRule>,
}

/// Who signs.
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
    /// Not supported.
    pub egress_selector_type: String,
}

/// What has to be true of a claim.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct ClaimRule {
    /// The claim.
    pub claim: String,
    /// Its value, a text.
    pub required_value: String,
    /// Not supported yet.
    pub expression: String,
    /// For the expression.
    pub message: String,
}

/// What has to be true of a user.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct UserRule {
    /// Not supported yet.
    pub expression: String,
    /// For the expression.
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
    /// Expressions, not supported yet.
    pub extra: Vec<BTreeMap<String, String>>,
}

/// A claim and what is put before its value.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct ClaimOrPrefix {
    /// The claim.
    pub claim: String,
    /// Required with a claim for names and groups; may be empty.
    pub prefix: Option<String>,
    /// Not supported yet.
    pub expression: String,
}

/// A claim whose value is taken as it is.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct ClaimOrExpression {
    /// The claim.
    pub claim: String,
    /// Not supported yet.
    pub expression: String,
}

/// Why a configuration is refused.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct ConfigError(pub String);

const NO_CEL: &str = "expressions are not supported by this server yet";
const BOTH: &str = "claim and expression can't both be set";
/// Most issuers. Source: upstream's `ValidateAuthenticationConfiguration`.
const MOST: usize = 64;
const VERSIONS: [&str; 3] =
    ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"];

impl AuthenticationConfiguration {
    /// Of somebody who configured nothing.
    pub fn empty() -> Self {
        AuthenticationConfiguration {
            api_version: VERSIONS[0].into(),
            kind: "AuthenticationConfiguration".into(),
            ..AuthenticationConfiguration::default()
        }
    }

    /// Checks everything. `own` are the issuers of service accounts' tokens, which nobody else may claim to be.
    pub fn validate(&self, own: &[String]) -> Result<(), ConfigError> {
        if !VERSIONS.contains(&self.api_version.as_str()) || self.kind != "AuthenticationConfiguration" {
            let text =
                format!("no kind \"{}\" is registered for version \"{}\"", self.kind, self.api_version);
            return Err(ConfigError(text));
        }
        let mut errors: ErrorList = vec![];
        let root = Path::new("jwt");
        if self.jwt.len() > MOST {
            return Err(ConfigError(Error::too_many(&root, self.jwt.len(), MOST).to_string()));
        }
        for (i, jwt) in self.jwt.iter().enumerate() {
            let path = root.index(i);
            jwt.validate(&path, own, &mut errors);
            let (issuer, before) = (path.child("issuer"), &self.jwt[..i]);
            if before.iter().any(|other| other.issuer.url == jwt.issuer.url) {
                errors.push(Error::duplicate(&issuer.child("url"), jwt.issuer.url.as_str()));
            }
            let discovery = jwt.issuer.discovery_url.as_deref().unwrap_or_default();
            if !discovery.is_empty()
                && before.iter().any(|other| other.issuer.discovery_url.as_deref() == Some(discovery))
            {
                errors.push(Error::duplicate(&issuer.child("discoveryURL"), discovery));
            }
        }
        if self.anonymous.as_ref().is_some_and(|a| !a.enabled && !a.conditions.is_empty()) {
            let path = Path::new("anonymous").child("conditions");
            let text = "enabled should be set to true when conditions are defined";
            errors.push(Error::invalid(&path, "conditions", text));
        }
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        match texts.as_slice() {
            [] => Ok(()),
            [one] => Err(ConfigError(one.clone())),
            many => Err(ConfigError(format!("[{}]", many.join(", ")))),
        }
    }
}

impl AnonymousConfig {
    /// What the chain is told.
    pub fn rule(&self) -> Anonymous {
        match (self.enabled, self.conditions.as_slice()) {
            (false, _) => Anonymous::Nowhere,
            (true, []) => Anonymous::Everywhere,
            (true, conditions) => Anonymous::At(conditions.iter().map(|c| c.path.clone()).collect()),
        }
    }
}

impl JwtAuthenticator {
    fn validate(&self, path: &Path, own: &[String], errors: &mut ErrorList) {
        self.issuer.validate(&path.child("issuer"), own, errors);
        for (i, rule) in self.claim_validation_rules.iter().enumerate() {
            let path = path.child("claimValidationRules").index(i);
            let (claim, expression) = (rule.claim.as_str(), rule.expression.as_str());
            if !claim.is_empty() && !expression.is_empty() {
                errors.push(Error::invalid(&path, claim, BOTH));
            } else if !expression.is_empty() {
                errors.push(Error::invalid(&path.child("expression"), expression, NO_CEL));
            } else if claim.is_empty() {
                errors.push(Error::required(&path, "claim or expression is required"));
            } else {
                if !rule.message.is_empty() {
                    let text = "may not be specified when claim is set";
                    errors.push(Error::invalid(&path.child("message"), rule.message.as_str(), text));
                }
                if self.claim_validation_rules[..i].iter().any(|r| r.claim == claim) {
                    errors.push(Error::duplicate(&path.child("claim"), claim));
                }
            }
        }
        self.claim_mappings.validate(&path.child("claimMappings"), errors);
        for (i, rule) in self.user_validation_rules.iter().enumerate() {
            let path = path.child("userValidationRules").index(i).child("expression");
            errors.push(Error::invalid(&path, rule.expression.as_str(), NO_CEL));
        }
    }
}

impl ClaimMappings {
    fn validate(&self, mappings: &Path, errors: &mut ErrorList) {
        let ClaimMappings { username, groups, uid, extra } = self;
        for (name, mapping) in [("username", username), ("groups", groups)] {
            let path = mappings.child(name);
            let unprefixed = mapping.prefix.is_none();
            match (mapping.claim.as_str(), mapping.expression.as_str()) {
                ("", "") if name == "username" => {
                    errors.push(Error::required(&path, "claim or expression is required"));
                }
                (claim, "") if !claim.is_empty() && unprefixed => {
                    let text = "prefix is required when claim is set. It can be set to an empty string to disable prefixing";
                    errors.push(Error::required(&path.child("prefix"), text));
                }
                (claim, expression) => one_of(&path, claim, expression, errors),
            }
        }
        one_of(&mappings.child("uid"), &uid.claim, &uid.expression, errors);
        if !extra.is_empty() {
            errors.push(Error::invalid(&mappings.child("extra"), "extra", NO_CEL));
        }
    }
}

impl JwtIssuer {
    fn validate(&self, path: &Path, own: &[String], errors: &mut ErrorList) {
        if self.url.is_empty() {
            errors.push(Error::required(&path.child("url"), ""));
        } else {
            check_url(&path.child("url"), &self.url, own, errors);
        }
        if let Some(discovery) = self.discovery_url.as_deref().filter(|d| !d.is_empty()) {
            let path = path.child("discoveryURL");
            if !self.url.is_empty() && discovery.trim_end_matches('/') == self.url.trim_end_matches('/') {
                let text = "discoveryURL must be different from URL";
                errors.push(Error::invalid(&path, discovery, text));
            }
            check_url(&path, discovery, &[], errors);
        }
        self.validate_audiences(path, errors);
        if !self.certificate_authority.is_empty() && !holds_certificates(&self.certificate_authority) {
            let text = "data does not contain any valid RSA or ECDSA certificates";
            errors.push(Error::invalid(&path.child("certificateAuthority"), "<omitted>", text));
        }
        if !self.egress_selector_type.is_empty() {
            let text = "egress selectors are not supported by this server";
            errors.push(Error::invalid(
                &path.child("egressSelectorType"),
                self.egress_selector_type.as_str(),
                text,
            ));
        }
    }

    fn validate_audiences(&self, path: &Path, errors: &mut ErrorList) {
        let audiences = path.child("audiences");
        if self.audiences.is_empty() {
            errors.push(Error::required(&audiences, format!("at least one {audiences} is required")));
            return;
        }
        for (i, audience) in self.audiences.iter().enumerate() {
            if audience.is_empty() {
                errors.push(Error::required(&audiences.index(i), ""));
            }
            if self.audiences[..i].contains(audience) {
                errors.push(Error::duplicate(&audiences.index(i), audience.as_str()));
            }
        }
        let text = match (self.audiences.len(), self.audience_match_policy.as_str()) {
            (_, "MatchAny") | (1, "") => return,
            (1, _) => "audienceMatchPolicy must be empty or MatchAny for single audience",
            _ => "audienceMatchPolicy must be MatchAny for multiple audiences",
        };
        let path = path.child("audienceMatchPolicy");
        errors.push(Error::invalid(&path, self.audience_match_policy.as_str(), text));
    }
}

/// A claim, or nothing.
fn one_of(path: &Path, claim: &str, expression: &str, errors: &mut ErrorList) {
    if expression.is_empty() {
        return;
    }
    match claim {
        "" => errors.push(Error::invalid(&path.child("expression"), expression, NO_CEL)),
        _ => errors.push(Error::invalid(path, "", BOTH)),
    }
}

/// Whether a PEM text is certificates.
fn holds_certificates(pem: &str) -> bool {
    pem.contains("-----BEGIN CERTIFICATE-----") && PublicKey::all_from_pem(pem).is_ok()
}

fn check_url(path: &Path, url: &str, own: &[String], errors: &mut ErrorList) {
    if own.iter().any(|o| o == url) {
        let text = format!("URL must not overlap with disallowed issuers: [{}]", own.join(" "));
        errors.push(Error::invalid(path, url, text));
    }
    let mut bad = |text: &str| errors.push(Error::invalid(path, url, text));
    match url.parse::<http::Uri>() {
        Err(_) => bad("parse error"),
        Ok(uri) if uri.scheme_str() != Some("https") => bad("URL scheme must be https"),
        Ok(uri) => {
            if uri.authority().is_some_and(|a| a.as_str().contains('@')) {
                bad("URL must not contain a username or password");
            }
            if url.contains('?') {
                bad("URL must not contain a query");
            }
            if url.contains('#') {
                bad("URL must not contain a fragment");
            }
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(change: impl Fn(&mut Value)) -> String {
        let mut file = json!({
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "AuthenticationConfiguration",
            "jwt": [{
                "issuer": {"url": "https://i", "audiences": ["a"]},
                "claimMappings": {"username": {"claim": "sub", "prefix": ""}},
            }],
        });
        change(&mut file);
        match serde_json::from_value::<AuthenticationConfiguration>(file) {
            Ok(file) => file.validate(&["https://own".into()]).err().map(|e| e.0).unwrap_or_default(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn good_and_bad_files() {
        assert_eq!(check(|_| {}), "");
        let issuer =
            |key: &'static str, value: Value| move |f: &mut Value| f["jwt"][0]["issuer"][key] = value.clone();
        let mapping = |key: &'static str, value: Value| {
            move |f: &mut Value| f["jwt"][0]["claimMappings"][key] = value.clone()
        };
        let texts = [
            check(issuer("url", json!("http://i"))),
            check(issuer("url", json!(""))),
            check(issuer("url", json!("https://u@i?q"))),
            check(issuer("url", json!("https://own"))),
            check(issuer("discoveryURL", json!("https://i"))),
            check(issuer("audiences", json!([]))),
            check(issuer("audiences", json!(["a", "b"]))),
            check(issuer("audience", json!("a"))),
            check(mapping("username", json!({"claim": "sub"}))),
            check(mapping("username", json!({"expression": "claims.sub"}))),
            check(mapping("groups", json!({"claim": "groups"}))),
            check(|f| f["jwt"][0]["userValidationRules"] = json!([{"expression": "true"}])),
            check(|f| f["jwt"] = json!([f["jwt"][0], f["jwt"][0]])),
            check(|f| f["anonymous"] = json!({"enabled": false, "conditions": [{"path": "/livez"}]})),
            check(|f| f["apiVersion"] = "v1".into()),
            check(issuer("certificateAuthority", json!("x"))),
            check(issuer("egressSelectorType", json!("cluster"))),
            check(issuer("audiences", json!(["a", "a", ""]))),
            check(mapping("username", json!({"claim": "sub", "expression": "claims.sub"}))),
            check(|f| {
                f["jwt"][0]["claimValidationRules"] =
                    json!([{"claim": "a", "message": "m"}, {"claim": "a"}, {}])
            }),
            check(|f| f["jwt"] = Value::Array(vec![f["jwt"][0].clone(); 65])),
        ];
        expect_test::expect![[r#"
            jwt[0].issuer.url: Invalid value: "http://i": URL scheme must be https
            jwt[0].issuer.url: Required value
            [jwt[0].issuer.url: Invalid value: "https://u@i?q": URL must not contain a username or password, jwt[0].issuer.url: Invalid value: "https://u@i?q": URL must not contain a query]
            jwt[0].issuer.url: Invalid value: "https://own": URL must not overlap with disallowed issuers: [https://own]
            jwt[0].issuer.discoveryURL: Invalid value: "https://i": discoveryURL must be different from URL
            jwt[0].issuer.audiences: Required value: at least one jwt[0].issuer.audiences is required
            jwt[0].issuer.audienceMatchPolicy: Invalid value: "": audienceMatchPolicy must be MatchAny for multiple audiences
            unknown field `audience`, expected one of `url`, `discoveryURL`, `certificateAuthority`, `audiences`, `audienceMatchPolicy`, `egressSelectorType`
            jwt[0].claimMappings.username.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing
            jwt[0].claimMappings.username.expression: Invalid value: "claims.sub": expressions are not supported by this server yet
            jwt[0].claimMappings.groups.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing
            jwt[0].userValidationRules[0].expression: Invalid value: "true": expressions are not supported by this server yet
            jwt[1].issuer.url: Duplicate value: "https://i"
            anonymous.conditions: Invalid value: "conditions": enabled should be set to true when conditions are defined
            no kind "AuthenticationConfiguration" is registered for version "v1"
            jwt[0].issuer.certificateAuthority: Invalid value: "<omitted>": data does not contain any valid RSA or ECDSA certificates
            jwt[0].issuer.egressSelectorType: Invalid value: "cluster": egress selectors are not supported by this server
            [jwt[0].issuer.audiences[1]: Duplicate value: "a", jwt[0].issuer.audiences[2]: Required value, jwt[0].issuer.audienceMatchPolicy: Invalid value: "": audienceMatchPolicy must be MatchAny for multiple audiences]
            jwt[0].claimMappings.username: Invalid value: "": claim and expression can't both be set
            [jwt[0].claimValidationRules[0].message: Invalid value: "m": may not be specified when claim is set, jwt[0].claimValidationRules[1].claim: Duplicate value: "a", jwt[0].claimValidationRules[2]: Required value: claim or expression is required]
            jwt: Too many: 65: must have at most 64 items"#]].assert_eq(&texts.join("\n"));
    }

    #[test]
    fn flags_are_a_configuration() {
        let flags = |claim: Option<&str>, prefix: &str| {
            let flags = OidcFlags {
                issuer_url: "https://i".into(),
                client_id: "c".into(),
                username_claim: claim.map(str::to_owned),
                username_prefix: prefix.into(),
                ..OidcFlags::default()
            };
            let configuration = flags.configuration();
            configuration.validate(&[]).unwrap();
            let username = configuration.jwt[0].claim_mappings.username.clone();
            (username.claim, username.prefix.unwrap())
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(flags(None, ""), pair("sub", "https://i#"));
        assert_eq!(flags(Some("email"), ""), pair("email", ""));
        assert_eq!(flags(Some("name"), "-"), pair("name", ""));
        assert_eq!(flags(Some("name"), "x:"), pair("name", "x:"));
    }
}
