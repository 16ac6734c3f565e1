//! What a store's files still hold, whether or not they are damaged, and what is missing: of use for a check and for a salvage.
//!
//! Sources, from the strongest: pages that match their pointers; changes with their own checksums in pages that do not; commits of the
//! journal; and the counters, which say how many changes there have to be. Invariants: nothing is written, nothing panics, and no
//! change is counted as there of which the checksum does not match; what is missing is named by key where that can be read, else by
//! revision, else by number.

use super::codec;
use super::damage::Damage;
use super::format::Directory;
use super::journal::{Journaled, first_generation, salvage_frames, synced_until};
use super::log::{JOURNAL, LEASES, LOG, META, STATE, TIMES};
use super::pages::{DamagedPage, Depth, Found, Header, PageFile, Pointer, Row, Slot, Table};
use crate::mvcc::log::{Loc, State};
use crate::{EventKind, KeyValue, LeaseId, Revision, StoreError};
use bytes::Bytes;
use redb::TableHandle;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longer ones are no keys of objects.
const KEY_LIMIT: usize = 1024;
/// Where a change has its key, and where the key's length is.
const KEY_AT: usize = 45;
const KEY_LEN_AT: usize = 5;

/// An intact change.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub key: Arc<str>,
    pub kind: EventKind,
    pub create_revision: Revision,
    pub version: u64,
    pub lease: Option<LeaseId>,
    location: ValueLocation,
}

/// Where its value is.
#[derive(Clone, Debug)]
enum ValueLocation {
    /// The whole change, in the file.
    File { at: u64, len: u64 },
    /// From the journal.
    Memory(Bytes),
}

/// A change that is damaged.
#[derive(Clone, Debug)]
pub(super) struct Suspect {
    /// As far as it can be read, which may be wrong.
    pub key: Option<String>,
    /// Where the page says that it is.
    pub at: Loc,
}

/// Counters of the journal, and others.
type Meta = BTreeMap<String, (u64, u64, i64, u64)>;

/// What a commit of the database holds.
#[derive(Debug, Default)]
struct Contents {
    damage: Vec<Damage>,
    pages: u64,
    meta: Meta,
    records: BTreeMap<Loc, Kept>,
    suspects: Vec<Suspect>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Survey {
    file: PageFile,
    pub damage: Vec<Damage>,
    pub notes: Vec<String>,
    /// Pages that match.
    pub pages: u64,
    /// Commits of the journal that are not in the database.
    pub journaled: u64,
    /// The counters; `None` if they are lost.
    pub state: Option<State>,
    pub records: BTreeMap<Loc, Kept>,
    pub suspects: Vec<Suspect>,
    /// Changes that are missing, and of which nothing is known but perhaps the revision.
    pub missing: u64,
    /// Runs of revisions of which no change is there.
    pub lost_revisions: Vec<(Revision, Revision)>,
    /// The latest revision that a change which cannot be named may have.
    pub unnamed_until: Option<Revision>,
}

impl Survey {
    /// Reads everything.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn take(directory: &Directory) -> Result<Survey, StoreError> {
        let file = PageFile::open(&directory.data())?;
        let (mut notes, mut damage) = (vec![], header_damage(&file.header));
        let Contents { damage: more, pages, meta, records, suspects } = choose(&file, &mut notes);
        damage.extend(more);
        let state = meta.get(STATE).map(|&(revision, compacted, last_lease, entries)| State {
            revision,
            compacted,
            last_lease,
            entries,
        });
        let mut survey = Survey {
            file,
            damage,
            notes,
            pages,
            journaled: 0,
            state,
            records,
            suspects,
            missing: 0,
            lost_revisions: vec![],
            unnamed_until: None,
        };
        // A store of the first format has no such row, and no journal.
        let journal = meta.get(JOURNAL).map(|row| (row.0, row.1 != 0, u64::try_from(row.2).unwrap_or(0)));
        survey.read_journal(directory, journal.or(survey.state.map(|_| (0, false, 0))))?;
        survey.count();
        Ok(survey)
    }

