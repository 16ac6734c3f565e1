//! The scheduling queue: active pods by rank and age, pods that back off after a failed attempt, unschedulable ones until an
//! event that may help, gated ones.
//!
//! Invariants:
//! - A pod is in one state: active, backing off, unschedulable, gated, or in flight.
//! - An event during a pod's attempt counts when the pod comes back: no change that may help is missed. At most [`EVENTS`] are
//!   kept for pods in flight; a pod with an attempt that began before a dropped one comes back as if it had helped.
//! - Backoff grows with the attempts and is kept over them; an event does not shorten it. When no pod is active, one that was
//!   rejected is popped before its backoff ends, one that failed is not.
//! - A pod that comes back ranks behind those of its priority that came, or came back, before.

mod in_flight;
#[cfg(test)]
mod tests;

use crate::{
    framework::{Event, EventName, Listers, Profile},
    metrics::{Queue, QueueMetrics},
    pod_info::PodInfo,
};
use in_flight::InFlightEvents;
use kaji_runtime::Key;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// Upstream's `podInitialBackoffSeconds` and `podMaxBackoffSeconds`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoffs {
    /// After the first failure.
    pub initial: Duration,
    /// At most.
    pub max: Duration,
}

impl Default for Backoffs {
    fn default() -> Self {
        Backoffs { initial: Duration::from_secs(1), max: Duration::from_secs(10) }
    }
}

/// Upstream's flush of pods that wait without any event.
const FLUSH: Duration = Duration::from_secs(300);

/// Upstream's `backoffQOrderingWindowDuration`, in seconds: pods of which the backoffs end within one are popped early in the
/// order of active ones.
const WINDOW: u64 = 1;

/// What brings a pod into a queue, as metrics name it.
mod cause {
    pub const ADDED: &str = "UnscheduledPodAdd";
    pub const UPDATED: &str = "TargetPodUpdate";
    pub const FAILED: &str = "ScheduleAttemptFailure";
    pub const BACKOFF_ENDED: &str = "BackoffComplete";
    pub const FORCED: &str = "ForceActivate";
    pub const TIMED_OUT: &str = "UnschedulableTimeout";
    pub const POPPED_EARLY: &str = "PopFromBackoffQ";
}

type Order = (i64, u64);

#[derive(Clone, Debug, PartialEq)]
enum QueueState {
    Active,
    Backoff(Instant),
    /// Since when.
    Unschedulable(Instant),
    /// By a plugin's `PreEnqueue`.
    Gated(&'static str),
    /// With the number of the last event before the attempt.
    InFlight(u64),
}

struct Queued {
    info: Arc<PodInfo>,
    /// The profile's place in the table.
    profile: usize,
    order: Order,
    attempts: u32,
    /// Attempts that plugins rejected; backoff grows by them.
    rejections: u32,
    /// Attempts that failed, in a row: after a failure backoff grows by them instead.
    errors: u32,
    backoff_ends: Option<Instant>,
    arrived: Instant,
    /// The plugins that rejected it last; none after a failure.
    rejectors: BTreeSet<&'static str>,
    /// Those that wait for something of their own.
    pending: BTreeSet<&'static str>,
    /// The plugins that metrics count it for.
    counted: BTreeSet<&'static str>,
    /// It was made active for lack of any event.
    flushed: bool,
    state: QueueState,
}

/// A pod that is to be scheduled now.
#[derive(Clone)]
pub struct Popped {
    /// Namespace and name.
    pub key: Key,
    /// The pod.
    pub info: Arc<PodInfo>,
    /// The profile's place in the table.
    pub profile: usize,
    /// Attempts, this one included.
    pub attempts: u32,
    /// When it came into the queue.
    pub arrived: Instant,
    /// It is tried again for lack of any event.
    pub flushed: bool,
}

/// How many pods are where.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pending {
    /// Active.
    pub active: usize,
    /// Backing off.
    pub backoff: usize,
    /// Unschedulable.
    pub unschedulable: usize,
    /// Gated.
    pub gated: usize,
}

