//! PodTopologySpread: keeps the numbers of a set of pods in domains of nodes close to each other. `DoNotSchedule` constraints
//! filter, `ScheduleAnyway` ones score. Pods of services and workloads that have no constraints get default ones.

mod arguments;
mod default_selector;
mod filtering;
mod scoring;
#[cfg(test)]
mod tests;

use super::{Entry, arguments::text, has_untolerated_taint};
use crate::{
    framework::{Actions, Change, Cycle, Event, EventInterest, Hint, Plugin, Points, Reads, Resource},
    matcher::{Namespaces, PodMatcher},
    pod_info::PodInfo,
    snapshot::NodeInfo,
    spreading::SpreadConstraint,
};
use kaji_meta::labels::Selector;
use kaji_runtime::objects::{Node, Pod};
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc};

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "PodTopologySpread",
    weight: 2,
    arguments: Some(arguments::ARGUMENTS),
    build: |args| {
        let plugin = Arc::new(PodTopologySpread::new(args));
        Points::of(&plugin).pre_filter(&plugin).filter(&plugin).pre_score(&plugin).score(&plugin)
    },
};

/// The label of a node's own domain.
const HOSTNAME: &str = "kubernetes.io/hostname";

struct PodTopologySpread {
    /// Of pods without constraints.
    defaults: Box<[SpreadConstraint]>,
    /// They are upstream's own: nodes without a zone take part too.
    system_defaults: bool,
}

/// A constraint with the pods that it counts.
#[derive(Clone)]
struct Constraint {
    spread: SpreadConstraint,
    selector: Selector,
}

impl PodTopologySpread {
    fn new(args: &Value) -> Self {
        if text(args, arguments::TYPE) == arguments::LIST {
            let given = args.get(arguments::CONSTRAINTS);
            let defaults = SpreadConstraint::parse_all(given, &BTreeMap::new());
            return PodTopologySpread { defaults, system_defaults: false };
        }
        PodTopologySpread {
            defaults: Box::new([
                SpreadConstraint::defaulted(HOSTNAME, 3, false),
                SpreadConstraint::defaulted("topology.kubernetes.io/zone", 5, false),
            ]),
            system_defaults: true,
        }
    }

    /// The constraints of a pod that filter, or those that score.
    fn constraints(&self, cycle: &Cycle<'_>, hard: bool) -> Vec<Constraint> {
        let of_kind = |spread: &&SpreadConstraint| spread.hard == hard;
        if !cycle.pod.spread.is_empty() {
            let own = cycle.pod.spread.iter().filter(of_kind);
            let own = own.map(|spread| Constraint {
                spread: spread.clone(),
                selector: spread.selector.clone().unwrap_or_else(Selector::nothing),
            });
            return own.collect();
        }
        let defaults: Vec<_> = self.defaults.iter().filter(of_kind).collect();
        if defaults.is_empty() {
            return vec![];
        }
        let Some(selector) = default_selector::deduce(&cycle.pod.pod, cycle.listers) else { return vec![] };
        let constraint =
            |spread: &SpreadConstraint| Constraint { spread: spread.clone(), selector: selector.clone() };
        defaults.into_iter().map(constraint).collect()
    }
}

impl Constraint {
    /// The pods that count for a pod.
    fn matcher(&self, pod: &Pod) -> PodMatcher {
        let namespaces = Namespaces::Some([pod.metadata.namespace.clone()].into());
        // Upstream counts nothing for a selector that selects everything.
        let terms = match self.selector.is_everything() {
            true => vec![],
            false => vec![(namespaces, self.selector.clone())],
        };
        PodMatcher { terms, terminating: false }
    }

    /// Whether the inclusion policies let a node's pods count.
    fn includes(&self, pod: &PodInfo, node: &NodeInfo) -> bool {
        (!self.follows_affinity(pod) || pod.nodes.matches(&node.node))
            && (!self.spread.honor_taints || !has_untolerated_taint(&pod.pod.spec.tolerations, &node.node))
    }

