//! The files of the archive, in one directory: one that is appended to, and finished ones by number.
//!
//! Invariants:
//! - The records of a key are read in the order in which they were written, which is that of their revisions.
//! - The directory never has more bytes than the limit and one file's; the oldest file goes first, as a whole.
//! - What a purge removes is overwritten before its file is removed, and the purge leaves a record of itself.

use crate::{
    active::Active,
    changes::{Changes, Scan, Window},
    record::{Change, Record, hash, records},
    segment::{self, Segment},
};
use kaji_engine::Attribution;
use kaji_store::Revision;
use std::{
    collections::{BTreeMap, BTreeSet, HashSet, btree_map::Entry},
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Bytes of an active file, after which it is finished.
const ACTIVE: u64 = 8 << 20;
/// How long a file is appended to at most.
const ACTIVE_TIME: Duration = Duration::from_secs(6 * 3600);

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all files.
    pub bytes: u64,
    /// Since the last record of a file.
    pub age: Duration,
}

impl Default for Limits {
    /// 64 MiB, a week.
    fn default() -> Self {
        Limits { bytes: 64 << 20, age: Duration::from_secs(7 * 24 * 3600) }
    }
}

/// Why the archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// A file or directory.
    #[error("the history in {path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
}

/// What was found of an object.
#[derive(Debug, Default)]
pub struct Found {
    /// Records of the object, and gaps, in order.
    pub records: Vec<Record>,
    /// There are more.
    pub more: bool,
    /// What could not be read.
    pub lost: Vec<String>,
}

/// What a purge has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Records that were removed.
    pub records: u64,
    /// Files that were written anew.
    pub files: u64,
}

/// The archive. Its methods block.
#[derive(Debug)]
pub struct Archive {
    dir: PathBuf,
    limits: Limits,
    /// Finished files by number.
    segments: BTreeMap<u64, Segment>,
    active: Active,
    number: u64,
    /// The first revision of the oldest file; `None` when it is not known.
    oldest: Option<Revision>,
}

/// What a question reads after the archive is free again.
pub(crate) struct Question {
    hash: u64,
    /// Of one object; otherwise of all objects with the hash, without gaps.
    key: Option<String>,
    after: Revision,
    limit: usize,
    bytes: usize,
    segments: Vec<Segment>,
    active: Vec<Record>,
    lost: Vec<String>,
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> ArchiveError + '_ {
    move |source| ArchiveError::File { path: path.to_owned(), source }
}

fn number_of(path: &Path) -> Option<u64> {
    u64::from_str_radix(path.file_stem()?.to_str()?, 16).ok()
}

/// Reports damage: the answer says it, too.
pub(crate) fn report(error: &io::Error) -> String {
    tracing::error!(%error, "a segment of the history is damaged and is skipped");
    error.to_string()
}

/// What is lost of a file that was to be read: nothing if it is gone, since it was older than the limits allow, meanwhile.
pub(crate) fn lost_file(read: io::Result<()>) -> Option<String> {
    read.err().filter(|error| error.kind() != io::ErrorKind::NotFound).map(|error| report(&error))
}

impl Archive {
    /// Opens the archive of a directory, or begins it.
    ///
    /// # Errors
    /// When the directory cannot be read or written. Damaged files are reported and left out.
    pub fn open(dir: &Path, limits: Limits) -> Result<Archive, ArchiveError> {
        kaji_files::private_dir_and_files(dir).map_err(file_error(dir))?;
        let mut files: BTreeMap<String, Vec<(u64, PathBuf)>> = BTreeMap::new();
        for entry in fs::read_dir(dir).map_err(file_error(dir))? {
            let path = entry.map_err(file_error(dir))?.path();
            let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default().to_owned();
            if let Some(number) = number_of(&path) {
                files.entry(kind).or_default().push((number, path));
            }
        }
        let mut of = |kind: &str| files.remove(kind).unwrap_or_default();
        for (_, path) in of("tmp") {
            fs::remove_file(&path).map_err(file_error(&path))?;
        }
        let (old, mut finished, mut raw) = (of("old"), of("seg"), of("raw"));
        for (number, path) in old {
            settle_purge(&path, number, &mut finished).map_err(file_error(&path))?;
        }
        let mut segments = BTreeMap::new();
        for (number, path) in finished {
            match Segment::open(&path) {
                Ok(segment) => drop(segments.insert(number, segment)),
                Err(error) => drop(report(&error)),
            }
        }
        raw.sort_unstable();
        let current = raw.pop();
        let newest = segments.keys().next_back().map_or(0, |number| number + 1);
        let number = current.as_ref().map_or(newest, |(number, _)| *number);
        // It was finished and not yet removed: a new one begins.
        let number = if segments.contains_key(&number) { newest } else { number };
        let mut archive = Archive::over(dir, limits, segments, number)?;
        for (number, path) in raw.into_iter().chain(current).filter(|(n, _)| *n != number) {
            archive.adopt(number, &path).map_err(file_error(&path))?;
        }
        Ok(archive)
    }

