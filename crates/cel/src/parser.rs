//! The parser, by precedence climbing.
//!
//! Invariants: text longer than [`crate::MAX_LENGTH`] characters is refused unread; recursion is bounded by
//! [`crate::MAX_DEPTH`] levels of nesting, and so is the depth of the tree; a tree has at most `MAX_NODES` nodes.
//! Parsing stops at the first syntax error; what only a finished tree can show (reserved names, literals out of range,
//! misused macros) is gathered.

use crate::{
    MAX_DEPTH, MAX_LENGTH,
    ast::{Entry, Expr, Id, Kind, Literal},
    lexer::{self, Lexeme, Token},
    source::{Issues, Offset, Report},
};

/// Macros copy what they are applied to; this bounds the copies.
const MAX_NODES: usize = 100_000;
/// What may begin an expression, as ANTLR lists it.
const EXPECTED: &str = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";
/// Words that are no identifiers. Source: the CEL specification, `RESERVED`.
pub(crate) const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// The parser gave up; why is in the report.
pub(crate) struct Abort;

type Parsed<T> = Result<T, Abort>;

/// A tree and the places of its nodes.
#[derive(Debug)]
pub(crate) struct Parsing {
    pub root: Expr,
    /// By id.
    pub offsets: Vec<Offset>,
    pub report: Report,
}

pub(crate) struct Parser<'t> {
    tokens: Vec<Lexeme<'t>>,
    pos: usize,
    nesting: u16,
    pub(crate) offsets: Vec<Offset>,
    pub(crate) report: Report,
    /// Whether `cel.bind` is a macro.
    pub(crate) bindings: bool,
}

/// Parses `text`, with the macro `cel.bind` or without it.
pub(crate) fn parse(text: &str, bindings: bool) -> Result<Parsing, Issues> {
    let mut report = Report::new(text);
    let length = text.chars().count();
    if length > MAX_LENGTH {
        let message = format!("expression code point size exceeds limit: size: {length}, limit {MAX_LENGTH}");
        report.add(None, message);
        return Err(report.finish());
    }
    let tokens = lexer::lex(text, &mut report);
    let mut parser = Parser { tokens, pos: 0, nesting: 0, offsets: vec![], report, bindings };
    let root = parser.expr().and_then(|e| parser.end().map(|()| e));
    match root {
        Ok(root) if parser.report.is_empty() => {
            Ok(Parsing { root, offsets: parser.offsets, report: parser.report })
        }
        _ => Err(parser.report.finish()),
    }
}

/// Operators with their precedence, weakest first, and the functions that they are.
const OPERATORS: [(&str, usize, &str); 14] = [
    ("||", 0, "_||_"),
    ("&&", 1, "_&&_"),
    ("<", 2, "_<_"),
    ("<=", 2, "_<=_"),
    (">=", 2, "_>=_"),
    (">", 2, "_>_"),
    ("==", 2, "_==_"),
    ("!=", 2, "_!=_"),
    ("in", 2, "@in"),
    ("+", 3, "_+_"),
    ("-", 3, "_-_"),
    ("*", 4, "_*_"),
    ("/", 4, "_/_"),
    ("%", 4, "_%_"),
];
const LEVELS: usize = 5;

/// An operator of a chain.
#[derive(Clone, Copy)]
struct Operator {
    level: usize,
    function: &'static str,
    id: Id,
}

fn begins_expression(token: Token) -> bool {
    match token {
        Token::Symbol(s) => ["(", "[", "{", ".", "-", "!", "true", "false", "null"].contains(&s),
        Token::Ident | Token::Int | Token::Uint | Token::Float | Token::String | Token::Bytes => true,
        _ => false,
    }
}

