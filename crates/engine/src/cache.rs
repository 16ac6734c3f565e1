//! The watch cache of one resource: its objects as they are sent, and its recent events.
//!
//! Invariants:
//! - Readers load a snapshot and never wait. Only the feed changes a cache.
//! - A snapshot at revision R holds exactly what the store held at R under the cache's prefix.
//! - A subscription begins at a revision and misses and repeats nothing after it.

mod converted;
mod delta;
mod entry;
mod event;
mod feed;
mod fill;
mod filter;
mod follow;
mod index;
mod progress;
mod rounds;
mod scan;
mod subscription;
mod unreadable;
mod watcher;
mod window;

pub(crate) use converted::{ConversionOutcome, ConvertedEntries, ConvertedKey, Lookup, PendingConversion};
pub(crate) use entry::TAIL;
pub use entry::{Change, Entry, EntryMeta};
pub(crate) use event::{Event, WatchEvent};
pub(crate) use feed::Feed;
pub(crate) use fill::Shaping;
pub(crate) use filter::{Filter, SelectedEntry};
pub use follow::Follower;
pub(crate) use progress::Progress;
pub(crate) use scan::Fields;
pub(crate) use subscription::{Start, Subscription};

use arc_swap::{ArcSwap, ArcSwapOption};
use delta::Bases;
use fill::Fed;
use imbl::OrdMap;
use index::Index;
use jiff::{SignedDuration, Timestamp};
use kaji_resource::SelectableField;
use kaji_store::{Event as StoreEvent, EventKind, KeyValue, Revision, StoreError};
use rounds::Rounds;
use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::Waker,
};
use tokio::time::Instant;
use window::Window;

/// Objects by storage key.
pub type Objects = OrdMap<Arc<str>, Arc<Entry>>;

/// Snapshots kept for continue tokens, per resource, and for how long.
const KEPT: usize = 16;
const KEPT_FOR: SignedDuration = SignedDuration::from_mins(5);

/// Puts a stored value into the shape that reads show; `None` when it has that shape.
pub(crate) type Normal = Arc<dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync>;

/// Bounds of a cache; see `EngineOptions`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub window: usize,
    pub window_bytes: usize,
    pub queue: usize,
}

/// All objects of a resource at one revision.
#[derive(Clone, Debug)]
pub struct CacheSnapshot {
    /// The revision. Nothing of this resource changed between `changed` and here.
    pub revision: Revision,
    /// The revision of the last change.
    pub changed: Revision,
    /// The objects.
    pub objects: Objects,
    /// How often objects had been read anew, for other fields or in another shape, when it was taken.
    reading: u64,
}

#[derive(Clone, Debug, Default)]
struct State {
    objects: Objects,
    /// Revision of the last change, or of the load.
    changed: Revision,
    /// Moves whenever all objects are read anew, for other fields or in another shape.
    reading: u64,
}

/// The cache of one resource.
pub struct Cache {
    prefix: Arc<str>,
    queue: usize,
    state: ArcSwap<State>,
    /// Why a change is missing, if one is.
    unreadable: ArcSwapOption<StoreError>,
    inner: Mutex<Inner>,
    progress: Arc<Progress>,
    rounds: Rounds,
    watchers: AtomicUsize,
}

struct Inner {
    /// What arrives while the cache loads; `None` once it has.
    loading: Option<Vec<Fed>>,
    /// While objects are being put into another shape: what is written meanwhile, as it is stored.
    shaping: Option<HashMap<Arc<str>, KeyValue>>,
    closed: bool,
    fields: Arc<Fields>,
    normal: Option<Normal>,
    /// What is written need not have that shape: it changed while the cache was in use, or writes do not see to it.
    reshaped: bool,
    window: Window,
    /// What objects of one template are kept as differences to.
    bases: Bases,
    index: Index,
    kept: VecDeque<(CacheSnapshot, Timestamp)>,
    /// Moves when the watches of before are not to go on.
    epoch: u64,
}

