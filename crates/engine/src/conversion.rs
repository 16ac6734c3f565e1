//! Conversion of objects between the versions of a resource, in the process or by a conversion webhook.
//!
//! Invariants: an object already in the wanted version is neither decoded nor sent anywhere; what reads return has the
//! selectors, columns and metadata of the version that was requested.

mod events;
mod in_process;
mod selection;
mod webhook;

pub(crate) use events::{Batch, EventStage};
pub(crate) use in_process::{between, convert_in, convert_out, convert_to, stored_value};
pub(crate) use selection::{Page, Selection};

use crate::{cache::Entry, registry::Resource};
use kaji_meta::Status;
use std::sync::Arc;

/// One object as a version shows it.
///
/// # Errors
/// The webhook refuses it.
pub(crate) async fn read_one(
    res: &Arc<Resource>,
    version: &str,
    entry: Arc<Entry>,
) -> Result<Arc<Entry>, Status> {
    match webhook::Reader::of(res, version) {
        Some(reader) => reader.one(entry).await,
        None => Ok(entry),
    }
}
