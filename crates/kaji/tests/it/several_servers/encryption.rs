//! Encryption at rest at two servers: keys are exchanged while both serve, and metrics show whether both have the same file.

use super::Servers;
use crate::{
    common::{TestCluster, reloaded, until},
    etcd::raw,
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kaji::{EncryptionFile, Options};
use kaji_testing::ports;
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use serde_json::json;
use std::path::Path;

const K1: &str = "{name: k1, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}";
const K2: &str = "{name: k2, secret: //79/Pv6+fj39vX08/Lx8O/u7ezr6uno5+bl5OPi4eA=}";

/// Replaces the file in one step.
fn put(dir: &Path, keys: &[&str]) {
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
         providers: [{{aesgcm: {{keys: [{}]}}}}]\n",
        keys.join(", ")
    );
    std::fs::write(dir.join("new.yaml"), text).unwrap();
    std::fs::rename(dir.join("new.yaml"), dir.join("encryption.yaml")).unwrap();
}

/// Both servers, with the first key, on ports that their identities follow from.
async fn started(test: &str) -> Option<Servers> {
    Servers::with(test, |options: &mut Options, dir| {
        put(dir, &[K1]);
        options.listen.set_port(ports::outside_ephemeral_range());
        options.encryption = Some(EncryptionFile { path: dir.join("encryption.yaml"), follow: true });
    })
    .await
}

/// Gives a server a configuration, and waits until it has that.
async fn configure(server: &TestCluster, keys: &[&str], times: u32) {
    put(server.kubeconfig.parent().unwrap(), keys);
    reloaded(&server.cluster, "encryption", "success", times).await;
}

/// The labels of the configuration that a server has: its own identity, and the file's hash.
fn configured(server: &TestCluster) -> (String, String) {
    let stack = &server.cluster.stack;
    let page = stack.metrics.render(&stack.engine, &stack.flow);
    let name = "apiserver_encryption_config_controller_last_config_info{";
    let lines: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(name)).collect();
    let [line] = lines[..] else { panic!("{lines:?}") };
    let label = |name: &str| {
        let begins = format!("{name}=\"");
        let value = line.split([',', '}']).find_map(|part| part.strip_prefix(&begins));
        value.unwrap().trim_end_matches('"').to_owned()
    };
    assert!(line.ends_with("} 1"), "{line}");
    (label("apiserver_id_hash"), label("hash"))
}

fn secret(name: &str) -> Secret {
    serde_json::from_value(json!({"metadata": {"name": name}, "stringData": {"name": name}})).unwrap()
}

/// The secrets of a server by their names, which are their values.
async fn read(secrets: &Api<Secret>) -> Vec<String> {
    let all = secrets.list(&ListParams::default()).await.unwrap().items;
    let value = |secret: Secret| String::from_utf8(secret.data.unwrap()["name"].0.clone()).unwrap();
    all.into_iter().map(value).collect()
}

/// The steps in the wrong order: one server writes with a key that the other one does not have yet. Only secrets cannot be read there
/// meanwhile, which is said at once, and none is shown as absent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_gets_a_key_late_goes_on() {
    let Some(servers) = started("a_server_that_gets_a_key_late_goes_on").await else { return };
    let clients: [Api<Secret>; 2] =
        [Api::default_namespaced(servers.a.kube().await), Api::default_namespaced(servers.b.kube().await)];
    clients[1].create(&PostParams::default(), &secret("a")).await.unwrap();
    configure(&servers.a, &[K2, K1], 1).await;
    clients[0].create(&PostParams::default(), &secret("b")).await.unwrap();
    let refused = clients[1].get_opt("b").await.unwrap_err().to_string();
    assert!(refused.contains("unable to transform key"), "{refused}");
    let maps: Api<ConfigMap> = Api::default_namespaced(servers.b.kube().await);
    let map = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    assert!(maps.get("a").await.is_ok());
    configure(&servers.b, &[K1, K2], 1).await;
    until("the other reads it", async || clients[1].get_opt("b").await.is_ok_and(|found| found.is_some()))
        .await;
    assert_eq!(read(&clients[1]).await, ["a", "b"]);
    clients[1].create(&PostParams::default(), &secret("c")).await.unwrap();
    assert_eq!(read(&clients[0]).await, ["a", "b", "c"]);
    drop((clients, maps));
    servers.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_exchanged_while_both_servers_serve() {
    let Some(servers) = started("keys_are_exchanged_while_both_servers_serve").await else { return };
    let clients: [Api<Secret>; 2] =
        [Api::default_namespaced(servers.a.kube().await), Api::default_namespaced(servers.b.kube().await)];
    let mut names = vec![];
    // Each server writes one, and each reads all.
    let mut exchange = async |step: &str| {
        for (server, secrets) in clients.iter().enumerate() {
            names.push(format!("{step}-{server}"));
            secrets.create(&PostParams::default(), &secret(names.last().unwrap())).await.unwrap();
        }
        for secrets in &clients {
            assert_eq!(read(secrets).await, names, "{step}");
        }
    };
    exchange("a").await;
    assert_ne!(configured(&servers.a).0, configured(&servers.b).0);
    for (times, (step, keys)) in (1..).zip([("b", &[K1, K2][..]), ("c", &[K2, K1][..])]) {
        configure(&servers.a, keys, times).await;
        assert_ne!(configured(&servers.a).1, configured(&servers.b).1);
        exchange(&format!("{step}-first")).await;
        configure(&servers.b, keys, times).await;
        assert_eq!(configured(&servers.a).1, configured(&servers.b).1);
        exchange(&format!("{step}-second")).await;
    }
    for name in clients[1].list(&ListParams::default()).await.unwrap().items {
        let name = name.metadata.name.unwrap();
        let found = clients[0].get(&name).await.unwrap();
        clients[1].replace(&name, &PostParams::default(), &found).await.unwrap();
    }
    for (_, value) in raw(&servers.etcd, "/registry/secrets/default/").await {
        assert!(value.starts_with(b"k8s:enc:aesgcm:v1:k2:"));
    }
    configure(&servers.a, &[K2], 3).await;
    exchange("d-first").await;
    configure(&servers.b, &[K2], 3).await;
    exchange("d-second").await;
    assert_eq!(configured(&servers.a).1, configured(&servers.b).1);
    drop(clients);
    servers.stop().await;
}
