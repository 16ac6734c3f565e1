//! The resources of which all stale values (stored by another transformer than the present one) were rewritten or removed.
//!
//! Invariant: bounded by the number of resources; a note is kept until it is taken.

use crate::rules;
use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};
use tokio::sync::Notify;

/// See the module.
#[derive(Debug, Default)]
pub struct Replaced {
    prefixes: Mutex<BTreeSet<String>>,
    woken: Notify,
}

impl Replaced {
    pub(crate) fn note(&self, key: &str) {
        let prefix = rules::prefix(key);
        let mut prefixes = self.prefixes.lock().unwrap_or_else(PoisonError::into_inner);
        if !prefixes.contains(prefix) {
            prefixes.insert(prefix.to_owned());
        }
        drop(prefixes);
        self.woken.notify_one();
    }

    /// Waits for the next, or for one that came since it was waited for last.
    pub async fn next(&self) {
        self.woken.notified().await;
    }

    /// The prefixes of the keys of the resources concerned, since they were taken last.
    pub fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.prefixes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
