//! From a structural schema to the CEL declarations that rules are type-checked with. Source: apiserver `cel/common/schemas.go`.

use super::{below, embedded, keys_of_map_list, list, properties, text};
use kaji_cel::{Decl, ListKind};
use serde_json::Value;

/// The declaration of a schema; none if rules cannot see such values (unknown fields, untyped data). `root`: the schema is
/// that of a whole object: its kind, apiVersion, name and generateName are always visible.
pub(super) fn decl(schema: &Value, root: bool) -> Option<Decl> {
    let size = |key: &str| schema.get(key).map(|v| v.as_u64().unwrap_or_default());
    let nullable = schema.get("nullable") == Some(&Value::Bool(true));
    if schema.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        return Some(Decl::int_or_string(size("maxLength")).nullable(nullable));
    }
    let decl = match text(schema, "type") {
        "array" => {
            let items = below(schema, "items")?;
            let kind = match (keys_of_map_list(schema), text(schema, "x-kubernetes-list-type")) {
                (Some(keys), _) => ListKind::Map(keys),
                (None, "set") => ListKind::Set,
                _ => ListKind::Atomic,
            };
            Decl::list(decl(items, embedded(items))?, kind, size("maxItems"))
        }
        "object" => match below(schema, "additionalProperties") {
            Some(values) if !root => Decl::map(decl(values, embedded(values))?, size("maxProperties")),
            _ => object(schema, root),
        },
        "string" => {
            let choices = list(schema, "enum").iter().filter_map(Value::as_str).map(|s| s.len() as u64).max();
            let longest =
                if list(schema, "enum").is_empty() { None } else { Some(choices.unwrap_or_default()) };
            Decl::string(text(schema, "format"), size("maxLength"), longest)
        }
        "boolean" => Decl::bool(),
        "number" => Decl::double(),
        "integer" => Decl::int(),
        _ => return None,
    };
    Some(decl.nullable(nullable))
}

fn object(schema: &Value, root: bool) -> Decl {
    let required = |name: &str| list(schema, "required").iter().any(|r| r == name);
    let declared = |path: &[&str], ty: &str| {
        let at = path.iter().try_fold(schema, |s, name| s.get("properties")?.get(name));
        at.is_some_and(|s| text(s, "type") == ty)
    };
    let complete = declared(&["kind"], "string")
        && declared(&["apiVersion"], "string")
        && declared(&["metadata"], "object")
        && declared(&["metadata", "name"], "string")
        && declared(&["metadata", "generateName"], "string");
    let adds_meta = root && !complete;
    let is_meta = |name: &str| matches!(name, "kind" | "apiVersion" | "metadata");
    let own = properties(schema).filter(|(name, _)| !(adds_meta && is_meta(name))).filter_map(|(name, s)| {
        let sent = required(name) && s.get("default").is_none();
        Some((name.clone(), decl(s, embedded(s))?, sent))
    });
    let string = || Decl::string("", None, None);
    let meta = adds_meta.then(|| {
        let names = ["name", "generateName"].map(|n| (n.to_owned(), string(), false));
        [("kind", string()), ("apiVersion", string()), ("metadata", Decl::object(names))]
            .map(|(name, decl)| (name.to_owned(), decl, required(name)))
    });
    Decl::object(own.chain(meta.into_iter().flatten()))
}
