//! One pod's interface: made, checked, removed.

use crate::{
    Cidr, NetworkError,
    bandwidth::Limits,
    node::Node,
    records::Record,
    rtnetlink::{KernelRoute, Mac, Peer, Requests, Rtnetlink},
    traffic_control::{redirect_received, token_bucket},
};
use kaji_netfilter::namespace;
use std::{fs::File, net::IpAddr, os::fd::AsFd, path::Path, time::Duration};

/// Name of the interface in pods.
const INTERFACE: &str = "eth0";
/// `RTPROT_BOOT`
const BOOT: u8 = 3;
/// What names of our interfaces on the node begin with; the rest is a hash.
const PREFIX: &str = "kj";
/// The same for the interfaces that limit what pods send.
const LIMITER: &str = "ki";

/// Between questions whether an interface passes packets.
const OPERATIONAL_WAIT: Duration = Duration::from_millis(1);
/// Two seconds: kernels that handle such events once a second have had time for it.
const OPERATIONAL_TRIES: u32 = 2000;

/// FNV-1a of 64 bits: names and hardware addresses only, nothing that an attacker gains by choosing.
pub fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Name of a sandbox's interface on the node.
pub fn link_name(sandbox: &str) -> String {
    format!("{PREFIX}{:012x}", fnv(sandbox.as_bytes()) >> 16)
}

/// Name of the interface that limits what a pod sends.
fn limiter_name(link: &str) -> String {
    link.replacen(PREFIX, LIMITER, 1)
}

