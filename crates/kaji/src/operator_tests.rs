//! The clusters of `kaji test` and `kaji envtest serve`: in this process, over a data directory, on a free port of the loopback.

use crate::{Cluster, Nodes, Options, Selection, VirtualClock};
use futures_util::future::BoxFuture;
use kaji_operator_test::{cluster::RunningCluster, cluster::StartCluster, scenario::ClusterSpec};
use std::sync::{Arc, Mutex};

/// Starts clusters in this process.
pub fn in_process() -> StartCluster {
    Arc::new(|directory, spec, clock| Box::pin(start(Options::new(directory), spec, clock)))
}

async fn start(new: Options, spec: ClusterSpec, clock: Arc<VirtualClock>) -> Result<RunningCluster, String> {
    let mut options = Options { listen: ([127, 0, 0, 1], 0).into(), clock: Some(clock.clone()), ..new };
    options.nodes = if spec.nodes == 0 { Nodes::None } else { Nodes::Simulated(spec.nodes) };
    options.selection = Selection::new(&spec.controllers)?;
    let default_accounts = options.selection.includes("serviceaccount-controller");
    let without = spec.pods_without_accounts && !default_accounts;
    options.admission.disable.extend(without.then(|| "ServiceAccount".to_owned()));
    let cluster = Cluster::start(options).await.map_err(|error| error.to_string())?;
    let (stack, certificates, url) = (cluster.stack.clone(), cluster.certificates.clone(), cluster.url());
    let stop = Mutex::new(Box::pin(cluster.stop()) as BoxFuture<'static, ()>);
    Ok(RunningCluster { stack, certificates, url, clock, default_accounts, stop })
}
