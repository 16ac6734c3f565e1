//! Fields of configuration files, read as upstream's strict decoder reads them: a field that is not known and a value of another
//! type are refused, in its words.
//!
//! Invariant: in what passes, each known field is `null` or has a value of its type, at every depth.
//!
//! Source: `sigs.k8s.io/json`, `k8s.io/apimachinery/pkg/runtime`.

use kaji_meta::{duration, object::json_type, text::quote};
use serde_json::{Map, Value};

/// A field's name and type.
pub type Field = (&'static str, Kind);

/// A type; with its name in Go, which errors show, where there are several.
pub enum Kind {
    /// A text.
    Text(&'static str),
    /// A truth value.
    Bool,
    /// A whole number of 32 bits.
    Int32,
    /// A whole number of 64 bits.
    Int64,
    /// A number.
    Float32,
    /// A text in Go's notation of durations.
    Duration,
    /// Texts by name.
    Labels,
    /// A list.
    List(&'static Kind),
    /// An object that has no other fields.
    Object(&'static str, &'static [Field]),
    /// Anything: it is decoded for itself.
    Raw,
}

/// A text of no type of its own.
pub const TEXT: Kind = Kind::Text("string");
/// A list of them.
pub const TEXTS: Kind = Kind::List(&TEXT);

/// The fields of every file, and of what is in it that has a kind.
const TYPE_META: &[Field] = &[("apiVersion", TEXT), ("kind", TEXT)];

impl Kind {
    fn name(&self) -> String {
        let name = match self {
            Kind::List(of) => return format!("[]{}", of.name()),
            Kind::Text(name) | Kind::Object(name, _) => *name,
            Kind::Bool => "bool",
            Kind::Int32 => "int32",
            Kind::Int64 => "int64",
            Kind::Float32 => "float32",
            Kind::Duration => "string",
            Kind::Labels => "map[string]string",
            Kind::Raw => "runtime.RawExtension",
        };
        name.to_owned()
    }
}

/// What strict decoding minds in an object of a kind, which has these fields.
///
/// # Errors
/// A value of another type: then it cannot be decoded at all.
pub fn check(value: &Value, kind: &str, fields: &[Field]) -> Result<Vec<String>, String> {
    let mut reader = Reader::default();
    match value {
        Value::Null => {}
        Value::Object(map) => {
            reader.fields(map, &[TYPE_META, fields], At { owner: kind, path: "", field: "" })
        }
        other => {
            let found = json_type(other);
            return Err(format!("json: cannot unmarshal {found} into Go value of type v1.{kind}"));
        }
    }
    match reader.wrong {
        Some(wrong) => Err(wrong),
        None => Ok(reader.unknown),
    }
}

/// The text of what strict decoding minds.
pub fn text(errors: &[String]) -> String {
    format!("strict decoding error: {}", errors.join(", "))
}

/// Where a field is: its path in the file; its names in Go, and the type that it is a field of.
#[derive(Clone, Copy)]
struct At<'a> {
    path: &'a str,
    field: &'a str,
    owner: &'a str,
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

#[derive(Default)]
struct Reader {
    unknown: Vec<String>,
    /// The first value of another type.
    wrong: Option<String>,
}

impl Reader {
    fn fields(&mut self, map: &Map<String, Value>, known: &[&[Field]], at: At<'_>) {
        for (key, value) in map {
            let path = below(at.path, key);
            match known.iter().copied().flatten().find(|(name, _)| *name == key.as_str()) {
                Some((_, kind)) => {
                    let field = below(at.field, key);
                    self.value(value, kind, At { path: &path, field: &field, owner: at.owner });
                }
                None => self.unknown.push(format!("unknown field {}", quote(&path))),
            }
        }
    }

    fn value(&mut self, value: &Value, kind: &Kind, at: At<'_>) {
        match (kind, value) {
            (_, Value::Null) | (Kind::Raw, _) => {}
            (Kind::Text(_), Value::String(_))
            | (Kind::Bool, Value::Bool(_))
            | (Kind::Float32, Value::Number(_)) => {}
            (Kind::Int32, Value::Number(n)) if n.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => {}
            (Kind::Int64, Value::Number(n)) if n.is_i64() => {}
            (Kind::Duration, Value::String(text)) => {
                if let Err(error) = duration::parse(text) {
                    self.wrong(format!("{}: {error}", at.path));
                }
            }
            (Kind::List(of), Value::Array(items)) => {
                for (place, item) in items.iter().enumerate() {
                    let path = format!("{}[{place}]", at.path);
                    self.value(item, of, At { path: &path, field: at.field, owner: at.owner });
                }
            }
            (Kind::Labels, Value::Object(map)) => {
                for (key, value) in map {
                    let path = below(at.path, key);
                    self.value(value, &TEXT, At { path: &path, field: at.field, owner: at.owner });
                }
            }
            (Kind::Object(name, fields), Value::Object(map)) => {
                // Go's decoder leaves the package out here.
                let owner = name.rsplit('.').next().unwrap_or_default();
                self.fields(map, &[*fields], At { path: at.path, field: at.field, owner });
            }
            _ => {
                let found = match (kind, value) {
                    (Kind::Int32 | Kind::Int64, Value::Number(number)) => format!("number {number}"),
                    _ => json_type(value).to_owned(),
                };
                let (owner, field, name) = (at.owner, at.field, kind.name());
                self.wrong(format!(
                    "json: cannot unmarshal {found} into Go struct field {owner}.{field} of type {name}"
                ));
            }
        }
    }

    fn wrong(&mut self, text: String) {
        self.wrong.get_or_insert(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FIELDS: &[Field] = &[
        ("flag", Kind::Bool),
        ("small", Kind::Int32),
        ("large", Kind::Int64),
        ("ratio", Kind::Float32),
        ("time", Kind::Duration),
        ("labels", Kind::Labels),
        ("raw", Kind::Raw),
        ("parts", Kind::List(&Kind::Object("v1.Part", &[("name", TEXT), ("mode", Kind::Text("v1.Mode"))]))),
        ("names", TEXTS),
    ];

    fn show(value: &Value) -> String {
        match check(value, "Thing", FIELDS) {
            Err(error) => error,
            Ok(unknown) if unknown.is_empty() => "-".to_owned(),
            Ok(unknown) => text(&unknown),
        }
    }

    #[test]
    fn minds_unknown_fields_and_values_of_other_types() {
        let lines = [
            show(&json!({"apiVersion": "v1", "kind": "Thing", "flag": true, "small": -1, "large": i64::MAX,
                "ratio": 1, "time": "1s", "labels": {"a": "b"}, "raw": [{}], "parts": [{"name": "n"}, null],
                "names": ["a", null]})),
            show(&json!({"flag": null, "parts": null, "labels": null})),
            show(&json!({"Flag": 1, "parts": [{"nam": 1}, {"name": "a", "b": {}}], "x": {"flag": 1}})),
            show(&json!({"unknown": 1, "parts": [{"name": 7}], "small": "a"})),
            show(&json!({"parts": ["a"]})),
            show(&json!({"parts": [{"mode": true}]})),
            show(&json!({"parts": {}})),
            show(&json!({"small": 1_i64 << 31})),
            show(&json!({"large": 1.5})),
            show(&json!({"names": [1]})),
            show(&json!({"names": "a"})),
            show(&json!({"labels": {"a": 1}})),
            show(&json!({"labels": []})),
            show(&json!({"time": "soon"})),
            show(&json!({"time": 1})),
            show(&json!([])),
        ];
        expect_test::expect![[r#"
            -
            -
            strict decoding error: unknown field "Flag", unknown field "parts[0].nam", unknown field "parts[1].b", unknown field "x"
            json: cannot unmarshal number into Go struct field Part.parts.name of type string
            json: cannot unmarshal string into Go struct field Thing.parts of type v1.Part
            json: cannot unmarshal bool into Go struct field Part.parts.mode of type v1.Mode
            json: cannot unmarshal object into Go struct field Thing.parts of type []v1.Part
            json: cannot unmarshal number 2147483648 into Go struct field Thing.small of type int32
            json: cannot unmarshal number 1.5 into Go struct field Thing.large of type int64
            json: cannot unmarshal number into Go struct field Thing.names of type string
            json: cannot unmarshal string into Go struct field Thing.names of type []string
            json: cannot unmarshal number into Go struct field Thing.labels of type string
            json: cannot unmarshal array into Go struct field Thing.labels of type map[string]string
            time: time: invalid duration "soon"
            json: cannot unmarshal number into Go struct field Thing.time of type string
            json: cannot unmarshal array into Go value of type v1.Thing"#]]
        .assert_eq(&lines.join("\n"));
    }
}
