//! A binding that nearly allows a request: its subject, its namespace or its role differs.

use super::{Request, Rights, covers, has, names, rule_allows, service_account};
use crate::{case::title, names::nearest};
use kaji_meta::object::{self, arr_at, str_at, strs_at};
use serde_json::Value;

/// The verbs of requests for resources.
const VERBS: &[&str] =
    &["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "*"];

/// What differs; smaller distances are nearer.
pub struct Nearly {
    pub distance: usize,
    /// What the binding says.
    pub text: String,
    /// What differs.
    pub difference: String,
    /// What makes it right.
    pub fix: Option<String>,
}

impl Nearly {
    /// If the binding is near the request.
    pub fn of(rights: &Rights, binding: &Value, request: &Request) -> Option<Nearly> {
        let role = rights.role(binding);
        let (kind, name) = (str_at(binding, &["roleRef", "kind"]), str_at(binding, &["roleRef", "name"]));
        let text = format!("{} binds {kind} {name}", title(binding));
        let subjects = arr_at(binding, &["subjects"]);
        let named = subjects
            .iter()
            .any(|subject| names(subject, binding, request) && str_at(subject, &["kind"]) != "Group");
        let granted =
            role.is_some_and(|role| arr_at(role, &["rules"]).iter().any(|rule| rule_allows(rule, request)));
        let make = |distance: usize, difference: String, fix: Option<String>| {
            Some(Nearly {
                distance,
                text: format!("{text}: {difference}"),
                difference: format!("{}: {difference}", title(binding)),
                fix,
            })
        };
        if named && role.is_none() {
            return make(
                0,
                format!("{kind} {name} does not exist{}", rights.like(binding)),
                Some(format!(
                    "create {kind} {name}, or bind another one (roleRef is immutable: delete and create the binding)"
                )),
            );
        }
        if named && granted {
            let is = object::namespace(binding);
            let fix = match request.namespace.as_str() {
                "" => format!(
                    "kubectl create clusterrolebinding {}-{name} --clusterrole={name} {}",
                    request.verb,
                    request.subject_flag()
                ),
                wanted => format!(
                    "kubectl create rolebinding {name} -n {wanted} --{}={name} {}",
                    kind.to_lowercase(),
                    request.subject_flag()
                ),
            };
            let usable = kind == "ClusterRole";
            return make(1, format!("it is in force in the namespace {is} alone"), usable.then_some(fix));
        }
        if named {
            let rule = role.and_then(|role| nearest_rule(role, request));
            return rule.and_then(|(distance, difference)| {
                let fix = format!("kubectl edit {} {name}{}", kind.to_lowercase(), of_namespace(role));
                make(2 + distance, format!("its rule {difference}"), Some(fix))
            });
        }
        if granted && covers(binding, request) {
            let difference =
                subjects.iter().find_map(|subject| subject_differs(subject, binding, request))?;
            let fix = format!(
                "kubectl edit {} {}{}",
                object::kind(binding).to_lowercase(),
                object::name(binding),
                of_namespace(Some(binding))
            );
            return make(1, difference, Some(fix));
        }
        None
    }
}

fn of_namespace(object: Option<&Value>) -> String {
    match object.map_or("", object::namespace) {
        "" => String::new(),
        namespace => format!(" -n {namespace}"),
    }
}

/// How a subject is nearly the user.
fn subject_differs(subject: &Value, binding: &Value, request: &Request) -> Option<String> {
    let (kind, name) = (str_at(subject, &["kind"]), str_at(subject, &["name"]));
    let account =
        request.user.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':'));
    match (kind, account) {
        ("ServiceAccount", Some((namespace, wanted))) => {
            let of = service_account(subject, binding);
            let (is, _) = of.strip_prefix("system:serviceaccount:")?.split_once(':')?;
            if name == wanted {
                return Some(format!(
                    "its subject is the service account {name} of the namespace {is}, not of {namespace}"
                ));
            }
            (is == namespace && nearest(wanted, [name]).is_some())
                .then(|| format!("its subject is the service account {name}, not {wanted}"))
        }
        ("User", Some((_, wanted))) if name == wanted => {
            Some(format!("its subject is the User {name}, not a ServiceAccount"))
        }
        ("Group", None) if name == request.user => {
            Some(format!("its subject is the Group {name}, not a User"))
        }
        ("Group", _) => {
            let near = nearest(name, request.groups.iter().map(String::as_str))?;
            Some(format!("its subject is the group {name}, not {near}"))
        }
        ("User", None) => nearest(&request.user, [name])
            .map(|near| format!("its subject is the user {near}, not {}", request.user)),
        ("ServiceAccount", None) if name == request.user => {
            Some(format!("its subject is the {kind} {name}, not a User"))
        }
        _ => None,
    }
}

/// The rule of a role that differs least from the request, and how.
fn nearest_rule(role: &Value, request: &Request) -> Option<(usize, String)> {
    let rules = arr_at(role, &["rules"]).iter();
    rules.filter_map(|rule| rule_differs(rule, request)).min()
}

fn rule_differs(rule: &Value, request: &Request) -> Option<(usize, String)> {
    if request.path.is_some() {
        return None;
    }
    let list = |name: &str| strs_at(rule, &[name]).collect::<Vec<_>>().join(", ");
    let full = request.full_resource();
    let resources: Vec<&str> = strs_at(rule, &["resources"]).collect();
    let resource = resources.iter().any(|is| *is == "*" || *is == full);
    let mut differences = vec![];
    if !has(rule, "verbs", &request.verb) {
        let misspelt = nearest(&request.verb, strs_at(rule, &["verbs"]).filter(|verb| !VERBS.contains(verb)));
        let misspelt = misspelt.map_or_else(String::new, |verb| format!(" ({verb} is no verb)"));
        differences.push(format!("allows {}, not {}{misspelt}", list("verbs"), request.verb));
    }
    if !resource {
        let singular = |is: &&&str| format!("{is}s") == full || format!("{is}es") == full;
        let of_resource = resources.contains(&request.resource.as_str());
        let near =
            nearest(&full, resources.iter().copied()).or_else(|| resources.iter().find(singular).copied());
        match (of_resource, near) {
            (true, _) => differences.push(format!(
                "is for {}, not for its subresource {}",
                request.resource, request.subresource
            )),
            (false, Some(near)) => differences.push(format!("is for the resource {near}, not {full}")),
            (false, None) => return None,
        }
    }
    if !has(rule, "apiGroups", &request.group) {
        differences.push(format!(
            "is for the API group \"{}\", not \"{}\"",
            list("apiGroups"),
            request.group
        ));
    }
    let names: Vec<&str> = strs_at(rule, &["resourceNames"]).collect();
    if !names.is_empty() && !names.contains(&request.name.as_str()) {
        differences.push(match request.name.as_str() {
            "" => format!("is for the objects {} alone, and {} has no name", names.join(", "), request.verb),
            name => format!("is for the objects {}, not {name}", names.join(", ")),
        });
    }
    (!differences.is_empty()).then(|| (differences.len(), differences.join(", and ")))
}