/// The queue.
pub struct SchedulingQueue {
    profiles: Arc<Vec<Profile>>,
    listers: Listers,
    backoffs: Backoffs,
    pods: HashMap<Key, Queued>,
    active: BTreeMap<Order, Key>,
    backing_off: BTreeSet<(Instant, Order)>,
    /// Those of them that are popped when no pod is active, by the window in which their backoff ends.
    early: BTreeSet<(u64, Order)>,
    /// The beginning of the first window.
    epoch: Option<Instant>,
    /// The unschedulable and the gated ones: events touch no other.
    waiting: BTreeMap<Order, Key>,
    backing_off_keys: HashMap<Order, Key>,
    arrivals: u64,
    events: InFlightEvents,
    metrics: QueueMetrics,
}

impl SchedulingQueue {
    /// An empty queue for pods of these profiles, with the objects that their plugins read.
    pub fn new(profiles: Arc<Vec<Profile>>, backoffs: Backoffs, listers: Listers) -> Self {
        SchedulingQueue {
            profiles,
            listers,
            backoffs,
            pods: HashMap::new(),
            active: BTreeMap::new(),
            backing_off: BTreeSet::new(),
            early: BTreeSet::new(),
            epoch: None,
            waiting: BTreeMap::new(),
            backing_off_keys: HashMap::new(),
            arrivals: 0,
            events: InFlightEvents::default(),
            metrics: QueueMetrics::default(),
        }
    }

    /// With metrics.
    pub fn measured(mut self, metrics: QueueMetrics) -> Self {
        metrics.begin();
        self.metrics = metrics;
        self
    }

    /// Adds a pod, or updates one that is known.
    pub fn add(&mut self, info: Arc<PodInfo>, profile: usize, now: Instant) {
        let key = info.key();
        if self.pods.get(&key).is_some_and(|known| known.info.uid() == info.uid() && known.profile == profile)
        {
            return self.update(&key, info, now);
        }
        self.remove(&key);
        self.arrivals += 1;
        let rank = self.profiles.get(profile).and_then(|p| p.queue_sort()).map_or(0, |sort| sort.rank(&info));
        let queued = Queued {
            info,
            profile,
            order: (rank, self.arrivals),
            attempts: 0,
            rejections: 0,
            errors: 0,
            backoff_ends: None,
            arrived: now,
            rejectors: BTreeSet::new(),
            pending: BTreeSet::new(),
            counted: BTreeSet::new(),
            flushed: false,
            state: QueueState::Active,
        };
        self.pods.insert(key.clone(), queued);
        self.activate(&key, cause::ADDED);
    }

    /// A newer state of a pod: an event of its own.
    fn update(&mut self, key: &Key, info: Arc<PodInfo>, now: Instant) {
        let Some(queued) = self.pods.get_mut(key) else { return };
        let event = Event::of_unscheduled_pod(Some(queued.info.pod.clone()), Some(info.pod.clone()));
        queued.info = info;
        match (&queued.state, event) {
            (QueueState::Gated(_), Some(event)) => self.activate(key, &event.label()),
            (QueueState::Gated(_), None) => self.activate(key, cause::UPDATED),
            (QueueState::InFlight(_), Some(event)) => self.events.push(event),
            (QueueState::Unschedulable(_), Some(event)) => self.wake(key, &event, now),
            _ => {}
        }
    }

    /// Removes a pod.
    pub fn remove(&mut self, key: &Key) {
        self.leave(key);
        self.uncount(key);
        self.pods.remove(key);
    }

    /// A plugin keeps a pod from being scheduled.
    fn count(&mut self, key: &Key, plugin: &'static str) {
        let Some(queued) = self.pods.get_mut(key) else { return };
        if queued.counted.insert(plugin)
            && let Some(profile) = self.profiles.get(queued.profile)
        {
            self.metrics.rejected_by(plugin, &profile.config.scheduler_name, 1);
        }
    }

    /// A pod is tried again, or gone.
    fn uncount(&mut self, key: &Key) {
        let Some(queued) = self.pods.get_mut(key) else { return };
        let Some(profile) = self.profiles.get(queued.profile) else { return };
        for plugin in std::mem::take(&mut queued.counted) {
            self.metrics.rejected_by(plugin, &profile.config.scheduler_name, -1);
        }
    }

    /// Removes a pod that is bound, unless another one of its name has come.
    pub fn remove_bound(&mut self, key: &Key, uid: &str) {
        if self.pods.get(key).is_some_and(|queued| queued.info.uid() == uid) {
            self.remove(key);
        }
    }

