//! Attaches the CSI volumes of a node's pods to the node, by `VolumeAttachment` objects, and detaches those that no pod uses
//! any more; says in the Node's status what is attached. Source: upstream's `pkg/controller/volume/attachdetach`.
//!
//! Invariants:
//! - A volume that can only be mounted on one node is attached to one node at a time: one worker decides for all nodes, and
//!   sees its own writes before the next decision.
//! - A volume is detached from a node only after the Node's status has ceased to list it, by a write that fails if the kubelet
//!   has begun to use it meanwhile. Exceptions are nodes that are out of service, and nodes that have not been healthy for
//!   six minutes since their pods went, unless `--disable-force-detach-on-timeout` says otherwise.
//! - Attachments that have other names than those made here are not touched.

mod attach;
mod detach;
mod metrics;
mod wanted;

#[cfg(test)]
mod tests;

use crate::{Descriptor, Start};
use jiff::Timestamp;
use kaji_runtime::{
    Change, Controller, Cx, Informers, Key, Metric, ObjectSnapshot, PatchKind, Plan, Reconciler, Step,
    Target, View, Write,
    objects::{
        AttachedVolume, CsiDriver, CsiSource, Node, PersistentVolume, PersistentVolumeClaim, Pod,
        VolumeAttachment, csi_attachment_name, csi_volume_name,
    },
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

const COMPONENT: &str = "attachdetach-controller";
/// On nodes that leave attaching to this controller.
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "persistentvolume-attach-detach-controller",
    components: &[COMPONENT],
    service_account: Some("attachdetach-controller"),
    workers: None,
    start: Start::Reconcilers(|informers, config| {
        vec![controller(informers, config.loops.volumes.force_detach_on_timeout)]
    }),
};

fn controller(informers: &Arc<Informers>, force_on_timeout: bool) -> Controller {
    Controller::new(AttachDetach { requests: Requests::default(), force_on_timeout }, informers)
        .reads::<Pod>(|_, _| vec![])
        .reads::<PersistentVolume>(|_, _| vec![])
        .reads::<PersistentVolumeClaim>(keys_of_claim)
        .reads::<PersistentVolume>(|change, view| keys_of_volume(change.any(), view))
        .reads::<VolumeAttachment>(keys_of_attachment)
        .reads::<Pod>(keys_of_pod)
        .reads::<Node>(keys_of_node)
        .reads::<CsiDriver>(keys_of_driver)
        .gauges(metrics::gauges)
        .workers(1)
}

fn node_key(name: &str) -> Key {
    Key::new("", name)
}

/// The nodes of the pods that use a claim, by namespace and name.
fn nodes_of(pods: &ObjectSnapshot<Pod>, claim: &str) -> Vec<Key> {
    pods.indexed(Pod::CLAIM, claim).map(|pod| node_key(&pod.spec.node_name)).collect()
}

fn keys_of_claim(change: &Change<PersistentVolumeClaim>, view: &View) -> Vec<Key> {
    let meta = &change.any().metadata;
    nodes_of(&view.get(), &format!("{}/{}", meta.namespace, meta.name))
}

fn keys_of_volume(volume: &PersistentVolume, view: &View) -> Vec<Key> {
    let Some(claim) = volume.spec.claim_ref.as_ref().filter(|_| volume.spec.csi.is_some()) else {
        return vec![];
    };
    nodes_of(&view.get(), &format!("{}/{}", claim.namespace, claim.name))
}

/// The attachment's node, and those that wait for the volume.
fn keys_of_attachment(change: &Change<VolumeAttachment>, view: &View) -> Vec<Key> {
    let spec = &change.any().spec;
    let volumes = view.get::<PersistentVolume>();
    let volume = spec.source.persistent_volume_name.as_ref().and_then(|name| volumes.get("", name));
    let waiting = volume.map(|volume| keys_of_volume(volume, view)).unwrap_or_default();
    [node_key(&spec.node_name)].into_iter().chain(waiting).collect()
}

/// The node of a pod with claims that is new there, gone from there, or over.
fn keys_of_pod(change: &Change<Pod>, _: &View) -> Vec<Key> {
    let facts = |pod: &Option<Arc<Pod>>| {
        pod.as_ref().map(|pod| (pod.metadata.uid.clone(), pod.spec.node_name.clone(), pod.finished()))
    };
    let pod = change.any();
    if pod.spec.volumes.claims.is_empty() || facts(&change.old) == facts(&change.new) {
        return vec![];
    }
    let sides = change.old.iter().chain(&change.new).filter(|pod| !pod.spec.node_name.is_empty());
    sides.map(|pod| node_key(&pod.spec.node_name)).collect()
}

fn keys_of_node(change: &Change<Node>, view: &View) -> Vec<Key> {
    let facts = |node: &Option<Arc<Node>>| {
        node.as_ref().map(|node| {
            let managed = node.metadata.annotations.get(MANAGED).cloned();
            let status = &node.status;
            (status.volumes_in_use.clone(), status.volumes_attached.clone(), node.ready(), managed)
        })
    };
    let taints = |node: &Option<Arc<Node>>| node.as_ref().map(|node| node.spec.taints.clone());
    if facts(&change.old) == facts(&change.new) && taints(&change.old) == taints(&change.new) {
        return vec![];
    }
    let (name, attachments) = (&change.any().metadata.name, view.get::<VolumeAttachment>());
    let attached = attachments.indexed(VolumeAttachment::NODE, name).next().is_some();
    let listed = change.new.as_ref().is_some_and(|node| !node.status.volumes_attached.is_empty());
    let comes = change.old.is_none();
    (comes || attached || listed).then(|| node_key(name)).into_iter().collect()
}

