//! NodeAffinity: node selectors, required and preferred node affinity; and the affinity that a profile adds to every pod's.

mod arguments;

use super::Entry;
use crate::{
    framework::{
        Actions, Change, Cycle, CycleState, Event, EventInterest, Filter, Hint, Outcome, Plugin, Points,
        PreFilter, PreFiltered, PreScore, PreScored, Resource, Score, Status, points::scale_scores,
    },
    node_selector::{NodeSelector, NodeTerm, preferred_terms},
    pod_info::PodInfo,
    snapshot::NodeInfo,
};
use kaji_runtime::objects::Node;
use serde_json::Value;
use std::sync::Arc;

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "NodeAffinity",
    weight: 2,
    arguments: Some(arguments::ARGUMENTS),
    build: |args| {
        let plugin = Arc::new(NodeAffinity::new(args));
        Points::of(&plugin).pre_filter(&plugin).filter(&plugin).pre_score(&plugin).score(&plugin)
    },
};

#[derive(Clone)]
struct NodeAffinity {
    /// `addedAffinity`
    added_required: Option<NodeSelector>,
    added_preferred: Arc<[(i64, NodeTerm)]>,
}

impl NodeAffinity {
    fn new(args: &Value) -> Self {
        let added = &args[arguments::ADDED];
        let required = &added[arguments::REQUIRED];
        NodeAffinity {
            added_required: (!required.is_null()).then(|| NodeSelector::parse(required)),
            added_preferred: preferred_terms(added.get(arguments::PREFERRED)).into_vec().into(),
        }
    }

    fn matches(&self, pod: &PodInfo, node: &Node) -> bool {
        self.added_required.as_ref().is_none_or(|added| added.matches(node)) && pod.nodes.matches(node)
    }
}

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }

    fn looks_at_node_alone(&self) -> bool {
        true
    }

    fn events(&self) -> Vec<EventInterest> {
        let this = self.clone();
        let right = move |pod: &PodInfo, event: &Event| match &event.change {
            Change::Node(_, Some(node)) if !this.matches(pod, node) => Hint::Skip,
            Change::Node(Some(old), Some(_)) if this.matches(pod, old) => Hint::Skip,
            _ => Hint::Queue,
        };
        vec![EventInterest::hinted(Resource::Node, Actions::ADD | Actions::NODE_LABELS, right)]
    }
}

impl PreFilter for NodeAffinity {
    fn pre_filter(&self, cycle: &Cycle<'_>, _state: &mut CycleState) -> Outcome<PreFiltered> {
        if cycle.pod.nodes.is_empty() && self.added_required.is_none() {
            return Ok(PreFiltered::Skip);
        }
        match cycle.pod.nodes.node_names() {
            None => Ok(PreFiltered::AllNodes),
            Some(names) if names.is_empty() => Err(Status::unresolvable("pod affinity terms conflict")),
            Some(names) => Ok(PreFiltered::Nodes(names.into_iter().map(str::to_owned).collect())),
        }
    }
}

impl Filter for NodeAffinity {
    fn filter(&self, cycle: &Cycle<'_>, _state: &CycleState, node: &NodeInfo) -> Outcome {
        if self.added_required.as_ref().is_some_and(|added| !added.matches(&node.node)) {
            return Err(Status::unresolvable("node(s) didn't match scheduler-enforced node affinity"));
        }
        super::ensure(cycle.pod.nodes.matches(&node.node), || {
            Status::unresolvable("node(s) didn't match Pod's node affinity/selector")
        })
    }
}

impl PreScore for NodeAffinity {
    fn pre_score(
        &self,
        cycle: &Cycle<'_>,
        _state: &mut CycleState,
        _nodes: &[Arc<NodeInfo>],
    ) -> Outcome<PreScored> {
        let none = cycle.pod.preferred_nodes.is_empty() && self.added_preferred.is_empty();
        Ok(if none { PreScored::Skip } else { PreScored::Scored })
    }
}

impl Score for NodeAffinity {
    fn score(&self, cycle: &Cycle<'_>, _state: &CycleState, node: &NodeInfo) -> i64 {
        let terms = cycle.pod.preferred_nodes.iter().chain(&*self.added_preferred);
        terms.filter(|(_, term)| term.matches(&node.node)).map(|(weight, _)| weight).sum()
    }

    fn normalize(
        &self,
        _cycle: &Cycle<'_>,
        _state: &CycleState,
        _nodes: &[Arc<NodeInfo>],
        scores: &mut [i64],
    ) {
        scale_scores(scores, false);
    }
}
