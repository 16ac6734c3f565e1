//! Time to live: objects of some kinds (events) expire. Leases of the store implement that.
//!
//! Invariant: an object lives at least as long as its kind says. Objects written within a short while share one lease,
//! so that there are few of them; the lease lives longer by that while.

use kaji_store::{LeaseId, Op, Store, StoreError, Txn, TxnOutcome};
use std::{collections::HashMap, sync::Mutex, time::Duration};

/// The longest while in which objects share a lease; for short lives it is a twentieth of them. As upstream.
const SHARE: Duration = Duration::from_secs(60);
/// How many objects share a lease, so that its end is no huge transaction.
const MOST: u32 = 1000;

/// The lease that new objects of one time to live hang on.
#[derive(Clone, Copy)]
struct Current {
    lease: LeaseId,
    since: jiff::Timestamp,
    objects: u32,
}

/// The leases in use, by time to live. Times to live are properties of kinds, hence few.
#[derive(Default)]
pub(crate) struct Leases(Mutex<HashMap<Duration, Current>>);

impl Leases {
    /// Commits a transaction with a lease: its puts live for `ttl`.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn commit(
        &self,
        store: &dyn Store,
        mut txn: Txn,
        ttl: Duration,
        now: jiff::Timestamp,
    ) -> Result<TxnOutcome, StoreError> {
        let lease = self.lease(store, ttl, now).await?;
        attach(&mut txn, lease);
        match store.txn(txn.clone()).await {
            Err(StoreError::LeaseNotFound) => {
                // It ended before its time, or the store was replaced by an older copy.
                self.forget(ttl, lease);
                attach(&mut txn, self.lease(store, ttl, now).await?);
                store.txn(txn).await
            }
            outcome => outcome,
        }
    }

    async fn lease(
        &self,
        store: &dyn Store,
        ttl: Duration,
        now: jiff::Timestamp,
    ) -> Result<LeaseId, StoreError> {
        let share = SHARE.min(ttl / 20);
        if let Ok(mut held) = self.0.lock()
            && let Some(current) = held.get_mut(&ttl)
            && current.objects < MOST
            && (0..=share.as_millis() as i128).contains(&now.duration_since(current.since).as_millis())
        {
            current.objects += 1;
            return Ok(current.lease);
        }
        // Two writers may get here at once; either lease is good, and one of them is shared from now on.
        let lease = store.grant_lease(ttl + share).await?;
        if let Ok(mut held) = self.0.lock() {
            held.insert(ttl, Current { lease, since: now, objects: 1 });
        }
        Ok(lease)
    }

    fn forget(&self, ttl: Duration, lease: LeaseId) {
        if let Ok(mut held) = self.0.lock()
            && held.get(&ttl).is_some_and(|c| c.lease == lease)
        {
            held.remove(&ttl);
        }
    }
}

fn attach(txn: &mut Txn, id: LeaseId) {
    for op in &mut txn.ops {
        if let Op::Put { lease, .. } = op {
            *lease = Some(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_store::{Range, memory::MemoryStore};
    use std::collections::BTreeSet;

    async fn lease_of(store: &dyn Store, key: &str) -> Option<LeaseId> {
        store.range(Range::key(key)).await.unwrap().kvs[0].lease
    }

    #[tokio::test]
    async fn objects_of_the_same_minute_share_a_lease() {
        let store = MemoryStore::new().unwrap();
        let leases = Leases::default();
        let hour = Duration::from_secs(3600);
        let mut seen = vec![];
        for (key, at) in [("/a", 0), ("/b", 59), ("/c", 61), ("/d", 0)] {
            let now = jiff::Timestamp::from_second(at).unwrap();
            leases.commit(&store, Txn::create(key, "v"), hour, now).await.unwrap();
            seen.push(lease_of(&store, key).await.unwrap());
        }
        assert_eq!(seen[0], seen[1]);
        // A clock that goes back does not lengthen a life.
        assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), 3);
    }

    #[tokio::test]
    async fn the_end_of_a_lease_takes_its_objects_and_the_next_object_gets_another() {
        let store = MemoryStore::new().unwrap();
        let (leases, now, hour) = (Leases::default(), jiff::Timestamp::UNIX_EPOCH, Duration::from_secs(3600));
        leases.commit(&store, Txn::create("/a", "v"), hour, now).await.unwrap();
        let first = lease_of(&store, "/a").await.unwrap();
        store.revoke(first).await.unwrap();
        assert!(store.range(Range::key("/a")).await.unwrap().kvs.is_empty());
        leases.commit(&store, Txn::create("/a", "v"), hour, now).await.unwrap();
        assert_ne!(lease_of(&store, "/a").await, Some(first));
    }

    #[tokio::test]
    async fn a_lease_is_not_shared_by_too_many() {
        let store = MemoryStore::new().unwrap();
        let (leases, now, hour) = (Leases::default(), jiff::Timestamp::UNIX_EPOCH, Duration::from_secs(3600));
        let mut seen = BTreeSet::new();
        for _ in 0..=MOST {
            seen.insert(leases.lease(&store, hour, now).await.unwrap());
        }
        assert_eq!(seen.len(), 2);
    }
}
