//! Laws: reads as `serde_json`, only quicker; writes as Go.

use super::*;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Some_ {
    name: String,
    number: i64,
    real: f64,
    flag: bool,
    maybe: Option<Box<str>>,
    list: Vec<Some_>,
    map: BTreeMap<String, u8>,
    raw: Option<Box<Value>>,
    letter: Option<Letter>,
}

#[derive(Debug, PartialEq, Deserialize)]
enum Letter {
    A,
    B(u8),
}

fn both(text: &str) -> String {
    let (fast, slow) = (from_slice::<Some_>(text.as_bytes()), serde_json::from_str::<Some_>(text));
    match (&fast, &slow) {
        (Ok(fast), Ok(slow)) => assert_eq!(fast, slow),
        // A list is no struct, as to Go's decoder; serde_json takes it for the members in order.
        (Err(fast), _) if fast.to_string() == "invalid type: sequence, expected struct Some_" => {}
        // The place of a syntax error is known, that of a mismatch is not.
        (Err(fast), Err(slow)) => assert!(slow.to_string().starts_with(&fast.to_string()), "{fast} {slow}"),
        _ => panic!("{text}: {fast:?} {slow:?}"),
    }
    fast.map_or_else(|e| e.to_string(), |v| format!("{v:?}"))
}

#[test]
fn structs_are_read_as_serde_json_reads_them() {
    let whole = r#" {"name":"a\n\"b\\","unknown":{"deep":["}",{"x":"\\"}]},"number":-5,"real":1.5e3,"flag":true,
        "maybe":null,"list":[{"maybe":"é\u00e9","number":0},{}],"map":{"k":255},"raw":[1,{"a":-0.5}],"letter":"A"} "#;
    both(whole);
    for text in [
        "{}",
        "[]",
        "",
        "nonsense",
        "null",
        r#"{"number":1.5}"#,
        r#"{"number":01}"#,
        r#"{"number":99999999999999999999}"#,
        r#"{"map":{"k":256}}"#,
        r#"{"name":1}"#,
        r#"{"name":"x"} {}"#,
        r#"{"letter":{"B":3}}"#,
        r#"{"letter":"C"}"#,
        r#"{"name":"a","name":"b"}"#,
        r#"{"name":"x""#,
    ] {
        both(text);
    }
    assert!(from_slice::<Value>("[".repeat(5000).as_bytes()).is_err());
    assert!(from_slice::<Value>(b"\"\xff\"").is_err());
}

