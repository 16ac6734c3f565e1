//! The record of node ports that the servers of an etcd share: upstream's `RangeAllocation` at `/registry/ranges/servicenodeports`.
//!
//! Invariants: a port is taken by a write of the whole record that fails if another server wrote it meanwhile, so two servers
//! never take the same one; a bit that no service has is removed only when it was seen so in [`LEAK_ROUNDS`] rounds in a row,
//! since a service is written after its ports are taken; the record of another range is not changed.
//!
//! Source: upstream's `registry/core/service/allocator` and `portallocator/controller/repair.go`.

use crate::rounds::Rounds;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use kaji_builtins::SharedPorts;
use kaji_engine::Engine;
use kaji_meta::{GroupResource, Status};
use kaji_resource::{BoxFuture, ObjectReader};
use kaji_schema::protobuf;
use kaji_storage::internal_keys::NODE_PORTS;
use kaji_store::{Range, Revision, Store, StoreError, Txn, TxnOutcome};
use prost::Message;
use serde_json::Value;
use std::{
    collections::HashMap,
    ops::RangeInclusive,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

/// How often a write is tried against other servers' writes.
const ATTEMPTS: usize = 32;
/// How often the record is compared with the services. As upstream.
const REPAIR: Duration = Duration::from_secs(180);
/// In how many rounds in a row a port must be without a service before it is given back. As upstream.
const LEAK_ROUNDS: u8 = 3;

/// The fields of `RangeAllocation`.
#[derive(Clone, PartialEq, Message)]
struct RangeAllocation {
    #[prost(bytes = "vec", optional, tag = "1")]
    metadata: Option<Vec<u8>>,
    #[prost(string, tag = "2")]
    range: String,
    #[prost(bytes = "vec", tag = "3")]
    data: Vec<u8>,
}

/// Which ports are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bits {
    range: RangeInclusive<u16>,
    taken: Vec<bool>,
}

impl Bits {
    fn new(range: RangeInclusive<u16>, held: &[u16]) -> Bits {
        let mut bits = Bits { taken: vec![false; range.len()], range };
        held.iter().for_each(|port| bits.set(*port, true));
        bits
    }

    fn index(&self, port: u16) -> Option<usize> {
        port.checked_sub(*self.range.start()).map(usize::from).filter(|index| *index < self.taken.len())
    }

    fn has(&self, port: u16) -> bool {
        self.index(port).is_some_and(|index| self.taken[index])
    }

    /// A port beyond the range is in no record.
    fn set(&mut self, port: u16, taken: bool) {
        if let Some(index) = self.index(port) {
            self.taken[index] = taken;
        }
    }

    fn ports(&self) -> impl Iterator<Item = u16> {
        let taken = self.range.clone().zip(&self.taken);
        taken.filter(|(_, taken)| **taken).map(|(port, _)| port)
    }

    /// Upstream's form: a big-endian number without zeros at its beginning, bit 0 for the first port.
    fn number(&self) -> Vec<u8> {
        let mut bytes = vec![0_u8; self.taken.len().div_ceil(8)];
        let last = bytes.len();
        for (index, _) in self.taken.iter().enumerate().filter(|(_, taken)| **taken) {
            bytes[last - 1 - index / 8] |= 1 << (index % 8);
        }
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        bytes.split_off(zeros)
    }

    fn of_number(range: RangeInclusive<u16>, number: &[u8]) -> Bits {
        let mut bits = Bits::new(range, &[]);
        for (index, taken) in bits.taken.iter_mut().enumerate() {
            let byte = number.len().checked_sub(1 + index / 8).map_or(0, |at| number[at]);
            *taken = byte & (1 << (index % 8)) != 0;
        }
        bits
    }

    fn text(range: &RangeInclusive<u16>) -> String {
        format!("{}-{}", range.start(), range.end())
    }

    fn encode(&self) -> Vec<u8> {
        let record =
            RangeAllocation { metadata: Some(vec![]), range: Self::text(&self.range), data: self.number() };
        protobuf::seal("v1", "RangeAllocation", &record.encode_to_vec())
    }

