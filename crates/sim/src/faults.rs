//! What goes wrong between control loops and server: calls that take long, are refused, or lose their answers; watches that
//! break off or are too old to go on; nodes that reach the server no more.
//!
//! Every fault has a number, which is that of the decision that brought it about. A run with only some of the numbers allowed
//! makes the same decisions otherwise; [`crate::shrink`] goes by that.
//!
//! Invariants: faults are those that the API permits at any time; after [`Faults::end`] there are none.

use futures_util::future::BoxFuture;
use http::Method;
use kaji_meta::{
    GroupResource, Status,
    random::{Random, SeededRandom},
};
use kaji_runtime::{Call, Error, Interception};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, sleep, sleep_until};

/// Drawn numbers.
#[derive(Clone, Debug)]
pub struct Dice(Arc<SeededRandom>);

impl Dice {
    /// Those of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Dice {
        Dice(Arc::new(SeededRandom::new(seed)))
    }

    /// A number from zero up to and without `end`; zero for an end of zero.
    #[must_use]
    pub fn below(&self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.0.u64() % end }
    }

    /// True once in `times`, on average.
    #[must_use]
    pub fn once_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// How often what goes wrong; once in so many calls, zero for never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Writes answered by 409 Conflict.
    pub conflict: u64,
    /// Calls answered by 429, 500 or 503.
    pub refusal: u64,
    /// Answers lost after the call was carried out.
    pub lost_answer: u64,
    /// Calls that take seconds.
    pub slow: u64,
    /// Watches last at most so many milliseconds, half of it on average.
    pub watch_millis: u64,
}

impl Rates {
    /// Drawn: from a quiet network to a bad one.
    #[must_use]
    pub fn draw(dice: &Dice) -> Rates {
        let rate = |rates: &[u64]| rates[usize::try_from(dice.below(rates.len() as u64)).unwrap_or(0)];
        Rates {
            conflict: rate(&[0, 400, 40]),
            refusal: rate(&[0, 500, 50]),
            lost_answer: rate(&[0, 300, 30]),
            slow: rate(&[0, 300, 50]),
            watch_millis: rate(&[0, 300_000, 20_000]),
        }
    }
}

/// A fault that came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its number in the run.
    pub number: u64,
    /// Milliseconds since the start.
    pub at_millis: u64,
    /// What it is, and of which call.
    pub text: String,
}

#[derive(Debug, Default)]
struct State {
    decisions: u64,
    ended: bool,
    came_about: Vec<Fault>,
    /// Agents that reach the server no more, and until when.
    partitioned: BTreeMap<String, Instant>,
}

/// See the module.
#[derive(Debug)]
pub struct Faults {
    dice: Dice,
    rates: Rates,
    /// Only these come about, if any are named.
    allowed: Option<BTreeSet<u64>>,
    started: Instant,
    state: Mutex<State>,
}

/// Faults that are listed at most.
const LISTED: usize = 10_000;

impl Faults {
    /// Those of dice and rates; with `allowed`, only those with these numbers.
    #[must_use]
    pub fn new(dice: Dice, rates: Rates, allowed: Option<BTreeSet<u64>>) -> Faults {
        Faults { dice, rates, allowed, started: Instant::now(), state: Mutex::default() }
    }

    /// No more faults from now on.
    pub fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        state.partitioned.clear();
    }

    /// Calls of an agent fail for so long.
    pub fn partition(&self, agent: &str, time: Duration) {
        self.state().partitioned.insert(agent.to_owned(), Instant::now() + time);
    }

    /// What came about.
    #[must_use]
    pub fn list(&self) -> Vec<Fault> {
        self.state().came_about.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something goes wrong that does once in `times`. Always one decision, so that numbers stay what they are.
    fn decide(&self, times: u64, text: impl FnOnce() -> String) -> bool {
        let drawn = self.dice.once_in(times.max(1));
        let mut state = self.state();
        state.decisions += 1;
        let number = state.decisions;
        let allowed = self.allowed.as_ref().is_none_or(|allowed| allowed.contains(&number));
        if times == 0 || !drawn || state.ended || !allowed {
            return false;
        }
        if state.came_about.len() < LISTED {
            let at_millis = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
            state.came_about.push(Fault { number, at_millis, text: text() });
        }
        true
    }

    fn is_partitioned(&self, agent: &str) -> bool {
        self.state().partitioned.get(agent).is_some_and(|until| Instant::now() < *until)
    }

    /// How long a call waits on its way, and why it is refused, if it is.
    fn fate(&self, call: &Call) -> (Duration, Option<Error>) {
        let mut wait = Duration::from_micros(100 + self.dice.below(3_000));
        let about = |what: &str| format!("{what}: {} {} {}", call.agent, call.method, call.uri);
        if self.decide(self.rates.slow, || about("slow")) {
            wait = Duration::from_millis(500 + self.dice.below(8_000));
        }
        let reason = self.dice.below(3);
        let writes = call.method != Method::GET && call.method != Method::POST;
        let conflict = self.decide(if writes { self.rates.conflict } else { 0 }, || about("409"));
        let refusal = self.decide(self.rates.refusal, || about("refused"));
        let error = match () {
            () if self.is_partitioned(&call.agent) => Some(Error::Transport("no route to host".into())),
            () if conflict => Some(conflict_status()),
            () if refusal => Some(match reason {
                0 => api(Status::too_many_requests("Too many requests, please try again later.", 1)),
                1 => api(Status::internal("the server is not well")),
                _ => Error::Transport("connection reset by peer".into()),
            }),
            () => None,
        };
        (wait, error)
    }
}

fn api(status: Status) -> Error {
    Error::Api(Box::new(status))
}

fn conflict_status() -> Error {
    let resource = GroupResource { group: "".into(), resource: "objects".into() };
    let text = "the object has been modified; please apply your changes to the latest version and try again";
    api(Status::conflict(&resource, "simulated", text))
}

impl Interception for Faults {
    fn before(&self, call: &Call) -> BoxFuture<'static, Result<(), Error>> {
        let (wait, error) = self.fate(call);
        Box::pin(async move {
            sleep(wait).await;
            error.map_or(Ok(()), Err)
        })
    }

    fn after(&self, call: &Call) -> BoxFuture<'static, Result<(), Error>> {
        let wait = Duration::from_micros(100 + self.dice.below(3_000));
        // A controller that does not learn of a pod that it has created creates another, as upstream's do; a law would have to know.
        let creates_pod = call.method == Method::POST && call.uri.ends_with("/pods");
        let times = if call.method == Method::GET || creates_pod { 0 } else { self.rates.lost_answer };
        let lost = self.decide(times, || format!("answer lost: {} {} {}", call.agent, call.method, call.uri));
        Box::pin(async move {
            sleep(wait).await;
            if lost {
                Err(Error::Transport("connection closed before message completed".into()))
            } else {
                Ok(())
            }
        })
    }

    fn end_of_watch(&self, call: &Call) -> BoxFuture<'static, Error> {
        let time = Duration::from_millis(self.dice.below(self.rates.watch_millis));
        let expired = self.dice.once_in(4);
        let about = || {
            format!(
                "watch ends after {time:?}, {}: {} {}",
                if expired { "410" } else { "cut" },
                call.agent,
                call.uri
            )
        };
        if self.rates.watch_millis == 0 || !self.decide(1, about) {
            return Box::pin(std::future::pending());
        }
        let at = Instant::now() + time;
        Box::pin(async move {
            sleep_until(at).await;
            match expired {
                true => api(Status::resource_expired("too old resource version")),
                false => Error::Transport("unexpected EOF".into()),
            }
        })
    }
}
