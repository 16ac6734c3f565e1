//! Processors, memory and devices of single containers, near to each other: what upstream's container manager does beside cgroups.
//!
//! - `cpu`: whole processors for containers of guaranteed pods (`cpuManagerPolicy: static`).
//! - `memory`: memory of single NUMA nodes for containers of guaranteed pods (`memoryManagerPolicy: Static`).
//! - `hints`: the NUMA nodes that all resources of a container, or of a pod, are taken from (`topologyManagerPolicy`).
//! - `assign`, `topology`, `cpu_set`: which processors are near to each other.
//!
//! Invariants: a pod has what it asks for before any container of it is made, or is refused; what a pod had is shared again when it is
//! over, and containers that share processors get their new set by [`ResourceManagers::reconcile`].

mod assign;
pub mod cpu;
pub mod cpu_set;
mod distribute;
pub mod hints;
pub mod memory;
pub mod topology;

use crate::pods::admission::PodRejection;
use crate::pods::core::{Container, Pod};
use crate::pods::{labels, model};
use cpu::{CpuManager, CpuOptions};
use cpu_set::CpuSet;
use hints::{Hint, NumaMask, ResourceHints, TopologyPolicy};
use kaji_containers::{
    ContainerFilter, ContainerRuntime, ContainerState, LinuxResources, ResourceUpdate, RuntimeError,
};
use memory::{MemoryManager, MemoryOptions};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use topology::Topology;

/// More NUMA nodes make more combinations than can be compared: upstream's bound.
const MOST_NODES: usize = 8;

/// What is aligned together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scope {
    /// The resources of each container.
    #[default]
    Container,
    /// All resources of a pod.
    Pod,
}

/// What an administrator chose.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// `cpuManagerPolicy: static` with its options.
    pub cpu: Option<CpuOptions>,
    /// `reservedSystemCPUs`: kept free by name.
    pub reserved_cpus: Option<CpuSet>,
    /// Processors that are kept free, in thousandths: of `systemReserved` and `kubeReserved`.
    pub reserved_milli: i64,
    /// `memoryManagerPolicy: Static` with `reservedMemory`.
    pub memory: Option<MemoryOptions>,
    /// `topologyManagerPolicy`
    pub policy: TopologyPolicy,
    /// `topologyManagerScope`
    pub scope: Scope,
}

/// Memory on NUMA nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryBlock {
    /// `memory`, `hugepages-<size>`
    pub kind: String,
    /// Bytes.
    pub size: u64,
    /// The nodes' numbers.
    pub nodes: Vec<u32>,
}

struct State {
    cpu: Option<CpuManager>,
    memory: Option<MemoryManager>,
    /// The set that each container got last, by its id.
    current: HashMap<String, CpuSet>,
}

impl State {
    fn keep_pods(&mut self, active: &BTreeSet<&str>) {
        if let Some(cpu) = &mut self.cpu {
            cpu.keep_pods(active);
        }
        if let Some(memory) = &mut self.memory {
            memory.keep_pods(active);
        }
    }

    fn allocate(&mut self, pod: &Pod, container: &Container, hint: Hint) -> Result<(), cpu::Refused> {
        if let Some(cpu) = &mut self.cpu {
            cpu.allocate(pod, container, hint)?;
        }
        match &mut self.memory {
            Some(memory) => memory.allocate(pod, container, hint),
            None => Ok(()),
        }
    }
}

/// The managers of a node.
pub struct ResourceManagers {
    state: Mutex<State>,
    policy: TopologyPolicy,
    scope: Scope,
    /// The machine's NUMA nodes.
    nodes: Vec<u32>,
}

/// NUMA nodes that a container's resources are taken from.
pub type Affinity = BTreeMap<String, Hint>;

/// What other managers say of a container, or of the pod as a whole, for some NUMA nodes: the device plug-ins.
pub type DeviceHints<'a> = &'a dyn Fn(Option<&Container>, &[u32]) -> Vec<ResourceHints>;

impl ResourceManagers {
    /// Nothing is pinned or aligned.
    #[must_use]
    pub fn none() -> ResourceManagers {
        let state = Mutex::new(State { cpu: None, memory: None, current: HashMap::new() });
        ResourceManagers { state, policy: TopologyPolicy::None, scope: Scope::Container, nodes: vec![] }
    }

