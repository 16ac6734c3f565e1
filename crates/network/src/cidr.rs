//! Ranges of addresses.

use kaji_netfilter::{
    Element, Family,
    set::{interval_elements, prefix_bounds},
};
use serde::{Deserialize, Serialize};
use std::{fmt, net::IpAddr, str::FromStr};

/// A range of addresses with a common prefix. The bits beyond it are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    address: IpAddr,
    length: u8,
}

/// The text is no CIDR.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid CIDR address: {0}")]
pub struct CidrError(String);

impl Cidr {
    /// The range of an address and a prefix; bits beyond the prefix are cleared, a longer prefix than the address counts as a
    /// whole one.
    #[must_use]
    pub fn new(address: IpAddr, length: u8) -> Cidr {
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = length.min(most);
        Cidr { address: prefix_bounds(address, length).0, length }
    }

    /// A single address.
    #[must_use]
    pub fn host(address: IpAddr) -> Cidr {
        Cidr::new(address, 128)
    }

    /// The first address.
    #[must_use]
    pub fn first(&self) -> IpAddr {
        self.address
    }

    /// The last address.
    #[must_use]
    pub fn last(&self) -> IpAddr {
        prefix_bounds(self.address, self.length).1
    }

    /// Bits of the prefix.
    #[must_use]
    pub fn prefix_length(&self) -> u8 {
        self.length
    }

    /// Of its addresses.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.address)
    }

    /// Whether an address is in it.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        Family::of(address) == self.family() && prefix_bounds(address, self.length).0 == self.address
    }

    /// Whether all of another range is in it.
    #[must_use]
    pub fn covers(&self, other: &Cidr) -> bool {
        self.length <= other.length && self.contains(other.address)
    }

    /// How many addresses, as far as a number of 64 bits says it.
    #[must_use]
    pub fn size(&self) -> u64 {
        let bits = if self.address.is_ipv4() { 32 } else { 128 } - u32::from(self.length);
        1_u64.checked_shl(bits).unwrap_or(u64::MAX)
    }

    /// The address so many after the first; `None` beyond the last.
    #[must_use]
    pub fn nth(&self, offset: u64) -> Option<IpAddr> {
        if offset >= self.size() {
            return None;
        }
        Some(match self.address {
            IpAddr::V4(a) => IpAddr::V4(u32::from(a).checked_add(offset as u32)?.into()),
            IpAddr::V6(a) => IpAddr::V6(u128::from(a).checked_add(u128::from(offset))?.into()),
        })
    }
}

/// Without ranges that others cover.
#[must_use]
pub fn disjoint(mut ranges: Vec<Cidr>) -> Vec<Cidr> {
    ranges.sort_by_key(|range| (range.length, *range));
    let mut kept: Vec<Cidr> = vec![];
    for range in ranges {
        if !kept.iter().any(|wide| wide.covers(&range)) {
            kept.push(range);
        }
    }
    kept
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Cidr, CidrError> {
        let parsed = || {
            let (address, length) = text.trim().split_once('/')?;
            let (address, length) = (address.parse::<IpAddr>().ok()?, length.parse::<u8>().ok()?);
            (length <= if address.is_ipv4() { 32 } else { 128 }).then(|| Cidr::new(address, length))
        };
        parsed().ok_or_else(|| CidrError(text.to_owned()))
    }
}

impl TryFrom<String> for Cidr {
    type Error = CidrError;

    fn try_from(text: String) -> Result<Cidr, CidrError> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> String {
        cidr.to_string()
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// Those of a family, as elements of a set with intervals.
#[must_use]
pub fn elements(ranges: &[Cidr], family: Family) -> Vec<Element> {
    let own = ranges.iter().filter(|range| range.family() == family);
    interval_elements(own.map(|range| (range.first(), range.last())))
}
