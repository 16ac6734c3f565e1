//! What is in a data directory, and whether it may be opened.
//!
//! `LOCK` is locked by the process that has the store open; `FORMAT` says that a store was made here and how its files
//! are to be read; `store.redb` is the database, and `store.redb.journal` has commits that are not in it yet. Invariants: the database gets its name only once it is complete, and
//! `FORMAT` is written after that; so a directory with `FORMAT` and without a database has lost it, and is refused. An
//! empty store is only ever made in a directory that has neither. A database that another one replaces keeps a second
//! name, `store.redb.former`, until its bytes are erased; it is not erased while it is a second name of the database in use.

use super::backend::{in_use, io_error};
use crate::StoreError;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LOCK: &str = "LOCK";
/// How long a lock that is held is tried again: by a process that is ending, or by a child of this one that has inherited it and
/// has not executed its program yet.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
const LOCK_PAUSE: Duration = Duration::from_millis(5);
const FORMAT: &str = "FORMAT";
const DATA: &str = "store.redb";
/// Commits that are not in the database yet.
const JOURNAL: &str = "store.redb.journal";
const NEW_DATA: &str = "store.redb.new";
/// The database before the one that has the name, until it is erased.
const FORMER_DATA: &str = "store.redb.former";
const CONTENT: &str = "kaji-store 2\n";
/// What `FORMAT` begins with; a number follows.
const NAME: &str = "kaji-store ";
/// The format of [`CONTENT`].
const CURRENT: u64 = 2;
/// The oldest format that is read: a store without a journal, which becomes one of the current format.
const OLDEST: u64 = 1;

/// A locked data directory.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// Locked as long as it is open; `None` where the directory is only read.
    _lock: Option<File>,
}

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing: a database has to be made, at [`Directory::new_data`].
    Nothing,
    /// A database, at [`Directory::data`].
    Store,
}

/// What `FORMAT` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// It is not there.
    Nothing,
    /// A format that this version reads.
    Known,
    /// It is damaged.
    Unreadable,
}

