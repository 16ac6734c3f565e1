//! A container runtime in memory, and an API that keeps what is written to it. Failures can be injected.

pub use crate::mounts::NoMounts;
use futures_util::stream::BoxStream;
use kaji_containers::*;
use kaji_kubelet::credential_providers::CredentialProviders;
use kaji_kubelet::plugins::devices::DeviceManager;
use kaji_kubelet::plugins::dra::{DraManager, SliceApi};
use kaji_kubelet::pods::context::{ApiError, NodeConfig, NodeContext, NodeFacts, PodApi, PodRef};
use kaji_kubelet::pods::core::{Node, Pod, PodStatus};
use kaji_kubelet::pods::network::{DnsSettings, NodeDns};
use kaji_kubelet::pods::pull_records::PullRecords;
use kaji_kubelet::pods::sources::{Keyed, KeyedKind, Sources, Token, TokenRequest};
use kaji_kubelet::pods::user_namespaces::UserNamespaces;
use kaji_kubelet::resource_managers::ResourceManagers;
use kaji_kubelet::volumes::VolumeManager;
use kaji_meta::{random::SeededRandom, time::ManualClock};
use kaji_runtime::{EventRecord, objects::Service};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;

type Answer<'a, T> = BoxFuture<'a, Result<T, RuntimeError>>;

#[derive(Default)]
pub struct State {
    pub sandboxes: Vec<PodSandboxStatus>,
    pub containers: Vec<ContainerStatus>,
    pub calls: Vec<String>,
    /// Texts of failures by the call's name; each is used up by one call.
    pub failures: Vec<(&'static str, RuntimeError)>,
    pub images: Vec<String>,
    /// CDI devices of containers, in the order of their creation.
    pub cdi_devices: Vec<String>,
    /// What pods use.
    pub stats: Vec<PodSandboxStats>,
    /// Whether pods can have user namespaces.
    pub user_namespaces: bool,
    /// What pulls wait for when the image is here.
    pub pulls_wait: Option<Arc<Notify>>,
    /// What stops of containers wait for.
    pub stops_wait: Option<Arc<Notify>>,
    number: i64,
}

pub struct Runtime {
    pub state: Mutex<State>,
    pub clock: Arc<ManualClock>,
}

fn gone(id: &str) -> RuntimeError {
    RuntimeError::NotFound(format!("{id} is absent"))
}

impl Runtime {
    fn now(&self) -> i64 {
        use kaji_meta::Clock;
        i64::try_from(self.clock.now().as_nanosecond()).unwrap()
    }

    fn call(&self, name: &'static str, text: String) -> Result<(), RuntimeError> {
        let mut state = self.state.lock().unwrap();
        state.calls.push(format!("{name} {text}"));
        match state.failures.iter().position(|(n, _)| *n == name) {
            Some(index) => Err(state.failures.remove(index).1),
            None => Ok(()),
        }
    }

    /// A container's process ends by itself.
    pub fn exit(&self, name: &str, code: i32) {
        let now = self.now();
        let mut state = self.state.lock().unwrap();
        let found = state.containers.iter_mut().rev().find(|c| c.info.metadata.name == name).unwrap();
        assert_eq!(found.info.state, ContainerState::Running);
        end(found, code, now);
    }

