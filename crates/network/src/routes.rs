//! Which routes a node needs to the pods of the others: by their addresses on a shared segment, by VXLAN otherwise.
//!
//! Invariants: the plan is a function of the nodes alone; a VXLAN interface's hardware address is a function of its node's
//! address, so that nothing but Node objects has to be exchanged.

use crate::{
    Cidr, NetworkError,
    rtnetlink::{KernelRoute, Mac, Requests, Rtnetlink, Vxlan},
};
use kaji_netfilter::{Family, octets};
use std::{collections::BTreeSet, net::IpAddr};

/// A node as routes need it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerNode {
    /// Name of the node.
    pub name: String,
    /// `spec.podCIDRs`
    pub pod_cidrs: Vec<Cidr>,
    /// Its `InternalIP` addresses, the primary one first.
    pub internal_ips: Vec<IpAddr>,
}

/// How a node's pods are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Via {
    /// By the node's own address, which is on a segment of ours.
    Segment(IpAddr),
    /// In VXLAN packets to the node.
    Vxlan {
        /// The node's address.
        remote: IpAddr,
        /// Stands for the node on the VXLAN interface: the first address of its pod CIDR.
        gateway: IpAddr,
    },
}

/// A route to a node's pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// The node's pods.
    pub destination: Cidr,
    /// How.
    pub via: Via,
}

/// The routes that node `own` needs. `segments` are the ranges of its interfaces; nodes with one of the `local` addresses
/// share this network namespace and need none. Nodes without pod CIDR or address are left out.
#[must_use]
pub fn routes(nodes: &[PeerNode], own: &str, segments: &[Cidr], local: &[IpAddr]) -> Vec<Route> {
    let ours = nodes.iter().find(|node| node.name == own).map_or(&[][..], |node| &node.internal_ips[..]);
    let mut routes = BTreeSet::new();
    for node in nodes.iter().filter(|node| node.name != own) {
        if node.internal_ips.iter().any(|ip| local.contains(ip)) {
            continue;
        }
        for range in &node.pod_cidrs {
            let near = node.internal_ips.iter().find(|ip| {
                Family::of(**ip) == range.family() && segments.iter().any(|segment| segment.contains(**ip))
            });
            // Both ends of a tunnel have the same family.
            let far = node
                .internal_ips
                .iter()
                .find(|ip| ours.first().is_none_or(|own| own.is_ipv4() == ip.is_ipv4()));
            let via = match (near, far) {
                (Some(ip), _) => Via::Segment(*ip),
                (None, Some(ip)) => Via::Vxlan { remote: *ip, gateway: range.first() },
                (None, None) => continue,
            };
            routes.insert(Route { destination: *range, via });
        }
    }
    routes.into_iter().collect()
}

/// The hardware address of a node's VXLAN interface: locally administered, from a hash of the node's address.
#[must_use]
pub fn vxlan_mac(node: IpAddr) -> Mac {
    let hash = crate::pods::fnv(&octets(node)).to_be_bytes();
    [0x0a, 0x6b, hash[4], hash[5], hash[6], hash[7]]
}

/// Bytes that VXLAN puts before a packet, by the family of the outer addresses.
fn overhead(outer: Family) -> u32 {
    match outer {
        Family::V4 => 50,
        Family::V6 => 70,
    }
}

/// What routes are put into the kernel with.
#[derive(Debug, Clone)]
pub struct RouteSettings {
    /// Marks the routes of this process.
    pub protocol: u8,
    /// Name of the VXLAN interface.
    pub vxlan: String,
    /// Network identifier of the VXLAN.
    pub vxlan_id: u32,
    /// UDP port of the VXLAN.
    pub vxlan_port: u16,
    /// Of the uplink.
    pub mtu: u32,
}

/// Makes the kernel's routes those of the plan; routes of other writers stay. `own` is this node's primary address.
///
/// # Errors
/// The kernel's.
pub fn sync(
    netlink: &mut Rtnetlink,
    settings: &RouteSettings,
    own: IpAddr,
    plan: &[Route],
) -> Result<(), NetworkError> {
    let tunnels = plan.iter().any(|route| matches!(route.via, Via::Vxlan { .. }));
    let tunnel = tunnel(netlink, settings, own, tunnels)?;
    let links = netlink.links()?;
    let (present, addresses) = (netlink.routes()?, netlink.addresses()?);
    let mut requests = Requests::default();
    let mut wanted = vec![];
    for route in plan {
        let (gateway, link, onlink) = match (route.via, tunnel) {
            (Via::Segment(ip), _) => {
                let segment =
                    addresses.iter().find(|(_, address, prefix)| Cidr::new(*address, *prefix).contains(ip));
                let Some((link, ..)) = segment else { continue };
                (ip, *link, false)
            }
            (Via::Vxlan { gateway, .. }, Some(tunnel)) => (gateway, tunnel, true),
            (Via::Vxlan { .. }, None) => continue,
        };
        wanted.push((
            route.destination,
            KernelRoute { gateway: Some(gateway), link, onlink, protocol: settings.protocol },
        ));
    }
    if let Some(tunnel) = tunnel {
        peers(netlink, &mut requests, tunnel, plan)?;
    }
    for (destination, route) in &wanted {
        let same = |(to, r): &(Option<Cidr>, KernelRoute)| {
            *to == Some(*destination)
                && (r.gateway, r.link, r.protocol) == (route.gateway, route.link, route.protocol)
        };
        if !present.iter().any(same) {
            requests.route(true, destination, route);
        }
    }
    for (destination, route) in present.iter().filter(|(_, route)| route.protocol == settings.protocol) {
        let Some(destination) = destination else { continue };
        let exists = links.iter().any(|link| link.index == route.link);
        if exists && !wanted.iter().any(|(to, _)| to == destination) {
            requests.route(false, destination, route);
        }
    }
    Ok(netlink.send(&requests)?)
}

