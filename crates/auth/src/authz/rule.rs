//! Policy rules: what one allows, whether some cover others, how they read in messages and objects.
//!
//! Source: Kubernetes, "Using RBAC Authorization"; upstream's `rbac.RuleAllows` and `validation.Covers`.

use super::{Attributes, PolicyRule};
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

const ALL: &str = "*";

fn has(set: &[String], one: &str) -> bool {
    set.iter().any(|s| s == one)
}

fn has_or_all(set: &[String], one: &str) -> bool {
    set.iter().any(|s| s == ALL || s == one)
}

/// Whether a path of a rule, which may end in `*`, takes in a path.
fn url_covers(pattern: &str, path: &str) -> bool {
    pattern == path || (pattern.ends_with(ALL) && path.starts_with(pattern.trim_end_matches('*')))
}

impl PolicyRule {
    /// Whether the rule allows a request.
    pub fn allows(&self, a: &Attributes<'_>) -> bool {
        if !has_or_all(&self.verbs, a.verb) {
            return false;
        }
        if !a.is_resource() {
            return self.non_resource_urls.iter().any(|u| u == ALL || url_covers(u, a.path));
        }
        has_or_all(&self.api_groups, a.group)
            && self.resources.iter().any(|r| resource_matches(r, a.resource, a.subresource))
            && (self.resource_names.is_empty() || has(&self.resource_names, a.name))
    }

    /// The rule that an object holds; fields of another type count as empty.
    pub fn from_value(rule: &Value) -> PolicyRule {
        let list = |field: &str| {
            let items = rule.get(field).and_then(Value::as_array).into_iter().flatten();
            items.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        PolicyRule {
            verbs: list("verbs"),
            api_groups: list("apiGroups"),
            resources: list("resources"),
            resource_names: list("resourceNames"),
            non_resource_urls: list("nonResourceURLs"),
        }
    }

    /// The rules of a role.
    pub fn of_role(role: &Value) -> Vec<PolicyRule> {
        role.get("rules").and_then(Value::as_array).into_iter().flatten().map(Self::from_value).collect()
    }

    /// The rule as objects hold it.
    pub fn to_value(&self) -> Value {
        let mut value = Map::new();
        for (field, list) in [
            ("apiGroups", &self.api_groups),
            ("nonResourceURLs", &self.non_resource_urls),
            ("resourceNames", &self.resource_names),
            ("resources", &self.resources),
            ("verbs", &self.verbs),
        ] {
            if !list.is_empty() || field == "verbs" {
                value.insert(field.to_owned(), list.clone().into());
            }
        }
        Value::Object(value)
    }

    /// The same permissions in rules of one group, resource, name and verb each.
    fn broken_down(&self) -> Vec<PolicyRule> {
        let one = |s: &str| vec![s.to_owned()];
        let mut all = vec![];
        let names: Vec<Vec<String>> = match self.resource_names.as_slice() {
            [] => vec![vec![]],
            names => names.iter().map(|n| one(n)).collect(),
        };
        for group in &self.api_groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    all.extend(names.iter().map(|name| PolicyRule {
                        verbs: one(verb),
                        api_groups: one(group),
                        resources: one(resource),
                        resource_names: name.clone(),
                        non_resource_urls: vec![],
                    }));
                }
            }
        }
        for url in &self.non_resource_urls {
            let rule = |verb: &String| PolicyRule {
                verbs: one(verb),
                non_resource_urls: one(url),
                ..PolicyRule::default()
            };
            all.extend(self.verbs.iter().map(rule));
        }
        all
    }

    /// Whether this rule alone grants all of a rule that is broken down.
    fn covers(&self, small: &PolicyRule) -> bool {
        let all = |set: &[String], of: &[String]| of.iter().all(|one| has_or_all(set, one));
        let resource = |r: &String| {
            has_or_all(&self.resources, r)
                || r.split_once('/').is_some_and(|(_, sub)| has(&self.resources, &format!("*/{sub}")))
        };
        let url = |u: &String| self.non_resource_urls.iter().any(|own| url_covers(own, u));
        let names = self.resource_names.is_empty()
            || (!small.resource_names.is_empty()
                && small.resource_names.iter().all(|n| has(&self.resource_names, n)));
        all(&self.verbs, &small.verbs)
            && all(&self.api_groups, &small.api_groups)
            && small.resources.iter().all(resource)
            && small.non_resource_urls.iter().all(url)
            && names
    }
}

fn resource_matches(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == ALL {
        return true;
    }
    if subresource.is_empty() {
        return rule == resource;
    }
    let Some((main, sub)) = rule.split_once('/') else { return false };
    sub == subresource && (main == ALL || main == resource)
}

/// What of `wanted` is not covered by the rules that a user has, broken down.
pub fn uncovered<'a>(
    held: impl Iterator<Item = &'a PolicyRule> + Clone,
    wanted: &[PolicyRule],
) -> Vec<PolicyRule> {
    let small = wanted.iter().flat_map(PolicyRule::broken_down);
    small.filter(|rule| !held.clone().any(|own| own.covers(rule))).collect()
}

/// Uncovered rules as lines of a message, sorted; rules that differ in their verb only share a line.
pub fn missing_lines(rules: &[PolicyRule]) -> Vec<String> {
    let mut lines = BTreeSet::new();
    // By everything but the verbs.
    let mut simple: BTreeMap<[&[String]; 3], PolicyRule> = BTreeMap::new();
    for rule in rules {
        if !rule.non_resource_urls.is_empty() {
            lines.insert(rule.to_string());
            continue;
        }
        let key = [&*rule.api_groups, &*rule.resources, &*rule.resource_names];
        match simple.get_mut(&key) {
            Some(known) => known.verbs.extend(rule.verbs.iter().cloned()),
            None => drop(simple.insert(key, rule.clone())),
        }
    }
    lines.extend(simple.values().map(PolicyRule::to_string));
    lines.into_iter().collect()
}

