//! Device plug-ins: they register on a socket of the kubelet, list their devices, and say what a container gets that
//! has some of them. Upstream's `devicemanager`.
//!
//! Invariants: an allocation is on disk before the container is configured, and a restart keeps it; devices are never allocated
//! to two pods; a plug-in that is away keeps its resource for five minutes, without devices that can be used.

mod checkpoint;
mod endpoint;
pub mod messages;
mod options;
mod serve;
mod shown;
mod state;

pub use options::DeviceOptions;

use crate::pods::core::{Container, Pod};
use crate::pods::model;
use crate::resource_managers::Affinity;
use crate::resource_managers::hints::{NumaMask, ResourceHints};
use checkpoint::Kept;
use endpoint::Endpoint;
use jiff::Timestamp;
use kaji_meta::Clock;
use state::{Allocation, Devices, Ids, Owner};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc};

/// The file of allocations.
const CHECKPOINT: &str = "kubelet_internal_checkpoint";
/// Seconds that a resource stays after its plug-in is gone: upstream's `endpointStopGracePeriod`.
const STOP_SECONDS: i64 = 300;
/// Registrations that wait.
const WAITING: usize = 64;

/// A plug-in that registered.
struct Plugin {
    endpoint: Option<Arc<Endpoint>>,
    /// Since when it is gone.
    stopped: Option<Timestamp>,
}

#[derive(Default)]
struct State {
    devices: Devices,
    plugins: BTreeMap<String, Plugin>,
}

/// Where a plug-in is.
struct Found {
    resource: String,
    socket: PathBuf,
}

/// Resources of device plug-ins, as the node's status shows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceCapacity {
    /// All devices.
    pub capacity: BTreeMap<String, usize>,
    /// Those that can be used.
    pub allocatable: BTreeMap<String, usize>,
    /// Resources that are there no longer.
    pub removed: Vec<String>,
}

/// The devices of a node's plug-ins.
pub struct DeviceManager {
    dir: PathBuf,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Held while devices are chosen and plug-ins are asked.
    allocating: tokio::sync::Mutex<()>,
    found: mpsc::Sender<Found>,
    queue: tokio::sync::Mutex<mpsc::Receiver<Found>>,
    changed: Arc<Notify>,
}

impl DeviceManager {
    /// Below the kubelet's directory; allocations of a kubelet before this one are kept.
    #[must_use]
    pub fn new(root: &Path, clock: Arc<dyn Clock>) -> DeviceManager {
        let dir = root.join("device-plugins");
        let mut state = State::default();
        match checkpoint::read(&dir.join(CHECKPOINT)) {
            Ok(kept) => {
                state.devices.allocations = kept.allocations;
                let now = clock.now();
                for resource in kept.registered.into_keys() {
                    state.devices.resources.insert(resource.clone(), state::Resource::default());
                    state.plugins.insert(resource, Plugin { endpoint: None, stopped: Some(now) });
                }
            }
            Err(error) => tracing::error!(error, "the checkpoint of device allocations cannot be read"),
        }
        let (found, queue) = mpsc::channel(WAITING);
        DeviceManager {
            dir,
            clock,
            state: Mutex::new(state),
            allocating: tokio::sync::Mutex::default(),
            found,
            queue: tokio::sync::Mutex::new(queue),
            changed: Arc::default(),
        }
    }

