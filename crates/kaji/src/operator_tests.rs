//! The clusters of `kaji test`: in this process, over a data directory, on a free port of the loopback.

use crate::{Cluster, Nodes, Options, Selection, VirtualClock};
use kaji_operator_test::{cluster::RunningCluster, cluster::StartCluster, scenario::ClusterSpec};
use std::{net::Ipv4Addr, path::PathBuf, sync::Arc, sync::Mutex};

/// Starts clusters in this process.
pub fn in_process() -> StartCluster {
    Arc::new(|directory, spec| Box::pin(start(directory, spec)))
}

async fn start(directory: PathBuf, spec: ClusterSpec) -> Result<RunningCluster, String> {
    let clock = Arc::new(VirtualClock::default());
    let mut options = Options { controllers: true, clock: Some(clock.clone()), ..Options::new(directory) };
    options.listen = (Ipv4Addr::LOCALHOST, 0).into();
    options.nodes = if spec.nodes == 0 { Nodes::None } else { Nodes::Simulated(spec.nodes) };
    options.selection = Selection::new(&spec.controllers)?;
    let cluster = Cluster::start(options).await.map_err(|error| error.to_string())?;
    let (stack, certificates, url) = (cluster.stack.clone(), cluster.certificates.clone(), cluster.url());
    Ok(RunningCluster { stack, certificates, url, clock, stop: Mutex::new(Box::pin(cluster.stop())) })
}
