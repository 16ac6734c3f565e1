//! Sets, maps and verdict maps, and their elements.
//!
//! A key of several fields is their concatenation, each padded to four bytes; [`Key`] writes it. A set with intervals has
//! elements from a first to a last key, both included, which must not overlap.

use crate::{expr::Verdict, netlink::Writer, octets};
use std::{net::IpAddr, time::Duration};

/// A field of a key or of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataType {
    /// Address.
    Ipv4,
    /// Address.
    Ipv6,
    /// Transport protocol.
    Protocol,
    /// Port.
    Port,
    /// A number of 32 bits in the order of the machine.
    Integer,
    /// Name of an interface.
    Interface,
}

impl DataType {
    /// Of the addresses of a family.
    #[must_use]
    pub fn address(family: crate::Family) -> DataType {
        match family {
            crate::Family::V4 => DataType::Ipv4,
            crate::Family::V6 => DataType::Ipv6,
        }
    }

    fn len(self) -> u32 {
        match self {
            DataType::Ipv4 | DataType::Integer => 4,
            DataType::Ipv6 | DataType::Interface => 16,
            DataType::Protocol => 1,
            DataType::Port => 2,
        }
    }

    /// The number by which the `nft` program shows values of this type.
    fn number(self) -> u32 {
        match self {
            DataType::Integer => 4,
            DataType::Ipv4 => 7,
            DataType::Ipv6 => 8,
            DataType::Protocol => 12,
            DataType::Port => 13,
            DataType::Interface => 41,
        }
    }
}

fn type_number(fields: &[DataType]) -> u32 {
    fields.iter().fold(0, |number, field| (number << 6) | field.number())
}

fn length(fields: &[DataType]) -> u32 {
    match fields {
        [single] => single.len(),
        fields => fields.iter().map(|field| field.len().next_multiple_of(4)).sum(),
    }
}

/// What a map's elements hold besides their key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetData {
    /// Nothing: a set.
    None,
    /// Verdicts.
    Verdict,
    /// A value of these fields.
    Value(Vec<DataType>),
}

/// A set or a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetSpec {
    /// Name, unique in the table.
    pub name: String,
    /// Fields of the key.
    pub key: Vec<DataType>,
    /// Of each element.
    pub data: SetData,
    /// Whether elements are intervals.
    pub intervals: bool,
    /// Whether rules add elements, which time out; at most this many.
    pub dynamic: Option<u32>,
}

impl SetSpec {
    /// A set or map of single keys.
    #[must_use]
    pub fn new(name: &str, key: &[DataType], data: SetData) -> SetSpec {
        SetSpec { name: name.into(), key: key.into(), data, intervals: false, dynamic: None }
    }

    /// With intervals.
    #[must_use]
    pub fn with_intervals(mut self) -> SetSpec {
        self.intervals = true;
        self
    }

    pub(crate) fn encode(&self, id: u32, out: &mut Writer) {
        let concatenated = self.key.len() > 1;
        let mut flags = 0;
        if self.intervals {
            flags |= 0x4 | if concatenated { 0x80 } else { 0 };
        }
        if self.dynamic.is_some() {
            flags |= 0x10 | 0x20;
        }
        if self.data != SetData::None {
            flags |= 0x8;
        }
        out.text(2, &self.name);
        out.big32(3, flags);
        out.big32(4, type_number(&self.key));
        out.big32(5, length(&self.key));
        match &self.data {
            SetData::None => {}
            SetData::Verdict => {
                out.big32(6, 0xffff_ff00);
                out.big32(7, 4);
            }
            SetData::Value(fields) => {
                out.big32(6, type_number(fields));
                out.big32(7, length(fields));
            }
        }
        out.big32(10, id);
        // The kernel takes the fields' lengths only where it splits keys by them.
        let split = concatenated && self.intervals;
        if split || self.dynamic.is_some() {
            let nest = out.nest(9);
            if let Some(size) = self.dynamic {
                out.big32(1, size);
            }
            if split {
                let fields = out.nest(2);
                for field in &self.key {
                    let element = out.nest(1);
                    out.big32(1, field.len());
                    out.close(element);
                }
                out.close(fields);
            }
            out.close(nest);
        }
    }
}

/// What an element holds besides its key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ElementData {
    /// Of sets.
    None,
    /// Of verdict maps.
    Verdict(Verdict),
    /// Of maps.
    Value(Vec<u8>),
}

/// An element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// The key, or the first one of an interval.
    pub key: Vec<u8>,
    /// The last key of an interval.
    pub last: Option<Vec<u8>>,
    /// Value.
    pub data: ElementData,
    /// Of dynamic elements: how long from a use, and how long still.
    pub timeout: Option<(Duration, Duration)>,
}

