//! Regular expressions in Go's syntax (RE2), rewritten for the `regex` crate, which reads nearly the same language.

/// Go's `\d \w \s \b` are ASCII, Rust's are Unicode; `\z` is the same, `\Q..\E` is unknown to Rust; Go reads a `{` that
/// opens no repetition as a literal.
pub fn go_to_rust(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + 8);
    let mut rest = source;
    let mut in_class = false;
    while let Some(c) = rest.chars().next() {
        let mut used = c.len_utf8();
        match c {
            '\\' => {
                let next = rest[1..].chars().next();
                used += next.map_or(0, char::len_utf8);
                match next {
                    Some('Q') => {
                        let body = &rest[2..];
                        let (literal, after) = body.split_once("\\E").unwrap_or((body, ""));
                        out.push_str(&escape(literal));
                        rest = after;
                        continue;
                    }
                    Some(d @ ('d' | 'D' | 'w' | 'W' | 's' | 'S')) => out.push_str(ascii_class(d, in_class)),
                    Some(d @ ('b' | 'B')) => {
                        out.push_str("(?-u:\\");
                        out.push(d);
                        out.push(')');
                    }
                    // Classes by name: \p{Greek}, \x{10ffff}.
                    Some('p' | 'P' | 'x') if rest[2..].starts_with('{') => {
                        used = rest.find('}').map_or(rest.len(), |i| i + 1);
                        out.push_str(&rest[..used]);
                    }
                    // Escapes of plain characters that Rust would reject.
                    Some(d) if d.is_ascii_punctuation() => out.push_str(&escape(d.encode_utf8(&mut [0; 4]))),
                    Some(d) => out.extend(['\\', d]),
                    None => out.push('\\'),
                }
            }
            '[' if in_class && !rest.starts_with("[:") => out.push_str("\\["),
            '[' if !in_class => {
                in_class = true;
                out.push('[');
                // A bracket right after the opening is a literal.
                for literal in ["[^]", "[]"] {
                    if rest.starts_with(literal) {
                        out.push_str(if literal == "[^]" { "^\\]" } else { "\\]" });
                        used = literal.len();
                        break;
                    }
                }
            }
            '[' => {
                let end = rest.find(":]").map_or(1, |i| i + 2);
                out.push_str(&rest[..end]);
                used = end;
            }
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            // Set operations of Rust's classes.
            '&' | '~' if in_class => out.extend(['\\', c]),
            '-' if in_class && rest.starts_with("--") => out.push_str("\\-"),
            '{' if !in_class && !opens_repetition(rest) => out.push_str("\\{"),
            c => out.push(c),
        }
        rest = &rest[used..];
    }
    out
}

fn ascii_class(d: char, in_class: bool) -> &'static str {
    match (d, in_class) {
        ('d', false) => "[0-9]",
        ('D', false) => "[^0-9]",
        ('w', false) => "[0-9A-Za-z_]",
        ('W', false) => "[^0-9A-Za-z_]",
        ('s', false) => "[\\t\\n\\f\\r ]",
        ('S', false) => "[^\\t\\n\\f\\r ]",
        ('d', true) => "0-9",
        ('w', true) => "0-9A-Za-z_",
        ('s', true) => "\\t\\n\\f\\r ",
        ('D', true) => "[^0-9]",
        ('W', true) => "[^0-9A-Za-z_]",
        _ => "[^\\t\\n\\f\\r ]",
    }
}

/// "{2}", "{2,}" or "{2,3}" at the start of `text`.
fn opens_repetition(text: &str) -> bool {
    let Some((inside, _)) = text.get(1..).and_then(|t| t.split_once('}')) else { return false };
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    match inside.split_once(',') {
        Some((a, b)) => !a.is_empty() && digits(a) && digits(b),
        None => !inside.is_empty() && digits(inside),
    }
}

/// A text that matches itself.
fn escape(literal: &str) -> String {
    let mut out = String::with_capacity(literal.len());
    for c in literal.chars() {
        if "\\.+*?()|[]{}^$#&-~".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::go_to_rust;

    #[test]
    fn what_rust_reads_otherwise_is_rewritten() {
        for (go, rust) in [
            (r"\d+\.\w", r"[0-9]+\.[0-9A-Za-z_]"),
            (r"\Qa.b\E+", r"a\.b+"),
            (r"[[a&&b]", r"[\[a\&\&b]"),
            (r"a{,3}\/", r"a\{,3}/"),
            (r"\bx{2,3}", r"(?-u:\b)x{2,3}"),
        ] {
            assert_eq!(go_to_rust(go), rust, "{go}");
        }
    }
}
