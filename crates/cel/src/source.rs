//! The text of an expression, positions in it, and the errors found in it, printed as cel-go prints them:
//! `ERROR: <input>:1:5: message`, the line, and a mark below the column.

use std::fmt;

/// How many errors are printed; the rest is counted.
const REPORTED: usize = 100;
/// Longer lines are not shown under an error.
const SNIPPET: usize = 16_384;

/// A place in an expression: the offset in characters, or none for what concerns the whole.
pub(crate) type Offset = Option<u32>;

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Line, from 1; 0 when the finding concerns the expression as a whole.
    pub line: usize,
    /// Column, from 0; -1 when the finding concerns the expression as a whole, or there is no text.
    pub column: i64,
    /// What is wrong.
    pub message: String,
}

/// Why an expression is refused. Its `Display` form is upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Issues {
    list: Vec<Issue>,
    lines: Vec<String>,
    more: usize,
}

/// Gathers the findings of one expression.
#[derive(Debug)]
pub(crate) struct Report {
    starts: Vec<u32>,
    lines: Vec<String>,
    list: Vec<Issue>,
    more: usize,
}

impl Report {
    pub(crate) fn new(text: &str) -> Report {
        let mut starts = vec![0];
        let mut count = 0;
        for c in text.chars() {
            count += 1;
            if c == '\n' {
                starts.push(count);
            }
        }
        // An empty text has no lines; cel-go then counts columns from -1.
        let lines = if text.is_empty() { vec![] } else { text.split('\n').map(str::to_owned).collect() };
        Report { starts, lines, list: vec![], more: 0 }
    }

    pub(crate) fn add(&mut self, at: Offset, message: impl Into<String>) {
        if self.list.len() >= REPORTED {
            self.more += 1;
            return;
        }
        let (line, column) = match at {
            None => (0, -1),
            Some(_) if self.lines.is_empty() => (1, -1),
            Some(at) => {
                let line = self.starts.partition_point(|s| *s <= at);
                (line, i64::from(at) - i64::from(self.starts.get(line - 1).copied().unwrap_or_default()))
            }
        };
        self.list.push(Issue { line, column, message: message.into() });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn finish(mut self) -> Issues {
        self.list.sort_by_key(|i| (i.line, i.column));
        Issues { list: self.list, lines: self.lines, more: self.more }
    }
}

impl Issues {
    /// The findings, in the order of their places.
    pub fn iter(&self) -> impl Iterator<Item = &Issue> {
        self.list.iter()
    }
}

impl fmt::Display for Issues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, issue) in self.list.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            match issue.line {
                0 => write!(f, "ERROR: <input>:-1:0: {}", issue.message)?,
                line => write!(f, "ERROR: <input>:{line}:{}: {}", issue.column + 1, issue.message)?,
            }
            let Some(line) = issue.line.checked_sub(1).and_then(|l| self.lines.get(l)) else { continue };
            if line.len() > SNIPPET {
                continue;
            }
            write!(f, "\n | {}\n | ", line.replace('\t', " "))?;
            let before = usize::try_from(issue.column).unwrap_or_default();
            for c in line.chars().take(before) {
                f.write_str(if c.len_utf8() > 1 { "\u{ff0e}" } else { "." })?;
            }
            let wide = line.chars().nth(before).is_some_and(|c| c.len_utf8() > 1);
            f.write_str(if wide { "\u{ff3e}" } else { "^" })?;
        }
        if self.more > 0 {
            write!(f, "\n{} more errors were truncated", self.more)?;
        }
        Ok(())
    }
}
