//! Two lanes, each with threads and places of its own: a calm one for everybody, and a busy one for flows that keep the
//! processors busy by themselves. Whoever calls now and then finds threads of the calm lane asleep, which the operating
//! system wakes at once, while it makes the busy ones wait: they had their share. In one lane, everybody's connections
//! would be read behind hundreds of a flood's.
//!
//! Invariants:
//! - A flow is busy from when its requests fill the places and a queue as long, until none of them had to wait for a while.
//! - The busy lane has no threads before it is needed. Without them, everything goes on in the calm one.
//! - Nothing but the threads differs: rights, seats and turns are the same in both.

use super::pace::{Pace, Place};
use std::{
    collections::HashMap,
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    runtime::{Builder, Runtime},
    time::Instant,
};

/// How long a flow stays busy after one of its requests had to wait.
const CALM_DOWN: Duration = Duration::from_secs(2);
/// Flows that are known to be busy, at most; there cannot be many.
const MOST_BUSY: usize = 1024;

/// Where a request, or the connection it came on, is dealt with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lane {
    /// With everybody.
    #[default]
    Calm,
    /// With those who keep the processors busy.
    Busy,
}

/// The lanes of one server.
pub struct Lanes {
    calm: Arc<Pace>,
    busy: Arc<Pace>,
    marks: Marks,
    threads: OnceLock<Threads>,
}

/// A lane that several know of. In a request's extensions: where its connection should go on.
#[derive(Clone, Default)]
pub struct SharedLane(Arc<AtomicBool>);

impl SharedLane {
    /// Which it is now.
    pub fn get(&self) -> Lane {
        if self.0.load(Ordering::Relaxed) { Lane::Busy } else { Lane::Calm }
    }

    /// Makes it another.
    pub fn set(&self, lane: Lane) {
        self.0.store(lane == Lane::Busy, Ordering::Relaxed);
    }
}

impl Lanes {
    /// Each with so many places and threads.
    pub fn new(places: usize) -> Arc<Lanes> {
        Arc::new(Lanes {
            calm: Pace::new(places),
            busy: Pace::new(places),
            marks: Marks::default(),
            threads: OnceLock::new(),
        })
    }

    /// Where this flow belongs now.
    pub fn lane(&self, flow: u64) -> Lane {
        self.marks.lane(flow, Instant::now())
    }

    /// A place for a request of this flow, in the lane that it belongs to. Its connection is wished there.
    pub async fn place(&self, flow: u64, wish: Option<&SharedLane>) -> Place {
        let lane = self.lane(flow);
        wish.iter().for_each(|wish| wish.set(lane));
        let (pace, queue) = match lane {
            Lane::Calm => (&self.calm, self.calm.places()),
            Lane::Busy => (&self.busy, 0),
        };
        pace.place(flow, |waiting| {
            if waiting >= queue {
                self.marks.set(flow, Instant::now());
            }
        })
        .await
    }

    /// Runs something on the busy lane's threads; gives it back if there are none to be had.
    pub fn run_busy<F: Future<Output = ()> + Send + 'static>(&self, work: F) -> Result<(), F> {
        let threads = self.threads.get_or_init(Threads::new).lock();
        match &*threads {
            Some(runtime) => {
                runtime.spawn(work);
                Ok(())
            }
            None => Err(work),
        }
    }

    /// Lets go of the busy lane's threads, and of what they are at.
    pub fn end(&self) {
        let runtime = self.threads.get_or_init(Threads::default).lock().take();
        // Does not wait: the caller may be one of these threads.
        runtime.into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Flows that are busy, and until when if nothing happens. Everybody asks and hardly anybody has news, so nobody who only
/// asks waits for one who is held up while it asks.
#[derive(Default)]
struct Marks {
    /// How many: mostly none, and then nobody takes the lock.
    count: AtomicUsize,
    until: RwLock<HashMap<u64, Instant>>,
}

impl Marks {
    fn lane(&self, flow: u64, now: Instant) -> Lane {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Lane::Calm;
        }
        match self.until(flow) {
            None => Lane::Calm,
            Some(end) if end > now => Lane::Busy,
            Some(_) => {
                self.change(|until| until.remove(&flow));
                Lane::Calm
            }
        }
    }

    fn set(&self, flow: u64, now: Instant) {
        if self.until(flow).is_some_and(|end| end > now + CALM_DOWN / 2) {
            return;
        }
        self.change(|until| {
            if until.len() >= MOST_BUSY {
                until.retain(|_, end| *end > now);
            }
            if until.len() < MOST_BUSY {
                until.insert(flow, now + CALM_DOWN);
            }
        });
    }

    fn until(&self, flow: u64) -> Option<Instant> {
        self.until.read().unwrap_or_else(PoisonError::into_inner).get(&flow).copied()
    }

    fn change<T>(&self, change: impl FnOnce(&mut HashMap<u64, Instant>) -> T) -> T {
        let mut until = self.until.write().unwrap_or_else(PoisonError::into_inner);
        let outcome = change(&mut until);
        self.count.store(until.len(), Ordering::Relaxed);
        outcome
    }
}

