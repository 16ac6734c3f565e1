//! A cluster in one process: its start, its clients' view, and its end.
//!
//! A start runs through the stages of [`crate::start`]: configuration, store, engine, resources, listener, bootstrap objects,
//! and then requests, background tasks and control loops. [`Cluster::stop`] ends them in the opposite order.

use crate::{
    environment::Environment,
    start::{Configured, ControlLoopConfig, ControlLoops, StoreOpened},
};
use futures_util::future::LocalBoxFuture;
use kaji_audit::AuditError;
use kaji_encryption::ConfigError;
use kaji_engine::EngineError;
use kaji_meta::Status;
use kaji_options::{
    AuthnError, AuthzError, Options,
    addresses::{InvalidServiceRange, client_address},
};
use kaji_resource::UserInfo;
use kaji_runtime::Client;
use kaji_server::{
    Certificates, LocalService, Stack, StackError,
    pki::{self, Pki, PkiError},
};
use kaji_store::{Store, StoreError};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{sync::watch, task::JoinSet};

/// Why a cluster did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store.
    #[error("cannot open the store: {0}")]
    Store(#[from] StoreError),
    /// Opening it.
    #[error(transparent)]
    Open(#[from] kaji_storage::OpenError),
    /// The encryption configuration.
    #[error("error while parsing file: {0}")]
    Encryption(#[from] ConfigError),
    /// Audit.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Reading the objects took longer than the options allow.
    #[error("the objects were not read within {0:?} (--storage-initialization-timeout)")]
    Slow(Duration),
    /// Certificates.
    #[error("cannot prepare certificates: {0}")]
    Pki(#[from] PkiError),
    /// Authorization.
    #[error("cannot set up authorization: {0}")]
    Authz(#[from] AuthzError),
    /// Authentication.
    #[error("cannot set up authentication: {0}")]
    Authn(#[from] AuthnError),
    /// The listener.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What went wrong.
        source: StackError,
    },
    /// TLS.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// Objects that every cluster has.
    #[error("cannot create the cluster's first objects: {0}")]
    Bootstrap(Status),
    /// The endpoints of this server among others.
    #[error("cannot join the servers of this etcd: {0}")]
    Endpoints(#[source] kaji_controlplane::service_endpoints::EndpointsError),
    /// Admission plugins and their configuration.
    #[error(transparent)]
    Admission(#[from] kaji_admission::ConfigError),
    /// An invalid service range.
    #[error(transparent)]
    ServiceRange(#[from] InvalidServiceRange),
    /// Invalid ranges of pod addresses.
    #[error("node ranges: {0}")]
    NodeRanges(String),
}

/// A running cluster.
pub struct Cluster {
    /// The request path, for clients inside the process.
    pub stack: Arc<Stack>,
    /// The certificates at the start.
    pub pki: Pki,
    /// The current certificates, which are renewed while the cluster runs.
    pub certificates: Arc<Certificates>,
    /// The address of the listener.
    pub address: SocketAddr,
    pub(crate) store: Arc<dyn Store>,
    /// Control loops end, and other servers take over.
    pub(crate) leave: watch::Sender<bool>,
    /// No new requests are taken, and what follows files and objects ends.
    pub(crate) stop: watch::Sender<bool>,
    /// True, or without a sender, when requests in flight have ended.
    pub(crate) drained: watch::Receiver<bool>,
    pub(crate) loop_config: ControlLoopConfig,
    pub(crate) control_loops: ControlLoops,
    /// What shows this server to others. It writes at the end, so it ends before the engine.
    pub(crate) presence: JoinSet<()>,
    /// The listener, and tasks that follow files and objects.
    pub(crate) tasks: JoinSet<()>,
}

impl Cluster {
    /// Starts one; resolves when `/readyz` says ok. The future is boxed: what a start holds is not for the caller's stack.
    ///
    /// # Errors
    /// When a stage of the start fails; nothing is left open then.
    pub fn start(options: Options) -> LocalBoxFuture<'static, Result<Cluster, StartError>> {
        let environment = Environment::machine(&options);
        Cluster::start_in(options, environment)
    }

    /// Starts one that takes clocks, randomness and the like from `environment`.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub fn start_in(
        options: Options,
        environment: Environment,
    ) -> LocalBoxFuture<'static, Result<Cluster, StartError>> {
        let patience = options.startup.storage_initialization.unwrap_or(Duration::MAX);
        Box::pin(async move {
            let opened = Configured::new(Box::new(options), environment).await?.open_store().await?;
            let (store, mut certificates) = (opened.store(), opened.certificate_files());
            let started = Box::pin(Self::start_over(opened, patience)).await;
            if started.is_err() {
                // The next start must not find the files in use.
                while certificates.changed().await.is_ok() {}
                store.close().await;
            }
            started
        })
    }

    async fn start_over(opened: StoreOpened, patience: Duration) -> Result<Cluster, StartError> {
        let reading = async { opened.open_engine().await?.register_resources().await };
        let registered = tokio::time::timeout(patience, reading).await;
        let registered = registered.map_err(|_| StartError::Slow(patience))??;
        let bound = registered.bind().await?;
        let bootstrapped = bound.bootstrap().await?;
        bootstrapped.serve().await
    }

    /// The URL of the server.
    pub fn url(&self) -> String {
        format!("https://{}", client_address(self.address))
    }

    /// A client of the in-process transport with the rights of an administrator.
    pub fn administrator(&self) -> Client {
        let groups = ["system:masters", "system:authenticated"].map(str::to_owned).to_vec();
        let user = UserInfo { name: "kubernetes-admin".into(), groups, ..UserInfo::default() };
        Client::new(kube::Client::new(LocalService::new(self.stack.clone(), user), "default"), "kaji")
    }

    /// Ends the control loops wherever they are, as when their process is killed, and starts them anew.
    pub fn restart_control_loops(&mut self) {
        self.control_loops = ControlLoops::default();
        self.control_loops = self.loop_config.start(&self.leave.subscribe());
    }

    /// The certificate authorities by which clients recognize the server, DER.
    ///
    /// # Errors
    /// When they are malformed.
    pub fn authorities(&self) -> Result<Vec<Vec<u8>>, StartError> {
        Ok(pki::certificates(&self.certificates.trust())?)
    }

    /// Ends it in upstream's order. The server stops being ready and its loops end, so that others take over, while it serves
    /// on for the delay that the options say. Then it takes no new requests, those in flight end, watches end (one after another
    /// meanwhile, if the options give them time), and the store is closed.
    pub async fn stop(mut self) {
        self.stack.health.stop();
        self.leave.send_replace(true);
        let (loops, mut presence) = (self.control_loops, self.presence);
        let left = async {
            loops.join().await;
            while presence.join_next().await.is_some() {}
        };
        let delay = tokio::time::sleep(self.loop_config.options.shutdown.delay);
        tokio::join!(left, delay);
        self.stop.send_replace(true);
        let mut drained = self.drained;
        let watches = async {
            let grace = self.loop_config.options.shutdown.watch_termination;
            if !grace.is_zero() {
                let (before, after) = self.stack.engine.drain_watches(grace).await;
                tracing::info!(before, after, "watches have been drained");
            }
        };
        // A listener that is not there has no requests.
        let requests = async { drained.wait_for(|drained| *drained).await.is_ok() };
        let (_has_listened, ()) = tokio::join!(requests, watches);
        self.stack.engine.shutdown().await;
        while self.tasks.join_next().await.is_some() {}
        // There are no more requests: buffered audit events are written.
        if let Some(audit) = &self.stack.audit {
            audit.shutdown().await;
        }
        if let Some(traces) = &self.stack.traces {
            traces.shutdown().await;
        }
        self.store.close().await;
    }
}
