//! The bounded queue in front of the writer thread. Async on the producers' side, blocking on the writer's.
//!
//! Invariant: what was accepted is answered: either by the writer, or by the code that closes the queue.

use super::lock;
use super::writer::Fork;
use crate::{LeaseId, Op, Revision, StoreError, Txn, TxnOutcome};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, oneshot};

/// What a caller waits for.
pub(crate) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// A request to the writer.
#[derive(Debug)]
pub(crate) enum Command {
    Txn(Txn, Answer<TxnOutcome>),
    Grant(Duration, Answer<LeaseId>),
    KeepAlive(LeaseId, Answer<Duration>),
    Revoke(LeaseId, Answer<()>),
    Compact(Revision, Answer<()>),
    Scrub(Answer<()>),
    /// A second store that begins as this one is.
    Fork(Answer<Fork>),
    /// Do now what is otherwise done from time to time.
    Tick(Answer<()>),
}

impl Command {
    /// KiB, the unit in which the queue is bounded.
    fn cost(&self) -> u32 {
        match self {
            Command::Txn(txn, _) => u32::try_from(txn.size() / 1024 + 1).unwrap_or(u32::MAX).min(CAPACITY),
            _ => 1,
        }
    }

    /// Bytes that it adds to the log, about; 0 for what adds next to nothing.
    pub fn adds(&self) -> u64 {
        match self {
            Command::Txn(txn, _) if txn.ops.iter().any(|op| matches!(op, Op::Put { .. })) => {
                txn.size().max(1) as u64
            }
            Command::Grant(..) => 1,
            _ => 0,
        }
    }

    /// Answers with an error.
    pub fn refuse(self, error: StoreError) {
        // The caller may have dropped its future.
        match self {
            Command::Txn(_, answer) => drop(answer.send(Err(error))),
            Command::Grant(_, answer) => drop(answer.send(Err(error))),
            Command::KeepAlive(_, answer) => drop(answer.send(Err(error))),
            Command::Fork(answer) => drop(answer.send(Err(error))),
            Command::Revoke(_, answer)
            | Command::Compact(_, answer)
            | Command::Scrub(answer)
            | Command::Tick(answer) => {
                drop(answer.send(Err(error)));
            }
        }
    }
}

/// All that may be queued, in KiB.
const CAPACITY: u32 = 32 * 1024;
/// What the writer takes at once: enough to share an fsync, little enough for it to be short.
const TAKE_COMMANDS: usize = 1024;
const TAKE_COST: u32 = 8 * 1024;

#[derive(Debug, Default)]
struct Inner {
    commands: VecDeque<Command>,
    closed: bool,
    /// The writer sleeps; it need not be notified otherwise.
    waiting: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    ready: Condvar,
    room: Semaphore,
}

impl Queue {
    pub fn new() -> Queue {
        let room = Semaphore::new(CAPACITY as usize);
        Queue { inner: Mutex::default(), ready: Condvar::new(), room }
    }

    /// Waits for room and adds a command; `Closed` when no more are taken.
    pub async fn push(&self, command: Command) -> Result<(), StoreError> {
        let permit = self.room.acquire_many(command.cost()).await.map_err(|_| StoreError::Closed)?;
        let mut inner = lock(&self.inner);
        if inner.closed {
            return Err(StoreError::Closed);
        }
        permit.forget();
        inner.commands.push_back(command);
        if std::mem::take(&mut inner.waiting) {
            drop(inner);
            self.ready.notify_one();
        }
        Ok(())
    }

    /// No more commands from now on. Those in the queue stay.
    pub fn close(&self) {
        self.room.close();
        let mut inner = lock(&self.inner);
        inner.closed = true;
        inner.waiting = false;
        drop(inner);
        self.ready.notify_one();
    }

    /// Moves the next commands into `into`, waiting for at most `timeout` (for ever without one). Answers whether
    /// more may come.
    pub fn take(&self, timeout: Option<Duration>, into: &mut Vec<Command>) -> bool {
        let deadline = timeout.map(|t| Instant::now() + t);
        let mut inner = lock(&self.inner);
        while inner.commands.is_empty() && !inner.closed {
            inner.waiting = true;
            inner = match deadline {
                None => self.ready.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    self.ready.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        inner.waiting = false;
        let mut cost = 0;
        while into.len() < TAKE_COMMANDS && cost < TAKE_COST {
            let Some(command) = inner.commands.pop_front() else { break };
            cost += command.cost();
            into.push(command);
        }
        let open = !(inner.closed && inner.commands.is_empty());
        drop(inner);
        self.room.add_permits(cost as usize);
        open
    }
}
