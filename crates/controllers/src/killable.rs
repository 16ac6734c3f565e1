//! A controller that a simulation may kill between any two of its writes, and that begins anew, as it does in a controller
//! manager when its process is killed. The others go on.
//!
//! Invariant: nothing of the killed one is left when its successor begins: that reads with informers of its own.

use crate::{ControllerContext, Descriptor};
use kaji_runtime::{ControllerMetrics, Informers, Interception, Selected};
use std::{future::Future, sync::Arc};
use tokio::task::JoinSet;

/// Runs a controller until `stop` turns true. The first one has started when this returns.
pub fn run(
    descriptor: &'static Descriptor,
    context: &ControllerContext<'_>,
    interception: Arc<dyn Interception>,
) -> impl Future<Output = ()> + Send + use<> {
    let mut tasks = JoinSet::new();
    descriptor.spawn(&mut tasks, context);
    let (shared, config, stop) = (context.shared.clone(), context.config.clone(), context.stop.clone());
    async move {
        // Dropped after the tasks: reflectors end with their informers.
        let mut informers;
        loop {
            let ended = async { while tasks.join_next().await.is_some() {} };
            tokio::select! {
                biased;
                () = interception.killed(descriptor.components) => {}
                () = ended => return,
            }
            tasks.shutdown().await;
            tracing::debug!(controller = descriptor.name, "the controller was killed and is started again");
            let (client, clock) = (shared.client.clone(), shared.clock.clone());
            let resync = config.loops.resync(shared.random.clone());
            informers = Informers::resyncing(
                client,
                Selected::default(),
                clock,
                ControllerMetrics::default(),
                resync,
            );
            let context = ControllerContext {
                informers: &informers,
                shared: &shared,
                config: &config,
                stop: stop.clone(),
            };
            descriptor.spawn(&mut tasks, &context);
        }
    }
}
