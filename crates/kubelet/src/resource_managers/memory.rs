//! Memory of single NUMA nodes for containers: the static policy of upstream's `memorymanager`.
//!
//! A container of a guaranteed pod gets its memory and huge pages from as few nodes as possible, and is bound to them.
//!
//! Invariants: no more is given of a node than it has free; a node is used for containers that it holds alone, or for those that one group
//! of nodes holds, not for both; an assignment is on disk before it has an effect, and a restart keeps it.

pub mod table;

use super::MemoryBlock;
use super::cpu::Refused;
use super::hints::{Hint, NumaMask, ResourceHints};
use crate::node::eviction::thresholds::Amount;
use crate::pods::allocation;
use crate::pods::core::{Container, Pod};
use crate::pods::model::{self, Qos};
use kaji_meta::quantity::{Format, Quantity};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use table::{Assignments, Block, Checkpoint, Machine, NodeState, Reserved};

/// Upstream's file, below the kubelet's directory.
pub const CHECKPOINT: &str = "memory_manager_state";
const STATIC: &str = "Static";
/// The kind of memory that every container has.
const MEMORY: &str = "memory";

/// `memoryManagerPolicy: Static`, and what is kept from pods.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MemoryOptions {
    /// `reservedMemory`
    pub reserved: Reserved,
    /// Bytes that `systemReserved` and `kubeReserved` are together.
    pub expected: u64,
    /// The hard threshold of evictions.
    pub eviction: Option<Amount>,
}

/// Bytes by kind.
type Amounts = BTreeMap<String, u64>;

/// Which container has memory of which nodes.
pub struct MemoryManager {
    file: PathBuf,
    machine: Machine,
    assigned: Assignments,
    /// What init containers of the pod that was admitted last leave to the containers after them, by nodes and kind.
    reusable: (String, BTreeMap<(NumaMask, String), u64>),
}

/// What a container asks for; nothing unless its pod's memory is to be bound.
fn wanted(pod: &Pod, container: &Container) -> Amounts {
    let of_pod = model::spec(pod).resources.as_ref();
    if model::qos(pod) != Qos::Guaranteed
        || of_pod.is_some_and(|r| r.requests.is_some() || r.limits.is_some())
    {
        return Amounts::new();
    }
    let resources = container.resources.as_ref();
    let amounts = model::requests(resources).filter(|amounts| amounts.contains_key(MEMORY));
    // Requests that are left out are the limits.
    let amounts = amounts.or(model::limits(resources)).into_iter().flatten();
    let bound = amounts.filter(|(kind, _)| *kind == MEMORY || kind.starts_with("hugepages-"));
    bound
        .filter_map(|(kind, amount)| {
            Some((kind.clone(), u64::try_from(model::quantity(amount).value()).ok()?))
        })
        .collect()
}

/// What a pod asks for: of its containers together, or of an init container with the sidecars before it.
fn wanted_by_pod(pod: &Pod) -> Amounts {
    let (mut sidecars, mut most, mut regular) = (Amounts::new(), Amounts::new(), Amounts::new());
    for container in model::init_containers(pod) {
        for (kind, size) in wanted(pod, container) {
            let before = sidecars.entry(kind.clone()).or_default();
            if model::is_sidecar(container) {
                *before += size;
            } else {
                let needs = *before + size;
                let most = most.entry(kind).or_default();
                *most = needs.max(*most);
            }
        }
    }
    for (kind, size) in model::containers(pod).iter().flat_map(|c| wanted(pod, c)) {
        *regular.entry(kind).or_default() += size;
    }
    let of = |amounts: &Amounts, kind: &str| amounts.get(kind).copied().unwrap_or(0);
    let total = |(kind, size): (String, u64)| {
        let size = (size + of(&sidecars, &kind)).max(of(&most, &kind));
        (kind, size)
    };
    regular.into_iter().map(total).collect()
}

