//! The ABAC mode: a file of policies, one JSON object a line. Source: Kubernetes, "Using ABAC Authorization", and
//! upstream's `pkg/auth/authorizer/abac`.
//!
//! Invariant: a policy names its users and groups; one that names none allows nothing.

use super::{Attributes, Authorizer, Outcome, PolicyRule, Rules};
use crate::names::AUTHENTICATED;
use kaji_meta::TypeMeta;
use kaji_resource::{BoxFuture, UserInfo};
use serde::Deserialize;
use serde_json::Value;

const VERSION: &str = "abac.authorization.kubernetes.io/v1beta1";
/// The longest line, in bytes. Source: Go's `bufio.Scanner`.
const LONGEST: usize = 64 * 1024;

/// One policy, in the form of `v1beta1`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
struct Policy {
    user: String,
    group: String,
    readonly: bool,
    api_group: String,
    resource: String,
    namespace: String,
    #[serde(rename = "nonResourcePath")]
    path: String,
}

/// Policies in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies(Vec<Policy>);

impl Policies {
    /// Reads the text of a file of that name.
    ///
    /// # Errors
    /// The line that is no policy, and why.
    pub fn parse(path: &str, text: &str) -> Result<Policies, String> {
        let (mut all, mut old) = (vec![], 0);
        for (i, line) in text.lines().enumerate() {
            if line.len() >= LONGEST {
                return Err(format!("error reading policy file {path}: bufio.Scanner: token too long"));
            }
            let trimmed = line.trim();
            if trimmed.is_empty() || trimmed.starts_with('#') {
                continue;
            }
            let (policy, versioned) = policy(trimmed)
                .map_err(|why| format!("error reading policy file {path}, line {}: {line}: {why}", i + 1))?;
            old += usize::from(!versioned);
            all.push(policy);
        }
        if old > 0 {
            tracing::warn!(
                file = path,
                lines = old,
                "policies without an apiVersion are read in the unversioned format"
            );
        }
        Ok(Policies(all))
    }
}

/// A policy, and whether it says its version.
fn policy(line: &str) -> Result<(Policy, bool), String> {
    let value: Value = serde_json::from_str(line).map_err(|e| format!("json parse error: {e}"))?;
    let meta = TypeMeta::of(&value);
    let parse = |value: &Value| Policy::deserialize(value).map_err(|e| e.to_string());
    match (meta.api_version, meta.kind) {
        (VERSION, "Policy") => {
            let null = Value::Null;
            let spec = value.get("spec").unwrap_or(&null);
            let mut policy = if spec.is_null() { Policy::default() } else { parse(spec)? };
            policy.generalize();
            Ok((policy, true))
        }
        ("", "" | "Policy") if value.is_object() => Ok((parse(&value)?.of_old(), false)),
        _ => Err(meta.unregistered().to_string()),
    }
}

impl Policy {
    /// `*` is every authenticated user.
    fn generalize(&mut self) {
        if self.user == "*" || self.group == "*" {
            self.user.clear();
            self.group = AUTHENTICATED.into();
        }
    }

    /// What a line without a version means: what it leaves out is everything.
    fn of_old(mut self) -> Policy {
        let all = || "*".to_owned();
        self.path = match (self.namespace.as_str(), self.resource.as_str()) {
            ("", "") => all(),
            _ => String::new(),
        };
        for field in [&mut self.namespace, &mut self.resource] {
            if field.is_empty() {
                *field = all();
            }
        }
        self.api_group = all();
        if self.user.is_empty() && self.group.is_empty() {
            self.group = AUTHENTICATED.into();
        }
        self.generalize();
        self
    }

    fn is_for(&self, user: &UserInfo) -> bool {
        (!self.user.is_empty() || !self.group.is_empty())
            && (self.user.is_empty() || self.user == user.name)
            && (self.group.is_empty() || user.groups.contains(&self.group))
    }

    fn allows(&self, a: &Attributes<'_>) -> bool {
        let is = |field: &str, value: &str| field == "*" || field == value;
        if !self.is_for(a.user) || (self.readonly && !a.is_read_only()) {
            return false;
        }
        if a.is_resource() {
            return is(&self.namespace, a.namespace)
                && is(&self.resource, a.resource)
                && is(&self.api_group, a.group);
        }
        let below = self.path.ends_with('*').then(|| self.path.trim_end_matches('*'));
        is(&self.path, a.path) || below.is_some_and(|prefix| a.path.starts_with(prefix))
    }
}

impl Authorizer for Policies {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        let outcome = match self.0.iter().any(|p| p.allows(attributes)) {
            true => Outcome::allow(""),
            false => Outcome { reason: "No policy matched.".into(), ..Outcome::default() },
        };
        Box::pin(std::future::ready(outcome))
    }

    fn rules<'a>(&'a self, user: &'a UserInfo, namespace: &'a str) -> BoxFuture<'a, Rules> {
        let mut rules = Rules::default();
        let here = |p: &&Policy| p.is_for(user) && (p.namespace == "*" || p.namespace == namespace);
        for policy in self.0.iter().filter(here) {
            let verbs = || match policy.readonly {
                true => ["get", "list", "watch"].map(str::to_owned).to_vec(),
                false => vec!["*".to_owned()],
            };
            if !policy.resource.is_empty() {
                rules.rules.push(PolicyRule {
                    verbs: verbs(),
                    api_groups: vec![policy.api_group.clone()],
                    resources: vec![policy.resource.clone()],
                    ..PolicyRule::default()
                });
            }
            if !policy.path.is_empty() {
                let non_resource_urls = vec![policy.path.clone()];
                rules.rules.push(PolicyRule { verbs: verbs(), non_resource_urls, ..PolicyRule::default() });
            }
        }
        Box::pin(std::future::ready(rules))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authz::tests::ready;

    const FILE: &str = r##"# policies
{"user":"alice"}
{"user":"bob", "readonly": true, "resource":"pods", "namespace":"projectA"}