    /// Reads either of upstream's media types.
    fn decode(value: &[u8], range: &RangeInclusive<u16>) -> Result<Bits, String> {
        let (text, data) = if value.starts_with(protobuf::MAGIC) {
            let envelope = protobuf::open(value).map_err(|e| e.to_string())?;
            let record = RangeAllocation::decode(envelope.raw).map_err(|e| e.to_string())?;
            (record.range, record.data)
        } else {
            let record: Value = serde_json::from_slice(value).map_err(|e| e.to_string())?;
            let data = BASE64_STANDARD.decode(record["data"].as_str().unwrap_or_default());
            (record["range"].as_str().unwrap_or_default().to_owned(), data.map_err(|e| e.to_string())?)
        };
        // Upstream makes the record with an empty range, and fills it in later.
        if !text.is_empty() && text != Self::text(range) {
            return Err(format!("it is of the range {text}, and this server has {}", Self::text(range)));
        }
        Ok(Bits::of_number(range.clone(), &data))
    }
}

/// Why the record was not changed.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The store.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// What is stored is no record.
    #[error("the record of allocated node ports cannot be used: {0}")]
    Unusable(String),
    /// Other servers' writes came first, again and again.
    #[error("too many conflicting writes of the record of allocated node ports")]
    Busy,
}

/// The record in a store.
pub struct PortRecord {
    store: Arc<dyn Store>,
}

impl PortRecord {
    /// Of a store that other servers share.
    pub fn new(store: Arc<dyn Store>) -> PortRecord {
        PortRecord { store }
    }

    async fn read(&self, range: &RangeInclusive<u16>) -> Result<(Option<Bits>, Revision), RecordError> {
        let found = self.store.range(Range::key(NODE_PORTS)).await?.kvs.into_iter().next();
        let Some(found) = found else { return Ok((None, 0)) };
        let bits = Bits::decode(&found.value, range).map_err(RecordError::Unusable)?;
        Ok((Some(bits), found.mod_revision))
    }

    /// Changes the record until no other server interferes. `change` answers with `false` if nothing is to be written.
    async fn change(
        &self,
        range: &RangeInclusive<u16>,
        held: &[u16],
        mut change: impl FnMut(&mut Bits) -> bool,
    ) -> Result<(), RecordError> {
        for _ in 0..ATTEMPTS {
            let (found, revision) = self.read(range).await?;
            let before = found.clone();
            let mut bits = found.unwrap_or_else(|| Bits::new(range.clone(), held));
            if !change(&mut bits) || before.as_ref() == Some(&bits) {
                return Ok(());
            }
            let txn = Txn::update(NODE_PORTS, revision, bits.encode());
            if let TxnOutcome::Committed { .. } = self.store.txn(txn).await? {
                return Ok(());
            }
        }
        Err(RecordError::Busy)
    }
}

/// The record as services allocate from it.
pub struct Allocation {
    record: PortRecord,
    range: RangeInclusive<u16>,
}

impl Allocation {
    /// Of the ports of a range.
    pub fn new(store: Arc<dyn Store>, range: RangeInclusive<u16>) -> Allocation {
        Allocation { record: PortRecord::new(store), range }
    }

    /// Compares the record with the services until `stop` turns true.
    pub async fn repair(self: Arc<Self>, engine: Weak<Engine>, stop: watch::Receiver<bool>) {
        let mut rounds = Rounds::new(Instant::now(), REPAIR, engine, stop);
        let mut leaks = HashMap::new();
        while let Some(engine) = rounds.next().await {
            if let Err(status) = engine.sync().await {
                tracing::warn!(error = %status.message, "node ports are not compared with the services");
                continue;
            }
            let services = engine.list(&GroupResource::new("", "services"), None);
            let held: Vec<u16> = services.iter().flat_map(|s| kaji_builtins::node_ports_of(s)).collect();
            if let Err(error) = self.repair_round(&held, &mut leaks).await {
                tracing::warn!(%error, "node ports were not compared with the services");
            }
        }
    }

    /// One round. `leaks` counts in how many rounds in a row a port had no service.
    async fn repair_round(&self, held: &[u16], leaks: &mut HashMap<u16, u8>) -> Result<(), RecordError> {
        let (found, _) = self.record.read(&self.range).await?;
        let Some(found) = found else { return self.record.change(&self.range, held, |_| true).await };
        let unheld: Vec<u16> = found.ports().filter(|port| !held.contains(port)).collect();
        leaks.retain(|port, _| unheld.contains(port));
        for port in unheld {
            *leaks.entry(port).or_default() += 1;
        }
        let over: Vec<u16> = leaks.iter().filter(|(_, n)| **n > LEAK_ROUNDS).map(|(port, _)| *port).collect();
        self.record
            .change(&self.range, held, |bits| {
                over.iter().for_each(|port| bits.set(*port, false));
                held.iter().for_each(|port| bits.set(*port, true));
                true
            })
            .await
    }
}

