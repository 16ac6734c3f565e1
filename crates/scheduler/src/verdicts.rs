//! What each node says to a pod: every filter of every node, not only the first that rejects it. For explanations.
//!
//! Invariant: a node without rejections is one on which the scheduler would put the pod, as far as the given objects tell.

use crate::{
    cache::Cache,
    configuration::Configuration,
    framework::{Cycle, CycleState, Listers, Nominator, Profile, Reads, Status},
    pod_info::PodInfo,
};
use kaji_meta::{Features, object, random::SeededRandom};
use kaji_runtime::{
    Projection,
    objects::{
        CsiDriver, CsiNode, CsiStorageCapacity, DeviceClass, DeviceTaintRule, Namespace, Node,
        PersistentVolume, PersistentVolumeClaim, Pod, PodDisruptionBudget, ResourceClaim, ResourceSlice,
        Service, StorageClass, VolumeAttachment,
    },
};
use serde_json::Value;
use std::sync::Arc;

/// A resource that plugins read beside pods and nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadResource {
    /// `""` for core.
    pub group: &'static str,
    /// Its version.
    pub version: &'static str,
    /// Plural.
    pub resource: &'static str,
}

macro_rules! read_resources {
    ($($projection:ty),* $(,)?) => {
        /// The resources that plugins read beside pods and nodes.
        pub const READ_RESOURCES: &[ReadResource] = &[$(ReadResource {
            group: <$projection>::GROUP,
            version: <$projection>::VERSION,
            resource: <$projection>::RESOURCE,
        }),*];

        fn with_objects(mut listers: Listers, objects: &dyn Fn(&str) -> Arc<Vec<Value>>) -> Listers {
            $(listers = listers.with(decoded::<$projection>(&objects(<$projection>::RESOURCE)));)*
            listers
        }
    };
}

read_resources!(
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    DeviceClass,
    DeviceTaintRule,
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    ResourceClaim,
    ResourceSlice,
    Service,
    StorageClass,
    VolumeAttachment,
);

/// What one node says.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The node.
    pub node: String,
    /// The rejections, in the order of the plugins; none when the pod fits.
    pub rejections: Vec<Status>,
}

/// What the scheduler says to a pod.
#[derive(Clone, Debug)]
pub enum Verdicts {
    /// The pod does not enter the queue.
    NotQueued(Status),
    /// The pod is rejected before any node is looked at.
    Rejected(Status),
    /// Each node.
    Nodes(Vec<Verdict>),
}

/// Asks the filters of upstream's default profile, with the default feature gates, about a pod that has no node.
///
/// `pods` are all pods, `objects` gives those of each of the [`READ_RESOURCES`] by its plural. Objects that cannot be decoded
/// are left out.
///
/// # Errors
/// When the pod cannot be decoded.
pub fn verdicts(
    pod: &Value,
    nodes: &[Value],
    pods: &[Value],
    objects: &dyn Fn(&str) -> Arc<Vec<Value>>,
    now: jiff::Timestamp,
) -> Result<Verdicts, String> {
    let configuration = Configuration::new(Features::default()).map_err(|error| error.to_string())?;
    let profile = configuration.profiles.first().ok_or("there is no profile")?;
    let mut reads = Reads::nothing();
    profile.points().for_each(|points| points.plugin.reads(&mut reads));
    let listers = with_objects(reads.finish().0, objects);
    let mut cache = Cache::default();
    for node in decoded::<Node>(nodes) {
        cache.set_node(&node.metadata.name.clone(), Some(Arc::new(node)));
    }
    let counted = |pod: &&Value| {
        !object::str_at(pod, &["spec", "nodeName"]).is_empty()
            && !matches!(object::str_at(pod, &["status", "phase"]), "Succeeded" | "Failed")
    };
    for pod in pods.iter().filter(counted).filter_map(|pod| Pod::from_value(pod).ok()) {
        cache.set_pod(&Arc::new(pod));
    }
    let pod = Pod::from_value(pod).map_err(|error| error.to_string())?;
    let pod = Arc::new(PodInfo::new(Arc::new(pod)));
    if let Err(status) = profile.pre_enqueue(&pod, &listers) {
        return Ok(Verdicts::NotQueued(status));
    }
    let cycle = Cycle {
        pod: &pod,
        snapshot: cache.snapshot(),
        listers: &listers,
        nominator: &Nominator::default(),
        random: &SeededRandom::new(0),
        now,
    };
    Ok(ask_nodes(profile, &cycle))
}

fn ask_nodes(profile: &Profile, cycle: &Cycle<'_>) -> Verdicts {
    let mut state = CycleState::default();
    let prepared = match profile.pre_filter(cycle, &mut state) {
        Ok(prepared) => prepared,
        Err(status) => return Verdicts::Rejected(status),
    };
    let others = prepared.others();
    let mut verdicts: Vec<Verdict> = cycle
        .snapshot
        .nodes()
        .map(|node| {
            let excluded = prepared.nodes.as_ref().is_some_and(|names| !names.contains(node.name()));
            let mut rejections = profile.filter_all(cycle, &state, node);
            rejections.splice(..0, others.clone().filter(|_| excluded));
            Verdict { node: node.name().to_owned(), rejections }
        })
        .collect();
    verdicts.sort_by(|a, b| a.node.cmp(&b.node));
    Verdicts::Nodes(verdicts)
}

fn decoded<T: Projection>(objects: &[Value]) -> Vec<T> {
    objects.iter().filter_map(|object| T::from_value(object).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_filter_of_every_node_is_asked() {
        let node = |name: &str, cpu: &str, taints: Value| {
            json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": {"taints": taints},
                "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}}})
        };
        let nodes = [
            node("a", "1", json!([{"key": "k", "value": "v", "effect": "NoSchedule"}])),
            node("b", "1", json!([])),
            node("c", "8", json!([])),
        ];
        let resources = json!({"requests": {"cpu": "2"}});
        let pod = json!({"metadata": {"name": "p", "namespace": "d", "uid": "1"},
            "spec": {"containers": [{"name": "c", "resources": resources}]}});
        let verdicts = verdicts(&pod, &nodes, &[], &|_| Arc::default(), jiff::Timestamp::UNIX_EPOCH).unwrap();
        let Verdicts::Nodes(nodes) = verdicts else { panic!("{verdicts:?}") };
        let text: Vec<String> = nodes
            .iter()
            .map(|verdict| {
                let texts: Vec<String> =
                    verdict.rejections.iter().map(|status| format!("{}: {status}", status.plugin)).collect();
                format!("{} {}", verdict.node, texts.join("; "))
            })
            .collect();
        expect_test::expect![[r#"
            a TaintToleration: node(s) had untolerated taint(s); NodeResourcesFit: Insufficient cpu
            b NodeResourcesFit: Insufficient cpu
            c "#]]
        .assert_eq(&text.join("\n"));
    }
}