/// Upstream's checks: what is reserved is on nodes that there are, and is as much as pods are not offered.
fn check(options: &MemoryOptions, nodes: &[u32], system: &Path) -> Result<(), String> {
    let mut totals = BTreeMap::from([(MEMORY, 0_u64)]);
    for (node, kinds) in &options.reserved {
        if !nodes.contains(node) {
            return Err(format!(
                "the reserved memory configuration references a NUMA node {node} that does not exist on this machine"
            ));
        }
        for (kind, size) in kinds {
            *totals.entry(kind).or_default() += size;
        }
    }
    let machine = table::read(system, nodes, &Reserved::new()).map_err(|error| error.to_string())?;
    let capacity: u64 =
        machine.values().filter_map(|n| n.memory_map.get(MEMORY)).map(|table| table.total).sum();
    let eviction =
        options.eviction.map_or(0, |amount| amount.of(i64::try_from(capacity).unwrap_or(i64::MAX)));
    let kept = options.expected.saturating_add(u64::try_from(eviction).unwrap_or(0));
    for (kind, total) in totals {
        let expected = if kind == MEMORY { kept } else { 0 };
        if total != expected {
            let shown =
                |bytes: u64| Quantity::new(i64::try_from(bytes).unwrap_or(i64::MAX), Format::BinarySi);
            let (total, expected) = (shown(total), shown(expected));
            return Err(format!(
                "the total amount \"{total}\" of type {kind:?} is not equal to the value \"{expected}\" determined by Node Allocatable feature"
            ));
        }
        if kind == MEMORY && total == 0 {
            return Err("[memorymanager] you should specify the system reserved memory".to_owned());
        }
    }
    Ok(())
}

impl MemoryManager {
    /// The static policy, with what a kubelet before this one has assigned; `system` is `/sys/devices/system`.
    ///
    /// # Errors
    /// Upstream's texts: what is reserved does not fit, or the checkpoint does not fit the configuration or the machine.
    pub fn open(
        root: &Path,
        system: &Path,
        nodes: &[u32],
        options: &MemoryOptions,
    ) -> Result<MemoryManager, String> {
        check(options, nodes, system)?;
        let machine = table::read(system, nodes, &options.reserved).map_err(|error| error.to_string())?;
        let file = root.join(CHECKPOINT);
        let (assigned, reusable) = (Assignments::new(), Default::default());
        let mut manager = MemoryManager { file, machine, assigned, reusable };
        manager.restore()?;
        manager.save()?;
        Ok(manager)
    }

    fn restore(&mut self) -> Result<(), String> {
        if !self.file.exists() {
            return Ok(());
        }
        let unusable = |error: String| {
            format!(
                "could not restore state from checkpoint: {error}, please drain this node and delete the memory manager checkpoint file {:?} before restarting Kubelet",
                self.file.display().to_string()
            )
        };
        let found: Checkpoint =
            allocation::load(&self.file).ok_or_else(|| unusable("the file cannot be read".to_owned()))?;
        if found.policy_name != STATIC {
            return Err(unusable(format!(
                "[memorymanager] configured policy {STATIC:?} differs from state checkpoint policy {:?}",
                found.policy_name
            )));
        }
        let mut expected = self.machine.clone();
        for (pod, container, block) in blocks(&found.entries) {
            let wrong = |what: &str| {
                format!(
                    "[memorymanager] (pod: {pod}, container: {container}) the memory assignment uses {what} that does not exist"
                )
            };
            for node in &block.numa_affinity {
                let node = expected.get(node).ok_or_else(|| wrong("the NUMA"))?;
                if !node.memory_map.contains_key(&block.kind) {
                    return Err(wrong("memory resource"));
                }
            }
            table::assign(&mut expected, block, block.size);
        }
        if !table::agree(&found.machine_state, &expected) {
            return Err(
                "[memorymanager] the expected machine state is different from the real one".to_owned()
            );
        }
        (self.machine, self.assigned) = (found.machine_state, found.entries);
        Ok(())
    }

