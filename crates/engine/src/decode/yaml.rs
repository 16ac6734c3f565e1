//! YAML bodies, with the meaning that `sigs.k8s.io/yaml` gives them: parsed into the same `Value` that JSON gives.
//!
//! Invariants: nesting is bounded by the parser; so is the memory that a document takes, copies for aliases included; only one document; of duplicate keys
//! the last wins and each is noted.

use super::{json::MAX_STRICT_ERRORS, scalar};
use base64::Engine as _;
use kaji_meta::{OverBudget, SizeBudget, budget::BODY_BYTES, text};
use serde_json::{Map, Value};
use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, Span, StrInput, Tag};
use std::collections::HashMap;

/// Nodes that aliases and merges may add to a document.
const MAX_ALIASED_NODES: usize = 100_000;

/// What aliases and anchors make of the document is too large.
const EXCESSIVE: &str = "yaml: document contains excessive aliasing";

/// A parsed body.
#[derive(Debug, PartialEq)]
pub(crate) struct Parsed {
    /// The document.
    pub value: Value,
    /// One text for each duplicate key: `line 3: key "a" already set in map`.
    pub duplicates: Vec<String>,
}

/// Parses a YAML document.
///
/// # Errors
/// A text that begins `yaml: ` (or Go's JSON text for what JSON cannot hold).
pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed, String> {
    let text =
        std::str::from_utf8(bytes).map_err(|e| format!("yaml: invalid UTF-8 at byte {}", e.valid_up_to()))?;
    let mut builder = Builder {
        parser: Parser::new_from_str(text),
        anchors: HashMap::new(),
        open: vec![],
        aliased: 0,
        budget: SizeBudget::new(BODY_BYTES),
        duplicates: vec![],
    };
    let mut value = None;
    loop {
        let (event, _) = builder.next()?;
        match event {
            Event::StreamStart | Event::DocumentEnd => {}
            Event::DocumentStart(..) if value.is_some() => {
                return Err("yaml: more than one document in the body".into());
            }
            Event::DocumentStart(..) => {
                let first = builder.next()?;
                value = Some(builder.node(first)?);
            }
            Event::StreamEnd => break,
            other => return Err(format!("yaml: unexpected {other:?}")),
        }
    }
    Ok(Parsed { value: value.unwrap_or(Value::Null), duplicates: builder.duplicates })
}

struct Builder<'i> {
    parser: Parser<'i, StrInput<'i>>,
    anchors: HashMap<usize, (Value, usize)>,
    /// Anchors of nodes that are not complete yet.
    open: Vec<usize>,
    aliased: usize,
    /// Everything that is made of the document, copies for aliases included.
    budget: SizeBudget,
    duplicates: Vec<String>,
}

type Item<'i> = (Event<'i>, Span);

