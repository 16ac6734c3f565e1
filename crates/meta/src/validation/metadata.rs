//! Labels, annotations, label selectors and conditions inside objects.

use super::{is_qualified_name, is_valid_label_value, regex_error};
use crate::field::{Error, ErrorList, Path};
use crate::object::{arr_at, i64_at, str_at, strs_at};
use serde_json::{Map, Value};
use std::collections::HashSet;

/// Keys and values of all annotations together, in bytes.
pub const TOTAL_ANNOTATION_SIZE_LIMIT: usize = 256 * 1024;

const MAX_REASON_LENGTH: usize = 1024;
const MAX_MESSAGE_LENGTH: usize = 32 * 1024;

fn entries(v: &Value) -> impl Iterator<Item = (&str, &str)> {
    v.as_object().into_iter().flat_map(Map::iter).map(|(k, v)| (k.as_str(), v.as_str().unwrap_or("")))
}

/// A label key that is the value of a field.
pub fn validate_label_name(key: &str, path: &Path) -> ErrorList {
    is_qualified_name(key).into_iter().map(|m| Error::invalid(path, key, m)).collect()
}

/// A map of labels (or null).
pub fn validate_labels(labels: &Value, path: &Path) -> ErrorList {
    let mut errs = ErrorList::new();
    for (key, value) in entries(labels) {
        errs.extend(validate_label_name(key, path));
        errs.extend(is_valid_label_value(value).into_iter().map(|m| Error::invalid(path, value, m)));
    }
    errs
}

/// A map of annotations (or null): label keys in any case, and 256 KiB in all.
pub fn validate_annotations(annotations: &Value, path: &Path) -> ErrorList {
    let mut errs = ErrorList::new();
    let mut size = 0;
    for (key, value) in entries(annotations) {
        size += key.len() + value.len();
        let messages = if key.bytes().any(|b| b.is_ascii_uppercase()) || !key.is_ascii() {
            is_qualified_name(&key.to_lowercase())
        } else {
            is_qualified_name(key)
        };
        errs.extend(messages.into_iter().map(|m| Error::invalid(path, key, m)));
    }
    if size > TOTAL_ANNOTATION_SIZE_LIMIT {
        errs.push(Error::too_long(path, "", TOTAL_ANNOTATION_SIZE_LIMIT));
    }
    errs
}

/// What a label selector is forgiven.
#[derive(Clone, Copy, Debug, Default)]
pub struct LabelSelectorOptions {
    /// Values need not be label values (only for objects stored before that was checked).
    pub allow_invalid_label_value: bool,
    /// Operators need not be known.
    pub allow_unknown_operator: bool,
}

/// Whether an expression of the selector has a value that no label can have.
pub fn label_selector_has_invalid_label_value(selector: &Value) -> bool {
    arr_at(selector, &["matchExpressions"])
        .iter()
        .any(|e| strs_at(e, &["values"]).any(|v| !is_valid_label_value(v).is_empty()))
}

/// A `LabelSelector` (or null).
pub fn validate_label_selector(selector: &Value, path: &Path) -> ErrorList {
    validate_label_selector_with(selector, LabelSelectorOptions::default(), path)
}

/// A `LabelSelector` (or null), with options.
pub fn validate_label_selector_with(
    selector: &Value,
    options: LabelSelectorOptions,
    path: &Path,
) -> ErrorList {
    let mut errs = ErrorList::new();
    if let Some(labels) = selector.get("matchLabels") {
        errs.extend(validate_labels(labels, &path.child("matchLabels")));
    }
    for (i, expression) in arr_at(selector, &["matchExpressions"]).iter().enumerate() {
        errs.extend(validate_requirement(expression, options, &path.child("matchExpressions").index(i)));
    }
    errs
}

fn validate_requirement(requirement: &Value, options: LabelSelectorOptions, path: &Path) -> ErrorList {
    let mut errs = ErrorList::new();
    let values = arr_at(requirement, &["values"]);
    let operator = str_at(requirement, &["operator"]);
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            errs.push(Error::required(
                &path.child("values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            ));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let msg = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errs.push(Error::forbidden(&path.child("values"), msg));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        _ if options.allow_unknown_operator => {}
        _ => errs.push(Error::invalid(&path.child("operator"), operator, "not a valid selector operator")),
    }
    errs.extend(validate_label_name(str_at(requirement, &["key"]), &path.child("key")));
    if !options.allow_invalid_label_value {
        for (i, value) in values.iter().filter_map(Value::as_str).enumerate() {
            let path = path.child("values").index(i);
            errs.extend(is_valid_label_value(value).into_iter().map(|m| Error::invalid(&path, value, m)));
        }
    }
    errs
}

fn condition_reason(value: &str) -> Vec<String> {
    let edge = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let ok = match value.as_bytes() {
        [first, rest @ ..] => {
            first.is_ascii_alphabetic()
                && rest.last().is_none_or(|b| edge(*b))
                && rest.iter().all(|b| edge(*b) || matches!(b, b',' | b':'))
        }
        [] => false,
    };
    if ok {
        return Vec::new();
    }
    let msg = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'";
    let examples = ["my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB"];
    vec![regex_error(msg, "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", &examples)]
}

/// A list of `metav1.Condition`: well-formed, and one of each type.
pub fn validate_conditions(conditions: &Value, path: &Path) -> ErrorList {
    let mut errs = ErrorList::new();
    let mut types = HashSet::new();
    for (i, condition) in arr_at(conditions, &[]).iter().enumerate() {
        let path = path.index(i);
        let ty = str_at(condition, &["type"]);
        if !types.insert(ty) {
            errs.push(Error::duplicate(&path.child("type"), ty));
        }
        errs.extend(validate_condition(condition, &path));
    }
    errs
}

fn validate_condition(condition: &Value, path: &Path) -> ErrorList {
    let mut errs = validate_label_name(str_at(condition, &["type"]), &path.child("type"));
    let status = str_at(condition, &["status"]);
    let valid = ["False", "True", "Unknown"];
    if !valid.contains(&status) {
        errs.push(Error::not_supported(&path.child("status"), status, &valid));
    }
    if let Some(observed) = i64_at(condition, &["observedGeneration"]).filter(|g| *g < 0) {
        let msg = "must be greater than or equal to zero";
        errs.push(Error::invalid(&path.child("observedGeneration"), observed, msg));
    }
    if str_at(condition, &["lastTransitionTime"]).is_empty() {
        errs.push(Error::required(&path.child("lastTransitionTime"), ""));
    }
    let reason = str_at(condition, &["reason"]);
    let reason_path = path.child("reason");
    if reason.is_empty() {
        errs.push(Error::required(&reason_path, ""));
    } else {
        errs.extend(condition_reason(reason).into_iter().map(|m| Error::invalid(&reason_path, reason, m)));
        if reason.len() > MAX_REASON_LENGTH {
            errs.push(Error::too_long(&reason_path, "", MAX_REASON_LENGTH));
        }
    }
    if str_at(condition, &["message"]).len() > MAX_MESSAGE_LENGTH {
        errs.push(Error::too_long(&path.child("message"), "", MAX_MESSAGE_LENGTH));
    }
    errs
}
