//! A store that is made of the live keys of another one.
//!
//! Invariants: the directory has no store before, and has a whole one or none after, whenever the process ends; keys keep their
//! revisions; nothing below the new store's revision can be read or watched, and that revision is at least every one that the
//! former store was at, as far as the caller knows it.

use super::format::{Directory, Found};
use super::{DiskOptions, backend, journal, log};
use crate::mvcc::log::{Commit, Entry, LeaseRecord, State};
use crate::{Event, EventKind, KeyValue, LeaseId, Revision, StoreError};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

/// Keys written at once.
const PAGE: usize = 1000;
/// What a key that had a lease has left of it: how long that was is not known.
pub(super) const LEASE: Duration = Duration::from_secs(3600);

/// Numbers leases anew, and keeps those that are new.
struct Leases {
    ids: HashMap<LeaseId, LeaseId>,
    record: LeaseRecord,
}

impl Leases {
    fn id(&mut self, former: LeaseId, new: &mut Vec<(LeaseId, Option<LeaseRecord>)>) -> LeaseId {
        let next = LeaseId(i64::try_from(self.ids.len()).unwrap_or(i64::MAX - 1) + 1);
        *self.ids.entry(former).or_insert_with(|| {
            new.push((next, Some(self.record)));
            next
        })
    }
}

/// Makes the store. `next` answers with one key after the other, in any order.
pub(super) fn restore(
    path: &Path,
    options: &DiskOptions,
    revision: Revision,
    next: &mut dyn FnMut() -> Result<Option<KeyValue>, StoreError>,
) -> Result<u64, StoreError> {
    let directory = Directory::lock(path)?;
    if directory.inspect()? == Found::Store {
        return Err(StoreError::Invalid(format!("{} has a store already", path.display())));
    }
    let (draft, unsynced) = (directory.new_data(), backend::Unsynced::default());
    let opened = backend::open(&draft, true, options, &unsynced)?;
    log::initialise(&opened.db, &draft)?;
    let ttl_millis = u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX);
    let deadline_millis = options.clock.now_millis().saturating_add(ttl_millis);
    let mut leases = Leases { ids: HashMap::new(), record: LeaseRecord { ttl_millis, deadline_millis } };
    let mut state = State { revision, compacted: revision, last_lease: 0, entries: 0 };
    let mut done = false;
    while !done {
        let (mut entries, mut granted) = (vec![], vec![]);
        while entries.len() < PAGE {
            let Some(mut kv) = next()? else {
                done = true;
                break;
            };
            if kv.mod_revision > revision || kv.create_revision > kv.mod_revision || kv.key.is_empty() {
                return Err(StoreError::Corrupt(format!("{:?} has impossible revisions", kv.key)));
            }
            // Unique over all keys, and so among those of one revision.
            let sub = u32::try_from(state.entries)
                .map_err(|_| StoreError::Invalid("there are too many keys".into()))?;
            kv.lease = kv.lease.map(|former| leases.id(former, &mut granted));
            entries.push(Entry {
                sub,
                event: Event { kind: EventKind::Put, kv, previous: None },
                previous: None,
            });
            state.entries += 1;
        }
        state.last_lease = i64::try_from(leases.ids.len()).unwrap_or(i64::MAX);
        let (entries, granted) = (&entries[..], &granted[..]);
        let commit =
            Commit { state, entries, remove: &[], leases: granted, mark: None, marks_from: revision };
        log::write_restored(&opened.db, &draft, &commit)?;
    }
    opened.complete(&draft, options)?;
    drop(opened);
    journal::Journal::new(&directory.journal(), options, &unsynced).create()?;
    directory.publish()?;
    directory.sync()?;
    directory.mark()?;
    Ok(state.entries)
}
