//! Field selectors, the string form of `fieldSelector=`: `status.phase=Running,metadata.name!=x`.
//!
//! Terms are sorted as text, as upstream sorts them. In values, `\`, `,` and `=` are escaped with a backslash. Which
//! fields exist, and what they are called per kind, is decided by the resource, not here.

use std::fmt;

/// Whether the field must have the value, or must not have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// `=` or `==`.
    Equals,
    /// `!=`.
    NotEquals,
}

/// One condition on one field. A field that an object lacks has the empty value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    /// Field label, e.g. `spec.nodeName`.
    pub field: String,
    /// The comparison.
    pub op: Operator,
    /// Unescaped value.
    pub value: String,
}

/// A conjunction of terms; none match everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selector {
    terms: Vec<Term>,
}

/// Why a field selector does not parse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A term without operator.
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    Term {
        /// The whole selector.
        selector: String,
        /// The part without operator.
        term: String,
    },
    /// A backslash in front of something that needs none.
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    /// A bare `=` or `,` in a value. Upstream prints the code point.
    #[error("invalid field selector: unescaped character in value: {}", u32::from(*.0))]
    Unescaped(char),
}

/// Escapes a value for use in a selector.
pub fn escape_value(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        if matches!(c, '\\' | ',' | '=') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn unescape_value(s: &str) -> Result<String, ParseError> {
    let mut out = String::with_capacity(s.len());
    let mut chars = s.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                Some(c) => return Err(ParseError::Escape(format!("\\{c}"))),
                None => return Err(ParseError::Escape("\\".to_owned())),
            },
            ',' | '=' => return Err(ParseError::Unescaped(c)),
            c => out.push(c),
        }
    }
    Ok(out)
}

/// Splits at commas that no backslash precedes.
fn split_terms(s: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (i, c) in s.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                parts.push(&s[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&s[start..]);
    parts
}

/// Splits at the first operator.
fn split_term(term: &str) -> Option<(&str, Operator, &str)> {
    term.char_indices().find_map(|(i, _)| {
        let rest = &term[i..];
        [("!=", Operator::NotEquals), ("==", Operator::Equals), ("=", Operator::Equals)]
            .into_iter()
            .find_map(|(text, op)| rest.strip_prefix(text).map(|value| (&term[..i], op, value)))
    })
}

impl Selector {
    /// Matches every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// A selector of the given terms, in the given order.
    pub fn new(terms: Vec<Term>) -> Self {
        Self { terms }
    }

    /// `field=value`.
    pub fn equals(field: &str, value: &str) -> Self {
        Self::new(vec![Term { field: field.to_owned(), op: Operator::Equals, value: value.to_owned() }])
    }

    /// Parses the string form; terms without text, or without field and value, are skipped.
    ///
    /// # Errors
    /// A term without operator, or a value that is not escaped properly.
    pub fn parse(s: &str) -> Result<Self, ParseError> {
        let mut parts = split_terms(s);
        parts.sort_unstable();
        let mut terms = Vec::new();
        for part in parts.into_iter().filter(|p| !p.is_empty()) {
            let (field, op, value) = split_term(part)
                .ok_or_else(|| ParseError::Term { selector: s.to_owned(), term: part.to_owned() })?;
            let value = unescape_value(value)?;
            if !(field.is_empty() && value.is_empty()) {
                terms.push(Term { field: field.to_owned(), op, value });
            }
        }
        Ok(Self { terms })
    }

    /// The terms.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Whether every object matches.
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether the fields that `get` looks up fulfil every term.
    pub fn matches<'a>(&self, get: impl Fn(&str) -> &'a str) -> bool {
        self.terms.iter().all(|t| (get(&t.field) == t.value) == (t.op == Operator::Equals))
    }

    /// The value that the field must have to match, if a term says so.
    pub fn requires_exact(&self, field: &str) -> Option<&str> {
        let term = self.terms.iter().find(|t| t.field == field && t.op == Operator::Equals)?;
        Some(&term.value)
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, term) in self.terms.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let op = if term.op == Operator::Equals { "=" } else { "!=" };
            write!(f, "{comma}{}{op}{}", term.field, escape_value(&term.value))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses() {
        let s = Selector::parse("b!=2,,a==1,c=\\,\\=\\\\").unwrap();
        assert_eq!(s.to_string(), "a=1,b!=2,c=\\,\\=\\\\");
        assert_eq!(s.terms()[2].value, ",=\\");
        assert_eq!(s.requires_exact("a"), Some("1"));
        assert_eq!(s.requires_exact("b"), None);
        assert!(s.matches(|f| match f {
            "a" => "1",
            "c" => ",=\\",
            _ => "",
        }));
        assert!(!s.matches(|_| ""));
        assert!(Selector::parse("").unwrap().is_everything());
        assert_eq!(Selector::parse("a=").unwrap(), Selector::equals("a", ""));
    }

    #[test]
    fn rejects_invalid_selectors() {
        let err = |s: &str| Selector::parse(s).unwrap_err().to_string();
        assert_eq!(err("a,b=1"), "invalid selector: 'a,b=1'; can't understand 'a'");
        assert_eq!(err("a=b=c"), "invalid field selector: unescaped character in value: 61");
        assert_eq!(err("a=\\x"), "invalid field selector: invalid escape sequence: \\x");
        assert_eq!(err("a=\\"), "invalid field selector: invalid escape sequence: \\");
    }

    proptest! {
        #[test]
        fn parses_what_it_prints(terms in prop::collection::vec(("[a-z.]{1,8}", any::<bool>(), "[a-z,=\\\\ é]{0,8}"), 0..5)) {
            let terms: Vec<Term> = terms.into_iter().map(|(field, eq, value)| Term {
                field, op: if eq { Operator::Equals } else { Operator::NotEquals }, value,
            }).collect();
            let text = Selector::new(terms.clone()).to_string();
            let parsed = Selector::parse(&text).unwrap();
            let again = Selector::parse(&parsed.to_string()).unwrap();
            prop_assert_eq!(&parsed, &again);
            prop_assert_eq!(parsed.terms().len(), terms.len());
            prop_assert!(terms.iter().all(|t| parsed.terms().contains(t)));
        }
    }
}
