//! The journal: commits that are on disk, but not in the database yet. A commit of the database writes a dozen pages, an
//! append writes the changes; so small commits are appended, and many of them enter the database at once.
//!
//! A frame is a commit, in little endian: magic (8), generation (8), length of the rest (4), CRC-32 over generation, length
//! and rest (4); then the counters, the marks, and what changes, with each change as [`codec`] writes it.
//!
//! Invariants: the database says which generation of frames is not in it, and a generation begins at the start of the file,
//! so that frames of former ones, which may follow, do not count. A frame is synced before the next is written. So a frame
//! that is cut off was never acknowledged, while one that is damaged and has a whole one of its generation behind it is
//! damage, and is refused as such. The end of the file has a mark that says up to where frames were synced before the last one: of
//! those none may be missing. The database says how long the file is at least, so that one that was cut off shows.

use super::backend::{FaultyFile, Unsynced, io_error};
use super::format::RESTORE;
use super::pages::PAGE;
use super::{DiskOptions, Fault, codec};
use crate::mvcc::log::{Commit, LeaseRecord, Loc, State, TimeMark};
use crate::{LeaseId, StoreError};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The lengths in a frame have 32 bits.
const MAX_BYTES: usize = 1 << 30;
const MAGIC: [u8; 8] = *b"kajijrnl";
const HEADER: usize = 24;
/// Of the header, what the checksum begins with.
const CHECKED: std::ops::Range<usize> = 8..20;
/// The mark: magic (8), generation (8), where the synced frames end (8), CRC-32 of that (4), and zeros.
const MARK: u64 = 32;
const MARK_MAGIC: [u8; 8] = *b"kajimark";
const MARK_CHECKED: usize = 24;

/// A commit that is in the journal.
#[derive(Clone, Debug)]
pub(super) struct Journaled {
    pub state: State,
    pub entries: Vec<crate::mvcc::log::Entry>,
    pub remove: Vec<Loc>,
    pub leases: Vec<(LeaseId, Option<LeaseRecord>)>,
    pub mark: Option<TimeMark>,
    pub marks_from: u64,
}

impl Journaled {
    /// Values are shared with the commit, not copied.
    pub fn of(commit: &Commit<'_>) -> Journaled {
        let mut entries = commit.entries.to_vec();
        // What was there before is in the log.
        entries.iter_mut().for_each(|entry| entry.event.previous = None);
        Journaled {
            state: commit.state,
            entries,
            remove: commit.remove.to_vec(),
            leases: commit.leases.to_vec(),
            mark: commit.mark,
            marks_from: commit.marks_from,
        }
    }

    /// As it was committed.
    pub fn commit(&self) -> Commit<'_> {
        Commit {
            state: self.state,
            entries: &self.entries,
            remove: &self.remove,
            leases: &self.leases,
            mark: self.mark,
            marks_from: self.marks_from,
        }
    }
}

/// The file.
#[derive(Debug)]
pub(super) struct Journal {
    /// `None` until it is opened.
    file: Option<File>,
    path: PathBuf,
    /// Of the frames that are written now.
    generation: u64,
    /// Where the next frame goes.
    end: u64,
    /// The next frame.
    frame: Vec<u8>,
    /// The most bytes of a generation.
    limit: u64,
    /// The file has room for that, and for the mark.
    extended: bool,
    fault: Option<Arc<dyn Fault>>,
    faulty: FaultyFile,
    unsynced: Unsynced,
}

impl Journal {
    /// The file at `path`, which is not opened yet.
    pub fn new(path: &Path, options: &DiskOptions, unsynced: &Unsynced) -> Journal {
        let limit = options.journal_bytes.min(MAX_BYTES) as u64;
        let (fault, unsynced, path) = (options.fault.clone(), unsynced.clone(), path.to_owned());
        Journal {
            file: None,
            path,
            generation: 0,
            end: 0,
            frame: Vec::new(),
            limit,
            extended: false,
            fault,
            faulty: FaultyFile::default(),
            unsynced,
        }
    }

