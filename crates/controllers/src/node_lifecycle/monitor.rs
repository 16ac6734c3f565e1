//! Monitors the health of nodes: a kubelet that renews neither its lease nor its status makes its node's status `Unknown`;
//! the node's pods are marked not ready, and it gets a `NoExecute` taint, after which `taint-eviction-controller` deletes them.
//!
//! Invariants:
//! - The status of a node becomes `Unknown` only after its lease was read from the server: a view that is behind loses no node.
//! - A node is written once a look: a write bumps the resourceVersion that another one would name. Its taint follows in the
//!   look after its status.
//! - Nodes get taints one by one at the rate of their zone; a node that is ready loses them at once.
//! - What is remembered are observations that a restarted process makes again. Taints of a former process stay meanwhile, so
//!   that a restart delays no eviction.

use super::{
    health::{Health, ready_status, unknown},
    leases::{Live, Readings},
    metrics, patch_taints,
    zones::{Counts, Turn, ZoneKey, Zones, zone_of},
};
use crate::{
    NodeMonitorConfig,
    shared::{conditions::seconds, controller_ref::quiet},
};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use kaji_runtime::{
    Client, Controller, Cx, EventRecord, Failure, Informers, Key, Metric, ObjectSnapshot, PatchKind, Plan,
    Projection, Reconciler, Step, View, Write,
    client::Target,
    objects::{Lease, Node, Pod, Taint},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Events come from it, as upstream's do.
pub const COMPONENT: &str = "node-controller";
/// The wait after a look that wrote: what follows from the write is not delayed by a period.
const SOON: Duration = Duration::from_millis(100);
/// How often pods of a node are marked not ready. A kubelet that is alive may object by then.
const MARKS: u8 = 5;
/// Pods that are marked in one look.
const BURST: usize = 500;

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const NO_EXECUTE: &str = "NoExecute";
/// The label of nodes that the health of zones does not depend on.
pub const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";

/// The controller; it looks at all nodes once a period.
pub fn controller(informers: &Arc<Informers>, config: NodeMonitorConfig) -> Controller {
    Controller::new(Monitor::new(config), informers)
        .reads::<Lease>(|_, _| vec![])
        .reads::<Pod>(|_, _| vec![])
        .reads::<Node>(|_, _| vec![])
        .gauges(|view| metrics::gauges(&view.get()))
        .workers(1)
        .seed(Key::default())
}

/// The reconciler.
#[derive(Default)]
pub struct Monitor(Mutex<State>);

impl Monitor {
    /// One that remembers nothing.
    pub fn new(config: NodeMonitorConfig) -> Self {
        let zones = Zones::new(config.evictions);
        Monitor(Mutex::new(State { config, zones, ..State::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The nodes of which the leases are to be read before the next look.
    pub fn take_wanted(&self) -> BTreeSet<String> {
        self.state().readings.take_wanted()
    }

    /// Takes note of a node's lease, as the server has it.
    pub fn note(&self, node: String, live: Live) {
        self.state().readings.note(node, live);
    }
}

impl Reconciler for Monitor {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "node_lifecycle_controller_pods"
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &metrics::METRICS
    }

    fn prepares(&self) -> bool {
        true
    }

    fn prepare<'a>(&'a self, view: &'a View, _: &'a Key, client: &'a Client) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let leases = view.get::<Lease>();
            for node in self.take_wanted() {
                let live = Live::read(client, &node).await;
                let newer = live.is_newer_than(leases.get(Lease::OF_NODES, &node).map(|lease| &**lease));
                self.note(node, live);
                // With one of them it is known that the view is behind.
                if newer {
                    break;
                }
            }
        })
    }

    fn reconcile(&self, view: &View, _: &Key, cx: &Cx<'_>) -> Plan {
        let mut state = self.state();
        let (nodes, leases, pods) = (view.get::<Node>(), view.get::<Lease>(), view.get::<Pod>());
        state.monitor(&Seen { nodes, leases, pods }, cx)
    }
}

struct Seen {
    nodes: ObjectSnapshot<Node>,
    leases: ObjectSnapshot<Lease>,
    pods: ObjectSnapshot<Pod>,
}

impl Seen {
    fn lease(&self, node: &str) -> Option<&Lease> {
        self.leases.get(Lease::OF_NODES, node).map(|lease| &**lease)
    }
}

#[derive(Default)]
struct State {
    config: NodeMonitorConfig,
    nodes: BTreeMap<String, Health>,
    zones: Zones,
    last: Option<Timestamp>,
    readings: Readings,
}

impl State {
    fn monitor(&mut self, seen: &Seen, cx: &Cx<'_>) -> Plan {
        let passed = self.last.map_or(Duration::ZERO, |last| {
            // A clock that was set back counts as no time.
            Duration::try_from(cx.now.duration_since(last)).unwrap_or_default()
        });
        self.last = Some(cx.now);
        self.refund(seen, cx.failures, cx.now);
        let mut plan = self.classify(seen);
        if self.readings.show_stale_view(|node| seen.lease(node)) {
            tracing::warn!("the view of leases is behind: all nodes stay as they are");
            return metrics::looked(plan.again_after(self.config.period), std::iter::empty(), &[]);
        }
        let (mut steps, counts, unread) = self.observe(seen, passed, cx.now);
        match self.zones.update(&counts, cx.now) {
            Turn::None => {}
            Turn::Stopped => {
                tracing::info!("no node is ready: nothing is evicted until one is");
                self.nodes.values_mut().for_each(|health| health.lift = true);
            }
            Turn::Resumed => {
                tracing::info!("some nodes are ready again: evictions are resumed");
                for health in self.nodes.values_mut() {
                    (health.silence, health.lift) = (Duration::ZERO, false);
                }
            }
        }
        let written: HashSet<String> = steps.iter().map(|s| s.write.target().name.clone()).collect();
        let rest = || seen.nodes.iter().filter(|n| !written.contains(&n.metadata.name));
        let (mut wait, evicted) = self.taint(rest(), &mut steps, cx.now);
        self.mark(rest(), &seen.pods, &mut steps, cx.now);
        // After a failure the queue's backoff decides.
        if (unread || !steps.is_empty()) && cx.failures.is_empty() {
            wait = SOON;
        }
        plan = plan.stage(steps);
        metrics::looked(plan.again_after(wait), counts.keys(), &evicted)
    }

    /// A node that could not be tainted, because something else wrote it meanwhile, does not wait for another token.
    fn refund(&mut self, seen: &Seen, failures: &[Failure], now: Timestamp) {
        let taints = |f: &&Failure| f.target.resource == Node::RESOURCE && f.target.subresource.is_empty();
        for node in failures.iter().filter(taints).filter_map(|f| seen.nodes.get("", &f.target.name)) {
            self.zones.refund(&zone_of(node), now);
        }
    }

    /// Takes note of nodes that came and went.
    fn classify(&mut self, seen: &Seen) -> Plan {
        let (mut plan, mut removed) = (Plan::nothing(), vec![]);
        let stays = |name: &str, health: &Health| {
            seen.nodes.get("", name).is_some_and(|node| node.metadata.uid == health.uid)
        };
        self.nodes.retain(|name, health| {
            let stays = stays(name, health);
            if !stays {
                let text = format!("Removing Node {name} from Controller");
                removed.push(node_event(name, &health.uid, "RemovingNode", &text));
            }
            stays
        });
        plan.events.extend(removed);
        for node in seen.nodes.iter() {
            let name = &node.metadata.name;
            if self.nodes.contains_key(name) {
                continue;
            }
            let mut health = Health::new(node, seen.lease(&node.metadata.name));
            if ready_status(node).is_some_and(|status| status != "True") {
                health.marks = MARKS;
            }
            self.nodes.insert(name.clone(), health);
            let text = format!("Registered Node {name} in Controller");
            plan = plan.event(node_event(name, &node.metadata.uid, "RegisteredNode", &text));
        }
        plan
    }

    /// The statuses of nodes that were silent for too long, the zones as they are with them, and whether leases are to be read
    /// before more is known.
    fn observe(
        &mut self,
        seen: &Seen,
        passed: Duration,
        now: Timestamp,
    ) -> (Vec<Step>, BTreeMap<ZoneKey, Counts>, bool) {
        let (mut steps, mut zones, mut unread) = (vec![], BTreeMap::<ZoneKey, Counts>::new(), false);
        for node in seen.nodes.iter() {
            let Some(health) = self.nodes.get_mut(&node.metadata.name) else { continue };
            health.observe(node, seen.lease(&node.metadata.name), passed, &self.config);
            let mut ready = node.ready();
            if health.silent(&self.config)
                && let Some(conditions) = unknown(node, seconds(now))
            {
                match self.readings.of(&node.metadata.name) {
                    Some(Live::At(_) | Live::Missing) => {
                        if ready {
                            health.marks = MARKS;
                        }
                        steps.push(status_step(node, &conditions, ready));
                        ready = false;
                    }
                    Some(Live::Unread) => {}
                    None => unread = true,
                }
            }
            let counts = zones.entry(zone_of(node)).or_default();
            if node.metadata.labels.contains_key(EXCLUDED) {
                continue;
            }
            *(if ready { &mut counts.ready } else { &mut counts.unready }) += 1;
        }
        self.readings.expire();
        (steps, zones, unread)
    }

    /// Adds and removes `NoExecute` taints. Returns how long to wait for the next token that a node needs, a period at most, and the
    /// nodes that got one.
    fn taint<'a>(
        &mut self,
        nodes: impl Iterator<Item = &'a Arc<Node>>,
        steps: &mut Vec<Step>,
        now: Timestamp,
    ) -> (Duration, Vec<&'a Arc<Node>>) {
        let (mut queue, mut evicted) = (vec![], vec![]);
        for node in nodes {
            let Some(health) = self.nodes.get_mut(&node.metadata.name) else { continue };
            let has = |key: &str| node.spec.taints.iter().any(|t| t.key == key && t.effect == NO_EXECUTE);
            let (wanted, opposite) = match ready_status(node) {
                Some("False") => (NOT_READY, UNREACHABLE),
                Some("Unknown") => (UNREACHABLE, NOT_READY),
                Some("True") => ("", ""),
                _ => continue,
            };
            if wanted.is_empty() || health.lift {
                (health.waiting, health.lift) = (None, false);
                if has(NOT_READY) || has(UNREACHABLE) {
                    // Seen as done only when the view shows it.
                    health.lift = !wanted.is_empty();
                    steps.push(taint_step(node, None, now));
                }
            } else if has(opposite) {
                steps.push(taint_step(node, Some(wanted), now));
            } else if has(wanted) {
                health.waiting = None;
            } else {
                queue.push((*health.waiting.get_or_insert(now), node, wanted));
            }
        }
        queue.sort_by_key(|(since, node, _)| (*since, node.metadata.name.clone()));
        let mut wait = self.config.period;
        for (_, node, wanted) in queue {
            let zone = zone_of(node);
            if self.zones.accepts(&zone, now) {
                steps.push(taint_step(node, Some(wanted), now));
                evicted.push(node);
            } else if let Some(at) = self.zones.next_token(&zone, now) {
                wait = wait.min(Duration::try_from(at.duration_since(now)).unwrap_or_default()).max(SOON);
            }
        }
        (wait, evicted)
    }

    /// Marks the pods of nodes not ready that have become so.
    fn mark<'a>(
        &mut self,
        nodes: impl Iterator<Item = &'a Arc<Node>>,
        pods: &ObjectSnapshot<Pod>,
        steps: &mut Vec<Step>,
        now: Timestamp,
    ) {
        let mut room = BURST;
        for node in nodes {
            let Some(health) = self.nodes.get_mut(&node.metadata.name).filter(|h| h.marks > 0) else {
                continue;
            };
            let ready: Vec<_> = pods.indexed("node", &node.metadata.name).filter(|p| p.ready()).collect();
            if node.ready() || ready.is_empty() {
                health.marks = 0;
                continue;
            }
            if ready.len() <= room {
                health.marks -= 1;
            }
            steps.extend(ready.iter().take(room).map(|pod| mark_step(pod, now)));
            room = room.saturating_sub(ready.len());
        }
    }
}

