//! A cache of objects that a conversion webhook has converted, and of the conversions in progress.
//!
//! Why this is sound: a revision identifies one content of one object, and the cache belongs to one definition; a new
//! definition has a new cache. So an entry holds the webhook's answer for exactly that content. Lists and watches use it (as
//! upstream's watch cache holds converted objects as long as it lives); reads of one object and writes call the webhook
//! again. Failures are not cached.
//!
//! Invariants: bounded by bytes; concurrent requests for one object share one conversion.

use super::Entry;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use kaji_meta::Status;
use kaji_store::Revision;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Bytes of converted objects that are cached for one resource.
const TOTAL_BYTES: usize = 16 << 20;
/// Abandoned conversions are removed when there are as many entries.
const MAX_PENDING: usize = 16 * 1024;

/// `apiVersion`, storage key, revision.
pub(crate) type ConvertedKey = (Arc<str>, Arc<str>, Revision);
pub(crate) type ConversionOutcome = Result<Arc<[Arc<Entry>]>, Status>;
/// A conversion in progress. It is dropped when no request waits for it any more.
pub(crate) type PendingConversion = Shared<BoxFuture<'static, ConversionOutcome>>;

/// The state of an object's conversion.
pub(crate) enum Lookup {
    /// It is cached.
    Cached(Arc<Entry>),
    /// It is being converted in a batch, at this position.
    Pending(PendingConversion, usize),
    /// It is neither cached nor being converted.
    Missing,
}

/// Conversions of one definition's objects.
#[derive(Default)]
pub(crate) struct ConvertedEntries(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// Used since the last rotation.
    recent: HashMap<ConvertedKey, Arc<Entry>>,
    /// Used before it. Entries that are not used between two rotations are dropped.
    previous: HashMap<ConvertedKey, Arc<Entry>>,
    /// Of `recent`.
    bytes: usize,
    pending: HashMap<ConvertedKey, (WeakShared<BoxFuture<'static, ConversionOutcome>>, usize)>,
}

impl Inner {
    fn keep(&mut self, key: ConvertedKey, entry: Arc<Entry>) {
        self.bytes += entry.size();
        if self.bytes > TOTAL_BYTES / 2 {
            self.previous = std::mem::take(&mut self.recent);
            self.bytes = entry.size();
        }
        self.recent.insert(key, entry);
    }

    fn find(&mut self, key: &ConvertedKey) -> Lookup {
        if let Some(entry) = self.recent.get(key) {
            return Lookup::Cached(entry.clone());
        }
        if let Some(entry) = self.previous.remove(key) {
            self.keep(key.clone(), entry.clone());
            return Lookup::Cached(entry);
        }
        match self.pending.get(key).and_then(|(conversion, at)| Some((conversion.upgrade()?, *at))) {
            Some((conversion, at)) => Lookup::Pending(conversion, at),
            None => Lookup::Missing,
        }
    }
}

impl ConvertedEntries {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up each object. The positions of missing ones are passed to `start`, which returns their conversions, each with
    /// the positions of its objects.
    pub(crate) fn find(
        &self,
        keys: &[ConvertedKey],
        start: impl FnOnce(&[usize]) -> Vec<(PendingConversion, Vec<usize>)>,
    ) -> Vec<Lookup> {
        let mut inner = self.lock();
        let mut found: Vec<Lookup> = keys.iter().map(|key| inner.find(key)).collect();
        let missing: Vec<usize> =
            (0..keys.len()).filter(|i| matches!(found.get(*i), Some(Lookup::Missing))).collect();
        if missing.is_empty() {
            return found;
        }
        if inner.pending.len() > MAX_PENDING {
            inner.pending.retain(|_, (conversion, _)| conversion.upgrade().is_some());
        }
        for (conversion, positions) in start(&missing) {
            for (at, i) in positions.into_iter().enumerate() {
                if let (Some(slot), Some(key), Some(weak)) =
                    (found.get_mut(i), keys.get(i), conversion.downgrade())
                {
                    inner.pending.insert(key.clone(), (weak, at));
                    *slot = Lookup::Pending(conversion.clone(), at);
                }
            }
        }
        found
    }

    /// Stores the outcome of a conversion.
    pub(crate) fn completed(&self, keys: Vec<ConvertedKey>, outcome: &ConversionOutcome) {
        let mut inner = self.lock();
        for (i, key) in keys.into_iter().enumerate() {
            inner.pending.remove(&key);
            if let Some(entry) = outcome.as_ref().ok().and_then(|entries| entries.get(i)) {
                inner.keep(key, entry.clone());
            }
        }
    }
}
