//! Whose turn it is at the processors. Seats bound what is under way, most of which waits for something; they are too many
//! to keep apart those who only compute. So before its handler runs, a request takes one of a few places, and when they are
//! taken waits among those of its own flow; flows take turns. A flood of one flow then waits here, parsed and cheap, instead
//! of in the runtime's queue, where everybody waits behind everybody.
//!
//! Invariants:
//! - A place is held while a handler computes: it is free again as soon as the handler waits for something or is done. So
//!   nobody who holds a place waits for one.
//! - Free places are counted only after all that was ready to run before has run: whoever arrives meanwhile finds them
//!   taken and queues. Otherwise places would be free whenever somebody looks, as handlers do not overlap more than
//!   there are threads.
//! - Who waits holds seats, whose number is bounded. Who stops waiting is passed over.

use std::{
    collections::{HashMap, VecDeque},
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::oneshot;

/// The places of one server.
pub struct Pace(Mutex<State>);

#[derive(Default)]
struct State {
    most: usize,
    /// Places that are taken, or were and are not counted as free yet.
    taken: usize,
    /// Those of them that were given back.
    back: usize,
    /// Whether somebody is on the way to count them.
    counting: bool,
    waiting: HashMap<u64, VecDeque<oneshot::Sender<Place>>>,
    /// Flows that wait, in the order of their turns; each once.
    turns: VecDeque<u64>,
}

/// A place, until it is dropped.
pub struct Place(Arc<Pace>);

impl Pace {
    /// So many places, at least one.
    pub fn new(most: usize) -> Arc<Pace> {
        Arc::new(Pace(Mutex::new(State { most: most.max(1), ..State::default() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many places there are.
    pub fn places(&self) -> usize {
        self.state().most
    }

    /// A place for a request of this flow. When it has to wait, `waits` hears how many of its flow do so already.
    pub async fn place(self: &Arc<Self>, flow: u64, waits: impl FnOnce(usize)) -> Place {
        let (turn, before) = {
            let mut state = self.state();
            if state.taken < state.most && state.turns.is_empty() {
                state.taken += 1;
                return Place(self.clone());
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
        waits(before);
        match turn.await {
            Ok(place) => place,
            // Never: whoever is in a queue is answered. Going on is better than not.
            Err(_) => {
                self.state().taken += 1;
                Place(self.clone())
            }
        }
    }

    /// Counts what came back, again and again until nothing does.
    async fn count(self: Arc<Self>) {
        loop {
            // To the end of the queue: what is ready runs first.
            tokio::task::yield_now().await;
            let mut next = vec![];
            {
                let mut state = self.state();
                if state.back == 0 {
                    state.counting = false;
                    return;
                }
                state.taken -= std::mem::take(&mut state.back);
                while state.taken < state.most
                    && let Some(sender) = state.next()
                {
                    state.taken += 1;
                    next.push(sender);
                }
            }
            for sender in next {
                // One that has stopped listening drops its place, which brings it back.
                let _ = sender.send(Place(self.clone()));
            }
        }
    }
}

impl State {
    /// Whose turn it is, of those who still wait.
    fn next(&mut self) -> Option<oneshot::Sender<Place>> {
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

impl Drop for Place {
    fn drop(&mut self) {
        let counts = {
            let mut state = self.0.state();
            state.back += 1;
            !std::mem::replace(&mut state.counting, true)
        };
        if !counts {
            return;
        }
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                runtime.spawn(self.0.clone().count());
            }
            // The runtime is gone, and with it whoever could wait.
            Err(_) => self.0.state().counting = false,
        }
    }
}

/// The work's outcome; the place is given back as soon as the work waits for something.
pub async fn during<F: Future>(place: Option<Place>, work: F) -> F::Output {
    let (mut place, mut work) = (place, pin!(work));
    poll_fn(move |cx| {
        let outcome = work.as_mut().poll(cx);
        drop(place.take());
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

    /// Who computed, in order: `arrivals` all come before anybody runs.
    async fn order(most: usize, arrivals: &[u64]) -> Vec<u64> {
        let (pace, served) = (Pace::new(most), Arc::new(Mutex::new(vec![])));
        let mut all = JoinSet::new();
        for &flow in arrivals {
            let (pace, served) = (pace.clone(), served.clone());
            all.spawn(async move {
                let place = pace.place(flow, drop).await;
                during(Some(place), async { served.lock().unwrap().push(flow) }).await;
            });
        }
        all.join_all().await;
        assert!(pace.state().waiting.is_empty());
        assert!(pace.state().turns.is_empty());
        Arc::into_inner(served).unwrap().into_inner().unwrap()
    }

    #[tokio::test]
    async fn one_request_of_another_flow_does_not_wait_behind_a_flood() {
        let mut arrivals = vec![FLOOD; 20];
        arrivals.push(USER);
        let served = order(2, &arrivals).await;
        // Two were under way; of those who wait, one of the flood is first.
        assert_eq!(served.iter().position(|flow| *flow == USER), Some(3));
        assert_eq!(served.len(), arrivals.len());
    }

    #[tokio::test]
    async fn flows_take_turns() {
        let arrivals = [1, 1, 1, 1, 1, 2, 2, 2, 3];
        assert_eq!(order(1, &arrivals).await, [1, 1, 2, 3, 1, 2, 1, 2, 1]);
    }

    #[tokio::test]
    async fn who_waits_for_something_else_holds_no_place() {
        let pace = Pace::new(1);
        let place = pace.place(FLOOD, drop).await;
        let stuck = tokio::spawn(during(Some(place), pending::<()>()));
        let place = pace.place(USER, drop).await;
        assert!(!stuck.is_finished());
        drop(place);
        drop(pace.place(FLOOD, drop).await);
        stuck.abort();
    }

    #[tokio::test]
    async fn who_has_gone_is_passed_over() {
        let pace = Pace::new(1);
        let place = pace.place(FLOOD, drop).await;
        let gone = tokio::spawn({
            let pace = pace.clone();
            async move { drop(pace.place(FLOOD, drop).await) }
        });
        yield_now().await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        let waits = tokio::spawn({
            let pace = pace.clone();
            async move { drop(pace.place(USER, drop).await) }
        });
        yield_now().await;
        drop(place);
        waits.await.unwrap();
        // Every place is counted as free in the end.
        while pace.state().taken > 0 {
            yield_now().await;
        }
    }
}
