//! The registration of a CSI driver, to what the API shows of it.

use crate::csi_driver::CsiDriver;
use crate::fake::Fake;
use expect_test::expect;
use kaji_csi::registration::{self, PluginInfo, RegistrationStatus};
use kaji_grpc::{Router, bind, serve};
use kaji_kubelet::plugins::csi_node::CsiNode;
use kaji_kubelet::plugins::watcher::PluginWatcher;
use kaji_runtime::Client;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

const NODE: &str = "/api/v1/nodes/node-1";
const CSI_NODE: &str = "/apis/storage.k8s.io/v1/csinodes/node-1";

/// An API server with a node and its CSINode.
#[derive(Default)]
struct Api {
    node: Value,
    csi_node: Option<Value>,
    patches: Vec<String>,
}

impl Api {
    fn answer(&mut self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let absent = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "absent"});
        match (method, path) {
            ("GET", NODE) => (200, self.node.clone()),
            ("PATCH", NODE) => {
                self.patches.push(body["metadata"].to_string());
                (200, self.node.clone())
            }
            ("GET", CSI_NODE) => self.csi_node.clone().map_or((404, absent), |found| (200, found)),
            ("POST" | "PUT", _) => {
                self.csi_node = Some(body.clone());
                (200, body)
            }
            ("DELETE", CSI_NODE) => {
                self.csi_node = None;
                (200, json!({}))
            }
            _ => (404, absent),
        }
    }
}

fn client(api: Arc<Mutex<Api>>) -> Client {
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let api = api.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let (code, answer) = api.lock().unwrap().answer(head.method.as_str(), head.uri.path(), body);
            let body = kube::client::Body::from(answer.to_string().into_bytes());
            Ok::<_, std::convert::Infallible>(http::Response::builder().status(code).body(body).unwrap())
        }
    });
    Client::new(kube::Client::new(service, "default"), "kubelet")
}

/// A registrar: what it says, and what it gets.
fn registrar(
    socket: &Path,
    info: PluginInfo,
) -> (JoinHandle<()>, mpsc::UnboundedReceiver<RegistrationStatus>) {
    let (learned, statuses) = mpsc::unbounded_channel();
    let router = Router::default()
        .unary(registration::GET_INFO, move |_: registration::Empty| std::future::ready(Ok(info.clone())))
        .unary(registration::NOTIFY, move |status: RegistrationStatus| {
            learned.send(status).unwrap();
            std::future::ready(Ok(registration::Empty {}))
        });
    (tokio::spawn(serve(bind(socket).unwrap(), router)), statuses)
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what).await.unwrap()
}

#[tokio::test]
async fn a_driver_registers_is_shown_and_is_forgotten() {
    let fake = Fake::new();
    let node = json!({
        "metadata": {"name": "node-1", "uid": "node-uid", "labels": {"zone": "z"}, "annotations": {"csi.volume.kubernetes.io/nodeid": "{\"o\":\"1\"}"}},
    });
    *fake.objects.node.lock().unwrap() = Some(Arc::new(serde_json::from_value(node.clone()).unwrap()));
    // Of a node of the same name that was removed.
    let former = json!({
        "metadata": {"name": "node-1", "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "former"}]},
        "spec": {"drivers": []},
    });
    let api = Arc::new(Mutex::new(Api { node, csi_node: Some(former), patches: vec![] }));
    let clock: Arc<dyn kaji_meta::Clock> = Arc::new(kaji_meta::time::SystemClock);
    let csi_node = CsiNode::new(client(api.clone()), "node-1", fake.objects.clone(), clock.clone());
    let (root, csi) = (fake.cx.config.root_dir.clone(), fake.cx.volumes.csi_drivers().clone());
    let watcher = PluginWatcher::new(
        &root,
        csi.clone(),
        Arc::new(csi_node),
        fake.cx.devices.clone(),
        fake.cx.dra.clone(),
        clock,
    );
    let driver = CsiDriver::start(&root.join("plugins/d/csi.sock"), &root, &[]);
    driver.state.lock().unwrap().topology = [("zone".to_owned(), "z".to_owned())].into();
    let info = PluginInfo {
        kind: "CSIPlugin".into(),
        name: "d".into(),
        endpoint: driver.socket.display().to_string(),
        supported_versions: vec!["1.0.0".into()],
    };
    let socket = root.join("plugins_registry/d-reg.sock");
    let (server, mut statuses) = registrar(&socket, info);
    let (other, mut refusals) = registrar(
        &root.join("plugins_registry/other.sock"),
        PluginInfo { kind: "Odd".into(), ..Default::default() },
    );
    let running = tokio::spawn(watcher.run());
    assert!(within(statuses.recv()).await.unwrap().plugin_registered);
    assert!(csi.get("d").is_ok());
    let refused = within(refusals.recv()).await.unwrap();
    expect!["RegisterPlugin error -- no handler registered for plugin type: Odd at socket DIR/plugins_registry/other.sock"]
        .assert_eq(&refused.error.replace(&root.display().to_string(), "DIR"));
    let shown = |api: &Mutex<Api>| {
        let api = api.lock().unwrap();
        let object = api.csi_node.as_ref().unwrap();
        format!("{} {}", object["metadata"]["ownerReferences"][0]["uid"], object["spec"])
    };
    expect![[r#""node-uid" {"drivers":[{"allocatable":{"count":5},"name":"d","nodeID":"id-1","topologyKeys":["zone"]}]}"#]]
        .assert_eq(&shown(&api));
    expect![[r#"{"annotations":{"csi.volume.kubernetes.io/nodeid":"{\"d\":\"id-1\",\"o\":\"1\"}"},"labels":{"zone":"z"}}"#]]
        .assert_eq(&api.lock().unwrap().patches.join("\n"));
    // The driver is gone.
    server.abort();
    std::fs::remove_file(&socket).unwrap();
    within(async {
        while csi.get("d").is_ok() || !shown(&api).ends_with(r#"{"drivers":[]}"#) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    running.abort();
    other.abort();
}
