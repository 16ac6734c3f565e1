//! Conflicts of an apply, and upstream's texts for them.

use kaji_meta::{Cause, Status, text::quote};

use super::entry::{Entry, Operation};
use crate::fieldset::{Tree, ops};

/// One field that another manager owns with another value.
#[derive(Clone, Debug)]
pub(crate) struct Conflict {
    /// Upstream's key of the manager; conflicts are listed in its order.
    key: String,
    manager: String,
    /// Path elements in canonical spelling.
    pub path: Vec<String>,
}

/// The conflicts with the manager of `entry` in `fields`.
pub(crate) fn with(entry: &Entry, fields: &Tree) -> Vec<Conflict> {
    let id = entry.id();
    let mut manager = quote(id.manager);
    if !id.subresource.is_empty() {
        manager = format!("{manager} with subresource {}", quote(id.subresource));
    }
    if id.operation == Operation::Update {
        manager = format!("{manager} using {}", id.api_version);
    }
    let key = id.key();
    let paths = ops::members(fields).into_iter();
    paths.map(|path| Conflict { key: key.clone(), manager: manager.clone(), path }).collect()
}

/// The 409 of an apply.
pub(crate) fn status(mut conflicts: Vec<Conflict>) -> Status {
    // Stable: the fields of one manager stay in the order of their set.
    conflicts.sort_by(|a, b| a.key.cmp(&b.key));
    let causes = conflicts
        .iter()
        .map(|c| Cause {
            reason: "FieldManagerConflict".into(),
            message: format!("conflict with {}", c.manager),
            field: ops::display(&c.path),
        })
        .collect();
    Status::apply_conflict(causes, message(&conflicts))
}

fn message(conflicts: &[Conflict]) -> String {
    if let [only] = conflicts {
        return format!(
            "Apply failed with 1 conflict: conflict with {}: {}",
            only.manager,
            ops::display(&only.path)
        );
    }
    let mut lines = Vec::new();
    let mut last = None;
    for conflict in conflicts {
        if last != Some(&conflict.key) {
            lines.push(format!("conflicts with {}:", conflict.manager));
            last = Some(&conflict.key);
        }
        lines.push(format!("- {}", ops::display(&conflict.path)));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}
