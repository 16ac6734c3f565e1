//! InterPodAffinity: places pods with, or away from, other pods in the same domain of nodes. Required terms filter, preferred
//! ones score; anti-affinity holds in both directions.

mod filtering;
mod scoring;
#[cfg(test)]
mod tests;

use super::{
    Entry,
    arguments::{Arguments, number},
};
use crate::{
    affinity::AffinityTerm,
    framework::{Actions, Change, Cycle, Event, EventInterest, Hint, Plugin, Points, Reads, Resource},
    matcher::PodMatcher,
    pod_info::PodInfo,
    snapshot::{Domains, Snapshot},
    strict::Kind,
};
use kaji_meta::field::{Error, ErrorList, Path};
use kaji_runtime::objects::{Namespace, Pod};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "InterPodAffinity",
    weight: 2,
    arguments: Some(Arguments { fields: &[(HARD_WEIGHT, Kind::Int32), (IGNORE, Kind::Bool)], validate }),
    build: |args| {
        let plugin = Arc::new(InterPodAffinity::new(args));
        Points::of(&plugin).pre_filter(&plugin).filter(&plugin).pre_score(&plugin).score(&plugin)
    },
};

/// Fields of the arguments.
const HARD_WEIGHT: &str = "hardPodAffinityWeight";
const IGNORE: &str = "ignorePreferredTermsOfExistingPods";

struct InterPodAffinity {
    /// What a required term of a placed pod weighs in the score of a pod that it selects.
    hard_weight: i64,
    /// Preferred terms of placed pods do not count for pods that have none.
    ignore_preferred_of_others: bool,
}

/// Numbers by the domains of one topology key.
#[derive(Clone)]
struct ByDomain {
    domains: Arc<Domains>,
    numbers: Vec<i64>,
}

impl ByDomain {
    fn new(snapshot: &Snapshot, key: &str) -> Self {
        let domains = snapshot.domains(key);
        ByDomain { numbers: vec![0; domains.len()], domains }
    }

    /// Adds numbers of nodes, each so many times.
    fn add_all(&mut self, counts: &[u32], times: i64) {
        for (slot, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            self.add(slot, i64::from(*count) * times);
        }
    }

    fn add(&mut self, slot: usize, number: i64) {
        if let Some(sum) = self.domains.of(slot).and_then(|domain| self.numbers.get_mut(domain)) {
            *sum += number;
        }
    }

    /// The number of a node's domain; `None` for a node without the label.
    fn of(&self, slot: usize) -> Option<i64> {
        self.numbers.get(self.domains.of(slot)?).copied()
    }

    fn is_zero(&self) -> bool {
        self.numbers.iter().all(|number| *number == 0)
    }
}

fn validate(args: &Value, path: &Path) -> ErrorList {
    match number(args, HARD_WEIGHT, 1) {
        0..=100 => vec![],
        weight => vec![Error::invalid(&path.child(HARD_WEIGHT), weight, "not in valid range [0, 100]")],
    }
}

impl InterPodAffinity {
    fn new(args: &Value) -> Self {
        let ignore = args[IGNORE].as_bool().unwrap_or_default();
        InterPodAffinity { hard_weight: number(args, HARD_WEIGHT, 1), ignore_preferred_of_others: ignore }
    }
}

/// The labels of the pod's namespace.
fn namespace_labels(cycle: &Cycle<'_>) -> Arc<Namespace> {
    static NONE: LazyLock<Arc<Namespace>> = LazyLock::new(Arc::default);
    cycle.listers.get::<Namespace>().get("", cycle.pod.namespace()).unwrap_or(&NONE).clone()
}

/// The pods that all of these terms of the pod select, in the namespaces that there are.
fn matcher<'a>(cycle: &Cycle<'_>, terms: impl Iterator<Item = &'a AffinityTerm>) -> PodMatcher {
    let namespaces = cycle.listers.get::<Namespace>();
    let terms = terms.map(|term| (term.resolve(&namespaces), term.selector.clone())).collect();
    PodMatcher { terms, terminating: true }
}

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }

    fn reads(&self, reads: &mut Reads<'_>) {
        reads.read::<Namespace>();
    }

    fn events(&self) -> Vec<EventInterest> {
        let pods = Actions::ADD | Actions::DELETE | Actions::POD_LABELS;
        vec![
            EventInterest::hinted(Resource::AssignedPod, pods, concerns_terms),
            EventInterest::any(Resource::UnscheduledPod, Actions::POD_LABELS),
            EventInterest::hinted(Resource::Node, Actions::ADD | Actions::NODE_LABELS, has_topology_keys),
            EventInterest::any(Resource::Other("namespaces"), Actions::ADD | Actions::UPDATE),
        ]
    }
}

/// Whether a bound pod that came, left or changed its labels can satisfy a waiting pod's terms, or no longer violate them. Labels
/// of namespaces are not known here: a term with a namespace selector counts as if it selected every namespace.
fn concerns_terms(pod: &PodInfo, event: &Event) -> Hint {
    let Change::Pod(old, new) = &event.change else { return Hint::Queue };
    let may_select = |term: &AffinityTerm, other: &Pod| {
        let every = BTreeMap::new();
        let named = term.matches(other, &every);
        named
            || (!term.namespace_selector.is_nothing()
                && term.selector.matches(|key| other.metadata.labels.get(key).map(String::as_str)))
    };
    let selects = |terms: &[AffinityTerm], other: &Option<Arc<Pod>>| {
        other.as_ref().is_some_and(|other| terms.iter().any(|term| may_select(term, other)))
    };
    let own = pod.affinity.as_deref();
    let required = own.map_or(&[][..], |a| &a.required);
    let anti = own.map_or(&[][..], |a| &a.required_anti);
    // One pod has to satisfy all terms.
    let satisfies = |other: &Option<Arc<Pod>>| {
        let other = other.as_ref().filter(|_| !required.is_empty());
        other.is_some_and(|other| required.iter().all(|term| may_select(term, other)))
    };
    let gained = satisfies(new) && !satisfies(old);
    let lost = selects(anti, old) && !selects(anti, new);
    let freed = old.as_ref().filter(|_| new.is_none()).is_some_and(|old| {
        let old = PodInfo::new(old.clone());
        old.affinity.as_deref().is_some_and(|a| a.required_anti.iter().any(|term| may_select(term, &pod.pod)))
    });
    if gained || lost || freed { Hint::Queue } else { Hint::Skip }
}

/// Whether a node that came, or has other labels, is in another domain of a term: of affinity if it is in one now, of
/// anti-affinity if it was in one, or is new.
fn has_topology_keys(pod: &PodInfo, event: &Event) -> Hint {
    let Change::Node(old, Some(new)) = &event.change else { return Hint::Queue };
    let Some(own) = pod.affinity.as_deref() else { return Hint::Queue };
    if own.required.is_empty() && own.required_anti.is_empty() {
        return Hint::Queue;
    }
    let value = |node: &kaji_runtime::objects::Node, key: &str| node.metadata.labels.get(key).cloned();
    let was = |key: &str| old.as_ref().and_then(|old| value(old, key));
    let affinity = own.required.iter().any(|term| {
        let is = value(new, &term.topology_key);
        is.is_some() && is != was(&term.topology_key)
    });
    let anti = own.required_anti.iter().any(|term| {
        let (was, is) = (was(&term.topology_key), value(new, &term.topology_key));
        old.is_none() || (was.is_some() && was != is)
    });
    if affinity || anti { Hint::Queue } else { Hint::Skip }
}
