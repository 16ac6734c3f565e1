//! The RBAC authorizer: roles and bindings, indexed by subject.
//!
//! Invariants:
//! - A decision sees every role and binding that the caches hold when it is requested. The first request after a change
//!   brings the index up to date (a comparison of persistent maps and the decoding of what differs); all others
//!   compare four numbers.
//! - Deciding itself neither locks nor decodes: it reads one immutable index, of bindings by subject and of rules by
//!   resource.
//! - A role that a binding names and that is not there grants nothing and is reported as an error.
//!
//! Source: Kubernetes, "Using RBAC Authorization"; upstream's `plugin/pkg/auth/authorizer/rbac`.

mod role;

use super::{
    Attributes, Authorizer, Grants, Outcome, PolicyRule, Rules, aggregate,
    feed::{Change, Feed},
};
use crate::names::SERVICE_ACCOUNT_PREFIX;
use arc_swap::ArcSwap;
use imbl::{HashMap, OrdMap};
use kaji_resource::{BoxFuture, UserInfo};
use role::Role;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{Arc, Mutex, PoisonError},
};

/// What the index follows.
pub struct Feeds {
    /// `clusterroles`
    pub cluster_roles: Box<dyn Feed>,
    /// `clusterrolebindings`
    pub cluster_role_bindings: Box<dyn Feed>,
    /// `roles`
    pub roles: Box<dyn Feed>,
    /// `rolebindings`
    pub role_bindings: Box<dyn Feed>,
}

impl Feeds {
    fn revisions(&self) -> [u64; 4] {
        [
            self.cluster_roles.revision(),
            self.cluster_role_bindings.revision(),
            self.roles.revision(),
            self.role_bindings.revision(),
        ]
    }
}

/// A subject of a binding.
#[derive(Debug)]
struct Subject {
    /// Whether it names a group; else a user or a service account, by user name.
    group: bool,
    /// What users and groups are compared with.
    name: Box<str>,
    /// `User "jane"`, for reasons.
    text: Box<str>,
}

/// A binding of either kind.
#[derive(Debug)]
struct Binding {
    /// `""` for cluster role bindings.
    namespace: Box<str>,
    name: Arc<str>,
    /// `Role` or `ClusterRole`; others grant nothing.
    role_kind: Box<str>,
    role: Box<str>,
    subjects: Vec<Subject>,
}

impl Binding {
    fn new(namespace: &str, name: &str, object: &Value) -> Binding {
        let text =
            |v: &Value, field: &str| v.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let role = object.get("roleRef").unwrap_or(&Value::Null);
        let subjects = object.get("subjects").and_then(Value::as_array).into_iter().flatten();
        let subject = |s: &Value| {
            let (kind, name) = (text(s, "kind"), text(s, "name"));
            let quoted = format!("{kind} {name:?}");
            match kind.as_str() {
                "User" | "Group" => {
                    Some(Subject { group: kind == "Group", name: name.into(), text: quoted.into() })
                }
                "ServiceAccount" => {
                    let own = text(s, "namespace");
                    let at = if own.is_empty() { namespace } else { &own };
                    (!at.is_empty()).then(|| Subject {
                        group: false,
                        name: format!("{SERVICE_ACCOUNT_PREFIX}{at}:{name}").into(),
                        text: format!("{kind} {:?}", format!("{name}/{at}")).into(),
                    })
                }
                _ => None,
            }
        };
        Binding {
            namespace: namespace.into(),
            name: name.into(),
            role_kind: text(role, "kind").into(),
            role: text(role, "name").into(),
            subjects: subjects.filter_map(subject).collect(),
        }
    }

    /// The first subject that a user is.
    fn subject(&self, user: &UserInfo) -> Option<&Subject> {
        self.subjects.iter().find(|s| match s.group {
            true => user.groups.iter().any(|g| **g == *s.name),
            false => *user.name == *s.name,
        })
    }

    fn reason(&self, user: &UserInfo) -> String {
        let subject = self.subject(user).map_or("", |s| &s.text);
        let (kind, name) = match &*self.namespace {
            "" => ("ClusterRoleBinding", self.name.to_string()),
            namespace => ("RoleBinding", format!("{}/{namespace}", self.name)),
        };
        format!("RBAC: allowed by {kind} {name:?} of {} {:?} to {subject}", self.role_kind, self.role)
    }
}

type ByName = OrdMap<Arc<str>, Arc<Binding>>;

