//! Recovery of the writer after the log has failed: it opens the log again, and continues from what is on disk.
//!
//! Invariants: a commit that failed is, once the log is open again, known to be on disk or not to be there. If it is, it is
//! shown to readers and watchers like any other, although its caller may have got an error ("may have
//! happened"); so the watches miss nothing and need not end. A log that goes on failing is given up after [`MAX_FAILURES`]
//! failures without a commit in between.

use super::{Batch, Command, Loaded, Plan, State, TICK, Writer};
use crate::{Revision, StoreError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Failures in a row: some eight minutes of them.
const MAX_FAILURES: u32 = 20;
/// Between two tries.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Why nothing can be written at present.
#[derive(Debug)]
pub(super) struct Outage {
    error: StoreError,
    /// In a row.
    failures: u32,
    /// What is on disk was read since the last failure.
    pub open: bool,
    /// Nothing is tried before.
    until: Instant,
}

impl Outage {
    /// How long nothing is tried.
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Whether it is time to open the log.
    pub fn is_due(&self) -> bool {
        !self.open && self.left().is_zero()
    }
}

/// A commit that may be on disk or not.
#[derive(Debug)]
pub(super) struct UncertainCommit {
    /// The revision before it.
    pub after: Revision,
    pub plan: Plan,
    pub state: State,
}

impl Writer {
    /// After a failure: what to answer to the callers concerned, or the error with which the store ends.
    pub(super) fn handle_failure(&mut self, error: StoreError) -> Result<Option<StoreError>, StoreError> {
        self.record_failure(error.clone())?;
        tracing::error!(%error, "a write of the store failed; reopening its file");
        let committed = self.reopen_log()?;
        Ok((!committed).then_some(error))
    }

    /// Notes a failure. Says when it was one too many, or one of a kind that does not pass.
    fn record_failure(&mut self, error: StoreError) -> Result<(), StoreError> {
        let failures = self.outage.as_ref().map_or(0, |t| t.failures) + 1;
        if failures > MAX_FAILURES || !matches!(error, StoreError::NoSpace(_) | StoreError::Unavailable(_)) {
            return Err(error);
        }
        let until = Instant::now() + (TICK * (1 << (failures - 1).min(10))).min(MAX_BACKOFF);
        self.shared.set_write_failure(Some(error.clone()));
        self.outage = Some(Outage { error, failures, open: false, until });
        Ok(())
    }

    /// Whether commands can be carried out, perhaps because the log could be opened again now. Otherwise they are refused.
    pub(super) fn try_recover(&mut self, commands: &mut Vec<Command>) -> Result<bool, StoreError> {
        let Some(outage) = &self.outage else { return Ok(true) };
        let now = commands.iter().any(|command| matches!(command, Command::Tick(_)));
        if now || outage.left().is_zero() {
            if !outage.open {
                self.reopen_log()?;
            }
            if let Some(outage) = self.outage.as_mut().filter(|outage| outage.open) {
                outage.until = Instant::now();
                return Ok(true);
            }
        }
        if let Some(outage) = &self.outage {
            commands.drain(..).for_each(|command| command.refuse(outage.error.clone()));
        }
        Ok(false)
    }

    /// Reads what is on disk. Whether the commit that failed last is there.
    fn reopen_log(&mut self) -> Result<bool, StoreError> {
        match self.log.reopen() {
            Ok(Some(loaded)) => self.adopt(loaded),
            Ok(None) => Err(self.outage.take().map_or(StoreError::Closed, |outage| outage.error)),
            Err(error) => {
                self.record_failure(error.clone())?;
                tracing::warn!(%error, "the store's file cannot be opened yet");
                Ok(false)
            }
        }
    }

    fn adopt(&mut self, loaded: Loaded) -> Result<bool, StoreError> {
        let Loaded { state, mut index, leases, marks } = loaded;
        let committed = match self.uncertain_commit.take() {
            _ if state == self.durable => None,
            Some(uncertain_commit) if state == uncertain_commit.state => Some(uncertain_commit),
            _ => {
                return Err(StoreError::Corrupt(format!(
                    "revision {} was read after a failure, where {} or the next was expected",
                    state.revision, self.durable.revision
                )));
            }
        };
        let compacted = self.shared.index().compacted().max(state.compacted);
        index.compact(compacted);
        (self.durable, self.state) = (state, State { compacted, ..state });
        (self.leases, self.marks) = (leases, marks);
        *self.shared.index_mut() = index;
        let happened = committed.is_some();
        if let Some(UncertainCommit { after, plan, .. }) = committed
            && !plan.entries.is_empty()
        {
            self.shared.hub.publish(Arc::new(Batch::new(after, plan.revision, plan.entries)));
        }
        if let Some(outage) = &mut self.outage {
            outage.open = true;
        }
        tracing::info!(revision = state.revision, happened, "the store has reopened its file");
        Ok(happened)
    }
}

#[cfg(test)]
mod tests {
    use super::super::version;
    use crate::mvcc::hub::HubLimits;
    use crate::mvcc::index::Index;
    use crate::mvcc::lease::Leases;
    use crate::mvcc::log::{Commit, Log, LogSnapshot, Reader};
    use crate::mvcc::writer::Loaded;
    use crate::mvcc::{Drive, Engine, Limits, lock};
    use crate::{Range, Store, StoreError, SystemClock, Txn, memory::MemoryLog};
    use futures_util::StreamExt;
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    /// What happens to the next commits.
    #[derive(Clone, Copy, Debug)]
    enum Next {
        Lost,
        Done,
        /// Neither what was nor what was to be.
        Damaged,
    }

    /// A log that says that commits failed.
    struct Failing {
        inner: MemoryLog,
        next: Arc<Mutex<VecDeque<Next>>>,
        /// What is on disk.
        state: crate::mvcc::log::State,
        /// Whether nothing can be read.
        unreadable: Arc<AtomicBool>,
    }

    struct Failed {
        inner: Arc<dyn Reader>,
        unreadable: Arc<AtomicBool>,
    }

    impl Reader for Failed {
        fn snapshot(&self) -> Result<Box<dyn LogSnapshot>, StoreError> {
            if self.unreadable.load(Ordering::Relaxed) {
                return Err(StoreError::Unavailable("unreadable".into()));
            }
            self.inner.snapshot()
        }
    }

    impl Log for Failing {
        fn commit(&mut self, commit: &Commit<'_>) -> Result<(), StoreError> {
            let next = lock(&self.next).pop_front();
            if !matches!(next, Some(Next::Lost)) {
                self.inner.commit(commit)?;
                self.state = commit.state;
            }
            if matches!(next, Some(Next::Damaged)) {
                self.state.entries += 1;
            }
            next.map_or(Ok(()), |_| Err(StoreError::NoSpace("full".into())))
        }

        fn reopen(&mut self) -> Result<Option<Loaded>, StoreError> {
            let mut index = Index::new(&self.state);
            for entry in lock(&self.inner.0).values() {
                index.apply(&entry.event.kv.key, version(entry));
            }
            let (leases, marks) = (Leases::default(), VecDeque::new());
            Ok(Some(Loaded { state: self.state, index, leases, marks }))
        }

        fn rewrite(&mut self) -> Result<Result<(), StoreError>, StoreError> {
            self.inner.rewrite()
        }

        fn reader(&self) -> Arc<dyn Reader> {
            Arc::new(Failed { inner: self.inner.reader(), unreadable: self.unreadable.clone() })
        }
    }

    fn start(next: &Arc<Mutex<VecDeque<Next>>>) -> Engine {
        start_with(next, Arc::default(), Limits::DEFAULT_HUB)
    }

    fn start_with(next: &Arc<Mutex<VecDeque<Next>>>, unreadable: Arc<AtomicBool>, hub: HubLimits) -> Engine {
        let state = crate::mvcc::log::State::EMPTY;
        let log = Failing { inner: MemoryLog::default(), next: next.clone(), state, unreadable };
        let (history_age_millis, history_bytes) = (u64::MAX, Limits::DEFAULT_HISTORY_BYTES);
        let max_txn_bytes = Limits::DEFAULT_TXN_BYTES;
        let shrink_interval = Limits::DEFAULT_SHRINK_INTERVAL;
        let limits = Limits { history_age_millis, history_bytes, max_txn_bytes, shrink_interval, hub };
        Engine::start(Box::new(log), Loaded::empty(), Arc::new(SystemClock), limits, Drive::Thread).unwrap()
    }

    #[tokio::test]
    async fn what_is_on_disk_shows_whatever_was_said() {
        let next = Arc::default();
        let store = start(&next);
        let mut watch = store.watch("/", 0).await.unwrap();
        let (mut expected, mut said) = (vec![], vec![]);
        let plans = [None, Some(Next::Lost), Some(Next::Done), Some(Next::Lost), Some(Next::Done), None];
        for (i, plan) in plans.into_iter().enumerate() {
            lock(&next).extend(plan);
            let key = format!("/{i}");
            said.push(store.txn(Txn::put(key.as_str(), "1")).await.is_ok());
            // Instead of waiting.
            store.tick().await.unwrap();
            if !matches!(plan, Some(Next::Lost)) {
                expected.push((key, 2 + expected.len() as u64));
            }
        }
        assert_eq!(said, [true, false, true, false, true, true]);
        let found = store.range(Range::prefix("/")).await.unwrap().kvs;
        let found: Vec<_> = found.iter().map(|kv| (kv.key.to_string(), kv.mod_revision)).collect();
        assert_eq!(found, expected);
        let mut seen = vec![];
        while seen.len() < expected.len() {
            let events = watch.next().await.unwrap().unwrap().events;
            seen.extend(events.iter().map(|e| (e.kv.key.to_string(), e.kv.mod_revision)));
        }
        assert_eq!(seen, expected);
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_refused_and_writes_go_on() {
        let unreadable = Arc::<AtomicBool>::default();
        let nothing_kept = HubLimits { recent_bytes: 0, ..Limits::DEFAULT_HUB };
        let store = start_with(&Arc::default(), unreadable.clone(), nothing_kept);
        store.txn(Txn::put("/a", "1")).await.unwrap();
        store.txn(Txn::put("/b", "1")).await.unwrap();
        unreadable.store(true, Ordering::Relaxed);
        // The first needs what was there before; the second is behind it, in its batch or the next.
        let both = futures_util::join!(store.txn(Txn::put("/a", "2")), store.txn(Txn::put("/b", "2")));
        for outcome in [both.0, both.1] {
            assert!(matches!(&outcome, Err(StoreError::Unavailable(_))), "{outcome:?}");
        }
        unreadable.store(false, Ordering::Relaxed);
        store.tick().await.unwrap();
        store.txn(Txn::put("/a", "3")).await.unwrap();
        let found = store.range(Range::prefix("/")).await.unwrap().kvs;
        let found: Vec<_> = found.iter().map(|kv| (&*kv.key, &kv.value[..])).collect();
        assert_eq!(found, [("/a", &b"3"[..]), ("/b", b"1")]);
    }

    #[tokio::test]
    async fn what_goes_on_failing_is_given_up() {
        let next = Arc::default();
        let store = start(&next);
        lock(&next).extend([Next::Lost; super::MAX_FAILURES as usize + 1]);
        for _ in 0..super::MAX_FAILURES {
            assert!(store.txn(Txn::put("/a", "1")).await.is_err());
            store.range(Range::prefix("/")).await.unwrap();
            store.tick().await.unwrap();
        }
        let error = store.txn(Txn::put("/a", "1")).await.unwrap_err();
        assert_eq!(store.range(Range::prefix("/")).await, Err(error));
    }

    #[tokio::test]
    async fn what_is_neither_is_damage() {
        let next = Arc::default();
        let store = start(&next);
        lock(&next).extend([Next::Damaged]);
        assert!(matches!(store.txn(Txn::put("/a", "1")).await, Err(StoreError::Corrupt(_))));
        assert!(matches!(store.range(Range::prefix("/")).await, Err(StoreError::Corrupt(_))));
    }
}
