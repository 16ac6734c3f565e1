//! Snapshots of clusters, and moving objects between the embedded store and etcd.

mod killed;

use crate::common::{TestCluster, config_maps::config_maps};
use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kaji::{EncryptionFile, EtcdConfig, Options, StorageMediaType, StoreKind};
use kaji_encryption::sealed::SealingKey;
use kaji_etcd::{Endpoints, TlsFiles};
use kaji_storage::{
    progress::silent,
    snapshots::{self, SnapshotError, SnapshotFile},
    transfer::{export, import},
};
use kaji_testing::etcd::Etcd;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use std::{collections::BTreeMap, path::Path, time::Duration};

fn config(etcd: &Etcd, prefix: &str) -> EtcdConfig {
    EtcdConfig {
        endpoints: Endpoints::new([etcd.url()], TlsFiles::default()).unwrap(),
        prefix: prefix.into(),
        compaction: None,
        media_type: StorageMediaType::Protobuf,
        readiness_timeout: Duration::from_secs(2),
    }
}

fn map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": value}})).unwrap()
}

/// A watch from a revision of the former cluster is refused.
async fn assert_gone(all: &Api<ConfigMap>, from: &str) {
    let mut events = all.watch(&WatchParams::default(), from).await.unwrap().boxed();
    let first = events.try_next().await.unwrap();
    assert!(matches!(&first, Some(WatchEvent::Error(status)) if status.code == 410), "{first:?}");
}

async fn filled(client: &Client) {
    let all: Api<ConfigMap> = Api::default_namespaced(client.clone());
    for i in 0..30 {
        all.create(&PostParams::default(), &map(&format!("m{i}"), "0")).await.unwrap();
    }
    let patch = Patch::Merge(json!({"data": {"k": "1"}}));
    all.patch("m3", &PatchParams::default(), &patch).await.unwrap();
}

