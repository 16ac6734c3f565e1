//! Builds a cluster for a test.

use crate::{Error, TestEnv};
use kaji::{Cluster, Nodes, Options, Selection, Serving, StoreKind, VirtualClock};
use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

/// Reserved for documentation: an address that the `kubernetes` service may name and that no host has.
const UNREACHABLE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 6443);

/// What a cluster is to have besides its API.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    controllers: Vec<String>,
    nodes: u16,
    listen: bool,
    clock: Option<Arc<VirtualClock>>,
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

    /// Starts it; ready to be used when this resolves.
    ///
    /// # Errors
    /// For a control loop that there is not, and when the cluster does not start.
    pub async fn start(self) -> Result<TestEnv, Error> {
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
            serving: Serving { local: !self.listen, ephemeral: true, ..Serving::default() },
            store: StoreKind::Memory,
            clock: self.clock.clone(),
            // Neither objects nor certificates go there.
            ..Options::new("")
        };
        if !options.selection.includes("serviceaccount-controller") {
            // Without the controller the service accounts that pods need are missing. Upstream's integration tests disable
            // the plugin for the same reason.
            options.admission.disable.push("ServiceAccount".into());
        }
        let cluster = Cluster::start(options).await?;
        Ok(TestEnv { cluster, listening: self.listen, clock: self.clock })
    }
}
