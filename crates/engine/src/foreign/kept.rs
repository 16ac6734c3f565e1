//! Converted objects that were asked for lately, and those being converted now.
//!
//! Why this is sound: a revision names one content of one object for ever, and all of this belongs to one definition;
//! when that changes, this goes. So what is kept is what the converter has said about just that content. Lists and watches
//! use it (as upstream's watch cache, which keeps it as long as it lives); whoever reads one object, or writes, has it
//! converted anew. Failures are not kept.
//!
//! Invariants: bounded by bytes; an object that many wait for is converted once.

use crate::cache::Entry;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use kaji_meta::Status;
use kaji_store::Revision;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Bytes of converted objects that one resource may keep.
const TOTAL_BYTES: usize = 16 << 20;
/// Conversions that nobody waited for to their end are forgotten when there are as many entries about them.
const MAX_FLYING: usize = 16 * 1024;

/// `apiVersion`, storage key, revision.
pub(super) type Key = (Arc<str>, Arc<str>, Revision);
pub(super) type Outcome = Result<Arc<[Arc<Entry>]>, Status>;
/// A conversion under way. It goes on as long as anybody waits for it.
pub(super) type Flight = Shared<BoxFuture<'static, Outcome>>;

/// What is known of an object.
pub(super) enum Known {
    /// Its conversion.
    Kept(Arc<Entry>),
    /// It is being converted with others; this is its place among them.
    Flying(Flight, usize),
    /// Nothing.
    Nothing,
}

/// Conversions of one definition's objects.
#[derive(Default)]
pub(crate) struct Kept(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// Used since the last turn.
    young: HashMap<Key, Arc<Entry>>,
    /// Used in the turn before. What is not used for a whole turn goes.
    old: HashMap<Key, Arc<Entry>>,
    /// Of `young`.
    bytes: usize,
    flying: HashMap<Key, (WeakShared<BoxFuture<'static, Outcome>>, usize)>,
}

impl Inner {
    fn keep(&mut self, key: Key, entry: Arc<Entry>) {
        self.bytes += entry.size();
        if self.bytes > TOTAL_BYTES / 2 {
            self.old = std::mem::take(&mut self.young);
            self.bytes = entry.size();
        }
        self.young.insert(key, entry);
    }

    fn find(&mut self, key: &Key) -> Known {
        if let Some(entry) = self.young.get(key) {
            return Known::Kept(entry.clone());
        }
        if let Some(entry) = self.old.remove(key) {
            self.keep(key.clone(), entry.clone());
            return Known::Kept(entry);
        }
        match self.flying.get(key).and_then(|(flight, at)| Some((flight.upgrade()?, *at))) {
            Some((flight, at)) => Known::Flying(flight, at),
            None => Known::Nothing,
        }
    }
}

impl Kept {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of each object. Those of which nothing is known are given to `launch`, by their positions; it answers
    /// with their conversions, each with the positions of its objects.
    pub(super) fn find(
        &self,
        keys: &[Key],
        launch: impl FnOnce(&[usize]) -> Vec<(Flight, Vec<usize>)>,
    ) -> Vec<Known> {
        let mut inner = self.lock();
        let mut known: Vec<Known> = keys.iter().map(|key| inner.find(key)).collect();
        let unknown: Vec<usize> =
            (0..keys.len()).filter(|i| matches!(known.get(*i), Some(Known::Nothing))).collect();
        if unknown.is_empty() {
            return known;
        }
        if inner.flying.len() > MAX_FLYING {
            inner.flying.retain(|_, (flight, _)| flight.upgrade().is_some());
        }
        for (flight, positions) in launch(&unknown) {
            for (at, i) in positions.into_iter().enumerate() {
                if let (Some(slot), Some(key), Some(weak)) =
                    (known.get_mut(i), keys.get(i), flight.downgrade())
                {
                    inner.flying.insert(key.clone(), (weak, at));
                    *slot = Known::Flying(flight.clone(), at);
                }
            }
        }
        known
    }

    /// Notes what has become of a conversion.
    pub(super) fn landed(&self, keys: Vec<Key>, outcome: &Outcome) {
        let mut inner = self.lock();
        for (i, key) in keys.into_iter().enumerate() {
            inner.flying.remove(&key);
            if let Some(entry) = outcome.as_ref().ok().and_then(|entries| entries.get(i)) {
                inner.keep(key, entry.clone());
            }
        }
    }
}
