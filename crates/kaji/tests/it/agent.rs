//! Nodes that join over the network, end to end: recognized by token and pinned key, with a certificate of their own that
//! is renewed while they run; and every reason for which a node is turned away.

use crate::common::TestCluster;
use futures_util::TryStreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    certificates::v1::CertificateSigningRequest,
    coordination::v1::Lease,
    core::v1::{Node, Pod, Secret},
    rbac::v1::ClusterRoleBinding,
};
use kaji::{
    Nodes, StoreKind,
    agent::{Agent, AgentError, AgentOptions},
    token::{ClusterAt, Create, TokenCommand, run},
};
use kaji_meta::{random::SystemRandom, time::Clock};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::{fmt::Debug, os::unix::fs::PermissionsExt, path::Path, sync::Arc, time::Duration};

/// A control plane with controllers and scheduler, and without nodes.
async fn control_plane() -> TestCluster {
    let dir = tempfile::tempdir().unwrap();
    TestCluster::start_over(dir, 0, StoreKind::Memory, |options| {
        options.nodes = Nodes::None;
        options.controllers = true;
    })
    .await
}

/// Waits until an object is as wanted.
async fn until<K>(api: &Api<K>, selector: &str, done: impl Fn(&K) -> bool) -> K
where
    K: Clone + Debug + DeserializeOwned,
{
    let only = WatchParams::default().fields(selector);
    let watched = async {
        let mut events = std::pin::pin!(api.watch(&only, "0").await.unwrap());
        while let Some(event) = events.try_next().await.unwrap() {
            if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event
                && done(&object)
            {
                return object;
            }
        }
        panic!("the watch ended")
    };
    tokio::time::timeout(Duration::from_secs(60), watched).await.unwrap()
}

fn named(name: &str) -> String {
    format!("metadata.name={name}")
}

/// What `kaji token create --print-join-command` says: server, token, hash.
async fn join_command(cluster: &TestCluster, token: Option<&str>, usages: &[&str]) -> [String; 3] {
    let config = kube::config::Kubeconfig::read_from(&cluster.kubeconfig).unwrap();
    let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
    let groups = if usages.contains(&"authentication") {
        vec!["system:bootstrappers:kubeadm:default-node-token".to_owned()]
    } else {
        vec![]
    };
    let command = TokenCommand::Create(Create {
        token: token.map(str::to_owned),
        ttl: "1h".into(),
        usages: usages.iter().map(|u| (*u).to_owned()).collect(),
        groups,
        description: String::new(),
        print_join_command: true,
    });
    let client = kaji_runtime::Client::new(cluster.kube().await, "kaji");
    let printed =
        run(&command, &client, &ClusterAt::of(&config), Timestamp::now(), &SystemRandom).await.unwrap();
    let words: Vec<&str> = printed.split_whitespace().collect();
    let ["kaji", "agent", "--join", server, "--token", token, "--discovery-token-ca-cert-hash", hash] =
        words[..]
    else {
        panic!("{printed}")
    };
    [server, token, hash].map(str::to_owned)
}

const BOTH: &[&str] = &["signing", "authentication"];

fn options([server, token, hash]: &[String; 3], node: &str, dir: &Path) -> AgentOptions {
    AgentOptions { token: token.clone(), hashes: vec![hash.clone()], ..AgentOptions::new(server, node, dir) }
}

async fn refusal(options: AgentOptions) -> String {
    match Agent::start(options).await {
        Ok(_) => panic!("joined"),
        Err(error) => error.to_string(),
    }
}

fn node_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Creates a pod and waits until it is ready.
async fn pod_runs(kube: &Client, name: &str) -> Pod {
    let pods: Api<Pod> = Api::namespaced(kube.clone(), "default");
    let pod = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    // The account of the namespace is made by a controller, and admission asks for it.
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(kube.clone(), "default");
    until(&accounts, &named("default"), |_| true).await;
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    until(&pods, &named(name), |pod| {
        let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
    })
    .await
}

