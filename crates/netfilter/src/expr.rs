//! The expressions of rules: typed, encoded as nf_tables expects them.
//!
//! Registers are slots of four bytes, 0 to 15; a value of more than four bytes fills several in a row, and a concatenation is
//! the values of its fields in consecutive slots, each padded to four bytes.

use crate::{Family, netlink::Writer};
use std::time::Duration;

/// A register: the first slot of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reg(pub u8);

impl Reg {
    fn number(self) -> u32 {
        // NFT_REG32_00 is 8.
        8 + u32::from(self.0)
    }

    /// The slot after a value of `bytes` bytes.
    #[must_use]
    pub fn after(self, bytes: u32) -> Reg {
        Reg(self.0 + bytes.div_ceil(4) as u8)
    }
}

/// What a rule or a verdict map decides.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Ends this chain's hook; later chains of the hook still see the packet.
    Accept,
    /// Ends the packet.
    Drop,
    /// Back to the calling chain.
    Return,
    /// To a chain and back.
    Jump(String),
    /// To a chain, and then to the caller of this one.
    Goto(String),
}

impl Verdict {
    /// The chain that it leads to.
    #[must_use]
    pub fn chain(&self) -> Option<&str> {
        match self {
            Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
            _ => None,
        }
    }

    /// `NFTA_DATA_VERDICT`
    pub(crate) fn encode(&self, out: &mut Writer) {
        let code: i32 = match self {
            Verdict::Drop => 0,
            Verdict::Accept => 1,
            Verdict::Jump(_) => -3,
            Verdict::Goto(_) => -4,
            Verdict::Return => -5,
        };
        let nest = out.nest(2);
        out.big32(1, code as u32);
        if let Some(chain) = self.chain() {
            out.text(2, chain);
        }
        out.close(nest);
    }
}

/// A comparison. Numbers compare as the bytes of the network's order do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<=`
    AtMost,
    /// `>=`
    AtLeast,
}

/// A field of a packet that rules match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// Source address.
    Source(Family),
    /// Destination address.
    Destination(Family),
    /// Source port of TCP, UDP and SCTP.
    SourcePort,
    /// Destination port.
    DestinationPort,
    /// Type of an ICMP message, one byte.
    IcmpType,
    /// Transport protocol, one byte.
    Protocol,
    /// The packet's mark, in the order of the machine.
    Mark,
    /// Name of the interface that the packet came by, 16 bytes.
    InputInterface,
    /// Name of the interface that it leaves by.
    OutputInterface,
    /// Bits of the connection's state, in the order of the machine; see [`STATE_NEW`].
    ConnectionState,
    /// Bits of the connection's status; see [`STATUS_DNAT`].
    ConnectionStatus,
    /// Kind of the destination address, [`LOCAL`] for those of this machine.
    DestinationKind,
    /// Kind of the source address.
    SourceKind,
}

/// Bit of [`Field::ConnectionState`].
pub const STATE_ESTABLISHED: u32 = 2;
/// Bit of [`Field::ConnectionState`].
pub const STATE_RELATED: u32 = 4;
/// Bit of [`Field::ConnectionState`].
pub const STATE_NEW: u32 = 8;
/// Bit of [`Field::ConnectionStatus`]: the destination was translated.
pub const STATUS_DNAT: u32 = 1 << 5;
/// `RTN_LOCAL`, of [`Field::DestinationKind`].
pub const LOCAL: u32 = 2;

