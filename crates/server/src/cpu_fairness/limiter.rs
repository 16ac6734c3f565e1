//! A fair limiter of request handlers that compute: a request takes a CPU permit before its handler runs, and waits for one
//! in the queue of its flow; flows take turns (round robin).
//!
//! Seats of flow control bound how many requests are in flight. Most of these wait for I/O, so there are far more seats than
//! processors, and seats alone do not separate flows that only compute. With the limiter, requests of a flood wait here,
//! parsed and cheap, instead of in the runtime's run queue, which is first in, first out for all flows.
//!
//! Invariants:
//! - A permit is held while its handler computes, and is returned when the handler waits for the first time or ends. So no
//!   request that holds a permit waits for one. A handler that continues after a wait needs no second permit: what is left
//!   to do after a commit is short.
//! - Returned permits count as free only after all tasks that were ready to run have run: requests that arrive meanwhile
//!   find them taken and queue. Otherwise a permit would be free at every arrival, as no more handlers overlap than there
//!   are threads.
//! - Waiting requests hold seats, and the number of seats is bounded. A request that stops waiting is skipped.

use std::{
    collections::{HashMap, VecDeque},
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::oneshot;

/// Permits of one lane.
pub struct FairCpuLimiter(Mutex<State>);

#[derive(Default)]
struct State {
    limit: usize,
    /// Permits that are held, or were returned and do not count as free yet.
    taken: usize,
    /// Those of them that were returned.
    returned: usize,
    /// Whether a task that counts returned permits as free is running.
    reclaiming: bool,
    waiting: HashMap<u64, VecDeque<oneshot::Sender<CpuPermit>>>,
    /// Flows with waiting requests, in the order of their turns; each once.
    turns: VecDeque<u64>,
}

/// The right to compute, until it is dropped.
pub struct CpuPermit(Arc<FairCpuLimiter>);

impl FairCpuLimiter {
    /// A limiter of so many permits, at least one.
    pub fn new(limit: usize) -> Arc<FairCpuLimiter> {
        Arc::new(FairCpuLimiter(Mutex::new(State { limit: limit.max(1), ..State::default() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many permits there are.
    pub fn limit(&self) -> usize {
        self.state().limit
    }

    /// How many permits are held at this moment.
    pub fn held(&self) -> usize {
        let state = self.state();
        state.taken - state.returned
    }

    /// Takes a permit for a request of this flow. If it has to wait, `on_wait` is called with the number of requests of its
    /// flow that wait already.
    pub async fn acquire(self: &Arc<Self>, flow: u64, on_wait: impl FnOnce(usize)) -> CpuPermit {
        let (turn, before) = {
            let mut state = self.state();
            if state.taken < state.limit && state.turns.is_empty() {
                state.taken += 1;
                return CpuPermit(self.clone());
            }
            let (sender, turn) = oneshot::channel();
            let waiting = state.waiting.entry(flow).or_default();
            waiting.push_back(sender);
            let before = waiting.len() - 1;
            if before == 0 {
                state.turns.push_back(flow);
            }
            (turn, before)
        };
        on_wait(before);
        match turn.await {
            Ok(permit) => permit,
            // Does not happen: every sender in a queue is used. Serving the request is better than failing it.
            Err(_) => {
                self.state().taken += 1;
                CpuPermit(self.clone())
            }
        }
    }

    /// Counts returned permits as free and hands them to waiting requests, until no more are returned.
    async fn reclaim(self: Arc<Self>) {
        loop {
            // To the end of the run queue: tasks that are ready run first.
            tokio::task::yield_now().await;
            let mut next = vec![];
            {
                let mut state = self.state();
                if state.returned == 0 {
                    state.reclaiming = false;
                    return;
                }
                state.taken -= std::mem::take(&mut state.returned);
                while state.taken < state.limit
                    && let Some(sender) = state.next()
                {
                    state.taken += 1;
                    next.push(sender);
                }
            }
            for sender in next {
                // If the receiver is gone, the permit is dropped and so returned.
                let _ = sender.send(CpuPermit(self.clone()));
            }
        }
    }
}

impl State {
    /// The next request that still waits, of the flow that has its turn.
    fn next(&mut self) -> Option<oneshot::Sender<CpuPermit>> {
        while let Some(flow) = self.turns.pop_front() {
            let Some(waiting) = self.waiting.get_mut(&flow) else { continue };
            let next = std::iter::from_fn(|| waiting.pop_front()).find(|sender| !sender.is_closed());
            if waiting.is_empty() {
                self.waiting.remove(&flow);
            } else {
                self.turns.push_back(flow);
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }
}

impl Drop for CpuPermit {
    fn drop(&mut self) {
        let start = {
            let mut state = self.0.state();
            state.returned += 1;
            !std::mem::replace(&mut state.reclaiming, true)
        };
        if !start {
            return;
        }
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                runtime.spawn(self.0.clone().reclaim());
            }
            // The runtime has ended, and all waiting requests with it.
            Err(_) => self.0.state().reclaiming = false,
        }
    }
}

/// Runs a handler with a permit, which is returned as soon as the handler waits for something.
pub async fn with_permit<F: Future>(permit: Option<CpuPermit>, handler: F) -> F::Output {
    let (mut permit, mut handler) = (permit, pin!(handler));
    poll_fn(move |cx| {
        let outcome = handler.as_mut().poll(cx);
        drop(permit.take());
        outcome
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use tokio::task::{JoinSet, yield_now};

    const FLOOD: u64 = 1;
    const USER: u64 = 2;

    /// The flows of the requests that computed, in order: all `arrivals` queue before one runs.
    async fn order(limit: usize, arrivals: &[u64]) -> Vec<u64> {
        let (limiter, served) = (FairCpuLimiter::new(limit), Arc::new(Mutex::new(vec![])));
        let mut all = JoinSet::new();
        for &flow in arrivals {
            let (limiter, served) = (limiter.clone(), served.clone());
            all.spawn(async move {
                let permit = limiter.acquire(flow, drop).await;
                with_permit(Some(permit), async { served.lock().unwrap().push(flow) }).await;
            });
        }
        all.join_all().await;
        assert!(limiter.state().waiting.is_empty());
        assert!(limiter.state().turns.is_empty());
        Arc::into_inner(served).unwrap().into_inner().unwrap()
    }

    #[tokio::test]
    async fn one_request_of_another_flow_does_not_wait_behind_a_flood() {
        let mut arrivals = vec![FLOOD; 20];
        arrivals.push(USER);
        let served = order(2, &arrivals).await;
        // Two were running; of those that wait, one of the flood is first.
        assert_eq!(served.iter().position(|flow| *flow == USER), Some(3));
        assert_eq!(served.len(), arrivals.len());
    }

    #[tokio::test]
    async fn flows_take_turns() {
        let arrivals = [1, 1, 1, 1, 1, 2, 2, 2, 3];
        assert_eq!(order(1, &arrivals).await, [1, 1, 2, 3, 1, 2, 1, 2, 1]);
    }

    #[tokio::test]
    async fn a_handler_that_waits_holds_no_permit() {
        let limiter = FairCpuLimiter::new(1);
        let permit = limiter.acquire(FLOOD, drop).await;
        let stuck = tokio::spawn(with_permit(Some(permit), pending::<()>()));
        let permit = limiter.acquire(USER, drop).await;
        assert!(!stuck.is_finished());
        drop(permit);
        drop(limiter.acquire(FLOOD, drop).await);
        stuck.abort();
    }

    #[tokio::test]
    async fn cancelled_waiters_are_skipped() {
        let limiter = FairCpuLimiter::new(1);
        let permit = limiter.acquire(FLOOD, drop).await;
        let gone = tokio::spawn({
            let limiter = limiter.clone();
            async move { drop(limiter.acquire(FLOOD, drop).await) }
        });
        yield_now().await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        let waits = tokio::spawn({
            let limiter = limiter.clone();
            async move { drop(limiter.acquire(USER, drop).await) }
        });
        yield_now().await;
        drop(permit);
        waits.await.unwrap();
        // Every permit is counted as free in the end.
        while limiter.state().taken > 0 {
            yield_now().await;
        }
    }
}
