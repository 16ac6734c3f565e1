//! Routing messages: links, addresses, routes, neighbours and forwarding entries, several in one datagram.

use crate::Cidr;
use kaji_netfilter::{
    Family, NetlinkError, Socket,
    netlink::{self, ACK, CREATE, DUMP, EXCL, REPLACE, REQUEST, Writer},
    octets,
    socket::Protocol,
};
use std::{
    io,
    net::IpAddr,
    os::fd::{AsRawFd, BorrowedFd},
};

pub const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
const NEW_NEIGHBOUR: u16 = 28;
const DELETE_NEIGHBOUR: u16 = 29;
const GET_NEIGHBOUR: u16 = 30;

/// `AF_BRIDGE`
const BRIDGE: u8 = 7;
/// `NUD_PERMANENT`
const PERMANENT: u16 = 0x80;

/// `ENODEV`, `ENOENT`, `ESRCH`, `EADDRNOTAVAIL`: what was to be deleted is absent.
pub const ABSENT: &[i32] = &[19, 2, 3, 99];
/// `EEXIST`
pub const EXISTS: &[i32] = &[17];

/// A hardware address.
pub type Mac = [u8; 6];

/// `struct ifinfomsg`
pub fn link_header(index: u32, up: bool) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    let flags = u32::from(up).to_ne_bytes();
    header[8..12].copy_from_slice(&flags);
    header[12..16].copy_from_slice(&flags);
    header
}

/// Messages that are sent as one datagram, each with what it does and which errors are no failures.
#[derive(Default)]
pub struct Requests {
    out: Writer,
    descriptions: Vec<(String, &'static [i32])>,
}

impl Requests {
    /// A message; `body` appends its attributes.
    pub fn add(
        &mut self,
        what: impl Into<String>,
        (kind, flags): (u16, u16),
        fixed: &[u8],
        allowed: &'static [i32],
        body: impl FnOnce(&mut Writer),
    ) {
        self.out.begin(kind, REQUEST | ACK | flags, self.descriptions.len() as u32 + 1, fixed);
        body(&mut self.out);
        self.out.end();
        self.descriptions.push((what.into(), allowed));
    }

    /// Creates a bridge.
    pub fn add_bridge(&mut self, name: &str, mtu: u32, mac: Mac) {
        self.add(
            format!("add bridge {name}"),
            (NEW_LINK, CREATE | EXCL),
            &link_header(0, true),
            EXISTS,
            |out| {
                out.text(3, name);
                out.native32(4, mtu);
                out.bytes(1, &mac);
                let info = out.nest(18);
                out.text(1, "bridge");
                out.close(info);
            },
        );
    }

    /// Creates a veth pair: `name` is a port of the bridge, the other end is `peer` in the namespace.
    pub fn add_veth(&mut self, name: &str, bridge: u32, mtu: u32, peer: &Peer<'_>) {
        let what = format!("add veth {name}");
        self.add(what, (NEW_LINK, CREATE | EXCL), &link_header(0, true), &[], |out| {
            out.text(3, name);
            out.native32(4, mtu);
            out.native32(10, bridge);
            let info = out.nest(18);
            out.text(1, "veth");
            let data = out.nest(2);
            let other = out.nest_plain(1, &link_header(0, false));
            out.text(3, peer.name);
            out.native32(4, mtu);
            out.bytes(1, &peer.mac);
            // IFLA_NET_NS_FD
            out.native32(28, peer.namespace.as_raw_fd() as u32);
            out.close(other);
            out.close(data);
            out.close(info);
        });
        self.add(format!("set hairpin of {name}"), (NEW_LINK, 0), &link_header(0, true), &[], |out| {
            out.text(3, name);
            let info = out.nest(18);
            out.text(4, "bridge");
            let data = out.nest(5);
            out.byte(4, 1);
            out.close(data);
            out.close(info);
        });
    }

