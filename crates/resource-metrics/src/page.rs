//! A kubelet's page `/metrics/resource`: the counters of a node and of the containers on it.
//!
//! Invariants: series of other names are skipped; a container has a point only if the page has both its CPU time and its
//! memory; what cannot be read costs only its own line. Pure.

use jiff::Timestamp;
use std::collections::{BTreeMap, HashMap};

/// Nanoseconds in a second.
const NANOS: f64 = 1e9;

/// What was read of a node or a container.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// When the CPU time was read.
    pub at: Timestamp,
    /// When the container started; for nodes, and where the page does not say, the epoch.
    pub started: Timestamp,
    /// CPU time used since the start, core-nanoseconds.
    pub cpu: u64,
    /// The working set, bytes.
    pub memory: u64,
}

/// The containers of pods, by namespace and name of the pod, then by the container's name.
pub type PodPoints = HashMap<(String, String), BTreeMap<String, Point>>;

/// A page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodePage {
    /// The node as a whole.
    pub node: Option<Point>,
    /// Its pods.
    pub pods: PodPoints,
}

/// A series of a point that is read line by line.
#[derive(Clone, Copy, Default)]
struct Partial {
    cpu: Option<(f64, Timestamp)>,
    memory: Option<f64>,
    started: Option<f64>,
}

impl Partial {
    fn point(self) -> Option<Point> {
        let (cpu, at) = self.cpu?;
        let started = self.started.and_then(|s| Timestamp::from_nanosecond((s * NANOS) as i128).ok());
        Some(Point {
            at,
            started: started.unwrap_or(Timestamp::UNIX_EPOCH),
            cpu: (cpu * NANOS).round() as u64,
            memory: self.memory? as u64,
        })
    }
}

impl NodePage {
    /// Reads a page. `now` stands for the times of samples that have none.
    pub fn parse(text: &str, now: Timestamp) -> NodePage {
        let mut node = Partial::default();
        let mut containers: HashMap<(String, String, String), Partial> = HashMap::new();
        for sample in text.lines().filter_map(|line| Sample::parse(line, now)) {
            let (series, of_node) = match sample.name {
                "node_cpu_usage_seconds_total" => (Series::Cpu, true),
                "node_memory_working_set_bytes" => (Series::Memory, true),
                "container_cpu_usage_seconds_total" => (Series::Cpu, false),
                "container_memory_working_set_bytes" => (Series::Memory, false),
                "container_start_time_seconds" => (Series::Start, false),
                _ => continue,
            };
            let partial = if of_node {
                &mut node
            } else {
                let Some(key) = sample.container() else { continue };
                containers.entry(key).or_default()
            };
            match series {
                Series::Cpu => partial.cpu = Some((sample.value, sample.at)),
                Series::Memory => partial.memory = Some(sample.value),
                Series::Start => partial.started = Some(sample.value),
            }
        }
        let mut pods = PodPoints::new();
        for ((namespace, pod, container), partial) in containers {
            if let Some(point) = partial.point() {
                pods.entry((namespace, pod)).or_default().insert(container, point);
            }
        }
        NodePage { node: node.point(), pods }
    }
}

enum Series {
    Cpu,
    Memory,
    Start,
}

/// A line of the text format.
struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
    at: Timestamp,
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str, now: Timestamp) -> Option<Sample<'a>> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let end = line.find(|c: char| c == '{' || c.is_ascii_whitespace())?;
        let (name, rest) = line.split_at(end);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest)?,
            None => (vec![], rest),
        };
        let mut fields = rest.split_ascii_whitespace();
        let value: f64 = fields.next()?.parse().ok()?;
        let at = match fields.next() {
            Some(text) => Timestamp::from_millisecond(text.parse().ok()?).ok()?,
            None => now,
        };
        (value.is_finite() && value >= 0.0).then_some(Sample { name, labels, value, at })
    }

    fn label(&self, name: &str) -> Option<String> {
        self.labels.iter().find(|(n, _)| *n == name).map(|(_, value)| value.clone()).filter(|v| !v.is_empty())
    }

    fn container(&self) -> Option<(String, String, String)> {
        Some((self.label("namespace")?, self.label("pod")?, self.label("container")?))
    }
}

/// Names with their values.
type Labels<'a> = Vec<(&'a str, String)>;

/// Labels up to the closing brace, and what comes after it.
fn labels(mut rest: &str) -> Option<(Labels<'_>, &str)> {
    let mut found = vec![];
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((found, after));
        }
        let (name, after) = rest.split_once('=')?;
        let quoted = after.trim_start().strip_prefix('"')?;
        let (value, after) = unquote(quoted)?;
        found.push((name.trim(), value));
        rest = after;
    }
}

/// A label's value up to the closing quote, and what comes after it.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[i + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: &str = r#"
# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="main",namespace="default",pod="a"} 53.5 1767225700000
container_cpu_usage_seconds_total{container="side",namespace="default",pod="a"} 1
container_cpu_usage_seconds_total{container="no-memory",namespace="default",pod="b"} 1 1767225700000
container_memory_working_set_bytes{container="main",namespace="default",pod="a"} 4.0967364e+07 1767225700000
container_memory_working_set_bytes{container="side",namespace="default",pod="a"} 10
container_memory_working_set_bytes{container="odd\"\\\n",namespace="x",pod="y"} NaN
container_start_time_seconds{container="main",namespace="default",pod="a"} 1.7672256e+09 1767225700000
node_cpu_usage_seconds_total 64.25 1767225700000
node_memory_working_set_bytes 6.08568532e+08 1767225700000
pod_cpu_usage_seconds_total{namespace="default",pod="a"} 53.816894129 1767225700000
resource_scrape_error 0
broken{container="x 3
"#;

    #[test]
    fn reads_a_page() {
        let now = "2026-01-01T00:01:41Z".parse().unwrap();
        let page = NodePage::parse(PAGE, now);
        let mut out = format!("node {:?}\n", page.node.unwrap());
        for ((namespace, pod), containers) in &page.pods {
            for (name, point) in containers {
                out += &format!("{namespace}/{pod}/{name} {point:?}\n");
            }
        }
        expect_test::expect![[r#"
            node Point { at: 2026-01-01T00:01:40Z, started: 1970-01-01T00:00:00Z, cpu: 64250000000, memory: 608568532 }
            default/a/main Point { at: 2026-01-01T00:01:40Z, started: 2026-01-01T00:00:00Z, cpu: 53500000000, memory: 40967364 }
            default/a/side Point { at: 2026-01-01T00:01:41Z, started: 1970-01-01T00:00:00Z, cpu: 1000000000, memory: 10 }
        "#]]
        .assert_eq(&out);
    }

    #[test]
    fn quotes_in_labels_are_read() {
        let (found, rest) = labels(r#"a="x\"y\\\n",b="",} 5"#).unwrap();
        assert_eq!(found, [("a", "x\"y\\\n".to_owned()), ("b", String::new())]);
        assert_eq!(rest, " 5");
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in ".{0,200}") {
            NodePage::parse(&text, Timestamp::UNIX_EPOCH);
            NodePage::parse(&format!("node_cpu_usage_seconds_total{{{text}"), Timestamp::UNIX_EPOCH);
        }
    }
}