    /// Makes an empty file. Its name lasts once the directory is synced.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn create(&self) -> Result<(), StoreError> {
        let mut open = OpenOptions::new();
        open.write(true).create(true).truncate(true).mode(kaji_files::PRIVATE);
        open.open(&self.path).map(drop).map_err(|e| io_error(&self.path, &e))
    }

    /// Whether there is a file.
    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Opens the file, for frames of a generation.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when it is missing, and those of the file system.
    pub fn open(&mut self, generation: u64) -> Result<(), StoreError> {
        let file =
            OpenOptions::new().read(true).write(true).open(&self.path).map_err(|e| match e.kind() {
                io::ErrorKind::NotFound => {
                    StoreError::Corrupt(format!("{}: the file is missing; {RESTORE}", self.path.display()))
                }
                _ => io_error(&self.path, &e),
            })?;
        self.faulty = FaultyFile::new(self.fault.as_ref(), &file).map_err(|e| io_error(&self.path, &e))?;
        self.file = Some(file);
        self.extended = false;
        self.begin(generation);
        Ok(())
    }

    /// How long the file of a journal in use is at least.
    pub fn min_len(&self) -> u64 {
        if self.limit == 0 { 0 } else { self.limit.next_multiple_of(PAGE) + MARK }
    }

    /// Makes the file as long as that, which lasts when this is done.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn extend(&mut self) -> Result<(), StoreError> {
        if self.extended {
            return Ok(());
        }
        let extend = || -> io::Result<()> {
            let file = self.file()?;
            if file.metadata()?.len() < self.min_len() {
                self.faulty.resize(self.min_len(), || file.set_len(self.min_len()))?;
                self.faulty.sync(|| file.sync_all())?;
            }
            Ok(())
        };
        extend().map_err(|e| io_error(&self.path, &e))?;
        self.extended = true;
        Ok(())
    }

    /// Says from now on there if a sync fails.
    pub fn report_to(&mut self, unsynced: &Unsynced) {
        self.unsynced = unsynced.clone();
    }

    /// The former frames are in the database; those of this generation come.
    pub fn begin(&mut self, generation: u64) {
        (self.generation, self.end) = (generation, 0);
    }

    /// The generation after the current one.
    pub fn next_generation(&self) -> u64 {
        self.generation.wrapping_add(1)
    }

    /// Prepares the frame of a commit. Whether there is room for it.
    pub fn prepare(&mut self, commit: &Commit<'_>) -> bool {
        let values = commit.entries.iter().map(|e| e.event.kv.key.len() + e.event.kv.value.len());
        if self.end.saturating_add(values.sum::<usize>() as u64) > self.limit {
            return false;
        }
        encode(self.generation, commit, &mut self.frame);
        self.end.saturating_add(self.frame.len() as u64) <= self.limit
    }

    /// Writes the prepared frame, and syncs it. After an error the file has to be read again.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn append(&mut self) -> Result<(), StoreError> {
        let append = || -> io::Result<()> {
            if self.end > 0 {
                self.write(self.min_len() - MARK, &mark(self.generation, self.end))?;
            }
            self.write(self.end, &self.frame)?;
            self.sync()
        };
        append().map_err(|e| io_error(&self.path, &e))?;
        self.end += self.frame.len() as u64;
        Ok(())
    }

    fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| io::Error::other("the file is not open"))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.faulty.write(at, bytes, || self.file()?.write_all_at(bytes, at))
    }

    fn sync(&self) -> io::Result<()> {
        let synced = self.faulty.sync(|| self.file()?.sync_data());
        synced.inspect_err(|_| self.unsynced.store(true, Ordering::SeqCst))
    }

    /// Overwrites all frames, none of which may be needed any more.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn erase(&mut self) -> Result<(), StoreError> {
        let erase = || -> io::Result<()> {
            let zeros = vec![0; 1 << 16];
            let len = self.file()?.metadata()?.len();
            let mut at = 0;
            while at < len {
                let part = usize::try_from(len - at).unwrap_or(usize::MAX).min(zeros.len());
                self.write(at, &zeros[..part])?;
                at += part as u64;
            }
            self.sync()
        };
        erase().map_err(|e| io_error(&self.path, &e))
    }

    /// The commits of the generation that are in the file, in order. The file is to have `min_len` bytes.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for frames that are damaged rather than cut off, and those of the file system.
    pub fn read(&self, min_len: u64) -> Result<Vec<Journaled>, StoreError> {
        let bytes = std::fs::read(&self.path).map_err(|e| io_error(&self.path, &e))?;
        let corrupt = |what: String| StoreError::Corrupt(format!("{}: {what}", self.path.display()));
        if let Some(later) = first_generation(&bytes).filter(|later| *later > self.generation) {
            return Err(corrupt(format!(
                "it continues commit {later} of the database, which is at {}: the database has lost commits",
                self.generation
            )));
        }
        let (commits, end) = read_frames(self.generation, &bytes).map_err(corrupt)?;
        match synced_until(self.generation, &bytes, min_len) {
            None => Err(corrupt(format!("it was cut off: of {min_len} bytes it has {}", bytes.len()))),
            Some(synced) if synced > end => Err(corrupt(format!("the commit at {end} is damaged"))),
            Some(_) => Ok(commits),
        }
    }
}

