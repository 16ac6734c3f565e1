//! What somebody who records a request wants to know of it and only the engine does.
//!
//! Invariant: a trail sees; it changes nothing and refuses nothing. Without one, nothing is done for it.

use serde_json::Value;
use std::{fmt, sync::Arc};

/// The record of one request. Every method may be called from any task, also after the answer was given.
pub trait Trail: fmt::Debug + Send + Sync {
    /// The object in the body, in the request's version and defaulted.
    fn object(&self, object: &Value);
    /// The patch in the body.
    fn patch(&self, patch: &Value);
    /// Something worth noting. The first value of a key stays.
    fn annotate(&self, key: &str, value: &str);
    /// What handled the request broke.
    fn panicked(&self);
}

/// The trail of a request, if it is recorded.
pub type Trails = Option<Arc<dyn Trail>>;
