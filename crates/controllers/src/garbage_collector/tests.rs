//! Tests of `gc`: fixtures in, expectations out.

use super::{
    Discovered, SYNC,
    decide::{FOREGROUND, Facts, Live, Next, coordinates, decide},
    graph::{Coordinates, Effect, Graph, Identity, Observed, Owner},
    is_enough_to_begin,
};
use expect_test::expect;
use kaji_runtime::OwnerRef;
use std::{collections::HashMap, sync::Arc};

fn owner(kind: &str, uid: &str, blocks: bool) -> OwnerRef {
    OwnerRef {
        api_version: "v1".into(),
        kind: kind.into(),
        name: uid.into(),
        uid: uid.into(),
        block_owner_deletion: blocks,
        ..OwnerRef::default()
    }
}

fn identity(kind: &str, namespace: &str, uid: &str) -> Identity {
    let at = Coordinates { kind: kind.into(), api_version: "v1".into(), name: uid.into(), uid: uid.into() };
    Identity { at: Arc::new(at), namespace: namespace.into() }
}

/// An object and what the server would answer.
fn pod(uid: &str, owners: &[OwnerRef], finalizers: &[&str]) -> (Observed, Live) {
    let deleting = finalizers.contains(&"-");
    let seen = Observed {
        identity: identity("Pod", "ns", uid),
        owners: owners
            .iter()
            .map(|o| Owner { at: Arc::new(coordinates(o)), blocks: o.block_owner_deletion })
            .collect(),
        deleting,
        foreground: deleting && finalizers.contains(&FOREGROUND),
        orphaning: deleting && finalizers.contains(&"orphan"),
    };
    let live = Live {
        uid: uid.into(),
        resource_version: "1".into(),
        deleting,
        finalizers: finalizers.iter().filter(|f| **f != "-").map(ToString::to_string).collect(),
        owners: owners.to_vec(),
    };
    (seen, live)
}

#[derive(Default)]
struct World {
    graph: Graph,
    live: HashMap<String, Live>,
}

impl World {
    fn see(&mut self, (seen, live): (Observed, Live)) -> String {
        self.live.insert(live.uid.clone(), live);
        show(&self.graph.observe(seen))
    }

    /// Decides until there is a decision, as the collector does; returns the lookups and the decision.
    fn decide(&mut self, uid: &str) -> String {
        let (mut facts, mut lookups) = (Facts::default(), String::new());
        loop {
            let scope = |_: &str, kind: &str| (kind != "Unknown").then_some(kind != "Node");
            match decide(&self.graph, uid, &facts, &scope) {
                Next::LookUp(item) => {
                    lookups += &format!("get {}; ", item.at.uid);
                    facts.item = Some(self.live.get(&*item.at.uid).cloned());
                }
                Next::LookUpOwner(item) => {
                    lookups += &format!("get {}{}; ", item.namespace, item.at.uid);
                    let live = self.live.get(&*item.at.uid).cloned();
                    if live.is_none() {
                        self.graph.mark_absent(item.clone());
                    }
                    facts.owners.insert((*item.at).clone(), live);
                }
                Next::Absent(item) => return format!("{lookups}absent: {}", show(&self.graph.absent(&item))),
                Next::Push(uids) => {
                    let mut uids: Vec<_> = uids.iter().map(ToString::to_string).collect();
                    uids.sort();
                    return format!("{lookups}push {}", uids.join(" "));
                }
                Next::Release { item, finalizer, .. } => {
                    return format!("{lookups}release {} {finalizer}", item.at.uid);
                }
                Next::SetOwners { item, owners, .. } => {
                    let owners: Vec<_> = owners.iter().map(|o| o.uid.clone()).collect();
                    return format!("{lookups}owners of {} are {}", item.at.uid, owners.join(" "));
                }
                Next::Delete { item, policy, unblock, .. } => {
                    let unblock = if unblock { " after unblocking" } else { "" };
                    return format!("{lookups}delete {} {policy}{unblock}", item.at.uid);
                }
                other => return format!("{lookups}{other:?}"),
            }
        }
    }
}

fn show(effects: &[Effect]) -> String {
    let mut out: Vec<String> = effects
        .iter()
        .map(|e| match e {
            Effect::Check(uid) => format!("check {uid}"),
            Effect::CheckLater(uid) => format!("later {uid}"),
            Effect::Orphan(uid) => format!("orphan {uid}"),
            Effect::WrongNamespace { dependent, owner } => {
                format!("wrong namespace {} {}", dependent.at.uid, owner.uid)
            }
        })
        .collect();
    out.sort();
    out.join(", ")
}

