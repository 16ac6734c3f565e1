//! Validation of the fields of `rollingUpdate` (`maxSurge`, `maxUnavailable`). What a rolling update does is decided in the
//! crate of controllers.

use crate::shared::check;
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
};
use serde_json::Value;

/// An int or percentage of 0 or more, and at most 100%.
pub fn bounded(errs: &mut ErrorList, path: &Path, value: &Value) {
    check::int_or_percent(errs, path, value);
    check::at_most_100_percent(errs, path, value);
}

/// A strategy as messages show it: upstream's internal type, with Go's names and order of fields.
pub fn shown(ty: &str, rolling: Option<&Value>, fields: &[&str]) -> String {
    let capital = |f: &str| f[..1].to_uppercase() + &f[1..];
    let given = rolling.map_or_else(
        || "null".to_owned(),
        |r| {
            let fields =
                fields.iter().map(|f| format!("{:?}:{}", capital(f), r.get(f).unwrap_or(&Value::Null)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        },
    );
    format!("{{\"Type\":{},\"RollingUpdate\":{given}}}", Value::from(ty))
}

/// Whether an int or percentage is 0.
pub fn is_zero(value: &Value) -> bool {
    check::int_or_percent_value(value) == 0
}

/// A `maxUnavailable` that may not be 0.
pub fn not_zero(errs: &mut ErrorList, path: &Path, value: &Value) {
    check::int_or_percent(errs, path, value);
    if is_zero(value) {
        errs.push(Error::invalid(path, value.clone(), "cannot be 0"));
    }
    check::at_most_100_percent(errs, path, value);
}
