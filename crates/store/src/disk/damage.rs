//! What can be wrong with a store's files, in words.
//!
//! Invariant: each names a place in a file, or what is missing of what.

use crate::Revision;
use std::fmt;

/// Something that is damaged or missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// A part of the database's header.
    Header(&'static str),
    /// A table is not there.
    Table(String),
    /// A page does not match its checksum, or cannot be read.
    Page {
        /// Where it is in the file; 0 if it is not known.
        offset: u64,
        /// Its length in bytes; 0 if it is not known.
        len: u64,
        /// What it is of.
        table: String,
        /// Of the log: the changes in it, and below it, are of no lower revision than this.
        from: Option<Revision>,
        /// And of no higher one than this.
        to: Option<Revision>,
    },
    /// A change does not match its checksum.
    Change {
        /// Its revision.
        revision: Revision,
        /// Its position among those of the revision.
        position: u32,
        /// The key, as far as it can be read.
        key: Option<String>,
    },
    /// A commit in the journal that has whole ones behind it.
    Journal {
        /// Where it is in the file.
        at: u64,
    },
    /// The journal is shorter than it was.
    JournalCutOff,
    /// The journal is in use, and not there.
    NoJournal,
    /// The journal continues a later commit than the database has.
    LostCommits,
    /// The counters cannot be read.
    NoCounters,
    /// Changes are not there.
    Missing {
        /// How many.
        changes: u64,
    },
    /// There are more changes than the counters say.
    Surplus {
        /// How many more.
        changes: u64,
    },
    /// A change is of a later revision than the last.
    Later {
        /// Its revision.
        revision: Revision,
    },
    /// No change of these revisions is there.
    Revisions {
        /// The first one.
        from: Revision,
        /// The last one.
        to: Revision,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Header(what) => write!(f, "the header of the database is damaged: {what}"),
            Damage::Table(name) => write!(f, "table {name:?} is missing"),
            Damage::Page { offset, len, table, from, to } => {
                match len {
                    0 => write!(f, "a page of {table} cannot be found")?,
                    len => write!(f, "the page at {offset}, of {len} bytes, of {table} is damaged")?,
                }
                match (from, to) {
                    (None, None) => Ok(()),
                    (from, None) => write!(f, " (changes from revision {} on)", from.unwrap_or(0)),
                    (from, Some(to)) => write!(f, " (changes of revisions {} to {to})", from.unwrap_or(0)),
                }
            }
            Damage::Change { revision, position, key } => {
                write!(f, "change {revision}.{position} is damaged")?;
                key.as_ref().map_or(Ok(()), |key| write!(f, " (of {key}, as far as it can be read)"))
            }
            Damage::Journal { at } => write!(f, "the commit at {at} of the journal is damaged"),
            Damage::JournalCutOff => write!(f, "the journal was cut off"),
            Damage::NoJournal => write!(f, "the journal is missing"),
            Damage::LostCommits => {
                write!(f, "the database has lost commits: the journal continues a later one")
            }
            Damage::NoCounters => write!(f, "the counters cannot be read"),
            Damage::Missing { changes } => write!(f, "{changes} changes are missing"),
            Damage::Surplus { changes } => write!(f, "there are {changes} changes too many"),
            Damage::Later { revision } => write!(f, "change {revision} is later than the last one"),
            Damage::Revisions { from, to } if from == to => write!(f, "nothing is left of revision {from}"),
            Damage::Revisions { from, to } => write!(f, "nothing is left of revisions {from} to {to}"),
        }
    }
}
