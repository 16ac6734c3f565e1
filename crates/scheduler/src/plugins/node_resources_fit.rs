//! NodeResourcesFit: rejects nodes without enough allocatable resources, and scores by how much would be requested.

mod arguments;
mod strategy;
#[cfg(test)]
mod tests;

use super::{Entry, arguments::items};
use crate::{
    devices::{CLASS_PREFIX, class_of},
    framework::{
        Actions, Change, Code, Cycle, CycleState, Event, EventInterest, Filter, Hint, Outcome, Plugin,
        Points, PreFilter, PreFiltered, Reads, Resource, Score, Status,
    },
    pod_info::PodInfo,
    resources::Resources,
    snapshot::NodeInfo,
};
use kaji_runtime::{Projection, objects::DeviceClass};
use serde_json::Value;
use std::{borrow::Cow, collections::BTreeSet, sync::Arc};
pub use strategy::{Strategy, weighted_resources};

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "NodeResourcesFit",
    weight: 1,
    arguments: Some(arguments::ARGUMENTS),
    build: |args| {
        let plugin = Arc::new(NodeResourcesFit::new(args));
        Points::of(&plugin).pre_filter(&plugin).filter(&plugin).score(&plugin)
    },
};

struct NodeResourcesFit {
    /// Extended resources that other components see to.
    ignored: BTreeSet<String>,
    /// The same by what is before the slash.
    ignored_groups: BTreeSet<String>,
    strategy: Strategy,
}

impl NodeResourcesFit {
    fn new(args: &Value) -> Self {
        let names = |field: &str| items(&args[field]).filter_map(Value::as_str).map(str::to_owned).collect();
        NodeResourcesFit {
            ignored: names(arguments::IGNORED),
            ignored_groups: names(arguments::IGNORED_GROUPS),
            strategy: Strategy::parse(&args[arguments::STRATEGY]),
        }
    }

    fn ignores(&self, name: &str) -> bool {
        let group = || name.split('/').next().unwrap_or_default();
        !name.starts_with("hugepages-")
            && (self.ignored.contains(name)
                || (!self.ignored_groups.is_empty() && self.ignored_groups.contains(group())))
    }

    /// What a node lacks: upstream's reasons, and whether no removal of pods could give it.
    fn lacking(
        &self,
        request: &Resources,
        devices: Option<&ByDevices>,
        node: &NodeInfo,
    ) -> (Vec<Cow<'static, str>>, bool) {
        let (mut reasons, mut unresolvable) = (vec![], false);
        let pods = i64::try_from(node.pods.len()).unwrap_or(i64::MAX);
        if pods + 1 > node.allocatable.pods {
            reasons.push("Too many pods".into());
        }
        let (has, used) = (&node.allocatable, &node.requested);
        let mut check = |reason: &dyn Fn() -> Cow<'static, str>, has: i64, used: i64, wants: i64| {
            if wants > 0 && wants > has.saturating_sub(used) {
                reasons.push(reason());
                unresolvable |= wants > has;
            }
        };
        check(&|| "Insufficient cpu".into(), has.cpu, used.cpu, request.cpu);
        check(&|| "Insufficient memory".into(), has.memory, used.memory, request.memory);
        check(&|| "Insufficient ephemeral-storage".into(), has.storage, used.storage, request.storage);
        for (name, wants) in request.other.iter().filter(|(name, _)| !self.ignores(name)) {
            // Another plugin finds the devices.
            if devices.is_some_and(|devices| devices.0.contains(name)) && has.get(name) == 0 {
                continue;
            }
            let reason = || format!("Insufficient {name}").into();
            check(&reason, has.get(name), used.get(name), *wants);
        }
        (reasons, unresolvable)
    }
}

/// Extended resources that a class of devices stands for: nodes that do not offer them may have the devices.
#[derive(Clone)]
struct ByDevices(BTreeSet<String>);

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }

    fn looks_at_node_alone(&self) -> bool {
        true
    }

    fn reads(&self, reads: &mut Reads<'_>) {
        reads.read::<DeviceClass>();
    }

    fn events(&self) -> Vec<EventInterest> {
        vec![
            EventInterest::hinted(
                Resource::AssignedPod,
                Actions::DELETE | Actions::POD_SCALED_DOWN,
                frees_what_is_wanted,
            ),
            EventInterest::any(Resource::UnscheduledPod, Actions::POD_SCALED_DOWN),
            EventInterest::hinted(Resource::Node, Actions::ADD | Actions::NODE_ALLOCATABLE, offers_more),
            EventInterest::hinted(
                Resource::Other(DeviceClass::RESOURCE),
                Actions::ADD | Actions::UPDATE,
                stands_for_what_is_wanted,
            ),
        ]
    }
}

