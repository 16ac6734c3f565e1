//! The kinds of `autoscaling`, one file each. (`Scale` is a subresource of other resources only.)

use crate::Deps;
use kaji_resource::ResourceDef;

mod convert;
mod horizontalpodautoscalers;
mod metrics;

/// Every resource of the group.
pub fn defs(_deps: &Deps) -> Vec<ResourceDef> {
    vec![horizontalpodautoscalers::def()]
}
