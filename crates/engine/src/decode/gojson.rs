//! Go's texts for malformed JSON.
//!
//! Clients see these inside 400 answers. The scanner here only runs after parsing has failed, so speed is no concern;
//! it never recurses and reads each byte once.

/// What comes next in the document.
#[derive(Clone, Copy, PartialEq)]
enum Expect {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    After,
}

/// Why Go's `encoding/json` refuses these bytes, or `None` when it would accept their syntax.
pub(crate) fn explain(bytes: &[u8]) -> Option<String> {
    let mut scanner = Scanner { bytes, at: 0 };
    scanner.run().err()
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn run(&mut self) -> Result<(), String> {
        let mut stack: Vec<u8> = vec![];
        let mut expect = Expect::Value;
        loop {
            self.skip_space();
            let Some(c) = self.peek() else {
                return if expect == Expect::After && stack.is_empty() { Ok(()) } else { Err(end()) };
            };
            expect = match expect {
                Expect::Value | Expect::ValueOrEnd => {
                    if c == b']' && expect == Expect::ValueOrEnd {
                        self.at += 1;
                        stack.pop();
                        Expect::After
                    } else {
                        self.begin_value(c, &mut stack)?
                    }
                }
                Expect::Key | Expect::KeyOrEnd => match c {
                    b'}' if expect == Expect::KeyOrEnd => {
                        self.at += 1;
                        stack.pop();
                        Expect::After
                    }
                    b'"' => {
                        self.string()?;
                        Expect::Colon
                    }
                    _ => return Err(unexpected(c, "looking for beginning of object key string")),
                },
                Expect::Colon => {
                    if c != b':' {
                        return Err(unexpected(c, "after object key"));
                    }
                    self.at += 1;
                    Expect::Value
                }
                Expect::After => self.after_value(c, &mut stack)?,
            };
        }
    }

    fn begin_value(&mut self, c: u8, stack: &mut Vec<u8>) -> Result<Expect, String> {
        match c {
            b'{' | b'[' => {
                self.at += 1;
                stack.push(c);
                if stack.len() > 10_000 {
                    return Err("exceeded max depth".into());
                }
                return Ok(if c == b'{' { Expect::KeyOrEnd } else { Expect::ValueOrEnd });
            }
            b'"' => self.string()?,
            b't' => self.literal("true")?,
            b'f' => self.literal("false")?,
            b'n' => self.literal("null")?,
            b'-' | b'0'..=b'9' => self.number()?,
            _ => return Err(unexpected(c, "looking for beginning of value")),
        }
        Ok(Expect::After)
    }

    fn after_value(&mut self, c: u8, stack: &mut Vec<u8>) -> Result<Expect, String> {
        let next = match (stack.last(), c) {
            (None, _) => return Err(unexpected(c, "after top-level value")),
            (Some(b'{'), b',') => Expect::Key,
            (Some(b'['), b',') => Expect::Value,
            (Some(b'{'), b'}') | (Some(b'['), b']') => {
                stack.pop();
                Expect::After
            }
            (Some(b'{'), _) => return Err(unexpected(c, "after object key:value pair")),
            (Some(_), _) => return Err(unexpected(c, "after array element")),
        };
        self.at += 1;
        Ok(next)
    }

    fn string(&mut self) -> Result<(), String> {
        self.at += 1;
        loop {
            match self.next()? {
                b'"' => return Ok(()),
                b'\\' => match self.next()? {
                    b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => {}
                    b'u' => {
                        for _ in 0..4 {
                            let h = self.next()?;
                            if !h.is_ascii_hexdigit() {
                                return Err(unexpected(h, "in \\u hexadecimal character escape"));
                            }
                        }
                    }
                    other => return Err(unexpected(other, "in string escape code")),
                },
                c if c < 0x20 => return Err(unexpected(c, "in string literal")),
                _ => {}
            }
        }
    }

    fn literal(&mut self, word: &str) -> Result<(), String> {
        self.at += 1;
        for want in word.bytes().skip(1) {
            let got = self.next()?;
            if got != want {
                return Err(unexpected(got, &format!("in literal {word} (expecting {})", quote(want))));
            }
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), String> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.next()? {
            b'0' => {}
            b'1'..=b'9' => self.digits(),
            other => return Err(unexpected(other, "in numeric literal")),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            let c = self.next()?;
            if !c.is_ascii_digit() {
                return Err(unexpected(c, "after decimal point in numeric literal"));
            }
            self.digits();
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            let c = self.next()?;
            if !c.is_ascii_digit() {
                return Err(unexpected(c, "in exponent of numeric literal"));
            }
            self.digits();
        }
        Ok(())
    }

    fn digits(&mut self) {
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Result<u8, String> {
        let c = self.peek().ok_or_else(end)?;
        self.at += 1;
        Ok(c)
    }
}

fn end() -> String {
    "unexpected end of JSON input".into()
}

fn unexpected(c: u8, context: &str) -> String {
    format!("invalid character {} {context}", quote(c))
}

/// Go's quoting of one byte, read as a code point.
fn quote(c: u8) -> String {
    match c {
        b'\'' => "'\\''".into(),
        b'"' => "'\"'".into(),
        b'\\' => "'\\\\'".into(),
        7 => "'\\a'".into(),
        8 => "'\\b'".into(),
        9 => "'\\t'".into(),
        10 => "'\\n'".into(),
        11 => "'\\v'".into(),
        12 => "'\\f'".into(),
        13 => "'\\r'".into(),
        0..=0x1f | 0x7f => format!("'\\x{c:02x}'"),
        0x80..=0xa0 | 0xad => format!("'\\u00{c:02x}'"),
        _ => format!("'{}'", c as char),
    }
}

#[cfg(test)]
mod tests {
    use super::explain;

    #[test]
    fn reports_syntax_errors_as_go() {
        let cases: &[(&str, &str)] = &[
            ("", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            (r#"{"a":1"#, "unexpected end of JSON input"),
            ("{a}", "invalid character 'a' looking for beginning of object key string"),
            (r#"{"a":1,}"#, "invalid character '}' looking for beginning of object key string"),
            (r#"{"a" 1}"#, "invalid character '1' after object key"),
            (r#"{"a":1 2}"#, "invalid character '2' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("{} x", "invalid character 'x' after top-level value"),
            ("hello", "invalid character 'h' looking for beginning of value"),
            ("tru", "unexpected end of JSON input"),
            ("trie", "invalid character 'i' in literal true (expecting 'u')"),
            ("\"a\nb\"", "invalid character '\\n' in string literal"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            ("\"\\u12g4\"", "invalid character 'g' in \\u hexadecimal character escape"),
            ("-x", "invalid character 'x' in numeric literal"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
            ("1ex", "invalid character 'x' in exponent of numeric literal"),
            ("01", "invalid character '1' after top-level value"),
            ("\u{e9}", "invalid character 'Ã' looking for beginning of value"),
        ];
        for (text, want) in cases {
            assert_eq!(explain(text.as_bytes()).as_deref(), Some(*want), "{text}");
        }
        for good in ["{}", " [1, -0.5e+3, true, null, \"\\u00e9\"] ", "0"] {
            assert_eq!(explain(good.as_bytes()), None, "{good}");
        }
    }
}
