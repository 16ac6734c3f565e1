//! TaintToleration: rejects nodes with taints that the pod does not tolerate, and prefers nodes without such taints of
//! effect `PreferNoSchedule`.

use super::Plugin;
use crate::cache::{NodeInfo, PodInfo};
use kaji_runtime::objects::{Taint, Toleration};

/// The plugin's line in the table.
pub const PLUGIN: Plugin =
    Plugin { name: "TaintToleration", filter: Some(filter), score: Some(score), weight: 3 };

/// Whether some toleration tolerates a taint (API reference, `Toleration`).
pub fn tolerates(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|t| {
        (t.effect.is_empty() || t.effect == taint.effect)
            && (t.key.is_empty() || t.key == taint.key)
            && match t.operator.as_str() {
                "Exists" => true,
                "" | "Equal" => t.value == taint.value && !t.key.is_empty(),
                _ => false,
            }
    })
}

fn filter(pod: &PodInfo, info: &NodeInfo) -> Vec<String> {
    let untolerated = info.node.spec.taints.iter().find(|t| {
        matches!(t.effect.as_str(), "NoSchedule" | "NoExecute") && !tolerates(&pod.pod.spec.tolerations, t)
    });
    let reason =
        untolerated.map(|taint| format!("node(s) had untolerated taint {{{}: {}}}", taint.key, taint.value));
    reason.into_iter().collect()
}

fn score(pod: &PodInfo, info: &NodeInfo) -> i64 {
    let taints = info.node.spec.taints.iter();
    let untolerated =
        taints.filter(|t| t.effect == "PreferNoSchedule" && !tolerates(&pod.pod.spec.tolerations, t)).count();
    (100 - i64::try_from(untolerated).unwrap_or(100).min(100) * 100 / 3).max(0)
}
