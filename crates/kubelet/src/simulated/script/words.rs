//! Words of the shell's language, and the tokens of a text.

use super::{MOST_DEPTH, NotUnderstood};

/// A part of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// As it is.
    Text(String),
    /// A variable, and what it is when unset or empty.
    Variable(String, String),
    /// `$((…))`
    Arithmetic(String),
    /// `$(…)`
    Command(String),
}

/// A word before its expansion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) parts: Vec<Part>,
    /// Some of it is in quotes: an empty word stays.
    pub(super) quoted: bool,
}

impl Word {
    /// The text of a word without expansions and quotes: keywords, operators.
    pub(super) fn plain(&self) -> Option<&str> {
        match &self.parts[..] {
            [Part::Text(text)] if !self.quoted => Some(text),
            _ => None,
        }
    }

    fn text(&mut self, c: char) {
        match self.parts.last_mut() {
            Some(Part::Text(text)) => text.push(c),
            _ => self.parts.push(Part::Text(c.into())),
        }
    }
}

/// A token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// A word.
    Word(Word),
    /// `;` or the end of a line.
    End,
    /// `&&`
    And,
    /// `||`
    Or,
    /// `>` or `>>`, and whether of standard error.
    Redirect { error: bool, append: bool },
}

fn wrong(what: &str) -> NotUnderstood {
    NotUnderstood::Syntax(what.to_owned())
}

struct Lexer<'a> {
    rest: &'a str,
    tokens: Vec<Token>,
    word: Option<Word>,
}

/// The tokens of a text.
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, NotUnderstood> {
    let mut lexer = Lexer { rest: text, tokens: vec![], word: None };
    while let Some(c) = lexer.next() {
        lexer.take(c)?;
    }
    lexer.finish();
    Ok(lexer.tokens)
}

impl Lexer<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn consume(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn finish(&mut self) {
        self.tokens.extend(self.word.take().map(Token::Word));
    }

    fn push(&mut self, token: Token) {
        self.finish();
        self.tokens.push(token);
    }

    fn word(&mut self) -> &mut Word {
        self.word.get_or_insert_default()
    }

    fn take(&mut self, c: char) -> Result<(), NotUnderstood> {
        match c {
            ' ' | '\t' | '\r' => self.finish(),
            ';' | '\n' => {
                if c == ';' && self.rest.starts_with(';') {
                    return Err(wrong(";;"));
                }
                self.push(Token::End);
            }
            '#' if self.word.is_none() => {
                self.rest = &self.rest[self.rest.find('\n').unwrap_or(self.rest.len())..]
            }
            '&' if self.consume("&") => self.push(Token::And),
            '|' if self.consume("|") => self.push(Token::Or),
            '>' => {
                let error = self.word.as_ref().and_then(Word::plain) == Some("2");
                if error || self.word.as_ref().and_then(Word::plain) == Some("1") {
                    self.word = None;
                }
                if self.consume("&") {
                    return Err(wrong(">&"));
                }
                let append = self.consume(">");
                self.push(Token::Redirect { error, append });
            }
            '&' | '|' | '<' | '(' | ')' | '`' | '*' | '?' => return Err(wrong(&c.to_string())),
            '\\' => match self.next() {
                Some('\n') | None => {}
                Some(escaped) => {
                    let word = self.word();
                    word.quoted = true;
                    word.text(escaped);
                }
            },
            '\'' => {
                let end = self.rest.find('\'').ok_or_else(|| wrong("an open quote"))?;
                let text = self.rest[..end].to_owned();
                self.rest = &self.rest[end + 1..];
                let word = self.word();
                word.quoted = true;
                text.chars().for_each(|c| word.text(c));
            }
            '"' => self.double_quoted()?,
            '$' => self.dollar()?,
            c => self.word().text(c),
        }
        Ok(())
    }

    fn double_quoted(&mut self) -> Result<(), NotUnderstood> {
        self.word().quoted = true;
        loop {
            match self.next().ok_or_else(|| wrong("an open quote"))? {
                '"' => return Ok(()),
                '\\' => {
                    let escaped = self.next().ok_or_else(|| wrong("an open quote"))?;
                    let word = self.word();
                    if !matches!(escaped, '"' | '\\' | '$' | '`') {
                        word.text('\\');
                    }
                    word.text(escaped);
                }
                '$' => self.dollar()?,
                '`' => return Err(wrong("`")),
                c => self.word().text(c),
            }
        }
    }

    fn dollar(&mut self) -> Result<(), NotUnderstood> {
        let part = if self.consume("((") {
            let end = self.rest.find("))").ok_or_else(|| wrong("an open $(("))?;
            let text = self.rest[..end].to_owned();
            self.rest = &self.rest[end + 2..];
            Part::Arithmetic(text)
        } else if self.consume("(") {
            Part::Command(self.parenthesis()?)
        } else if self.consume("{") {
            let end = self.rest.find('}').ok_or_else(|| wrong("an open ${"))?;
            let inside = &self.rest[..end];
            let (name, default) = inside.split_once(":-").unwrap_or((inside, ""));
            let part = Part::Variable(name.to_owned(), default.to_owned());
            if !is_name(name) {
                return Err(wrong(&format!("${{{inside}}}")));
            }
            self.rest = &self.rest[end + 1..];
            part
        } else {
            let special = self.rest.starts_with('?');
            let letters = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let end = if special { 1 } else { letters.unwrap_or(self.rest.len()) };
            let name = self.rest[..end].to_owned();
            if !special && !is_name(&name) {
                self.word().text('$');
                return Ok(());
            }
            self.rest = &self.rest[end..];
            Part::Variable(name, String::new())
        };
        self.word().parts.push(part);
        Ok(())
    }

    /// The text up to the parenthesis that closes the open one.
    fn parenthesis(&mut self) -> Result<String, NotUnderstood> {
        let mut depth = 1_u32;
        for (at, c) in self.rest.char_indices() {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            if depth > MOST_DEPTH {
                return Err(NotUnderstood::TooLong);
            }
            if depth == 0 {
                let text = self.rest[..at].to_owned();
                self.rest = &self.rest[at + 1..];
                return Ok(text);
            }
        }
        Err(wrong("an open $("))
    }
}

/// Whether a text is a variable's name.
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
