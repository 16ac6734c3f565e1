//! Several servers over one etcd: what is configured at one is in force at the other, and what one removes is not left behind by the
//! other.
//!
//! Invariant: a test waits only for what the other server may learn a moment later; what has to hold at once is asserted.

mod admission;
mod configuration;
mod damaged;
mod definitions;
mod encryption;
mod ends;

use crate::{
    common::{TestCluster, until},
    etcd::{raw, store},
};
use kaji::{Options, StorageMediaType};
use kaji_testing::etcd::Etcd;
use std::path::Path;

/// Two servers with the same certificate authorities. They end before the etcd does.
struct Servers {
    a: TestCluster,
    b: TestCluster,
    etcd: Etcd,
}

impl Servers {
    /// Starts them, where there is an etcd.
    async fn start(test: &str) -> Option<Servers> {
        Servers::with(test, |_, _| {}).await
    }

    /// Starts them with further options, which may depend on the server's data directory.
    async fn with(test: &str, change: impl Fn(&mut Options, &Path)) -> Option<Servers> {
        let etcd = Etcd::start(test)?;
        let server = async |dir: tempfile::TempDir| {
            let (kind, path) = (store(&etcd, StorageMediaType::Json), dir.path().to_owned());
            TestCluster::start_over(dir, 0, kind, |options| change(options, &path)).await
        };
        let a = server(tempfile::tempdir().unwrap()).await;
        let dir = tempfile::tempdir().unwrap();
        copy(&a.kubeconfig.with_file_name("pki"), &dir.path().join("pki"));
        let b = server(dir).await;
        Some(Servers { a, b, etcd })
    }

    /// What etcd has below a prefix of keys.
    async fn keys(&self, prefix: &str) -> Vec<String> {
        raw(&self.etcd, prefix).await.into_iter().map(|(key, _)| key).collect()
    }

    async fn stop(self) {
        self.a.stop().await;
        self.b.stop().await;
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A server gets as far as serving while another one writes the objects that every cluster has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_start_together() {
    let Some(etcd) = Etcd::start("servers_that_start_together") else { return };
    let server =
        || TestCluster::start_in(tempfile::tempdir().unwrap(), 0, store(&etcd, StorageMediaType::Json));
    let (a, b) = tokio::join!(server(), server());
    for server in [&a, &b] {
        let client = server.kube().await;
        until("the server is ready", async || {
            client.request_text(http::Request::get("/readyz").body(vec![]).unwrap()).await.is_ok()
        })
        .await;
    }
    a.stop().await;
    b.stop().await;
}
