//! The whole cluster as the subject of a simulation: server, all control loops, scheduler and simulated nodes in one process, on
//! one thread, without files and sockets.

use crate::{Cluster, Environment, Nodes, Options, Serving, StoreKind};
use futures_util::future::LocalBoxFuture;
use kaji_meta::{Features, ServedVersions};
use kaji_runtime::Client;
use kaji_sim::{Parts, SimulatedCluster, Subject};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Reserved for documentation (RFC 5737): an address that the `kubernetes` service may name and that no host has.
const UNREACHABLE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 6443);

/// Starts whole clusters.
#[derive(Clone, Copy, Debug, Default)]
pub struct WholeCluster;

impl Subject for WholeCluster {
    fn start(&self, parts: Parts) -> LocalBoxFuture<'_, Result<Box<dyn SimulatedCluster>, String>> {
        Box::pin(async move {
            let options = Options {
                listen: UNREACHABLE,
                nodes: Nodes::Simulated(parts.nodes),
                controllers: true,
                serving: Serving { local: true, ephemeral: true, ..Serving::default() },
                store: StoreKind::Memory,
                // Gangs are a part of what is simulated.
                features: Features::ALL,
                served: ServedVersions::parse(["scheduling.k8s.io/v1beta1=true"])?,
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
            let cluster = Cluster::start_in(options, environment).await.map_err(|error| error.to_string())?;
            Ok(Box::new(Simulated(cluster)) as Box<dyn SimulatedCluster>)
        })
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
