//! The one thread that writes. It takes what has queued up, plans it, makes it durable with one commit, shows it to
//! readers and watchers, and then answers, in this order.
//!
//! Invariants: nothing is visible before it is durable, and nothing is acknowledged before it is visible. After a failed
//! commit the state on disk is unknown, so nothing is written before it has been read again (see [`recovery`]). On a disk
//! that is nearly full, commands that have no room are refused before a commit is begun.

mod fork;
mod recovery;
mod scrub;

use super::hub::Batch;
use super::index::{Index, Version};
use super::lease::Leases;
use super::log::{Commit, Entry, Log, LogSnapshot, State, TimeMark, read_key_value};
use super::plan::{Context, Plan, Values};
use super::queue::{Answer, Command, Queue};
use super::{Limits, Shared};
use crate::{Clock, EventKind, KeyValue, LeaseId, Revision, StoreError, TxnOutcome};
pub(crate) use fork::Fork;
use recovery::{Outage, UncertainCommit};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often leases and the age of history are checked.
const TICK: Duration = Duration::from_millis(500);
/// How long watches that nothing happened to may wait for their progress.
const PROGRESS: Duration = Duration::from_millis(5);
/// How exactly the age of a revision is known.
const MARK_MILLIS: u64 = 1000;
/// With less room than this on the disk nothing is added: a database that meets the end of the disk in the middle of a
/// commit is of no more use until it is opened anew.
const RESERVE: u64 = 16 << 20;
/// With less than this nothing is removed either, which takes some room too.
const LAST_RESERVE: u64 = 4 << 20;
/// How much of the disk a commit takes for each byte that it adds, at most: whole pages, and the tree above them.
const OVERHEAD: u64 = 4;
/// How much a commit without other work may remove.
const REAP_IDLE: usize = 2048;

/// An answer that has to wait for the commit.
enum Reply {
    Txn(Answer<TxnOutcome>, Result<TxnOutcome, StoreError>),
    Grant(Answer<LeaseId>, Result<LeaseId, StoreError>),
    KeepAlive(Answer<Duration>, Result<Duration, StoreError>),
    Done(Answer<()>, Result<(), StoreError>),
    /// It was answered.
    Nothing,
}

impl Reply {
    fn send(self, failure: Option<&StoreError>) {
        fn send<T>(answer: Answer<T>, result: Result<T, StoreError>, failure: Option<&StoreError>) {
            // The caller may have dropped its future.
            let _ = answer.send(failure.map_or(result, |f| Err(f.clone())));
        }
        match self {
            Reply::Txn(answer, result) => send(answer, result, failure),
            Reply::Grant(answer, result) => send(answer, result, failure),
            Reply::KeepAlive(answer, result) => send(answer, result, failure),
            Reply::Done(answer, result) => send(answer, result, failure),
            Reply::Nothing => {}
        }
    }
}

/// Reads values for planning: from the recent batches, else from the log.
struct Loader<'a> {
    shared: &'a Shared,
    snapshot: Option<Box<dyn LogSnapshot>>,
}

impl Values for Loader<'_> {
    fn load(&mut self, key: &Arc<str>, version: &Version) -> Result<KeyValue, StoreError> {
        if let Some(recent) = self.shared.hub.recent(version) {
            return Ok(recent);
        }
        let snapshot = match &mut self.snapshot {
            Some(snapshot) => snapshot,
            none => none.insert(self.shared.reader()?.snapshot()?),
        };
        read_key_value(&**snapshot, version.loc(), key)
    }
}

/// See the module.
pub(crate) struct Writer {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    log: Box<dyn Log>,
    clock: Arc<dyn Clock>,
    limits: Limits,
    state: State,
    /// That of the last commit.
    durable: State,
    leases: Leases,
    marks: VecDeque<TimeMark>,
    last_tick: Instant,
    /// Since when watches wait for progress.
    progress: Option<Instant>,
    /// There was too little room on the disk at the last check.
    low_on_space: bool,
    /// Why nothing can be written at present.
    outage: Option<Outage>,
    /// What the last commit was to do, if it failed.
    uncertain_commit: Option<UncertainCommit>,
    /// Those that wait until nothing but current values is left.
    scrubs: Vec<Answer<()>>,
    /// Those that wait for a fork.
    forks: Vec<Answer<Fork>>,
    /// When the log was last made smaller, or could have been.
    last_shrink: Instant,
}

