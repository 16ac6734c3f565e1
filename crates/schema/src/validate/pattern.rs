//! `pattern` of a schema: regular expressions in Go's syntax, compiled when they are first used.
//!
//! Invariants:
//! - What the patterns of a definition take is bounded when it is written, without compiling them: by the characters' classes
//!   that are parsed and by the steps of their programs, which, as Go's, have one step for a class however wide it is.
//! - A pattern that is used often becomes an automaton over bytes, which is faster and dearer to make, if that is small.

use regex::{Regex, RegexBuilder};
use regex_syntax::{
    hir::{Class, Hir, HirKind},
    utf8::Utf8Sequences,
};
use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering},
};

mod program;

use program::Program;

/// How large an automaton may become, in bytes. A CRD author decides the pattern; the server pays for it.
const AUTOMATON_BYTES: usize = 4 << 20;
/// Patterns of more states than this stay programs: about a millisecond to compile.
const AUTOMATON_STATES: usize = 4_000;
/// How often a pattern is used before it becomes an automaton.
const OFTEN: u32 = 32;
/// The steps of one pattern. Go has a similar limit for the whole and one of 1,000 for nested repetitions.
const PATTERN_STEPS: usize = 100_000;
/// The steps of the patterns of one definition: some 25 MB, if all are used.
const DEFINITION_STEPS: usize = 1_000_000;
/// How many classes of Unicode (`\\p{L}`) a definition may name: reading one takes some 30 microseconds.
const DEFINITION_CLASSES: usize = 10_000;

/// What the patterns of one definition may still take. Patterns are compiled when they are first used, while a client waits
/// that writes an object; so a definition is refused if its patterns take long.
#[derive(Debug)]
pub struct PatternBudget {
    steps: usize,
    classes: usize,
}

impl Default for PatternBudget {
    fn default() -> Self {
        PatternBudget { steps: DEFINITION_STEPS, classes: DEFINITION_CLASSES }
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
        let classes = source.matches("\\p").count() + source.matches("\\P").count();
        self.classes = self.classes.checked_sub(classes).ok_or_else(exhausted)?;
        let parsed = parse(&source)?;
        if !program::supports(&parsed) {
            return automaton(&source).map(drop).map_err(|e| e.to_string());
        }
        let steps = program::steps(&parsed);
        if steps > PATTERN_STEPS {
            return Err("expression is too large".into());
        }
        self.steps = self.steps.checked_sub(steps).ok_or_else(exhausted)?;
        Ok(())
    }

    /// Steps that are left.
    pub fn left(&self) -> usize {
        self.steps
    }
}

fn parse(source: &str) -> Result<Hir, String> {
    regex_syntax::Parser::new().parse(source).map_err(|e| e.to_string())
}

fn automaton(source: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(source).size_limit(AUTOMATON_BYTES).dfa_size_limit(AUTOMATON_BYTES).build()
}

/// Whether the automaton over bytes of a pattern is small.
fn is_small(hir: &Hir) -> bool {
    let mut states = 0;
    count(hir, 1, &mut states)
}

/// Adds up the states that a pattern takes `times` times, as long as they are few.
fn count(hir: &Hir, times: usize, states: &mut usize) -> bool {
    let mut take = |n: usize| {
        *states = states.saturating_add(n.saturating_mul(times));
        *states <= AUTOMATON_STATES
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
            take(1) && count(&repetition.sub, times.saturating_mul(copies as usize), states)
        }
        HirKind::Capture(capture) => take(2) && count(&capture.sub, times, states),
        HirKind::Concat(all) | HirKind::Alternation(all) => {
            take(1) && all.iter().all(|sub| count(sub, times, states))
        }
    }
}

/// A pattern of a schema.
#[derive(Debug)]
pub struct Pattern {
    source: Box<str>,
    program: OnceLock<Compiled>,
    uses: AtomicU32,
    /// None inside: it would not be small.
    automaton: OnceLock<Option<Regex>>,
}

/// What the first use of a pattern makes.
#[derive(Debug)]
enum Compiled {
    Program(Program),
    /// What no program can have; Go's syntax has nothing of the kind.
    Automaton(Regex),
    /// It is no pattern.
    Invalid,
}

impl Clone for Pattern {
    fn clone(&self) -> Pattern {
        Pattern::new(&self.source)
    }
}