    /// Creates a VXLAN interface without learning.
    pub fn add_vxlan(&mut self, name: &str, mtu: u32, mac: Mac, vxlan: &Vxlan) {
        let what = format!("add vxlan {name}");
        self.add(what, (NEW_LINK, CREATE | EXCL), &link_header(0, true), EXISTS, |out| {
            out.text(3, name);
            out.native32(4, mtu);
            out.bytes(1, &mac);
            let info = out.nest(18);
            out.text(1, "vxlan");
            let data = out.nest(2);
            out.native32(1, vxlan.id);
            out.bytes(if vxlan.local.is_ipv4() { 4 } else { 17 }, &octets(vxlan.local));
            out.byte(7, 0);
            out.bytes(15, &vxlan.port.to_be_bytes());
            out.close(data);
            out.close(info);
        });
    }

    /// Creates an intermediate functional block.
    pub fn add_ifb(&mut self, name: &str, mtu: u32) {
        self.add(
            format!("add ifb {name}"),
            (NEW_LINK, CREATE | EXCL),
            &link_header(0, true),
            EXISTS,
            |out| {
                out.text(3, name);
                out.native32(4, mtu);
                let info = out.nest(18);
                out.text(1, "ifb");
                out.close(info);
            },
        );
    }

    /// Brings an interface up.
    pub fn set_up(&mut self, index: u32) {
        self.add(format!("set link {index} up"), (NEW_LINK, 0), &link_header(index, true), &[], |_| ());
    }

    /// Deletes an interface by name.
    pub fn delete_link(&mut self, name: &str) {
        self.add(format!("delete link {name}"), (DELETE_LINK, 0), &link_header(0, false), ABSENT, |out| {
            out.text(3, name);
        });
    }

    /// Adds an address without the detection of duplicates, or deletes it.
    pub fn address(&mut self, add: bool, index: u32, address: IpAddr, prefix: u8) {
        let mut header = [Family::of(address).number(), prefix, 0, 0, 0, 0, 0, 0];
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        let (kind, allowed) =
            if add { ((NEW_ADDRESS, CREATE | REPLACE), EXISTS) } else { ((DELETE_ADDRESS, 0), ABSENT) };
        self.add(format!("address {address}/{prefix} of link {index}"), kind, &header, allowed, |out| {
            out.bytes(1, &octets(address));
            out.bytes(2, &octets(address));
            if add && address.is_ipv6() {
                // IFA_F_NODAD
                out.native32(8, 2);
            }
        });
    }

    /// Adds a route, replacing one to the same destination, or deletes it.
    pub fn route(&mut self, add: bool, destination: &Cidr, route: &KernelRoute) {
        let onlink = if route.onlink { 4_u32 } else { 0 };
        let mut header = [
            destination.family().number(),
            destination.prefix_length(),
            0,
            0,
            254,
            route.protocol,
            0,
            1,
            0,
            0,
            0,
            0,
        ];
        header[8..12].copy_from_slice(&onlink.to_ne_bytes());
        let (kind, allowed) =
            if add { ((NEW_ROUTE, CREATE | REPLACE), EXISTS) } else { ((DELETE_ROUTE, 0), ABSENT) };
        self.add(format!("route to {destination}"), kind, &header, allowed, |out| {
            if destination.prefix_length() > 0 {
                out.bytes(1, &octets(destination.first()));
            }
            if let Some(gateway) = route.gateway {
                out.bytes(5, &octets(gateway));
            }
            out.native32(4, route.link);
        });
    }

    /// Adds a permanent neighbour, or deletes it.
    pub fn neighbour(&mut self, add: bool, link: u32, address: IpAddr, mac: Mac) {
        let header = neighbour_header(Family::of(address).number(), link, 0);
        let (kind, allowed) =
            if add { ((NEW_NEIGHBOUR, CREATE | REPLACE), EXISTS) } else { ((DELETE_NEIGHBOUR, 0), ABSENT) };
        self.add(format!("neighbour {address}"), kind, &header, allowed, |out| {
            out.bytes(1, &octets(address));
            out.bytes(2, &mac);
        });
    }

