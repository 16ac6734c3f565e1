//! Kubernetes' dialect of JSONPath, as printer columns, selectable fields and `kubectl` use it: `.spec.x`, `['a.b']`,
//! `.a\.b`, `[0]`, `[-1]`, `[1:3]`, `[::2]`, `[*]`, `.*`, `..x`, unions `['a','b']`, filters `[?(@.type=="Ready")]`.
//! Braces around the whole path and a leading `$` or `@` may be there or not.
//!
//! Missing fields select nothing; that is no error. Nothing panics, whatever the path or the value.

use serde_json::Value;

mod eval;
mod parse;

/// Paths longer than this many bytes are refused.
const MAX_LENGTH: usize = 4096;

/// More nodes than this are not selected at any step.
const MAX_NODES: usize = 100_000;

/// Why a path does not compile. The text names the part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(pub(crate) String);

/// One step of a path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// The root of the document, also inside a filter.
    Root,
    /// The members of these names.
    Fields(Vec<Box<str>>),
    /// One element, counted from the end if negative.
    Index(Vec<i64>),
    /// `[start:end:step]`.
    Slice { start: Option<i64>, end: Option<i64>, step: i64 },
    /// All elements or members.
    Wildcard,
    /// The value and everything below it.
    Recursive,
    /// Elements for which the condition holds.
    Filter(Box<Filter>),
}

/// A condition on one element.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Filter {
    pub(crate) left: Operand,
    /// None: the left side selects something.
    pub(crate) right: Option<(Operator, Operand)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    /// A path from the element (`@`) or the document (`$`).
    Path(Vec<Step>),
    Literal(Value),
}

/// A compiled path.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

/// Compiles `text`.
pub fn compile(text: &str) -> Result<JsonPath, ParseError> {
    JsonPath::compile(text)
}

impl JsonPath {
    /// Compiles `text`.
    pub fn compile(text: &str) -> Result<JsonPath, ParseError> {
        if text.len() > MAX_LENGTH {
            return Err(ParseError(format!("a JSONPath may not be longer than {MAX_LENGTH} bytes")));
        }
        let trimmed = text.trim();
        let inner = trimmed.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(trimmed);
        Ok(JsonPath { steps: parse::path(inner)? })
    }

    /// Everything in `value` that the path selects, in document order.
    pub fn find<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        eval::find(&self.steps, value, value)
    }

    /// The first value that the path selects.
    pub fn first<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        match self.simple_path() {
            Some(names) => {
                let mut at = value;
                for name in names {
                    at = at.get(name)?;
                }
                Some(at)
            }
            None => self.find(value).into_iter().next(),
        }
    }

    /// The field names, if the path is nothing but fields (".spec.x").
    pub fn simple_path(&self) -> Option<Vec<&str>> {
        let mut out = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            match step {
                Step::Root => {}
                Step::Fields(names) if names.len() == 1 => out.extend(names.iter().map(|n| &**n)),
                _ => return None,
            }
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests;
