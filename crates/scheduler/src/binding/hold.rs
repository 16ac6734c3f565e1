//! Ends a binding that has not begun to bind yet: its pod is to make room for another one, or is gone.
//!
//! Invariant: a binding that was ended does not bind its pod, and one that binds its pod is not ended any more.

use crate::framework::{Outcome, Status};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

#[derive(Clone)]
enum Stage {
    /// It waits for permits, or prepares.
    Preparing,
    Ended(Status),
    Binding,
}

/// What the loop keeps of a binding in flight. Clones are of the same binding.
#[derive(Clone)]
pub struct Hold {
    inner: Arc<(Mutex<Stage>, Notify)>,
}

impl Default for Hold {
    fn default() -> Self {
        Hold { inner: Arc::new((Mutex::new(Stage::Preparing), Notify::new())) }
    }
}

impl Hold {
    fn change<T>(&self, change: impl FnOnce(&mut Stage) -> T) -> T {
        change(&mut self.inner.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the binding with a status. False if it is too late.
    pub fn end(&self, status: Status) -> bool {
        let ended = self.change(|stage| match stage {
            Stage::Preparing => {
                *stage = Stage::Ended(status);
                true
            }
            Stage::Ended(_) => true,
            Stage::Binding => false,
        });
        self.inner.1.notify_one();
        ended
    }

    /// From now on it cannot be ended.
    ///
    /// # Errors
    /// The status with which it was ended before.
    pub fn begin_to_bind(&self) -> Outcome {
        self.change(|stage| match stage {
            Stage::Ended(status) => Err(status.clone()),
            _ => {
                *stage = Stage::Binding;
                Ok(())
            }
        })
    }

    /// What `work` comes to, or the status with which the binding is ended meanwhile.
    ///
    /// # Errors
    /// That of the work, or the end.
    pub async fn unless_ended(&self, work: impl Future<Output = Outcome>) -> Outcome {
        tokio::select! {
            biased;
            status = self.ended() => Err(status),
            outcome = work => outcome,
        }
    }

    async fn ended(&self) -> Status {
        loop {
            let status = self.change(|stage| match stage {
                Stage::Ended(status) => Some(status.clone()),
                _ => None,
            });
            match status {
                Some(status) => return status,
                None => self.inner.1.notified().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn is_ended_or_binds() {
        let status = || Status::error("preempted by DefaultPreemption");
        let hold = Hold::default();
        let other = hold.clone();
        let waiting = tokio::spawn(async move { other.unless_ended(std::future::pending()).await });
        tokio::task::yield_now().await;
        assert!(hold.end(status()));
        assert_eq!(waiting.await.unwrap(), Err(status()));
        assert_eq!(hold.begin_to_bind(), Err(status()));
        let hold = Hold::default();
        assert_eq!(hold.unless_ended(async { Ok(()) }).await, Ok(()));
        assert_eq!(hold.begin_to_bind(), Ok(()));
        assert!(!hold.end(status()));
    }
}
