//! Processors of a container that needs several NUMA nodes, evenly from each of them. Upstream's `takeByTopologyNUMADistributed`, KEP-2902.
//!
//! Pure. Invariant: exactly as many as asked for, all of them available, or an error; whole groups of a size from each node where the
//! number can be had in groups.

use super::assign::{self, Preferences};
use super::cpu_set::CpuSet;
use super::topology::Topology;
use std::collections::BTreeMap;

/// Nodes of which combinations are tried: as many as the topology manager takes.
const MOST_NODES: usize = 8;

/// NUMA nodes that give as much each, and those of them that give a group more.
struct Combination {
    nodes: Vec<u32>,
    more: Vec<u32>,
    /// How uneven what is left on all nodes would be; the standard deviation.
    imbalance: f64,
}

/// A request.
struct Request {
    /// Processors that are available, by node.
    left: BTreeMap<u32, usize>,
    count: usize,
    group: usize,
}

/// So many of the available processors, in groups of a size.
///
/// # Errors
/// There are not as many.
pub fn across_numa(
    topology: &Topology,
    available: &CpuSet,
    count: usize,
    group: usize,
) -> Result<CpuSet, String> {
    let packed = |from: &CpuSet, count| assign::take(topology, from, count, Preferences::default());
    let group = group.max(1);
    let nodes = assign::numa_nodes(topology, available);
    if count == 0 || !count.is_multiple_of(group) || count > available.len() || nodes.len() > MOST_NODES {
        return packed(available, count);
    }
    let of_node = |set: &CpuSet, node: u32| topology.of(set, |info| info.numa == node);
    let left = nodes.iter().map(|node| (*node, of_node(available, *node).len())).collect();
    let request = Request { left, count, group };
    let (least, most) = request.range(topology);
    let Some(chosen) = (least..=most).find_map(|size| request.best(&nodes, size)) else {
        return packed(available, count);
    };
    let each = request.each(chosen.nodes.len());
    let mut taken = CpuSet::default();
    for node in &chosen.nodes {
        taken = taken.union(&packed(&of_node(available, *node), each)?);
    }
    while taken.len() < count {
        let before = taken.len();
        for node in &chosen.more {
            let rest = of_node(available, *node).without(&taken);
            if taken.len() < count && rest.len() >= group {
                taken = taken.union(&packed(&rest, group)?);
            }
        }
        if taken.len() == before {
            let remaining = count - taken.len();
            return Err(format!("accounting error, not enough CPUs allocated, remaining: {remaining}"));
        }
    }
    Ok(taken)
}

impl Request {
    /// How many nodes could do.
    fn range(&self, topology: &Topology) -> (usize, usize) {
        let nodes = topology.numa_nodes().len().max(1);
        let groups_of_node = topology.all().len().div_ceil(self.group).div_ceil(nodes).max(1);
        let needed = self.count.div_ceil(self.group);
        (needed.div_ceil(groups_of_node).max(1), needed.min(self.left.len()))
    }

    /// What each of so many nodes gives at least.
    fn each(&self, nodes: usize) -> usize {
        self.count / nodes / self.group * self.group
    }

    /// The combination of so many nodes that leaves the machine most even; the first of several.
    fn best(&self, nodes: &[u32], size: usize) -> Option<Combination> {
        let mut best: Option<Combination> = None;
        for nodes in combinations(nodes, size) {
            let Some(found) = self.assess(nodes) else { continue };
            if best.as_ref().is_none_or(|best| found.imbalance < best.imbalance) {
                let even = found.imbalance == 0.0;
                best = Some(found);
                if even {
                    break;
                }
            }
        }
        best
    }

    /// How even the machine is left by these nodes, if they can give what is asked for.
    fn assess(&self, nodes: Vec<u32>) -> Option<Combination> {
        let each = self.each(nodes.len());
        let left = |node: &u32| self.left.get(node).copied().unwrap_or(0);
        let groups: usize = nodes.iter().map(|node| left(node) / self.group).sum();
        if groups * self.group < self.count || nodes.iter().any(|node| left(node) < each) {
            return None;
        }
        let mut after = self.left.clone();
        nodes.iter().for_each(|node| *after.entry(*node).or_default() -= each);
        let rest = self.count - each * nodes.len();
        if rest == 0 {
            let imbalance = deviation(&after);
            return Some(Combination { nodes, more: vec![], imbalance });
        }
        let can_give: Vec<u32> = nodes.iter().copied().filter(|node| after[node] >= self.group).collect();
        let mut best: Option<(f64, Vec<u32>)> = None;
        // Of many nodes first: what is left over is spread, too.
        for size in (1..=can_give.len()).rev() {
            for more in combinations(&can_give, size) {
                let Some(imbalance) = self.imbalance_after(&after, &more, rest) else { continue };
                if best.as_ref().is_none_or(|(least, _)| imbalance < *least) {
                    best = Some((imbalance, more));
                }
            }
        }
        best.map(|(imbalance, more)| Combination { nodes, more, imbalance })
    }