/// `["a" "b"]`, as Go prints quoted strings.
pub fn quoted(list: &[String]) -> String {
    let all: Vec<String> = list.iter().map(|s| format!("{s:?}")).collect();
    format!("[{}]", all.join(" "))
}

impl fmt::Display for PolicyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ];
        let parts = parts.iter().filter(|(_, list)| !list.is_empty());
        let parts: Vec<String> = parts.map(|(name, list)| format!("{name}:{}", quoted(list))).collect();
        write!(f, "{{{}}}", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_resource::UserInfo;

    /// `verbs groups resources [names]`, or `verbs path urls`; lists by comma, `core` for the core group.
    fn rule(text: &str) -> PolicyRule {
        super::super::policy::rule(text)
    }

    #[test]
    fn evaluates_rules() {
        let user = UserInfo::default();
        let table = [
            // rule, verb, group, resource[/subresource], name, allowed
            ("get core pods", "get", "", "pods", "", true),
            ("get core pods", "get", "", "pods", "x", true),
            ("get core pods", "list", "", "pods", "", false),
            ("get core pods", "get", "apps", "pods", "", false),
            ("get core pods", "get", "", "pods/log", "", false),
            ("get core pods/log", "get", "", "pods/log", "", true),
            ("get core pods/log", "get", "", "pods", "", false),
            ("* core pods", "deletecollection", "", "pods", "", true),
            ("get * pods", "get", "metrics.k8s.io", "pods", "", true),
            ("get core *", "get", "", "nodes", "", true),
            ("get core *", "get", "", "pods/log", "", true),
            ("get core */scale", "get", "", "pods/scale", "", true),
            ("get core */scale", "get", "", "pods/status", "", false),
            ("get core */scale", "get", "", "scale", "", false),
            ("get core pods/*", "get", "", "pods/log", "", false),
            ("get core pods a,b", "get", "", "pods", "b", true),
            ("get core pods a,b", "get", "", "pods", "c", false),
            ("get core pods a,b", "list", "", "pods", "", false),
            ("get core pods a,b", "get", "", "pods", "", false),
            ("get,list core,apps pods,deployments", "list", "apps", "deployments", "", true),
            ("get path *", "get", "", "pods", "", false),
        ];
        for (text, verb, group, combined, name, allowed) in table {
            let (resource, subresource) = combined.split_once('/').unwrap_or((combined, ""));
            let a = Attributes { subresource, name, ..Attributes::resource(&user, verb, group, resource) };
            assert_eq!(rule(text).allows(&a), allowed, "{text}: {verb} {group}/{combined} {name}");
        }
        let paths = [
            ("get path /healthz", "/healthz", true),
            ("get path /healthz", "/healthz/", false),
            ("get path /healthz/*", "/healthz", false),
            ("get path /healthz/*", "/healthz/etcd", true),
            ("get path /health*", "/healthz/etcd", true),
            ("get path *", "/anything", true),
            ("get core *", "/anything", false),
            ("list path *", "/anything", false),
        ];
        for (text, path, allowed) in paths {
            assert_eq!(rule(text).allows(&Attributes::path(&user, "get", path)), allowed, "{text}: {path}");
        }
    }

    #[test]
    fn computes_uncovered_rules() {
        let table: [(&[&str], &str, &str); 12] = [
            (&["get core pods"], "get core pods", ""),
            (&["* * *"], "get,list core pods,pods/log a", ""),
            (&["get core pods", "list core pods"], "get,list core pods", ""),
            (&["get core pods"], "get,list,watch core pods", "list,watch core pods"),
            (&["get core pods a"], "get core pods", "get core pods"),
            (&["get core pods a"], "get core pods a,b", "get core pods b"),
            (&["get core pods"], "get core pods a", ""),
            (&["get core */scale"], "get core pods/scale", ""),
            (&["get core pods/scale"], "get core */scale", "get core */scale"),
            (&["get core pods"], "* core pods", "* core pods"),
            (&["get path /a/*"], "get path /a/b,/a/*", ""),
            (&["get path /a"], "get path /a/*", "get path /a/*"),
        ];
        for (held, wanted, missing) in table {
            let held: Vec<PolicyRule> = held.iter().map(|t| rule(t)).collect();
            let found = missing_lines(&uncovered(held.iter(), &[rule(wanted)])).join("");
            let missing = if missing.is_empty() { String::new() } else { rule(missing).to_string() };
            assert_eq!(found, missing, "{wanted}");
        }
    }

    #[test]
    fn lists_rules_in_a_message() {
        let wanted = [rule("get,list apps,core x,y n"), rule("get,put path /b,/a"), rule("watch core x n")];
        expect_test::expect![[r#"
            {APIGroups:[""], Resources:["x"], ResourceNames:["n"], Verbs:["get" "list" "watch"]}
            {APIGroups:[""], Resources:["y"], ResourceNames:["n"], Verbs:["get" "list"]}
            {APIGroups:["apps"], Resources:["x"], ResourceNames:["n"], Verbs:["get" "list"]}
            {APIGroups:["apps"], Resources:["y"], ResourceNames:["n"], Verbs:["get" "list"]}
            {NonResourceURLs:["/a"], Verbs:["get"]}
            {NonResourceURLs:["/a"], Verbs:["put"]}
            {NonResourceURLs:["/b"], Verbs:["get"]}
            {NonResourceURLs:["/b"], Verbs:["put"]}"#]]
        .assert_eq(&missing_lines(&uncovered([].iter(), &wanted)).join("\n"));
    }
}