    /// Whether a plugin rejected a pod that waits.
    pub fn is_rejected_by(&self, key: &Key, plugin: &str) -> bool {
        self.pods.get(key).is_some_and(|queued| queued.rejectors.contains(plugin))
    }

    /// The next pod to schedule: an active one, else one that backs off after a rejection. It is in flight until it comes back or
    /// is removed.
    pub fn pop(&mut self) -> Option<Popped> {
        let active = self.active.first_key_value().map(|(_, key)| key.clone());
        if let Some(key) = active {
            return self.take(key);
        }
        let (_, order) = self.early.first()?;
        let key = self.backing_off_keys.get(order)?.clone();
        self.metrics.count(Queue::Active, cause::POPPED_EARLY);
        self.take(key)
    }

    /// A pod that waits, whatever for, is to be scheduled now: with others of its group. `None` if it is in flight already, or
    /// a plugin keeps it out.
    pub fn pop_specific(&mut self, key: &Key) -> Option<Popped> {
        if matches!(self.pods.get(key)?.state, QueueState::InFlight(_)) {
            return None;
        }
        self.activate(key, cause::FORCED);
        match self.pods.get(key)?.state {
            QueueState::Active => self.take(key.clone()),
            _ => None,
        }
    }

    fn take(&mut self, key: Key) -> Option<Popped> {
        self.leave(&key);
        self.uncount(&key);
        let number = self.events.begin();
        let queued = self.pods.get_mut(&key)?;
        queued.state = QueueState::InFlight(number);
        queued.attempts = queued.attempts.saturating_add(1);
        let (info, profile) = (queued.info.clone(), queued.profile);
        let Queued { attempts, arrived, flushed, .. } = *queued;
        Some(Popped { info, profile, attempts, arrived, flushed, key })
    }

    /// A pod was popped before a plugin has finished what it does for it: it waits, and nothing counts as an attempt.
    pub fn put_back(&mut self, key: &Key, plugin: &'static str, now: Instant) {
        let Some(queued) = self.pods.get_mut(key) else { return };
        let QueueState::InFlight(began) = queued.state else { return };
        self.events.end(began);
        queued.attempts = queued.attempts.saturating_sub(1);
        (queued.rejectors, queued.pending) = ([plugin].into(), BTreeSet::new());
        queued.state = QueueState::Unschedulable(now);
        self.waiting.insert(queued.order, key.clone());
        self.count(key, plugin);
        self.metrics.count(Queue::Unschedulable, cause::FAILED);
    }

    /// A pod comes back after an attempt that was rejected. It waits for an event that concerns the plugins.
    pub fn rejected(
        &mut self,
        key: &Key,
        plugins: BTreeSet<&'static str>,
        pending: BTreeSet<&'static str>,
        now: Instant,
    ) {
        let by_plugins = !plugins.is_empty() || !pending.is_empty();
        let Some((began, profile)) = self.come_back(key, by_plugins, now) else { return };
        let Some(queued) = self.pods.get_mut(key) else { return };
        (queued.rejectors, queued.pending) = (plugins, pending);
        queued.state = QueueState::Unschedulable(now);
        let nothing_to_wait_for = queued.rejectors.is_empty() && queued.pending.is_empty();
        self.waiting.insert(queued.order, key.clone());
        for plugin in self.pods[key].rejectors.union(&self.pods[key].pending).copied().collect::<Vec<_>>() {
            self.count(key, plugin);
        }
        let profiles = self.profiles.clone();
        let Some(profile) = profiles.get(profile) else { return };
        let concerned = |queued: &Queued, event: &Event| wakes(profile, queued, event);
        let queued = &self.pods[key];
        let helped = self.events.any_since(began, |event| concerned(queued, event).is_some());
        self.events.end(began);
        if helped || nothing_to_wait_for {
            self.requeue(key, false, now, cause::FAILED);
        } else {
            self.metrics.count(Queue::Unschedulable, cause::FAILED);
        }
    }

    /// A pod comes back after an attempt that failed: it is tried again after its backoff.
    pub fn failed(&mut self, key: &Key, now: Instant) {
        let Some((began, _)) = self.come_back(key, false, now) else { return };
        self.events.end(began);
        if let Some(queued) = self.pods.get_mut(key) {
            queued.rejectors.clear();
            queued.pending.clear();
            queued.state = QueueState::Unschedulable(now);
            self.waiting.insert(queued.order, key.clone());
        }
        self.requeue(key, false, now, cause::FAILED);
    }

