//! Keywords: which ones a definition may use, and where.

use kaji_meta::field::{Error, ErrorList, Path};
use serde_json::Value;

use super::Node;
use super::node::Edge;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

const RULE_REASONS: [&str; 4] =
    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// Keywords that may stand at the root when there is a status subresource: JSON name, Go name.
const AT_ROOT: [(&str, &str); 22] = [
    ("description", "Description"),
    ("type", "Type"),
    ("format", "Format"),
    ("title", "Title"),
    ("maximum", "Maximum"),
    ("exclusiveMaximum", "ExclusiveMaximum"),
    ("minimum", "Minimum"),
    ("exclusiveMinimum", "ExclusiveMinimum"),
    ("maxLength", "MaxLength"),
    ("minLength", "MinLength"),
    ("pattern", "Pattern"),
    ("maxItems", "MaxItems"),
    ("minItems", "MinItems"),
    ("uniqueItems", "UniqueItems"),
    ("multipleOf", "MultipleOf"),
    ("required", "Required"),
    ("items", "Items"),
    ("properties", "Properties"),
    ("externalDocs", "ExternalDocs"),
    ("example", "Example"),
    ("x-kubernetes-preserve-unknown-fields", "XPreserveUnknownFields"),
    ("x-kubernetes-validations", "XValidations"),
];

/// With a status subresource, validation of the status is taken from `properties.status`: nothing at the root may matter
/// for it.
pub(super) fn root_with_status(n: Node<'_>, path: &Path, errors: &mut ErrorList) {
    if !n.ty().is_empty() && n.ty() != "object" {
        let detail = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        errors.push(Error::invalid(&path.child("type"), n.ty(), detail));
        return;
    }
    let zero = |v: &Value| match v {
        Value::Null | Value::Bool(false) => true,
        Value::String(s) => s.is_empty(),
        _ => false,
    };
    if n.0.iter().any(|(k, v)| !zero(v) && !AT_ROOT.iter().any(|(json, _)| json == k)) {
        let names: Vec<&str> = AT_ROOT.iter().map(|(_, go)| *go).collect();
        let detail = format!(
            "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
            names.join(" ")
        );
        errors.push(Error::invalid(path, Value::Object(n.0.clone()), detail));
    }
}

/// The first keyword in the schema that structural schemas do not have.
pub(super) fn unsupported(n: Node<'_>) -> Option<String> {
    let text = [("id", "id"), ("$schema", "schema"), ("$ref", "$ref")];
    let found = text.into_iter().find(|(k, _)| !n.text(k).is_empty()).map(|(_, name)| name);
    let found = found.or_else(|| {
        let maps = ["patternProperties", "dependencies", "definitions"];
        maps.into_iter().find(|k| n.map(k).next().is_some())
    });
    let found = found.or_else(|| n.get("additionalItems").map(|_| "additionalItems"));
    if let Some(name) = found {
        return Some(format!("OpenAPIV3Schema '{name}' is not supported"));
    }
    if n.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        return Some(
            "internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined".into(),
        );
    }
    if !n.list("items").is_empty() {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".into());
    }
    n.children().find_map(|(_, c)| unsupported(Node::of(c)?))
}

/// What holds for a schema because of where it is.
#[derive(Clone, Copy, Default)]
struct Scope<'a> {
    root: bool,
    in_meta: bool,
    /// Why defaults are forbidden here.
    no_defaults: Option<&'a str>,
}

/// Checks keywords in `root` and below.
pub(super) fn check(root: Node<'_>, path: &Path, errors: &mut ErrorList) {
    node(root, path, Scope { root: true, ..Scope::default() }, errors);
}

fn node(n: Node<'_>, path: &Path, scope: Scope<'_>, errors: &mut ErrorList) {
    basic(n, path, scope, errors);
    if n.flag("uniqueItems") {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.push(Error::forbidden(&path.child("uniqueItems"), detail));
    }
    let additional = n.get("additionalProperties");
    if additional.is_some_and(|a| *a != Value::Bool(true)) && n.map("properties").next().is_some() {
        let detail = "additionalProperties and properties are mutual exclusive";
        errors.push(Error::forbidden(&path.child("additionalProperties"), detail));
    }
    for (edge, child) in n.children() {
        let Some(child) = Node::of(child) else { continue };
        let (at, scope) = below(n, edge, path, scope);
        node(child, &at, scope, errors);
    }
    merge_keywords(n, path, errors);
    rules(n, path, errors);
}

