//! Which processors a container gets: those that are near to each other, and such that larger free units stay whole.
//! Upstream's `takeByTopologyNUMAPacked`.
//!
//! Pure. Invariant: exactly as many as asked for, all of them available, or an error.

use super::cpu_set::CpuSet;
use super::distribute;
use super::topology::{CpuInfo, Topology};

type Group = fn(&CpuInfo) -> u32;

const CORE: Group = |info| info.core;
const SOCKET: Group = |info| info.socket;
const NUMA: Group = |info| info.numa;
const CACHE: Group = |info| info.cache;

/// Options of the static policy that change which processors are taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Preferences {
    /// `prefer-align-cpus-by-uncorecache`: of as few caches of the last level as can be.
    pub caches: bool,
    /// `distribute-cpus-across-numa`: evenly from NUMA nodes when one is not enough, in groups of this many.
    pub numa_groups: Option<usize>,
}

/// A choice that is under way.
struct Choice<'a> {
    topology: &'a Topology,
    /// What can still be taken.
    left: CpuSet,
    taken: CpuSet,
    needed: usize,
    levels: [Group; 2],
}

impl Choice<'_> {
    fn take(&mut self, cpus: &CpuSet) {
        self.taken = self.taken.union(cpus);
        self.left = self.left.without(cpus);
        self.needed -= cpus.len();
    }

    /// The groups of what is left within some processors, those with the fewest processors left first.
    fn sorted(&self, group: Group, within: impl Fn(&CpuInfo) -> bool) -> Vec<u32> {
        let left = self.topology.of(&self.left, within);
        let mut groups: Vec<u32> = self.topology.groups(&left, group).into_iter().collect();
        groups.sort_by_key(|id| (self.topology.of(&self.left, |p| group(p) == *id).len(), *id));
        groups
    }

    /// The groups in the order of the levels above them.
    fn ordered(&self, group: Group, above: &[Group]) -> Vec<u32> {
        let Some((first, below)) = above.split_first() else { return self.sorted(group, |_| true) };
        let mut all = vec![];
        let outer = match below {
            [] => self.sorted(*first, |_| true),
            _ => self.ordered(*first, below),
        };
        for id in outer {
            for inner in self.sorted(group, |p| first(p) == id) {
                if !all.contains(&inner) {
                    all.push(inner);
                }
            }
        }
        all
    }

    /// Takes whole groups that are free, as long as as many processors are needed.
    fn take_whole(&mut self, group: Group, above: &[Group]) {
        for id in self.ordered(group, above) {
            let whole = self.topology.at(|p| group(p) == id);
            if self.needed >= whole.len() && whole.0.is_subset(&self.left.0) {
                self.take(&whole);
            }
        }
    }

    /// Takes what shares a cache of the last level: whole caches first, then a part of the first one that has all of the rest.
    /// Upstream's `takeUncoreCache`.
    fn take_caches(&mut self, above: &[Group]) {
        self.take_whole(CACHE, above);
        let threads = self.topology.threads_per_core();
        for cache in self.ordered(CACHE, above) {
            if self.needed == 0 {
                return;
            }
            let of_cache = self.topology.of(&self.left, |p| p.cache == cache);
            let cores = self.topology.groups(&of_cache, CORE).into_iter().take(self.needed.div_ceil(threads));
            let cores: Vec<u32> = cores.collect();
            let mut cpus = self.topology.of(&self.left, |p| cores.contains(&p.core));
            // The last core gives one of its threads.
            if !self.needed.is_multiple_of(2) && threads > 1 && cpus.len() > self.needed {
                cpus.0.pop_last();
            }
            if cpus.len() == self.needed {
                self.take(&cpus);
            }
        }
    }

    /// Takes single processors: of cores that are in use already first.
    fn take_rest(&mut self) {
        let [large, small] = self.levels;
        for core in self.ordered(CORE, &[small, large]) {
            let cpus = self.topology.of(&self.left, |p| p.core == core);
            for cpu in cpus.0 {
                if self.needed == 0 {
                    return;
                }
                self.take(&CpuSet([cpu].into()));
            }
        }
    }
}

/// The larger unit of a machine and the smaller one: a socket has several NUMA nodes, or a NUMA node has several sockets.
fn levels(topology: &Topology) -> [Group; 2] {
    if topology.sockets().len() < topology.numa_nodes().len() { [SOCKET, NUMA] } else { [NUMA, SOCKET] }
}

fn begin<'a>(topology: &'a Topology, available: &CpuSet, needed: usize) -> Choice<'a> {
    let (left, taken, levels) = (available.clone(), CpuSet::default(), levels(topology));
    Choice { topology, left, taken, needed, levels }
}

/// NUMA nodes down to one, those above them first.
fn above_caches(nodes_in_sockets: bool) -> &'static [Group] {
    if nodes_in_sockets { &[NUMA, SOCKET] } else { &[NUMA] }
}

