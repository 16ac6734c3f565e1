//! The whole cluster as the subject of a simulation: server, all control loops, scheduler and simulated nodes in one process, on
//! one thread, without files and sockets.

use crate::{Cluster, Environment, Nodes, Options, Serving, StoreKind};
use futures_util::future::LocalBoxFuture;
use kaji_runtime::Client;
use kaji_sim::{Parts, SimulatedCluster, Subject};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Once,
        atomic::{AtomicU64, Ordering},
    },
};

/// Reserved for documentation (RFC 5737): an address that the `kubernetes` service may name and that no host has.
const UNREACHABLE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 6443);

static PANICS: AtomicU64 = AtomicU64::new(0);
static HOOK: Once = Once::new();

/// Starts whole clusters.
#[derive(Clone, Copy, Debug, Default)]
pub struct WholeCluster(());

impl WholeCluster {
    /// Counts this process's panics from now on.
    pub fn new() -> WholeCluster {
        HOOK.call_once(|| {
            let former = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                PANICS.fetch_add(1, Ordering::Relaxed);
                former(panic);
            }));
        });
        WholeCluster(())
    }
}

impl Subject for WholeCluster {
    fn start(&self, parts: Parts) -> LocalBoxFuture<'_, Result<Box<dyn SimulatedCluster>, String>> {
        let options = Options {
            listen: UNREACHABLE,
            nodes: Nodes::Simulated(parts.nodes),
            controllers: true,
            serving: Serving { local: true, ephemeral: true, ..Serving::default() },
            store: StoreKind::Memory,
            ..Options::new("")
        };
        let environment = Environment {
            clock: parts.clock.clone(),
            object_clock: parts.clock,
            random: parts.random,
            store: Some(parts.store),
            interception: Some(parts.interception),
            node_network: None,
            cloud: None,
        };
        Box::pin(async move {
            let cluster = Cluster::start_in(options, environment).await.map_err(|error| error.to_string())?;
            Ok(Box::new(Simulated(cluster)) as Box<dyn SimulatedCluster>)
        })
    }

    fn panics(&self) -> u64 {
        PANICS.load(Ordering::Relaxed)
    }
}

struct Simulated(Cluster);

impl SimulatedCluster for Simulated {
    fn client(&self) -> Client {
        self.0.administrator()
    }

    fn restart_control_loops(&mut self) {
        self.0.restart_control_loops();
    }
}
