//! Bootstrap tokens, end to end: created by the command, listed, the public cluster information signed with them, and
//! the signature gone with the token.

use crate::common::TestCluster;
use futures_util::TryStreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kaji::token::{ClusterAt, Create, TokenCommand, run};
use kaji_meta::random::SystemRandom;
use kaji_runtime::Client;
use kube::{
    Api,
    api::{WatchEvent, WatchParams},
};
use std::time::Duration;

async fn until(api: &Api<ConfigMap>, done: impl Fn(&ConfigMap) -> bool) -> ConfigMap {
    let only = WatchParams::default().fields("metadata.name=cluster-info");
    let watched = async {
        let mut events = std::pin::pin!(api.watch(&only, "0").await.unwrap());
        while let Some(event) = events.try_next().await.unwrap() {
            if let WatchEvent::Added(map) | WatchEvent::Modified(map) = event
                && done(&map)
            {
                return map;
            }
        }
        panic!("the watch ended")
    };
    tokio::time::timeout(Duration::from_secs(60), watched).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_sign_what_is_public() {
    let cluster = TestCluster::start(1).await;
    let kube = cluster.kube().await;
    let client = Client::new(kube.clone(), "kaji");
    let at = ClusterAt { server: cluster.cluster.url().parse().unwrap(), authorities: vec![] };
    let now = jiff::Timestamp::now();
    let create = |token: Option<&str>| {
        TokenCommand::Create(Create {
            token: token.map(str::to_owned),
            ttl: "24h".into(),
            usages: vec!["signing".into(), "authentication".into()],
            groups: vec!["system:bootstrappers:kubeadm:default-node-token".into()],
            description: "a test's".into(),
            print_join_command: false,
        })
    };
    let run = async |command: TokenCommand| {
        run(&command, &client, &at, now, &SystemRandom).await.map_err(|e| e.to_string())
    };
    let fixed = "abcdef.0123456789abcdef";
    assert_eq!(run(create(Some(fixed))).await.unwrap(), format!("{fixed}\n"));
    assert_eq!(run(create(Some(fixed))).await.unwrap_err(), "a token with id \"abcdef\" already exists");
    let random = run(create(None)).await.unwrap();
    let listed = run(TokenCommand::List).await.unwrap();
    assert!(
        listed.contains(fixed) && listed.contains(random.trim_end()) && listed.contains("a test's"),
        "{listed}"
    );

    let maps: Api<ConfigMap> = Api::namespaced(kube, "kube-public");
    let key = "jws-kubeconfig-abcdef";
    let signed = until(&maps, |m| m.data.as_ref().is_some_and(|d| d.contains_key(key))).await.data.unwrap();
    assert!(signed[key].starts_with("eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9.."), "{signed:?}");
    assert!(signed["kubeconfig"].contains(&cluster.cluster.url()));

    let deleted = run(TokenCommand::Delete { tokens: vec![fixed.into()] }).await.unwrap();
    assert_eq!(deleted, "bootstrap token \"abcdef\" deleted\n");
    let unsigned =
        until(&maps, |m| m.data.as_ref().is_some_and(|d| !d.contains_key(key))).await.data.unwrap();
    assert_eq!(unsigned["kubeconfig"], signed["kubeconfig"]);
    drop((maps, client));
    cluster.stop().await;
}