/// The place of a child schema, and what holds there.
fn below<'a>(n: Node<'_>, edge: Edge<'_>, path: &Path, scope: Scope<'a>) -> (Path, Scope<'a>) {
    let mut inner = Scope { root: false, ..scope };
    let at = match edge {
        Edge::Property(k) => {
            let of_resource = scope.root || n.flag("x-kubernetes-embedded-resource");
            if of_resource && matches!(k, "metadata" | "kind" | "apiVersion") {
                inner.in_meta = true;
                if scope.root {
                    inner.no_defaults = Some(match k {
                        "metadata" => "in top-level metadata",
                        "kind" => "in top-level kind",
                        _ => "in top-level apiVersion",
                    });
                }
            }
            path.child("properties").key(k)
        }
        Edge::Additional => {
            if scope.in_meta {
                inner.no_defaults = Some("inside additionalProperties applying to object metadata");
            }
            path.child("additionalProperties")
        }
        Edge::Items => path.child("items"),
        Edge::ItemsAt(i) => path.child("items").index(i),
        Edge::Clause(k, i) => path.child(k).index(i),
        Edge::Not => path.child("not"),
    };
    (at, inner)
}

fn basic(n: Node<'_>, path: &Path, scope: Scope<'_>, errors: &mut ErrorList) {
    let ty = n.ty();
    if !ty.is_empty() && !TYPES.contains(&ty) {
        errors.push(Error::not_supported(&path.child("type"), ty, &TYPES));
    }
    if let (Some(reason), Some(_)) = (scope.no_defaults, n.get("default")) {
        errors.push(Error::forbidden(&path.child("default"), format!("must not be set {reason}")));
    }
    let unsupported = [
        ("id", !n.text("id").is_empty()),
        ("additionalItems", n.get("additionalItems").is_some()),
        ("patternProperties", n.map("patternProperties").next().is_some()),
        ("definitions", n.map("definitions").next().is_some()),
        ("dependencies", n.get("dependencies").is_some()),
        ("$ref", n.get("$ref").is_some()),
    ];
    for (key, found) in unsupported {
        if found {
            errors.push(Error::forbidden(&path.child(key), format!("{key} is not supported")));
        }
    }
    if ty == "null" {
        let detail = "type cannot be set to null, use nullable as an alternative";
        errors.push(Error::forbidden(&path.child("type"), detail));
    }
    if !n.list("items").is_empty() {
        errors.push(Error::forbidden(&path.child("items"), "items must be a schema object and not an array"));
    }
    if scope.in_meta && n.flag("x-kubernetes-embedded-resource") {
        let at = path.child("x-kubernetes-embedded-resource");
        errors.push(Error::forbidden(&at, "must not be used inside of resource meta"));
    }
    let key = "x-kubernetes-preserve-unknown-fields";
    if n.get(key) == Some(&Value::Bool(false)) {
        errors.push(Error::invalid(&path.child(key), false, "must be true or undefined"));
    }
}

/// `type` must be `want` because of `key`.
fn require_type(n: Node<'_>, path: &Path, want: &str, key: &str, errors: &mut ErrorList) {
    if n.ty() == want {
        return;
    }
    let at = path.child("type");
    let detail = format!("must be {want} if {key} is specified");
    errors.push(match n.ty() {
        "" => Error::required(&at, detail),
        t => Error::invalid(&at, t, detail),
    });
}

fn merge_keywords(n: Node<'_>, path: &Path, errors: &mut ErrorList) {
    if let Some(kind) = n.get("x-kubernetes-map-type").and_then(Value::as_str) {
        require_type(n, path, "object", "x-kubernetes-map-type", errors);
        let kinds = ["atomic", "granular"];
        if !kinds.contains(&kind) {
            errors.push(Error::not_supported(&path.child("x-kubernetes-map-type"), kind, &kinds));
        }
    }
    let kind = n.get("x-kubernetes-list-type").and_then(Value::as_str);
    let at = path.child("x-kubernetes-list-type");
    if let Some(kind) = kind {
        require_type(n, path, "array", "x-kubernetes-list-type", errors);
        if let (Some(items), "set", "array") = (n.items(), kind, n.ty()) {
            set_items(items, &path.child("items"), errors);
        }
        let kinds = ["atomic", "set", "map"];
        if !kinds.contains(&kind) {
            errors.push(Error::not_supported(&at, kind, &kinds));
        }
    }
    if !n.list("x-kubernetes-list-map-keys").is_empty() && kind != Some("map") {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        errors.push(match kind {
            None => Error::required(&at, detail),
            Some(k) => Error::invalid(&at, k, detail),
        });
    }
    if kind == Some("map") {
        map_list(n, path, errors);
    }
    if let (Some("set" | "map"), Some(items)) = (kind, n.items()) {
        key_rules(n, items, kind.unwrap_or(""), &path.child("items"), errors);
    }
}

