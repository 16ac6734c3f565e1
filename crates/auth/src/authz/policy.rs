//! The roles and bindings that every cluster has, from the table in `policy.txt`.
//!
//! Facts as of Kubernetes 1.37 with its default feature gates (`plugin/pkg/auth/authorizer/rbac/bootstrappolicy`).
//! The table's form, one object after the other, its parts indented below it:
//!
//! ```text
//! clusterrole NAME                        role NAMESPACE NAME
//!   label KEY=VALUE
//!   aggregate KEY=VALUE                   what the role is put together from
//!   VERBS GROUPS RESOURCES [NAMES]        lists by comma; `core` is the core group
//!   VERBS path PATHS
//! clusterrolebinding NAME KIND/ROLE [user:NAME|group:NAME|account:NAMESPACE/NAME]…
//! rolebinding NAMESPACE NAME KIND/ROLE SUBJECT…
//! ```
//!
//! `if GenericWorkload` before an object or a rule: it is there while the feature gate is on.

use super::PolicyRule;
use kaji_meta::Features;
use serde_json::{Value, json};

const TABLE: &str = include_str!("policy.txt");
const GROUP: &str = "rbac.authorization.k8s.io";
/// Whether the server keeps an object up to date at its start: not if `false`.
pub const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// A default object and where it belongs.
#[derive(Clone, Debug, PartialEq)]
pub struct Default {
    /// Plural of its resource.
    pub resource: &'static str,
    /// `""` for cluster scope.
    pub namespace: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The object.
    pub object: Value,
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::to_owned).collect()
}

/// A rule as the table writes it.
pub(crate) fn rule(line: &str) -> PolicyRule {
    let mut words = line.split_whitespace();
    let mut next = || words.next().unwrap_or_default();
    let (verbs, groups, third, names) = (next(), next(), next(), next());
    if groups == "path" {
        return PolicyRule { verbs: list(verbs), non_resource_urls: list(third), ..PolicyRule::default() };
    }
    let group = |g: String| if g == "core" { String::new() } else { g };
    PolicyRule {
        verbs: list(verbs),
        api_groups: list(groups).into_iter().map(group).collect(),
        resources: list(third),
        resource_names: if names.is_empty() { vec![] } else { list(names) },
        non_resource_urls: vec![],
    }
}

fn object(kind: &str, namespace: &str, name: &str) -> Value {
    let mut object = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
            "annotations": {AUTO_UPDATE: "true"},
        },
    });
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    object
}

fn subject(text: &str) -> Value {
    match text.split_once(':') {
        Some(("user", name)) => json!({"kind": "User", "apiGroup": GROUP, "name": name}),
        Some(("account", account)) => {
            let (namespace, name) = account.split_once('/').unwrap_or_default();
            json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
        }
        _ => json!({"kind": "Group", "apiGroup": GROUP, "name": text.trim_start_matches("group:")}),
    }
}

fn binding(kind: &str, namespace: &str, name: &str, mut words: std::str::SplitWhitespace<'_>) -> Value {
    let mut object = object(kind, namespace, name);
    let (role_kind, role) = words.next().and_then(|r| r.split_once('/')).unwrap_or_default();
    let role_kind = if role_kind == "role" { "Role" } else { "ClusterRole" };
    object["roleRef"] = json!({"apiGroup": GROUP, "kind": role_kind, "name": role});
    let subjects: Vec<Value> = words.map(subject).collect();
    if !subjects.is_empty() {
        object["subjects"] = subjects.into();
    }
    object
}

/// Adds an indented line to its object.
fn part(object: &mut Value, line: &str) {
    let pair = |text: &str| text.split_once('=').map(|(k, v)| (k.to_owned(), Value::from(v)));
    match line.split_once(' ') {
        Some(("label", text)) => {
            if let (Some((key, value)), Some(labels)) =
                (pair(text), object["metadata"]["labels"].as_object_mut())
            {
                labels.insert(key, value);
            }
        }
        Some(("aggregate", text)) => {
            if let Some((key, value)) = pair(text) {
                object["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {key: value}}]});
            }
        }
        _ => {
            let new = rule(line).to_value();
            match object["rules"].as_array_mut() {
                Some(rules) => rules.push(new),
                None => object["rules"] = json!([new]),
            }
        }
    }
}

/// A line without its condition, and whether it counts.
fn conditional(line: &str, features: Features) -> (&str, bool) {
    match line.strip_prefix("if GenericWorkload ") {
        Some(line) => (line, features.generic_workload),
        None => (line, true),
    }
}

/// All default objects while no feature gate is on that is off by default.
pub fn defaults() -> Vec<Default> {
    defaults_with(Features::default())
}

/// All default objects: cluster roles, their bindings, roles, their bindings.
pub fn defaults_with(features: Features) -> Vec<Default> {
    let mut all: Vec<Default> = vec![];
    let mut object_counts = true;
    for whole in TABLE.lines() {
        if let (Some(line), Some(last)) = (whole.strip_prefix("  "), all.last_mut()) {
            if let (line, true) = conditional(line, features)
                && object_counts
            {
                part(&mut last.object, line);
            }
            continue;
        }
        let line;
        (line, object_counts) = conditional(whole, features);
        if !object_counts {
            continue;
        }
        let mut words = line.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let namespace = if kind.starts_with("cluster") { "" } else { words.next().unwrap_or_default() };
        let name = words.next().unwrap_or_default();
        let (resource, object) = match kind {
            "clusterrole" => ("clusterroles", object("ClusterRole", namespace, name)),
            "role" => ("roles", object("Role", namespace, name)),
            "clusterrolebinding" => {
                ("clusterrolebindings", binding("ClusterRoleBinding", namespace, name, words))
            }
            _ => ("rolebindings", binding("RoleBinding", namespace, name, words)),
        };
        all.push(Default { resource, namespace, name, object });
    }
    all
}

/// What nodes may do to resources that are not tied to one of them: the rules of `system:node`.
pub fn node_rules() -> Vec<PolicyRule> {
    let mut lines = TABLE.lines().skip_while(|l| *l != "clusterrole system:node");
    lines.next();
    lines.map_while(|l| l.strip_prefix("  ")).map(rule).collect()
}

/// The service accounts of `kube-system` that controllers use, by name; some more than once.
pub fn controller_accounts() -> impl Iterator<Item = &'static str> {
    TABLE.lines().filter_map(|l| {
        let (binding, account) = l.split_once(" account:kube-system/")?;
        binding.contains("binding ").then_some(account).filter(|_| binding.contains(" system:controller:"))
    })
}

#[cfg(test)]
mod tests;
