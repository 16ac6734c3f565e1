//! Which NUMA nodes the resources of a container, or of a pod, are taken from: hints of all managers, merged. Upstream's
//! `topologymanager`.
//!
//! Pure. Invariant: a merged hint names at least one node, or none at all, which means any.

/// NUMA nodes, a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NumaMask(pub u64);

impl NumaMask {
    /// Of some nodes. Those above 63 are left out: there are at most eight, which is checked at the start.
    pub fn of(nodes: impl IntoIterator<Item = u32>) -> NumaMask {
        NumaMask(nodes.into_iter().filter(|node| *node < 64).fold(0, |mask, node| mask | 1 << node))
    }

    /// Whether a node is in it.
    #[must_use]
    pub fn has(self, node: u32) -> bool {
        node < 64 && self.0 >> node & 1 == 1
    }

    /// How many nodes.
    #[must_use]
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// The nodes in it, in order.
    #[must_use]
    pub fn numbers(self) -> Vec<u32> {
        (0..64).filter(|node| self.has(*node)).collect()
    }

    /// Fewer nodes, or as many with smaller numbers.
    fn is_narrower(self, other: NumaMask) -> bool {
        (self.count(), self.0) < (other.count(), other.0)
    }

    /// All sets of some nodes that are not empty, the smaller ones first.
    #[must_use]
    pub fn subsets(nodes: &[u32]) -> Vec<NumaMask> {
        let mut all: Vec<NumaMask> = (1_u64..1 << nodes.len().min(16))
            .map(|bits| {
                let chosen = nodes.iter().enumerate().filter(|(index, _)| bits >> index & 1 == 1);
                NumaMask::of(chosen.map(|(_, node)| *node))
            })
            .collect();
        all.sort_by_key(|mask| (mask.count(), mask.0));
        all
    }
}

/// NUMA nodes that a resource can be taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hint {
    /// `None`: any.
    pub nodes: Option<NumaMask>,
    /// With no fewer nodes could it be done.
    pub preferred: bool,
}

/// What a manager says of one resource: nothing, or hints, of which none is an impossibility.
pub type ResourceHints = Option<Vec<Hint>>;

/// `topologyManagerPolicy`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TopologyPolicy {
    /// Nothing is aligned.
    #[default]
    None,
    /// Aligned where that is possible.
    BestEffort,
    /// Pods that cannot be aligned as well as the machine allows are refused.
    Restricted,
    /// Pods that do not fit on one node are refused.
    SingleNumaNode,
}

impl TopologyPolicy {
    /// Upstream's name of it.
    #[must_use]
    pub fn parse(text: &str) -> Option<TopologyPolicy> {
        Some(match text {
            "none" => TopologyPolicy::None,
            "best-effort" => TopologyPolicy::BestEffort,
            "restricted" => TopologyPolicy::Restricted,
            "single-numa-node" => TopologyPolicy::SingleNumaNode,
            _ => return None,
        })
    }

    /// Upstream's name of it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TopologyPolicy::None => "none",
            TopologyPolicy::BestEffort => "best-effort",
            TopologyPolicy::Restricted => "restricted",
            TopologyPolicy::SingleNumaNode => "single-numa-node",
        }
    }

    /// The hint that all resources are taken by, and whether the pod is admitted. `machine` are all nodes.
    #[must_use]
    pub fn merge(self, machine: NumaMask, resources: &[ResourceHints]) -> (Hint, bool) {
        if self == TopologyPolicy::None {
            return (Hint { nodes: None, preferred: true }, true);
        }
        let mut hints: Vec<Vec<Hint>> = resources.iter().map(spelled_out).collect();
        if hints.is_empty() {
            hints.push(spelled_out(&None));
        }
        if self == TopologyPolicy::SingleNumaNode {
            for of_resource in &mut hints {
                of_resource.retain(|h| h.preferred && h.nodes.is_none_or(|nodes| nodes.count() == 1));
            }
        }
        let mut best = best(machine, &hints);
        match self {
            TopologyPolicy::SingleNumaNode => {
                if best.nodes == Some(machine) {
                    best.nodes = None;
                }
                (best, best.preferred)
            }
            TopologyPolicy::Restricted => (best, best.preferred),
            TopologyPolicy::BestEffort | TopologyPolicy::None => (best, true),
        }
    }
}

/// No preference is any node, preferred; no possibility is any node, not preferred.
fn spelled_out(hints: &ResourceHints) -> Vec<Hint> {
    match hints {
        None => vec![Hint { nodes: None, preferred: true }],
        Some(none) if none.is_empty() => vec![Hint { nodes: None, preferred: false }],
        Some(some) => some.clone(),
    }
}

