//! The order in which members of objects are written: in built-in types as Go declares their fields (which is how
//! `encoding/json` writes structs), in maps and in custom resources by key.
//!
//! Invariants: nothing but the order depends on the schema, so that what is written is equal, as JSON, to what was given;
//! members that a type does not declare come last, by key. One pass, one buffer for all levels.

use std::cmp::Ordering;
use std::sync::LazyLock;

use kaji_meta::json;
use serde_json::{Map, Value};

use crate::fieldset;
use crate::schema::{Schema, SchemaRef, Type};
use crate::types;

mod text;

pub use text::{Unordered, rewrite};

/// The schema that gives the order of members of a kind's objects; none for custom resources.
pub fn of_kind(api_version: &str, kind: &str) -> Option<&'static Schema> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let entry = match group {
        "meta.k8s.io" => types::entry_in_package(types::META, kind),
        "apidiscovery.k8s.io" => types::entry_in_package("io.k8s.api.apidiscovery.v2", kind),
        _ => types::entry_for_gvk(group, version, kind),
    };
    entry.map(types::Entry::schema)
}

/// [`of_kind`] of an object's apiVersion and kind.
pub fn of(object: &Value) -> Option<&'static Schema> {
    let text = |key| object.get(key).and_then(Value::as_str);
    // The oldest discovery documents are of a kind without version.
    of_kind(text("apiVersion").unwrap_or("v1"), text("kind")?)
}

/// Appends a value in the order of `schema`.
pub fn write(out: &mut Vec<u8>, value: &Value, schema: Option<&Schema>) {
    Writer { out, members: Vec::new() }.value(value, schema);
}

/// Appends an object in the order of its kind.
pub fn write_document(out: &mut Vec<u8>, object: &Value) {
    write(out, object, of(object));
}

/// Appends an object of the API, with `metadata` if its type has that, and with whatever resourceVersion it has or with
/// none.
pub fn write_object(out: &mut Vec<u8>, object: &Map<String, Value>, schema: Option<&Schema>, revision: bool) {
    static EMPTY: LazyLock<Value> = LazyLock::new(|| Value::Object(Map::new()));
    let mut writer = Writer { out, members: Vec::with_capacity(64) };
    writer.gather(object, schema, None);
    let typed = schema.is_none_or(|s| s.property("metadata").is_some());
    if typed && !object.contains_key("metadata") {
        writer.gather_one("metadata", &EMPTY, schema);
    }
    let skipped = if revision { None } else { Some("resourceVersion") };
    writer.gathered(0, |writer, member| match member.value {
        Value::Object(meta) if member.key == "metadata" => writer.fields(meta, member.schema, skipped),
        value => writer.value(value, member.schema),
    });
}

/// What orders the members of an object.
enum Members<'s> {
    /// Those of a struct.
    Fields(&'s Schema),
    /// Those of a map, by key; the schema of its values if they have an order.
    Keys(Option<&'s Schema>),
    /// Those of a set of fields, as upstream orders path elements.
    Elements,
}

/// How the members of an object are ordered.
fn members(schema: &Schema) -> Members<'_> {
    if schema.properties.as_ref().is_some_and(|p| !p.is_empty()) {
        return Members::Fields(schema);
    }
    match (&schema.ty, &schema.additional, &schema.items) {
        (Type::SchemaOr, _, Some(one)) => Members::Fields(one.get()),
        (Type::Any, ..) if schema.short_name() == "FieldsV1" => Members::Elements,
        (_, Some(values), _) => Members::Keys(structured(values)),
        _ => Members::Keys(None),
    }
}

/// The schema, unless whatever it describes is written by key at all levels.
fn structured(schema: &SchemaRef) -> Option<&Schema> {
    let schema = schema.get();
    match schema.ty {
        Type::Object | Type::Array | Type::SchemaOr => Some(schema),
        Type::Any if schema.name.is_some() => Some(schema),
        _ => None,
    }
}

/// Place and schema of the member `key` of a struct.
fn placed<'s>(schema: &'s Schema, key: &str) -> (u16, Option<&'s Schema>) {
    schema.property(key).map_or((u16::MAX, None), |p| (p.place, structured(&p.schema)))
}

/// "." first, then as upstream orders path elements.
fn compare_elements(a: &str, b: &str) -> Ordering {
    (b == ".").cmp(&(a == ".")).then_with(|| fieldset::compare_elements(a, b))
}