impl Pattern {
    /// Stores `source`; compiles nothing yet.
    pub fn new(source: &str) -> Pattern {
        Pattern {
            source: source.into(),
            program: OnceLock::new(),
            uses: AtomicU32::new(0),
            automaton: OnceLock::new(),
        }
    }

    /// The pattern as written.
    pub fn source(&self) -> &str {
        &self.source
    }

    fn compile(source: &str) -> Compiled {
        let source = kaji_meta::pattern::go_to_rust(source);
        match parse(&source) {
            Ok(hir) if !program::supports(&hir) => {
                automaton(&source).map_or(Compiled::Invalid, Compiled::Automaton)
            }
            Ok(hir) if program::steps(&hir) <= PATTERN_STEPS => Compiled::Program(Program::new(&hir)),
            Ok(_) | Err(_) => Compiled::Invalid,
        }
    }

    fn small_automaton(source: &str) -> Option<Regex> {
        let source = kaji_meta::pattern::go_to_rust(source);
        let small = parse(&source).is_ok_and(|hir| is_small(&hir));
        if small { automaton(&source).ok() } else { None }
    }

    /// Whether `text` contains a match. A pattern that does not compile matches nothing; such schemas are rejected
    /// when they are written.
    pub fn is_match(&self, text: &str) -> bool {
        if let Some(Some(automaton)) = self.automaton.get() {
            return automaton.is_match(text);
        }
        match self.program.get_or_init(|| Pattern::compile(&self.source)) {
            Compiled::Invalid => false,
            Compiled::Automaton(automaton) => automaton.is_match(text),
            Compiled::Program(program) => {
                if self.uses.fetch_add(1, Ordering::Relaxed) == OFTEN {
                    self.automaton.get_or_init(|| Pattern::small_automaton(&self.source));
                }
                program.is_match(text)
            }
        }
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

    /// Compiled to automata over bytes, these took six seconds.
    #[test]
    fn takes_many_wide_patterns_without_automata() {
        let mut budget = PatternBudget::default();
        let wide: Vec<String> = (1..=200).map(|i| format!(r"^[\p{{L}}\p{{N}}_-]{{1,{}}}$", 30 + i)).collect();
        for source in &wide {
            assert_eq!(budget.check(source), Ok(()), "{source}");
            let pattern = Pattern::new(source);
            assert!(pattern.is_match("日本-é_1") && !pattern.is_match("a b"));
        }
        let pattern = Pattern::new(&wide[0]);
        assert!((0..2 * OFTEN).all(|_| pattern.is_match("日本-é_1")));
        assert!(matches!(pattern.automaton.get(), Some(None)), "it is not small");
        assert!(budget.left() > DEFINITION_STEPS / 2, "{}", budget.left());
    }

    #[test]
    fn patterns_of_a_definition_are_bounded_together() {
        let usual = [
            r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
            r"^(([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])\.){3}([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])$",
            r"^([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$",
            r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
            r"^.{1,63}$",
            r"^[^\s]{1,253}$",
        ];
        let mut budget = PatternBudget::default();
        for i in 0..600 {
            assert_eq!(budget.check(usual[i % usual.len()]), Ok(()), "{i}, {}", budget.left());
        }
        let mut budget = PatternBudget::default();
        let long = (0..10_000).take_while(|_| budget.check("^a{1,1000}$").is_ok()).count();
        assert!((100..1000).contains(&long), "{long}");
        assert!(PatternBudget::default().check(&r"\p{L}".repeat(100_000)).is_err());
    }

    #[test]
    fn patterns_that_are_used_often_become_automata() {
        let pattern = Pattern::new("^[a-z]+$");
        for _ in 0..=OFTEN {
            assert!(pattern.automaton.get().is_none());
            assert!(pattern.is_match("abc") && pattern.source() == "^[a-z]+$");
        }
        assert!(matches!(pattern.automaton.get(), Some(Some(_))));
        assert!(pattern.is_match("abc") && !pattern.is_match("1"));
    }

    #[test]
    fn matches_patterns_in_gos_syntax() {
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
        for invalid in ["(", "(a{1000}){1000}"] {
            assert!(PatternBudget::default().check(invalid).is_err());
            assert!(!Pattern::new(invalid).is_match("a"));
        }
    }
}
