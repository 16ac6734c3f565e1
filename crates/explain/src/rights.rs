//! Why a request is forbidden: the rules that nearly allow it, and the bindings that nearly name its user.
//!
//! Source: RBAC (rbac.authorization.k8s.io/v1). Other authorizers are not looked at.
//! Invariant: a rule is said to allow a request only if upstream's RBAC authorizer would.

mod nearly;
mod request;

pub use request::Request;

use crate::{
    names::nearest,
    reader::Reader,
    report::{Cause, Sort},
};
use kaji_meta::object::{self, arr_at, str_at, strs_at};
use nearly::Nearly;
use serde_json::Value;

const GROUP: &str = "/apis/rbac.authorization.k8s.io/v1";
/// Near misses that are shown.
const SHOWN: usize = 3;

/// The roles and bindings that the caller may read.
struct Rights {
    roles: Vec<Value>,
    bindings: Vec<Value>,
}

impl Rights {
    async fn read(reader: &Reader<'_>) -> Rights {
        let paths = ["roles", "clusterroles", "rolebindings", "clusterrolebindings"]
            .map(|plural| format!("{GROUP}/{plural}"));
        let lists = futures_util::future::join_all(paths.iter().map(|path| reader.list(path))).await;
        let mut lists = lists.into_iter().map(|list| list.map_or_else(Vec::new, |list| list.to_vec()));
        let mut next = || lists.next().unwrap_or_default();
        let (mut roles, cluster_roles) = (next(), next());
        let (mut bindings, cluster_bindings) = (next(), next());
        roles.extend(cluster_roles);
        bindings.extend(cluster_bindings);
        Rights { roles, bindings }
    }

    /// The role that a binding refers to.
    fn role(&self, binding: &Value) -> Option<&Value> {
        let (kind, name) = (str_at(binding, &["roleRef", "kind"]), str_at(binding, &["roleRef", "name"]));
        let namespace = if kind == "Role" { object::namespace(binding) } else { "" };
        self.roles.iter().find(|role| {
            object::kind(role) == kind && object::name(role) == name && object::namespace(role) == namespace
        })
    }

    /// The role that a binding to one that does not exist may mean: of the other kind, or with nearly the same name.
    fn like(&self, binding: &Value) -> String {
        let (kind, name) = (str_at(binding, &["roleRef", "kind"]), str_at(binding, &["roleRef", "name"]));
        let place = object::namespace(binding);
        let usable = |role: &&Value| {
            object::kind(role) == "ClusterRole" || (!place.is_empty() && object::namespace(role) == place)
        };
        let usable: Vec<&Value> = self.roles.iter().filter(usable).collect();
        if let Some(other) = usable.iter().find(|role| object::name(role) == name) {
            return format!(", but {} {name} does", object::kind(other));
        }
        let names = usable.iter().filter(|role| object::kind(role) == kind).map(|role| object::name(role));
        nearest(name, names).map_or_else(String::new, |near| format!(", but {kind} {near} does"))
    }
}

/// Explains a refusal.
pub async fn explain(reader: &Reader<'_>, request: &Request) -> Vec<Cause> {
    let rights = Rights::read(reader).await;
    if let Some(binding) = rights.bindings.iter().find(|binding| allows(&rights, binding, request)) {
        let cause = Cause::new(Sort::Forbidden, "it is allowed now").known(format!(
            "{} gives {} {}",
            crate::case::title(binding),
            str_at(binding, &["roleRef", "kind"]),
            str_at(binding, &["roleRef", "name"])
        ));
        return vec![
            cause.inferred("the refusal is older than this, or was made by admission or another authorizer"),
        ];
    }
    let mut cause = Cause::new(Sort::Forbidden, "no role that is bound to the user allows it");
    cause = cause.known(format!("user {} in the groups {}", request.user, request.groups.join(", ")));
    let mut nearly: Vec<Nearly> =
        rights.bindings.iter().filter_map(|binding| Nearly::of(&rights, binding, request)).collect();
    nearly.sort_by_key(|nearly| nearly.distance);
    for near in nearly.iter().take(SHOWN) {
        cause = cause.known(&near.text);
    }
    if let Some(first) = nearly.first() {
        cause = cause.nearest(&first.difference);
        if let Some(fix) = &first.fix {
            cause = cause.fix(fix);
        }
    }
    vec![cause.fix(grant(request))]
}

