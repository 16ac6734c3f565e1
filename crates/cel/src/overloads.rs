//! The functions that expressions may call, with their overloads. Libraries declare them as lines of text:
//! `name overload-id arguments result`, where arguments are separated by commas, a leading `.` marks a member function
//! (its first argument is the target), and a single capital letter is a type parameter.

use crate::types::{Named, Type};
use std::{collections::HashMap, sync::LazyLock};

/// One way to call a function.
#[derive(Clone, Debug)]
pub(crate) struct Overload {
    pub id: &'static str,
    pub member: bool,
    /// The target of a member comes first.
    pub args: Vec<Type>,
    pub result: Type,
    /// It has type parameters.
    pub generic: bool,
}

/// All functions, by name.
static FUNCTIONS: LazyLock<HashMap<&'static str, Vec<Overload>>> = LazyLock::new(|| {
    let mut functions: HashMap<&'static str, Vec<Overload>> = HashMap::new();
    for line in crate::functions::declarations().flat_map(str::lines) {
        let mut words = line.split_ascii_whitespace();
        let (Some(name), Some(id), Some(args), Some(result)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        functions.entry(name).or_default().push(overload(id, args, result));
    }
    functions
});

/// The overloads of a function.
pub(crate) fn function(name: &str) -> Option<(&'static str, &'static [Overload])> {
    FUNCTIONS.get_key_value(name).map(|(name, list)| (*name, list.as_slice()))
}

fn overload(id: &'static str, args: &'static str, result: &'static str) -> Overload {
    let member = args.starts_with('.');
    let generic =
        args.contains(|c: char| c.is_ascii_uppercase()) || result.contains(|c: char| c.is_ascii_uppercase());
    let list = match args.trim_start_matches('.') {
        "()" => vec![],
        args => split(args).into_iter().map(parse).collect(),
    };
    Overload { id, member, args: list, result: parse(result), generic }
}

/// Splits at the commas that are in no parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut list, mut depth, mut start) = (vec![], 0_u32, 0);
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                list.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    list.push(&text[start..]);
    list
}

/// A type as declarations write it; what they do not know is a parameter.
fn parse(text: &str) -> Type {
    if let Some((name, inner)) = text.strip_suffix(')').and_then(|t| t.split_once('(')) {
        let inner = split(inner);
        return match (name, inner.as_slice()) {
            ("map", [key, value]) => Type::map(parse(key), parse(value)),
            ("optional", [of]) => Type::optional(parse(of)),
            ("type", [of]) => Type::Type(Some(parse(of).into())),
            (_, list) => Type::list(list.first().map_or(Type::Dyn, |t| parse(t))),
        };
    }
    match text {
        "dyn" => Type::Dyn,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "timestamp" => Type::Timestamp,
        "duration" => Type::Duration,
        "null" => Type::Null,
        _ => match Named::ALL.into_iter().find(|n| n.name() == text || short(*n) == text) {
            Some(named) => Type::Named(named),
            None => Type::Param(text.chars().next().map_or(0, u32::from)),
        },
    }
}

/// How declarations write the types of libraries; lower case, for capitals are parameters.
fn short(named: Named) -> &'static str {
    match named {
        Named::Quantity => "quantity",
        Named::Url => "url",
        Named::Ip => "ip",
        Named::Cidr => "cidr",
        Named::Format => "format",
        Named::Semver => "semver",
        Named::Authorizer => "authorizer",
        Named::PathCheck => "path-check",
        Named::GroupCheck => "group-check",
        Named::ResourceCheck => "resource-check",
        Named::Decision => "decision",
        Named::JsonPatch => "json-patch",
        Named::Object => "object",
    }
}
