//! The log in a redb database.
//!
//! Tables: `log` (revision, position) -> change; `leases` id -> (time to live, deadline); `times` revision -> when;
//! `meta` holds the counters under one key, and the generation of the journal under another. Invariants: every commit updates
//! the counters in the same database transaction, so a database with tables that disagree with them is damaged; commits
//! that were appended to the journal enter the database in one transaction, which also ends their generation.

use super::backend::{self, Opened, Unsynced, db_error, guarded};
use super::format::Directory;
use super::journal::{Journal, Journaled};
use super::pending::{CurrentPending, Pending};
use super::survey::verify_closed;
use super::{DiskOptions, codec};
use crate::mvcc::index::{Index, Version};
use crate::mvcc::lease::Leases;
use crate::mvcc::log::{
    Commit, LeaseRecord, Loc, Log, LogSnapshot, Reader, Record, State, TimeMark, Visit, missing,
};
use crate::mvcc::panic_text;
use crate::mvcc::writer::Loaded;
use crate::{EventKind, LeaseId, Revision, StoreError};
use redb::{Database, ReadOnlyTable, ReadableDatabase, ReadableTable, TableDefinition};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::available_parallelism;

pub(super) const LOG: TableDefinition<'_, (u64, u32), &[u8]> = TableDefinition::new("log");
pub(super) const LEASES: TableDefinition<'_, i64, (u64, u64)> = TableDefinition::new("leases");
pub(super) const TIMES: TableDefinition<'_, u64, u64> = TableDefinition::new("times");
/// Revision, compacted revision, last lease, number of changes in the log.
pub(super) const META: TableDefinition<'_, &str, (u64, u64, i64, u64)> = TableDefinition::new("meta");
pub(super) const STATE: &str = "state";
/// The generation of the journal that is not in the database, 1 while it is in use, and how long its file is then; a database without
/// has never had one.
pub(super) const JOURNAL: &str = "journal";
/// A log with fewer records is read by one thread.
const PARALLEL_LOAD: u64 = 4096;
/// More threads would wait for the disk.
const MAX_LOAD_THREADS: usize = 8;

/// The database and what must not be released before it.
pub(super) struct Files {
    /// Or why it cannot be opened.
    opened: RwLock<Result<Opened, StoreError>>,
    /// What the journal has besides.
    pending: CurrentPending,
    pub path: PathBuf,
    /// Dropped last.
    pub directory: Directory,
}

impl Drop for Files {
    fn drop(&mut self) {
        self.change(Err(StoreError::Closed));
    }
}

/// The database, as long as it is not opened anew.
pub(super) struct Current<'a>(RwLockReadGuard<'a, Result<Opened, StoreError>>);

impl Current<'_> {
    pub fn get(&self) -> Result<&Opened, StoreError> {
        self.0.as_ref().map_err(Clone::clone)
    }
}

impl Files {
    pub fn current(&self) -> Current<'_> {
        Current(self.opened.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn opened_mut(&self) -> RwLockWriteGuard<'_, Result<Opened, StoreError>> {
        self.opened.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the database; there is another one now, or none.
    pub fn change(&self, other: Result<Opened, StoreError>) {
        let former = std::mem::replace(&mut *self.opened_mut(), other);
        // Closing a damaged database can panic as well; what was acknowledged is on disk in any case.
        let closed = guarded(&self.path, || {
            drop(former);
            Ok(())
        });
        if let Err(error) = closed {
            tracing::error!(%error, "cannot close the store properly");
        }
    }

    fn error(&self, error: impl Into<redb::Error>) -> StoreError {
        db_error(&self.path, error)
    }

    fn corrupt(&self, what: impl std::fmt::Display) -> StoreError {
        StoreError::Corrupt(format!("{}: {what}", self.path.display()))
    }
}

/// See the module.
pub(super) struct DiskLog {
    pub files: Arc<Files>,
    /// Reused for every record.
    buffer: Vec<u8>,
    pub journal: Journal,
    /// The database says that the journal is in use.
    journaling: bool,
    /// What is on disk was read, so that it may be changed when this is dropped.
    pub loaded: bool,
    pub options: DiskOptions,
    pub unsynced: Unsynced,
}

/// What the journal is to be from a commit of the database on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Commits will be appended.
    Open,
    /// None will be, so that the file is of no use.
    Closed,
}

