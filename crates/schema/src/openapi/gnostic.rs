//! The protobuf encoding of a v2 document: gnostic's `openapi.v2.Document`.
//!
//! Field numbers are those of gnostic's `OpenAPIv2.proto`. Only what [`super::v2`] writes is encoded.

use crate::yaml;
use serde_json::{Map, Value};

type Object = Map<String, Value>;

/// Encodes a v2 document.
pub fn to_protobuf(document: &Value) -> Vec<u8> {
    let mut w = Writer::default();
    let Some(d) = document.as_object() else { return w.out };
    w.text(1, d, "swagger");
    w.object(2, d, "info", |w, info| {
        w.text(1, info, "title");
        w.text(2, info, "version");
    });
    w.object(8, d, "paths", |w, paths| w.named(2, paths, path_item));
    w.object(9, d, "definitions", |w, definitions| w.named(1, definitions, schema));
    w.object(10, d, "parameters", |w, all| w.named(1, all, parameter));
    for requirement in d.get("security").and_then(Value::as_array).into_iter().flatten() {
        w.message(12, |w| {
            if let Some(r) = requirement.as_object() {
                for (name, scopes) in r {
                    w.message(1, |w| {
                        w.string(1, name);
                        w.message(2, |w| w.strings_of(1, scopes));
                    });
                }
            }
        });
    }
    w.object(13, d, "securityDefinitions", |w, all| {
        w.named(1, all, |w, s| {
            w.message(2, |w| {
                for (number, key) in [(1, "type"), (2, "name"), (3, "in"), (4, "description")] {
                    w.text(number, s, key);
                }
            });
        });
    });
    w.out
}

fn path_item(w: &mut Writer, item: &Object) {
    for (number, method) in
        [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (6, "options"), (7, "head"), (8, "patch")]
    {
        w.object(number, item, method, operation);
    }
    parameters(w, 9, item);
}

fn operation(w: &mut Writer, op: &Object) {
    w.strings(1, op, "tags");
    w.text(3, op, "description");
    w.text(5, op, "operationId");
    w.strings(6, op, "produces");
    w.strings(7, op, "consumes");
    parameters(w, 8, op);
    w.object(9, op, "responses", |w, responses| {
        w.named(1, responses, |w, r| {
            w.message(1, |w| {
                w.text(1, r, "description");
                w.object(2, r, "schema", |w, s| w.message(1, |w| schema(w, s)));
            });
        });
    });
    w.strings(10, op, "schemes");
    extensions(w, 13, op);
}

fn parameters(w: &mut Writer, number: u32, owner: &Object) {
    for p in owner.get("parameters").and_then(Value::as_array).into_iter().flatten() {
        let Some(p) = p.as_object() else { continue };
        // ParametersItem: a reference, or a parameter, which is a body or a non-body parameter.
        w.message(number, |w| match p.contains_key("$ref") {
            true => w.message(2, |w| w.text(1, p, "$ref")),
            false => w.message(1, |w| parameter(w, p)),
        });
    }
}

fn parameter(w: &mut Writer, p: &Object) {
    let place = p.get("in").and_then(Value::as_str).unwrap_or("");
    if place == "body" {
        w.message(1, |w| {
            w.text(2, p, "name");
            w.text(3, p, "in");
            w.flag(4, p, "required");
            w.object(5, p, "schema", schema);
        });
        return;
    }
    // Query parameters have one field more ("allow_empty_value") before the type.
    let (variant, ty, unique) = if place == "path" { (4, 5, 19) } else { (3, 6, 20) };
    w.message(2, |w| {
        w.message(variant, |w| {
            w.flag(1, p, "required");
            w.text(2, p, "in");
            w.text(3, p, "description");
            w.text(4, p, "name");
            w.text(ty, p, "type");
            w.flag(unique, p, "uniqueItems");
        });
    });
}

fn schema(w: &mut Writer, s: &Object) {
    for (number, key) in [(1, "$ref"), (2, "format"), (3, "title"), (4, "description"), (13, "pattern")] {
        w.text(number, s, key);
    }
    for (number, key) in [(6, "multipleOf"), (7, "maximum"), (9, "minimum")] {
        w.double(number, s, key);
    }
    for (number, key) in [(8, "exclusiveMaximum"), (10, "exclusiveMinimum"), (16, "uniqueItems")] {
        w.flag(number, s, key);
    }
    let sizes = [
        (11, "maxLength"),
        (12, "minLength"),
        (14, "maxItems"),
        (15, "minItems"),
        (17, "maxProperties"),
        (18, "minProperties"),
    ];
    for (number, key) in sizes {
        w.integer(number, s, key);
    }
    for (number, key) in [(5, "default"), (30, "example")] {
        if let Some(v) = s.get(key) {
            w.message(number, |w| w.string(2, &yaml::document(v)));
        }
    }
    w.strings(19, s, "required");
    for v in s.get("enum").and_then(Value::as_array).into_iter().flatten() {
        w.message(20, |w| w.string(2, &yaml::document(v)));
    }
    match s.get("additionalProperties") {
        Some(Value::Object(a)) => w.message(21, |w| w.message(1, |w| schema(w, a))),
        Some(Value::Bool(b)) => w.message(21, |w| w.boolean(2, *b)),
        _ => {}
    }
    if let Some(t) = s.get("type").and_then(Value::as_str) {
        w.message(22, |w| w.string(1, t));
    }
    if let Some(Value::Object(items)) = s.get("items") {
        w.message(23, |w| w.message(1, |w| schema(w, items)));
    }
    w.object(25, s, "properties", |w, properties| w.named(1, properties, schema));
    extensions(w, 31, s);
}

