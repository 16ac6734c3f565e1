//! Reads declarations from Go API packages: struct fields with their tags, named types, and values of `+enum` types.
//!
//! This is no Go parser. It knows the layout that gofmt gives to API types: one field a line, tags in back quotes.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use std::sync::LazyLock;

/// A Go type, as far as it matters for JSON.
#[derive(Clone, Debug, PartialEq)]
pub enum GoType {
    /// `*T`
    Pointer(Box<GoType>),
    /// `[]T`
    List(Box<GoType>),
    /// `map[string]T`
    Map(Box<GoType>),
    /// `[]byte`
    Bytes,
    /// A predeclared type ("string") or a full name ("io.k8s.api.core.v1.Protocol").
    Name(String),
}

/// One field of a struct.
#[derive(Clone, Debug)]
pub struct GoField {
    /// Its type.
    pub ty: GoType,
    /// The JSON name; empty for an inlined struct.
    pub json: String,
    /// `omitempty`.
    pub omit_empty: bool,
    /// `omitzero`.
    pub omit_zero: bool,
    /// The protobuf number; 0 without a tag.
    pub number: u16,
    /// The text after `+default=`.
    pub default: Option<String>,
}

/// What a package declares.
#[derive(Default)]
pub struct Declarations {
    /// Structs.
    pub structs: BTreeMap<String, Vec<GoField>>,
    /// Other named types.
    pub named: BTreeMap<String, GoType>,
    /// Values of string types that are marked `+enum`.
    pub enums: BTreeMap<String, BTreeSet<String>>,
    enum_types: BTreeSet<String>,
}

