//! The request that each field of an object is from: the last that changed it.
//!
//! Invariant: a field that no recorded revision changed is from before them, and not from the first of them.

use super::{ObjectHistory, Revision, leaves, short_time};
use crate::table::align;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// A field of the last recorded state, and the request that it is from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// `.spec.replicas`
    pub path: String,
    /// Its value.
    pub value: Value,
    /// The revision; of a gap, its last. `None` for a field from before the recorded revisions.
    pub revision: Option<u64>,
    /// The first revision of the gap that it came to be in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// When; not known in a gap.
    pub time: Option<Timestamp>,
    /// The user; empty when it is not known.
    pub user: String,
    /// The field manager.
    pub field_manager: String,
}

impl Origin {
    fn new(path: String, value: Value, by: Option<&Revision>) -> Origin {
        let gap = by.filter(|by| by.change == "Gap");
        let request = by.filter(|by| by.change != "Gap");
        Origin {
            path,
            value,
            revision: by.map(|by| by.revision),
            since: gap.map(|gap| gap.since),
            time: request.map(|by| by.time),
            user: request.map(|by| by.user.clone()).unwrap_or_default(),
            field_manager: request.map(|by| by.manager.clone()).unwrap_or_default(),
        }
    }
}

/// Each field of the last recorded state, by its path.
pub fn origins(history: &ObjectHistory) -> Vec<Origin> {
    let mut known: BTreeMap<String, (Value, Option<&Revision>)> = BTreeMap::new();
    let mut missing = None;
    for revision in &history.revisions {
        match (revision.change.as_str(), &revision.state) {
            ("Gap", _) => missing = Some(revision),
            ("Deleted" | "Purged", _) => known.clear(),
            (change, Some(state)) => {
                let before = std::mem::take(&mut known);
                for (path, value) in leaves(state) {
                    let by = match before.get(&path) {
                        Some((former, by)) if *former == value => *by,
                        _ if change == "Former" => None,
                        // Any of the missing revisions may have made it.
                        _ if missing.is_some() => missing,
                        _ => Some(revision),
                    };
                    known.insert(path, (value, by));
                }
                missing = None;
            }
            (_, None) => {}
        }
    }
    known.into_iter().map(|(path, (value, by))| Origin::new(path, value, by)).collect()
}

impl ObjectHistory {
    /// The revision that last changed what `field` finds in a state; `None` if that is from before the recorded ones.
    pub(crate) fn last_change(&self, field: impl Fn(&Value) -> Option<Value>) -> Option<&Revision> {
        let (mut former, mut by, mut missing) = (None, None, None);
        for revision in &self.revisions {
            match (revision.change.as_str(), &revision.state) {
                ("Gap", _) => missing = Some(revision),
                ("Deleted" | "Purged", _) => (former, by) = (None, None),
                (change, Some(state)) => {
                    let value = field(state);
                    if value != former {
                        by = if change == "Former" { None } else { missing.or(Some(revision)) };
                    }
                    (former, missing) = (value, None);
                }
                (_, None) => {}
            }
        }
        by
    }
}

/// The same as text: revision, time, user, manager, and the field with its value.
pub fn blame(history: &ObjectHistory) -> String {
    let row = |origin: &Origin| {
        let field = format!("{}: {}", origin.path, origin.value);
        match (origin.revision, origin.since, origin.time) {
            (Some(revision), Some(since), _) => {
                [format!("{since}-{revision}"), "in a gap".into(), "?".into(), "?".into(), field]
            }
            (Some(revision), None, Some(time)) => {
                let (user, manager) = (dash(&origin.user), dash(&origin.field_manager));
                [revision.to_string(), short_time(time), user, manager, field]
            }
            _ => ["-".into(), "before".into(), "-".into(), "-".into(), field],
        }
    };
    align(&origins(history).iter().map(row).collect::<Vec<_>>())
}

fn dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}
