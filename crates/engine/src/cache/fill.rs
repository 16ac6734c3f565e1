//! How a cache comes by objects other than by single events: at its beginning, when events were lost, and when they are to
//! have another shape.
//!
//! Invariants: what is fed to a cache while it loads is applied after the load, in the order in which it came; what fails
//! on the way leaves a cache as it was.

use super::{Cache, Change, Entry, Inner, Normal, Objects, State, delta::Bases};
use kaji_store::{Event as StoreEvent, EventKind, KeyValue, Revision, StoreError};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    task::Waker,
};
use tokio::time::Instant;

/// What a cache is given while it loads.
pub(super) enum Fed {
    /// Events of the store.
    Events(Vec<StoreEvent>),
    /// Everything that there is at a revision, because events before it were lost.
    State(Vec<KeyValue>, Revision),
}

impl Cache {
    /// The objects of a page of stored values.
    ///
    /// # Errors
    /// One of the values is no object.
    pub(crate) fn decode_page(&self, page: Vec<KeyValue>) -> Result<Vec<Arc<Entry>>, StoreError> {
        let (fields, normal) = {
            let inner = self.lock();
            (inner.fields.clone(), inner.normal.clone())
        };
        let (mut entries, mut bases) = (Vec::with_capacity(page.len()), Bases::default());
        for kv in page {
            // Later values come from this process; these may come from another process, so they are checked to the last byte.
            serde_json::from_slice::<serde::de::IgnoredAny>(&kv.value)
                .map_err(|error| StoreError::undecodable(&kv.key, &error))?;
            let entry = self.entry(&fields, normal.as_ref(), &kv, Change::Added)?;
            let compact = entry.compact(&mut bases).map(Arc::new);
            entries.push(compact.unwrap_or(entry));
        }
        Ok(entries)
    }

    /// Ends the load: these are the objects at `revision`. What came meanwhile is applied.
    ///
    /// # Errors
    /// Something of that cannot be decoded, and the cache lacks it.
    pub(crate) fn loaded(&self, objects: Objects, revision: Revision) -> Result<(), StoreError> {
        let mut inner = self.lock();
        self.state.store(Arc::new(State { objects, changed: revision, ..State::default() }));
        inner.window.reset(revision);
        let mut wake = vec![];
        let collected = inner.loading.take().unwrap_or_default();
        let applied = self.apply_collected(&mut inner, collected, &mut wake);
        drop(inner);
        wake.into_iter().for_each(Waker::wake);
        applied
    }

    /// Applies what came while objects were read.
    pub(super) fn apply_collected(
        &self,
        inner: &mut Inner,
        collected: Vec<Fed>,
        wake: &mut Vec<Waker>,
    ) -> Result<(), StoreError> {
        collected.into_iter().try_for_each(|fed| match fed {
            Fed::Events(events) => self.apply_locked(inner, &events, 0, wake),
            Fed::State(kvs, revision) => self.replace_locked(inner, kvs, revision, wake),
        })
    }

    /// Brings the cache to what the store holds at `revision` when events between are lost. Watches end, since what happened
    /// between cannot be told with the revisions at which it did: their clients begin anew, and get 410 for revisions before.
    /// Source: upstream's `Cacher`, which ends its watchers when it lists anew.
    ///
    /// # Errors
    /// One of the objects cannot be decoded: [`Cache::lose_change`] is to follow.
    pub(crate) fn replace(&self, kvs: Vec<KeyValue>, revision: Revision) -> Result<(), StoreError> {
        let mut inner = self.lock();
        if let Some(waiting) = &mut inner.loading {
            waiting.push(Fed::State(kvs, revision));
            return Ok(());
        }
        if self.unreadable.load().is_some() {
            // Its state is not that of any revision, so nothing can be compared with it; all objects will be read anew.
            return Ok(());
        }
        let mut wake = vec![];
        let replaced = self.replace_locked(&mut inner, kvs, revision, &mut wake);
        drop(inner);
        self.rounds.wake(wake, Instant::now());
        self.begin_round();
        replaced
    }

    fn replace_locked(
        &self,
        inner: &mut Inner,
        kvs: Vec<KeyValue>,
        revision: Revision,
        wake: &mut Vec<Waker>,
    ) -> Result<(), StoreError> {
        let old = self.state.load_full();
        if revision <= old.changed {
            return Ok(());
        }
        let events = differences(&old, kvs, revision);
        inner.epoch += 1;
        for watcher in inner.index.take_all() {
            watcher.close(wake);
        }
        let applied = self.apply_locked(inner, &events, revision, wake);
        inner.window.gap(revision);
        applied
    }

