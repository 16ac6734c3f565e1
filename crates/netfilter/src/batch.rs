//! A transaction of nftables, as bytes.
//!
//! Invariants: a batch concerns one table; messages keep the order of the calls; lists of elements are split below the 64 KiB of an
//! attribute; every message has a description for errors.

use crate::{
    Family,
    expr::Expr,
    netlink::{APPEND, CREATE, REQUEST, Writer},
    set::{Element, SetSpec},
};

/// `NFNL_SUBSYS_NFTABLES`
const SUBSYSTEM: u16 = 10 << 8;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;

/// Bytes of elements in a message. The longest element of ours has a few hundred.
const ELEMENTS: usize = 48 * 1024;

/// Type of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainType {
    /// Accepts and drops.
    Filter,
    /// Translates addresses of connections' first packets.
    Nat,
}

/// Where a base chain is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Before routing.
    Prerouting,
    /// To this machine.
    Input,
    /// Through this machine.
    Forward,
    /// From this machine.
    Output,
    /// After routing.
    Postrouting,
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Name, unique in the table.
    pub name: String,
    /// For base chains: type, hook and priority.
    pub base: Option<(ChainType, Hook, i32)>,
}

impl Chain {
    /// A chain that others jump to.
    #[must_use]
    pub fn regular(name: &str) -> Chain {
        Chain { name: name.into(), base: None }
    }

    /// A base chain.
    #[must_use]
    pub fn base(name: &str, kind: ChainType, hook: Hook, priority: i32) -> Chain {
        Chain { name: name.into(), base: Some((kind, hook, priority)) }
    }
}

/// Changes of one table that take effect at once.
#[derive(Debug, Clone)]
pub struct Batch {
    family: Family,
    table: String,
    out: Writer,
    first: u32,
    descriptions: Vec<String>,
}

impl Batch {
    /// No changes. Sequence numbers begin with 1.
    #[must_use]
    pub fn new(family: Family, table: &str) -> Batch {
        let mut out = Writer::new();
        out.begin(BATCH_BEGIN, REQUEST, 0, &[0, 0, 0, 10]);
        out.end();
        Batch { family, table: table.into(), out, first: 1, descriptions: vec![] }
    }

    fn message(&mut self, kind: u16, flags: u16, what: String, body: impl FnOnce(&mut Writer)) {
        let sequence = self.first + self.descriptions.len() as u32;
        self.out.begin(SUBSYSTEM | kind, REQUEST | flags, sequence, &[self.family.number(), 0, 0, 0]);
        self.out.text(1, &self.table);
        body(&mut self.out);
        self.out.end();
        self.descriptions.push(what);
    }

    /// Makes the table, if it is absent.
    pub fn add_table(&mut self) {
        self.message(0, CREATE, format!("add table {}", self.table), |_| ());
    }

    /// Deletes the table, which must exist, and all in it.
    pub fn delete_table(&mut self) {
        self.message(2, 0, format!("delete table {}", self.table), |_| ());
    }

    /// Makes a chain, if it is absent.
    pub fn add_chain(&mut self, chain: &Chain) {
        self.message(3, CREATE, format!("add chain {}", chain.name), |out| {
            out.text(3, &chain.name);
            if let Some((kind, hook, priority)) = chain.base {
                let nest = out.nest(4);
                out.big32(
                    1,
                    match hook {
                        Hook::Prerouting => 0,
                        Hook::Input => 1,
                        Hook::Forward => 2,
                        Hook::Output => 3,
                        Hook::Postrouting => 4,
                    },
                );
                out.big32(2, priority as u32);
                out.close(nest);
                // The policy is to accept.
                out.big32(5, 1);
                out.text(
                    7,
                    match kind {
                        ChainType::Filter => "filter",
                        ChainType::Nat => "nat",
                    },
                );
            }
        });
    }

    /// Appends a rule.
    pub fn add_rule(&mut self, chain: &str, rule: &[Expr]) {
        self.message(6, CREATE | APPEND, format!("add rule to {chain}"), |out| {
            out.text(2, chain);
            let nest = out.nest(4);
            rule.iter().for_each(|expr| expr.encode(out));
            out.close(nest);
        });
    }

    /// Makes a set or map, if it is absent.
    pub fn add_set(&mut self, spec: &SetSpec) {
        let id = self.descriptions.len() as u32 + 1;
        self.message(9, CREATE, format!("add set {}", spec.name), |out| spec.encode(id, out));
    }

    /// Adds elements. One that exists with other data fails the batch.
    pub fn add_elements<'a>(&mut self, spec: &SetSpec, elements: impl IntoIterator<Item = &'a Element>) {
        self.elements(12, CREATE, "add elements to", spec, elements);
    }

    /// Deletes elements. One that does not exist fails the batch.
    pub fn delete_elements<'a>(&mut self, spec: &SetSpec, elements: impl IntoIterator<Item = &'a Element>) {
        self.elements(14, 0, "delete elements of", spec, elements);
    }

    /// Deletes all elements of a set.
    pub fn flush_set(&mut self, name: &str) {
        self.message(14, 0, format!("flush set {name}"), |out| out.text(2, name));
    }

    fn elements<'a>(
        &mut self,
        kind: u16,
        flags: u16,
        what: &str,
        spec: &SetSpec,
        elements: impl IntoIterator<Item = &'a Element>,
    ) {
        let mut elements = elements.into_iter().peekable();
        while elements.peek().is_some() {
            self.message(kind, flags, format!("{what} {}", spec.name), |out| {
                out.text(2, &spec.name);
                let nest = out.nest(3);
                let end = out.len() + ELEMENTS;
                while out.len() < end
                    && let Some(element) = elements.next()
                {
                    element.encode(spec, out);
                }
                out.close(nest);
            });
        }
    }

    /// Whether there are no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.descriptions.is_empty()
    }

    /// What a message does, by its sequence number.
    pub(crate) fn description(&self, sequence: u32) -> Option<(usize, &str)> {
        let index = sequence.checked_sub(self.first)? as usize;
        Some((index, self.descriptions.get(index)?))
    }

    /// The bytes of the transaction.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.out.clone();
        out.begin(BATCH_END, REQUEST, self.first + self.descriptions.len() as u32, &[0, 0, 0, 10]);
        out.end();
        out.as_bytes().to_vec()
    }
}