/// Whether elements are ordered as their texts are: names of fields are.
fn in_order(element: &str) -> bool {
    element == "." || element.starts_with("f:")
}

#[derive(Clone, Copy)]
struct Member<'v> {
    place: u16,
    key: &'v str,
    value: &'v Value,
    schema: Option<&'v Schema>,
}

struct Writer<'o, 'v> {
    out: &'o mut Vec<u8>,
    /// Members of the enclosing objects, those of the innermost last.
    members: Vec<Member<'v>>,
}

impl<'v> Writer<'_, 'v> {
    fn value(&mut self, value: &'v Value, schema: Option<&'v Schema>) {
        match (value, schema) {
            (Value::Object(map), Some(schema)) => self.object(map, schema),
            (Value::Array(list), Some(schema)) => {
                // A place for one schema or many has the schema of either in `items`.
                let items = schema.items.as_ref().and_then(structured);
                self.list(list, items);
            }
            _ => json::write(self.out, value),
        }
    }

    fn list(&mut self, list: &'v [Value], items: Option<&'v Schema>) {
        self.out.push(b'[');
        for (i, item) in list.iter().enumerate() {
            if i > 0 {
                self.out.push(b',');
            }
            self.value(item, items);
        }
        self.out.push(b']');
    }

    fn object(&mut self, map: &'v Map<String, Value>, schema: &'v Schema) {
        match members(schema) {
            Members::Fields(schema) => self.fields(map, Some(schema), None),
            Members::Keys(None) => self.map(map, |writer, value| json::write(writer.out, value)),
            Members::Keys(values) => self.map(map, |writer, value| writer.value(value, values)),
            Members::Elements => self.elements(map),
        }
    }

    /// Members by key, which is how the map holds them.
    fn map(&mut self, map: &'v Map<String, Value>, mut each: impl FnMut(&mut Self, &'v Value)) {
        self.out.push(b'{');
        for (key, value) in map {
            self.key(key, json::write_string);
            each(self, value);
        }
        self.out.push(b'}');
    }

    fn elements(&mut self, map: &'v Map<String, Value>) {
        let each = |writer: &mut Self, value: &'v Value| match value {
            Value::Object(children) => writer.elements(children),
            other => json::write(writer.out, other),
        };
        if map.keys().all(|k| in_order(k)) {
            return self.map(map, each);
        }
        let from = self.members.len();
        self.members.extend(map.iter().map(|(key, value)| Member { place: 0, key, value, schema: None }));
        self.members[from..].sort_unstable_by(|a, b| compare_elements(a.key, b.key));
        self.put(from, |writer, member| each(writer, member.value));
    }

    /// Members in the order of a struct, or by key; without `skipped`.
    fn fields(&mut self, map: &'v Map<String, Value>, schema: Option<&'v Schema>, skipped: Option<&str>) {
        let from = self.members.len();
        self.gather(map, schema, skipped);
        self.gathered(from, |writer, member| writer.value(member.value, member.schema));
    }

    fn gather(&mut self, map: &'v Map<String, Value>, schema: Option<&'v Schema>, skipped: Option<&str>) {
        for (key, value) in map {
            if skipped != Some(key) {
                self.gather_one(key, value, schema);
            }
        }
    }

    fn gather_one(&mut self, key: &'v str, value: &'v Value, schema: Option<&'v Schema>) {
        let (place, schema) = schema.map_or((0, None), |s| placed(s, key));
        self.members.push(Member { place, key, value, schema });
    }

    fn gathered(&mut self, from: usize, each: impl FnMut(&mut Self, Member<'v>)) {
        self.members[from..].sort_unstable_by(|a, b| a.place.cmp(&b.place).then_with(|| a.key.cmp(b.key)));
        self.put(from, each);
    }

    fn put(&mut self, from: usize, mut each: impl FnMut(&mut Self, Member<'v>)) {
        self.out.push(b'{');
        for at in from..self.members.len() {
            let member = self.members[at];
            // Names that built-in types declare have nothing to escape.
            if matches!(member.place, 0 | u16::MAX) {
                self.key(member.key, json::write_string);
            } else {
                self.key(member.key, json::write_plain);
            }
            each(self, member);
        }
        self.out.push(b'}');
        self.members.truncate(from);
    }

    fn key(&mut self, name: &str, write: impl FnOnce(&mut Vec<u8>, &str)) {
        if self.out.last() != Some(&b'{') {
            self.out.push(b',');
        }
        write(self.out, name);
        self.out.push(b':');
    }
}

#[cfg(test)]
mod tests;
