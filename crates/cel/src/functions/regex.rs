//! Regular expressions (`matches`, `find`, `findAll`) in Go's syntax. Patterns that are constants are compiled once.

use super::{Called, MAX_ELEMENTS, Native, no_overload};
use crate::{error::Error, value::Value};
use ::regex::{Regex, RegexBuilder};
use regex_syntax::ast::{ErrorKind, parse::Parser};

pub(super) const DECLARATIONS: &str = "\
matches matches string,string bool
matches matches_string .string,string bool
find string_find_string .string,string string
findAll string_find_all_string .string,string list(string)
findAll string_find_all_string_int .string,string,int list(string)
";

/// How large a compiled pattern may become, in bytes.
const SIZE_LIMIT: usize = 4 << 20;

pub(super) fn native(name: &str) -> Option<Native> {
    Some(match name {
        "matches" => |args| compiled("matches", args),
        "find" => |args| compiled("find", args),
        "findAll" => |args| compiled("findAll", args),
        _ => return None,
    })
}

/// A compiled pattern.
#[derive(Clone, Debug)]
pub(crate) struct Pattern(Regex);

impl Pattern {
    /// Compiles; the error says why it is no pattern.
    pub(crate) fn new(text: &str) -> Result<Pattern, String> {
        if let Some(operator) = nested_repetition(text) {
            return Err(format!("invalid nested repetition operator: `{operator}`"));
        }
        RegexBuilder::new(&kaji_meta::pattern::go_to_rust(text))
            .size_limit(SIZE_LIMIT)
            .dfa_size_limit(SIZE_LIMIT)
            .build()
            .map(Pattern)
            .map_err(|e| problem(text).unwrap_or_else(|| e.to_string()))
    }

    /// Carries a function of this library out.
    pub(crate) fn call<'a>(&self, name: &str, args: &[Value<'a>]) -> Called<'a> {
        let limit = match args {
            [Value::String(_), Value::String(_)] => usize::MAX,
            [Value::String(_), Value::String(_), Value::Int(n)] => usize::try_from(*n).unwrap_or(usize::MAX),
            _ => return no_overload(),
        };
        let Some(Value::String(text)) = args.first() else { return no_overload() };
        match name {
            "matches" => Ok(Value::Bool(self.0.is_match(text))),
            "find" => Ok(Value::text(self.0.find(text).map_or("", |m| m.as_str()))),
            _ => {
                let found: Vec<Value<'a>> = self
                    .0
                    .find_iter(text)
                    .take(limit.min(MAX_ELEMENTS * 4))
                    .map(|m| Value::text(m.as_str()))
                    .collect();
                Ok(Value::list(found))
            }
        }
    }
}

/// What is wrong with a pattern, in Go's words; none if Go has other reasons.
fn problem(text: &str) -> Option<String> {
    let error = Parser::new().parse(text).err()?;
    let (from, to) = (error.span().start.offset, error.span().end.offset);
    Some(match error.kind() {
        ErrorKind::ClassUnclosed => format!("missing closing ]: `{}`", text.get(from..)?),
        ErrorKind::ClassRangeInvalid => format!("invalid character class range: `{}`", text.get(from..to)?),
        ErrorKind::GroupUnclosed => format!("missing closing ): `{text}`"),
        ErrorKind::GroupUnopened => format!("unexpected ): `{text}`"),
        ErrorKind::RepetitionMissing => {
            let operator = text.get(from..)?.chars().next()?;
            format!("missing argument to repetition operator: `{operator}`")
        }
        ErrorKind::EscapeUnexpectedEof => "trailing backslash at end of expression: ``".into(),
        ErrorKind::EscapeUnrecognized => format!("invalid escape sequence: `{}`", text.get(from..to)?),
        ErrorKind::UnsupportedLookAround => {
            format!("invalid or unsupported Perl syntax: `{}`", text.get(from..to)?)
        }
        other => other.to_string(),
    })
}

/// A repetition of a repetition (`x**`), which Go refuses.
fn nested_repetition(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    // Where the last repetition began, if nothing has come after it.
    let (mut at, mut last) = (0, None::<usize>);
    while at < bytes.len() {
        let len = match bytes[at] {
            b'*' | b'+' | b'?' => Some(1),
            b'{' => counted(&text[at..]),
            _ => None,
        };
        if let Some(len) = len {
            let lazy = usize::from(bytes.get(at + len) == Some(&b'?'));
            if let Some(start) = last {
                return text.get(start..at + len);
            }
            last = (at > 0 && !matches!(bytes[at - 1], b'(' | b'|')).then_some(at);
            at += len + lazy;
            continue;
        }
        last = None;
        at += match bytes[at] {
            b'\\' if bytes.get(at + 1) == Some(&b'Q') => text[at..].find("\\E").map_or(text.len(), |l| l + 2),
            b'\\' => 2,
            b'[' => class(&text[at..]),
            b'(' if bytes.get(at + 1) == Some(&b'?') => 2,
            _ => 1,
        };
    }
    None
}

/// The length of `{n}`, `{n,}` or `{n,m}`; none if the brace is a plain character.
fn counted(text: &str) -> Option<usize> {
    let end = text.find('}')?;
    let (least, most) = text[1..end].split_once(',').unwrap_or((&text[1..end], ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    (!least.is_empty() && digits(least) && digits(most)).then_some(end + 1)
}

/// The length of a bracketed class.
fn class(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1).peekable();
    if chars.peek().is_some_and(|(_, c)| *c == '^') {
        chars.next();
    }
    let mut first = true;
    while let Some((at, c)) = chars.next() {
        match c {
            ']' if !first => return at + 1,
            '\\' => drop(chars.next()),
            '[' if text[at..].starts_with("[:") => {
                if let Some(end) = text[at..].find(":]") {
                    while chars.next_if(|(i, _)| *i < at + end + 2).is_some() {}
                }
            }
            _ => {}
        }
        first = false;
    }
    text.len()
}

fn compiled<'a>(name: &str, args: &[Value<'a>]) -> Called<'a> {
    let Some(Value::String(pattern)) = args.get(1) else { return no_overload() };
    match Pattern::new(pattern) {
        Ok(pattern) => pattern.call(name, args),
        Err(e) if name == "matches" => Err(Error::eval(format!("error parsing regexp: {e}"))),
        Err(e) => Err(Error::eval(format!("Illegal regex: {e}"))),
    }
}
