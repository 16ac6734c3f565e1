//! Builds a cluster for a test.

use crate::{Error, TestEnv};
use kaji::{Clock, Cluster, Nodes, Options, Selection, Serving, StoreKind, VirtualClock};
use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
};
use tempfile::TempDir;

/// Reserved for documentation: an address that the `kubernetes` service may name and that no host has.
const UNREACHABLE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 6443);

/// Below the temporary directory.
pub(crate) const DATA: &str = "data";

/// What a cluster is to have besides its API.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    controllers: Vec<String>,
    nodes: u16,
    pub(crate) listen: bool,
    pub(crate) clock: Option<Arc<VirtualClock>>,
    forkable: bool,
}

impl Builder {
    /// Runs these control loops, in the words of kube-controller-manager's `--controllers`: `namespace-controller`,
    /// `*` for all, `-name` for all others. `scheduler` counts as one. Adds to those named before.
    #[must_use]
    pub fn controllers<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Builder {
        self.controllers.extend(names.into_iter().map(Into::into));
        self
    }

    /// Adds simulated nodes, on which pods become ready without running, and `node-lifecycle-controller`, without which nodes
    /// stay tainted. The nodes register shortly after the start; pods are bound by the scheduler or by `spec.nodeName`.
    #[must_use]
    pub fn nodes(mut self, count: u16) -> Builder {
        self.nodes = count;
        self
    }

    /// Serves on a free port of the loopback too, over TLS, for clients in other processes: see
    /// [`TestEnv::kubeconfig`].
    #[must_use]
    pub fn listen(mut self) -> Builder {
        self.listen = true;
        self
    }

    /// Uses a clock that [`TestEnv::advance`] can advance, for what happens after minutes, hours or days. It runs at the pace
    /// of the machine's clock otherwise.
    #[must_use]
    pub fn virtual_clock(mut self) -> Builder {
        self.clock = Some(Arc::default());
        self
    }

    /// Keeps the objects in a temporary directory, so that [`TestEnv::fork`] makes clusters that begin as this one is.
    #[must_use]
    pub fn forkable(mut self) -> Builder {
        self.forkable = true;
        self
    }

    /// Starts it; ready to be used when this resolves.
    ///
    /// # Errors
    /// For a control loop that there is not, and when the cluster does not start.
    pub async fn start(self) -> Result<TestEnv, Error> {
        let directory = self.forkable.then(tempfile::tempdir).transpose()?;
        self.start_in(directory).await
    }

    /// A fork of the cluster of this builder, which is over `source`.
    pub(crate) async fn fork(mut self, source: &Path) -> Result<TestEnv, Error> {
        if let Some(clock) = self.clock.as_deref() {
            let own = VirtualClock::default();
            own.advance(clock.ahead());
            self.clock = Some(Arc::new(own));
        }
        let directory = tempfile::tempdir()?;
        let (from, to) = (source.to_owned(), directory.path().join(DATA));
        let forked = tokio::task::spawn_blocking(move || kaji_storage::forks::fork(&from, &to)).await;
        forked.map_err(|error| Error::Fork(error.to_string()))?.map_err(|e| Error::Fork(e.to_string()))?;
        self.start_in(Some(directory)).await
    }

    async fn start_in(self, directory: Option<TempDir>) -> Result<TestEnv, Error> {
        let builder = self.clone();
        let mut names = self.controllers;
        if self.nodes > 0 {
            // It takes the taint off nodes that have become ready.
            names.push("node-lifecycle-controller".into());
        }
        let selection = Selection::new(&names).map_err(Error::Controller)?;
        let listen = if self.listen { SocketAddr::from((Ipv4Addr::LOCALHOST, 0)) } else { UNREACHABLE };
        let mut options = Options {
            listen,
            nodes: if self.nodes == 0 { Nodes::None } else { Nodes::Simulated(self.nodes) },
            controllers: true,
            selection,
            // A fork has the keys of its source.
            serving: Serving { local: !self.listen, ephemeral: directory.is_none(), ..Serving::default() },
            store: if directory.is_some() { StoreKind::Disk } else { StoreKind::Memory },
            clock: self.clock,
            // Without a directory neither objects nor certificates go there.
            ..Options::new(directory.as_ref().map_or_else(Default::default, |dir| dir.path().join(DATA)))
        };
        if !options.selection.includes("serviceaccount-controller") {
            // Without the controller the service accounts that pods need are missing. Upstream's integration tests disable
            // the plugin for the same reason.
            options.admission.disable.push("ServiceAccount".into());
        }
        let cluster = Cluster::start(options).await?;
        Ok(TestEnv { cluster, builder, directory })
    }
}
