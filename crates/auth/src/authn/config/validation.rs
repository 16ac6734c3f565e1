//! Validation of the configuration. Source, also of the texts: upstream's `pkg/apis/apiserver/validation`.

use super::{
    AuthenticationConfiguration, ClaimMappings, ClaimOrExpression, ClaimOrPrefix, ClaimRule, ConfigError,
    ExtraMapping, JwtAuthenticator, JwtIssuer, UserRule, VERSIONS,
};
use crate::authn::{
    PublicKey,
    expressions::{Expression, Expressions},
};
use kaji_meta::{
    TypeMeta,
    field::{Error, ErrorList, Path},
    validation::validate_domain_prefixed_path,
};

const BOTH: &str = "claim and expression can't both be set";
const NEITHER: &str = "claim or expression is required";
const NOT_WITH_CLAIM: &str = "may not be specified when claim is set";
const NOT_WITH_EXPRESSION: &str = "may not be specified when expression is set";
const UNVERIFIED: &str = "claims.email_verified must be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression";
/// Most issuers.
const MOST: usize = 64;

impl AuthenticationConfiguration {
    /// Checks everything. `own` are the issuers of service accounts' tokens, which no other issuer may claim to be.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn validate(&self, own: &[String]) -> Result<(), ConfigError> {
        let meta = TypeMeta { api_version: &self.api_version, kind: &self.kind };
        meta.expect("AuthenticationConfiguration", &VERSIONS).map_err(|e| ConfigError(e.to_string()))?;
        let mut errors: ErrorList = vec![];
        let root = Path::new("jwt");
        if self.jwt.len() > MOST {
            return Err(ConfigError(Error::too_many(&root, self.jwt.len(), MOST).to_string()));
        }
        for (i, jwt) in self.jwt.iter().enumerate() {
            let path = root.index(i);
            jwt.check(&path, own, &mut errors);
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
        settled(&errors)
    }
}

fn settled(errors: &ErrorList) -> Result<(), ConfigError> {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    match texts.as_slice() {
        [] => Ok(()),
        [one] => Err(ConfigError(one.clone())),
        many => Err(ConfigError(format!("[{}]", many.join(", ")))),
    }
}

impl JwtAuthenticator {
    /// Its expressions, compiled.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn compile(&self) -> Result<Expressions, ConfigError> {
        let mut errors = vec![];
        let expressions = self.check(&Path::root(), &[], &mut errors);
        settled(&errors).map(|()| expressions)
    }

    fn check(&self, path: &Path, own: &[String], errors: &mut ErrorList) -> Expressions {
        self.issuer.check(&path.child("issuer"), own, errors);
        let rules = claim_rules(&self.claim_validation_rules, &path.child("claimValidationRules"), errors);
        let mut expressions = self.claim_mappings.check(&path.child("claimMappings"), &rules, errors);
        expressions.claim_rules = rules;
        expressions.user_rules =
            user_rules(&self.user_validation_rules, &path.child("userValidationRules"), errors);
        expressions
    }
}

/// A compiled expression, or why there is none.
fn compiled(
    path: &Path,
    text: &str,
    compile: fn(&str) -> Result<Expression, String>,
    errors: &mut ErrorList,
) -> Option<Expression> {
    compile(text).map_err(|why| errors.push(Error::invalid(path, text, why))).ok()
}

fn claim_rules(rules: &[ClaimRule], path: &Path, errors: &mut ErrorList) -> Vec<(Expression, String)> {
    let mut all = vec![];
    for (i, rule) in rules.iter().enumerate() {
        let (path, before) = (path.index(i), &rules[..i]);
        let at = path.child("expression");
        match (rule.claim.as_str(), rule.expression.as_str()) {
            ("", "") => errors.push(Error::required(&path, NEITHER)),
            (claim, "") => {
                if !rule.message.is_empty() {
                    errors.push(Error::invalid(
                        &path.child("message"),
                        rule.message.as_str(),
                        NOT_WITH_CLAIM,
                    ));
                }
                if before.iter().any(|r| r.claim == claim && r.expression.is_empty()) {
                    errors.push(Error::duplicate(&path.child("claim"), claim));
                }
            }
            ("", expression) => {
                let value = rule.required_value.as_str();
                if !value.is_empty() {
                    errors.push(Error::invalid(&path.child("requiredValue"), value, NOT_WITH_EXPRESSION));
                }
                if before.iter().any(|r| r.expression == expression && r.claim.is_empty()) {
                    errors.push(Error::duplicate(&at, expression));
                    continue;
                }
                let compiled = compiled(&at, expression, Expression::claims_rule, errors);
                all.extend(compiled.map(|e| (e, rule.message.clone())));
            }
            (claim, _) => errors.push(Error::invalid(&path, claim, BOTH)),
        }
    }
    all
}

