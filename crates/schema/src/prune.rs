//! Removal of fields that a schema does not have.
//!
//! For custom resources this follows structural pruning: `x-kubernetes-preserve-unknown-fields` keeps what is unknown at
//! its level and below, until a declared property switches pruning on again; embedded resources keep `apiVersion`, `kind`
//! and `metadata`, and their metadata is pruned by the server's own `ObjectMeta`. For built-in types every field that is
//! not declared is removed.
//!
//! Laws: idempotent; what remains is unchanged.

use kaji_meta::object;
use serde_json::{Map, Value};

use crate::at::At;
use crate::schema::{Schema, Type};
use crate::types;

/// Unknown fields beyond this many are removed without being reported (upstream's decoder has the same limit).
const REPORT_LIMIT: usize = 100;

const TYPE_META: [&str; 2] = ["apiVersion", "kind"];

/// Removes from `value` what `schema` does not declare and returns the paths of what was removed: "spec.foo",
/// "spec.containers[0].bar"; sorted, those of the object's own metadata first and those of embedded metadata last.
/// With `is_resource_root` the value is a whole object: `apiVersion`, `kind` and `metadata` are known whatever the schema says.
pub fn prune(schema: &Schema, value: &mut Value, is_resource_root: bool) -> Vec<String> {
    let mut pruner = Pruner::default();
    pruner.value(schema, value, &At::ROOT, is_resource_root || schema.embedded_resource);
    pruner.finish()
}

/// [`prune`] of a whole custom resource but for its metadata.
pub fn prune_custom(schema: &Schema, object: &mut Value) {
    let metadata = object::remove_at(object, &["metadata"]);
    drop(prune(schema, object, true));
    if let Some(metadata) = metadata {
        object::set_at(object, &["metadata"], metadata);
    }
}

/// Whether `value` has fields that `schema` does not declare, the metadata of embedded resources left out.
pub(crate) fn has_unknown(schema: &Schema, value: &Value) -> bool {
    let mut pruner = Pruner { spares_metadata: true, ..Pruner::default() };
    pruner.value(schema, &mut value.clone(), &At::ROOT, schema.embedded_resource);
    !pruner.unknown.is_empty()
}

/// The schema of `metadata` in every object.
pub fn object_meta() -> &'static Schema {
    static EMPTY: std::sync::LazyLock<Schema> = std::sync::LazyLock::new(Schema::default);
    types::entry("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").map_or(&EMPTY, |e| e.schema())
}

/// A walk that removes unknown fields.
#[derive(Default)]
pub(crate) struct Pruner {
    unknown: Vec<(Part, String)>,
    part: Part,
    /// The metadata of embedded resources is not looked at.
    spares_metadata: bool,
    /// Whether what is removed is not reported.
    silent: bool,
}

/// The part of an object that a field is in, in the order in which upstream's decoder looks at them.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    OwnMetadata,
    #[default]
    Declared,
    EmbeddedMetadata,
}

impl Pruner {
    /// The paths of what was removed, sorted within each part.
    pub(crate) fn finish(mut self) -> Vec<String> {
        self.unknown.sort_unstable();
        self.unknown.into_iter().map(|(_, path)| path).collect()
    }

    /// Records that a field is removed.
    pub(crate) fn report(&mut self, at: &At<'_>) {
        if !self.silent && self.unknown.len() < REPORT_LIMIT {
            self.unknown.push((self.part, at.to_string()));
        }
    }

    /// Prunes a value; `embedded`: it is a whole object.
    pub(crate) fn value(&mut self, schema: &Schema, value: &mut Value, at: &At<'_>, embedded: bool) {
        match value {
            _ if schema.ty == Type::SchemaOr => self.schema_or(schema, value, at),
            Value::Object(map) => self.object(schema, map, at, embedded),
            Value::Array(list) => self.list(schema, list, at),
            _ => {}
        }
    }

    /// Upstream's type reads itself, past the decoder that reports unknown fields.
    fn schema_or(&mut self, schema: &Schema, value: &mut Value, at: &At<'_>) {
        let outer = std::mem::replace(&mut self.silent, true);
        match value {
            Value::Object(map) => schema.items.iter().for_each(|s| self.object(s, map, at, false)),
            Value::Array(list) => self.list(schema, list, at),
            _ => {}
        }
        self.silent = outer;
    }

    fn list(&mut self, schema: &Schema, list: &mut [Value], at: &At<'_>) {
        // Built-in raw JSON has no structure below it; a custom list without item schema (only reachable in values of the
        // wrong type) loses everything, as upstream has it.
        let keep = schema.items.is_none() && schema.preserve_unknown;
        if keep || list.iter().all(|v| !v.is_object() && !v.is_array()) {
            return;
        }
        let nothing = Schema::default();
        let items = schema.items.as_ref().map_or(&nothing, |i| i.get());
        for (i, v) in list.iter_mut().enumerate() {
            // A list below preserved fields: its items are preserved too unless they declare something.
            if schema.preserve_unknown && !items.preserve_unknown {
                self.preserved(items, v, &at.index(i));
            } else {
                self.value(items, v, &at.index(i), items.embedded_resource);
            }
        }
    }

    /// Walks a value that keeps its unknown fields.
    fn preserved(&mut self, schema: &Schema, value: &mut Value, at: &At<'_>) {
        match value {
            Value::Object(map) => self.fields(schema, map, at, schema.embedded_resource),
            Value::Array(list) => {
                if let Some(items) = &schema.items {
                    for (i, v) in list.iter_mut().enumerate() {
                        self.preserved(items, v, &at.index(i));
                    }
                }
            }
            _ => {}
        }
    }

