//! The memory of decisions: the last one of each component about each of its keys.
//!
//! Invariants:
//! - The bytes of what is kept never exceed the limit; what was decided longest ago goes first.
//! - What is older than the limit of age is not shown.

use crate::{
    Decision,
    latest::{Latest, cut},
};
use jiff::{SignedDuration, Timestamp};
use kaji_meta::time::{Clock, SystemClock};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all texts, with what each entry takes besides.
    pub bytes: usize,
    /// Since the last time.
    pub age: SignedDuration,
}

impl Default for Limits {
    /// 4 MiB, which is five thousand pods that wait; a day.
    fn default() -> Self {
        Limits { bytes: 4 << 20, age: SignedDuration::from_hours(24) }
    }
}

/// The longest message that is kept, and the longest other text.
const MESSAGE: usize = 2 << 10;
const TEXT: usize = 512;
/// Rejections of a decision, and nodes of a rejection, that are kept.
const REJECTIONS: usize = 32;
const NODES: usize = 5;
/// What an entry takes besides its texts, and what a rejection does.
const OVERHEAD: usize = 500;
const OVERHEAD_OF_REJECTION: usize = 200;

/// A decision with its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name of its object: stable for a component and a key.
    pub id: u64,
    /// What was decided.
    pub decision: Arc<Decision>,
    /// Since when it was the same.
    pub first: Timestamp,
    /// When last.
    pub last: Timestamp,
    /// How often it was the same.
    pub count: u64,
}

/// The decisions of one server.
pub struct Decisions {
    entries: Mutex<Latest<Entry>>,
    /// Whether there are entries; written under the lock.
    used: AtomicBool,
    clock: Arc<dyn Clock>,
    limits: Limits,
}

impl Default for Decisions {
    /// By the machine's clock.
    fn default() -> Self {
        Decisions::new(Arc::new(SystemClock), Limits::default())
    }
}

impl Decisions {
    /// None yet.
    pub fn new(clock: Arc<dyn Clock>, limits: Limits) -> Self {
        Decisions { entries: Mutex::default(), used: AtomicBool::new(false), clock, limits }
    }

    /// Keeps a decision, in place of the component's former one about the key.
    pub fn remember(&self, mut decision: Decision) {
        if decision.about.group.is_empty() && decision.about.resource == "secrets" {
            decision.message.clear();
        }
        shorten(&mut decision);
        let (id, now) = (id(&decision.component, &decision.key), self.clock.now());
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        self.used.store(true, Ordering::Release);
        let former = entries.remove(id).filter(|former| *former.decision == decision);
        let entry = match former {
            Some(former) => Entry { last: now, count: former.count + 1, ..former },
            None => Entry { id, decision: Arc::new(decision), first: now, last: now, count: 1 },
        };
        let size = size(&entry.decision);
        entries.put(id, size, entry, self.limits.bytes);
    }

