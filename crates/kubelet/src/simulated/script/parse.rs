//! Statements of the shell's language from tokens.

use super::words::{Token, Word, tokens};
use super::{MOST_DEPTH, NotUnderstood};

/// Where a stream of a command goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Redirect {
    /// Standard error; else standard output.
    pub(super) error: bool,
    /// To the end of the file.
    pub(super) append: bool,
    /// The file.
    pub(super) path: Word,
}

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    /// A program or builtin.
    Simple(Vec<Word>, Vec<Redirect>),
    /// Conditions with what follows when they hold, then what follows when none does.
    If(Vec<(List, List)>, List),
    /// As long as the condition holds, or does not.
    While { until: bool, condition: List, body: List },
    /// Once for each word.
    For(String, Vec<Word>, List),
    /// `! command`
    Not(Box<Command>),
}

/// How a command is connected to the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// After it.
    Then,
    /// If it has succeeded.
    And,
    /// If it has failed.
    Or,
}

/// Commands in order.
pub(super) type List = Vec<(Link, Command)>;

fn wrong(what: impl Into<String>) -> NotUnderstood {
    NotUnderstood::Syntax(what.into())
}

struct Parser {
    tokens: std::iter::Peekable<std::vec::IntoIter<Token>>,
    depth: u32,
}

/// The statements of a text.
pub(super) fn script(text: &str) -> Result<List, NotUnderstood> {
    let mut parser = Parser { tokens: tokens(text)?.into_iter().peekable(), depth: 0 };
    let list = parser.list(&[])?;
    match parser.tokens.next() {
        None => Ok(list),
        Some(token) => Err(wrong(format!("{token:?}"))),
    }
}

impl Parser {
    fn keyword(&mut self) -> Option<String> {
        match self.tokens.peek()? {
            Token::Word(word) => word.plain().map(str::to_owned),
            _ => None,
        }
    }

    fn expect(&mut self, keyword: &str) -> Result<(), NotUnderstood> {
        match self.tokens.next() {
            Some(Token::Word(word)) if word.plain() == Some(keyword) => Ok(()),
            None => Err(wrong("the end of the text")),
            Some(token) => Err(wrong(format!("{token:?} where {keyword} is due"))),
        }
    }

    /// Commands up to one of these keywords, which is left.
    fn list(&mut self, ends: &[&str]) -> Result<List, NotUnderstood> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return Err(NotUnderstood::TooLong);
        }
        let mut list = vec![];
        let mut link = Link::Then;
        loop {
            while self.tokens.next_if_eq(&Token::End).is_some() {}
            let keyword = self.keyword();
            if self.tokens.peek().is_none() || keyword.as_deref().is_some_and(|k| ends.contains(&k)) {
                break;
            }
            list.push((link, self.command()?));
            link = match self.tokens.peek() {
                Some(Token::And) => Link::And,
                Some(Token::Or) => Link::Or,
                Some(Token::End) => Link::Then,
                None => {
                    link = Link::Then;
                    break;
                }
                Some(Token::Word(_) | Token::Redirect { .. }) => {
                    if self.keyword().is_some_and(|k| ends.contains(&k.as_str())) {
                        link = Link::Then;
                        break;
                    }
                    return Err(wrong("a word after a statement"));
                }
            };
            self.tokens.next();
        }
        self.depth -= 1;
        if link != Link::Then {
            return Err(wrong("the end of the text"));
        }
        Ok(list)
    }

    fn command(&mut self) -> Result<Command, NotUnderstood> {
        match self.keyword().as_deref() {
            Some("if") => self.conditional(),
            Some(word @ ("while" | "until")) => {
                let until = word == "until";
                self.tokens.next();
                let condition = self.list(&["do"])?;
                Ok(Command::While { until, condition, body: self.body()? })
            }
            Some("for") => self.each(),
            Some("!") => {
                self.tokens.next();
                if self.keyword().as_deref() == Some("!") {
                    return Err(wrong("! !"));
                }
                Ok(Command::Not(Box::new(self.command()?)))
            }
            Some(
                word @ ("case" | "function" | "then" | "fi" | "do" | "done" | "else" | "elif" | "{" | "}"
                | "esac"),
            ) => Err(wrong(word)),
            _ => self.simple(),
        }
    }

    fn body(&mut self) -> Result<List, NotUnderstood> {
        self.expect("do")?;
        let body = self.list(&["done"])?;
        self.expect("done")?;
        Ok(body)
    }

    fn conditional(&mut self) -> Result<Command, NotUnderstood> {
        let mut branches = vec![];
        self.expect("if")?;
        loop {
            let condition = self.list(&["then"])?;
            self.expect("then")?;
            branches.push((condition, self.list(&["elif", "else", "fi"])?));
            match self.keyword().as_deref() {
                Some("elif") => {
                    self.tokens.next();
                }
                Some("else") => {
                    self.tokens.next();
                    let otherwise = self.list(&["fi"])?;
                    self.expect("fi")?;
                    return Ok(Command::If(branches, otherwise));
                }
                _ => {
                    self.expect("fi")?;
                    return Ok(Command::If(branches, vec![]));
                }
            }
        }
    }

    fn each(&mut self) -> Result<Command, NotUnderstood> {
        self.expect("for")?;
        let name = self.keyword().filter(|n| super::words::is_name(n)).ok_or_else(|| wrong("for"))?;
        self.tokens.next();
        self.expect("in")?;
        let mut words = vec![];
        while let Some(Token::Word(word)) = self.tokens.next_if(|t| matches!(t, Token::Word(_))) {
            words.push(word);
        }
        while self.tokens.next_if_eq(&Token::End).is_some() {}
        Ok(Command::For(name, words, self.body()?))
    }

    fn simple(&mut self) -> Result<Command, NotUnderstood> {
        let (mut words, mut redirects) = (vec![], vec![]);
        let mut testing = false;
        loop {
            match self.tokens.peek() {
                Some(Token::Word(word)) => {
                    testing |= words.is_empty() && word.plain() == Some("[[");
                    testing &= word.plain() != Some("]]");
                    words.push(word.clone());
                    self.tokens.next();
                }
                Some(Token::Redirect { error, append }) if !testing => {
                    let (error, append) = (*error, *append);
                    self.tokens.next();
                    match self.tokens.next() {
                        Some(Token::Word(path)) => redirects.push(Redirect { error, append, path }),
                        _ => return Err(wrong("a redirection")),
                    }
                }
                Some(Token::Redirect { .. } | Token::And | Token::Or) if testing => {
                    return Err(wrong("operators in [[ ]]"));
                }
                _ => break,
            }
        }
        if words.is_empty() {
            return Err(wrong("an empty statement"));
        }
        Ok(Command::Simple(words, redirects))
    }
}
