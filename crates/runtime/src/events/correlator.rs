//! Event correlation: repeats of an event become a count, similar events become one, floods are cut.
//! Source: client-go `tools/record/events_cache.go`.
//!
//! Invariants:
//! - Every map is bounded; the oldest entry is evicted first.
//! - More than [`SIMILAR`] events that differ in their message alone become one event with a prefixed message.
//! - An event that the spam filter drops is counted.

use super::EventRecord;
use crate::client::Target;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::collections::{HashMap, VecDeque};

/// Entries of each map, as upstream's caches.
const ENTRIES: usize = 4096;
/// Distinct messages of similar events until they are aggregated.
const SIMILAR: usize = 10;
/// Time without a similar event after which aggregation starts over.
const SIMILAR_INTERVAL: SignedDuration = SignedDuration::from_secs(600);
/// Events about one object at once.
const BURST: f64 = 25.0;
/// Events about one object after the burst.
const REFILL_PER_SECOND: f64 = 1.0 / 300.0;

/// An event as it is to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Identifies the event in the log.
    pub key: String,
    /// The message, with a prefix when similar events are combined.
    pub message: String,
    /// How often it was observed.
    pub count: i64,
    /// When it was observed first.
    pub first: Timestamp,
    /// The Event object that has the former count.
    pub existing: Option<Target>,
}

/// A map that evicts its oldest entry when it is full.
struct Bounded<V> {
    entries: HashMap<String, V>,
    order: VecDeque<String>,
}

impl<V> Default for Bounded<V> {
    fn default() -> Self {
        Bounded { entries: HashMap::new(), order: VecDeque::new() }
    }
}

impl<V> Bounded<V> {
    fn get_or_insert(&mut self, key: &str, value: impl FnOnce() -> V) -> &mut V {
        if !self.entries.contains_key(key) {
            self.order.push_back(key.to_owned());
            if self.order.len() > ENTRIES
                && let Some(oldest) = self.order.pop_front()
            {
                self.entries.remove(&oldest);
            }
        }
        self.entries.entry(key.to_owned()).or_insert_with(value)
    }
}

/// Similar events: those that differ in their message alone.
struct Aggregate {
    messages: Vec<String>,
    last: Timestamp,
}

/// An event in the log.
struct Logged {
    count: i64,
    first: Timestamp,
    object: Option<Target>,
}

/// Tokens of an object's budget, and when they were counted.
struct Budget {
    tokens: f64,
    counted: Timestamp,
}

/// The state of correlation for one component.
#[derive(Default)]
pub struct Correlator {
    aggregates: Bounded<Aggregate>,
    log: Bounded<Logged>,
    budgets: Bounded<Budget>,
}

impl Correlator {
    /// Observes an event; `None` when the spam filter drops it.
    pub fn observe(&mut self, event: &EventRecord, now: Timestamp) -> Option<Observation> {
        let field = |name: &str| event.regarding.get(name).and_then(Value::as_str).unwrap_or_default();
        let object = ["kind", "namespace", "name", "uid", "apiVersion"].map(field).join("\0");
        let group = format!("{object}\0{:?}\0{}", event.kind, event.reason);
        let (key, message) = self.aggregate(group, &event.message, now);
        let logged = self.log.get_or_insert(&key, || Logged { count: 0, first: now, object: None });
        logged.count = logged.count.saturating_add(1);
        let observation = Observation {
            message,
            count: logged.count,
            first: logged.first,
            existing: logged.object.clone(),
            key,
        };
        self.allowed(&object, now).then_some(observation)
    }

    /// The Event object of a key, if it was written.
    pub fn object(&self, key: &str) -> Option<Target> {
        self.log.entries.get(key)?.object.clone()
    }

    /// Keeps the Event object that was written for an observation.
    pub fn written(&mut self, key: &str, object: Target) {
        if let Some(logged) = self.log.entries.get_mut(key) {
            logged.object = Some(object);
        }
    }

