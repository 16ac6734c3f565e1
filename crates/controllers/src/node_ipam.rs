//! Ranges of pod addresses for nodes (`spec.podCIDRs`), out of the cluster's. Source: upstream's
//! `pkg/controller/nodeipam`, the `RangeAllocator`.
//!
//! Invariants:
//! - No two nodes are given ranges that overlap; those that nodes have already are known before any is given out.
//! - A range is a node's until the node is gone, whatever becomes of the write that says so.

mod cidr_set;
mod metrics;

pub use cidr_set::{MaskSizes, NodeRanges};

use crate::{Descriptor, Start};
use cidr_set::Pool;
use kaji_runtime::{
    Change, Controller, Cx, EventRecord, Informers, Key, Metric, PatchKind, Plan, Projection, Reconciler,
    Step, View, Write, client::Target, objects::Node,
};
use serde_json::json;
use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// When a node for which there was nothing left is looked at again, though nothing was released.
const AGAIN: Duration = Duration::from_secs(60);
/// Nodes that are looked at again for each that is gone.
const WOKEN: usize = 4;

const COMPONENT: &str = "cidrAllocator";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "node-ipam-controller",
    components: &[COMPONENT],
    service_account: Some("node-controller"),
    workers: None,
    start: Start::Reconcilers(|informers, config| {
        config.node_ranges.iter().map(|ranges| controller(informers, ranges)).collect()
    }),
};

/// The controller.
fn controller(informers: &Arc<Informers>, ranges: &NodeRanges) -> Controller {
    let shared = Shared(Arc::new(Mutex::new(State::new(ranges))));
    let (seen, measured) = (shared.clone(), shared.clone());
    Controller::new(Allocator(shared), informers)
        .reads::<Node>(move |change, _| seen.lock().note(change))
        .gauges(move |_| metrics::of_ranges(&measured.lock().pool))
}

struct State {
    pool: Pool,
    /// Nodes for which there was nothing left.
    without: BTreeSet<String>,
    /// Nodes that were noted and are not gone. A view may be older than what was noted.
    present: HashSet<String>,
}

impl State {
    fn new(ranges: &NodeRanges) -> State {
        State { pool: Pool::new(ranges), without: BTreeSet::new(), present: HashSet::new() }
    }
}

#[derive(Clone)]
struct Shared(Arc<Mutex<State>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes note of what a node has; says which nodes may now be given something.
    fn note(&mut self, change: &Change<Node>) -> Vec<Key> {
        let meta = &change.any().metadata;
        if change.new.is_some() {
            self.present.insert(meta.name.clone());
        } else {
            self.present.remove(&meta.name);
        }
        match &change.new {
            Some(node) if !node.spec.pod_cidrs.is_empty() => {
                self.without.remove(&meta.name);
                self.pool.hold(&meta.name, &node.spec.pod_cidrs);
                vec![]
            }
            // Another node of the same name: what the former had is not its.
            Some(_) if change.old.as_ref().is_some_and(|old| old.metadata.uid != meta.uid) => {
                self.gone(&meta.name);
                vec![meta.key()]
            }
            Some(_) => vec![meta.key()],
            None => self.gone(&meta.name),
        }
    }

    fn gone(&mut self, node: &str) -> Vec<Key> {
        self.without.remove(node);
        if !self.pool.release(node) {
            return vec![];
        }
        let woken: Vec<String> = self.without.iter().take(WOKEN).cloned().collect();
        woken.into_iter().map(|name| Key::new("", name)).collect()
    }
}

struct Allocator(Shared);

