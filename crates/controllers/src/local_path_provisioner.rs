//! The built-in provisioner of node-local volumes, [`PROVISIONER`]: a volume is a directory of the node that the scheduler
//! chose for the claim's first pod. Towards the binder it is an external provisioner like those of CSI drivers.
//!
//! Invariants:
//! - A claim gets one volume; its name follows from the claim's uid.
//! - A volume that is to be deleted is deleted once its node does not list it any more, which it does as long as there may be
//!   data; or once the node is gone.
//! - What a directory of a node cannot do is refused: other access modes than those of one node, devices, data sources,
//!   selectors, mount options, parameters.

use crate::{Descriptor, Start, shared::controller_ref::quiet};
use kaji_runtime::{
    Change, Controller, Cx, EventRecord, Informers, Key, PatchKind, Plan, Projection, Reconciler, Step,
    Target, View, Write,
    local_path::{self, FINALIZER, NODE, PROVISIONER, ROOT},
    objects::{Node, PersistentVolume, PersistentVolumeClaim, StorageClass, UNBOUND, volume_mode},
    volume_binding::{PROVISIONED_BY, SELECTED_NODE, STORAGE_PROVISIONER, fully_bound},
};
use serde_json::json;
use std::{sync::Arc, time::Duration};

const COMPONENT: &str = "local-path-provisioner";
/// What says of a node that no kubelet runs on it.
const SIMULATED: &str = "node.kubernetes.io/simulated";
/// Where the directories of simulated nodes would be.
const SIMULATED_ROOT: &str = "/var/lib/kaji/local-volumes";
const HOST_NAME: &str = "kubernetes.io/hostname";
/// Before a claim that cannot be provisioned is looked at again without a change.
const RETRY: Duration = Duration::from_secs(60);

/// The controller's line in the table. It has the account of the binder: upstream's provisioners of its own plugins had it.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "local-path-provisioner",
    components: &[COMPONENT],
    service_account: Some("persistent-volume-binder"),
    workers: None,
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(Provisioner, informers)
        .reads::<PersistentVolumeClaim>(keys_of_claim)
        .reads::<PersistentVolume>(keys_of_volume)
        .reads::<StorageClass>(keys_of_class)
        .reads::<Node>(keys_of_node)
}

fn asked(claim: &PersistentVolumeClaim) -> bool {
    claim.metadata.annotations.get(STORAGE_PROVISIONER).is_some_and(|p| p == PROVISIONER)
        && claim.spec.volume_name.is_empty()
}

fn keys_of_claim(change: &Change<PersistentVolumeClaim>, _: &View) -> Vec<Key> {
    change.new.iter().filter(|claim| asked(claim)).map(|claim| claim.metadata.key()).collect()
}

fn keys_of_volume(change: &Change<PersistentVolume>, _: &View) -> Vec<Key> {
    let own = change.new.iter().filter(|volume| local_path::node(volume).is_some());
    own.map(|volume| volume.metadata.key()).collect()
}

fn keys_of_class(change: &Change<StorageClass>, view: &View) -> Vec<Key> {
    let class = change.any();
    let claims = view.get::<PersistentVolumeClaim>();
    let waiting = claims.indexed(UNBOUND, "").filter(|c| asked(c) && c.class() == class.metadata.name);
    waiting.map(|claim| claim.metadata.key()).collect()
}

/// The volumes of a node that wait for it, when it lists others than before, and when it is gone.
fn keys_of_node(change: &Change<Node>, view: &View) -> Vec<Key> {
    let side = |node: &Option<Arc<Node>>| {
        let listed = |node: &Arc<Node>| local_path::listed(&node.metadata).len();
        let annotation = |node: &Arc<Node>| node.metadata.annotations.get(local_path::VOLUMES).cloned();
        node.as_ref().map(|node| (listed(node), annotation(node)))
    };
    if change.old.is_none() || side(&change.old) == side(&change.new) {
        return vec![];
    }
    let (volumes, name) = (view.get::<PersistentVolume>(), change.any().metadata.name.as_str());
    let waits = |v: &&Arc<PersistentVolume>| local_path::node(v) == Some(name) && local_path::is_deleted(v);
    volumes.iter().filter(waits).map(|volume| volume.metadata.key()).collect()
}

struct Provisioner;

