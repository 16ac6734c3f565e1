//! The names that a definition is accepted with: those of its spec that no other definition of its group has.
//! Source: apiextensions-apiserver, `controller/status/naming_controller.go`.

use kaji_meta::object::{str_at, strs_at};
use serde_json::{Map, Value, json};

/// Names in use in a group by others: plural, singular and short names share one space, kinds and list kinds another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Taken {
    /// Plural, singular and short names.
    pub resources: Vec<Box<str>>,
    /// Kinds and list kinds.
    pub kinds: Vec<Box<str>>,
}

impl Taken {
    /// The names in a `CustomResourceDefinitionNames` value.
    pub fn of(names: &Value) -> Self {
        let some = |fields: [&str; 2]| {
            let given = fields.map(|field| str_at(names, &[field]));
            given.into_iter().filter(|n| !n.is_empty()).map(Box::from).collect::<Vec<_>>()
        };
        let mut resources = some(["plural", "singular"]);
        resources.extend(strs_at(names, &["shortNames"]).map(Box::from));
        Taken { resources, kinds: some(["kind", "listKind"]) }
    }

    /// Adds names.
    pub fn add(&mut self, more: &Taken) {
        self.resources.extend_from_slice(&more.resources);
        self.kinds.extend_from_slice(&more.kinds);
    }
}

/// What came of a request for names.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    /// `status.acceptedNames`
    pub accepted: Value,
    /// Reason and message of the first conflict.
    pub conflict: Option<(&'static str, String)>,
}

/// Accepts what is free of `spec.names`; what is not stays as it was accepted before.
pub fn accept(definition: &Value, taken: &Taken) -> Outcome {
    let wanted = &definition["spec"]["names"];
    let before = &definition["status"]["acceptedNames"];
    let mut accepted = Map::new();
    let mut conflict: Option<(&'static str, String)> = None;
    for (field, reason) in [
        ("plural", "PluralConflict"),
        ("singular", "SingularConflict"),
        ("shortNames", "ShortNamesConflict"),
        ("kind", "KindConflict"),
        ("listKind", "ListKindConflict"),
    ] {
        let space = if matches!(field, "kind" | "listKind") { &taken.kinds } else { &taken.resources };
        let names: Vec<&str> = match &wanted[field] {
            Value::Array(_) => strs_at(wanted, &[field]).collect(),
            _ => Some(str_at(wanted, &[field])).filter(|n| !n.is_empty()).into_iter().collect(),
        };
        let clashes: Vec<String> = names
            .iter()
            .filter(|n| space.iter().any(|t| **t == ***n))
            .map(|n| format!("{n:?} is already in use"))
            .collect();
        let from = if clashes.is_empty() { wanted } else { before };
        if !from[field].is_null() {
            accepted.insert(field.to_owned(), from[field].clone());
        }
        if !clashes.is_empty() && conflict.is_none() {
            let message =
                if clashes.len() == 1 { clashes[0].clone() } else { format!("[{}]", clashes.join(", ")) };
            conflict = Some((reason, message));
        }
    }
    if !wanted["categories"].is_null() {
        accepted.insert("categories".into(), wanted["categories"].clone());
    }
    // Upstream's zero value has these two.
    for field in ["plural", "kind"] {
        accepted.entry(field).or_insert_with(|| json!(""));
    }
    Outcome { accepted: Value::Object(accepted), conflict }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition() -> Value {
        json!({"spec": {"names": {"plural": "crontabs", "singular": "crontab", "kind": "CronTab", "listKind": "CronTabList",
            "shortNames": ["ct"], "categories": ["all"]}}})
    }

    #[test]
    fn free_names_are_accepted_whole() {
        let outcome = accept(&definition(), &Taken::default());
        assert_eq!(outcome.accepted, definition()["spec"]["names"]);
        assert_eq!(outcome.conflict, None);
    }

    #[test]
    fn a_taken_name_is_left_out_and_named() {
        let taken = Taken::of(&json!({"plural": "others", "shortNames": ["ct"], "kind": "CronTab"}));
        let outcome = accept(&definition(), &taken);
        assert_eq!(outcome.conflict, Some(("ShortNamesConflict", "\"ct\" is already in use".into())));
        assert_eq!(outcome.accepted["kind"], "");
        assert!(outcome.accepted["shortNames"].is_null());
        assert_eq!(outcome.accepted["plural"], "crontabs");
    }

    #[test]
    fn what_was_accepted_stays_while_a_change_clashes() {
        let mut definition = definition();
        definition["status"]["acceptedNames"] =
            json!({"plural": "crontabs", "kind": "Old", "listKind": "OldList"});
        let taken = Taken::of(&json!({"kind": "CronTab"}));
        assert_eq!(accept(&definition, &taken).accepted["kind"], "Old");
    }
}