fn reference(name: &str, uid: &str) -> Value {
    json!({"apiVersion": Node::api_version(), "kind": Node::KIND, "name": name, "uid": uid})
}

fn node_event(name: &str, uid: &str, reason: &str, text: &str) -> EventRecord {
    EventRecord::normal(reference(name, uid), reason, format!("Node {name} event: {text}"))
}

fn status_step(node: &Node, conditions: &Value, was_ready: bool) -> Step {
    let Node { metadata: meta, .. } = node;
    let write = Write::Patch {
        target: Target::of::<Node>("", &meta.name).subresource("status"),
        kind: PatchKind::Strategic,
        body: json!({
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": {"conditions": conditions},
        }),
    };
    let text = format!("Node {} status is now: NodeNotReady", meta.name);
    let event = EventRecord::normal(reference(&meta.name, &meta.uid), "NodeNotReady", text);
    Step { write, on_success: was_ready.then_some(event), on_failure: None }
}

/// Leaves at most one of the two taints: `wanted`.
fn taint_step(node: &Node, wanted: Option<&str>, now: Timestamp) -> Step {
    let foreign = |t: &&Taint| t.effect != NO_EXECUTE || (t.key != NOT_READY && t.key != UNREACHABLE);
    let mut taints: Vec<Taint> = node.spec.taints.iter().filter(foreign).cloned().collect();
    if let Some(key) = wanted {
        let (key, effect) = (key.to_owned(), NO_EXECUTE.to_owned());
        taints.push(Taint { key, effect, time_added: Some(now), ..Taint::default() });
    }
    quiet(patch_taints(node, &taints))
}

/// The other fields of the condition stay: its reason is still why it was ready.
fn mark_step(pod: &Pod, now: Timestamp) -> Step {
    let meta = &pod.metadata;
    let condition = json!({"type": "Ready", "status": "False", "lastTransitionTime": seconds(now)});
    let write = Write::Patch {
        target: Target::of::<Pod>(&meta.namespace, &meta.name).subresource("status"),
        kind: PatchKind::Strategic,
        body: json!({"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}}),
    };
    let regarding = meta.reference(&Pod::api_version(), Pod::KIND);
    let event = EventRecord::warning(regarding, "NodeNotReady", "Node is not ready");
    Step { write, on_success: Some(event), on_failure: None }
}
