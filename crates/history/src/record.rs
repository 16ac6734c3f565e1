//! One revision of one object as bytes: a frame with its length and checksum, the same in active files and in finished ones.
//!
//! Invariants: a frame is read as it was written or not at all; a frame is never empty, so that a file's zeros are none.

use kaji_engine::Attribution;
use kaji_store::Revision;
use twox_hash::XxHash3_128;

/// Bytes in front of a record: its length and its checksum.
pub(crate) const HEADER: usize = 8;
/// The longest record: an object is at most a few MiB.
const LONGEST: usize = 64 << 20;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The object came into being.
    Created,
    /// The object has another value.
    Modified,
    /// The object was removed; the value is its last.
    Deleted,
    /// The value from before the archive's first revision of the object: its own revision, without a request.
    Former,
    /// Revisions from the one in `since` to the record's are missing, of all objects; the value says why.
    Gap,
    /// All records of the object up to here were removed; the attribution says for which user.
    Purged,
    /// Everything up to the revision was seen. Not part of any history.
    Progress,
}

impl Change {
    const ALL: [Change; 7] = [
        Change::Created,
        Change::Modified,
        Change::Deleted,
        Change::Former,
        Change::Gap,
        Change::Purged,
        Change::Progress,
    ];

    fn code(self) -> u8 {
        Change::ALL.iter().position(|known| *known == self).unwrap_or_default() as u8
    }

    /// `Created`
    pub fn as_str(self) -> &'static str {
        match self {
            Change::Created => "Created",
            Change::Modified => "Modified",
            Change::Deleted => "Deleted",
            Change::Former => "Former",
            Change::Gap => "Gap",
            Change::Purged => "Purged",
            Change::Progress => "Progress",
        }
    }
}

/// One revision of one object, or a remark about the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The revision.
    pub revision: Revision,
    /// When it was recorded, milliseconds of the epoch: moments after its write was committed.
    pub time: i64,
    /// What it says.
    pub change: Change,
    /// The first revision of a gap; 0 otherwise.
    pub since: Revision,
    /// The object's key in the store; empty for remarks about all objects.
    pub key: String,
    /// The request; empty when it is not known.
    pub attribution: Attribution,
    /// The object as JSON, or a remark's text.
    pub value: Vec<u8>,
}

impl Record {
    /// A remark about all objects.
    pub(crate) fn remark(
        change: Change,
        since: Revision,
        revision: Revision,
        time: i64,
        text: &str,
    ) -> Record {
        let (key, attribution) = (String::new(), Attribution::default());
        Record { revision, time, change, since, key, attribution, value: text.into() }
    }

    /// Appends its frame.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER]);
        out.extend_from_slice(&self.revision.to_le_bytes());
        out.extend_from_slice(&self.time.to_le_bytes());
        out.push(self.change.code());
        out.extend_from_slice(&self.since.to_le_bytes());
        let Attribution { user, user_agent, field_manager, verb, subresource, audit_id } = &self.attribution;
        for text in [&self.key, user, user_agent, field_manager, verb, subresource, audit_id] {
            out.extend_from_slice(&(text.len() as u32).to_le_bytes());
            out.extend_from_slice(text.as_bytes());
        }
        out.extend_from_slice(&self.value);
        let body = start + HEADER;
        let (length, crc) = ((out.len() - body) as u32, checksum(&out[body..]));
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
        out[start + 4..body].copy_from_slice(&crc.to_le_bytes());
    }

    /// The record of a frame at the beginning of `bytes`, and the frame's length; `None` if there is none that is whole.
    pub(crate) fn read(bytes: &[u8]) -> Option<(Record, usize)> {
        let (body, length) = frame(bytes)?;
        let mut reader = Reader(body);
        let (revision, time) = (reader.u64()?, reader.u64()?.cast_signed());
        let change = *Change::ALL.get(usize::from(*reader.take(1)?.first()?))?;
        let since = reader.u64()?;
        let key = reader.text()?;
        let attribution = Attribution {
            user: reader.text()?,
            user_agent: reader.text()?,
            field_manager: reader.text()?,
            verb: reader.text()?,
            subresource: reader.text()?,
            audit_id: reader.text()?,
        };
        let value = reader.0.to_vec();
        Some((Record { revision, time, change, since, key, attribution, value }, length))
    }

    /// What finds it in an index: the hash of its key, none for progress.
    pub(crate) fn hash(&self) -> Option<u64> {
        (self.change != Change::Progress).then(|| hash(&self.key))
    }
}

/// The records of frames, up to the first that is not whole, each with the length of its frame.
pub(crate) fn records(mut frames: &[u8]) -> impl Iterator<Item = (Record, usize)> {
    std::iter::from_fn(move || {
        let (record, length) = Record::read(frames)?;
        frames = &frames[length..];
        Some((record, length))
    })
}

/// What finds the records of a key. Two keys may have the same.
pub(crate) fn hash(key: &str) -> u64 {
    XxHash3_128::oneshot(key.as_bytes()) as u64
}

/// A checksum.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// The body of a frame at the beginning of `bytes`, and the frame's length.
fn frame(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let mut reader = Reader(bytes);
    let (length, crc) = (reader.u32()? as usize, reader.u32()?);
    if length == 0 || length > LONGEST {
        return None;
    }
    let body = reader.take(length)?;
    (checksum(body) == crc).then_some((body, HEADER + length))
}

/// Reads numbers and texts, as far as there are bytes.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<String> {
        let length = self.u32()? as usize;
        String::from_utf8(self.take(length)?.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_are_read_as_written_or_not_at_all(
            key in ".{0,20}", user in ".{0,20}", value in proptest::collection::vec(any::<u8>(), 0..200),
            revision: u64, time: i64, code in 0..7_usize, cut: proptest::sample::Index, bit in 0..8_u8,
        ) {
            let attribution = Attribution { user, ..Attribution::default() };
            let record = Record { revision, time, change: Change::ALL[code], since: 3, key, attribution, value };
            let mut bytes = vec![];
            record.write(&mut bytes);
            prop_assert_eq!(Record::read(&bytes), Some((record.clone(), bytes.len())));
            let cut = cut.index(bytes.len());
            prop_assert_eq!(Record::read(&bytes[..cut]), None);
            bytes[cut] ^= 1 << bit;
            prop_assert_eq!(Record::read(&bytes), None);
        }
    }

    #[test]
    fn zeros_are_no_frame() {
        assert_eq!(Record::read(&[0; 64]), None);
    }
}
