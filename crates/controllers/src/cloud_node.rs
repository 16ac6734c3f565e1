//! Nodes of machines in a cloud: what the provider knows of a machine becomes the node's provider ID, labels and addresses. Source:
//! upstream's node controller of `k8s.io/cloud-provider`.
//!
//! Invariants:
//! - The taint that keeps pods from an uninitialized node goes with the same write that says which machine it is.
//! - A provider ID is never changed, and an address that the kubelet was started with stays the node's.
//! - Of an older and a newer label for one fact, the older one decides.

use crate::{
    Descriptor, Start, WorkersFlag,
    cloud_provider::{
        Attempts, CloudError, CloudProvider, InstanceMetadata, PROVIDED_NODE_IP, UNINITIALIZED, address_list,
        taint,
    },
    node_lifecycle::taint_value,
    shared::running::{RUNNING, running},
};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use kaji_runtime::{
    Buckets, Change, Client, Controller, Cx, EventRecord, Informers, Key, Metric, Moment, PatchKind, Plan,
    Projection, Reconciler, Step, View, Write,
    client::Target,
    objects::{Node, NodeAddress},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

const COMPONENT: &str = "cloud-node-controller";
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(300);
const HOST_NAME: &str = "Hostname";

static TAINT_REMOVAL_DELAY: Metric = Metric::histogram(
    "node_controller_cloud_provider_taint_removal_delay_seconds",
    "[ALPHA] Number of seconds after node creation when NodeController removed the cloud-provider taint of a single node.",
    &[],
    Buckets::exponential(1.0, 4.0, 6),
);
static INITIAL_SYNC_DELAY: Metric = Metric::histogram(
    "node_controller_initial_node_sync_delay_seconds",
    "[ALPHA] Number of seconds after node creation when NodeController finished the initial synchronization of a single node.",
    &[],
    Buckets::exponential(1.0, 4.0, 6),
);
/// The metrics of the controller.
pub static METRICS: [&Metric; 3] = [&TAINT_REMOVAL_DELAY, &INITIAL_SYNC_DELAY, &RUNNING];

/// Labels of the same fact: the older one, and the one that followed it.
const ZONE: (&str, &str) = ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone");
const REGION: (&str, &str) = ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region");
const INSTANCE_TYPE: (&str, &str) = ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type");

/// The controller's line in the table. It has the account of the node lifecycle controller, as upstream's.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "cloud-node-controller",
    components: &[COMPONENT],
    service_account: Some("node-controller"),
    workers: Some(WorkersFlag { name: "concurrent-node-syncs", default: 1 }),
    start: Start::Reconcilers(|informers, config| {
        let cloud = config.cloud.as_ref().filter(|cloud| cloud.instances().is_some());
        let period = config.loops.cloud.node_status_period;
        cloud.map(|cloud| controller(informers, cloud.clone(), period)).into_iter().collect()
    }),
};

fn controller(informers: &Arc<Informers>, cloud: Arc<dyn CloudProvider>, period: Duration) -> Controller {
    let follows = cloud.instances().is_some_and(crate::cloud_provider::Instances::has_addresses);
    Controller::new(CloudNodes::new(cloud, period), informers)
        .reads::<Node>(move |change, _| keys_of_node(change, follows))
        .gauges(|_| vec![running("cloud-node")])
}

/// Nodes that are uninitialized or have labels that differ; with addresses from the provider each one when it comes.
fn keys_of_node(change: &Change<Node>, follows: bool) -> Vec<Key> {
    let due = |node: &&Arc<Node>| {
        taint(node, UNINITIALIZED).is_some()
            || !differing_labels(node).is_empty()
            || (follows && change.old.is_none())
    };
    change.new.iter().filter(due).map(|node| node.metadata.key()).collect()
}

type Known = Result<Option<InstanceMetadata>, CloudError>;

struct CloudNodes {
    cloud: Arc<dyn CloudProvider>,
    /// Between two questions about a node's addresses.
    period: Duration,
    answers: Mutex<HashMap<Key, Known>>,
    attempts: Attempts,
}

impl CloudNodes {
    fn new(cloud: Arc<dyn CloudProvider>, period: Duration) -> CloudNodes {
        let attempts = Attempts::new(FIRST_RETRY, LAST_RETRY);
        CloudNodes { cloud, period, answers: Mutex::default(), attempts }
    }

