//! A real node: its Node object, and a worker for each pod that is bound to it.
//!
//! Invariants: a pod has one worker, by its uid, until it is gone from the API and from the runtime; what the runtime runs
//! and the API does not show is stopped, but not before the API's list is complete.

mod admit;
pub mod allocatable;
mod allocations;
mod api;
mod cgroups;
pub mod eviction;
mod housekeeping;
pub mod image_gc;
mod machine;
mod mirror_pods;
mod objects;
mod pods_api;
mod preemption;
mod report;
mod resource_claims;
pub mod shutdown;
pub mod static_pods;
pub mod usage;

pub(crate) use api::patch as status_patch;
pub use cgroups::KernelCgroups;
pub use housekeeping::Housekeeping;
pub use machine::Machine;
pub use objects::{BoundPods, FullNode, FullPod};
pub use report::KUBELET_PORT;

use crate::credential_providers::CredentialProviders;
use crate::metrics::{KubeletMetrics, families, measured::Measured};
use crate::plugins::csi_allocatable::AllocatableUpdates;
use crate::plugins::csi_node::CsiNode;
use crate::plugins::devices::DeviceManager;
use crate::plugins::watcher::PluginWatcher;
use crate::pods::context::{NodeConfig, NodeContext, PodCgroups};
use crate::pods::core::Pod;
use crate::pods::pull_records::PullRecords;
use crate::pods::sources::ApiSources;
use crate::pods::user_namespaces::UserNamespaces;
use crate::pods::worker::{Desired, Ending, ShownAs, Worker};
use crate::pods::{labels, log_rotation, model};
use crate::resource_managers::ResourceManagers;
use crate::server::{KubeletServerConfig, NodeApi};
use crate::volumes::{Mounter, VolumeManager};
use allocations::Allocations;
use api::{Facts, KubeletApi};
use eviction::rank::Eviction;
use eviction::thresholds::Pressure;
use futures_util::StreamExt;
use kaji_containers::{
    ContainerFilter, ContainerRuntime, ContainerState, ImageService, PodSandboxFilter, PodSandboxInfo,
};
use kaji_runtime::objects::Service;
use kaji_runtime::{Client, Informer, Informers, Recorder, Shared};
use preemption::Preemptions;
use shutdown::plan::GracePeriod;
use shutdown::{NodeShutdown, Termination};
use static_pods::{Manifests, StaticPods};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::DirBuilder;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The features of upstream's registry that nodes of this program have, sorted: `status.declaredFeatures` (KEP-5328).
pub(crate) const DECLARED_FEATURES: [&str; 4] = [
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

/// How often the runtime is listed when it has no events.
const POLL: Duration = Duration::from_secs(1);
/// How often it is listed all the same when it has.
const RELIST: Duration = Duration::from_secs(60);
/// Events that wait for the dispatcher, at most.
const MAX_EVENTS: usize = 1024;

/// What a real node is made of.
pub struct NodeParts {
    /// Names, directories, addresses, resolvers.
    pub config: NodeConfig,
    /// The node's own facts, of its Node object.
    pub machine: Machine,
    /// Sandboxes and containers.
    pub runtime: Arc<dyn ContainerRuntime>,
    /// Images.
    pub images: Arc<dyn ImageService>,
    /// Credentials for pulls, from plug-ins.
    pub credentials: CredentialProviders,
    /// Processors of containers.
    pub managers: ResourceManagers,
    /// Mounts of volumes.
    pub mounter: Arc<dyn Mounter>,
    /// Cgroups of pods; `None` where the kubelet may not make any.
    pub cgroups: Option<Arc<dyn PodCgroups>>,
    /// What the kubelet's HTTPS API needs; without it none is served.
    pub server: Option<NodeServer>,
    /// Logs, images, pressure.
    pub housekeeping: Housekeeping,
    /// Static pods; without it there are none.
    pub manifests: Option<Manifests>,
    /// How long pods get to end when the machine shuts down; empty for no time at all.
    pub shutdown: Vec<GracePeriod>,
}

/// The kubelet's HTTPS API of a node.
#[derive(Clone)]
pub struct NodeServer {
    /// Certificates, and how clients are verified.
    pub config: KubeletServerConfig,
    /// Where it listens; the port is [`KUBELET_PORT`], which the Node object shows.
    pub address: IpAddr,
}

/// A pod's worker.
struct Running {
    desired: watch::Sender<Desired>,
    wake: Arc<Notify>,
}

/// What the dispatcher reacts to.
enum DispatcherEvent {
    /// Pods changed.
    Pods,
    /// The runtime reports a change of a pod.
    Pod(String),
    /// The runtime is to be listed.
    List,
    /// A pod is to be evicted.
    Evict(Eviction),
    /// A pod is to be ended.
    Terminate(Termination),
}

struct Dispatcher {
    cx: Arc<NodeContext>,
    pods: Arc<Informer<FullPod>>,
    workers: BTreeMap<String, Running>,
    tasks: JoinSet<String>,
    /// State of each container and sandbox when it was listed last.
    listed: BTreeMap<String, (String, ContainerState)>,
    /// The node's conditions.
    pressures: watch::Receiver<BTreeSet<Pressure>>,
    /// Those that files describe.
    statics: watch::Receiver<StaticPods>,
    /// What pods were granted.
    allocations: Allocations,
    /// Critical pods that wait for others to end.
    preemptions: Preemptions,
    /// Whether all pods of the API are known.
    complete: bool,
    /// When the runtime was listed last.
    last_list: Option<Instant>,
}

/// Runs a node until `stop` turns true; its containers go on. The informers have to select the node's own pods, and its Node
/// object if the client may not read others: [`FullPod`] by `spec.nodeName`, [`FullNode`] by `metadata.name`.
pub async fn run(
    parts: NodeParts,
    informers: Arc<Informers>,
    shared: Shared,
    mut stop: watch::Receiver<bool>,
) {
    let client = shared.client.named(&format!("kubelet/{}", parts.config.node_name));
    let recorder = Recorder::start(client.clone(), "kubelet", shared.clock.clone(), shared.random.clone());
    let (pods, nodes) = (informers.get::<FullPod>(), informers.get::<FullNode>());
    let services = informers.get::<Service>();
    let facts = Facts::new(parts.config.node_name.clone(), nodes, services.clone(), &parts.machine);
    let metrics = Arc::new(KubeletMetrics::default());
    let cx = Arc::new(NodeContext {
        dra: resource_claims::manager(&parts.config, &client, &shared, &metrics),
        devices: Arc::new(DeviceManager::new(&parts.config.root_dir, shared.clock.clone())),
        volumes: VolumeManager::new(parts.config.root_dir.clone(), parts.mounter),
        user_namespaces: UserNamespaces::new(&parts.config.root_dir),
        pod_feed: Default::default(),
        runtime: Arc::new(Measured { inner: parts.runtime, metrics: metrics.clone() }),
        images: Arc::new(Measured { inner: parts.images, metrics: metrics.clone() }),
        metrics,
        probe_metrics: KubeletMetrics::default(),
        credentials: parts.credentials,
        pull_records: PullRecords::new(&parts.config.root_dir, shared.clock.clone()),
        managers: parts.managers,
        api: Arc::new(KubeletApi::new(client.clone(), recorder)),
        sources: Arc::new(ApiSources::new(client.clone(), shared.clock.clone())),
        facts: Arc::new(facts),
        cgroups: parts.cgroups,
        shutdown: NodeShutdown::default(),
        clock: shared.clock.clone(),
        random: shared.random.clone(),
        config: parts.config,
    });
    make_root(&cx.config.root_dir);
    let (events, queue) = mpsc::channel(MAX_EVENTS);
    dispatch_changes(&pods, events.clone());
    let mut tasks = JoinSet::new();
    tasks.spawn(follow_runtime(cx.clone(), events.clone()));
    tasks.spawn(log_rotation::run(cx.clone(), parts.housekeeping.logs));
    start_plugins(&cx, &client, &informers, &mut tasks);
    if let Some(server) = parts.server {
        let limits = parts.housekeeping.clone();
        tasks.spawn(serve(server, cx.clone(), client.clone(), pods.clone(), limits, stop.clone()));
    }
    let (pressures, shown) = watch::channel(BTreeSet::new());
    tasks.spawn(housekeeping::keep_order(
        cx.clone(),
        parts.housekeeping,
        pods.clone(),
        events.clone(),
        pressures,
    ));
    tasks.spawn(report::run(cx.clone(), client.clone(), parts.machine.clone(), shown.clone(), stop.clone()));
    let statics = match parts.manifests {
        Some(manifests) => follow_manifests(&cx, manifests, &mut tasks),
        None => watch::channel(StaticPods::default()).1,
    };
    shutdown::start(&cx, parts.shutdown, &pods, &statics, &events, &mut tasks);
    resource_claims::start(&cx, &pods, &statics, events, &mut tasks);
    pods_api::start(&cx, &pods, &statics, &mut tasks);
    tasks.spawn(admit::keep_processors(cx.clone(), pods.clone(), statics.clone()));
    tasks.spawn(allocatable::keep(cx.clone(), parts.machine, pods.clone(), statics.clone()));
    tasks.spawn(mirror_pods::run(cx.clone(), client, statics.clone(), pods.clone()));
    let dispatcher = Dispatcher::new(cx, pods, statics, shown);
    tokio::select! {
        () = dispatcher.run(queue) => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

/// Tells the dispatcher of changes of pods.
fn dispatch_changes(pods: &Informer<FullPod>, events: mpsc::Sender<DispatcherEvent>) {
    pods.handle(move |_| {
        // A queue that is full holds the same event already.
        let _ = events.try_send(DispatcherEvent::Pods);
    });
}

/// Serves the kubelet's HTTPS API until `stop` turns true.
async fn serve(
    server: NodeServer,
    cx: Arc<NodeContext>,
    client: Client,
    pods: Arc<Informer<FullPod>>,
    housekeeping: Housekeeping,
    stop: watch::Receiver<bool>,
) {
    let node = cx.config.node_name.clone();
    let api = Arc::new(NodeApi::new(cx, Arc::new(BoundPods(pods)), housekeeping));
    let address = SocketAddr::new(server.address, KUBELET_PORT);
    server.config.run(&node, address, client, api, stop).await;
}

/// Makes the kubelet's directory: the disk that it is on is observed from then on.
fn make_root(root: &Path) {
    if let Err(error) = DirBuilder::new().recursive(true).mode(0o750).create(root) {
        tracing::error!(%error, directory = %root.display(), "the kubelet's directory cannot be made");
    }
}

/// Lets plug-ins register, and volumes that no pod has be unstaged.
fn start_plugins(
    cx: &Arc<NodeContext>,
    client: &Client,
    informers: &Arc<Informers>,
    tasks: &mut JoinSet<()>,
) {
    let (root, clock) = (&cx.config.root_dir, cx.clock.clone());
    let node = CsiNode::new(client.clone(), &cx.config.node_name, cx.facts.clone(), clock.clone());
    let node = Arc::new(node);
    let csi = cx.volumes.csi_drivers().clone();
    let updates = AllocatableUpdates::new(csi.clone(), node.clone(), informers.clone(), clock.clone());
    tasks.spawn(updates.run());
    let watcher = PluginWatcher::new(root, csi, node.clone(), cx.devices.clone(), cx.dra.clone(), clock);
    tasks.spawn(async move { node.publish().await });
    tasks.spawn(watcher.run());
    tasks.spawn(cx.devices.clone().run());
    tasks.spawn(cx.dra.clone().run());
    let cx = cx.clone();
    tasks.spawn(async move {
        loop {
            kaji_runtime::time::sleep(&*cx.clock, RELIST).await;
            cx.volumes.sweep().await;
        }
    });
}

/// Reads the manifests, and follows them from then on.
fn follow_manifests(
    cx: &NodeContext,
    manifests: Manifests,
    tasks: &mut JoinSet<()>,
) -> watch::Receiver<StaticPods> {
    let (name, clock) = (cx.config.node_name.clone(), cx.clock.clone());
    // At once: what the runtime runs and nothing describes is stopped.
    let first = static_pods::read(&manifests, &name, clock.now());
    let (sender, statics) = watch::channel(Arc::new(first));
    tasks.spawn(static_pods::follow(manifests, name, clock, sender));
    statics
}

/// The node in events about it.
fn reference(name: &str) -> serde_json::Value {
    serde_json::json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": name})
}

/// Turns the runtime's events into those of the dispatcher; polls where it has none, and lists now and then in any case.
async fn follow_runtime(cx: Arc<NodeContext>, queue: mpsc::Sender<DispatcherEvent>) {
    loop {
        let Ok(mut events) = cx.runtime.events().await else {
            if queue.send(DispatcherEvent::List).await.is_err() {
                return;
            }
            kaji_runtime::time::sleep(&*cx.clock, POLL).await;
            continue;
        };
        if queue.send(DispatcherEvent::List).await.is_err() {
            return;
        }
        loop {
            let next = tokio::select! {
                event = events.next() => match event {
                    Some(Ok(event)) => DispatcherEvent::Pod(event.pod_uid),
                    // Some were missed.
                    Some(Err(_)) => DispatcherEvent::List,
                    None => break,
                },
                () = kaji_runtime::time::sleep(&*cx.clock, RELIST) => DispatcherEvent::List,
            };
            if queue.send(next).await.is_err() {
                return;
            }
        }
        kaji_runtime::time::sleep(&*cx.clock, POLL).await;
    }
}

impl Dispatcher {
    fn new(
        cx: Arc<NodeContext>,
        pods: Arc<Informer<FullPod>>,
        statics: watch::Receiver<StaticPods>,
        pressures: watch::Receiver<BTreeSet<Pressure>>,
    ) -> Dispatcher {
        Dispatcher {
            statics,
            allocations: Allocations::default(),
            preemptions: Preemptions::default(),
            complete: false,
            last_list: None,
            cx,
            pods,
            workers: BTreeMap::new(),
            tasks: JoinSet::new(),
            listed: BTreeMap::new(),
            pressures,
        }
    }

    async fn run(mut self, mut queue: mpsc::Receiver<DispatcherEvent>) {
        // Static pods need no API.
        self.dispatch().await;
        self.pods.synced().await;
        self.complete = true;
        self.dispatch().await;
        let mut observe = preemption::observations();
        loop {
            let event = tokio::select! {
                event = queue.recv() => event,
                Ok(()) = self.statics.changed() => Some(DispatcherEvent::Pods),
                _ = observe.tick(), if !self.preemptions.is_empty() => Some(DispatcherEvent::Pods),
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    match ended {
                        Ok(uid) => drop(self.workers.remove(&uid)),
                        Err(error) => {
                            tracing::error!(%error, "a pod's worker ended early");
                            self.workers.retain(|_, w| w.desired.receiver_count() > 0);
                        }
                    }
                    // A pod of the same name may have waited, or the worker has to start anew.
                    self.dispatch().await;
                    continue;
                }
            };
            match event {
                None => return,
                Some(DispatcherEvent::Pods) => self.dispatch().await,
                Some(DispatcherEvent::Pod(uid)) => {
                    if let Some(worker) = self.workers.get(&uid) {
                        worker.wake.notify_one();
                    }
                }
                Some(DispatcherEvent::Evict(eviction)) => self.evict(&eviction),
                Some(DispatcherEvent::Terminate(pod)) => drop(self.end(&pod.uid, pod.ending)),
                Some(DispatcherEvent::List) => {
                    let began = Instant::now();
                    let listed = self.list().await;
                    self.relisted(began);
                    if let Err(error) = listed {
                        tracing::warn!(%error, "the container runtime cannot be listed");
                    }
                }
            }
        }
    }

    /// Hands every pod its newest version, in order of creation; those that are new are admitted first.
    async fn dispatch(&mut self) {
        let mut pods = self.bound();
        let cx = self.cx.clone();
        let applied = self.allocations.apply(&cx, &mut pods);
        let shown: HashSet<&str> = pods.iter().map(|(p, _)| model::uid(p)).collect();
        for (uid, worker) in &self.workers {
            if !shown.contains(uid.as_str()) {
                worker.desired.send_if_modified(|d| !std::mem::replace(&mut d.gone, true));
            }
        }
        let mut admitted: Vec<Arc<Pod>> = pods
            .iter()
            .map(|(pod, _)| pod)
            .filter(|p| !model::is_terminal(p) && self.workers.contains_key(model::uid(p)))
            .cloned()
            .collect();
        self.preemptions.retain(|uid| shown.contains(uid) && !self.workers.contains_key(uid));
        for bound in &pods {
            let (pod, shown_as) = bound;
            let pending = applied.pending.get(model::uid(pod)).cloned();
            match self.workers.get(model::uid(pod)) {
                Some(worker) => {
                    worker.desired.send_if_modified(|d| {
                        let same = d.pod.metadata.resource_version == pod.metadata.resource_version
                            && d.shown_as == *shown_as
                            && d.pending == pending
                            && !applied.changed.contains(model::uid(pod));
                        d.pod = pod.clone();
                        d.shown_as.clone_from(shown_as);
                        d.pending = pending;
                        !same
                    });
                }
                None => self.begin(&pods, bound, pending, &mut admitted).await,
            }
        }
    }

    /// The pods of this node in order of creation, and where the API shows their status. Mirror pods are not run: the static pods that
    /// they stand for are.
    fn bound(&self) -> Vec<(Arc<Pod>, ShownAs)> {
        let snapshot = self.pods.snapshot();
        let node = &self.cx.config.node_name;
        let own = snapshot.iter().map(|p| &p.pod);
        let own = own.filter(|p| p.spec.as_ref().and_then(|s| s.node_name.as_ref()) == Some(node));
        let (mirrors, own): (Vec<&Arc<Pod>>, Vec<_>) = own.partition(|p| static_pods::mirrored(p).is_some());
        let mut pods: Vec<_> = own.into_iter().map(|p| (p.clone(), ShownAs::Itself)).collect();
        pods.sort_by_key(|(p, _)| (p.metadata.creation_timestamp.clone(), p.metadata.uid.clone()));
        let of_file = |pod: &Arc<Pod>| {
            let uid = model::uid(pod);
            match mirrors.iter().find(|m| static_pods::mirrored(m) == Some(uid) && !model::deleting(m)) {
                None => (pod.clone(), ShownAs::Nothing),
                Some(mirror) => {
                    let shown = Pod { status: mirror.status.clone(), ..Pod::clone(pod) };
                    (Arc::new(shown), ShownAs::Mirror(model::uid(mirror).to_owned()))
                }
            }
        };
        // They go first: the node may need them.
        self.statics.borrow().iter().map(of_file).chain(pods).collect()
    }

    /// Takes note of how long listing took, and of how long ago the time before was.
    fn relisted(&mut self, began: Instant) {
        let metrics = &self.cx.metrics;
        metrics.observe(&families::RELISTS, &[], began.elapsed());
        if let Some(before) = self.last_list.replace(began) {
            metrics.observe(&families::RELIST_INTERVALS, &[], began.duration_since(before));
        }
        metrics.relisted(self.cx.clock.now());
    }

    /// Ends a pod for good. It fails once its containers have ended. What the events about it name, unless it ends already or is gone.
    fn end(&self, uid: &str, ending: Ending) -> Option<serde_json::Value> {
        let worker = self.workers.get(uid)?;
        let ended = worker.desired.send_if_modified(|d| {
            let new = d.refused.is_none() && !d.gone;
            if new {
                d.refused = Some(ending);
            }
            new
        });
        ended.then(|| model::reference(&worker.desired.borrow().pod))
    }

    fn evict(&self, eviction: &Eviction) {
        let ending = Ending {
            reason: "Evicted".to_owned(),
            message: eviction.message.clone(),
            grace: Some(eviction.grace),
            disruption: eviction.disruption.then(|| eviction.message.clone()),
        };
        if let Some(reference) = self.end(&eviction.uid, ending) {
            let message = eviction.message.clone();
            self.cx.metrics.count(&families::EVICTIONS, &[("eviction_signal", &eviction.signal)]);
            self.cx.api.record(kaji_runtime::EventRecord::warning(reference, "Evicted", message));
        }
    }

    fn start(&mut self, desired: Desired) {
        let uid = model::uid(&desired.pod).to_owned();
        let (desired, changes) = watch::channel(desired);
        let wake = Arc::new(Notify::new());
        let worker = Worker::new(self.cx.clone(), changes, wake.clone());
        self.workers.insert(uid.clone(), Running { desired, wake });
        self.tasks.spawn(async move {
            worker.run().await;
            uid
        });
    }

    /// Compares what the runtime shows with what it showed before, wakes the pods that differ, and stops pods that the API does
    /// not show any more.
    async fn list(&mut self) -> Result<(), kaji_containers::RuntimeError> {
        let runtime = self.cx.runtime.clone();
        let containers = runtime.list_containers(ContainerFilter::default()).await?;
        let mut now = BTreeMap::new();
        for info in containers {
            let Some(uid) = labels::container_pod_uid(&info) else { continue };
            now.insert(info.id.clone(), (uid.to_owned(), info.state));
        }
        let mut changed: BTreeSet<&String> = BTreeSet::new();
        for (id, found) in &now {
            if self.listed.get(id) != Some(found) {
                changed.insert(&found.0);
            }
        }
        for (id, (uid, _)) in &self.listed {
            if !now.contains_key(id) {
                changed.insert(uid);
            }
        }
        for uid in changed {
            if let Some(worker) = self.workers.get(uid) {
                worker.wake.notify_one();
            }
        }
        self.listed = now;
        let sandboxes = runtime.list_pod_sandboxes(PodSandboxFilter::default()).await?;
        let mut gone: Vec<Pod> = vec![];
        for sandbox in sandboxes {
            let uid = labels::sandbox_pod_uid(&sandbox).map(str::to_owned);
            if let Some(uid) = uid.filter(|uid| !self.workers.contains_key(uid)) {
                gone.push(orphan(&sandbox, &uid));
            }
        }
        // Of others only their directories are left, with volumes perhaps.
        for uid in pod_directories(&self.cx.config.root_dir) {
            if !self.workers.contains_key(&uid) && !gone.iter().any(|pod| model::uid(pod) == uid) {
                let mut pod = Pod::default();
                pod.metadata.uid = Some(uid);
                gone.push(pod);
            }
        }
        for pod in gone {
            self.cx.metrics.count(&families::ORPHANS, &[]);
            let (pod, gone, shown_as) = (Arc::new(pod), true, ShownAs::Nothing);
            self.start(Desired { pod, gone, refused: None, shown_as, pending: None });
        }
        Ok(())
    }
}

/// The uids of pods that have a directory.
fn pod_directories(root: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(root.join("pods")) else { return vec![] };
    entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect()
}

/// What the labels of a sandbox say of a pod that was removed from the API while no kubelet ran.
fn orphan(sandbox: &PodSandboxInfo, uid: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some(sandbox.metadata.name.clone());
    pod.metadata.namespace = Some(sandbox.metadata.namespace.clone());
    pod.metadata.uid = Some(uid.to_owned());
    pod
}
