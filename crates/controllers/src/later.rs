//! A controller that starts after a while: `--controller-start-interval`.
//!
//! Invariant: one that is to end before it has started never starts.

use crate::{ControllerContext, Descriptor, LoopConfig};
use kaji_meta::time::Clock;
use kaji_runtime::{Shared, time};
use std::{future::Future, time::Duration};
use tokio::{sync::watch, task::JoinSet};

/// Work that begins as late as a controller, for those that start outside this crate.
pub fn delayed<F: Future<Output = ()> + Send>(
    work: F,
    loops: &LoopConfig,
    shared: &Shared,
    mut stop: watch::Receiver<bool>,
) -> impl Future<Output = ()> + Send + use<F> {
    let (wait, clock) = (loops.start_wait(&*shared.random), shared.clock.clone());
    async move {
        if waited(&*clock, wait, &mut stop).await {
            work.await;
        }
    }
}

/// Waits; whether the controller is to start then, as it is not to end.
async fn waited(clock: &dyn Clock, wait: Duration, stop: &mut watch::Receiver<bool>) -> bool {
    tokio::select! {
        biased;
        // A sender that is gone means the same.
        _ = stop.wait_for(|stop| *stop) => false,
        () = time::sleep(clock, wait) => true,
    }
}

/// Waits, then runs a controller until `stop` turns true.
pub fn run(
    descriptor: &'static Descriptor,
    context: &ControllerContext<'_>,
    wait: Duration,
) -> impl Future<Output = ()> + Send + use<> {
    let (informers, shared) = (context.informers.clone(), context.shared.clone());
    let (config, mut stop) = (context.config.clone(), context.stop.clone());
    async move {
        if !waited(&*shared.clock, wait, &mut stop).await {
            return;
        }
        let mut tasks = JoinSet::new();
        let context = ControllerContext { informers: &informers, shared: &shared, config: &config, stop };
        descriptor.spawn(&mut tasks, &context);
        while tasks.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Start, testing::silent_client};
    use kaji_meta::{random::SeededRandom, time::SystemClock};
    use kaji_runtime::Informers;
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };
    use tokio::time::Instant;

    static STARTED: AtomicUsize = AtomicUsize::new(0);
    static CONTROLLER: Descriptor = Descriptor {
        name: "late",
        components: &[],
        service_account: None,
        workers: None,
        start: Start::Tasks(|_, _| {
            STARTED.fetch_add(1, Ordering::Relaxed);
        }),
    };

    #[tokio::test(start_paused = true)]
    async fn starts_after_a_while_unless_it_is_to_end_before() {
        let (shared, config) = (
            Shared {
                client: silent_client(),
                clock: Arc::new(SystemClock),
                random: Arc::new(SeededRandom::new(1)),
                decisions: None,
            },
            Config { loops: LoopConfig::default(), ..Config::default() },
        );
        let informers = Informers::new(silent_client());
        let (ends, stop) = watch::channel(false);
        let context = ControllerContext { informers: &informers, shared: &shared, config: &config, stop };
        let (began, wait) = (Instant::now(), Duration::from_secs(90));
        run(&CONTROLLER, &context, wait).await;
        assert_eq!((began.elapsed(), STARTED.load(Ordering::Relaxed)), (wait, 1));
        ends.send_replace(true);
        run(&CONTROLLER, &context, wait).await;
        assert_eq!((began.elapsed(), STARTED.load(Ordering::Relaxed)), (wait, 1));
    }
}