impl Reconciler for Provisioner {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn reconcile(&self, view: &View, key: &Key, _: &Cx<'_>) -> Plan {
        if key.namespace.is_empty() {
            let volumes = view.get::<PersistentVolume>();
            return volumes.by_key(key).map_or_else(Plan::nothing, |volume| delete(volume, view));
        }
        let claims = view.get::<PersistentVolumeClaim>();
        match claims.by_key(key).filter(|claim| asked(claim) && !fully_bound(claim)) {
            Some(claim) if !claim.metadata.deleting() => provision(claim, view),
            _ => Plan::nothing(),
        }
    }
}

/// Why no volume is made.
#[derive(Debug)]
enum ProvisionError {
    /// The scheduler has not chosen a node yet.
    Early,
    /// Another node is needed.
    Node(String),
    /// The claim or its class asks for what there is not.
    Request(String),
}

fn provision(claim: &PersistentVolumeClaim, view: &View) -> Plan {
    let (classes, nodes, volumes) = (view.get(), view.get(), view.get::<PersistentVolume>());
    let Some(class) =
        classes.get("", claim.class()).filter(|c: &&Arc<StorageClass>| c.provisioner == PROVISIONER)
    else {
        return Plan::nothing();
    };
    let name = format!("pvc-{}", claim.metadata.uid);
    if volumes.get("", &name).is_some() {
        return Plan::nothing();
    }
    let about = || claim.metadata.reference("v1", PersistentVolumeClaim::KIND);
    let failed = |reason: &str| {
        let class = &class.metadata.name;
        let message = format!("failed to provision volume with StorageClass {class:?}: {reason}");
        Plan::nothing().event(EventRecord::warning(about(), "ProvisioningFailed", message))
    };
    let place = match refusal(claim, class).map_or_else(|| place(claim, class, &nodes), Err) {
        Ok(place) => place,
        Err(ProvisionError::Early) => return Plan::nothing(),
        Err(ProvisionError::Request(reason)) => return failed(&reason).again_after(RETRY),
        // The scheduler chooses again.
        Err(ProvisionError::Node(reason)) => return failed(&reason).then(forget_node(claim)),
    };
    let begun = format!("External provisioner is provisioning volume for claim \"{}\"", claim.metadata.key());
    let made = EventRecord::normal(
        about(),
        "ProvisioningSucceeded",
        format!("Successfully provisioned volume {name}"),
    );
    let message =
        format!("Error creating provisioned PV object for claim {}: {{error}}", claim.metadata.key());
    let step = Step {
        write: volume(claim, class, &name, &place),
        on_success: Some(made),
        on_failure: Some(EventRecord::warning(about(), "ProvisioningFailed", message)),
    };
    Plan::nothing().event(EventRecord::normal(about(), "Provisioning", begun)).stage(vec![step])
}

/// What a claim or its class asks for and a directory of a node is not.
fn refusal(claim: &PersistentVolumeClaim, class: &StorageClass) -> Option<ProvisionError> {
    let spec = &claim.spec;
    let modes = ["ReadWriteOnce", "ReadWriteOncePod"];
    let reason = if let Some(mode) = spec.access_modes.iter().find(|mode| !modes.contains(&mode.as_str())) {
        format!("access mode {mode} is not supported: the volume is a directory of one node")
    } else if volume_mode(spec.volume_mode.as_deref()) != "Filesystem" {
        "volumeMode Block is not supported: the volume is a directory".to_owned()
    } else if spec.selector.is_some() {
        "claim.Spec.Selector is not supported".to_owned()
    } else if spec.data_source || spec.data_source_ref {
        "data sources are not supported".to_owned()
    } else if let Some(class) = spec.volume_attributes_class_name.as_deref().filter(|class| !class.is_empty())
    {
        format!("volumeAttributesClass {class:?} is not supported")
    } else if !class.mount_options.is_empty() {
        format!("mount options {:?} are not supported", class.mount_options)
    } else if let Some((name, _)) = class.parameters.first_key_value() {
        format!("parameter {name:?} is not supported")
    } else {
        return None;
    };
    Some(ProvisionError::Request(reason))
}

/// Where a volume goes.
struct VolumeLocation {
    node: String,
    host_name: String,
    root: String,
}

