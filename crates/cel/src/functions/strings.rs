//! Text: the standard functions and cel-go's `ext/strings`, version 2. Indexes count characters.

use super::{Called, MAX_ELEMENTS, MAX_TEXT, Native, lists, no_overload, template};
use crate::{
    error::Error,
    value::{List, Text, Value},
};

pub(super) const DECLARATIONS: &str = "\
contains contains_string .string,string bool
endsWith ends_with_string .string,string bool
startsWith starts_with_string .string,string bool
charAt string_char_at_int .string,int string
indexOf string_index_of_string .string,string int
indexOf string_index_of_string_int .string,string,int int
lastIndexOf string_last_index_of_string .string,string int
lastIndexOf string_last_index_of_string_int .string,string,int int
lowerAscii string_lower_ascii .string string
upperAscii string_upper_ascii .string string
replace string_replace_string_string .string,string,string string
replace string_replace_string_string_int .string,string,string,int string
split string_split_string .string,string list(string)
split string_split_string_int .string,string,int list(string)
substring string_substring_int .string,int string
substring string_substring_int_int .string,int,int string
trim string_trim .string string
format string_format .string,list(dyn) string
strings.quote strings_quote string string
join list_join .list(string) string
join list_join_string .list(string),string string
";

pub(super) fn native(name: &str) -> Option<Native> {
    Some(match name {
        "contains" => |args| test(args, |a, b| a.contains(b)),
        "endsWith" => |args| test(args, |a, b| a.ends_with(b)),
        "startsWith" => |args| test(args, |a, b| a.starts_with(b)),
        "charAt" => char_at,
        "indexOf" => index_of,
        "lastIndexOf" => last_index_of,
        "lowerAscii" => |args| mapped(args, |s| s.to_ascii_lowercase()),
        "upperAscii" => |args| mapped(args, |s| s.to_ascii_uppercase()),
        "replace" => replace,
        "split" => split,
        "substring" => substring,
        "trim" => trim,
        "format" => template::format,
        "strings.quote" => |args| mapped(args, quote),
        "join" => join,
        _ => return None,
    })
}

fn test<'a>(args: &[Value<'a>], holds: fn(&str, &str) -> bool) -> Called<'a> {
    match args {
        [Value::String(a), Value::String(b)] => Ok(Value::Bool(holds(a, b))),
        _ => no_overload(),
    }
}

fn mapped<'a>(args: &[Value<'a>], map: fn(&str) -> String) -> Called<'a> {
    match args {
        [Value::String(s)] => Ok(Value::text(map(s))),
        _ => no_overload(),
    }
}

/// A part of `text`; borrowed if that is.
fn part<'a>(text: &Text<'a>, from: usize, to: usize) -> Value<'a> {
    match text {
        Text::Borrowed(s) => Value::String(Text::Borrowed(&s[from..to])),
        Text::Shared(s) => Value::text(&s[from..to]),
    }
}

fn out_of_range(index: i64) -> Error {
    Error::eval(format!("index out of range: {index}"))
}

/// Where character `index` begins, in bytes; the end of the text counts.
fn offset(s: &str, index: i64) -> Result<usize, Error> {
    let n = usize::try_from(index).map_err(|_| out_of_range(index))?;
    s.char_indices().map(|(i, _)| i).chain([s.len()]).nth(n).ok_or_else(|| out_of_range(index))
}

fn char_at<'a>(args: &[Value<'a>]) -> Called<'a> {
    let [Value::String(s), Value::Int(index)] = args else { return no_overload() };
    let at = offset(s, *index)?;
    let len = s[at..].chars().next().map_or(0, char::len_utf8);
    Ok(part(s, at, at + len))
}

fn int(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn index_of<'a>(args: &[Value<'a>]) -> Called<'a> {
    let (s, sought, from) = match args {
        [Value::String(s), Value::String(sought)] => (s, sought, 0),
        [Value::String(s), Value::String(sought), Value::Int(from)] => (s, sought, *from),
        [Value::List(_), _] => return lists::index_of(args),
        _ => return no_overload(),
    };
    if sought.is_empty() {
        return Ok(Value::Int(from));
    }
    if from < 0 {
        return Err(out_of_range(from));
    }
    let Ok(start) = offset(s, from) else { return Ok(Value::Int(-1)) };
    let found = s[start..].find(&**sought).map(|i| from + int(s[start..start + i].chars().count()));
    Ok(Value::Int(found.unwrap_or(-1)))
}

