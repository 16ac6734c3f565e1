//! Which addresses of the pod CIDRs are taken.
//!
//! Invariants: the first address (the network's), the second (the gateway's) and for IPv4 the last (broadcast) are never
//! assigned; an address that was released is assigned again as late as possible, so that peers' caches have forgotten it.

use crate::{Cidr, NetworkError};
use std::{collections::HashSet, net::IpAddr};

/// The addresses of a node's pods.
#[derive(Debug, Default)]
pub struct Addresses {
    ranges: Vec<(Cidr, u64)>,
    taken: HashSet<IpAddr>,
}

/// The address of the bridge in a range: pods' gateway.
pub fn gateway(range: &Cidr) -> Option<IpAddr> {
    range.nth(1)
}

impl Addresses {
    /// Assigns from these ranges from now on.
    pub fn set_ranges(&mut self, ranges: &[Cidr]) {
        if !self.ranges.iter().map(|(range, _)| range).eq(ranges) {
            self.ranges = ranges.iter().map(|range| (*range, 2)).collect();
        }
    }

    /// The ranges.
    pub fn ranges(&self) -> impl Iterator<Item = Cidr> {
        self.ranges.iter().map(|(range, _)| *range)
    }

    /// Keeps an address from being assigned. Answers false if it was taken already.
    pub fn take(&mut self, address: IpAddr) -> bool {
        self.taken.insert(address)
    }

    /// Gives it back.
    pub fn release(&mut self, address: IpAddr) {
        self.taken.remove(&address);
    }

    /// One address of each range.
    ///
    /// # Errors
    /// [`NetworkError::NoPodCidr`], [`NetworkError::Exhausted`]; nothing is taken then.
    pub fn assign(&mut self) -> Result<Vec<IpAddr>, NetworkError> {
        if self.ranges.is_empty() {
            return Err(NetworkError::NoPodCidr);
        }
        let mut assigned = vec![];
        for (range, next) in &mut self.ranges {
            let Some(address) = free(range, next, &self.taken) else {
                assigned.iter().for_each(|address| {
                    self.taken.remove(address);
                });
                return Err(NetworkError::Exhausted(range.to_string()));
            };
            self.taken.insert(address);
            assigned.push(address);
        }
        Ok(assigned)
    }
}

/// The next free address after the one that was assigned last.
fn free(range: &Cidr, next: &mut u64, taken: &HashSet<IpAddr>) -> Option<IpAddr> {
    let broadcast = u64::from(range.first().is_ipv4());
    let end = range.size().checked_sub(broadcast).filter(|end| *end > 2)?;
    // One of so many is free if any is.
    let tries = (end - 2).min(taken.len() as u64 + 1);
    for _ in 0..tries {
        let offset = if *next >= end { 2 } else { *next };
        *next = offset + 1;
        let address = range.nth(offset)?;
        if !taken.contains(&address) {
            return Some(address);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(ranges: &[&str]) -> Addresses {
        let mut addresses = Addresses::default();
        addresses.set_ranges(&ranges.iter().map(|r| r.parse().unwrap()).collect::<Vec<_>>());
        addresses
    }

    #[test]
    fn assigns_every_address_once_and_then_says_so() {
        let mut pool = addresses(&["10.0.0.0/29"]);
        let all: Vec<String> = (0..5).map(|_| pool.assign().unwrap()[0].to_string()).collect();
        assert_eq!(all, ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
        assert_eq!(pool.assign().unwrap_err().to_string(), "no addresses available in range 10.0.0.0/29");
        pool.release("10.0.0.4".parse().unwrap());
        assert_eq!(pool.assign().unwrap()[0].to_string(), "10.0.0.4");
    }

    #[test]
    fn assigns_released_addresses_last() {
        let mut pool = addresses(&["10.0.0.0/29"]);
        let first = pool.assign().unwrap()[0];
        pool.release(first);
        assert_ne!(pool.assign().unwrap()[0], first);
    }

    #[test]
    fn takes_nothing_when_one_family_is_exhausted() {
        let mut pool = addresses(&["fd00::/64", "10.0.0.0/31"]);
        assert!(pool.assign().is_err());
        assert!(pool.taken.is_empty());
    }
}