fn place(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    nodes: &kaji_runtime::ObjectSnapshot<Node>,
) -> Result<VolumeLocation, ProvisionError> {
    let Some(selected) = claim.metadata.annotations.get(SELECTED_NODE) else {
        return Err(if class.delays_binding() {
            ProvisionError::Early
        } else {
            ProvisionError::Request(
                "no node was selected: the class needs volumeBindingMode WaitForFirstConsumer".into(),
            )
        });
    };
    let other = |reason: String| ProvisionError::Node(reason);
    let node = nodes.get("", selected).ok_or_else(|| other(format!("node {selected:?} not found")))?;
    let (labels, annotations) = (&node.metadata.labels, &node.metadata.annotations);
    let simulated = labels.contains_key(SIMULATED).then_some(SIMULATED_ROOT);
    let root = annotations.get(ROOT).map(String::as_str).or(simulated);
    let root = root.ok_or_else(|| other(format!("node {selected:?} has no directory for volumes")))?;
    let host_name = labels.get(HOST_NAME);
    let host_name = host_name.ok_or_else(|| other(format!("node {selected:?} has no label {HOST_NAME}")))?;
    Ok(VolumeLocation { node: selected.clone(), host_name: host_name.clone(), root: root.to_owned() })
}

fn volume(claim: &PersistentVolumeClaim, class: &StorageClass, name: &str, place: &VolumeLocation) -> Write {
    let policy = class.reclaim_policy.as_deref().unwrap_or("Delete");
    let finalizers: &[&str] = if policy == "Delete" { &[FINALIZER] } else { &[] };
    let request = claim.spec.resources.pointer("/requests/storage");
    let body = json!({
        "apiVersion": "v1",
        "kind": PersistentVolume::KIND,
        "metadata": {
            "name": name,
            "labels": {NODE: place.node},
            "annotations": {PROVISIONED_BY: PROVISIONER},
            "finalizers": finalizers,
        },
        "spec": {
            "capacity": {"storage": request},
            "accessModes": claim.spec.access_modes,
            "persistentVolumeReclaimPolicy": policy,
            "storageClassName": class.metadata.name,
            "volumeMode": "Filesystem",
            "local": {"path": format!("{}/{name}", place.root.trim_end_matches('/'))},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": HOST_NAME, "operator": "In", "values": [place.host_name]}]},
            ]}},
            "claimRef": claim.metadata.reference("v1", PersistentVolumeClaim::KIND),
        },
    });
    Write::Create { target: Target::of::<PersistentVolume>("", ""), body }
}

fn forget_node(claim: &PersistentVolumeClaim) -> Write {
    let meta = &claim.metadata;
    Write::Patch {
        target: Target::of::<PersistentVolumeClaim>(&meta.namespace, &meta.name),
        kind: PatchKind::Merge,
        body: json!({"metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "annotations": {SELECTED_NODE: null},
        }}),
    }
}

/// Deletes a volume that is released, once its directory is removed.
fn delete(volume: &PersistentVolume, view: &View) -> Plan {
    let Some(node) = local_path::node(volume) else { return Plan::nothing() };
    let meta = &volume.metadata;
    let kept = meta.finalizers.iter().any(|finalizer| finalizer == FINALIZER);
    if !local_path::is_deleted(volume) {
        // A volume that is retained keeps its data when it is deleted.
        let retained = volume.spec.persistent_volume_reclaim_policy != "Delete";
        return if kept && retained && meta.deleting() { release(volume) } else { Plan::nothing() };
    }
    let nodes = view.get::<Node>();
    if nodes.get("", node).is_some_and(|node| local_path::listed(&node.metadata).contains(meta.name.as_str()))
    {
        return Plan::nothing();
    }
    if meta.deleting() {
        return if kept { release(volume) } else { Plan::nothing() };
    }
    Plan::nothing().then(Write::Delete {
        target: Target::of::<PersistentVolume>("", &meta.name),
        options: json!({"preconditions": {"uid": meta.uid, "resourceVersion": meta.resource_version}}),
    })
}

fn release(volume: &PersistentVolume) -> Plan {
    let meta = &volume.metadata;
    let finalizers: Vec<&String> = meta.finalizers.iter().filter(|f| *f != FINALIZER).collect();
    let write = Write::Patch {
        target: Target::of::<PersistentVolume>("", &meta.name),
        kind: PatchKind::Merge,
        body: json!({"metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "finalizers": finalizers,
        }}),
    };
    Plan::nothing().stage(vec![quiet(write)])
}

#[cfg(test)]
mod tests;
