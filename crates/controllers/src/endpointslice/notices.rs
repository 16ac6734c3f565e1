//! The events about topology-aware hints of services, by upstream's rules.
//!
//! Invariant: what is remembered (which services got hints) is for these events alone; a restarted process records anew that hints are
//! enabled, as upstream's does.

use kaji_runtime::{EventRecord, Key, Projection, objects::Service};
use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The services that got hints.
#[derive(Default)]
pub struct Notices(Mutex<HashSet<Key>>);

impl Notices {
    fn lock(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The event about the hints of a service's address family: whether there are some, or why not; `None` if it asks for none.
    pub fn event(
        &self,
        service: &Service,
        family: &str,
        hints: Option<Result<(), String>>,
    ) -> Option<EventRecord> {
        let key = service.metadata.key();
        let about = service.metadata.reference(Service::VERSION, Service::KIND);
        let disabled = |text: &str| {
            let text = format!("{text}, addressType: {family}");
            EventRecord::warning(about.clone(), "TopologyAwareHintsDisabled", text)
        };
        match hints {
            Some(Ok(())) => self.lock().insert(key).then(|| {
                let text = format!("Topology Aware Hints has been enabled, addressType: {family}");
                EventRecord::normal(about, "TopologyAwareHintsEnabled", text)
            }),
            Some(Err(reason)) => {
                self.lock().remove(&key);
                Some(disabled(&reason))
            }
            None => self.lock().remove(&key).then(|| disabled("Topology Aware Hints has been disabled")),
        }
    }

    /// Forgets a service that is gone.
    pub fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }
}
