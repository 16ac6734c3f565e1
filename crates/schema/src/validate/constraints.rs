//! The value validations of a schema node, and patterns that compile at their first use.

use std::sync::OnceLock;

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use crate::schema::Schema;

/// How large a compiled pattern may become, in bytes. A CRD author decides the pattern; the server pays for it.
const PATTERN_SIZE_LIMIT: usize = 4 << 20;

/// Everything in a schema that restricts values without giving structure.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub struct Constraints {
    pub maximum: Option<f64>,
    pub minimum: Option<f64>,
    pub exclusive_maximum: bool,
    pub exclusive_minimum: bool,
    pub multiple_of: Option<f64>,
    pub max_length: Option<i64>,
    pub min_length: Option<i64>,
    pub max_items: Option<i64>,
    pub min_items: Option<i64>,
    pub max_properties: Option<i64>,
    pub min_properties: Option<i64>,
    pub unique_items: bool,
    pub pattern: Option<Box<Pattern>>,
    pub enumeration: Box<[Value]>,
    /// Clauses have the structure's shape, without types of their own ([`crate::Type::Any`] throughout).
    pub all_of: Box<[Schema]>,
    pub any_of: Box<[Schema]>,
    pub one_of: Box<[Schema]>,
    pub not: Option<Box<Schema>>,
}

impl Constraints {
    /// Nothing is restricted.
    pub fn is_empty(&self) -> bool {
        *self == Constraints::default()
    }
}

/// A regular expression (Go's RE2 syntax; the `regex` crate reads the same language).
#[derive(Clone, Debug)]
pub struct Pattern {
    source: Box<str>,
    compiled: OnceLock<Option<Regex>>,
}

impl Pattern {
    /// Remembers `source`; compiles nothing yet.
    pub fn new(source: &str) -> Pattern {
        Pattern { source: source.into(), compiled: OnceLock::new() }
    }

    /// The pattern as written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Compiles it; the error says why it is no pattern.
    pub fn compile(source: &str) -> Result<Regex, regex::Error> {
        let source = go_to_rust(source);
        RegexBuilder::new(&source).size_limit(PATTERN_SIZE_LIMIT).dfa_size_limit(PATTERN_SIZE_LIMIT).build()
    }

    /// Whether `text` contains a match. A pattern that does not compile matches nothing; such schemas are rejected
    /// when they are written.
    pub fn is_match(&self, text: &str) -> bool {
        let regex = self.compiled.get_or_init(|| Pattern::compile(&self.source).ok());
        regex.as_ref().is_some_and(|r| r.is_match(text))
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.source == other.source
    }
}

/// Go's `\d \w \s \b` are ASCII, Rust's are Unicode; `\z` is the same, `\Q..\E` is unknown to Rust; Go reads a `{` that
/// opens no repetition as a literal.
fn go_to_rust(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + 8);
    let mut rest = source;
    let mut in_class = false;
    while let Some(c) = rest.chars().next() {
        let mut used = c.len_utf8();
        match c {
            '\\' => {
                let next = rest[1..].chars().next();
                used += next.map_or(0, char::len_utf8);
                match next {
                    Some('Q') => {
                        let body = &rest[2..];
                        let (literal, after) = body.split_once("\\E").unwrap_or((body, ""));
                        out.push_str(&regex::escape(literal));
                        rest = after;
                        continue;
                    }
                    Some(d @ ('d' | 'D' | 'w' | 'W' | 's' | 'S')) => out.push_str(ascii_class(d, in_class)),
                    Some(d @ ('b' | 'B')) => {
                        out.push_str("(?-u:\\");
                        out.push(d);
                        out.push(')');
                    }
                    // Classes by name: \p{Greek}, \x{10ffff}.
                    Some('p' | 'P' | 'x') if rest[2..].starts_with('{') => {
                        used = rest.find('}').map_or(rest.len(), |i| i + 1);
                        out.push_str(&rest[..used]);
                    }
                    // Escapes of plain characters that Rust would reject.
                    Some(d) if d.is_ascii_punctuation() => out.push_str(&regex::escape(&d.to_string())),
                    Some(d) => out.extend(['\\', d]),
                    None => out.push('\\'),
                }
            }
            '[' if in_class && !rest.starts_with("[:") => out.push_str("\\["),
            '[' if !in_class => {
                in_class = true;
                out.push('[');
                // A bracket right after the opening is a literal.
                for literal in ["[^]", "[]"] {
                    if rest.starts_with(literal) {
                        out.push_str(if literal == "[^]" { "^\\]" } else { "\\]" });
                        used = literal.len();
                        break;
                    }
                }
            }
            '[' => {
                let end = rest.find(":]").map_or(1, |i| i + 2);
                out.push_str(&rest[..end]);
                used = end;
            }
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            // Set operations of Rust's classes.
            '&' | '~' if in_class => out.extend(['\\', c]),
            '-' if in_class && rest.starts_with("--") => out.push_str("\\-"),
            '{' if !in_class && !opens_repetition(rest) => out.push_str("\\{"),
            c => out.push(c),
        }
        rest = &rest[used..];
    }
    out
}

fn ascii_class(d: char, in_class: bool) -> &'static str {
    match (d, in_class) {
        ('d', false) => "[0-9]",
        ('D', false) => "[^0-9]",
        ('w', false) => "[0-9A-Za-z_]",
        ('W', false) => "[^0-9A-Za-z_]",
        ('s', false) => "[\\t\\n\\f\\r ]",
        ('S', false) => "[^\\t\\n\\f\\r ]",
        ('d', true) => "0-9",
        ('w', true) => "0-9A-Za-z_",
        ('s', true) => "\\t\\n\\f\\r ",
        ('D', true) => "[^0-9]",
        ('W', true) => "[^0-9A-Za-z_]",
        _ => "[^\\t\\n\\f\\r ]",
    }
}

/// "{2}", "{2,}" or "{2,3}" at the start of `text`.
fn opens_repetition(text: &str) -> bool {
    let Some((inside, _)) = text.get(1..).and_then(|t| t.split_once('}')) else { return false };
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    match inside.split_once(',') {
        Some((a, b)) => !a.is_empty() && digits(a) && digits(b),
        None => !inside.is_empty() && digits(inside),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_syntax() {
        for (pattern, text, want) in [
            (r"^\d+$", "12", true),
            (r"^\d+$", "\u{0661}", false),
            (r"^\Qa.b\E$", "a.b", true),
            (r"^[\w-]+$", "a-b", true),
            (r"^[]a]+$", "]a", true),
            (r"^[a&&b]$", "&", true),
            (r"^a{x$", "a{x", true),
            (r"^a{2}$", "aa", true),
            (r"^\-\/\:$", "-/:", true),
            (r"^[[:alpha:]]+$", "ab", true),
            (r"^\S+$", "a b", false),
            (r"^[^\s]*$", "ab", true),
            (r"^(?:[a-z]+|)$", "", true),
            (r"^\p{L}$", "é", true),
        ] {
            assert_eq!(Pattern::new(pattern).is_match(text), want, "{pattern}");
        }
        assert!(Pattern::compile("(").is_err());
        assert!(Pattern::compile("(a{1000}){1000}").is_err());
    }
}
