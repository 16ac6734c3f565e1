//! `fieldPath` of a rule: a JSON path of names and map keys, relative to the schema that holds the rule.

use super::below;
use kaji_meta::Path;
use serde_json::Value;

/// The path as field errors print it; none if the schema has no such field.
pub(super) fn normalized(path: &str, schema: &Value) -> Option<String> {
    let (mut rest, mut at, mut schema) = (path, Path::root(), schema);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let name;
        if let Some(quoted) = rest.strip_prefix("['") {
            let (text, after) = unquote(quoted)?;
            (name, rest) = (text, after.strip_prefix(']')?);
        } else {
            let plain = rest.strip_prefix('.')?;
            let end = plain.find(['.', '[', ']']).unwrap_or(plain.len());
            (name, rest) = (plain[..end].to_owned(), &plain[end..]);
        }
        if schema.get("properties").is_some() {
            schema = schema.get("properties")?.get(&name)?;
            at = at.child(&name);
        } else {
            schema = below(schema, "additionalProperties")?;
            at = at.key(&name);
        }
    }
    Some(at.to_string())
}

/// The text up to the closing quote, escapes resolved, and what follows it.
fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut chars = quoted.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '\'' => return Some((out, &quoted[i + 1..])),
            '\\' => out.push(match chars.next()?.1 {
                'a' => '\u{7}',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'v' => '\u{b}',
                c @ ('\'' | '\\') => c,
                _ => return None,
            }),
            c => out.push(c),
        }
    }
    None
}
