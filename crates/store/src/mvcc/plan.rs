//! Works out what the transactions of one group commit do, each seeing those before it, while readers still see none.
//!
//! Invariant: a transaction that is refused leaves no trace; every one that changes something takes exactly one
//! revision, in order.

use super::index::{Index, Version};
use super::lease::Leases;
use super::log::{Entry, Loc};
use crate::{Event, EventKind, KeyValue, LeaseId, Op, Revision, StoreError, Txn, TxnOutcome};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Finds the value of a committed version.
pub(crate) trait Values {
    fn load(&mut self, key: &Arc<str>, version: &Version) -> Result<KeyValue, StoreError>;
}

/// What planning reads and, for leases, changes.
pub(crate) struct Context<'a> {
    pub index: &'a Index,
    pub leases: &'a mut Leases,
    pub values: &'a mut dyn Values,
    pub max_bytes: usize,
}

/// The changes of one group commit so far.
#[derive(Debug)]
pub(crate) struct Plan {
    pub entries: Vec<Entry>,
    /// The latest entry per key.
    latest: HashMap<Arc<str>, usize>,
    pub revision: Revision,
}

/// The version of a key that a transaction sees.
enum Visible {
    Pending(usize),
    Committed(Version),
}

impl Plan {
    pub fn new(revision: Revision) -> Plan {
        Plan { entries: Vec::new(), latest: HashMap::new(), revision }
    }

    /// Checks and adds one transaction.
    pub fn txn(&mut self, cx: &mut Context<'_>, txn: Txn) -> Result<TxnOutcome, StoreError> {
        check(cx, &txn)?;
        if !txn.compare.iter().all(|c| self.mod_revision(cx.index, &c.key) == c.mod_revision) {
            let current = txn.compare.iter().map(|c| self.key_value(cx, &c.key)).collect::<Result<_, _>>()?;
            return Ok(TxnOutcome::Conflict { revision: self.revision, current });
        }
        let mut previous = Vec::with_capacity(txn.ops.len());
        for op in &txn.ops {
            previous.push(
                self.visible(cx.index, op.key())
                    .map(|(key, visible)| self.load(cx, key, visible))
                    .transpose()?,
            );
        }
        // From here on nothing fails.
        let revision = self.revision + 1;
        let mut sub = 0;
        for (op, previous) in txn.ops.into_iter().zip(&previous) {
            match op {
                Op::Put { key, value, lease } => {
                    self.put(cx, (revision, sub), &key, value, lease, previous.clone())
                }
                Op::Delete { .. } => match previous {
                    Some(previous) => self.delete(cx, (revision, sub), previous.clone()),
                    None => continue,
                },
            }
            sub += 1;
        }
        if sub > 0 {
            self.revision = revision;
        }
        Ok(TxnOutcome::Committed { revision: self.revision, previous })
    }

    /// Deletes the keys of an ended lease at one revision.
    pub fn delete_all(&mut self, cx: &mut Context<'_>, keys: &[Arc<str>]) -> Result<(), StoreError> {
        let mut sub = 0;
        let revision = self.revision + 1;
        for key in keys {
            let Some((key, visible)) = self.visible(cx.index, key) else { continue };
            let previous = self.load(cx, key, visible)?;
            self.delete(cx, (revision, sub), previous);
            sub += 1;
        }
        if sub > 0 {
            self.revision = revision;
        }
        Ok(())
    }

    fn put(
        &mut self,
        cx: &mut Context<'_>,
        (revision, sub): (Revision, u32),
        key: &str,
        value: Bytes,
        lease: Option<LeaseId>,
        previous: Option<KeyValue>,
    ) {
        let key = previous.as_ref().map_or_else(|| Arc::from(key), |p| p.key.clone());
        cx.leases.reattach(&key, previous.as_ref().and_then(|p| p.lease), lease);
        let (create_revision, version) =
            previous.as_ref().map_or((revision, 1), |p| (p.create_revision, p.version + 1));
        let kv = KeyValue { key, value, create_revision, mod_revision: revision, version, lease };
        self.push(cx.index, sub, Event { kind: EventKind::Put, kv, previous });
    }

    fn delete(&mut self, cx: &mut Context<'_>, (revision, sub): (Revision, u32), previous: KeyValue) {
        cx.leases.reattach(&previous.key, previous.lease, None);
        let kv = KeyValue {
            key: previous.key.clone(),
            value: Bytes::new(),
            create_revision: 0,
            mod_revision: revision,
            version: 0,
            lease: None,
        };
        self.push(cx.index, sub, Event { kind: EventKind::Delete, kv, previous: Some(previous) });
    }

    fn push(&mut self, index: &Index, sub: u32, event: Event) {
        let previous = event.previous.is_some().then(|| self.loc(index, &event.kv.key)).flatten();
        self.latest.insert(event.kv.key.clone(), self.entries.len());
        self.entries.push(Entry { sub, event, previous });
    }

    fn loc(&self, index: &Index, key: &str) -> Option<Loc> {
        match self.visible(index, key)?.1 {
            Visible::Pending(entry) => Some(self.entries[entry].loc()),
            Visible::Committed(version) => Some(version.loc()),
        }
    }

    fn visible(&self, index: &Index, key: &str) -> Option<(Arc<str>, Visible)> {
        if let Some(&entry) = self.latest.get(key) {
            let event = &self.entries[entry].event;
            return (event.kind == EventKind::Put).then(|| (event.kv.key.clone(), Visible::Pending(entry)));
        }
        index.get(key).map(|(key, version)| (key.clone(), Visible::Committed(*version)))
    }

    fn mod_revision(&self, index: &Index, key: &str) -> Revision {
        match self.visible(index, key) {
            None => 0,
            Some((_, Visible::Pending(entry))) => self.entries[entry].event.kv.mod_revision,
            Some((_, Visible::Committed(version))) => version.revision,
        }
    }

    fn key_value(&self, cx: &mut Context<'_>, key: &str) -> Result<Option<KeyValue>, StoreError> {
        self.visible(cx.index, key).map(|(key, visible)| self.load(cx, key, visible)).transpose()
    }

    fn load(&self, cx: &mut Context<'_>, key: Arc<str>, visible: Visible) -> Result<KeyValue, StoreError> {
        match visible {
            Visible::Pending(entry) => Ok(self.entries[entry].event.kv.clone()),
            Visible::Committed(version) => cx.values.load(&key, &version),
        }
    }
}

/// Refuses what can be refused without looking at the keys.
fn check(cx: &Context<'_>, txn: &Txn) -> Result<(), StoreError> {
    let size = txn.size();
    if size > cx.max_bytes {
        return Err(StoreError::TooLarge { size, limit: cx.max_bytes });
    }
    if txn.ops.iter().any(|op| op.key().is_empty()) || txn.compare.iter().any(|c| c.key.is_empty()) {
        return Err(StoreError::Invalid("key is not provided".into()));
    }
    if txn.ops.len() > 1 {
        let mut keys = HashSet::with_capacity(txn.ops.len());
        if let Some(op) = txn.ops.iter().find(|op| !keys.insert(op.key())) {
            return Err(StoreError::Invalid(format!("duplicate key {:?} given in transaction", op.key())));
        }
    }
    let missing = |op: &Op| matches!(op, Op::Put { lease: Some(id), .. } if !cx.leases.contains(*id));
    if txn.ops.iter().any(missing) {
        return Err(StoreError::LeaseNotFound);
    }
    Ok(())
}
