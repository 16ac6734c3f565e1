//! A container runtime that runs nothing: the services of CRI v1 at a socket, with sandboxes and containers in memory.

use futures_util::stream::{self, BoxStream, StreamExt};
use kaji_cri::messages::*;
use kaji_cri::{Connected, CriImages, CriRuntime, Endpoints};
use kaji_grpc::{Router, Status};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// How a runtime answers the calls that not all of them have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// As containerd 1.6: no events, no configuration, no figures of pods.
    Old,
    /// As containerd 2.
    New,
}

/// What the runtime has been asked for and holds.
#[derive(Default)]
pub struct State {
    pub sandboxes: BTreeMap<String, PodSandbox>,
    pub containers: BTreeMap<String, Container>,
    pub run: Vec<RunPodSandboxRequest>,
    pub created: Vec<CreateContainerRequest>,
    pub updated: Vec<UpdateContainerResourcesRequest>,
    pub pulled: Vec<PullImageRequest>,
    pub pod_cidr: String,
    pub systemd: bool,
    /// Of the streaming server.
    pub url: String,
    /// Nanoseconds of processor time and the time of the reading.
    pub cpu: (u64, i64),
}

pub struct Fake {
    pub state: Arc<Mutex<State>>,
    pub directory: tempfile::TempDir,
    pub events: mpsc::Sender<ContainerEventResponse>,
    server: JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.server.abort();
    }
}

type Shared = Arc<Mutex<State>>;

fn not_found(what: &str, id: &str) -> Status {
    Status::not_found(format!("an error occurred when try to find {what} \"{id}\": not found"))
}

fn sandboxes(router: Router, shared: &Shared) -> Router {
    let [run, stop, remove, status, list] = [(); 5].map(|()| shared.clone());
    router
        .unary("/runtime.v1.RuntimeService/RunPodSandbox", move |request: RunPodSandboxRequest| {
            let mut state = run.lock().unwrap();
            let config = request.config.clone().unwrap();
            let id = format!("sandbox-{}", state.run.len());
            let sandbox = PodSandbox {
                id: id.clone(),
                metadata: config.metadata,
                created_at: 5,
                labels: config.labels,
                annotations: config.annotations,
                runtime_handler: request.runtime_handler.clone(),
                ..Default::default()
            };
            state.sandboxes.insert(id.clone(), sandbox);
            state.run.push(request);
            async { Ok(RunPodSandboxResponse { pod_sandbox_id: id }) }
        })
        .unary("/runtime.v1.RuntimeService/StopPodSandbox", move |request: StopPodSandboxRequest| {
            let mut state = stop.lock().unwrap();
            let found = state.sandboxes.get_mut(&request.pod_sandbox_id).map(|sandbox| sandbox.state = 1);
            let answer = found.ok_or_else(|| not_found("sandbox", &request.pod_sandbox_id));
            async { answer.map(|()| StopPodSandboxResponse {}) }
        })
        .unary("/runtime.v1.RuntimeService/RemovePodSandbox", move |request: RemovePodSandboxRequest| {
            let mut state = remove.lock().unwrap();
            let id = &request.pod_sandbox_id;
            let ready = state.sandboxes.get(id).is_some_and(|sandbox| sandbox.state == 0);
            let answer = match ready {
                true => Err(Status::unknown(format!("sandbox container \"{id}\" is not fully stopped"))),
                false => Ok(RemovePodSandboxResponse {}),
            };
            if answer.is_ok() {
                state.sandboxes.remove(id);
            }
            async { answer }
        })
        .unary("/runtime.v1.RuntimeService/PodSandboxStatus", move |request: PodSandboxStatusRequest| {
            let found = status.lock().unwrap().sandboxes.get(&request.pod_sandbox_id).cloned();
            let answer = found.ok_or_else(|| not_found("sandbox", &request.pod_sandbox_id));
            async {
                let found = answer?;
                let ip = |ip: &str| PodIp { ip: ip.into() };
                let status = PodSandboxStatus {
                    id: found.id,
                    metadata: found.metadata,
                    state: found.state,
                    created_at: found.created_at,
                    network: Some(PodSandboxNetworkStatus {
                        ip: "10.1.0.2".into(),
                        additional_ips: vec![ip("fd00::2")],
                    }),
                    labels: found.labels,
                    annotations: found.annotations,
                    runtime_handler: found.runtime_handler,
                    ..Default::default()
                };
                Ok(PodSandboxStatusResponse { status: Some(status), ..Default::default() })
            }
        })
        .unary("/runtime.v1.RuntimeService/ListPodSandbox", move |_: ListPodSandboxRequest| {
            let items = list.lock().unwrap().sandboxes.values().cloned().collect();
            async { Ok(ListPodSandboxResponse { items }) }
        })
}