fn checksum(header: &[u8], rest: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(&header[CHECKED]);
    crc.update(rest);
    crc.sum()
}

fn encode(generation: u64, commit: &Commit<'_>, into: &mut Vec<u8>) {
    into.clear();
    into.extend_from_slice(&MAGIC);
    into.extend_from_slice(&generation.to_le_bytes());
    into.extend_from_slice(&[0; 8]);
    let State { revision, compacted, last_lease, entries } = commit.state;
    let (marked, mark) = commit.mark.map_or((0, [0; 2]), |m| (1, [m.revision, m.at_millis]));
    let counts = [commit.entries.len(), commit.remove.len(), commit.leases.len()];
    let [a, b, c] = counts.map(|n| n as u64);
    let head = [
        revision,
        compacted,
        last_lease.cast_unsigned(),
        entries,
        commit.marks_from,
        marked,
        mark[0],
        mark[1],
    ];
    head.into_iter().chain([a, b, c]).for_each(|n| into.extend_from_slice(&n.to_le_bytes()));
    for entry in commit.entries {
        put_loc(entry.loc(), into);
        let at = into.len();
        into.extend_from_slice(&[0; 4]);
        codec::append(entry, into);
        // Bounded by the size limit of a transaction.
        let len = (into.len() - at - 4) as u32;
        into[at..at + 4].copy_from_slice(&len.to_le_bytes());
    }
    commit.remove.iter().for_each(|loc| put_loc(*loc, into));
    for (id, record) in commit.leases {
        let (kept, times) = record.map_or((0, [0; 2]), |r| (1, [r.ttl_millis, r.deadline_millis]));
        for n in [id.0.cast_unsigned(), kept, times[0], times[1]] {
            into.extend_from_slice(&n.to_le_bytes());
        }
    }
    // Bounded by the limit of the file: longer ones are not written.
    let len = (into.len() - HEADER) as u32;
    into[16..20].copy_from_slice(&len.to_le_bytes());
    let crc = checksum(&into[..HEADER], &into[HEADER..]);
    into[20..24].copy_from_slice(&crc.to_le_bytes());
}

fn put_loc(loc: Loc, into: &mut Vec<u8>) {
    into.extend_from_slice(&loc.revision.to_le_bytes());
    into.extend_from_slice(&loc.sub.to_le_bytes());
}

/// The rest of a whole frame of the generation at the start of `bytes`.
fn frame(generation: u64, bytes: &[u8]) -> Option<&[u8]> {
    let (header, rest) = bytes.split_first_chunk::<HEADER>()?;
    if header[..8] != MAGIC || header[8..16] != generation.to_le_bytes() {
        return None;
    }
    let mut fields = Fields(&header[16..]);
    let (len, crc) = (fields.u32()?, fields.u32()?);
    let rest = rest.get(..len as usize)?;
    (checksum(header, rest) == crc).then_some(rest)
}

/// The commits, and where the last one ends.
///
/// # Errors
/// What is damaged.
pub(super) fn read_frames(generation: u64, bytes: &[u8]) -> Result<(Vec<Journaled>, u64), String> {
    let (mut commits, mut left) = (Vec::new(), bytes);
    while let Some(rest) = frame(generation, left) {
        let at = bytes.len() - left.len();
        let commit = decode(rest).map_err(|e| format!("commit at {at}: {e}"))?;
        commits.push(commit.ok_or_else(|| format!("commit at {at}: shorter than what it holds"))?);
        left = &left[HEADER + rest.len()..];
    }
    let later = (1..left.len()).find(|at| left[*at] == MAGIC[0] && frame(generation, &left[*at..]).is_some());
    match later {
        Some(later) => {
            let at = bytes.len() - left.len();
            Err(format!("the commit at {at} is damaged, and there is one behind it, at {}", at + later))
        }
        None => Ok((commits, (bytes.len() - left.len()) as u64)),
    }
}