    fn over(
        dir: &Path,
        limits: Limits,
        segments: BTreeMap<u64, Segment>,
        number: u64,
    ) -> Result<Archive, ArchiveError> {
        let path = dir.join(format!("{number:016x}.raw"));
        let (active, torn) = Active::open(&path).map_err(file_error(&path))?;
        if torn > 0 {
            tracing::warn!(path = %path.display(), bytes = torn, "the history ends with an incomplete record, which is truncated");
        }
        Ok(Archive { dir: dir.to_owned(), limits, segments, active, number, oldest: None })
    }

    /// Takes a file in that was left by a process that ended between two steps.
    fn adopt(&mut self, number: u64, path: &Path) -> io::Result<()> {
        if let Entry::Vacant(place) = self.segments.entry(number) {
            let (left, _) = Active::open(path)?;
            if left.bytes > 0 {
                place.insert(segment::write(&path.with_extension("seg"), &left.frames()?)?);
            }
        }
        fs::remove_file(path)
    }

    /// The last revision that was seen, and the hashes of the keys that are recorded of it; `None` in an archive without records.
    pub fn last(&self) -> Option<(Revision, HashSet<u64>)> {
        let finished = self.segments.values().map(|segment| segment.last_revision).max();
        match (&self.active.last, finished) {
            (Some((last, keys)), finished) if finished.is_none_or(|f| f <= *last) => {
                Some((*last, keys.clone()))
            }
            // Of a file that was finished every key is there: it ended with whole transactions.
            (_, finished) => finished.map(|last| (last, HashSet::new())),
        }
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.active.bytes + self.segments.values().map(|segment| segment.bytes).sum::<u64>()
    }

    /// Appends records, finishes the file if it is large or old enough, and removes files beyond the limits. `now` is in
    /// milliseconds of the epoch.
    ///
    /// # Errors
    /// When records cannot be written; those before them are.
    pub fn append(&mut self, records: &[Record], now: i64) -> Result<(), ArchiveError> {
        let mut rest = records;
        loop {
            let (first, later) = rest.split_at(self.room(rest));
            let path = self.active.path.clone();
            self.active.append(first).map_err(file_error(&path))?;
            self.tidy(now)?;
            if later.is_empty() {
                return Ok(());
            }
            rest = later;
        }
    }

    /// Bytes after which the active file is finished.
    fn full(&self) -> u64 {
        ACTIVE.min(self.limits.bytes / 4).max(1)
    }

    /// How many of the records go to the active file before it is finished. It ends with a whole transaction, and what comes at once
    /// makes no file that is too large to be kept.
    fn room(&self, records: &[Record]) -> usize {
        let (mut bytes, mut last) = (self.active.bytes, 0);
        for (at, record) in records.iter().enumerate() {
            let is_former = record.change == Change::Former;
            if at > 0 && !is_former && record.revision > last && bytes >= self.full() {
                return at;
            }
            bytes += (record.key.len() + record.value.len()) as u64;
            last = if is_former { last } else { record.revision };
        }
        records.len()
    }

    /// Finishes and removes files as the limits say.
    ///
    /// # Errors
    /// When a file cannot be written or removed; nothing is lost then.
    pub fn tidy(&mut self, now: i64) -> Result<(), ArchiveError> {
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let old = self.active.first_time.is_some_and(|first| now.saturating_sub(first) > millis(ACTIVE_TIME));
        if self.active.bytes >= self.full() || old {
            self.finish()?;
        }
        while let Some((number, oldest)) = self.segments.first_key_value() {
            let expired = now.saturating_sub(oldest.last_time) > millis(self.limits.age);
            if !expired && self.bytes() <= self.limits.bytes {
                break;
            }
            let (number, path) = (*number, oldest.path.clone());
            fs::remove_file(&path).map_err(file_error(&path))?;
            self.segments.remove(&number);
            self.oldest = None;
        }
        Ok(())
    }

