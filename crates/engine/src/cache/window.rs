//! The most recent events of a resource.
//!
//! Invariant: it holds every event after `floor()`, in order, numbered without gaps, but for those that were lost before
//! `oldest()`; it is bounded by count and by the bytes that only it holds on to.

use super::{
    entry::{Change, Entry},
    event::Event,
};
use kaji_store::Revision;
use std::{collections::VecDeque, sync::Arc};

/// Events of which other forms than the stored one are kept: watchers are seldom further behind.
const WITH_FORMS: usize = 128;
/// Events of which the objects are kept as they are sent.
const WARM: u64 = 256;

#[derive(Debug)]
pub(super) struct Window {
    events: VecDeque<Arc<Event>>,
    /// Number of the first event in `events`.
    first: u64,
    floor: Revision,
    /// Of the events up to here, some never came.
    gap: Revision,
    held: usize,
    /// Number of the first event that [`Window::settle`] has not looked at.
    unsettled: u64,
    max_events: usize,
    max_held: usize,
}

impl Window {
    pub fn new(max_events: usize, max_held: usize) -> Self {
        Window {
            events: VecDeque::new(),
            first: 0,
            floor: 0,
            gap: 0,
            held: 0,
            unsettled: 0,
            max_events,
            max_held,
        }
    }

    /// Forgets everything and begins after a revision.
    pub fn reset(&mut self, floor: Revision) {
        self.first = self.end();
        self.events = VecDeque::new();
        self.held = 0;
        self.floor = floor;
    }

    /// Notes that events before this revision were lost: what is here for them is what became of them.
    pub fn gap(&mut self, revision: Revision) {
        self.gap = revision;
    }

    /// What is here happened after this revision.
    pub fn floor(&self) -> Revision {
        self.floor
    }

    /// All events after this revision are here.
    pub fn oldest(&self) -> Revision {
        self.floor.max(self.gap)
    }

    /// The number that the next event gets.
    pub fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    pub fn push(&mut self, event: Arc<Event>) {
        self.held += event.held();
        if let Some(settled) = self.events.len().checked_sub(WITH_FORMS) {
            self.events[settled].forget_forms();
        }
        self.events.push_back(event);
        while self.events.len() > self.max_events || self.held > self.max_held {
            let Some(old) = self.events.pop_front() else { break };
            self.first += 1;
            self.held -= old.held();
            self.floor = old.revision();
        }
    }

    /// Offers the entries of events that most watches have sent, once; what `compact` gives takes their place.
    pub fn settle(&mut self, mut compact: impl FnMut(&Arc<Entry>) -> Option<Arc<Entry>>) {
        let end = self.end().saturating_sub(WARM);
        for number in self.unsettled.max(self.first)..end {
            let at = usize::try_from(number - self.first).ok();
            let Some(event) = at.and_then(|at| self.events.get_mut(at)) else { break };
            if event.change != Change::Deleted
                && let Some(entry) = compact(&event.entry)
            {
                *event = Arc::new(Event::new(event.change, entry, event.previous.clone()));
            }
        }
        self.unsettled = self.unsettled.max(end);
    }

    /// The number of the first event after a revision; `None` when events after it are missing here.
    pub fn after(&self, revision: Revision) -> Option<u64> {
        if revision < self.oldest() {
            return None;
        }
        Some(self.first + self.events.partition_point(|e| e.revision() <= revision) as u64)
    }

    /// The events from a number on; `None` when some of them are gone.
    pub fn from(&self, number: u64) -> Option<impl Iterator<Item = &Arc<Event>>> {
        let skip = usize::try_from(number.checked_sub(self.first)?).ok()?;
        Some(self.events.range(skip.min(self.events.len())..))
    }
}