/// The pod that an interface on the node belongs to has this one, or this is no interface of ours.
pub fn is_ours(link: &str) -> bool {
    let hash = link.strip_prefix(PREFIX).or_else(|| link.strip_prefix(LIMITER));
    hash.is_some_and(|hash| hash.len() == 12 && hash.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// A hardware address from the pod's address, so that an address that is assigned anew needs no new entry in caches only if it is
/// the same one.
pub fn mac(address: IpAddr) -> Mac {
    match address {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            [0x0a, 0x58, a, b, c, d]
        }
        IpAddr::V6(ip) => {
            let hash = fnv(&ip.octets()).to_be_bytes();
            [0x0a, 0x58, hash[4], hash[5], hash[6], hash[7]]
        }
    }
}

/// Brings up the loopback interface of a network namespace.
///
/// # Errors
/// A namespace that cannot be entered, and the kernel's.
pub fn bring_up_loopback(namespace: &Path) -> Result<(), NetworkError> {
    let mut inside = namespace::inside(namespace, Rtnetlink::open)
        .map_err(NetworkError::io(namespace.display().to_string()))?;
    let mut requests = Requests::default();
    // It is always the first.
    requests.set_up(1);
    Ok(inside.send(&requests)?)
}

/// Brings up the loopback interface of a node's network namespace, with the node's address on it: the node has no other interface
/// than those of its pods. It can be repeated.
///
/// # Errors
/// A namespace that cannot be entered, and the kernel's.
pub fn prepare_node_namespace(namespace: &Path, address: IpAddr) -> Result<(), NetworkError> {
    bring_up_loopback(namespace)?;
    let mut inside = namespace::inside(namespace, Rtnetlink::open)
        .map_err(NetworkError::io(namespace.display().to_string()))?;
    if inside.addresses()?.iter().any(|(_, known, _)| *known == address) {
        return Ok(());
    }
    let mut requests = Requests::default();
    requests.address(true, 1, address, if address.is_ipv4() { 32 } else { 128 });
    Ok(inside.send(&requests)?)
}

impl Node {
    /// Makes a pod's interface with its addresses and routes.
    ///
    /// # Errors
    /// The kernel's. What was made is removed by [`Node::remove_link`].
    pub fn make_link(&mut self, record: &Record, path: &Path, limits: Limits) -> Result<(), NetworkError> {
        let shown = path.display().to_string();
        let namespace = File::open(path).map_err(NetworkError::io(&shown))?;
        let primary = *record.addresses.first().ok_or(NetworkError::NoPodCidr)?;
        let mut requests = Requests::default();
        // What an attempt before this one left.
        if self.netlink.link(&record.link)?.is_some() {
            requests.delete_link(&record.link);
            self.netlink.send(&requests)?;
            requests = Requests::default();
        }
        let peer = Peer { name: INTERFACE, mac: mac(primary), namespace: namespace.as_fd() };
        requests.add_veth(&record.link, self.bridge, self.mtu, &peer);
        self.netlink.send(&requests)?;
        let mut inside = namespace::inside(path, || {
            // Nodes without IPv6 may have it disabled for new namespaces.
            if record.addresses.iter().any(IpAddr::is_ipv6) {
                for scope in ["all", "default"] {
                    let name = format!("net/ipv6/conf/{scope}/disable_ipv6");
                    crate::sysctl::set(&name, "0").map_err(std::io::Error::other)?;
                }
            }
            Rtnetlink::open()
        })
        .map_err(NetworkError::io(&shown))?;
        self.configure(&mut inside, record)?;
        self.limit(record, limits)?;
        self.wait_until_operational(&mut inside, record)
    }

    /// Waits until both ends and the bridge pass packets: the kernel notices a carrier later than the other end comes up, and a
    /// pod's first packets would be lost.
    fn wait_until_operational(
        &mut self,
        inside: &mut Rtnetlink,
        record: &Record,
    ) -> Result<(), NetworkError> {
        let up = |netlink: &mut Rtnetlink, name: &str| -> Result<bool, NetworkError> {
            Ok(netlink.link(name)?.is_some_and(|link| link.operational))
        };
        let bridge = self.bridge_name().to_owned();
        for _ in 0..OPERATIONAL_TRIES {
            if up(inside, INTERFACE)?
                && up(&mut self.netlink, &record.link)?
                && up(&mut self.netlink, &bridge)?
            {
                return Ok(());
            }
            std::thread::sleep(OPERATIONAL_WAIT);
        }
        Err(NetworkError::NotAsSetUp(format!("the interface of pod {} does not come up", record.pod)))
    }

    fn configure(&self, inside: &mut Rtnetlink, record: &Record) -> Result<(), NetworkError> {
        let link = inside.link(INTERFACE)?.ok_or_else(|| {
            NetworkError::NotAsSetUp(format!("no {INTERFACE} in the namespace of {}", record.pod))
        })?;
        let mut requests = Requests::default();
        // The loopback interface is always the first.
        requests.set_up(1);
        requests.set_up(link.index);
        for address in &record.addresses {
            let range = self.addresses.ranges().find(|range| range.contains(*address));
            let range = range.unwrap_or_else(|| Cidr::host(*address));
            requests.address(true, link.index, *address, range.prefix_length());
            if let Some(gateway) = crate::addresses::gateway(&range) {
                let everything = Cidr::new(range.family().unspecified(), 0);
                let route =
                    KernelRoute { gateway: Some(gateway), link: link.index, onlink: false, protocol: BOOT };
                requests.route(true, &everything, &route);
            }
        }
        Ok(inside.send(&requests)?)
    }

    fn limit(&mut self, record: &Record, limits: Limits) -> Result<(), NetworkError> {
        if limits == Limits::default() {
            return Ok(());
        }
        let index = |netlink: &mut Rtnetlink, name: &str| -> Result<u32, NetworkError> {
            let link = netlink.link(name)?;
            link.map(|link| link.index).ok_or_else(|| NetworkError::NotAsSetUp(format!("no link {name}")))
        };
        let link = index(&mut self.netlink, &record.link)?;
        let mut requests = Requests::default();
        if let Some(rate) = limits.ingress {
            token_bucket(&mut requests, link, rate, self.mtu);
        }
        if let Some(rate) = limits.egress {
            let name = limiter_name(&record.link);
            let mut create = Requests::default();
            create.add_ifb(&name, self.mtu);
            self.netlink.send(&create)?;
            let limiter = index(&mut self.netlink, &name)?;
            token_bucket(&mut requests, limiter, rate, self.mtu);
            redirect_received(&mut requests, link, limiter);
        }
        Ok(self.netlink.send(&requests)?)
    }

    /// Removes a pod's interfaces; those that are absent count as removed.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_link(&mut self, link: &str) -> Result<(), NetworkError> {
        let mut requests = Requests::default();
        requests.delete_link(link);
        requests.delete_link(&limiter_name(link));
        Ok(self.netlink.send(&requests)?)
    }

    /// Checks that a pod's interface is there, in the bridge, with its addresses.
    ///
    /// # Errors
    /// [`NetworkError::NotAsSetUp`], and the kernel's.
    pub fn check_link(&mut self, record: &Record, path: &Path) -> Result<(), NetworkError> {
        let wrong = |what: &str| NetworkError::NotAsSetUp(format!("{what} of pod {}", record.pod));
        let link = self.netlink.link(&record.link)?.ok_or_else(|| wrong("no interface"))?;
        if link.master != Some(self.bridge) {
            return Err(wrong("the bridge does not have the interface"));
        }
        let mut inside =
            namespace::inside(path, Rtnetlink::open).map_err(NetworkError::io(path.display().to_string()))?;
        let present = inside.addresses()?;
        match record.addresses.iter().find(|ip| !present.iter().any(|(_, address, _)| address == *ip)) {
            Some(missing) => Err(wrong(&format!("no address {missing} in the namespace"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_are_recognised() {
        let name = link_name("0123456789abcdef");
        assert_eq!(name.len(), 14);
        assert!(is_ours(&name) && is_ours(&limiter_name(&name)));
        assert!(!is_ours("kaji0") && !is_ours("eth0") && !is_ours("kjxyz"));
    }
}
