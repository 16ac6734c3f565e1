//! Reads the part of proto2 that Kubernetes' generated files use: messages of plain, repeated and map fields.

use std::collections::BTreeMap;

/// Messages of one file, by name; fields by number.
pub type Messages = BTreeMap<String, BTreeMap<u16, Field>>;

/// One field.
#[derive(Debug, PartialEq)]
pub struct Field {
    /// The name in the file.
    pub name: String,
    /// `repeated`.
    pub repeated: bool,
    /// `map<string, T>`; `ty` is then T.
    pub map: bool,
    /// A scalar's name, or the full name of a message ("io.k8s.api.core.v1.PodSpec").
    pub ty: String,
}

/// Returns the package, named as OpenAPI names it, and its messages.
pub fn parse(text: &str) -> (String, Messages) {
    let mut package = String::new();
    let mut messages = Messages::new();
    let mut current: Option<String> = None;
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or("").trim();
        if let Some(rest) = line.strip_prefix("package ") {
            package = openapi_package(rest.trim_end_matches(';').trim());
        } else if let Some(rest) = line.strip_prefix("message ") {
            let name = rest.trim_end_matches('{').trim().to_string();
            messages.entry(name.clone()).or_default();
            current = Some(name);
        } else if line == "}" {
            current = None;
        } else if let (Some(name), Some((number, field))) = (&current, field(&package, line)) {
            messages.entry(name.clone()).or_default().insert(number, field);
        }
    }
    (package, messages)
}

/// "k8s.io.kube_aggregator.pkg" is "io.k8s.kube-aggregator.pkg".
fn openapi_package(proto: &str) -> String {
    match proto.strip_prefix("k8s.io.") {
        Some(rest) => format!("io.k8s.{}", rest.replace('_', "-")),
        None => proto.to_string(),
    }
}

fn field(package: &str, line: &str) -> Option<(u16, Field)> {
    let (declaration, rest) = line.split_once('=')?;
    let number = rest.split([';', '[']).next()?.trim().parse().ok()?;
    let declaration = declaration.trim();
    let (ty, name) = declaration.rsplit_once(' ')?;
    let (repeated, ty) = match ty.trim().split_once(' ') {
        Some(("repeated", t)) => (true, t),
        Some(("optional" | "required", t)) => (false, t),
        _ => (false, ty),
    };
    let (map, ty) = match ty.trim().strip_prefix("map<").and_then(|t| t.strip_suffix('>')) {
        Some(inner) => (true, inner.split_once(',')?.1.trim()),
        None => (false, ty.trim()),
    };
    let scalar = matches!(
        ty,
        "string" | "bytes" | "bool" | "int32" | "int64" | "uint32" | "uint64" | "double" | "float"
    );
    let ty = match ty.strip_prefix('.') {
        Some(full) => match full.rsplit_once('.') {
            Some((p, n)) => format!("{}.{n}", openapi_package(p)),
            None => full.to_string(),
        },
        None if scalar => ty.to_string(),
        None => format!("{package}.{ty}"),
    };
    Some((number, Field { name: name.trim().to_string(), repeated, map, ty }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_fields() {
        let (package, messages) = parse(
            "package k8s.io.kube_aggregator.v1;\nmessage A {\n  // c = 9;\n  optional string x = 1; // y\n\n  \
             repeated .k8s.io.api.core.v1.Pod pods = 2;\n  map<string, B> m = 3;\n}\n",
        );
        assert_eq!(package, "io.k8s.kube-aggregator.v1");
        let fields: Vec<String> = messages["A"]
            .iter()
            .map(|(n, f)| format!("{n} {} {} {} {}", f.name, f.repeated, f.map, f.ty))
            .collect();
        assert_eq!(
            fields,
            [
                "1 x false false string",
                "2 pods true false io.k8s.api.core.v1.Pod",
                "3 m false true io.k8s.kube-aggregator.v1.B"
            ]
        );
    }
}
