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
        let source = kaji_meta::pattern::go_to_rust(source);
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
