//! A strict reader of Prometheus' text format 0.0.4, for tests of pages of metrics.
//!
//! Source: the format's description in Prometheus' documentation, and what common's `expfmt` parser refuses.

use std::collections::{BTreeMap, BTreeSet};

/// A series' labels by name.
pub type Labels = BTreeMap<String, String>;

/// A sample: the end of its name after the family's, its labels and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// `""`, or `_bucket`, `_sum` and `_count` of a histogram.
    pub suffix: String,
    /// Its labels.
    pub labels: Labels,
    /// Its value.
    pub value: f64,
}

/// A family.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Family {
    /// Its text of help.
    pub help: String,
    /// `counter`, `gauge`, `histogram`, `untyped`.
    pub kind: String,
    /// Its samples in the page's order.
    pub samples: Vec<Sample>,
}

impl Family {
    /// The sum of the samples (of a histogram, of its counts) that have these labels.
    pub fn sum(&self, labels: &[(&str, &str)]) -> f64 {
        let suffix = if self.kind == "histogram" { "_count" } else { "" };
        let matches = |s: &&Sample| {
            s.suffix == suffix && labels.iter().all(|(n, v)| s.labels.get(*n).is_some_and(|own| own == v))
        };
        self.samples.iter().filter(matches).map(|s| s.value).sum()
    }
}

/// The families of a page by name.
///
/// # Errors
/// The first line that breaks the format, or a histogram that is none.
pub fn parse(page: &str) -> Result<BTreeMap<String, Family>, String> {
    let mut families = BTreeMap::<String, Family>::new();
    let mut current = String::new();
    if !page.ends_with('\n') {
        return Err("the page does not end with a line's end".into());
    }
    for line in page.lines() {
        let wrong = |why: &str| format!("{why}: {line}");
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (word, name, rest) =
                (words.next(), words.next().unwrap_or_default(), words.next().unwrap_or_default());
            match word {
                Some("HELP") if families.contains_key(name) => return Err(wrong("a family comes twice")),
                Some("HELP") if is_name(name, true) => {
                    name.clone_into(&mut current);
                    let family = Family {
                        help: unescape(rest, false).ok_or_else(|| wrong("bad escape"))?,
                        ..Family::default()
                    };
                    families.insert(current.clone(), family);
                }
                Some("TYPE") if name == current => {
                    let kinds = ["counter", "gauge", "histogram", "summary", "untyped"];
                    if !kinds.contains(&rest) {
                        return Err(wrong("unknown type"));
                    }
                    families.entry(current.clone()).and_modify(|family| rest.clone_into(&mut family.kind));
                }
                _ => return Err(wrong("not a comment of this format")),
            }
            continue;
        }
        let family = families.get_mut(&current).filter(|f| !f.kind.is_empty());
        let family = family.ok_or_else(|| wrong("a sample without a type"))?;
        family.samples.push(sample(line, &current, &family.kind).map_err(|why| wrong(&why))?);
    }
    for (name, family) in &families {
        check(family).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(families)
}

fn is_name(name: &str, metric: bool) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_' || (metric && c == ':');
    name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit())
}

/// `None` for an escape that is not one.
fn unescape(text: &str, quotes: bool) -> Option<String> {
    let (mut plain, mut chars) = (String::new(), text.chars());
    while let Some(c) = chars.next() {
        plain.push(match c {
            '\\' => match chars.next()? {
                '\\' => '\\',
                'n' => '\n',
                '"' if quotes => '"',
                _ => return None,
            },
            other => other,
        });
    }
    Some(plain)
}

