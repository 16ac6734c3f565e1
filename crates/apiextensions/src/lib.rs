//! Custom resources: a CustomResourceDefinition compiled to the same `ResourceDef` that built-in kinds have, its
//! conditions, and the clean-up when it goes. Source: apiextensions.k8s.io/v1; KEP-95.
//!
//! Invariants:
//! - Definitions are served level-triggered: whatever happened, the registry ends up as the definitions say.
//! - A definition is served before its `Established` condition says so, and no other resource is touched by it.
//! - A definition that is being deleted goes only after its last object has gone and its resource is no longer served.

mod approval;
mod built_in;
mod compile;
mod conditions;
mod conversion;
mod embedded;
mod finalizers;
mod hooks;
mod lifecycle;
mod names;
mod rules;
mod scale;
mod selectable;
mod structure;
mod validation;

pub use compile::{CompileError, compile};
pub use conversion::{ConversionMetrics, Conversions};
pub use lifecycle::start;
pub use validation::validator;

use kaji_meta::GroupResource;

/// Where definitions live.
pub fn definitions() -> GroupResource {
    GroupResource::new("apiextensions.k8s.io", "customresourcedefinitions")
}
