//! The scheduling loop: it updates cache and queue from the informers, decides one pod at a time, and runs binding cycles concurrently.
//!
//! Invariants:
//! - An assumed pod stays in the cache until its binding has failed or the informer shows it.
//! - At most [`BINDINGS`] bindings are in flight.
//! - A pod for which victims are being deleted is not tried again before that is done.

mod extended;
mod group;
#[cfg(test)]
mod tests;
mod update;
mod victims;

use crate::{
    binding::{BindingCycle, Hold, carry_out},
    cache::Cache,
    changes::Changes,
    configuration::Configuration,
    extenders::ExtenderCalls,
    framework::{
        BindContext, Code, Cycle, CycleState, Event, Listers, Nomination, Nominator, Outcome, PermitWait,
        Profile, Reads, Status,
    },
    memory::Memory,
    metrics::{AttemptResult, Metrics},
    pod_info::PodInfo,
    preemption::Preemption,
    schedule_one::{Decision, Unschedulable, schedule_pod},
    scheduling_queue::{Popped, SchedulingQueue},
    status_writer::{Condition, StatusWriter, status_patch, without_nomination},
};
use kaji_decisions::{Decision as KeptDecision, Rejection, SCHEDULER};
use kaji_runtime::{
    Batcher, Client, EventRecord, Informer, Informers, Key, Recorder, Shared, Target,
    objects::{Node, Pod, PodGroup},
    time,
};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::JoinSet,
    time::Instant,
};

/// Bindings in flight at once: those that are sent, and those that wait to be sent together with others.
const BINDINGS: usize = 512;
/// Decisions between two looks at what the informers have reported.
const DECISIONS: usize = 64;
/// Events of placed pods that wait to be written; bindings wait when there are more.
const PLACED: usize = 16_384;
/// Upstream's limit of an event's text.
const NOTE_LIMIT: usize = 1024;

/// What has ended beside the loop.
enum Ended {
    /// A binding.
    Binding { popped: Popped, cycle: Box<BindingCycle>, outcome: Outcome, began: Instant },
    /// The deletion of victims for a pod; false if one of them failed.
    Preemption { key: Key, uid: String, done: bool, began: Instant },
}

