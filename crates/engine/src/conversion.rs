//! Conversion of objects between the versions of a resource, in the process or by a conversion webhook.
//!
//! Invariants: an object already in the wanted version is neither decoded nor sent anywhere; what reads return has the
//! selectors, columns and metadata of the version that was requested.

mod in_process;
mod webhook;

pub(crate) use in_process::{convert_in, convert_out, convert_to, stored_value};
pub(crate) use webhook::{BATCH, Reader, as_event};