fn containers(router: Router, shared: &Shared) -> Router {
    let [create, start, stop] = [(); 3].map(|()| shared.clone());
    router
        .unary("/runtime.v1.RuntimeService/CreateContainer", move |request: CreateContainerRequest| {
            let mut state = create.lock().unwrap();
            let config = request.config.clone().unwrap();
            let id = format!("container-{}", state.created.len());
            let container = Container {
                id: id.clone(),
                pod_sandbox_id: request.pod_sandbox_id.clone(),
                metadata: config.metadata,
                image: config.image,
                image_ref: "sha256:1".into(),
                labels: config.labels,
                annotations: config.annotations,
                ..Default::default()
            };
            state.containers.insert(id.clone(), container);
            state.created.push(request);
            async { Ok(CreateContainerResponse { container_id: id }) }
        })
        .unary("/runtime.v1.RuntimeService/StartContainer", move |request: StartContainerRequest| {
            let mut state = start.lock().unwrap();
            let answer = match state.containers.get_mut(&request.container_id) {
                None => Err(not_found("container", &request.container_id)),
                Some(container) if container.image.as_ref().is_some_and(|i| i.image == "broken") => {
                    container.state = 2;
                    Err(Status::unknown("failed to create containerd task: exec: \"x\": not found"))
                }
                Some(container) => {
                    container.state = 1;
                    Ok(StartContainerResponse {})
                }
            };
            async { answer }
        })
        .unary("/runtime.v1.RuntimeService/StopContainer", move |request: StopContainerRequest| {
            let mut state = stop.lock().unwrap();
            // One that was not started stays as it is.
            let stop = |container: &mut Container| container.state += i32::from(container.state == 1);
            let found = state.containers.get_mut(&request.container_id).map(stop);
            let answer = found.ok_or_else(|| not_found("container", &request.container_id));
            async { answer.map(|()| StopContainerResponse {}) }
        })
}

/// What is shown of containers, and what is changed of them.
fn shown(router: Router, shared: &Shared) -> Router {
    let [status, list, update, remove] = [(); 4].map(|()| shared.clone());
    router
        .unary("/runtime.v1.RuntimeService/RemoveContainer", move |request: RemoveContainerRequest| {
            remove.lock().unwrap().containers.remove(&request.container_id);
            async { Ok(RemoveContainerResponse {}) }
        })
        .unary("/runtime.v1.RuntimeService/ContainerStatus", move |request: ContainerStatusRequest| {
            let found = status.lock().unwrap().containers.get(&request.container_id).cloned();
            let answer = found.ok_or_else(|| not_found("container", &request.container_id));
            async {
                let found = answer?;
                let status = ContainerStatus {
                    id: found.id,
                    metadata: found.metadata,
                    state: found.state,
                    started_at: 7,
                    exit_code: 3,
                    image: found.image,
                    image_ref: "example.com/a@sha256:2".into(),
                    reason: "Error".into(),
                    stop_signal: 23,
                    ..Default::default()
                };
                Ok(ContainerStatusResponse { status: Some(status), ..Default::default() })
            }
        })
        .unary("/runtime.v1.RuntimeService/ListContainers", move |request: ListContainersRequest| {
            let id = request.filter.unwrap_or_default().id;
            let state = list.lock().unwrap();
            let all = state.containers.values().filter(|container| id.is_empty() || container.id == id);
            let containers = all.cloned().collect();
            async { Ok(ListContainersResponse { containers }) }
        })
        .unary(
            "/runtime.v1.RuntimeService/UpdateContainerResources",
            move |request: UpdateContainerResourcesRequest| {
                update.lock().unwrap().updated.push(request);
                async { Ok(UpdateContainerResourcesResponse {}) }
            },
        )
}