    fn object(&mut self, schema: &Schema, map: &mut Map<String, Value>, at: &At<'_>, embedded: bool) {
        if !schema.preserve_unknown && schema.additional.is_none() {
            let known = |k: &str| {
                schema.property(k).is_some() || embedded && (TYPE_META.contains(&k) || k == "metadata")
            };
            if !map.keys().all(|k| known(k)) {
                map.retain(|k, _| {
                    let keep = known(k);
                    if !keep {
                        self.report(&at.field(k));
                    }
                    keep
                });
            }
        }
        self.fields(schema, map, at, embedded);
    }

    /// Descends into the fields that the schema declares.
    fn fields(&mut self, schema: &Schema, map: &mut Map<String, Value>, at: &At<'_>, embedded: bool) {
        for (k, v) in map {
            if !v.is_object() && !v.is_array() {
                continue;
            }
            if embedded && schema.name.is_none() && (k == "metadata" || TYPE_META.contains(&k.as_str())) {
                if k == "metadata" && !self.spares_metadata {
                    let part = if at.is_root() { Part::OwnMetadata } else { Part::EmbeddedMetadata };
                    let outer = std::mem::replace(&mut self.part, part);
                    self.value(object_meta(), v, &at.field(k), false);
                    self.part = outer;
                }
                continue;
            }
            if let Some(child) = schema.child(k) {
                self.value(child, v, &at.field(k), child.embedded_resource);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    fn check(schema: Value, value: Value, want: expect_test::Expect) {
        let schema = crate::structural::unchecked(&schema);
        let mut v = value;
        let unknown = prune(&schema, &mut v, true);
        want.assert_eq(&format!("{v}\n{}", unknown.join(" ")));
        let again = v.clone();
        assert_eq!(prune(&schema, &mut v, true), Vec::<String>::new());
        assert_eq!(v, again);
    }

    #[test]
    fn prunes_custom_resources() {
        let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "a": {"type": "string"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"y": {"type": "integer"}}}},
            "raw": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {"p": {"type": "object", "properties": {"q": {"type": "string"}}}}},
            "pod": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}}
        }}}});
        let value = json!({"apiVersion": "v1", "kind": "X", "metadata": {"name": "n", "nope": 1}, "other": {},
            "spec": {"a": "s", "b": 1, "list": [{"x": 1, "z": 2}], "map": {"k": {"y": 1, "n": {}}},
                     "raw": {"any": {"thing": 1}, "p": {"q": "", "r": 1}},
                     "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "foo": 1}, "spec": {"u": 1}, "v": 1}}});
        check(
            schema,
            value,
            expect![[r#"
                {"apiVersion":"v1","kind":"X","metadata":{"name":"n"},"spec":{"a":"s","list":[{"x":1}],"map":{"k":{"y":1}},"pod":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{}},"raw":{"any":{"thing":1},"p":{"q":""}}}}
                metadata.nope other spec.b spec.list[0].z spec.map.k.n spec.pod.spec.u spec.pod.v spec.raw.p.r spec.pod.metadata.foo"#]],
        );
    }

    #[test]
    fn keeps_unknown_fields_of_a_preserving_root() {
        check(
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
            json!({"kind": "X", "metadata": {"bad": 1}, "a": [{"b": {"c": 1}}]}),
            expect![[r#"
                {"a":[{"b":{"c":1}}],"kind":"X","metadata":{}}
                metadata.bad"#]],
        );
    }

    #[test]
    fn reports_nothing_inside_of_what_reads_itself() {
        let schema = types::for_gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition").unwrap();
        let mut definition = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {"bogus": 1, "properties": {
            "list": {"items": {"type": "string", "bogus": 1}}, "map": {"additionalProperties": {"bogus": 1}},
            "lists": {"items": [{"bogus": 1}]}, "other": {"bogus": 1}}}}}]}});
        let unknown = prune(&schema, &mut definition, true).join(" ");
        expect!["spec.versions[0].schema.openAPIV3Schema.bogus spec.versions[0].schema.openAPIV3Schema.properties.other.bogus"]
            .assert_eq(&unknown);
        assert!(!definition.to_string().contains("bogus"), "{definition}");
    }

    #[test]
    fn prunes_built_in_types() {
        let pod = types::for_gvk("", "v1", "Pod").unwrap();
        let mut v = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "labels": {"a": "b"}}, "foo": 1,
            "spec": {"containers": [{"name": "c", "bar": 1, "resources": {"limits": {"cpu": 1}}}]}});
        assert_eq!(prune(&pod, &mut v, true), ["foo", "spec.containers[0].bar"]);
        assert_eq!(v["spec"]["containers"][0]["resources"]["limits"]["cpu"], 1);
        let crd = types::for_gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition").unwrap();
        let mut v = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {"type": "object", "default": {"any": 1},
            "properties": {"a": {"type": "array", "items": {"type": "string", "zzz": 1}}}}}}]}});
        // It goes, and is not reported.
        assert_eq!(prune(&crd, &mut v, true), Vec::<String>::new());
        assert!(!v.to_string().contains("zzz"));
        let template = types::for_gvk("apps", "v1", "ControllerRevision").unwrap();
        let mut v = json!({"data": {"spec": [{"a": 1}]}});
        assert!(prune(&template, &mut v, true).is_empty());
    }
}
