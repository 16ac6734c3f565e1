//! What goes wrong between control loops and server: calls that take long, are refused, or lose their answers; watches that
//! break off, are too old to go on, or late; a loop that is killed between two of its writes; nodes that reach the server no more.
//!
//! Every fault has a number. Those below [`FIRST_CALL`] are the disturbances of the scenario; the others are the numbers of the
//! decisions about calls that brought them about. A run with only some of the numbers allowed makes the same decisions
//! otherwise; [`crate::shrink`] goes by that.
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
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

/// The numbers of disturbances are smaller.
pub const FIRST_CALL: u64 = 1_000;

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
    /// Events of watches that are held back.
    pub late_event: u64,
    /// Writes after which the loop that made them is killed.
    pub killed_loop: u64,
}

impl Rates {
    /// Nothing goes wrong with calls.
    pub const NONE: Rates = Rates {
        conflict: 0,
        refusal: 0,
        lost_answer: 0,
        slow: 0,
        watch_millis: 0,
        late_event: 0,
        killed_loop: 0,
    };

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
            late_event: rate(&[0, 2_000, 200]),
            killed_loop: rate(&[0, 1_000, 200]),
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
    /// About calls.
    decisions: u64,
    ended: bool,
    came_about: Vec<Fault>,
    /// Agents that reach the server no more, and until when.
    partitioned: BTreeMap<String, Instant>,
    /// What kills the loops with these names.
    loops: BTreeMap<&'static str, Arc<Notify>>,
    /// When loops were killed that the laws have not observed yet, in milliseconds.
    killed: Vec<u64>,
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

/// A loop that is killed has ended within this time.
const LONGEST_END: Duration = Duration::from_secs(60);
/// Events are held back at most so long, in milliseconds.
const LATEST_EVENT: u64 = 10_000;
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

    /// When loops were killed since this was last called, in milliseconds since the start.
    #[must_use]
    pub fn take_killed(&self) -> Vec<u64> {
        std::mem::take(&mut self.state().killed)
    }

    /// Whether a disturbance of the scenario comes about. One of several steps has one number, and is listed once.
    pub fn disturbs(&self, number: u64, text: impl FnOnce() -> String) -> bool {
        let mut state = self.state();
        let allowed = self.is_allowed(number) && !state.ended;
        if allowed && !state.came_about.iter().any(|fault| fault.number == number) {
            self.add(&mut state, number, text());
        }
        allowed
    }