/// The mark that frames of a generation are synced up to a place.
fn mark(generation: u64, end: u64) -> [u8; MARK as usize] {
    let mut mark = [0; MARK as usize];
    mark[..8].copy_from_slice(&MARK_MAGIC);
    mark[8..16].copy_from_slice(&generation.to_le_bytes());
    mark[16..24].copy_from_slice(&end.to_le_bytes());
    let mut crc = flate2::Crc::new();
    crc.update(&mark[..MARK_CHECKED]);
    mark[MARK_CHECKED..MARK_CHECKED + 4].copy_from_slice(&crc.sum().to_le_bytes());
    mark
}

/// Up to where frames of a generation have been synced, by the mark of a file that is to have `min_len` bytes; 0 without a mark, and
/// `None` for a file that is shorter.
pub(super) fn synced_until(generation: u64, bytes: &[u8], min_len: u64) -> Option<u64> {
    let min_len = usize::try_from(min_len).ok()?;
    let file = bytes.get(..min_len)?;
    let Some(found) = file.last_chunk::<{ MARK as usize }>() else { return Some(0) };
    let end = u64::from_le_bytes(*found[16..].first_chunk()?);
    Some(if *found == mark(generation, end) { end } else { 0 })
}

/// What can be read of a journal that may be damaged.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The commits of the generation that are whole, in order.
    pub commits: Vec<Journaled>,
    /// Where there is none, although one that is whole comes behind it.
    pub damaged: Vec<u64>,
    /// Where the last one is that is not whole: it was cut off, or is damaged.
    pub incomplete: Option<u64>,
    /// Where the last one ends that is whole.
    pub end: u64,
}

/// The generation of the frames at the start of the file, if the first one is whole.
pub(super) fn first_generation(bytes: &[u8]) -> Option<u64> {
    let generation = u64::from_le_bytes(*bytes.get(8..)?.first_chunk()?);
    frame(generation, bytes).map(|_| generation)
}

/// Reads as many frames of a generation as are whole.
pub(super) fn salvage_frames(generation: u64, bytes: &[u8]) -> Frames {
    let (mut frames, mut at) = (Frames::default(), 0);
    while let Some(left) = bytes.get(at..).filter(|left| !left.is_empty()) {
        if let Some(rest) = frame(generation, left) {
            match decode(rest) {
                Ok(Some(commit)) => frames.commits.push(commit),
                _ => frames.damaged.push(at as u64),
            }
            at += HEADER + rest.len();
            frames.end = at as u64;
            continue;
        }
        let later =
            (1..left.len()).find(|n| left[*n] == MAGIC[0] && frame(generation, &left[*n..]).is_some());
        match later {
            Some(later) => {
                frames.damaged.push(at as u64);
                at += later;
            }
            None => {
                let begins = left.starts_with(&MAGIC) && left.get(8..16) == Some(&generation.to_le_bytes());
                frames.incomplete = begins.then_some(at as u64);
                break;
            }
        }
    }
    frames
}

/// Reads what [`encode`] wrote behind the header; `None` if it ends too early.
fn decode(rest: &[u8]) -> Result<Option<Journaled>, StoreError> {
    let mut fields = Fields(rest);
    let Some(head) = fields.numbers::<11>() else { return Ok(None) };
    let [revision, compacted, last_lease, in_log, marks_from, marked, mark_revision, at_millis, a, b, c] =
        head;
    let state = State { revision, compacted, last_lease: last_lease.cast_signed(), entries: in_log };
    let mark = (marked != 0).then_some(TimeMark { revision: mark_revision, at_millis });
    let (mut entries, mut remove, mut leases) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..a {
        let Some((loc, record)) = fields.loc().and_then(|loc| Some((loc, fields.bytes()?))) else {
            return Ok(None);
        };
        entries.push(codec::decode(loc, record)?.to_entry());
    }
    for _ in 0..b {
        let Some(loc) = fields.loc() else { return Ok(None) };
        remove.push(loc);
    }
    for _ in 0..c {
        let Some([id, kept, ttl_millis, deadline_millis]) = fields.numbers::<4>() else { return Ok(None) };
        let record = (kept != 0).then_some(LeaseRecord { ttl_millis, deadline_millis });
        leases.push((LeaseId(id.cast_signed()), record));
    }
    Ok(Some(Journaled { state, entries, remove, leases, mark, marks_from }))
}