    pub fn running(&self) -> Vec<String> {
        let state = self.state.lock().unwrap();
        let running = state.containers.iter().filter(|c| c.info.state == ContainerState::Running);
        running.map(|c| format!("{}/{}", c.info.metadata.name, c.info.metadata.attempt)).collect()
    }
}

fn end(found: &mut ContainerStatus, code: i32, now: i64) {
    found.info.state = ContainerState::Exited;
    found.exit_code = code;
    found.finished_at_nanos = now;
    found.reason = if code == 0 { "Completed" } else { "Error" }.to_owned();
}

/// A process that prints a text and copies its input to its output.
fn echo(text: String, stdin: bool, code: i32) -> Session {
    let ((stdin_near, mut stdin_far), (stdout, mut stdout_far)) =
        (tokio::io::duplex(1024), tokio::io::duplex(1024));
    let process = tokio::spawn(async move {
        stdout_far.write_all(text.as_bytes()).await.unwrap();
        tokio::io::copy(&mut stdin_far, &mut stdout_far).await.unwrap();
        Exit { code }
    });
    Session {
        stdin: stdin.then(|| Box::new(stdin_near) as Writer),
        stdout: Some(Box::new(stdout)),
        stderr: None,
        resize: None,
        exit: Box::pin(async move { process.await.map_err(|e| RuntimeError::Internal(e.to_string())) }),
    }
}

fn selected(labels: &BTreeMap<String, String>, filter: &BTreeMap<String, String>) -> bool {
    filter.iter().all(|(k, v)| labels.get(k) == Some(v))
}

impl ContainerRuntime for Runtime {
    fn version(&self) -> Answer<'_, RuntimeVersion> {
        let version =
            RuntimeVersion { name: "kaji".into(), version: "0.1.0".into(), api_version: "v1".into() };
        Box::pin(async { Ok(version) })
    }
    fn status(&self) -> Answer<'_, RuntimeStatus> {
        Box::pin(async {
            let user_namespaces = self.state.lock().unwrap().user_namespaces;
            let handlers = vec![RuntimeHandler { user_namespaces, ..RuntimeHandler::default() }];
            Ok(RuntimeStatus { handlers, ..RuntimeStatus::default() })
        })
    }
    fn run_pod_sandbox(&self, config: PodSandboxConfig) -> Answer<'_, String> {
        Box::pin(async move {
            self.call("sandbox", config.metadata.attempt.to_string())?;
            let now = self.now();
            let mut state = self.state.lock().unwrap();
            state.number += 1;
            let id = format!("s{}", state.number);
            let created_at_nanos = now + state.number;
            state.sandboxes.push(PodSandboxStatus {
                info: PodSandboxInfo {
                    id: id.clone(),
                    metadata: config.metadata,
                    state: PodSandboxState::Ready,
                    created_at_nanos,
                    labels: config.labels,
                    annotations: config.annotations,
                    runtime_handler: config.runtime_handler,
                },
                addresses: vec![IpAddr::from([10, 1, 0, 2])],
                network_namespace: None,
                security: config.security,
            });
            Ok(id)
        })
    }
    fn stop_pod_sandbox<'a>(&'a self, id: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = self.state.lock().unwrap();
            for sandbox in state.sandboxes.iter_mut().filter(|s| s.info.id == id) {
                sandbox.info.state = PodSandboxState::NotReady;
            }
            Ok(())
        })
    }
    fn remove_pod_sandbox<'a>(&'a self, id: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            self.call("remove-sandbox", id.to_owned())?;
            let mut state = self.state.lock().unwrap();
            state.sandboxes.retain(|s| s.info.id != id);
            state.containers.retain(|c| c.info.sandbox_id != id);
            Ok(())
        })
    }
    fn pod_sandbox_status<'a>(&'a self, id: &'a str) -> Answer<'a, PodSandboxStatus> {
        Box::pin(async move {
            let state = self.state.lock().unwrap();
            state.sandboxes.iter().find(|s| s.info.id == id).cloned().ok_or_else(|| gone(id))
        })
    }
    fn list_pod_sandboxes(&self, filter: PodSandboxFilter) -> Answer<'_, Vec<PodSandboxInfo>> {
        Box::pin(async move {
            let state = self.state.lock().unwrap();
            let all = state.sandboxes.iter().filter(|s| selected(&s.info.labels, &filter.labels));
            Ok(all.map(|s| s.info.clone()).collect())
        })
    }
    fn create_container<'a>(&'a self, sandbox: &'a str, config: ContainerConfig) -> Answer<'a, String> {
        Box::pin(async move {
            self.call("create", format!("{}/{}", config.metadata.name, config.metadata.attempt))?;
            let now = self.now();
            let mut state = self.state.lock().unwrap();
            state.number += 1;
            let devices = format!("{}: {}", config.metadata.name, config.cdi_devices.join(" "));
            state.cdi_devices.push(devices);
            let id = format!("c{}", state.number);
            let created_at_nanos = now + state.number;
            state.containers.push(ContainerStatus {
                info: ContainerInfo {
                    id: id.clone(),
                    sandbox_id: sandbox.to_owned(),
                    metadata: config.metadata,
                    image_id: config.image.image.clone(),
                    image: config.image,
                    state: ContainerState::Created,
                    created_at_nanos,
                    labels: config.labels,
                    annotations: config.annotations,
                },
                started_at_nanos: 0,
                finished_at_nanos: 0,
                exit_code: 0,
                image_ref: "i@sha256:0".into(),
                reason: String::new(),
                message: String::new(),
                mounts: config.mounts,
                log_path: config.log_path,
                resources: config.resources,
                user: None,
                stop_signal: String::new(),
                pid: 0,
            });
            Ok(id)
        })
    }
    fn start_container<'a>(&'a self, id: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            self.call("start", String::new())?;
            let now = self.now();
            let mut state = self.state.lock().unwrap();
            let found = state.containers.iter_mut().find(|c| c.info.id == id).ok_or_else(|| gone(id))?;
            found.info.state = ContainerState::Running;
            found.started_at_nanos = now;
            Ok(())
        })
    }
    fn stop_container<'a>(&'a self, id: &'a str, grace: Duration) -> Answer<'a, ()> {
        Box::pin(async move {
            let held = self.state.lock().unwrap().stops_wait.clone();
            futures_util::future::OptionFuture::from(held.as_ref().map(|held| held.notified())).await;
            let now = self.now();
            let mut state = self.state.lock().unwrap();
            let found = state.containers.iter_mut().find(|c| c.info.id == id).ok_or_else(|| gone(id))?;
            let name = found.info.metadata.name.clone();
            if found.info.state == ContainerState::Running {
                end(found, 137, now);
            }
            state.calls.push(format!("stop {name} {}", grace.as_secs()));
            Ok(())
        })
    }
    fn remove_container<'a>(&'a self, id: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            self.state.lock().unwrap().containers.retain(|c| c.info.id != id);
            Ok(())
        })
    }
    fn container_status<'a>(&'a self, id: &'a str) -> Answer<'a, ContainerStatus> {
        Box::pin(async move {
            let state = self.state.lock().unwrap();
            state.containers.iter().find(|c| c.info.id == id).cloned().ok_or_else(|| gone(id))
        })
    }
    fn list_containers(&self, filter: ContainerFilter) -> Answer<'_, Vec<ContainerInfo>> {
        Box::pin(async move {
            let state = self.state.lock().unwrap();
            let all = state.containers.iter().filter(|c| selected(&c.info.labels, &filter.labels));
            Ok(all.map(|c| c.info.clone()).collect())
        })
    }
    fn update_container_resources<'a>(&'a self, _: &'a str, update: ResourceUpdate) -> Answer<'a, ()> {
        let r = update.resources;
        let text = format!("memory {} shares {} quota {}", r.memory_limit_bytes, r.cpu_shares, r.cpu_quota);
        Box::pin(async move { self.call("update", text) })
    }
    fn update_pod_sandbox_resources<'a>(
        &'a self,
        _: &'a str,
        _: Option<LinuxResources>,
        _: Option<LinuxResources>,
    ) -> Answer<'a, ()> {
        unimplemented()
    }
    fn reopen_container_log<'a>(&'a self, id: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            self.call("reopen-log", id.to_owned())?;
            let log = self.container_status(id).await?.log_path;
            std::fs::write(log, "")?;
            Ok(())
        })
    }
    fn exec_sync<'a>(&'a self, _: &'a str, command: Vec<String>, _: Duration) -> Answer<'a, ExecOutput> {
        Box::pin(async move {
            self.call("exec", command.join(" "))?;
            Ok(ExecOutput::default())
        })
    }
    fn exec(&self, request: ExecRequest) -> Answer<'_, Session> {
        Box::pin(async move {
            let command = request.command.join(" ");
            self.call("exec-session", format!("{} {command}", request.container_id))?;
            let code = request.command.last().and_then(|word| word.parse().ok()).unwrap_or_default();
            Ok(echo(format!("{command}\n"), request.stdin, code))
        })
    }
    fn attach(&self, request: AttachRequest) -> Answer<'_, Session> {
        Box::pin(async move {
            self.call("attach", format!("{} tty={}", request.container_id, request.tty))?;
            Ok(echo("attached\n".to_owned(), request.stdin, 1))
        })
    }
    fn port_forward<'a>(&'a self, sandbox: &'a str, port: u16) -> Answer<'a, Duplex> {
        Box::pin(async move {
            self.call("port-forward", format!("{sandbox} {port}"))?;
            let (near, mut far) = tokio::io::duplex(1024);
            tokio::spawn(async move {
                let (mut from, mut to) = tokio::io::split(&mut far);
                tokio::io::copy(&mut from, &mut to).await.unwrap();
            });
            Ok(Box::new(near) as Duplex)
        })
    }
    fn container_stats<'a>(&'a self, id: &'a str) -> Answer<'a, ContainerStats> {
        let all = self.state.lock().unwrap().stats.clone();
        match all.into_iter().flat_map(|pod| pod.containers).find(|c| c.id == id) {
            Some(found) => Box::pin(async { Ok(found) }),
            None => unimplemented(),
        }
    }
    fn list_pod_sandbox_stats(&self, filter: PodSandboxFilter) -> Answer<'_, Vec<PodSandboxStats>> {
        Box::pin(async move {
            let uid = filter.labels.values().next().cloned();
            if uid.is_none() {
                self.call("stats", String::new())?;
            }
            let state = self.state.lock().unwrap();
            let asked = |s: &&PodSandboxStats| uid.as_ref().is_none_or(|uid| s.pod_uid == *uid);
            Ok(state.stats.iter().filter(asked).cloned().collect())
        })
    }
    fn events(&self) -> Answer<'_, BoxStream<'static, Result<RuntimeEvent, RuntimeError>>> {
        unimplemented()
    }
    fn update_pod_cidrs(&self, _: Vec<String>) -> Answer<'_, ()> {
        unimplemented()
    }
}

