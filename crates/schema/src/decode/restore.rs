//! What Go says when it fills a typed object from a tree of values, and one of them is of the wrong type.

use super::gotype;
use crate::schema::{Schema, Type};
use kaji_meta::object;
use serde_json::{Number, Value};

/// The kind of a value in Go's tree.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "interface",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    }
}

/// Makes a whole number an integer, where the type has integers. What decodes its own JSON gets the number as Go writes it: an
/// integer as well, up to 1e21.
pub(super) fn whole_number(schema: &Schema, value: &mut Value) {
    let has_integers = matches!(schema.ty, Type::Integer | Type::IntOrString | Type::Quantity);
    let Some(float) = value.as_number().filter(|n| has_integers && n.is_f64()).and_then(Number::as_f64)
    else {
        return;
    };
    // Without a fraction this is the integer, digit by digit; what 64 bits do not hold stays a float.
    if let Ok(integer) = format!("{float}").parse::<i64>() {
        *value = integer.into();
    }
}

/// What is wrong with `value` where the schema has another type.
pub(super) fn mismatch(value: &Value, schema: &Schema) -> String {
    let from = kind(value);
    let number = matches!(value, Value::Number(_));
    match schema.ty {
        Type::Object if schema.properties.is_some() => format!("cannot restore struct from: {from}"),
        Type::Object => format!("cannot restore map from {from}"),
        Type::Array | Type::Bytes => format!("cannot restore slice from {from}"),
        // It decodes its own JSON.
        Type::Duration => {
            format!("json: cannot unmarshal {} into Go value of type string", object::json_type(value))
        }
        // Go converts an integer to a string, and between numbers: that is refused by name. For all else there is no rule.
        Type::String if from == "int64" => format!("cannot convert int64 to {}", gotype::name(schema)),
        Type::Integer | Type::Number if number => {
            format!("cannot convert {from} to {}", gotype::name(schema))
        }
        _ => format!("unrecognized type: {}", gotype::basic(schema)),
    }
}

/// The text for base64 that does not decode.
pub(super) fn bytes(error: &str) -> String {
    format!("error decoding from json: {error}")
}

#[cfg(test)]
mod tests {
    use crate::{decode::restore, types};
    use expect_test::expect;
    use serde_json::{Value, json};

    fn error(kind: (&str, &str, &str), mut value: Value) -> String {
        let schema = types::for_gvk(kind.0, kind.1, kind.2).unwrap();
        restore(&schema, &mut value).unwrap_err()
    }

    #[test]
    fn values_of_wrong_types_are_named_by_their_kinds() {
        let deployment = ("apps", "v1", "Deployment");
        let pod = ("", "v1", "Pod");
        let all = [
            error(pod, json!({"metadata": {"labels": "invalid"}})),
            error(pod, json!({"metadata": {"labels": {"a": 1}}})),
            error(pod, json!({"metadata": {"labels": {"a": 1.5}}})),
            error(pod, json!({"metadata": {"labels": {"a": ["b"]}}})),
            error(pod, json!({"metadata": []})),
            error(pod, json!({"metadata": {"creationTimestamp": 1}})),
            error(pod, json!({"spec": {"containers": {"name": "x"}}})),
            error(pod, json!({"spec": {"hostNetwork": "yes"}})),
            error(pod, json!({"spec": {"volumes": [{"name": "a", "hostPath": 1}]}})),
            error(deployment, json!({"spec": {"replicas": "3"}})),
            error(deployment, json!({"spec": {"replicas": 1.5}})),
            error(deployment, json!({"spec": {"minReadySeconds": true}})),
            error(("", "v1", "Secret"), json!({"data": {"a": "?"}})),
            error(("", "v1", "Secret"), json!({"data": {"a": 1}})),
        ];
        expect![[r#"
            cannot restore map from string
            cannot convert int64 to string
            unrecognized type: string
            unrecognized type: string
            cannot restore struct from: slice
            json: cannot unmarshal number into Go value of type string
            cannot restore slice from map
            unrecognized type: bool
            cannot restore struct from: int64
            unrecognized type: int32
            cannot convert float64 to int32
            unrecognized type: int32
            error decoding from json: illegal base64 data at input byte 0
            cannot restore slice from int64"#]]
        .assert_eq(&all.join("\n"));
    }

    #[test]
    fn whole_numbers_are_integers_however_they_are_written() {
        let schema = types::for_gvk("", "v1", "Pod").unwrap();
        let restored = |spec: &str| {
            let mut value: Value = serde_json::from_str(&format!(r#"{{"spec":{spec}}}"#)).unwrap();
            restore(&schema, &mut value).map_or_else(|error| error, |_| value["spec"].to_string())
        };
        let all = [
            restored(r#"{"priority":8e1,"terminationGracePeriodSeconds":-0.0}"#),
            restored(r#"{"containers":[{"name":"c","ports":[{"containerPort":80.0}]}]}"#),
            restored(r#"{"containers":[{"name":"c","livenessProbe":{"tcpSocket":{"port":8.0}}}]}"#),
            restored(r#"{"containers":[{"name":"c","resources":{"limits":{"cpu":2.0,"memory":1.5}}}]}"#),
            restored(r#"{"priority":80.5}"#),
            restored(r#"{"priority":1e10}"#),
            restored(r#"{"terminationGracePeriodSeconds":1e19}"#),
        ];
        expect![[r#"
            {"priority":80,"terminationGracePeriodSeconds":0}
            {"containers":[{"name":"c","ports":[{"containerPort":80}]}]}
            {"containers":[{"livenessProbe":{"tcpSocket":{"port":8}},"name":"c"}]}
            {"containers":[{"name":"c","resources":{"limits":{"cpu":"2","memory":"1500m"}}}]}
            cannot convert float64 to int32
            cannot convert int64 to int32
            cannot convert float64 to int64"#]]
        .assert_eq(&all.join("\n"));
    }
}
