//! Checks that many kinds' validation is made of, with upstream's texts.
//!
//! Every check appends to a list, so that a kind's validation reads as a sequence of rules.

use super::value::Fields;
use kaji_meta::{
    Path, Quantity,
    field::{Error, ErrorList},
    labels::Selector,
    semantic_equal, validation,
};
use serde_json::Value;

/// "must be greater than or equal to 0"
pub const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
/// "must be greater than zero"
pub const NOT_POSITIVE: &str = "must be greater than zero";
/// The full name of label selectors' type.
pub const LABEL_SELECTOR: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector";
/// "field is immutable"
pub const IMMUTABLE: &str = "field is immutable";

/// One `Invalid` for each message.
pub fn each(errs: &mut ErrorList, path: &Path, value: impl Into<Value> + Copy, messages: Vec<String>) {
    errs.extend(messages.into_iter().map(|m| Error::invalid(path, value, m)));
}

/// A DNS label.
pub fn dns_label(errs: &mut ErrorList, path: &Path, value: &str) {
    each(errs, path, value, validation::is_dns1123_label(value));
}

/// A DNS subdomain.
pub fn dns_subdomain(errs: &mut ErrorList, path: &Path, value: &str) {
    each(errs, path, value, validation::is_dns1123_subdomain(value));
}

/// A qualified name (`prefix/name`).
pub fn qualified_name(errs: &mut ErrorList, path: &Path, value: &str) {
    each(errs, path, value, validation::is_qualified_name(value));
}

/// A label's key. Upstream words it as a qualified name.
pub fn label_name(errs: &mut ErrorList, path: &Path, value: &str) {
    qualified_name(errs, path, value);
}

/// 0 or more.
pub fn not_negative(errs: &mut ErrorList, path: &Path, value: i64) {
    if value < 0 {
        errs.push(Error::invalid(path, value, NOT_NEGATIVE));
    }
}

/// 0 or more, for each named field that is there.
pub fn not_negative_fields(errs: &mut ErrorList, path: &Path, object: &Value, fields: &[&str]) {
    for f in fields {
        if let Some(n) = object.opt_int(f) {
            not_negative(errs, &path.child(f), n);
        }
    }
}

/// More than 0.
pub fn positive(errs: &mut ErrorList, path: &Path, value: i64) {
    if value <= 0 {
        errs.push(Error::invalid(path, value, NOT_POSITIVE));
    }
}

/// A quantity of 0 or more. The value is shown as given.
pub fn not_negative_quantity(errs: &mut ErrorList, path: &Path, value: &Value) {
    if let Some(q) = quantity(value)
        && q.sign() < 0
    {
        errs.push(Error::invalid(path, q.to_string(), NOT_NEGATIVE));
    }
}

/// A quantity; none if absent or malformed (decoding refuses those).
pub fn quantity(value: &Value) -> Option<Quantity> {
    if value.is_null() { None } else { Quantity::from_value(value).ok() }
}

/// One of `allowed` (sorted as upstream lists them); empty is refused as an unsupported value too.
pub fn one_of(errs: &mut ErrorList, path: &Path, value: &str, allowed: &[&str]) {
    if !allowed.contains(&value) {
        errs.push(Error::not_supported(path, value, allowed));
    }
}

/// One of `allowed`; empty is a missing value.
pub fn required_one_of(errs: &mut ErrorList, path: &Path, value: &str, allowed: &[&str]) {
    if value.is_empty() {
        errs.push(Error::required(path, ""));
    } else {
        one_of(errs, path, value, allowed);
    }
}

/// A DNS label that must be there.
pub fn required_dns_label(errs: &mut ErrorList, path: &Path, value: &str) {
    if value.is_empty() {
        errs.push(Error::required(path, ""));
    } else {
        dns_label(errs, path, value);
    }
}

/// A DNS subdomain that must be there.
pub fn required_dns_subdomain(errs: &mut ErrorList, path: &Path, value: &str) {
    if value.is_empty() {
        errs.push(Error::required(path, ""));
    } else {
        dns_subdomain(errs, path, value);
    }
}

/// A string that must be there.
pub fn required(errs: &mut ErrorList, path: &Path, value: &str) {
    if value.is_empty() {
        errs.push(Error::required(path, ""));
    }
}

/// The value may not change.
pub fn immutable(errs: &mut ErrorList, path: &Path, new: &Value, old: &Value) {
    if !semantic_equal(new, old) {
        errs.push(Error::invalid(path, new.clone(), IMMUTABLE));
    }
}

/// A malformed struct, or list of structs, shown as the server's internal type; `ty` is the versioned one's full name.
pub fn invalid_struct(path: &Path, ty: &str, value: &Value, detail: impl Into<String>) -> Error {
    Error::invalid(path, Value::Null, detail).showing(kaji_schema::internal::text(ty, value))
}

/// The struct may not change. It is shown as by [`invalid_struct`].
pub fn immutable_struct(errs: &mut ErrorList, path: &Path, ty: &str, new: &Value, old: &Value) {
    if !semantic_equal(new, old) {
        errs.push(invalid_struct(path, ty, new, IMMUTABLE));
    }
}