fn unimplemented<'a, T: Send + 'a>() -> Answer<'a, T> {
    Box::pin(async { Err(RuntimeError::Unimplemented("the fake runtime has none".into())) })
}

impl ImageService for Runtime {
    fn list_images(&self) -> Answer<'_, Vec<Image>> {
        let image = |name: &String| Image { id: name.clone(), size: 7, ..Image::default() };
        let images = self.state.lock().unwrap().images.iter().map(image).collect();
        Box::pin(async { Ok(images) })
    }
    fn image_status<'a>(&'a self, image: &'a ImageSpec) -> Answer<'a, Option<Image>> {
        Box::pin(async move {
            let here = self.state.lock().unwrap().images.contains(&image.image);
            Ok(here.then(|| Image { id: image.image.clone(), size: 7, ..Image::default() }))
        })
    }
    fn pull_image(&self, request: PullRequest) -> Answer<'_, String> {
        Box::pin(async move {
            self.call("pull", request.image.image.clone())?;
            let waits = {
                let mut state = self.state.lock().unwrap();
                state.images.push(request.image.image.clone());
                state.pulls_wait.clone()
            };
            if let Some(waits) = waits {
                waits.notified().await;
            }
            Ok(request.image.image)
        })
    }
    fn remove_image<'a>(&'a self, image: &'a ImageSpec) -> Answer<'a, ()> {
        Box::pin(async {
            self.call("remove-image", image.image.clone())?;
            self.state.lock().unwrap().images.retain(|name| *name != image.image);
            Ok(())
        })
    }
    fn filesystems(&self) -> Answer<'_, ImageFilesystems> {
        Box::pin(async { Ok(ImageFilesystems::default()) })
    }
}