    fn is_allowed(&self, number: u64) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| allowed.contains(&number))
    }

    fn now_millis(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn add(&self, state: &mut State, number: u64, text: String) {
        if state.came_about.len() < LISTED {
            state.came_about.push(Fault { number, at_millis: self.now_millis(), text });
        }
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
        let number = FIRST_CALL + state.decisions;
        state.decisions += 1;
        if times == 0 || !drawn || state.ended || !self.is_allowed(number) {
            return false;
        }
        self.add(&mut state, number, text());
        true
    }

    /// Kills the loop that made a write, if it is time to. Then the write's answer never comes.
    fn kills(&self, call: &Call) -> bool {
        let loops = self.state().loops.get(&*call.agent).cloned();
        // Events are written beside the work of a loop.
        let kill = loops.filter(|_| call.method != Method::GET && !call.uri.contains("/events"));
        let times = if kill.is_some() { self.rates.killed_loop } else { 0 };
        if !self.decide(times, || format!("killed after: {} {} {}", call.agent, call.method, call.uri)) {
            return false;
        }
        let now = self.now_millis();
        self.state().killed.push(now);
        kill.inspect(|kill| kill.notify_one()).is_some()
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
        let killed = self.kills(call);
        Box::pin(async move {
            sleep(if killed { LONGEST_END } else { wait }).await;
            if lost || killed {
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

    fn delay_of_event(&self, call: &Call) -> Option<BoxFuture<'static, ()>> {
        let about = || format!("event held back: {} {}", call.agent, call.uri);
        // The time is drawn only for what is held back: events are many.
        self.decide(self.rates.late_event, about).then(|| {
            let time = Duration::from_millis(self.dice.below(LATEST_EVENT));
            Box::pin(sleep(time)) as BoxFuture<'static, ()>
        })
    }

    fn killed(&self, agents: &[&'static str]) -> BoxFuture<'static, ()> {
        let kill = Arc::new(Notify::new());
        self.state().loops.extend(agents.iter().map(|agent| (*agent, kill.clone())));
        Box::pin(async move { kill.notified().await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn always(rates: Rates, allowed: Option<BTreeSet<u64>>) -> Faults {
        Faults::new(Dice::new(1), rates, allowed)
    }

    fn call(agent: &str, method: Method, uri: &str) -> Call {
        Call { agent: agent.to_owned(), method, uri: uri.to_owned() }
    }

    fn numbers(faults: &Faults) -> Vec<u64> {
        faults.list().iter().map(|fault| fault.number).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_is_killed_after_a_write_of_its_own() {
        let faults = always(Rates { killed_loop: 1, ..Rates::NONE }, None);
        let mut killed = faults.killed(&["a-controller", "b-controller"]);
        let pods = "/api/v1/namespaces/n/pods";
        for (agent, method, uri) in [
            ("kubelet/sim-1", Method::PATCH, "/api/v1/namespaces/n/pods/p/status"),
            ("a-controller", Method::GET, pods),
            ("a-controller", Method::POST, "/api/v1/namespaces/n/events"),
        ] {
            assert!(faults.after(&call(agent, method, uri)).await.is_ok());
        }
        assert!((&mut killed).now_or_never().is_none() && faults.take_killed().is_empty());
        // The answer does not reach it.
        let mut answer = faults.after(&call("b-controller", Method::DELETE, pods));
        assert!((&mut answer).now_or_never().is_none());
        killed.await;
        assert_eq!(faults.take_killed().len(), 1);
        assert_eq!(faults.list()[0].text, "killed after: b-controller DELETE /api/v1/namespaces/n/pods");
        assert!(answer.await.is_err());
        // The one that takes its place is another.
        assert!(faults.killed(&["a-controller", "b-controller"]).now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_held_back_for_a_time_that_ends() {
        let faults = always(Rates { late_event: 1, ..Rates::NONE }, None);
        let began = Instant::now();
        for _ in 0..20 {
            faults.delay_of_event(&call("a", Method::GET, "/api/v1/pods?watch=true")).unwrap().await;
        }
        let (most, waited) = (Duration::from_millis(20 * LATEST_EVENT), began.elapsed());
        assert!(waited > Duration::from_secs(20) && waited < most, "{waited:?}");
        faults.end();
        assert!(faults.delay_of_event(&call("a", Method::GET, "/")).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn disturbances_and_calls_have_numbers_of_their_own_by_which_they_are_left_out() {
        let rates = Rates { refusal: 1, ..Rates::NONE };
        let run = async |allowed: Option<BTreeSet<u64>>| {
            let faults = always(rates, allowed);
            let mut came = vec![];
            for number in [1, 2, 1] {
                came.push(faults.disturbs(number, || format!("disturbance {number}")));
            }
            for _ in 0..2 {
                came.push(faults.before(&call("a", Method::GET, "/")).await.is_err());
            }
            (came, numbers(&faults))
        };
        let (came, all) = run(None).await;
        assert_eq!(came, [true; 5]);
        assert!(all.starts_with(&[1, 2]) && all[2..].iter().all(|number| *number >= FIRST_CALL), "{all:?}");
        // Each by itself, and none.
        for number in &all {
            assert_eq!(run(Some([*number].into())).await.1, [*number]);
        }
        assert_eq!(run(Some(BTreeSet::new())).await, (vec![false; 5], vec![]));
    }
}