    fn read_journal(
        &mut self,
        directory: &Directory,
        known: Option<(u64, bool, u64)>,
    ) -> Result<(), StoreError> {
        let bytes = match std::fs::read(directory.journal()) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                if known.is_none_or(|(_, in_use, _)| in_use) {
                    self.damage.push(Damage::NoJournal);
                }
                return Ok(());
            }
            Err(e) => return Err(super::backend::io_error(&directory.journal(), &e)),
        };
        let first = first_generation(&bytes);
        let generation = match (known, first) {
            (Some((known, ..)), Some(first)) if first > known => {
                self.damage.push(Damage::LostCommits);
                first
            }
            (Some((known, true, _)), _) => known,
            (None, Some(first)) => first,
            (Some((_, false, _)) | None, _) => return Ok(()),
        };
        let frames = salvage_frames(generation, &bytes);
        self.damage.extend(frames.damaged.iter().map(|at| Damage::Journal { at: *at }));
        match synced_until(generation, &bytes, known.map_or(0, |(.., min_len)| min_len)) {
            None => self.damage.push(Damage::JournalCutOff),
            Some(synced) if synced > frames.end => self.damage.push(Damage::Journal { at: frames.end }),
            Some(_) => {}
        }
        if let Some(at) = frames.incomplete {
            self.notes.push(format!(
                "The last commit of the journal, at {at}, is not whole: a process was killed while it wrote it, before it was \
                 acknowledged, or it is damaged."
            ));
        }
        for commit in frames.commits {
            self.apply(commit);
        }
        Ok(())
    }

    fn apply(&mut self, commit: Journaled) {
        let later = self.state.is_none_or(|state| commit.state.revision >= state.revision);
        if !later {
            return;
        }
        self.journaled += 1;
        self.state = Some(commit.state);
        for entry in commit.entries {
            let kv = entry.event.kv.clone();
            let kept = Kept {
                key: kv.key,
                kind: entry.event.kind,
                create_revision: kv.create_revision,
                version: kv.version,
                lease: kv.lease,
                location: ValueLocation::Memory(kv.value),
            };
            self.records.insert(entry.loc(), kept);
        }
        for loc in commit.remove {
            self.records.remove(&loc);
            self.suspects.retain(|suspect| suspect.at != loc);
        }
    }

    /// Compares what is there with the counters.
    fn count(&mut self) {
        let Some(state) = self.state else {
            self.damage.push(Damage::NoCounters);
            self.unnamed_until = Some(Revision::MAX);
            return;
        };
        let found = (self.records.len() + self.suspects.len()) as u64;
        self.missing = state.entries.saturating_sub(found);
        if self.missing > 0 {
            self.damage.push(Damage::Missing { changes: self.missing });
        }
        if found > state.entries {
            self.damage.push(Damage::Surplus { changes: found - state.entries });
        }
        let last = self.records.last_key_value().map_or(0, |(loc, _)| loc.revision);
        if last > state.revision {
            self.damage.push(Damage::Later { revision: last });
        }
        let suspects = self.suspects.iter().map(|suspect| suspect.at.revision);
        let mut there: Vec<Revision> = self.records.keys().map(|loc| loc.revision).chain(suspects).collect();
        there.sort_unstable();
        // Each revision that is not compacted has a change.
        let mut next = state.compacted.max(State::EMPTY.revision).saturating_add(1);
        for revision in there.into_iter().filter(|revision| *revision <= state.revision) {
            if revision > next {
                self.lost_revisions.push((next, revision - 1));
            }
            next = next.max(revision.saturating_add(1));
        }
        if next <= state.revision {
            self.lost_revisions.push((next, state.revision));
        }
        self.damage.extend(self.lost_revisions.iter().map(|&(from, to)| Damage::Revisions { from, to }));
        self.unnamed_until = self.unnamed(&state);
    }

    fn unnamed(&self, state: &State) -> Option<Revision> {
        let pages = self.damage.iter().filter_map(|damage| match damage {
            Damage::Page { table, to, .. } if self.missing > 0 && table == LOG.name() => {
                Some(to.unwrap_or(state.revision))
            }
            _ => None,
        });
        let suspects = self.suspects.iter().map(|suspect| suspect.at.revision);
        let lost = self.lost_revisions.iter().map(|lost| lost.1);
        let known = pages.chain(suspects).chain(lost).max();
        // Changes are missing, and no damage shows from where.
        let anywhere = self.damage.iter().any(|damage| {
            use Damage::{Header, Journal, JournalCutOff, LostCommits, NoJournal, Surplus, Table};
            matches!(
                damage,
                LostCommits
                    | NoJournal
                    | JournalCutOff
                    | Journal { .. }
                    | Header(_)
                    | Table(_)
                    | Surplus { .. }
            )
        });
        let anywhere = anywhere || self.missing > 0 && known.is_none();
        // What comes after all that is known counts as well.
        if anywhere { Some(Revision::MAX) } else { known }
    }

    /// Reads a change's value again; `None` if that is not possible any more.
    pub fn key_value(&self, loc: Loc, kept: &Kept) -> Option<KeyValue> {
        let value = match &kept.location {
            ValueLocation::Memory(value) => value.clone(),
            ValueLocation::File { at, len } => {
                let bytes = self.file.read(*at..at.checked_add(*len)?)?;
                codec::decode(loc, &bytes).ok()?.value.to_bytes()
            }
        };
        Some(KeyValue {
            key: kept.key.clone(),
            value,
            create_revision: kept.create_revision,
            mod_revision: loc.revision,
            version: kept.version,
            lease: kept.lease,
        })
    }
}