/// What was written to the API.
#[derive(Default)]
pub struct Api {
    pub status: Mutex<Option<PodStatus>>,
    /// Of the pod that a status was written to last.
    pub uid: Mutex<String>,
    pub deleted: Mutex<bool>,
    pub events: Mutex<Vec<String>>,
    /// Patches of claims.
    pub claims: Mutex<Vec<String>>,
}

impl PodApi for Api {
    fn patch_status<'a>(
        &'a self,
        pod: &'a PodRef,
        _: &'a PodStatus,
        status: &'a PodStatus,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        self.uid.lock().unwrap().clone_from(&pod.uid);
        *self.status.lock().unwrap() = Some(status.clone());
        Box::pin(async { Ok(()) })
    }
    fn delete<'a>(&'a self, _: &'a PodRef) -> BoxFuture<'a, Result<(), ApiError>> {
        *self.deleted.lock().unwrap() = true;
        Box::pin(async { Ok(()) })
    }
    fn patch_claim_status<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        patch: &'a serde_json::Value,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        self.claims.lock().unwrap().push(format!("{namespace}/{name} {patch}"));
        Box::pin(async { Ok(()) })
    }
    fn record(&self, event: EventRecord) {
        self.events.lock().unwrap().push(format!("{}: {}", event.reason, event.message));
    }
}

