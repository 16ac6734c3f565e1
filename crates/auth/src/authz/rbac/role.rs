//! The rules of a role, indexed by resource.
//!
//! Invariant: the index narrows down; each candidate rule is evaluated as a whole.

use super::super::{Attributes, PolicyRule};
use std::{collections::HashMap, sync::Arc};

/// A role, ready for decisions.
#[derive(Debug)]
pub(super) struct Role {
    pub rules: Arc<[PolicyRule]>,
    /// Places of rules by the resources that they name, without subresources.
    by_resource: HashMap<Box<str>, Vec<usize>>,
    /// Of rules about resources by wildcard.
    any_resource: Vec<usize>,
    /// Of rules about paths.
    paths: Vec<usize>,
}

impl Role {
    pub fn new(rules: Vec<PolicyRule>) -> Role {
        let mut by_resource: HashMap<Box<str>, Vec<usize>> = HashMap::new();
        let (mut any_resource, mut paths) = (vec![], vec![]);
        for (at, rule) in rules.iter().enumerate() {
            for resource in &rule.resources {
                let list = match resource.split('/').next().unwrap_or_default() {
                    "*" => &mut any_resource,
                    resource => by_resource.entry(resource.into()).or_default(),
                };
                if list.last() != Some(&at) {
                    list.push(at);
                }
            }
            if !rule.non_resource_urls.is_empty() {
                paths.push(at);
            }
        }
        Role { rules: rules.into(), by_resource, any_resource, paths }
    }

    /// Whether a rule allows a request.
    pub fn allows(&self, a: &Attributes<'_>) -> bool {
        let any =
            |places: &[usize]| places.iter().filter_map(|at| self.rules.get(*at)).any(|rule| rule.allows(a));
        if !a.is_resource() {
            return any(&self.paths);
        }
        // Reviews may name a subresource in the resource itself.
        let resource = a.resource.split('/').next().unwrap_or_default();
        self.by_resource.get(resource).is_some_and(|places| any(places)) || any(&self.any_resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authz::policy::defaults;
    use kaji_resource::UserInfo;

    /// For every default role and each resource, path and verb that any of them names.
    #[test]
    fn allows_what_one_of_its_rules_allows() {
        let roles: Vec<Vec<PolicyRule>> =
            defaults().iter().map(|default| PolicyRule::of_role(&default.object)).collect();
        let mut resources: Vec<(String, String, String)> = vec![];
        let mut paths: Vec<String> = vec!["/".into(), "/other".into()];
        for rule in roles.iter().flatten() {
            for resource in &rule.resources {
                let (main, sub) = resource.split_once('/').unwrap_or((resource, ""));
                let group = rule.api_groups.first().cloned().unwrap_or_default();
                resources.push((group.clone(), main.to_owned(), sub.to_owned()));
                resources.push((group, resource.clone(), String::new()));
            }
            paths.extend(rule.non_resource_urls.iter().cloned());
        }
        resources.sort();
        resources.dedup();
        let user = UserInfo::default();
        for rules in roles.iter().filter(|rules| !rules.is_empty()) {
            let role = Role::new(rules.clone());
            let check = |a: &Attributes<'_>| {
                assert_eq!(role.allows(a), rules.iter().any(|rule| rule.allows(a)), "{rules:?}");
            };
            for verb in ["get", "create", "escalate"] {
                for (group, resource, subresource) in &resources {
                    let all = Attributes::resource(&user, verb, group, resource);
                    check(&Attributes { subresource, ..all });
                }
                paths.iter().for_each(|path| check(&Attributes::path(&user, verb, path)));
            }
        }
    }
}
