//! Names that Go's JSON decoder uses in its errors.

use crate::schema::{Format, Schema, Type};

/// The Go type of a value: "int32", "[]v1.Container", "map[string]string".
pub(super) fn name(s: &Schema) -> String {
    if let Some(name) = s.name {
        // "io.k8s.api.core.v1.PodSpec" is "v1.PodSpec".
        let mut dots = name.rmatch_indices('.').map(|(i, _)| i);
        return dots.nth(1).map_or(name, |i| &name[i + 1..]).to_string();
    }
    let element = |e: Option<&Schema>| e.map_or_else(|| "interface {}".to_string(), name);
    match s.ty {
        Type::Object => match s.additional.as_deref() {
            Some(q) if q.ty == Type::Quantity => "v1.ResourceList".into(),
            a => format!("map[string]{}", element(a.map(|a| a.get()))),
        },
        Type::Array => format!("[]{}", element(s.items.as_ref().map(|i| i.get()))),
        Type::Integer if s.format == Format::Int32 => "int32".into(),
        Type::Integer => "int64".into(),
        Type::Number => "float64".into(),
        Type::Boolean => "bool".into(),
        Type::Bytes => "[]uint8".into(),
        Type::Time => "v1.Time".into(),
        Type::MicroTime => "v1.MicroTime".into(),
        Type::Any => "interface {}".into(),
        _ => "string".into(),
    }
}

/// The kind of Go type of a value that is neither a struct, a map nor a list.
pub(super) fn basic(s: &Schema) -> &'static str {
    match s.ty {
        Type::Integer if s.format == Format::Int32 => "int32",
        Type::Integer => "int64",
        Type::Number => "float64",
        Type::Boolean => "bool",
        _ => "string",
    }
}
