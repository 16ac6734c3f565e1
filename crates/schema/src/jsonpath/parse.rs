//! The parser.

use serde_json::Value;

use super::{Filter, Operand, Operator, ParseError, Step};

/// Filters may nest this deep.
const MAX_DEPTH: usize = 16;

/// Parses a whole path.
pub(super) fn path(text: &str) -> Result<Vec<Step>, ParseError> {
    let mut p = Parser { rest: text, depth: 0 };
    let steps = p.steps()?;
    match p.rest.is_empty() {
        true => Ok(steps),
        false => Err(ParseError(format!("unrecognized character in action: {:?}", p.rest))),
    }
}

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn eat(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(r) => {
                self.rest = r;
                true
            }
            None => false,
        }
    }

    /// As many steps as there are.
    fn steps(&mut self) -> Result<Vec<Step>, ParseError> {
        let mut out = Vec::new();
        if self.eat("$") {
            out.push(Step::Root);
        } else if !self.eat("@") && self.rest.starts_with(name_char) {
            // A bare name at the start: "spec.x".
            self.field(&mut out)?;
        }
        loop {
            if self.eat("..") {
                out.push(Step::Recursive);
                if !self.rest.starts_with('[') {
                    self.field(&mut out)?;
                }
            } else if self.eat(".") {
                if !self.rest.starts_with('[') && !self.rest.is_empty() {
                    self.field(&mut out)?;
                }
            } else if self.eat("[") {
                let inside = self.bracket()?;
                out.push(self.subscript(inside.trim())?);
            } else {
                return Ok(out);
            }
        }
    }

    fn field(&mut self, out: &mut Vec<Step>) -> Result<(), ParseError> {
        if self.eat("*") {
            out.push(Step::Wildcard);
            return Ok(());
        }
        let mut name = String::new();
        let mut chars = self.rest.char_indices();
        let mut end = self.rest.len();
        while let Some((i, c)) = chars.next() {
            match c {
                '\\' => name.extend(chars.next().map(|(_, c)| c)),
                c if name_char(c) => name.push(c),
                _ => {
                    end = i;
                    break;
                }
            }
        }
        self.rest = &self.rest[end..];
        if name.is_empty() {
            return Err(ParseError("field name expected".into()));
        }
        out.push(Step::Fields(vec![name.into()]));
        Ok(())
    }

    /// The text up to the bracket that closes the one just read.
    fn bracket(&mut self) -> Result<&'a str, ParseError> {
        let mut depth = 1;
        let mut quote: Option<char> = None;
        let mut escaped = false;
        for (i, c) in self.rest.char_indices() {
            match (quote, c) {
                _ if escaped => escaped = false,
                (_, '\\') => escaped = true,
                (Some(q), c) if c == q => quote = None,
                (Some(_), _) => {}
                (None, '\'' | '"') => quote = Some(c),
                (None, '[') => depth += 1,
                (None, ']') => {
                    depth -= 1;
                    if depth == 0 {
                        let inside = &self.rest[..i];
                        self.rest = &self.rest[i + 1..];
                        return Ok(inside);
                    }
                }
                _ => {}
            }
        }
        Err(ParseError("unterminated array".into()))
    }

    fn subscript(&self, text: &str) -> Result<Step, ParseError> {
        let bad = || ParseError(format!("invalid array index {text}"));
        if text == "*" {
            return Ok(Step::Wildcard);
        }
        if let Some(f) = text.strip_prefix("?(").and_then(|t| t.strip_suffix(')')) {
            if self.depth >= MAX_DEPTH {
                return Err(ParseError("filters are nested too deep".into()));
            }
            return Ok(Step::Filter(Box::new(filter(f, self.depth + 1)?)));
        }
        let parts: Vec<&str> = split_outside_quotes(text, ',');
        if parts.iter().all(|p| p.starts_with(['\'', '"'])) {
            let names = parts.iter().map(|p| unquote(p).map(String::into_boxed_str).ok_or_else(bad));
            return Ok(Step::Fields(names.collect::<Result<_, _>>()?));
        }
        let number = |t: &str| t.trim().parse::<i64>().map_err(|_| bad());
        if text.contains(':') {
            let mut bounds = [None; 3];
            for (i, part) in text.split(':').enumerate() {
                let slot = bounds.get_mut(i).ok_or_else(bad)?;
                *slot = if part.trim().is_empty() { None } else { Some(number(part)?) };
            }
            let step = bounds[2].unwrap_or(1);
            if step <= 0 {
                return Err(ParseError("step must be > 0".into()));
            }
            return Ok(Step::Slice { start: bounds[0], end: bounds[1], step });
        }
        Ok(Step::Index(parts.into_iter().map(number).collect::<Result<_, _>>()?))
    }
}

