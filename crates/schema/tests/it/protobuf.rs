//! The protobuf form against bytes that Go's generated code wrote, and its laws on random objects of all kinds.

use kaji_schema::{Property, Schema, SchemaRef, Type, protobuf, types};
use proptest::prelude::*;
use proptest::test_runner::TestRng;
use serde_json::{Map, Value, json};

fn kind_of(value: &Value) -> (SchemaRef, &str, &str) {
    let text = |key: &str| value.get(key).and_then(Value::as_str).expect("typed");
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    (types::for_gvk(group, version, kind).expect("known"), api_version, kind)
}

fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(without_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

/// The fixture holds pairs of lines: an object as Go writes it in JSON, and the same in protobuf, in hexadecimal.
#[test]
fn encodes_upstreams_bytes() {
    let mut lines = include_str!("fixtures/protobuf.golden").lines();
    let mut count = 0;
    while let (Some(text), Some(hex)) = (lines.next(), lines.next()) {
        let json: Value = serde_json::from_str(text).expect("JSON");
        let (schema, api_version, kind) = kind_of(&json);
        let bytes = protobuf::object(&schema, api_version, kind, &json).expect(text);
        let ours = kaji_meta::text::hex(&bytes);
        assert_eq!(ours, hex, "{text}");
        let envelope = protobuf::open(&bytes).expect(text);
        assert_eq!((envelope.api_version.as_str(), envelope.kind.as_str()), (api_version, kind));
        let back = protobuf::decode(&schema, envelope.raw).expect(text);
        let mut want = json.clone();
        if let Value::Object(map) = &mut want {
            map.retain(|key, _| key != "apiVersion" && key != "kind");
        }
        // Raw JSON keeps its nulls; here they are the same on both sides.
        let mut back = back;
        without_nulls(&mut want);
        without_nulls(&mut back);
        assert_eq!(back, want);
        count += 1;
    }
    assert_eq!(count, 10);
}

/// Random values of a schema, in the form that Go would write.
struct Maker {
    rng: TestRng,
    budget: usize,
}

impl Maker {
    fn below(&mut self, n: u32) -> u32 {
        self.rng.next_u32() % n
    }

    fn text(&mut self) -> String {
        let words = ["a", "web", "é", "\u{1f600}", "x/y", "0"];
        words[self.below(6) as usize].to_owned()
    }

    fn object(&mut self, schema: &Schema) -> Value {
        let mut map = Map::new();
        for p in schema.properties.iter().flatten().filter(|p| p.number != 0) {
            if let Some(value) = self.property(p) {
                map.insert(p.name.to_string(), value);
            }
        }
        Value::Object(map)
    }

    /// Structs by value are always there.
    fn property(&mut self, p: &Property) -> Option<Value> {
        let always = !p.pointer
            && match p.schema.ty {
                Type::Object => p.schema.properties.is_some(),
                Type::Quantity | Type::IntOrString => true,
                _ => false,
            };
        let scalar = matches!(p.schema.ty, Type::String | Type::Integer | Type::Number | Type::Boolean);
        let never = p.omit == kaji_schema::Omit::Never && !p.pointer && scalar;
        if !always && !never && (self.budget == 0 || self.below(3) > 0) {
            return None;
        }
        self.budget = self.budget.saturating_sub(1);
        Some(self.value(&p.schema))
    }

    fn value(&mut self, s: &Schema) -> Value {
        match s.ty {
            Type::String => self.text().into(),
            Type::Integer => [1, -1, i64::from(i32::MAX), i64::from(i32::MIN)][self.below(4) as usize].into(),
            Type::Number => [json!(1.5), json!(-3), json!(1e-7)][self.below(3) as usize].clone(),
            Type::Boolean => true.into(),
            Type::Bytes => "AP9h".into(),
            Type::Quantity => ["0", "1500m", "2Gi", "-1"][self.below(4) as usize].into(),
            Type::Time => ["2024-01-02T03:04:05Z", "1969-12-31T23:59:59Z"][self.below(2) as usize].into(),
            Type::MicroTime => {
                ["2024-01-02T03:04:05.678901Z", "1970-01-01T00:00:00.000000Z"][self.below(2) as usize].into()
            }
            Type::IntOrString => {
                [json!(0), json!(-7), json!("50%"), json!("")][self.below(4) as usize].clone()
            }
            Type::Any => {
                [json!({"a": [1, {"b": "c"}]}), json!("x"), json!([true])][self.below(3) as usize].clone()
            }
            Type::Array => {
                let items = s.items.as_ref().expect("items");
                let n = 1 + self.below(2);
                (0..n).map(|_| self.value(items)).collect()
            }
            Type::Object => match &s.additional {
                Some(values) => {
                    let n = 1 + self.below(2);
                    let entries = (0..n).map(|_| (self.text(), self.value(values)));
                    Value::Object(entries.collect::<Vec<_>>().into_iter().collect())
                }
                None => self.object(s),
            },
            Type::SchemaOr => {
                let schema = s.items.as_ref().expect("a schema");
                match (s.short_name(), self.budget > 0 && self.below(2) == 0) {
                    (_, true) => self.object(schema),
                    ("JSONSchemaPropsOrBool", _) => (self.below(2) == 0).into(),
                    ("JSONSchemaPropsOrArray", _) => json!([{}, {"type": "string"}]),
                    _ => json!(["a", "b"]),
                }
            }
            Type::Duration => unreachable!("no built-in field has it"),
        }
    }
}

fn kinds() -> Vec<&'static types::Entry> {
    types::entries().filter(|e| e.gvk().is_some() && e.short_name() != "WatchEvent").collect()
}

fn any_object() -> impl Strategy<Value = (&'static str, Value)> {
    (0..kinds().len(), 0usize..200).prop_perturb(|(at, budget), rng| {
        let entry = kinds()[at];
        (entry.name(), Maker { rng, budget }.object(entry.schema()))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn protobuf_round_trips((name, value) in any_object()) {
        let schema = types::lookup(name).expect("a kind");
        let raw = protobuf::encode(&schema, &value).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let back = protobuf::decode(&schema, &raw).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(back, value, "{}", name);
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for entry in [("", "v1", "Pod"), ("apiextensions.k8s.io", "v1", "CustomResourceDefinition")] {
            let schema = types::for_gvk(entry.0, entry.1, entry.2).expect("a kind");
            let _ = protobuf::decode(&schema, &bytes);
        }
        let _ = protobuf::open(&[protobuf::MAGIC, &bytes[..]].concat());
    }

    /// What is damaged but was once an object gets further in than random bytes.
    #[test]
    fn damage_is_decoded_or_refused(
        (name, value) in any_object(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let schema = types::lookup(name).expect("a kind");
        let mut raw = protobuf::encode(&schema, &value).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assume!(!raw.is_empty());
        for (at, byte) in damage {
            let at = at.index(raw.len());
            raw[at] = byte;
        }
        if let Ok(value) = protobuf::decode(&schema, &raw) {
            // What was taken can be written. Structs that were missing are there then, and nothing changes any more.
            let encode = |v: &Value| protobuf::encode(&schema, v).map_err(|e| TestCaseError::fail(e.to_string()));
            let again = encode(&value)?;
            let full = protobuf::decode(&schema, &again).map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(encode(&full)?, again);
            prop_assert_eq!(protobuf::decode(&schema, &encode(&full)?), Ok(full));
        }
        raw.truncate(cut.index(raw.len()));
        let _ = protobuf::decode(&schema, &raw);
    }
}