impl Writer {
    pub fn new(
        shared: Arc<Shared>,
        queue: Arc<Queue>,
        log: Box<dyn Log>,
        (state, leases, marks): (State, Leases, VecDeque<TimeMark>),
        (clock, limits): (Arc<dyn Clock>, Limits),
    ) -> Writer {
        let (last_tick, progress) = (Instant::now(), None);
        Writer {
            shared,
            queue,
            log,
            clock,
            limits,
            state,
            durable: state,
            leases,
            marks,
            last_tick,
            progress,
            low_on_space: false,
            outage: None,
            uncertain_commit: None,
            scrubs: Vec::new(),
            forks: Vec::new(),
            last_shrink: last_tick,
        }
    }

    /// Works until the queue is closed and empty.
    pub fn run(&mut self) -> Result<(), StoreError> {
        let mut commands = Vec::new();
        loop {
            let open = self.queue.take(self.wait_limit(), &mut commands);
            let tick = self.last_tick.elapsed() >= TICK;
            let recovery_due = self.outage.as_ref().is_some_and(Outage::is_due);
            if !commands.is_empty() || tick || recovery_due || self.shared.index().has_garbage() {
                if self.try_recover(&mut commands)? && self.refuse_without_space(&mut commands) {
                    self.step(commands.drain(..), tick)?;
                } else {
                    self.last_tick = Instant::now();
                }
            }
            if self.progress.is_some_and(|since| since.elapsed() >= PROGRESS) {
                self.progress = None;
                self.shared.hub.wake_all();
            }
            if !open {
                return Ok(());
            }
        }
    }

    /// Carries out what is queued, on the caller's thread; answers whether more may come. Recovery is tried each time.
    pub fn run_queued(&mut self) -> Result<bool, StoreError> {
        let mut commands = Vec::new();
        let open = loop {
            let open = self.queue.take(Some(Duration::ZERO), &mut commands);
            if commands.is_empty() {
                break open;
            }
            if self.try_recover(&mut commands)? && self.refuse_without_space(&mut commands) {
                self.step(commands.drain(..), false)?;
            }
        };
        if self.progress.take().is_some() {
            self.shared.hub.wake_all();
        }
        Ok(open)
    }

    /// How long there is nothing to do but for commands.
    fn wait_limit(&self) -> Option<Duration> {
        let progress = self.progress.map(|since| PROGRESS.saturating_sub(since.elapsed()));
        let soon = if self.low_on_space || self.outage.is_some() { TICK } else { PROGRESS };
        let garbage = self.shared.index().has_garbage().then_some(soon);
        let timed = !self.leases.is_empty() || !self.marks.is_empty();
        let tick = timed.then(|| TICK.saturating_sub(self.last_tick.elapsed()));
        let outage = self.outage.as_ref().filter(|t| !t.open).map(Outage::left);
        [progress, garbage, tick, outage].into_iter().flatten().min()
    }

    /// Refuses those of the commands for which the disk has no room, before anything comes of them. Whether the others
    /// can be carried out.
    fn refuse_without_space(&mut self, commands: &mut Vec<Command>) -> bool {
        let Some(free) = self.log.free() else { return true };
        let low_on_space = free < RESERVE;
        match (low_on_space, std::mem::replace(&mut self.low_on_space, low_on_space)) {
            (false, true) => {
                self.shared.set_write_failure(None);
                tracing::info!(free, "disk space is available again; the store accepts writes");
            }
            (true, false) => tracing::error!(
                free,
                "the disk is nearly full; the store rejects writes until space is available"
            ),
            _ => {}
        }
        let error = StoreError::NoSpace(format!(
            "the disk has {free} bytes left; free some space, and writes are taken again"
        ));
        if low_on_space {
            self.shared.set_write_failure(Some(error.clone()));
        }
        let all = free < LAST_RESERVE;
        let mut room = free.checked_sub(RESERVE).map(|room| room / OVERHEAD);
        // A large one leaves its room to those after it.
        let mut fits = |adds| match room.and_then(|room| room.checked_sub(adds)) {
            Some(rest) => {
                room = Some(rest);
                true
            }
            None => adds == 0,
        };
        for command in commands.extract_if(.., |command| all || !fits(command.adds())) {
            command.refuse(error.clone());
        }
        !all
    }

    /// One group commit.
    fn step(&mut self, commands: impl Iterator<Item = Command>, tick: bool) -> Result<(), StoreError> {
        let now = self.clock.now_millis();
        let mut replies = Vec::new();
        let mut tick = tick;
        let outcome = self.plan(commands, now, &mut tick, &mut replies).and_then(|plan| {
            self.commit(plan, now)?;
            // Compaction raises the revision for readers first; only the next commit removes anything.
            self.compact_by_limits(tick, now);
            self.scrub(now)?;
            self.shrink(tick)
        });
        // Before the answers, so that a caller that has one finds the store refusing, or recovered.
        let outcome = match outcome {
            Ok(()) => Ok(None),
            Err(error) => self.handle_failure(error).inspect_err(|error| self.shared.fail(error)),
        };
        let failure = outcome.as_ref().map_or_else(Some, Option::as_ref);
        replies.into_iter().for_each(|reply| reply.send(failure));
        self.answer_forks(failure);
        if let Some(error) = failure {
            self.refuse_scrubs(error);
        }
        outcome.map(drop)
    }