    /// Whether every node is included.
    fn includes_all(&self, pod: &PodInfo) -> bool {
        !self.follows_affinity(pod) && !self.spread.honor_taints
    }

    fn follows_affinity(&self, pod: &PodInfo) -> bool {
        self.spread.honor_affinity && !pod.nodes.is_empty()
    }

    fn selects(&self, pod: &Pod) -> bool {
        self.selector.matches(|key| pod.metadata.labels.get(key).map(String::as_str))
    }
}

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }

    fn reads(&self, reads: &mut Reads<'_>) {
        if !self.defaults.is_empty() {
            default_selector::reads(reads);
        }
    }

    fn events(&self) -> Vec<EventInterest> {
        let pods = Actions::ADD | Actions::DELETE | Actions::POD_LABELS;
        let nodes = Actions::ADD | Actions::DELETE | Actions::NODE_LABELS | Actions::NODE_TAINTS;
        vec![
            EventInterest::hinted(Resource::AssignedPod, pods, counts_differently),
            EventInterest::hinted(
                Resource::UnscheduledPod,
                Actions::POD_LABELS | Actions::POD_TOLERATIONS,
                spreads_differently,
            ),
            EventInterest::hinted(Resource::Node, nodes, changes_domains),
        ]
    }
}

/// Whether a bound pod begins or ceases to count for one of a waiting pod's constraints. Default ones are not known here.
fn counts_differently(pod: &PodInfo, event: &Event) -> Hint {
    let Change::Pod(old, new) = &event.change else { return Hint::Queue };
    if pod.spread.is_empty() {
        return Hint::Queue;
    }
    let same_namespace = |p: &Arc<Pod>| p.metadata.namespace == pod.namespace();
    if !old.iter().chain(new).all(same_namespace) {
        return Hint::Skip;
    }
    let selects = |selector: &Selector, p: &Option<Arc<Pod>>| {
        p.as_ref().is_some_and(|p| selector.matches(|key| p.metadata.labels.get(key).map(String::as_str)))
    };
    let selectors =
        pod.spread.iter().filter(|spread| spread.hard).filter_map(|spread| spread.selector.as_ref());
    let mut selectors = selectors.filter(|selector| selects(selector, old) != selects(selector, new));
    if selectors.next().is_some() { Hint::Queue } else { Hint::Skip }
}

/// Whether a waiting pod that has changed begins or ceases to count itself, or more nodes may count for it.
fn spreads_differently(pod: &PodInfo, event: &Event) -> Hint {
    let Change::Pod(Some(old), Some(new)) = &event.change else { return Hint::Queue };
    if pod.spread.is_empty() {
        return Hint::Queue;
    }
    let mut hard = pod.spread.iter().filter(|spread| spread.hard);
    let selects = |selector: &Selector, pod: &Pod| {
        selector.matches(|key| pod.metadata.labels.get(key).map(String::as_str))
    };
    let tolerates_more = old.spec.tolerations != new.spec.tolerations;
    let helps = hard.any(|spread| {
        let counts = |selector: &Selector| selects(selector, old) != selects(selector, new);
        (tolerates_more && spread.honor_taints) || spread.selector.as_ref().is_some_and(counts)
    });
    if helps { Hint::Queue } else { Hint::Skip }
}

/// Whether a node begins or ceases to be in the domains of a waiting pod's constraints.
fn changes_domains(pod: &PodInfo, event: &Event) -> Hint {
    let Change::Node(old, new) = &event.change else { return Hint::Queue };
    if pod.spread.is_empty() {
        return Hint::Queue;
    }
    let hard = || pod.spread.iter().filter(|spread| spread.hard);
    let domains = |node: &Option<Arc<Node>>| -> Option<Vec<String>> {
        let node = node.as_ref()?;
        hard().map(|spread| node.metadata.labels.get(&*spread.topology_key).cloned()).collect()
    };
    let (was, is) = (domains(old), domains(new));
    let taints = hard().any(|spread| spread.honor_taints) && event.actions.intersects(Actions::NODE_TAINTS);
    if was != is || (taints && is.is_some()) { Hint::Queue } else { Hint::Skip }
}
