//! Device plug-ins on sockets: registration, allocation, what containers get, restarts.

use crate::fake::{Fake, NoMounts};
use expect_test::expect;
use futures_util::{Stream, StreamExt, stream};
use kaji_grpc::{Client, Router, Status, bind, serve};
use kaji_kubelet::plugins::devices::messages::{self as m, Empty};
use kaji_kubelet::plugins::devices::{DeviceCapacity, DeviceManager};
use kaji_kubelet::pods::core::Pod;
use kaji_kubelet::resource_managers::Affinity;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

const SOON: Duration = Duration::from_secs(20);

struct Plugin {
    calls: Arc<Mutex<Vec<String>>>,
    devices: watch::Sender<Vec<m::PluginDevice>>,
    task: JoinHandle<()>,
}

fn device(id: &str, health: &str) -> m::PluginDevice {
    m::PluginDevice { id: id.into(), health: health.into(), topology: None }
}

fn lists(
    changes: watch::Receiver<Vec<m::PluginDevice>>,
) -> impl Stream<Item = Result<m::ListAndWatchResponse, Status>> {
    let first = stream::once({
        let devices = changes.borrow().clone();
        async move { Ok(m::ListAndWatchResponse { devices }) }
    });
    first.chain(stream::unfold(changes, |mut changes| async move {
        changes.changed().await.ok()?;
        let devices = changes.borrow_and_update().clone();
        Some((Ok(m::ListAndWatchResponse { devices }), changes))
    }))
}

fn answer(ids: &[String]) -> m::ContainerAllocateResponse {
    m::ContainerAllocateResponse {
        envs: [("IDS".to_owned(), ids.join(",")), ("OWN".to_owned(), "plugin".to_owned())].into(),
        mounts: vec![m::PluginMount {
            container_path: "/m".into(),
            host_path: "/host".into(),
            read_only: true,
        }],
        devices: vec![m::DeviceSpec {
            container_path: "/dev/d".into(),
            host_path: "/dev/null".into(),
            permissions: "rw".into(),
        }],
        annotations: [("a".to_owned(), "b".to_owned())].into(),
        cdi_devices: vec![],
    }
}

impl Plugin {
    /// A plug-in in the kubelet's directory, and its registration.
    async fn start(root: &Path, ids: &[&str]) -> Plugin {
        let calls: Arc<Mutex<Vec<String>>> = Arc::default();
        let (devices, changes) = watch::channel(ids.iter().map(|id| device(id, m::HEALTHY)).collect());
        let (a, b, c) = (calls.clone(), calls.clone(), calls.clone());
        let router = Router::default()
            .unary(m::GET_OPTIONS, |_: Empty| async {
                Ok(m::DevicePluginOptions {
                    pre_start_required: true,
                    get_preferred_allocation_available: true,
                })
            })
            .server_streaming(m::LIST_AND_WATCH, move |_: Empty| {
                std::future::ready(Ok(lists(changes.clone())))
            })
            .unary(m::GET_PREFERRED, move |r: m::PreferredAllocationRequest| {
                let one = &r.container_requests[0];
                a.lock().unwrap().push(format!(
                    "prefer {} of {}",
                    one.allocation_size,
                    one.available_device_ids.join(" ")
                ));
                let device_ids = one.available_device_ids.iter().rev().cloned().collect();
                let container_responses = vec![m::ContainerPreferredAllocationResponse { device_ids }];
                std::future::ready(Ok(m::PreferredAllocationResponse { container_responses }))
            })
            .unary(m::ALLOCATE, move |r: m::AllocateRequest| {
                let ids = &r.container_requests[0].device_ids;
                b.lock().unwrap().push(format!("allocate {}", ids.join(" ")));
                let container_responses = vec![answer(ids)];
                std::future::ready(Ok(m::AllocateResponse { container_responses }))
            })
            .unary(m::PRE_START, move |r: m::PreStartContainerRequest| {
                c.lock().unwrap().push(format!("pre-start {}", r.device_ids.join(" ")));
                std::future::ready(Ok(Empty {}))
            });
        let dir = root.join("device-plugins");
        let task = tokio::spawn(serve(bind(&dir.join("plugin.sock")).unwrap(), router));
        let request = m::RegisterRequest {
            version: m::VERSION.into(),
            endpoint: "plugin.sock".into(),
            resource_name: "vendor.com/d".into(),
            options: None,
        };
        register(root, request).await.unwrap();
        Plugin { calls, devices, task }
    }

    fn calls(&self) -> String {
        std::mem::take(&mut *self.calls.lock().unwrap()).join("\n")
    }
}

async fn register(root: &Path, request: m::RegisterRequest) -> Result<Empty, String> {
    let client = Client::new(root.join("device-plugins/kubelet.sock"));
    client.unary(m::REGISTER, request, SOON).await.map_err(|e| e.to_string())
}

fn pod(uid: &str, count: u32) -> Pod {
    let limits: Value = json!({"limits": {"vendor.com/d": count.to_string()}});
    let spec = json!({"containers": [{"name": "c", "resources": limits}]});
    serde_json::from_value(json!({"metadata": {"name": uid, "namespace": "n", "uid": uid}, "spec": spec}))
        .unwrap()
}