    fn plan(
        &mut self,
        mut commands: impl Iterator<Item = Command>,
        now: u64,
        tick: &mut bool,
        replies: &mut Vec<Reply>,
    ) -> Result<Plan, StoreError> {
        let shared = self.shared.clone();
        let (mut compact, mut scrubs) = (0, Vec::new());
        let mut plan = Plan::new(self.state.revision);
        {
            let index = shared.index();
            let mut values = Loader { shared: &shared, snapshot: None };
            let mut cx = Context {
                index: &index,
                leases: &mut self.leases,
                values: &mut values,
                max_bytes: self.limits.max_txn_bytes,
            };
            while let Some(command) = commands.next() {
                match command {
                    Command::Tick(answer) => {
                        *tick = true;
                        replies.push(Reply::Done(answer, Ok(())));
                    }
                    Command::Compact(to, answer) => {
                        let current = plan.revision;
                        let result =
                            if to > current { Err(StoreError::FutureRevision { current }) } else { Ok(()) };
                        if result.is_ok() {
                            compact = compact.max(to);
                        }
                        replies.push(Reply::Done(answer, result));
                    }
                    Command::Scrub(answer) => scrubs.push(answer),
                    Command::Fork(answer) => self.forks.push(answer),
                    other => {
                        let (reply, store_error) = execute(&mut plan, &mut cx, other, now);
                        replies.push(reply);
                        if let Err(error) = store_error {
                            // Every command is answered, also when the store ends.
                            commands.for_each(|command| command.refuse(error.clone()));
                            self.scrubs.extend(scrubs);
                            return Err(error);
                        }
                    }
                }
            }
            if *tick {
                self.last_tick = Instant::now();
                while let Some(id) = cx.leases.expired(now) {
                    let keys = cx.leases.end(id)?;
                    plan.delete_all(&mut cx, &keys)?;
                }
            }
        }
        if !scrubs.is_empty() {
            compact = plan.revision;
            self.scrubs.extend(scrubs);
        }
        self.state.compacted = self.state.compacted.max(compact);
        Ok(plan)
    }

    /// Makes a plan durable and visible.
    fn commit(&mut self, plan: Plan, now: u64) -> Result<(), StoreError> {
        let before = self.state;
        self.state.revision = plan.revision;
        self.state.last_lease = self.leases.last();
        let leases = self.leases.take_unsaved();
        let remove = {
            let index = self.shared.index();
            let max = if plan.entries.is_empty() { REAP_IDLE } else { 64.max(plan.entries.len() * 2) };
            if index.has_garbage() { index.garbage(max) } else { Vec::new() }
        };
        let raised = self.state.compacted > self.shared.index().compacted();
        if plan.entries.is_empty() && leases.is_empty() && remove.is_empty() && !raised {
            return Ok(());
        }
        self.state.entries += plan.entries.len() as u64;
        self.state.entries -= remove.len() as u64;
        let mark = self.next_mark(plan.entries.is_empty(), now);
        let marks_from = self.marks.front().map_or(self.state.compacted, |m| m.revision);
        let entries = &plan.entries;
        let (state, leases) = (self.state, &leases);
        let done = self.log.commit(&Commit { state, entries, remove: &remove, leases, mark, marks_from });
        if let Err(error) = done {
            self.uncertain_commit = Some(UncertainCommit { after: before.revision, plan, state });
            return Err(error);
        }
        if self.outage.is_some() {
            self.shared.set_write_failure(None);
        }
        (self.durable, self.outage) = (state, None);
        let mut index = self.shared.index_mut();
        for entry in &plan.entries {
            index.apply(&entry.event.kv.key, version(entry));
        }
        index.reap(remove.len());
        index.set_revision(self.state.revision);
        index.compact(self.state.compacted);
        drop(index);
        if !plan.entries.is_empty() {
            self.shared.hub.publish(Arc::new(Batch::new(before.revision, plan.revision, plan.entries)));
            if self.progress.is_none() && self.shared.hub.is_watched() {
                self.progress = Some(Instant::now());
            }
        }
        Ok(())
    }

