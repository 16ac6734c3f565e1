//! The nodes that a process simulates, and their names and addresses.

use super::{
    addresses::{self, Range},
    name,
};
use std::net::Ipv4Addr;

/// The nodes of one process: numbered ones, or one with a given name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fleet {
    /// `sim-1` to `sim-N`.
    Numbered {
        /// N.
        count: u16,
        /// Whether they have fixed pod ranges, for clusters that do not allocate any.
        ranges: bool,
        /// Whether a cloud-controller-manager initializes them.
        external_cloud: bool,
    },
    /// One that joined a cluster.
    One(SimulatedNode),
}

/// A node's name and addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedNode {
    /// The Node object's name.
    pub name: String,
    /// The number that its ids are derived from; below 2⁴⁸.
    pub number: u64,
    /// The node's fixed pod range; without it the cluster allocates one.
    pub network: Option<Range>,
    /// Its own address.
    pub address: Ipv4Addr,
    /// Whether a cloud-controller-manager initializes it.
    pub external_cloud: bool,
}

impl Fleet {
    /// `sim-1` to `sim-count`; the cluster gives out their pod ranges.
    pub fn numbered(count: u16) -> Fleet {
        Fleet::Numbered { count, ranges: false, external_cloud: false }
    }

    /// The same for a cluster that gives out none.
    pub fn with_ranges(count: u16) -> Fleet {
        Fleet::Numbered { count, ranges: true, external_cloud: false }
    }

    /// A node by its name, from which its number and address follow.
    pub fn named(name: &str) -> Fleet {
        let hash = hash(name);
        let bits = |shift: u32, count: u32| ((hash >> shift) & ((1 << count) - 1)) as u32;
        Fleet::One(SimulatedNode {
            name: name.to_owned(),
            number: hash & ((1 << 48) - 1),
            network: None,
            address: Ipv4Addr::from(u32::from(Ipv4Addr::new(172, 31, 0, 0)) + bits(14, 16).clamp(1, 0xfffe)),
            external_cloud: false,
        })
    }

    /// The same nodes, registered as those of a cloud with a controller manager that initializes them, or not so.
    #[must_use]
    pub fn with_external_cloud(mut self, external: bool) -> Fleet {
        match &mut self {
            Fleet::Numbered { external_cloud, .. } => *external_cloud = external,
            Fleet::One(place) => place.external_cloud = external,
        }
        self
    }

    /// A node of this fleet.
    pub fn place(&self, node: &str) -> Option<SimulatedNode> {
        match self {
            Fleet::Numbered { count, ranges, external_cloud } => {
                let index = index(node, *count)?;
                Some(SimulatedNode {
                    name: node.to_owned(),
                    number: index.into(),
                    network: ranges.then(|| addresses::network(index)),
                    address: addresses::node_address(index),
                    external_cloud: *external_cloud,
                })
            }
            Fleet::One(place) => (place.name == node).then(|| place.clone()),
        }
    }

    /// Whether a node is of this fleet.
    pub fn has(&self, node: &str) -> bool {
        match self {
            Fleet::Numbered { count, .. } => index(node, *count).is_some(),
            Fleet::One(place) => place.name == node,
        }
    }

    /// The names of all nodes.
    pub fn names(&self) -> Vec<String> {
        match self {
            Fleet::Numbered { count, .. } => (1..=*count).map(name).collect(),
            Fleet::One(place) => vec![place.name.clone()],
        }
    }
}

fn index(node: &str, count: u16) -> Option<u16> {
    let digits = node.strip_prefix("sim-").filter(|d| !d.starts_with(['0', '+']))?;
    digits.parse().ok().filter(|n| (1..=count).contains(n))
}

/// FNV-1a, with a last mix so that all bits depend on all: the same wherever it runs.
pub(super) fn hash(text: &str) -> u64 {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3));
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_simulated_nodes() {
        let text = |fleet: &Fleet, node| match fleet.place(node) {
            Some(p) => {
                let network = p.network.map_or("-".into(), |n| n.to_string());
                format!("{} {} {network} {}", p.name, p.number, p.address)
            }
            None => format!("{node} is not there"),
        };
        let (two, joined) = (Fleet::numbered(2), Fleet::named("worker-1"));
        let all = [
            text(&two, "sim-2"),
            text(&Fleet::with_ranges(2), "sim-2"),
            text(&two, "sim-3"),
            text(&two, "sim-02"),
            text(&joined, "worker-1"),
            text(&joined, "worker-2"),
            text(&Fleet::named("worker-2"), "worker-2"),
        ];
        expect_test::expect![[r#"
            sim-2 2 - 172.30.0.2
            sim-2 2 10.224.2.0/24 172.30.0.2
            sim-3 is not there
            sim-02 is not there
            worker-1 224578870631496 - 172.31.95.59
            worker-2 is not there
            worker-2 116070350216805 - 172.31.239.249"#]]
        .assert_eq(&all.join("\n"));
        assert_eq!(
            (two.names(), joined.names()),
            (vec!["sim-1".into(), "sim-2".into()], vec!["worker-1".into()])
        );
    }
}
