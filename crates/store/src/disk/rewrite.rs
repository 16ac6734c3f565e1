//! Writing the database anew: into a new file that takes its name once it is complete, because it was larger than need be,
//! or so that nothing which was removed stays readable.
//!
//! Invariants: at any moment the file with the name is whole; until the new one has the name, the former is in use and stays
//! so if anything fails. A file that held what was to be removed is overwritten before it goes; one that was left behind by a
//! process that was killed is found by its name, and erased by the next.

use super::backend::{self, Opened, Unsynced, db_error, guarded};
use super::format::Directory;
use super::log::{DiskLog, Files, LEASES, LOG, META, TIMES, Use};
use crate::StoreError;
use crate::mvcc::index::Index;
use crate::mvcc::log::Log;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::sync::atomic::Ordering;

/// A file this small is left as it is.
const SHRINK_FROM: u64 = 32 << 20;
/// With more than this in it, making a file smaller would take too long for a start, and for the writes that wait for it.
const SHRINK_MOST: u64 = 64 << 20;

/// What a disk must have room for besides, if the file is to be written anew.
const REWRITE_RESERVE: u64 = 16 << 20;

/// A file that has taken the name of the one in use.
type Replacement = (Opened, Unsynced);

impl DiskLog {
    /// Gives back what the file is larger than what is in it, if that is much and quickly done: what is in it goes into a
    /// new file, which takes its name once it is complete. Until then the former is in use, and stays so if that fails. This takes
    /// room for a copy of what is in the file, not of the file.
    /// The former is erased if [`DiskOptions::erase_replaced`](super::DiskOptions::erase_replaced) says so.
    ///
    /// # Errors
    /// When it is not certain which of the files has the name.
    pub fn shrink_file(&mut self, index: &Index) -> Result<(), StoreError> {
        let len = std::fs::metadata(&self.files.path).map_or(0, |file| file.len());
        if len < SHRINK_FROM {
            return Ok(());
        }
        let used = index.bytes();
        let room = self.free().is_none_or(|free| free > used.saturating_add(SHRINK_FROM));
        if len / 4 < used || used > SHRINK_MOST || !room {
            return Ok(());
        }
        self.empty_journal(Use::Open)?;
        let erase = self.options.erase_replaced;
        match self.replace(|directory| if erase { directory.keep_former() } else { Ok(()) }) {
            Ok(replacement) => {
                self.adopt(replacement)?;
                let path = &self.files.path;
                if let Err(error) = self.files.directory.erase_former() {
                    tracing::warn!(%error, path = %path.display(), "the store's former file cannot be erased; the next start tries again");
                }
                let now = std::fs::metadata(path).map_or(0, |file| file.len());
                tracing::info!(path = %path.display(), before = len, now, "the store's file was rewritten");
            }
            Err(error) => {
                let Files { path, directory, .. } = &*self.files;
                tracing::warn!(%error, path = %path.display(), len, "the store's file cannot be rewritten and stays in use");
                if let Err(error) = directory.erase_former().and_then(|()| directory.remove_draft()) {
                    tracing::warn!(%error, "the unfinished copy of the store's file could not be removed; the next start removes it");
                }
            }
        }
        Ok(())
    }

    /// See [`Log::rewrite`].
    pub fn rewrite_file(&mut self) -> Result<Result<(), StoreError>, StoreError> {
        let len = std::fs::metadata(&self.files.path).map_or(0, |file| file.len());
        if let Some(free) = self.free().filter(|free| *free < len.saturating_add(REWRITE_RESERVE)) {
            return Ok(Err(StoreError::NoSpace(format!(
                "the store takes {len} bytes and is to be written anew, and the disk has {free} left"
            ))));
        }
        self.empty_journal(Use::Open)?;
        let replacement = match self.replace(Directory::keep_former) {
            Ok(replacement) => replacement,
            Err(error) => {
                let directory = &self.files.directory;
                let left = directory.erase_former().and_then(|()| directory.remove_draft());
                if let Err(left) = left {
                    tracing::warn!(error = %left, "the unfinished copy of the store's file could not be removed; the next start removes it");
                }
                return Ok(Err(error));
            }
        };
        self.adopt(replacement)?;
        Ok(self.files.directory.erase_former().and_then(|()| self.journal.erase()))
    }

    /// Makes a copy and gives it the name. `before` runs when the copy is complete and does not have the name yet.
    fn replace(
        &self,
        before: impl FnOnce(&Directory) -> Result<(), StoreError>,
    ) -> Result<Replacement, StoreError> {
        let Files { path, directory, .. } = &*self.files;
        directory.remove_draft()?;
        let made = guarded(path, || self.copy())?;
        before(directory)?;
        directory.publish()?;
        Ok(made)
    }

    /// Uses the file that has the name now.
    ///
    /// # Errors
    /// When it is not certain which of the files has the name.
    fn adopt(&mut self, (opened, unsynced): Replacement) -> Result<(), StoreError> {
        self.journal.report_to(&unsynced);
        self.unsynced = unsynced;
        if let Ok(former) = self.files.current().get() {
            former.replaced.store(true, Ordering::SeqCst);
        }
        self.files.change(Ok(opened));
        self.files.directory.sync()
    }

    /// All there is, in a new file.
    fn copy(&self) -> Result<Replacement, StoreError> {
        let (current, draft) = (self.files.current(), self.files.directory.new_data());
        let unsynced = Unsynced::default();
        let made = backend::open(&draft, true, &self.options, &unsynced)?;
        copy_tables(&current.get()?.db, &made.db).map_err(|e| db_error(&draft, e))?;
        made.complete(&draft, &self.options)?;
        Ok((made, unsynced))
    }
}

/// Fills a new database with what is in another.
fn copy_tables(from: &Database, to: &Database) -> Result<(), redb::Error> {
    fn copy<K: redb::Key, V: redb::Value>(
        (from, to): (&redb::ReadTransaction, &redb::WriteTransaction),
        table: TableDefinition<'_, K, V>,
    ) -> Result<(), redb::Error> {
        let (from, mut to) = (from.open_table(table)?, to.open_table(table)?);
        for row in from.iter()? {
            let (key, value) = row?;
            to.insert(key.value(), value.value())?;
        }
        Ok(())
    }
    let (read, write) = (from.begin_read()?, to.begin_write()?);
    let both = (&read, &write);
    copy(both, LOG)?;
    copy(both, LEASES)?;
    copy(both, TIMES)?;
    copy(both, META)?;
    Ok(write.commit()?)
}