    /// The first revision in the archive; `None` without records.
    pub(crate) fn oldest(&mut self) -> Option<Revision> {
        if self.oldest.is_none() {
            let frames = match self.segments.values().next() {
                Some(segment) => segment.first_block(),
                None => self.active.frames(),
            };
            match frames {
                Ok(frames) => each(&frames, |record| {
                    if !matches!(record.change, Change::Former | Change::Progress) {
                        self.oldest.get_or_insert(record.revision);
                    }
                }),
                Err(error) => drop(report(&error)),
            }
        }
        self.oldest
    }

    /// Finishes the file that is appended to, and begins the next.
    fn finish(&mut self) -> Result<(), ArchiveError> {
        if self.active.bytes == 0 {
            return Ok(());
        }
        let path = self.active.path.clone();
        let frames = self.active.frames().map_err(file_error(&path))?;
        let segment = segment::write(&path.with_extension("seg"), &frames).map_err(file_error(&path))?;
        let next = Archive::over(&self.dir, self.limits, BTreeMap::new(), self.number + 1)?;
        self.segments.insert(self.number, segment);
        (self.number, self.active) = (next.number, next.active);
        fs::remove_file(&path).map_err(file_error(&path))
    }

    /// Has everything on the disk.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn sync(&self) -> Result<(), ArchiveError> {
        self.active.sync().map_err(file_error(&self.active.path))
    }

    /// Up to `limit` records of a key, of revisions after `after`, and the gaps between them; no more than about `bytes` of values.
    pub fn records(&self, key: &str, after: Revision, limit: usize, bytes: usize) -> Found {
        self.question(key, after, limit, bytes).answer()
    }

    /// A page of what changed.
    pub fn changes(&self, window: Window) -> Changes {
        self.scan(window).answer()
    }

    /// Takes what a page of changes needs of the archive; the rest is read without it.
    pub(crate) fn scan(&self, window: Window) -> Scan {
        let is_read = |s: &&Segment| s.last_revision > window.after && s.last_time >= window.since;
        let segments = self.segments.values().filter(is_read).cloned().collect();
        let active = self.active.after(window.after);
        Scan { segments, active, last: self.last().map_or(0, |(last, _)| last), window }
    }

    /// Takes what a question needs of the archive; the rest is read without it.
    pub(crate) fn question(&self, key: &str, after: Revision, limit: usize, bytes: usize) -> Question {
        self.question_by(hash(key), Some(key.to_owned()), after, (limit, bytes))
    }

    /// A question for the record of one revision of the objects with this hash of their key.
    pub(crate) fn question_of(&self, hash: u64, revision: Revision) -> Question {
        self.question_by(hash, None, revision.saturating_sub(1), (1, usize::MAX))
    }

    fn question_by(
        &self,
        hash: u64,
        key: Option<String>,
        after: Revision,
        (limit, bytes): (usize, usize),
    ) -> Question {
        let (mut active, mut lost) = (vec![], vec![]);
        if let Err(error) = self.active.find(&[hash, crate::record::hash("")], |record| active.push(record)) {
            lost.push(report(&error));
        }
        let segments = self.segments.values().filter(|segment| segment.last_revision > after);
        let segments = segments.cloned().collect();
        Question { hash, key, after, limit, bytes, segments, active, lost }
    }

    /// Removes all records of the keys that `selects` names, and leaves a record of the purge for each.
    ///
    /// # Errors
    /// When a file cannot be written; then some files may still have records of it, and the purge is to be repeated.
    pub fn purge(
        &mut self,
        selects: &dyn Fn(&str) -> bool,
        exact: Option<&str>,
        by: &Attribution,
        now: i64,
    ) -> Result<Purged, ArchiveError> {
        self.finish()?;
        let mut purged = Purged::default();
        let mut keys = BTreeSet::new();
        let last = self.last().map_or(0, |(revision, _)| revision);
        for number in self.segments.keys().copied().collect::<Vec<_>>() {
            let Some(segment) = self.segments.get(&number).cloned() else { continue };
            if let Some(key) = exact
                && matches!(segment.has(hash(key)), Ok(false))
            {
                continue;
            }
            let mut left = vec![];
            let mut removed = 0;
            match segment.frames(|error| drop(report(&error))) {
                Ok(frames) => each(&frames, |record| {
                    if record.key.is_empty() || !selects(&record.key) {
                        record.write(&mut left);
                    } else {
                        removed += 1;
                        keys.insert(record.key);
                    }
                }),
                // What cannot be read may hold what is to be removed.
                Err(error) => {
                    removed += 1;
                    report(&error);
                }
            }
            if removed > 0 {
                purged.records += removed;
                purged.files += 1;
                self.replace(number, &segment.path, &left).map_err(file_error(&segment.path))?;
            }
        }
        let change = Change::Purged;
        let remark = |key: String| Record { key, change, attribution: by.clone(), ..remark_at(last, now) };
        let records: Vec<Record> = keys.into_iter().map(remark).collect();
        self.append(&records, now)?;
        Ok(purged)
    }

    /// Puts other frames into the place of a finished file's.
    fn replace(&mut self, number: u64, path: &Path, frames: &[u8]) -> io::Result<()> {
        let old = path.with_extension("old");
        fs::rename(path, &old)?;
        if frames.is_empty() {
            self.segments.remove(&number);
        } else {
            self.segments.insert(number, segment::write(path, frames)?);
        }
        kaji_files::erase(&old).map(drop)
    }
}

