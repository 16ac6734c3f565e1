//! A value that tasks wait on.
//!
//! Invariants:
//! - Waiters look at the value after every change, in the order in which they began to wait: a simulation depends on one order,
//!   and tokio's `watch` draws one.
//! - A change between a look and the wait after it is not missed.

use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// See the module.
#[derive(Debug, Default)]
pub struct Signal<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T> Signal<T> {
    /// With a first value.
    pub fn new(value: T) -> Signal<T> {
        Signal { value: Mutex::new(value), changed: Notify::new() }
    }

    fn value(&self) -> MutexGuard<'_, T> {
        // A poisoned lock is a panic of a closure of a caller, which cannot leave half a value behind.
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the value, and wakes all waiters.
    pub fn set(&self, value: T) {
        *self.value() = value;
        self.changed.notify_waiters();
    }

    /// Changes the value, and wakes all waiters if `change` returns true.
    pub fn modify(&self, change: impl FnOnce(&mut T) -> bool) {
        let wake = change(&mut self.value());
        if wake {
            self.changed.notify_waiters();
        }
    }

    /// Resolves once the value is as required, at once if it is so already.
    pub async fn wait_for(&self, mut holds: impl FnMut(&T) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if holds(&self.value()) {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::sync::Arc;
    use tokio::sync::mpsc;

    #[tokio::test]
    async fn waits_for_a_value() {
        let signal = Signal::new(1);
        assert!(signal.wait_for(|v| *v == 1).now_or_never().is_some());
        let mut wait = std::pin::pin!(signal.wait_for(|v| *v == 3));
        assert!(wait.as_mut().now_or_never().is_none());
        signal.set(2);
        assert!(wait.as_mut().now_or_never().is_none());
        signal.modify(|v| {
            *v = 3;
            true
        });
        assert!(wait.now_or_never().is_some());
    }

    #[tokio::test]
    async fn wakes_waiters_in_the_order_in_which_they_began_to_wait() {
        let (signal, (sender, mut woken)) = (Arc::new(Signal::new(false)), mpsc::unbounded_channel());
        for number in 0..16 {
            let (signal, sender) = (signal.clone(), sender.clone());
            tokio::spawn(async move {
                signal.wait_for(|set| *set).await;
                sender.send(number)
            });
        }
        drop(sender);
        tokio::task::yield_now().await;
        signal.set(true);
        for number in 0..16 {
            assert_eq!(woken.recv().await, Some(number));
        }
    }
}
