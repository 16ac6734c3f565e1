//! The graph of references from nodes through their pods to other objects.
//!
//! Invariants: a reference is counted once for each pod that makes it; what no pod refers to is not there. What the pods of
//! one template need, and the names of nodes, are kept once: there may be very many pods.

mod shared;

use crate::authz::feed::Change;
use imbl::{HashMap, OrdMap, OrdSet};
use serde_json::Value;
use shared::{Nodes, Shared};
use std::{collections::BTreeSet, sync::Arc};

/// The kinds of objects that nodes read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Pod.
    Pod,
    /// Secret.
    Secret,
    /// ConfigMap.
    ConfigMap,
    /// ServiceAccount.
    ServiceAccount,
    /// PersistentVolumeClaim.
    Claim,
    /// ResourceClaim.
    ResourceClaim,
    /// PersistentVolume.
    Volume,
    /// VolumeAttachment.
    Attachment,
    /// ResourceSlice.
    Slice,
    /// PodCertificateRequest.
    CertificateRequest,
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Ref(Kind, Box<str>, Box<str>);

impl Ref {
    fn new(kind: Kind, namespace: &str, name: &str) -> Ref {
        Ref(kind, namespace.into(), name.into())
    }
}

/// A pod that is bound.
#[derive(Clone, Debug)]
struct Pod {
    node: Arc<str>,
    /// What it needs beside itself.
    refs: Arc<[Ref]>,
}

/// A volume that is claimed.
#[derive(Debug, PartialEq)]
struct Volume {
    claim: Ref,
    secrets: BTreeSet<Ref>,
}

/// All of it.
#[derive(Clone, Default)]
pub struct Graph {
    /// Of the feeds, when this was made. `None`: never fed.
    pub revisions: Option<[u64; 5]>,
    /// By `NAMESPACE/NAME`.
    pods: OrdMap<Box<str>, Pod>,
    nodes: Shared<str>,
    refs: Shared<[Ref]>,
    /// The nodes that need an object.
    needed: OrdMap<Ref, Nodes>,
    volumes: HashMap<Box<str>, Arc<Volume>>,
    /// Secret -> volumes that need it.
    secrets: HashMap<Ref, OrdSet<Box<str>>>,
    direct: HashMap<Ref, Box<str>>,
}

fn pod_key(namespace: &str, name: &str) -> Box<str> {
    [namespace, "/", name].concat().into()
}

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn items<'a>(value: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    value.pointer(path).and_then(Value::as_array).into_iter().flatten()
}

/// Secrets of volumes in pods, below `spec.volumes[]`.
const POD_VOLUME_SECRETS: &[&str] = &[
    "/azureFile/secretName",
    "/cephfs/secretRef/name",
    "/cinder/secretRef/name",
    "/csi/nodePublishSecretRef/name",
    "/flexVolume/secretRef/name",
    "/iscsi/secretRef/name",
    "/rbd/secretRef/name",
    "/scaleIO/secretRef/name",
    "/secret/secretName",
    "/storageos/secretRef/name",
];

/// Secrets of persistent volumes that kubelets need, below `spec`.
const VOLUME_SECRETS: &[&str] = &[
    "/cephfs/secretRef",
    "/cinder/secretRef",
    "/csi/nodeExpandSecretRef",
    "/csi/nodePublishSecretRef",
    "/csi/nodeStageSecretRef",
    "/flexVolume/secretRef",
    "/iscsi/secretRef",
    "/rbd/secretRef",
    "/scaleIO/secretRef",
    "/storageos/secretRef",
];

fn containers(pod: &Value, add: &mut impl FnMut(Kind, &str)) {
    for list in ["/spec/containers", "/spec/initContainers", "/spec/ephemeralContainers"] {
        for container in items(pod, list) {
            for source in items(container, "/envFrom") {
                add(Kind::Secret, text(source, "/secretRef/name"));
                add(Kind::ConfigMap, text(source, "/configMapRef/name"));
            }
            for variable in items(container, "/env") {
                add(Kind::Secret, text(variable, "/valueFrom/secretKeyRef/name"));
                add(Kind::ConfigMap, text(variable, "/valueFrom/configMapKeyRef/name"));
            }
        }
    }
}

fn volumes(name: &str, pod: &Value, add: &mut impl FnMut(Kind, &str)) {
    for volume in items(pod, "/spec/volumes") {
        POD_VOLUME_SECRETS.iter().for_each(|path| add(Kind::Secret, text(volume, path)));
        add(Kind::ConfigMap, text(volume, "/configMap/name"));
        for source in items(volume, "/projected/sources") {
            add(Kind::Secret, text(source, "/secret/name"));
            add(Kind::ConfigMap, text(source, "/configMap/name"));
        }
        add(Kind::Claim, text(volume, "/persistentVolumeClaim/claimName"));
        if volume.get("ephemeral").is_some_and(|e| !e.is_null()) {
            add(Kind::Claim, &format!("{name}-{}", text(volume, "/name")));
        }
    }
}

fn resource_claims(pod: &Value, add: &mut impl FnMut(Kind, &str)) {
    for claim in items(pod, "/spec/resourceClaims") {
        add(Kind::ResourceClaim, text(claim, "/resourceClaimName"));
        if !text(claim, "/resourceClaimTemplateName").is_empty() {
            let mut made = items(pod, "/status/resourceClaimStatuses");
            let made = made.find(|s| text(s, "/name") == text(claim, "/name"));
            add(Kind::ResourceClaim, made.map_or("", |s| text(s, "/resourceClaimName")));
        }
    }
    add(Kind::ResourceClaim, text(pod, "/status/extendedResourceClaimStatus/resourceClaimName"));
}