    fn come_back(&mut self, key: &Key, rejected: bool, now: Instant) -> Option<(u64, usize)> {
        let queued = self.pods.get_mut(key)?;
        let QueueState::InFlight(began) = queued.state else { return None };
        self.arrivals += 1;
        queued.order.1 = self.arrivals;
        queued.flushed = false;
        let count = match rejected {
            true => {
                queued.errors = 0;
                &mut queued.rejections
            }
            false => &mut queued.errors,
        };
        let backoff = self.backoffs.initial.saturating_mul(1 << (*count).min(20)).min(self.backoffs.max);
        *count = count.saturating_add(1);
        queued.backoff_ends = Some(now + backoff);
        Some((began, queued.profile))
    }

    /// A change of the cluster: the unschedulable pods that it may help are tried again at the end of their backoff.
    pub fn event(&mut self, event: &Event, now: Instant) {
        if self.events.wanted() {
            self.events.push(event.clone());
        }
        let interested: BTreeSet<&str> = self.profiles.iter().flat_map(|p| p.interested(event)).collect();
        if interested.is_empty() {
            return;
        }
        let concerned = |key: &&Key| {
            self.pods.get(*key).is_some_and(|queued| match &queued.state {
                QueueState::Gated(plugin) => interested.contains(plugin),
                _ => queued.rejectors.iter().chain(&queued.pending).any(|p| interested.contains(p)),
            })
        };
        let keys: Vec<Key> = self.waiting.values().filter(concerned).cloned().collect();
        for key in keys {
            self.wake(&key, event, now);
        }
    }

    /// More has changed than could be kept: every waiting pod is tried again at the end of its backoff.
    pub fn everything_changed(&mut self, now: Instant) {
        self.events.drop_all();
        let keys: Vec<Key> = self.waiting.values().cloned().collect();
        keys.iter().for_each(|key| self.requeue(key, false, now, cause::TIMED_OUT));
    }

    fn wake(&mut self, key: &Key, event: &Event, now: Instant) {
        let Some(queued) = self.pods.get(key) else { return };
        let Some(profile) = self.profiles.get(queued.profile) else { return };
        match &queued.state {
            QueueState::Unschedulable(_) => {
                if let Some(at_once) = wakes(profile, queued, event) {
                    self.requeue(key, at_once, now, &event.label());
                }
            }
            QueueState::Gated(plugin) if profile.wakes(plugin, &queued.info, event) => {
                self.activate(key, &event.label());
            }
            _ => {}
        }
    }

    /// A pod that was preempted for, or for which preemption has failed: it is tried again at once.
    pub fn activate_now(&mut self, key: &Key) {
        if self
            .pods
            .get(key)
            .is_some_and(|q| matches!(q.state, QueueState::Unschedulable(_) | QueueState::Backoff(_)))
        {
            self.activate(key, cause::FORCED);
        }
    }

    fn requeue(&mut self, key: &Key, at_once: bool, now: Instant, cause: &str) {
        let Some(queued) = self.pods.get(key) else { return };
        if matches!(queued.state, QueueState::Gated(_)) {
            return self.activate(key, cause);
        }
        let Some(ends) = queued.backoff_ends.filter(|ends| *ends > now && !at_once) else {
            return self.activate(key, cause);
        };
        // It may be popped early.
        if self.gate(key, cause) {
            return;
        }
        self.leave(key);
        let epoch = *self.epoch.get_or_insert(now);
        let Some(queued) = self.pods.get_mut(key) else { return };
        queued.state = QueueState::Backoff(ends);
        self.backing_off.insert((ends, queued.order));
        self.backing_off_keys.insert(queued.order, key.clone());
        if !queued.rejectors.is_empty() || !queued.pending.is_empty() {
            self.early.insert((window(epoch, ends), queued.order));
        }
        self.metrics.count(Queue::Backoff, cause);
    }

    /// Makes a pod active, unless a plugin keeps it out.
    fn activate(&mut self, key: &Key, cause: &str) {
        if self.gate(key, cause) {
            return;
        }
        let former = self.leave(key);
        let Some(queued) = self.pods.get_mut(key) else { return };
        queued.state = QueueState::Active;
        self.active.insert(queued.order, key.clone());
        if former != Some(Queue::Active) {
            self.metrics.count(Queue::Active, cause);
        }
    }