/// The best of all combinations of one hint for each resource.
fn best(machine: NumaMask, hints: &[Vec<Hint>]) -> Hint {
    let narrowest = |of_resource: &Vec<Hint>| {
        let masks = of_resource.iter().filter_map(|h| h.nodes);
        masks.reduce(|a, b| if b.is_narrower(a) { b } else { a }).map_or(0, NumaMask::count)
    };
    // What the resource needs that needs most nodes.
    let needed = hints.iter().map(narrowest).max().unwrap_or(0);
    let mut found: Option<Hint> = None;
    let mut consider = |combination: &[Hint]| {
        let masks: Vec<NumaMask> = combination.iter().filter_map(|h| h.nodes).collect();
        let same = masks.windows(2).all(|pair| pair[0] == pair[1]);
        let preferred = same && combination.iter().all(|h| h.preferred);
        let nodes = masks.iter().fold(machine, |all, mask| NumaMask(all.0 & mask.0));
        if nodes.count() > 0 {
            let candidate = (nodes, preferred);
            let better = found.is_none_or(|current| {
                is_better(candidate, (current.nodes.unwrap_or(machine), current.preferred), needed)
            });
            if better {
                found = Some(Hint { nodes: Some(nodes), preferred });
            }
        }
    };
    combine(hints, &mut vec![], &mut consider);
    found.unwrap_or(Hint { nodes: Some(machine), preferred: false })
}

fn combine(hints: &[Vec<Hint>], chosen: &mut Vec<Hint>, consider: &mut impl FnMut(&[Hint])) {
    let Some((first, rest)) = hints.split_first() else { return consider(chosen) };
    for hint in first {
        chosen.push(*hint);
        combine(rest, chosen, consider);
        chosen.pop();
    }
}

/// Preferred ones first, the narrowest of them; of the others those that come near to what is needed, but not above it.
fn is_better(candidate: (NumaMask, bool), current: (NumaMask, bool), needed: u32) -> bool {
    let ((nodes, preferred), (before, was_preferred)) = (candidate, current);
    if preferred != was_preferred {
        return preferred;
    }
    let (now, then) = (nodes.count(), before.count());
    if preferred || then > needed || now == then {
        return nodes.is_narrower(before);
    }
    then != needed && now <= needed && now > then
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(nodes: &[u32], preferred: bool) -> Hint {
        let nodes = (!nodes.is_empty()).then(|| NumaMask::of(nodes.iter().copied()));
        Hint { nodes, preferred }
    }

    #[test]
    fn merges_the_hints_of_two_resources() {
        let machine = NumaMask::of([0, 1]);
        let cpu = Some(vec![hint(&[0], true), hint(&[1], true), hint(&[0, 1], false)]);
        let device = Some(vec![hint(&[1], true), hint(&[0, 1], false)]);
        let both = Some(vec![hint(&[0, 1], true)]);
        let cases = [
            ("they meet", vec![cpu.clone(), device.clone()]),
            ("one needs both nodes", vec![cpu.clone(), both.clone()]),
            ("both need both", vec![both.clone(), both.clone()]),
            ("they cannot meet", vec![Some(vec![hint(&[0], true)]), Some(vec![hint(&[1], true)])]),
            ("nothing is asked for", vec![]),
            ("one does not care", vec![None, device]),
            ("one is impossible", vec![cpu, Some(vec![])]),
        ];
        let mut shown = String::new();
        for (what, hints) in cases {
            for policy in ["none", "best-effort", "restricted", "single-numa-node"] {
                let (best, admitted) = TopologyPolicy::parse(policy).unwrap().merge(machine, &hints);
                let nodes = best.nodes.map_or("any".to_owned(), |nodes| format!("{:02b}", nodes.0));
                shown += &format!("{what}, {policy}: {nodes} {} {admitted}\n", best.preferred);
            }
        }
        expect_test::expect![[r#"
            they meet, none: any true true
            they meet, best-effort: 10 true true
            they meet, restricted: 10 true true
            they meet, single-numa-node: 10 true true
            one needs both nodes, none: any true true
            one needs both nodes, best-effort: 11 false true
            one needs both nodes, restricted: 11 false false
            one needs both nodes, single-numa-node: any false false
            both need both, none: any true true
            both need both, best-effort: 11 true true
            both need both, restricted: 11 true true
            both need both, single-numa-node: any false false
            they cannot meet, none: any true true
            they cannot meet, best-effort: 11 false true
            they cannot meet, restricted: 11 false false
            they cannot meet, single-numa-node: any false false
            nothing is asked for, none: any true true
            nothing is asked for, best-effort: 11 true true
            nothing is asked for, restricted: 11 true true
            nothing is asked for, single-numa-node: any true true
            one does not care, none: any true true
            one does not care, best-effort: 10 true true
            one does not care, restricted: 10 true true
            one does not care, single-numa-node: 10 true true
            one is impossible, none: any true true
            one is impossible, best-effort: 01 false true
            one is impossible, restricted: 01 false false
            one is impossible, single-numa-node: any false false
        "#]]
        .assert_eq(&shown);
    }

    #[test]
    fn iterates_over_sets_of_nodes() {
        let shown: Vec<u64> = NumaMask::subsets(&[0, 1, 3]).into_iter().map(|mask| mask.0).collect();
        assert_eq!(shown, [1, 2, 8, 3, 9, 10, 11]);
        assert!(
            NumaMask::of([0]).is_narrower(NumaMask::of([1]))
                && !NumaMask::of([0, 1]).is_narrower(NumaMask::of([5]))
        );
        assert!(NumaMask::of([5]).has(5) && !NumaMask::of([5]).has(64));
    }
}
