//! The file that the archive appends to: frames as they are; it is compressed when it is finished.
//!
//! Compression waits until then because a write should cost little while it happens, and because many revisions of the same objects
//! compress far better together.
//!
//! Invariants: a file that was cut off anywhere is read up to its last whole frame, and goes on there; an append that fails leaves nothing.

use crate::record::{Change, Record, records};
use kaji_store::Revision;
use std::{
    collections::HashSet,
    fs::{File, OpenOptions},
    io::{self, Read},
    ops::Range,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Bytes between marks.
const MARKED: u64 = 64 << 10;

/// The file.
#[derive(Debug)]
pub(crate) struct Active {
    pub path: PathBuf,
    file: File,
    /// Its length.
    pub bytes: u64,
    /// Hash and offset of each record, in order.
    index: Vec<(u64, u64)>,
    /// Where revisions begin, about one in [`MARKED`] bytes: from the offset on, records are of the revision or later.
    marks: Vec<(Revision, u64)>,
    /// When its first record was made; `None` without one.
    pub first_time: Option<i64>,
    /// The last revision that it covers, and the hashes of the keys that it has of that.
    pub last: Option<(Revision, HashSet<u64>)>,
}

/// The frames in a part of a file.
pub(crate) fn frames_of(file: &File, range: Range<u64>) -> io::Result<Vec<u8>> {
    let mut frames = vec![0; (range.end - range.start) as usize];
    file.read_exact_at(&mut frames, range.start)?;
    Ok(frames)
}

impl Active {
    /// Opens a file, or begins it. The second value is how many bytes at its end were no whole frame, and are cut off.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn open(path: &Path) -> io::Result<(Active, u64)> {
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let mut found = vec![];
        file.read_to_end(&mut found)?;
        let (index, path) = (vec![], path.to_owned());
        let mut active = Active { path, file, bytes: 0, index, marks: vec![], first_time: None, last: None };
        for (record, length) in records(&found) {
            active.note(&record, active.bytes);
            active.bytes += length as u64;
        }
        let torn = found.len() as u64 - active.bytes;
        if torn > 0 {
            active.file.set_len(active.bytes)?;
        }
        Ok((active, torn))
    }

    fn note(&mut self, record: &Record, at: u64) {
        self.first_time.get_or_insert(record.time);
        if let Some(hash) = record.hash() {
            self.index.push((hash, at));
        }
        if record.change == Change::Former {
            return;
        }
        match &mut self.last {
            Some((last, keys)) if *last == record.revision => {
                keys.extend(record.hash());
            }
            Some((last, _)) if *last > record.revision => {}
            last => {
                *last = Some((record.revision, record.hash().into_iter().collect()));
                if self.marks.last().is_none_or(|(_, marked)| at - marked >= MARKED) {
                    self.marks.push((record.revision, at));
                }
            }
        }
    }

    /// Appends records.
    ///
    /// # Errors
    /// When they cannot be written; then none of them is.
    pub fn append(&mut self, records: &[Record]) -> io::Result<()> {
        let mut frames = vec![];
        let mut offsets = Vec::with_capacity(records.len());
        for record in records {
            offsets.push(self.bytes + frames.len() as u64);
            record.write(&mut frames);
        }
        if let Err(error) = self.file.write_all_at(&frames, self.bytes) {
            // If this fails as well, the next frames overwrite what is there, or a start cuts it off.
            let _ = self.file.set_len(self.bytes);
            return Err(error);
        }
        for (record, at) in records.iter().zip(offsets) {
            self.note(record, at);
        }
        self.bytes += frames.len() as u64;
        Ok(())
    }

    /// Has what was appended on the disk.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// The file, and the part of it that has the records of revisions after `after`.
    ///
    /// # Errors
    /// When the process has no more file descriptors.
    pub fn after(&self, after: Revision) -> io::Result<(File, Range<u64>)> {
        let later = self.marks.partition_point(|(revision, _)| *revision <= after);
        let start = later.checked_sub(1).map_or(0, |at| self.marks[at].1);
        Ok((self.file.try_clone()?, start..self.bytes))
    }

    /// All frames.
    pub fn frames(&self) -> io::Result<Vec<u8>> {
        frames_of(&self.file, 0..self.bytes)
    }

    /// Calls `with` for each record of these hashes, in order.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn find(&self, hashes: &[u64], mut with: impl FnMut(Record)) -> io::Result<()> {
        let places = self.index.iter().filter(|(hash, _)| hashes.contains(hash)).map(|(_, at)| *at);
        let places: Vec<u64> = places.collect();
        if places.is_empty() {
            return Ok(());
        }
        let frames = self.frames()?;
        for at in places {
            match Record::read(&frames[at as usize..]) {
                Some((record, _)) => with(record),
                None => {
                    let text = format!("{}: a record is damaged", self.path.display());
                    return Err(io::Error::new(io::ErrorKind::InvalidData, text));
                }
            }
        }
        Ok(())
    }
}