    /// Forgets what a component decided of a key: it holds no more.
    pub fn settle(&self, component: &str, key: &str) {
        if !self.used.load(Ordering::Acquire) {
            return;
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.remove(id(component, key));
        if entries.is_empty() {
            self.used.store(false, Ordering::Release);
        }
    }

    /// What is kept of a namespace (all of them without one), the latest first.
    pub fn entries(&self, namespace: Option<&str>) -> Vec<Entry> {
        let oldest = self.clock.now() - self.limits.age;
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = entries.iter().take_while(|entry| entry.last >= oldest);
        let shown = |entry: &&Entry| namespace.is_none_or(|n| entry.decision.about.shown_in() == n);
        entries.filter(shown).cloned().collect()
    }
}

fn id(component: &str, key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (component, key).hash(&mut hasher);
    hasher.finish()
}

fn shorten(decision: &mut Decision) {
    let Decision { component, key, about, owner, reason, message, rejections } = decision;
    let texts = [component, key, owner, reason];
    let of_object = [&mut about.group, &mut about.resource, &mut about.namespace, &mut about.name];
    texts.into_iter().chain(of_object).for_each(|text| cut(text, TEXT));
    cut(message, MESSAGE);
    rejections.truncate(REJECTIONS);
    for rejection in rejections {
        rejection.nodes.truncate(NODES);
        let texts = [&mut rejection.plugin, &mut rejection.reason];
        texts.into_iter().chain(&mut rejection.nodes).for_each(|text| cut(text, TEXT));
    }
}

fn size(decision: &Decision) -> usize {
    let Decision { component, key, about, owner, reason, message, rejections } = decision;
    let texts = [component, key, owner, reason, message];
    let of_object = [&about.group, &about.resource, &about.namespace, &about.name];
    let bytes: usize = texts.into_iter().chain(of_object).map(String::len).sum();
    let of_rejections = rejections.iter().map(|rejection| {
        let texts = [&rejection.plugin, &rejection.reason];
        let nodes = rejection.nodes.len() * size_of::<String>();
        OVERHEAD_OF_REJECTION
            + nodes
            + texts.into_iter().chain(&rejection.nodes).map(String::len).sum::<usize>()
    });
    OVERHEAD + bytes + of_rejections.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{About, Rejection};
    use kaji_meta::time::ManualClock;

    fn decision(name: &str, message: &str) -> Decision {
        let about =
            About { resource: "pods".into(), namespace: "d".into(), name: name.into(), ..About::default() };
        let (component, key) = ("default-scheduler".into(), format!("d/{name}"));
        Decision { component, key, about, message: message.into(), ..Decision::default() }
    }

    fn lines(decisions: &Decisions, namespace: Option<&str>) -> String {
        let line = |entry: Entry| {
            let Entry { decision, first, last, count, .. } = entry;
            format!("{} {count}x {first}..{last} {}", decision.about.name, decision.message)
        };
        decisions.entries(namespace).into_iter().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_last_decision_about_a_key_counts_until_it_is_settled() {
        let clock = Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH));
        let decisions = Decisions::new(clock.clone(), Limits::default());
        decisions.settle("default-scheduler", "d/a");
        for (name, message) in [("a", "no cpu"), ("b", "no"), ("a", "no cpu"), ("b", "tainted")] {
            decisions.remember(decision(name, message));
            clock.advance(SignedDuration::from_secs(1));
        }
        expect_test::expect![[r"
            b 1x 1970-01-01T00:00:03Z..1970-01-01T00:00:03Z tainted
            a 2x 1970-01-01T00:00:00Z..1970-01-01T00:00:02Z no cpu"]]
        .assert_eq(&lines(&decisions, Some("d")));
        assert_eq!(lines(&decisions, Some("other")), "");
        decisions.settle("another", "d/a");
        decisions.settle("default-scheduler", "d/b");
        expect_test::expect!["a 2x 1970-01-01T00:00:00Z..1970-01-01T00:00:02Z no cpu"]
            .assert_eq(&lines(&decisions, None));
        clock.advance(SignedDuration::from_hours(24));
        assert_eq!(lines(&decisions, None), "");
        decisions.settle("default-scheduler", "d/a");
        assert!(!decisions.used.load(Ordering::Acquire));
    }

    #[test]
    fn texts_and_lists_are_cut_and_secrets_are_not_repeated() {
        let decisions = Decisions::new(Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH)), Limits::default());
        let mut long = decision("a", &"x".repeat(MESSAGE + 1));
        let rejection = Rejection { nodes: vec!["n".repeat(TEXT + 1); NODES + 1], ..Rejection::default() };
        long.rejections = vec![rejection; REJECTIONS + 1];
        decisions.remember(long);
        let kept = &decisions.entries(None)[0].decision;
        assert_eq!((kept.message.len(), kept.rejections.len()), (MESSAGE, REJECTIONS));
        assert!(kept.rejections.iter().all(|r| r.nodes.len() == NODES && r.nodes[0].len() == TEXT));
        let mut secret = decision("s", "data: Invalid value: \"hunter2\"");
        secret.about.resource = "secrets".into();
        decisions.remember(secret);
        assert_eq!(decisions.entries(None)[0].decision.message, "");
    }

    #[test]
    fn the_limit_of_bytes_holds() {
        let limits = Limits { bytes: 10 * (OVERHEAD + 200), ..Limits::default() };
        let decisions = Decisions::new(Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH)), limits);
        for name in 0..100 {
            decisions.remember(decision(&name.to_string(), &"x".repeat(200 - 32)));
        }
        let kept = decisions.entries(None);
        assert!(kept.iter().map(|entry| size(&entry.decision)).sum::<usize>() <= limits.bytes);
        assert!((9..=11).contains(&kept.len()), "{}", kept.len());
        assert_eq!(kept[0].decision.about.name, "99");
    }
}
