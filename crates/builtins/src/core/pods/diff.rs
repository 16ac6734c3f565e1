//! The difference between two specs as a unified diff of their JSON, which some messages show.

use kaji_meta::json;
use serde_json::Value;

const CONTEXT: usize = 3;
/// The size of the comparison table from which on a difference is shown as one replacement.
const MAX_TABLE: usize = 1 << 22;

/// One line of an edit script: kept, removed or added.
#[derive(Clone, Copy, PartialEq)]
enum Edit<'a> {
    Keep(&'a str),
    Remove(&'a str),
    Add(&'a str),
}

/// The longest common subsequence of what is between the common ends, by dynamic programming.
fn edits<'a>(a: &[&'a str], b: &[&'a str]) -> Vec<Edit<'a>> {
    let head = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let tail = a[head..].iter().rev().zip(b[head..].iter().rev()).take_while(|(x, y)| x == y).count();
    let (x, y) = (&a[head..a.len() - tail], &b[head..b.len() - tail]);
    let mut out: Vec<Edit<'a>> = a[..head].iter().map(|l| Edit::Keep(l)).collect();
    if x.len().saturating_mul(y.len()) > MAX_TABLE {
        out.extend(x.iter().map(|l| Edit::Remove(l)));
        out.extend(y.iter().map(|l| Edit::Add(l)));
    } else {
        let width = y.len() + 1;
        let mut table = vec![0u32; (x.len() + 1) * width];
        for i in (0..x.len()).rev() {
            for j in (0..y.len()).rev() {
                table[i * width + j] = if x[i] == y[j] {
                    table[(i + 1) * width + j + 1] + 1
                } else {
                    table[(i + 1) * width + j].max(table[i * width + j + 1])
                };
            }
        }
        let (mut i, mut j) = (0, 0);
        while i < x.len() || j < y.len() {
            if i < x.len() && j < y.len() && x[i] == y[j] {
                out.push(Edit::Keep(x[i]));
                (i, j) = (i + 1, j + 1);
            } else if i < x.len() && (j == y.len() || table[(i + 1) * width + j] >= table[i * width + j + 1])
            {
                out.push(Edit::Remove(x[i]));
                i += 1;
            } else {
                out.push(Edit::Add(y[j]));
                j += 1;
            }
        }
    }
    out.extend(a[a.len() - tail..].iter().map(|l| Edit::Keep(l)));
    out
}

fn range(start: usize, len: usize) -> String {
    match len {
        0 => format!("{start},0"),
        1 => format!("{}", start + 1),
        n => format!("{},{n}", start + 1),
    }
}

fn old_lines(edits: &[Edit<'_>]) -> usize {
    edits.iter().filter(|e| !matches!(e, Edit::Add(_))).count()
}

fn new_lines(edits: &[Edit<'_>]) -> usize {
    edits.iter().filter(|e| !matches!(e, Edit::Remove(_))).count()
}

/// JSON, indented by a space for each level.
pub fn indented(compact: &str) -> String {
    // Indenting adds blanks alone.
    String::from_utf8(json::indent(compact.as_bytes(), 1)).unwrap_or_default()
}

/// A unified diff with three lines of context; empty if the values are equal.
pub fn unified(old: &Value, new: &Value) -> String {
    unified_texts(&indented(&old.to_string()), &indented(&new.to_string()))
}

/// The same of two texts.
pub fn unified_texts(old: &str, new: &str) -> String {
    let (a, b): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let edits = edits(&a, &b);
    let changed: Vec<usize> = (0..edits.len()).filter(|i| !matches!(edits[*i], Edit::Keep(_))).collect();
    let mut out = String::new();
    let mut at = 0;
    while at < changed.len() {
        let start = changed[at].saturating_sub(CONTEXT);
        let mut last = changed[at];
        while at < changed.len() && changed[at] <= last + 2 * CONTEXT + 1 {
            last = changed[at];
            at += 1;
        }
        let end = (last + CONTEXT + 1).min(edits.len());
        let (from, n) = (old_lines(&edits[..start]), old_lines(&edits[start..end]));
        let (to, m) = (new_lines(&edits[..start]), new_lines(&edits[start..end]));
        out.push_str(&format!("@@ -{} +{} @@\n", range(from, n), range(to, m)));
        for e in &edits[start..end] {
            let (sign, line) = match e {
                Edit::Keep(l) => (' ', l),
                Edit::Remove(l) => ('-', l),
                Edit::Add(l) => ('+', l),
            };
            out.push(sign);
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde::Serialize;
    use serde_json::json;

    #[test]
    fn indents_as_go_does() {
        let value = json!({"a": {}, "b": [], "c": [1, {"d": "x:\"{,\\"}], "e": null, "f": "\\"});
        let mut pretty = vec![];
        let format = serde_json::ser::PrettyFormatter::with_indent(b" ");
        value.serialize(&mut serde_json::Serializer::with_formatter(&mut pretty, format)).unwrap();
        assert_eq!(indented(&value.to_string()).as_bytes(), pretty);
    }

    #[test]
    fn shows_changed_lines_with_context() {
        let old =
            json!({"a": 1, "b": [1, 2, 3], "c": "x", "d": 4, "e": 5, "f": 6, "g": 7, "h": 8, "i": 9, "j": 1});
        let mut new = old.clone();
        new["a"] = 2.into();
        new["j"] = 2.into();
        assert_eq!(unified(&old, &old), "");
        expect![[r#"
            @@ -1,5 +1,5 @@
             {
            - "a": 1,
            + "a": 2,
              "b": [
               1,
               2,
            @@ -12,5 +12,5 @@
              "g": 7,
              "h": 8,
              "i": 9,
            - "j": 1
            + "j": 2
             }
        "#]]
        .assert_eq(&unified(&old, &new));
    }
}
