//! Pod addresses of simulated nodes: node *n* has 10.244.n.0/24 (and, past 255 nodes, 10.245.… and on). Nodes
//! that are known by name only have a network of 10.128.0.0/10 and an address of 172.31.0.0/16 that follow from it.

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    sync::{Mutex, PoisonError},
};

/// First and last host that a pod gets; the first is the node's own.
const HOSTS: std::ops::RangeInclusive<u32> = 2..=254;

/// The network of a node.
pub fn network(node: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 244, 0, 0)) + (u32::from(node) << 8))
}

/// The node's own address.
pub fn node_address(node: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(172, 30, 0, 0)) + u32::from(node))
}

#[derive(Default)]
struct Taken {
    by_pod: HashMap<String, Ipv4Addr>,
    by_address: HashMap<Ipv4Addr, String>,
}

/// Who has which address.
#[derive(Default)]
pub struct Addresses(Mutex<Taken>);

impl Addresses {
    /// The address of a pod: the one it has (or reports), else a free one of its node's network. `None` when all are taken.
    pub fn assign(&self, uid: &str, reported: &str, network: Ipv4Addr) -> Option<Ipv4Addr> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(address) = taken.by_pod.get(uid) {
            return Some(*address);
        }
        let base = u32::from(network);
        let free = |a: &Ipv4Addr| !taken.by_address.contains_key(a);
        let address = match reported.parse() {
            Ok(address) => address,
            Err(_) => HOSTS.map(|host| Ipv4Addr::from(base + host)).find(free)?,
        };
        taken.by_pod.insert(uid.to_owned(), address);
        taken.by_address.insert(address, uid.to_owned());
        Some(address)
    }

    /// A pod is gone.
    pub fn release(&self, uid: &str) {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(address) = taken.by_pod.remove(uid) {
            taken.by_address.remove(&address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_unique_until_released() {
        let addresses = Addresses::default();
        let first = addresses.assign("a", "", network(1)).unwrap();
        assert_eq!(first.to_string(), "10.244.1.2");
        assert_eq!(addresses.assign("a", "", network(1)), Some(first));
        assert_eq!(addresses.assign("b", "10.244.1.3", network(1)).unwrap().to_string(), "10.244.1.3");
        assert_eq!(addresses.assign("c", "", network(1)).unwrap().to_string(), "10.244.1.4");
        addresses.release("a");
        assert_eq!(addresses.assign("d", "", network(1)), Some(first));
        let more = (0..300).filter(|i| addresses.assign(&format!("x{i}"), "", network(1)).is_some()).count();
        assert_eq!(more, 250);
    }
}
