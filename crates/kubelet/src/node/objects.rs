//! Pods and nodes with all their fields, as informers keep them for a kubelet.

use super::static_pods;
use crate::pods::core::{Node, Pod};
use crate::server::NodePods;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kaji_runtime::{Informer, Meta, Projection};
use serde::{Deserialize, Deserializer};
use std::sync::Arc;

/// A pod.
pub struct FullPod {
    meta: Meta,
    /// The object.
    pub pod: Arc<Pod>,
}

/// A node.
pub struct FullNode {
    meta: Meta,
    /// The object.
    pub node: Arc<Node>,
}

fn meta(meta: &ObjectMeta) -> Meta {
    Meta {
        name: meta.name.clone().unwrap_or_default(),
        namespace: meta.namespace.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
        generation: meta.generation.unwrap_or(0),
        creation_timestamp: meta.creation_timestamp.as_ref().map(|t| t.0),
        deletion_timestamp: meta.deletion_timestamp.as_ref().map(|t| t.0),
        deletion_grace_period_seconds: meta.deletion_grace_period_seconds,
        ..Meta::default()
    }
}

impl<'de> Deserialize<'de> for FullPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut pod = Pod::deserialize(deserializer)?;
        // Only the kubelet says where a pod comes from: static pods have rights that others have not.
        if let Some(source) = pod.metadata.annotations.as_mut().and_then(|a| a.get_mut(static_pods::SOURCE)) {
            "api".clone_into(source);
        }
        Ok(FullPod { meta: meta(&pod.metadata), pod: Arc::new(pod) })
    }
}

impl<'de> Deserialize<'de> for FullNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let node = Node::deserialize(deserializer)?;
        Ok(FullNode { meta: meta(&node.metadata), node: Arc::new(node) })
    }
}

impl Projection for FullPod {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "pods";
    const KIND: &'static str = "Pod";

    kaji_runtime::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl Projection for FullNode {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "nodes";
    const KIND: &'static str = "Node";

    kaji_runtime::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

/// The pods that an informer shows, which selects those of one node.
pub struct BoundPods(pub Arc<Informer<FullPod>>);

impl NodePods for BoundPods {
    fn all(&self) -> Vec<Arc<Pod>> {
        self.0.snapshot().iter().map(|p| as_run(&p.pod)).collect()
    }

    fn by_name(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.0.snapshot().get(namespace, name).map(|p| as_run(&p.pod))
    }
}

/// A mirror pod as the static pod that it stands for: the runtime knows that one's uid.
fn as_run(pod: &Arc<Pod>) -> Arc<Pod> {
    match static_pods::mirrored(pod) {
        None => pod.clone(),
        Some(uid) => {
            let mut own = Pod::clone(pod);
            own.metadata.uid = Some(uid.to_owned());
            Arc::new(own)
        }
    }
}
