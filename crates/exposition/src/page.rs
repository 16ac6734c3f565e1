//! A page: families by name, from registries and from samples.

use crate::{number::number, open_metrics};
use prometheus_client::{encoding::text, registry::Registry};
use std::{borrow::Cow, collections::BTreeMap, fmt::Write};

/// A family of metrics.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// `counter`, `gauge`, `histogram`.
    pub kind: &'static str,
    /// What it is, after its stability where upstream says that.
    pub help: &'static str,
}

impl Family {
    /// A family of counters.
    #[must_use]
    pub const fn counter(name: &'static str, help: &'static str) -> Family {
        Family { name, kind: "counter", help }
    }

    /// A family of gauges.
    #[must_use]
    pub const fn gauge(name: &'static str, help: &'static str) -> Family {
        Family { name, kind: "gauge", help }
    }

    /// A family of histograms.
    #[must_use]
    pub const fn histogram(name: &'static str, help: &'static str) -> Family {
        Family { name, kind: "histogram", help }
    }
}

/// A sample of a family.
#[derive(Debug, Clone)]
pub struct Sample {
    /// As [`labels`] writes them.
    pub labels: String,
    /// Its value.
    pub value: f64,
    /// When it was read, in milliseconds since the epoch.
    pub at: Option<i64>,
}

impl Sample {
    /// A value with these labels.
    #[must_use]
    pub fn new(all: &[(&str, &str)], value: f64) -> Sample {
        Sample { labels: labels(all), value, at: None }
    }
}

/// Labels in braces; nothing for none.
#[must_use]
pub fn labels(all: &[(&str, &str)]) -> String {
    let escaped = |value: &str| value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    let pairs: Vec<String> =
        all.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) }
}

/// A family with its series, as text.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub help: String,
    pub kind: String,
    pub series: String,
}