    /// Sets the shape of a cache's objects before there are any (`later_writes`: also of those written later).
    pub(crate) fn set_normal(&self, normal: Option<Normal>, later_writes: bool) {
        let mut inner = self.lock();
        inner.reshaped |= later_writes && normal.is_some();
        inner.normal = normal;
    }
}

/// What must have happened since `old` for there to be `kvs` at `revision`.
fn differences(old: &State, kvs: Vec<KeyValue>, revision: Revision) -> Vec<StoreEvent> {
    let deletion = |key: &Arc<str>, mod_revision| {
        let value = bytes::Bytes::new();
        let kv =
            KeyValue { key: key.clone(), value, create_revision: 0, mod_revision, version: 0, lease: None };
        StoreEvent { kind: EventKind::Delete, kv, previous: None }
    };
    let present: HashSet<Arc<str>> = kvs.iter().map(|kv| kv.key.clone()).collect();
    let gone = old.objects.keys().filter(|key| !present.contains(*key));
    let mut events: Vec<StoreEvent> = gone.map(|key| deletion(key, revision)).collect();
    for kv in kvs.into_iter().filter(|kv| kv.mod_revision > old.changed) {
        if kv.create_revision > old.changed && old.objects.contains_key(&*kv.key) {
            // Another object of the same name: watchers must see the first one deleted.
            events.push(deletion(&kv.key, (kv.create_revision - 1).max(old.changed + 1)));
        }
        events.push(StoreEvent { kind: EventKind::Put, kv, previous: None });
    }
    events.sort_by_key(|e| e.kv.mod_revision);
    events
}

/// A cache's objects on their way into another shape, which readers see only after [`Shaping::finish`]; dropped, it leaves no
/// trace.
pub(crate) struct Shaping {
    cache: Arc<Cache>,
    normal: Option<Normal>,
    objects: Vec<Arc<Entry>>,
}

impl Shaping {
    /// Begins; from now on the cache notes what is written meanwhile. One at a time.
    pub fn new(cache: Arc<Cache>, normal: Option<Normal>) -> Self {
        cache.lock().shaping = normal.is_some().then(HashMap::new);
        Shaping { cache, normal, objects: vec![] }
    }

    /// The storage prefix of the objects that are to be read, if any have to be: stored values are, because the former
    /// shape may have lost what this one shows.
    pub fn wanted(&self) -> Option<Arc<str>> {
        (self.normal.is_some() && self.cache.count() > 0).then(|| self.cache.prefix.clone())
    }

    /// Forgets what was read.
    pub fn restart(&mut self) {
        self.objects = vec![];
    }

    /// Reads some of the stored values. Those that are not what the cache has are left out: if it has older ones, newer
    /// ones will come, and if it has newer ones, it has noted them.
    pub fn read(&mut self, page: &[KeyValue]) {
        let (fields, state) = (self.cache.fields(), self.cache.state.load_full());
        for kv in page {
            let Some(known) = state.objects.get(&*kv.key).filter(|e| e.revision == kv.mod_revision) else {
                continue;
            };
            let entry = self.cache.entry(&fields, self.normal.as_ref(), kv, known.change());
            self.objects.extend(entry.ok().filter(|entry| !entry.looks_like(known)));
        }
    }

    /// Puts the shape in force, for the objects that there are and for those to come.
    pub fn finish(mut self) {
        let mut inner = self.cache.lock();
        let meanwhile = inner.shaping.take().unwrap_or_default();
        let mut state = State::clone(&self.cache.state.load());
        let again = meanwhile.values().filter_map(|kv| {
            let known = state.objects.get(&*kv.key).filter(|e| e.revision == kv.mod_revision)?;
            self.cache.entry(&inner.fields, self.normal.as_ref(), kv, known.change()).ok()
        });
        let again: Vec<Arc<Entry>> = again.collect();
        for entry in std::mem::take(&mut self.objects).into_iter().chain(again) {
            if state.objects.get(&entry.key).is_some_and(|now| now.revision == entry.revision) {
                state.objects.insert(entry.key.clone(), entry);
            }
        }
        if inner.normal.is_some() || self.normal.is_some() {
            state = inner.read_anew(state);
        }
        self.cache.state.store(Arc::new(state));
        inner.reshaped |= self.normal.is_some();
        inner.normal = self.normal.take();
    }
}