    /// Adds where frames to a hardware address are sent by a VXLAN interface, or deletes it.
    pub fn forwarding(&mut self, add: bool, link: u32, mac: Mac, remote: IpAddr) {
        // NTF_SELF
        let header = neighbour_header(BRIDGE, link, 2);
        let (kind, allowed) =
            if add { ((NEW_NEIGHBOUR, CREATE | REPLACE), EXISTS) } else { ((DELETE_NEIGHBOUR, 0), ABSENT) };
        self.add(format!("forwarding to {remote}"), kind, &header, allowed, |out| {
            out.bytes(2, &mac);
            out.bytes(1, &octets(remote));
        });
    }
}

fn neighbour_header(family: u8, link: u32, flags: u8) -> [u8; 12] {
    let mut header = [family, 0, 0, 0, 0, 0, 0, 0, 0, 0, flags, 0];
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    header[8..10].copy_from_slice(&PERMANENT.to_ne_bytes());
    header
}

/// The end of a veth pair that is in a pod.
pub struct Peer<'a> {
    pub name: &'a str,
    pub mac: Mac,
    pub namespace: BorrowedFd<'a>,
}

/// A VXLAN interface.
pub struct Vxlan {
    pub id: u32,
    pub port: u16,
    pub local: IpAddr,
}

/// A route but for its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelRoute {
    /// Next hop; none for the link itself.
    pub gateway: Option<IpAddr>,
    /// Index of the interface.
    pub link: u32,
    /// The next hop counts as reachable by the link although no address says so.
    pub onlink: bool,
    /// `RTPROT_*`, which tells routes of one writer from others'.
    pub protocol: u8,
}

/// An interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    pub mtu: u32,
    /// Index of the bridge that it is a port of.
    pub master: Option<u32>,
    /// Whether it passes packets; some kernels find out only when they are asked.
    pub operational: bool,
}

/// Links, addresses and routes of one network namespace.
pub struct Rtnetlink(Socket);

impl Rtnetlink {
    /// In the namespace of this thread.
    pub fn open() -> io::Result<Rtnetlink> {
        Ok(Rtnetlink(Socket::open(Protocol::Route)?))
    }

    /// Sends all requests. The first failure is returned, after all have been tried.
    pub fn send(&mut self, requests: &Requests) -> Result<(), NetlinkError> {
        let count = requests.descriptions.len();
        if count == 0 {
            return Ok(());
        }
        let results = self.0.acknowledged(requests.out.as_bytes(), 1, count)?;
        for (index, (errno, (what, allowed))) in results.iter().zip(&requests.descriptions).enumerate() {
            if *errno != 0 && !allowed.contains(errno) {
                return Err(NetlinkError::Refused { what: what.clone(), errno: *errno, index });
            }
        }
        Ok(())
    }

    fn dump(
        &mut self,
        what: &'static str,
        kind: u16,
        fixed: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), NetlinkError> {
        let sequence = self.0.sequence(1) + (1 << 20);
        let mut out = Writer::new();
        out.begin(kind, REQUEST | DUMP, sequence, fixed);
        out.end();
        self.0.dump(what, out.as_bytes(), sequence, |message| each(message.payload))
    }

    /// All interfaces.
    pub fn links(&mut self) -> Result<Vec<Link>, NetlinkError> {
        let mut links = vec![];
        self.dump("list links", GET_LINK, &link_header(0, false), |payload| {
            links.extend(parse_link(payload))
        })?;
        Ok(links)
    }