/// Removes an archive that no process uses; its files are overwritten. Whether there was one.
///
/// # Errors
/// When a file cannot be written or removed.
pub fn erase(dir: &Path) -> Result<bool, ArchiveError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(file_error(dir)(error)),
    };
    for entry in entries {
        let path = entry.map_err(file_error(dir))?.path();
        kaji_files::erase(&path).map_err(file_error(&path))?;
    }
    fs::remove_dir(dir).map_err(file_error(dir))?;
    Ok(true)
}

/// Removes the archive of a data directory, and those of other stores that were put aside there. How many there were.
///
/// # Errors
/// When a file cannot be written or removed.
pub fn erase_below(data_dir: &Path) -> Result<usize, ArchiveError> {
    let mut erased = 0;
    for entry in fs::read_dir(data_dir).map_err(file_error(data_dir))? {
        let path = entry.map_err(file_error(data_dir))?.path();
        let is_archive = path.file_stem().is_some_and(|stem| stem == crate::DIR) && path.is_dir();
        erased += usize::from(is_archive && erase(&path)?);
    }
    Ok(erased)
}

fn remark_at(revision: Revision, now: i64) -> Record {
    Record::remark(Change::Purged, 0, revision, now, "the history up to here was purged")
}

/// Ends a purge that a process began: the file that was replaced is there again, or gone.
fn settle_purge(old: &Path, number: u64, finished: &mut Vec<(u64, PathBuf)>) -> io::Result<()> {
    if finished.iter().any(|(other, _)| *other == number) {
        return kaji_files::erase(old).map(drop);
    }
    let path = old.with_extension("seg");
    fs::rename(old, &path)?;
    finished.push((number, path));
    Ok(())
}

fn each(frames: &[u8], mut with: impl FnMut(Record)) {
    records(frames).for_each(|(record, _)| with(record));
}

impl Question {
    /// Reads.
    pub fn answer(self) -> Found {
        let Question { hash, key, after, limit, bytes, segments, active, lost } = self;
        let mut found = Found { lost, ..Found::default() };
        let mut kept = 0;
        let mut seen = HashSet::new();
        let mut take = |record: Record, found: &mut Found| {
            let concerns = match &key {
                Some(key) => record.key == *key || record.change == Change::Gap,
                None => !record.key.is_empty(),
            };
            // A purge has the revision of the change before it.
            if !concerns
                || record.revision <= after
                || !seen.insert((record.revision, record.change.as_str()))
            {
                return;
            }
            if found.records.len() >= limit || kept >= bytes {
                found.more = true;
            } else {
                kept += record.value.len();
                found.records.push(record);
            }
        };
        for segment in segments {
            if found.more {
                break;
            }
            let mut damage = vec![];
            let (mut here, hashes) = (vec![], [hash, crate::record::hash("")]);
            let read = segment.find(&hashes, |record| here.push(record), |error| damage.push(report(&error)));
            here.into_iter().for_each(|record| take(record, &mut found));
            found.lost.append(&mut damage);
            found.lost.extend(lost_file(read));
        }
        active.into_iter().for_each(|record| take(record, &mut found));
        found
    }
}
