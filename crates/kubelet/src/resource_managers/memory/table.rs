//! How much memory each NUMA node has, and how much of it is given to containers; the checkpoint of that, in upstream's format.
//!
//! Invariant: `free` and `reserved` of a node together are `allocatable`.

use super::super::hints::NumaMask;
use kaji_meta::quantity::{Format, Quantity};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Memory of one kind on one NUMA node, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Table {
    /// What there is.
    pub total: u64,
    /// What is kept from pods.
    pub system_reserved: u64,
    /// What pods can have.
    pub allocatable: u64,
    /// What containers have.
    pub reserved: u64,
    /// What they can still have.
    pub free: u64,
}

/// A NUMA node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeState {
    /// Blocks that are taken from it.
    pub number_of_assignments: u64,
    /// By kind: `memory`, `hugepages-<size>`.
    pub memory_map: BTreeMap<String, Table>,
    /// The nodes that its blocks are taken from together, itself among them.
    pub cells: Vec<u32>,
}

/// NUMA nodes by their numbers.
pub type Machine = BTreeMap<u32, NodeState>;

/// Memory that a container has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Block {
    /// The nodes that it is taken from.
    pub numa_affinity: Vec<u32>,
    /// Its kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// Bytes.
    pub size: u64,
}

impl Block {
    /// The nodes that it is taken from.
    pub fn nodes(&self) -> NumaMask {
        NumaMask::of(self.numa_affinity.iter().copied())
    }
}

/// Blocks by pod and container.
pub type Assignments = BTreeMap<String, BTreeMap<String, Vec<Block>>>;

/// Upstream's file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// `Static`
    pub policy_name: String,
    /// Of the time when it was written.
    pub machine_state: Machine,
    /// What containers have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub entries: Assignments,
    /// Upstream accepts zero as none.
    pub checksum: u64,
}

/// What is kept from pods: bytes by NUMA node and kind.
pub type Reserved = BTreeMap<u32, BTreeMap<String, u64>>;

/// The nodes of a machine, of which nothing is given to containers; `system` is `/sys/devices/system`.
///
/// # Errors
/// Files that are absent or have no numbers.
pub fn read(system: &Path, nodes: &[u32], reserved: &Reserved) -> io::Result<Machine> {
    let mut machine = Machine::new();
    for number in nodes {
        let directory = system.join("node").join(format!("node{number}"));
        let total = total_memory(&std::fs::read_to_string(directory.join("meminfo"))?)
            .ok_or_else(|| io::Error::other(format!("NUMA node {number} does not show its memory")))?;
        let kept = |kind: &str| reserved.get(number).and_then(|kinds| kinds.get(kind)).copied().unwrap_or(0);
        let mut kinds = huge_pages(&directory.join("hugepages"))?;
        let in_huge_pages: u64 = kinds.values().sum();
        kinds.insert("memory".to_owned(), total);
        let table = |(kind, total): (String, u64)| {
            let system_reserved = kept(&kind);
            let in_pages = if kind == "memory" { in_huge_pages } else { 0 };
            let allocatable = total.saturating_sub(system_reserved).saturating_sub(in_pages);
            let table = Table { total, system_reserved, allocatable, reserved: 0, free: allocatable };
            (kind, table)
        };
        let memory_map = kinds.into_iter().map(table).collect();
        machine.insert(*number, NodeState { number_of_assignments: 0, memory_map, cells: vec![*number] });
    }
    Ok(machine)
}

/// `Node 0 MemTotal: 24684084 kB`
fn total_memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.split_once("MemTotal:"))?.1;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes by kind; none where the kernel has no huge pages.
fn huge_pages(directory: &Path) -> io::Result<BTreeMap<String, u64>> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let mut found = BTreeMap::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let size = name.to_str().and_then(|name| name.strip_prefix("hugepages-")?.strip_suffix("kB"));
        let Some(kib) = size.and_then(|size| size.parse::<u32>().ok()) else { continue };
        let number: u64 = std::fs::read_to_string(entry.path().join("nr_hugepages"))?
            .trim()
            .parse()
            .map_err(io::Error::other)?;
        let size = Quantity::new(i64::from(kib) * 1024, Format::BinarySi);
        found.insert(format!("hugepages-{size}"), number.saturating_mul(u64::from(kib) * 1024));
    }
    Ok(found)
}

/// A part of a block, on one node: what is taken of `left`.
type Part = fn(&mut Table, u64) -> u64;

fn take(table: &mut Table, left: u64) -> u64 {
    let part = table.free.min(left);
    (table.free, table.reserved) = (table.free - part, table.reserved + part);
    part
}

fn give_back(table: &mut Table, left: u64) -> u64 {
    let part = table.reserved.min(left);
    (table.free, table.reserved) = (table.free + part, table.reserved - part);
    part
}

fn spread(
    machine: &mut Machine,
    block: &Block,
    mut left: u64,
    part: Part,
    count: fn(&mut NodeState, &Block),
) {
    for number in &block.numa_affinity {
        let Some(node) = machine.get_mut(number) else { continue };
        count(node, block);
        if let Some(table) = node.memory_map.get_mut(&block.kind) {
            left -= part(table, left);
        }
    }
}

/// Takes `size` bytes of a block from its nodes, the first ones first; what a block shares with another one is not taken again.
pub fn assign(machine: &mut Machine, block: &Block, size: u64) {
    spread(machine, block, size, take, |node, block| {
        node.number_of_assignments += 1;
        node.cells.clone_from(&block.numa_affinity);
    });
}

/// Gives a block back to its nodes.
pub fn release(machine: &mut Machine, block: &Block) {
    spread(machine, block, block.size, give_back, |node, _| {
        node.number_of_assignments = node.number_of_assignments.saturating_sub(1);
    });
    for number in &block.numa_affinity {
        if let Some(node) = machine.get_mut(number).filter(|node| node.number_of_assignments == 0) {
            node.cells = vec![*number];
        }
    }
}

/// Whether two states say the same: blocks of a group of nodes may be taken from each of them in several ways.
pub fn agree(one: &Machine, other: &Machine) -> bool {
    let given = |machine: &Machine, cells: &[u32], kind: &str| -> (u64, u64) {
        let tables = cells.iter().filter_map(|cell| machine.get(cell)?.memory_map.get(kind));
        tables.fold((0, 0), |(free, reserved), table| (free + table.free, reserved + table.reserved))
    };
    let same_node = |(number, node): (&u32, &NodeState)| {
        let Some(second) = other.get(number) else { return false };
        let same_kind = |(kind, table): (&String, &Table)| {
            second.memory_map.get(kind).is_some_and(|second| {
                (table.total, table.system_reserved, table.allocatable)
                    == (second.total, second.system_reserved, second.allocatable)
            }) && given(one, &node.cells, kind) == given(other, &node.cells, kind)
        };
        node.number_of_assignments == second.number_of_assignments
            && NumaMask::of(node.cells.iter().copied()) == NumaMask::of(second.cells.iter().copied())
            && node.memory_map.len() == second.memory_map.len()
            && node.memory_map.iter().all(same_kind)
    };
    one.len() == other.len() && one.iter().all(same_node)
}