    fn save(&self) -> Result<(), String> {
        let checkpoint = Checkpoint {
            policy_name: STATIC.to_owned(),
            machine_state: self.machine.clone(),
            entries: self.assigned.clone(),
            checksum: 0,
        };
        allocation::save(&self.file, &checkpoint)
            .map_err(|error| format!("could not save checkpoint: {}: {error}", self.file.display()))
    }

    fn reusable(&self, pod: &Pod, nodes: NumaMask, kind: &str) -> u64 {
        let (uid, known) = &self.reusable;
        let of_pod = uid == model::uid(pod);
        of_pod.then(|| known.get(&(nodes, kind.to_owned())).copied()).flatten().unwrap_or(0)
    }

    /// The hints for a container, for each kind of memory.
    #[must_use]
    pub fn hints(&self, pod: &Pod, container: &Container) -> Vec<ResourceHints> {
        let wanted = wanted(pod, container);
        let has = self.assigned.get(model::uid(pod)).and_then(|own| own.get(&container.name));
        self.hints_for(pod, &wanted, has)
    }

    /// The hints for a pod as a whole.
    #[must_use]
    pub fn pod_hints(&self, pod: &Pod) -> Vec<ResourceHints> {
        let own = self.assigned.get(model::uid(pod));
        let all = model::init_containers(pod).iter().chain(model::containers(pod));
        let has = own.and_then(|own| all.into_iter().find_map(|c| own.get(&c.name)));
        self.hints_for(pod, &wanted_by_pod(pod), has)
    }

    fn hints_for(&self, pod: &Pod, wanted: &Amounts, has: Option<&Vec<Block>>) -> Vec<ResourceHints> {
        if wanted.is_empty() {
            return vec![];
        }
        let Some(has) = has else {
            let hints = self.possible(pod, wanted);
            // Where nothing is possible upstream gives no hint: the allocation fails, with a message of its own.
            return if hints.is_empty() { vec![] } else { vec![Some(hints); wanted.len()] };
        };
        // After a restart of the kubelet, the same again.
        if has.len() != wanted.len() || has.iter().any(|block| wanted.get(&block.kind) != Some(&block.size)) {
            return vec![];
        }
        has.iter().map(|block| Some(vec![Hint { nodes: Some(block.nodes()), preferred: true }])).collect()
    }

    /// The sets of nodes that could hold these amounts now.
    fn possible(&self, pod: &Pod, wanted: &Amounts) -> Vec<Hint> {
        let nodes: Vec<u32> = self.machine.keys().copied().collect();
        let holds = |mask: NumaMask, size: fn(&table::Table) -> u64, extra: &dyn Fn(&str) -> u64| {
            wanted.iter().all(|(kind, wanted)| {
                let tables = self.within(mask).filter_map(|(_, node)| node.memory_map.get(kind));
                tables.map(size).sum::<u64>().saturating_add(extra(kind)) >= *wanted
            })
        };
        let masks = NumaMask::subsets(&nodes);
        // With how few nodes it could be done on this machine when nothing runs.
        let fit = masks.into_iter().filter(|mask| holds(*mask, |table| table.allocatable, &|_| 0));
        let fit: Vec<NumaMask> = fit.collect();
        let least = fit.iter().map(|mask| mask.count()).min();
        fit.into_iter()
            .filter(|mask| !self.mixes(*mask) && (mask.count() > 1 || !self.is_grouped(*mask)))
            .filter(|mask| holds(*mask, |table| table.free, &|kind| self.reusable(pod, *mask, kind)))
            .map(|mask| Hint { nodes: Some(mask), preferred: Some(mask.count()) == least })
            .collect()
    }

    fn within(&self, mask: NumaMask) -> impl Iterator<Item = (&u32, &NodeState)> {
        self.machine.iter().filter(move |(number, _)| mask.has(**number))
    }

    /// Whether a node is used in a group with others.
    fn is_grouped(&self, mask: NumaMask) -> bool {
        self.within(mask).any(|(_, node)| node.cells.len() > 1)
    }