fn last_index_of<'a>(args: &[Value<'a>]) -> Called<'a> {
    let (s, sought, until) = match args {
        [Value::String(s), Value::String(sought)] => (s, sought, None),
        [Value::String(s), Value::String(sought), Value::Int(until)] => (s, sought, Some(*until)),
        [Value::List(_), _] => return lists::last_index_of(args),
        _ => return no_overload(),
    };
    let length = int(s.chars().count());
    match until {
        None if sought.is_empty() => return Ok(Value::Int(length)),
        Some(until) if sought.is_empty() => return Ok(Value::Int(until)),
        Some(until) if until < 0 => return Err(out_of_range(until)),
        Some(until) if until >= length => return Ok(Value::Int(-1)),
        _ => {}
    }
    // A match may begin at `until` and end after it.
    let begin = offset(s, until.unwrap_or(length))?;
    let end = s.len().min(begin.saturating_add(sought.len()));
    let haystack = (end..=s.len()).find(|e| s.is_char_boundary(*e)).map_or(&**s, |e| &s[..e]);
    let found = haystack.rfind(&**sought).map(|i| int(s[..i].chars().count()));
    Ok(Value::Int(found.unwrap_or(-1)))
}

fn replace<'a>(args: &[Value<'a>]) -> Called<'a> {
    let (s, old, new, count) = match args {
        [Value::String(s), Value::String(old), Value::String(new)] => (s, old, new, usize::MAX),
        [Value::String(s), Value::String(old), Value::String(new), Value::Int(n)] => {
            (s, old, new, usize::try_from(*n).unwrap_or(usize::MAX))
        }
        _ => return no_overload(),
    };
    let matches = s.matches(&**old).take(count).count();
    if matches.saturating_mul(new.len()).saturating_add(s.len()) > MAX_TEXT {
        return Err(Error::Cost);
    }
    Ok(Value::text(s.replacen(&**old, new, count)))
}

fn split<'a>(args: &[Value<'a>]) -> Called<'a> {
    let (s, separator, count) = match args {
        [Value::String(s), Value::String(separator)] => (s, separator, usize::MAX),
        [Value::String(s), Value::String(separator), Value::Int(n)] => {
            (s, separator, usize::try_from(*n).unwrap_or(usize::MAX))
        }
        _ => return no_overload(),
    };
    if count == 0 {
        return Ok(Value::list(vec![]));
    }
    let mut list = vec![];
    let mut start = 0;
    while list.len() + 1 < count {
        let rest = &s[start..];
        let (found, width) = match separator.is_empty() {
            true => (rest.chars().next().map(char::len_utf8).filter(|n| *n < rest.len()), 0),
            false => (rest.find(&**separator), separator.len()),
        };
        let Some(found) = found else { break };
        list.push(part(s, start, start + found));
        start += found + width;
        if list.len() > MAX_ELEMENTS * 4 {
            return Err(Error::Cost);
        }
    }
    if !(separator.is_empty() && s.is_empty()) {
        list.push(part(s, start, s.len()));
    }
    Ok(Value::list(list))
}

fn substring<'a>(args: &[Value<'a>]) -> Called<'a> {
    let (s, start, end) = match args {
        [Value::String(s), Value::Int(start)] => (s, *start, None),
        [Value::String(s), Value::Int(start), Value::Int(end)] => (s, *start, Some(*end)),
        _ => return no_overload(),
    };
    if let Some(end) = end.filter(|end| start > *end) {
        return Err(Error::eval(format!("invalid substring range. start: {start}, end: {end}")));
    }
    let from = offset(s, start)?;
    let to = end.map_or(Ok(s.len()), |end| offset(s, end))?;
    Ok(part(s, from, to))
}

fn trim<'a>(args: &[Value<'a>]) -> Called<'a> {
    let [Value::String(s)] = args else { return no_overload() };
    let from = s.len() - s.trim_start().len();
    Ok(part(s, from, from + s.trim().len()))
}

/// In double quotes, with CEL's escapes.
pub(super) fn quote(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn join<'a>(args: &[Value<'a>]) -> Called<'a> {
    let (list, separator): (&List<'a>, &str) = match args {
        [Value::List(list)] => (list, ""),
        [Value::List(list), Value::String(separator)] => (list, separator),
        _ => return no_overload(),
    };
    let mut out = String::new();
    for (i, element) in list.iter().enumerate() {
        let Value::String(s) = element? else { return Err(Error::eval("join: invalid input")) };
        if i > 0 {
            out.push_str(separator);
        }
        out.push_str(&s);
        if out.len() > MAX_TEXT {
            return Err(Error::Cost);
        }
    }
    Ok(Value::text(out))
}
