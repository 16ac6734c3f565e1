//! A program over characters, as Go's `regexp` compiles one: a class of characters is one step, however many ranges it has.
//!
//! Invariants:
//! - The number of steps is known before any is made.
//! - Matching takes time in proportion to the text and to the steps, whatever the pattern (Pike's algorithm).

use regex_syntax::hir::{Class, Hir, HirKind, Look};
use std::{collections::HashMap, sync::Arc};

/// Ranges of characters, sorted, ends included.
type Ranges = Arc<[(char, char)]>;

enum Step {
    Char(char),
    Class(Ranges),
    Look(Look),
    /// Both.
    Split(usize, usize),
    Jump(usize),
    Match,
}

/// How many steps a pattern takes; saturates.
pub(super) fn steps(hir: &Hir) -> usize {
    match hir.kind() {
        HirKind::Empty => 0,
        HirKind::Look(_) | HirKind::Class(_) => 1,
        HirKind::Literal(literal) => literal.0.len(),
        HirKind::Capture(capture) => steps(&capture.sub),
        HirKind::Concat(all) => all.iter().fold(0, |sum, sub| sum.saturating_add(steps(sub))),
        HirKind::Alternation(all) => {
            all.iter().fold(0, |sum: usize, sub| sum.saturating_add(steps(sub)).saturating_add(2))
        }
        HirKind::Repetition(repetition) => {
            let least = repetition.min as usize;
            let copies = repetition.max.map_or(least.max(1), |most| most as usize);
            steps(&repetition.sub).saturating_add(2).saturating_mul(copies)
        }
    }
}

/// Whether a program can have the assertions and classes of a pattern; Go's syntax has no others.
pub(super) fn supports(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Empty | HirKind::Class(Class::Unicode(_)) => true,
        HirKind::Literal(literal) => std::str::from_utf8(&literal.0).is_ok(),
        HirKind::Class(Class::Bytes(class)) => class.is_ascii(),
        HirKind::Look(look) => holds(*look, None, None).is_some(),
        HirKind::Repetition(repetition) => supports(&repetition.sub),
        HirKind::Capture(capture) => supports(&capture.sub),
        HirKind::Concat(all) | HirKind::Alternation(all) => all.iter().all(supports),
    }
}

/// Whether an assertion holds between two characters; none for one that Go does not have.
fn holds(look: Look, before: Option<char>, after: Option<char>) -> Option<bool> {
    let word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    Some(match look {
        Look::Start => before.is_none(),
        Look::End => after.is_none(),
        Look::StartLF => before.is_none_or(|c| c == '\n'),
        Look::EndLF => after.is_none_or(|c| c == '\n'),
        Look::WordAscii => word(before) != word(after),
        Look::WordAsciiNegate => word(before) == word(after),
        _ => return None,
    })
}

/// A compiled pattern.
pub(super) struct Program {
    steps: Vec<Step>,
    /// Matches begin at the start of the text only.
    anchored: bool,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program({} steps)", self.steps.len())
    }
}

impl Program {
    /// Compiles a pattern that is supported, after its steps were counted.
    pub fn new(hir: &Hir) -> Program {
        let mut compiler = Compiler { steps: vec![], classes: HashMap::new() };
        compiler.emit(hir);
        compiler.steps.push(Step::Match);
        let anchored = hir.properties().look_set_prefix().contains(Look::Start);
        Program { steps: compiler.steps, anchored }
    }

    /// Whether a text contains a match.
    pub fn is_match(&self, text: &str) -> bool {
        let mut threads = Threads::new(self.steps.len());
        let mut next = Threads::new(self.steps.len());
        let (mut before, mut rest) = (None, text.chars());
        loop {
            let after = rest.clone().next();
            if before.is_none() || !self.anchored {
                if self.add(0, &mut threads, before, after) {
                    return true;
                }
            } else if threads.list.is_empty() {
                return false;
            }
            let Some(c) = rest.next() else { return false };
            let following = rest.clone().next();
            for at in &threads.list {
                let takes = match &self.steps[*at] {
                    Step::Char(own) => *own == c,
                    Step::Class(ranges) => contains(ranges, c),
                    _ => false,
                };
                if takes && self.add(at + 1, &mut next, Some(c), following) {
                    return true;
                }
            }
            std::mem::swap(&mut threads, &mut next);
            next.clear();
            before = Some(c);
        }
    }

    /// Adds a thread and all that it leads to without a character. Returns whether one of them matches.
    fn add(&self, at: usize, threads: &mut Threads, before: Option<char>, after: Option<char>) -> bool {
        threads.stack.push(at);
        while let Some(at) = threads.stack.pop() {
            if !threads.mark(at) {
                continue;
            }
            match &self.steps[at] {
                Step::Match => {
                    threads.stack.clear();
                    return true;
                }
                Step::Jump(to) => threads.stack.push(*to),
                Step::Split(one, other) => threads.stack.extend([*other, *one]),
                Step::Look(look) if holds(*look, before, after) == Some(true) => threads.stack.push(at + 1),
                Step::Look(_) => {}
                Step::Char(_) | Step::Class(_) => threads.list.push(at),
            }
        }
        false
    }
}

fn contains(ranges: &[(char, char)], c: char) -> bool {
    let next = ranges.partition_point(|(start, _)| *start <= c);
    next.checked_sub(1).and_then(|at| ranges.get(at)).is_some_and(|(_, end)| c <= *end)
}

/// The steps that wait for the next character.
struct Threads {
    list: Vec<usize>,
    /// By step: the round in which it was added last.
    added: Vec<u64>,
    round: u64,
    stack: Vec<usize>,
}

impl Threads {
    fn new(steps: usize) -> Threads {
        Threads { list: vec![], added: vec![0; steps], round: 1, stack: vec![] }
    }

