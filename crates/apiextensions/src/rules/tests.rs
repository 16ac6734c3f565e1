//! Definitions and objects in, errors out.

use super::*;
use expect_test::expect;
use kaji_meta::Path;
use serde_json::json;

fn crontab() -> Value {
    json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "cronSpec": {"type": "string"},
            "image": {"type": "string", "maxLength": 20},
            "replicas": {"type": "integer"},
            "size": {"x-kubernetes-int-or-string": true},
            "labels": {"type": "object", "maxProperties": 5, "additionalProperties": {"type": "string", "maxLength": 10,
                "x-kubernetes-validations": [{"rule": "self != 'bad'", "message": "is bad"}]}},
            "ports": {"type": "array", "maxItems": 10, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {
                    "name": {"type": "string", "maxLength": 10},
                    "port": {"type": "integer", "x-kubernetes-validations": [{"rule": "self == oldSelf", "reason": "FieldValueForbidden", "message": "is immutable"}]},
                    "my-key": {"type": "string", "maxLength": 10},
                }}},
            "args": {"type": "array", "maxItems": 10, "items": {"type": "string", "maxLength": 10,
                "x-kubernetes-validations": [{"rule": "self.startsWith('-')"}]}},
        }, "x-kubernetes-validations": [
            {"rule": "self.replicas <= 5 || self.image != ''", "message": "large crontabs need an image"},
            {"rule": "!has(oldSelf.cronSpec) || self.replicas >= oldSelf.replicas", "message": "replicas may not shrink"},
            {"rule": "!has(self.size) || type(self.size) == int", "messageExpression": "'size must be a number, not ' + string(self.size)", "fieldPath": ".size"},
            {"rule": "oldSelf.hasValue() || self.replicas > 0", "optionalOldSelf": true, "message": "new ones must run"},
        ]},
    }, "x-kubernetes-validations": [{"rule": "self.metadata.name != 'root'"}]})
}

fn errors(new: Value, old: Option<Value>) -> String {
    let schema = crontab();
    assert!(check(&schema, &Path::new("schema"), false).is_empty());
    let rules = Rules::new(&schema).unwrap();
    let list = validate(&rules, &kaji_schema::structural::build(&schema), &new, old.as_ref());
    list.iter().map(|e| format!("{e}\n")).collect()
}

fn object(spec: Value) -> Value {
    json!({"apiVersion": "e.com/v1", "kind": "CronTab", "metadata": {"name": "a"}, "spec": spec})
}

