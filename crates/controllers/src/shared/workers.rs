//! Workers that process a queue, for controllers that are not reconcilers.
//!
//! Invariant: when they stop, the queue is closed and keys in progress are aborted.

use kaji_runtime::{Key, queue::Queue};
use std::sync::Arc;
use tokio::{sync::watch, task::JoinSet};

/// Processes the keys of a queue.
pub(crate) trait Works: Send + Sync + 'static {
    /// The queue.
    fn queue(&self) -> &Queue;

    /// Processes a key, and requeues it if it has to be processed again. No other worker has the key meanwhile.
    fn handle(&self, key: &Key) -> impl Future<Output = ()> + Send;
}

/// Processes a queue with `count` tasks, until `stop` turns true or `beside` ends.
pub(crate) async fn run<T: Works>(
    owner: Arc<T>,
    count: usize,
    beside: impl Future<Output = ()>,
    mut stop: watch::Receiver<bool>,
) {
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        let owner = owner.clone();
        tasks.spawn(async move {
            while let Some(key) = owner.queue().next().await {
                owner.handle(&key).await;
                owner.queue().done(&key);
            }
        });
    }
    tokio::select! {
        biased;
        () = beside => {}
        _ = stop.wait_for(|s| *s) => {}
    }
    owner.queue().close();
    tasks.shutdown().await;
}