impl Inner {
    /// Gives up former states and events, which were read for other fields or in another shape than `state`: requests for
    /// them are served from the store, read anew.
    fn read_anew(&mut self, state: State) -> State {
        self.kept.clear();
        self.window.reset(state.changed);
        State { reading: state.reading + 1, ..state }
    }
}

impl Cache {
    /// A cache without objects. It is not fed until it is in a [`Feed`].
    pub(crate) fn new(prefix: Arc<str>, limits: Limits, progress: Arc<Progress>) -> Self {
        Cache {
            prefix,
            queue: limits.queue,
            state: ArcSwap::default(),
            unreadable: ArcSwapOption::empty(),
            inner: Mutex::new(Inner {
                loading: Some(vec![]),
                shaping: None,
                closed: false,
                fields: Arc::default(),
                normal: None,
                reshaped: false,
                window: Window::new(limits.window, limits.window_bytes),
                bases: Bases::default(),
                index: Index::default(),
                kept: VecDeque::new(),
                epoch: 0,
            }),
            progress,
            rounds: Rounds::default(),
            watchers: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The storage prefix of its objects.
    pub fn prefix(&self) -> &Arc<str> {
        &self.prefix
    }

    /// An object by storage key.
    pub fn get(&self, key: &str) -> Option<Arc<Entry>> {
        self.state.load().objects.get(key).cloned()
    }

    /// The revision of the last change.
    pub fn changed(&self) -> Revision {
        self.state.load().changed
    }

    /// How many objects there are.
    pub fn count(&self) -> usize {
        self.state.load().objects.len()
    }

    /// How many watch it.
    pub fn watcher_count(&self) -> usize {
        self.watchers.load(Ordering::Relaxed)
    }

    /// All objects at one revision.
    pub fn snapshot(&self) -> CacheSnapshot {
        // In this order: the state then has everything up to `applied`, and nothing after it but what `changed` says.
        let applied = self.progress.applied();
        let state = self.state.load();
        CacheSnapshot {
            revision: applied.max(state.changed),
            changed: state.changed,
            objects: state.objects.clone(),
            reading: state.reading,
        }
    }

    /// The state at exactly a revision, if that is the present one or one that was kept.
    pub(crate) fn snapshot_at(&self, revision: Revision) -> Option<CacheSnapshot> {
        let covers = |s: &CacheSnapshot| s.changed <= revision && revision <= s.revision;
        let now = self.snapshot();
        let found = if covers(&now) {
            now
        } else {
            self.lock().kept.iter().map(|(s, _)| s).find(|s| covers(s))?.clone()
        };
        Some(CacheSnapshot { revision, ..found })
    }

    /// Keeps a snapshot for lists that continue at its revision. The oldest makes room.
    pub(crate) fn keep(&self, snapshot: &CacheSnapshot, now: Timestamp, compacted: Revision) {
        let mut inner = self.lock();
        if snapshot.reading != self.state.load().reading {
            return;
        }
        inner.kept.retain(|(s, at)| s.revision >= compacted && now.duration_since(*at) < KEPT_FOR);
        if let Some((same, at)) = inner.kept.iter_mut().find(|(s, _)| s.changed == snapshot.changed) {
            same.revision = same.revision.max(snapshot.revision);
            *at = now;
            return;
        }
        if inner.kept.len() >= KEPT {
            inner.kept.pop_front();
        }
        inner.kept.push_back((snapshot.clone(), now));
    }

    /// The fields that selectors may use.
    pub(crate) fn fields(&self) -> Arc<Fields> {
        self.lock().fields.clone()
    }

    /// Adds fields that selectors may use; objects are scanned again if any is new.
    pub(crate) fn add_fields(&self, fields: &[SelectableField]) {
        let mut inner = self.lock();
        let mut list = inner.fields.list.clone();
        for field in fields {
            if !list.iter().any(|f| f.name == field.name) {
                list.push(field.clone());
            }
        }
        if list.len() == inner.fields.list.len() {
            return;
        }
        inner.fields = Arc::new(Fields::new(list));
        let state = State::clone(&self.state.load());
        let objects = state.objects.iter().map(|(key, entry)| {
            let entry = entry.rescanned(&self.prefix, &inner.fields).map_or_else(|_| entry.clone(), Arc::new);
            (key.clone(), entry)
        });
        let objects: Objects = objects.collect();
        let state = inner.read_anew(State { objects, ..state });
        self.state.store(Arc::new(state));
    }

    fn encoded(
        &self,
        fields: &Fields,
        normal: Option<&Normal>,
        kv: &KeyValue,
        change: Change,
    ) -> Result<Entry, serde_json::Error> {
        let place = (kv.key.clone(), &*self.prefix);
        Entry::shaped(place, &kv.value, normal, kv.mod_revision, change, fields)
    }

    fn entry(
        &self,
        fields: &Fields,
        normal: Option<&Normal>,
        kv: &KeyValue,
        change: Change,
    ) -> Result<Arc<Entry>, StoreError> {
        let made = self.encoded(fields, normal, kv, change);
        made.map(Arc::new).map_err(|error| StoreError::undecodable(&kv.key, &error))
    }

    /// A stored value as an entry, for reading history.
    pub(crate) fn read(&self, fields: &Fields, kv: &KeyValue) -> Option<Entry> {
        let normal = self.lock().normal.clone();
        self.encoded(fields, normal.as_ref(), kv, Change::Modified).ok()
    }

    /// An event as the store tells it, for replaying history.
    pub(crate) fn replay(&self, fields: &Fields, event: &StoreEvent) -> Option<Event> {
        let normal = self.lock().normal.clone();
        let make = |kv: &KeyValue, change| self.encoded(fields, normal.as_ref(), kv, change).ok();
        let previous = event.previous.as_ref().and_then(|kv| make(kv, Change::Modified));
        let (change, entry) = match (event.kind, &previous) {
            (EventKind::Put, None) => (Change::Added, make(&event.kv, Change::Added)?),
            (EventKind::Put, Some(_)) => (Change::Modified, make(&event.kv, Change::Modified)?),
            (EventKind::Delete, previous) => {
                let last = previous.as_ref()?;
                (Change::Deleted, last.deleted(&self.prefix, event.kv.mod_revision, fields).ok()?)
            }
        };
        Some(Event::new(change, Arc::new(entry), previous.map(Arc::new)))
    }

    /// Applies events of the store, in order. Those already known are skipped. Watchers may have to be woken later: the
    /// answer is when [`Cache::begin_round`] is due.
    ///
    /// # Errors
    /// One of the objects cannot be decoded: [`Cache::lose_change`] is to follow.
    pub(crate) fn apply(&self, events: Vec<StoreEvent>) -> Result<Option<Instant>, StoreError> {
        let mut inner = self.lock();
        if let Some(waiting) = &mut inner.loading {
            waiting.push(Fed::Events(events));
            return Ok(None);
        }
        if self.unreadable.load().is_some() {
            return Ok(None);
        }
        let mut wake = vec![];
        let applied = self.apply_locked(&mut inner, &events, 0, &mut wake);
        drop(inner);
        let due = self.rounds.wake(wake, Instant::now());
        applied.map(|()| due)
    }

    /// Tells those that were not woken yet.
    pub(crate) fn begin_round(&self) {
        self.rounds.begin(Instant::now());
    }

    /// Applies events, after which the objects are those of revision `reached`, if that is later than the last event. Those before
    /// one that cannot be decoded are applied, the others are not.
    fn apply_locked(
        &self,
        inner: &mut Inner,
        events: &[StoreEvent],
        reached: Revision,
        wake: &mut Vec<Waker>,
    ) -> Result<(), StoreError> {
        let mut state = State::clone(&self.state.load());
        let known = state.changed;
        let Inner { window, bases, .. } = &mut *inner;
        window.settle(|entry| {
            // Former states are in the window alone, which is bounded.
            state.objects.get(&*entry.key).filter(|present| Arc::ptr_eq(present, entry))?;
            let compact = Arc::new(entry.compact(bases)?);
            state.objects.insert(compact.key.clone(), compact.clone());
            Some(compact)
        });
        let (mut made, mut outcome) = (Vec::with_capacity(events.len()), Ok(()));
        for event in events.iter().filter(|e| e.kv.mod_revision > known) {
            state.changed = event.kv.mod_revision;
            if let Some(meanwhile) = inner.shaping.as_mut().filter(|_| event.kind == EventKind::Put) {
                meanwhile.insert(event.kv.key.clone(), event.kv.clone());
            }
            match self.change(inner, &mut state.objects, event) {
                Ok(change) => made.extend(change.map(Arc::new)),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        state.changed = state.changed.max(reached);
        // Visible to readers before any watcher gets it.
        self.state.store(Arc::new(state));
        for event in made {
            self.announce(inner, event, wake);
        }
        outcome
    }

    fn change(
        &self,
        inner: &Inner,
        objects: &mut Objects,
        event: &StoreEvent,
    ) -> Result<Option<Event>, StoreError> {
        Ok(match event.kind {
            EventKind::Put => {
                let known = objects.contains_key(&*event.kv.key);
                let change = if known { Change::Modified } else { Change::Added };
                let normal = inner.normal.as_ref().filter(|_| inner.reshaped);
                let entry = self.entry(&inner.fields, normal, &event.kv, change)?;
                let previous = objects.insert(entry.key.clone(), entry.clone());
                Some(Event::new(change, entry, previous))
            }
            EventKind::Delete => objects.remove(&*event.kv.key).and_then(|previous| {
                let last = previous.deleted(&self.prefix, event.kv.mod_revision, &inner.fields).ok()?;
                Some(Event::new(Change::Deleted, Arc::new(last), Some(previous)))
            }),
        })
    }

    fn announce(&self, inner: &mut Inner, event: Arc<Event>, wake: &mut Vec<Waker>) {
        let number = inner.window.end();
        let mut full = vec![];
        inner.index.concerned(&event, &inner.fields, |watcher| {
            if let Some(item) = watcher.accept(&event)
                && !watcher.push(item, number, wake)
            {
                full.push(watcher.clone());
            }
        });
        for watcher in full {
            inner.index.remove(&watcher);
        }
        inner.window.push(event);
        // What a kept snapshot holds on to, the window does too; so beyond the window it would begin to cost memory.
        let floor = inner.window.floor();
        inner.kept.retain(|(s, _)| s.revision >= floor);
    }

    /// Which watches may go on: those that began in this epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// Ends all watches that there are: their clients begin anew, with definitions that have come meanwhile.
    pub(crate) fn end_watches(&self) {
        let mut wake = vec![];
        let mut inner = self.lock();
        inner.epoch += 1;
        for watcher in inner.index.take_all() {
            watcher.close(&mut wake);
        }
        drop(inner);
        wake.into_iter().for_each(Waker::wake);
    }

    /// Ends so many watches at most of those that keep up: what is queued for them is still sent. How many it has ended.
    pub(crate) fn end_some(&self, most: usize) -> usize {
        let mut wake = vec![];
        let mut inner = self.lock();
        let some = inner.index.some(most);
        for watcher in &some {
            inner.index.remove(watcher);
            watcher.close(&mut wake);
        }
        drop(inner);
        wake.into_iter().for_each(Waker::wake);
        some.len()
    }

    /// How many watches there are that keep up.
    pub(crate) fn live_watchers(&self) -> usize {
        self.lock().index.some(usize::MAX).len()
    }

    /// Ends all watches; later ones end at once.
    pub(crate) fn close(&self) {
        let mut wake = vec![];
        let mut inner = self.lock();
        inner.closed = true;
        inner.kept.clear();
        for watcher in inner.index.take_all() {
            watcher.close(&mut wake);
        }
        drop(inner);
        wake.into_iter().for_each(Waker::wake);
        self.begin_round();
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cache({}, {} objects)", self.prefix, self.count())
    }
}