impl DiskLog {
    pub fn new(
        (opened, unsynced): (Opened, Unsynced),
        directory: Directory,
        options: DiskOptions,
    ) -> DiskLog {
        let journal = Journal::new(&directory.journal(), &options, &unsynced);
        let (path, opened, pending) = (directory.data(), RwLock::new(Ok(opened)), CurrentPending::default());
        let files = Arc::new(Files { opened, pending, path, directory });
        DiskLog { files, buffer: Vec::new(), journal, journaling: false, loaded: false, options, unsynced }
    }

    /// Brings what the journal has, of a process that did not close the store, into the database.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when the journal is damaged, and those of a store that cannot write.
    pub fn replay(&mut self) -> Result<(), StoreError> {
        let files = self.files.clone();
        let (generation, in_use, min_len) = guarded(&files.path, || {
            let tx = files.current().get()?.db.begin_read().map_err(|e| files.error(e))?;
            let meta = tx.open_table(META).map_err(|e| files.error(e))?;
            let row = meta.get(JOURNAL).map_err(|e| files.error(e))?;
            let row = row.map_or((0, 0, 0, 0), |row| row.value());
            // Former builds of this format wrote 0.
            Ok((row.0, row.1, u64::try_from(row.2).unwrap_or(0)))
        })?;
        self.journaling = in_use != 0;
        if !self.journaling && !self.journal.exists() {
            self.journal.create()?;
            files.directory.sync()?;
        }
        self.journal.open(generation)?;
        let commits = self.journal.read(if self.journaling { min_len } else { 0 })?;
        if !self.journaling || commits.is_empty() {
            return Ok(());
        }
        tracing::info!(commits = commits.len(), "the journal has commits that are not in the store's file");
        let pending = Pending::default();
        commits.into_iter().for_each(|commit| pending.push(commit));
        self.write_through(&pending, None, Use::Open)
    }

    /// Commits to the database: what is pending, then `last`. Ends the generation of the journal.
    fn write_through(
        &mut self,
        pending: &Pending,
        last: Option<&Commit<'_>>,
        journal: Use,
    ) -> Result<(), StoreError> {
        let mut min_len = 0;
        if journal == Use::Open {
            self.journal.extend()?;
            min_len = self.journal.min_len();
        }
        let (files, buffer) = (&*self.files, &mut self.buffer);
        let (current, commits) = (files.current(), pending.commits());
        let db = &current.get()?.db;
        let generation = self.journal.next_generation();
        let mut write = || -> Result<bool, redb::Error> {
            // redb's default durability: the commit returns after fsync.
            let tx = db.begin_write()?;
            let mut complete = true;
            let all = commits.iter().map(Journaled::commit);
            for commit in all.chain(last.map(|last| Commit { ..*last })) {
                complete &= write_commit(&tx, &commit, buffer)?;
            }
            let state = last.map(|last| last.state).or_else(|| commits.last().map(|last| last.state));
            write_state(&tx, state.as_ref(), (generation, u64::from(journal == Use::Open), min_len))?;
            if complete {
                tx.commit()?;
            } else {
                tx.abort()?;
            }
            Ok(complete)
        };
        if !guarded(&files.path, || write().map_err(|e| files.error(e)))? {
            return Err(files.corrupt("changes that compaction was to remove are missing"));
        }
        files.pending.clear();
        self.journal.begin(generation);
        self.journaling = journal == Use::Open;
        Ok(())
    }

    /// Leaves nothing in the journal that is not in the database.
    pub fn empty_journal(&mut self, journal: Use) -> Result<(), StoreError> {
        if !self.journaling {
            return Ok(());
        }
        let pending = self.files.pending.get();
        self.write_through(&pending, None, journal)
    }

    /// Erases what a rewriting that was cut off may have left behind.
    pub fn erase_former(&self) -> Result<(), StoreError> {
        self.files.directory.erase_former()
    }

    /// Marks the directory as a store's.
    pub fn mark(&self) -> Result<(), StoreError> {
        self.files.directory.mark()
    }

    /// Reads and checks everything, except that values are not kept.
    pub fn load(&self) -> Result<Loaded, StoreError> {
        guarded(&self.files.path, || self.read_all())
    }