fn header_damage(header: &Header) -> Vec<Damage> {
    let mut damage = vec![];
    if !header.intact {
        damage.push(Damage::Header("its fixed part"));
    }
    match header.by_age() {
        (None, _) => damage.push(Damage::Header("both commit slots")),
        // The last commit of a process that was killed may be half there; that of one that was not is whole.
        _ if header.lost_slot => damage.push(Damage::Header("a commit slot")),
        _ => {}
    }
    damage
}

/// What the last commit holds, or the one before, if the last one is not whole.
fn choose(file: &PageFile, notes: &mut Vec<String>) -> Contents {
    let (last, before) = file.header.by_age();
    let Some(last) = last else { return Contents::default() };
    let contents = contents(file, last);
    if contents.damage.is_empty() {
        return contents;
    }
    let Some(before) = before else { return contents };
    let earlier = self::contents(file, before);
    if file.header.closed {
        // Both have the same, or nearly so; but only one is the last.
        return if contents.meta.contains_key(STATE) || earlier.records.len() < contents.records.len() {
            contents
        } else {
            Contents { damage: contents.damage.into_iter().chain(earlier.damage).collect(), ..earlier }
        };
    }
    if earlier.damage.is_empty() {
        notes.push(
            "The last commit of the database is not whole: a process was killed while it wrote it, before it was acknowledged. \
             The one before counts."
                .into(),
        );
        return earlier;
    }
    contents
}

fn contents(file: &PageFile, slot: Slot) -> Contents {
    let mut contents = Contents::default();
    let tables = contents.tables(file, slot.user, "the list of tables");
    for name in [LOG.name(), LEASES.name(), TIMES.name(), META.name()] {
        match tables.iter().find(|table| table.name == name) {
            Some(table) => contents.table(file, table),
            None => contents.damage.push(Damage::Table(name.to_owned())),
        }
    }
    if slot.system.is_some() {
        for table in contents.tables(file, slot.system, "the list of the database's own tables") {
            contents.table(file, &Table { name: format!("{} of the database", table.name), ..table });
        }
    }
    contents
}

impl Contents {
    fn tables(&mut self, file: &PageFile, root: Option<Pointer>, what: &str) -> Vec<Table> {
        let Some(root) = root else { return vec![] };
        let (tables, damaged, pages) = file.tables(root);
        self.pages += pages;
        self.damage.extend(damaged.into_iter().map(|page| page_damage(what, &page)));
        tables
    }