/// The node of a pod, and what it needs beside itself; `None` while it is not bound.
fn bound(namespace: &str, name: &str, pod: &Value) -> Option<(Box<str>, Box<[Ref]>)> {
    let node = text(pod, "/spec/nodeName");
    if node.is_empty() {
        return None;
    }
    let mut refs = BTreeSet::new();
    // A node makes mirror pods itself: they must not give it anything.
    if pod.pointer("/metadata/annotations/kubernetes.io~1config.mirror").is_none() {
        let mut add = |kind, name: &str| {
            if !name.is_empty() {
                refs.insert(Ref::new(kind, namespace, name));
            }
        };
        add(Kind::ServiceAccount, text(pod, "/spec/serviceAccountName"));
        items(pod, "/spec/imagePullSecrets").for_each(|s| add(Kind::Secret, text(s, "/name")));
        containers(pod, &mut add);
        volumes(name, pod, &mut add);
        resource_claims(pod, &mut add);
    }
    Some((node.into(), refs.into_iter().collect()))
}

impl Volume {
    /// `None` while it is not claimed.
    fn new(volume: &Value) -> Option<Volume> {
        let claim = volume.pointer("/spec/claimRef").filter(|c| c.is_object())?;
        let own = text(claim, "/namespace");
        let mut secrets = BTreeSet::new();
        let mut add = |namespace: &str, name: &str| {
            let at = if namespace.is_empty() { own } else { namespace };
            if !name.is_empty() {
                secrets.insert(Ref::new(Kind::Secret, at, name));
            }
        };
        let spec = volume.get("spec").unwrap_or(&Value::Null);
        add(text(spec, "/azureFile/secretNamespace"), text(spec, "/azureFile/secretName"));
        for secret in VOLUME_SECRETS.iter().filter_map(|path| spec.pointer(path)) {
            add(text(secret, "/namespace"), text(secret, "/name"));
        }
        Some(Volume { claim: Ref::new(Kind::Claim, own, text(claim, "/name")), secrets })
    }
}

impl Graph {
    /// A pod changed.
    pub fn pod(&mut self, change: &Change) {
        let key = pod_key(&change.namespace, &change.name);
        let new = change.object.as_ref().and_then(|o| bound(&change.namespace, &change.name, o));
        let old = self.pods.get(&*key);
        if old.map(|old| (&*old.node, &*old.refs)) == new.as_ref().map(|(node, refs)| (&**node, &**refs)) {
            return;
        }
        if let Some(old) = self.pods.remove(&*key) {
            self.unbind(&old);
        }
        if let Some((node, refs)) = new {
            let pod = self.bind(node, refs);
            self.pods.insert(key, pod);
        }
    }

    fn bind(&mut self, node: Box<str>, refs: Box<[Ref]>) -> Pod {
        let pod = Pod { node: self.nodes.acquire(node), refs: self.refs.acquire(refs) };
        for reference in &*pod.refs {
            match self.needed.get_mut(reference) {
                Some(nodes) => nodes.add(&pod.node),
                None => drop(self.needed.insert(reference.clone(), Nodes::One(pod.node.clone(), 1))),
            }
        }
        pod
    }

    fn unbind(&mut self, pod: &Pod) {
        for reference in &*pod.refs {
            if self.needed.get_mut(reference).is_some_and(|nodes| !nodes.remove(&pod.node)) {
                self.needed.remove(reference);
            }
        }
        self.nodes.release(&pod.node);
        self.refs.release(&pod.refs);
    }

    /// A persistent volume changed.
    pub fn volume(&mut self, change: &Change) {
        let name: Box<str> = change.name.as_str().into();
        if let Some(old) = self.volumes.remove(&name) {
            for secret in &old.secrets {
                let Some(volumes) = self.secrets.get_mut(secret) else { continue };
                volumes.remove(&name);
                if volumes.is_empty() {
                    self.secrets.remove(secret);
                }
            }
        }
        let Some(new) = change.object.as_ref().and_then(Volume::new) else { return };
        for secret in &new.secrets {
            self.secrets.entry(secret.clone()).or_default().insert(name.clone());
        }
        self.volumes.insert(name, Arc::new(new));
    }

    /// Something changed that names its node itself.
    pub fn direct(&mut self, kind: Kind, change: &Change) {
        let key = Ref::new(kind, &change.namespace, &change.name);
        match change.object.as_ref().map(|o| text(o, "/spec/nodeName")).filter(|n| !n.is_empty()) {
            Some(node) => drop(self.direct.insert(key, node.into())),
            None => drop(self.direct.remove(&key)),
        }
    }

    fn needed_by(&self, object: &Ref, node: &str) -> bool {
        self.needed.get(object).is_some_and(|nodes| nodes.has(node))
    }

    fn volume_of(&self, name: &str, node: &str) -> bool {
        self.volumes.get(name).is_some_and(|v| self.needed_by(&v.claim, node))
    }

    /// Whether anything of a node leads to an object.
    pub fn leads_to(&self, kind: Kind, namespace: &str, name: &str, node: &str) -> bool {
        let object = Ref::new(kind, namespace, name);
        match kind {
            Kind::Pod => self.pods.get(&*pod_key(namespace, name)).is_some_and(|pod| *pod.node == *node),
            Kind::Volume => self.volume_of(name, node),
            Kind::Attachment | Kind::Slice | Kind::CertificateRequest => {
                self.direct.get(&object).is_some_and(|n| **n == *node)
            }
            Kind::Secret => {
                self.needed_by(&object, node)
                    || self
                        .secrets
                        .get(&object)
                        .is_some_and(|volumes| volumes.iter().any(|v| self.volume_of(v, node)))
            }
            _ => self.needed_by(&object, node),
        }
    }
}

#[cfg(test)]
mod tests;
