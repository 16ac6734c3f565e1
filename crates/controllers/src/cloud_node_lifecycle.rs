//! Nodes of machines that were removed or switched off. A node that is not ready is looked up at the cloud provider: without its
//! machine it is deleted, and while its machine is off it has the taint for that. Source: upstream's node lifecycle controller of
//! `k8s.io/cloud-provider`.
//!
//! Invariants:
//! - A node that is ready is never deleted, and loses the taint.
//! - A provider that has no answer changes nothing.

use crate::{
    Descriptor, Start,
    cloud_provider::{CloudError, CloudProvider, SHUT_DOWN, taint},
    node_lifecycle::patch_taints,
    shared::running::{RUNNING, running},
};
use futures_util::future::BoxFuture;
use kaji_runtime::{
    Change, Client, Controller, Cx, EventRecord, Informers, Key, Metric, Plan, Projection, Reconciler, Step,
    View, Write,
    client::Target,
    objects::{Node, Taint},
};
use serde_json::json;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

const COMPONENT: &str = "cloud-node-lifecycle-controller";
/// The metrics of the controller.
pub static METRICS: [&Metric; 1] = [&RUNNING];

/// The controller's line in the table. It has the account of the node lifecycle controller, as upstream's.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "cloud-node-lifecycle-controller",
    components: &[COMPONENT],
    service_account: Some("node-controller"),
    workers: None,
    start: Start::Reconcilers(|informers, config| {
        let cloud = config.cloud.as_ref().filter(|cloud| cloud.lifecycle().is_some());
        let period = config.loops.nodes.period;
        cloud.map(|cloud| controller(informers, cloud.clone(), period)).into_iter().collect()
    }),
};

fn controller(informers: &Arc<Informers>, cloud: Arc<dyn CloudProvider>, period: Duration) -> Controller {
    let machines = Machines { cloud, period, answers: Mutex::default() };
    let controller = Controller::new(machines, informers).reads::<Node>(|change, _| keys_of_node(change));
    controller.gauges(|_| vec![running("cloud-node-lifecycle")])
}

/// A node is looked up when it comes or stops being ready, and every period after that; the taint of one that is ready goes.
fn keys_of_node(change: &Change<Node>) -> Vec<Key> {
    let facts = |node: &Arc<Node>| (node.ready(), taint(node, SHUT_DOWN).is_some());
    let due = |node: &&Arc<Node>| {
        facts(node) != (true, false) && change.old.as_ref().map(facts) != Some(facts(node))
    };
    change.new.iter().filter(due).map(|node| node.metadata.key()).collect()
}

/// What is known of a machine.
enum Machine {
    Gone,
    On,
    Off,
}

struct Machines {
    cloud: Arc<dyn CloudProvider>,
    period: Duration,
    answers: Mutex<HashMap<Key, Machine>>,
}

impl Machines {
    fn answers(&self) -> MutexGuard<'_, HashMap<Key, Machine>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self, view: &View, key: &Key) -> Result<Option<Machine>, CloudError> {
        let nodes = view.get::<Node>();
        let Some(node) = nodes.by_key(key).filter(|node| !node.ready()) else { return Ok(None) };
        let Some(machines) = self.cloud.lifecycle() else { return Ok(None) };
        if !machines.exists(node).await? {
            return Ok(Some(Machine::Gone));
        }
        let off = machines.is_shut_down(node).await?;
        Ok(Some(if off { Machine::Off } else { Machine::On }))
    }
}

impl Reconciler for Machines {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &METRICS
    }

    fn prepares(&self) -> bool {
        true
    }

    fn prepare<'a>(&'a self, view: &'a View, key: &'a Key, _: &'a Client) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let answer = self.ask(view, key).await.unwrap_or_else(|error| {
                tracing::warn!(node = key.name, provider = self.cloud.name(), %error, "the node's instance cannot be read from the cloud provider");
                None
            });
            match answer {
                Some(answer) => drop(self.answers().insert(key.clone(), answer)),
                None => drop(self.answers().remove(key)),
            }
        })
    }

    fn reconcile(&self, view: &View, key: &Key, _: &Cx<'_>) -> Plan {
        let answer = self.answers().remove(key);
        let nodes = view.get::<Node>();
        let Some(node) = nodes.by_key(key) else { return Plan::nothing() };
        let tainted = taint(node, SHUT_DOWN).is_some();
        if node.ready() {
            let taints: Vec<Taint> =
                node.spec.taints.iter().filter(|t| t.key != SHUT_DOWN).cloned().collect();
            return match tainted {
                true => Plan::nothing().then(patch_taints(node, &taints)),
                false => Plan::nothing(),
            };
        }
        let plan = Plan::nothing().again_after(self.period);
        match answer {
            Some(Machine::Gone) if !node.metadata.deleting() => delete(plan, node),
            Some(Machine::Off) if !tainted => {
                let mut taints = node.spec.taints.clone();
                let (key, effect) = (SHUT_DOWN.to_owned(), "NoSchedule".to_owned());
                taints.push(Taint { key, effect, ..Taint::default() });
                plan.then(patch_taints(node, &taints))
            }
            _ => plan,
        }
    }
}

fn delete(plan: Plan, node: &Node) -> Plan {
    let meta = &node.metadata;
    let reference = json!({
        "apiVersion": Node::api_version(), "kind": Node::KIND, "name": meta.name, "uid": meta.uid,
    });
    let name = &meta.name;
    let text = format!("Deleting node {name} because it does not exist in the cloud provider");
    let failed = format!("Failed deleting node {name}: {{error}}");
    let write = Write::Delete {
        target: Target::of::<Node>("", name),
        options: json!({"preconditions": {"uid": meta.uid}}),
    };
    plan.event(EventRecord::normal(reference.clone(), "DeletingNode", text)).stage(vec![Step {
        write,
        on_success: None,
        on_failure: Some(EventRecord::warning(reference, "DeletingNodeFailed", failed)),
    }])
}

#[cfg(test)]
mod tests;