    fn table(&mut self, file: &PageFile, table: &Table) {
        let Some(root) = table.root else { return };
        let name = table.name.as_str();
        let (mut damage, mut suspects) = (vec![], vec![]);
        let (records, meta) = (&mut self.records, &mut self.meta);
        let pages = file.walk(root, table.widths, Depth::Rows, &mut |found| match found {
            Found::Damaged(page) => damage.push(page_damage(name, &page)),
            Found::Row(row) if name == LOG.name() => match change(row) {
                Ok((loc, kept)) => drop(records.insert(loc, kept)),
                Err(Some(suspect)) => suspects.push(suspect),
                Err(None) => {}
            },
            Found::Row(row) if name == META.name() && row.intact => meta.extend(counters(row)),
            Found::Row(_) => {}
        });
        self.pages += pages;
        self.damage.extend(damage);
        for suspect in &suspects {
            let (revision, position) = (suspect.at.revision, suspect.at.sub);
            self.damage.push(Damage::Change { revision, position, key: suspect.key.clone() });
        }
        self.suspects.extend(suspects);
    }
}

fn location(key: &[u8]) -> Option<Loc> {
    let (revision, sub) = key.split_first_chunk::<8>()?;
    Some(Loc { revision: u64::from_le_bytes(*revision), sub: u32::from_le_bytes(sub.try_into().ok()?) })
}

/// A change of the log; or where one is that is damaged, if the page says that.
fn change(row: Row<'_>) -> Result<(Loc, Kept), Option<Suspect>> {
    let at = location(row.key).ok_or(None)?;
    match codec::decode(at, row.value) {
        Ok(record) => {
            let kept = Kept {
                key: record.key.into(),
                kind: record.kind,
                create_revision: record.create_revision,
                version: record.version,
                lease: record.lease,
                location: ValueLocation::File { at: row.value_at, len: row.value.len() as u64 },
            };
            Ok((at, kept))
        }
        Err(_) => Err(Some(Suspect { key: key_guess(row.value), at })),
    }
}

/// The key of a damaged change, as far as it can be read.
fn key_guess(value: &[u8]) -> Option<String> {
    let len = u32::from_le_bytes(*value.get(KEY_LEN_AT..)?.first_chunk()?) as usize;
    let key = value.get(KEY_AT..)?.get(..len.min(KEY_LIMIT))?;
    let key = std::str::from_utf8(key).ok()?;
    (key.starts_with('/') && !key.contains(char::is_control)).then(|| key.to_owned())
}

fn counters(row: Row<'_>) -> Option<(String, (u64, u64, i64, u64))> {
    let number = |at: usize| Some(u64::from_le_bytes(*row.value.get(at..)?.first_chunk()?));
    let numbers = (number(0)?, number(8)?, number(16)?.cast_signed(), number(24)?);
    Some((std::str::from_utf8(row.key).ok()?.to_owned(), numbers))
}

fn page_damage(table: &str, page: &DamagedPage) -> Damage {
    let log = table == LOG.name();
    let revision =
        |key: &Option<Vec<u8>>| key.as_deref().filter(|_| log).and_then(location).map(|at| at.revision);
    Damage::Page {
        offset: page.offset,
        len: page.len,
        table: table.to_owned(),
        from: revision(&page.keys.0),
        to: revision(&page.keys.1),
    }
}

/// Refuses a database that was closed and of which a page is damaged that nothing else would notice: all but those of changes, which
/// have checksums of their own. One that was not closed is checked as a whole by the database library.
///
/// # Errors
/// [`StoreError::Corrupt`], and those of the file system.
pub(super) fn verify_closed(path: &std::path::Path) -> Result<(), StoreError> {
    let file = PageFile::open(path)?;
    if !file.header.intact {
        // The library says what is wrong with a header that it cannot read.
        return Ok(());
    }
    let mut damage = header_damage(&file.header);
    if !file.header.closed && damage.is_empty() {
        return Ok(());
    }
    if let Some(slot) = file.header.by_age().0 {
        for root in [slot.user, slot.system].into_iter().flatten() {
            let (tables, damaged, _) = file.tables(root);
            damage.extend(damaged.iter().map(|page| page_damage("the list of tables", page)));
            for Table { name, root, widths } in tables {
                let Some(root) = root else { continue };
                let depth = if name == LOG.name() { Depth::Branches } else { Depth::Rows };
                file.walk(root, widths, depth, &mut |found| {
                    if let Found::Damaged(page) = found {
                        damage.push(page_damage(&name, &page));
                    }
                });
            }
        }
    }
    match damage.first() {
        None => Ok(()),
        Some(first) => Err(StoreError::Corrupt(format!("{}: {first}", path.display()))),
    }
}
