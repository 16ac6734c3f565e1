//! The memory of refusals: the latest ones, equal ones counted.
//!
//! Invariants:
//! - The bytes of what is kept never exceed the limit; the oldest go first.
//! - What is older than the limit of age is not shown.
//! - Equal refusals are one entry, with the time of the first and of the last.

use crate::{Refusal, Rule};
use jiff::{SignedDuration, Timestamp};
use kaji_decisions::{
    About,
    latest::{Latest, cut},
};
use kaji_meta::time::Clock;
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
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
    /// 1 MiB, one hour.
    fn default() -> Self {
        Limits { bytes: 1 << 20, age: SignedDuration::from_hours(1) }
    }
}

/// The longest message that is kept, and the longest other text: names in requests are as long as clients like.
const MESSAGE: usize = 2 << 10;
const TEXT: usize = 512;
/// What an entry takes besides its texts.
const OVERHEAD: usize = 400;

/// A refusal with its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name of its object: stable while it is kept.
    pub id: u64,
    /// What was refused.
    pub refusal: Arc<Refusal>,
    /// What refused it, by its whole message.
    pub rule: Rule,
    /// When first.
    pub first: Timestamp,
    /// When last.
    pub last: Timestamp,
    /// How often.
    pub count: u64,
}

/// The refusals of one server.
pub struct Refusals {
    ring: Mutex<Latest<Entry>>,
    clock: Arc<dyn Clock>,
    limits: Limits,
}

impl Refusals {
    /// None yet.
    pub fn new(clock: Arc<dyn Clock>, limits: Limits) -> Self {
        Refusals { ring: Mutex::default(), clock, limits }
    }

    /// Keeps a refusal.
    pub fn remember(&self, mut refusal: Refusal) {
        let rule = Rule::of(refusal.code, &refusal.message);
        if refusal.group.is_empty() && refusal.resource == "secrets" {
            refusal.message.clear();
        }
        shorten(&mut refusal);
        let now = self.clock.now();
        let id = hash(&refusal);
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let former = ring.remove(id);
        let entry = match former {
            Some(former) if former.refusal.as_ref() == &refusal => {
                Entry { last: now, count: former.count + 1, ..former }
            }
            _ => Entry { id, refusal: Arc::new(refusal), rule, first: now, last: now, count: 1 },
        };
        ring.put(id, size(&entry.refusal), entry, self.limits.bytes);
    }

    /// What is kept of a namespace (all of them without one), the latest first.
    pub fn entries(&self, namespace: Option<&str>) -> Vec<Entry> {
        let oldest = self.clock.now() - self.limits.age;
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = ring.iter().take_while(|entry| entry.last >= oldest);
        entries.filter(|entry| namespace.is_none_or(|n| entry.refusal.shown_in() == n)).cloned().collect()
    }
}

impl Refusal {
    /// Its object.
    pub fn about(&self) -> About {
        let Refusal { group, resource, namespace, name, .. } = self;
        let [group, resource, namespace, name] = [group, resource, namespace, name].map(String::clone);
        About { group, resource, namespace, name }
    }

    /// The namespace in which it is shown. As with events, that of objects without a namespace is `default`.
    pub fn shown_in(&self) -> &str {
        if self.namespace.is_empty() { "default" } else { &self.namespace }
    }

    fn texts(&mut self) -> [&mut String; 11] {
        [
            &mut self.user,
            &mut self.user_agent,
            &mut self.field_manager,
            &mut self.verb,
            &mut self.group,
            &mut self.resource,
            &mut self.subresource,
            &mut self.namespace,
            &mut self.name,
            &mut self.owner,
            &mut self.reason,
        ]
    }
}

fn shorten(refusal: &mut Refusal) {
    for text in refusal.texts() {
        cut(text, TEXT);
    }
    cut(&mut refusal.message, MESSAGE);
}

fn size(refusal: &Refusal) -> usize {
    let Refusal {
        user,
        user_agent,
        field_manager,
        verb,
        group,
        resource,
        subresource,
        namespace,
        name,
        owner,
        code: _,
        reason,
        message,
    } = refusal;
    let texts = [
        user,
        user_agent,
        field_manager,
        verb,
        group,
        resource,
        subresource,
        namespace,
        name,
        owner,
        reason,
        message,
    ];
    OVERHEAD + texts.iter().map(|text| text.len()).sum::<usize>()
}

fn hash(refusal: &Refusal) -> u64 {
    let mut hasher = DefaultHasher::new();
    let Refusal { user, verb, group, resource, subresource, namespace, name, code, message, .. } = refusal;
    (user, verb, group, resource, subresource, namespace, name, code, message).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::time::ManualClock;

    fn refusal(name: &str, message: &str) -> Refusal {
        Refusal {
            name: name.into(),
            namespace: "d".into(),
            message: message.into(),
            code: 403,
            ..Refusal::default()
        }
    }

    #[test]
    fn equal_refusals_are_counted() {
        let clock = Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH));
        let refusals = Refusals::new(clock.clone(), Limits::default());
        for name in ["a", "b", "a"] {
            refusals.remember(refusal(name, "no"));
            clock.advance(SignedDuration::from_secs(1));
        }
        let text =
            |entry: Entry| format!("{} {} {}..{}", entry.refusal.name, entry.count, entry.first, entry.last);
        let text: Vec<String> = refusals.entries(Some("d")).into_iter().map(text).collect();
        expect_test::expect![[r"
            a 2 1970-01-01T00:00:00Z..1970-01-01T00:00:02Z
            b 1 1970-01-01T00:00:01Z..1970-01-01T00:00:01Z"]]
        .assert_eq(&text.join("\n"));
        assert!(refusals.entries(Some("other")).is_empty());
        clock.advance(SignedDuration::from_hours(1));
        assert!(refusals.entries(None).is_empty());
    }

    #[test]
    fn messages_about_secrets_are_not_kept() {
        let refusals = Refusals::new(Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH)), Limits::default());
        refusals.remember(Refusal {
            resource: "secrets".into(),
            ..refusal("a", "data: Invalid value: \"hunter2\"")
        });
        assert_eq!(refusals.entries(None)[0].refusal.message, "");
    }
}