/// A page of metrics.
#[derive(Debug, Default)]
pub struct Page(BTreeMap<Cow<'static, str>, Written>);

impl Page {
    /// Adds the families of a registry.
    pub fn registry(&mut self, registry: &Registry) {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = text::encode_registry(&mut text, registry);
        open_metrics::read(&text, |name, written| {
            // A family that several parts of a process register is one family.
            let family = self.0.entry(Cow::Owned(name.to_owned())).or_default();
            if family.kind.is_empty() {
                *family = written;
            } else {
                family.series += &written.series;
            }
        });
    }

    fn of(&mut self, family: Family) -> (&'static str, &mut String) {
        let Family { name, kind, help } = family;
        let written = self.0.entry(Cow::Borrowed(name)).or_default();
        (written.help, written.kind) = (help.to_owned(), kind.to_owned());
        (name, &mut written.series)
    }

    /// Adds a family.
    pub fn family(&mut self, family: Family, samples: impl IntoIterator<Item = Sample>) {
        let (name, text) = self.of(family);
        for Sample { labels, value, at } in samples {
            let at = at.map(|at| format!(" {at}")).unwrap_or_default();
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name}{labels} {}{at}", number(value));
        }
    }

    /// Adds a histogram: labels, how many are in each bucket alone, how many there are in all, and their sum.
    pub fn histogram<'a>(
        &mut self,
        family: Family,
        bounds: &[f64],
        all: impl IntoIterator<Item = (&'a str, &'a [u64], u64, f64)>,
    ) {
        let (name, text) = self.of(family);
        for (labels, buckets, count, sum) in all {
            let own = labels.trim_start_matches('{').trim_end_matches('}');
            let own = if own.is_empty() { String::new() } else { format!("{own},") };
            let mut below = 0;
            for (bound, found) in bounds.iter().zip(buckets) {
                below += found;
                let _ = writeln!(text, "{name}_bucket{{{own}le=\"{}\"}} {below}", number(*bound));
            }
            let _ = writeln!(text, "{name}_bucket{{{own}le=\"+Inf\"}} {count}");
            let _ = writeln!(text, "{name}_sum{labels} {}", number(sum));
            let _ = writeln!(text, "{name}_count{labels} {count}");
        }
    }

    /// Adds a family of one sample without labels.
    pub fn single(&mut self, family: Family, value: f64) {
        self.family(family, [Sample { labels: String::new(), value, at: None }]);
    }

    /// The text.
    #[must_use]
    pub fn finish(self) -> String {
        let mut page = String::new();
        for (name, Written { help, kind, series }) in self.0 {
            if series.is_empty() {
                continue;
            }
            let help = help.replace('\\', r"\\").replace('\n', r"\n");
            // Writing to a String cannot fail.
            let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n{series}");
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use prometheus_client::{
        encoding::EncodeLabelSet,
        metrics::{counter::Counter, family, gauge::Gauge, histogram::Histogram},
    };

    #[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
    struct Labels {
        verb: String,
        code: u16,
    }

    fn labels_of(verb: &str, code: u16) -> Labels {
        Labels { verb: verb.to_owned(), code }
    }

    #[test]
    fn encodes_a_registry() {
        let mut registry = Registry::default();
        let requests = family::Family::<Labels, Counter>::default();
        for (verb, code) in [("LIST", 200), ("GET", 404), ("a\"\\\n}, ", 200)] {
            requests.get_or_create(&labels_of(verb, code)).inc();
        }
        let attempts = Counter::<u64>::default();
        attempts.inc_by(2_000_000);
        let took =
            family::Family::<Labels, Histogram>::new_with_constructor(|| Histogram::new([0.0, 0.5, 1e6]));
        took.get_or_create(&labels_of("GET", 200)).observe(0.25);
        let unused = family::Family::<Labels, Gauge>::default();
        registry.register("request_total", "[STABLE] Requests by \\ and\nothers.", requests);
        registry.register("attempts", "Without an end", attempts);
        registry.register("took_seconds", "Times", took);
        registry.register("unused", "Nothing", unused);
        expect![[r#"
            # HELP attempts Without an end
            # TYPE attempts counter
            attempts 2e+06
            # HELP request_total [STABLE] Requests by \\ and\nothers.
            # TYPE request_total counter
            request_total{code="200",verb="LIST"} 1
            request_total{code="200",verb="a\"\\\n}, "} 1
            request_total{code="404",verb="GET"} 1
            # HELP took_seconds Times
            # TYPE took_seconds histogram
            took_seconds_bucket{code="200",verb="GET",le="0"} 0
            took_seconds_bucket{code="200",verb="GET",le="0.5"} 1
            took_seconds_bucket{code="200",verb="GET",le="1e+06"} 1
            took_seconds_bucket{code="200",verb="GET",le="+Inf"} 1
            took_seconds_sum{code="200",verb="GET"} 0.25
            took_seconds_count{code="200",verb="GET"} 1
        "#]]
        .assert_eq(&crate::encode(&registry));
        let families = kaji_testing::text_format::parse(&crate::encode(&registry)).unwrap();
        assert_eq!(families["request_total"].sum(&[("verb", "a\"\\\n}, ")]), 1.0);
    }

    #[test]
    fn families_of_several_registries_are_one() {
        let mut page = Page::default();
        for plugin in ["a", "b"] {
            let mut registry = Registry::default();
            let all = family::Family::<[(&'static str, &'static str); 1], Counter>::default();
            all.get_or_create(&[("plugin", plugin)]).inc();
            registry.register("runs_total", "Runs", all);
            page.registry(&registry);
        }
        page.single(Family::gauge("alone", "One"), 0.5);
        page.family(Family::gauge("none", "Nothing"), []);
        expect![[r#"
            # HELP alone One
            # TYPE alone gauge
            alone 0.5
            # HELP runs_total Runs
            # TYPE runs_total counter
            runs_total{plugin="a"} 1
            runs_total{plugin="b"} 1
        "#]]
        .assert_eq(&page.finish());
    }

    #[test]
    fn label_values_are_escaped() {
        assert_eq!(labels(&[("a", "b"), ("c", "\"\\\n")]), r#"{a="b",c="\"\\\n"}"#);
        assert_eq!(labels(&[]), "");
    }
}