fn sample(line: &str, family: &str, kind: &str) -> Result<Sample, String> {
    let rest = line.strip_prefix(family).ok_or("a sample of another family")?;
    let at = rest.find(['{', ' ']).ok_or("no value")?;
    let (suffix, mut rest) = rest.split_at(at);
    let known = if kind == "histogram" { &["_bucket", "_sum", "_count"][..] } else { &[""] };
    if !known.contains(&suffix) {
        return Err(format!("{suffix:?} is no suffix of a {kind}"));
    }
    let mut labels = Labels::new();
    if let Some(mut inner) = rest.strip_prefix('{') {
        loop {
            let (name, quoted) = inner.split_once("=\"").ok_or("a label without a value")?;
            let end = end_of_quoted(quoted).ok_or("a label without an end")?;
            let value = unescape(&quoted[..end], true).ok_or("a bad escape")?;
            if !is_name(name, false) || labels.insert(name.to_owned(), value).is_some() {
                return Err(format!("the label {name}"));
            }
            let after = &quoted[end + 1..];
            match after.strip_prefix(',') {
                Some(next) => inner = next,
                None => {
                    rest = after.strip_prefix('}').ok_or("labels without an end")?;
                    break;
                }
            }
        }
    }
    let mut words = rest.strip_prefix(' ').ok_or("no space before the value")?.split(' ');
    let value = words.next().unwrap_or_default();
    let value = value.parse::<f64>().map_err(|_| format!("the value {value}"))?;
    if let Some(time) = words.next() {
        time.parse::<i64>().map_err(|_| format!("the time {time}"))?;
    }
    match words.next() {
        None => Ok(Sample { suffix: suffix.to_owned(), labels, value }),
        Some(more) => Err(format!("{more} after the value")),
    }
}

fn end_of_quoted(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

/// Series are there once; buckets are in order, do not shrink, and the last is all.
fn check(family: &Family) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for sample in &family.samples {
        if !seen.insert((&sample.suffix, &sample.labels)) {
            return Err(format!("{sample:?} comes twice"));
        }
    }
    if family.samples.is_empty() {
        return Err("no samples".into());
    }
    if family.kind != "histogram" {
        return Ok(());
    }
    let mut series = BTreeMap::<Labels, (Vec<(f64, f64)>, Option<f64>, bool)>::new();
    for sample in &family.samples {
        let mut labels = sample.labels.clone();
        let bound = labels.remove("le");
        let (buckets, count, sum) = series.entry(labels).or_default();
        match (sample.suffix.as_str(), bound) {
            ("_bucket", Some(bound)) => {
                buckets.push((bound.parse().map_err(|_| format!("the bound {bound}"))?, sample.value));
            }
            ("_count", None) => *count = Some(sample.value),
            ("_sum", None) => *sum = true,
            _ => return Err(format!("{sample:?} is no part of a histogram")),
        }
    }
    for (labels, (buckets, count, sum)) in &series {
        let grows = buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        let last = buckets.last().filter(|(bound, _)| *bound == f64::INFINITY);
        if !grows || !sum || last.is_none_or(|(_, all)| Some(*all) != *count) {
            return Err(format!("{labels:?} is no histogram: {buckets:?}, {count:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_a_page() {
        let page = "# HELP a Help \\\\ of\\nit\n# TYPE a counter\na{b=\"x\\\"\\n, }\",c=\"\"} 1e+06 17\na 2\n\
                    # HELP h H\n# TYPE h histogram\nh_bucket{le=\"0.5\"} 1\nh_bucket{le=\"+Inf\"} 3\nh_sum 4\nh_count 3\n";
        let found = parse(page).unwrap();
        assert_eq!(found["a"].help, "Help \\ of\nit");
        assert_eq!(found["a"].samples[0].labels["b"], "x\"\n, }");
        assert_eq!(
            (found["a"].sum(&[]), found["a"].sum(&[("c", "")]), found["h"].sum(&[])),
            (1_000_002.0, 1e6, 3.0)
        );
    }

    #[test]
    fn what_is_not_of_the_format_is_refused() {
        let head = "# HELP a A\n# TYPE a counter\n";
        for wrong in [
            "a 1",
            "a 1\n",
            "# HELP a A\na 1\n",
            "# TYPE a counter\na 1\n",
            "# HELP a A\n# TYPE a count\na 1\n",
            &format!("{head}a_total 1\n"),
            &format!("{head}a{{b=\"c\"}}\n"),
            &format!("{head}a{{b=\"\\x\"}} 1\n"),
            &format!("{head}a{{b=\"c\",}} 1\n"),
            &format!("{head}a 1 # {{}} 2\n"),
            &format!("{head}a 1\na 1\n"),
            &format!("{head}a 1\n# EOF\n"),
            &format!("{head}a 1\n{head}a{{b=\"c\"}} 1\n"),
            head,
            "# HELP h H\n# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_sum 1\nh_count 1\n",
            "# HELP h H\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