    fn clear(&mut self) {
        self.list.clear();
        self.round += 1;
    }

    /// Whether a step was not added in this round yet.
    fn mark(&mut self, at: usize) -> bool {
        std::mem::replace(&mut self.added[at], self.round) != self.round
    }
}

struct Compiler {
    steps: Vec<Step>,
    /// By the address of the class in the pattern: copies of a repetition share their ranges.
    classes: HashMap<usize, Ranges>,
}

impl Compiler {
    fn emit(&mut self, hir: &Hir) {
        match hir.kind() {
            HirKind::Empty => {}
            HirKind::Look(look) => self.steps.push(Step::Look(*look)),
            HirKind::Literal(literal) => {
                let text = std::str::from_utf8(&literal.0).unwrap_or_default();
                self.steps.extend(text.chars().map(Step::Char));
            }
            HirKind::Class(class) => {
                let address = std::ptr::from_ref(class).addr();
                let ranges = self.classes.entry(address).or_insert_with(|| ranges(class)).clone();
                self.steps.push(Step::Class(ranges));
            }
            HirKind::Capture(capture) => self.emit(&capture.sub),
            HirKind::Concat(all) => all.iter().for_each(|sub| self.emit(sub)),
            HirKind::Alternation(all) => self.alternation(all),
            HirKind::Repetition(repetition) => {
                self.repetition(&repetition.sub, repetition.min, repetition.max);
            }
        }
    }

    fn alternation(&mut self, all: &[Hir]) {
        let mut ends = vec![];
        for (i, sub) in all.iter().enumerate() {
            if i + 1 == all.len() {
                self.emit(sub);
                continue;
            }
            let split = self.hole();
            self.emit(sub);
            ends.push(self.hole());
            self.steps[split] = Step::Split(split + 1, self.steps.len());
        }
        for end in ends {
            self.steps[end] = Step::Jump(self.steps.len());
        }
    }

    fn repetition(&mut self, sub: &Hir, least: u32, most: Option<u32>) {
        let Some(most) = most else {
            for _ in 1..least {
                self.emit(sub);
            }
            return self.endless(sub, least > 0);
        };
        for _ in 0..least {
            self.emit(sub);
        }
        let mut splits = vec![];
        for _ in least..most {
            splits.push(self.hole());
            self.emit(sub);
        }
        for split in splits {
            self.steps[split] = Step::Split(split + 1, self.steps.len());
        }
    }

    /// `x+` or `x*`
    fn endless(&mut self, sub: &Hir, once: bool) {
        if once {
            let start = self.steps.len();
            self.emit(sub);
            let after = self.steps.len() + 1;
            self.steps.push(Step::Split(start, after));
            return;
        }
        let split = self.hole();
        self.emit(sub);
        self.steps.push(Step::Jump(split));
        self.steps[split] = Step::Split(split + 1, self.steps.len());
    }

    /// A step that is set later.
    fn hole(&mut self) -> usize {
        self.steps.push(Step::Match);
        self.steps.len() - 1
    }
}

fn ranges(class: &Class) -> Ranges {
    match class {
        Class::Unicode(class) => class.ranges().iter().map(|r| (r.start(), r.end())).collect(),
        Class::Bytes(class) => {
            class.ranges().iter().map(|r| (char::from(r.start()), char::from(r.end()))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATTERNS: [&str; 22] = [
        "",
        "a",
        "^a$",
        "^(a|bc|)$",
        "a*b+c?",
        "^(a*)*$",
        "^(a|b*)+c$",
        "^[a-c]{2,3}$",
        "^[^a]{2,}$",
        "^(ab){0,2}$",
        r"^\p{L}{1,3}$",
        r"(?-u:\b)ab(?-u:\b)",
        r"(?-u:\B)b",
        "(?m)^a$",
        "(?i)^AbÉ$",
        "(?s)^a.b$",
        "^a.b$",
        "x{3}",
        "^$",
        "é$",
        "^(a|ab)(c|bcd)$",
        "[^\u{0}-\u{10FFFF}]",
    ];

    #[test]
    fn matches_what_the_regex_crate_matches() {
        let texts = [
            "",
            "a",
            "b",
            "ab",
            "ba",
            "abc",
            "aab",
            "aaac",
            "bcd",
            "abcd",
            "abab",
            "ababab",
            "é",
            "éé",
            "ab é",
            "x ab y",
            "a\nb",
            "b\na\nb",
            "abÉ",
            "ABé",
            "xxx",
            "axxxx",
            "aaaa",
            "cc",
            "cba",
            "日本",
            "日本語文",
        ];
        for pattern in PATTERNS {
            let hir = regex_syntax::Parser::new().parse(pattern).unwrap();
            assert!(supports(&hir), "{pattern}");
            let (program, regex) = (Program::new(&hir), regex::Regex::new(pattern).unwrap());
            assert!(
                program.steps.len() <= steps(&hir) + 1,
                "{pattern}: {program:?}, counted {}",
                steps(&hir)
            );
            for text in texts {
                assert_eq!(program.is_match(text), regex.is_match(text), "{pattern} on {text:?}");
            }
        }
    }

    #[test]
    fn copies_of_a_class_share_its_ranges() {
        let hir = regex_syntax::Parser::new().parse(r"^\p{L}{1,63}$").unwrap();
        let program = Program::new(&hir);
        let classes: Vec<&Ranges> = program
            .steps
            .iter()
            .filter_map(|s| if let Step::Class(r) = s { Some(r) } else { None })
            .collect();
        assert_eq!(classes.len(), 63);
        assert!(classes.iter().all(|ranges| Arc::ptr_eq(ranges, classes[0])));
    }
}
