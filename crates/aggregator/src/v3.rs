//! OpenAPI v2 as v3, for servers that say what they serve in the older form only. Something is lost, as it is upstream.
//!
//! Invariants: pure; what comes of a document is no more than a small multiple of it (`MOST_TYPES`).
//!
//! Source: `ConvertV2ToV3` of kube-openapi.

use serde_json::{Map, Value, json};

/// Media types of one operation that a document names: each repeats the schema.
const MOST_TYPES: usize = 4;

const VERBS: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];

type Object = Map<String, Value>;

/// A whole document.
pub(crate) fn convert(v2: &Value) -> Value {
    let mut out = json!({"openapi": "3.0.0", "info": v2["info"], "paths": {}, "components": {}});
    copy(&mut out, v2, &["externalDocs"]);
    out["paths"] = each(&v2["paths"], item);
    let components = &mut out["components"];
    let mut section = |name: &str, old: &str, one: fn(&Value) -> Value| {
        if v2[old].is_object() {
            components[name] = each(&v2[old], one);
        }
    };
    section("schemas", "definitions", schema);
    section("parameters", "parameters", parameter);
    section("securitySchemes", "securityDefinitions", security);
    if v2["responses"].is_object() {
        components["responses"] = each(&v2["responses"], |r| response(r, types(&v2["produces"])));
    }
    out
}

