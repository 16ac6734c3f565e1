//! Clusters with their objects in etcd: upstream's keys, several servers over the same objects, outages.

use crate::common::{TestCluster, until};
use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Endpoints as ServiceEndpoints, Secret, Service},
    discovery::v1::EndpointSlice,
};
use kaji::{EncryptionFile, EtcdConfig, StorageMediaType, StoreKind};
use kaji_etcd::{Endpoints, EtcdOptions, EtcdStore, KeyMap, TlsFiles};
use kaji_store::{Range, Store};
use kaji_testing::etcd::Etcd;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use std::time::Duration;

fn endpoints(etcd: &Etcd) -> Endpoints {
    Endpoints::new([etcd.url()], TlsFiles::default()).unwrap()
}

/// Objects in an etcd of a test.
pub fn store(etcd: &Etcd, media_type: StorageMediaType) -> StoreKind {
    StoreKind::Etcd(Box::new(EtcdConfig {
        endpoints: endpoints(etcd),
        prefix: "/registry".into(),
        compaction: None,
        media_type,
        readiness_timeout: Duration::from_secs(2),
    }))
}

async fn server(etcd: &Etcd) -> TestCluster {
    TestCluster::start_in(tempfile::tempdir().unwrap(), 0, store(etcd, StorageMediaType::Json)).await
}

/// A client of etcd's own keys and values.
pub async fn client(etcd: &Etcd) -> EtcdStore {
    let options = EtcdOptions { compaction: None, ..EtcdOptions::new(endpoints(etcd), KeyMap::plain("")) };
    EtcdStore::open(options).await.unwrap()
}

/// What etcd itself has.
pub async fn raw(etcd: &Etcd, prefix: &str) -> Vec<(String, Vec<u8>)> {
    let kvs = client(etcd).await.range(Range::prefix(prefix)).await.unwrap().kvs;
    kvs.into_iter().map(|kv| (kv.key.to_string(), kv.value.to_vec())).collect()
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": "0"}})).unwrap()
}

async fn ready(client: &Client) -> Result<String, kube::Error> {
    client.request_text(http::Request::get("/readyz").body(vec![]).unwrap()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_show_the_same_objects() {
    let Some(etcd) = Etcd::start("two_servers_show_the_same_objects") else { return };
    let (one, two) = (server(&etcd).await, server(&etcd).await);
    let maps: [Api<ConfigMap>; 2] =
        [Api::default_namespaced(one.kube().await), Api::default_namespaced(two.kube().await)];
    let first = maps[0].create(&PostParams::default(), &map("a")).await.unwrap();
    for i in 1..=60 {
        // Each writes in turn, and the other shows it at once.
        let (writer, reader) = (&maps[i % 2], &maps[1 - i % 2]);
        let patch = Patch::Merge(json!({"data": {"k": i.to_string()}}));
        let written = writer.patch("a", &PatchParams::default(), &patch).await.unwrap();
        let read = reader.get("a").await.unwrap();
        assert_eq!(read.metadata.resource_version, written.metadata.resource_version);
        let list = reader.list(&ListParams::default()).await.unwrap();
        assert!(list.items.iter().any(|m| m.metadata.resource_version == written.metadata.resource_version));
    }
    let from = first.metadata.resource_version.unwrap();
    let mut events = maps[1].watch(&WatchParams::default(), &from).await.unwrap().boxed();
    for i in 1..=60 {
        let next = tokio::time::timeout(Duration::from_secs(30), events.try_next()).await.unwrap();
        let Some(WatchEvent::Modified(seen)) = next.unwrap() else { panic!("another event") };
        assert_eq!(seen.data.unwrap()["k"], i.to_string());
    }
    maps[0].delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(maps[1].get_opt("a").await.unwrap(), None);
    let keys = raw(&etcd, "/registry/configmaps/kube-system/").await;
    assert!(keys.iter().any(|(key, value)| {
        key == "/registry/configmaps/kube-system/extension-apiserver-authentication"
            && value.starts_with(br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"#)
    }));
    drop((maps, events));
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_etcd_is_reported_and_ends() {
    let Some(mut etcd) = Etcd::start("an_outage_of_etcd_is_reported_and_ends") else { return };
    let cluster = server(&etcd).await;
    let client = cluster.kube().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let first = maps.create(&PostParams::default(), &map("a")).await.unwrap();
    let from = first.metadata.resource_version.unwrap();
    let mut events = maps.watch(&WatchParams::default(), &from).await.unwrap().boxed();
    ready(&client).await.unwrap();
    etcd.kill();
    assert!(ready(&client).await.is_err());
    etcd.run();
    until("the server is ready again", async || ready(&client).await.is_ok()).await;
    let patch = Patch::Merge(json!({"data": {"k": "1"}}));
    let written = maps.patch("a", &PatchParams::default(), &patch).await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(30), events.try_next()).await.unwrap();
    let Some(WatchEvent::Modified(seen)) = next.unwrap() else { panic!("another event") };
    assert_eq!(seen.metadata.resource_version, written.metadata.resource_version);
    drop((maps, events, client));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_are_encrypted_and_binary_as_upstreams_are() {
    let Some(etcd) = Etcd::start("values_are_encrypted_and_binary_as_upstreams_are") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("encryption.yaml");
    let key = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
         providers: [{{aesgcm: {{keys: [{{name: k, secret: {key}}}]}}}}]\n"
    );
    std::fs::write(&path, text).unwrap();
    let kind = store(&etcd, StorageMediaType::Protobuf);
    let cluster = TestCluster::start_over(dir, 0, kind, |options| {
        options.encryption = Some(EncryptionFile { path, follow: false });
    })
    .await;
    let client = cluster.kube().await;
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let secret =
        serde_json::from_value(json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}})).unwrap();
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    maps.create(&PostParams::default(), &map("a")).await.unwrap();
    assert_eq!(secrets.get("s").await.unwrap().data.unwrap()["a"].0, b"b");
    assert_eq!(maps.get("a").await.unwrap().data.unwrap()["k"], "0");
    let stored = raw(&etcd, "/registry/secrets/default/").await;
    assert_eq!(stored[0].0, "/registry/secrets/default/s");
    assert!(stored[0].1.starts_with(b"k8s:enc:aesgcm:v1:k:"));
    let stored = raw(&etcd, "/registry/configmaps/default/a").await;
    assert!(stored[0].1.starts_with(b"k8s\0\n\x0f\n\x02v1\x12\tConfigMap"), "{:?}", stored[0]);
    drop((secrets, maps));
    cluster.stop().await;
}

