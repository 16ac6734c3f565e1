//! An apply that other field managers' fields refuse: which manager holds each field, since when, and which request set it last.
//!
//! Invariant: a holder is said to be known only if `metadata.managedFields` of the object has it now.

use crate::{
    case::Case,
    conflicts::{ApplyConflicts, Holder},
    history::{ObjectHistory, Revision},
    managed_fields::{Path, holding, value_at},
    report::{Cause, Sort, some},
};
use kaji_meta::object::{self, arr_at, str_at};
use serde_json::Value;

/// Fields in one statement, and the most that their last change is looked up for.
const FIELDS: usize = 8;
/// A longer value is not repeated.
const LONGEST_VALUE: usize = 120;

/// A field that a manager holds now.
struct HeldField<'a> {
    holder: &'a Holder,
    field: &'a str,
    /// `Apply`, `Update`
    operation: &'a str,
    time: &'a str,
    path: Path,
}

fn held<'a>(object: &'a Value, conflicts: &'a ApplyConflicts) -> Vec<HeldField<'a>> {
    let fields = conflicts.holders.iter().flat_map(|holder| holder.fields.iter().map(move |f| (holder, f)));
    fields
        .filter_map(|(holder, field)| {
            let held = holding(object, &holder.manager, &holder.subresource, field)?;
            let (operation, time) = (str_at(held.entry, &["operation"]), str_at(held.entry, &["time"]));
            Some(HeldField { holder, field, operation, time, path: held.path })
        })
        .collect()
}

/// Whether any of the fields is held by the manager that the refusal names, and the refused manager has not applied since.
pub fn holds_still(object: &Value, conflicts: &ApplyConflicts, refused: &str, when: &str) -> bool {
    let has_applied = arr_at(object, &["metadata", "managedFields"]).iter().any(|entry| {
        !refused.is_empty()
            && str_at(entry, &["manager"]) == refused
            && str_at(entry, &["operation"]) == "Apply"
            && str_at(entry, &["time"]) > when
    });
    !has_applied && !held(object, conflicts).is_empty()
}

/// What holds the fields of a refused apply, and what is safe to do; `cause` has what is known of the apply.
pub async fn explained(case: &Case<'_>, conflicts: &ApplyConflicts, mut cause: Cause) -> Cause {
    let held = held(case.object, conflicts);
    let history = if held.is_empty() { None } else { history(case).await };
    for field in held.iter().take(FIELDS) {
        let HeldField { holder, field: name, operation, time, .. } = field;
        cause = cause
            .known(format!("{name} is held by {holder}, by {operation} at {time}{}", value(case, field)));
        if let Some(history) = &history {
            cause = changed(history, field, cause);
        }
    }
    for holder in &conflicts.holders {
        let gone: Vec<&str> = holder
            .fields
            .iter()
            .map(String::as_str)
            .filter(|name| !held.iter().any(|h| h.field == *name && std::ptr::eq(h.holder, holder)))
            .collect();
        if !gone.is_empty() {
            cause = cause.known(format!("{holder} does not hold {} any more", some(&gone, FIELDS)));
        }
    }
    if held.is_empty() {
        return cause.fix("apply again: no other manager holds these fields now");
    }
    fixes(case, &held, cause)
}

/// The text alone: the object is not known.
pub fn of_text(conflicts: &ApplyConflicts) -> Cause {
    let cause = Cause::new(Sort::Conflict, summary(conflicts));
    let cause = conflicts.holders.iter().fold(cause, |cause, holder| {
        let how = match holder.api_version.as_str() {
            "" => "by another apply".to_owned(),
            version => format!("by a create, update or patch of {version}"),
        };
        cause.known(format!("{} is held by {holder}, {how}", some(&holder.fields, FIELDS)))
    });
    cause
        .fix("kaji why KIND/NAME 'Apply failed …' says more: the text does not name the object")
        .fix("leave the fields out; or say the values that they have; or kubectl apply --server-side --force-conflicts takes them")
}

/// `another field manager holds .spec.replicas: scaler`
pub fn summary(conflicts: &ApplyConflicts) -> String {
    let fields: Vec<&String> = conflicts.holders.iter().flat_map(|holder| &holder.fields).collect();
    let managers: Vec<&String> = conflicts.holders.iter().map(|holder| &holder.manager).collect();
    let verb = if managers.len() == 1 { "another field manager holds" } else { "other field managers hold" };
    format!("an apply was refused: {verb} {} ({})", some(&fields, FIELDS), some(&managers, FIELDS))
}

fn value(case: &Case<'_>, field: &HeldField<'_>) -> String {
    match shown(case, field) {
        Some(value) => format!("; it is {value}"),
        None => String::new(),
    }
}

/// The value that a field has now. Values of Secrets are not repeated on a screen.
fn shown(case: &Case<'_>, field: &HeldField<'_>) -> Option<String> {
    if object::kind(case.object) == "Secret" {
        return None;
    }
    let text = value_at(case.object, &field.path)?.to_string();
    (text.len() <= LONGEST_VALUE).then_some(text)
}

/// The recorded history, where the server keeps one and the caller may read it.
async fn history(case: &Case<'_>) -> Option<ObjectHistory> {
    let (reader, discovery) = (case.reader, case.discovery);
    let found =
        ObjectHistory::of(reader.api(), discovery, case.resource, case.namespace(), case.name()).await;
    match found {
        Ok(found) => found,
        Err(error) => {
            reader.refuse(error.to_string());
            None
        }
    }
}

fn changed(history: &ObjectHistory, field: &HeldField<'_>, cause: Cause) -> Cause {
    let name = field.field;
    match history.last_change(|state| value_at(state, &field.path).cloned()) {
        Some(Revision { revision, since, change, .. }) if change == "Gap" => cause
            .known(format!("{name} was changed in revisions {since} to {revision}, which are not recorded")),
        Some(by) => {
            let agent =
                if by.user_agent.is_empty() { String::new() } else { format!(" ({})", by.user_agent) };
            cause.known(format!(
                "{name} was last changed by user {}{agent} in revision {} at {}",
                by.user(),
                by.revision,
                by.time.strftime("%Y-%m-%dT%H:%M:%SZ")
            ))
        }
        None => cause,
    }
}

fn fixes(case: &Case<'_>, held: &[HeldField<'_>], cause: Cause) -> Cause {
    let mut managers: Vec<&str> = held.iter().map(|held| held.holder.manager.as_str()).collect();
    managers.dedup();
    let with_value = |held: &HeldField<'_>| match shown(case, held) {
        Some(value) => format!("{}: {value}", held.field),
        None => held.field.to_owned(),
    };
    let names: Vec<&str> = held.iter().map(|held| held.field).collect();
    let values: Vec<String> = held.iter().map(with_value).collect();
    let (names, values, managers) = (some(&names, FIELDS), some(&values, FIELDS), some(&managers, FIELDS));
    cause
        .fix(format!("say the values that are there in the configuration ({values}): they have several managers then"))
        .fix(format!("or leave {names} out of the configuration: they stay with {managers}"))
        .fix(format!(
            "or kubectl apply --server-side --force-conflicts: it overwrites {values}, and takes them from {managers}, which may write them again"
        ))
}