/// The busy lane's threads; `None` if there are none to be had, or no more.
#[derive(Default)]
struct Threads(Mutex<Option<Runtime>>);

impl Threads {
    fn new() -> Threads {
        let runtime = Builder::new_multi_thread().thread_name("kaji-busy").enable_all().build();
        let runtime = runtime.inspect_err(|error| {
            tracing::warn!(%error, "no threads for those who keep the processors busy");
        });
        Threads(Mutex::new(runtime.ok()))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Runtime>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // The last one to hold the server may be one of these threads, which must not wait for itself.
        self.lock().take().into_iter().for_each(Runtime::shutdown_background);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::during;
    use std::future::pending;

    const FLOOD: u64 = 1;
    const USER: u64 = 2;

    #[test]
    fn a_flow_is_busy_for_a_while() {
        let (marks, now) = (Marks::default(), Instant::now());
        assert_eq!(marks.lane(FLOOD, now), Lane::Calm);
        marks.set(FLOOD, now);
        assert_eq!(marks.lane(FLOOD, now), Lane::Busy);
        assert_eq!(marks.lane(USER, now), Lane::Calm);
        // News that changes little is no news.
        marks.set(FLOOD, now + CALM_DOWN / 4);
        assert_eq!(marks.until(FLOOD), Some(now + CALM_DOWN));
        marks.set(FLOOD, now + CALM_DOWN / 2);
        assert_eq!(marks.lane(FLOOD, now + CALM_DOWN), Lane::Busy);
        assert_eq!(marks.lane(FLOOD, now + CALM_DOWN * 2), Lane::Calm);
        assert_eq!(marks.count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn busy_flows_are_bounded() {
        let (marks, now) = (Marks::default(), Instant::now());
        for flow in 0..MOST_BUSY as u64 * 2 {
            marks.set(flow, now);
        }
        assert_eq!(marks.count.load(Ordering::Relaxed), MOST_BUSY);
        marks.set(u64::MAX, now + CALM_DOWN);
        assert_eq!(marks.lane(u64::MAX, now + CALM_DOWN), Lane::Busy);
        assert_eq!(marks.count.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn who_fills_places_and_queue_leaves_the_calm_lane() {
        let (lanes, wish) = (Lanes::new(1), SharedLane::default());
        let place = lanes.place(FLOOD, Some(&wish)).await;
        let stuck = tokio::spawn(during(Some(place), pending::<()>()));
        let waits = |wish: SharedLane| {
            let lanes = lanes.clone();
            tokio::spawn(async move { drop(lanes.place(FLOOD, Some(&wish)).await) })
        };
        // Nothing has run yet, so the place is taken: one queues, the next finds the queue as long as there are places.
        let all = [waits(wish.clone()), waits(wish.clone())];
        for one in all {
            one.await.unwrap();
        }
        assert_eq!(wish.get(), Lane::Calm);
        drop(lanes.place(FLOOD, Some(&wish)).await);
        assert_eq!(wish.get(), Lane::Busy);
        let other = SharedLane::default();
        drop(lanes.place(USER, Some(&other)).await);
        assert_eq!(other.get(), Lane::Calm);
        stuck.abort();
    }
}