#[test]
fn evaluates_rules_of_new_objects() {
    expect![[r#"
        spec: Invalid value: large crontabs need an image
        spec.size: Invalid value: size must be a number, not big
    "#]]
    .assert_eq(&errors(object(json!({"cronSpec": "x", "image": "", "replicas": 6, "size": "big"})), None));
    expect![[r#"
        spec: Invalid value: new ones must run
    "#]]
    .assert_eq(&errors(object(json!({"replicas": 0})), None));
    expect![[r#"
        <nil>: Invalid value: failed rule: self.metadata.name != 'root'
        spec.args[0]: Invalid value: "x": failed rule: self.startsWith('-')
        spec.labels[a]: Invalid value: "bad": is bad
    "#]].assert_eq(&errors(json!({"metadata": {"name": "root"}, "spec": {"replicas": 1, "labels": {"a": "bad"}, "args": ["x", "-y"]}}), None));
    expect![[r#"
        spec: Invalid value: "object": no such key: replicas evaluating rule: new ones must run
    "#]]
    .assert_eq(&errors(object(json!({"image": "x"})), None));
}

#[test]
fn evaluates_transition_rules() {
    let old = object(
        json!({"cronSpec": "x", "image": "i", "replicas": 4, "ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}]}),
    );
    let mut new = old.clone();
    new["spec"]["replicas"] = 2.into();
    new["spec"]["ports"] =
        json!([{"name": "b", "port": 3}, {"name": "c", "port": 4}, {"name": "a", "port": 1}]);
    expect![[r#"
        spec: Invalid value: replicas may not shrink
        spec.ports[0].port: Forbidden: is immutable
    "#]]
    .assert_eq(&errors(new, Some(old)));
}

#[test]
fn what_was_wrong_before_and_is_unchanged_is_forgiven() {
    let old = object(
        json!({"cronSpec": "x", "image": "i", "replicas": 4, "labels": {"a": "bad", "b": "ok"}, "args": ["x"], "size": "big"}),
    );
    let mut new = old.clone();
    new["metadata"]["labels"] = json!({"x": "y"});
    assert_eq!(errors(new.clone(), Some(old.clone())), "");
    new["spec"]["labels"]["b"] = "bad".into();
    new["spec"]["args"] = json!(["x", "y"]);
    expect![[r#"
        spec.size: Invalid value: size must be a number, not big
        spec.args[0]: Invalid value: "x": failed rule: self.startsWith('-')
        spec.args[1]: Invalid value: "y": failed rule: self.startsWith('-')
        spec.labels[b]: Invalid value: "bad": is bad
    "#]]
    .assert_eq(&errors(new, Some(old)));
}

#[test]
fn lists_of_maps_are_unchanged_in_any_order() {
    let schema = json!({"type": "object", "properties": {"l": {"type": "array", "maxItems": 9,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string", "maxLength": 9}}},
        "x-kubernetes-validations": [{"rule": "self.size() < 2", "message": "too many"}]}}});
    let rules = Rules::new(&schema).unwrap();
    let built = kaji_schema::structural::build(&schema);
    let errors_of = |new: Value| {
        let old = json!({"l": [{"k": "1"}, {"k": "2"}]});
        let list = validate(&rules, &built, &new, Some(&old));
        list.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(errors_of(json!({"l": [{"k": "2"}, {"k": "1"}]})).is_empty());
    assert_eq!(errors_of(json!({"l": [{"k": "2"}, {"k": "3"}]})), ["l: Invalid value: too many"]);
}

fn refused(schema: Value) -> String {
    let root = json!({"type": "object", "properties": {"spec": schema}});
    check(&root, &Path::new("schema"), false).iter().map(|e| format!("{e}\n")).collect()
}

#[test]
fn definitions_are_refused() {
    let rule = |rule: Value| {
        refused(json!({"type": "object", "properties": {
            "a": {"type": "string"}, "n": {"type": "integer"}, "l": {"type": "array", "items": {"type": "string"}},
            "a-b": {"type": "string"}, "any": {"x-kubernetes-preserve-unknown-fields": true}
        }, "x-kubernetes-validations": [rule]}))
    };
    for bad in [
        json!({"rule": "self.a =="}),
        json!({"rule": "self.b == 1"}),
        json!({"rule": "self.a == self.n"}),
        json!({"rule": "self.n + 1"}),
        json!({"rule": "has(self.any)"}),
        json!({"rule": "true", "messageExpression": "1"}),
        json!({"rule": "true", "messageExpression": "nope"}),
        json!({"rule": "true", "fieldPath": ".zz"}),
        json!({"rule": "true", "optionalOldSelf": true}),
    ] {
        let found = rule(bad.clone());
        assert!(!found.is_empty(), "{bad}");
    }
    assert_eq!(rule(json!({"rule": "self.a__dash__b != '' && self.n < 3.5", "fieldPath": ".a-b"})), "");
    expect![[r#"
        schema.properties[spec].x-kubernetes-validations[0].rule: Invalid value: {"Rule":"self.a == self.n","Message":"m","MessageExpression":"","Reason":null,"FieldPath":"","OptionalOldSelf":null}: compilation failed: ERROR: <input>:1:8: found no matching overload for '_==_' applied to '(string, int)'
         | self.a == self.n
         | .......^
    "#]].assert_eq(&rule(json!({"rule": "self.a == self.n", "message": "m"})));
    expect![[r#"
        schema.properties[spec].items.x-kubernetes-validations[0].rule: Invalid value: "self == oldSelf": oldSelf cannot be used on the uncorrelatable portion of the schema within schema.properties[spec]
    "#]].assert_eq(&refused(json!({"type": "array", "maxItems": 9, "items": {"type": "string", "maxLength": 9,
        "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}})));
}

#[test]
fn definitions_with_rules_that_cost_too_much() {
    // Costs are counted for each place that a value may have in an object.
    let list = |bounds: Value, rules: usize| {
        let rule = json!({"rule": "self.all(x, self.all(y, x == y || x.contains(y)))"});
        let mut schema = json!({"type": "array", "items": {"type": "string", "maxLength": 100},
            "x-kubernetes-validations": vec![rule; rules]});
        if let Some(n) = bounds.as_u64() {
            schema["maxItems"] = n.into();
        }
        refused(schema)
    };
    assert_eq!(list(json!(10), 1), "");
    expect![[r#"
        schema.properties[spec].x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor of 14.8x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)
        schema.properties[spec].x-kubernetes-validations[0].rule: Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema
        schema: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of 1.482315x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)
    "#]].assert_eq(&list(json!(300), 1));
    expect![[r#"
        schema.properties[spec].x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)
        schema.properties[spec].x-kubernetes-validations[0].rule: Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema
        schema: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of more than 100x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)
    "#]].assert_eq(&list(Value::Null, 1));
    expect![[r#"
        schema.properties[spec].x-kubernetes-validations[0].rule: Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema
        schema.properties[spec].x-kubernetes-validations[1].rule: Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema
        schema.properties[spec].x-kubernetes-validations[2].rule: Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema
        schema.properties[spec].x-kubernetes-validations[3].rule: Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema
        schema: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of 1.6x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)
    "#]].assert_eq(&list(json!(70), 20));
}

#[test]
fn rejects_defaults_that_fail_rules() {
    let rule = |rule: &str| json!([{"rule": rule}]);
    let schema = |of: Value| json!({"type": "object", "properties": {"spec": of}});
    let found = |schema: Value| {
        assert!(check(&schema, &Path::new("schema"), false).is_empty());
        check_defaults(&schema, &Path::new("schema")).iter().map(|e| format!("{e}\n")).collect::<String>()
    };
    assert_eq!(
        found(schema(json!({"type": "integer", "default": 1, "x-kubernetes-validations": rule("self > 0")}))),
        ""
    );
    let wrong = json!({"type": "integer", "default": 0, "x-kubernetes-validations": rule("self > 0")});
    expect![[r#"
        schema.properties[spec].default: Invalid value: 0: failed rule: self > 0
    "#]]
    .assert_eq(&found(schema(wrong.clone())));
    // The rules of the whole apply to what is in a default, also where the part has no default of its own.
    let part = json!({"type": "object", "default": {"n": 0}, "properties": {
        "n": {"type": "integer", "x-kubernetes-validations": rule("self > 0")}}});
    expect![[r#"
        schema.properties[spec].default.n: Invalid value: 0: failed rule: self > 0
    "#]]
    .assert_eq(&found(schema(part)));
    let items =
        json!({"type": "array", "maxItems": 5, "items": {"type": "object", "properties": {"n": wrong}}});
    expect![[r#"
        schema.properties[spec].items.properties[n].default: Invalid value: 0: failed rule: self > 0
    "#]]
    .assert_eq(&found(schema(items)));
    // A rule that also runs without an old value is evaluated both ways.
    let introduced = json!({"type": "integer", "default": 0, "x-kubernetes-validations": [
        {"rule": "oldSelf.hasValue() || self > 0", "optionalOldSelf": true}]});
    expect![[r#"
        schema.properties[spec].default: Invalid value: 0: failed rule: oldSelf.hasValue() || self > 0
    "#]]
    .assert_eq(&found(schema(introduced)));
    let immutable =
        json!({"type": "integer", "default": 0, "x-kubernetes-validations": rule("self == oldSelf")});
    assert_eq!(found(schema(immutable)), "");
}

#[test]
fn defaults_of_a_schema_share_one_cost_budget() {
    let rule = json!([{"rule": "self.all(a, self.all(b, self.all(c, a + b + c < 10)))"}]);
    let list: Vec<u32> = vec![1; 40];
    let field = json!({"type": "array", "maxItems": 40, "default": list, "items": {"type": "integer"},
        "x-kubernetes-validations": rule});
    let fields: serde_json::Map<String, Value> =
        (0..40).map(|i| (format!("f{i:02}"), field.clone())).collect();
    let schema = json!({"type": "object", "properties": fields});
    let found = check_defaults(&schema, &Path::new("schema"));
    let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 1, "the first to exceed the budget ends the check: {texts:?}");
    assert!(texts[0].contains("running out of cost budget"), "{}", texts[0]);
}
