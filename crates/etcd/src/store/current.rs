//! The current revision, for which callers ask etcd together.
//!
//! Invariants: a caller gets the answer to a question that was sent after it came; one question is on its way at a time, and when it is
//! answered all that it was sent for go on at once; a caller that is dropped holds up no other.

use super::Inner;
use kaji_store::{Revision, StoreError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

type Answer = Result<Revision, StoreError>;

/// The callers that no question has been sent for yet.
#[derive(Default)]
pub(super) struct Callers(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    callers: Vec<oneshot::Sender<Answer>>,
    /// A task sends questions until no caller is left.
    asking: bool,
}

impl Callers {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that the next question is for; `None` when there are none, and the task that sends questions ends.
    fn next(&self) -> Option<Vec<oneshot::Sender<Answer>>> {
        let mut waiting = self.lock();
        waiting.callers.retain(|caller| !caller.is_closed());
        waiting.asking = !waiting.callers.is_empty();
        waiting.asking.then(|| std::mem::take(&mut waiting.callers))
    }
}

impl Inner {
    /// The current revision, at least that of every write acknowledged before the call.
    pub(super) async fn current(self: &Arc<Self>) -> Result<Revision, StoreError> {
        self.check_open()?;
        let (caller, answer) = oneshot::channel();
        let asking = {
            let mut waiting = self.callers.lock();
            waiting.callers.push(caller);
            std::mem::replace(&mut waiting.asking, true)
        };
        if !asking {
            tokio::spawn(ask(self.clone()));
        }
        // Without an answer the runtime is ending.
        answer.await.unwrap_or(Err(StoreError::Closed))
    }
}

/// Sends questions while there are callers.
async fn ask(inner: Arc<Inner>) {
    while let Some(callers) = inner.callers.next() {
        let answer = inner.read_revision().await;
        for caller in callers {
            // One that was dropped in the meantime has no use for it.
            let _gone = caller.send(answer.clone());
        }
    }
}
