//! What plugins want the audit log to say about a write.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// The annotations of one write. Source: `annotations` of `audit.k8s.io/v1 Event`.
#[derive(Debug, Default)]
pub struct Annotations(Mutex<BTreeMap<String, String>>);

impl Annotations {
    /// Adds one. The first value of a key stays.
    pub fn add(&self, key: impl Into<String>, value: impl Into<String>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(key.into()).or_insert_with(|| value.into());
    }

    /// Takes all of them, also to forget them before a write is tried again.
    pub fn take(&self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
