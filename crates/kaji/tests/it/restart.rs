//! A cluster that is stopped and started again over its directory: objects, revisions, certificates and custom resources
//! are as they were, and watches resume across the gap.

use crate::common::TestCluster;
use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Service},
    storage::v1::StorageClass,
};
use kaji::{Cluster, Nodes, Options, StoreKind};
use kaji_resource::Verb;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_there_again() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = TestCluster::start_in(dir, 0, StoreKind::Disk).await;
    let client = cluster.kube().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let map: ConfigMap =
        serde_json::from_value(json!({"metadata": {"name": "a"}, "data": {"k": "1"}})).unwrap();
    let first = maps.create(&PostParams::default(), &map).await.unwrap();
    maps.patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "2"}}))).await.unwrap();
    let services: Api<Service> = Api::default_namespaced(client);
    let service: Service =
        serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}))
            .unwrap();
    let address = services.create(&PostParams::default(), &service).await.unwrap().spec.unwrap().cluster_ip;
    let authority = cluster.cluster.pki.ca.certificate.clone();
    drop((maps, services));

    let dir = cluster.stop().await;
    let cluster = TestCluster::start_in(dir, 0, StoreKind::Disk).await;
    assert_eq!(cluster.cluster.pki.ca.certificate, authority);
    let client = cluster.kube().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    assert_eq!(maps.get("a").await.unwrap().data.unwrap()["k"], "2");
    let services: Api<Service> = Api::default_namespaced(client);
    assert_eq!(services.get("s").await.unwrap().spec.unwrap().cluster_ip, address);
    assert!(services.get("kubernetes").await.is_ok());
    // The change was made before the restart, the watch asks after it.
    let from = first.metadata.resource_version.unwrap();
    let mut events = maps.watch(&WatchParams::default(), &from).await.unwrap().boxed();
    let event =
        tokio::time::timeout(Duration::from_secs(30), events.try_next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(event, WatchEvent::Modified(cm) if cm.data.as_ref().unwrap()["k"] == "2"));
    drop((events, maps, services));
    cluster.stop().await;
}

/// What is public was split off the binding of discovery: where it is missing, it gets the restrictions of that one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restrictions_of_discovery_hold_for_what_was_split_off() {
    const BINDINGS: &str = "rbac.authorization.k8s.io/v1/clusterrolebindings";
    let (discovery, public) =
        (format!("{BINDINGS}/system:discovery"), format!("{BINDINGS}/system:public-info-viewer"));
    let cluster = TestCluster::start_in(tempfile::tempdir().unwrap(), 0, StoreKind::Disk).await;
    let api = crate::common::api::Api(&cluster);
    let subjects = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}]);
    let restrict = json!([{"op": "replace", "path": "/subjects", "value": subjects},
        {"op": "replace", "path": "/metadata/annotations/rbac.authorization.kubernetes.io~1autoupdate", "value": "false"}]);
    api.ok(Verb::Patch, &discovery, restrict).await;
    api.ok(Verb::Delete, &public, Value::Null).await;
    let cluster = TestCluster::start_in(cluster.stop().await, 0, StoreKind::Disk).await;
    let api = crate::common::api::Api(&cluster);
    let found = api.ok(Verb::Get, &public, Value::Null).await;
    assert_eq!(
        (&found["subjects"], &found["roleRef"]["name"]),
        (&subjects, &json!("system:public-info-viewer"))
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_takes_longer_than_it_may_leaves_the_store_closed() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options { nodes: Nodes::None, controllers: false, ..Options::new(dir.path()) };
    options.listen.set_port(0);
    options.startup.storage_initialization = Some(Duration::ZERO);
    let error = Cluster::start(options).await.err().unwrap();
    let text = "the objects were not read within 0ns (--storage-initialization-timeout)";
    assert_eq!(error.to_string(), text);
    // Nothing is written any more.
    let certificate = dir.path().join("pki/apiserver.crt");
    assert!(certificate.exists(), "the certificates are still being made");
    TestCluster::start_in(dir, 0, StoreKind::Disk).await.stop().await;
}

/// A choice of the administrator's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_default_storage_class_that_was_deleted_stays_away() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = TestCluster::start_in(dir, 1, StoreKind::Disk).await;
    let classes: Api<StorageClass> = Api::all(cluster.kube().await);
    assert_eq!(classes.get("local-path").await.unwrap().provisioner, "kaji.dev/local-path");
    classes.delete("local-path", &DeleteParams::default()).await.unwrap();
    drop(classes);
    let dir = cluster.stop().await;
    let cluster = TestCluster::start_in(dir, 1, StoreKind::Disk).await;
    let classes: Api<StorageClass> = Api::all(cluster.kube().await);
    assert!(classes.get_opt("local-path").await.unwrap().is_none());
    drop(classes);
    cluster.stop().await;
}

/// A directory that was made, or unpacked, by something that knows no umask.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_existing_data_directory_is_closed_to_other_users() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let dir = TestCluster::start_in(dir, 0, StoreKind::Disk).await.stop().await;
    let chmod = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let files = |dir: &Path| -> Vec<PathBuf> {
        ["store", "pki"]
            .iter()
            .flat_map(|sub| std::fs::read_dir(dir.join(sub)).unwrap())
            .map(|entry| entry.unwrap().path())
            .collect()
    };
    files(dir.path()).iter().for_each(|file| chmod(file, 0o666));
    ["store", "pki", "."].iter().for_each(|sub| chmod(&dir.path().join(sub), 0o777));

    let dir = TestCluster::start_in(dir, 0, StoreKind::Disk).await.stop().await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(["store", "pki", "."].map(|sub| mode(&dir.path().join(sub))), [0o700, 0o700, 0o755]);
    for file in files(dir.path()) {
        // Public keys and certificates may be read; in a closed directory that is nothing to other users.
        let public = file.extension().is_some_and(|e| e == "crt" || e == "pub");
        assert!(public || mode(&file) == 0o600, "{file:?} {:o}", mode(&file));
    }
}

/// A second IP family is added to the default range; services of both families get their addresses then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_default_range_gets_a_second_family() {
    let ranges = |cidrs: &'static [&'static str]| {
        move |options: &mut Options| options.service_cidrs = cidrs.iter().map(|c| (*c).to_owned()).collect()
    };
    let (one, two) = (&["10.97.0.0/24"][..], &["10.97.0.0/24", "fd00:10:97::/112"][..]);
    let cluster =
        TestCluster::start_over(tempfile::tempdir().unwrap(), 0, StoreKind::Disk, ranges(one)).await;
    let dir = cluster.stop().await;
    let cluster = TestCluster::start_over(dir, 0, StoreKind::Disk, ranges(two)).await;
    let api = crate::common::api::Api(&cluster);
    let range = api.ok(Verb::Get, "networking.k8s.io/v1/servicecidrs/kubernetes", Value::Null).await;
    assert_eq!(range["spec"]["cidrs"], json!(two));
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "both"},
        "spec": {"ipFamilyPolicy": "RequireDualStack", "ports": [{"port": 80}]}});
    let made = api.ok(Verb::Create, "/v1/services?namespace=default", service).await;
    assert_eq!(made["spec"]["clusterIPs"].as_array().map(Vec::len), Some(2));
    cluster.stop().await;
}