/// Takes fields off the front of bytes.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*chunk)
    }

    fn u32(&mut self) -> Option<u32> {
        self.chunk().map(u32::from_le_bytes)
    }

    fn numbers<const N: usize>(&mut self) -> Option<[u64; N]> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = u64::from_le_bytes(self.chunk()?);
        }
        Some(numbers)
    }

    fn loc(&mut self) -> Option<Loc> {
        let [revision] = self.numbers()?;
        Some(Loc { revision, sub: self.u32()? })
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::log::Entry;
    use crate::{Event, EventKind, KeyValue};
    use proptest::prelude::*;

    fn any_commit() -> impl Strategy<Value = Journaled> {
        let entry = (".{0,12}", any::<Vec<u8>>(), any::<[u64; 3]>(), any::<u32>(), any::<bool>()).prop_map(
            |(key, value, [mod_revision, create_revision, version], sub, put)| {
                let kind = if put { EventKind::Put } else { EventKind::Delete };
                let (key, value) = (key.into(), value.into());
                let kv = KeyValue { key, value, create_revision, mod_revision, version, lease: None };
                Entry { sub, event: Event { kind, kv, previous: None }, previous: None }
            },
        );
        let loc = any::<(u64, u32)>().prop_map(|(revision, sub)| Loc { revision, sub });
        let pair = any::<(u64, u64)>();
        let lease = (any::<i64>(), prop::option::of(pair)).prop_map(|(id, times)| {
            let record =
                times.map(|(ttl_millis, deadline_millis)| LeaseRecord { ttl_millis, deadline_millis });
            (LeaseId(id), record)
        });
        (
            prop::collection::vec(entry, 0..3),
            prop::collection::vec(loc, 0..3),
            prop::collection::vec(lease, 0..3),
            prop::option::of(pair),
            any::<([u64; 4], i64)>(),
        )
            .prop_map(
                |(entries, remove, leases, mark, ([revision, compacted, in_log, marks_from], last_lease))| {
                    let state = State { revision, compacted, last_lease, entries: in_log };
                    let mark = mark.map(|(revision, at_millis)| TimeMark { revision, at_millis });
                    Journaled { state, entries, remove, leases, mark, marks_from }
                },
            )
    }

    fn text(commits: &[Journaled]) -> String {
        format!("{commits:?}")
    }

    proptest! {
        #[test]
        fn frames_are_read_as_they_were_written(
            commits in prop::collection::vec(any_commit(), 1..4),
            former in any_commit(),
            cut: usize,
            flip: usize,
        ) {
            let (mut bytes, mut ends, mut one) = (vec![], vec![0], vec![]);
            for commit in &commits {
                encode(7, &commit.commit(), &mut one);
                bytes.extend_from_slice(&one);
                ends.push(bytes.len());
            }
            // Frames of the generation before are left behind.
            let mut whole = bytes.clone();
            encode(6, &former.commit(), &mut one);
            whole.extend_from_slice(&one);
            prop_assert_eq!(text(&read_frames(7, &whole).unwrap().0), text(&commits));
            prop_assert_eq!(read_frames(8, &whole).unwrap().0.len(), 0);
            // What is cut off was not acknowledged.
            let cut = cut % bytes.len();
            let before = ends.iter().filter(|end| **end <= cut).count() - 1;
            prop_assert_eq!(text(&read_frames(7, &bytes[..cut]).unwrap().0), text(&commits[..before]));
            // Damage shows, unless it could be a frame that was cut off.
            let bit = flip % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let damaged = ends.iter().filter(|end| **end <= bit / 8).count() - 1;
            match read_frames(7, &bytes) {
                Ok((read, _)) => {
                    prop_assert_eq!(damaged, commits.len() - 1);
                    prop_assert_eq!(text(&read), text(&commits[..damaged]));
                }
                Err(_) => prop_assert!(damaged < commits.len() - 1),
            }
        }

        #[test]
        fn never_panics(rest: Vec<u8>) {
            let mut bytes = [&MAGIC[..], &7_u64.to_le_bytes(), &(rest.len() as u32).to_le_bytes(), &[0; 4]].concat();
            let crc = checksum(&bytes, &rest);
            bytes[20..].copy_from_slice(&crc.to_le_bytes());
            bytes.extend_from_slice(&rest);
            prop_assert!(rest.len() >= 88 || read_frames(7, &bytes).is_err());
            let _ = read_frames(7, &bytes);
        }
    }
}
