//! Laws of pruning, defaulting and validation, on random structural schemas and random values.

use kaji_meta::{Path, SizeBudget};
use kaji_schema::{Schema, decode, defaulting, prune, structural, types, validate};
use proptest::prelude::*;
use serde_json::{Value, json};

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"type": "string"})),
        Just(json!({"type": "string", "default": "d", "minLength": 1, "pattern": "^[a-d]"})),
        Just(json!({"type": "string", "nullable": true, "enum": ["a", "b"]})),
        Just(json!({"type": "integer", "default": 3, "maximum": 5})),
        Just(json!({"type": "number", "multipleOf": 0.5})),
        Just(json!({"x-kubernetes-int-or-string": true})),
        Just(json!({"x-kubernetes-preserve-unknown-fields": true})),
        Just(
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true})
        ),
    ]
}

fn schema() -> impl Strategy<Value = Value> {
    let node = scalar().prop_recursive(4, 24, 4, |inner| {
        let properties = prop::collection::btree_map("[a-d]|metadata|kind", inner.clone(), 0..4);
        prop_oneof![
            (properties, any::<bool>(), any::<bool>()).prop_map(|(p, keep, default)| {
                let mut s = json!({"type": "object", "properties": p});
                if keep {
                    s["x-kubernetes-preserve-unknown-fields"] = true.into();
                }
                if default {
                    s["default"] = json!({});
                }
                s
            }),
            inner.clone().prop_map(|i| json!({"type": "array", "items": i, "x-kubernetes-list-type": "set"})),
            inner.clone().prop_map(|i| json!({"type": "object", "additionalProperties": i})),
        ]
    });
    prop::collection::btree_map("[a-d]", node, 0..4).prop_map(|p| json!({"type": "object", "properties": p}))
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-9i64..9).prop_map(Value::from),
        "[a-d]{0,2}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-d]|metadata|kind|apiVersion|name", inner, 0..5)
                .prop_map(|m| json!(m)),
        ]
    })
}

proptest! {
    #[test]
    fn pruning_is_idempotent(s in schema(), v in value()) {
        let s: Schema = structural::build(&s);
        let mut once = v;
        prune::prune(&s, &mut once, true);
        let mut twice = once.clone();
        prop_assert_eq!(prune::prune(&s, &mut twice, true), Vec::<String>::new());
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn defaulting_is_idempotent(s in schema(), v in value()) {
        let s: Schema = structural::build(&s);
        let mut once = v;
        defaulting::apply_defaults(&s, &mut once, &mut SizeBudget::default()).unwrap();
        let mut twice = once.clone();
        defaulting::apply_defaults(&s, &mut twice, &mut SizeBudget::default()).unwrap();
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn unchanged_objects_stay_valid(s in schema(), v in value()) {
        let s: Schema = structural::build(&s);
        let values = validate::validate(&s, &v, &Path::root());
        let again = validate::validate_update(&s, &v, &v, &Path::root());
        prop_assert!(again.len() <= values.len());
    }

    #[test]
    fn checking_definitions_never_panics(v in value()) {
        let _ = structural::from_json_schema(&v, &Path::new("schema"), true);
    }

    #[test]
    fn typed_is_idempotent(v in value(), spec in value()) {
        for kind in ["Pod", "Service", "ConfigMap"] {
            let s = types::for_gvk("", "v1", kind).expect("a core kind");
            let mut v = json!({"metadata": v.clone(), "spec": spec.clone(), "data": v.clone()});
            prune::prune(&s, &mut v, true);
            if decode::typed(&s, &mut v).is_ok() {
                let once = v.clone();
                prop_assert_eq!(decode::typed(&s, &mut v), Ok(()));
                prop_assert_eq!(once, v);
            }
        }
    }

    #[test]
    fn parsing_agrees_with_serde(v in value()) {
        let text = v.to_string();
        let parsed = decode::parse(text.as_bytes()).expect("valid JSON");
        prop_assert_eq!(parsed.value, v);
        prop_assert!(parsed.duplicates.is_empty());
    }
}