fn set_items(items: Node<'_>, path: &Path, errors: &mut ErrorList) {
    let (key, bad) = match items.ty() {
        "array" => {
            let kind = items.get("x-kubernetes-list-type");
            ("x-kubernetes-list-type", kind.is_some_and(|k| k != "atomic"))
        }
        "object" => ("x-kubernetes-map-type", items.text("x-kubernetes-map-type") != "atomic"),
        _ => return,
    };
    if bad {
        let value = items.get("x-kubernetes-list-type").cloned().unwrap_or(Value::Null);
        let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
        errors.push(Error::invalid(&path.child(key), value, detail));
    }
}

fn map_list(n: Node<'_>, path: &Path, errors: &mut ErrorList) {
    let keys = n.list("x-kubernetes-list-map-keys");
    let keys_at = path.child("x-kubernetes-list-map-keys");
    if keys.is_empty() {
        errors.push(Error::required(&keys_at, "must not be empty if x-kubernetes-list-type is map"));
    }
    let items_at = path.child("items");
    let Some(items) = n.items() else {
        errors.push(match n.get("items") {
            None => Error::required(&items_at, "must have a schema if x-kubernetes-list-type is map"),
            Some(i) => Error::invalid(
                &items_at,
                i.clone(),
                "must only have a single schema if x-kubernetes-list-type is map",
            ),
        });
        return;
    };
    if items.ty() != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(Error::invalid(&items_at.child("type"), items.ty(), detail));
        return;
    }
    for (i, key) in keys.iter().enumerate() {
        let name = key.as_str().unwrap_or("");
        match items.property(name) {
            Some(p) if matches!(p.ty(), "array" | "object") => {
                let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                let at = items_at.child("properties").key(name).child("type");
                errors.push(Error::invalid(&at, items.ty(), detail));
            }
            Some(_) => {}
            None => {
                let detail = "entries must all be names of item properties";
                errors.push(Error::invalid(&keys_at, keys.to_vec(), detail));
            }
        }
        if keys[..i].contains(key) {
            errors.push(Error::invalid(&keys_at, keys.to_vec(), "must not contain duplicate entries"));
        }
    }
}

/// Elements and keys of sets and maps are never null, and keys are always there.
fn key_rules(n: Node<'_>, items: Node<'_>, kind: &str, path: &Path, errors: &mut ErrorList) {
    if items.flag("nullable") {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {kind}");
        errors.push(Error::forbidden(&path.child("nullable"), detail));
    }
    if kind != "map" {
        return;
    }
    for key in n.strings("x-kubernetes-list-map-keys") {
        let Some(p) = items.property(key) else { continue };
        let at = path.child("properties").key(key);
        if !items.strings("required").any(|r| r == key) && p.get("default").is_none() {
            let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(Error::required(&at.child("default"), detail));
        }
        if p.flag("nullable") {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(Error::forbidden(&at.child("nullable"), detail));
        }
    }
}

/// The form of CEL rules; their expressions are not looked at.
fn rules(n: Node<'_>, path: &Path, errors: &mut ErrorList) {
    let has_break = |s: &str| s.contains(['\n', '\r']);
    for (i, rule) in n.clauses("x-kubernetes-validations") {
        let at = path.child("x-kubernetes-validations").index(i);
        let (text, message, field) = (rule.text("rule"), rule.text("message"), rule.text("fieldPath"));
        if text.trim().is_empty() {
            errors.push(Error::required(&at.child("rule"), "rule is not specified"));
        } else if !message.is_empty() && message.trim().is_empty() {
            errors.push(Error::invalid(&at.child("message"), message, "must be non-empty if specified"));
        } else if has_break(message.trim()) {
            errors.push(Error::invalid(&at.child("message"), message, "must not contain line breaks"));
        } else if has_break(text.trim()) && message.trim().is_empty() {
            let detail = "message must be specified if rule contains line breaks";
            errors.push(Error::required(&at.child("message"), detail));
        }
        let expression = rule.text("messageExpression");
        if !expression.is_empty() && expression.trim().is_empty() {
            let detail = "messageExpression must be non-empty if specified";
            errors.push(Error::required(&at.child("messageExpression"), detail));
        }
        let reason = rule.text("reason");
        if rule.get("reason").is_some() && !RULE_REASONS.contains(&reason) {
            errors.push(Error::not_supported(&at.child("reason"), reason, &RULE_REASONS));
        }
        if !field.is_empty() && field.trim().is_empty() {
            errors.push(Error::invalid(&at.child("fieldPath"), field, "must be non-empty if specified"));
        }
        if has_break(field) {
            errors.push(Error::invalid(&at.child("fieldPath"), field, "must not contain line breaks"));
        }
    }
}
