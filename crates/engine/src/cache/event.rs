//! Events: what happened to one object, encoded once for all who watch.

use super::entry::{Change, Entry};
use bytes::Bytes;
use kaji_store::Revision;
use std::sync::{Arc, Mutex, OnceLock};

/// How an event appears to one watcher; differs from what happened when its selector begins or ceases to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Seen {
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
    pub fn change(self) -> Change {
        match self {
            Seen::Added => Change::Added,
            Seen::Modified => Change::Modified,
            Seen::Deleted | Seen::Gone => Change::Deleted,
        }
    }
}

/// A form of events other than the object as stored, to be encoded once and kept with the event.
pub(crate) type FormKey = (Seen, Arc<str>);

/// One change of one object.
#[derive(Debug)]
pub(crate) struct Event {
    /// What happened.
    pub change: Change,
    /// The new state; of a deletion, the last one at the revision of the deletion.
    pub entry: Arc<Entry>,
    /// The state before.
    pub previous: Option<Arc<Entry>>,
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

    /// The whole watch event as stored objects show it, if it was encoded already or is always needed.
    pub fn frame(&self, seen: Seen) -> Option<&Bytes> {
        match (seen, self.entry.change()) {
            (Seen::Added, Change::Added)
            | (Seen::Modified, Change::Modified)
            | (Seen::Deleted, Change::Deleted) => Some(self.entry.frame()),
            (Seen::Gone, _) => {
                let previous = self.previous.as_ref()?;
                Some(self.gone.get_or_init(|| previous.deleted_frame(self.revision())))
            }
            _ => None,
        }
    }

    /// The object that a watcher sees.
    pub fn object(&self, seen: Seen) -> Bytes {
        match seen {
            Seen::Gone => self.frame(seen).map_or_else(Bytes::new, |frame| {
                frame.slice(Change::Deleted.head().len()..frame.len() - super::entry::TAIL.len())
            }),
            _ => self.entry.object(),
        }
    }

    /// Another form of the event, made at its first use.
    pub fn form<E>(&self, key: &FormKey, make: impl FnOnce() -> Result<Bytes, E>) -> Result<Bytes, E> {
        if let Ok(forms) = self.forms.lock()
            && let Some((_, bytes)) = forms.iter().find(|(k, _)| k == key)
        {
            return Ok(bytes.clone());
        }
        // Not under the lock: making it may be slow, and making it twice does no harm.
        let bytes = make()?;
        if let Ok(mut forms) = self.forms.lock()
            && forms.len() < MAX_FORMS
            && !forms.iter().any(|(k, _)| k == key)
        {
            forms.push((key.clone(), bytes.clone()));
        }
        Ok(bytes)
    }

    /// Gives up the forms that were kept: whoever is this late makes them again.
    pub fn forget_forms(&self) {
        if let Ok(mut forms) = self.forms.lock() {
            *forms = Vec::new();
        }
    }

    /// Bytes of the states that it is about.
    pub fn bytes(&self) -> usize {
        self.entry.object_bytes().len() + self.previous.as_ref().map_or(0, |p| p.object_bytes().len())
    }

    /// Bytes that only the event holds on to, because the cache no longer has them.
    pub fn held(&self) -> usize {
        let before = self.previous.as_ref().map_or(0, |p| p.size());
        let gone = if self.change == Change::Deleted { self.entry.size() } else { 0 };
        before + gone + size_of::<Event>()
    }
}