/// A pod that is gone or smaller helps if it had something of what the waiting pod requests; every pod takes a place.
fn frees_what_is_wanted(pod: &PodInfo, event: &Event) -> Hint {
    let Change::Pod(Some(old), new) = &event.change else { return Hint::Queue };
    let Some(new) = new else { return Hint::Queue };
    let (was, is) = (Resources::of_pod(old), Resources::of_pod(new));
    let less = |of: fn(&Resources) -> i64| of(&pod.request) > 0 && of(&is) < of(&was);
    let other = pod.request.other.iter().any(|(name, wants)| *wants > 0 && is.get(name) < was.get(name));
    let helps = less(|r| r.cpu) || less(|r| r.memory) || less(|r| r.storage) || other;
    if helps { Hint::Queue } else { Hint::Skip }
}

/// A class of devices helps if it is new, or newly named, and stands for something that the pod requests.
fn stands_for_what_is_wanted(pod: &PodInfo, event: &Event) -> Hint {
    let (old, new) = super::volume_binding::sides::<DeviceClass>(event);
    let Some(new) = new else { return Hint::Queue };
    let name = new.spec.extended_resource_name.as_deref();
    let by_name = match &old {
        Some(old) if old.spec.extended_resource_name.as_deref() == name => return Hint::Skip,
        Some(_) => false,
        None => {
            let of_class = |wanted: &String| wanted.strip_prefix(CLASS_PREFIX) == Some(&*new.metadata.name);
            pod.request.other.keys().any(of_class)
        }
    };
    let helps = by_name || name.is_some_and(|name| pod.request.other.keys().any(|wanted| wanted == name));
    if helps { Hint::Queue } else { Hint::Skip }
}

/// A node that came helps if the pod fits it when it is empty; a changed one if it offers more of what the pod requests too.
fn offers_more(pod: &PodInfo, event: &Event) -> Hint {
    let Change::Node(old, Some(new)) = &event.change else { return Hint::Queue };
    let parse = |node: &kaji_runtime::objects::Node| {
        Resources::parse(node.status.allocatable.iter().map(|(k, v)| (k.as_str(), v.as_str())))
    };
    let has = parse(new);
    let wants = &pod.request;
    let fits = has.pods >= 1
        && wants.cpu <= has.cpu
        && wants.memory <= has.memory
        && wants.storage <= has.storage
        // A node may have devices for what it does not offer.
        && wants.other.iter().all(|(name, amount)| *amount <= has.get(name) || has.get(name) == 0);
    if !fits {
        return Hint::Skip;
    }
    let Some(had) = old.as_deref().map(parse) else { return Hint::Queue };
    let more = has.pods > had.pods
        || (wants.cpu > 0 && has.cpu > had.cpu)
        || (wants.memory > 0 && has.memory > had.memory)
        || (wants.storage > 0 && has.storage > had.storage)
        || wants.other.keys().any(|name| has.get(name) > had.get(name));
    if more { Hint::Queue } else { Hint::Skip }
}

impl PreFilter for NodeResourcesFit {
    fn pre_filter(&self, cycle: &Cycle<'_>, state: &mut CycleState) -> Outcome<PreFiltered> {
        let other = &cycle.pod.request.other;
        if !other.is_empty() {
            let classes = cycle.listers.get::<DeviceClass>();
            let names = other.keys().filter(|name| class_of(name, &classes).is_some());
            state.put(ByDevices(names.cloned().collect()));
        }
        // Even a pod without requests takes a place.
        Ok(PreFiltered::AllNodes)
    }
}

impl Filter for NodeResourcesFit {
    fn filter(&self, cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> Outcome {
        let request = &cycle.pod.request;
        let devices = if request.other.is_empty() { None } else { state.get::<ByDevices>() };
        let (reasons, unresolvable) = self.lacking(request, devices, node);
        if reasons.is_empty() {
            return Ok(());
        }
        let code = if unresolvable { Code::UnschedulableAndUnresolvable } else { Code::Unschedulable };
        Err(Status { code, reasons: reasons.into(), plugin: PLUGIN.name })
    }
}

impl Score for NodeResourcesFit {
    fn score(&self, cycle: &Cycle<'_>, _state: &CycleState, node: &NodeInfo) -> i64 {
        self.strategy.score(cycle.pod, node)
    }
}
