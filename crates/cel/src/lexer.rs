//! The lexer. What is no token is reported and skipped, as ANTLR's lexers do.

use crate::source::Report;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    End,
    Ident,
    EscapedIdent,
    Int,
    Uint,
    Float,
    String,
    Bytes,
    /// An operator or a word of the grammar (`in`, `true`, `false`, `null`).
    Symbol(&'static str),
}

/// A token, where it begins (in characters), and its text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lexeme<'t> {
    pub token: Token,
    pub at: u32,
    pub text: &'t str,
}

const SYMBOLS: [&str; 25] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":",
    "+", "*", "/", "%", "in",
];
const WORDS: [&str; 4] = ["in", "true", "false", "null"];

struct Lexer<'t> {
    text: &'t str,
    /// In bytes.
    pos: usize,
    /// In characters.
    at: u32,
}

/// All tokens, the last of them [`Token::End`].
pub(crate) fn lex<'t>(text: &'t str, report: &mut Report) -> Vec<Lexeme<'t>> {
    let mut lexer = Lexer { text, pos: 0, at: 0 };
    let mut list = vec![];
    loop {
        lexer.skip_space();
        let (at, rest) = (lexer.at, lexer.rest());
        if rest.is_empty() {
            list.push(Lexeme { token: Token::End, at, text: "<EOF>" });
            return list;
        }
        match next(rest) {
            Some((token, len)) => {
                list.push(Lexeme { token, at, text: &rest[..len] });
                lexer.advance(len);
            }
            None => {
                let len = unknown(rest);
                report.add(
                    Some(at),
                    format!("Syntax error: token recognition error at: '{}'", shown(&rest[..len])),
                );
                lexer.advance(len);
            }
        }
    }
}

/// How ANTLR shows text in messages.
pub(crate) fn shown(text: &str) -> String {
    text.replace('\n', "\\n").replace('\t', "\\t").replace('\r', "\\r")
}

/// What an unreadable place takes with it: the rest of an unclosed string, else one character.
fn unknown(rest: &str) -> usize {
    let first = rest.chars().next().map_or(1, char::len_utf8);
    match rest.as_bytes().first() {
        Some(b'"' | b'\'') => rest.find(['\n', '\r']).unwrap_or(rest.len()).max(first),
        Some(b'&' | b'|' | b'=') => rest.char_indices().nth(2).map_or(rest.len(), |(i, _)| i),
        _ => first,
    }
}

impl<'t> Lexer<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.pos..]
    }

    fn advance(&mut self, bytes: usize) {
        let count = self.text[self.pos..self.pos + bytes].chars().count();
        self.at += u32::try_from(count).unwrap_or(u32::MAX);
        self.pos += bytes;
    }

    fn skip_space(&mut self) {
        loop {
            let rest = self.rest();
            let space = rest.len() - rest.trim_start_matches(['\t', ' ', '\r', '\n', '\u{c}']).len();
            self.advance(space);
            if !self.rest().starts_with("//") {
                return;
            }
            let comment = self.rest().find('\n').unwrap_or(self.rest().len());
            self.advance(comment);
        }
    }
}

fn next(rest: &str) -> Option<(Token, usize)> {
    let first = rest.chars().next()?;
    if let Some(found) = string(rest) {
        return Some(found);
    }
    if first.is_ascii_digit() || (first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit())) {
        return Some(number(rest));
    }
    if first.is_ascii_alphabetic() || first == '_' {
        let len = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let token = WORDS.iter().find(|w| **w == &rest[..len]).map_or(Token::Ident, |w| Token::Symbol(w));
        return Some((token, len));
    }
    if first == '`' {
        let len = rest[1..].find(|c: char| !c.is_ascii_alphanumeric() && !"_.-/ ".contains(c))?;
        return (len > 0 && rest[1 + len..].starts_with('`')).then_some((Token::EscapedIdent, len + 2));
    }
    SYMBOLS.iter().find(|s| rest.starts_with(**s)).map(|s| (Token::Symbol(s), s.len()))
}

fn digits(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())
}

fn number(rest: &str) -> (Token, usize) {
    let unsigned = |len: usize| match rest[len..].starts_with(['u', 'U']) {
        true => (Token::Uint, len + 1),
        false => (Token::Int, len),
    };
    if let Some(hex) = rest.strip_prefix("0x") {
        let len = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
        if len > 0 {
            return unsigned(len + 2);
        }
    }
    let whole = digits(rest);
    let mut len = whole;
    let mut float = false;
    if let Some(fraction) = rest[len..].strip_prefix('.') {
        let n = digits(fraction);
        if n > 0 {
            (len, float) = (len + 1 + n, true);
        }
    }
    if let Some(exponent) = rest[len..].strip_prefix(['e', 'E']) {
        let sign = usize::from(exponent.starts_with(['+', '-']));
        let n = digits(&exponent[sign..]);
        if n > 0 {
            (len, float) = (len + 1 + sign + n, true);
        }
    }
    if float { (Token::Float, len) } else { unsigned(len) }
}