/// What the API holds, and what the node's informers show.
#[derive(Default)]
pub struct Objects {
    /// By path.
    pub objects: Mutex<BTreeMap<String, serde_json::Value>>,
    /// By name; others have a key and a value.
    pub secrets: Mutex<BTreeMap<String, Arc<Keyed>>>,
    pub node: Mutex<Option<Arc<Node>>>,
}

impl Sources for Objects {
    fn follow(&self, _: &Pod, _: &Arc<Notify>) {}
    fn forget(&self, _: &str) {}
    fn keyed<'a>(
        &'a self,
        kind: KeyedKind,
        _: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<Keyed>>, String>> {
        let own = self.secrets.lock().unwrap().get(name).filter(|_| kind == KeyedKind::Secret).cloned();
        let data = BTreeMap::from([("key".to_owned(), b"value".to_vec())]);
        let found = (kind == KeyedKind::ConfigMap) == (name == "map") && name != "absent";
        let found = own.or_else(|| found.then(|| Arc::new(Keyed { data, ..Keyed::default() })));
        Box::pin(async move { Ok(found) })
    }
    fn object<'a>(
        &'a self,
        target: &'a kaji_runtime::Target,
    ) -> BoxFuture<'a, Result<Option<serde_json::Value>, String>> {
        Box::pin(async move { Ok(self.objects.lock().unwrap().get(&target.path()).cloned()) })
    }
    fn create<'a>(
        &'a self,
        collection: &'a kaji_runtime::Target,
        object: &'a serde_json::Value,
    ) -> BoxFuture<'a, Result<serde_json::Value, String>> {
        let mut objects = self.objects.lock().unwrap();
        let (name, mut made) = (format!("made-{}", objects.len()), object.clone());
        made["metadata"]["name"] = name.as_str().into();
        objects.insert(format!("{}/{name}", collection.path()), made.clone());
        Box::pin(async { Ok(made) })
    }
    fn token<'a>(&'a self, request: &'a TokenRequest) -> BoxFuture<'a, Result<Token, String>> {
        Box::pin(async move {
            if request.audience.is_empty() {
                return Err("no tokens".to_owned());
            }
            let (issued, expires) = ("2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z");
            let token = format!("token of {} for {}", request.pod, request.audience);
            Ok(Token { token, issued: issued.parse().unwrap(), expires: expires.parse().unwrap() })
        })
    }
    fn trust_bundles<'a>(
        &'a self,
        name: Option<&'a str>,
        signer: Option<&'a str>,
        selector: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, String>> {
        let known = name == Some("known") || signer == Some("example.com/known");
        Box::pin(async move { Ok(known.then(|| format!("bundles that match {selector:?}"))) })
    }
    fn runtime_handler<'a>(&'a self, class: &'a str) -> BoxFuture<'a, Result<Option<String>, String>> {
        Box::pin(async move { Ok((class == "isolated").then(|| "kata".to_owned())) })
    }
}

