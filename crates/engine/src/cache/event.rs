//! Events: what happened to one object, encoded once for all watchers.
//!
//! Invariant: an [`Event`], wherever it comes from (the store's history, the window, the index), tells nothing about its
//! object outside the cache. Only a [`WatchEvent`] can be sent, and the one way to make one is that a watch's filter, its
//! namespace included, accepts the event.

use super::{
    entry::{Change, Entry},
    filter::Filter,
};
use bytes::Bytes;
use kaji_store::Revision;
use std::sync::{Arc, Mutex, OnceLock};

/// How an event appears to one watcher; differs from what happened when its selector begins or ceases to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Seen {
    /// The object is new to the watcher.
    Added,
    /// It changed.
    Modified,
    /// It is gone.
    Deleted,
    /// It exists, but no longer matches: DELETED with its state before, at the revision of the event.
    Gone,
}

impl Seen {
    /// What the event says.
    fn change(self) -> Change {
        match self {
            Seen::Added => Change::Added,
            Seen::Modified => Change::Modified,
            Seen::Deleted | Seen::Gone => Change::Deleted,
        }
    }
}

/// A form of events other than the object as stored, to be encoded once and kept with the event.
type FormKey = (Seen, Arc<str>);

/// One change of one object, not yet known to concern any watch.
#[derive(Debug)]
pub(crate) struct Event {
    /// What happened.
    pub(super) change: Change,
    /// The new state; of a deletion, the last one at the revision of the deletion.
    pub(super) entry: Arc<Entry>,
    /// The state before.
    pub(super) previous: Option<Arc<Entry>>,
    gone: OnceLock<Bytes>,
    forms: Mutex<Vec<(FormKey, Bytes)>>,
}

/// Forms kept per event; beyond that (many custom Table options at once) they are encoded anew.
const MAX_FORMS: usize = 8;

impl Event {
    /// An event.
    pub fn new(change: Change, entry: Arc<Entry>, previous: Option<Arc<Entry>>) -> Self {
        Event { change, entry, previous, gone: OnceLock::new(), forms: Mutex::default() }
    }

    /// The revision that made it.
    pub fn revision(&self) -> Revision {
        self.entry.revision
    }

    /// Drops the encoded forms that were kept: a watch that is this far behind has them encoded again.
    pub fn forget_forms(&self) {
        if let Ok(mut forms) = self.forms.lock() {
            *forms = Vec::new();
        }
    }

    /// Bytes that only the event holds on to, because the cache no longer has them.
    pub fn held(&self) -> usize {
        let before = self.previous.as_ref().map_or(0, |p| p.size());
        let gone = if self.change == Change::Deleted { self.entry.size() } else { 0 };
        before + gone + size_of::<Event>()
    }
}

/// An event as one watch sees it.
#[derive(Clone, Debug)]
pub(crate) struct WatchEvent {
    event: Arc<Event>,
    seen: Seen,
}

impl WatchEvent {
    /// The event as a watch with this filter sees it; `None` if it does not.
    pub fn accept(filter: &Filter, event: &Arc<Event>) -> Option<WatchEvent> {
        let new = event.change != Change::Deleted && filter.matches(&event.entry);
        let old = event.previous.as_ref().is_some_and(|p| filter.matches(p));
        let seen = match (old, new) {
            (false, true) => Seen::Added,
            (true, true) => Seen::Modified,
            (true, false) if event.change == Change::Deleted => Seen::Deleted,
            (true, false) => Seen::Gone,
            (false, false) => return None,
        };
        Some(WatchEvent { event: event.clone(), seen })
    }

    /// The event with its states in another version, in which `filter` is to accept it. Without `previous` when the filter
    /// does not look inside.
    pub fn converted(
        &self,
        entry: Arc<Entry>,
        previous: Option<Arc<Entry>>,
        filter: &Filter,
    ) -> Option<WatchEvent> {
        let event = Arc::new(Event::new(self.event.change, entry, previous));
        if filter.looks_inside() {
            return WatchEvent::accept(filter, &event);
        }
        filter.matches(&event.entry).then_some(WatchEvent { event, seen: self.seen })
    }

    /// The type of the event that the watch gets.
    pub fn change(&self) -> Change {
        self.seen.change()
    }

    /// Whether the object is only gone from what the watch selects.
    pub fn is_gone(&self) -> bool {
        self.seen == Seen::Gone
    }

    /// The revision that made it.
    pub fn revision(&self) -> Revision {
        self.event.revision()
    }

    /// The state after it, unless it is a deletion.
    pub fn current(&self) -> Option<&Arc<Entry>> {
        (self.event.change != Change::Deleted).then_some(&self.event.entry)
    }

    /// The state before it.
    pub fn previous(&self) -> Option<&Arc<Entry>> {
        self.event.previous.as_ref()
    }

    /// `metadata` of the event's own state: that of [`WatchEvent::object`] unless it is only gone.
    pub fn metadata(&self) -> Bytes {
        self.event.entry.metadata()
    }

    /// The whole watch event as stored objects show it: encoded with its object, or here for one that left the selection. `None` for one
    /// that entered it by a change, which is encoded as MODIFIED.
    pub fn frame(&self) -> Option<Bytes> {
        let event = &*self.event;
        match (self.seen, event.entry.change()) {
            (Seen::Added, Change::Added)
            | (Seen::Modified, Change::Modified)
            | (Seen::Deleted, Change::Deleted) => Some(event.entry.frame()),
            (Seen::Gone, _) => {
                let previous = event.previous.as_ref()?;
                if previous.is_sparse() {
                    return Some(previous.deleted_frame(event.revision()));
                }
                Some(event.gone.get_or_init(|| previous.deleted_frame(event.revision())).clone())
            }
            _ => None,
        }
    }

    /// The object that the watch is shown.
    pub fn object(&self) -> Bytes {
        match self.seen {
            Seen::Gone => self.frame().map_or_else(Bytes::new, |frame| {
                frame.slice(Change::Deleted.head().len()..frame.len() - super::entry::TAIL.len())
            }),
            _ => self.event.entry.object(),
        }
    }

    /// Another form of it, made at its first use and kept with the event.
    pub fn form<E>(&self, form: &Arc<str>, make: impl FnOnce() -> Result<Bytes, E>) -> Result<Bytes, E> {
        let (event, key) = (&*self.event, (self.seen, form.clone()));
        if let Ok(forms) = event.forms.lock()
            && let Some((_, bytes)) = forms.iter().find(|(k, _)| *k == key)
        {
            return Ok(bytes.clone());
        }
        // Not under the lock: making it may be slow, and making it twice does no harm.
        let bytes = make()?;
        let sparse = event.entry.is_sparse() || event.previous.as_ref().is_some_and(|p| p.is_sparse());
        if !sparse
            && let Ok(mut forms) = event.forms.lock()
            && forms.len() < MAX_FORMS
            && !forms.iter().any(|(k, _)| *k == key)
        {
            forms.push((key, bytes.clone()));
        }
        Ok(bytes)
    }

    /// Bytes of the states that it is about.
    pub fn bytes(&self) -> usize {
        let (event, previous) = (&self.event, self.event.previous.as_ref());
        event.entry.object_len() + previous.map_or(0, |p| p.object_len())
    }
}
