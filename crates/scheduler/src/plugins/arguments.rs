//! The arguments that plugins take in a configuration: which fields they have, and which values are valid. What several plugins
//! have in common is here, the rest in the plugin's file.
//!
//! Invariant: checks of values see only values of the right types.
//!
//! Source: `k8s.io/kube-scheduler/config/v1`, `pkg/scheduler/apis/config/validation`.

use crate::strict::{Field, Kind, TEXT};
use kaji_meta::field::{ErrorList, Path};
use serde_json::Value;

/// The arguments of a plugin.
pub struct Arguments {
    /// Their fields, beside `apiVersion` and `kind`.
    pub fields: &'static [Field],
    /// What is wrong with their values, in upstream's words; the path is theirs.
    pub validate: fn(&Value, &Path) -> ErrorList,
}

/// Resources and their weights.
pub const RESOURCES: Kind =
    Kind::List(&Kind::Object("v1.ResourceSpec", &[("name", TEXT), ("weight", Kind::Int64)]));

/// Points of a function of utilization.
pub const SHAPE: Kind = Kind::List(&Kind::Object(
    "v1.UtilizationShapePoint",
    &[("utilization", Kind::Int32), ("score", Kind::Int32)],
));

/// The items of a list; none of what is no list.
pub fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// A text; `""` if there is none.
pub fn text<'a>(raw: &'a Value, field: &str) -> &'a str {
    raw[field].as_str().unwrap_or_default()
}

/// A whole number, or what stands for it.
pub fn number(raw: &Value, field: &str, default: i64) -> i64 {
    raw[field].as_i64().unwrap_or(default)
}