fn commands(router: Router, shared: &Shared) -> Router {
    let [exec, attach, forward] = [(); 3].map(|()| shared.clone());
    let url = |shared: &Shared, path: &str| format!("{}/{path}", shared.lock().unwrap().url);
    router
        .unary("/runtime.v1.RuntimeService/ExecSync", |request: ExecSyncRequest| async move {
            match request.cmd[0].as_str() {
                "slow" => Err(Status::deadline_exceeded(format!("timeout {}s exceeded", request.timeout))),
                _ => Ok(ExecSyncResponse { stdout: b"out".into(), stderr: b"err".into(), exit_code: 4 }),
            }
        })
        .unary("/runtime.v1.RuntimeService/Exec", move |request: ExecRequest| {
            let url = url(&exec, &format!("exec/{}?tty={}", request.cmd.join("-"), request.tty));
            async { Ok(ExecResponse { url }) }
        })
        .unary("/runtime.v1.RuntimeService/Attach", move |_: AttachRequest| {
            let url = url(&attach, "attach");
            async { Ok(AttachResponse { url }) }
        })
        .unary("/runtime.v1.RuntimeService/PortForward", move |_: PortForwardRequest| {
            let url = url(&forward, "portforward");
            async { Ok(PortForwardResponse { url }) }
        })
}

fn figures(router: Router, shared: &Shared, age: Age) -> Router {
    let (pods, all) = (shared.clone(), shared.clone());
    let of = |shared: &Shared, id: &str| {
        let (core, timestamp) = shared.lock().unwrap().cpu;
        let number = |value| Some(Uint64Value { value });
        ContainerStats {
            attributes: Some(ContainerAttributes {
                id: id.into(),
                metadata: Some(ContainerMetadata { name: "c".into(), attempt: 0 }),
                ..Default::default()
            }),
            cpu: Some(CpuUsage { timestamp, usage_core_nano_seconds: number(core), ..Default::default() }),
            memory: Some(MemoryUsage { working_set_bytes: number(9), ..Default::default() }),
            ..Default::default()
        }
    };
    let router =
        router.unary("/runtime.v1.RuntimeService/ListContainerStats", move |_: ListContainerStatsRequest| {
            let stats = vec![of(&all, "container-0"), of(&all, "another")];
            async { Ok(ListContainerStatsResponse { stats }) }
        });
    if age == Age::Old {
        return router;
    }
    router.unary("/runtime.v1.RuntimeService/ListPodSandboxStats", move |_: ListPodSandboxStatsRequest| {
        let container = of(&pods, "container-0");
        let linux = LinuxPodSandboxStats {
            cpu: container.cpu.clone(),
            memory: container.memory.clone(),
            network: Some(NetworkUsage {
                default_interface: Some(NetworkInterfaceUsage { name: "eth0".into(), ..Default::default() }),
                interfaces: vec![NetworkInterfaceUsage { name: "net1".into(), ..Default::default() }],
                ..Default::default()
            }),
            containers: vec![container],
            ..Default::default()
        };
        let attributes = PodSandboxAttributes {
            id: "sandbox-0".into(),
            metadata: Some(PodSandboxMetadata { uid: "u-1".into(), ..Default::default() }),
            ..Default::default()
        };
        let stats = vec![PodSandboxStats { attributes: Some(attributes), linux: Some(linux) }];
        async { Ok(ListPodSandboxStatsResponse { stats }) }
    })
}

