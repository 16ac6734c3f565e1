//! Backends of audit: a log file or standard output (`log`), a webhook (`webhook`), each behind a bounded queue (`buffer`).
//!
//! Invariants:
//! - In batch mode no request waits for an event to be delivered; events that do not fit into the queue are counted as lost
//!   and logged.
//! - Every queue is bounded, by number and, where requests do not wait, by bytes.
//! - On shutdown every accepted event is delivered, or counted as lost and logged.

mod buffer;
mod log;
#[cfg(test)]
mod testing;
mod webhook;

pub use log::{FileOptions, LogFile};
pub use webhook::Post;

use crate::{Event, Metrics, Options};
use buffer::{BufferedBackend, LossReporter, Phase};
use kaji_meta::{Clock, Random};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::watch, task::JoinSet};

/// How long events may take to be delivered during shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long backends may take to report events that could not be delivered by then.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why audit cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// Invalid flags.
    #[error("{}", .0.join("\n"))]
    Options(Vec<String>),
    /// An invalid policy.
    #[error("loading audit policy file: {0}")]
    Policy(#[from] crate::PolicyError),
    /// The log cannot be opened.
    #[error("ensureLogFile: {path}: {source}")]
    Log {
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The webhook cannot be set up.
    #[error("initializing audit webhook: {0}")]
    Webhook(String),
}

/// What audit needs from its process.
pub struct AuditDependencies {
    /// The time of events.
    pub clock: Arc<dyn Clock>,
    /// Jitter of retries.
    pub random: Arc<dyn Random>,
    /// The client of the webhook, if the options name one.
    pub webhook: Option<Arc<dyn Post>>,
}

/// All configured backends, with their workers.
pub struct Backends {
    backends: Vec<BufferedBackend>,
    metrics: Arc<Metrics>,
    phase: watch::Sender<Phase>,
    workers: Mutex<JoinSet<()>>,
}

impl Backends {
    /// Starts the backends that the options name.
    ///
    /// # Errors
    /// A backend is configured and cannot be used.
    pub fn start(
        options: &Options,
        dependencies: AuditDependencies,
        metrics: Arc<Metrics>,
    ) -> Result<Backends, AuditError> {
        let (phase, phases) = watch::channel(Phase::Running);
        let (mut backends, mut workers) = (vec![], JoinSet::new());
        let AuditDependencies { clock, random, webhook } = dependencies;
        let mut losses = LossReporter { metrics: metrics.clone(), clock, plugin: "log" };
        let mode = |result: Result<_, String>| result.map_err(|e| AuditError::Options(vec![e]));
        if !options.log.path.is_empty() {
            let log = Arc::new(log::Log::open(&options.log, losses.clone())?);
            let (mode, batch) = (mode(options.log.batch.mode("log"))?, &options.log.batch);
            backends.push(BufferedBackend::start(log, mode, batch, &phases, &mut workers, &losses));
        }
        if let Some(post) = webhook {
            losses.plugin = "webhook";
            let hook = Arc::new(webhook::Webhook {
                post,
                initial: options.webhook.initial_backoff,
                truncate: options.webhook.truncate.clone(),
                random,
                phases: phases.clone(),
                losses: losses.clone(),
            });
            let (mode, batch) = (mode(options.webhook.batch.mode("webhook"))?, &options.webhook.batch);
            backends.push(BufferedBackend::start(hook, mode, batch, &phases, &mut workers, &losses));
        }
        Ok(Backends { backends, metrics, phase, workers: Mutex::new(workers) })
    }

    /// Passes an event to all backends. False if the request may not continue, because a backend that must record it did not.
    pub async fn process(&self, event: &Arc<Event>) -> bool {
        let mut recorded = true;
        for backend in &self.backends {
            recorded &= backend.process(event).await;
        }
        recorded
    }

    /// Passes an event to all backends that have room for it, without waiting.
    pub fn try_process(&self, event: &Arc<Event>) {
        self.backends.iter().for_each(|backend| backend.try_process(event));
    }

    /// Delivers what was accepted, or reports it as lost, and ends the workers.
    pub async fn shutdown(&self) {
        self.phase.send_replace(Phase::Draining);
        let mut workers = std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        let mut drained = std::pin::pin!(async move { while workers.join_next().await.is_some() {} });
        if tokio::time::timeout(DRAIN_TIMEOUT, &mut drained).await.is_err() {
            self.phase.send_replace(Phase::GivenUp);
            if tokio::time::timeout(REPORT_TIMEOUT, drained).await.is_err() {
                tracing::error!("the audit backends did not shut down in time; events may be lost");
            }
        }
        let unreported = self.metrics.kept_back();
        if unreported > 0 {
            tracing::error!("further {unreported} audit events were lost");
        }
    }
}
