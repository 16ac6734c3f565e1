//! Netlink without programs: a codec of messages and attributes, a socket, and on top of them nftables transactions and the
//! connection tracking table.
//!
//! Invariants:
//! - Encoding is pure: a [`Batch`] becomes bytes without a socket, and the same calls give the same bytes.
//! - A batch is one transaction of the kernel: all of it is in force, or none.
//! - What the kernel sends is parsed with bounds; a malformed message is an error, never a panic.

pub mod batch;
pub mod conntrack;
pub mod expr;
pub mod namespace;
pub mod netlink;
pub mod nftables;
pub mod set;
pub mod socket;

pub use batch::{Batch, Chain, ChainType, Hook};
pub use expr::{Compare, Expr, Field, Reg, Verdict};
pub use nftables::Nftables;
pub use set::{Element, ElementData, SetData, SetSpec};
pub use socket::{NetlinkError, Socket};

/// The protocol family of a table, of an address or of a rule's expressions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// `ip`
    V4,
    /// `ip6`
    V6,
}

impl Family {
    /// `NFPROTO_*`, which has the values of `AF_*`.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Family::V4 => 2,
            Family::V6 => 10,
        }
    }

    /// The unspecified address.
    #[must_use]
    pub fn unspecified(self) -> std::net::IpAddr {
        match self {
            Family::V4 => std::net::Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// Of an address.
    #[must_use]
    pub fn of(address: std::net::IpAddr) -> Family {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// Length of an address in bytes.
    #[must_use]
    pub fn address_len(self) -> u32 {
        match self {
            Family::V4 => 4,
            Family::V6 => 16,
        }
    }
}

/// An address in the order of the network.
#[must_use]
pub fn octets(address: std::net::IpAddr) -> Vec<u8> {
    match address {
        std::net::IpAddr::V4(a) => a.octets().to_vec(),
        std::net::IpAddr::V6(a) => a.octets().to_vec(),
    }
}
