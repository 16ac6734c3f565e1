//! A cluster for tests: in this process, over real TLS on a free port of the loopback, its objects in memory.

pub mod access;
pub mod api;
pub mod clients;
pub mod config_maps;
pub mod https;
pub mod issuer;
pub mod wire;

pub use kaji_testing::{skip::skipped, wait::until};

use kaji::{Cluster, Environment, Nodes, Options, StoreKind, kubeconfig};
use std::{net::SocketAddr, path::PathBuf};

/// A running cluster with a kubeconfig file for it.
pub struct TestCluster {
    /// The cluster.
    pub cluster: Cluster,
    /// Its admin's kubeconfig.
    pub kubeconfig: PathBuf,
    dir: tempfile::TempDir,
}

impl TestCluster {
    /// Starts one with this many simulated nodes; none means no controllers either.
    pub async fn start(nodes: u16) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), nodes, StoreKind::Memory).await
    }

    /// Starts one over a directory that may have been another's.
    pub async fn start_in(dir: tempfile::TempDir, nodes: u16, store: StoreKind) -> Self {
        Self::start_over(dir, nodes, store, |_| {}).await
    }

    /// Starts one over a directory, with further options.
    pub async fn start_over(
        dir: tempfile::TempDir,
        nodes: u16,
        store: StoreKind,
        change: impl FnOnce(&mut Options),
    ) -> Self {
        Self::start_from(dir, nodes, store, change, Environment::machine).await
    }

    /// The same, with another environment than the machine's.
    pub async fn start_from(
        dir: tempfile::TempDir,
        nodes: u16,
        store: StoreKind,
        change: impl FnOnce(&mut Options),
        environment: impl FnOnce(&Options) -> Environment,
    ) -> Self {
        let mut options = Options {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            nodes: if nodes == 0 { Nodes::None } else { Nodes::Simulated(nodes) },
            controllers: nodes > 0,
            store,
            ..Options::new(dir.path())
        };
        change(&mut options);
        let environment = environment(&options);
        let cluster = Cluster::start_in(options, environment).await.unwrap();
        if nodes == 0 {
            account(&cluster).await;
        }
        let path = dir.path().join("kubeconfig");
        kubeconfig::write(
            &path,
            kubeconfig::NAME,
            &cluster.url(),
            &cluster.pki.ca.certificate,
            &cluster.pki.admin,
        )
        .unwrap();
        TestCluster { cluster, kubeconfig: path, dir }
    }

    /// Starts one without nodes, with other options than the usual.
    pub async fn start_with(change: impl FnOnce(&mut Options)) -> Self {
        Self::start_over(tempfile::tempdir().unwrap(), 0, StoreKind::Memory, change).await
    }

    /// A kube-rs client over TLS, as a user's program makes it.
    pub async fn kube(&self) -> kube::Client {
        let config = kube::config::Kubeconfig::read_from(&self.kubeconfig).unwrap();
        let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
        kube::Client::try_from(config).unwrap()
    }

    /// Ends it.
    pub async fn stop(self) -> tempfile::TempDir {
        self.cluster.stop().await;
        self.dir
    }
}

/// The account that pods of the default namespace run as, where no controller makes it.
async fn account(cluster: &Cluster) {
    use kaji_resource::{ObjectReader, ObjectWriter};
    let engine = &cluster.stack.engine;
    let accounts = kaji_meta::GroupResource::new("", "serviceaccounts");
    if engine.get(&accounts, "default", "default").is_none() {
        let object = serde_json::json!({"metadata": {"name": "default"}});
        match engine.create(&accounts, "default", object, false).await {
            // Another server over the same objects was faster.
            Err(status) if status.code == 409 => {}
            made => drop(made.unwrap()),
        }
    }
}

/// Waits until a configuration file has been read anew so often, with such an outcome.
pub async fn reloaded(cluster: &Cluster, what: &str, status: &str, times: u32) {
    let begins = format!("apiserver_{what}_config_controller_automatic_reloads_total{{");
    let status = format!("status=\"{status}\"");
    until(&format!("{times} times {begins}{status}"), async || {
        let page = cluster.stack.metrics.render(&cluster.stack.engine, &cluster.stack.flow);
        let line = page.lines().find(|l| l.starts_with(&begins) && l.contains(&status)).unwrap_or_default();
        line.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0) >= times
    })
    .await;
}
