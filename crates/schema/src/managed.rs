//! Field management: the manager of each field (`metadata.managedFields`), and server-side apply on top of it.
//!
//! [`update`] records what a create, update or patch changed; [`apply`] merges an applied configuration. Both are pure:
//! the time and every conversion come from the caller. What they write follows upstream's field manager entry by
//! entry; sets are kept as FieldsV1 JSON throughout (see [`crate::fieldset`]) and changed in place, so an update costs
//! one comparison of the two objects plus work in proportion to what changed.
//!
//! Invariant: entries that these functions write are in canonical spelling, sorted, and never empty. Entries that come
//! from other sources are converted to that form before they are used.

use kaji_meta::{Reason, Status};
use serde_json::Value;

use crate::fieldset::{FieldSet, Tree, ops};
use crate::schema::SchemaRef;
use crate::types;

mod apply;
mod check;
mod compare;
mod configure;
mod conflict;
mod entry;
mod last_applied;
mod merge;
mod prune;
mod reconcile;
mod remove;
mod scale;
#[cfg(test)]
mod tests;
mod update;
mod value;

pub use apply::{ApplyArgs, apply, not_of_type};
pub use configure::configure;
pub use scale::{ScalePaths, scale_to_parent, scale_to_subresource};
pub use update::{UpdateArgs, update};

/// The versions of one kind: how field management reaches the version that a manager's entry was recorded in.
///
/// A closure `Fn(&Value, &str) -> Result<Value, Status>` is one too, for kinds with versions that share a schema.
pub trait Versions {
    /// `object` at `api_version` ("apps/v1").
    ///
    /// # Errors
    /// With code 404 if there is no such version (any more): its managers are then forgotten. Any other error stops
    /// an apply, and makes an update drop all managers.
    fn convert(&self, object: &Value, api_version: &str) -> Result<Value, Status>;

    /// The schema of the kind at `api_version`. `None`: the built-in type of that version, else the schema given.
    fn schema(&self, _api_version: &str) -> Option<SchemaRef> {
        None
    }
}

impl<F> Versions for F
where
    F: Fn(&Value, &str) -> Result<Value, Status>,
{
    fn convert(&self, object: &Value, api_version: &str) -> Result<Value, Status> {
        self(object, api_version)
    }
}

/// The schema of `object`'s kind at another version.
fn schema_at(versions: &dyn Versions, object: &Value, api_version: &str, here: &SchemaRef) -> SchemaRef {
    versions
        .schema(api_version)
        .or_else(|| {
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            match here {
                SchemaRef::Named(_) => types::for_gvk(group, version, object.get("kind")?.as_str()?),
                SchemaRef::Owned(_) => None,
            }
        })
        .unwrap_or_else(|| here.clone())
}

/// Upstream's check of entries that an admission plug-in may have damaged: `Err` is the reason why they are unusable,
/// and the caller puts those from before admission back. `managed_fields` is `metadata.managedFields`, null if absent.
///
/// # Errors
/// The text for the warning.
pub fn check_entries(managed_fields: &Value) -> Result<(), String> {
    entry::decode(managed_fields).map(drop)
}

/// Puts `live`'s timestamps back into `new`'s entries if they are all that differs between the two objects, so that a
/// write without effect stays one. To be called when the object is complete, right before it is compared and stored.
pub fn revert_timestamps(live: &Value, new: &mut Value) {
    let (Some(old), Some(fresh)) = (entries_of(live), entries_of(new)) else { return };
    if old.len() != fresh.len() || old == fresh || !old.iter().zip(fresh).all(|(a, b)| same_but_time(a, b)) {
        return;
    }
    if !value::equal_objects(live, new) {
        return;
    }
    let old = Value::Array(old.clone());
    if let Some(slot) = new.pointer_mut("/metadata/managedFields") {
        *slot = old;
    }
}

fn entries_of(object: &Value) -> Option<&Vec<Value>> {
    object.get("metadata")?.get("managedFields")?.as_array().filter(|list| !list.is_empty())
}

fn same_but_time(a: &Value, b: &Value) -> bool {
    let (Value::Object(a), Value::Object(b)) = (a, b) else { return a == b };
    let covers = |a: &Tree, b: &Tree| a.iter().all(|(k, v)| k == "time" || b.get(k) == Some(v));
    covers(a, b) && covers(b, a)
}

pub(crate) use value::{equal as equal_values, go_plain};

/// A failure that upstream reports as a bare error: 500 without a reason.
pub(crate) fn failure(message: impl Into<String>) -> Status {
    Status::new(500, Reason::Unknown, message)
}

/// Removes `reset`, the fields that a strategy sets itself, from a set.
fn filter(set: &mut Tree, reset: Option<&FieldSet>) {
    if let Some(reset) = reset {
        ops::subtract_recursively(set, &reset.0);
    }
}
