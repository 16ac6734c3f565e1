//! The policy rules of Roles and ClusterRoles.

use crate::shared::value::Fields;
use kaji_meta::field::{Error, ErrorList, Path};
use serde_json::Value;

/// The API group of RBAC.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// Makes an empty list of rules null: protobuf, in which upstream stores roles, does not distinguish the two.
pub fn empty_to_null(role: &mut Value) {
    if let Some(rules) = role.get_mut("rules").filter(|r| r.as_array().is_some_and(Vec::is_empty)) {
        *rules = Value::Null;
    }
}

/// Checks the rules of a role.
pub fn policy_rules(object: &Value, namespaced: bool) -> ErrorList {
    let mut errs = vec![];
    for (i, rule) in object.list("rules").iter().enumerate() {
        let path = Path::new("rules").index(i);
        let empty = |f: &str| rule.list(f).is_empty();
        if empty("verbs") {
            errs.push(Error::required(&path.child("verbs"), "verbs must contain at least one value"));
        }
        if !empty("nonResourceURLs") {
            let urls = path.child("nonResourceURLs");
            let mut bad =
                |text: &str| errs.push(Error::invalid(&urls, rule.at("nonResourceURLs").clone(), text));
            if namespaced {
                bad("namespaced rules cannot apply to non-resource URLs");
            }
            if !empty("apiGroups") || !empty("resources") || !empty("resourceNames") {
                bad("rules cannot apply to both regular resources and non-resource URLs");
            }
            continue;
        }
        if empty("apiGroups") {
            let text = "resource rules must supply at least one api group";
            errs.push(Error::required(&path.child("apiGroups"), text));
        }
        if empty("resources") {
            let text = "resource rules must supply at least one resource";
            errs.push(Error::required(&path.child("resources"), text));
        }
    }
    errs
}
