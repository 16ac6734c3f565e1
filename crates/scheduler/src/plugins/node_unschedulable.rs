//! NodeUnschedulable: rejects cordoned nodes, unless the pod tolerates their taint.

use super::{Plugin, tolerates};
use crate::cache::{NodeInfo, PodInfo};
use kaji_runtime::objects::Taint;

/// The plugin's line in the table.
pub const PLUGIN: Plugin = Plugin { name: "NodeUnschedulable", filter: Some(filter), score: None, weight: 0 };

fn filter(pod: &PodInfo, info: &NodeInfo) -> Vec<String> {
    if !info.node.spec.unschedulable {
        return vec![];
    }
    let taint = Taint {
        key: "node.kubernetes.io/unschedulable".into(),
        effect: "NoSchedule".into(),
        ..Taint::default()
    };
    if tolerates(&pod.pod.spec.tolerations, &taint) {
        return vec![];
    }
    vec!["node(s) were unschedulable".into()]
}