/// `x-*` keys; their values travel as YAML.
fn extensions(w: &mut Writer, number: u32, s: &Object) {
    for (k, v) in s.iter().filter(|(k, _)| k.starts_with("x-")) {
        w.message(number, |w| {
            w.string(1, k);
            w.message(2, |w| w.string(2, &yaml::document(v)));
        });
    }
}

/// A protobuf writer. Messages are written in place and their length is put before them afterwards.
#[derive(Default)]
struct Writer {
    out: Vec<u8>,
}

impl Writer {
    fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            #[allow(clippy::cast_possible_truncation)]
            self.out.push(n as u8 | 0x80);
            n >>= 7;
        }
        #[allow(clippy::cast_possible_truncation)]
        self.out.push(n as u8);
    }

    fn tag(&mut self, number: u32, wire: u32) {
        self.varint(u64::from(number << 3 | wire));
    }

    fn string(&mut self, number: u32, s: &str) {
        self.tag(number, 2);
        self.varint(s.len() as u64);
        self.out.extend_from_slice(s.as_bytes());
    }

    fn boolean(&mut self, number: u32, b: bool) {
        self.tag(number, 0);
        self.varint(u64::from(b));
    }

    fn message(&mut self, number: u32, write: impl FnOnce(&mut Writer)) {
        let mut inner = Writer::default();
        write(&mut inner);
        self.tag(number, 2);
        self.varint(inner.out.len() as u64);
        self.out.append(&mut inner.out);
    }

    /// A string member, if it is there and not empty.
    fn text(&mut self, number: u32, o: &Object, key: &str) {
        if let Some(s) = o.get(key).and_then(Value::as_str).filter(|s| !s.is_empty()) {
            self.string(number, s);
        }
    }

    fn flag(&mut self, number: u32, o: &Object, key: &str) {
        if o.get(key) == Some(&Value::Bool(true)) {
            self.boolean(number, true);
        }
    }

    #[allow(clippy::cast_sign_loss)]
    fn integer(&mut self, number: u32, o: &Object, key: &str) {
        if let Some(n) = o.get(key).and_then(Value::as_i64) {
            self.tag(number, 0);
            self.varint(n as u64);
        }
    }

    fn double(&mut self, number: u32, o: &Object, key: &str) {
        if let Some(n) = o.get(key).and_then(Value::as_f64) {
            self.tag(number, 1);
            self.out.extend_from_slice(&n.to_le_bytes());
        }
    }

    fn strings(&mut self, number: u32, o: &Object, key: &str) {
        if let Some(list) = o.get(key) {
            self.strings_of(number, list);
        }
    }

    fn strings_of(&mut self, number: u32, list: &Value) {
        for s in list.as_array().into_iter().flatten().filter_map(Value::as_str) {
            self.string(number, s);
        }
    }

    fn object(&mut self, number: u32, o: &Object, key: &str, write: impl FnOnce(&mut Writer, &Object)) {
        if let Some(Value::Object(child)) = o.get(key) {
            self.message(number, |w| write(w, child));
        }
    }

    /// A map as a list of named values: name 1, value 2.
    fn named(&mut self, number: u32, o: &Object, write: fn(&mut Writer, &Object)) {
        for (name, value) in o {
            let Value::Object(value) = value else { continue };
            self.message(number, |w| {
                w.string(1, name);
                w.message(2, |w| write(w, value));
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parameters_are_shared_by_reference() {
        let encoded = to_protobuf(&json!({
            "paths": {"/a": {"parameters": [{"$ref": "#/parameters/p-1"}]}},
            "parameters": {"p-1": {"in": "query", "name": "p", "type": "string"}},
        }));
        for wanted in [
            &b"J\x14\x12\x12\n\x10#/parameters/p-1"[..],
            b"\n\x03p-1\x12\x16\x12\x14\x1a\x12\x12\x05query\"\x01p2\x06string",
        ] {
            assert!(
                encoded.windows(wanted.len()).any(|w| w == wanted),
                "{}",
                String::from_utf8_lossy(&encoded)
            );
        }
    }

    #[test]
    fn vendor_extensions_are_yaml() {
        let kind = json!({
            "x-kubernetes-list-type": "map",
            "x-kubernetes-selectable-fields": [{"fieldPath": "spec.a"}, {"fieldPath": "spec.b"}],
            "x-kubernetes-validations": [{"message": "m", "rule": "self.a != 'x'"}],
        });
        let encoded = to_protobuf(&json!({"definitions": {"a": kind}}));
        // As upstream's server sends them.
        for wanted in [
            &b"x-kubernetes-list-type\x12\x06\x12\x04map\n"[..],
            b"x-kubernetes-selectable-fields\x12*\x12(- fieldPath: spec.a\n- fieldPath: spec.b\n",
            b"x-kubernetes-validations\x12%\x12#- message: m\n  rule: self.a != 'x'\n",
        ] {
            assert!(
                encoded.windows(wanted.len()).any(|w| w == wanted),
                "{}",
                String::from_utf8_lossy(wanted)
            );
        }
    }
}