async fn on_disk(dir: tempfile::TempDir) -> TestCluster {
    TestCluster::start_in(dir, 0, StoreKind::Disk).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_a_running_server_is_restored() {
    let files = tempfile::tempdir().unwrap();
    let file = SnapshotFile::plain(&files.path().join("s"));
    let cluster = on_disk(tempfile::tempdir().unwrap()).await;
    let client = cluster.kube().await;
    filled(&client).await;
    let before = config_maps(&client).await;
    let taken = snapshots::save_from_server(&client, &file, &silent).await.unwrap();
    assert_eq!(taken, snapshots::inspect(&file).unwrap());
    assert!(taken.resources["core/configmaps"].0 >= 30, "{taken:?}");
    // What comes later is not in it, and neither are the revisions that it had.
    let later = Api::<ConfigMap>::default_namespaced(client.clone());
    let seen = later.create(&PostParams::default(), &map("later", "0")).await.unwrap();
    drop((client, later));
    cluster.stop().await;
    let dir = tempfile::tempdir().unwrap();
    let (count, revision) = snapshots::restore_to_disk(&file, dir.path(), 500, &silent).unwrap();
    assert_eq!((count, revision), (taken.summary.count, taken.header.revision + 500));
    let restored = on_disk(dir).await;
    let client = restored.kube().await;
    assert_eq!(config_maps(&client).await, before);
    let all: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let from = seen.metadata.resource_version.unwrap();
    assert_gone(&all, &from).await;
    let new = all.create(&PostParams::default(), &map("new", "0")).await.unwrap();
    assert!(new.metadata.resource_version.unwrap().parse::<u64>().unwrap() > revision);
    drop((client, all));
    restored.stop().await;
    // A file that was cut off or changed is refused before anything is made.
    let mut bytes = std::fs::read(&file.path).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&file.path, bytes).unwrap();
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(
        snapshots::restore_to_disk(&file, empty.path(), 0, &silent),
        Err(SnapshotError::File { .. })
    ));
    assert!(!empty.path().join("store").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_snapshot_is_read_with_its_key_alone() {
    let files = tempfile::tempdir().unwrap();
    let key = |name: &str, text: &str| {
        let path = files.path().join(name);
        std::fs::write(&path, text).unwrap();
        SealingKey::read(&path).unwrap()
    };
    let path = files.path().join("s");
    let with = |key| SnapshotFile { path: path.clone(), key };
    let file = with(Some(key("key", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")));
    let cluster = on_disk(tempfile::tempdir().unwrap()).await;
    let client = cluster.kube().await;
    filled(&client).await;
    let before = config_maps(&client).await;
    let taken = snapshots::save_from_server(&client, &file, &silent).await.unwrap();
    drop(client);
    cluster.stop().await;
    let bytes = std::fs::read(&path).unwrap();
    assert!(!bytes.windows(10).any(|part| part == b"/registry/" || part == b"configmaps"));
    assert_eq!(snapshots::inspect(&file).unwrap(), taken);
    assert!(matches!(snapshots::inspect(&with(None)), Err(SnapshotError::Key(..))));
    let other = key("other", "YWJjZGVmMDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODk=");
    let dir = tempfile::tempdir().unwrap();
    let refused =
        snapshots::restore_to_disk(&with(Some(other)), dir.path(), 1, &silent).unwrap_err().to_string();
    assert!(refused.ends_with("it is encrypted with another key, or damaged"), "{refused}");
    snapshots::restore_to_disk(&file, dir.path(), 1, &silent).unwrap();
    let restored = on_disk(dir).await;
    let client = restored.kube().await;
    assert_eq!(config_maps(&client).await, before);
    drop(client);
    restored.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_go_to_etcd_and_back() {
    let Some(etcd) = Etcd::start("objects_go_to_etcd_and_back") else { return };
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("encryption.yaml");
    let key = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
         providers: [{{aesgcm: {{keys: [{{name: k, secret: {key}}}]}}}}]\n"
    );
    std::fs::write(&path, text).unwrap();
    let encryption = EncryptionFile { path, follow: false };
    let start = async |dir: tempfile::TempDir, store: StoreKind| {
        TestCluster::start_over(dir, 0, store, |options: &mut Options| {
            options.encryption = Some(encryption.clone());
        })
        .await
    };
    let cluster = start(tempfile::tempdir().unwrap(), StoreKind::Disk).await;
    let client = cluster.kube().await;
    filled(&client).await;
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let secret =
        serde_json::from_value(json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}})).unwrap();
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    let before = config_maps(&client).await;
    drop((client, secrets));
    let dir = cluster.stop().await;
    let to = config(&etcd, "/registry");
    let done = export(dir.path(), &to, Some(&encryption), &silent).await.unwrap();
    assert_eq!(done.written, done.content.count);
    // Again, as after an interruption.
    let again = export(dir.path(), &to, Some(&encryption), &silent).await.unwrap();
    assert_eq!((again.written, again.content), (0, done.content));
    // The same certificates and keys.
    let cluster = start(dir, StoreKind::Etcd(Box::new(to.clone()))).await;
    let client = cluster.kube().await;
    let in_etcd = config_maps(&client).await;
    let uids = |all: &BTreeMap<String, (String, String)>| {
        all.iter().map(|(name, (uid, _))| (name.clone(), uid.clone())).collect::<Vec<_>>()
    };
    assert_eq!(uids(&in_etcd), uids(&before));
    let highest = |all: &BTreeMap<String, (String, String)>| {
        all.values().map(|(_, rv)| rv.parse::<u64>().unwrap()).max().unwrap()
    };
    let lowest = in_etcd.values().map(|(_, rv)| rv.parse::<u64>().unwrap()).min().unwrap();
    assert!(lowest > highest(&before));
    drop(client);
    let dir = cluster.stop().await;
    // What servers have done with it since is not undone.
    let differs = export(dir.path(), &to, Some(&encryption), &silent).await.unwrap_err().to_string();
    assert!(differs.contains("a server has changed them since"), "{differs}");
    let back = tempfile::tempdir().unwrap();
    let done = import(&to, back.path(), Some(&encryption), &silent).await.unwrap();
    assert!(done.content.count > 100, "{done:?}");
    // On disk as the configuration says.
    let mut store = vec![];
    for entry in std::fs::read_dir(back.path().join("store")).unwrap() {
        store.extend(std::fs::read(entry.unwrap().path()).unwrap());
    }
    let text = String::from_utf8_lossy(&store);
    assert!(text.contains("k8s:enc:aesgcm:v1:k:"));
    copy_dir(&dir.path().join("pki"), &back.path().join("pki"));
    let cluster = start(back, StoreKind::Disk).await;
    let client = cluster.kube().await;
    assert_eq!(config_maps(&client).await, in_etcd);
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    assert_eq!(secrets.get("s").await.unwrap().data.unwrap()["a"].0, b"b");
    drop((client, secrets));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_etcd_is_restored_into_either_store() {
    let Some(etcd) = Etcd::start("a_snapshot_of_etcd_is_restored_into_either_store") else { return };
    let files = tempfile::tempdir().unwrap();
    let file = SnapshotFile::plain(&files.path().join("s"));
    let of_etcd = |prefix: &str| StoreKind::Etcd(Box::new(config(&etcd, prefix)));
    let cluster = TestCluster::start_in(tempfile::tempdir().unwrap(), 0, of_etcd("/registry")).await;
    let client = cluster.kube().await;
    filled(&client).await;
    let before = config_maps(&client).await;
    drop(client);
    cluster.stop().await;
    let options = Options { store: of_etcd("/registry"), ..Options::new(files.path()) };
    let taken = snapshots::save_store(&options, &file, &silent).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    snapshots::restore_to_disk(&file, dir.path(), 10, &silent).unwrap();
    let cluster = on_disk(dir).await;
    let client = cluster.kube().await;
    assert_eq!(config_maps(&client).await, before);
    drop(client);
    cluster.stop().await;
    let not_empty = snapshots::restore_to_etcd(&file, &config(&etcd, "/registry"), 0, &silent).await;
    assert!(matches!(not_empty, Err(SnapshotError::NotEmpty(_))));
    let (_, revision) =
        snapshots::restore_to_etcd(&file, &config(&etcd, "/other"), 100, &silent).await.unwrap();
    assert!(revision >= taken.header.revision + 100);
    let cluster = TestCluster::start_in(tempfile::tempdir().unwrap(), 0, of_etcd("/other")).await;
    let client = cluster.kube().await;
    let after = config_maps(&client).await;
    let uids = |all: &BTreeMap<String, (String, String)>| {
        all.values().map(|(uid, _)| uid.clone()).collect::<Vec<_>>()
    };
    assert_eq!(uids(&after), uids(&before));
    let all: Api<ConfigMap> = Api::default_namespaced(client.clone());
    assert_gone(&all, &taken.header.revision.to_string()).await;
    drop((client, all));
    cluster.stop().await;
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
