//! Reading objects that a webhook converts: they are converted before they are filtered and encoded, so that selectors,
//! tables and partial metadata are those of the requested version.
//!
//! Invariants: objects that are in that version already are not sent to the webhook; a slow or failing webhook affects only
//! requests for its own resource.

use crate::{
    cache::{
        ConversionOutcome, ConvertedEntries, ConvertedKey, Entry, Filter, Lookup, PendingConversion,
        SelectedEntry, WatchEvent,
    },
    registry::Resource,
    storage,
};
use futures_util::{FutureExt, future::BoxFuture};
use kaji_meta::Status;
use kaji_resource::Converter;
use serde_json::Value;
use std::sync::Arc;

/// Objects in one request to a webhook.
pub(super) const BATCH: usize = 500;
/// Bytes of objects in one request to a webhook (one larger object is sent alone).
const BATCH_BYTES: usize = 4 << 20;

/// Reads a resource in one of its versions.
#[derive(Clone)]
pub(super) struct Reader {
    res: Arc<Resource>,
    converter: Arc<dyn Converter>,
    cache: Arc<ConvertedEntries>,
    api_version: Arc<str>,
}

impl Reader {
    /// `None` when the resource is converted in the process.
    pub fn of(res: &Arc<Resource>, version: &str) -> Option<Reader> {
        let converter = res.def.conversion.webhook()?.clone();
        let cache = res.converted.clone();
        Some(Reader { res: res.clone(), converter, cache, api_version: res.api_version(version).into() })
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
    /// The webhook refuses it.
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
    /// The webhook refuses any of them.
    async fn all(&self, mut entries: Vec<Arc<Entry>>) -> Result<Vec<Arc<Entry>>, Status> {
        let unconverted: Vec<usize> =
            entries.iter().enumerate().filter(|(_, e)| self.needs(e)).map(|(i, _)| i).collect();
        if unconverted.is_empty() {
            return Ok(entries);
        }
        let wanted: Vec<Arc<Entry>> = unconverted.iter().filter_map(|i| entries.get(*i).cloned()).collect();
        let keys: Vec<ConvertedKey> = wanted.iter().map(|e| self.key(e)).collect();
        let known = self.cache.find(&keys, |missing| self.start(&wanted, missing));
        for (i, known) in unconverted.into_iter().zip(known) {
            let converted = match known {
                Lookup::Cached(entry) => Some(entry),
                // One batch after the other, so that a long list does not flood the webhook.
                Lookup::Pending(conversion, at) => conversion.await?.get(at).cloned(),
                Lookup::Missing => None,
            };
            let converted = converted.ok_or_else(|| Status::internal("a conversion has no outcome"))?;
            if let Some(slot) = entries.get_mut(i) {
                *slot = converted;
            }
        }
        Ok(entries)
    }

    /// Those of the objects, converted, that a filter of this version accepts, in the order given.
    ///
    /// # Errors
    /// The webhook refuses any of them.
    pub async fn select(
        &self,
        entries: Vec<SelectedEntry>,
        filter: &Filter,
    ) -> Result<Vec<SelectedEntry>, Status> {
        let converted = self.all(entries.into_iter().map(SelectedEntry::into_entry).collect()).await?;
        Ok(converted.iter().filter_map(|entry| filter.accept(entry)).collect())
    }

    fn key(&self, entry: &Entry) -> ConvertedKey {
        (self.api_version.clone(), entry.key.clone(), entry.revision)
    }

    /// Begins to convert these of the objects.
    fn start(&self, wanted: &[Arc<Entry>], missing: &[usize]) -> Vec<(PendingConversion, Vec<usize>)> {
        let mut conversions = vec![];
        let mut batch: Vec<usize> = vec![];
        let mut bytes = 0;
        let begin = |batch: Vec<usize>| {
            let entries: Vec<Arc<Entry>> = batch.iter().filter_map(|i| wanted.get(*i).cloned()).collect();
            let keys: Vec<ConvertedKey> = entries.iter().map(|e| self.key(e)).collect();
            let (reader, cache) = (self.clone(), self.cache.clone());
            let conversion: BoxFuture<'static, ConversionOutcome> = Box::pin(async move {
                let outcome = reader.convert(entries).await;
                cache.completed(keys, &outcome);
                outcome
            });
            (conversion.shared(), batch)
        };
        for &i in missing {
            let size = wanted.get(i).map_or(0, |e| e.object_len());
            if batch.len() == BATCH || (bytes + size > BATCH_BYTES && !batch.is_empty()) {
                conversions.push(begin(std::mem::take(&mut batch)));
                bytes = 0;
            }
            bytes += size;
            batch.push(i);
        }
        conversions.push(begin(batch));
        conversions
    }

    /// Calls the webhook.
    async fn convert(self, entries: Vec<Arc<Entry>>) -> ConversionOutcome {
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
    /// The webhook refuses any of them.
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