/// Bindings of one namespace, or those of the cluster.
#[derive(Clone, Default)]
struct Bindings {
    all: HashMap<Arc<str>, Arc<Binding>>,
    users: HashMap<Box<str>, ByName>,
    groups: HashMap<Box<str>, ByName>,
}

impl Bindings {
    fn set(&mut self, name: &str, new: Option<Binding>) {
        if let Some(old) = self.all.remove(name) {
            for subject in &old.subjects {
                let map = if subject.group { &mut self.groups } else { &mut self.users };
                let Some(bindings) = map.get_mut(&subject.name) else { continue };
                bindings.remove(name);
                if bindings.is_empty() {
                    map.remove(&subject.name);
                }
            }
        }
        let Some(new) = new.map(Arc::new) else { return };
        for subject in &new.subjects {
            let map = if subject.group { &mut self.groups } else { &mut self.users };
            map.entry(subject.name.clone()).or_default().insert(new.name.clone(), new.clone());
        }
        self.all.insert(new.name.clone(), new);
    }

    /// The bindings that apply to a user. One may come more than once, by different subjects.
    fn of<'a>(&'a self, user: &'a UserInfo) -> impl Iterator<Item = &'a Arc<Binding>> {
        let groups = user.groups.iter().filter_map(|g| self.groups.get(g.as_str()));
        self.users.get(user.name.as_str()).into_iter().chain(groups).flat_map(OrdMap::values)
    }
}

/// A role that is named and not there, or of no known kind.
#[derive(Clone, Copy)]
struct Dangling<'a>(&'a Binding);

impl Dangling<'_> {
    /// `plural`: as stores name it, else as listers do.
    fn text(&self, plural: bool) -> String {
        let s = if plural { "s" } else { "" };
        let role = &self.0.role;
        match &*self.0.role_kind {
            "Role" => format!("role{s}.rbac.authorization.k8s.io {role:?} not found"),
            "ClusterRole" => format!("clusterrole{s}.rbac.authorization.k8s.io {role:?} not found"),
            other => format!("unsupported role reference kind: {other:?}"),
        }
    }
}

type RoleRules = Arc<[PolicyRule]>;
type Roles = HashMap<Box<str>, Arc<Role>>;

#[derive(Clone, Default)]
struct Index {
    /// Of the feeds, when this was made. `None`: never fed.
    revisions: Option<[u64; 4]>,
    cluster_roles: Roles,
    roles: HashMap<Box<str>, Roles>,
    cluster: Bindings,
    namespaces: HashMap<Box<str>, Bindings>,
}

impl Index {
    fn cluster_role(&mut self, change: &Change) {
        match &change.object {
            Some(role) => {
                let role = Arc::new(Role::new(PolicyRule::of_role(role)));
                drop(self.cluster_roles.insert(change.name.as_str().into(), role));
            }
            None => drop(self.cluster_roles.remove(change.name.as_str())),
        }
    }

    fn role(&mut self, change: &Change) {
        let roles = self.roles.entry(change.namespace.as_str().into()).or_default();
        match &change.object {
            Some(role) => {
                let role = Arc::new(Role::new(PolicyRule::of_role(role)));
                drop(roles.insert(change.name.as_str().into(), role));
            }
            None => drop(roles.remove(change.name.as_str())),
        }
        if roles.is_empty() {
            self.roles.remove(change.namespace.as_str());
        }
    }

    fn cluster_role_binding(&mut self, change: &Change) {
        let binding = change.object.as_ref().map(|b| Binding::new("", &change.name, b));
        self.cluster.set(&change.name, binding);
    }

    fn role_binding(&mut self, change: &Change) {
        let binding = change.object.as_ref().map(|b| Binding::new(&change.namespace, &change.name, b));
        let bindings = self.namespaces.entry(change.namespace.as_str().into()).or_default();
        bindings.set(&change.name, binding);
        if bindings.all.is_empty() {
            self.namespaces.remove(change.namespace.as_str());
        }
    }

