//! Prometheus' text format.
//!
//! Invariants: a family without samples is not printed; values of labels are escaped; numbers are written as Go's client library does.

use std::fmt::Write;

/// A family of metrics.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Family {
    /// Its name.
    pub name: &'static str,
    /// `counter`, `gauge`, `histogram`.
    pub kind: &'static str,
    /// What it is, after its stability where upstream says that.
    pub help: &'static str,
}

impl Family {
    /// A family of counters.
    pub const fn counter(name: &'static str, help: &'static str) -> Family {
        Family { name, kind: "counter", help }
    }

    /// A family of gauges.
    pub const fn gauge(name: &'static str, help: &'static str) -> Family {
        Family { name, kind: "gauge", help }
    }

    /// A family of histograms.
    pub const fn histogram(name: &'static str, help: &'static str) -> Family {
        Family { name, kind: "histogram", help }
    }
}

/// A sample of a family.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    /// As [`labels`] writes them.
    pub labels: String,
    /// Its value.
    pub value: f64,
    /// When it was read, in milliseconds since the epoch.
    pub at: Option<i64>,
}

/// Labels in braces; nothing for none.
pub(crate) fn labels(all: &[(&str, &str)]) -> String {
    let escaped = |value: &str| value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    let pairs: Vec<String> =
        all.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) }
}

/// A page of metrics.
#[derive(Debug, Default)]
pub(crate) struct Page(pub String);

impl Page {
    /// Adds a family.
    pub fn family(&mut self, family: Family, samples: impl IntoIterator<Item = Sample>) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        let Family { name, kind, help } = family;
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for Sample { labels, value, at } in samples {
            let at = at.map(|at| format!(" {at}")).unwrap_or_default();
            let _ = writeln!(self.0, "{name}{labels} {}{at}", number(value));
        }
    }

    /// Adds a histogram: labels, how many are in each bucket alone, how many there are in all, and their sum.
    pub fn histogram<'a>(
        &mut self,
        family: Family,
        bounds: &[f64],
        all: impl IntoIterator<Item = (&'a str, &'a [u64], u64, f64)>,
    ) {
        let mut all = all.into_iter().peekable();
        if all.peek().is_none() {
            return;
        }
        let Family { name, kind, help } = family;
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, buckets, count, sum) in all {
            let own = labels.trim_start_matches('{').trim_end_matches('}');
            let own = if own.is_empty() { String::new() } else { format!("{own},") };
            let mut below = 0;
            for (bound, found) in bounds.iter().zip(buckets) {
                below += found;
                let _ = writeln!(self.0, "{name}_bucket{{{own}le=\"{}\"}} {below}", number(*bound));
            }
            let _ = writeln!(self.0, "{name}_bucket{{{own}le=\"+Inf\"}} {count}");
            let _ = writeln!(self.0, "{name}_sum{labels} {}", number(sum));
            let _ = writeln!(self.0, "{name}_count{labels} {count}");
        }
    }

    /// Adds a family of one sample without labels.
    pub fn single(&mut self, family: Family, value: f64) {
        self.family(family, [Sample { labels: String::new(), value, at: None }]);
    }
}

/// A number as Go's `strconv.FormatFloat(value, 'g', -1, 64)` writes it.
fn number(value: f64) -> String {
    let text = format!("{value:e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&exponent) {
        return value.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let all = [0.0, 1.0, 0.25, 100_000.0, 999_999.5, 1_000_000.0, 1_763_765_123.5, 0.0001, 0.000_012];
        let shown: Vec<String> = all.iter().map(|n| number(*n)).collect();
        let wanted = "0 1 0.25 100000 999999.5 1e+06 1.7637651235e+09 0.0001 1.2e-05";
        assert_eq!(shown.join(" "), wanted);
    }

    #[test]
    fn label_values_are_escaped() {
        assert_eq!(labels(&[("a", "b"), ("c", "\"\\\n")]), r#"{a="b",c="\"\\\n"}"#);
        assert_eq!(labels(&[]), "");
    }
}