impl Reconciler for Allocator {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &metrics::METRICS
    }

    fn reconcile(&self, view: &View, key: &Key, _: &Cx<'_>) -> Plan {
        let nodes = view.get::<Node>();
        let mut state = self.0.lock();
        let Some(node) = nodes.by_key(key) else {
            // Its end may have been noted before a range was put aside for it.
            if !state.present.contains(&key.name) {
                state.gone(&key.name);
            }
            return Plan::nothing();
        };
        if !node.spec.pod_cidrs.is_empty() || node.metadata.deleting() {
            return Plan::nothing();
        }
        let name = &node.metadata.name;
        let event = |reason: &str| {
            let about = node.metadata.reference(&Node::api_version(), Node::KIND);
            EventRecord::normal(about, reason, format!("Node {name} status is now: {reason}"))
        };
        let Some(assigned) = state.pool.assign(name) else {
            state.without.insert(name.clone());
            return Plan::nothing().event(event("CIDRNotAvailable")).again_after(AGAIN);
        };
        state.without.remove(name);
        let ranges = &assigned.ranges;
        let write = Write::Patch {
            target: Target::of::<Node>("", name),
            kind: PatchKind::Strategic,
            body: json!({
                "metadata": {"uid": node.metadata.uid},
                "spec": {"podCIDR": ranges.first(), "podCIDRs": ranges},
            }),
        };
        let on_failure = Some(event("CIDRAssignmentFailed"));
        let plan = Plan::nothing().stage(vec![Step { write, on_success: None, on_failure }]);
        metrics::assigned(plan, &assigned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{object, observed, reconcile, sample, snapshot, text};
    use expect_test::expect;
    use serde_json::Value;

    fn node(name: &str, uid: &str, cidrs: &[&str]) -> Value {
        json!({"metadata": {"name": name, "uid": uid}, "spec": {"podCIDRs": cidrs}})
    }

    fn allocator(cluster: &str) -> Allocator {
        let ranges = NodeRanges::new(&[cluster], MaskSizes::default(), &[]).unwrap();
        Allocator(Shared(Arc::new(Mutex::new(State::new(&ranges)))))
    }

    fn note(allocator: &Allocator, old: Option<Value>, new: Option<Value>) -> Vec<String> {
        let arc = |value: Option<Value>| value.map(|v| Arc::new(object::<Node>(v)));
        let keys = allocator.0.lock().note(&Change { old: arc(old), new: arc(new) });
        keys.into_iter().map(|k| k.name).collect()
    }

    fn plan(allocator: &Allocator, nodes: &[Value], name: &str) -> String {
        let view = View::default().with(snapshot::<Node>(nodes.to_vec()));
        text(&reconcile(allocator, &view, "", name, &[]))
    }

    #[test]
    fn allocates_ranges_to_nodes_without_one() {
        let allocator = allocator("10.244.0.0/22");
        let has = node("old", "u0", &["10.244.0.0/24"]);
        assert!(note(&allocator, None, Some(has.clone())).is_empty());
        let (a, b) = (node("a", "u1", &[]), node("b", "u2", &[]));
        assert_eq!(note(&allocator, None, Some(a.clone())), ["a"]);
        let nodes = [has, a.clone(), b];
        let all = ["old", "a", "b", "a"].map(|name| plan(&allocator, &nodes, name));
        // One that failed is tried again with the same range.
        expect![[r#"
            =
            strategic /api/v1/nodes/a {"metadata":{"uid":"u1"},"spec":{"podCIDR":"10.244.1.0/24","podCIDRs":["10.244.1.0/24"]}}
                failed: Normal CIDRAssignmentFailed: Node a status is now: CIDRAssignmentFailed
            =
            strategic /api/v1/nodes/b {"metadata":{"uid":"u2"},"spec":{"podCIDR":"10.244.2.0/24","podCIDRs":["10.244.2.0/24"]}}
                failed: Normal CIDRAssignmentFailed: Node b status is now: CIDRAssignmentFailed
            =
            strategic /api/v1/nodes/a {"metadata":{"uid":"u1"},"spec":{"podCIDR":"10.244.1.0/24","podCIDRs":["10.244.1.0/24"]}}
                failed: Normal CIDRAssignmentFailed: Node a status is now: CIDRAssignmentFailed
        "#]].assert_eq(&all.join("=\n"));
        let mut leaving = a;
        leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(plan(&allocator, &[leaving], "a"), "");
    }

    #[test]
    fn counts_what_is_allocated_and_released() {
        let allocator = allocator("10.244.0.0/22");
        let shown = || {
            let samples = metrics::of_ranges(&allocator.0.lock().pool);
            samples.iter().map(|s| sample(s).replace("node_ipam_controller_", "") + "\n").collect::<String>()
        };
        let has = node("old", "u0", &["10.244.0.0/24"]);
        note(&allocator, None, Some(has.clone()));
        // Seen again as it was, it takes nothing.
        note(&allocator, Some(has.clone()), Some(has.clone()));
        let view = View::default().with(snapshot::<Node>([node("a", "u1", &[])]));
        let plans = [(), ()].map(|()| observed(&reconcile(&allocator, &view, "", "a", &[])));
        // What is written once more was found before.
        expect![[r#"
            decided: node_ipam_controller_cidrset_allocation_tries_per_request "10.244.0.0/22" = 1
        "#]]
        .assert_eq(&plans.concat());
        note(&allocator, Some(node("a", "u1", &[])), Some(node("a", "u1", &["10.244.1.0/24"])));
        note(&allocator, Some(has), None);
        expect![[r#"
            cirdset_max_cidrs "10.244.0.0/22" = 4
            cidrset_usage_cidrs "10.244.0.0/22" = 0.25
            cidrset_cidrs_allocations_total "10.244.0.0/22" = 2
            cidrset_cidrs_releases_total "10.244.0.0/22" = 1
            running_managed_controllers "nodeipam" "kube-controller-manager" = 1
        "#]]
        .assert_eq(&shown());
    }

    #[test]
    fn reports_exhaustion_and_allocates_released_ranges() {
        let allocator = allocator("10.244.0.0/24");
        let nodes = [node("a", "u1", &[]), node("b", "u2", &[])];
        let all = ["a", "b"].map(|name| plan(&allocator, &nodes, name));
        expect![[r#"
            strategic /api/v1/nodes/a {"metadata":{"uid":"u1"},"spec":{"podCIDR":"10.244.0.0/24","podCIDRs":["10.244.0.0/24"]}}
                failed: Normal CIDRAssignmentFailed: Node a status is now: CIDRAssignmentFailed
            =
            event: Normal CIDRNotAvailable: Node b status is now: CIDRNotAvailable
            again after 60s
        "#]].assert_eq(&all.join("=\n"));
        let has = node("a", "u1", &["10.244.0.0/24"]);
        assert!(note(&allocator, Some(nodes[0].clone()), Some(has.clone())).is_empty());
        assert_eq!(note(&allocator, Some(has), None), ["b"]);
        assert!(plan(&allocator, &nodes, "b").contains("10.244.0.0/24"));
        // One that was gone before its range was put aside.
        assert_eq!(plan(&allocator, &[], "b"), "");
        assert!(plan(&allocator, &nodes, "a").contains("10.244.0.0/24"));
    }

    #[test]
    fn a_stale_view_releases_nothing() {
        let allocator = allocator("10.244.0.0/23");
        note(&allocator, None, Some(node("a", "u1", &["10.244.0.0/24"])));
        assert_eq!(plan(&allocator, &[], "a"), "");
        let nodes = [node("b", "u2", &[])];
        assert!(plan(&allocator, &nodes, "b").contains("10.244.1.0/24"));
        note(&allocator, Some(node("a", "u1", &["10.244.0.0/24"])), None);
        assert!(plan(&allocator, &[node("c", "u3", &[])], "c").contains("10.244.0.0/24"));
    }

    #[test]
    fn a_recreated_node_gets_a_new_range() {
        let allocator = allocator("10.244.0.0/23");
        let old = node("a", "u1", &["10.244.0.0/24"]);
        note(&allocator, None, Some(old.clone()));
        assert_eq!(note(&allocator, Some(old), Some(node("a", "u2", &[]))), ["a"]);
        let nodes = [node("b", "u3", &[])];
        assert!(plan(&allocator, &nodes, "b").contains("10.244.0.0/24"));
    }
}
