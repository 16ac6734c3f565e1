//! Two lanes, each with its threads and CPU permits: the default lane for all flows, and the busy lane for flows that keep
//! the processors busy by themselves. Threads of the default lane are mostly idle, so the operating system wakes them at
//! once for an occasional request and preempts the busy lane's, which have used their share. In a single lane, all
//! connections would be read behind hundreds of a flood's.
//!
//! Invariants:
//! - A flow is busy from when its requests fill the permits and a queue of the same length, until none of them had to wait
//!   for `BUSY_FOR`.
//! - The busy lane has no threads before it is needed. Without them, every connection stays in the default lane.
//! - Lanes differ in threads only: rights, seats and turns are the same in both.

use super::limiter::{CpuPermit, FairCpuLimiter};
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
const BUSY_FOR: Duration = Duration::from_secs(2);
/// Flows that are marked busy at once.
const MAX_BUSY_FLOWS: usize = 1024;

/// Where a connection is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lane {
    /// With all flows that are not busy.
    #[default]
    Default,
    /// With the flows that keep the processors busy.
    Busy,
}

/// The lanes of one server.
pub struct Lanes {
    default: Arc<FairCpuLimiter>,
    busy: Arc<FairCpuLimiter>,
    busy_flows: BusyFlows,
    threads: OnceLock<Threads>,
}

/// A lane that several owners share. In a request's extensions: the lane that its connection should move to.
#[derive(Clone, Default)]
pub struct AtomicLane(Arc<AtomicBool>);

impl AtomicLane {
    /// The lane now.
    pub fn get(&self) -> Lane {
        if self.0.load(Ordering::Relaxed) { Lane::Busy } else { Lane::Default }
    }

    /// Replaces the lane.
    pub fn set(&self, lane: Lane) {
        self.0.store(lane == Lane::Busy, Ordering::Relaxed);
    }
}

impl Lanes {
    /// Lanes of so many permits each.
    pub fn new(permits: usize) -> Arc<Lanes> {
        Arc::new(Lanes {
            default: FairCpuLimiter::new(permits),
            busy: FairCpuLimiter::new(permits),
            busy_flows: BusyFlows::default(),
            threads: OnceLock::new(),
        })
    }

    /// The lane of this flow now.
    pub fn lane(&self, flow: u64) -> Lane {
        self.busy_flows.lane(flow, Instant::now())
    }

    /// How many permits are held at this moment, in both lanes.
    pub fn held_permits(&self) -> usize {
        self.default.held() + self.busy.held()
    }

    /// Takes a permit for a request of this flow, in the flow's lane, and makes that lane its connection's target.
    pub async fn acquire(&self, flow: u64, target: Option<&AtomicLane>) -> CpuPermit {
        let lane = self.lane(flow);
        target.iter().for_each(|target| target.set(lane));
        let (limiter, queue) = match lane {
            Lane::Default => (&self.default, self.default.limit()),
            Lane::Busy => (&self.busy, 0),
        };
        limiter
            .acquire(flow, |waiting| {
                if waiting >= queue {
                    self.busy_flows.mark(flow, Instant::now());
                }
            })
            .await
    }