#[test]
fn deletes_dependents_of_deleted_owners() {
    let mut world = World::default();
    expect![""].assert_eq(&world.see(pod("rs", &[], &[])));
    expect![""].assert_eq(&world.see(pod("p", &[owner("Pod", "rs", true)], &[])));
    expect!["get p; get nsrs; Done"].assert_eq(&world.decide("p"));
    world.live.remove("rs");
    expect!["check p"].assert_eq(&show(&world.graph.deleted(&identity("Pod", "ns", "rs"))));
    // A deletion that was seen needs no question.
    expect!["get p; delete p Background"].assert_eq(&world.decide("p"));
}

#[test]
fn handles_a_dependent_before_its_owner() {
    let mut world = World::default();
    expect!["check rs"].assert_eq(&world.see(pod("p", &[owner("Pod", "rs", true)], &[])));
    let late = pod("rs", &[], &[]);
    world.live.insert("rs".into(), late.1.clone());
    expect!["get rs; Later"].assert_eq(&world.decide("rs"));
    expect![""].assert_eq(&world.see(late));
    expect!["get rs; Done"].assert_eq(&world.decide("rs"));
}

#[test]
fn deletes_dependents_of_an_owner_that_never_existed() {
    let mut world = World::default();
    world.see(pod("p", &[owner("Pod", "rs", true)], &[]));
    expect!["get rs; absent: check p"].assert_eq(&world.decide("rs"));
    expect!["get p; delete p Background"].assert_eq(&world.decide("p"));
    assert!(world.graph.get("rs").is_none());
}

#[test]
fn an_owner_with_another_uid_is_absent() {
    let mut world = World::default();
    world.see(pod("p", &[owner("Pod", "rs", true)], &[]));
    let mut other = pod("rs", &[], &[]).1;
    other.uid = "other".into();
    world.live.insert("rs".into(), other);
    expect!["get p; get nsrs; delete p Background"].assert_eq(&world.decide("p"));
}

#[test]
fn removes_absent_owners_if_another_remains() {
    let mut world = World::default();
    world.see(pod("a", &[], &[]));
    world.see(pod("p", &[owner("Pod", "a", true), owner("Pod", "gone", true)], &[]));
    expect!["get p; get nsa; get nsgone; owners of p are a"].assert_eq(&world.decide("p"));
}

#[test]
fn foreground_deletion_waits_for_dependents() {
    let mut world = World::default();
    world.see(pod("rs", &[], &[]));
    world.see(pod("a", &[owner("Pod", "rs", true)], &[]));
    world.see(pod("b", &[owner("Pod", "rs", false)], &[]));
    expect!["check a, check b, check rs"].assert_eq(&world.see(pod("rs", &[], &["-", FOREGROUND])));
    expect![""].assert_eq(&world.see(pod("rs", &[], &["-", FOREGROUND])));
    expect!["get rs; push a"].assert_eq(&world.decide("rs"));
    expect!["get a; get nsrs; delete a Background"].assert_eq(&world.decide("a"));
    world.live.remove("a");
    expect!["check rs"].assert_eq(&show(&world.graph.deleted(&identity("Pod", "ns", "a"))));
    expect!["get rs; release rs foregroundDeletion"].assert_eq(&world.decide("rs"));
}

#[test]
fn a_second_foreground_deletion_is_ended_as_well() {
    let mut world = World::default();
    let waiting = || pod("p", &[], &["-", FOREGROUND, "x/y"]);
    expect!["check p"].assert_eq(&world.see(waiting()));
    expect!["get p; release p foregroundDeletion"].assert_eq(&world.decide("p"));
    expect![""].assert_eq(&world.see(pod("p", &[], &["-", "x/y"])));
    expect!["get p; Done"].assert_eq(&world.decide("p"));
    expect!["check p"].assert_eq(&world.see(waiting()));
    expect!["get p; release p foregroundDeletion"].assert_eq(&world.decide("p"));
    // The same once more is no news.
    expect![""].assert_eq(&world.see(waiting()));
}

#[test]
fn foreground_deletion_propagates_and_breaks_cycles() {
    let mut world = World::default();
    world.see(pod("d", &[], &["-", FOREGROUND]));
    world.see(pod("rs", &[owner("Pod", "d", true)], &[]));
    world.see(pod("p", &[owner("Pod", "rs", true)], &[]));
    expect!["get rs; get nsd; delete rs Foreground"].assert_eq(&world.decide("rs"));
    // The pod is itself on its way in the foreground: perhaps it waits for the set, in a circle.
    world.see(pod("p", &[owner("Pod", "rs", true)], &["-", FOREGROUND]));
    expect!["get rs; get nsd; delete rs Foreground after unblocking"].assert_eq(&world.decide("rs"));
}

