//! Laws: as `serde_json`, only quicker.

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
        (Err(fast), Err(slow)) => assert_eq!(fast.to_string(), slow.to_string()),
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
        r#"{"list":null}"#,
        r#"{"name":"a","name":"b"}"#,
        r#"{"name":"x""#,
    ] {
        both(text);
    }
    assert!(from_slice::<Value>("[".repeat(5000).as_bytes()).is_err());
    assert!(from_slice::<Value>(b"\"\xff\"").is_err());
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

proptest! {
    #[test]
    fn writes_and_reads_as_serde_json_does(value in any_json()) {
        let mut out = vec![];
        write(&mut out, &value);
        let text = value.to_string();
        prop_assert_eq!(std::str::from_utf8(&out).unwrap(), &text);
        prop_assert_eq!(from_slice::<Value>(&out).unwrap(), serde_json::from_slice::<Value>(&out).unwrap());
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
