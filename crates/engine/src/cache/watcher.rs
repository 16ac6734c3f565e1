//! One watcher's queue, between the task that feeds the caches and the task that sends to a client.
//!
//! Invariant: the queue is bounded. A watcher that does not keep up leaves the index (and costs nothing any more)
//! until it asks for more; then it is served from the window, or, when that has moved on, is cut off.

use super::{
    entry::{Change, Entry},
    event::{Event, Seen},
    filter::{Filter, Interest},
};
use kaji_store::Revision;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Waker},
};

/// An event for a watcher.
pub(crate) type Item = (Arc<Event>, Seen);

#[derive(Debug)]
pub(super) struct Watcher {
    filter: Filter,
    /// Where the index has it while it is live.
    pub interest: Interest,
    /// Events up to this revision are not for it.
    after: Revision,
    /// The interest alone decides; no need to look at the entry.
    trivial: bool,
    bound: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Item>,
    mode: Mode,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// In the index: events are pushed.
    #[default]
    Live,
    /// Not in the index: continues with this event of the window.
    Lagging(u64),
    /// No more events will come.
    Closed,
}

/// What taking from a queue gave.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// Some items.
    Items,
    /// None now; the waker will be called.
    Pending,
    /// None; it must continue from the window.
    Lagging(u64),
    /// None ever again.
    Closed,
}

/// How an event appears to one who wants what `matches`.
pub(crate) fn seen_by(event: &Event, matches: impl Fn(&Entry) -> bool) -> Option<Seen> {
    let new = event.change != Change::Deleted && matches(&event.entry);
    let old = event.previous.as_ref().is_some_and(|p| matches(p));
    match (old, new) {
        (false, true) => Some(Seen::Added),
        (true, true) => Some(Seen::Modified),
        (true, false) if event.change == Change::Deleted => Some(Seen::Deleted),
        (true, false) => Some(Seen::Gone),
        (false, false) => None,
    }
}

impl Watcher {
    pub fn new(filter: Filter, interest: Interest, after: Revision, bound: usize, mode: Mode) -> Self {
        let trivial = filter.is_plain();
        Watcher {
            filter,
            interest,
            after,
            trivial,
            bound,
            queue: Mutex::new(Queue { mode, ..Queue::default() }),
        }
    }

    /// A panic while the lock is held cannot leave the queue half changed.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How an event appears to this watcher, if it does.
    pub fn sees(&self, event: &Event) -> Option<Seen> {
        if event.revision() <= self.after {
            return None;
        }
        seen_by(event, |entry| self.trivial || self.filter.matches(entry))
    }

    /// Queues an item. When there is no room the watcher becomes lagging as of event `number`, and `false` says that it
    /// is to leave the index. The waker, if one waits, is added to `wake`.
    pub fn push(&self, item: Item, number: u64, wake: &mut Vec<Waker>) -> bool {
        let mut queue = self.lock();
        match queue.mode {
            Mode::Live if queue.items.len() < self.bound => {
                queue.items.push_back(item);
                wake.extend(queue.waker.take());
                true
            }
            Mode::Live => {
                queue.mode = Mode::Lagging(number);
                false
            }
            Mode::Lagging(_) | Mode::Closed => false,
        }
    }

    /// Moves up to `max` items to `out`, or says why there are none.
    pub fn take(&self, max: usize, out: &mut Vec<Item>, cx: &mut Context<'_>) -> Taken {
        let mut queue = self.lock();
        if queue.items.is_empty() {
            return match queue.mode {
                Mode::Closed => Taken::Closed,
                Mode::Lagging(number) => Taken::Lagging(number),
                Mode::Live => {
                    match &queue.waker {
                        Some(waker) if waker.will_wake(cx.waker()) => {}
                        _ => queue.waker = Some(cx.waker().clone()),
                    }
                    Taken::Pending
                }
            };
        }
        let n = max.min(queue.items.len());
        out.extend(queue.items.drain(..n));
        if queue.items.is_empty() && queue.items.capacity() > 64 {
            // Thousands of watchers must not each keep the memory of their busiest moment.
            queue.items = VecDeque::new();
        }
        Taken::Items
    }

    /// Fills the queue of a lagging watcher from the window's `events`, which begin with event `number`. Returns
    /// whether it has caught up with the last of them (and is live again).
    pub fn refill<'a>(&self, mut number: u64, events: impl Iterator<Item = &'a Arc<Event>>) -> bool {
        let mut queue = self.lock();
        if queue.mode == Mode::Closed {
            return false;
        }
        for event in events {
            if queue.items.len() >= self.bound {
                queue.mode = Mode::Lagging(number);
                return false;
            }
            if let Some(seen) = self.sees(event) {
                queue.items.push_back((event.clone(), seen));
            }
            number += 1;
        }
        queue.mode = Mode::Live;
        true
    }

    /// No more events: what is queued is still delivered.
    pub fn close(&self, wake: &mut Vec<Waker>) {
        let mut queue = self.lock();
        queue.mode = Mode::Closed;
        wake.extend(queue.waker.take());
    }
}
