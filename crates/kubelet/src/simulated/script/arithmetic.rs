//! Integers of the shell's language: `$((a + 1))`, `expr`.

use super::NotUnderstood;

struct Reader<'a> {
    rest: &'a str,
    value: &'a dyn Fn(&str) -> String,
    depth: u32,
}

/// The value of an expression. `value` gives the text of a variable.
pub(super) fn evaluate(text: &str, value: &dyn Fn(&str) -> String) -> Result<i64, NotUnderstood> {
    let mut reader = Reader { rest: text, value, depth: 0 };
    let result = reader.sum();
    match result {
        Some(number) if reader.rest.trim().is_empty() => Ok(number),
        _ => Err(NotUnderstood::Syntax(format!("$(({text}))"))),
    }
}

impl Reader<'_> {
    fn operator(&mut self, operators: &[char]) -> Option<char> {
        let rest = self.rest.trim_start();
        let first = rest.chars().next().filter(|c| operators.contains(c))?;
        self.rest = &rest[1..];
        Some(first)
    }

    fn sum(&mut self) -> Option<i64> {
        let mut left = self.product()?;
        while let Some(operator) = self.operator(&['+', '-']) {
            let right = self.product()?;
            left = if operator == '+' { left.checked_add(right)? } else { left.checked_sub(right)? };
        }
        Some(left)
    }

    fn product(&mut self) -> Option<i64> {
        let mut left = self.factor()?;
        while let Some(operator) = self.operator(&['*', '/', '%']) {
            let right = self.factor()?;
            left = match operator {
                '*' => left.checked_mul(right)?,
                '/' => left.checked_div(right)?,
                _ => left.checked_rem(right)?,
            };
        }
        Some(left)
    }

    fn factor(&mut self) -> Option<i64> {
        self.depth += 1;
        if self.depth > 200 {
            return None;
        }
        if self.operator(&['-']).is_some() {
            return self.factor()?.checked_neg();
        }
        if self.operator(&['(']).is_some() {
            let inside = self.sum()?;
            self.operator(&[')'])?;
            return Some(inside);
        }
        let rest = self.rest.trim_start();
        let rest = rest.strip_prefix('$').unwrap_or(rest);
        let rest = rest.strip_prefix('{').unwrap_or(rest);
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (word, rest) = rest.split_at(end);
        self.rest = rest.strip_prefix('}').unwrap_or(rest);
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return word.parse().ok();
        }
        let text = super::words::is_name(word).then(|| (self.value)(word))?;
        if text.is_empty() { Some(0) } else { text.trim().parse().ok() }
    }
}