/// The least role that would allow the request, and its binding.
fn grant(request: &Request) -> String {
    let Some(path) = &request.path else {
        let resource = match request.group.as_str() {
            "" => request.full_resource(),
            group => match request.subresource.as_str() {
                "" => format!("{}.{group}", request.resource),
                sub => format!("{}.{group}/{sub}", request.resource),
            },
        };
        let name = format!("{}-{}", request.verb, request.resource);
        let subject = request.subject_flag();
        return match request.namespace.as_str() {
            "" => format!(
                "kubectl create clusterrole {name} --verb={} --resource={resource}\nkubectl create clusterrolebinding {name} --clusterrole={name} {subject}",
                request.verb
            ),
            namespace => format!(
                "kubectl create role {name} -n {namespace} --verb={} --resource={resource}\nkubectl create rolebinding {name} -n {namespace} --role={name} {subject}",
                request.verb
            ),
        };
    };
    let name = format!("{}{}", request.verb, path.replace(['/', '*'], "-"));
    format!(
        "kubectl create clusterrole {name} --verb={} --non-resource-url={path}\nkubectl create clusterrolebinding {name} --clusterrole={name} {}",
        request.verb,
        request.subject_flag()
    )
}

/// Whether a binding allows a request.
fn allows(rights: &Rights, binding: &Value, request: &Request) -> bool {
    covers(binding, request)
        && arr_at(binding, &["subjects"]).iter().any(|subject| names(subject, binding, request))
        && rights
            .role(binding)
            .is_some_and(|role| arr_at(role, &["rules"]).iter().any(|rule| rule_allows(rule, request)))
}

/// Whether a binding is in force where the request goes.
fn covers(binding: &Value, request: &Request) -> bool {
    match object::kind(binding) {
        "ClusterRoleBinding" => true,
        _ => !request.namespace.is_empty() && object::namespace(binding) == request.namespace,
    }
}

/// Whether a subject of a binding is the request's user, or one of its groups.
fn names(subject: &Value, binding: &Value, request: &Request) -> bool {
    let name = str_at(subject, &["name"]);
    match str_at(subject, &["kind"]) {
        "User" => name == request.user,
        "Group" => request.groups.iter().any(|group| group == name),
        "ServiceAccount" => service_account(subject, binding) == request.user,
        _ => false,
    }
}

/// The user name of a subject that is a service account.
fn service_account(subject: &Value, binding: &Value) -> String {
    let namespace = match str_at(subject, &["namespace"]) {
        "" => object::namespace(binding),
        namespace => namespace,
    };
    format!("system:serviceaccount:{namespace}:{}", str_at(subject, &["name"]))
}

fn has(rule: &Value, list: &str, wanted: &str) -> bool {
    strs_at(rule, &[list]).any(|is| is == "*" || is == wanted)
}

/// Whether a rule allows a request.
fn rule_allows(rule: &Value, request: &Request) -> bool {
    if !has(rule, "verbs", &request.verb) {
        return false;
    }
    if let Some(path) = &request.path {
        return strs_at(rule, &["nonResourceURLs"]).any(|url| match url.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => url == path,
        });
    }
    let sub = format!("*/{}", request.subresource);
    let of_resource = strs_at(rule, &["resources"]).any(|is| {
        is == "*" || is == request.full_resource() || (!request.subresource.is_empty() && is == sub)
    });
    let mut resource_names = strs_at(rule, &["resourceNames"]).peekable();
    let named = resource_names.peek().is_none() || resource_names.any(|name| name == request.name);
    has(rule, "apiGroups", &request.group) && of_resource && named
}
