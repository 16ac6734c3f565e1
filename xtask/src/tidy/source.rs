//! The words of a Rust file: comments, identifiers and code without either comments or literals.
//!
//! Invariants: string and character literals are never taken for comments or identifiers, so that texts which upstream
//! prints are outside every rule but that of messages; consecutive comment lines are one text, so that a phrase is found across a
//! line break.

/// What a Rust file consists of, as far as tidy's rules need it.
#[derive(Debug, Default, PartialEq)]
pub struct Source {
    /// Comments with the line on which each begins; consecutive line comments are one.
    pub comments: Vec<(usize, String)>,
    /// Identifiers and keywords with their lines.
    pub identifiers: Vec<(usize, String)>,
    /// The contents of string literals.
    pub strings: Vec<String>,
    /// Those among them that are log messages or texts of errors (`#[error("…")]`), with their lines.
    pub messages: Vec<(usize, String)>,
}

/// The macros that log.
const LOGS: &[&str] = &["trace", "debug", "info", "warn", "error"];

impl Source {
    /// Splits the text of a file.
    pub fn parse(text: &str) -> Source {
        let mut lexer =
            Lexer { rest: text, line: 1, last_comment: 0, message: None, source: Source::default() };
        while !lexer.rest.is_empty() {
            lexer.token();
        }
        lexer.source
    }
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    /// The line on which the last line comment stood.
    last_comment: usize,
    /// The open parentheses within a log macro or an error's attribute, if the lexer is in one.
    message: Option<usize>,
    source: Source,
}

impl<'a> Lexer<'a> {
    /// Takes `length` bytes off.
    fn take(&mut self, length: usize) -> &'a str {
        let (token, rest) = self.rest.split_at(length.min(self.rest.len()));
        self.line += token.matches('\n').count();
        self.rest = rest;
        token
    }

    fn token(&mut self) {
        let first = self.rest.chars().next().unwrap_or_default();
        if self.rest.starts_with("//") {
            self.line_comment();
        } else if self.rest.starts_with("/*") {
            let line = self.line;
            let length = self.rest.find("*/").map_or(self.rest.len(), |end| end + 2);
            let text = self.take(length).to_owned();
            self.source.comments.push((line, text));
        } else if let Some(hashes) = raw_string(self.rest) {
            self.raw_string(hashes);
        } else if self.rest.starts_with('"') || self.rest.starts_with("b\"") || self.rest.starts_with("c\"") {
            self.string();
        } else if first == '\'' {
            self.character_or_lifetime();
        } else if first.is_alphabetic() || first == '_' {
            self.identifier();
        } else {
            self.parenthesis(first);
            self.take(first.len_utf8());
        }
    }

    fn identifier(&mut self) {
        let line = self.line;
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let length = self.rest.find(|c| !word(c)).unwrap_or(self.rest.len());
        let identifier = self.take(length).to_owned();
        let opens = self.rest.starts_with("!(") && LOGS.contains(&identifier.as_str());
        if opens || identifier == "error" && self.rest.starts_with('(') {
            self.message.get_or_insert(0);
        }
        self.source.identifiers.push((line, identifier));
    }

    /// Counts parentheses within what has messages, and leaves it with the last one.
    fn parenthesis(&mut self, c: char) {
        self.message = match (self.message, c) {
            (Some(open), '(') => Some(open + 1),
            (Some(0 | 1), ')') => None,
            (Some(open), ')') => Some(open - 1),
            (message, _) => message,
        };
    }

    fn literal(&mut self, line: usize, text: &str) {
        self.source.strings.push(text.to_owned());
        if self.message.is_some() {
            self.source.messages.push((line, text.to_owned()));
        }
    }

    fn line_comment(&mut self) {
        let line = self.line;
        let length = self.rest.find('\n').unwrap_or(self.rest.len());
        let text = self.take(length).trim_start_matches(['/', '!']).trim().to_owned();
        match self.source.comments.last_mut() {
            Some((_, comment)) if self.last_comment + 1 == line => {
                comment.push(' ');
                comment.push_str(&text);
            }
            _ => self.source.comments.push((line, text)),
        }
        self.last_comment = line;
    }

    fn string(&mut self) {
        let begin = self.rest.find('"').unwrap_or_default() + 1;
        let mut escaped = false;
        let end = self.rest[begin..].find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let end = end.map_or(self.rest.len(), |end| begin + end);
        let line = self.line;
        let literal = self.take(end + 1);
        self.literal(line, literal.get(begin..end).unwrap_or_default());
    }

    fn raw_string(&mut self, hashes: usize) {
        let begin = self.rest.find('"').unwrap_or_default() + 1;
        let close = format!("\"{}", "#".repeat(hashes));
        let end = self.rest[begin..].find(&close).map_or(self.rest.len(), |end| begin + end);
        let line = self.line;
        let literal = self.take(end + close.len());
        self.literal(line, literal.get(begin..end).unwrap_or_default());
    }

    /// `'a'`, `'\n'` and `'\u{1f}'` are literals; `'a` is a lifetime.
    fn character_or_lifetime(&mut self) {
        let mut characters = self.rest.char_indices().skip(1);
        let Some((_, first)) = characters.next() else {
            self.take(1);
            return;
        };
        let second = characters.next();
        if first == '\\' {
            let from = second.map_or(self.rest.len(), |(at, c)| at + c.len_utf8());
            let end = self.rest[from..].find('\'').map_or(self.rest.len(), |end| from + end + 1);
            self.take(end);
        } else if let Some((at, '\'')) = second {
            self.take(at + 1);
        } else {
            self.take(1);
        }
    }
}

/// The number of `#` of a raw string that begins here.
fn raw_string(text: &str) -> Option<usize> {
    let rest =
        text.strip_prefix("br").or_else(|| text.strip_prefix('r')).or_else(|| text.strip_prefix("cr"))?;
    let hashes = rest.chars().take_while(|c| *c == '#').count();
    rest[hashes..].starts_with('"').then_some(hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separates_comments_identifiers_and_literals() {
        let source = Source::parse(
            "//! a phrase that is\n//! broken\nfn f<'a>(x: &'a str) { let c = '\"'; let q = '\\''; g(\"// no \\\" b\", r#\"raw \" c\"#); }\n/* block */\n",
        );
        assert_eq!(
            source.comments,
            [(1, "a phrase that is broken".to_owned()), (4, "/* block */".to_owned())]
        );
        assert_eq!(source.strings, ["// no \\\" b", "raw \" c"]);
        let names: Vec<&str> = source.identifiers.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["fn", "f", "a", "x", "a", "str", "let", "c", "let", "q", "g"]);
    }

    #[test]
    fn finds_log_messages_and_texts_of_errors() {
        let source = Source::parse(
            "fn f() { g(\"a\"); tracing::warn!(x = h(\"b\"), \"c ( d\"); i(\"e\"); }\n#[error(\"f {}\", j(0))]\nerror!(\n\"g\");\nk(\"h\")",
        );
        let found: Vec<(usize, &str)> = source.messages.iter().map(|(line, m)| (*line, m.as_str())).collect();
        assert_eq!(found, [(1, "b"), (1, "c ( d"), (2, "f {}"), (4, "g")]);
        assert_eq!(source.strings.len(), 7);
    }

    #[test]
    fn ends_at_literals_that_do_not() {
        for text in ["\"", "r#\"", "'", "'\\", "/*", "b\"\\", "//"] {
            Source::parse(text);
        }
    }
}
