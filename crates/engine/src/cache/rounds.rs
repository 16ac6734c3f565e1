//! When watchers are woken.
//!
//! To send to a watcher costs a system call and an encryption, whether one event is sent or a hundred. So watchers of one
//! resource are woken in rounds, and a round begins no sooner after the one before than that one takes: a busy resource
//! with very many watchers does not spend its time on waking them for each event, and what happens between two rounds
//! goes out in one piece.
//!
//! Invariants: the first event after a pause is sent at once; a few watchers are always woken at once; no watcher waits longer
//! than [`LONGEST`] for what is queued.

use std::{
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Duration,
};
use tokio::time::Instant;

/// What it takes to send to one watcher, roughly.
const EACH: Duration = Duration::from_micros(20);
/// The longest pause between rounds.
const LONGEST: Duration = Duration::from_millis(20);
/// So many are woken without a thought for rounds.
const FEW: usize = 16;

/// Wakes the watchers of one cache.
#[derive(Debug, Default)]
pub(super) struct Rounds(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Waker>,
    /// When the last round is over; `None`: long ago.
    over: Option<Instant>,
}

impl Rounds {
    /// A panic while the lock is held cannot leave the list half changed.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes them now or, after a round that is not over, later: then the answer is when [`Rounds::begin`] is due.
    pub fn wake(&self, wakers: Vec<Waker>, now: Instant) -> Option<Instant> {
        let mut state = self.lock();
        if let Some(over) = state.over.filter(|over| now < *over) {
            state.waiting.extend(wakers);
            return (!state.waiting.is_empty()).then_some(over);
        }
        let all = state.round(wakers, now);
        drop(state);
        all.into_iter().for_each(Waker::wake);
        None
    }

    /// Wakes all that wait.
    pub fn begin(&self, now: Instant) {
        let all = self.lock().round(vec![], now);
        all.into_iter().for_each(Waker::wake);
    }
}

impl State {
    fn round(&mut self, wakers: Vec<Waker>, now: Instant) -> Vec<Waker> {
        let mut all = mem::take(&mut self.waiting);
        all.extend(wakers);
        let takes = EACH.saturating_mul(u32::try_from(all.len()).unwrap_or(u32::MAX)).min(LONGEST);
        self.over = (all.len() > FEW).then(|| now + takes);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::Wake,
    };

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn many_wait_for_the_round_before() {
        let count = Arc::new(Count::default());
        let woken = || count.0.load(Ordering::Relaxed);
        let wakers = |n: usize| vec![Waker::from(count.clone()); n];
        let (rounds, start) = (Rounds::default(), Instant::now());
        let after = |micros: u64| start + Duration::from_micros(micros);
        // The first event after a pause.
        assert_eq!((rounds.wake(wakers(100), start), woken()), (None, 100));
        // A hundred take two milliseconds.
        assert_eq!((rounds.wake(wakers(60), after(100)), woken()), (Some(after(2000)), 100));
        assert_eq!((rounds.wake(wakers(40), after(1999)), woken()), (Some(after(2000)), 100));
        rounds.begin(after(2000));
        assert_eq!(woken(), 200);
        // No watcher waits: nothing is due.
        assert_eq!((rounds.wake(vec![], after(2001)), woken()), (None, 200));
        // An event after the round wakes the waiting watchers, too.
        assert_eq!(rounds.wake(wakers(10), after(2001)), Some(after(4000)));
        assert_eq!((rounds.wake(wakers(1), after(4000)), woken()), (None, 211));
        // A few are no round.
        assert_eq!((rounds.wake(wakers(16), after(4000)), woken()), (None, 227));
        // The pause is bounded.
        assert_eq!(rounds.wake(wakers(100_000), after(4000)), None);
        assert_eq!(rounds.wake(wakers(1), after(4000)), Some(after(24_000)));
    }
}
