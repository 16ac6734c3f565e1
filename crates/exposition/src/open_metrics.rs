//! Reads what the metrics library writes, which is the OpenMetrics text format, a family at a time.
//!
//! Invariant: what was registered comes back as it was: the `_total` that the library adds to a counter's name and the full stop
//! that it adds to a text of help are taken off.

use crate::{number::number, page::Written};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Labels of a series, but for `le`: names, and values as they are escaped.
type Labels<'a> = Vec<(&'a str, &'a str)>;

/// Samples of a series.
#[derive(Debug, Default)]
struct Series<'a> {
    /// A histogram's: bounds and cumulative counts.
    buckets: Vec<(&'a str, &'a str)>,
    /// The others: the end of the name after the family's, and the value.
    samples: Vec<(&'a str, &'a str)>,
}

/// A family that is being read.
struct Read<'a> {
    name: &'a str,
    help: &'a str,
    kind: &'a str,
    /// In the order of the labels' values.
    series: BTreeMap<(Vec<&'a str>, Labels<'a>), Series<'a>>,
}

/// Shows the families of a text to `found`.
pub(crate) fn read(text: &str, mut found: impl FnMut(&str, Written)) {
    let mut family: Option<Read<'_>> = None;
    for line in lines(text) {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            if let Some(family) = family.take() {
                found(family.name, family.written());
            }
            let help = help.strip_suffix('.').unwrap_or(help);
            family = Some(Read { name, help, kind: "untyped", series: BTreeMap::new() });
            continue;
        }
        let Some(family) = &mut family else { continue };
        if let Some(kind) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split(' ').nth(1)) {
            family.kind = kind;
        } else if !line.starts_with('#') {
            family.sample(line);
        }
    }
    if let Some(family) = family {
        found(family.name, family.written());
    }
}

/// Lines of a text, where a text of help may have several.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = match rest.starts_with("# HELP ") {
            true => rest.find("\n# TYPE "),
            false => rest.find('\n'),
        };
        let (line, others) = rest.split_at(end.unwrap_or(rest.len()));
        rest = others.strip_prefix('\n').unwrap_or(others);
        Some(line)
    })
}

impl<'a> Read<'a> {
    fn sample(&mut self, line: &'a str) {
        let Some(rest) = line.strip_prefix(self.name) else { return };
        let at = rest.find(['{', ' ']).unwrap_or(rest.len());
        let (suffix, rest) = rest.split_at(at);
        let (mut labels, value) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest),
            None => (vec![], rest),
        };
        let value = value.trim_start();
        let bound = labels.iter().position(|(name, _)| *name == "le").map(|at| labels.remove(at).1);
        labels.sort_unstable();
        let key = (labels.iter().map(|(_, value)| *value).collect(), labels);
        let series = self.series.entry(key).or_default();
        match (suffix, bound) {
            ("_bucket", Some(bound)) => series.buckets.push((bound, value)),
            ("_total", _) if self.kind == "counter" => series.samples.push(("", value)),
            _ => series.samples.push((suffix, value)),
        }
    }

    fn written(self) -> Written {
        let mut text = String::new();
        let shown = |value: &str| value.parse().map_or_else(|_| value.to_owned(), number);
        for ((_, labels), series) in &self.series {
            let pairs: Vec<String> =
                labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
            let (own, name) = (pairs.join(","), self.name);
            let comma = if own.is_empty() { "" } else { "," };
            // Writing to a String cannot fail.
            for (bound, count) in &series.buckets {
                let bound = shown(bound);
                let _ = writeln!(text, "{name}_bucket{{{own}{comma}le=\"{bound}\"}} {}", shown(count));
            }
            let braced = if own.is_empty() { own } else { format!("{{{own}}}") };
            for (suffix, value) in &series.samples {
                let _ = writeln!(text, "{name}{suffix}{braced} {}", shown(value));
            }
        }
        let kind = if self.kind == "unknown" { "untyped" } else { self.kind };
        Written { help: self.help.to_owned(), kind: kind.to_owned(), series: text }
    }
}

/// The labels after an opening brace, and what follows the closing one.
fn labels(mut rest: &str) -> (Labels<'_>, &str) {
    let mut found = vec![];
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(after) = rest.strip_prefix('}') {
            return (found, after);
        }
        let Some((name, quoted)) = rest.split_once("=\"") else { return (found, rest) };
        let mut escaped = false;
        let end = quoted.bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        });
        let Some(end) = end else { return (found, "") };
        found.push((name, &quoted[..end]));
        rest = &quoted[end + 1..];
    }
}
