//! The simplest thing that behaves as a store should: every revision's whole content, side by side.

use kaji_store::{
    Event, EventKind, KeyValue, LeaseId, Op, Range, RangeResult, Revision, StoreError, Txn, TxnOutcome,
};
use std::collections::BTreeMap;
use std::sync::Arc;

type Content = BTreeMap<String, KeyValue>;

/// See the module.
pub struct Model {
    pub compacted: Revision,
    pub now: u64,
    /// By revision, from 1.
    contents: BTreeMap<Revision, Content>,
    pub events: Vec<Event>,
    pub leases: BTreeMap<LeaseId, (u64, u64)>,
    last_lease: i64,
}

impl Model {
    pub fn new(now: u64) -> Model {
        let contents = BTreeMap::from([(1, Content::new())]);
        Model { compacted: 0, now, contents, events: Vec::new(), leases: BTreeMap::new(), last_lease: 0 }
    }

    pub fn revision(&self) -> Revision {
        *self.contents.last_key_value().unwrap().0
    }

    fn content(&self) -> &Content {
        self.contents.last_key_value().unwrap().1
    }

    pub fn txn(&mut self, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        for (i, op) in txn.ops.iter().enumerate() {
            if txn.ops[..i].iter().any(|other| other.key() == op.key()) {
                let key = op.key();
                return Err(StoreError::Invalid(format!("duplicate key {key:?} given in transaction")));
            }
        }
        for op in &txn.ops {
            if let Op::Put { lease: Some(id), .. } = op
                && !self.leases.contains_key(id)
            {
                return Err(StoreError::LeaseNotFound);
            }
        }
        let current: Vec<_> = txn.compare.iter().map(|c| self.content().get(&c.key).cloned()).collect();
        let holds = txn
            .compare
            .iter()
            .zip(&current)
            .all(|(c, kv)| kv.as_ref().map_or(0, |kv| kv.mod_revision) == c.mod_revision);
        if !holds {
            return Ok(TxnOutcome::Conflict { revision: self.revision(), current });
        }
        let previous: Vec<_> = txn.ops.iter().map(|op| self.content().get(op.key()).cloned()).collect();
        let revision = self.revision() + 1;
        let mut content = self.content().clone();
        let mut events = Vec::new();
        for (op, previous) in txn.ops.iter().zip(&previous) {
            let key: Arc<str> = op.key().into();
            match op {
                Op::Put { value, lease, .. } => {
                    let (create_revision, version) =
                        previous.as_ref().map_or((revision, 1), |p| (p.create_revision, p.version + 1));
                    let (value, mod_revision, lease) = (value.clone(), revision, *lease);
                    let kv = KeyValue { key, value, create_revision, mod_revision, version, lease };
                    content.insert(op.key().to_owned(), kv.clone());
                    events.push(Event { kind: EventKind::Put, kv, previous: previous.clone() });
                }
                Op::Delete { .. } if previous.is_some() => {
                    content.remove(op.key());
                    let (value, mod_revision) = (Default::default(), revision);
                    let kv =
                        KeyValue { key, value, create_revision: 0, mod_revision, version: 0, lease: None };
                    events.push(Event { kind: EventKind::Delete, kv, previous: previous.clone() });
                }
                Op::Delete { .. } => {}
            }
        }
        if !events.is_empty() {
            self.contents.insert(revision, content);
            self.events.extend(events);
        }
        Ok(TxnOutcome::Committed { revision: self.revision(), previous })
    }

    pub fn range(&self, range: &Range) -> Result<RangeResult, StoreError> {
        let current = self.revision();
        if range.revision > current {
            return Err(StoreError::FutureRevision { current });
        }
        let revision = if range.revision == 0 { current } else { range.revision };
        if revision < self.compacted {
            return Err(StoreError::Compacted { compacted: self.compacted });
        }
        let content = self.contents.range(..=revision).next_back().unwrap().1;
        let inside = |key: &str| {
            if range.end.is_empty() { key == range.start } else { key >= &*range.start && key < &*range.end }
        };
        let all: Vec<_> = content.values().filter(|kv| inside(&kv.key)).cloned().collect();
        let limit = if range.limit == 0 { usize::MAX } else { range.limit };
        let (count, more) = (all.len(), all.len() > limit);
        Ok(RangeResult { revision, kvs: all.into_iter().take(limit).collect(), more, count })
    }

    pub fn compact(&mut self, to: Revision) {
        self.compacted = self.compacted.max(to);
    }

    pub fn grant(&mut self, ttl: u64) -> LeaseId {
        self.last_lease += 1;
        self.leases.insert(LeaseId(self.last_lease), (ttl, self.now + ttl));
        LeaseId(self.last_lease)
    }

    pub fn keep_alive(&mut self, id: LeaseId) -> bool {
        let now = self.now;
        self.leases.get_mut(&id).map(|lease| lease.1 = now + lease.0).is_some()
    }

    pub fn revoke(&mut self, id: LeaseId) -> bool {
        if self.leases.remove(&id).is_none() {
            return false;
        }
        let keys: Vec<_> = self.content().values().filter(|kv| kv.lease == Some(id)).collect();
        let ops = keys.iter().map(|kv| Op::Delete { key: kv.key.to_string() }).collect();
        self.txn(&Txn { compare: Vec::new(), ops }).unwrap();
        true
    }

    pub fn expire(&mut self) {
        while let Some((_, id)) =
            self.leases.iter().map(|(id, l)| (l.1, *id)).filter(|l| l.0 <= self.now).min()
        {
            self.revoke(id);
        }
    }
}