/// An expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expr {
    /// Loads a field.
    Load(Field, Reg),
    /// Loads a constant.
    Constant(Vec<u8>, Reg),
    /// Goes on if the comparison holds.
    Compare(Reg, Compare, Vec<u8>),
    /// `to = (from & mask) ^ xor`; both operands have the same length.
    Bits {
        /// Register.
        from: Reg,
        /// Register.
        to: Reg,
        /// Bits that are kept.
        mask: Vec<u8>,
        /// Bits that are turned over.
        xor: Vec<u8>,
    },
    /// Sets the packet's mark.
    SetMark(Reg),
    /// Goes on if the set has the key.
    Contains(Reg, String),
    /// Goes on if the set does not have the key.
    Lacks(Reg, String),
    /// Loads the value that a map has for a key; ends the rule if it has none.
    Map {
        /// Where the key begins.
        key: Reg,
        /// The map.
        map: String,
        /// Where the value begins.
        to: Reg,
    },
    /// Decides by a verdict map; ends the rule if it has no such key.
    VerdictMap(Reg, String),
    /// Loads a random number below a limit, in the order of the machine.
    Random(Reg, u32),
    /// Adds an element to a dynamic map, or renews its timeout; the data of an existing element stays.
    Remember {
        /// The map.
        map: String,
        /// Where the key begins.
        key: Reg,
        /// Where the data begins.
        data: Reg,
        /// From now.
        timeout: Duration,
    },
    /// Translates the destination.
    Dnat {
        /// Of the address.
        family: Family,
        /// Where the address begins.
        address: Reg,
        /// The port.
        port: Reg,
    },
    /// Translates the source to the address of the interface that the packet leaves by, with random ports.
    Masquerade,
    /// Answers with ICMP's "port unreachable".
    Reject(Family),
    /// Counts packets and bytes.
    Counter,
    /// Decides.
    Decide(Verdict),
}

impl Expr {
    /// Appends `NFTA_LIST_ELEM` with the expression.
    pub(crate) fn encode(&self, out: &mut Writer) {
        match self {
            Expr::Load(field, to) => load(*field, *to, out),
            Expr::Constant(value, to) => wrap(out, "immediate", |out| {
                out.big32(1, to.number());
                data(out, 2, value);
            }),
            Expr::Compare(from, op, value) => wrap(out, "cmp", |out| {
                out.big32(1, from.number());
                out.big32(
                    2,
                    match op {
                        Compare::Equal => 0,
                        Compare::NotEqual => 1,
                        Compare::AtMost => 3,
                        Compare::AtLeast => 5,
                    },
                );
                data(out, 3, value);
            }),
            Expr::Bits { from, to, mask, xor } => wrap(out, "bitwise", |out| {
                out.big32(1, from.number());
                out.big32(2, to.number());
                out.big32(3, mask.len() as u32);
                data(out, 4, mask);
                data(out, 5, xor);
            }),
            Expr::SetMark(from) => wrap(out, "meta", |out| {
                out.big32(2, 3);
                out.big32(3, from.number());
            }),
            Expr::Contains(key, set) => lookup(out, set, *key, None, false),
            Expr::Lacks(key, set) => lookup(out, set, *key, None, true),
            Expr::Map { key, map, to } => lookup(out, map, *key, Some(to.number()), false),
            Expr::VerdictMap(key, map) => lookup(out, map, *key, Some(0), false),
            Expr::Random(to, limit) => wrap(out, "numgen", |out| {
                out.big32(1, to.number());
                out.big32(2, *limit);
                out.big32(3, 1);
                out.big32(4, 0);
            }),
            Expr::Remember { map, key, data, timeout } => remember(out, map, *key, *data, *timeout),
            Expr::Dnat { family, address, port } => dnat(out, *family, *address, *port),
            // NF_NAT_RANGE_PROTO_RANDOM_FULLY
            Expr::Masquerade => wrap(out, "masq", |out| out.big32(1, 1 << 4)),
            Expr::Reject(family) => wrap(out, "reject", |out| {
                out.big32(1, 0);
                out.byte(
                    2,
                    match family {
                        Family::V4 => 3,
                        Family::V6 => 4,
                    },
                );
            }),
            Expr::Counter => wrap(out, "counter", |_| ()),
            Expr::Decide(verdict) => wrap(out, "immediate", |out| {
                out.big32(1, 0);
                let nest = out.nest(2);
                verdict.encode(out);
                out.close(nest);
            }),
        }
    }
}

fn remember(out: &mut Writer, map: &str, key: Reg, data: Reg, timeout: Duration) {
    wrap(out, "dynset", |out| {
        out.text(1, map);
        // NFT_DYNSET_OP_UPDATE
        out.big32(3, 1);
        out.big32(4, key.number());
        out.big32(5, data.number());
        out.big64(6, timeout.as_millis() as u64);
    });
}

fn dnat(out: &mut Writer, family: Family, address: Reg, port: Reg) {
    wrap(out, "nat", |out| {
        out.big32(1, 1);
        out.big32(2, u32::from(family.number()));
        out.big32(3, address.number());
        out.big32(5, port.number());
    });
}

fn wrap(out: &mut Writer, name: &str, body: impl FnOnce(&mut Writer)) {
    let element = out.nest(1);
    out.text(1, name);
    let nest = out.nest(2);
    body(out);
    out.close(nest);
    out.close(element);
}