impl Element {
    /// A single key.
    #[must_use]
    pub fn new(key: Vec<u8>, data: ElementData) -> Element {
        Element { key, last: None, data, timeout: None }
    }

    /// Appends `NFTA_LIST_ELEM`s: one, or two where an interval's end is an element.
    pub(crate) fn encode(&self, spec: &SetSpec, out: &mut Writer) {
        let element = out.nest(1);
        nested(out, 1, &self.key);
        match &self.last {
            Some(last) if spec.key.len() > 1 => nested(out, 10, last),
            _ => {}
        }
        match &self.data {
            ElementData::None => {}
            ElementData::Verdict(verdict) => {
                let nest = out.nest(2);
                verdict.encode(out);
                out.close(nest);
            }
            ElementData::Value(value) => nested(out, 2, value),
        }
        if let Some((timeout, left)) = self.timeout {
            out.big64(4, timeout.as_millis() as u64);
            out.big64(5, left.as_millis() as u64);
        }
        out.close(element);
        if spec.intervals
            && spec.key.len() == 1
            && let Some(end) = self.last.as_deref().and_then(successor)
        {
            let element = out.nest(1);
            nested(out, 1, &end);
            out.big32(3, 1);
            out.close(element);
        }
    }
}

fn nested(out: &mut Writer, kind: u16, value: &[u8]) {
    let nest = out.nest(kind);
    out.bytes(1, value);
    out.close(nest);
}

/// The next larger number of the same length; `None` after the largest.
fn successor(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut next = bytes.to_vec();
    for byte in next.iter_mut().rev() {
        let (sum, carried) = byte.overflowing_add(1);
        *byte = sum;
        if !carried {
            return Some(next);
        }
    }
    None
}

/// Writes a concatenation.
#[derive(Debug, Default, Clone)]
pub struct Key(Vec<u8>);

impl Key {
    /// Empty.
    #[must_use]
    pub fn new() -> Key {
        Key::default()
    }

    /// Appends a field's bytes and pads them.
    #[must_use]
    pub fn field(mut self, bytes: &[u8]) -> Key {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Appends an address.
    #[must_use]
    pub fn address(self, address: IpAddr) -> Key {
        self.field(&octets(address))
    }

    /// Appends a port.
    #[must_use]
    pub fn port(self, port: u16) -> Key {
        self.field(&port.to_be_bytes())
    }

    /// Appends a transport protocol.
    #[must_use]
    pub fn protocol(self, protocol: u8) -> Key {
        self.field(&[protocol])
    }

    /// Appends a number.
    #[must_use]
    pub fn integer(self, number: u32) -> Key {
        self.field(&number.to_ne_bytes())
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(self) -> Vec<u8> {
        self.0
    }
}

/// First and last address of a prefix.
#[must_use]
pub fn prefix_bounds(address: IpAddr, length: u8) -> (IpAddr, IpAddr) {
    match address {
        IpAddr::V4(a) => {
            let host = u32::MAX.checked_shr(u32::from(length)).unwrap_or(0);
            let first = u32::from(a) & !host;
            (IpAddr::V4(first.into()), IpAddr::V4((first | host).into()))
        }
        IpAddr::V6(a) => {
            let host = u128::MAX.checked_shr(u32::from(length)).unwrap_or(0);
            let first = u128::from(a) & !host;
            (IpAddr::V6(first.into()), IpAddr::V6((first | host).into()))
        }
    }
}

/// The elements of a set of single addresses with intervals: ranges that overlap or touch become one, as the kernel needs it.
#[must_use]
pub fn interval_elements(ranges: impl IntoIterator<Item = (IpAddr, IpAddr)>) -> Vec<Element> {
    merge_ranges(ranges)
        .into_iter()
        .map(|(first, last)| Element {
            last: Some(octets(last)),
            ..Element::new(octets(first), ElementData::None)
        })
        .collect()
}

/// Ranges in order; those that overlap or touch become one.
#[must_use]
pub fn merge_ranges(ranges: impl IntoIterator<Item = (IpAddr, IpAddr)>) -> Vec<(IpAddr, IpAddr)> {
    let mut ranges: Vec<(IpAddr, IpAddr)> = ranges.into_iter().collect();
    ranges.sort();
    let mut merged: Vec<(IpAddr, IpAddr)> = vec![];
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if first <= *end || next_address(*end) == Some(first) => *end = (*end).max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// The next address of the family; `None` after the last.
#[must_use]
pub fn next_address(ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).checked_add(1).map(|n| IpAddr::V4(n.into())),
        IpAddr::V6(ip) => u128::from(ip).checked_add(1).map(|n| IpAddr::V6(n.into())),
    }
}
