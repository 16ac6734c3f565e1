//! The commands of components that run alone: `kaji controller-manager` and `kaji scheduler`.

use crate::stop_signal;
use kaji_components::{ComponentError, controller_manager, scheduler};
use kaji_options::{ControllerManagerFlags, SchedulerFlags};
use tokio::sync::watch;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Runs the controllers until a signal comes.
pub async fn controller_manager(flags: ControllerManagerFlags) -> Outcome {
    let options = flags.into_options()?;
    until_signal(|stop| controller_manager::run(options, stop)).await
}

/// Schedules pods until a signal comes.
pub async fn scheduler(flags: SchedulerFlags) -> Outcome {
    let options = flags.into_options()?;
    until_signal(|stop| scheduler::run(options, stop)).await
}

/// Runs a component; a signal ends it in an orderly way.
async fn until_signal<R>(run: impl FnOnce(watch::Receiver<bool>) -> R) -> Outcome
where
    R: Future<Output = Result<(), ComponentError>>,
{
    let (stop, stopped) = watch::channel(false);
    let running = run(stopped);
    tokio::pin!(running);
    tokio::select! {
        ended = &mut running => return Ok(ended?),
        signal = stop_signal() => signal?,
    }
    stop.send_replace(true);
    Ok(running.await?)
}
