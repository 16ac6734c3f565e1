//! Reading objects that somebody else converts: they are converted before anything is made of them, so that selectors,
//! tables and partial metadata are those of the version that was asked for.
//!
//! Invariants: what is in that version already is not sent anywhere; nothing here is touched by resources that convert
//! for themselves; one converter's trouble is that of its own resource's readers only.

mod kept;

pub(crate) use kept::Kept;

use crate::{
    cache::{Entry, Filter, WatchEvent},
    registry::Resource,
    storage,
};
use futures_util::{FutureExt, future::BoxFuture};
use kaji_meta::{Reason, Status};
use kaji_resource::Converter;
use kept::{Flight, Key, Known, Outcome};
use serde_json::Value;
use std::sync::Arc;

/// Objects sent to a converter at once.
pub(crate) const BATCH: usize = 500;
/// Bytes of objects sent to a converter at once (one larger object goes alone).
const BATCH_BYTES: usize = 4 << 20;

/// Reads a resource in one of its versions.
#[derive(Clone)]
pub(crate) struct Reader {
    res: Arc<Resource>,
    converter: Arc<dyn Converter>,
    kept: Arc<Kept>,
    api_version: Arc<str>,
}

impl Reader {
    /// `None` when the resource converts for itself.
    pub fn of(res: &Arc<Resource>, version: &str) -> Option<Reader> {
        let converter = res.def.conversion.webhook()?.clone();
        let kept = res.converted.clone();
        Some(Reader { res: res.clone(), converter, kept, api_version: res.api_version(version).into() })
    }

    fn needs(&self, entry: &Entry) -> bool {
        storage::peek_api_version(entry.beginning()) != Some(&*self.api_version)
    }

    /// How many of the first of these are to be converted at once, by their sizes; one at least, if there is one. Decoded,
    /// converted and encoded again, they take several times as much.
    pub fn at_once<T>(of: impl IntoIterator<Item = T>, size: impl Fn(&T) -> usize) -> usize {
        let mut bytes = 0;
        let fits = |(i, item): &(usize, T)| {
            bytes += size(item);
            *i == 0 || bytes <= BATCH_BYTES
        };
        of.into_iter().take(BATCH).enumerate().take_while(fits).count()
    }

    /// One object, converted anew.
    ///
    /// # Errors
    /// What the converter says.
    pub async fn one(&self, entry: Arc<Entry>) -> Result<Arc<Entry>, Status> {
        if !self.needs(&entry) {
            return Ok(entry);
        }
        let converted = self.clone().convert(vec![entry]).await?;
        converted.first().cloned().ok_or_else(|| Status::internal("a conversion has no outcome"))
    }

    /// Objects in the order given.
    ///
    /// # Errors
    /// What the converter says of any of them.
    pub async fn all(&self, mut entries: Vec<Arc<Entry>>) -> Result<Vec<Arc<Entry>>, Status> {
        let needy: Vec<usize> =
            entries.iter().enumerate().filter(|(_, e)| self.needs(e)).map(|(i, _)| i).collect();
        if needy.is_empty() {
            return Ok(entries);
        }
        let wanted: Vec<Arc<Entry>> = needy.iter().filter_map(|i| entries.get(*i).cloned()).collect();
        let keys: Vec<Key> = wanted.iter().map(|e| self.key(e)).collect();
        let known = self.kept.find(&keys, |unknown| self.launch(&wanted, unknown));
        for (i, known) in needy.into_iter().zip(known) {
            let converted = match known {
                Known::Kept(entry) => Some(entry),
                // One after the other: a long list is no reason to press the converter.
                Known::Flying(flight, at) => flight.await?.get(at).cloned(),
                Known::Nothing => None,
            };
            let converted = converted.ok_or_else(|| Status::internal("a conversion has no outcome"))?;
            if let Some(slot) = entries.get_mut(i) {
                *slot = converted;
            }
        }
        Ok(entries)
    }

