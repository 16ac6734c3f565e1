//! Processors for single containers: the static policy of upstream's `cpumanager`.
//!
//! A container of a guaranteed pod that asks for whole processors gets them for itself; all others share what is left.
//!
//! Invariants: no processor is given to two containers that run at a time; reserved processors are given to none; an assignment is on
//! disk before it has an effect, and a restart keeps it.

use super::assign::{self, Preferences};
use super::cpu_set::CpuSet;
use super::hints::{Hint, NumaMask, ResourceHints};
use super::topology::Topology;
use crate::pods::allocation;
use crate::pods::core::{Container, Pod};
use crate::pods::model::{self, Qos};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Upstream's file, below the kubelet's directory.
pub const CHECKPOINT: &str = "cpu_manager_state";
const STATIC: &str = "static";

/// Options of the static policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// `full-pcpus-only`: whole cores.
    pub whole_cores: bool,
    /// `strict-cpu-reservation`: reserved processors are not shared either.
    pub strict_reservation: bool,
    /// `distribute-cpus-across-numa`: evenly from NUMA nodes when one is not enough.
    pub across_numa: bool,
    /// `prefer-align-cpus-by-uncorecache`: of as few caches of the last level as can be.
    pub align_caches: bool,
}

impl CpuOptions {
    fn preferences(self, topology: &Topology) -> Preferences {
        let group = if self.whole_cores { topology.threads_per_core() } else { 1 };
        Preferences { caches: self.align_caches, numa_groups: self.across_numa.then_some(group) }
    }
}