fn user_rules(rules: &[UserRule], path: &Path, errors: &mut ErrorList) -> Vec<(Expression, String)> {
    let mut all = vec![];
    for (i, rule) in rules.iter().enumerate() {
        let (at, text) = (path.index(i).child("expression"), rule.expression.as_str());
        if text.is_empty() {
            errors.push(Error::required(&at, ""));
        } else if rules[..i].iter().any(|r| r.expression == text) {
            errors.push(Error::duplicate(&at, text));
        } else {
            let compiled = compiled(&at, text, Expression::user_rule, errors);
            all.extend(compiled.map(|e| (e, rule.message.clone())));
        }
    }
    all
}

impl ClaimMappings {
    fn check(&self, path: &Path, rules: &[(Expression, String)], errors: &mut ErrorList) -> Expressions {
        let at_name = path.child("username");
        if self.username.claim.is_empty() && self.username.expression.is_empty() {
            errors.push(Error::required(&at_name, NEITHER));
        }
        let expressions = Expressions {
            username: self.username.check(&at_name, errors),
            groups: self.groups.check(&path.child("groups"), errors),
            uid: self.uid.check(&path.child("uid"), errors),
            extra: extra(&self.extra, &path.child("extra"), errors),
            ..Expressions::default()
        };
        let selects = |e: &Expression, field| e.selects("claims", field);
        let name = expressions.username.as_ref();
        let verified = name
            .into_iter()
            .chain(expressions.extra.iter().map(|(_, e)| e))
            .chain(rules.iter().map(|(e, _)| e))
            .any(|e| selects(e, "email_verified"));
        if name.is_some_and(|e| selects(e, "email")) && !verified {
            let at = at_name.child("expression");
            errors.push(Error::invalid(&at, self.username.expression.as_str(), UNVERIFIED));
        }
        expressions
    }
}

impl ClaimOrPrefix {
    fn check(&self, path: &Path, errors: &mut ErrorList) -> Option<Expression> {
        match (self.claim.as_str(), self.expression.as_str(), &self.prefix) {
            ("", "", _) => None,
            (_, "", Some(_)) => None,
            (_, "", None) => {
                let text = "prefix is required when claim is set. It can be set to an empty string to disable prefixing";
                errors.push(Error::required(&path.child("prefix"), text));
                None
            }
            ("", text, prefix) => {
                if let Some(prefix) = prefix {
                    errors.push(Error::invalid(&path.child("prefix"), prefix.as_str(), NOT_WITH_EXPRESSION));
                }
                compiled(&path.child("expression"), text, Expression::claims, errors)
            }
            _ => {
                errors.push(Error::invalid(path, "", BOTH));
                None
            }
        }
    }
}

impl ClaimOrExpression {
    fn check(&self, path: &Path, errors: &mut ErrorList) -> Option<Expression> {
        match (self.claim.as_str(), self.expression.as_str()) {
            (_, "") => None,
            ("", text) => compiled(&path.child("expression"), text, Expression::claims, errors),
            _ => {
                errors.push(Error::invalid(path, "", BOTH));
                None
            }
        }
    }
}

fn extra(mappings: &[ExtraMapping], path: &Path, errors: &mut ErrorList) -> Vec<(String, Expression)> {
    let mut all = vec![];
    for (i, mapping) in mappings.iter().enumerate() {
        let (path, key) = (path.index(i), mapping.key.as_str());
        let at = path.child("key");
        errors.extend(validate_domain_prefixed_path(&at, key));
        if key != key.to_lowercase() {
            errors.push(Error::invalid(&at, key, "must be lowercase"));
        }
        if is_kubernetes(key) {
            let text = "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use";
            errors.push(Error::invalid(&at, key, text));
        }
        if mappings[..i].iter().any(|m| m.key == key) {
            errors.push(Error::duplicate(&at, key));
            continue;
        }
        let at = path.child("valueExpression");
        if mapping.value_expression.is_empty() {
            errors.push(Error::required(&at, ""));
            continue;
        }
        let compiled = compiled(&at, &mapping.value_expression, Expression::claims, errors);
        all.extend(compiled.map(|e| (key.to_owned(), e)));
    }
    all
}

fn is_kubernetes(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    ["kubernetes.io", "k8s.io"]
        .iter()
        .any(|ours| domain.strip_suffix(ours).is_some_and(|sub| sub.is_empty() || sub.ends_with('.')))
}

impl JwtIssuer {
    fn check(&self, path: &Path, own: &[String], errors: &mut ErrorList) {
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
        self.check_audiences(path, errors);
        if !self.certificate_authority.is_empty() && !holds_certificates(&self.certificate_authority) {
            let text = "data does not contain any valid RSA or ECDSA certificates";
            errors.push(Error::invalid(&path.child("certificateAuthority"), "<omitted>", text));
        }
        if !self.egress_selector_type.is_empty() {
            let text = match self.egress_selector_type.as_str() {
                "controlplane" | "cluster" => "egress selectors are not supported by this server",
                _ => "egress selector must be either controlplane or cluster",
            };
            errors.push(Error::invalid(
                &path.child("egressSelectorType"),
                self.egress_selector_type.as_str(),
                text,
            ));
        }
    }

    fn check_audiences(&self, path: &Path, errors: &mut ErrorList) {
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