    /// Keeps a pod out of the queue if a plugin says so.
    fn gate(&mut self, key: &Key, cause: &str) -> bool {
        let Some(queued) = self.pods.get(key) else { return true };
        let Some(profile) = self.profiles.get(queued.profile) else { return true };
        let Err(status) = profile.pre_enqueue(&queued.info, &self.listers) else { return false };
        let former = self.leave(key);
        if let Some(queued) = self.pods.get_mut(key) {
            queued.state = QueueState::Gated(status.plugin);
            self.waiting.insert(queued.order, key.clone());
        }
        self.count(key, status.plugin);
        if former != Some(Queue::Unschedulable) {
            self.metrics.count(Queue::Unschedulable, cause);
        }
        true
    }

    /// Takes a pod out of its queue. Answers out of which.
    fn leave(&mut self, key: &Key) -> Option<Queue> {
        let queued = self.pods.get(key)?;
        match &queued.state {
            QueueState::Active => self.active.remove(&queued.order).map(|_| Queue::Active),
            QueueState::Backoff(ends) => {
                self.backing_off.remove(&(*ends, queued.order));
                let epoch = self.epoch.unwrap_or(*ends);
                self.early.remove(&(window(epoch, *ends), queued.order));
                self.backing_off_keys.remove(&queued.order).map(|_| Queue::Backoff)
            }
            QueueState::Unschedulable(_) | QueueState::Gated(_) => {
                self.waiting.remove(&queued.order).map(|_| Queue::Unschedulable)
            }
            QueueState::InFlight(began) => {
                self.events.end(*began);
                None
            }
        }
    }

    /// Makes pods active that are due: at the end of their backoff, or after a long time without any event.
    pub fn flush_due(&mut self, now: Instant) {
        while let Some((_, order)) = self.backing_off.first().filter(|(ends, _)| *ends <= now).copied() {
            let Some(key) = self.backing_off_keys.get(&order).cloned() else { break };
            self.activate(&key, cause::BACKOFF_ENDED);
        }
        let long = |key: &&Key| {
            let state = self.pods.get(*key).map(|queued| &queued.state);
            matches!(state, Some(QueueState::Unschedulable(since)) if *since + FLUSH <= now)
        };
        let long: Vec<Key> = self.waiting.values().filter(long).cloned().collect();
        for key in long {
            if let Some(queued) = self.pods.get_mut(&key) {
                queued.flushed = true;
            }
            self.activate(&key, cause::TIMED_OUT);
        }
    }

    /// When the next pod is due.
    pub fn next_due(&self) -> Option<Instant> {
        let backoff = self.backing_off.first().map(|(ends, _)| *ends);
        let long = self.waiting.values().filter_map(|key| match self.pods.get(key)?.state {
            QueueState::Unschedulable(since) => Some(since + FLUSH),
            _ => None,
        });
        backoff.into_iter().chain(long.min()).min()
    }

    /// The events that are kept for pods in flight, and those pods, by name.
    pub fn in_flight(&self) -> &BTreeMap<EventName, i64> {
        self.events.counts()
    }

    /// How many pods are where.
    pub fn pending(&self) -> Pending {
        let gated = self.waiting.values().filter_map(|key| self.pods.get(key));
        let gated = gated.filter(|q| matches!(q.state, QueueState::Gated(_))).count();
        Pending {
            active: self.active.len(),
            backoff: self.backing_off.len(),
            unschedulable: self.waiting.len() - gated,
            gated,
        }
    }
}

fn window(epoch: Instant, ends: Instant) -> u64 {
    ends.saturating_duration_since(epoch).as_secs() / WINDOW
}

/// Whether an event may help a pod: `Some(true)` if the plugin was waiting for it, so that no backoff is due.
fn wakes(profile: &Profile, queued: &Queued, event: &Event) -> Option<bool> {
    if queued.pending.iter().any(|plugin| profile.wakes(plugin, &queued.info, event)) {
        return Some(true);
    }
    queued.rejectors.iter().any(|plugin| profile.wakes(plugin, &queued.info, event)).then_some(false)
}