/// A container that cannot have the processors that it asks for: reason and message.
pub type Refused = (&'static str, String);

/// Assignments by pod and container.
type Assignments = BTreeMap<String, BTreeMap<String, CpuSet>>;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Checkpoint {
    policy_name: String,
    default_cpu_set: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, String>>,
    /// Upstream accepts zero as none.
    checksum: u64,
}

/// Which container has which processors.
pub struct CpuManager {
    topology: Topology,
    options: CpuOptions,
    reserved: CpuSet,
    /// With the other threads of their cores.
    reserved_cores: CpuSet,
    file: PathBuf,
    shared: CpuSet,
    assigned: Assignments,
}

/// Whether a pod's whole processors are to be its own, and how many a container asks for.
#[must_use]
pub fn exclusive(pod: &Pod, container: &Container) -> usize {
    let pod_level = model::spec(pod).resources.as_ref();
    if model::qos(pod) != Qos::Guaranteed
        || pod_level.is_some_and(|r| r.requests.is_some() || r.limits.is_some())
    {
        return 0;
    }
    let amounts = container.resources.as_ref();
    let milli = model::milli(model::requests(amounts), "cpu").or(model::milli(model::limits(amounts), "cpu"));
    let milli = milli.unwrap_or(0);
    if milli % 1000 == 0 { usize::try_from(milli / 1000).unwrap_or(0) } else { 0 }
}

impl CpuManager {
    /// The static policy, with what a kubelet before this one has assigned. `reserve` are the processors to keep free: these, or so
    /// many.
    ///
    /// # Errors
    /// Upstream's texts: nothing is reserved, or the checkpoint does not fit the configuration or the machine.
    pub fn open(
        root: &Path,
        topology: Topology,
        options: CpuOptions,
        reserve: Result<CpuSet, usize>,
    ) -> Result<CpuManager, String> {
        let all = topology.all();
        let reserved = match reserve {
            Ok(named) if named.0.is_subset(&all.0) => named,
            Ok(named) => return Err(format!("unable to reserve CPUs {named}: this machine has {all}")),
            Err(count) => assign::take(&topology, &all, count, options.preferences(&topology))?,
        };
        if reserved.is_empty() {
            return Err("[cpumanager] unable to determine reserved CPU resources for static policy: the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero".to_owned());
        }
        let cores = topology.groups(&reserved, |info| info.core);
        let reserved_cores = topology.at(|info| cores.contains(&info.core));
        let shared = if options.strict_reservation { all.without(&reserved) } else { all };
        let file = root.join(CHECKPOINT);
        let assigned = Assignments::new();
        let mut manager = CpuManager { topology, options, reserved, reserved_cores, file, shared, assigned };
        manager.restore().map_err(|error| {
            format!(
                "could not restore state from checkpoint: {error}, please drain this node and delete the CPU manager checkpoint file {:?} before restarting Kubelet",
                manager.file.display().to_string()
            )
        })?;
        manager.save()?;
        Ok(manager)
    }

    fn restore(&mut self) -> Result<(), String> {
        if !self.file.exists() {
            return Ok(());
        }
        let found: Checkpoint = allocation::load(&self.file).ok_or("the file cannot be read")?;
        if found.policy_name != STATIC {
            return Err(format!(
                "configured policy {STATIC:?} differs from state checkpoint policy {:?}",
                found.policy_name
            ));
        }
        let shared = CpuSet::parse(&found.default_cpu_set)?;
        let mut known = shared.clone();
        let mut assigned = Assignments::new();
        for (pod, containers) in found.entries {
            for (container, cpus) in containers {
                let cpus = CpuSet::parse(&cpus)?;
                if !shared.common(&cpus).is_empty() {
                    return Err(format!(
                        "pod: {pod}, container: {container} cpuset: \"{cpus}\" overlaps with default cpuset \"{shared}\""
                    ));
                }
                known = known.union(&cpus);
                assigned.entry(pod.clone()).or_default().insert(container, cpus);
            }
        }
        let kept = self.reserved.common(&shared);
        if self.options.strict_reservation && !kept.is_empty() {
            return Err(format!(
                "some of strictly reserved cpus: \"{kept}\" are present in defaultCpuSet: \"{shared}\""
            ));
        }
        if !self.options.strict_reservation && kept != self.reserved {
            return Err(format!(
                "not all reserved cpus: \"{}\" are present in defaultCpuSet: \"{shared}\"",
                self.reserved
            ));
        }
        // What is shared at first is all that there is.
        if known != self.shared {
            return Err(format!(
                "current set of available CPUs \"{}\" doesn't match with CPUs in state \"{known}\"",
                self.shared
            ));
        }
        (self.shared, self.assigned) = (shared, assigned);
        Ok(())
    }

    fn save(&self) -> Result<(), String> {
        let texts = |containers: &BTreeMap<String, CpuSet>| {
            containers.iter().map(|(name, cpus)| (name.clone(), cpus.to_string())).collect()
        };
        let checkpoint = Checkpoint {
            policy_name: STATIC.to_owned(),
            default_cpu_set: self.shared.to_string(),
            entries: self.assigned.iter().map(|(pod, containers)| (pod.clone(), texts(containers))).collect(),
            checksum: 0,
        };
        allocation::save(&self.file, &checkpoint)
            .map_err(|error| format!("could not save checkpoint: {}: {error}", self.file.display()))
    }

    /// Processors that can be given to a container: what is shared and not reserved, and what init containers of its pod had.
    fn available(&self, reusable: &CpuSet) -> CpuSet {
        self.shared.without(&self.reserved).union(reusable)
    }

    /// Those that a container of the pod may take over: init containers have ended before it runs.
    fn reusable(&self, pod: &Pod, container: &Container) -> CpuSet {
        let Some(own) = self.assigned.get(model::uid(pod)) else { return CpuSet::default() };
        let mut reusable = CpuSet::default();
        let inits = model::init_containers(pod).iter().map(|c| (c, !model::is_sidecar(c)));
        for (earlier, ends) in inits.chain(model::containers(pod).iter().map(|c| (c, false))) {
            if earlier.name == container.name {
                break;
            }
            if let Some(cpus) = own.get(&earlier.name) {
                reusable = if ends { reusable.union(cpus) } else { reusable.without(cpus) };
            }
        }
        reusable
    }

    /// The hints for a container.
    #[must_use]
    pub fn hints(&self, pod: &Pod, container: &Container) -> ResourceHints {
        let count = exclusive(pod, container);
        if count == 0 {
            return None;
        }
        if let Some(has) = self.assigned.get(model::uid(pod)).and_then(|own| own.get(&container.name)) {
            return Some(if has.len() == count {
                self.hints_of(has, &CpuSet::default(), count)
            } else {
                vec![]
            });
        }
        let reusable = self.reusable(pod, container);
        Some(self.hints_of(&self.shared.without(&self.reserved), &reusable, count))
    }

    /// The hints for a pod as a whole.
    #[must_use]
    pub fn pod_hints(&self, pod: &Pod) -> ResourceHints {
        let (mut sidecars, mut most) = (0, 0);
        for container in model::init_containers(pod) {
            let count = exclusive(pod, container);
            if model::is_sidecar(container) {
                sidecars += count;
            } else {
                most = most.max(sidecars + count);
            }
        }
        let regular: usize = model::containers(pod).iter().map(|c| exclusive(pod, c)).sum();
        let count = most.max(sidecars + regular);
        if count == 0 {
            return None;
        }
        let own = self.assigned.get(model::uid(pod)).into_iter().flat_map(BTreeMap::values);
        let own = own.fold(CpuSet::default(), |all, cpus| all.union(cpus));
        if own.len() == count {
            return Some(self.hints_of(&own, &CpuSet::default(), count));
        }
        Some(self.hints_of(&self.shared.without(&self.reserved), &own, count))
    }

    fn hints_of(&self, available: &CpuSet, reusable: &CpuSet, count: usize) -> Vec<Hint> {
        let nodes: Vec<u32> = self.topology.numa_nodes().into_iter().collect();
        let within = |set: &CpuSet, mask: NumaMask| self.topology.of(set, |info| mask.has(info.numa)).len();
        let all = self.topology.all();
        let masks = NumaMask::subsets(&nodes);
        // With how few nodes it could be done on this machine when nothing runs.
        let least = masks.iter().filter(|mask| within(&all, **mask) >= count).map(|mask| mask.count()).min();
        let least = least.unwrap_or(u32::try_from(nodes.len()).unwrap_or(u32::MAX));
        let fits = |mask: &NumaMask| {
            within(reusable, *mask) == reusable.len() && within(available, *mask) + reusable.len() >= count
        };
        masks
            .into_iter()
            .filter(fits)
            .map(|mask| Hint { nodes: Some(mask), preferred: mask.count() == least })
            .collect()
    }

    /// Whole cores only, where that is asked for.
    fn check_cores(&self, count: usize) -> Result<(), Refused> {
        let threads = self.topology.threads_per_core();
        let refused = |message: String| Err(("SMTAlignmentError", message));
        if !self.options.whole_cores {
            return Ok(());
        }
        if !count.is_multiple_of(threads) {
            return refused(format!(
                "SMT Alignment Error: requested {count} cpus not multiple cpus per core = {threads}"
            ));
        }
        let free = self.shared.without(&self.reserved_cores).len();
        if count > free {
            return refused(format!(
                "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {free}, requested CPUs = {count}, CPUs per core = {threads}"
            ));
        }
        Ok(())
    }

    /// Gives a container its processors, unless it has them: of some NUMA nodes first.
    ///
    /// # Errors
    /// Reason and message of the pod's refusal.
    pub fn allocate(&mut self, pod: &Pod, container: &Container, hint: Hint) -> Result<(), Refused> {
        let count = exclusive(pod, container);
        if count == 0 {
            return Ok(());
        }
        self.check_cores(count)?;
        if self.assigned.get(model::uid(pod)).is_some_and(|own| own.contains_key(&container.name)) {
            return Ok(());
        }
        let unexpected = |error: String| {
            ("UnexpectedAdmissionError", format!("Allocate failed due to {error}, which is unexpected"))
        };
        let available = self.available(&self.reusable(pod, container));
        let preferences = self.options.preferences(&self.topology);
        let take = |from: &CpuSet, count| assign::take(&self.topology, from, count, preferences);
        let mut taken = CpuSet::default();
        if let Some(nodes) = hint.nodes {
            let aligned = self.topology.of(&available, |info| nodes.has(info.numa));
            taken = take(&aligned, count.min(aligned.len())).map_err(unexpected)?;
        }
        let rest = take(&available.without(&taken), count - taken.len());
        taken = taken.union(&rest.map_err(unexpected)?);
        let before = (self.shared.clone(), self.assigned.clone());
        self.shared = self.shared.without(&taken);
        self.assigned.entry(model::uid(pod).to_owned()).or_default().insert(container.name.clone(), taken);
        if let Err(error) = self.save() {
            (self.shared, self.assigned) = before;
            return Err(unexpected(error));
        }
        Ok(())
    }

    /// Takes back what pods have that are not among these.
    pub fn keep_pods(&mut self, active: &BTreeSet<&str>) {
        let gone: Vec<String> =
            self.assigned.keys().filter(|uid| !active.contains(uid.as_str())).cloned().collect();
        if gone.is_empty() {
            return;
        }
        for uid in gone {
            let freed = self.assigned.remove(&uid).unwrap_or_default();
            self.shared = freed.values().fold(self.shared.clone(), |all, cpus| all.union(cpus));
        }
        if let Err(error) = self.save() {
            // It is written again with the next change; until then a restart finds the pods' processors taken, and takes them back.
            tracing::error!(error, "the checkpoint of CPU assignments cannot be written");
        }
    }

    /// What a container runs on.
    #[must_use]
    pub fn of(&self, pod_uid: &str, container: &str) -> &CpuSet {
        self.own(pod_uid, container).unwrap_or(&self.shared)
    }

    /// What a container has for itself.
    #[must_use]
    pub fn own(&self, pod_uid: &str, container: &str) -> Option<&CpuSet> {
        self.assigned.get(pod_uid)?.get(container)
    }

    /// All processors that containers can have.
    #[must_use]
    pub fn allocatable(&self) -> CpuSet {
        let own = self.assigned.values().flat_map(BTreeMap::values);
        own.fold(self.shared.clone(), |all, cpus| all.union(cpus)).without(&self.reserved)
    }

    /// Whether a container of the pod has processors for itself.
    #[must_use]
    pub fn has_own(&self, pod_uid: &str) -> bool {
        self.assigned.get(pod_uid).is_some_and(|own| !own.is_empty())
    }

    /// Processors that are shared, in thousandths, and how many are containers' own.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let own: BTreeSet<u32> = self
            .assigned
            .values()
            .flat_map(BTreeMap::values)
            .flat_map(|cpus| cpus.0.iter().copied())
            .collect();
        (self.shared.len() * 1000, own.len())
    }
}

#[cfg(test)]
mod tests;
