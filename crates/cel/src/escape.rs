//! Property names as identifiers: what CEL reserves or cannot spell is escaped, as KEP-2876 says.

use crate::parser::RESERVED;
use std::borrow::Cow;

/// Words of the language that are no identifiers either.
const WORDS: [&str; 4] = ["true", "false", "null", "in"];

fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name) || WORDS.contains(&name)
}

/// Looks a field up by the name in an expression: as it is escaped, or, where a reserved word is a name in its place, as it
/// is written.
pub(crate) fn find<'f, F>(fields: &'f std::collections::BTreeMap<String, F>, name: &str) -> Option<&'f F> {
    fields.get(name).or_else(|| if is_reserved(name) { fields.get(&format!("__{name}__")) } else { None })
}

/// The identifier for a property; none if there is none.
pub fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if is_reserved(name) {
        return Some(format!("__{name}__"));
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("__") {
            out.push_str("__underscores__");
            rest = after;
            continue;
        }
        match c {
            '.' => out.push_str("__dot__"),
            '-' => out.push_str("__dash__"),
            '/' => out.push_str("__slash__"),
            c if c.is_ascii_alphanumeric() || c == '_' => out.push(c),
            _ => return None,
        }
        rest = &rest[c.len_utf8()..];
    }
    Some(out)
}

/// The property that an identifier stands for; none if it stands for none. Most stand for themselves.
pub fn unescape(name: &str) -> Option<Cow<'_, str>> {
    if !name.contains("__") {
        return Some(name.into());
    }
    let (mut out, mut rest) = (String::with_capacity(name.len()), name);
    while let Some(at) = rest.find("__") {
        let after = &rest[at + 2..];
        let word = after.split('_').next().unwrap_or_default();
        if word.is_empty() || !after[word.len()..].starts_with("__") {
            // No escape begins here; one may begin at the next character.
            out.push_str(&rest[..=at]);
            rest = &rest[at + 1..];
            continue;
        }
        out.push_str(&rest[..at]);
        out.push_str(match word {
            "underscores" => "__",
            "dot" => ".",
            "dash" => "-",
            "slash" => "/",
            // A reserved word is escaped as a whole.
            word if is_reserved(word) && word.len() + 4 == name.len() => word,
            _ => return None,
        });
        rest = &after[word.len() + 2..];
    }
    out.push_str(rest);
    Some(out.into())
}

#[cfg(test)]
mod tests {
    use super::{escape, unescape};

    #[test]
    fn escapes_names_as_published() {
        for (name, escaped) in [
            ("replicas", Some("replicas")),
            ("namespace", Some("__namespace__")),
            ("a.b/c-d", Some("a__dot__b__slash__c__dash__d")),
            ("x__y_z", Some("x__underscores__y_z")),
            ("a___b", Some("a__underscores___b")),
            ("4ever", None),
            ("$ref", None),
            ("", None),
        ] {
            assert_eq!(escape(name).as_deref(), escaped, "{name}");
            if let Some(escaped) = escaped {
                assert_eq!(unescape(escaped).as_deref(), Some(name));
            }
        }
        for (escaped, name) in
            [("__foo__", None), ("a__in__", None), ("__", Some("__")), ("a__b", Some("a__b"))]
        {
            assert_eq!(unescape(escaped).as_deref(), name, "{escaped}");
        }
    }
}