fn each(map: &Value, convert: impl Fn(&Value) -> Value) -> Value {
    let all = map.as_object().into_iter().flatten();
    Value::Object(all.map(|(key, value)| (key.clone(), convert(value))).collect())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn types(value: &Value) -> Vec<&str> {
    list(value).iter().filter_map(Value::as_str).take(MOST_TYPES).collect()
}

/// Copies these fields, and extensions.
fn copy(out: &mut Value, from: &Value, fields: &[&str]) {
    for (key, value) in from.as_object().into_iter().flatten() {
        if key.starts_with("x-") || fields.contains(&key.as_str()) {
            out[key] = value.clone();
        }
    }
}

/// A path.
fn item(v2: &Value) -> Value {
    let mut out = json!({});
    copy(&mut out, v2, &["$ref"]);
    for verb in VERBS.iter().filter(|verb| v2[**verb].is_object()) {
        out[*verb] = operation(&v2[*verb]);
    }
    if let Some(parameters) = v2["parameters"].as_array() {
        out["parameters"] = parameters.iter().map(parameter).collect();
    }
    out
}

fn operation(v2: &Value) -> Value {
    let mut out = json!({});
    let fields = ["description", "externalDocs", "tags", "summary", "deprecated", "operationId"];
    copy(&mut out, v2, &fields);
    let mut parameters = vec![];
    for given in list(&v2["parameters"]) {
        if given["name"] == "body" && given["schema"].is_object() {
            out["requestBody"] = json!({"content": content(&given["schema"], types(&v2["consumes"]))});
        } else {
            parameters.push(parameter(given));
        }
    }
    if !parameters.is_empty() {
        out["parameters"] = parameters.into();
    }
    out["responses"] = each(&v2["responses"], |r| response(r, types(&v2["produces"])));
    out
}

fn parameter(v2: &Value) -> Value {
    if let Some(reference) = v2["$ref"].as_str() {
        return json!({"$ref": reference.replacen("#/parameters/", "#/components/parameters/", 1)});
    }
    let mut out = json!({});
    copy(&mut out, v2, &["name", "description", "in", "required", "allowEmptyValue"]);
    out["schema"] = match &v2["schema"] {
        given @ Value::Object(_) => schema(given),
        _ => {
            let mut simple = json!({});
            let simple_fields = ["type", "format", "uniqueItems"];
            v2.as_object()
                .into_iter()
                .flatten()
                .filter(|(k, _)| simple_fields.contains(&k.as_str()))
                .for_each(|(key, value)| simple[key] = value.clone());
            simple
        }
    };
    out
}

fn response(v2: &Value, types: Vec<&str>) -> Value {
    let mut out = json!({});
    copy(&mut out, v2, &["description"]);
    if let Some(reference) = v2["$ref"].as_str() {
        out["$ref"] = reference.replacen("#/responses/", "#/components/responses/", 1).into();
    }
    if v2["schema"].is_object() {
        out["content"] = content(&v2["schema"], types);
    }
    out
}

fn content(v2: &Value, types: Vec<&str>) -> Value {
    let converted = json!({"schema": schema(v2)});
    Value::Object(types.into_iter().map(|media| (media.to_owned(), converted.clone())).collect())
}

fn security(v2: &Value) -> Value {
    let mut out = json!({});
    copy(&mut out, v2, &["description", "type", "name", "in"]);
    if let Some(flow) = v2["flow"].as_str().filter(|f| !f.is_empty()) {
        let mut one = json!({});
        copy(&mut one, v2, &["authorizationUrl", "tokenUrl", "scopes"]);
        out["flows"] = json!({flow: one});
    }
    out
}

fn schema(v2: &Value) -> Value {
    let Value::Object(given) = v2 else { return v2.clone() };
    let mut out: Object = given.iter().map(|(key, value)| (key.clone(), part(key, value))).collect();
    // A reference stands alone; what is said besides goes around it.
    if out.len() > 1
        && let Some(reference) = out.remove("$ref")
    {
        out.insert("allOf".into(), json!([{"$ref": reference}]));
    }
    Value::Object(out)
}

/// A field of a schema.
fn part(key: &str, value: &Value) -> Value {
    match (key, value) {
        ("$ref", Value::String(text)) => match text.split_once("#/definitions/") {
            Some((_, name)) => format!("#/components/schemas/{name}").into(),
            None => value.clone(),
        },
        ("properties", _) => each(value, schema),
        ("items" | "additionalProperties" | "additionalItems" | "not", Value::Object(_)) => schema(value),
        ("items" | "allOf" | "anyOf" | "oneOf", Value::Array(all)) => all.iter().map(schema).collect(),
        _ => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_in_the_newer_form() {
        let v2 = json!({
            "swagger": "2.0",
            "info": {"title": "a", "version": "1"},
            "paths": {"/apis/a.io/v1/x": {
                "parameters": [{"$ref": "#/parameters/pretty"}],
                "post": {
                    "operationId": "createX", "x-kubernetes-action": "post", "schemes": ["https"],
                    "consumes": ["application/json"], "produces": ["application/json", "application/yaml"],
                    "parameters": [
                        {"name": "body", "in": "body", "required": true, "schema": {"$ref": "#/definitions/X"}},
                        {"name": "dryRun", "in": "query", "type": "string", "uniqueItems": true},
                    ],
                    "responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/X"}}, "401": {"description": "no"}},
                },
            }},
            "parameters": {"pretty": {"name": "pretty", "in": "query", "type": "string"}},
            "securityDefinitions": {"Token": {"type": "apiKey", "name": "authorization", "in": "header"}},
            "definitions": {"X": {"type": "object", "properties": {
                "spec": {"description": "what is wanted", "$ref": "#/definitions/Y"},
                "all": {"type": "array", "items": {"$ref": "#/definitions/Y"}},
                "map": {"type": "object", "additionalProperties": {"$ref": "#/definitions/Y"}},
            }, "x-kubernetes-group-version-kind": [{"group": "a.io", "kind": "X", "version": "v1"}]}},
        });
        expect_test::expect![[r##"{"components":{"parameters":{"pretty":{"in":"query","name":"pretty","schema":{"type":"string"}}},"schemas":{"X":{"properties":{"all":{"items":{"$ref":"#/components/schemas/Y"},"type":"array"},"map":{"additionalProperties":{"$ref":"#/components/schemas/Y"},"type":"object"},"spec":{"allOf":[{"$ref":"#/components/schemas/Y"}],"description":"what is wanted"}},"type":"object","x-kubernetes-group-version-kind":[{"group":"a.io","kind":"X","version":"v1"}]}},"securitySchemes":{"Token":{"in":"header","name":"authorization","type":"apiKey"}}},"info":{"title":"a","version":"1"},"openapi":"3.0.0","paths":{"/apis/a.io/v1/x":{"parameters":[{"$ref":"#/components/parameters/pretty"}],"post":{"operationId":"createX","parameters":[{"in":"query","name":"dryRun","schema":{"type":"string","uniqueItems":true}}],"requestBody":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/X"}}}},"responses":{"200":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/X"}},"application/yaml":{"schema":{"$ref":"#/components/schemas/X"}}},"description":"OK"},"401":{"description":"no"}},"x-kubernetes-action":"post"}}}}"##]]
        .assert_eq(&convert(&v2).to_string());
        // What is no document is none in the other form either.
        for odd in [json!(null), json!([]), json!({"paths": 1, "definitions": [], "responses": {"x": 1}})] {
            convert(&odd);
        }
    }
}
