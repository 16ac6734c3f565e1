//! The kinds of `batch/v1`, one file each.

use crate::Deps;
use kaji_resource::ResourceDef;

mod cronjob;
mod indexes;
mod job;
mod jobspec;
mod jobstatus;

/// Every resource of the group.
pub fn defs(_deps: &Deps) -> Vec<ResourceDef> {
    vec![cronjob::def(), job::def()]
}