    fn read_all(&self) -> Result<Loaded, StoreError> {
        let files = &*self.files;
        let tx = files.current().get()?.db.begin_read().map_err(|e| files.error(e))?;
        let state = {
            let meta = tx.open_table(META).map_err(|e| files.error(e))?;
            let state = meta.get(STATE).map_err(|e| files.error(e))?;
            let (revision, compacted, last_lease, entries) =
                state.ok_or_else(|| files.corrupt("the counters are missing"))?.value();
            State { revision, compacted, last_lease, entries }
        };
        let index = self.read_index(&tx, &state)?;
        let mut leases = Vec::new();
        let leases_table = tx.open_table(LEASES).map_err(|e| files.error(e))?;
        for row in leases_table.iter().map_err(|e| files.error(e))? {
            let (id, times) = row.map_err(|e| files.error(e))?;
            let (ttl_millis, deadline_millis) = times.value();
            leases.push((LeaseId(id.value()), LeaseRecord { ttl_millis, deadline_millis }));
        }
        let mut marks = VecDeque::new();
        let times_table = tx.open_table(TIMES).map_err(|e| files.error(e))?;
        for row in times_table.iter().map_err(|e| files.error(e))? {
            let (revision, at) = row.map_err(|e| files.error(e))?;
            marks.push_back(TimeMark { revision: revision.value(), at_millis: at.value() });
        }
        let leases = Leases::restore(state.last_lease, leases);
        let mut loaded = Loaded { state, index, leases, marks };
        loaded.attach_leases()?;
        Ok(loaded)
    }

    fn read_index(&self, tx: &redb::ReadTransaction, state: &State) -> Result<Index, StoreError> {
        let files = &*self.files;
        let log = tx.open_table(LOG).map_err(|e| files.error(e))?;
        let first = log.first().map_err(|e| files.error(e))?.map_or(0, |(key, _)| key.value().0);
        let last = log.last().map_err(|e| files.error(e))?.map_or(0, |(key, _)| key.value().0);
        if last > state.revision {
            return Err(files.corrupt(format_args!("change {last} is later than the last one")));
        }
        // Most of this is copying and checking values, which threads do side by side.
        let parts =
            if state.entries < PARALLEL_LOAD { 1 } else { available_parallelism().map_or(1, usize::from) };
        let parts = parts.min(MAX_LOAD_THREADS) as u64;
        let end = last.saturating_add(1);
        let bounds = |part: u64| first.saturating_add(end.saturating_sub(first) / parts * part);
        let ranges = (0..parts).map(|part| {
            let upper = if part + 1 == parts { end } else { bounds(part + 1) };
            (bounds(part)..upper, &log)
        });
        let read: Vec<Result<Part, StoreError>> = std::thread::scope(|scope| {
            let threads: Vec<_> = ranges
                .map(|(revisions, log)| {
                    scope.spawn(move || guarded(&files.path, || read_part(files, log, revisions)))
                })
                .collect();
            threads
                .into_iter()
                .map(|t| t.join().unwrap_or_else(|p| Err(files.corrupt(panic_text(&*p)))))
                .collect()
        });
        let mut index = Index::new(state);
        let mut entries = 0;
        for part in read {
            let part = part?;
            entries += part.len() as u64;
            part.into_iter().for_each(|(key, version)| index.apply(&key, version));
        }
        if entries != state.entries {
            return Err(files.corrupt(format_args!("{entries} changes where {} should be", state.entries)));
        }
        Ok(index)
    }
}

/// The keys and versions of some of the log's records, in order.
type Part = Vec<(Arc<str>, Version)>;

/// Reads and checks the records of some revisions.
fn read_part(
    files: &Files,
    log: &ReadOnlyTable<(u64, u32), &'static [u8]>,
    revisions: std::ops::Range<u64>,
) -> Result<Part, StoreError> {
    let mut part = Vec::new();
    let mut last = Loc { revision: 0, sub: 0 };
    let rows = ReadableTable::range(log, (revisions.start, 0)..(revisions.end, 0));
    for row in rows.map_err(|e| files.error(e))? {
        let (key, value) = row.map_err(|e| files.error(e))?;
        let (revision, sub) = key.value();
        let loc = Loc { revision, sub };
        if loc <= last || !revisions.contains(&revision) {
            return Err(files.corrupt(format_args!("change {revision}.{sub} is out of order")));
        }
        let record = codec::decode(loc, value.value())?;
        part.push((Arc::from(record.key), version(&record)));
        last = loc;
    }
    Ok(part)
}

