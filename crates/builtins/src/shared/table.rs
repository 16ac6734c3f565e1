//! Columns and cells of tables, as `kubectl get` shows them.

use super::value::Fields;
use kaji_meta::{labels::Selector, object, time};
use kaji_resource::Column;
use serde_json::Value;

/// The object's name.
pub fn name(v: &Value) -> Value {
    object::name(v).into()
}

/// The object's age.
pub fn age(v: &Value, now: jiff::Timestamp) -> Value {
    since(object::creation_timestamp(v), now).into()
}

/// How long ago a time was; `<unknown>` without one.
pub fn since(at: Option<&str>, now: jiff::Timestamp) -> String {
    at.and_then(parse_time).map_or_else(|| "<unknown>".to_owned(), |t| human(seconds_between(t, now)))
}

/// RFC 3339.
pub fn parse_time(s: &str) -> Option<jiff::Timestamp> {
    s.parse().ok()
}

/// Whole seconds from one time to another.
pub fn seconds_between(from: jiff::Timestamp, to: jiff::Timestamp) -> i64 {
    to.as_second() - from.as_second()
}

/// `3m5s`, `2d`, …
pub fn human(seconds: i64) -> String {
    time::human_duration(seconds)
}

/// The column of the names of a pod template's containers; `kubectl get` shows it always (priority 0) or with `-o wide` (1).
pub const fn containers_column(priority: i32) -> Column {
    Column::new("Containers", "string", priority, "Names of each container in the template.")
}

/// The column of the images of a pod template's containers, likewise.
pub const fn images_column(priority: i32) -> Column {
    Column::new("Images", "string", priority, "Images referenced by each container in the template.")
}

/// The column of a workload's label selector, with `kubectl get -o wide`.
pub const fn selector_column(description: &'static str) -> Column {
    Column::new("Selector", "string", 1, description)
}

/// Names and images of containers, each joined by commas.
pub fn containers(pod_spec: &Value) -> [Value; 2] {
    let join = |f: &str| pod_spec.list("containers").iter().map(|c| c.text(f)).collect::<Vec<_>>().join(",");
    [join("name").into(), join("image").into()]
}

/// `a=b,c=d` in order of keys; `<none>` for none.
pub fn labels(map: &Value) -> String {
    let Some(m) = map.as_object().filter(|m| !m.is_empty()) else { return "<none>".to_owned() };
    m.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or(""))).collect::<Vec<_>>().join(",")
}

/// A LabelSelector as one string; `<none>` if it selects everything.
pub fn selector(s: &Value) -> String {
    match Selector::from_label_selector(s) {
        Ok(s) => Some(s.to_string()).filter(|t| !t.is_empty()).unwrap_or_else(|| "<none>".to_owned()),
        Err(_) => "<error>".to_owned(),
    }
}

/// An int-or-string as text.
pub fn int_or_string(v: &Value) -> String {
    v.as_str().map_or_else(|| v.to_string(), str::to_owned)
}
