//! The request that each field of an object is from: the last that changed it.
//!
//! Invariant: a field that no recorded revision changed is from before them, and not from the first of them.

use super::{ObjectHistory, Revision, align, leaves, short_time};
use serde_json::Value;
use std::collections::BTreeMap;

/// Each field of the last recorded state: revision, time, user, manager, and the field with its value.
pub fn blame(history: &ObjectHistory) -> String {
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
    let mut rows = vec![];
    for (path, (value, by)) in known {
        let field = format!("{path}: {value}");
        rows.push(match by {
            Some(by) if by.change == "Gap" => {
                let between = format!("{}-{}", by.since, by.revision);
                [between, "in a gap".into(), "?".into(), "?".into(), field]
            }
            Some(by) => {
                [by.revision.to_string(), short_time(by.time), by.user().to_owned(), dash(&by.manager), field]
            }
            None => ["-".into(), "before".into(), "-".into(), "-".into(), field],
        });
    }
    align(&rows)
}

fn dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}
