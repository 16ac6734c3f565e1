//! Which server leads when, by the servers' logs: of several over one etcd, one at a time runs the loops.
//!
//! Invariants: a server leads from when it logs so until it logs that its loops have ended, or gets a signal that ends it; while it is
//! paused it does nothing. What two servers may overlap is what a server that wakes up takes to see that another one leads.

use crate::bench::Error;
use regex::Regex;
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// What `KAJI_LOG` has to be.
pub const LOG: &str = "warn,kaji_runtime::leader=info";
/// For how long a server that was paused may go on before it sees that another one leads.
pub const WAKES: Duration = Duration::from_secs(1);

/// The time since the epoch, by the machine's clock, as logs have it.
pub type Time = Duration;

/// What happened to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// It ends, or is going to.
    Ended,
    /// It stops where it is.
    Paused,
    /// It goes on.
    Continued,
}

/// Signals to servers, in order.
#[derive(Clone, Debug, Default)]
pub struct Signals(Vec<(Time, usize, Signal)>);

impl Signals {
    /// Notes one that is about to be sent.
    pub fn note(&mut self, server: usize, signal: Signal) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.note_at(now, server, signal);
    }

    /// Notes one that was sent then, after all others.
    pub fn note_at(&mut self, at: Time, server: usize, signal: Signal) {
        self.0.push((at, server, signal));
    }

    fn of(&self, server: usize) -> impl Iterator<Item = (Time, Signal)> {
        self.0.iter().filter(move |(_, of, _)| *of == server).map(|(at, _, signal)| (*at, *signal))
    }
}

/// A time during which a server leads.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    server: usize,
    lease: String,
    from: Time,
    to: Time,
}

/// Reads the terms of a server from its log.
fn terms(server: usize, log: &str, signals: &Signals) -> Vec<Term> {
    let (Ok(escapes), Ok(line)) = (
        Regex::new("\u{1b}\\[[0-9;]*m"),
        Regex::new(
            r"^(\S+) +[A-Z]+ kaji_runtime::leader: (became the leader|lost the lease|stopped leading).* lease=(\S+)",
        ),
    ) else {
        return vec![];
    };
    let mut open = BTreeMap::<String, Time>::new();
    let mut terms = vec![];
    let mut close = |open: &mut BTreeMap<String, Time>, lease: &str, to: Time| {
        if let Some(from) = open.remove(lease) {
            terms.push(Term { server, lease: lease.to_owned(), from, to });
        }
    };
    let ends: Vec<Time> =
        signals.of(server).filter(|(_, signal)| *signal == Signal::Ended).map(|(at, _)| at).collect();
    for text in log.lines() {
        let text = escapes.replace_all(text, "");
        let Some(found) = line.captures(&text) else { continue };
        let Some(at) =
            found[1].parse::<jiff::Timestamp>().ok().and_then(|at| at.as_duration().try_into().ok())
        else {
            continue;
        };
        let lease = &found[3];
        // A term that a signal has ended before.
        if let Some(from) = open.get(lease)
            && let Some(end) = ends.iter().find(|end| **end > *from && **end <= at)
        {
            close(&mut open, lease, *end);
        }
        match &found[2] {
            "became the leader" => {
                open.insert(lease.to_owned(), at);
            }
            _ => close(&mut open, lease, at),
        }
    }
    for (lease, from) in std::mem::take(&mut open) {
        let to = ends.iter().find(|end| **end > from).copied().unwrap_or(Time::MAX);
        terms.push(Term { server, lease, from, to });
    }
    terms
}

/// For how long a server runs within an interval.
pub fn awake(server: usize, from: Time, to: Time, signals: &Signals) -> Duration {
    let (mut total, mut begun) = (Duration::ZERO, Some(Time::ZERO));
    let within = |begin: Time, end: Time| end.min(to).saturating_sub(begin.max(from));
    for (at, signal) in signals.of(server) {
        match (signal, begun) {
            (Signal::Paused, Some(begin)) => {
                total += within(begin, at);
                begun = None;
            }
            (Signal::Continued, None) => begun = Some(at),
            _ => {}
        }
    }
    total + begun.map_or(Duration::ZERO, |begin| within(begin, Time::MAX))
}