impl Drop for Shaping {
    fn drop(&mut self) {
        self.cache.lock().shaping = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Limits, Progress};

    const PREFIX: &str = "/registry/core/pods/";

    fn cache() -> Arc<Cache> {
        let limits = Limits { window: 16, window_bytes: 1 << 20, queue: 16 };
        Arc::new(Cache::new(PREFIX.into(), limits, Arc::new(Progress::new(1))))
    }

    fn kv(name: &str, create_revision: Revision, mod_revision: Revision) -> KeyValue {
        let value = format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}"}},"n":{mod_revision}}}"#
        );
        let key = format!("{PREFIX}{name}").into();
        KeyValue { key, value: value.into(), create_revision, mod_revision, version: 1, lease: None }
    }

    fn put(name: &str, revision: Revision) -> StoreEvent {
        StoreEvent { kind: EventKind::Put, kv: kv(name, revision, revision), previous: None }
    }

    fn load(cache: &Cache, kvs: Vec<KeyValue>, revision: Revision) {
        let entries = cache.decode_page(kvs).unwrap().into_iter();
        cache.loaded(entries.map(|entry| (entry.key.clone(), entry)).collect(), revision).unwrap();
    }

    /// Names and revisions, and the revision of the whole.
    fn state(cache: &Cache) -> String {
        let state = cache.state.load();
        let all: Vec<String> =
            state.objects.values().map(|e| format!("{}@{}", e.name(), e.revision)).collect();
        format!("{} @{}", all.join(" "), state.changed)
    }

    #[test]
    fn what_comes_while_a_cache_loads_counts() {
        let c = cache();
        c.apply(vec![put("c", 12)]).unwrap();
        // `b` went, and `d` came and went, in what was lost.
        c.replace(vec![kv("a", 2, 2), kv("c", 12, 15)], 20).unwrap();
        c.apply(vec![put("e", 21)]).unwrap();
        load(&c, vec![kv("a", 2, 2), kv("b", 3, 3), kv("d", 8, 8)], 10);
        assert_eq!(state(&c), "a@2 c@15 e@21 @21");
        // The load was later than what was lost.
        let c = cache();
        c.replace(vec![kv("a", 2, 2)], 5).unwrap();
        load(&c, vec![kv("a", 2, 2), kv("b", 7, 7)], 10);
        assert_eq!(state(&c), "a@2 b@7 @10");
        c.replace(vec![], 9).unwrap();
        assert_eq!(state(&c), "a@2 b@7 @10");
        c.replace(vec![kv("b", 7, 7)], 11).unwrap();
        assert_eq!(state(&c), "b@7 @11");
    }

    #[test]
    fn applies_a_new_shape_to_all_entries_or_none() {
        let upper: Normal =
            Arc::new(|v| Some(String::from_utf8_lossy(v).replace("\"n\"", "\"N\"").into_bytes()));
        let shown = |c: &Cache| {
            let all: Vec<String> = c.state.load().objects.values().map(|e| e.decode().to_string()).collect();
            all.iter().map(|text| if text.contains("\"N\"") { 'N' } else { 'n' }).collect::<String>()
        };
        let c = cache();
        load(&c, vec![kv("a", 2, 2), kv("b", 3, 3)], 3);
        let mut dropped = Shaping::new(c.clone(), Some(upper.clone()));
        dropped.read(&[kv("a", 2, 2)]);
        drop(dropped);
        c.apply(vec![put("c", 4)]).unwrap();
        assert_eq!(shown(&c), "nnn");
        let mut shaping = Shaping::new(c.clone(), Some(upper));
        // What is written before and after it is read.
        c.apply(vec![put("b", 5)]).unwrap();
        shaping.read(&[kv("a", 2, 2), kv("b", 3, 3), kv("c", 4, 4), kv("d", 7, 7)]);
        c.apply(vec![put("c", 6), put("d", 7)]).unwrap();
        assert_eq!(shown(&c), "nnnn");
        shaping.finish();
        assert_eq!(shown(&c), "NNNN");
        c.apply(vec![put("e", 8)]).unwrap();
        assert_eq!((shown(&c).as_str(), state(&c).as_str()), ("NNNNN", "a@2 b@5 c@6 d@7 e@8 @8"));
    }
}
