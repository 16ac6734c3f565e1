//! The file format of snapshots: the live keys of a store at one revision, as a stream.
//!
//! Layout, little endian: the line `kaji-snapshot 1`; layout of the keys (1), revision (8), when it was taken in milliseconds (8);
//! records of tag 1, key length (4), value length (4), create revision (8), mod revision (8), version (8), lease or 0 (8), key, value;
//! tag 0, number of records (8), and SHA-256 of everything before it (32).
//!
//! Invariants: a file that was cut off or changed is refused at its end at the latest, so that nothing is to be done with records
//! before the end was read; values are as the store has them, encrypted ones stay encrypted; sizes are bounded before memory is
//! allocated.

use crate::{KeyValue, LeaseId, Range, Revision, Store, StoreError};
use sha2::{Digest, Sha256};
use std::io::{self, Read, Write};
use std::sync::Arc;

const MAGIC: &[u8; 16] = b"kaji-snapshot 1\n";
const RECORD: u8 = 1;
const END: u8 = 0;
/// Longer keys and values are no store's.
const KEY_LIMIT: u32 = 64 << 10;
const VALUE_LIMIT: u32 = 64 << 20;
/// Keys read at once while a snapshot is taken.
const PAGE: usize = 200;

/// Which keys encrypted values are bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Those of this program: the embedded store's.
    Embedded,
    /// Those of etcd.
    Etcd,
}

/// What a snapshot says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The keys that encrypted values are bound to.
    pub layout: Layout,
    /// What it is a snapshot of.
    pub revision: Revision,
    /// When it was taken, in milliseconds since 1970.
    pub taken_millis: u64,
}

/// What a complete snapshot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Records.
    pub count: u64,
    /// SHA-256 of everything before it.
    pub checksum: [u8; 32],
}

/// Why a snapshot cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The file.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Another kind of file, or a newer format.
    #[error("this is no snapshot that this version reads")]
    Format,
    /// The file ends too early.
    #[error("the snapshot is incomplete: it ends after {0} records")]
    CutOff(u64),
    /// Its bytes were changed.
    #[error("the snapshot is damaged: {0}")]
    Damaged(String),
}

/// Writes a snapshot.
pub struct Writer<W> {
    out: W,
    digest: Sha256,
    count: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a snapshot.
    ///
    /// # Errors
    /// The file's.
    pub fn begin(out: W, header: &Header) -> io::Result<Writer<W>> {
        let mut writer = Writer { out, digest: Sha256::new(), count: 0 };
        writer.put(MAGIC)?;
        writer.put(&[match header.layout {
            Layout::Embedded => 0,
            Layout::Etcd => 1,
        }])?;
        writer.put(&header.revision.to_le_bytes())?;
        writer.put(&header.taken_millis.to_le_bytes())?;
        Ok(writer)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.digest.update(bytes);
        self.out.write_all(bytes)
    }

    /// Adds a key.
    ///
    /// # Errors
    /// The file's; `InvalidData` for what no store holds.
    pub fn add(&mut self, kv: &KeyValue) -> io::Result<()> {
        let length = |bytes: usize, limit: u32| match u32::try_from(bytes) {
            Ok(length) if length <= limit => Ok(length),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, format!("{:?} is too long", kv.key))),
        };
        let (key, value) = (length(kv.key.len(), KEY_LIMIT)?, length(kv.value.len(), VALUE_LIMIT)?);
        self.put(&[RECORD])?;
        self.put(&key.to_le_bytes())?;
        self.put(&value.to_le_bytes())?;
        for number in [kv.create_revision, kv.mod_revision, kv.version] {
            self.put(&number.to_le_bytes())?;
        }
        self.put(&kv.lease.map_or(0, |lease| lease.0).to_le_bytes())?;
        self.put(kv.key.as_bytes())?;
        self.put(&kv.value)?;
        self.count += 1;
        Ok(())
    }

    /// Ends it.
    ///
    /// # Errors
    /// The file's.
    pub fn finish(mut self) -> io::Result<(W, Summary)> {
        self.put(&[END])?;
        let count = self.count;
        self.put(&count.to_le_bytes())?;
        let checksum: [u8; 32] = self.digest.finalize().into();
        self.out.write_all(&checksum)?;
        self.out.flush()?;
        Ok((self.out, Summary { count, checksum }))
    }

    /// The file, to take what was written so far.
    pub fn out_mut(&mut self) -> &mut W {
        &mut self.out
    }
}

