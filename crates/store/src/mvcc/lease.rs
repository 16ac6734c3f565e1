//! Leases: which keys are attached to them, and when they expire. Pure bookkeeping; the writer turns an ended lease into a transaction.
//!
//! Invariant: a key is attached to exactly the lease that its latest version names.

use super::log::LeaseRecord;
use crate::{LeaseId, StoreError};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug)]
struct Lease {
    ttl_millis: u64,
    deadline_millis: u64,
    keys: HashSet<Arc<str>>,
}

/// All leases of a store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leases {
    leases: HashMap<LeaseId, Lease>,
    by_deadline: BTreeSet<(u64, LeaseId)>,
    last: i64,
    /// What changed since it was last written, in its latest form.
    unsaved: BTreeMap<LeaseId, Option<LeaseRecord>>,
}

impl Leases {
    /// Leases as a log keeps them; keys are attached afterwards.
    pub fn restore(last: i64, records: impl IntoIterator<Item = (LeaseId, LeaseRecord)>) -> Leases {
        let mut leases = Leases { last, ..Leases::default() };
        for (id, record) in records {
            leases.insert(id, record);
        }
        leases
    }

    fn insert(&mut self, id: LeaseId, record: LeaseRecord) {
        let LeaseRecord { ttl_millis, deadline_millis } = record;
        self.leases.insert(id, Lease { ttl_millis, deadline_millis, keys: HashSet::new() });
        self.by_deadline.insert((deadline_millis, id));
    }

    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    pub fn last(&self) -> i64 {
        self.last
    }

    pub fn contains(&self, id: LeaseId) -> bool {
        self.leases.contains_key(&id)
    }

    /// A new lease.
    pub fn grant(&mut self, ttl: Duration, now_millis: u64) -> Result<LeaseId, StoreError> {
        let ttl_millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        if ttl_millis == 0 {
            return Err(StoreError::Invalid("a lease must live for at least a millisecond".into()));
        }
        let record = LeaseRecord { ttl_millis, deadline_millis: now_millis.saturating_add(ttl_millis) };
        self.last += 1;
        let id = LeaseId(self.last);
        self.insert(id, record);
        self.unsaved.insert(id, Some(record));
        Ok(id)
    }

    /// Restarts a lease, and answers its time to live.
    pub fn keep_alive(&mut self, id: LeaseId, now_millis: u64) -> Result<Duration, StoreError> {
        let lease = self.leases.get_mut(&id).ok_or(StoreError::LeaseNotFound)?;
        self.by_deadline.remove(&(lease.deadline_millis, id));
        lease.deadline_millis = now_millis.saturating_add(lease.ttl_millis);
        self.by_deadline.insert((lease.deadline_millis, id));
        let record = LeaseRecord { ttl_millis: lease.ttl_millis, deadline_millis: lease.deadline_millis };
        self.unsaved.insert(id, Some(record));
        Ok(Duration::from_millis(record.ttl_millis))
    }

    /// Ends a lease. Its keys, sorted, have to be deleted by the caller.
    pub fn end(&mut self, id: LeaseId) -> Result<Vec<Arc<str>>, StoreError> {
        let lease = self.leases.remove(&id).ok_or(StoreError::LeaseNotFound)?;
        self.by_deadline.remove(&(lease.deadline_millis, id));
        self.unsaved.insert(id, None);
        let mut keys: Vec<_> = lease.keys.into_iter().collect();
        keys.sort_unstable();
        Ok(keys)
    }

    /// The lease that expired first, if any has.
    pub fn expired(&self, now_millis: u64) -> Option<LeaseId> {
        let (deadline, id) = self.by_deadline.first()?;
        (*deadline <= now_millis).then_some(*id)
    }

    /// Moves a key from one lease to another.
    pub fn reattach(&mut self, key: &Arc<str>, from: Option<LeaseId>, to: Option<LeaseId>) {
        if from == to {
            return;
        }
        if let Some(lease) = from.and_then(|id| self.leases.get_mut(&id)) {
            lease.keys.remove(key);
        }
        if let Some(lease) = to.and_then(|id| self.leases.get_mut(&id)) {
            lease.keys.insert(key.clone());
        }
    }

    /// What has to be written with the next commit.
    pub fn take_unsaved(&mut self) -> Vec<(LeaseId, Option<LeaseRecord>)> {
        std::mem::take(&mut self.unsaved).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_move_and_pass() {
        let mut leases = Leases::default();
        let first = leases.grant(Duration::from_secs(1), 0).unwrap();
        let second = leases.grant(Duration::from_secs(2), 0).unwrap();
        assert_eq!(leases.expired(999), None);
        assert_eq!(leases.keep_alive(first, 1500).unwrap(), Duration::from_secs(1));
        assert_eq!(leases.expired(2000), Some(second));
        leases.reattach(&"k".into(), None, Some(second));
        leases.reattach(&"j".into(), None, Some(second));
        assert_eq!(leases.end(second).unwrap(), ["j".into(), "k".into()]);
        assert_eq!(leases.keep_alive(second, 0), Err(StoreError::LeaseNotFound));
        assert_eq!(leases.expired(2499), None);
        let unsaved = leases.take_unsaved();
        let kept = LeaseRecord { ttl_millis: 1000, deadline_millis: 2500 };
        assert_eq!(unsaved, [(first, Some(kept)), (second, None)]);
        assert!(leases.take_unsaved().is_empty());
    }
}
