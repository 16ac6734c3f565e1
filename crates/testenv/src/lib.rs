//! A Kubernetes control plane inside a test: the real API server, in the test's own process, behind a [`kube::Client`].
//!
//! ```
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kaji_testenv::TestEnv;
//! use kube::{Api, api::PostParams};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let env = TestEnv::start().await?;
//!
//! let maps: Api<ConfigMap> = Api::default_namespaced(env.client());
//! let mut map = ConfigMap::default();
//! map.metadata.name = Some("settings".into());
//! let made = maps.create(&PostParams::default(), &map).await?;
//! assert!(made.metadata.uid.is_some());
//!
//! // Other users need a role.
//! let theirs: Api<ConfigMap> = Api::default_namespaced(env.client_as("jane", ["developers"]));
//! assert!(matches!(theirs.get("settings").await, Err(kube::Error::Api(status)) if status.code == 403));
//!
//! env.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! Custom resources, admission, authorization, apply, watches and garbage collection are the server's own: nothing is
//! mocked. Each [`TestEnv`] is a separate cluster, so that tests may run in parallel. A loop of `kube-runtime` takes
//! [`TestEnv::client`] like any other client.
//!
//! Invariants:
//! - Nothing is written to disk unless [`Builder::forkable`] is called, and no port is opened unless [`Builder::listen`] is.
//! - Requests are authorized and admitted as those over the network are; only the transport is missing.
//! - Only the selected controllers run.
//!
//! Time is the machine's, or with [`Builder::virtual_clock`] a clock that [`TestEnv::advance`] moves on: an hour passes at
//! once for control loops, timestamps, tokens and the store's leases.

//!
//! A suite that shares one set-up takes [`Builder::forkable`]: [`TestEnv::fork`] makes a cluster that begins as another one is, for a single
//! test, and leaves the other as it is. [`TestEnv::client_with_faults`] has the faults of `kaji test` between a client and the server.

mod builder;
mod identity;

pub use builder::Builder;
/// The cluster behind a [`TestEnv`], and why it did not start.
pub use kaji::{Cluster, StartError};
/// Faults between a client and the server, and the file of a plan.
pub use kaji_operator_test::{fault, layer, plan};

use kaji::Clock;
use kaji_operator_test::{
    fault::Fault,
    layer::{FaultLayer, FaultService, Signal},
};
use kaji_resource::UserInfo;
use kaji_server::LocalService;
use kube::Client;
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tempfile::TempDir;
use tokio::sync::mpsc;

/// Why there is no cluster, or not that of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An unknown controller.
    #[error("{0}")]
    Controller(String),
    /// The cluster did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A kubeconfig for a cluster without a port.
    #[error("nothing listens: ask for a port with Builder::listen")]
    NotListening,
    /// Time is the machine's, which cannot be moved.
    #[error("the clock is the machine's: ask for another with Builder::virtual_clock")]
    NoClock,
    /// Forking is for clusters in a directory.
    #[error("the objects are in memory: ask for a directory with Builder::forkable")]
    NotForkable,
    /// It was not forked.
    #[error("the cluster is not forked: {0}")]
    Fork(String),
    /// The temporary directory.
    #[error("the temporary directory: {0}")]
    Directory(#[from] std::io::Error),
    /// The kubeconfig cannot be written as YAML.
    #[error("cannot write the kubeconfig: {0}")]
    Kubeconfig(String),
}

/// A client with faults: [`TestEnv::client_with_faults`].
pub struct FaultClient {
    /// For the loop under test.
    pub client: Client,
    /// What came about, and the requests; faults may be armed anew.
    pub layer: Arc<FaultLayer>,
    /// When the loop is to be ended and started again.
    pub signals: mpsc::Receiver<Signal>,
}

/// A running cluster. [`TestEnv::stop`] ends it and waits for that; dropping it ends its loops and its port, and its
/// memory is given back once its clients and the requests under way are gone.
pub struct TestEnv {
    cluster: Cluster,
    builder: Builder,
    /// Removed after the cluster.
    directory: Option<TempDir>,
}

impl TestEnv {
    /// A control plane without control loops, nodes or ports; ready to be used when this resolves.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start() -> Result<TestEnv, Error> {
        TestEnv::builder().start().await
    }

    /// A cluster with more than that.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A client that may do everything (`system:masters`). Like every `kube::Client` it belongs to the runtime that it
    /// was made in.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn client(&self) -> Client {
        self.client_of(identity::admin())
    }

    /// A client of a user with these groups, authorized by roles; `system:authenticated` is added.
    /// The names of service accounts and of `system:anonymous` bring the groups along that they have anywhere.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn client_as<G: Into<String>>(&self, user: &str, groups: impl IntoIterator<Item = G>) -> Client {
        self.client_of(identity::user(user, groups.into_iter().map(Into::into).collect()))
    }

    fn client_of(&self, user: UserInfo) -> Client {
        Client::new(LocalService::new(self.cluster.stack.clone(), user), "default")
    }

    /// The admin's kubeconfig, YAML, with all certificates in it.
    ///
    /// # Errors
    /// Without [`Builder::listen`].
    pub fn kubeconfig(&self) -> Result<String, Error> {
        if !self.builder.listen {
            return Err(Error::NotListening);
        }
        let (url, trust) = (self.cluster.url(), self.cluster.certificates.trust());
        let admin = &self.cluster.certificates.current().admin;
        let config = kaji::kubeconfig::single(kaji::kubeconfig::NAME, &url, &trust, admin);
        serde_saphyr::to_string(&config).map_err(|e| Error::Kubeconfig(e.to_string()))
    }

    /// Advances the cluster's clock. Timers that expire in between fire now, in no particular order, as on a machine that
    /// resumes after suspension: wait for the expected state. Nodes may be unready until they report again.
    ///
    /// # Errors
    /// Without [`Builder::virtual_clock`].
    pub fn advance(&self, by: Duration) -> Result<(), Error> {
        self.builder.clock.as_ref().ok_or(Error::NoClock)?.advance(by);
        Ok(())
    }

    /// What time it is in the cluster.
    pub fn now(&self) -> SystemTime {
        SystemTime::now() + self.builder.clock.as_deref().map_or(Duration::ZERO, |clock| clock.ahead())
    }

    /// What runs, for whatever else a test needs of it.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Another cluster that begins as this one is: the same objects, revisions, keys and time, its own writes. It has the controllers,
    /// nodes and clock, and a port of its own, as this one was built.
    ///
    /// # Errors
    /// Without [`Builder::forkable`], and when the fork does not start.
    pub async fn fork(&self) -> Result<TestEnv, Error> {
        let directory = self.directory.as_ref().ok_or(Error::NotForkable)?;
        self.builder.clone().fork(&directory.path().join(builder::DATA)).await
    }

    /// An administrator's client with a layer in front of the server that brings these faults about, each once; see
    /// [`layer::FaultLayer`]. The receiver tells when a loop that uses the client is to be ended and started again (`kill`, `stale-view`);
    /// events wait for `delay` where a fault says so. Without [`Builder::virtual_clock`] time does not jump.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn client_with_faults(&self, faults: Vec<Fault>, delay: Duration) -> FaultClient {
        let (layer, signals) = FaultLayer::new(self.client(), self.builder.clock.clone(), faults, delay);
        let server = LocalService::new(self.cluster.stack.clone(), identity::admin());
        let client = Client::new(FaultService::new(layer.clone(), server), "default");
        FaultClient { client, layer, signals }
    }

    /// Ends it: loops, watches and connections are done when this resolves. Requests of clients fail from then on.
    pub async fn stop(self) {
        self.cluster.stop().await;
    }
}
