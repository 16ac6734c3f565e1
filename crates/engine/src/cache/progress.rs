//! How far the caches have come: one revision for all of them.
//!
//! Invariant: an advance wakes those that wait for a revision up to it, and no other: many requests wait at once, each for its own.

use kaji_store::Revision;
use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

/// The revision up to which every cache is complete. Only grows.
#[derive(Debug)]
pub(crate) struct Progress {
    applied: AtomicU64,
    waiting: Mutex<Waiting>,
}

/// What is to be woken: by revision, and by a number that no other has.
#[derive(Debug, Default)]
struct Waiting {
    wakers: BTreeMap<(Revision, u64), Waker>,
    numbers: u64,
}

impl Progress {
    /// Begins at a revision.
    pub fn new(revision: Revision) -> Self {
        Progress { applied: AtomicU64::new(revision), waiting: Mutex::default() }
    }

    /// Everything up to here is in every cache.
    pub fn applied(&self) -> Revision {
        self.applied.load(Ordering::Acquire)
    }

    /// Called after every cache has everything up to `revision`.
    pub fn advance(&self, revision: Revision) {
        if self.applied.fetch_max(revision, Ordering::AcqRel) >= revision {
            return;
        }
        let due = {
            let mut waiting = self.lock();
            let later = waiting.wakers.split_off(&(revision + 1, 0));
            std::mem::replace(&mut waiting.wakers, later)
        };
        due.into_values().for_each(Waker::wake);
    }

    /// Waits until `applied()` is at least `revision`.
    pub async fn wait(&self, revision: Revision) {
        Wait { progress: self, revision, number: None }.await;
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Resolves when a revision has been applied.
struct Wait<'a> {
    progress: &'a Progress,
    revision: Revision,
    /// Of its waker, while there is one.
    number: Option<u64>,
}

impl Future for Wait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.progress.applied() >= self.revision {
            return Poll::Ready(());
        }
        let mut waiting = self.progress.lock();
        // Under the lock, which an advance takes after it has raised the number: none is missed between look and wait.
        if self.progress.applied() >= self.revision {
            return Poll::Ready(());
        }
        let number = self.number.unwrap_or(waiting.numbers);
        if self.number.is_none() {
            waiting.numbers += 1;
        }
        waiting.wakers.insert((self.revision, number), cx.waker().clone());
        drop(waiting);
        self.number = Some(number);
        Poll::Pending
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.progress.lock().wakers.remove(&(self.revision, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::{Arc, atomic::AtomicUsize},
        task::Wake,
    };

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn poll(wait: &mut Wait<'_>, woken: &Arc<Woken>) -> bool {
        Pin::new(wait).poll(&mut Context::from_waker(&woken.clone().into())).is_ready()
    }

    #[test]
    fn an_advance_wakes_what_it_concerns() {
        let progress = Progress::new(1);
        let wait = |revision| (Wait { progress: &progress, revision, number: None }, Arc::<Woken>::default());
        let mut waits = [2, 3, 3, 5].map(wait);
        // A second look leaves one waker each.
        for _ in 0..2 {
            assert_eq!(waits.each_mut().map(|(wait, woken)| poll(wait, woken)), [false; 4]);
        }
        let seen = |waits: &[(Wait<'_>, Arc<Woken>); 4]| {
            let woken = waits.each_ref().map(|(_, woken)| woken.0.load(Ordering::SeqCst));
            (woken, progress.lock().wakers.len())
        };
        progress.advance(1);
        assert_eq!(seen(&waits), ([0, 0, 0, 0], 4));
        progress.advance(3);
        assert_eq!(seen(&waits), ([1, 1, 1, 0], 1));
        let ready = waits.each_mut().map(|(wait, woken)| poll(wait, woken));
        assert_eq!(ready, [true, true, true, false]);
        drop(waits);
        assert_eq!(progress.lock().wakers.len(), 0);
    }
}
