//! The plugins: one file each, and one line in [`PLUGINS`].
//!
//! Invariants:
//! - Plugins decide purely: they read the cycle and their state. Only `PreBind` and `Bind` call the API.
//! - A plugin is made of arguments of which the fields are known, the types right and the values valid.
//! - Filters run in the table's order; the reasons of the first one that rejects a node are reported.

pub(crate) mod arguments;
mod default_binder;
mod default_preemption;
mod dynamic_resources;
mod gang_scheduling;
mod image_locality;
mod inter_pod_affinity;
mod node_affinity;
mod node_declared_features;
mod node_name;
mod node_ports;
mod node_resources_balanced_allocation;
mod node_resources_fit;
mod node_unschedulable;
mod node_volume_limits;
mod pod_topology_spread;
mod priority_sort;
mod scheduling_gates;
mod shape;
mod taint_toleration;
mod volume_binding;
mod volume_restrictions;
mod volume_zone;

pub use default_preemption::{Candidate, best as best_candidate};
pub use taint_toleration::tolerates;

use crate::framework::{Outcome, Points, Status};
use arguments::Arguments;
use kaji_meta::Features;
use kaji_runtime::objects::{Node, Taint};
use serde_json::Value;

/// Makes a plugin of its arguments in a configuration (`null` for none).
pub type Build = fn(&Value) -> Points;

/// A plugin's line in the table.
pub struct Entry {
    /// Upstream's name of the plugin.
    pub name: &'static str,
    /// The factor of its score in a node's total; 0 if it scores nothing.
    pub weight: i64,
    /// Its arguments, if it takes any.
    pub arguments: Option<Arguments>,
    /// Makes it.
    pub build: Build,
}

/// All plugins, in upstream's default order.
pub const PLUGINS: &[Entry] = &[
    scheduling_gates::PLUGIN,
    priority_sort::PLUGIN,
    node_name::PLUGIN,
    node_unschedulable::PLUGIN,
    taint_toleration::PLUGIN,
    node_affinity::PLUGIN,
    node_ports::PLUGIN,
    node_resources_fit::PLUGIN,
    volume_restrictions::PLUGIN,
    node_volume_limits::PLUGIN,
    volume_binding::PLUGIN,
    volume_zone::PLUGIN,
    pod_topology_spread::PLUGIN,
    inter_pod_affinity::PLUGIN,
    dynamic_resources::PLUGIN,
    default_preemption::PLUGIN,
    node_resources_balanced_allocation::PLUGIN,
    image_locality::PLUGIN,
    default_binder::PLUGIN,
    node_declared_features::PLUGIN,
    gang_scheduling::PLUGIN,
];

/// The plugins that there are with these gates: the default profile has all of them.
pub fn available(features: Features) -> impl Iterator<Item = &'static Entry> {
    PLUGINS
        .iter()
        .filter(move |entry| features.generic_workload || entry.name != gang_scheduling::PLUGIN.name)
}

/// A taint that keeps pods off, as cordoning does.
fn unschedulable_taint() -> Taint {
    Taint { key: "node.kubernetes.io/unschedulable".into(), effect: "NoSchedule".into(), ..Taint::default() }
}

/// Success if a condition holds.
fn ensure(condition: bool, status: impl FnOnce() -> Status) -> Outcome {
    if condition { Ok(()) } else { Err(status()) }
}

/// Whether a node has a taint that keeps a pod with these tolerations off.
fn has_untolerated_taint(tolerations: &[kaji_runtime::objects::Toleration], node: &Node) -> bool {
    let keeps_off = |t: &&Taint| matches!(t.effect.as_str(), "NoSchedule" | "NoExecute");
    node.spec.taints.iter().filter(keeps_off).any(|taint| !tolerates(tolerations, taint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn plugin_names_are_unique_and_every_plugin_extends_something() {
        let names: HashSet<&str> = PLUGINS.iter().map(|p| p.name).collect();
        assert_eq!(names.len(), PLUGINS.len());
        assert!(PLUGINS.len() <= 64, "a profile keeps a bit for each");
        for entry in PLUGINS {
            let points = (entry.build)(&Value::Null);
            assert_eq!(points.plugin.name(), entry.name);
            assert!(!points.is_empty(), "{}", entry.name);
            assert_eq!(points.score.is_some(), entry.weight > 0, "{}", entry.name);
        }
    }
}
