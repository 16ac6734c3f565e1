//! Schemas of built-in types, in the v3 form, with everything that they refer to.

use std::collections::BTreeMap;

use kaji_meta::GroupVersion;
use serde_json::{Map, Value, json};

use crate::schema::{Format, ListKind, MapKind, Property, Schema, SchemaRef, Type};
use crate::types::{self, Entry};

use super::{Docs, Model, custom, gvk};

/// References in v3 documents begin so.
pub(super) const PREFIX: &str = "#/components/schemas/";

/// The schemas of a document, collected.
pub(super) struct Components<'a> {
    docs: Docs<'a>,
    versions: &'a [GroupVersion],
    done: BTreeMap<String, Value>,
}

impl<'a> Components<'a> {
    /// `versions`: the group-versions that the document is about.
    pub(super) fn new(docs: Docs<'a>, versions: &'a [GroupVersion]) -> Components<'a> {
        Components { docs, versions, done: BTreeMap::new() }
    }

    /// Adds a type and everything that it refers to.
    pub(super) fn add(&mut self, model: Model<'_>) {
        match model {
            Model::BuiltIn(e) => self.entry(e),
            Model::Custom(c) => {
                self.done.extend(custom::definitions_v3(c, self.docs));
                custom::REFERENCES.iter().for_each(|r| self.add_named(r));
            }
        }
    }

    /// Adds a built-in type by its full name.
    pub(super) fn add_named(&mut self, name: &str) {
        if let Some(e) = types::entry(name) {
            self.entry(e);
        }
    }

    /// All schemas, by name.
    pub(super) fn finish(self) -> Map<String, Value> {
        self.done.into_iter().collect()
    }

    fn entry(&mut self, e: &'static Entry) {
        if self.done.contains_key(e.name()) {
            return;
        }
        // Types refer to themselves: note the name before descending.
        self.done.insert(e.name().to_string(), Value::Null);
        let mut out = Map::new();
        describe(&mut out, (self.docs)(e.name(), None));
        let schema = e.schema();
        match schema.ty {
            Type::Quantity => {
                drop(out.insert("oneOf".into(), json!([{"type": "string"}, {"type": "number"}])))
            }
            Type::IntOrString => {
                out.insert("format".into(), "int-or-string".into());
                out.insert("oneOf".into(), json!([{"type": "integer"}, {"type": "string"}]));
            }
            Type::Time | Type::MicroTime => {
                out.insert("type".into(), "string".into());
                out.insert("format".into(), "date-time".into());
            }
            Type::Any if e.short_name() != "JSON" => drop(out.insert("type".into(), "object".into())),
            Type::Any => {}
            Type::SchemaOr => self.references(schema),
            _ => self.object(e, schema, &mut out),
        }
        self.done.insert(e.name().to_string(), Value::Object(out));
    }

    fn object(&mut self, e: &'static Entry, schema: &Schema, out: &mut Map<String, Value>) {
        out.insert("type".into(), "object".into());
        let properties: Map<String, Value> = schema
            .properties
            .iter()
            .flatten()
            .map(|p| (p.name.to_string(), self.property(e.name(), p)))
            .collect();
        if !properties.is_empty() {
            out.insert("properties".into(), Value::Object(properties));
        }
        if !schema.required.is_empty() {
            out.insert("required".into(), schema.required.iter().map(|r| Value::from(&**r)).collect());
        }
        if schema.map == MapKind::Atomic {
            out.insert("x-kubernetes-map-type".into(), "atomic".into());
        }
        let unions = e.unions();
        if !unions.is_empty() {
            let list = unions.iter().map(|u| {
                let fields: Map<String, Value> =
                    u.fields.iter().map(|(k, v)| (k.to_string(), (*v).into())).collect();
                match u.discriminator {
                    Some(d) => json!({"discriminator": d, "fields-to-discriminateBy": fields}),
                    None => json!({"fields-to-discriminateBy": fields}),
                }
            });
            out.insert("x-kubernetes-unions".into(), list.collect());
        }
        if let Some((group, version, kind)) = e.gvk() {
            let mut list = vec![gvk(group, version, kind)];
            if matches!(kind, "DeleteOptions" | "WatchEvent") {
                let others = self.versions.iter().filter(|v| !v.group.is_empty() || v.version != version);
                list.extend(others.map(|v| gvk(&v.group, &v.version, kind)));
            }
            out.insert("x-kubernetes-group-version-kind".into(), Value::Array(list));
        }
    }

    fn property(&mut self, owner: &str, p: &Property) -> Value {
        let s = p.schema.get();
        let mut out = Map::new();
        describe(&mut out, (self.docs)(owner, Some(&p.name)));
        merge_keys(s, &mut out);
        if let Some(default) = default(p) {
            out.insert("default".into(), default);
        }
        match reference(&p.schema) {
            Some(e) => {
                self.entry(e);
                if e.schema().map != s.map {
                    // This place merges unlike the type.
                    out.insert("x-kubernetes-map-type".into(), "granular".into());
                }
                let link = json!({"$ref": format!("{PREFIX}{}", e.name())});
                if out.is_empty() {
                    return link;
                }
                out.insert("allOf".into(), json!([link]));
            }
            None => self.inline(s, &mut out),
        }
        Value::Object(out)
    }

    fn value(&mut self, schema: &SchemaRef) -> Value {
        if let Some(e) = reference(schema) {
            self.entry(e);
            return json!({"$ref": format!("{PREFIX}{}", e.name())});
        }
        let mut out = Map::new();
        self.inline(schema, &mut out);
        Value::Object(out)
    }

    fn inline(&mut self, s: &Schema, out: &mut Map<String, Value>) {
        let (ty, format) = match (s.ty, s.format) {
            (Type::Integer, Format::Int32) => ("integer", "int32"),
            (Type::Integer, _) => ("integer", "int64"),
            (Type::Number, _) => ("number", "double"),
            (Type::Boolean, _) => ("boolean", ""),
            (Type::Bytes, _) => ("string", "byte"),
            (Type::Time | Type::MicroTime, _) => ("string", "date-time"),
            (Type::Array, _) => ("array", ""),
            (Type::Object | Type::Any, _) => ("object", ""),
            _ => ("string", ""),
        };
        out.insert("type".into(), ty.into());
        if !format.is_empty() {
            out.insert("format".into(), format.into());
        }
        let values: Vec<Value> = s.name.into_iter().flat_map(types::enum_values).map(Value::from).collect();
        if !values.is_empty() {
            out.insert("enum".into(), Value::Array(values));
        }
        if let Some(items) = &s.items {
            let items = self.value(items);
            out.insert("items".into(), items);
        }
        if let Some(additional) = &s.additional {
            let additional = self.value(additional);
            out.insert("additionalProperties".into(), additional);
        }
    }

    /// Types that are only reached through a schema's hidden parts.
    fn references(&mut self, s: &Schema) {
        if let Some(e) = s.items.as_ref().and_then(reference) {
            self.entry(e);
        }
    }
}