    fn key(&self, entry: &Entry) -> Key {
        (self.api_version.clone(), entry.key.clone(), entry.revision)
    }

    /// Begins to convert these of the objects.
    fn launch(&self, wanted: &[Arc<Entry>], unknown: &[usize]) -> Vec<(Flight, Vec<usize>)> {
        let mut flights = vec![];
        let mut batch: Vec<usize> = vec![];
        let mut bytes = 0;
        let take_off = |batch: Vec<usize>| {
            let entries: Vec<Arc<Entry>> = batch.iter().filter_map(|i| wanted.get(*i).cloned()).collect();
            let keys: Vec<Key> = entries.iter().map(|e| self.key(e)).collect();
            let (reader, kept) = (self.clone(), self.kept.clone());
            let flight: BoxFuture<'static, Outcome> = Box::pin(async move {
                let outcome = reader.convert(entries).await;
                kept.landed(keys, &outcome);
                outcome
            });
            (flight.shared(), batch)
        };
        for &i in unknown {
            let size = wanted.get(i).map_or(0, |e| e.object_len());
            if batch.len() == BATCH || (bytes + size > BATCH_BYTES && !batch.is_empty()) {
                flights.push(take_off(std::mem::take(&mut batch)));
                bytes = 0;
            }
            bytes += size;
            batch.push(i);
        }
        flights.push(take_off(batch));
        flights
    }

    /// Has the converter convert these.
    async fn convert(self, entries: Vec<Arc<Entry>>) -> Outcome {
        let objects: Vec<Value> = entries.iter().map(|e| e.decode()).collect();
        let converted = self.converter.convert(objects, &self.api_version).await?;
        if converted.len() != entries.len() {
            return Err(Status::internal("a conversion has not as many objects as it was given"));
        }
        let fields = self.res.cache.fields();
        let made = entries.iter().zip(&converted).map(|(entry, object)| {
            let value = storage::encode(object);
            Entry::from_stored(
                entry.key.clone(),
                &self.res.prefix,
                &value,
                entry.revision,
                entry.change(),
                &fields,
            )
            .map(Arc::new)
            .map_err(|e| Status::internal(e.to_string()))
        });
        made.collect()
    }

    /// What a watch sees of these events, each converted. They were accepted by `filter.place()`.
    ///
    /// # Errors
    /// What the converter says of any of them.
    pub async fn events(
        self,
        events: Vec<WatchEvent>,
        filter: Arc<Filter>,
    ) -> Result<Vec<WatchEvent>, Status> {
        let inside = filter.looks_inside();
        // A deletion shows the last state, at its own revision; states before matter only where selectors do.
        let new = |event: &WatchEvent| event.current().cloned();
        let old = |event: &WatchEvent| {
            let wanted = inside || event.current().is_none();
            event.previous().cloned().filter(|_| wanted)
        };
        let mut states = Vec::with_capacity(events.len());
        for event in &events {
            states.extend(new(event));
            states.extend(old(event));
        }
        let mut states = self.all(states).await?.into_iter();
        let fields = self.res.cache.fields();
        let mut seen = Vec::with_capacity(events.len());
        for event in events {
            let new = new(&event).and_then(|_| states.next());
            let previous = old(&event).and_then(|_| states.next());
            let entry = match (new, &previous) {
                (Some(entry), _) => entry,
                (None, Some(last)) => {
                    let gone = last.deleted(&self.res.prefix, event.revision(), &fields);
                    Arc::new(gone.map_err(|e| Status::internal(e.to_string()))?)
                }
                (None, None) => continue,
            };
            seen.extend(event.converted(entry, previous, &filter));
        }
        Ok(seen)
    }
}

/// How a watch tells of a conversion that failed.
pub(crate) fn as_event(status: Status) -> Status {
    if status.reason == Reason::Unknown && status.code == 500 {
        return Status { reason: Reason::InternalError, ..status };
    }
    status
}
