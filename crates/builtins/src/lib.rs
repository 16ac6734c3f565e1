//! The built-in resources: one folder an API group, one file a kind.
//!
//! Invariants:
//! - A kind's file holds everything about it (its `ResourceDef`, defaulting, validation, columns, hooks and tests);
//!   adding a kind means a new file and one line in its group's file.
//! - Hooks work on `serde_json::Value`; there are no typed structs of Kubernetes objects here.
//! - Message texts, defaults and table cells are Kubernetes' own: clients match on them.

pub mod admissionregistration;
pub mod apiextensions;
pub mod apiregistration;
pub mod apps;
pub mod authentication;
pub mod authorization;
pub mod autoscaling;
pub mod batch;
pub mod certificates;
pub mod coordination;
pub mod core;
mod deps;
pub mod discovery;
pub mod events;
pub mod flowcontrol;
pub mod networking;
pub mod node;
pub mod policy;
pub mod rbac;
pub mod resource;
pub mod scheduling;
pub mod shared;
pub mod storage;
pub mod storagemigration;

pub use crate::core::services::ports_of as node_ports_of;
pub use deps::{ApiHandle, Deps, SharedPorts, Tokens, ValidateCrd};
use kaji_resource::ResourceDef;

/// Every built-in resource.
pub fn all(deps: &Deps) -> Vec<ResourceDef> {
    [
        core::defs(deps),
        apps::defs(deps),
        batch::defs(deps),
        autoscaling::defs(deps),
        policy::defs(deps),
        networking::defs(deps),
        discovery::defs(deps),
        coordination::defs(deps),
        events::defs(deps),
        rbac::defs(deps),
        storage::defs(deps),
        scheduling::defs(deps),
        node::defs(deps),
        certificates::defs(deps),
        admissionregistration::defs(deps),
        apiextensions::defs(deps),
        apiregistration::defs(deps),
        authentication::defs(deps),
        authorization::defs(deps),
        flowcontrol::defs(deps),
        resource::defs(deps),
        storagemigration::defs(deps),
    ]
    .concat()
}