impl SharedPorts for Allocation {
    fn take<'a>(
        &'a self,
        range: RangeInclusive<u16>,
        ports: &'a [u16],
        held: &'a [u16],
    ) -> BoxFuture<'a, Result<Vec<u16>, Status>> {
        Box::pin(async move {
            // What this server holds includes the ports that it is about to take.
            let held: Vec<u16> = held.iter().filter(|port| !ports.contains(port)).copied().collect();
            let mut busy = vec![];
            let changed = self.record.change(&range, &held, |bits| {
                busy = ports.iter().filter(|port| bits.has(**port)).copied().collect();
                ports.iter().for_each(|port| bits.set(*port, true));
                busy.is_empty()
            });
            changed.await.map_err(|error| Status::internal(error.to_string()))?;
            Ok(busy)
        })
    }

    fn give_back<'a>(&'a self, ports: &'a [u16]) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let changed = self.record.change(&self.range, &[], |bits| {
                ports.iter().for_each(|port| bits.set(*port, false));
                true
            });
            if let Err(error) = changed.await {
                // The next rounds of repair give them back.
                tracing::warn!(%error, "node ports were not released");
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_store::memory::MemoryStore;

    const RANGE: RangeInclusive<u16> = 30000..=32767;

    #[test]
    fn the_record_has_upstreams_form() {
        let bits = Bits::new(RANGE, &[30000, 30003, 30009, 80]);
        // 1 + 8 + 512.
        assert_eq!(bits.number(), [2, 9]);
        assert_eq!(bits.ports().collect::<Vec<_>>(), [30000, 30003, 30009]);
        assert_eq!(Bits::decode(&bits.encode(), &RANGE).unwrap(), bits);
        let json = br#"{"kind":"RangeAllocation","apiVersion":"v1","metadata":{},"range":"30000-32767","data":"Agk="}"#;
        assert_eq!(Bits::decode(json, &RANGE).unwrap(), bits);
        assert!(bits.encode().starts_with(b"k8s\0\n\x15\n\x02v1\x12\x0fRangeAllocation"));
        let all = Bits::new(RANGE, &RANGE.collect::<Vec<_>>());
        assert_eq!(Bits::decode(&all.encode(), &RANGE).unwrap(), all);
        let error = Bits::decode(&bits.encode(), &(1..=9)).unwrap_err();
        assert_eq!(error, "it is of the range 30000-32767, and this server has 1-9");
    }

    #[tokio::test]
    async fn two_servers_never_take_one_port() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new().unwrap());
        let servers = [(); 2].map(|()| Arc::new(Allocation::new(store.clone(), RANGE)));
        let mut tasks = tokio::task::JoinSet::new();
        for port in 30000..30016_u16 {
            for server in servers.clone() {
                tasks
                    .spawn(async move { (port, server.take(RANGE, &[port], &[]).await.unwrap().is_empty()) });
            }
        }
        let mut won: Vec<u16> =
            tasks.join_all().await.into_iter().filter(|(_, w)| *w).map(|(p, _)| p).collect();
        won.sort_unstable();
        assert_eq!(won, (30000..30016).collect::<Vec<_>>());
        // All or none.
        assert_eq!(servers[0].take(RANGE, &[30500, 30001], &[]).await.unwrap(), [30001]);
        assert_eq!(servers[1].take(RANGE, &[30500], &[]).await.unwrap(), [] as [u16; 0]);
        servers[0].give_back(&[30001]).await;
        assert_eq!(servers[1].take(RANGE, &[30001], &[]).await.unwrap(), [] as [u16; 0]);
    }

    #[tokio::test]
    async fn leaks_are_repaired_after_some_rounds_and_missing_bits_at_once() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new().unwrap());
        let server = Allocation::new(store, RANGE);
        assert_eq!(server.take(RANGE, &[30001], &[30005]).await.unwrap(), [] as [u16; 0]);
        let mut leaks = HashMap::new();
        for round in 0..=LEAK_ROUNDS {
            let taken = server.record.read(&RANGE).await.unwrap().0.unwrap();
            assert!(taken.has(30001), "{round}");
            server.repair_round(&[30005, 30007], &mut leaks).await.unwrap();
        }
        let taken: Vec<u16> = server.record.read(&RANGE).await.unwrap().0.unwrap().ports().collect();
        assert_eq!(taken, [30005, 30007]);
    }
}