    fn answers(&self) -> MutexGuard<'_, HashMap<Key, Known>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks about a node that is uninitialized, or has addresses from the provider.
    async fn ask(&self, view: &View, key: &Key) -> Option<Known> {
        let instances = self.cloud.instances()?;
        let nodes = view.get::<Node>();
        let node = nodes.by_key(key)?;
        let needed = taint(node, UNINITIALIZED).is_some() || instances.has_addresses();
        if needed { Some(instances.metadata(node).await) } else { None }
    }

    /// What an uninitialized node becomes.
    fn initialized(&self, node: &Node, key: &Key, answer: Known, now: Timestamp) -> Plan {
        let metadata = match answer {
            Ok(Some(metadata)) => metadata,
            // The provider leaves the node alone; what changes of it brings the question back.
            Ok(None) => return Plan::nothing(),
            Err(error) => {
                return self.failed(key, &format!("failed to get instance metadata: {error}"));
            }
        };
        if metadata.provider_id.is_empty() && node.spec.provider_id.is_empty() {
            let name = &node.metadata.name;
            return self
                .failed(key, &format!("cloud provider does not set node provider ID for node {name}"));
        }
        let addresses = match addresses(node, &metadata) {
            Ok(addresses) => addresses,
            Err(error) => return self.failed(key, &format!("the provided node ip is not valid: {error}")),
        };
        self.attempts.forget(key);
        let reference = node.metadata.reference(&Node::api_version(), Node::KIND);
        let synced = EventRecord::normal(reference, "Synced", "Node synced successfully");
        let write = Step { write: initialize(node, &metadata), on_success: Some(synced), on_failure: None };
        let plan = measured(Plan::nothing().stage(vec![write]), node, now);
        match addresses {
            Some(addresses) => plan.then(patch_addresses(node, &addresses)),
            None => plan,
        }
    }

    fn failed(&self, key: &Key, error: &str) -> Plan {
        let wait = self.attempts.failed(key);
        tracing::warn!(node = key.name, provider = self.cloud.name(), error, "the node stays uninitialized");
        Plan::nothing().again_after(wait)
    }

    /// The addresses of an initialized node.
    fn followed(&self, node: &Node, answer: Known) -> Plan {
        let found = match answer {
            Ok(Some(metadata)) => addresses(node, &metadata),
            Ok(None) => Ok(None),
            Err(error) => Err(error.to_string()),
        };
        let plan = Plan::nothing().again_after(self.period);
        match found {
            Ok(Some(addresses)) => plan.then(patch_addresses(node, &addresses)),
            Ok(None) => plan,
            Err(error) => {
                tracing::warn!(
                    node = node.metadata.name,
                    error,
                    "the node's addresses cannot be read from the cloud provider"
                );
                plan
            }
        }
    }
}

impl Reconciler for CloudNodes {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "Nodes"
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &METRICS
    }

    fn prepares(&self) -> bool {
        true
    }

    fn prepare<'a>(&'a self, view: &'a View, key: &'a Key, _: &'a Client) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let answer = self.ask(view, key).await;
            match answer {
                Some(answer) => drop(self.answers().insert(key.clone(), answer)),
                None => drop(self.answers().remove(key)),
            }
        })
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let answer = self.answers().remove(key);
        let nodes = view.get::<Node>();
        let Some(node) = nodes.by_key(key) else {
            self.attempts.forget(key);
            return Plan::nothing();
        };
        if taint(node, UNINITIALIZED).is_some() {
            return match answer {
                Some(answer) => self.initialized(node, key, answer, cx.now),
                // It was initialized when it was asked about.
                None => Plan::nothing().again_after(FIRST_RETRY),
            };
        }
        let labels = differing_labels(node);
        let mut plan = answer.map_or_else(Plan::nothing, |answer| self.followed(node, answer));
        if !labels.is_empty() {
            plan = plan.then(Write::Patch {
                target: Target::of::<Node>("", &node.metadata.name),
                kind: PatchKind::Merge,
                body: json!({"metadata": {"uid": node.metadata.uid, "labels": labels}}),
            });
        }
        plan
    }
}

/// Measures how old a node is that is initialized. The time of the decision counts: what was asked before it is in it, and the writes
/// take a moment.
fn measured(plan: Plan, node: &Node, now: Timestamp) -> Plan {
    let meta = &node.metadata;
    let Some(created) = meta.creation_timestamp else { return plan };
    let age = now.duration_since(created).as_secs_f64();
    let untainted = Moment::Written(Target::of::<Node>("", &meta.name));
    plan.observe(untainted, TAINT_REMOVAL_DELAY.sample([], age))
        .observe(Moment::Succeeded, INITIAL_SYNC_DELAY.sample([], age))
}

