//! Files of volumes that containers take environment variables from (`fileKeyRef`): a subset of a shell's syntax, as upstream's
//! `ParseEnv` reads it.
//!
//! Invariant: a value is what is between single quotes, literally; nothing is expanded.

/// The longest file that is read, in bytes. A container writes it, and the kubelet keeps it in memory.
pub const LONGEST_FILE: u64 = 1 << 20;

/// Why a file cannot be read as variables. Lines count from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvFileError {
    /// A line that is no assignment.
    #[error("invalid environment variable format at line {line}: {problem}")]
    Line {
        /// Which line.
        line: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A value without an end.
    #[error("invalid environment variable format starting at line {0}: unclosed single quote")]
    Unclosed(usize),
}

const BLANK: [char; 2] = [' ', '\t'];

/// The value of a variable: empty if it is absent, or if blanks follow its `=`. Lines after it are not looked at.
///
/// # Errors
/// For a line before the variable's end that is no assignment, comment or blank.
pub fn value(text: &str, name: &str) -> Result<String, EnvFileError> {
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let wrong = |problem| Err(EnvFileError::Line { line: index + 1, problem });
        let line = line.trim_start_matches(BLANK);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((variable, assigned)) = line.split_once('=') else { return wrong("missing '='") };
        if variable.trim_end_matches(BLANK).is_empty() {
            return wrong("empty variable name");
        }
        if variable.ends_with(BLANK) {
            return wrong("whitespace before '=' is not allowed");
        }
        if assigned.starts_with(BLANK) {
            if variable == name {
                return Ok(String::new());
            }
            continue;
        }
        let Some(mut rest) = assigned.strip_prefix('\'') else {
            return wrong("value must be enclosed in single quotes");
        };
        let (mut found, mut last) = (String::new(), index);
        let after = loop {
            if let Some((inside, after)) = rest.split_once('\'') {
                found.push_str(inside);
                break after.trim_start_matches(BLANK);
            }
            found.push_str(rest);
            found.push('\n');
            (last, rest) = lines.next().ok_or(EnvFileError::Unclosed(index + 1))?;
        };
        if !(after.is_empty() || after.starts_with('#')) {
            let problem = "unexpected content after closing quote";
            return Err(EnvFileError::Line { line: last + 1, problem });
        }
        if variable == name {
            return Ok(found);
        }
    }
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_literal_and_may_have_lines() {
        let text = "\n# comment\n  A='1'\r\nB='x $HOME \\n' # said\nC='one\ntwo'\nD= 'no'\nA='2'\nlast";
        let shown: Vec<_> =
            ["A", "B", "C", "D", "E"].iter().map(|name| format!("{name}: {:?}", value(text, name))).collect();
        expect_test::expect![[r#"
            A: Ok("1")
            B: Ok("x $HOME \\n")
            C: Ok("one\ntwo")
            D: Ok("")
            E: Err(Line { line: 9, problem: "missing '='" })"#]]
        .assert_eq(&shown.join("\n"));
    }

    #[test]
    fn what_is_no_assignment_is_refused_with_its_line() {
        let texts =
            ["A", "='1'", "A ='1'", "A=1", "A=\"1\"", "A=''\nA", "B='1' 2", "B='1\n\n2", "A='1\n2' 3"];
        let shown: Vec<_> = texts
            .iter()
            .map(|text| value(text, "X").map_or_else(|error| error.to_string(), |value| format!("{value:?}")))
            .collect();
        expect_test::expect![[r#"
            invalid environment variable format at line 1: missing '='
            invalid environment variable format at line 1: empty variable name
            invalid environment variable format at line 1: whitespace before '=' is not allowed
            invalid environment variable format at line 1: value must be enclosed in single quotes
            invalid environment variable format at line 1: value must be enclosed in single quotes
            invalid environment variable format at line 2: missing '='
            invalid environment variable format at line 1: unexpected content after closing quote
            invalid environment variable format starting at line 1: unclosed single quote
            invalid environment variable format at line 2: unexpected content after closing quote"#]]
        .assert_eq(&shown.join("\n"));
    }
}