static IMPORT: LazyLock<Regex> =
    LazyLock::new(|| re(r#"^\s*(?:import\s+)?(\w+)?\s*"((?:k8s\.io|sigs\.k8s\.io)/[^"]+)"$"#));
static STRUCT: LazyLock<Regex> = LazyLock::new(|| re(r"^type (\w+) struct \{"));
static NAMED: LazyLock<Regex> = LazyLock::new(|| re(r"^type (\w+)\s+=?\s*([\w\[\]\*\.]+)$"));
static FIELD: LazyLock<Regex> = LazyLock::new(|| re(r"^\s+(?:(\w+)\s+)?([\w\.\*\[\]]+)\s+`([^`]*)`"));
static JSON: LazyLock<Regex> = LazyLock::new(|| re(r#"json:"([^"]*)""#));
static NUMBER: LazyLock<Regex> = LazyLock::new(|| re(r#"protobuf:"\w+,(\d+)"#));
static CONST: LazyLock<Regex> = LazyLock::new(|| re(r#"^\s*(?:const\s+)?\w+\s+(\w+)\s*=\s*"([^"]*)"$"#));

#[allow(clippy::expect_used)]
fn re(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a constant pattern")
}

/// Adds what the file `text` of `package` declares to `out`.
pub fn parse(package: &str, text: &str, out: &mut Declarations) {
    let mut imports: BTreeMap<String, String> = BTreeMap::new();
    let mut current: Option<String> = None;
    let mut comment: Vec<&str> = Vec::new();
    for line in text.lines() {
        let trimmed = line.trim();
        if let Some(c) = trimmed.strip_prefix("//") {
            comment.push(c.trim());
            continue;
        }
        if let Some(c) = IMPORT.captures(line) {
            let path = &c[2];
            let alias = c.get(1).map_or(path.rsplit('/').next().unwrap_or(path), |a| a.as_str());
            imports.insert(alias.to_string(), package_of(path));
        } else if let Some(c) = STRUCT.captures(line) {
            // Two files may declare one type under different build tags; the first one counts.
            let fresh = !out.structs.contains_key(&c[1]);
            out.structs.entry(c[1].to_string()).or_default();
            current = (fresh && !line.trim_end().ends_with('}')).then(|| c[1].to_string());
        } else if line == "}" {
            current = None;
        } else if let (Some(name), Some(field)) = (&current, field(package, &imports, line, &comment)) {
            if let Some(fields) = out.structs.get_mut(name) {
                fields.push(field);
            }
        } else if let Some(c) = NAMED.captures(trimmed) {
            out.named.insert(c[1].to_string(), go_type(package, &imports, &c[2]));
            if comment.contains(&"+enum") {
                out.enum_types.insert(c[1].to_string());
            }
        } else if let Some(c) = CONST.captures(trimmed) {
            out.enums.entry(c[1].to_string()).or_default().insert(c[2].to_string());
        }
        comment.clear();
    }
}

impl Declarations {
    /// The values of `name` if it is an enum.
    pub fn enum_values(&self, name: &str) -> Option<&BTreeSet<String>> {
        self.enum_types.contains(name).then(|| self.enums.get(name))?
    }
}

/// "k8s.io/api/core/v1" is "io.k8s.api.core.v1".
fn package_of(path: &str) -> String {
    let (host, rest) = path.split_once('/').unwrap_or((path, ""));
    let host: Vec<&str> = host.rsplit('.').collect();
    format!("{}.{}", host.join("."), rest.replace('/', "."))
}

fn field(package: &str, imports: &BTreeMap<String, String>, line: &str, comment: &[&str]) -> Option<GoField> {
    let c = FIELD.captures(line)?;
    let tags = &c[3];
    let json = JSON.captures(tags).map(|j| j[1].to_string()).unwrap_or_default();
    let mut parts = json.split(',');
    let name = parts.next().unwrap_or("").to_string();
    let options: Vec<&str> = parts.collect();
    if name == "-" {
        return None;
    }
    Some(GoField {
        ty: go_type(package, imports, &c[2]),
        json: name,
        omit_empty: options.contains(&"omitempty"),
        omit_zero: options.contains(&"omitzero"),
        number: NUMBER.captures(tags).and_then(|n| n[1].parse().ok()).unwrap_or(0),
        default: comment.iter().find_map(|c| c.strip_prefix("+default=")).map(str::to_string),
    })
}

fn go_type(package: &str, imports: &BTreeMap<String, String>, text: &str) -> GoType {
    let rest = |t: &str| Box::new(go_type(package, imports, t));
    if text == "[]byte" {
        return GoType::Bytes;
    }
    if let Some(t) = text.strip_prefix('*') {
        return GoType::Pointer(rest(t));
    }
    if let Some(t) = text.strip_prefix("[]") {
        return GoType::List(rest(t));
    }
    if let Some((_, t)) = text.strip_prefix("map[").and_then(|t| t.split_once(']')) {
        return GoType::Map(rest(t));
    }
    if let Some((alias, name)) = text.split_once('.') {
        let package = imports.get(alias).map_or(alias, String::as_str);
        return GoType::Name(format!("{package}.{name}"));
    }
    let predeclared = matches!(
        text,
        "string"
            | "bool"
            | "int"
            | "int32"
            | "int64"
            | "uint"
            | "uint32"
            | "uint64"
            | "float64"
            | "float32"
            | "byte"
    );
    GoType::Name(if predeclared { text.to_string() } else { format!("{package}.{text}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_structs_and_enums() {
        let mut d = Declarations::default();
        let text = "import (\n\tmetav1 \"k8s.io/apimachinery/pkg/apis/meta/v1\"\n)\n// +enum\ntype Color string\nconst (\n\tRed \
                    Color = \"red\"\n)\ntype A struct {\n\tmetav1.TypeMeta `json:\"\"`\n\t// +default=\"x\"\n\t// +optional\n\tX \
                    *Color `json:\"x,omitempty\" protobuf:\"bytes,7,opt,name=x\"`\n}\n";
        parse("io.k8s.api.t.v1", text, &mut d);
        let fields = &d.structs["A"];
        assert_eq!(fields.len(), 2);
        assert_eq!(fields[0].ty, GoType::Name("io.k8s.apimachinery.pkg.apis.meta.v1.TypeMeta".into()));
        assert_eq!((fields[1].number, fields[1].omit_empty), (7, true));
        assert_eq!(fields[1].default.as_deref(), Some("\"x\""));
        assert_eq!(d.enum_values("Color").map(BTreeSet::len), Some(1));
    }
}