/// Compares the terms in the logs of so many servers. Answers with how many there were, and with what does not hold.
///
/// # Errors
/// When a log cannot be read.
pub fn check(dir: &Path, servers: usize, signals: &Signals) -> Result<(usize, Vec<String>), Error> {
    let mut all = vec![];
    for server in 0..servers {
        let path = dir.join(format!("s{server}.log"));
        let log = fs::read(&path).map_err(|e| Error::file(&path, e))?;
        all.extend(terms(server, &String::from_utf8_lossy(&log), signals));
    }
    Ok((all.len(), overlaps(&all, signals)))
}

fn overlaps(all: &[Term], signals: &Signals) -> Vec<String> {
    let mut complaints = vec![];
    for (i, one) in all.iter().enumerate() {
        for other in
            all[i + 1..].iter().filter(|other| other.lease == one.lease && other.server != one.server)
        {
            let (from, to) = (one.from.max(other.from), one.to.min(other.to));
            if from >= to {
                continue;
            }
            let both = awake(one.server, from, to, signals).min(awake(other.server, from, to, signals));
            if both > WAKES {
                complaints.push(format!("two servers lead for {both:?}: {one:?} and {other:?}"));
            }
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Duration::from_secs(seconds)
    }

    fn line(seconds: u64, what: &str) -> String {
        let time = jiff::Timestamp::from_second(seconds as i64).unwrap();
        format!(
            "\u{1b}[2m{time}\u{1b}[0m \u{1b}[32m INFO\u{1b}[0m \u{1b}[2mkaji_runtime::leader\u{1b}[0m\u{1b}[2m:\u{1b}[0m {what} \
             \u{1b}[3mlease\u{1b}[0m\u{1b}[2m=\u{1b}[0mloops \u{1b}[3midentity\u{1b}[0m\u{1b}[2m=\u{1b}[0m\"a_1\"\n"
        )
    }

    #[test]
    fn terms_end_with_the_loops_or_with_the_process() {
        let lost = "lost the lease; its loops ended";
        let log = [
            line(10, "became the leader"),
            line(20, lost),
            line(30, "became the leader"),
            line(50, "became the leader"),
            line(55, "stopped leading"),
            line(60, "became the leader"),
        ]
        .concat();
        let signals = Signals(vec![(at(40), 1, Signal::Ended), (at(45), 0, Signal::Ended)]);
        let found: Vec<_> = terms(1, &log, &signals).into_iter().map(|term| (term.from, term.to)).collect();
        assert_eq!(found, [(at(10), at(20)), (at(30), at(40)), (at(50), at(55)), (at(60), Time::MAX)]);
    }

    #[test]
    fn one_leads_at_a_time_and_a_paused_server_does_not() {
        let term = |server, from, to| Term { server, lease: "loops".into(), from: at(from), to: at(to) };
        let signals = Signals(vec![(at(20), 0, Signal::Paused), (at(40), 0, Signal::Continued)]);
        assert_eq!(overlaps(&[term(0, 10, 30), term(1, 30, 50)], &signals), Vec::<String>::new());
        // It was paused from the other's beginning on, and then saw it.
        assert_eq!(overlaps(&[term(0, 10, 41), term(1, 36, 50)], &signals), Vec::<String>::new());
        let complaints = overlaps(&[term(0, 10, 45), term(1, 36, 50)], &signals);
        assert!(complaints[0].starts_with("two servers lead for 5s"), "{complaints:?}");
        let others = Term { lease: "others".into(), ..term(0, 10, 45) };
        assert_eq!(overlaps(&[others, term(1, 36, 50)], &signals), Vec::<String>::new());
    }
}
