//! NodeResourcesBalancedAllocation: prefers nodes of which the resources are requested to the same share, or become so by the
//! pod. Pods without requests are not scored: they would all come to one node.

use super::{
    Entry,
    arguments::{Arguments, RESOURCES},
    node_resources_fit::weighted_resources,
};
use crate::{
    framework::{Cycle, CycleState, Outcome, Plugin, Points, PreScore, PreScored, Score, points::MAX_SCORE},
    pod_info::PodInfo,
    snapshot::NodeInfo,
};
use kaji_meta::field::{Error, ErrorList, Path};
use serde_json::Value;
use std::{collections::BTreeSet, sync::Arc};

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "NodeResourcesBalancedAllocation",
    weight: 1,
    arguments: Some(Arguments { fields: &[("resources", RESOURCES)], validate }),
    build: |args| {
        let plugin = Arc::new(BalancedAllocation::new(args));
        Points::of(&plugin).pre_score(&plugin).score(&plugin)
    },
};

fn validate(args: &Value, path: &Path) -> ErrorList {
    let (mut errors, mut seen) = (vec![], BTreeSet::new());
    for (place, (name, weight)) in weighted_resources(&args["resources"]).into_iter().enumerate() {
        let path = path.child("resources").index(place);
        if !seen.insert(name.clone()) {
            errors.push(Error::duplicate(&path.child("name"), name));
        }
        if weight != 1 {
            errors.push(Error::invalid(&path.child("weight"), weight, "must be 1"));
        }
    }
    errors
}

struct BalancedAllocation {
    resources: Vec<String>,
}

impl BalancedAllocation {
    fn new(args: &Value) -> Self {
        let resources = weighted_resources(&args["resources"]);
        BalancedAllocation { resources: resources.into_iter().map(|(name, _)| name).collect() }
    }

    /// Whether a pod requests nothing of what is balanced.
    fn has_no_request(&self, pod: &PodInfo) -> bool {
        self.resources.iter().all(|name| pod.request.get(name) == 0)
    }
}

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }

    fn looks_at_node_alone(&self) -> bool {
        true
    }
}

impl PreScore for BalancedAllocation {
    fn pre_score(
        &self,
        cycle: &Cycle<'_>,
        _state: &mut CycleState,
        _nodes: &[Arc<NodeInfo>],
    ) -> Outcome<PreScored> {
        Ok(if self.has_no_request(cycle.pod) { PreScored::Skip } else { PreScored::Scored })
    }
}

impl Score for BalancedAllocation {
    fn score(&self, cycle: &Cycle<'_>, _state: &CycleState, node: &NodeInfo) -> i64 {
        // A profile may have disabled the preparation.
        if self.has_no_request(cycle.pod) {
            return 0;
        }
        let request = &cycle.pod.request;
        let own = |name: &&String| matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage");
        let scored = self.resources.iter().filter(|name| own(name) || request.get(name) != 0);
        let (mut with, mut without) = (Spread::default(), Spread::default());
        for name in scored {
            let (capacity, used) = (node.allocatable.get(name), node.requested.get(name));
            if capacity > 0 {
                with.add(used + request.get(name), capacity);
                without.add(used, capacity);
            }
        }
        MAX_SCORE / 2 + (MAX_SCORE / 2 + with.score() - without.score()) / 2
    }
}

/// The shares of some resources: how far they are from their mean.
#[derive(Default)]
struct Spread {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Spread {
    #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
    fn add(&mut self, requested: i64, capacity: i64) {
        let share = (requested as f64 / capacity as f64).min(1.0);
        self.count += 1.0;
        self.sum += share;
        self.squares += share * share;
    }

    /// 100 less the standard deviation in percent.
    #[expect(clippy::cast_possible_truncation, reason = "between 0 and 100")]
    fn score(&self) -> i64 {
        let mean = self.sum / self.count.max(1.0);
        let variance = (self.squares / self.count.max(1.0) - mean * mean).max(0.0);
        ((1.0 - variance.sqrt()) * MAX_SCORE as f64 + 1e-9) as i64
    }
}