    fn role_of<'a>(&'a self, binding: &'a Binding) -> Result<&'a Role, Dangling<'a>> {
        let found = match &*binding.role_kind {
            "ClusterRole" => self.cluster_roles.get(&binding.role),
            "Role" => self.roles.get(&binding.namespace).and_then(|roles| roles.get(&binding.role)),
            _ => None,
        };
        found.map(|role| &**role).ok_or(Dangling(binding))
    }

    /// Shows each binding that applies to a user, with its rules, until one is enough: those of the cluster first.
    fn visit<'a>(
        &'a self,
        user: &'a UserInfo,
        namespace: &str,
        mut visit: impl FnMut(&'a Binding, Result<&'a Role, Dangling<'a>>) -> ControlFlow<()>,
    ) {
        let own = self.namespaces.get(namespace).filter(|_| !namespace.is_empty());
        let all = self.cluster.of(user).chain(own.into_iter().flat_map(|b| b.of(user)));
        for binding in all {
            if visit(binding, self.role_of(binding)).is_break() {
                return;
            }
        }
    }

    fn decide(&self, a: &Attributes<'_>) -> Outcome {
        let (mut allowed, mut errors) = (None, vec![]);
        self.visit(a.user, a.namespace, |binding, role| match role {
            Ok(role) if role.allows(a) => {
                allowed = Some(binding.reason(a.user));
                ControlFlow::Break(())
            }
            Ok(_) => ControlFlow::Continue(()),
            Err(dangling) => {
                errors.push(dangling.text(false));
                ControlFlow::Continue(())
            }
        });
        match allowed {
            Some(reason) => Outcome::allow(reason),
            None if errors.is_empty() => Outcome::default(),
            None => Outcome { reason: format!("RBAC: {}", aggregate(&errors)).into(), ..Outcome::default() },
        }
    }

    /// Everything granted to a user, each binding once, by name.
    fn rules(&self, user: &UserInfo, namespace: &str, plural: bool) -> (Vec<RoleRules>, Vec<String>) {
        let mut granted = BTreeMap::new();
        let mut errors = vec![];
        self.visit(user, namespace, |binding, role| {
            match role {
                Ok(role) => {
                    drop(granted.insert((&*binding.namespace, &*binding.name), role.rules.clone()));
                }
                Err(dangling) => errors.push(dangling.text(plural)),
            }
            ControlFlow::Continue(())
        });
        (granted.into_values().collect(), errors)
    }
}

/// The authorizer.
pub struct Rbac {
    feeds: Feeds,
    index: ArcSwap<Index>,
    refreshing: Mutex<()>,
}

impl Rbac {
    /// One that follows roles and bindings.
    pub fn new(feeds: Feeds) -> Self {
        Rbac { feeds, index: ArcSwap::default(), refreshing: Mutex::new(()) }
    }

    /// Runs something on an index that has everything the feeds have now.
    fn with<T>(&self, run: impl FnOnce(&Index) -> T) -> T {
        let index = self.index.load();
        if index.revisions == Some(self.feeds.revisions()) {
            return run(&index);
        }
        drop(index);
        self.refresh();
        run(&self.index.load())
    }

    /// Brings the index up to date.
    pub fn refresh(&self) {
        // A panic while refreshing leaves the old index: nothing is half changed.
        let _one_at_a_time = self.refreshing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.index.load_full();
        if old.revisions == Some(self.feeds.revisions()) {
            return;
        }
        let mut index = Index::clone(&old);
        let feeds = &self.feeds;
        let cluster_roles = feeds.cluster_roles.take(&mut |c| index.cluster_role(c));
        let cluster_role_bindings = feeds.cluster_role_bindings.take(&mut |c| index.cluster_role_binding(c));
        let roles = feeds.roles.take(&mut |c| index.role(c));
        let role_bindings = feeds.role_bindings.take(&mut |c| index.role_binding(c));
        index.revisions = Some([cluster_roles, cluster_role_bindings, roles, role_bindings]);
        self.index.store(Arc::new(index));
    }
}

impl Authorizer for Rbac {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(std::future::ready(self.with(|index| index.decide(attributes))))
    }

    fn rules<'a>(&'a self, user: &'a UserInfo, namespace: &'a str) -> BoxFuture<'a, Rules> {
        let (granted, errors) = self.with(|index| index.rules(user, namespace, false));
        let rules = granted.iter().flat_map(|rules| rules.iter().cloned()).collect();
        let error = (!errors.is_empty()).then(|| aggregate(&errors));
        Box::pin(std::future::ready(Rules { rules, incomplete: false, error }))
    }
}

impl Grants for Rbac {
    fn held(&self, user: &UserInfo, namespace: &str) -> (Vec<Arc<[PolicyRule]>>, Option<String>) {
        let (rules, errors) = self.with(|index| index.rules(user, namespace, true));
        (rules, (!errors.is_empty()).then(|| aggregate(&errors)))
    }
}

#[cfg(test)]
pub(crate) mod tests;