    fn imbalance_after(&self, after: &BTreeMap<u32, usize>, more: &[u32], mut rest: usize) -> Option<f64> {
        let mut after = after.clone();
        while rest > 0 {
            let before = rest;
            for node in more {
                let left = after.entry(*node).or_default();
                if rest > 0 && *left >= self.group {
                    *left -= self.group;
                    rest -= self.group;
                }
            }
            if rest == before {
                return None;
            }
        }
        Some(deviation(&after))
    }
}

/// All subsets of a size, in the order of their members.
fn combinations(of: &[u32], size: usize) -> Vec<Vec<u32>> {
    let Some((first, rest)) = of.split_first().filter(|_| size > 0) else {
        return if size == 0 { vec![vec![]] } else { vec![] };
    };
    let with = combinations(rest, size - 1).into_iter().map(|mut chosen| {
        chosen.insert(0, *first);
        chosen
    });
    with.chain(combinations(rest, size)).collect()
}

/// The standard deviation, with as many digits as upstream compares.
#[allow(clippy::cast_precision_loss)]
fn deviation(amounts: &BTreeMap<u32, usize>) -> f64 {
    let count = amounts.len().max(1) as f64;
    let mean = amounts.values().sum::<usize>() as f64 / count;
    let squares: f64 = amounts.values().map(|amount| (*amount as f64 - mean).powi(2)).sum();
    ((squares / count).sqrt() * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::super::topology::tests::machine;
    use super::*;
    use proptest::prelude::*;

    fn taken(topology: &Topology, available: &str, count: usize, group: usize) -> String {
        let available = CpuSet::parse(available).unwrap();
        across_numa(topology, &available, count, group).map_or_else(|error| error, |set| set.to_string())
    }

    #[test]
    fn nodes_give_evenly_when_one_is_not_enough() {
        // Four nodes of four cores, without threads: 0-3, 4-7, 8-11, 12-15.
        let plain = machine(2, 2, 4, 1);
        // Two nodes of four cores with two threads: 0-3,8-11 and 4-7,12-15.
        let threads = machine(2, 1, 4, 2);
        let shown = [
            taken(&plain, "0-15", 3, 1),
            taken(&plain, "0-15", 6, 1),
            taken(&plain, "0-15", 7, 1),
            taken(&plain, "0-15", 9, 1),
            // The first node has two processors left only.
            taken(&plain, "2-15", 6, 1),
            taken(&plain, "0-15", 16, 1),
            taken(&threads, "0-15", 10, 2),
            taken(&threads, "0-15", 12, 2),
            // Not in groups: packed.
            taken(&threads, "0-15", 9, 2),
            taken(&threads, "0-15", 9, 1),
            taken(&threads, "0-3", 5, 1),
            taken(&threads, "0-3", 0, 1),
        ];
        expect_test::expect![[r#"
            0-2
            0-2,4-6
            0-6
            0-2,4-6,8-10
            4-6,8-10
            0-15
            0-2,4-5,8-10,12-13
            0-2,4-6,8-10,12-14
            0-4,8-11
            0-2,4-5,8-9,12-13
            not enough cpus available to satisfy request: requested=5, available=4
        "#]]
        .assert_eq(&shown.join("\n"));
    }

    proptest! {
        #[test]
        fn as_many_as_asked_for_and_all_of_them_available(
            shape in (1_u32..3, 1_u32..4, 1_u32..4, 1_u32..3),
            mask: u32,
            count in 0_usize..40,
            group in 1_usize..3,
        ) {
            let topology = machine(shape.0, shape.1, shape.2, shape.3);
            let available = CpuSet(topology.all().0.into_iter().filter(|cpu| mask >> (cpu % 32) & 1 == 1).collect());
            match across_numa(&topology, &available, count, group) {
                Ok(set) => {
                    prop_assert_eq!(set.len(), count);
                    prop_assert!(set.0.is_subset(&available.0));
                }
                Err(_) => prop_assert!(count > available.len()),
            }
        }

        #[test]
        fn on_an_idle_machine_nodes_that_give_differ_by_one_at_most(count in 1_usize..32) {
            let topology = machine(2, 2, 8, 1);
            let set = across_numa(&topology, &topology.all(), count, 1).unwrap();
            let shares: Vec<usize> =
                (0..4).map(|node| topology.of(&set, |info| info.numa == node).len()).filter(|n| *n > 0).collect();
            let (most, least) = (shares.iter().max().unwrap(), shares.iter().min().unwrap());
            prop_assert!(most - least <= 1, "{shares:?}");
            prop_assert_eq!(shares.len(), count.div_ceil(8));
        }
    }
}