    /// Whether several nodes would be used together of which one is used alone, or with others.
    fn mixes(&self, mask: NumaMask) -> bool {
        let other = |node: &NodeState| {
            node.number_of_assignments > 0 && NumaMask::of(node.cells.iter().copied()) != mask
        };
        mask.count() > 1 && self.within(mask).any(|(_, node)| other(node))
    }

    /// Whether the nodes have these amounts free, with nothing reused.
    fn satisfies(&self, mask: NumaMask, wanted: &Amounts) -> bool {
        wanted.iter().all(|(kind, size)| {
            let tables = self.within(mask).filter_map(|(_, node)| node.memory_map.get(kind));
            tables.map(|table| table.free).sum::<u64>() >= *size
        })
    }

    /// The nodes for a container: those of the hint, or the best ones that include them.
    fn choose(&self, pod: &Pod, wanted: &Amounts, hint: Hint) -> Result<NumaMask, String> {
        let possible = self.possible(pod, wanted);
        let best = |among: &dyn Fn(NumaMask) -> bool| {
            let nodes = possible.iter().filter_map(|hint| Some((hint.preferred, hint.nodes?)));
            nodes
                .filter(|(_, nodes)| among(*nodes))
                .min_by_key(|(preferred, nodes)| (!preferred, nodes.count(), nodes.0))
        };
        let (mut preferred, mut nodes) = (hint.preferred, hint.nodes);
        if nodes.is_none() {
            let (is_preferred, found) = best(&|_| true).ok_or(
                "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available",
            )?;
            if preferred && !is_preferred {
                return Err("[memorymanager] failed to find the default preferred hint".to_owned());
            }
            (preferred, nodes) = (is_preferred, Some(found));
        }
        let mut chosen = nodes.unwrap_or(NumaMask(0));
        // Upstream takes a single node of a group, too, and then refuses to start again with what it has written.
        let splits = chosen.count() == 1 && self.is_grouped(chosen);
        if splits || !self.satisfies(chosen, wanted) {
            let (is_preferred, found) = best(&|nodes| nodes.0 & chosen.0 == chosen.0)
                .ok_or("[memorymanager] failed to find NUMA nodes to extend the current topology hint")?;
            if preferred && !is_preferred {
                return Err("[memorymanager] failed to find the extended preferred hint".to_owned());
            }
            chosen = found;
        }
        if self.mixes(chosen) {
            return Err("[memorymanager] preferred hint violates NUMA node allocation".to_owned());
        }
        Ok(chosen)
    }

    /// Gives a container its memory, unless it has it: of some NUMA nodes, if they are named.
    ///
    /// # Errors
    /// Reason and message of the pod's refusal.
    pub fn allocate(&mut self, pod: &Pod, container: &Container, hint: Hint) -> Result<(), Refused> {
        let (uid, wanted) = (model::uid(pod), wanted(pod, container));
        if wanted.is_empty() {
            return Ok(());
        }
        if let Some(has) = self.assigned.get(uid).and_then(|own| own.get(&container.name)).cloned() {
            self.note_reusable(pod, container, &has);
            return Ok(());
        }
        let unexpected = |error: String| {
            ("UnexpectedAdmissionError", format!("Allocate failed due to {error}, which is unexpected"))
        };
        let nodes = self.choose(pod, &wanted, hint).map_err(unexpected)?;
        let before = (self.machine.clone(), self.assigned.clone(), self.reusable.clone());
        let mut blocks = vec![];
        for (kind, size) in wanted {
            let new = size.saturating_sub(self.reusable(pod, nodes, &kind));
            let block = Block { numa_affinity: nodes.numbers(), kind, size };
            table::assign(&mut self.machine, &block, new);
            blocks.push(block);
        }
        self.note_reusable(pod, container, &blocks);
        self.shrink_init_containers(pod, container, &blocks);
        self.assigned.entry(uid.to_owned()).or_default().insert(container.name.clone(), blocks);
        if let Err(error) = self.save() {
            (self.machine, self.assigned, self.reusable) = before;
            return Err(unexpected(error));
        }
        Ok(())
    }