async fn until(devices: &DeviceManager, what: &str, holds: impl Fn(&DeviceCapacity) -> bool) {
    let changes = devices.changes();
    let wait = async {
        while !holds(&devices.capacity()) {
            changes.notified().await;
        }
    };
    tokio::time::timeout(SOON, wait).await.unwrap_or_else(|_| panic!("{what}: {:?}", devices.capacity()));
}

fn usable(capacity: &DeviceCapacity) -> usize {
    capacity.allocatable.get("vendor.com/d").copied().unwrap_or(0)
}

/// A manager that serves its socket.
async fn serving(fake: &Fake) -> JoinHandle<()> {
    let task = tokio::spawn(fake.cx.devices.clone().run());
    let socket = fake.cx.config.root_dir.join("device-plugins/kubelet.sock");
    let wait = async {
        while tokio::net::UnixStream::connect(&socket).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, wait).await.unwrap();
    task
}

#[tokio::test]
async fn containers_get_devices_and_keep_them_over_restarts() {
    let fake = Fake::new();
    let root = fake.cx.config.root_dir.clone();
    let devices = fake.cx.devices.clone();
    let server = serving(&fake).await;
    let plugin = Plugin::start(&root, &["a", "b", "c"]).await;
    until(&devices, "three devices", |c| usable(c) == 3).await;
    devices.allocate(&pod("p", 2), &BTreeSet::from(["p"]), &Affinity::new()).await.unwrap();
    let refused =
        devices.allocate(&pod("q", 2), &BTreeSet::from(["p", "q"]), &Affinity::new()).await.unwrap_err();
    expect!["requested number of devices unavailable for vendor.com/d. Requested: 2, Available: 1"]
        .assert_eq(&refused);
    let of = pod("p", 2);
    let container = &of.spec.as_ref().unwrap().containers[0];
    let options = devices.options(&of, container).await.unwrap();
    assert_eq!(options.envs["IDS"], "a b".replace(' ', ","));
    assert!(
        options.mounts[0].readonly
            && options.devices[0].permissions == "rw"
            && options.annotations["a"] == "b"
    );
    expect![[r#"
        prefer 2 of a b c
        allocate a b
        pre-start a b"#]]
    .assert_eq(&plugin.calls());
    // One that fails counts, and cannot be used.
    plugin.devices.send_replace(vec![
        device("a", m::HEALTHY),
        device("b", m::HEALTHY),
        device("c", "Unhealthy"),
    ]);
    until(&devices, "one is unhealthy", |c| usable(c) == 2 && c.capacity["vendor.com/d"] == 3).await;
    assert!(devices.allocate(&pod("q", 1), &BTreeSet::from(["p", "q"]), &Affinity::new()).await.is_err());
    // A kubelet after this one, before the plug-in has registered again.
    plugin.task.abort();
    until(&devices, "the plug-in is gone", |c| usable(c) == 0).await;
    server.abort();
    let Fake { dir, .. } = fake;
    let fake = Fake::at(dir, NoMounts::default());
    let devices = fake.cx.devices.clone();
    assert_eq!(devices.options(&of, container).await.unwrap(), options);
    assert_eq!(devices.capacity().allocatable["vendor.com/d"], 0);
    let refused =
        devices.allocate(&pod("q", 1), &BTreeSet::from(["p", "q"]), &Affinity::new()).await.unwrap_err();
    expect!["no healthy devices present; cannot allocate unhealthy devices vendor.com/d"].assert_eq(&refused);
    let server = serving(&fake).await;
    let plugin = Plugin::start(&root, &["a", "b", "c"]).await;
    until(&devices, "three devices again", |c| usable(c) == 3).await;
    devices.allocate(&pod("q", 1), &BTreeSet::from(["p", "q"]), &Affinity::new()).await.unwrap();
    assert!(plugin.calls().ends_with("allocate c"), "the others are the first pod's");
    // What pods had that are gone is free; a resource is forgotten when its plug-in has been gone for long.
    devices.allocate(&pod("r", 2), &BTreeSet::from(["q", "r"]), &Affinity::new()).await.unwrap();
    assert!(plugin.calls().ends_with("allocate a b"));
    plugin.task.abort();
    until(&devices, "gone again", |c| usable(c) == 0).await;
    fake.clock.advance(jiff::SignedDuration::from_secs(301));
    assert_eq!(devices.capacity().removed, ["vendor.com/d"]);
    server.abort();
}

#[tokio::test]
async fn registrations_that_are_wrong_are_refused() {
    let fake = Fake::new();
    let server = serving(&fake).await;
    let root = &fake.cx.config.root_dir;
    let request = |version: &str, resource: &str, endpoint: &str| m::RegisterRequest {
        version: version.into(),
        endpoint: endpoint.into(),
        resource_name: resource.into(),
        options: None,
    };
    let refused = [
        register(root, request("v1", "vendor.com/d", "s")).await.unwrap_err(),
        register(root, request("v1beta1", "kubernetes.io/d", "s")).await.unwrap_err(),
        register(root, request("v1beta1", "vendor.com/d", "../../s")).await.unwrap_err(),
    ];
    expect![[r#"
        rpc error: code = Unknown desc = requested API version "v1" is not supported by kubelet. Supported version is "v1beta1"
        rpc error: code = Unknown desc = the ResourceName "kubernetes.io/d" is invalid
        rpc error: code = InvalidArgument desc = the endpoint is no name of a socket"#]]
    .assert_eq(&refused.join("\n"));
    server.abort();
}
