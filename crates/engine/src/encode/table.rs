//! Tables (meta.k8s.io `Table`): column definitions and rows.

use crate::{registry::Resource, request::ApiRequest};
use kaji_meta::{Status, field, json::write_string, object, time};
use kaji_resource::{Column, ColumnSource, name_column};
use kaji_schema::{order, types};
use serde_json::{Number, Value};
use std::borrow::Cow;

/// `includeObject`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Include {
    /// `None`: rows without objects.
    Nothing,
    /// `Metadata`, the default.
    #[default]
    Metadata,
    /// `Object`: the whole object.
    Object,
}

impl Include {
    /// Reads the query parameter.
    ///
    /// # Errors
    /// 400 for any other value.
    pub fn from_request(req: &ApiRequest) -> Result<Self, Status> {
        match req.query.first("includeObject") {
            None | Some("" | "Metadata") => Ok(Include::Metadata),
            Some("None") => Ok(Include::Nothing),
            Some("Object") => Ok(Include::Object),
            Some(other) => {
                let path = field::Path::new("includeObject");
                let text = "must be 'Metadata', 'Object', 'None', or empty";
                let error = field::Error::invalid(&path, other, text);
                Err(Status::bad_request(format!("Unable to convert to Table as requested: {error}")))
            }
        }
    }
}

/// `columnDefinitions` in JSON, with their members in the order of upstream's type.
pub(super) fn column_definitions(columns: &[Cow<'_, Column>]) -> Vec<u8> {
    let mut out = vec![b'['];
    for column in columns {
        if out.len() > 1 {
            out.push(b',');
        }
        let texts = [
            ("name", &*column.name),
            ("type", &*column.ty),
            ("format", &*column.format),
            ("description", &*column.description),
        ];
        for (i, (key, text)) in texts.into_iter().enumerate() {
            out.push(if i == 0 { b'{' } else { b',' });
            write_string(&mut out, key);
            out.push(b':');
            write_string(&mut out, text);
        }
        out.extend_from_slice(format!(r#","priority":{}}}"#, column.priority).as_bytes());
    }
    out.push(b']');
    out
}

/// The beginning of a table, up to its first row. It ends with `]}`.
pub(super) fn head(out: &mut Vec<u8>, api_version: &str, metadata: &Value, columns: &[u8]) {
    out.extend_from_slice(br#"{"kind":"Table","apiVersion":""#);
    out.extend_from_slice(api_version.as_bytes());
    out.extend_from_slice(br#"","metadata":"#);
    list_metadata(out, metadata);
    out.extend_from_slice(br#","columnDefinitions":"#);
    out.extend_from_slice(columns);
    out.extend_from_slice(br#","rows":["#);
}

/// `metadata` of a list.
pub(super) fn list_metadata(out: &mut Vec<u8>, metadata: &Value) {
    let schema = types::lookup("io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta");
    order::write(out, metadata, schema.as_deref());
}

/// The columns of a version.
pub(super) fn columns<'r>(res: &'r Resource, version: &str) -> Vec<Cow<'r, Column>> {
    match res.def.version(version).map(|v| &v.columns) {
        Some(ColumnSource::Hooks(columns)) => columns.iter().map(Cow::Borrowed).collect(),
        Some(ColumnSource::Paths(paths)) => std::iter::once(Cow::Owned(name_column()))
            .chain(paths.iter().map(|(c, _)| Cow::Borrowed(c)))
            .collect(),
        None => vec![],
    }
}

/// The cells of one object, in the version asked for.
pub(super) fn cells(res: &Resource, version: &str, value: &Value, now: jiff::Timestamp) -> Vec<Value> {
    match res.def.version(version).map(|v| &v.columns) {
        Some(ColumnSource::Paths(paths)) => {
            let mut cells = vec![Value::from(object::name(value))];
            cells.extend(paths.iter().map(|(column, path)| match path.first(value) {
                None => Value::Null,
                Some(found) => cell(&column.ty, found, now),
            }));
            cells
        }
        Some(ColumnSource::Hooks(_)) => res.def.hooks.row(version, value, now),
        None => vec![],
    }
}

/// A value found by a path, as a column of some type shows it; null when it does not fit.
fn cell(ty: &str, value: &Value, now: jiff::Timestamp) -> Value {
    match (ty, value) {
        ("string", Value::String(_)) => value.clone(),
        ("string", Value::Null) => Value::Null,
        ("string", other) => Value::from(other.to_string()),
        ("integer", Value::Number(n)) => whole(n),
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(s)) => Value::from(time::time_since(s, now)),
        _ => Value::Null,
    }
}

fn whole(n: &Number) -> Value {
    #[allow(clippy::cast_possible_truncation)] // As Go's int64(float64).
    n.as_i64().or_else(|| n.as_f64().map(|f| f as i64)).map_or(Value::Null, Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn formats_cells_by_type() {
        let now = "2024-01-01T01:00:00Z".parse().unwrap();
        for (ty, value, want) in [
            ("string", json!("a"), json!("a")),
            ("string", json!(3), json!("3")),
            ("string", json!(["a", 1]), json!("[\"a\",1]")),
            ("integer", json!(3), json!(3)),
            ("integer", json!(3.9), json!(3)),
            ("integer", json!("3"), Value::Null),
            ("number", json!(3.5), json!(3.5)),
            ("boolean", json!(true), json!(true)),
            ("boolean", json!("true"), Value::Null),
            ("date", json!("2024-01-01T00:00:00Z"), json!("60m")),
            ("date", json!(1), Value::Null),
        ] {
            assert_eq!(cell(ty, &value, now), want, "{ty} {value}");
        }
    }
}
