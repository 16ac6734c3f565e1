//! Addresses of simulated nodes and their pods. A pod has one of each range of its node (`spec.podCIDRs`).

use std::{
    collections::{HashMap, HashSet},
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
    sync::{Mutex, PoisonError},
};

/// The first host that a pod gets; the one before is the node's own.
const FIRST: u128 = 2;
/// Bits of a range that are searched at most: more pods than any node has.
const MOST_BITS: u8 = 16;

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    base: IpAddr,
    prefix: u8,
}

impl FromStr for Range {
    type Err = ();

    fn from_str(text: &str) -> Result<Range, ()> {
        let (base, prefix) = text.split_once('/').ok_or(())?;
        let base: IpAddr = base.parse().map_err(|_| ())?;
        let prefix = prefix.parse().ok().filter(|p| *p <= bits(base)).ok_or(())?;
        Ok(Range { base, prefix })
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl Range {
    /// The addresses for pods.
    fn hosts(self) -> impl Iterator<Item = IpAddr> {
        let size = 1u128 << (bits(self.base) - self.prefix).min(MOST_BITS);
        // The last of an IPv4 range is its broadcast address.
        let end = if self.base.is_ipv4() { size.saturating_sub(1) } else { size };
        (FIRST..end).map(move |host| match self.base {
            IpAddr::V4(base) => Ipv4Addr::from(u32::from(base) | host as u32).into(),
            IpAddr::V6(base) => Ipv6Addr::from(u128::from(base) | host).into(),
        })
    }
}

/// The range that a numbered node brings along: 10.224.n.0/24 and, past 255 nodes, 10.225.… and on.
pub fn network(node: u16) -> Range {
    let base = u32::from(Ipv4Addr::new(10, 224, 0, 0)) + (u32::from(node) << 8);
    Range { base: Ipv4Addr::from(base).into(), prefix: 24 }
}

/// The node's own address.
pub fn node_address(node: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(172, 30, 0, 0)) + u32::from(node))
}

#[derive(Default)]
struct Taken {
    by_pod: HashMap<Box<str>, Box<[IpAddr]>>,
    addresses: HashSet<IpAddr>,
}

/// Addresses of pods.
#[derive(Default)]
pub struct Addresses(Mutex<Taken>);

impl Addresses {
    /// The addresses of a pod: those it has (or reports), else a free one of each range of its node. None when the node
    /// has no range, or all of one are taken.
    pub fn assign(&self, uid: &str, reported: &[IpAddr], ranges: impl Fn() -> Vec<Range>) -> Vec<IpAddr> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(addresses) = taken.by_pod.get(uid) {
            return addresses.to_vec();
        }
        let free = |range: Range| range.hosts().find(|a| !taken.addresses.contains(a));
        let addresses: Option<Vec<IpAddr>> = match reported {
            [] => ranges().into_iter().map(free).collect(),
            reported => Some(reported.to_vec()),
        };
        let Some(addresses) = addresses.filter(|a| !a.is_empty()) else { return vec![] };
        taken.addresses.extend(&addresses);
        taken.by_pod.insert(uid.into(), addresses.as_slice().into());
        addresses
    }

    /// A pod is gone.
    pub fn release(&self, uid: &str) {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for address in taken.by_pod.remove(uid).unwrap_or_default() {
            taken.addresses.remove(&address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(addresses: Vec<IpAddr>) -> String {
        addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",")
    }

    #[test]
    fn addresses_are_unique_until_released() {
        let addresses = Addresses::default();
        let assign =
            |uid: &str, reported: &[IpAddr]| text(addresses.assign(uid, reported, || vec![network(1)]));
        assert_eq!(assign("a", &[]), "10.224.1.2");
        assert_eq!(assign("a", &[]), "10.224.1.2");
        assert_eq!(assign("b", &["10.224.1.3".parse().unwrap()]), "10.224.1.3");
        assert_eq!(assign("c", &[]), "10.224.1.4");
        addresses.release("a");
        assert_eq!(assign("d", &[]), "10.224.1.2");
        let more = (0..300).filter(|i| !assign(&format!("x{i}"), &[]).is_empty()).count();
        assert_eq!(more, 250);
    }

    #[test]
    fn assigns_one_address_of_each_range() {
        let addresses = Addresses::default();
        let both = || ["10.0.0.0/30", "fd00::/64"].iter().map(|r| r.parse().unwrap()).collect();
        assert_eq!(text(addresses.assign("a", &[], both)), "10.0.0.2,fd00::2");
        // Of the first there was one only.
        assert!(addresses.assign("b", &[], both).is_empty());
        addresses.release("a");
        assert_eq!(text(addresses.assign("b", &[], both)), "10.0.0.2,fd00::2");
        assert!(addresses.assign("c", &[], Vec::new).is_empty());
        for bad in ["", "10.0.0.0", "10.0.0.0/33", "x/8", "::/129"] {
            assert!(bad.parse::<Range>().is_err(), "{bad}");
        }
    }
}
