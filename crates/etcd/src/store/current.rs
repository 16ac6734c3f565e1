//! The current revision, for which callers ask etcd together.
//!
//! Invariants: a caller gets the answer to a question that was sent after it came; one question is on its way at a time, and when it is
//! answered all that it was sent for go on at once; a caller that is dropped holds up no other. A question that many share is followed
//! by a pause; a caller that is alone causes none, and waits for the rest of one at most.

use super::Inner;
use kaji_store::{Revision, StoreError};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::sleep;

type Answer = Result<Revision, StoreError>;

/// Callers of one question from which on the next one is delayed, so that more share it: a question takes more of etcd's processor
/// time than several reads take of the server's, and many readers at once ask for throughput.
const MANY: usize = 4;
/// For how long.
const PAUSE: Duration = Duration::from_millis(1);

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

    /// The answer to a question that is sent from now on.
    async fn answer<Q, F>(self: &Arc<Self>, question: Q) -> Answer
    where
        Q: Fn() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        let (caller, answer) = oneshot::channel();
        let asking = {
            let mut waiting = self.lock();
            waiting.callers.push(caller);
            std::mem::replace(&mut waiting.asking, true)
        };
        if !asking {
            tokio::spawn(ask(self.clone(), question));
        }
        // Without an answer the runtime is ending.
        answer.await.unwrap_or(Err(StoreError::Closed))
    }
}

impl Inner {
    /// The current revision, at least that of every write acknowledged before the call.
    pub(super) async fn current(self: &Arc<Self>) -> Result<Revision, StoreError> {
        self.check_open()?;
        let inner = self.clone();
        let question = move || {
            let inner = inner.clone();
            async move { inner.read_revision().await }
        };
        self.callers.answer(question).await
    }
}

/// Sends questions while there are callers.
async fn ask<F: Future<Output = Answer>>(callers: Arc<Callers>, question: impl Fn() -> F) {
    while let Some(sharing) = callers.next() {
        let many = sharing.len() >= MANY;
        let answer = question().await;
        for caller in sharing {
            // One that was dropped in the meantime has no use for it.
            let _gone = caller.send(answer.clone());
        }
        if many {
            sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use tokio::task::JoinSet;
    use tokio::time::Instant;

    /// Callers that ask one time after another; the questions, and the (simulated) time that it took.
    async fn ask_together(readers: usize, times: u64) -> (u64, Duration) {
        const TRIP: Duration = Duration::from_millis(3);
        let (callers, sent, started) =
            (Arc::<Callers>::default(), Arc::<AtomicU64>::default(), Instant::now());
        let mut tasks = JoinSet::new();
        for _ in 0..readers {
            let (callers, sent) = (callers.clone(), sent.clone());
            tasks.spawn(async move {
                for _ in 0..times {
                    let before = sent.load(SeqCst);
                    let counted = sent.clone();
                    let question = move || {
                        let sent = counted.clone();
                        async move {
                            let number = sent.fetch_add(1, SeqCst) + 1;
                            sleep(TRIP).await;
                            Ok(number)
                        }
                    };
                    let answered = callers.answer(question).await.unwrap();
                    assert!(answered > before, "question {answered} was sent before the caller came");
                }
            });
        }
        tasks.join_all().await;
        (sent.load(SeqCst), started.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn delays_no_lone_caller() {
        assert_eq!(ask_together(1, 10).await, (10, Duration::from_millis(30)));
    }

    #[tokio::test(start_paused = true)]
    async fn many_callers_share_questions_with_pauses_between() {
        let (sent, elapsed) = ask_together(64, 10).await;
        assert!(sent <= 11, "{sent} questions for 10 rounds");
        assert!(elapsed >= Duration::from_millis(10 * 3 + 9), "{elapsed:?}");
    }
}