/// A string or bytes literal: prefixes, quotes and all.
fn string(rest: &str) -> Option<(Token, usize)> {
    // Prefixes are short; looking further would cost the whole text for each token.
    let prefix = rest.bytes().take(3).position(|b| matches!(b, b'"' | b'\''))?;
    let (bytes, raw) = match &rest[..prefix] {
        "" => (false, false),
        "r" | "R" => (false, true),
        "b" | "B" => (true, false),
        "br" | "bR" | "Br" | "BR" => (true, true),
        _ => return None,
    };
    let body = &rest[prefix..];
    let quote = &body[..1];
    let triple = body.starts_with(&quote.repeat(3));
    let open = if triple { 3 } else { 1 };
    let mut at = open;
    while at < body.len() {
        let c = body[at..].chars().next()?;
        if triple && body[at..].starts_with(&body[..3]) {
            return Some((if bytes { Token::Bytes } else { Token::String }, prefix + at + 3));
        }
        if !triple && body[at..].starts_with(quote) {
            return Some((if bytes { Token::Bytes } else { Token::String }, prefix + at + 1));
        }
        match c {
            '\n' | '\r' if !triple => break,
            '\\' if !raw => {
                let len = escape(&body[at..])?;
                at += len;
            }
            c => at += c.len_utf8(),
        }
    }
    // `'''` may also be an empty string and the beginning of another.
    triple.then_some((if bytes { Token::Bytes } else { Token::String }, prefix + 2))
}

/// The length of the escape sequence with which `text` begins.
fn escape(text: &str) -> Option<usize> {
    let code = text[1..].chars().next()?;
    let hex = |n: usize| {
        text.get(2..2 + n).is_some_and(|h| h.bytes().all(|b| b.is_ascii_hexdigit())).then_some(2 + n)
    };
    match code {
        'a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '"' | '\'' | '\\' | '?' | '`' => Some(2),
        'x' | 'X' => hex(2),
        'u' => hex(4),
        'U' => hex(8),
        '0'..='3' => {
            text.get(2..4).is_some_and(|o| o.bytes().all(|b| (b'0'..=b'7').contains(&b))).then_some(4)
        }
        _ => None,
    }
}

/// The value of a string literal. Escapes of bytes give bytes, those of strings give characters.
pub(crate) fn unquote(literal: &str, bytes: bool) -> Option<Vec<u8>> {
    let start = literal.find(['"', '\''])?;
    let raw = literal[..start].contains(['r', 'R']);
    let body = &literal[start..];
    let n = if body.len() >= 6 && body.starts_with(&body[..1].repeat(3)) { 3 } else { 1 };
    let inner = body.get(n..body.len().checked_sub(n)?)?;
    // Go reads line ends of any kind as newlines.
    let inner = inner.replace("\r\n", "\n").replace('\r', "\n");
    if raw {
        return Some(inner.into_bytes());
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner.as_str();
    while let Some(c) = rest.chars().next() {
        if c != '\\' {
            out.extend_from_slice(&rest.as_bytes()[..c.len_utf8()]);
            rest = &rest[c.len_utf8()..];
            continue;
        }
        let len = escape(rest)?;
        let code = rest[1..].chars().next()?;
        let simple = match code {
            'a' => Some(7),
            'b' => Some(8),
            'f' => Some(12),
            'n' => Some(b'\n'),
            'r' => Some(b'\r'),
            't' => Some(b'\t'),
            'v' => Some(11),
            '"' | '\'' | '\\' | '?' | '`' => u8::try_from(code).ok(),
            _ => None,
        };
        if let Some(byte) = simple {
            out.push(byte);
        } else {
            let octal = code.is_ascii_digit();
            let value = match octal {
                true => u32::from_str_radix(&rest[1..len], 8).ok()?,
                false => u32::from_str_radix(&rest[2..len], 16).ok()?,
            };
            if bytes && (octal || matches!(code, 'x' | 'X')) {
                out.push(u8::try_from(value).ok()?);
            } else if bytes {
                return None;
            } else {
                out.extend_from_slice(char::from_u32(value)?.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        rest = &rest[len..];
    }
    Some(out)
}
