//! Components of the control plane that run alone, over HTTPS, against any API server: the controller manager and the scheduler.
//!
//! - `api_server`: the connection that a kubeconfig names; `transport` sends requests over it, with `limits` on their rate, the
//!   credentials of `accounts`, and updates in place of patches that are refused (`updates`).
//! - `observation`: the HTTPS server of health and metrics.
//! - `controller_manager`, `scheduler`: what they run once they lead.
//!
//! Invariant: the loops run only while this process holds the component's lease, unless it runs without election; a process that is
//! stopped ends its loops first, then gives the lease back.

mod accounts;
mod api_server;
pub mod controller_manager;
mod limits;
mod observation;
mod rest_client;
pub mod scheduler;
mod transport;
mod updates;

use kaji_kubelet::hostname::node_name;
use kaji_meta::random::{self, SystemRandom};
use kaji_meta::time::SystemClock;
use kaji_options::component::ComponentOptions;
use kaji_runtime::{Client, Election, LeaseMetrics, Shared};
use observation::{Observation, ObservationError};
use prometheus_client::registry::Registry;
use std::{path::PathBuf, sync::Arc};
use tokio::{sync::watch, task::JoinSet};

/// Why a component cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ComponentError {
    /// The connection to the API server.
    #[error("cannot connect to the API server: {0}")]
    Connection(String),
    /// A file that a flag names.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The server of health and metrics.
    #[error(transparent)]
    Observation(#[from] ObservationError),
    /// A scheduler configuration.
    #[error(transparent)]
    Configuration(#[from] kaji_scheduler::ConfigurationError),
}

/// The text of a file that a flag names.
fn read(path: &PathBuf) -> Result<String, ComponentError> {
    std::fs::read_to_string(path)
        .map_err(|error| ComponentError::File { path: path.clone(), reason: error.to_string() })
}

/// A component that is about to run.
struct Component {
    /// Upstream's name of it.
    name: &'static str,
    options: ComponentOptions,
    /// Acts as the component itself.
    shared: Shared,
    metrics: Registry,
}

impl Component {
    /// With the machine's clock and randomness.
    fn new(name: &'static str, options: ComponentOptions, client: Client) -> Component {
        let shared =
            Shared { client, clock: Arc::new(SystemClock), random: Arc::new(SystemRandom), decisions: None };
        Component { name, options, shared, metrics: Registry::default() }
    }

    /// Serves health and metrics, and runs what `start` spawns whenever this process leads, until `stop` turns true.
    async fn run(
        mut self,
        stop: watch::Receiver<bool>,
        mut start: impl FnMut(&mut JoinSet<()>, &watch::Receiver<bool>) + Send,
    ) -> Result<(), ComponentError> {
        let leases = LeaseMetrics::default();
        leases.register(&mut self.metrics);
        let mut server = JoinSet::new();
        if let Some(options) = self.options.observation {
            let client = self.shared.client.clone();
            let observation =
                Observation::open(self.name, options, self.options.connection, client, self.metrics).await?;
            observation.spawn(&mut server, &stop)?;
        }
        let Some(election) = self.options.election else {
            let mut tasks = JoinSet::new();
            start(&mut tasks, &stop);
            while tasks.join_next().await.is_some() {}
            return Ok(());
        };
        let election = Election {
            client: self.shared.client.clone(),
            namespace: election.namespace,
            name: election.name,
            identity: format!("{}_{}", node_name(), random::uid(&*self.shared.random)),
            timing: election.timing,
            clock: self.shared.clock.clone(),
            metrics: leases,
        };
        election.run(stop, start).await;
        Ok(())
    }
}
