//! The prose of files that are not Rust: comments of scripts and of sources with C's comments, and the text of Markdown.
//!
//! Invariants: consecutive lines of a comment are one text, so that a phrase is found across a line break; commands, string
//! literals and code are no prose. The scanners know no language completely: what they take a regular expression for may
//! hide a comment, and never makes one of code.

/// The line on which a text begins, and the text.
pub type Text = (usize, String);

/// What finds the prose in a file of an extension; `None` for files without prose, and for Rust.
pub fn scanner(extension: &str) -> Option<fn(&str) -> Vec<Text>> {
    match extension {
        "md" => Some(markdown),
        "sh" | "py" | "yaml" | "yml" | "toml" | "service" | "ini" | "jq" => Some(hashes),
        "js" | "mjs" | "cjs" | "go" | "java" | "css" | "c" => Some(slashes),
        _ => None,
    }
}

/// Joins consecutive lines to texts.
#[derive(Default)]
struct Texts {
    done: Vec<Text>,
    open: Text,
}

impl Texts {
    fn line(&mut self, number: usize, text: &str) {
        if self.open.1.is_empty() {
            self.open.0 = number;
        }
        self.open.1.push_str(text.trim());
        self.open.1.push(' ');
    }

    fn end(&mut self) {
        let open = std::mem::take(&mut self.open);
        if !open.1.is_empty() {
            self.done.push(open);
        }
    }
}

/// The paragraphs of a Markdown file, outside of fenced code.
fn markdown(text: &str) -> Vec<Text> {
    let (mut texts, mut code) = (Texts::default(), false);
    for (index, line) in text.lines().enumerate() {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        if code || fence || line.trim().is_empty() {
            texts.end();
        } else {
            texts.line(index + 1, line);
        }
    }
    texts.end();
    texts.done
}

/// The comments that begin with `#` in a shell script, a Python, YAML or INI file, and docstrings.
pub fn hashes(text: &str) -> Vec<Text> {
    const DOCSTRING: &str = "\"\"\"";
    let (mut texts, mut docstring) = (Texts::default(), false);
    for (index, line) in text.lines().enumerate() {
        let quotes = line.matches(DOCSTRING).count();
        let is_prose = docstring || quotes > 0;
        docstring ^= quotes % 2 == 1;
        match if is_prose { Some(line) } else { hash_comment(line) } {
            Some(comment) if is_prose || line.trim_start().starts_with('#') => texts.line(index + 1, comment),
            Some(comment) => {
                texts.end();
                texts.line(index + 1, comment);
                texts.end();
            }
            None => texts.end(),
        }
    }
    texts.end();
    texts.done
}

/// The comment of a line: from a `#` at its begin, or after a blank and outside of quotes.
fn hash_comment(line: &str) -> Option<&str> {
    let (mut quote, mut after_blank) = (None, true);
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (None, '#') if after_blank => return Some(&line[at + 1..]),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
        after_blank = c.is_whitespace();
    }
    None
}

/// What a line has had so far.
#[derive(Clone, Copy, PartialEq)]
enum Line {
    Blank,
    Comment,
    Code,
}

/// The comments of a source with `//` and `/* */`: JavaScript, Go, Java, CSS, C.
fn slashes(text: &str) -> Vec<Text> {
    let mut texts = Texts::default();
    let (mut rest, mut number, mut line) = (text, 1, Line::Blank);
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            let length = rest.find('\n').unwrap_or(rest.len());
            if line == Line::Code {
                texts.end();
            } else {
                line = Line::Comment;
            }
            texts.line(number, &rest[2..length]);
            length
        } else if rest.starts_with("/*") {
            let length = rest.find("*/").map_or(rest.len(), |end| end + 2);
            texts.end();
            let lines = rest[..length].lines().map(|line| line.trim_matches(['/', '*', ' ', '\t']));
            lines.enumerate().for_each(|(index, line)| texts.line(number + index, line));
            texts.end();
            length
        } else if first == '\n' {
            // Only a comment that has its line for itself goes on in the next one.
            if line != Line::Comment {
                texts.end();
            }
            line = Line::Blank;
            1
        } else if first.is_whitespace() {
            first.len_utf8()
        } else {
            texts.end();
            line = Line::Code;
            if matches!(first, '"' | '\'' | '`') { literal(rest, first) } else { first.len_utf8() }
        };
        number += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    texts.end();
    texts.done
}

/// The length of a literal with its quotes. One in single or double quotes ends with its line at the latest.
fn literal(text: &str, quote: char) -> usize {
    let mut escaped = false;
    let end = text[1..].find(|c| {
        let ends = !escaped && (c == quote || (c == '\n' && quote != '`'));
        escaped = c == '\\' && !escaped;
        ends
    });
    // The line's end is a token of its own.
    end.map_or(text.len(), |end| if text[1 + end..].starts_with('\n') { 1 + end } else { end + 2 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(found: Vec<Text>) -> Vec<(usize, String)> {
        found.into_iter().map(|(line, text)| (line, text.trim_end().to_owned())).collect()
    }

    fn expected(all: &[(usize, &str)]) -> Vec<(usize, String)> {
        all.iter().map(|(line, text)| (*line, (*text).to_owned())).collect()
    }

    #[test]
    fn splits_markdown_into_paragraphs_without_code() {
        let text = "# A\n\none\ntwo\n\n```\ncode\n```\nthree\n";
        assert_eq!(texts(markdown(text)), expected(&[(1, "# A"), (3, "one two"), (9, "three")]));
    }

    #[test]
    fn finds_comments_of_scripts_and_docstrings() {
        let shell = "#!/bin/bash\n# a pod\n# name\necho x '# y' \"# z\" ${#n} # last\n\nkey: v#w # yaml\n";
        assert_eq!(texts(hashes(shell)), expected(&[(1, "!/bin/bash a pod name"), (4, "last"), (6, "yaml")]));
        let python = "x = '# y'\ndef f():\n    \"\"\"One\n    two\n    \"\"\"\n    return 1\n";
        assert_eq!(texts(hashes(python)), expected(&[(3, "\"\"\"One two \"\"\"")]));
    }

    #[test]
    fn finds_comments_with_slashes_outside_of_literals() {
        let text = "// one\n// two\nlet a = \"// no\"; // three\nlet b = '\\'//'; /* four\n * five */\n\
                    const c = `// no\n// no`;\n// six\n";
        assert_eq!(
            texts(slashes(text)),
            expected(&[(1, "one two"), (3, "three"), (4, "four five"), (8, "six")])
        );
        assert_eq!(texts(slashes("a = /'/;\n// after\n")), expected(&[(2, "after")]));
        assert_eq!(texts(slashes("f(); // one\n\n// two\n")), expected(&[(1, "one"), (3, "two")]));
        for text in ["\"", "'\\", "`", "/*", "//", "'ä\n"] {
            slashes(text);
        }
    }
}