fn describe(out: &mut Map<String, Value>, text: Option<String>) {
    if let Some(t) = text {
        out.insert("description".into(), Value::String(t));
    }
}

/// The named type that a schema stands for; a copy with additional facts still refers to its type.
fn reference(s: &SchemaRef) -> Option<&'static Entry> {
    match s {
        SchemaRef::Named(e) => Some(e),
        SchemaRef::Owned(s) if s.properties.is_some() => types::entry(s.name?),
        SchemaRef::Owned(_) => None,
    }
}

/// The default that upstream's generator derives.
fn default(p: &Property) -> Option<Value> {
    match p.schema.ty {
        Type::Object if p.schema.default.is_none() && !p.pointer && p.schema.properties.is_some() => {
            Some(json!({}))
        }
        _ => p.scalar_default().cloned(),
    }
}

/// `x-kubernetes-*` keys that say how a field merges.
fn merge_keys(s: &Schema, out: &mut Map<String, Value>) {
    if s.list_declared {
        let kind = match &s.list {
            ListKind::Atomic => "atomic",
            ListKind::Set => "set",
            ListKind::Map { keys } => {
                let keys = keys.iter().map(|k| Value::from(&**k)).collect();
                out.insert("x-kubernetes-list-map-keys".into(), keys);
                "map"
            }
        };
        out.insert("x-kubernetes-list-type".into(), kind.into());
    }
    if s.map == MapKind::Atomic && s.properties.is_none() {
        out.insert("x-kubernetes-map-type".into(), "atomic".into());
    }
    let p = s.patch_strategy;
    let strategies = [(p.replace, "replace"), (p.merge, "merge"), (p.retain_keys, "retainKeys")];
    let names: Vec<&str> = strategies.into_iter().filter(|(set, _)| *set).map(|(_, n)| n).collect();
    if !names.is_empty() {
        out.insert("x-kubernetes-patch-strategy".into(), names.join(",").into());
    }
    if let Some(key) = &s.merge_key {
        out.insert("x-kubernetes-patch-merge-key".into(), (**key).into());
    }
}
