//! What roles and bindings grant, and in which words.

use super::*;
use crate::authz::tests::ready;
use expect_test::expect;
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};

/// A feed that tests write to.
#[derive(Clone, Default)]
pub struct Script(Arc<(AtomicU64, Mutex<Vec<Change>>)>);

impl Script {
    pub fn put(&self, key: &str, object: Option<Value>) {
        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
        self.0.1.lock().unwrap().push(Change { namespace: namespace.into(), name: name.into(), object });
        self.0.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Feed for Script {
    fn revision(&self) -> u64 {
        self.0.0.load(Ordering::Relaxed)
    }
    fn take(&self, each: &mut dyn FnMut(&Change)) -> u64 {
        std::mem::take(&mut *self.0.1.lock().unwrap()).iter().for_each(each);
        self.revision()
    }
}

#[derive(Default)]
struct World {
    cluster_roles: Script,
    cluster_role_bindings: Script,
    roles: Script,
    role_bindings: Script,
}

impl World {
    fn rbac(&self) -> Rbac {
        Rbac::new(Feeds {
            cluster_roles: Box::new(self.cluster_roles.clone()),
            cluster_role_bindings: Box::new(self.cluster_role_bindings.clone()),
            roles: Box::new(self.roles.clone()),
            role_bindings: Box::new(self.role_bindings.clone()),
        })
    }
}

fn role(rules: &[&str]) -> Option<Value> {
    let rules: Vec<Value> = rules.iter().map(|r| crate::authz::policy::rule(r).to_value()).collect();
    Some(json!({"rules": rules}))
}

fn binding(role: &str, subjects: &[&str]) -> Option<Value> {
    let (kind, name) = role.split_once('/').unwrap();
    let subject = |s: &&str| {
        let mut parts = s.split('/');
        let [kind, name, namespace] = [0; 3].map(|_| parts.next().unwrap_or_default());
        json!({"kind": kind, "name": name, "namespace": namespace})
    };
    let subjects: Vec<Value> = subjects.iter().map(subject).collect();
    Some(json!({"roleRef": {"kind": kind, "name": name}, "subjects": subjects}))
}

fn user(name: &str, groups: &[&str]) -> UserInfo {
    UserInfo {
        name: name.into(),
        groups: groups.iter().map(|g| (*g).to_owned()).collect(),
        ..UserInfo::default()
    }
}

fn ask(rbac: &Rbac, user: &UserInfo, verb: &str, namespace: &str, resource: &str) -> String {
    let a = Attributes { namespace, ..Attributes::resource(user, verb, "", resource) };
    let outcome = ready(rbac.authorize(&a));
    format!("{:?} {}", outcome.decision, outcome.reason)
}

#[test]
fn states_why_a_request_is_allowed() {
    let world = World::default();
    world.cluster_roles.put("view", role(&["get,list core pods"]));
    world.roles.put("n/edit", role(&["update core pods"]));
    world.cluster_role_bindings.put("all", binding("ClusterRole/view", &["User/x", "Group/devs"]));
    world.cluster_role_bindings.put("lost", binding("ClusterRole/gone", &["User/lost"]));
    world
        .role_bindings
        .put("n/b", binding("Role/edit", &["User/jane", "ServiceAccount/sa", "ServiceAccount/sb/m"]));
    world.role_bindings.put("n/lost", binding("Role/gone", &["User/lost"]));
    world.role_bindings.put("m/c", binding("ClusterRole/view", &["User/jane"]));
    let rbac = world.rbac();
    let jane = user("jane", &["devs"]);
    let all = [
        ask(&rbac, &jane, "get", "", "pods"),
        ask(&rbac, &jane, "update", "n", "pods"),
        ask(&rbac, &jane, "update", "m", "pods"),
        ask(&rbac, &user("jane", &[]), "list", "m", "pods"),
        ask(&rbac, &user("jane", &[]), "list", "", "pods"),
        ask(&rbac, &user("system:serviceaccount:n:sa", &[]), "update", "n", "pods"),
        ask(&rbac, &user("system:serviceaccount:m:sb", &[]), "update", "n", "pods"),
        ask(&rbac, &user("system:serviceaccount:m:sa", &[]), "update", "n", "pods"),
        ask(&rbac, &user("lost", &[]), "get", "n", "pods"),
        ask(&rbac, &user("lost", &["devs"]), "get", "n", "pods"),
    ];
    expect![[r#"
        Allow RBAC: allowed by ClusterRoleBinding "all" of ClusterRole "view" to Group "devs"
        Allow RBAC: allowed by RoleBinding "b/n" of Role "edit" to User "jane"
        NoOpinion 
        Allow RBAC: allowed by RoleBinding "c/m" of ClusterRole "view" to User "jane"
        NoOpinion 
        Allow RBAC: allowed by RoleBinding "b/n" of Role "edit" to ServiceAccount "sa/n"
        Allow RBAC: allowed by RoleBinding "b/n" of Role "edit" to ServiceAccount "sb/m"
        NoOpinion 
        NoOpinion RBAC: [clusterrole.rbac.authorization.k8s.io "gone" not found, role.rbac.authorization.k8s.io "gone" not found]
        Allow RBAC: allowed by ClusterRoleBinding "all" of ClusterRole "view" to Group "devs""#]]
    .assert_eq(&all.join("\n"));
}

#[test]
fn changes_count_at_once() {
    let world = World::default();
    let rbac = world.rbac();
    let jane = user("jane", &[]);
    let get = || ask(&rbac, &jane, "get", "n", "pods").starts_with("Allow");
    assert!(!get());
    world.roles.put("n/r", role(&["get core pods"]));
    world.role_bindings.put("n/b", binding("Role/r", &["User/jane"]));
    assert!(get());
    world.roles.put("n/r", role(&["list core pods"]));
    assert!(!get());
    world.roles.put("n/r", role(&["get core pods"]));
    assert!(get());
    world.role_bindings.put("n/b", binding("Role/r", &["User/joe"]));
    assert!(!get());
    world.role_bindings.put("n/b", binding("Role/r", &["User/joe", "User/jane"]));
    assert!(get());
    world.role_bindings.put("n/b", None);
    assert!(!get());
    let index = rbac.index.load();
    assert!(index.namespaces.is_empty(), "what is gone must not be kept");
}

#[test]
fn lists_rules_of_user() {
    let world = World::default();
    world.cluster_roles.put("a", role(&["get core pods"]));
    world.cluster_role_bindings.put("x", binding("ClusterRole/a", &["User/jane", "Group/devs"]));
    world.cluster_role_bindings.put("y", binding("ClusterRole/b", &["User/jane", "Group/devs"]));
    let rbac = world.rbac();
    let jane = user("jane", &["devs"]);
    let held = rbac.held(&jane, "");
    assert_eq!(held.0.iter().map(|r| r.len()).sum::<usize>(), 1, "a binding counts once");
    assert_eq!(held.1.unwrap(), r#"clusterroles.rbac.authorization.k8s.io "b" not found"#);
    let rules = ready(rbac.rules(&jane, "n"));
    assert_eq!(rules.error.unwrap(), r#"clusterrole.rbac.authorization.k8s.io "b" not found"#);
    assert!(!rules.incomplete);
}

proptest::proptest! {
    /// Whatever order changes come in, the index equals one that is made anew from what is left.
    #[test]
    fn incremental_index_equals_rebuilt_index(changes in proptest::collection::vec((0..3_usize, 0..3_usize, proptest::option::of(0..3_usize)), 0..40)) {
        let world = World::default();
        let followed = world.rbac();
        let mut left = BTreeMap::new();
        world.cluster_roles.put("r", role(&["get core pods"]));
        for (namespace, name, subject) in changes {
            let key = format!("n{namespace}/b{name}");
            let object = subject.and_then(|s| binding("ClusterRole/r", &[["User/u", "Group/g", "ServiceAccount/s"][s]]));
            world.role_bindings.put(&key, object.clone());
            followed.refresh();
            match object { Some(o) => drop(left.insert(key, o)), None => drop(left.remove(&key)) }
        }
        let fresh = World::default();
        fresh.cluster_roles.put("r", role(&["get core pods"]));
        left.iter().for_each(|(key, o)| fresh.role_bindings.put(key, Some(o.clone())));
        let fresh = fresh.rbac();
        for namespace in ["n0", "n1", "n2"] {
            for subject in [user("u", &[]), user("x", &["g"]), user(&format!("system:serviceaccount:{namespace}:s"), &[])] {
                proptest::prop_assert_eq!(ask(&followed, &subject, "get", namespace, "pods"), ask(&fresh, &subject, "get", namespace, "pods"));
            }
        }
    }
}

/// An authorizer over the default roles and bindings.
pub fn defaults() -> Rbac {
    let world = World::default();
    for d in crate::authz::policy::defaults() {
        let feed = match d.resource {
            "clusterroles" => &world.cluster_roles,
            "clusterrolebindings" => &world.cluster_role_bindings,
            "roles" => &world.roles,
            _ => &world.role_bindings,
        };
        let key =
            if d.namespace.is_empty() { d.name.to_owned() } else { format!("{}/{}", d.namespace, d.name) };
        feed.put(&key, Some(d.object));
    }
    world.rbac()
}