{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"user":"carol", "namespace": "*", "resource": "*", "apiGroup": "apps"}}
{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"group":"*", "readonly": true, "nonResourcePath": "/api*"}}
{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"user":"dan", "group": "devs", "namespace": "*", "resource": "pods"}}
{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"namespace": "*", "resource": "*", "apiGroup": "*", "nonResourcePath": "*"}}"##;

    fn user(name: &str) -> UserInfo {
        let groups = match name {
            "anonymous" => vec!["system:unauthenticated".to_owned()],
            "dan" => vec!["devs".to_owned(), AUTHENTICATED.to_owned()],
            _ => vec![AUTHENTICATED.to_owned()],
        };
        UserInfo { name: name.into(), groups, ..UserInfo::default() }
    }

    #[test]
    fn allows_what_policies_name() {
        let policies = Policies::parse("f", FILE).unwrap();
        let resource = |name: &str, verb: &str, group: &str, resource: &str, namespace: &str| {
            let user = user(name);
            let question = Attributes { namespace, ..Attributes::resource(&user, verb, group, resource) };
            ready(policies.authorize(&question)).allowed()
        };
        let path = |name: &str, verb: &str, path: &str| {
            ready(policies.authorize(&Attributes::path(&user(name), verb, path))).allowed()
        };
        assert!(resource("alice", "delete", "apps", "deployments", "x") && path("alice", "post", "/x"));
        assert!(
            resource("bob", "list", "", "pods", "projectA")
                && resource("bob", "get", "apps", "pods", "projectA")
        );
        for (verb, kind, namespace) in
            [("create", "pods", "projectA"), ("get", "nodes", "projectA"), ("get", "pods", "b")]
        {
            assert!(!resource("bob", verb, "", kind, namespace));
        }
        assert!(
            resource("carol", "delete", "apps", "deployments", "x")
                && !resource("carol", "get", "", "pods", "x")
        );
        assert!(resource("dan", "create", "", "pods", "x") && !resource("eve", "create", "", "pods", "x"));
        // An API group that is left out is the core group, and no other.
        assert!(!resource("dan", "create", "metrics.k8s.io", "pods", "x"));
        assert!(
            path("eve", "get", "/api/v1") && path("eve", "get", "/apis") && !path("eve", "get", "/version")
        );
        assert!(!path("eve", "post", "/api") && !path("anonymous", "get", "/api"));
        assert_eq!(
            ready(policies.authorize(&Attributes::path(&user("eve"), "get", "/x"))).reason,
            "No policy matched."
        );
    }

    #[test]
    fn rules() {
        let policies = Policies::parse("f", FILE).unwrap();
        let shown = |name: &str| {
            let rules = ready(policies.rules(&user(name), "projectA")).rules;
            let rules: Vec<String> = rules
                .iter()
                .map(|r| {
                    format!("{:?} {:?} {:?} {:?}", r.verbs, r.api_groups, r.resources, r.non_resource_urls)
                })
                .collect();
            format!("{name}: {} rules\n{}", rules.len(), rules.join("\n"))
        };
        expect_test::expect![[r#"
            alice: 2 rules
            ["*"] ["*"] ["*"] []
            ["*"] [] [] ["*"]
            bob: 1 rules
            ["get", "list", "watch"] ["*"] ["pods"] []
            carol: 1 rules
            ["*"] ["apps"] ["*"] []
            eve: 0 rules
        "#]]
        .assert_eq(&["alice", "bob", "carol", "eve"].map(shown).join("\n"));
    }

    #[test]
    fn rejects_invalid_policies() {
        let long = format!("{{\"user\": \"{}\"}}", "x".repeat(LONGEST));
        let all = [
            "{",
            "[]",
            r#"{"user": 1}"#,
            "{\"user\": \"a\"}\n{\"apiVersion\": \"abac.authorization.kubernetes.io/v2\", \"kind\": \"Policy\"}",
            r#"{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Rule"}"#,
            r#"{"kind": "Rule"}"#,
            &long,
        ]
        .map(|text| Policies::parse("f", text).unwrap_err());
        expect_test::expect![[r#"
            error reading policy file f, line 1: {: json parse error: EOF while parsing an object at line 1 column 1
            error reading policy file f, line 1: []: no kind "" is registered for version ""
            error reading policy file f, line 1: {"user": 1}: invalid type: integer `1`, expected a string
            error reading policy file f, line 2: {"apiVersion": "abac.authorization.kubernetes.io/v2", "kind": "Policy"}: no kind "Policy" is registered for version "abac.authorization.kubernetes.io/v2"
            error reading policy file f, line 1: {"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Rule"}: no kind "Rule" is registered for version "abac.authorization.kubernetes.io/v1beta1"
            error reading policy file f, line 1: {"kind": "Rule"}: no kind "Rule" is registered for version ""
            error reading policy file f: bufio.Scanner: token too long"#]].assert_eq(&all.join("\n"));
        let no_subject = format!(r#"{{"apiVersion": "{VERSION}", "kind": "Policy"}}"#);
        assert_eq!(Policies::parse("f", &no_subject).unwrap().0, [Policy::default()]);
        assert!(!Policy::default().is_for(&user("alice")));
    }
}
