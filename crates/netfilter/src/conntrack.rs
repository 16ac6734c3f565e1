//! The table of tracked connections: those of UDP, and the deletion of single ones.

use crate::{
    Family,
    netlink::{self, ACK, DUMP, REQUEST, Writer},
    socket::{NetlinkError, Protocol, Socket},
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// `NFNL_SUBSYS_CTNETLINK`
const SUBSYSTEM: u16 = 1 << 8;
const GET: u16 = 1;
const DELETE: u16 = 2;
/// `ENOENT`: the connection has ended meanwhile.
const ABSENT: i32 = 2;

/// One direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// From.
    pub source: SocketAddr,
    /// To.
    pub destination: SocketAddr,
    /// Transport protocol.
    pub protocol: u8,
}

/// A tracked connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    /// As it was opened, before translation.
    pub original: Tuple,
    /// The direction of answers: its source is where the connection was translated to.
    pub reply: Tuple,
    /// `CTA_ID`, so that a later connection of the same tuple is not meant.
    pub id: u32,
}

/// A handle on the table of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
}

impl Conntrack {
    /// In the namespace of this thread.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open() -> Result<Conntrack, NetlinkError> {
        Ok(Conntrack { socket: Socket::open(Protocol::Netfilter)? })
    }

    /// The connections of a transport protocol that `select` takes.
    ///
    /// # Errors
    /// The socket's.
    pub fn flows(
        &mut self,
        family: Family,
        mut select: impl FnMut(&Flow) -> bool,
    ) -> Result<Vec<Flow>, NetlinkError> {
        let sequence = self.socket.sequence(1);
        let mut out = Writer::new();
        out.begin(SUBSYSTEM | GET, REQUEST | DUMP, sequence, &[family.number(), 0, 0, 0]);
        out.end();
        let mut flows = vec![];
        self.socket.dump("list connections", out.as_bytes(), sequence, |message| {
            let flow = message.payload.get(4..).and_then(parse);
            flows.extend(flow.filter(|flow| select(flow)));
        })?;
        Ok(flows)
    }

    /// Forgets connections; the next packet of each is translated anew. Those that are absent already count as deleted.
    ///
    /// # Errors
    /// The socket's, a refusal.
    pub fn delete(&mut self, flows: &[Flow]) -> Result<(), NetlinkError> {
        // A datagram of a few hundred messages stays below the socket's buffers.
        for chunk in flows.chunks(256) {
            let first = self.socket.sequence(chunk.len());
            let mut out = Writer::new();
            for (index, flow) in chunk.iter().enumerate() {
                let family = Family::of(flow.original.source.ip()).number();
                let sequence = first + index as u32;
                out.begin(SUBSYSTEM | DELETE, REQUEST | ACK, sequence, &[family, 0, 0, 0]);
                encode(&flow.original, &mut out);
                out.big32(12, flow.id);
                out.end();
            }
            let results = self.socket.acknowledged(out.as_bytes(), first, chunk.len())?;
            let failed = results.iter().enumerate().find(|(_, errno)| **errno != 0 && **errno != ABSENT);
            if let Some((index, errno)) = failed {
                let what = format!("delete connection to {}", chunk[index].original.destination);
                return Err(NetlinkError::Refused { what, errno: *errno, index });
            }
        }
        Ok(())
    }
}

fn encode(tuple: &Tuple, out: &mut Writer) {
    let nest = out.nest(1);
    let addresses = out.nest(1);
    let (source, destination) = if tuple.source.is_ipv4() { (1, 2) } else { (3, 4) };
    out.bytes(source, &crate::octets(tuple.source.ip()));
    out.bytes(destination, &crate::octets(tuple.destination.ip()));
    out.close(addresses);
    let protocol = out.nest(2);
    out.byte(1, tuple.protocol);
    out.bytes(2, &tuple.source.port().to_be_bytes());
    out.bytes(3, &tuple.destination.port().to_be_bytes());
    out.close(protocol);
    out.close(nest);
}

fn parse(attributes: &[u8]) -> Option<Flow> {
    Some(Flow {
        original: tuple(netlink::attribute(attributes, 1)?)?,
        reply: tuple(netlink::attribute(attributes, 2)?)?,
        id: netlink::attribute(attributes, 12).and_then(netlink::big32)?,
    })
}

fn tuple(attributes: &[u8]) -> Option<Tuple> {
    let addresses = netlink::attribute(attributes, 1)?;
    let transport = netlink::attribute(attributes, 2)?;
    let address = |v4, v6| {
        let four = || {
            Some(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(netlink::attribute(addresses, v4)?).ok()?)))
        };
        let six = || {
            Some(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(netlink::attribute(addresses, v6)?).ok()?)))
        };
        four().or_else(six)
    };
    // Protocols without ports have none.
    let port = |kind| {
        let bytes = netlink::attribute(transport, kind).and_then(|b| <[u8; 2]>::try_from(b).ok());
        bytes.map_or(0, u16::from_be_bytes)
    };
    Some(Tuple {
        source: SocketAddr::new(address(1, 3)?, port(2)),
        destination: SocketAddr::new(address(2, 4)?, port(3)),
        protocol: *netlink::attribute(transport, 1)?.first()?,
    })
}