/// As Go's decoder has it, of which `serde_json` knows nothing.
#[test]
fn a_null_member_of_a_struct_is_absent() {
    let text = r#"{"name":null, "number": null,"real":null,"flag":null,"maybe":null,"list":[{"list":null},{}],"map":null,"raw":null}"#;
    let list = vec![Some_::default(), Some_::default()];
    assert_eq!(from_slice::<Some_>(text.as_bytes()).unwrap(), Some_ { list, ..Some_::default() });
    // What is no member of a struct is what it is.
    let raw = from_slice::<Some_>(br#"{"raw":{"a":null}}"#).unwrap().raw;
    assert_eq!(raw, Some(Box::new(json!({"a": null}))));
    for wrong in
        [r#"{"list":[null]}"#, r#"{"map":{"k":null}}"#, r#"{"name":nul}"#, r#"{"name":nulls}"#, "null"]
    {
        assert!(from_slice::<Some_>(wrong.as_bytes()).is_err(), "{wrong}");
    }
}

#[test]
fn says_what_a_value_is_and_what_was_expected() {
    let told = |text: &str| from_slice::<Some_>(text.as_bytes()).unwrap_err().to_string();
    for (text, want) in [
        ("[]", "invalid type: sequence, expected struct Some_"),
        ("5", "invalid type: integer `5`, expected struct Some_"),
        (r#""x""#, "invalid type: string \"x\", expected struct Some_"),
        (r#"{"name":{}}"#, "invalid type: map, expected a string"),
        (r#"{"name":[]}"#, "invalid type: sequence, expected a string"),
        (r#"{"name":-1.5}"#, "invalid type: floating point `-1.5`, expected a string"),
        (r#"{"number":"5"}"#, "invalid type: string \"5\", expected i64"),
        (r#"{"number":true}"#, "invalid type: boolean `true`, expected i64"),
        (r#"{"flag":0}"#, "invalid type: integer `0`, expected a boolean"),
        (r#"{"list":{}}"#, "invalid type: map, expected a sequence"),
        (r#"{"list":[null]}"#, "invalid type: null, expected struct Some_"),
        (r#"{"map":[]}"#, "invalid type: sequence, expected a map"),
    ] {
        assert_eq!(told(text), want, "{text}");
    }
}

#[test]
fn values_are_passed_over() {
    let text = r#" {"a":[1,"]}\"",{"b":{}}] , "c":nul, "d":"e" }x"#;
    let mut reader = Reader::new(text);
    assert!(reader.take(b'{'));
    let mut seen = vec![];
    while let Some(key) = reader.key().unwrap() {
        seen.push((key, reader.value().unwrap()));
    }
    let want = [("a", r#"[1,"]}\"",{"b":{}}]"#), ("c", "nul"), ("d", r#""e""#)];
    assert_eq!(seen, want.map(|(k, v)| (k.into(), v)));
    assert_eq!(&text[reader.position()..], "x");
    for broken in ["", "[", r#"{"a""#, r#""\"#, r#"["a]"#, "}"] {
        assert!(Reader::new(broken).value().is_err(), "{broken}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
        "[a-z\"\\\\\n{}\\[\\],:]{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map("[a-d\"\\\\é]{0,9}", inner, 0..5)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

/// With whole numbers that 64 bits hold as integers, which is how they come back.
fn whole(value: Value) -> Value {
    match value {
        Value::Number(n) if n.is_f64() => {
            let text = n.as_f64().unwrap().to_string();
            text.parse()
                .map(|n: i64| n.into())
                .or_else(|_| text.parse().map(|n: u64| n.into()))
                .unwrap_or(n.into())
        }
        Value::Array(list) => list.into_iter().map(whole).collect(),
        Value::Object(map) => Value::Object(map.into_iter().map(|(k, v)| (k, whole(v))).collect()),
        other => other,
    }
}

#[test]
fn writes_as_gos_encoder_does() {
    for (value, text) in [
        (json!(1.0), "1"),
        (json!(-0.5), "-0.5"),
        (json!(1e20), "100000000000000000000"),
        (json!(1e21), "1e+21"),
        (json!(-1.5e300), "-1.5e+300"),
        (json!(0.000_001), "0.000001"),
        (json!(1e-7), "1e-7"),
        (json!(u64::MAX), "18446744073709551615"),
        (json!(i64::MIN), "-9223372036854775808"),
        (json!("<a> & b"), r#""\u003ca\u003e \u0026 b""#),
        (json!("\u{2028}\u{2029}\u{2027}é€"), "\"\\u2028\\u2029\u{2027}é€\""),
        (json!("\u{8}\u{c}\n\r\t\u{0}\u{1f}\u{7f}\"\\/"), "\"\\b\\f\\n\\r\\t\\u0000\\u001f\u{7f}\\\"\\\\/\""),
        (json!({"<": [null, true, false]}), r#"{"\u003c":[null,true,false]}"#),
    ] {
        let mut out = vec![];
        write(&mut out, &value);
        assert_eq!(std::str::from_utf8(&out).unwrap(), text);
        assert_eq!(whole(from_slice(&out).unwrap()), whole(value));
    }
}

proptest! {
    #[test]
    fn what_is_written_reads_back(value in any_json()) {
        let mut out = vec![];
        write(&mut out, &value);
        let text = std::str::from_utf8(&out).unwrap().to_owned();
        let back = from_slice::<Value>(&out).unwrap();
        prop_assert_eq!(&back, &serde_json::from_slice::<Value>(&out).unwrap());
        prop_assert_eq!(whole(back), whole(value.clone()));
        let padded = format!(" {text} ,");
        let mut reader = Reader::new(&padded);
        prop_assert_eq!(reader.value().unwrap(), &text);
        let pretty = serde_json::to_string_pretty(&json!({"list": [value]})).unwrap();
        both(&pretty);
    }

    #[test]
    fn never_panics(text in "[\\[\\]{}\",:\\\\a1n é]{0,40}") {
        let _ = Reader::new(&text).value();
        let _ = from_slice::<Value>(text.as_bytes());
    }
}
