//! One watcher's queue, between the task that feeds the caches and the task that sends to a client.
//!
//! Invariant: the queue is bounded. A watcher that does not keep up leaves the index (and costs nothing any more)
//! until it asks for more; then it is served from the window, or, when that has moved on, is cut off.

use super::{
    event::{Event, WatchEvent},
    filter::{Filter, Interest},
};
use kaji_store::Revision;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Waker},
};

#[derive(Debug)]
pub(super) struct Watcher {
    filter: Filter,
    /// Where the index has it while it is live.
    pub interest: Interest,
    /// Events up to this revision are not for it.
    after: Revision,
    bound: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<WatchEvent>,
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

impl Watcher {
    pub fn new(filter: Filter, interest: Interest, after: Revision, bound: usize, mode: Mode) -> Self {
        Watcher { filter, interest, after, bound, queue: Mutex::new(Queue { mode, ..Queue::default() }) }
    }

    /// A panic while the lock is held cannot leave the queue half changed.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The event as this watcher sees it, if it does. That it was found by its interest says nothing: the window has
    /// all events of the resource.
    pub fn accept(&self, event: &Arc<Event>) -> Option<WatchEvent> {
        if event.revision() <= self.after {
            return None;
        }
        WatchEvent::accept(&self.filter, event)
    }

    /// Queues an item. When there is no room the watcher becomes lagging as of event `number`, and `false` says that it
    /// is to leave the index. The waker, if one waits, is added to `wake`.
    pub fn push(&self, item: WatchEvent, number: u64, wake: &mut Vec<Waker>) -> bool {
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
    pub fn take(&self, max: usize, out: &mut Vec<WatchEvent>, cx: &mut Context<'_>) -> Taken {
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
            queue.items.extend(self.accept(event));
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
