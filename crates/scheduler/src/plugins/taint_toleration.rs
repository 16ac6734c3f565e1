//! TaintToleration: rejects nodes with taints that the pod does not tolerate, and prefers nodes without such taints of
//! effect `PreferNoSchedule`.

use super::{Entry, ensure, has_untolerated_taint};
use crate::{
    framework::{
        Actions, Change, Cycle, CycleState, Event, EventInterest, Filter, Hint, Outcome, Plugin, Points,
        PreScore, PreScored, Resource, Score, Status,
        points::{MAX_SCORE, scale_scores},
    },
    pod_info::PodInfo,
    snapshot::NodeInfo,
};
use kaji_runtime::objects::{Taint, Toleration};
use std::sync::Arc;

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "TaintToleration",
    weight: 3,
    arguments: None,
    build: |_| {
        let plugin = Arc::new(TaintToleration);
        Points::of(&plugin).filter(&plugin).pre_score(&plugin).score(&plugin)
    },
};

struct TaintToleration;

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

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }

    fn looks_at_node_alone(&self) -> bool {
        true
    }

    fn events(&self) -> Vec<EventInterest> {
        let tolerated = |pod: &PodInfo, event: &Event| {
            let off = |node| has_untolerated_taint(&pod.pod.spec.tolerations, node);
            match &event.change {
                Change::Node(_, Some(node)) if off(node) => Hint::Skip,
                Change::Node(Some(old), Some(_)) if !off(old) => Hint::Skip,
                _ => Hint::Queue,
            }
        };
        vec![
            EventInterest::hinted(Resource::Node, Actions::ADD | Actions::NODE_TAINTS, tolerated),
            EventInterest::any(Resource::UnscheduledPod, Actions::POD_TOLERATIONS),
        ]
    }
}

impl Filter for TaintToleration {
    fn filter(&self, cycle: &Cycle<'_>, _state: &CycleState, node: &NodeInfo) -> Outcome {
        ensure(!has_untolerated_taint(&cycle.pod.pod.spec.tolerations, &node.node), || {
            Status::unresolvable("node(s) had untolerated taint(s)")
        })
    }
}

impl PreScore for TaintToleration {
    fn pre_score(
        &self,
        _cycle: &Cycle<'_>,
        _state: &mut CycleState,
        nodes: &[Arc<NodeInfo>],
    ) -> Outcome<PreScored> {
        // Without such a taint every node has the same score.
        let any = nodes.iter().any(|n| n.node.spec.taints.iter().any(|t| t.effect == "PreferNoSchedule"));
        Ok(if any { PreScored::Scored } else { PreScored::Skip })
    }
}

impl Score for TaintToleration {
    fn score(&self, cycle: &Cycle<'_>, _state: &CycleState, node: &NodeInfo) -> i64 {
        let tolerations = cycle.pod.pod.spec.tolerations.iter();
        let concerned = tolerations.filter(|t| t.effect.is_empty() || t.effect == "PreferNoSchedule");
        let concerned: Vec<Toleration> = concerned.cloned().collect();
        let taints = node.node.spec.taints.iter().filter(|t| t.effect == "PreferNoSchedule");
        let untolerated = taints.filter(|taint| !tolerates(&concerned, taint)).count();
        i64::try_from(untolerated).unwrap_or(MAX_SCORE)
    }

    fn normalize(
        &self,
        _cycle: &Cycle<'_>,
        _state: &CycleState,
        _nodes: &[Arc<NodeInfo>],
        scores: &mut [i64],
    ) {
        scale_scores(scores, true);
    }
}
