//! The string form of label selectors.
//!
//! Tokens are the symbols `= == != ( ) , < > !`, the words `in` and `notin`, and identifiers (any other run of
//! bytes up to a symbol or white space). A NUL byte ends the input. Where a value is expected, the two words are
//! ordinary identifiers.

use super::{Operator, Requirement, check_label_key};
use crate::field::Path;
use std::collections::BTreeSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    End,
    Close,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    Greater,
    Identifier,
    In,
    Less,
    NotEquals,
    NotIn,
    Open,
}

const BINARY_OPERATORS: &str = "in, notin, =, ==, !=, gt, lt";

fn is_space(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | b'\r' | b'\n')
}

fn is_symbol(b: u8) -> bool {
    matches!(b, b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<')
}

fn symbol(s: &str) -> (Token, usize) {
    match s.as_bytes() {
        [b'=', b'=', ..] => (Token::DoubleEquals, 2),
        [b'!', b'=', ..] => (Token::NotEquals, 2),
        [b'=', ..] => (Token::Equals, 1),
        [b'!', ..] => (Token::Not, 1),
        [b'(', ..] => (Token::Open, 1),
        [b')', ..] => (Token::Close, 1),
        [b',', ..] => (Token::Comma, 1),
        [b'>', ..] => (Token::Greater, 1),
        _ => (Token::Less, 1),
    }
}

/// All tokens with their text; the last one is always `End`.
fn scan(s: &str) -> Vec<(Token, &str)> {
    let s = s.split('\0').next().unwrap_or("");
    let mut rest = s.trim_start_matches(|c: char| c.is_ascii() && is_space(c as u8));
    let mut tokens = Vec::new();
    while let Some(first) = rest.bytes().next() {
        let (token, len) = if is_symbol(first) {
            symbol(rest)
        } else {
            let len = rest.bytes().position(|b| is_symbol(b) || is_space(b)).unwrap_or(rest.len());
            match &rest[..len] {
                "in" => (Token::In, len),
                "notin" => (Token::NotIn, len),
                _ => (Token::Identifier, len),
            }
        };
        tokens.push((token, &rest[..len]));
        rest = rest[len..].trim_start_matches(|c: char| c.is_ascii() && is_space(c as u8));
    }
    tokens.push((Token::End, ""));
    tokens
}

struct Parser<'a> {
    tokens: Vec<(Token, &'a str)>,
    position: usize,
}

impl<'a> Parser<'a> {
    fn peek_raw(&self) -> (Token, &'a str) {
        self.tokens.get(self.position).copied().unwrap_or((Token::End, ""))
    }

    /// The next token where a word is a value.
    fn peek(&self) -> (Token, &'a str) {
        match self.peek_raw() {
            (Token::In | Token::NotIn, text) => (Token::Identifier, text),
            other => other,
        }
    }

    fn next(&mut self) -> (Token, &'a str) {
        let token = self.peek();
        self.position += 1;
        token
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let (mut token, mut text) = self.next();
        let negated = token == Token::Not;
        if negated {
            (token, text) = self.next();
        }
        if token != Token::Identifier {
            return Err(format!("found '{text}', expected: identifier"));
        }
        if let Some(err) = check_label_key(text, &Path::root()) {
            return Err(err.to_string());
        }
        if negated {
            return Requirement::new(text, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Requirement::new(text, Operator::Exists, Vec::new());
        }
        let operator = self.operator()?;
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => self.exact_value()?,
        };
        Requirement::new(text, operator, values.into_iter().map(str::to_owned).collect())
    }

    fn operator(&mut self) -> Result<Operator, String> {
        let (token, text) = self.peek_raw();
        self.position += 1;
        Ok(match token {
            Token::In => Operator::In,
            Token::NotIn => Operator::NotIn,
            Token::Equals => Operator::Equals,
            Token::DoubleEquals => Operator::DoubleEquals,
            Token::NotEquals => Operator::NotEquals,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            _ => return Err(format!("found '{text}', expected: {BINARY_OPERATORS}")),
        })
    }

    /// `(a,b,c)`, where items may be empty.
    fn values(&mut self) -> Result<BTreeSet<&'a str>, String> {
        let (token, text) = self.next();
        if token != Token::Open {
            return Err(format!("found '{text}' expected: '('"));
        }
        match self.peek() {
            (Token::Close, _) => {
                self.position += 1;
                Ok(BTreeSet::from([""]))
            }
            (Token::Identifier | Token::Comma, _) => {
                let values = self.identifiers()?;
                // `identifiers` stops right before the closing parenthesis.
                self.position += 1;
                Ok(values)
            }
            (_, text) => Err(format!("found '{text}', expected: ',', ')' or identifier")),
        }
    }

    fn identifiers(&mut self) -> Result<BTreeSet<&'a str>, String> {
        let mut values = BTreeSet::new();
        loop {
            match self.next() {
                (Token::Identifier, text) => {
                    values.insert(text);
                    match self.peek() {
                        (Token::Comma, _) => {}
                        (Token::Close, _) => return Ok(values),
                        (_, text) => return Err(format!("found '{text}', expected: ',' or ')'")),
                    }
                }
                (Token::Comma, _) => {
                    if values.is_empty() {
                        values.insert("");
                    }
                    match self.peek().0 {
                        Token::Close => {
                            values.insert("");
                            return Ok(values);
                        }
                        Token::Comma => drop(values.insert("")),
                        _ => {}
                    }
                }
                (_, text) => return Err(format!("found '{text}', expected: ',', or identifier")),
            }
        }
    }

    /// The value behind `=` and the like; nothing is the empty value.
    fn exact_value(&mut self) -> Result<BTreeSet<&'a str>, String> {
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(BTreeSet::from([""]));
        }
        match self.next() {
            (Token::Identifier, text) => Ok(BTreeSet::from([text])),
            (_, text) => Err(format!("found '{text}', expected: identifier")),
        }
    }
}

/// Parses a whole selector into requirements in the order of the text.
pub(super) fn parse(s: &str) -> Result<Vec<Requirement>, String> {
    let mut parser = Parser { tokens: scan(s), position: 0 };
    let mut requirements = Vec::new();
    loop {
        match parser.peek() {
            (Token::Identifier | Token::Not, _) => {}
            (Token::End, _) => return Ok(requirements),
            (_, text) => return Err(format!("found '{text}', expected: !, identifier, or 'end of string'")),
        }
        let requirement = parser.requirement().map_err(|e| format!("unable to parse requirement: {e}"))?;
        requirements.push(requirement);
        match parser.next() {
            (Token::End, _) => return Ok(requirements),
            (Token::Comma, _) => match parser.peek() {
                (Token::Identifier | Token::Not, _) => {}
                (_, text) => return Err(format!("found '{text}', expected: identifier after ','")),
            },
            (_, text) => return Err(format!("found '{text}', expected: ',' or 'end of string'")),
        }
    }
}