/// Runs until `stop` turns true.
pub async fn run(
    informers: Arc<Informers>,
    shared: Shared,
    configuration: Configuration,
    metrics: Metrics,
    mut stop: watch::Receiver<bool>,
) {
    let changes = Arc::new(Changes::default());
    let (pods, nodes) = (informers.get::<Pod>(), informers.get::<Node>());
    let noted = changes.clone();
    nodes.handle(move |c| noted.node(c.any().metadata.key(), (c.old.clone(), c.new.clone())));
    let noted = changes.clone();
    pods.handle(move |c| noted.pod(c.any().metadata.key(), (c.old.clone(), c.new.clone())));
    let noted = changes.clone();
    let mut reads = Reads::new(&informers, Arc::new(move |event| noted.other(event)));
    configuration.profiles.iter().flat_map(Profile::points).for_each(|p| p.plugin.reads(&mut reads));
    configuration.extenders.read(&mut reads);
    let (listers, listed) = reads.finish();
    let synced = async { tokio::join!(pods.synced(), nodes.synced(), listed) };
    tokio::select! { biased; _ = synced => {}, _ = stop.wait_for(|s| *s) => return }
    // Room for the results of all bindings in flight, and of as many preemptions.
    let (sender, mut ended) = mpsc::channel(2 * BINDINGS);
    let mut scheduler = Scheduler::new(pods, shared, configuration, metrics, listers, sender);
    let mut writer = JoinSet::new();
    writer.spawn(scheduler.writer.clone().run(scheduler.client.clone()));
    writer.spawn(scheduler.group_writer.clone().run(scheduler.client.clone()));
    loop {
        scheduler.update(&changes);
        scheduler.queue.flush_due(scheduler.now());
        // An extender may take its time.
        let full = tokio::select! {
            biased;
            _ = stop.wait_for(|s| *s) => return,
            full = scheduler.schedule_all(&changes) => full,
        };
        scheduler.measure();
        // After scheduling: unschedulable pods have entered their backoff.
        let next = scheduler.queue.next_due();
        let timer = async {
            match next {
                Some(at) => time::sleep_until(&*scheduler.shared.clock, at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = stop.wait_for(|s| *s) => return,
            Some(end) = ended.recv() => {
                scheduler.ended(end);
                while let Ok(end) = ended.try_recv() {
                    scheduler.ended(end);
                }
            }
            () = changes.changed(), if !full => {}
            () = timer, if !full => {}
        }
    }
}

/// Why a pod has no node.
struct PodVerdict<'a> {
    reason: &'static str,
    message: &'a str,
    rejections: Vec<Rejection>,
}

impl<'a> PodVerdict<'a> {
    fn unschedulable(message: &'a str) -> Self {
        PodVerdict { reason: "Unschedulable", message, rejections: vec![] }
    }
}

struct Scheduler {
    cache: Cache,
    queue: SchedulingQueue,
    nominator: Nominator,
    profiles: Arc<Vec<Profile>>,
    pods: Arc<Informer<Pod>>,
    shared: Shared,
    client: Client,
    binder: Batcher,
    recorders: Vec<Recorder>,
    /// Events of placed pods, on their way to the recorder of the profile.
    placed: Vec<mpsc::Sender<EventRecord>>,
    listers: Listers,
    extenders: Arc<ExtenderCalls>,
    metrics: Metrics,
    writer: StatusWriter<Pod>,
    group_writer: StatusWriter<PodGroup>,
    permits: Arc<Semaphore>,
    sender: mpsc::Sender<Ended>,
    /// The bindings in flight, by their pods' uids.
    bindings: HashMap<String, Hold>,
    /// Uids of pods for which victims are being deleted.
    preempting: HashSet<String>,
    /// What decisions leave to the next.
    memory: Memory,
    /// Whether pods of a group are scheduled together.
    groups: bool,
    /// The groups of pods that came since the queue heard last.
    grown: BTreeSet<Key>,
}

/// A queue before a recorder's own, which drops what it has no room for.
fn forward(recorder: Recorder) -> mpsc::Sender<EventRecord> {
    let (sender, mut receiver) = mpsc::channel(PLACED);
    tokio::spawn(async move {
        while let Some(event) = receiver.recv().await {
            recorder.record_when_there_is_room(event).await;
        }
    });
    sender
}

impl Scheduler {
    fn new(
        pods: Arc<Informer<Pod>>,
        shared: Shared,
        configuration: Configuration,
        metrics: Metrics,
        listers: Listers,
        sender: mpsc::Sender<Ended>,
    ) -> Self {
        let grouping = |profile: &Profile| profile.points().any(|p| p.plugin.name() == group::PLUGIN);
        let groups = configuration.profiles.iter().any(grouping);
        let mut profiles = configuration.profiles;
        profiles.iter_mut().for_each(|profile| profile.measure(&metrics.framework));
        let profiles = Arc::new(profiles);
        let recorder = |profile: &Profile| {
            let name = &profile.config.scheduler_name;
            Recorder::start(shared.client.clone(), name, shared.clock.clone(), shared.random.clone())
        };
        let recorders: Vec<Recorder> = profiles.iter().map(recorder).collect();
        let client = shared.client.named("kube-scheduler");
        Scheduler {
            groups,
            grown: BTreeSet::new(),
            cache: Cache::default(),
            queue: SchedulingQueue::new(profiles.clone(), configuration.backoffs, listers.clone())
                .measured(metrics.queue.clone()),
            nominator: Nominator::default(),
            placed: recorders.iter().cloned().map(forward).collect(),
            recorders,
            profiles,
            pods,
            binder: Batcher::start(client.clone()),
            extenders: Arc::new(ExtenderCalls::new(
                Arc::new(configuration.extenders),
                listers.clone(),
                client.clone(),
            )),
            client,
            shared,
            listers,
            metrics,
            writer: StatusWriter::default(),
            group_writer: StatusWriter::default(),
            permits: Arc::new(Semaphore::new(BINDINGS)),
            sender,
            bindings: HashMap::new(),
            preempting: HashSet::new(),
            memory: Memory::default(),
        }
    }

    fn now(&self) -> Instant {
        time::instant(&*self.shared.clock)
    }

    /// Schedules every active pod. True when no further binding may start before one ends.
    async fn schedule_all(&mut self, changes: &Changes) -> bool {
        let mut since = 0;
        loop {
            let Ok(permit) = self.permits.clone().try_acquire_owned() else { return true };
            let Some(popped) = self.queue.pop() else { return false };
            if self.preempting.contains(popped.info.uid()) {
                self.queue.put_back(&popped.key, "DefaultPreemption", self.now());
                continue;
            }
            if popped.info.pod.metadata.deleting() {
                self.queue.remove(&popped.key);
                continue;
            }
            let group = popped.info.pod.scheduling_group().filter(|_| self.groups);
            if let Some(group) = group {
                self.schedule_group(popped, &group, permit).await;
            } else if let Some(binding) = self.schedule(&popped).await {
                self.start_binding(popped, binding, Some(permit));
            }
            since += 1;
            if since % DECISIONS == 0 {
                tokio::task::yield_now().await;
                self.update(changes);
            }
        }
    }

    /// Decides on a pod, and assumes and reserves what was decided. The binding cycle that is to run, if a node was chosen.
    async fn schedule(&mut self, popped: &Popped) -> Option<BindingCycle> {
        let began = Instant::now();
        let profiles = self.profiles.clone();
        let profile = profiles.get(popped.profile)?;
        match self.decide(profile, popped).await {
            Decision::Bind(chosen) => {
                let assumed = self.assume(profile, popped, &chosen.node, chosen.state);
                match assumed {
                    Ok((state, waits)) => return Some(self.binding_cycle(popped, chosen.node, state, waits)),
                    Err(status) => self.reject(popped, &status, began),
                }
            }
            Decision::Unschedulable(why) => self.unschedulable(popped, why, began),
            Decision::Failed(status) => self.reject(popped, &status, began),
        }
        None
    }

    async fn decide(&mut self, profile: &Profile, popped: &Popped) -> Decision {
        tracing::debug!(pod = %popped.key, attempt = popped.attempts, "attempting to schedule a pod");
        let began = Instant::now();
        let decision = match self.extenders.is_empty() {
            true => self.decide_alone(profile, popped),
            false => self.decide_with_extenders(profile, popped).await,
        };
        self.metrics.decided(began.elapsed());
        decision
    }

    fn decide_alone(&mut self, profile: &Profile, popped: &Popped) -> Decision {
        let cycle = Cycle {
            pod: &popped.info,
            snapshot: self.cache.snapshot(),
            listers: &self.listers,
            nominator: &self.nominator,
            random: &*self.shared.random,
            now: self.shared.clock.now(),
        };
        schedule_pod(profile, &cycle, &mut self.memory)
    }

    /// Counts a pod on its node, reserves for it, and asks for permits: what plugins keep, and those that the pod waits for.
    fn assume(
        &mut self,
        profile: &Profile,
        popped: &Popped,
        node: &str,
        mut state: CycleState,
    ) -> Outcome<(CycleState, Vec<PermitWait>)> {
        self.cache.assume(&popped.info, node);
        let cycle = Cycle {
            pod: &popped.info,
            snapshot: self.cache.snapshot(),
            listers: &self.listers,
            nominator: &self.nominator,
            random: &*self.shared.random,
            now: self.shared.clock.now(),
        };
        let permitted = profile.reserve(&cycle, &mut state, node).and_then(|()| {
            let permitted = profile.permit(&cycle, &mut state, node);
            permitted.inspect_err(|_| profile.unreserve(&popped.info, &mut state, node))
        });
        let waits = permitted.map_err(|status| {
            self.cache.forget(&popped.key, popped.info.uid());
            status.of_chosen_node()
        })?;
        // A pod that has its node needs no room on another.
        self.nominator.remove(popped.info.uid());
        Ok((state, waits))
    }

    fn binding_cycle(
        &self,
        popped: &Popped,
        node: String,
        state: CycleState,
        waits: Vec<PermitWait>,
    ) -> BindingCycle {
        let context = BindContext {
            pod: popped.info.clone(),
            node,
            listers: self.listers.clone(),
            client: self.client.clone(),
            binder: self.binder.clone(),
            recorder: self.recorders[popped.profile].clone(),
            placed: self.placed[popped.profile].clone(),
            clock: self.shared.clock.clone(),
            metrics: self.metrics.devices.clone(),
            profile: self.profiles[popped.profile].config.scheduler_name.as_str().into(),
        };
        let extenders = self.extenders.clone();
        BindingCycle { context, state, waits, extenders, nominated: false, hold: Hold::default() }
    }

    /// Binds a pod; without a permit, as soon as one is free.
    fn start_binding(
        &mut self,
        popped: Popped,
        mut cycle: BindingCycle,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        self.bindings.insert(popped.info.uid().to_owned(), cycle.hold.clone());
        let began = self.now();
        let (profiles, clock, sender) =
            (self.profiles.clone(), self.shared.clock.clone(), self.sender.clone());
        let permits = self.permits.clone();
        tokio::spawn(async move {
            let permit = match permit {
                Some(permit) => Some(permit),
                // It is never closed.
                None => permits.acquire_owned().await.ok(),
            };
            let outcome = match profiles.get(popped.profile) {
                Some(profile) => cycle.run(profile, &*clock).await,
                None => Err(Status::error("the pod's profile is gone")),
            };
            // Before the result is sent: the loop expects a free permit when it receives one.
            drop(permit);
            // The receiver is gone only after the loop has ended.
            let _ = sender.send(Ended::Binding { popped, cycle: Box::new(cycle), outcome, began }).await;
        });
    }

    fn ended(&mut self, ended: Ended) {
        match ended {
            Ended::Binding { popped, cycle, outcome, began } => {
                self.binding_ended(&popped, *cycle, outcome, began)
            }
            Ended::Preemption { key, uid, done, began } => {
                self.preempting.remove(&uid);
                self.metrics.preempted(done, self.now().saturating_duration_since(began));
                if !done || self.queue.is_rejected_by(&key, "DefaultPreemption") {
                    self.queue.activate_now(&key);
                }
            }
        }
    }

    fn binding_ended(&mut self, popped: &Popped, mut cycle: BindingCycle, outcome: Outcome, began: Instant) {
        let took = self.now().saturating_duration_since(began);
        self.bindings.remove(popped.info.uid());
        let profiles = self.profiles.clone();
        let Some(profile) = profiles.get(popped.profile) else { return };
        let Err(status) = outcome else {
            let name = &profile.config.scheduler_name;
            self.metrics.attempt(AttemptResult::Scheduled, name, took);
            let waited = self.now().saturating_duration_since(popped.arrived);
            self.metrics.scheduled(waited, popped.attempts, popped.flushed);
            self.queue.remove_bound(&popped.key, popped.info.uid());
            return;
        };
        tracing::debug!(pod = %popped.key, %status, "binding failed");
        profile.unreserve(&popped.info, &mut cycle.state, &cycle.context.node);
        self.cache.forget(&popped.key, popped.info.uid());
        self.catch_up(popped);
        if cycle.nominated {
            // The informer may not show it yet.
            self.writer.write(&popped.info.pod.metadata, without_nomination(&popped.info.pod));
        }
        if let Some(event) = Event::of_assigned_pod(Some(popped.info.pod.clone()), None) {
            self.queue.event(&event, self.now());
        }
        self.reject(popped, &status, began);
    }

    /// Gives the queue the newest state of a pod that was assumed: changes of it were not followed meanwhile.
    fn catch_up(&mut self, popped: &Popped) {
        let pods = self.pods.snapshot();
        let newest = pods.by_key(&popped.key).filter(|pod| pod.metadata.uid == popped.info.uid());
        if let Some(pod) = newest.filter(|pod| pod.active() && pod.spec.node_name.is_empty()) {
            self.queue.add(Arc::new(PodInfo::new(pod.clone())), popped.profile, self.now());
        }
    }

    /// No node fits a pod.
    fn unschedulable(&mut self, popped: &Popped, why: Unschedulable, began: Instant) {
        let now = self.now();
        let nominated = match &why.nomination {
            Nomination::Keep => None,
            Nomination::Clear => {
                self.nominator.remove(popped.info.uid());
                Some("")
            }
            Nomination::Node(node) => {
                self.nominator.nominate(&popped.info, node);
                Some(node.as_str())
            }
        };
        let verdict = PodVerdict { rejections: why.rejections, ..PodVerdict::unschedulable(&why.message) };
        self.report(popped, verdict, nominated, AttemptResult::Unschedulable, began);
        if why.writes.is_empty() {
            self.queue.rejected(&popped.key, why.plugins, why.pending, now);
        } else {
            // Whether they succeed or not, the pod is tried again at the end of its backoff.
            self.queue.failed(&popped.key, now);
            tokio::spawn(carry_out(self.client.clone(), popped.key.clone(), why.writes));
        }
        if let Nomination::Node(node) = why.nomination {
            self.preempt(popped, node, why.victims);
        }
    }

    /// A plugin rejected a pod after its node was chosen, or something failed. Its nomination ends, as upstream's. A rejection by
    /// no plugin, as that of a pre-bind, is followed by another attempt after the backoff, as a failure is.
    fn reject(&mut self, popped: &Popped, status: &Status, began: Instant) {
        let now = self.now();
        self.nominator.remove(popped.info.uid());
        let rejected = status.is_rejection();
        let (reason, result) = match rejected {
            true => ("Unschedulable", AttemptResult::Unschedulable),
            false => ("SchedulerError", AttemptResult::Error),
        };
        let verdict = PodVerdict { reason, message: &status.message(), rejections: vec![] };
        self.report(popped, verdict, Some(""), result, began);
        if rejected && !status.plugin.is_empty() {
            let plugins = [status.plugin].into();
            match status.code {
                Code::Pending => self.queue.rejected(&popped.key, [].into(), plugins, now),
                _ => self.queue.rejected(&popped.key, plugins, [].into(), now),
            }
        } else {
            self.queue.failed(&popped.key, now);
        }
    }

    /// Says why a pod has no node: an event, the condition, metrics, what is remembered. Not if the pod is gone, or has a node by now.
    fn report(
        &self,
        popped: &Popped,
        PodVerdict { reason, message, rejections }: PodVerdict<'_>,
        nominated: Option<&str>,
        result: AttemptResult,
        began: Instant,
    ) {
        let profile = &self.profiles[popped.profile].config.scheduler_name;
        self.metrics.attempt(result, profile, began.elapsed());
        let pods = self.pods.snapshot();
        let Some(pod) = pods.by_key(&popped.key) else { return };
        if pod.metadata.uid != popped.info.uid() || !pod.spec.node_name.is_empty() {
            return;
        }
        self.shared.remember(|| KeptDecision {
            component: SCHEDULER.to_owned(),
            key: popped.key.to_string(),
            about: Target::of::<Pod>(&pod.metadata.namespace, &pod.metadata.name).about(),
            owner: String::new(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            rejections,
        });
        let mut note = message.to_owned();
        if note.len() > NOTE_LIMIT {
            let end = (0..=NOTE_LIMIT - 4).rev().find(|end| note.is_char_boundary(*end)).unwrap_or_default();
            note.truncate(end);
            note += " ...";
        }
        let reference = pod.metadata.reference("v1", "Pod");
        self.recorders[popped.profile].record(EventRecord::warning(reference, "FailedScheduling", note));
        let condition = Condition { reason, message, now: self.shared.clock.now() };
        if let Some(patch) = status_patch(pod, Some(&condition), nominated) {
            self.writer.write(&pod.metadata, patch);
        }
    }

    /// Has victims deleted for a pod. Less important pods that wait for room on the same node lose their nomination.
    fn preempt(&mut self, popped: &Popped, node: String, victims: Vec<Arc<PodInfo>>) {
        let victims = self.with_groups(popped, victims);
        self.metrics.preemption(victims.len());
        let less = |p: &&Arc<PodInfo>| p.priority() < popped.info.priority() && p.uid() != popped.info.uid();
        let less: Vec<_> = self.nominator.on(&node).iter().filter(less).cloned().collect();
        for pod in less {
            self.nominator.remove(pod.uid());
            if let Some(patch) = status_patch(&pod.pod, None, Some("")) {
                self.writer.write(&pod.pod.metadata, patch);
            }
            self.queue.activate_now(&pod.key());
        }
        let victims = self.end_bindings(popped, &node, victims);
        if victims.iter().all(|victim| victim.pod.metadata.deleting()) {
            return;
        }
        let (key, uid) = (popped.key.clone(), popped.info.uid().to_owned());
        self.preempting.insert(uid.clone());
        let now = self.shared.clock.now();
        let preemption = Preemption { preemptor: popped.info.clone(), node, victims, now };
        let (client, sender, began) = (self.client.clone(), self.sender.clone(), self.now());
        let recorder = self.recorders[popped.profile].clone();
        tokio::spawn(async move {
            let done = preemption.carry_out(&client, &recorder).await;
            // The receiver is gone only after the loop has ended.
            let _ = sender.send(Ended::Preemption { key, uid, done, began }).await;
        });
    }

    fn measure(&mut self) {
        let (pods, assumed) = self.cache.pods();
        let nodes = self.cache.snapshot().len();
        self.metrics.sizes(self.queue.pending(), nodes, pods, assumed);
        self.metrics.queue.in_flight(self.queue.in_flight());
        self.metrics.bindings(BINDINGS.saturating_sub(self.permits.available_permits()));
    }
}