    fn next_mark(&mut self, idle: bool, now: u64) -> Option<TimeMark> {
        let due = self.marks.back().is_none_or(|last| now >= last.at_millis.saturating_add(MARK_MILLIS));
        if idle || !due {
            return None;
        }
        let mark = TimeMark { revision: self.state.revision, at_millis: now };
        self.marks.push_back(mark);
        Some(mark)
    }

    /// Decides how far history has to go for being too old or too large.
    fn compact_by_limits(&mut self, tick: bool, now: u64) {
        let age = self.limits.history_age_millis;
        let mut to = self.state.compacted;
        // Not before the oldest is a little overdue, so that this happens now and then and not every second.
        let overdue = |m: &TimeMark| m.at_millis.saturating_add(age).saturating_add(age / 30) <= now;
        if tick && self.marks.front().is_some_and(overdue) {
            while let Some(mark) = self.marks.front().filter(|m| m.at_millis.saturating_add(age) <= now) {
                to = to.max(mark.revision);
                self.marks.pop_front();
            }
        }
        let dead_bytes = self.shared.index().dead_bytes();
        if dead_bytes > self.limits.history_bytes && !self.shared.index().has_garbage() {
            to = to.max(self.shared.index().compaction_for(self.limits.history_bytes / 4 * 3));
        }
        if to > self.state.compacted {
            self.state.compacted = to;
            self.shared.index_mut().compact(to);
            tracing::debug!(revision = to, history_bytes = dead_bytes, "compacting");
        }
    }
}

/// Runs one command. Beside the answer, the error of the store, after which the plan is worth nothing.
fn execute(
    plan: &mut Plan,
    cx: &mut Context<'_>,
    command: Command,
    now: u64,
) -> (Reply, Result<(), StoreError>) {
    match command {
        Command::Txn(txn, answer) => {
            let result = plan.txn(cx, txn);
            let store_error = store_error(&result);
            (Reply::Txn(answer, result), store_error)
        }
        Command::Grant(ttl, answer) => (Reply::Grant(answer, cx.leases.grant(ttl, now)), Ok(())),
        Command::KeepAlive(id, answer) => (Reply::KeepAlive(answer, cx.leases.keep_alive(id, now)), Ok(())),
        Command::Revoke(id, answer) => {
            let ended = cx.leases.end(id);
            let gone = ended.as_ref().map_or(Ok(()), |keys| plan.delete_all(cx, keys));
            (Reply::Done(answer, ended.map(drop)), gone)
        }
        Command::Compact(_, answer) | Command::Scrub(answer) | Command::Tick(answer) => {
            (Reply::Done(answer, Ok(())), Ok(()))
        }
        Command::Fork(answer) => {
            let error = StoreError::Invalid("a fork is no part of a plan".into());
            // The caller may have dropped its future.
            drop(answer.send(Err(error)));
            (Reply::Nothing, Ok(()))
        }
    }
}

/// The error, if it is one of the store; an error of one caller does not concern the others.
fn store_error<T>(result: &Result<T, StoreError>) -> Result<(), StoreError> {
    match result {
        Err(e @ (StoreError::Corrupt(_) | StoreError::Unavailable(_) | StoreError::NoSpace(_))) => {
            Err(e.clone())
        }
        _ => Ok(()),
    }
}

fn version(entry: &Entry) -> Version {
    let kv = &entry.event.kv;
    Version {
        revision: kv.mod_revision,
        sub: entry.sub,
        // Bounded by the size limit of a transaction.
        value_len: u32::try_from(kv.value.len()).unwrap_or(u32::MAX),
        create_revision: kv.create_revision,
        version: if entry.event.kind == EventKind::Delete { 0 } else { kv.version },
        lease: kv.lease.map_or(0, |id| id.0),
    }
}

/// What the log held when it was opened.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub state: State,
    pub index: Index,
    pub leases: Leases,
    pub marks: VecDeque<TimeMark>,
}

impl Loaded {
    /// An empty store.
    pub fn empty() -> Loaded {
        let (state, leases, marks) = (State::EMPTY, Leases::default(), VecDeque::new());
        Loaded { state, index: Index::new(&state), leases, marks }
    }

    /// Hangs the keys on their leases, after the index is complete.
    pub fn attach_leases(&mut self) -> Result<(), StoreError> {
        for (key, version) in self.index.live() {
            let Some(id) = version.lease() else { continue };
            if !self.leases.contains(id) {
                return Err(StoreError::Corrupt(format!(
                    "key {key:?} hangs on lease {id}, which does not exist"
                )));
            }
            self.leases.reattach(key, None, Some(id));
        }
        Ok(())
    }

    /// The revision up to which nothing can be watched any more.
    pub fn revision(&self) -> Revision {
        self.state.revision
    }
}