impl NodeFacts for Objects {
    fn services(&self) -> Option<Vec<Arc<Service>>> {
        Some(vec![])
    }
    fn node(&self) -> Option<Arc<Node>> {
        self.node.lock().unwrap().clone()
    }
    fn allocatable(&self) -> BTreeMap<String, i64> {
        BTreeMap::from([("cpu".to_owned(), 2000), ("memory".to_owned(), 1 << 30)])
    }
}

/// The drivers of which ResourceSlices were removed; an empty name stands for all.
#[derive(Default)]
pub struct Slices(pub Mutex<Vec<String>>);

impl SliceApi for Slices {
    fn delete_slices<'a>(&'a self, driver: Option<&'a str>) -> BoxFuture<'a, Result<(), String>> {
        self.0.lock().unwrap().push(driver.unwrap_or_default().to_owned());
        Box::pin(async { Ok(()) })
    }
}

pub struct Fake {
    pub slices: Arc<Slices>,
    pub cx: Arc<NodeContext>,
    pub runtime: Arc<Runtime>,
    pub api: Arc<Api>,
    pub clock: Arc<ManualClock>,
    pub objects: Arc<Objects>,
    pub mounter: Arc<NoMounts>,
    pub dir: tempfile::TempDir,
}

/// Those of a node without name servers.
fn resolvers() -> NodeDns {
    let mut resolvers = NodeDns::fixed(DnsConfig::default());
    resolvers.file = "/etc/resolv.conf".into();
    resolvers
}

impl Fake {
    pub fn new() -> Fake {
        Fake::at(tempfile::tempdir().unwrap(), NoMounts::default())
    }

    /// A kubelet with a directory that another one may have left.
    pub fn at(dir: tempfile::TempDir, mounter: NoMounts) -> Fake {
        let (objects, mounter) = (Arc::new(Objects::default()), Arc::new(mounter));
        let clock = Arc::new(ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
        let runtime = Arc::new(Runtime { state: Mutex::default(), clock: clock.clone() });
        let api = Arc::new(Api::default());
        let root = dir.path().to_owned();
        let config = NodeConfig {
            node_name: "node-1".into(),
            root_dir: root.join("kubelet"),
            system_log_dir: root.join("log"),
            pod_log_dir: root.join("pods"),
            container_log_dir: root.join("containers"),
            addresses: vec![IpAddr::from([192, 0, 2, 1])],
            dns: DnsSettings {
                servers: vec![IpAddr::from([10, 96, 0, 10])],
                domain: "cluster.local".into(),
                node: resolvers(),
            },
            hosts_file: root.join("hosts"),
            memory: 8 << 30,
            runtime_name: "kaji".into(),
            sysctls: Default::default(),
            apparmor: false,
            external_cloud: None,
            memory_qos: Default::default(),
            restart_delays: Default::default(),
            flag_values: Default::default(),
        };
        let slices = Arc::new(Slices::default());
        let clock_of_dra = clock.clone();
        let dra =
            DraManager::new(&config.root_dir, slices.clone(), clock_of_dra, Arc::default(), Duration::ZERO);
        let cx = Arc::new(NodeContext {
            dra: Arc::new(dra),
            devices: Arc::new(DeviceManager::new(&config.root_dir, clock.clone())),
            volumes: VolumeManager::new(config.root_dir.clone(), mounter.clone()),
            user_namespaces: UserNamespaces::new(&config.root_dir),
            pod_feed: Default::default(),
            config,
            runtime: runtime.clone(),
            images: runtime.clone(),
            credentials: CredentialProviders::none(clock.clone()),
            pull_records: PullRecords::new(&root.join("kubelet"), clock.clone()),
            managers: ResourceManagers::none(),
            metrics: Arc::default(),
            probe_metrics: Default::default(),
            api: api.clone(),
            sources: objects.clone(),
            facts: objects.clone(),
            cgroups: None,
            shutdown: Default::default(),
            clock: clock.clone(),
            random: Arc::new(SeededRandom::new(1)),
        });
        Fake { slices, cx, runtime, api, clock, objects, mounter, dir }
    }
}
