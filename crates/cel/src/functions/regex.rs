//! Regular expressions (`matches`, `find`, `findAll`) in Go's syntax. Patterns that are constants are compiled once.

use super::{Called, MAX_ELEMENTS, Native, no_overload};
use crate::{error::Error, value::Value};
use ::regex::{Regex, RegexBuilder};

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
        RegexBuilder::new(&kaji_meta::pattern::go_to_rust(text))
            .size_limit(SIZE_LIMIT)
            .dfa_size_limit(SIZE_LIMIT)
            .build()
            .map(Pattern)
            .map_err(|e| e.to_string().lines().last().unwrap_or_default().to_owned())
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

fn compiled<'a>(name: &str, args: &[Value<'a>]) -> Called<'a> {
    let Some(Value::String(pattern)) = args.get(1) else { return no_overload() };
    match Pattern::new(pattern) {
        Ok(pattern) => pattern.call(name, args),
        Err(e) if name == "matches" => Err(Error::eval(format!("error parsing regexp: {e}"))),
        Err(e) => Err(Error::eval(format!("Illegal regex: {e}"))),
    }
}