    /// Spawns a task on the busy lane's threads; returns it if there are none.
    pub fn spawn_busy<F: Future<Output = ()> + Send + 'static>(&self, task: F) -> Result<(), F> {
        let threads = self.threads.get_or_init(Threads::new).lock();
        match &*threads {
            Some(runtime) => {
                runtime.spawn(task);
                Ok(())
            }
            None => Err(task),
        }
    }

    /// Ends the busy lane's threads and their tasks.
    pub fn shut_down(&self) {
        let runtime = self.threads.get_or_init(Threads::default).lock().take();
        // Does not wait: the caller may be one of these threads.
        runtime.into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Busy flows, and when each stops being busy unless it is marked again. Every request reads this and few change it, so
/// readers do not wait for each other.
#[derive(Default)]
struct BusyFlows {
    /// How many: mostly none, and then no reader takes the lock.
    count: AtomicUsize,
    until: RwLock<HashMap<u64, Instant>>,
}

impl BusyFlows {
    fn lane(&self, flow: u64, now: Instant) -> Lane {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Lane::Default;
        }
        match self.until(flow) {
            None => Lane::Default,
            Some(end) if end > now => Lane::Busy,
            Some(_) => {
                self.change(|until| until.remove(&flow));
                Lane::Default
            }
        }
    }

    fn mark(&self, flow: u64, now: Instant) {
        if self.until(flow).is_some_and(|end| end > now + BUSY_FOR / 2) {
            return;
        }
        self.change(|until| {
            if until.len() >= MAX_BUSY_FLOWS {
                until.retain(|_, end| *end > now);
            }
            if until.len() < MAX_BUSY_FLOWS {
                until.insert(flow, now + BUSY_FOR);
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

/// The busy lane's threads; `None` if they could not be started, or have ended.
#[derive(Default)]
struct Threads(Mutex<Option<Runtime>>);

impl Threads {
    fn new() -> Threads {
        let runtime = Builder::new_multi_thread().thread_name("kaji-busy").enable_all().build();
        let runtime = runtime.inspect_err(|error| {
            tracing::warn!(%error, "the threads of the busy lane could not be started");
        });
        Threads(Mutex::new(runtime.ok()))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Runtime>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // The last owner of the server may be one of these threads, which must not wait for itself.
        self.lock().take().into_iter().for_each(Runtime::shutdown_background);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu_fairness::with_permit;
    use std::future::pending;

    const FLOOD: u64 = 1;
    const USER: u64 = 2;

    #[test]
    fn a_flow_is_busy_for_a_while() {
        let (busy, now) = (BusyFlows::default(), Instant::now());
        assert_eq!(busy.lane(FLOOD, now), Lane::Default);
        busy.mark(FLOOD, now);
        assert_eq!(busy.lane(FLOOD, now), Lane::Busy);
        assert_eq!(busy.lane(USER, now), Lane::Default);
        // A mark that changes little is not written.
        busy.mark(FLOOD, now + BUSY_FOR / 4);
        assert_eq!(busy.until(FLOOD), Some(now + BUSY_FOR));
        busy.mark(FLOOD, now + BUSY_FOR / 2);
        assert_eq!(busy.lane(FLOOD, now + BUSY_FOR), Lane::Busy);
        assert_eq!(busy.lane(FLOOD, now + BUSY_FOR * 2), Lane::Default);
        assert_eq!(busy.count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn busy_flows_are_bounded() {
        let (busy, now) = (BusyFlows::default(), Instant::now());
        for flow in 0..MAX_BUSY_FLOWS as u64 * 2 {
            busy.mark(flow, now);
        }
        assert_eq!(busy.count.load(Ordering::Relaxed), MAX_BUSY_FLOWS);
        busy.mark(u64::MAX, now + BUSY_FOR);
        assert_eq!(busy.lane(u64::MAX, now + BUSY_FOR), Lane::Busy);
        assert_eq!(busy.count.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_flow_that_fills_permits_and_queue_leaves_the_default_lane() {
        let (lanes, target) = (Lanes::new(1), AtomicLane::default());
        let permit = lanes.acquire(FLOOD, Some(&target)).await;
        let stuck = tokio::spawn(with_permit(Some(permit), pending::<()>()));
        let waits = |target: AtomicLane| {
            let lanes = lanes.clone();
            tokio::spawn(async move { drop(lanes.acquire(FLOOD, Some(&target)).await) })
        };
        // Nothing has run yet, so the permit is taken: one queues, the next finds a queue as long as there are permits.
        let all = [waits(target.clone()), waits(target.clone())];
        for one in all {
            one.await.unwrap();
        }
        assert_eq!(target.get(), Lane::Default);
        drop(lanes.acquire(FLOOD, Some(&target)).await);
        assert_eq!(target.get(), Lane::Busy);
        let other = AtomicLane::default();
        drop(lanes.acquire(USER, Some(&other)).await);
        assert_eq!(other.get(), Lane::Default);
        stuck.abort();
    }
}
