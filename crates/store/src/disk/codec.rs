//! How one change is written down.
//!
//! Layout, little endian: CRC-32 (4) over the location and everything after the CRC; kind (1); key length (4); create
//! revision (8); version (8); lease, 0 for none (8); location of the version before, revision 0 for none (8 + 4); key;
//! value. Invariant: [`decode`] gives back what [`encode`] was given, or says what is wrong with it; it never panics.

use crate::mvcc::log::{Entry, Loc, Record, Value};
use crate::{EventKind, LeaseId, StoreError};

const HEADER: usize = 45;
const PUT: u8 = 1;
const DELETE: u8 = 2;

fn checksum(loc: Loc, body: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(&loc.revision.to_le_bytes());
    crc.update(&loc.sub.to_le_bytes());
    crc.update(body);
    crc.sum()
}

/// Writes an entry over what `into` held.
pub(super) fn encode(entry: &Entry, into: &mut Vec<u8>) {
    into.clear();
    append(entry, into);
}

/// Writes an entry behind what `into` holds.
pub(super) fn append(entry: &Entry, into: &mut Vec<u8>) {
    let kv = &entry.event.kv;
    let previous = entry.previous.unwrap_or(Loc { revision: 0, sub: 0 });
    let start = into.len();
    into.reserve(HEADER + kv.key.len() + kv.value.len());
    into.extend_from_slice(&[0; 4]);
    into.push(match entry.event.kind {
        EventKind::Put => PUT,
        EventKind::Delete => DELETE,
    });
    // Bounded by the size limit of a transaction.
    into.extend_from_slice(&(kv.key.len() as u32).to_le_bytes());
    into.extend_from_slice(&kv.create_revision.to_le_bytes());
    into.extend_from_slice(&kv.version.to_le_bytes());
    into.extend_from_slice(&kv.lease.map_or(0, |id| id.0).to_le_bytes());
    into.extend_from_slice(&previous.revision.to_le_bytes());
    into.extend_from_slice(&previous.sub.to_le_bytes());
    into.extend_from_slice(kv.key.as_bytes());
    into.extend_from_slice(&kv.value);
    let crc = checksum(entry.loc(), &into[start + 4..]);
    into[start..start + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Reads what [`encode`] wrote.
pub(super) fn decode(loc: Loc, bytes: &[u8]) -> Result<Record<'_>, StoreError> {
    let broken = |what: &str| StoreError::Corrupt(format!("change {}.{}: {what}", loc.revision, loc.sub));
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER>() else {
        return Err(broken("shorter than its header"));
    };
    if u32_at(head, 0) != checksum(loc, &bytes[4..]) {
        return Err(broken("checksum does not match"));
    }
    let key_len = u32_at(head, 5) as usize;
    let Some((key, value)) = rest.split_at_checked(key_len) else {
        return Err(broken("shorter than its key"));
    };
    let previous = Loc { revision: u64_at(head, 33), sub: u32_at(head, 41) };
    let lease = u64_at(head, 25).cast_signed();
    Ok(Record {
        loc,
        kind: match head[4] {
            PUT => EventKind::Put,
            DELETE => EventKind::Delete,
            kind => return Err(broken(&format!("unknown kind {kind}"))),
        },
        key: std::str::from_utf8(key).map_err(|_| broken("key is not UTF-8"))?,
        value: Value::Slice(value),
        create_revision: u64_at(head, 9),
        version: u64_at(head, 17),
        lease: (lease != 0).then_some(LeaseId(lease)),
        previous: (previous.revision != 0).then_some(previous),
    })
}

fn u32_at(head: &[u8; HEADER], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&head[at..at + 4]);
    u32::from_le_bytes(bytes)
}

fn u64_at(head: &[u8; HEADER], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&head[at..at + 8]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, KeyValue};
    use proptest::prelude::*;

    fn entry(key: String, value: Vec<u8>, numbers: [u64; 4], lease: Option<LeaseId>) -> Entry {
        let [mod_revision, create_revision, version, previous] = numbers;
        let kv =
            KeyValue { key: key.into(), value: value.into(), create_revision, mod_revision, version, lease };
        let previous = (previous != 0).then_some(Loc { revision: previous, sub: 7 });
        Entry { sub: 3, event: Event { kind: EventKind::Put, kv, previous: None }, previous }
    }

    proptest! {
        #[test]
        fn decodes_what_it_encodes(
            key in ".{0,20}", value: Vec<u8>, numbers: [u64; 4], lease in proptest::option::of(1i64..), flip: u32,
        ) {
            let entry = entry(key, value, numbers, lease.map(LeaseId));
            let mut bytes = Vec::new();
            encode(&entry, &mut bytes);
            let record = decode(entry.loc(), &bytes).unwrap();
            prop_assert_eq!(record.to_key_value(entry.event.kv.key.clone()), entry.event.kv.clone());
            prop_assert_eq!((record.key, record.previous), (&*entry.event.kv.key, entry.previous));
            // Any single flipped bit is noticed, and so is a record in the wrong place.
            let bit = flip as usize % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(entry.loc(), &bytes).is_err());
            bytes[bit / 8] ^= 1 << (bit % 8);
            let other_location = Loc { sub: 4, ..entry.loc() };
            prop_assert!(decode(other_location, &bytes).is_err());
        }

        #[test]
        fn never_panics(bytes: Vec<u8>) {
            let loc = Loc { revision: 1, sub: 0 };
            prop_assert!(decode(loc, &bytes).is_err());
        }
    }
}