/// The index of the VXLAN interface, made when the plan has use for it and deleted when not.
fn tunnel(
    netlink: &mut Rtnetlink,
    settings: &RouteSettings,
    own: IpAddr,
    needed: bool,
) -> Result<Option<u32>, NetworkError> {
    let present = netlink.link(&settings.vxlan)?;
    let mut requests = Requests::default();
    match (needed, present) {
        (true, Some(link)) => return Ok(Some(link.index)),
        (false, None) => return Ok(None),
        (false, Some(_)) => requests.delete_link(&settings.vxlan),
        (true, None) => requests.add_vxlan(
            &settings.vxlan,
            settings.mtu.saturating_sub(overhead(Family::of(own))),
            vxlan_mac(own),
            &Vxlan { id: settings.vxlan_id, port: settings.vxlan_port, local: own },
        ),
    }
    netlink.send(&requests)?;
    Ok(netlink.link(&settings.vxlan)?.map(|link| link.index))
}

/// Neighbours and forwarding entries of the VXLAN interface.
fn peers(
    netlink: &mut Rtnetlink,
    requests: &mut Requests,
    tunnel: u32,
    plan: &[Route],
) -> Result<(), NetworkError> {
    let far: BTreeSet<(IpAddr, IpAddr)> = plan
        .iter()
        .filter_map(|route| match route.via {
            Via::Vxlan { remote, gateway } => Some((gateway, remote)),
            Via::Segment(_) => None,
        })
        .collect();
    let (neighbours, forwardings) = (netlink.neighbours(tunnel)?, netlink.forwardings(tunnel)?);
    for (gateway, remote) in &far {
        let mac = vxlan_mac(*remote);
        if !neighbours.contains(&(*gateway, mac)) {
            requests.neighbour(true, tunnel, *gateway, mac);
        }
        if !forwardings.contains(&(mac, *remote)) {
            requests.forwarding(true, tunnel, mac, *remote);
        }
    }
    for (address, mac) in neighbours.iter().filter(|(a, _)| !far.iter().any(|(gateway, _)| gateway == a)) {
        requests.neighbour(false, tunnel, *address, *mac);
    }
    for (mac, remote) in forwardings.iter().filter(|(_, r)| !far.iter().any(|(_, remote)| remote == r)) {
        requests.forwarding(false, tunnel, *mac, *remote);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use std::fmt::Write;

    fn node(name: &str, pods: &[&str], ips: &[&str]) -> PeerNode {
        PeerNode {
            name: name.into(),
            pod_cidrs: pods.iter().map(|p| p.parse().unwrap()).collect(),
            internal_ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn routes_by_segment_and_by_vxlan() {
        let nodes = [
            node("a", &["10.244.0.0/24", "fd00:0:0:1::/64"], &["192.168.1.1", "fd99::1"]),
            node("b", &["10.244.1.0/24", "fd00:0:0:2::/64"], &["192.168.1.2", "fd99::2"]),
            node("far", &["10.244.2.0/24"], &["172.16.0.9"]),
            node("here", &["10.244.3.0/24"], &["127.0.0.9"]),
            node("new", &[], &["192.168.1.7"]),
            node("v6", &["fd00:0:0:5::/64"], &["fd98::5"]),
            node("v4 only", &["fd00:0:0:6::/64"], &["192.168.1.6"]),
        ];
        let segments = ["192.168.1.0/24".parse().unwrap(), "fd99::/64".parse().unwrap()];
        let plan = routes(&nodes, "a", &segments, &["127.0.0.9".parse().unwrap()]);
        let text = plan.iter().fold(String::new(), |mut text, route| {
            writeln!(text, "{} {:?}", route.destination, route.via).unwrap();
            text
        });
        expect![[r#"
            10.244.1.0/24 Segment(192.168.1.2)
            10.244.2.0/24 Vxlan { remote: 172.16.0.9, gateway: 10.244.2.0 }
            fd00:0:0:2::/64 Segment(fd99::2)
            fd00:0:0:6::/64 Vxlan { remote: 192.168.1.6, gateway: fd00:0:0:6:: }
        "#]]
        .assert_eq(&text);
    }
}