fn name_char(c: char) -> bool {
    !c.is_whitespace() && !"[](){}.,'\"=!<>?@$|&:*".contains(c)
}

/// Splits at `sep` where it is not inside quotes; parts are trimmed.
fn split_outside_quotes(text: &str, sep: char) -> Vec<&str> {
    let mut out = Vec::new();
    let mut quote = None;
    let mut start = 0;
    for (i, c) in text.char_indices() {
        match quote {
            Some(q) if c == q => quote = None,
            Some(_) => {}
            None if c == '\'' || c == '"' => quote = Some(c),
            None if c == sep => {
                out.push(text[start..i].trim());
                start = i + c.len_utf8();
            }
            None => {}
        }
    }
    out.push(text[start..].trim());
    out
}

/// The text of a quoted string, with `\x` read as `x`.
fn unquote(text: &str) -> Option<String> {
    let q = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let inner = text.strip_prefix(q)?.strip_suffix(q)?;
    let mut out = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next()? {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                c => out.push(c),
            },
            c if c == q => return None,
            c => out.push(c),
        }
    }
    Some(out)
}

const OPERATORS: [(&str, Operator); 6] = [
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("<=", Operator::LessOrEqual),
    (">=", Operator::GreaterOrEqual),
    ("<", Operator::Less),
    (">", Operator::Greater),
];

/// `left operator right`, or a path alone.
fn filter(text: &str, depth: usize) -> Result<Filter, ParseError> {
    let (mut quote, mut brackets) = (None, 0usize);
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => brackets += 1,
            (None, ']') => brackets = brackets.saturating_sub(1),
            (None, _) if brackets == 0 => {
                let found = OPERATORS.iter().find(|(t, _)| text[i..].starts_with(t));
                if let Some((token, operator)) = found {
                    let left = operand(&text[..i], depth)?;
                    let right = operand(&text[i + token.len()..], depth)?;
                    return Ok(Filter { left, right: Some((*operator, right)) });
                }
            }
            _ => {}
        }
    }
    Ok(Filter { left: operand(text, depth)?, right: None })
}

fn operand(text: &str, depth: usize) -> Result<Operand, ParseError> {
    let text = text.trim();
    let bad = || ParseError(format!("invalid filter operand {text:?}"));
    match text {
        "true" => return Ok(Operand::Literal(true.into())),
        "false" => return Ok(Operand::Literal(false.into())),
        "" => return Err(bad()),
        _ => {}
    }
    if text.starts_with(['\'', '"']) {
        return Ok(Operand::Literal(unquote(text).ok_or_else(bad)?.into()));
    }
    if let Ok(n) = text.parse::<i64>() {
        return Ok(Operand::Literal(n.into()));
    }
    if let Some(n) = text.parse::<f64>().ok().and_then(serde_json::Number::from_f64) {
        return Ok(Operand::Literal(Value::Number(n)));
    }
    let mut p = Parser { rest: text, depth };
    let steps = p.steps()?;
    if p.rest.is_empty() { Ok(Operand::Path(steps)) } else { Err(bad()) }
}
