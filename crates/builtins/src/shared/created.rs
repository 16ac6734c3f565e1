//! The table of kinds without columns upstream: name and time of creation.

use kaji_meta::object;
use kaji_resource::{Column, name_column};
use serde_json::Value;

/// `NAME`, `CREATED AT`.
pub const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Created At",
        "date",
        0,
        "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata",
    ),
];

/// The two cells.
pub fn row(object: &Value) -> Vec<Value> {
    vec![object::name(object).into(), object::creation_timestamp(object).map_or(Value::Null, Value::from)]
}