/// The NUMA nodes of available processors, those with the fewest first.
#[must_use]
pub fn numa_nodes(topology: &Topology, available: &CpuSet) -> Vec<u32> {
    let nodes_in_sockets = topology.sockets().len() < topology.numa_nodes().len();
    begin(topology, available, 0).ordered(NUMA, if nodes_in_sockets { &[SOCKET] } else { &[] })
}

/// So many of the available processors.
///
/// # Errors
/// There are not as many.
pub fn take(
    topology: &Topology,
    available: &CpuSet,
    count: usize,
    preferences: Preferences,
) -> Result<CpuSet, String> {
    if let Some(group) = preferences.numa_groups {
        return distribute::across_numa(topology, available, count, group);
    }
    if count > available.len() {
        return Err(format!(
            "not enough cpus available to satisfy request: requested={count}, available={}",
            available.len()
        ));
    }
    let mut choice = begin(topology, available, count);
    let [large, small] = choice.levels;
    choice.take_whole(large, &[]);
    choice.take_whole(small, &[large]);
    if preferences.caches {
        choice.take_caches(above_caches(topology.sockets().len() < topology.numa_nodes().len()));
    }
    choice.take_whole(CORE, &[small, large]);
    choice.take_rest();
    Ok(choice.taken)
}

#[cfg(test)]
mod tests {
    use super::super::topology::tests::machine;
    use super::*;
    use proptest::prelude::*;

    fn taken(topology: &Topology, available: &str, count: usize) -> String {
        let available = CpuSet::parse(available).unwrap();
        take(topology, &available, count, Preferences::default())
            .map_or_else(|error| error, |set| set.to_string())
    }

    #[test]
    fn near_processors_are_taken_and_whole_units_are_left_whole() {
        // Two sockets of two cores with two threads: 0,4 1,5 are the first one's, 2,6 3,7 the second one's.
        let small = machine(2, 1, 2, 2);
        let large = machine(1, 2, 2, 2);
        let shown = [
            taken(&small, "0-7", 1),
            taken(&small, "0-7", 2),
            taken(&small, "0-7", 4),
            taken(&small, "1-7", 4),
            taken(&small, "1-7", 5),
            // A core that is in use already, before a free one.
            taken(&small, "1-7", 1),
            taken(&small, "1,2,3,6,7", 1),
            taken(&large, "0-7", 4),
            taken(&large, "1-7", 4),
            taken(&large, "0-1", 3),
            taken(&large, "0-7", 0),
        ];
        expect_test::expect![[r#"
            0
            0,4
            0-1,4-5
            2-3,6-7
            2-4,6-7
            4
            1
            0-1,4-5
            2-3,6-7
            not enough cpus available to satisfy request: requested=3, available=2
        "#]]
        .assert_eq(&shown.join("\n"));
    }

    #[test]
    fn processors_share_as_few_caches_as_can_be() {
        // A socket of eight cores, of which two share a cache each: 0-1, 2-3, 4-5, 6-7, and 8 more for the second threads.
        let caches = |threads| {
            let mut topology = machine(1, 1, 8, threads);
            topology.0.values_mut().for_each(|info| info.cache = info.core / 2);
            topology
        };
        let (plain, threads) = (caches(1), caches(2));
        let taken = |topology: &Topology, available: &str, count| {
            let available = CpuSet::parse(available).unwrap();
            let with = |caches| Preferences { caches, ..Preferences::default() };
            let shown = |caches| take(topology, &available, count, with(caches)).unwrap().to_string();
            format!("{} instead of {}", shown(true), shown(false))
        };
        let shown = [
            taken(&plain, "1-7", 2),
            taken(&plain, "1,3,4-7", 3),
            taken(&plain, "1,3,5,7", 2),
            taken(&threads, "0-15", 3),
            taken(&threads, "1-15", 4),
            taken(&threads, "1,3-15", 5),
        ];
        expect_test::expect![[r#"
            2-3 instead of 1-2
            1,4-5 instead of 1,3-4
            1,3 instead of 1,3
            0-1,8 instead of 0-1,8
            2-3,10-11 instead of 1-2,9-10
            4-5,8,12-13 instead of 1,3,8-9,11"#]]
        .assert_eq(&shown.join("\n"));
    }

    proptest! {
        #[test]
        fn as_many_as_asked_for_and_all_of_them_available(
            shape in (1_u32..3, 1_u32..3, 1_u32..4, 1_u32..3),
            mask: u32,
            count in 0_usize..40,
            caches: bool,
        ) {
            let topology = machine(shape.0, shape.1, shape.2, shape.3);
            let available = CpuSet(topology.all().0.into_iter().filter(|cpu| mask >> (cpu % 32) & 1 == 1).collect());
            match take(&topology, &available, count, Preferences { caches, ..Preferences::default() }) {
                Ok(set) => {
                    prop_assert_eq!(set.len(), count);
                    prop_assert!(set.0.is_subset(&available.0));
                }
                Err(_) => prop_assert!(count > available.len()),
            }
        }
    }
}