/// Reads a snapshot.
pub struct Reader<R> {
    input: R,
    digest: Sha256,
    header: Header,
    count: u64,
    summary: Option<Summary>,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// When this is no snapshot.
    pub fn open(mut input: R) -> Result<Reader<R>, ArchiveError> {
        let mut head = [0; 33];
        match input.read_exact(&mut head) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Err(ArchiveError::Format),
            other => other?,
        }
        let layout = match (head.starts_with(MAGIC), head[16]) {
            (true, 0) => Layout::Embedded,
            (true, 1) => Layout::Etcd,
            _ => return Err(ArchiveError::Format),
        };
        let header = Header { layout, revision: number(&head[17..25]), taken_millis: number(&head[25..33]) };
        let mut digest = Sha256::new();
        digest.update(head);
        Ok(Reader { input, digest, header, count: 0, summary: None })
    }

    /// What the snapshot says about itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What it holds; known once [`Reader::next`] has answered `None`.
    pub fn summary(&self) -> Option<Summary> {
        self.summary
    }

    fn take(&mut self, bytes: &mut [u8]) -> Result<(), ArchiveError> {
        match self.input.read_exact(bytes) {
            Ok(()) => {
                self.digest.update(&*bytes);
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err(ArchiveError::CutOff(self.count)),
            Err(e) => Err(e.into()),
        }
    }

    fn damaged(&self, what: &str) -> ArchiveError {
        ArchiveError::Damaged(format!("{what} after {} records", self.count))
    }

    /// The next record; `None` after the last, when the whole file was seen to be intact.
    ///
    /// # Errors
    /// For a file that was cut off or changed.
    #[expect(clippy::should_implement_trait, reason = "an iterator's items would have to be unwrapped twice")]
    pub fn next(&mut self) -> Result<Option<KeyValue>, ArchiveError> {
        if self.summary.is_some() {
            return Ok(None);
        }
        let mut tag = [0];
        self.take(&mut tag)?;
        match tag[0] {
            END => self.end().map(|()| None),
            RECORD => self.record().map(Some),
            _ => Err(self.damaged("there is something else than a record")),
        }
    }

    fn record(&mut self) -> Result<KeyValue, ArchiveError> {
        let mut head = [0; 40];
        self.take(&mut head)?;
        let length = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (key_length, value_length) = (length(0), length(4));
        if key_length > KEY_LIMIT || value_length > VALUE_LIMIT {
            return Err(self.damaged("a record is too long"));
        }
        let mut key = vec![0; key_length as usize];
        self.take(&mut key)?;
        let mut value = vec![0; value_length as usize];
        self.take(&mut value)?;
        let key = String::from_utf8(key).map_err(|_| self.damaged("a key is not UTF-8"))?;
        self.count += 1;
        let lease = number(&head[32..40]).cast_signed();
        Ok(KeyValue {
            key: Arc::from(key),
            value: value.into(),
            create_revision: number(&head[8..16]),
            mod_revision: number(&head[16..24]),
            version: number(&head[24..32]),
            lease: (lease != 0).then_some(LeaseId(lease)),
        })
    }

    fn end(&mut self) -> Result<(), ArchiveError> {
        let mut count = [0; 8];
        self.take(&mut count)?;
        let checksum: [u8; 32] = std::mem::take(&mut self.digest).finalize().into();
        let mut written = [0; 32];
        self.take(&mut written)?;
        if checksum != written {
            return Err(self.damaged("the checksum does not match"));
        }
        if number(&count) != self.count {
            return Err(self.damaged("the number of records does not match"));
        }
        if self.input.read(&mut [0])? != 0 {
            return Err(self.damaged("there is more"));
        }
        self.summary = Some(Summary { count: self.count, checksum });
        Ok(())
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A snapshot that is being taken of a store that goes on working.
pub struct Snapshotting {
    store: Arc<dyn Store>,
    range: Range,
    writer: Option<Writer<Vec<u8>>>,
}

impl Snapshotting {
    /// Begins one of all keys below a prefix, at the current revision.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn begin(
        store: Arc<dyn Store>,
        prefix: &str,
        layout: Layout,
        taken_millis: u64,
    ) -> Result<Snapshotting, StoreError> {
        let revision = store.revision().await?;
        let header = Header { layout, revision, taken_millis };
        // Writing to memory cannot fail.
        let writer = Writer::begin(vec![], &header).map_err(|e| StoreError::Invalid(e.to_string()))?;
        let range = Range::prefix(prefix).limit(PAGE).at(revision).uncounted();
        Ok(Snapshotting { store, range, writer: Some(writer) })
    }

    /// The next bytes of the file; `None` after the last ones.
    ///
    /// # Errors
    /// Those of the store; [`StoreError::Compacted`] when its history was given up meanwhile.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(mut writer) = self.writer.take() else { return Ok(None) };
        let page = self.store.range(self.range.clone()).await?;
        let invalid = |e: io::Error| StoreError::Invalid(e.to_string());
        page.kvs.iter().try_for_each(|kv| writer.add(kv)).map_err(invalid)?;
        match page.kvs.last() {
            Some(last) if page.more => {
                self.range.start = format!("{}\0", last.key);
                let bytes = std::mem::take(writer.out_mut());
                self.writer = Some(writer);
                Ok(Some(bytes))
            }
            // A store with keys that are no object's may answer so; what comes after them would be missing.
            None if page.more => Err(StoreError::Unavailable("too many keys are no object's".into())),
            _ => writer.finish().map(|(bytes, _)| Some(bytes)).map_err(invalid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Txn;
    use crate::memory::MemoryStore;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> Result<(Header, Vec<KeyValue>, Summary), ArchiveError> {
        let mut reader = Reader::open(bytes)?;
        let mut all = vec![];
        while let Some(kv) = reader.next()? {
            all.push(kv);
        }
        Ok((*reader.header(), all, reader.summary().unwrap()))
    }

    #[tokio::test]
    async fn a_store_that_goes_on_is_seen_at_one_revision() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new().unwrap());
        for i in 0..PAGE * 2 + 7 {
            store.txn(Txn::put(format!("/registry/{i:04}"), format!("v{i}"))).await.unwrap();
        }
        let before = store.range(Range::prefix("/registry/")).await.unwrap();
        let mut taking = Snapshotting::begin(store.clone(), "/registry/", Layout::Embedded, 7).await.unwrap();
        let mut bytes = vec![];
        while let Some(more) = taking.next().await.unwrap() {
            bytes.extend(more);
            store.txn(Txn::put("/registry/9999", "later")).await.unwrap();
            store.txn(Txn::put("/registry/0400", "later")).await.unwrap();
        }
        let (header, all, summary) = read(&bytes).unwrap();
        assert_eq!(header, Header { layout: Layout::Embedded, revision: before.revision, taken_millis: 7 });
        assert_eq!((all, summary.count), (before.kvs, (PAGE * 2 + 7) as u64));
    }

    #[test]
    fn other_files_are_refused() {
        assert!(matches!(read(b"").unwrap_err(), ArchiveError::Format));
        assert!(matches!(read(&[b'x'; 100]).unwrap_err(), ArchiveError::Format));
    }

    proptest! {
        #[test]
        fn changed_and_cut_off_files_are_refused(
            values in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..5),
            place in any::<prop::sample::Index>(),
            bit in 0..8_u8,
        ) {
            let header = Header { layout: Layout::Etcd, revision: 9, taken_millis: 1 };
            let mut writer = Writer::begin(vec![], &header).unwrap();
            for (i, value) in values.iter().enumerate() {
                let key = Arc::from(format!("/{i}"));
                let (value, lease) = (value.clone().into(), (i % 2 == 1).then_some(LeaseId(-4)));
                writer.add(&KeyValue { key, value, create_revision: 1, mod_revision: 2, version: 3, lease }).unwrap();
            }
            let (bytes, summary) = writer.finish().unwrap();
            let (found, all, read_summary) = read(&bytes).unwrap();
            prop_assert_eq!((found, all.len(), read_summary), (header, values.len(), summary));
            let at = place.index(bytes.len());
            prop_assert!(read(&bytes[..at]).is_err());
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            prop_assert!(read(&changed).is_err());
            let longer = [&bytes[..], &[0]].concat();
            prop_assert!(read(&longer).is_err());
        }
    }
}