    /// What an init container leaves can be used by those after it, once.
    fn note_reusable(&mut self, pod: &Pod, container: &Container, blocks: &[Block]) {
        if self.reusable.0 != model::uid(pod) {
            self.reusable = (model::uid(pod).to_owned(), BTreeMap::new());
        }
        let ends = |c: &Container| c.name == container.name && !model::is_sidecar(c);
        let leaves = model::init_containers(pod).iter().any(ends);
        for block in blocks {
            let key = (block.nodes(), block.kind.clone());
            if leaves {
                let known = self.reusable.1.entry(key).or_default();
                *known = block.size.max(*known);
            } else if let Some(known) = self.reusable.1.get_mut(&key) {
                *known = known.saturating_sub(block.size);
            }
        }
    }

    /// What a container takes over of init containers is not theirs any more: blocks of a pod add up to what is taken for it.
    fn shrink_init_containers(&mut self, pod: &Pod, container: &Container, blocks: &[Block]) {
        let Some(own) = self.assigned.get_mut(model::uid(pod)) else { return };
        for block in blocks {
            let mut left = block.size;
            for init in model::init_containers(pod).iter().take_while(|init| init.name != container.name) {
                if model::is_sidecar(init) {
                    continue;
                }
                let same = |b: &&mut Block| b.kind == block.kind && b.nodes() == block.nodes();
                for earlier in own.get_mut(&init.name).into_iter().flatten().filter(same) {
                    let part = earlier.size.min(left);
                    (earlier.size, left) = (earlier.size - part, left - part);
                }
            }
        }
    }

    /// Takes back what pods have that are not among these.
    pub fn keep_pods(&mut self, active: &BTreeSet<&str>) {
        let gone: Vec<String> =
            self.assigned.keys().filter(|uid| !active.contains(uid.as_str())).cloned().collect();
        if gone.is_empty() {
            return;
        }
        for uid in gone {
            for block in self.assigned.remove(&uid).unwrap_or_default().values().flatten() {
                table::release(&mut self.machine, block);
            }
        }
        if let Err(error) = self.save() {
            // It is written again with the next change; until then a restart finds the pods' memory taken, and takes it back.
            tracing::error!(error, "the checkpoint of memory assignments cannot be written");
        }
    }

    /// The memory that a container is bound to.
    #[must_use]
    pub fn blocks_of(&self, pod_uid: &str, container: &str) -> Vec<MemoryBlock> {
        let blocks = self.assigned.get(pod_uid).and_then(|own| own.get(container)).into_iter().flatten();
        let of =
            |b: &Block| MemoryBlock { kind: b.kind.clone(), size: b.size, nodes: b.numa_affinity.clone() };
        blocks.map(of).collect()
    }

    /// The memory that containers can be bound to.
    #[must_use]
    pub fn allocatable(&self) -> Vec<MemoryBlock> {
        let mut found = vec![];
        for (node, state) in &self.machine {
            let of = |(kind, table): (&String, &table::Table)| MemoryBlock {
                kind: kind.clone(),
                size: table.allocatable,
                nodes: vec![*node],
            };
            found.extend(state.memory_map.iter().filter(|(_, table)| table.allocatable > 0).map(of));
        }
        found
    }

    /// The NUMA nodes that a container is bound to, as cgroups list them; empty for any.
    #[must_use]
    pub fn nodes_of(&self, pod_uid: &str, container: &str) -> String {
        let blocks = self.assigned.get(pod_uid).and_then(|own| own.get(container)).into_iter().flatten();
        let nodes: BTreeSet<u32> = blocks.flat_map(|block| block.numa_affinity.iter().copied()).collect();
        nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    }
}

fn blocks(assigned: &Assignments) -> impl Iterator<Item = (&String, &String, &Block)> {
    assigned.iter().flat_map(|(pod, containers)| {
        containers
            .iter()
            .flat_map(move |(container, blocks)| blocks.iter().map(move |block| (pod, container, block)))
    })
}

#[cfg(test)]
mod tests;