fn certificate_file(dir: &Path) -> std::path::PathBuf {
    dir.join("pki/kubelet-client-current.pem")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_joins_and_its_pods_run() {
    let cluster = control_plane().await;
    let kube = cluster.kube().await;
    let dir = tempfile::tempdir().unwrap();
    let join = join_command(&cluster, None, BOTH).await;
    let agent = Agent::start(options(&join, "worker-1", dir.path())).await.unwrap();

    let requests: Api<CertificateSigningRequest> = Api::all(kube.clone());
    let request = requests.list(&Default::default()).await.unwrap().items.remove(0);
    assert_eq!(request.spec.username, Some(format!("system:bootstrap:{}", &join[1][..6])));
    assert!(request.spec.groups.unwrap().contains(&"system:bootstrappers:kubeadm:default-node-token".into()));
    let file = certificate_file(dir.path());
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let nodes: Api<Node> = Api::all(kube.clone());
    until(&nodes, &named("worker-1"), node_ready).await;
    let pod = pod_runs(&kube, "first").await;
    assert_eq!(pod.spec.unwrap().node_name.as_deref(), Some("worker-1"));
    assert!(pod.status.unwrap().pod_ip.unwrap().starts_with("10."));
    let leases: Api<Lease> = Api::namespaced(kube.clone(), "kube-node-lease");
    let lease = until(&leases, &named("worker-1"), |_| true).await;
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some("worker-1"));

    // Another machine of the same name, the same machine under another name, and another cluster.
    let other = tempfile::tempdir().unwrap();
    assert_eq!(
        refusal(options(&join, "worker-1", other.path())).await,
        "a Node with name \"worker-1\" and status \"Ready\" already exists in the cluster. You must delete the existing \
         Node or change the name of this new joining Node"
    );
    let error = Agent::start(options(&join, "worker-2", dir.path())).await.err().unwrap();
    assert!(matches!(&error, AgentError::OtherNode { held, .. } if held == "worker-1"), "{error}");
    let wrong = [join[0].clone(), join[1].clone(), format!("sha256:{}", "0".repeat(64))];
    let error = Agent::start(options(&wrong, "worker-1", dir.path())).await.err().unwrap();
    assert!(matches!(&error, AgentError::Authority(_)), "{error}");

    // The node comes back without a token.
    agent.stop().await;
    let again = [join[0].clone(), String::new(), join[2].clone()];
    let before = std::fs::read_to_string(&file).unwrap();
    let agent = Agent::start(options(&again, "worker-1", dir.path())).await.unwrap();
    pod_runs(&kube, "second").await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
    agent.stop().await;
    drop((kube, requests, nodes, leases));
    cluster.stop().await;
}

/// A clock that stands where it was put.
struct Standing(Timestamp);

impl Clock for Standing {
    fn now(&self) -> Timestamp {
        self.0
    }
}