/// A label selector may not change.
pub fn immutable_selector(errs: &mut ErrorList, path: &Path, new: &Value, old: &Value) {
    immutable_struct(errs, path, LABEL_SELECTOR, new, old);
}

/// An integer of 0 or more, or a percentage.
pub fn int_or_percent(errs: &mut ErrorList, path: &Path, value: &Value) {
    match value {
        Value::String(s) => {
            errs.extend(
                validation::is_valid_percent(s).into_iter().map(|m| Error::invalid(path, s.as_str(), m)),
            );
        }
        Value::Number(n) => not_negative(errs, path, n.as_i64().unwrap_or(0)),
        other => {
            errs.push(Error::invalid(path, other.clone(), "must be an integer or percentage (e.g '5%%')"))
        }
    }
}

/// The number in a percentage; none if it is something else.
pub fn percent(value: &Value) -> Option<i64> {
    let s = value.as_str()?;
    if !validation::is_valid_percent(s).is_empty() {
        return None;
    }
    s.strip_suffix('%')?.parse().ok()
}

/// The number in an int-or-percent, of either form; 0 for anything else.
pub fn int_or_percent_value(value: &Value) -> i64 {
    percent(value).or_else(|| value.as_i64()).or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

/// Not above 100%.
pub fn at_most_100_percent(errs: &mut ErrorList, path: &Path, value: &Value) {
    if percent(value).is_some_and(|p| p > 100) {
        errs.push(Error::invalid(path, value.clone(), "must not be greater than 100%"));
    }
}

/// An IP address in a field older than strict validation: it need not be canonical.
pub fn ip(errs: &mut ErrorList, path: &Path, value: &str, valid_old: &[&str]) {
    errs.extend(validation::validate_ip_legacy(path, value, true, valid_old));
}

/// One member of a union is set.
pub fn union(errs: &mut ErrorList, path: &Path, value: &Value, members: &[&str]) {
    let quoted = |names: &[&str]| names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    let set: Vec<&str> = members.iter().copied().filter(|member| value.has(member)).collect();
    match set.as_slice() {
        [_] => {}
        [] => errs.push(Error::invalid(path, "", format!("must specify one of: {}", quoted(members)))),
        set => {
            let text = format!("must specify exactly one of: {}", quoted(members));
            errs.push(Error::invalid(path, format!("{{{}}}", quoted(set)), text));
        }
    }
}

/// A port by number or name.
pub fn port_num_or_name(errs: &mut ErrorList, path: &Path, value: &Value) {
    match value {
        Value::String(s) => each(errs, path, s.as_str(), validation::is_valid_port_name(s)),
        other => {
            let n = other.as_i64().unwrap_or(0);
            errs.extend(validation::is_valid_port_num(n).into_iter().map(|m| Error::invalid(path, n, m)));
        }
    }
}

/// A selector that must be there, be well-formed and select something.
pub fn workload_selector(errs: &mut ErrorList, path: &Path, selector: &Value, kind: &str) {
    if selector.is_null() {
        errs.push(Error::required(path, ""));
        return;
    }
    errs.extend(validation::validate_label_selector(selector, path));
    if is_empty_selector(selector) {
        let text = format!("empty selector is invalid for {kind}");
        errs.push(invalid_struct(path, LABEL_SELECTOR, selector, text));
    }
}

/// Whether a LabelSelector names nothing.
pub fn is_empty_selector(selector: &Value) -> bool {
    selector.map("matchLabels").is_none_or(|m| m.is_empty()) && selector.list("matchExpressions").is_empty()
}

/// "`selector` does not match template `labels`", at the template's path.
pub fn selector_matches_template(errs: &mut ErrorList, path: &Path, selector: &Selector, template: &Value) {
    let labels = template.at("metadata").at("labels");
    if !selector.matches_value(labels) {
        errs.push(Error::invalid(
            &path.child("metadata").child("labels"),
            labels.clone(),
            "`selector` does not match template `labels`",
        ));
    }
}

/// Status counters that may not exceed `status.replicas`.
pub fn not_above_replicas(errs: &mut ErrorList, path: &Path, status: &Value, fields: &[&str]) {
    let replicas = status.int("replicas");
    for f in fields {
        if status.int(f) > replicas {
            errs.push(Error::invalid(
                &path.child(f),
                status.int(f),
                "cannot be greater than status.replicas",
            ));
        }
    }
}

/// `status.collisionCount` may not go down.
pub fn collision_count(errs: &mut ErrorList, new: &Value, old: &Value) {
    let count = |v: &Value| v.at("status").opt_int("collisionCount");
    if let Some(before) = count(old)
        && count(new).is_none_or(|n| n < before)
    {
        let path = Path::new("status").child("collisionCount");
        errs.push(Error::invalid(&path, count(new).unwrap_or(0), "cannot be decremented"));
    }
}