fn version(record: &Record<'_>) -> Version {
    Version {
        revision: record.loc.revision,
        sub: record.loc.sub,
        value_len: u32::try_from(record.value.len()).unwrap_or(u32::MAX),
        create_revision: record.create_revision,
        version: if record.kind == EventKind::Delete { 0 } else { record.version },
        lease: record.lease.map_or(0, |id| id.0),
    }
}

/// Makes the tables of a new database.
pub(super) fn initialise(db: &Database, path: &Path) -> Result<(), StoreError> {
    let write = || -> Result<(), redb::Error> {
        let tx = db.begin_write()?;
        tx.open_table(LOG)?;
        tx.open_table(LEASES)?;
        tx.open_table(TIMES)?;
        write_state(&tx, Some(&State::EMPTY), (0, 0, 0))?;
        Ok(tx.commit()?)
    };
    write().map_err(|e| db_error(path, e))
}

/// Writes a part of a database that is not published yet.
pub(super) fn write_restored(db: &Database, path: &Path, commit: &Commit<'_>) -> Result<(), StoreError> {
    let write = || -> Result<(), redb::Error> {
        let tx = db.begin_write()?;
        write_commit(&tx, commit, &mut Vec::new())?;
        write_state(&tx, Some(&commit.state), (0, 0, 0))?;
        Ok(tx.commit()?)
    };
    guarded(path, || write().map_err(|e| db_error(path, e)))
}

/// Writes the counters, if they have changed, and what becomes of the journal.
fn write_state(
    tx: &redb::WriteTransaction,
    state: Option<&State>,
    (generation, in_use, min_len): (u64, u64, u64),
) -> Result<(), redb::Error> {
    let mut meta = tx.open_table(META)?;
    if let Some(state) = state {
        meta.insert(STATE, (state.revision, state.compacted, state.last_lease, state.entries))?;
    }
    meta.insert(JOURNAL, (generation, in_use, min_len.cast_signed(), 0))?;
    Ok(())
}

/// Writes the rows of a commit. Whether what it removes was there.
fn write_commit(
    tx: &redb::WriteTransaction,
    commit: &Commit<'_>,
    buffer: &mut Vec<u8>,
) -> Result<bool, redb::Error> {
    let mut complete = true;
    if !commit.entries.is_empty() || !commit.remove.is_empty() {
        let mut log = tx.open_table(LOG)?;
        for entry in commit.entries {
            codec::encode(entry, buffer);
            let loc = entry.loc();
            log.insert((loc.revision, loc.sub), buffer.as_slice())?;
        }
        for loc in commit.remove {
            complete &= log.remove((loc.revision, loc.sub))?.is_some();
        }
    }
    if !commit.leases.is_empty() {
        let mut leases = tx.open_table(LEASES)?;
        for (id, record) in commit.leases {
            match record {
                Some(r) => leases.insert(id.0, (r.ttl_millis, r.deadline_millis))?,
                None => leases.remove(id.0)?,
            };
        }
    }
    if let Some(mark) = commit.mark {
        let mut times = tx.open_table(TIMES)?;
        times.insert(mark.revision, mark.at_millis)?;
        times.retain_in(..commit.marks_from, |_, _| false)?;
    }
    Ok(complete)
}

impl Drop for DiskLog {
    /// A store that is closed needs no journal.
    fn drop(&mut self) {
        if self.loaded
            && let Err(error) = self.empty_journal(Use::Closed)
        {
            tracing::warn!(%error, "the journal is not in the store's file yet; the next start brings it there");
        }
    }
}

impl Log for DiskLog {
    fn commit(&mut self, commit: &Commit<'_>) -> Result<(), StoreError> {
        if self.journaling && self.journal.prepare(commit) {
            self.journal.append()?;
            self.files.pending.get().push(Journaled::of(commit));
            return Ok(());
        }
        // The first commit of a process says that there is a journal; one that does not fit takes the others with it.
        let pending = self.files.pending.get();
        self.write_through(&pending, Some(commit), Use::Open)
    }