    /// Those that the settings ask for, with what is below the kubelet's directory. `system` is `/sys/devices/system`.
    ///
    /// # Errors
    /// What the machine or the files do not allow.
    pub fn open(settings: &Settings, root: &Path, system: &Path) -> Result<ResourceManagers, String> {
        let left = |file: &str| Some(root.join(file)).filter(|path| path.exists());
        if settings.cpu.is_none()
            && let Some(file) = left(cpu::CHECKPOINT)
        {
            return Err(format!(
                "could not restore state from checkpoint: configured policy \"none\" differs from state checkpoint policy \"static\", please drain this node and delete the CPU manager checkpoint file {:?} before restarting Kubelet",
                file.display().to_string()
            ));
        }
        if settings.memory.is_none()
            && let Some(file) = left(memory::CHECKPOINT)
        {
            return Err(format!(
                "could not restore state from checkpoint: [memorymanager] configured policy \"None\" differs from state checkpoint policy \"Static\", please drain this node and delete the memory manager checkpoint file {:?} before restarting Kubelet",
                file.display().to_string()
            ));
        }
        if settings.cpu.is_none() && settings.memory.is_none() && settings.policy == TopologyPolicy::None {
            return Ok(ResourceManagers::none());
        }
        let topology =
            Topology::read(system).map_err(|error| format!("the topology of processors: {error}"))?;
        let nodes: Vec<u32> = topology.numa_nodes().into_iter().collect();
        let aligns = settings.policy != TopologyPolicy::None || settings.memory.is_some();
        if aligns && nodes.len() > MOST_NODES {
            return Err(format!("unsupported on machines with more than {MOST_NODES} NUMA Nodes"));
        }
        let reserve = settings.reserved_cpus.clone();
        let count = usize::try_from((settings.reserved_milli + 999) / 1000).unwrap_or(0);
        let cpu = settings
            .cpu
            .map(|options| CpuManager::open(root, topology, options, reserve.ok_or(count)))
            .transpose()?;
        let memory = settings.memory.as_ref();
        let memory = memory.map(|options| MemoryManager::open(root, system, &nodes, options)).transpose()?;
        let state = Mutex::new(State { cpu, memory, current: HashMap::new() });
        Ok(ResourceManagers { state, policy: settings.policy, scope: settings.scope, nodes })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a pod what it asks for. `active` are the pods that keep theirs, if they are known.
    /// Answers where the devices of its containers are to be
    /// taken from.
    ///
    /// # Errors
    /// The pod's refusal.
    pub fn admit(
        &self,
        pod: &Pod,
        active: Option<&BTreeSet<&str>>,
        devices: DeviceHints<'_>,
    ) -> Result<Affinity, PodRejection> {
        let mut state = self.state();
        if let Some(active) = active {
            state.keep_pods(active);
        }
        let containers = || model::init_containers(pod).iter().chain(model::containers(pod));
        let of_pod = match self.scope {
            Scope::Container => None,
            Scope::Pod => {
                let mut hints: Vec<ResourceHints> = state.cpu.iter().map(|cpu| cpu.pod_hints(pod)).collect();
                hints.extend(state.memory.iter().flat_map(|memory| memory.pod_hints(pod)));
                hints.extend(devices(None, &self.nodes));
                Some(self.merge(&hints)?)
            }
        };
        let mut affinity = Affinity::new();
        for container in containers() {
            let hint = match of_pod {
                Some(hint) => hint,
                None => {
                    let mut hints: Vec<ResourceHints> =
                        state.cpu.iter().map(|cpu| cpu.hints(pod, container)).collect();
                    hints.extend(state.memory.iter().flat_map(|memory| memory.hints(pod, container)));
                    hints.extend(devices(Some(container), &self.nodes));
                    self.merge(&hints)?
                }
            };
            state
                .allocate(pod, container, hint)
                .map_err(|(reason, message)| PodRejection { reason: reason.to_owned(), message })?;
            affinity.insert(container.name.clone(), hint);
        }
        Ok(affinity)
    }

    fn merge(&self, hints: &[ResourceHints]) -> Result<Hint, PodRejection> {
        let (hint, admitted) = self.policy.merge(NumaMask::of(self.nodes.iter().copied()), hints);
        if admitted {
            return Ok(hint);
        }
        let (reason, message) =
            ("TopologyAffinityError", "Resources cannot be allocated with Topology locality");
        Err(PodRejection { reason: reason.to_owned(), message: message.to_owned() })
    }

    /// Limits of a container with the processors that it runs on, and the NUMA nodes of its memory. One that has processors of its own
    /// needs no quota: it could not use more.
    #[must_use]
    pub fn with_places(&self, pod: &Pod, container: &str, mut limits: LinuxResources) -> LinuxResources {
        let state = self.state();
        if let Some(memory) = &state.memory {
            limits.cpuset_mems = memory.nodes_of(model::uid(pod), container);
        }
        if let Some(cpu) = &state.cpu {
            limits.cpuset_cpus = cpu.of(model::uid(pod), container).to_string();
            if cpu.own(model::uid(pod), container).is_some() {
                limits.cpu_quota = 0;
            }
        }
        limits
    }

    /// Limits of a pod, without a quota if a container of it has processors of its own.
    #[must_use]
    pub fn of_pod(&self, pod: &Pod, mut limits: LinuxResources) -> LinuxResources {
        if self.state().cpu.as_ref().is_some_and(|cpu| cpu.has_own(model::uid(pod))) {
            limits.cpu_quota = -1;
        }
        limits
    }

    /// Processors that a container has for itself.
    #[must_use]
    pub fn exclusive_cpus(&self, pod_uid: &str, container: &str) -> Vec<i64> {
        let state = self.state();
        let own = state.cpu.as_ref().and_then(|cpu| cpu.own(pod_uid, container));
        own.into_iter().flat_map(|cpus| cpus.0.iter().copied()).map(i64::from).collect()
    }

    /// Processors that containers can have for themselves; none without a policy.
    #[must_use]
    pub fn allocatable_cpus(&self) -> Vec<i64> {
        let state = self.state();
        let all = state.cpu.as_ref().map(CpuManager::allocatable);
        all.into_iter().flat_map(|cpus| cpus.0).map(i64::from).collect()
    }

    /// The memory that a container is bound to.
    #[must_use]
    pub fn memory_of(&self, pod_uid: &str, container: &str) -> Vec<MemoryBlock> {
        self.state().memory.as_ref().map(|memory| memory.blocks_of(pod_uid, container)).unwrap_or_default()
    }

    /// The memory that containers can be bound to; none without a policy.
    #[must_use]
    pub fn allocatable_memory(&self) -> Vec<MemoryBlock> {
        self.state().memory.as_ref().map(MemoryManager::allocatable).unwrap_or_default()
    }

    /// Processors that are shared, in thousandths, and how many are containers' own; `None` without a policy.
    #[must_use]
    pub fn cpu_counts(&self) -> Option<(usize, usize)> {
        self.state().cpu.as_ref().map(CpuManager::counts)
    }

    /// Whether any processors are given to containers.
    #[must_use]
    pub fn pins(&self) -> bool {
        self.state().cpu.is_some()
    }

    /// Whether containers are bound to the NUMA nodes of their memory.
    #[must_use]
    pub fn binds_memory(&self) -> bool {
        self.state().memory.is_some()
    }

    /// Takes back what is not of these pods, and gives containers that run their present processors.
    ///
    /// # Errors
    /// The runtime's, when it cannot list its containers.
    pub async fn reconcile(
        &self,
        runtime: &dyn ContainerRuntime,
        active: &BTreeSet<&str>,
    ) -> Result<(), RuntimeError> {
        let running = ContainerFilter { state: Some(ContainerState::Running), ..ContainerFilter::default() };
        let listed = runtime.list_containers(running).await?;
        let mut changes: Vec<(String, CpuSet)> = vec![];
        {
            let mut state = self.state();
            state.keep_pods(active);
            let State { cpu: Some(cpu), current, .. } = &mut *state else { return Ok(()) };
            current.retain(|id, _| listed.iter().any(|info| info.id == *id));
            for info in listed.iter().filter(|info| info.state == ContainerState::Running) {
                let Some(uid) = labels::container_pod_uid(info) else { continue };
                let wanted = cpu.of(uid, labels::container_name(info));
                if current.get(&info.id) != Some(wanted) {
                    changes.push((info.id.clone(), wanted.clone()));
                }
            }
        }
        for (id, cpus) in changes {
            let resources = LinuxResources { cpuset_cpus: cpus.to_string(), ..LinuxResources::default() };
            let update = ResourceUpdate { resources, ..ResourceUpdate::default() };
            match runtime.update_container_resources(&id, update).await {
                Ok(()) => drop(self.state().current.insert(id, cpus)),
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    tracing::warn!(container = id, %error, "the processors of a container could not be changed")
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn write(root: &Path, cpus: u32, nodes: u32) {
        let put = |path: String, text: String| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("cpu/online".into(), format!("0-{}", cpus - 1));
        put("node/online".into(), format!("0-{}", nodes - 1));
        let each = cpus / nodes;
        for node in 0..nodes {
            put(format!("node/node{node}/cpulist"), format!("{}-{}", node * each, (node + 1) * each - 1));
        }
        for cpu in 0..cpus {
            put(format!("cpu/cpu{cpu}/topology/physical_package_id"), "0".into());
            put(format!("cpu/cpu{cpu}/topology/thread_siblings_list"), cpu.to_string());
        }
    }

    fn pod(uid: &str, cpus: &[&str]) -> Pod {
        let containers: Vec<_> = cpus
            .iter()
            .enumerate()
            .map(|(index, cpu)| {
                let amounts = json!({"cpu": cpu, "memory": "1Mi"});
                json!({"name": format!("c{index}"), "resources": {"requests": amounts, "limits": amounts}})
            })
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": uid, "namespace": "n", "uid": uid},
            "spec": {"containers": containers},
        }))
        .unwrap()
    }

    #[test]
    fn pods_are_aligned_by_container_or_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 8, 2);
        let mut shown = String::new();
        for (policy, scope) in [
            (TopologyPolicy::None, Scope::Container),
            (TopologyPolicy::BestEffort, Scope::Container),
            (TopologyPolicy::SingleNumaNode, Scope::Container),
            (TopologyPolicy::SingleNumaNode, Scope::Pod),
            (TopologyPolicy::Restricted, Scope::Pod),
        ] {
            let root = tempfile::tempdir().unwrap();
            let settings = Settings {
                cpu: Some(CpuOptions::default()),
                reserved_milli: 500,
                policy,
                scope,
                ..Settings::default()
            };
            let managers = ResourceManagers::open(&settings, root.path(), dir.path()).unwrap();
            let mut active = BTreeSet::new();
            for (uid, cpus) in [("a", vec!["2", "2"]), ("b", vec!["2", "1"]), ("c", vec!["3"])] {
                active.insert(uid);
                let found = managers.admit(&pod(uid, &cpus), Some(&active), &|_, _| vec![]);
                let has = |index: usize| {
                    let limits = managers.with_places(
                        &pod(uid, &cpus),
                        &format!("c{index}"),
                        LinuxResources::default(),
                    );
                    limits.cpuset_cpus
                };
                let text = match found {
                    Ok(_) => (0..cpus.len()).map(has).collect::<Vec<_>>().join(" "),
                    Err(refusal) => {
                        active.remove(uid);
                        format!("{}: {}", refusal.reason, refusal.message)
                    }
                };
                shown += &format!("{} {scope:?} {uid}: {text}\n", policy.name());
            }
        }
        expect_test::expect![[r#"
            none Container a: 1-2 3-4
            none Container b: 5-6 7
            none Container c: UnexpectedAdmissionError: Allocate failed due to not enough cpus available to satisfy request: requested=3, available=0, which is unexpected
            best-effort Container a: 1-2 4-5
            best-effort Container b: 6-7 3
            best-effort Container c: UnexpectedAdmissionError: Allocate failed due to not enough cpus available to satisfy request: requested=3, available=0, which is unexpected
            single-numa-node Container a: 1-2 4-5
            single-numa-node Container b: 6-7 3
            single-numa-node Container c: TopologyAffinityError: Resources cannot be allocated with Topology locality
            single-numa-node Pod a: 4-5 6-7
            single-numa-node Pod b: 1-2 3
            single-numa-node Pod c: TopologyAffinityError: Resources cannot be allocated with Topology locality
            restricted Pod a: 4-5 6-7
            restricted Pod b: 1-2 3
            restricted Pod c: TopologyAffinityError: Resources cannot be allocated with Topology locality
        "#]].assert_eq(&shown);
    }

    #[test]
    fn devices_and_processors_meet_on_a_node() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 8, 2);
        let root = tempfile::tempdir().unwrap();
        let settings = Settings {
            cpu: Some(CpuOptions::default()),
            reserved_cpus: Some(CpuSet::parse("0").unwrap()),
            policy: TopologyPolicy::SingleNumaNode,
            ..Settings::default()
        };
        let managers = ResourceManagers::open(&settings, root.path(), dir.path()).unwrap();
        let only_second: Vec<ResourceHints> =
            vec![Some(vec![Hint { nodes: Some(NumaMask::of([1])), preferred: true }])];
        let pod = pod("p", &["2"]);
        let found = managers.admit(&pod, None, &|_, nodes| {
            assert_eq!(nodes, [0, 1]);
            only_second.clone()
        });
        assert_eq!(found.unwrap()["c0"].nodes, Some(NumaMask::of([1])));
        let limits = LinuxResources { cpu_quota: 5, ..LinuxResources::default() };
        let own = managers.with_places(&pod, "c0", limits.clone());
        assert_eq!((own.cpuset_cpus.as_str(), own.cpu_quota), ("4-5", 0));
        assert_eq!(managers.of_pod(&pod, limits).cpu_quota, -1);
        assert_eq!(managers.cpu_counts(), Some((6000, 2)));
        // Its files are in the way of another policy.
        let error = ResourceManagers::open(&Settings::default(), root.path(), dir.path()).err().unwrap();
        assert!(error.contains("differs from state checkpoint policy"), "{error}");
    }
}