fn keys_of_driver(_: &Change<CsiDriver>, view: &View) -> Vec<Key> {
    view.get::<Node>().iter().map(|node| node.metadata.key()).collect()
}

/// When each detachment was first due: the node and the attachment's name.
#[derive(Default)]
struct Requests(Mutex<HashMap<(String, String), Timestamp>>);

impl Requests {
    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), Timestamp>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct AttachDetach {
    requests: Requests,
    /// Whether a volume is detached from a node that has been unhealthy for long, whatever the kubelet said last.
    force_on_timeout: bool,
}

/// What is known when a decision about a node is made.
struct NodeAttachments {
    name: String,
    node: Option<Arc<Node>>,
    pods: ObjectSnapshot<Pod>,
    claims: ObjectSnapshot<PersistentVolumeClaim>,
    volumes: ObjectSnapshot<PersistentVolume>,
    drivers: ObjectSnapshot<CsiDriver>,
    attachments: ObjectSnapshot<VolumeAttachment>,
}

/// A volume that is to be attached to the node, and the pods that need it there.
struct Wanted {
    volume: Arc<PersistentVolume>,
    pods: Vec<Arc<Pod>>,
}

/// An attachment that was made here.
struct Attached {
    object: Arc<VolumeAttachment>,
    volume: Arc<PersistentVolume>,
}

impl Attached {
    fn unique_name(&self) -> String {
        self.volume.spec.csi.as_ref().map(|csi| unique_name(csi)).unwrap_or_default()
    }
}

/// The name of a volume in a Node's status.
fn unique_name(csi: &CsiSource) -> String {
    csi_volume_name(&csi.driver, &csi.volume_handle)
}

fn attachment_name(csi: &CsiSource, node: &str) -> String {
    csi_attachment_name(&csi.driver, &csi.volume_handle, node)
}

impl Reconciler for AttachDetach {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "pvcs"
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &metrics::METRICS
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let known = NodeAttachments::of(view, &key.name);
        let (wanted, attached) = (known.wanted(), known.attached());
        let mut report = Report::default();
        let detached = known.detach(self, &wanted, &attached, cx.now, &mut report);
        let plan = known.attach(&wanted, &attached);
        report.list(&attached);
        let plan = known.report(plan, &report, &wanted);
        detached.after(plan)
    }
}

/// What the Node's status is to say.
#[derive(Default)]
struct Report {
    /// Unique names of volumes that are being detached.
    leaving: Vec<String>,
    /// Whether the kubelet must not have begun to use one of them.
    checked: bool,
    /// Attached volumes, by their unique names.
    attached: BTreeMap<String, ()>,
}

impl Report {
    fn list(&mut self, attached: &BTreeMap<String, Attached>) {
        let there = attached.values().filter(|a| a.object.status.attached && !a.object.metadata.deleting());
        let names = there.map(Attached::unique_name).filter(|name| !self.leaving.contains(name));
        self.attached = names.map(|name| (name, ())).collect();
    }
}

impl NodeAttachments {
    fn of(view: &View, name: &str) -> NodeAttachments {
        NodeAttachments {
            name: name.to_owned(),
            node: view.get::<Node>().get("", name).cloned(),
            pods: view.get(),
            claims: view.get(),
            volumes: view.get(),
            drivers: view.get(),
            attachments: view.get(),
        }
    }

    /// Writes the Node's list of attached volumes, if it differs.
    fn report(&self, plan: Plan, report: &Report, wanted: &BTreeMap<String, Wanted>) -> Plan {
        let Some(node) = &self.node else { return plan };
        let list: Vec<AttachedVolume> = report
            .attached
            .keys()
            .map(|name| AttachedVolume { name: name.clone(), device_path: String::new() })
            .collect();
        let mut shown = node.status.volumes_attached.clone();
        shown.sort_by(|a, b| a.name.cmp(&b.name));
        if shown == list {
            return plan;
        }
        let mut metadata = json!({"uid": node.metadata.uid});
        if report.checked {
            metadata["resourceVersion"] = node.metadata.resource_version.as_str().into();
        }
        let status = if list.is_empty() { Value::Null } else { json!(list) };
        let write = Write::Patch {
            target: Target::of::<Node>("", &node.metadata.name).subresource("status"),
            kind: PatchKind::Merge,
            body: json!({"metadata": metadata, "status": {"volumesAttached": status}}),
        };
        let plan = attach::succeeded(plan, &shown, report, wanted);
        plan.stage(vec![Step { write, on_success: None, on_failure: None }])
    }

    fn drivers_attach(&self, csi: &CsiSource) -> bool {
        self.drivers.get("", &csi.driver).and_then(|driver| driver.spec.attach_required).unwrap_or(true)
    }
}