    fn free(&self) -> Option<u64> {
        let said = self.options.fault.as_ref().and_then(|fault| fault.free());
        said.or_else(|| backend::free(&self.files.path))
    }

    fn reopen(&mut self) -> Result<Option<Loaded>, StoreError> {
        let files = &*self.files;
        if self.unsynced.load(Ordering::SeqCst) {
            tracing::error!(
                path = %files.path.display(),
                "an fsync has failed, so that what the system shows may not be on disk"
            );
            return Ok(None);
        }
        self.loaded = false;
        let files = &*self.files;
        if let Ok(opened) = files.current().get() {
            opened.replaced.store(true, Ordering::SeqCst);
        }
        files.change(Err(StoreError::Unavailable(format!("{} is being opened", files.path.display()))));
        verify_closed(&files.path)?;
        *files.opened_mut() = backend::open(&files.path, false, &self.options, &self.unsynced);
        self.replay()?;
        // What was pending and did not reach the disk is no more.
        self.files.pending.clear();
        let loaded = self.load()?;
        self.loaded = true;
        Ok(Some(loaded))
    }

    fn rewrite(&mut self) -> Result<Result<(), StoreError>, StoreError> {
        self.rewrite_file()
    }

    fn shrink(&mut self, index: &Index) -> Result<(), StoreError> {
        self.shrink_file(index)
    }

    fn reader(&self) -> Arc<dyn Reader> {
        Arc::new(DiskReader(self.files.clone()))
    }
}

struct DiskReader(Arc<Files>);

impl Reader for DiskReader {
    fn snapshot(&self) -> Result<Box<dyn LogSnapshot>, StoreError> {
        guarded(&self.0.path, || {
            let pending = self.0.pending.get();
            let current = self.0.current();
            let opened = current.get()?;
            let tx = opened.db.begin_read().map_err(|e| self.0.error(e))?;
            let log = tx.open_table(LOG).map_err(|e| self.0.error(e))?;
            let (path, replaced) = (self.0.path.clone(), opened.replaced.clone());
            Ok(Box::new(DiskSnapshot { log, pending, path, replaced }) as Box<dyn LogSnapshot>)
        })
    }
}

/// The table keeps its read transaction alive.
struct DiskSnapshot {
    log: ReadOnlyTable<(u64, u32), &'static [u8]>,
    pending: Arc<Pending>,
    path: PathBuf,
    /// See [`Opened`].
    replaced: Arc<AtomicBool>,
}

impl DiskSnapshot {
    fn error(&self, error: impl Into<redb::Error>) -> StoreError {
        match db_error(&self.path, error) {
            StoreError::Closed if self.replaced.load(Ordering::SeqCst) => StoreError::Unavailable(format!(
                "{}: the file was opened anew while it was read",
                self.path.display()
            )),
            other => other,
        }
    }
}

impl LogSnapshot for DiskSnapshot {
    fn get(&self, loc: Loc, visit: &mut dyn FnMut(Record<'_>)) -> Result<(), StoreError> {
        if let Some(entry) = self.pending.get(loc) {
            visit(Record::from(&entry));
            return Ok(());
        }
        guarded(&self.path, || {
            let row = ReadableTable::get(&self.log, (loc.revision, loc.sub)).map_err(|e| self.error(e))?;
            let row = row.ok_or_else(|| missing(loc))?;
            visit(codec::decode(loc, row.value())?);
            Ok(())
        })
    }

    fn scan(&self, from: Revision, to: Revision, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        guarded(&self.path, || {
            let rows = ReadableTable::range(&self.log, (from, 0)..=(to, u32::MAX));
            let mut last = None;
            for row in rows.map_err(|e| self.error(e))? {
                let (key, value) = row.map_err(|e| self.error(e))?;
                let (revision, sub) = key.value();
                let loc = Loc { revision, sub };
                if visit(codec::decode(loc, value.value())?).is_break() {
                    return Ok(());
                }
                last = Some(loc);
            }
            for entry in self.pending.range(last, from, to) {
                if visit(Record::from(&entry)).is_break() {
                    break;
                }
            }
            Ok(())
        })
    }
}