impl<'i> Builder<'i> {
    /// The next event that is no comment.
    fn next(&mut self) -> Result<Item<'i>, String> {
        loop {
            match self.parser.next_event() {
                Some(Ok((Event::Comment(..), _))) => {}
                Some(Ok(item)) => return Ok(item),
                Some(Err(e)) => return Err(format!("yaml: {e}")),
                None => return Err("yaml: unexpected end of stream".into()),
            }
        }
    }

    fn node(&mut self, (event, _): Item<'i>) -> Result<Value, String> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar_value(&text, style, tag.as_deref())?;
                self.budget.take_value(&value).map_err(too_large)?;
                self.keep(anchor, &value)?;
                Ok(value)
            }
            Event::SequenceStart(_, anchor, _) => {
                self.begin(anchor);
                self.budget.take_value(&Value::Null).map_err(too_large)?;
                let mut list = vec![];
                loop {
                    let item = self.next()?;
                    if matches!(item.0, Event::SequenceEnd) {
                        break;
                    }
                    list.push(self.node(item)?);
                }
                self.end(anchor, Value::Array(list))
            }
            Event::MappingStart(_, anchor, _) => {
                self.begin(anchor);
                self.budget.take_map().map_err(too_large)?;
                let map = self.mapping()?;
                self.end(anchor, Value::Object(map))
            }
            Event::Alias(id) => self.alias(id),
            other => Err(format!("yaml: unexpected {other:?}")),
        }
    }

    fn mapping(&mut self) -> Result<Map<String, Value>, String> {
        let mut map = Map::new();
        let mut merges = vec![];
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let merge = matches!(&event, Event::Scalar(t, ScalarStyle::Plain, _, None) if t == "<<");
            let key = self.node((event, span))?;
            let item = self.next()?;
            let value = self.node(item)?;
            if merge {
                merges.push(value);
                continue;
            }
            let key = key_text(key, &value)?;
            if map.contains_key(&key) && self.duplicates.len() < MAX_STRICT_ERRORS {
                self.duplicates.push(format!(
                    "line {}: key {} already set in map",
                    span.start.line(),
                    text::quote(&key)
                ));
            }
            map.insert(key, value);
        }
        for merge in merges {
            match merge {
                Value::Object(m) => merge_into(&mut map, m),
                Value::Array(list) if list.iter().all(Value::is_object) => {
                    for m in list {
                        if let Value::Object(m) = m {
                            merge_into(&mut map, m);
                        }
                    }
                }
                _ => return Err("yaml: map merge requires map or sequence of maps as the value".into()),
            }
        }
        Ok(map)
    }

    fn alias(&mut self, id: usize) -> Result<Value, String> {
        if self.open.contains(&id) {
            return Err("yaml: anchor value contains itself".into());
        }
        let Some((value, nodes)) = self.anchors.get(&id) else {
            return Err("yaml: unknown anchor referenced".into());
        };
        self.aliased = self.aliased.saturating_add(*nodes);
        if self.aliased > MAX_ALIASED_NODES {
            return Err(EXCESSIVE.into());
        }
        self.budget.copy(value).map_err(|_| EXCESSIVE.into())
    }

    fn begin(&mut self, anchor: usize) {
        if anchor != 0 {
            self.open.push(anchor);
        }
    }

    fn end(&mut self, anchor: usize, value: Value) -> Result<Value, String> {
        if anchor != 0 {
            self.open.retain(|a| *a != anchor);
            self.keep(anchor, &value)?;
        }
        Ok(value)
    }

    fn keep(&mut self, anchor: usize, value: &Value) -> Result<(), String> {
        if anchor != 0 {
            let kept = self.budget.copy(value).map_err(|_| EXCESSIVE)?;
            self.anchors.insert(anchor, (kept, count(value)));
        }
        Ok(())
    }
}

fn too_large(over: OverBudget) -> String {
    format!("yaml: the document takes {over}")
}

/// Keys that are written out win over merged ones.
fn merge_into(map: &mut Map<String, Value>, merged: Map<String, Value>) {
    for (key, value) in merged {
        map.entry(key).or_insert(value);
    }
}

fn count(value: &Value) -> usize {
    match value {
        Value::Array(list) => list.iter().fold(1, |n, v| n + count(v)),
        Value::Object(map) => map.values().fold(1, |n, v| n + 1 + count(v)),
        _ => 1,
    }
}

fn scalar_value(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    match tag.and_then(|t| t.suffix_in_namespace("tag:yaml.org,2002:")).as_deref() {
        Some("str") => Ok(Value::String(text.to_owned())),
        Some("binary") => {
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(text.replace([' ', '\n'], ""))
                .map_err(|e| format!("yaml: !!binary value contains invalid base64 data: {e}"))?;
            Ok(Value::String(String::from_utf8_lossy(&bytes).into_owned()))
        }
        Some("float") => match scalar::resolve(text)? {
            Value::Number(n) => Ok(Value::Number(n)),
            _ => Err(format!("yaml: cannot decode !!str `{text}` as a !!float")),
        },
        Some(want @ ("int" | "bool" | "null")) => {
            let value = scalar::resolve(text)?;
            let fits = match want {
                "int" => value.is_i64() || value.is_u64(),
                "bool" => value.is_boolean(),
                _ => value.is_null(),
            };
            if fits { Ok(value) } else { Err(format!("yaml: cannot decode !!str `{text}` as a !!{want}")) }
        }
        None if style == ScalarStyle::Plain && tag.is_none() => scalar::resolve(text),
        _ => Ok(Value::String(text.to_owned())),
    }
}

