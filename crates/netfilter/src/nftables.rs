//! The kernel's nftables: transactions, and what is in a table.

use crate::{
    Batch, Family,
    netlink::{self, ACK, DUMP, REQUEST, Writer},
    set::{Element, ElementData, SetSpec},
    socket::{NetlinkError, Protocol, Socket, error_number},
};
use std::time::Duration;

const SUBSYSTEM: u16 = 10 << 8;

/// A handle on the nftables of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Nftables {
    socket: Socket,
}

/// What is in a table, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableContents {
    /// Chains with the number of rules in each.
    pub chains: std::collections::BTreeMap<String, usize>,
    /// Sets and maps.
    pub sets: Vec<String>,
}

impl Nftables {
    /// In the namespace of this thread.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open() -> Result<Nftables, NetlinkError> {
        let socket = Socket::open(Protocol::Netfilter)?;
        // A batch that fails has an answer for each of its messages.
        socket.reserve_answers(4 << 20)?;
        Ok(Nftables { socket })
    }

    /// Puts a transaction in force.
    ///
    /// # Errors
    /// [`NetlinkError::Refused`] with the first message that failed; nothing has changed then.
    pub fn apply(&mut self, batch: &Batch) -> Result<(), NetlinkError> {
        if batch.is_empty() {
            return Ok(());
        }
        self.socket.send(&batch.encode())?;
        // The kernel carries a batch out before the call returns; what failed is in the queue by then.
        let mut failure = None;
        while let Some(datagram) = self.socket.receive(false)? {
            for message in netlink::messages(datagram).filter(|m| m.kind == netlink::TYPE_ERROR) {
                let errno = error_number(&message)?;
                if errno != 0 && failure.is_none() {
                    let (index, what) = batch.description(message.sequence).unwrap_or((0, "transaction"));
                    failure = Some(NetlinkError::Refused { what: format!("nftables: {what}"), errno, index });
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }

    fn dump(
        &mut self,
        what: &'static str,
        kind: u16,
        family: u8,
        attributes: &[(u16, &str)],
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), NetlinkError> {
        let sequence = self.socket.sequence(1);
        let mut out = Writer::new();
        out.begin(SUBSYSTEM | kind, REQUEST | DUMP | ACK, sequence, &[family, 0, 0, 0]);
        attributes.iter().for_each(|(kind, text)| out.text(*kind, text));
        out.end();
        self.socket.dump(what, out.as_bytes(), sequence, |message| {
            each(message.payload.get(4..).unwrap_or_default());
        })
    }

    /// Names of the tables of a family.
    ///
    /// # Errors
    /// The socket's.
    pub fn tables(&mut self, family: Family) -> Result<Vec<String>, NetlinkError> {
        let mut tables = vec![];
        self.dump("list tables", 1, family.number(), &[], |attributes| {
            tables.extend(netlink::attribute(attributes, 1).map(netlink::text));
        })?;
        Ok(tables)
    }

    /// Chains, their numbers of rules, and sets of a table; empty for one that does not exist.
    ///
    /// # Errors
    /// The socket's.
    pub fn contents(&mut self, family: Family, table: &str) -> Result<TableContents, NetlinkError> {
        let mut contents = TableContents::default();
        let of_table = |attributes: &[u8]| {
            netlink::attribute(attributes, 1).is_some_and(|name| netlink::text(name) == table)
        };
        self.dump("list chains", 4, family.number(), &[], |attributes| {
            if of_table(attributes) {
                let name = netlink::attribute(attributes, 3).map(netlink::text).unwrap_or_default();
                contents.chains.insert(name, 0);
            }
        })?;
        self.dump("list rules", 7, family.number(), &[(1, table)], |attributes| {
            let chain = netlink::attribute(attributes, 2).map(netlink::text).unwrap_or_default();
            if let Some(rules) = contents.chains.get_mut(&chain) {
                *rules += 1;
            }
        })?;
        self.dump("list sets", 10, family.number(), &[], |attributes| {
            if of_table(attributes) {
                contents.sets.extend(netlink::attribute(attributes, 2).map(netlink::text));
            }
        })?;
        Ok(contents)
    }

    /// The elements of a set or a map of values; empty for one that does not exist. Verdicts are not read.
    ///
    /// # Errors
    /// The socket's.
    pub fn elements(
        &mut self,
        family: Family,
        table: &str,
        spec: &SetSpec,
    ) -> Result<Vec<Element>, NetlinkError> {
        let mut elements = vec![];
        let read =
            self.dump("list elements", 13, family.number(), &[(1, table), (2, &spec.name)], |attributes| {
                let list = netlink::attribute(attributes, 3).unwrap_or_default();
                elements.extend(netlink::attributes(list).filter_map(|(_, element)| parse(element)));
            });
        match read {
            Err(error) if error.errno() == Some(2) => Ok(vec![]),
            Err(error) => Err(error),
            Ok(()) => Ok(elements),
        }
    }
}

fn parse(element: &[u8]) -> Option<Element> {
    let value = |kind| netlink::attribute(element, kind).and_then(|data| netlink::attribute(data, 1));
    let millis = |kind| netlink::attribute(element, kind).and_then(netlink::big64).map(Duration::from_millis);
    Some(Element {
        key: value(1)?.to_vec(),
        last: value(10).map(<[u8]>::to_vec),
        data: value(2).map_or(ElementData::None, |v| ElementData::Value(v.to_vec())),
        timeout: millis(4).zip(millis(5)),
    })
}