/// Servers with addresses of their own.
async fn server_at(etcd: &Etcd, address: &str) -> TestCluster {
    let kind = store(etcd, StorageMediaType::Json);
    let advertised = address.parse().unwrap();
    TestCluster::start_over(tempfile::tempdir().unwrap(), 0, kind, |options| {
        options.advertise_address = Some(advertised);
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_know_of_each_other() {
    let Some(etcd) = Etcd::start("servers_know_of_each_other") else { return };
    let one = server_at(&etcd, "10.1.0.1").await;
    let client = one.kube().await;
    let endpoints: Api<ServiceEndpoints> = Api::default_namespaced(client.clone());
    let first = endpoints.get("kubernetes").await.unwrap();
    let two = server_at(&etcd, "10.1.0.2").await;
    let addresses = async || {
        let found = endpoints.get("kubernetes").await.unwrap();
        assert_eq!(found.metadata.uid, first.metadata.uid);
        let listed =
            found.subsets.unwrap_or_default().into_iter().flat_map(|s| s.addresses.unwrap_or_default());
        listed.map(|address| address.ip).collect::<Vec<_>>()
    };
    assert_eq!(addresses().await, ["10.1.0.1", "10.1.0.2"]);
    let slices: Api<EndpointSlice> = Api::default_namespaced(client.clone());
    assert_eq!(slices.get("kubernetes").await.unwrap().endpoints.unwrap_or_default().len(), 2);
    let keys = raw(&etcd, "/registry/masterleases/").await;
    assert_eq!(keys.len(), 2);
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    let of_servers = ListParams::default().labels("apiserver.kubernetes.io/identity=kube-apiserver");
    until("both have their leases", async || leases.list(&of_servers).await.unwrap().items.len() == 2).await;
    two.stop().await;
    assert_eq!(addresses().await, ["10.1.0.1"]);
    drop((endpoints, slices, leases, client));
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_never_give_one_node_port_twice() {
    let Some(etcd) = Etcd::start("servers_never_give_one_node_port_twice") else { return };
    let (one, two) = (server(&etcd).await, server(&etcd).await);
    let clients = [one.kube().await, two.kube().await];
    // Both ask for the same ports at the same time.
    let mut tasks = tokio::task::JoinSet::new();
    for port in 30100..30120_u16 {
        for (server, client) in clients.iter().cloned().enumerate() {
            tasks.spawn(async move {
                let service: Service =
                    serde_json::from_value(json!({"metadata": {"name": format!("s{server}-{port}")},
                    "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}}))
                    .unwrap();
                Api::default_namespaced(client).create(&PostParams::default(), &service).await
            });
        }
    }
    let created = tasks.join_all().await;
    let (won, lost): (Vec<_>, Vec<_>) = created.into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (20, 20));
    for refused in lost {
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("provided port is already allocated"), "{text}");
    }
    let services: Api<Service> = Api::default_namespaced(clients[1].clone());
    // The record is upstream's, and a port that is given back can be had from the other server.
    assert!(raw(&etcd, "/registry/ranges/servicenodeports").await[0].1.starts_with(b"k8s\0"));
    let all = services.list(&ListParams::default()).await.unwrap();
    let name = all.items.iter().find(|s| s.metadata.name.as_deref().unwrap().ends_with("30100")).unwrap();
    services.delete(name.metadata.name.as_deref().unwrap(), &DeleteParams::default()).await.unwrap();
    let again: Service = serde_json::from_value(json!({"metadata": {"name": "again"},
        "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30100}]}}))
    .unwrap();
    let others: Api<Service> = Api::default_namespaced(clients[0].clone());
    others.create(&PostParams::default(), &again).await.unwrap();
    drop((services, others, clients));
    one.stop().await;
    two.stop().await;
}
