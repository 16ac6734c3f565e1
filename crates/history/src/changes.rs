//! What changed in a namespace, or everywhere: the records of all files in the order in which they were written, a page at a time.
//!
//! Invariants:
//! - A page ends between two revisions, and the next goes on after the last of them.
//! - A page reads no more than about [`SCANNED`] bytes of records, whatever it selects: one that selects little may be empty and have
//!   another after it.
//! - Records are read without the archive's lock. A file that is finished or removed meanwhile is read as it was, or left out.

use crate::{
    active::frames_of,
    archive::{lost_file, report},
    parts_of,
    record::{Change, Record, hash, records},
    segment::Segment,
};
use kaji_meta::fields::Selector;
use kaji_store::Revision;
use std::{collections::HashSet, fs::File, io, ops::Range};

/// Bytes of records, uncompressed, that one page reads.
const SCANNED: usize = 32 << 20;

/// Which changes a page has.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Of objects in this namespace; `None` for all objects.
    pub namespace: Option<String>,
    /// Of objects of which `object.group`, `object.resource` and `object.name` fulfil this.
    pub objects: Option<Selector>,
    /// Of revisions after this one.
    pub after: Revision,
    /// Recorded at this time or later, milliseconds of the epoch.
    pub since: i64,
    /// How many of them, about: those of one revision are on one page.
    pub limit: usize,
    /// Bytes of their values, about.
    pub bytes: usize,
}

/// A page of changes.
#[derive(Debug, Default)]
pub struct Changes {
    /// In the order of revisions; gaps are between them.
    pub records: Vec<Record>,
    /// The page covers the revisions up to this one.
    pub through: Revision,
    /// There are revisions after that.
    pub more: bool,
    /// What could not be read.
    pub lost: Vec<String>,
}

/// What a page reads.
pub(crate) struct Scan {
    pub window: Window,
    /// In order.
    pub segments: Vec<Segment>,
    /// The part of the file that is appended to.
    pub active: io::Result<(File, Range<u64>)>,
    /// The last revision of the archive.
    pub last: Revision,
}

impl Window {
    fn takes(&self, record: &Record) -> bool {
        if record.time < self.since {
            return false;
        }
        if record.key.is_empty() {
            return record.change == Change::Gap;
        }
        let Some([group, resource, namespace, name]) = parts_of(&record.key) else { return false };
        let field = |field: &str| match field {
            "object.group" => group,
            "object.resource" => resource,
            "object.name" => name,
            _ => "",
        };
        self.namespace.as_deref().is_none_or(|wanted| wanted == namespace)
            && self.objects.as_ref().is_none_or(|objects| objects.matches(field))
    }
}

/// A page while it is read.
struct Page {
    window: Window,
    found: Changes,
    kept: usize,
    scanned: usize,
    /// Records of the revision that was read last.
    seen: HashSet<(u64, &'static str)>,
}

impl Page {
    /// Takes the record if the window does; false when the page is full, and the record is on the next one.
    fn take(&mut self, record: Record, length: usize) -> bool {
        self.scanned += length;
        // A former value is no change; its revision is older than what is around it.
        let is_change = !matches!(record.change, Change::Former | Change::Progress);
        if !is_change || record.revision <= self.window.after || record.revision < self.found.through {
            return true;
        }
        if record.revision > self.found.through {
            let full = self.found.records.len() >= self.window.limit || self.kept >= self.window.bytes;
            if (full || self.scanned >= SCANNED) && self.found.through > self.window.after {
                self.found.more = true;
                return false;
            }
            self.found.through = record.revision;
            self.seen.clear();
        }
        if self.window.takes(&record) && self.seen.insert((hash(&record.key), record.change.as_str())) {
            self.kept += record.value.len();
            self.found.records.push(record);
        }
        true
    }

    /// Takes records of frames until the page is full; false if it is.
    fn read(&mut self, frames: &[u8]) -> bool {
        records(frames).all(|(record, length)| self.take(record, length))
    }
}

impl Scan {
    /// Reads the page.
    pub fn answer(self) -> Changes {
        let Scan { window, segments, active, last } = self;
        let found = Changes { through: window.after, ..Changes::default() };
        let mut page = Page { window, found, kept: 0, scanned: 0, seen: HashSet::new() };
        for segment in segments {
            if page.found.more {
                break;
            }
            let mut lost = vec![];
            let read = segment.each_block(|block| match block {
                Ok(frames) => page.read(&frames),
                Err(error) => {
                    lost.push(report(&error));
                    true
                }
            });
            page.found.lost.append(&mut lost);
            page.found.lost.extend(lost_file(read));
        }
        if !page.found.more {
            match active.and_then(|(file, range)| frames_of(&file, range)) {
                Ok(frames) => drop(page.read(&frames)),
                Err(error) => page.found.lost.push(report(&error)),
            }
        }
        if !page.found.more {
            page.found.through = page.found.through.max(last);
        }
        page.found
    }
}
