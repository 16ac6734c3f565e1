//! The value validations of a schema node, and patterns that compile at their first use.

use std::sync::OnceLock;

use regex::{Regex, RegexBuilder};
use regex_syntax::{
    hir::{Class, Hir, HirKind},
    utf8::Utf8Sequences,
};
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
    /// Clauses have the structure's shape, without types ([`crate::Type::Any`] throughout).
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

/// What compiling the patterns of one definition may take, in states of automata (about a quarter of a second). Those of
/// large definitions, thousands of names and addresses, take a tenth of it.
const DEFINITION_STATES: usize = 1_000_000;
/// A pattern of fewer states than this certainly compiles.
const CERTAIN_STATES: usize = 10_000;
/// What a class of Unicode (`\\p{L}`) takes at most, before it is known which.
const CLASS_STATES: usize = 2_500;

/// What the patterns of one definition may still take. Patterns are compiled when they are first used, while a client waits
/// that writes an object; so a definition is refused if its patterns take long.
#[derive(Debug)]
pub struct PatternBudget {
    left: usize,
}

impl Default for PatternBudget {
    fn default() -> Self {
        PatternBudget { left: DEFINITION_STATES }
    }
}

impl PatternBudget {
    /// Checks a pattern, mostly without compiling it.
    ///
    /// # Errors
    /// Why it is no pattern, or that it is one too many.
    pub fn check(&mut self, source: &str) -> Result<(), String> {
        let source = kaji_meta::pattern::go_to_rust(source);
        let exhausted = || "the patterns of this definition are too large together".to_owned();
        // Reading them is what classes cost first.
        let classes = source.matches("\\p").count() + source.matches("\\P").count();
        self.left = self.left.checked_sub(classes * CLASS_STATES / 10).ok_or_else(exhausted)?;
        let parsed = regex_syntax::Parser::new().parse(&source).map_err(|e| e.to_string())?;
        let mut states = 0;
        if !count(&parsed, 1, &mut states, self.left) {
            return Err(exhausted());
        }
        self.left -= states;
        if states > CERTAIN_STATES {
            compile(&source).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// States that are left.
    pub fn left(&self) -> usize {
        self.left
    }
}

/// Adds up the states that a pattern takes `times` times, as long as they are no more than `most`.
fn count(hir: &Hir, times: usize, states: &mut usize, most: usize) -> bool {
    let mut take = |n: usize| {
        *states = states.saturating_add(n.saturating_mul(times));
        *states <= most
    };
    match hir.kind() {
        HirKind::Empty => true,
        HirKind::Look(_) => take(1),
        HirKind::Literal(literal) => take(literal.0.len()),
        HirKind::Class(Class::Bytes(_)) => take(2),
        HirKind::Class(Class::Unicode(class)) => class
            .ranges()
            .iter()
            .all(|range| Utf8Sequences::new(range.start(), range.end()).all(|sequence| take(sequence.len()))),
        HirKind::Repetition(repetition) => {
            let copies = repetition.max.unwrap_or_else(|| repetition.min.saturating_add(1)).max(1);
            take(1) && count(&repetition.sub, times.saturating_mul(copies as usize), states, most)
        }
        HirKind::Capture(capture) => take(2) && count(&capture.sub, times, states, most),
        HirKind::Concat(all) | HirKind::Alternation(all) => {
            take(1) && all.iter().all(|sub| count(sub, times, states, most))
        }
    }
}

fn compile(source: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(source).size_limit(PATTERN_SIZE_LIMIT).dfa_size_limit(PATTERN_SIZE_LIMIT).build()
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
        compile(&kaji_meta::pattern::go_to_rust(source))
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

    /// The first of these took seconds to compile, all of them.
    #[test]
    fn patterns_of_a_definition_are_bounded_together() {
        let mut budget = PatternBudget::default();
        let wide: Vec<String> = (1..=200).map(|i| format!(r"^\p{{L}}{{1,{}}}$", 30 + i % 10)).collect();
        let taken = wide.iter().take_while(|p| budget.check(p).is_ok()).count();
        assert!((5..50).contains(&taken), "{taken}");
        let mut budget = PatternBudget::default();
        let usual = [
            r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
            r"^(([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])\.){3}([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])$",
            r"^([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$",
            r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
            r"^.{1,63}$",
            r"^[^\s]{1,253}$",
        ];
        for i in 0..600 {
            assert_eq!(budget.check(usual[i % usual.len()]), Ok(()), "{i}, {}", budget.left());
        }
        assert!(PatternBudget::default().check(&r"\p{L}".repeat(100_000)).is_err());
    }

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
        assert!(PatternBudget::default().check("(").is_err());
        assert!(PatternBudget::default().check("(a{1000}){1000}").is_err());
        assert!(Pattern::compile("(").is_err());
        assert!(Pattern::compile("(a{1000}){1000}").is_err());
    }
}