/// The requests that a node made for itself, signed.
fn renewal(node: &str) -> impl Fn(&CertificateSigningRequest) -> bool {
    let user = format!("system:node:{node}");
    move |csr| {
        csr.spec.username.as_deref() == Some(&user)
            && csr.status.as_ref().is_some_and(|s| s.certificate.is_some())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_share_no_range() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = TestCluster::start_over(dir, 0, StoreKind::Memory, |options| {
        options.nodes = Nodes::None;
        options.controllers = true;
        options.node_ranges.cluster_cidr = vec!["10.244.0.0/23".into(), "fd00:10:244::/56".into()];
    })
    .await;
    let kube = cluster.kube().await;
    let join = join_command(&cluster, None, BOTH).await;
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let start = |node: &'static str, i: usize| Agent::start(options(&join, node, dirs[i].path()));
    let (a, b) = tokio::join!(start("a", 0), start("b", 1));
    let nodes: Api<Node> = Api::all(kube.clone());
    let ranges = async |name: &str| {
        let has = |node: &Node| node.spec.as_ref().is_some_and(|s| s.pod_cidrs.is_some());
        until(&nodes, &named(name), has).await.spec.unwrap().pod_cidrs.unwrap()
    };
    let mut given = [ranges("a").await, ranges("b").await];
    let of_a = given[0].clone();
    given.sort();
    assert_eq!(given, [["10.244.0.0/24", "fd00:10:244::/64"], ["10.244.1.0/24", "fd00:10:244:1::/64"]]);

    // A pod has an address of each range of its node.
    let (pod, node) = (pod_runs(&kube, "first").await, |ip: &str| {
        ip.starts_with("10.244.0.") || ip.starts_with("10.244.1.")
    });
    let ips: Vec<String> = pod.status.unwrap().pod_ips.unwrap().into_iter().map(|ip| ip.ip).collect();
    assert!(node(&ips[0]) && ips[1].starts_with("fd00:10:244:"), "{ips:?}");

    // There is none left for a third, until one is gone.
    let c = start("c", 2).await.unwrap();
    let events: Api<k8s_openapi::api::core::v1::Event> = Api::namespaced(kube.clone(), "default");
    let event = until(&events, "reason=CIDRNotAvailable", |_| true).await;
    assert_eq!(event.message.as_deref(), Some("Node c status is now: CIDRNotAvailable"));
    assert_eq!(event.source.unwrap().component.as_deref(), Some("cidrAllocator"));
    a.unwrap().stop().await;
    nodes.delete("a", &Default::default()).await.unwrap();
    assert_eq!(ranges("c").await[0], of_a[0]);
    b.unwrap().stop().await;
    c.stop().await;
    drop((kube, nodes, events));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_renewed_while_the_node_runs() {
    let cluster = control_plane().await;
    let kube = cluster.kube().await;
    let requests: Api<CertificateSigningRequest> = Api::all(kube.clone());
    let dir = tempfile::tempdir().unwrap();
    let join = join_command(&cluster, None, BOTH).await;
    let agent = Agent::start(options(&join, "worker", dir.path())).await.unwrap();
    let first = agent.certificate().await;
    let due = agent.renew_at().await;
    assert!(!agent.renew(due - SignedDuration::from_secs(1)).await.unwrap());
    assert_eq!(agent.certificate().await, first);

    assert!(agent.renew(due).await.unwrap());
    let second = agent.certificate().await;
    assert_ne!(second, first);
    let kept = std::fs::read_to_string(certificate_file(dir.path())).unwrap();
    assert!(kept.starts_with(&second));
    let made = requests.list(&Default::default()).await.unwrap().items;
    assert_eq!(made.iter().filter(|csr| renewal("worker")(csr)).count(), 1);
    pod_runs(&kube, "after").await;

    // By itself, once the time has come: the clock of the second life says so.
    agent.stop().await;
    let names: Vec<String> = made.iter().map(ResourceExt::name_any).collect();
    let in_days = |days: i64| {
        let clock = Standing(Timestamp::now() + SignedDuration::from_hours(24 * days));
        AgentOptions { clock: Arc::new(clock), ..options(&join, "worker", dir.path()) }
    };
    // Of the year that certificates are good for, less than a tenth is left.
    let agent = Agent::start(in_days(345)).await.unwrap();
    until(&requests, "spec.signerName=kubernetes.io/kube-apiserver-client-kubelet", |csr| {
        renewal("worker")(csr) && !names.contains(&csr.name_any())
    })
    .await;
    // The answer waits for a renewal that is under way.
    let third = agent.certificate().await;
    assert_ne!(third, second);
    agent.stop().await;

    // After its end, the node may join again: it has the key of its former certificate. It cannot go on when the new one
    // has ended as well.
    let mut agent = Agent::start(in_days(400)).await.unwrap();
    assert_ne!(agent.certificate().await, third);
    let error = agent.failed().await;
    assert!(matches!(&error, AgentError::Expired(node) if node == "worker"), "{error}");
    agent.stop().await;
    drop((kube, requests));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejects_nodes_without_valid_credentials() {
    let cluster = control_plane().await;
    let kube = cluster.kube().await;
    let dir = tempfile::tempdir().unwrap();
    let fine = join_command(&cluster, Some("abcdef.0123456789abcdef"), BOTH).await;
    let with = |at: usize, text: &str| {
        let mut join = fine.clone();
        join[at] = text.to_owned();
        options(&join, "worker", dir.path())
    };
    let at_once = |at: usize, text: &str| AgentOptions { discovery: Duration::ZERO, ..with(at, text) };

    let hash = format!("sha256:{}", "0".repeat(64));
    assert_eq!(
        refusal(with(2, &hash)).await,
        format!(
            "cluster CA found in cluster-info ConfigMap is invalid: none of the public keys {:?} are pinned",
            fine[2]
        )
    );
    assert_eq!(
        refusal(with(1, "abcdef.fedcba9876543210")).await,
        "failed to verify JWS signature of received cluster info object, can't trust this API Server"
    );
    let unsigned = |id: &str| {
        format!(
            "could not find a JWS signature in the cluster-info ConfigMap for token ID {id:?}: the token is unknown to \
             this cluster, has expired or may not sign. Use \"kaji token create --print-join-command\" to create a new one"
        )
    };
    assert_eq!(refusal(at_once(1, "nobody.0123456789abcdef")).await, unsigned("nobody"));
    // Expired: it is not signed with any more, and soon gone.
    let secrets: Api<Secret> = Api::namespaced(kube.clone(), "kube-system");
    let secret = json!({
        "metadata": {"name": "bootstrap-token-oldold"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": "oldold",
            "token-secret": "0123456789abcdef",
            "expiration": "2020-01-01T00:00:00Z",
            "usage-bootstrap-signing": "true",
            "usage-bootstrap-authentication": "true",
        },
    });
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    assert_eq!(refusal(at_once(1, "oldold.0123456789abcdef")).await, unsigned("oldold"));
    join_command(&cluster, Some("noauth.0123456789abcdef"), &["signing"]).await;
    assert_eq!(
        refusal(with(1, "noauth.0123456789abcdef")).await,
        "the cluster does not accept the bootstrap token with ID \"noauth\": it has expired, was deleted or is not for \
         authentication"
    );

    // A port without a listener.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = refusal(at_once(0, &free.to_string())).await;
    assert!(
        error.starts_with(&format!("failed to request the cluster-info ConfigMap from {free}: ")),
        "{error}"
    );
    for (at, text) in [(0, "localhost"), (1, "abcdef"), (2, "md5:00")] {
        let error = Agent::start(at_once(at, text)).await.err().unwrap();
        assert!(matches!(error, AgentError::Usage(_)), "{error}");
    }
    let error = Agent::start(options(&fine, "Not_A_Name", dir.path())).await.err().unwrap();
    assert!(matches!(error, AgentError::Usage(_)), "{error}");
    assert!(!certificate_file(dir.path()).exists());
    drop((kube, secrets));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_request_is_said_to_be_denied() {
    let cluster = control_plane().await;
    let kube = cluster.kube().await;
    let dir = tempfile::tempdir().unwrap();
    let join = join_command(&cluster, None, BOTH).await;
    // The cluster does not approve automatically then.
    let bindings: Api<ClusterRoleBinding> = Api::all(kube.clone());
    bindings.delete("kubeadm:node-autoapprove-bootstrap", &Default::default()).await.unwrap();
    let requests: Api<CertificateSigningRequest> = Api::all(kube.clone());
    let deny = async {
        let all = "spec.signerName=kubernetes.io/kube-apiserver-client-kubelet";
        let name = until(&requests, all, |_| true).await.name_any();
        let body = json!({"status": {"conditions": [
            {"type": "Denied", "status": "True", "reason": "KubectlDeny", "message": "not on my watch"}]}});
        requests
            .patch_subresource("approval", &name, &PatchParams::default(), &Patch::Merge(body))
            .await
            .unwrap();
        name
    };
    let (refused, name) = tokio::join!(refusal(options(&join, "worker", dir.path())), deny);
    assert_eq!(
        refused,
        format!(
            "certificate signing request {name:?} is denied, reason: KubectlDeny, message: not on my watch"
        )
    );
    assert!(!dir.path().join("pki/kubelet-client.key.tmp").exists(), "the next try asks anew");
    let nodes: Api<Node> = Api::all(kube.clone());
    assert_eq!(nodes.list(&Default::default()).await.unwrap().items.len(), 0);
    drop((kube, requests, nodes, bindings));
    cluster.stop().await;
}