fn key_text(key: Value, value: &Value) -> Result<String, String> {
    match key {
        Value::String(s) => Ok(s),
        Value::Bool(b) => Ok(b.to_string()),
        Value::Number(n) => Ok(n.to_string()),
        other => Err(format!("unsupported map key, key: {other}, value: {value}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(text: &str) -> Value {
        parse(text.as_bytes()).unwrap().value
    }

    fn error(text: &str) -> String {
        parse(text.as_bytes()).unwrap_err()
    }

    #[test]
    fn decodes_documents() {
        assert_eq!(
            value(
                "# c\nkind: X\nmetadata: {name: a, labels: {on: yes, 1: 0x10}}\ns: 'yes'\nt: |\n  a\n  b\nl:\n- 1\n- a: b\n"
            ),
            json!({"kind":"X","metadata":{"name":"a","labels":{"true":true,"1":16}},"s":"yes","t":"a\nb\n","l":[1,{"a":"b"}]})
        );
        assert_eq!(value(""), json!(null));
        assert_eq!(value("---\na: 1\n"), json!({"a":1}));
        assert_eq!(value("{\"a\": [1, \"2\"]}"), json!({"a":[1,"2"]}));
        assert_eq!(value("a: !!str 1\nb: !!binary aGk="), json!({"a":"1","b":"hi"}));
    }

    #[test]
    fn resolves_anchors_and_merges() {
        assert_eq!(
            value("base: &b {u: 1, v: 2}\nuse: {<<: *b, v: 3}\nlist: [*b]"),
            json!({"base":{"u":1,"v":2},"use":{"u":1,"v":3},"list":[{"u":1,"v":2}]})
        );
    }

    #[test]
    fn rejects_several_documents_and_expanding_anchors() {
        assert_eq!(error("a: 1\n---\nb: 2\n"), "yaml: more than one document in the body");
        assert_eq!(error("a: &a [*a]"), "yaml: anchor value contains itself");
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for i in 1..8 {
            let p = i - 1;
            bomb += &format!("a{i}: &a{i} [*a{p},*a{p},*a{p},*a{p},*a{p},*a{p},*a{p},*a{p},*a{p},*a{p}]\n");
        }
        assert_eq!(error(&bomb), "yaml: document contains excessive aliasing");
        // Few nodes, but large ones; and a copy for each anchor around a large one.
        let large = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), ["*a"; 1000].join(","));
        assert_eq!(error(&large), "yaml: document contains excessive aliasing");
        let (opened, closed): (String, String) =
            ((0..200).map(|i| format!("&a{i} [")).collect(), "]".repeat(200));
        let nested = format!("{opened}{}{closed}", "x".repeat(1 << 20));
        assert_eq!(error(&nested), "yaml: document contains excessive aliasing");
        let maps = "- a:\n".repeat(300_000);
        assert!(error(&maps).starts_with("yaml: the document takes more than "));
        assert!(error("a: [1").starts_with("yaml: "));
        assert!(error(&"[".repeat(3000)).starts_with("yaml: "));
        assert!(parse(b"a: \xff").unwrap_err().starts_with("yaml: invalid UTF-8"));
    }

    #[test]
    fn reports_duplicate_keys() {
        let parsed = parse(b"a: 1\nb:\n  c: 1\n  c: 2\na: 3\n").unwrap();
        assert_eq!(parsed.value, json!({"a":3,"b":{"c":2}}));
        assert_eq!(
            parsed.duplicates,
            [r#"line 4: key "c" already set in map"#, r#"line 5: key "a" already set in map"#]
        );
    }
}
