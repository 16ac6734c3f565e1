//! Which nodes a cluster brings along, and which ranges of addresses nodes have for their pods.

use clap::{ArgAction, Args};
use kaji_controllers::{MaskSizes, NodeRanges};
use std::str::FromStr;

/// `--nodes`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// None: a control plane alone.
    None,
    /// This machine, which runs containers.
    Real,
    /// So many nodes on this machine, which run containers, in network namespaces of their own.
    RealInNamespaces(u16),
    /// So many simulated nodes.
    Simulated(u16),
}

/// More nodes than one process should pretend to be.
const MOST: u16 = 5000;
/// More real nodes than a machine has memory for.
const MOST_REAL: u16 = 64;

impl Nodes {
    /// Whether containers run in this cluster without a node that joins.
    #[must_use]
    pub fn run_containers(self) -> bool {
        matches!(self, Nodes::Real | Nodes::RealInNamespaces(_))
    }
}

impl FromStr for Nodes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "none" => Ok(Nodes::None),
            None if text == "real" => Ok(Nodes::Real),
            Some(("real", count)) => match count.parse() {
                Ok(n) if (1..=MOST_REAL).contains(&n) => as_root(Nodes::RealInNamespaces(n)),
                _ => Err(format!("real:N takes a number from 1 to {MOST_REAL}")),
            },
            Some(("sim", count)) => match count.parse() {
                Ok(0) => Ok(Nodes::None),
                Ok(n) if n <= MOST => Ok(Nodes::Simulated(n)),
                _ => Err(format!("sim:N takes a number up to {MOST}")),
            },
            _ => Err("expected real, real:N, sim:N or none".into()),
        }
    }
}

fn as_root(nodes: Nodes) -> Result<Nodes, String> {
    match rustix::process::geteuid().is_root() {
        true => Ok(nodes),
        false => Err("several real nodes need root; use real, sim:N or none".into()),
    }
}

/// Which ranges nodes have for their pods: flags of kube-controller-manager, which has no range unless it is given one.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Network")]
pub struct RangeFlags {
    /// Whether nodes are given ranges of pod addresses.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub allocate_node_cidrs: bool,
    /// What they are taken from; a second one of the other IP family makes pods dual-stack.
    #[arg(long, value_delimiter = ',', default_value = CLUSTER)]
    pub cluster_cidr: Vec<String>,
    /// The mask size of a node's range in a cluster of one IP family (24 for IPv4, 64 for IPv6).
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub node_cidr_mask_size: u8,
    /// The mask size of a node's IPv4 range (24).
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub node_cidr_mask_size_ipv4: u8,
    /// The mask size of a node's IPv6 range (64).
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub node_cidr_mask_size_ipv6: u8,
}

/// Room for more nodes than are simulated.
const CLUSTER: &str = "10.224.0.0/11";

impl Default for RangeFlags {
    fn default() -> Self {
        RangeFlags {
            allocate_node_cidrs: true,
            cluster_cidr: vec![CLUSTER.into()],
            node_cidr_mask_size: 0,
            node_cidr_mask_size_ipv4: 0,
            node_cidr_mask_size_ipv6: 0,
        }
    }
}

impl RangeFlags {
    /// The ranges, if any are to be given out. Those of services are not.
    ///
    /// # Errors
    /// Why they make no sense.
    pub fn ranges(&self, services: &[String]) -> Result<Option<NodeRanges>, String> {
        let masks = MaskSizes {
            any: self.node_cidr_mask_size,
            v4: self.node_cidr_mask_size_ipv4,
            v6: self.node_cidr_mask_size_ipv6,
        };
        self.allocate_node_cidrs.then(|| NodeRanges::new(&self.cluster_cidr, masks, services)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::{Nodes, RangeFlags};

    #[test]
    fn ranges_are_read_if_they_are_wanted() {
        let usual = RangeFlags::default();
        assert!(usual.ranges(&["10.96.0.0/12".into()]).unwrap().is_some());
        let wrong = RangeFlags { cluster_cidr: vec!["x".into()], ..usual };
        assert_eq!(wrong.ranges(&[]), Err("invalid CIDR address: x".into()));
        assert_eq!(RangeFlags { allocate_node_cidrs: false, ..wrong }.ranges(&[]), Ok(None));
    }

    #[test]
    fn the_flag_parses() {
        assert_eq!("sim:3".parse(), Ok(Nodes::Simulated(3)));
        assert_eq!("none".parse(), Ok(Nodes::None));
        for bad in ["", "sim", "sim:x", "sim:99999", "real:0", "real:65", "real:x", "sim:-1"] {
            assert!(bad.parse::<Nodes>().is_err(), "{bad}");
        }
    }
}