impl Directory {
    /// Creates the directory if need be, and locks it. Everything in the cluster, secrets included, is in there: it is for
    /// this user only.
    pub fn lock(path: &Path) -> Result<Directory, StoreError> {
        kaji_files::private_dir(path).map_err(|e| io_error(path, &e))?;
        for name in [LOCK, FORMAT, DATA, JOURNAL, NEW_DATA, FORMER_DATA] {
            let path = path.join(name);
            kaji_files::keep_private(&path).map_err(|e| io_error(&path, &e))?;
        }
        let lock_path = path.join(LOCK);
        let mut open = OpenOptions::new();
        open.create(true).truncate(false).write(true).mode(kaji_files::PRIVATE);
        let lock = open.open(&lock_path);
        let lock = lock.map_err(|e| io_error(&lock_path, &e))?;
        let start = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Directory { path: path.to_owned(), _lock: Some(lock) }),
                Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_TIMEOUT => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                Err(TryLockError::WouldBlock) => return Err(in_use(path)),
                Err(TryLockError::Error(e)) => return Err(io_error(&lock_path, &e)),
            }
        }
    }

    /// One that another process may have locked, to read its files.
    pub fn unlocked(path: &Path) -> Directory {
        Directory { path: path.to_owned(), _lock: None }
    }

    pub fn data(&self) -> PathBuf {
        self.path.join(DATA)
    }

    pub fn journal(&self) -> PathBuf {
        self.path.join(JOURNAL)
    }

    pub fn new_data(&self) -> PathBuf {
        self.path.join(NEW_DATA)
    }

    /// Reads `FORMAT`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] for a format that is newer than this version reads, and those of the file system.
    pub fn version(&self) -> Result<Version, StoreError> {
        let path = self.path.join(FORMAT);
        let content = match fs::read(&path) {
            Ok(content) => content,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Version::Nothing),
            Err(e) => return Err(io_error(&path, &e)),
        };
        let number =
            std::str::from_utf8(&content).ok().and_then(|text| text.strip_prefix(NAME)?.strip_suffix('\n'));
        match number.and_then(|number| number.parse::<u64>().ok()) {
            Some(OLDEST..=CURRENT) => Ok(Version::Known),
            Some(newer) if newer > CURRENT => Err(StoreError::Unavailable(format!(
                "{}: the store has format {newer}, of a later version; this version reads formats {OLDEST} to {CURRENT}. Start that \
                 version, or restore a snapshot into another directory",
                path.display()
            ))),
            _ => Ok(Version::Unreadable),
        }
    }

    /// Inspects what the directory holds, and refuses what cannot be a whole store.
    pub fn inspect(&self) -> Result<Found, StoreError> {
        let version = self.version()?;
        if version == Version::Unreadable {
            return Err(StoreError::Corrupt(format!(
                "{}: the file is damaged; this version reads {CONTENT:?}",
                self.path.join(FORMAT).display()
            )));
        }
        let data = self.data();
        match fs::metadata(&data) {
            // The database library would make an empty database of an empty file.
            Ok(metadata) if metadata.len() == 0 => {
                Err(StoreError::Corrupt(format!("{}: the file is empty; {RESTORE}", data.display())))
            }
            Ok(_) => self.remove_draft().map(|()| Found::Store),
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(io_error(&data, &e)),
            Err(_) if version == Version::Known => {
                Err(StoreError::Corrupt(format!("{}: the file is missing; {RESTORE}", data.display())))
            }
            Err(_) => self.remove_draft().map(|()| Found::Nothing),
        }
    }

    /// Removes a database that was not published; a process that was stopped while it made one leaves it behind.
    pub fn remove_draft(&self) -> Result<(), StoreError> {
        match kaji_files::erase(&self.new_data()) {
            Err(e) => Err(io_error(&self.new_data(), &e)),
            Ok(_) => Ok(()),
        }
    }

    /// Gives the database a second name, by which it can be erased once another one has its name.
    pub fn keep_former(&self) -> Result<(), StoreError> {
        self.erase_former()?;
        let former = self.path.join(FORMER_DATA);
        fs::hard_link(self.data(), &former).map_err(|e| io_error(&former, &e))?;
        self.sync()
    }

    /// Erases the database that was replaced, if there is one. Not before the other one is known to be whole.
    pub fn erase_former(&self) -> Result<(), StoreError> {
        let former = self.path.join(FORMER_DATA);
        let identity = |path: &Path| match fs::metadata(path) {
            Ok(found) => Ok(Some((found.dev(), found.ino()))),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(io_error(path, &e)),
        };
        let Some(found) = identity(&former)? else { return Ok(()) };
        // The other one's name lasts before this one's bytes go.
        self.sync()?;
        let erased = if identity(&self.data())? == Some(found) {
            fs::remove_file(&former)
        } else {
            kaji_files::erase(&former).map(drop)
        };
        erased.map_err(|e| io_error(&former, &e))?;
        self.sync()
    }

    /// Gives a complete database its name. That lasts once [`Directory::sync`] is done.
    pub fn publish(&self) -> Result<(), StoreError> {
        fs::rename(self.new_data(), self.data()).map_err(|e| io_error(&self.data(), &e))
    }

    /// Marks the directory as a store's of the current format, if it is not yet.
    pub fn mark(&self) -> Result<(), StoreError> {
        let path = self.path.join(FORMAT);
        if fs::read(&path).is_ok_and(|content| content == CONTENT.as_bytes()) {
            return Ok(());
        }
        kaji_files::replace(&path, CONTENT.as_bytes(), kaji_files::PRIVATE)
            .map_err(|e| io_error(&path, &e))?;
        self.sync()
    }

    /// Marks the directory as a store's, without waiting until that is on the disk.
    pub fn mark_unsynced(&self) -> Result<(), StoreError> {
        let path = self.path.join(FORMAT);
        let mut open = OpenOptions::new();
        open.write(true).create(true).truncate(true).mode(kaji_files::PRIVATE);
        let written = open.open(&path).and_then(|mut file| file.write_all(CONTENT.as_bytes()));
        written.map_err(|e| io_error(&path, &e))
    }

    /// Makes the names in the directory last.
    pub fn sync(&self) -> Result<(), StoreError> {
        File::open(&self.path).and_then(|dir| dir.sync_all()).map_err(|e| io_error(&self.path, &e))
    }
}

