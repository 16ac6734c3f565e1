//! The kinds of `batch/v1`, one file each.

use crate::Deps;
use kaji_resource::ResourceDef;

mod cronjobs;
mod jobs;

/// Every resource of the group.
pub fn defs(_deps: &Deps) -> Vec<ResourceDef> {
    vec![cronjobs::def(), jobs::def()]
}