#[test]
fn removes_a_waiting_owner_if_another_remains() {
    let mut world = World::default();
    world.see(pod("waits", &[], &["-", FOREGROUND]));
    world.see(pod("stays", &[], &[]));
    world.see(pod("p", &[owner("Pod", "waits", true), owner("Pod", "stays", true)], &[]));
    expect!["get p; get nswaits; get nsstays; owners of p are stays"].assert_eq(&world.decide("p"));
    // With that the one that waited is looked at again.
    expect!["check waits"].assert_eq(&world.see(pod("p", &[owner("Pod", "stays", true)], &[])));
    expect!["get waits; release waits foregroundDeletion"].assert_eq(&world.decide("waits"));
}

#[test]
fn orphans_dependents_once() {
    let mut world = World::default();
    world.see(pod("d", &[], &[]));
    expect!["orphan d"].assert_eq(&world.see(pod("d", &[], &["-", "orphan"])));
    expect![""].assert_eq(&world.see(pod("d", &[], &["-", "orphan"])));
    expect!["Done"].assert_eq(&world.decide("d"));
}

#[test]
fn deletes_with_policy_orphan_after_the_orphan_finalizer() {
    let mut world = World::default();
    world.see(pod("rs", &[owner("Pod", "gone", true)], &["orphan"]));
    expect!["get rs; get nsgone; delete rs Orphan"].assert_eq(&world.decide("rs"));
}

#[test]
fn ignores_owners_in_other_namespaces() {
    let mut world = World::default();
    let (mut far, live) = pod("far", &[], &[]);
    far.identity = identity("Pod", "other", "far");
    world.see((far, live));
    expect!["check p, wrong namespace p far"].assert_eq(&world.see(pod(
        "p",
        &[owner("Pod", "far", true)],
        &[],
    )));
    // The lookup is in the dependent's namespace, where no such owner exists.
    world.live.remove("far");
    expect!["get p; get nsfar; delete p Background"].assert_eq(&world.decide("p"));
    // The other order: first the dependent, then the owner in another namespace.
    let mut world = World::default();
    expect!["check far"].assert_eq(&world.see(pod("p", &[owner("Pod", "far", true)], &[])));
    let (mut far, live) = pod("far", &[], &[]);
    far.identity = identity("Pod", "other", "far");
    expect!["check p, wrong namespace p far"].assert_eq(&world.see((far, live)));
}

#[test]
fn a_cluster_scoped_object_cannot_have_a_namespaced_owner() {
    let mut world = World::default();
    let (mut node, live) = pod("n", &[owner("Pod", "p", true)], &[]);
    node.identity = identity("Node", "", "n");
    world.see((node, live));
    expect!["get n; Done"].assert_eq(&world.decide("n"));
    world.see(pod("q", &[owner("Unknown", "x", true)], &[]));
    expect!["get q; Later"].assert_eq(&world.decide("q"));
}

#[test]
fn resolves_contradicting_owner_references() {
    let mut world = World::default();
    world.see(pod("a", &[owner("Node", "x", true)], &[]));
    expect!["check b"].assert_eq(&world.see(pod("b", &[owner("Pod", "x", true)], &[])));
    // The first identity is absent, so the other is tried.
    expect!["get x; absent: check a, later x"].assert_eq(&world.decide("x"));
    expect!["get x; absent: check b, later x"].assert_eq(&world.decide("x"));
}

#[test]
fn keeps_objects_of_a_resource_that_is_no_longer_served() {
    let mut world = World::default();
    world.see(pod("rs", &[], &[]));
    world.see(pod("p", &[owner("Pod", "rs", true)], &[]));
    world.graph.forget_kind("v1", "Pod");
    assert!(world.graph.get("p").is_none());
}

#[test]
fn a_group_version_that_could_not_be_read_is_waited_for_before_the_first_decision() {
    let found = |failed: &[&str]| Discovered {
        resources: vec![],
        failed: failed.iter().map(|version| ((*version).to_owned(), "refused".to_owned())).collect(),
    };
    let second = std::time::Duration::from_secs(1);
    assert!(is_enough_to_begin(&found(&[]), second));
    // Without `v1` no pod blocks the deletion of its owner.
    assert!(!is_enough_to_begin(&found(&["v1"]), second));
    assert!(is_enough_to_begin(&found(&["metrics.example.com/v1"]), SYNC));
}