/// What to do about a store that lost a file.
pub(super) const RESTORE: &str = "restore it from a copy or a snapshot";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_was_a_store() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Directory::lock(&temp.path().join("a/b")).unwrap();
        assert_eq!(dir.inspect(), Ok(Found::Nothing));
        fs::write(dir.new_data(), "half").unwrap();
        assert_eq!(dir.inspect(), Ok(Found::Nothing));
        fs::write(dir.new_data(), "whole").unwrap();
        dir.publish().unwrap();
        assert_eq!(dir.inspect(), Ok(Found::Store));
        dir.mark().unwrap();
        assert_eq!(dir.inspect(), Ok(Found::Store));
        fs::write(dir.data(), "").unwrap();
        assert!(matches!(dir.inspect(), Err(StoreError::Corrupt(m)) if m.contains("empty")));
        fs::remove_file(dir.data()).unwrap();
        assert!(matches!(dir.inspect(), Err(StoreError::Corrupt(m)) if m.contains("missing")));
        fs::write(temp.path().join("a/b/FORMAT"), "kaji-store 9\n").unwrap();
        assert!(matches!(dir.inspect(), Err(StoreError::Unavailable(m)) if m.contains("format 9")));
        fs::write(temp.path().join("a/b/FORMAT"), "kaji-stora 2\n").unwrap();
        assert!(matches!(dir.inspect(), Err(StoreError::Corrupt(m)) if m.contains("damaged")));
    }

    #[test]
    fn a_lock_that_is_released_soon_is_taken_and_another_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let held = Directory::lock(temp.path()).unwrap();
        assert!(
            matches!(Directory::lock(temp.path()), Err(StoreError::Unavailable(m)) if m.contains("in use"))
        );
        // As a child does between fork and exec: it holds the lock after this process has closed the file.
        let inherited = held._lock.as_ref().unwrap().try_clone().unwrap();
        drop(held);
        let child = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(inherited);
        });
        Directory::lock(temp.path()).unwrap();
        child.join().unwrap();
    }

    #[test]
    fn a_former_database_is_erased_unless_it_is_the_one_in_use() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Directory::lock(temp.path()).unwrap();
        let at = |name: &str| temp.path().join(name);
        dir.erase_former().unwrap();
        fs::write(dir.data(), "first").unwrap();
        // Killed before the other one had the name.
        dir.keep_former().unwrap();
        dir.erase_former().unwrap();
        assert_eq!(fs::read_to_string(dir.data()).unwrap(), "first");
        // Killed after that.
        dir.keep_former().unwrap();
        fs::hard_link(dir.data(), at("witness")).unwrap();
        fs::write(dir.new_data(), "second").unwrap();
        dir.publish().unwrap();
        dir.erase_former().unwrap();
        assert_eq!(fs::read(at("witness")).unwrap(), [0; 5]);
        assert_eq!(fs::read_to_string(dir.data()).unwrap(), "second");
        assert!(!at(FORMER_DATA).exists());
    }

    #[test]
    fn one_at_a_time() {
        let temp = tempfile::tempdir().unwrap();
        let first = Directory::lock(temp.path()).unwrap();
        assert!(
            matches!(Directory::lock(temp.path()), Err(StoreError::Unavailable(m)) if m.contains("in use"))
        );
        drop(first);
        Directory::lock(temp.path()).unwrap();
    }
}