/// The newer labels that do not say what the older ones do.
fn differing_labels(node: &Node) -> BTreeMap<&'static str, &String> {
    let labels = &node.metadata.labels;
    let differing = [ZONE, REGION, INSTANCE_TYPE].into_iter().filter_map(|(older, newer)| {
        let value = labels.get(older)?;
        (labels.get(newer) != Some(value)).then_some((newer, value))
    });
    differing.collect()
}

/// Says which machine a node is, and lets pods come.
fn initialize(node: &Node, metadata: &InstanceMetadata) -> Write {
    let meta = &node.metadata;
    let mut labels = BTreeMap::new();
    let facts =
        [(INSTANCE_TYPE, &metadata.instance_type), (ZONE, &metadata.zone), (REGION, &metadata.region)];
    for ((older, newer), value) in facts {
        if !value.is_empty() {
            labels.extend([(older, value.as_str()), (newer, value.as_str())]);
        }
    }
    let others = metadata.labels.iter().filter(|(key, _)| !reserved(key) && !meta.labels.contains_key(*key));
    labels.extend(others.map(|(key, value)| (key.as_str(), value.as_str())));
    let taints: Vec<Value> =
        node.spec.taints.iter().filter(|taint| taint.key != UNINITIALIZED).map(taint_value).collect();
    let mut body = json!({
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "labels": labels},
        "spec": {"taints": taints},
    });
    if node.spec.provider_id.is_empty() {
        body["spec"]["providerID"] = metadata.provider_id.as_str().into();
    }
    Write::Patch { target: Target::of::<Node>("", &meta.name), kind: PatchKind::Merge, body }
}

/// Whether a label is of Kubernetes' own domains, which providers have nothing to say in.
fn reserved(label: &str) -> bool {
    let Some((domain, _)) = label.split_once('/') else { return false };
    ["kubernetes.io", "k8s.io"]
        .iter()
        .any(|own| domain.strip_suffix(own).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

/// The addresses that a node should have instead of its own, if it should have others.
///
/// # Errors
/// The kubelet was started with an address that the machine has not.
fn addresses(node: &Node, metadata: &InstanceMetadata) -> Result<Option<Vec<NodeAddress>>, String> {
    if metadata.addresses.is_empty() {
        return Ok(None);
    }
    let mut addresses = metadata.addresses.clone();
    if !addresses.iter().any(|address| &*address.kind == HOST_NAME) {
        addresses.extend(node.status.addresses.iter().filter(|a| &*a.kind == HOST_NAME).cloned());
    }
    if let Some(provided) = node.metadata.annotations.get(PROVIDED_NODE_IP) {
        addresses = preferred(provided, &addresses)?;
    }
    Ok((*addresses != *node.status.addresses).then_some(addresses))
}

/// The addresses that the kubelet was started with first; of their types no others.
fn preferred(provided: &str, addresses: &[NodeAddress]) -> Result<Vec<NodeAddress>, String> {
    let (mut first, mut kinds) = (vec![], BTreeSet::new());
    for text in provided.split(',').map(str::trim) {
        let ip: IpAddr = text.parse().map_err(|_| format!("failed to parse node IP {provided:?}"))?;
        let before = first.len();
        let is_it = |address: &&NodeAddress| address.address.parse().is_ok_and(|other: IpAddr| other == ip);
        for address in addresses.iter().filter(is_it) {
            kinds.insert(address.kind.clone());
            first.push(address.clone());
        }
        if first.len() == before {
            return Err(format!("failed to get node address from cloud provider that matches ip: {ip}"));
        }
    }
    first.extend(addresses.iter().filter(|address| !kinds.contains(&address.kind)).cloned());
    Ok(first)
}

fn patch_addresses(node: &Node, addresses: &[NodeAddress]) -> Write {
    Write::Patch {
        target: Target::of::<Node>("", &node.metadata.name).subresource("status"),
        kind: PatchKind::Merge,
        body: json!({
            "metadata": {"uid": node.metadata.uid},
            "status": {"addresses": address_list(addresses)},
        }),
    }
}

#[cfg(test)]
mod tests;
