//! Checking a store that no process has open, and making a new one of what is intact in it.
//!
//! Invariants: the files that are read are not changed. A key gets into the new store with its last value, or not at all: where
//! a later change of it is known to be damaged, an older value is taken only on request. What may be older than it was, because
//! changes are missing that cannot be named, is counted.

use super::damage::Damage;
use super::format::{Directory, Version};
use super::survey::Survey;
use super::{DiskOptions, restore};
use crate::mvcc::log::Loc;
use crate::{EventKind, Revision, StoreError};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A key of which the last change is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The key, as far as it can be read; `None` if it cannot.
    pub key: Option<String>,
    /// The revision of the damaged change.
    pub revision: Revision,
    /// The revision of an older value that is intact.
    pub older: Option<Revision>,
}

/// What a store's files hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkup {
    /// What is damaged; empty if nothing is.
    pub damage: Vec<Damage>,
    /// What is worth knowing and no damage.
    pub notes: Vec<String>,
    /// Pages of the database that match their checksums.
    pub pages: u64,
    /// Changes that match theirs.
    pub changes: u64,
    /// Commits that are in the journal only.
    pub journaled: u64,
    /// The store's revision; `None` if it is not known.
    pub revision: Option<Revision>,
    /// Keys with an intact last value.
    pub intact: u64,
    /// Keys, or changes of an unknown key, that are lost.
    pub lost: Vec<Lost>,
    /// Changes that are missing without a trace.
    pub missing: u64,
    /// Of the intact keys, how many were last changed before a change that is lost and cannot be attributed: they may be older than
    /// they were, or may have been deleted.
    pub uncertain: u64,
    /// The revision before which that is so.
    pub uncertain_before: Option<Revision>,
}

/// What became of a salvage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Salvaged {
    /// What the damaged store holds.
    pub checkup: Checkup,
    /// Keys in the new store.
    pub saved: u64,
    /// Of them, those with an older value than their last.
    pub older: u64,
    /// The new store's revision.
    pub revision: Revision,
}

/// What there is of a key.
#[derive(Debug, Default)]
struct Versions {
    /// The last intact change.
    last: Option<Loc>,
    /// The last damaged change.
    damaged: Option<Loc>,
}

/// What a survey says about keys.
struct Findings {
    keys: BTreeMap<Arc<str>, Versions>,
    checkup: Checkup,
}

fn findings(survey: &Survey) -> Findings {
    let mut keys = BTreeMap::<Arc<str>, Versions>::new();
    for (loc, kept) in &survey.records {
        keys.entry(kept.key.clone()).or_default().last = Some(*loc);
    }
    let mut lost = vec![];
    for suspect in &survey.suspects {
        match &suspect.key {
            Some(key) => keys.entry(key.as_str().into()).or_default().damaged = Some(suspect.at),
            None => lost.push(Lost { key: None, revision: suspect.at.revision, older: None }),
        }
    }
    let is_put = |loc: &Loc| survey.records.get(loc).is_some_and(|kept| kept.kind == EventKind::Put);
    let (mut intact, mut uncertain) = (0, 0);
    for (key, Versions { last, damaged }) in &keys {
        let older = last.filter(is_put);
        match (last, damaged) {
            (last, Some(damaged)) if last.is_none_or(|last| last < *damaged) => lost.push(Lost {
                key: Some(key.to_string()),
                revision: damaged.revision,
                older: older.map(|loc| loc.revision),
            }),
            _ => {
                let Some(last) = older else { continue };
                intact += 1;
                uncertain += u64::from(survey.unnamed_until.is_some_and(|until| last.revision < until));
            }
        }
    }
    lost.sort_by(|a, b| (a.revision, &a.key).cmp(&(b.revision, &b.key)));
    let checkup = Checkup {
        damage: survey.damage.clone(),
        notes: survey.notes.clone(),
        pages: survey.pages,
        changes: survey.records.len() as u64,
        journaled: survey.journaled,
        revision: survey.state.map(|state| state.revision),
        intact,
        lost,
        missing: survey.missing,
        uncertain,
        uncertain_before: survey.unnamed_until,
    };
    Findings { keys, checkup }
}

/// Locks a directory with a store, which is not made if it is not there.
fn existing(path: &Path) -> Result<Directory, StoreError> {
    if !path.is_dir() {
        return Err(StoreError::Invalid(format!("{} has no store", path.display())));
    }
    let directory = Directory::lock(path)?;
    match directory.version()? {
        Version::Known | Version::Unreadable => {}
        Version::Nothing if directory.data().exists() => {}
        Version::Nothing => return Err(StoreError::Invalid(format!("{} has no store", path.display()))),
    }
    Ok(directory)
}

/// Reads and checks all files of a store that no process has open. Changes nothing. Blocks.
///
/// # Errors
/// When it is in use, or is not there; damage is no error.
pub fn check(path: &Path) -> Result<Checkup, StoreError> {
    let directory = existing(path)?;
    let unreadable = directory.version()? == Version::Unreadable;
    if !directory.data().exists() {
        return Err(StoreError::Corrupt(format!("{}: the file is missing", directory.data().display())));
    }
    let mut checkup = findings(&Survey::take(&directory)?).checkup;
    if unreadable {
        checkup
            .notes
            .push("The file FORMAT is damaged. Without it, a store is read as of the current format.".into());
    }
    Ok(checkup)
}

/// Makes a new store of what is intact in a damaged one, which no process may have open and which is not changed. The new store is
/// `bump` revisions above all that is known of the damaged one, so that none is used again that a client has seen. With
/// `older_values`, keys of which the last change is damaged get the last intact value before it. Blocks.
///
/// # Errors
/// Those of [`check`]; [`StoreError::Invalid`] when there is a store already; those of a store that cannot write.
pub fn salvage(
    from: &Path,
    to: &Path,
    options: &DiskOptions,
    bump: u64,
    older_values: bool,
) -> Result<Salvaged, StoreError> {
    let directory = existing(from)?;
    let survey = Survey::take(&directory)?;
    let Findings { keys, checkup } = findings(&survey);
    let seen = survey.records.last_key_value().map_or(1, |(loc, _)| loc.revision);
    let revision = checkup.revision.unwrap_or(0).max(seen).saturating_add(bump);
    let (mut older, mut unreadable) = (0, 0);
    let mut keys = keys.into_values();
    let mut next = || loop {
        let Some(versions) = keys.next() else { return Ok(None) };
        let Some((loc, kept)) = versions.last.and_then(|loc| Some((loc, survey.records.get(&loc)?))) else {
            continue;
        };
        let is_older = versions.damaged.is_some_and(|damaged| damaged > loc);
        if kept.kind == EventKind::Delete || is_older && !older_values {
            continue;
        }
        let Some(kv) = survey.key_value(loc, kept) else {
            unreadable += 1;
            continue;
        };
        older += u64::from(is_older);
        return Ok(Some(kv));
    };
    let saved = restore::restore(to, options, revision, &mut next)?;
    if unreadable > 0 {
        return Err(StoreError::Corrupt(format!(
            "{}: {unreadable} values could be read at first and not again: the disk is failing",
            from.display()
        )));
    }
    Ok(Salvaged { checkup, saved, older, revision })
}