fn itself(
    router: Router,
    shared: &Shared,
    age: Age,
    events: mpsc::Receiver<ContainerEventResponse>,
) -> Router {
    let [status, driver, config] = [(); 3].map(|()| shared.clone());
    let router = router
        .unary("/runtime.v1.RuntimeService/Version", |_: VersionRequest| async {
            Ok(VersionResponse {
                version: "0.1.0".into(),
                runtime_name: "containerd".into(),
                runtime_version: "1.6.20".into(),
                runtime_api_version: "v1".into(),
            })
        })
        .unary("/runtime.v1.RuntimeService/Status", move |request: StatusRequest| {
            let systemd = status.lock().unwrap().systemd;
            let condition =
                |kind: &str| RuntimeCondition { kind: kind.into(), status: true, ..Default::default() };
            let conditions = vec![condition("RuntimeReady"), condition("NetworkReady")];
            let text = serde_json::json!({"containerd": {"defaultRuntimeName": "runc",
                "runtimes": {"runc": {"options": {"SystemdCgroup": systemd}}}}});
            let info = request.verbose.then(|| ("config".to_owned(), text.to_string()));
            async {
                Ok(StatusResponse {
                    status: Some(RuntimeStatus { conditions }),
                    info: info.into_iter().collect(),
                    ..Default::default()
                })
            }
        })
        .unary(
            "/runtime.v1.RuntimeService/UpdateRuntimeConfig",
            move |request: UpdateRuntimeConfigRequest| {
                let config_of_network = request.runtime_config.and_then(|c| c.network_config);
                config.lock().unwrap().pod_cidr = config_of_network.unwrap_or_default().pod_cidr;
                async { Ok(UpdateRuntimeConfigResponse {}) }
            },
        );
    if age == Age::Old {
        return router;
    }
    let events = Arc::new(Mutex::new(Some(events)));
    router
        .unary("/runtime.v1.RuntimeService/RuntimeConfig", move |_: RuntimeConfigRequest| {
            let cgroup_driver = i32::from(!driver.lock().unwrap().systemd);
            async move {
                Ok(RuntimeConfigResponse { linux: Some(LinuxRuntimeConfiguration { cgroup_driver }) })
            }
        })
        .server_streaming("/runtime.v1.RuntimeService/GetContainerEvents", move |_: GetEventsRequest| {
            let receiver = events.lock().unwrap().take();
            async move {
                let mut receiver = receiver.ok_or_else(|| Status::unavailable("one stream"))?;
                // As Go's server, which answers with the first message.
                let first = receiver.recv().await;
                let rest = stream::unfold(receiver, |mut receiver| async {
                    receiver.recv().await.map(|event| (event, receiver))
                });
                let all: BoxStream<'static, Result<ContainerEventResponse, Status>> =
                    stream::iter(first).chain(rest).map(Ok).boxed();
                Ok(all)
            }
        })
}

fn images(router: Router, shared: &Shared) -> Router {
    let pull = shared.clone();
    let image = || Image {
        id: "sha256:1".into(),
        repo_tags: vec!["example.com/a:1".into()],
        size: 11,
        uid: Some(Int64Value { value: 5 }),
        ..Default::default()
    };
    router
        .unary("/runtime.v1.ImageService/ListImages", move |_: ListImagesRequest| async move {
            Ok(ListImagesResponse { images: vec![image()] })
        })
        .unary("/runtime.v1.ImageService/ImageStatus", move |request: ImageStatusRequest| async move {
            let known = request.image.unwrap_or_default().image == "example.com/a:1";
            Ok(ImageStatusResponse { image: known.then(image), ..Default::default() })
        })
        .unary("/runtime.v1.ImageService/PullImage", move |request: PullImageRequest| {
            let wanted = request.image.clone().unwrap_or_default().image;
            pull.lock().unwrap().pulled.push(request);
            async move {
                match wanted.as_str() {
                    "example.com/a:1" => Ok(PullImageResponse { image_ref: "sha256:1".into() }),
                    _ => {
                        Err(Status::not_found(format!("failed to resolve reference \"{wanted}\": not found")))
                    }
                }
            }
        })
        .unary("/runtime.v1.ImageService/ImageFsInfo", |_: ImageFsInfoRequest| async {
            let usage = FilesystemUsage {
                fs_id: Some(FilesystemIdentifier { mountpoint: "/var/lib/containerd".into() }),
                used_bytes: Some(Uint64Value { value: 12 }),
                ..Default::default()
            };
            Ok(ImageFsInfoResponse { image_filesystems: vec![usage], ..Default::default() })
        })
}

impl Fake {
    pub fn start(age: Age) -> Fake {
        let directory = tempfile::tempdir().unwrap();
        let state = Shared::default();
        let (events, receiver) = mpsc::channel(8);
        let router = sandboxes(Router::default(), &state);
        let router = commands(shown(containers(router, &state), &state), &state);
        let router = images(figures(router, &state, age), &state);
        let router = itself(router, &state, age, receiver);
        let listener = kaji_grpc::bind(&directory.path().join("runtime/cri.sock")).unwrap();
        let server = tokio::spawn(kaji_grpc::serve(listener, router));
        Fake { state, directory, events, server }
    }

    pub fn endpoints(&self) -> Endpoints {
        let socket = self.directory.path().join("runtime/cri.sock");
        Endpoints { runtime: format!("unix://{}", socket.display()), images: None }
    }

    pub fn sandboxes(&self) -> PathBuf {
        self.directory.path().join("sandboxes")
    }

    pub async fn runtime(&self) -> CriRuntime {
        let connected = Connected::to(&self.endpoints()).await.unwrap();
        connected.into_runtime(self.sandboxes(), None).await.unwrap()
    }

    pub fn images(&self) -> CriImages {
        CriImages::at(&self.endpoints()).unwrap()
    }
}