fn data(out: &mut Writer, kind: u16, value: &[u8]) {
    let nest = out.nest(kind);
    out.bytes(1, value);
    out.close(nest);
}

fn lookup(out: &mut Writer, set: &str, key: Reg, to: Option<u32>, inverted: bool) {
    wrap(out, "lookup", |out| {
        out.text(1, set);
        out.big32(2, key.number());
        if let Some(to) = to {
            out.big32(3, to);
        }
        if inverted {
            out.big32(5, 1);
        }
    });
}

fn load(field: Field, to: Reg, out: &mut Writer) {
    // Bases: 1 is the network header, 2 the transport header.
    let (base, offset, length) = match field {
        Field::Source(Family::V4) => (1, 12, 4),
        Field::Destination(Family::V4) => (1, 16, 4),
        Field::Source(Family::V6) => (1, 8, 16),
        Field::Destination(Family::V6) => (1, 24, 16),
        Field::SourcePort => (2, 0, 2),
        Field::DestinationPort => (2, 2, 2),
        Field::IcmpType => (2, 0, 1),
        Field::Mark => return meta(out, 3, to),
        Field::InputInterface => return meta(out, 6, to),
        Field::OutputInterface => return meta(out, 7, to),
        Field::Protocol => return meta(out, 16, to),
        Field::ConnectionState => return connection(out, 0, to),
        Field::ConnectionStatus => return connection(out, 2, to),
        Field::SourceKind => return fib(out, 1, to),
        Field::DestinationKind => return fib(out, 2, to),
    };
    wrap(out, "payload", |out| {
        out.big32(1, to.number());
        out.big32(2, base);
        out.big32(3, offset);
        out.big32(4, length);
    });
}

fn meta(out: &mut Writer, key: u32, to: Reg) {
    wrap(out, "meta", |out| {
        out.big32(2, key);
        out.big32(1, to.number());
    });
}

fn connection(out: &mut Writer, key: u32, to: Reg) {
    wrap(out, "ct", |out| {
        out.big32(2, key);
        out.big32(1, to.number());
    });
}

fn fib(out: &mut Writer, flags: u32, to: Reg) {
    wrap(out, "fib", |out| {
        out.big32(1, to.number());
        // NFT_FIB_RESULT_ADDRTYPE
        out.big32(2, 3);
        out.big32(3, flags);
    });
}

/// Loads fields into consecutive slots from the first on: a concatenation.
#[must_use]
pub fn concatenation(fields: &[Field]) -> Vec<Expr> {
    let mut at = Reg(0);
    let mut loads = vec![];
    for field in fields {
        loads.push(Expr::Load(*field, at));
        at = at.after(field.len());
    }
    loads
}

/// Goes on if some of the bits of a field of 32 bits are set.
#[must_use]
pub fn any_bit(field: Field, bits: u32) -> Vec<Expr> {
    vec![
        Expr::Load(field, Reg(0)),
        Expr::Bits { from: Reg(0), to: Reg(0), mask: bits.to_ne_bytes().into(), xor: vec![0; 4] },
        Expr::Compare(Reg(0), Compare::NotEqual, vec![0; 4]),
    ]
}

/// Sets a bit of the packet's mark.
#[must_use]
pub fn set_mark_bit(bit: u32) -> Vec<Expr> {
    vec![
        Expr::Load(Field::Mark, Reg(0)),
        Expr::Bits {
            from: Reg(0),
            to: Reg(0),
            mask: (!bit).to_ne_bytes().into(),
            xor: bit.to_ne_bytes().into(),
        },
        Expr::SetMark(Reg(0)),
    ]
}

impl Field {
    /// In bytes.
    #[must_use]
    pub fn len(self) -> u32 {
        match self {
            Field::Source(family) | Field::Destination(family) => family.address_len(),
            Field::SourcePort | Field::DestinationPort => 2,
            Field::Protocol | Field::IcmpType => 1,
            Field::InputInterface | Field::OutputInterface => 16,
            _ => 4,
        }
    }

    /// Never.
    #[must_use]
    pub fn is_empty(self) -> bool {
        false
    }
}

/// The name of an interface as rules compare it.
#[must_use]
pub fn interface_name(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.truncate(15);
    bytes.resize(16, 0);
    bytes
}
