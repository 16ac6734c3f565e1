//! What a decision costs: 10,000 role bindings in 1,000 namespaces, 1,000 cluster role bindings.
//!
//! `cargo bench -p kaji-auth` prints nanoseconds a decision.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints its figures")]

use kaji_auth::{
    Attributes, Authorizer, Grants,
    authz::{
        feed::{Change, Feed},
        policy,
        rbac::{Feeds, Rbac},
    },
};
use kaji_resource::UserInfo;
use serde_json::json;
use std::{
    hint::black_box,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// Gives what it was made with, once.
struct Given(Mutex<Vec<Change>>, AtomicU64);

impl Feed for Given {
    fn revision(&self) -> u64 {
        self.1.load(Ordering::Acquire)
    }
    fn take(&self, each: &mut dyn FnMut(&Change)) -> u64 {
        std::mem::take(&mut *self.0.lock().unwrap()).iter().for_each(each);
        self.revision()
    }
}

fn feed(changes: Vec<Change>) -> Box<dyn Feed> {
    Box::new(Given(Mutex::new(changes), AtomicU64::new(1)))
}

fn defaults(resource: &str) -> Vec<Change> {
    let of = policy::defaults().into_iter().filter(|d| d.resource == resource);
    of.map(|d| Change { namespace: d.namespace.into(), name: d.name.into(), object: Some(d.object) })
        .collect()
}

fn binding(namespace: String, name: String, role: &str, user: String) -> Change {
    let object = json!({"roleRef": {"kind": "ClusterRole", "name": role}, "subjects": [{"kind": "User", "name": user}]});
    Change { namespace, name, object: Some(object) }
}

fn measure(what: &str, mut run: impl FnMut()) {
    const ROUNDS: u32 = 200_000;
    (0..ROUNDS / 10).for_each(|_| run());
    let started = Instant::now();
    (0..ROUNDS).for_each(|_| run());
    println!("{what}: {} ns", started.elapsed().as_nanos() / u128::from(ROUNDS));
}

fn main() {
    let mut cluster = defaults("clusterrolebindings");
    cluster
        .extend((0..1000).map(|i| binding(String::new(), format!("c{i}"), "system:node", format!("c{i}"))));
    let role = |i: usize| ["system:aggregate-to-view", "system:aggregate-to-edit"][i % 2];
    let spaced = |i: usize| binding(format!("n{}", i % 1000), format!("b{i}"), role(i), format!("u{i}"));
    let rbac = Rbac::new(Feeds {
        cluster_roles: feed(defaults("clusterroles")),
        cluster_role_bindings: feed(cluster),
        roles: feed(vec![]),
        role_bindings: feed((0..10_000).map(spaced).collect()),
    });
    let started = Instant::now();
    rbac.refresh();
    println!("making the index: {} ms", started.elapsed().as_millis());
    let user = |name: &str| UserInfo {
        name: name.into(),
        groups: ["system:serviceaccounts", "system:serviceaccounts:n", "system:authenticated"]
            .map(String::from)
            .to_vec(),
        ..UserInfo::default()
    };
    let decide = |user: &UserInfo, namespace: &str, verb: &str, resource: &str| {
        let a = Attributes { namespace, name: "x", ..Attributes::resource(user, verb, "", resource) };
        let outcome = futures_util::FutureExt::now_or_never(rbac.authorize(&a)).unwrap();
        black_box(outcome).allowed()
    };
    let (granted, refused) = (user("u5000"), user("refused"));
    assert!(decide(&granted, "n0", "get", "pods") && !decide(&refused, "n0", "get", "pods"));
    measure("allowed by a role binding", || assert!(decide(&granted, "n0", "get", "pods")));
    let node = user("c500");
    measure("allowed by a cluster role binding", || assert!(decide(&node, "", "create", "nodes")));
    measure("refused", || assert!(!decide(&refused, "n0", "get", "pods")));
    measure("all that is held", || drop(black_box(rbac.held(&granted, "n0"))));
}