impl<'t> Parser<'t> {
    fn peek(&self) -> Lexeme<'t> {
        self.tokens[self.pos.min(self.tokens.len() - 1)]
    }

    fn take(&mut self) -> Lexeme<'t> {
        let lexeme = self.peek();
        self.pos += 1;
        lexeme
    }

    fn is(&self, symbol: &str) -> bool {
        matches!(self.peek().token, Token::Symbol(s) if s == symbol)
    }

    fn eat(&mut self, symbol: &str) -> Option<Lexeme<'t>> {
        self.is(symbol).then(|| self.take())
    }

    fn syntax<T>(&mut self, message: String) -> Parsed<T> {
        let at = self.peek().at;
        self.report.add(Some(at), format!("Syntax error: {message}"));
        Err(Abort)
    }

    fn expect(&mut self, symbol: &str) -> Parsed<Lexeme<'t>> {
        if let Some(lexeme) = self.eat(symbol) {
            return Ok(lexeme);
        }
        let found = self.peek();
        if found.token == Token::End {
            return self.syntax(format!("missing '{symbol}' at '<EOF>'"));
        }
        self.syntax(format!("mismatched input '{}' expecting '{symbol}'", lexer::shown(found.text)))
    }

    fn end(&mut self) -> Parsed<()> {
        let found = self.peek();
        if found.token == Token::End {
            return Ok(());
        }
        let last = self.tokens.get(self.pos + 1).is_some_and(|t| t.token == Token::End);
        let kind = if last { "extraneous" } else { "mismatched" };
        self.syntax(format!("{kind} input '{}' expecting <EOF>", lexer::shown(found.text)))
    }

    /// A new id for a node at `at`.
    pub(crate) fn id(&mut self, at: Offset) -> Id {
        self.offsets.push(at);
        Id::try_from(self.offsets.len() - 1).unwrap_or(Id::MAX)
    }

    /// Makes a node with that id.
    pub(crate) fn with_id(&mut self, id: Id, kind: Kind) -> Parsed<Expr> {
        let depth = kind.depth() + 1;
        // The leaf below the deepest node does not count.
        if depth > MAX_DEPTH + 1 || self.offsets.len() > MAX_NODES {
            self.report.add(None, "max recursion depth exceeded");
            return Err(Abort);
        }
        Ok(Expr { id, depth, kind })
    }

    /// Makes a node at `at`.
    pub(crate) fn node(&mut self, at: Offset, kind: Kind) -> Parsed<Expr> {
        let id = self.id(at);
        self.with_id(id, kind)
    }

    /// Makes a call of a function that is no member.
    pub(crate) fn call(&mut self, at: Offset, function: &str, args: Vec<Expr>) -> Parsed<Expr> {
        self.node(at, Kind::Call { target: None, function: function.to_owned(), args })
    }

    fn problem(&mut self, at: u32, message: impl Into<String>) -> Parsed<Expr> {
        self.report.add(Some(at), message);
        self.node(Some(at), Kind::Literal(Literal::Null))
    }

    /// `a ? b : c` and everything that binds stronger.
    fn expr(&mut self) -> Parsed<Expr> {
        if self.nesting >= MAX_DEPTH {
            self.report.add(None, format!("expression recursion limit exceeded: {MAX_DEPTH}"));
            return Err(Abort);
        }
        self.nesting += 1;
        let result = self.conditional();
        self.nesting -= 1;
        result
    }

    fn conditional(&mut self) -> Parsed<Expr> {
        let condition = self.chain()?;
        let Some(op) = self.eat("?") else { return Ok(condition) };
        let id = self.id(Some(op.at));
        let yes = self.chain()?;
        self.expect(":")?;
        let no = self.expr()?;
        let args = vec![condition, yes, no];
        self.with_id(id, Kind::Call { target: None, function: "_?_:_".into(), args })
    }

    /// Operands with operators between them. Read flat, so that precedence costs no recursion.
    fn chain(&mut self) -> Parsed<Expr> {
        let first = self.unary()?;
        let (mut operands, mut operators) = (vec![Some(first)], vec![]);
        loop {
            let found = self.peek();
            let Token::Symbol(symbol) = found.token else { break };
            let Some((_, level, function)) = OPERATORS.iter().find(|(s, ..)| *s == symbol) else { break };
            self.take();
            operators.push(Operator { level: *level, function, id: self.id(Some(found.at)) });
            operands.push(Some(self.unary()?));
        }
        self.build(0, &mut operands, &operators)
    }

    /// The tree of a chain of operators of `level` or stronger.
    fn build(&mut self, level: usize, operands: &mut [Option<Expr>], operators: &[Operator]) -> Parsed<Expr> {
        if level == LEVELS || operators.is_empty() {
            return operands.first_mut().and_then(Option::take).ok_or(Abort);
        }
        let (mut terms, mut joints) = (vec![], vec![]);
        let mut start = 0;
        for (i, operator) in operators.iter().enumerate().filter(|(_, o)| o.level == level) {
            terms.push(Some(self.build(level + 1, &mut operands[start..=i], &operators[start..i])?));
            joints.push(*operator);
            start = i + 1;
        }
        terms.push(Some(self.build(level + 1, &mut operands[start..], &operators[start..])?));
        if level < 2 {
            return self.balanced(&mut terms, &joints);
        }
        let mut terms = terms.into_iter().flatten();
        let mut left = terms.next().ok_or(Abort)?;
        for (operator, right) in joints.into_iter().zip(terms) {
            left = self.operation(operator, left, right)?;
        }
        Ok(left)
    }

    fn operation(&mut self, operator: Operator, left: Expr, right: Expr) -> Parsed<Expr> {
        let function = operator.function.to_owned();
        self.with_id(operator.id, Kind::Call { target: None, function, args: vec![left, right] })
    }

    /// A chain of one logical operator becomes a shallow tree.
    fn balanced(&mut self, terms: &mut [Option<Expr>], operators: &[Operator]) -> Parsed<Expr> {
        let mid = operators.len() / 2;
        let Some(operator) = operators.get(mid) else {
            return terms.first_mut().and_then(Option::take).ok_or(Abort);
        };
        let (left, right) = terms.split_at_mut(mid + 1);
        let left = self.balanced(left, &operators[..mid])?;
        let right = self.balanced(right, &operators[mid + 1..])?;
        self.operation(*operator, left, right)
    }

    fn unary(&mut self) -> Parsed<Expr> {
        let first = self.peek();
        let (symbol, function) = match first.token {
            Token::Symbol("!") => ("!", "!_"),
            Token::Symbol("-") => ("-", "-_"),
            _ => return self.member(),
        };
        let next = self.tokens.get(self.pos + 1).map(|t| t.token);
        if symbol == "-" && matches!(next, Some(Token::Int | Token::Float)) {
            // The sign belongs to the literal.
            return self.member();
        }
        let mut count = 0;
        while self.eat(symbol).is_some() {
            count += 1;
        }
        if count % 2 == 0 {
            return self.member();
        }
        let id = self.id(Some(first.at));
        let operand = self.member()?;
        self.with_id(id, Kind::Call { target: None, function: function.into(), args: vec![operand] })
    }

    fn member(&mut self) -> Parsed<Expr> {
        let mut e = self.primary()?;
        loop {
            if let Some(dot) = self.eat(".") {
                e = self.select(e, dot.at)?;
            } else if let Some(bracket) = self.eat("[") {
                let id = self.id(Some(bracket.at));
                let function = if self.eat("?").is_some() { "_[?_]" } else { "_[_]" };
                let index = self.expr()?;
                self.expect("]")?;
                e = self.with_id(
                    id,
                    Kind::Call { target: None, function: function.into(), args: vec![e, index] },
                )?;
            } else {
                return Ok(e);
            }
        }
    }

    /// What follows a dot.
    fn select(&mut self, operand: Expr, dot: u32) -> Parsed<Expr> {
        let optional = self.eat("?").is_some();
        let name = self.peek();
        let field = match name.token {
            Token::Ident => name.text,
            Token::EscapedIdent => {
                self.report.add(Some(name.at), "unsupported syntax: '`'");
                return Err(Abort);
            }
            _ if optional => {
                let found = lexer::shown(name.text);
                return self
                    .syntax(format!("mismatched input '{found}' expecting {{IDENTIFIER, ESC_IDENTIFIER}}"));
            }
            _ => return self.no_name(name),
        };
        self.take();
        if optional {
            let id = self.id(Some(dot));
            let field = self.node(Some(name.at), Kind::Literal(Literal::String(field.to_owned())))?;
            return self.with_id(
                id,
                Kind::Call { target: None, function: "_?._".into(), args: vec![operand, field] },
            );
        }
        let Some(open) = self.eat("(") else {
            let kind = Kind::Select { operand: Box::new(operand), field: field.to_owned(), test: false };
            return self.node(Some(dot), kind);
        };
        let id = self.id(Some(open.at));
        let args = self.args()?;
        self.member_call(id, field, operand, args)
    }

    /// No name follows a dot.
    fn no_name(&mut self, found: Lexeme<'t>) -> Parsed<Expr> {
        let text = lexer::shown(found.text);
        match found.token {
            Token::Symbol("true" | "false" | "null") => {
                self.syntax(format!("mismatched input '{text}' expecting IDENTIFIER"))
            }
            Token::End => self.syntax("no viable alternative at input '.'".into()),
            _ => self.syntax(format!("no viable alternative at input '.{text}'")),
        }
    }

    /// Arguments, up to the closing parenthesis.
    fn args(&mut self) -> Parsed<Vec<Expr>> {
        let mut args = vec![];
        if self.eat(")").is_some() {
            return Ok(args);
        }
        loop {
            args.push(self.expr()?);
            if self.eat(",").is_none() {
                self.expect(")")?;
                return Ok(args);
            }
        }
    }

    fn primary(&mut self) -> Parsed<Expr> {
        let first = self.peek();
        match first.token {
            Token::Symbol("(") => {
                self.take();
                let e = self.expr()?;
                self.expect(")")?;
                Ok(e)
            }
            Token::Symbol("[") => self.list(),
            Token::Symbol("{") => self.map(),
            Token::Symbol(".") | Token::Ident => self.name(),
            Token::Symbol("true" | "false" | "null" | "-") => self.literal(),
            Token::Int | Token::Uint | Token::Float | Token::String | Token::Bytes => self.literal(),
            _ => {
                let next = self.tokens.get(self.pos + 1).map_or(Token::End, |t| t.token);
                let extra = begins_expression(next);
                let kind = if extra { "extraneous" } else { "mismatched" };
                let message = format!("{kind} input '{}' expecting {EXPECTED}", lexer::shown(first.text));
                if !extra {
                    return self.syntax(message);
                }
                // What comes next makes sense without it: read on, to find what else is wrong.
                self.take();
                self.report.add(Some(first.at), format!("Syntax error: {message}"));
                self.primary()
            }
        }
    }

    fn literal(&mut self) -> Parsed<Expr> {
        let first = self.take();
        let (sign, lexeme) = if first.token == Token::Symbol("-") { ("-", self.take()) } else { ("", first) };
        let text = lexeme.text;
        let literal = match lexeme.token {
            Token::Int => match text.strip_prefix("0x") {
                Some(hex) => i64::from_str_radix(&format!("{sign}{hex}"), 16).ok().map(Literal::Int),
                None => format!("{sign}{text}").parse().ok().map(Literal::Int),
            }
            .ok_or("invalid int literal"),
            Token::Uint => {
                let text = &text[..text.len() - 1];
                match text.strip_prefix("0x") {
                    Some(hex) => u64::from_str_radix(hex, 16).ok(),
                    None => text.parse().ok(),
                }
                .map(Literal::Uint)
                .ok_or("invalid uint literal")
            }
            Token::Float => match format!("{sign}{text}").parse::<f64>() {
                Ok(f) if f.is_finite() => Ok(Literal::Double(f)),
                _ => Err("invalid double literal"),
            },
            Token::String => lexer::unquote(text, false)
                .and_then(|b| String::from_utf8(b).ok())
                .map(Literal::String)
                .ok_or("unable to unescape string"),
            Token::Bytes => lexer::unquote(text, true).map(Literal::Bytes).ok_or("unable to unescape string"),
            Token::Symbol("true") => Ok(Literal::Bool(true)),
            Token::Symbol("false") => Ok(Literal::Bool(false)),
            _ => Ok(Literal::Null),
        };
        match literal {
            Ok(literal) => self.node(Some(first.at), Kind::Literal(literal)),
            Err(message) => self.problem(first.at, message),
        }
    }

    /// A name, a call, or a message (`a.b.C{...}`).
    fn name(&mut self) -> Parsed<Expr> {
        let first = self.peek();
        let leading = if self.eat(".").is_some() { "." } else { "" };
        let name = self.peek();
        if name.token != Token::Ident {
            return self.no_name(name);
        }
        if let Some((fields, brace)) = self.message_ahead() {
            let full: Vec<&str> = self.tokens[self.pos..brace].iter().step_by(2).map(|t| t.text).collect();
            let full = format!("{leading}{}", full.join("."));
            self.pos = brace;
            debug_assert!(fields);
            return self.message(full);
        }
        self.take();
        if RESERVED.contains(&name.text) {
            let problem = self.problem(first.at, format!("reserved identifier: {}", name.text));
            if self.eat("(").is_some() {
                self.args()?;
            }
            return problem;
        }
        let full = format!("{leading}{}", name.text);
        let Some(open) = self.eat("(") else { return self.node(Some(name.at), Kind::Ident(full)) };
        let id = self.id(Some(open.at));
        let args = self.args()?;
        self.global_call(id, &full, args)
    }

    /// Where the brace of `a.b.C{` stands, if that is what comes.
    fn message_ahead(&self) -> Option<(bool, usize)> {
        let mut at = self.pos + 1;
        loop {
            match (self.tokens.get(at)?.token, self.tokens.get(at + 1).map(|t| t.token)) {
                (Token::Symbol("{"), _) => return Some((true, at)),
                (Token::Symbol("."), Some(Token::Ident)) => at += 2,
                _ => return None,
            }
        }
    }

    fn message(&mut self, name: String) -> Parsed<Expr> {
        let open = self.expect("{")?;
        let id = self.id(Some(open.at));
        let mut fields = vec![];
        while self.eat("}").is_none() {
            let optional = self.eat("?").is_some();
            let field = self.peek();
            if field.token != Token::Ident {
                return self.syntax(format!(
                    "mismatched input '{}' expecting {{'}}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}}",
                    lexer::shown(field.text)
                ));
            }
            self.take();
            let colon = self.expect(":")?;
            let entry = self.id(Some(colon.at));
            let value = self.expr()?;
            fields.push(Entry { id: entry, key: field.text.to_owned(), value, optional });
            if self.eat(",").is_none() {
                self.expect("}")?;
                break;
            }
        }
        self.with_id(id, Kind::Struct { name, fields })
    }

    fn list(&mut self) -> Parsed<Expr> {
        let open = self.take();
        let id = self.id(Some(open.at));
        let (mut elements, mut optional) = (vec![], vec![]);
        while self.eat("]").is_none() {
            if self.eat("?").is_some() {
                optional.push(elements.len());
            }
            elements.push(self.expr()?);
            if self.eat(",").is_none() {
                self.expect("]")?;
                break;
            }
        }
        self.with_id(id, Kind::List { elements, optional })
    }

    fn map(&mut self) -> Parsed<Expr> {
        let open = self.take();
        let id = self.id(Some(open.at));
        let mut entries = vec![];
        while self.eat("}").is_none() {
            let optional = self.eat("?").is_some();
            let key = self.expr()?;
            let colon = self.expect(":")?;
            let entry = self.id(Some(colon.at));
            let value = self.expr()?;
            entries.push(Entry { id: entry, key, value, optional });
            if self.eat(",").is_none() {
                self.expect("}")?;
                break;
            }
        }
        self.with_id(id, Kind::Map { entries })
    }
}
