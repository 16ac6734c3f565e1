//! Failures of the store as answers to requests.

use kaji_meta::{Reason, Status};
use kaji_store::StoreError;

/// A store's failure as the answer to a request.
pub(crate) fn store_status(error: &StoreError) -> Status {
    match error {
        StoreError::Unavailable(_) | StoreError::Closed => Status::service_unavailable(error.to_string()),
        // As upstream, which passes the failure of its client on.
        StoreError::Uncertain(_) => Status::new(500, Reason::Unknown, error.to_string()),
        StoreError::TooLarge { .. } => Status::request_entity_too_large(error.to_string()),
        _ => Status::internal(error.to_string()),
    }
}
