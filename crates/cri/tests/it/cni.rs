//! The network plug-in against the node's end of it.

use expect_test::expect;
use kaji_containers::{BoxFuture, NetworkSetup, PodAddresses, PodNetwork, RuntimeError};
use kaji_cri::cni::{Answer, plugin, server};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// A network that notes what it is asked for.
#[derive(Default)]
struct Noted {
    calls: Mutex<Vec<String>>,
    unavailable: Mutex<Option<String>>,
}

impl Noted {
    fn note(&self, call: &str, setup: &NetworkSetup) {
        let pod = format!("{}/{}/{}", setup.metadata.namespace, setup.metadata.name, setup.metadata.uid);
        let ports: Vec<u16> = setup.port_mappings.iter().map(|port| port.host_port).collect();
        let text = format!(
            "{call} {} {pod} {} {ports:?} {:?}",
            setup.sandbox_id,
            setup.namespace.display(),
            setup.annotations
        );
        self.calls.lock().unwrap().push(text);
    }
}

impl PodNetwork for Noted {
    fn unavailable_reason(&self) -> BoxFuture<'_, Option<String>> {
        let reason = self.unavailable.lock().unwrap().clone();
        Box::pin(async { reason })
    }

    fn update_pod_cidrs(&self, _: Vec<String>) -> BoxFuture<'_, Result<(), RuntimeError>> {
        Box::pin(async { Ok(()) })
    }

    fn set_up(&self, setup: NetworkSetup) -> BoxFuture<'_, Result<PodAddresses, RuntimeError>> {
        self.note("set up", &setup);
        Box::pin(async { Ok(PodAddresses { addresses: vec!["10.1.0.2".parse().unwrap()] }) })
    }

    fn adopt(&self, setup: NetworkSetup) -> BoxFuture<'_, Result<PodAddresses, RuntimeError>> {
        self.note("adopt", &setup);
        Box::pin(async { Err(RuntimeError::Internal("no interface".into())) })
    }

    fn tear_down(&self, setup: NetworkSetup) -> BoxFuture<'_, Result<(), RuntimeError>> {
        self.note("tear down", &setup);
        Box::pin(async { Ok(()) })
    }

    fn sweep(&self, _: Vec<String>) -> BoxFuture<'_, Result<(), RuntimeError>> {
        Box::pin(async { Ok(()) })
    }
}

/// Runs the plug-in as a runtime does.
async fn call(socket: PathBuf, command: &str, namespace: &str) -> Answer {
    let variables: BTreeMap<&str, String> = [
        ("CNI_COMMAND", command.to_owned()),
        ("CNI_CONTAINERID", "s1".to_owned()),
        ("CNI_NETNS", namespace.to_owned()),
        ("CNI_IFNAME", "eth0".to_owned()),
        ("CNI_ARGS", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_UID=u-1".to_owned()),
    ]
    .into();
    let config = serde_json::json!({"cniVersion": "1.0.0", "name": "kaji", "type": "kaji", "socket": socket,
        "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
            "bandwidth": {"egressRate": 1000}}});
    let run = move || {
        plugin::run(&|name| variables.get(name).cloned().unwrap_or_default(), config.to_string().as_bytes())
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

fn text(answer: &Answer) -> String {
    serde_json::to_string(answer).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_runtime_gets_pods_into_the_nodes_network() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("network/cni.sock");
    let network = Arc::new(Noted::default());
    let serving = tokio::spawn(server::serve(server::bind(&socket).unwrap(), network.clone()));
    let mut answers = vec![];
    for (command, namespace) in [("ADD", "/run/netns/a"), ("CHECK", "/run/netns/a"), ("DEL", ""), ("X", "")] {
        answers.push(text(&call(socket.clone(), command, namespace).await));
    }
    *network.unavailable.lock().unwrap() = Some("no range of addresses yet".into());
    answers.push(text(&call(socket.clone(), "ADD", "/run/netns/a").await));
    expect![[r#"
        {"done":{"interfaces":[{"name":"eth0","sandbox":"/run/netns/a"}],"ips":[{"address":"10.1.0.2/32","interface":0}]}}
        {"failed":{"code":100,"msg":"no interface"}}
        {"done":null}
        {"failed":{"code":4,"msg":"unknown CNI_COMMAND: X"}}
        {"failed":{"code":11,"msg":"no range of addresses yet"}}"#]].assert_eq(&answers.join("\n"));
    expect![[r#"
        set up s1 default/web/u-1 /run/netns/a [8080] {"kubernetes.io/egress-bandwidth": "1000"}
        adopt s1 default/web/u-1 /run/netns/a [8080] {"kubernetes.io/egress-bandwidth": "1000"}
        tear down s1 default/web/u-1  [8080] {"kubernetes.io/egress-bandwidth": "1000"}"#]]
    .assert_eq(&network.calls.lock().unwrap().join("\n"));
    serving.abort();
    let _ = serving.await;
    // The node does not run now: the runtime tries again.
    assert!(text(&call(socket.clone(), "DEL", "").await).contains(r#""code":11"#));
    std::fs::remove_dir_all(socket.parent().unwrap_or(Path::new("/"))).unwrap();
    // Its directory is gone: so is the node, and its pods' interfaces.
    assert_eq!(text(&call(socket, "DEL", "").await), r#"{"done":null}"#);
}
