//! Clusters that begin as another one is, and servers over damaged stores.

use crate::common::{TestCluster, config_maps::config_maps, until};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kaji::{Cluster, Environment, Nodes, Options, StoreKind};
use kaji_storage::forks;
use kaji_store::{
    Range, Store,
    memory::{MemoryOptions, MemoryStore},
};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use std::{fs, net::SocketAddr, path::Path, sync::Arc};

async fn create(client: &Client, name: &str) -> ConfigMap {
    let map = serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": "v"}})).unwrap();
    Api::default_namespaced(client.clone()).create(&PostParams::default(), &map).await.unwrap()
}

async fn is_running(client: &Client, name: &str) -> bool {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let found = pods.get_opt(name).await.unwrap();
    found.and_then(|pod| pod.status?.phase).as_deref() == Some("Running")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_of_a_running_cluster_goes_on_by_itself() {
    let source = TestCluster::start_in(tempfile::tempdir().unwrap(), 2, StoreKind::Disk).await;
    let client = source.kube().await;
    for i in 0..20 {
        create(&client, &format!("m{i}")).await;
    }
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "example.com/c:1"}]}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod.clone()).unwrap()).await.unwrap();
    until("the pod runs", async || is_running(&client, "p").await).await;
    // A node of a machine: nothing runs it in the fork but a simulation.
    let node = json!({"metadata": {"name": "machine"}});
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let from = source.kubeconfig.parent().unwrap().to_owned();
    let made = forks::fork(&from, dir.path()).unwrap();
    assert!(matches!(made, forks::Forked::Store(_)));
    let before = config_maps(&client).await;
    let second = TestCluster::start_over(dir, 0, StoreKind::Disk, |options| {
        options.controllers = true;
        options.simulates_found_nodes = true;
    })
    .await;
    let other = second.kube().await;
    assert_eq!(config_maps(&other).await, before);
    // The same keys: the source's kubeconfig but for the address.
    assert_eq!(source.cluster.pki.ca.certificate, second.cluster.pki.ca.certificate);
    let seen = create(&client, "m-source").await.metadata.resource_version.unwrap();
    create(&other, "m-fork").await;
    assert!(
        !config_maps(&client).await.contains_key("m-fork")
            && !config_maps(&other).await.contains_key("m-source")
    );
    assert!(seen.parse::<u64>().unwrap() > 0);
    // Its nodes go on, and run what is new.
    let theirs: Api<Node> = Api::all(other.clone());
    let is_ready = async |name: &str| {
        let conditions = theirs.get(name).await.unwrap().status.and_then(|status| status.conditions);
        conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
    };
    until("the machine's node is simulated", async || is_ready("machine").await).await;
    let mut pod = pod;
    pod["metadata"]["name"] = "q".into();
    let forked: Api<Pod> = Api::default_namespaced(other.clone());
    forked.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    until("a pod of the fork runs", async || is_running(&other, "q").await).await;
    forked.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert!(is_running(&client, "p").await);
    drop((client, pods, nodes, other, theirs, forked));
    second.stop().await;
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clusters_over_forks_in_memory_share_a_beginning() {
    let options = || Options {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        nodes: Nodes::None,
        controllers: false,
        store: StoreKind::Memory,
        ..Options::new("")
    };
    let start = async |store: Arc<MemoryStore>| {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().to_owned(), ..options() };
        let environment = Environment { store: Some(store), ..Environment::machine(&options) };
        (Cluster::start_in(options, environment).await.unwrap(), dir)
    };
    let first = Arc::new(MemoryStore::new().unwrap());
    let (cluster, _dir) = start(first.clone()).await;
    let mut others = vec![];
    for _ in 0..3 {
        let store = Arc::new(first.fork(MemoryOptions::default()).await.unwrap());
        others.push((start(store.clone()).await, store));
    }
    let namespaces = Range::prefix("/registry/core/namespaces/");
    let before = first.range(namespaces.clone()).await.unwrap().kvs;
    for ((other, _dir), store) in others {
        assert_eq!(store.range(namespaces.clone()).await.unwrap().kvs, before);
        other.stop().await;
    }
    cluster.stop().await;
}

fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    // All objects, and so the first that is read.
    let objects: Vec<usize> =
        (0..bytes.len() - 9).filter(|at| bytes[*at..].starts_with(b"/registry")).collect();
    assert!(!objects.is_empty());
    objects.into_iter().for_each(|at| bytes[at + 12] ^= 1);
    fs::write(path, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_over_a_damaged_store_says_what_to_do() {
    let cluster = TestCluster::start_in(tempfile::tempdir().unwrap(), 0, StoreKind::Disk).await;
    let dir = cluster.stop().await;
    damage(&dir.path().join("store/store.redb"));
    let options = Options { listen: SocketAddr::from(([127, 0, 0, 1], 0)), ..Options::new(dir.path()) };
    let error = Cluster::start(options).await.err().unwrap().to_string();
    for part in ["store is corrupt", "kaji store check --data-dir", "kaji store salvage"] {
        assert!(error.contains(part), "{error}");
    }
}
