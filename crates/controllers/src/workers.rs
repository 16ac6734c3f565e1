//! Tasks that work off a queue, for controllers that are no plain reconcilers.
//!
//! Invariant: nobody works on after the end: the queue is closed, and who is at work is stopped.

use kaji_runtime::{Key, queue::Queue};
use std::sync::Arc;
use tokio::{sync::watch, task::JoinSet};

/// What works off a queue.
pub(crate) trait Works: Send + Sync + 'static {
    /// What is to be done.
    fn queue(&self) -> &Queue;

    /// Does what a key stands for, and puts it back if that has to be done again. It is not given to anybody else meanwhile.
    fn handle(&self, key: &Key) -> impl Future<Output = ()> + Send;
}

/// Has `count` tasks work off a queue, until told to stop or until `beside` ends.
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
        () = beside => {}
        _ = stop.wait_for(|s| *s) => {}
    }
    owner.queue().close();
    tasks.shutdown().await;
}