    /// The interface of a name.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>, NetlinkError> {
        let sequence = self.0.sequence(1) + (1 << 20);
        let mut out = Writer::new();
        out.begin(GET_LINK, REQUEST | ACK, sequence, &link_header(0, false));
        out.text(3, name);
        out.end();
        let mut link = None;
        match self.0.dump("get link", out.as_bytes(), sequence, |message| link = parse_link(message.payload))
        {
            Err(error) if error.errno().is_some_and(|errno| ABSENT.contains(&errno)) => Ok(None),
            Err(error) => Err(error),
            Ok(()) => Ok(link),
        }
    }

    /// Addresses with global scope: index of the interface, address, length of the prefix.
    pub fn addresses(&mut self) -> Result<Vec<(u32, IpAddr, u8)>, NetlinkError> {
        let mut addresses = vec![];
        self.dump("list addresses", GET_ADDRESS, &[0; 8], |payload| {
            let parsed = || {
                let (prefix, scope) = (*payload.get(1)?, *payload.get(3)?);
                let attributes = payload.get(8..)?;
                let address =
                    netlink::attribute(attributes, 2).or_else(|| netlink::attribute(attributes, 1))?;
                (scope == 0).then_some((netlink::u32_at(payload, 4)?, ip(address)?, prefix))
            };
            addresses.extend(parsed());
        })?;
        Ok(addresses)
    }

    /// Routes of the main table with the protocol that they are marked by; destination none for default routes.
    pub fn routes(&mut self) -> Result<Vec<(Option<Cidr>, KernelRoute)>, NetlinkError> {
        let mut routes = vec![];
        self.dump("list routes", GET_ROUTE, &[0; 12], |payload| {
            routes.extend(parse_route(payload));
        })?;
        Ok(routes)
    }

    /// Permanent forwarding entries of an interface.
    pub fn forwardings(&mut self, link: u32) -> Result<Vec<(Mac, IpAddr)>, NetlinkError> {
        let mut entries = vec![];
        let mut header = [0; 12];
        header[0] = BRIDGE;
        self.dump("list forwarding entries", GET_NEIGHBOUR, &header, |payload| {
            let parsed = || {
                let attributes = payload.get(12..)?;
                let mac: Mac = netlink::attribute(attributes, 2)?.try_into().ok()?;
                let remote = ip(netlink::attribute(attributes, 1)?)?;
                (netlink::u32_at(payload, 4)? == link).then_some((mac, remote))
            };
            entries.extend(parsed());
        })?;
        Ok(entries)
    }

    /// Permanent neighbours by an interface.
    pub fn neighbours(&mut self, link: u32) -> Result<Vec<(IpAddr, Mac)>, NetlinkError> {
        let mut entries = vec![];
        self.dump("list neighbours", GET_NEIGHBOUR, &[0; 12], |payload| {
            let parsed = || {
                let attributes = payload.get(12..)?;
                let permanent = netlink::u16_at(payload, 8)? & PERMANENT != 0;
                let mac: Mac = netlink::attribute(attributes, 2)?.try_into().ok()?;
                let address = ip(netlink::attribute(attributes, 1)?)?;
                (permanent && netlink::u32_at(payload, 4)? == link).then_some((address, mac))
            };
            entries.extend(parsed());
        })?;
        Ok(entries)
    }
}

fn parse_link(payload: &[u8]) -> Option<Link> {
    let attributes = payload.get(16..)?;
    let number = |kind| netlink::attribute(attributes, kind).and_then(|value| netlink::u32_at(value, 0));
    Some(Link {
        index: netlink::u32_at(payload, 4)?,
        name: netlink::text(netlink::attribute(attributes, 3)?),
        mtu: number(4)?,
        master: number(10),
        // IF_OPER_UP
        operational: netlink::attribute(attributes, 16).is_some_and(|state| state == [6]),
    })
}

fn parse_route(payload: &[u8]) -> Option<(Option<Cidr>, KernelRoute)> {
    let attributes = payload.get(12..)?;
    let (length, table, protocol, kind) =
        (*payload.get(1)?, *payload.get(4)?, *payload.get(5)?, *payload.get(7)?);
    if (table, kind) != (254, 1) {
        return None;
    }
    let destination = netlink::attribute(attributes, 1).and_then(ip);
    let link = netlink::attribute(attributes, 4).and_then(|value| netlink::u32_at(value, 0))?;
    let gateway = netlink::attribute(attributes, 5).and_then(ip);
    let destination = destination.map(|address| Cidr::new(address, length));
    Some((destination, KernelRoute { gateway, link, onlink: false, protocol }))
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => None,
    }
}

/// Flags of queueing messages.
pub const CREATE_OR_REPLACE: u16 = CREATE | REPLACE;
/// Flags of messages that make what is absent.
pub const CREATE_NEW: u16 = CREATE | EXCL;