    /// Notified when [`DeviceManager::capacity`] changes.
    #[must_use]
    pub fn changes(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the node has of devices. Resources of plug-ins that have been gone for long are dropped, once said.
    pub fn capacity(&self) -> DeviceCapacity {
        let now = self.clock.now();
        let mut state = self.state();
        let mut shown = DeviceCapacity::default();
        let gone = |plugin: Option<&Plugin>| {
            let Some(plugin) = plugin else { return true };
            plugin.stopped.is_some_and(|since| now.duration_since(since).as_secs() >= STOP_SECONDS)
        };
        let names: Vec<String> = state.devices.resources.keys().cloned().collect();
        for name in names {
            if gone(state.plugins.get(&name)) {
                state.devices.resources.remove(&name);
                state.plugins.remove(&name);
                shown.removed.push(name);
            } else if let Some(resource) = state.devices.resources.get(&name) {
                shown.capacity.insert(name.clone(), resource.healthy.len() + resource.unhealthy.len());
                shown.allocatable.insert(name, resource.healthy.len());
            }
        }
        if !shown.removed.is_empty() {
            self.save(&state);
        }
        shown
    }

    fn save(&self, state: &State) {
        let resources = &state.devices.resources;
        let registered = resources.iter().map(|(n, r)| (n.clone(), r.healthy.iter().cloned().collect()));
        let kept = Kept { allocations: state.devices.allocations.clone(), registered: registered.collect() };
        let numa = |resource: &str, id: &str| {
            resources.get(resource).and_then(|r| r.numa.get(id)).cloned().unwrap_or_default()
        };
        let saved = std::fs::create_dir_all(&self.dir)
            .and_then(|()| checkpoint::write(&self.dir.join(CHECKPOINT), &kept, numa));
        if let Err(error) = saved {
            tracing::error!(%error, "the checkpoint of device allocations cannot be written");
        }
    }

    /// Resources of plug-ins that a container asks for, and how many of each.
    fn asked(&self, container: &Container) -> Vec<(String, usize)> {
        let Some(limits) = container.resources.as_ref().and_then(|r| r.limits.as_ref()) else {
            return vec![];
        };
        let state = self.state();
        let named = limits.keys().filter(|name| name.contains('/') && state.devices.is_known(name));
        let count = |name: &String| {
            let amount = model::whole(Some(limits), name).and_then(|n| usize::try_from(n).ok());
            (name.clone(), amount.unwrap_or(0))
        };
        named.map(count).collect()
    }

    /// Allocates the devices that a pod asks for, unless it has them. `active` are the pods that may keep theirs; `affinity` says
    /// of which NUMA nodes a container's are taken first.
    ///
    /// # Errors
    /// Upstream's text.
    pub async fn allocate(
        &self,
        pod: &Pod,
        active: &BTreeSet<&str>,
        affinity: &Affinity,
    ) -> Result<(), String> {
        let asks = |c: &Container| !self.asked(c).is_empty();
        if !model::init_containers(pod).iter().chain(model::containers(pod)).any(asks) {
            return Ok(());
        }
        let _one_at_a_time = self.allocating.lock().await;
        let changed = self.state().devices.keep_pods(active);
        let mut reusable: BTreeMap<String, Ids> = BTreeMap::new();
        let mut outcome = Ok(changed);
        for (container, init) in model::init_containers(pod)
            .iter()
            .map(|c| (c, !model::is_sidecar(c)))
            .chain(model::containers(pod).iter().map(|c| (c, false)))
        {
            let nodes = affinity.get(&container.name).and_then(|hint| hint.nodes);
            let allocated = self.allocate_container(pod, container, &mut reusable, (init, nodes)).await;
            outcome = match (outcome, allocated) {
                (Ok(before), Ok(now)) => Ok(before || now),
                (_, Err(error)) | (Err(error), _) => Err(error),
            };
            if outcome.is_err() {
                break;
            }
        }
        let state = self.state();
        if outcome.as_ref().is_ok_and(|changed| !changed) {
            return Ok(());
        }
        self.save(&state);
        outcome.map(drop)
    }

    /// Allocates for one container. Whether anything changed.
    async fn allocate_container(
        &self,
        pod: &Pod,
        container: &Container,
        reusable: &mut BTreeMap<String, Ids>,
        (init, nodes): (bool, Option<NumaMask>),
    ) -> Result<bool, String> {
        let owner = Owner { pod: model::uid(pod).to_owned(), container: container.name.clone() };
        let mut changed = false;
        for (resource, required) in self.asked(container) {
            let free = reusable.entry(resource.clone()).or_default();
            let (choice, endpoint) = {
                let state = self.state();
                let choice = state.devices.choice(&owner, &resource, required, free)?;
                let known = state.devices.resources.get(&resource);
                let choice = choice.map(|choice| choice.near(known, nodes));
                (choice, state.plugins.get(&resource).and_then(|p| p.endpoint.clone()))
            };
            let chosen = match choice {
                None => {
                    let state = self.state();
                    let has = state.devices.allocations.get(&owner).and_then(|r| r.get(&resource));
                    has.map(|a| a.devices.clone()).unwrap_or_default()
                }
                Some(choice) => {
                    let endpoint = endpoint.ok_or_else(|| format!("unknown Device Plugin {resource}"))?;
                    let all = choice.available.union(&choice.chosen).cloned().collect();
                    let preferred =
                        endpoint.preferred(&all, &choice.chosen, required).await.map_err(|e| {
                            format!("device plugin GetPreferredAllocation rpc failed with err: {e}")
                        })?;
                    let devices = choice.complete(&preferred);
                    let response = endpoint.allocate(&devices).await.map_err(|e| e.to_string())?;
                    let response = response.ok_or("no containers return in allocation response")?;
                    let allocation = Allocation { devices: devices.clone(), response };
                    let mut state = self.state();
                    let of_owner = state.devices.allocations.entry(owner.clone()).or_default();
                    of_owner.insert(resource.clone(), allocation);
                    changed = true;
                    devices
                }
            };
            if init {
                free.extend(chosen);
            } else {
                free.retain(|id| !chosen.contains(id));
            }
        }
        Ok(changed)
    }

    /// Of which NUMA nodes devices can be taken, for each resource that a container, or the pod as a whole, asks for.
    #[must_use]
    pub fn hints(&self, pod: &Pod, container: Option<&Container>, nodes: &[u32]) -> Vec<ResourceHints> {
        let mut asked: BTreeMap<String, usize> = BTreeMap::new();
        for one in model::init_containers(pod).iter().chain(model::containers(pod)) {
            if container.is_none_or(|only| only.name == one.name) {
                for (resource, count) in self.asked(one) {
                    *asked.entry(resource).or_default() += count;
                }
            }
        }
        let state = self.state();
        let owner = |name: &str| Owner { pod: model::uid(pod).to_owned(), container: name.to_owned() };
        let of = |(resource, count): (String, usize)| {
            let has = container.and_then(|c| state.devices.allocations.get(&owner(&c.name))?.get(&resource));
            state.devices.hints(&resource, count, has.map(|a| &a.devices), nodes)
        };
        asked.into_iter().map(of).collect()
    }

    /// What a container gets because of its devices. Plug-ins that ask for it are called first.
    ///
    /// # Errors
    /// Upstream's text.
    pub async fn options(&self, pod: &Pod, container: &Container) -> Result<DeviceOptions, String> {
        let owner = Owner { pod: model::uid(pod).to_owned(), container: container.name.clone() };
        for (resource, required) in self.asked(container) {
            if required == 0 {
                continue;
            }
            let (endpoint, devices) = {
                let state = self.state();
                let has = state.devices.allocations.get(&owner).and_then(|r| r.get(&resource));
                (
                    state.plugins.get(&resource).and_then(|p| p.endpoint.clone()),
                    has.map(|a| a.devices.clone()),
                )
            };
            let Some(devices) = devices else {
                let container = &container.name;
                return Err(format!(
                    "no devices found allocated in local cache for pod {}, container {container}, resource {resource}",
                    owner.pod
                ));
            };
            if let Some(endpoint) = endpoint.filter(|e| e.options.pre_start_required) {
                endpoint
                    .pre_start(&devices)
                    .await
                    .map_err(|e| format!("device plugin PreStartContainer rpc failed with err: {e}"))?;
            }
        }
        let state = self.state();
        let responses = state.devices.allocations.get(&owner).into_iter().flat_map(BTreeMap::values);
        Ok(DeviceOptions::of(responses.map(|a| &a.response)))
    }
}