    /// The key and the message of an event, or of the aggregate that it belongs to.
    fn aggregate(&mut self, group: String, message: &str, now: Timestamp) -> (String, String) {
        let similar = self.aggregates.get_or_insert(&group, || Aggregate { messages: vec![], last: now });
        if now.duration_since(similar.last) > SIMILAR_INTERVAL {
            similar.messages.clear();
        }
        similar.last = now;
        if !similar.messages.iter().any(|m| m == message) {
            similar.messages.push(message.to_owned());
        }
        if similar.messages.len() < SIMILAR {
            return (format!("{group}\0{message}"), message.to_owned());
        }
        similar.messages.pop();
        (group, format!("(combined from similar events): {message}"))
    }

    fn allowed(&mut self, object: &str, now: Timestamp) -> bool {
        let budget = self.budgets.get_or_insert(object, || Budget { tokens: BURST, counted: now });
        let passed = now.duration_since(budget.counted).as_secs_f64().max(0.0);
        budget.tokens = (budget.tokens + passed * REFILL_PER_SECOND).min(BURST);
        budget.counted = now;
        let allowed = budget.tokens >= 1.0;
        if allowed {
            budget.tokens -= 1.0;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn event(object: &str, message: &str) -> EventRecord {
        EventRecord::normal(json!({"kind": "Pod", "name": object, "uid": object}), "Reason", message)
    }

    #[test]
    fn counts_repeats_and_keeps_the_first_time() {
        let mut correlator = Correlator::default();
        let first = correlator.observe(&event("a", "m"), at(0)).unwrap();
        assert_eq!((first.count, first.first, &first.existing), (1, at(0), &None));
        let object = Target { name: "e".into(), ..Target::default() };
        correlator.written(&first.key, object.clone());
        let second = correlator.observe(&event("a", "m"), at(60)).unwrap();
        assert_eq!((second.count, second.first, second.existing), (2, at(0), Some(object)));
        assert_eq!(correlator.observe(&event("b", "m"), at(60)).unwrap().count, 1);
    }

    #[test]
    fn combines_the_tenth_similar_event_and_the_following_ones() {
        let mut correlator = Correlator::default();
        let mut observe = |n: usize| correlator.observe(&event("a", &format!("m{n}")), at(n as i64)).unwrap();
        for n in 0..9 {
            assert_eq!((observe(n).message, observe(n).count), (format!("m{n}"), 2));
        }
        let mut correlator = Correlator::default();
        let mut observe = |n: usize, seconds: i64| {
            let observed = correlator.observe(&event("a", &format!("m{n}")), at(seconds)).unwrap();
            format!("{} x{}", observed.message, observed.count)
        };
        let messages: Vec<String> = (0..12).map(|n| observe(n, 0)).collect();
        assert_eq!(messages[8], "m8 x1");
        assert_eq!(messages[9], "(combined from similar events): m9 x1");
        assert_eq!(messages[11], "(combined from similar events): m11 x3");
        // One of the first nine keeps its own count.
        assert_eq!(observe(3, 1), "m3 x2");
        // Ten minutes later they are new again.
        assert_eq!(observe(20, 602), "m20 x1");
    }

    #[test]
    fn drops_a_flood_about_one_object_after_the_burst_but_counts_it() {
        let mut correlator = Correlator::default();
        let mut observe = |object: &str, seconds: i64| correlator.observe(&event(object, "m"), at(seconds));
        assert_eq!((0..30).filter(|_| observe("a", 0).is_some()).count(), 25);
        assert!(observe("b", 0).is_some());
        assert!(observe("a", 299).is_none());
        assert_eq!(observe("a", 600).unwrap().count, 32);
    }

    #[test]
    fn maps_are_bounded() {
        let mut correlator = Correlator::default();
        for n in 0..=ENTRIES {
            correlator.observe(&event(&n.to_string(), "m"), at(0)).unwrap();
        }
        assert_eq!(correlator.log.entries.len(), ENTRIES);
        assert_eq!(correlator.observe(&event("0", "m"), at(0)).unwrap().count, 1);
        assert_eq!(correlator.observe(&event(&ENTRIES.to_string(), "m"), at(0)).unwrap().count, 2);
    }
}
