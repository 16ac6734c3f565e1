//! The last two points of every node and container, and the usage that they show.
//!
//! Invariants:
//! - A rate is of two points of the same run of a container: a restart, a counter that fell and a time that did not advance
//!   give none.
//! - A pod has figures only if all its containers have.
//! - Of each node and container two points are kept; those of a node that answers no more are dropped with it.
//!
//! Source: metrics-server's `pkg/storage`, with its rule for containers that are just started.

use crate::page::{NodePage, PodPoints, Point};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, HashMap};

/// The least age at which the start of a container counts as its first point.
const FRESH_CONTAINER: SignedDuration = SignedDuration::from_secs(10);

/// What is used, over a window of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Nanocores.
    pub cpu: u64,
    /// Bytes.
    pub memory: u64,
}

/// What a node, or the containers of a pod, use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures<T> {
    /// When the window ended.
    pub at: Timestamp,
    /// How long it was.
    pub window: SignedDuration,
    /// What was used in it.
    pub usage: T,
}

/// The points of a node.
#[derive(Debug, Default)]
struct NodePoints {
    last: NodePage,
    node_before: Option<Point>,
    pods_before: PodPoints,
}

/// The points of all nodes.
#[derive(Debug, Default)]
pub struct Points {
    nodes: HashMap<String, NodePoints>,
    /// The nodes of pods.
    places: HashMap<(String, String), String>,
}

/// The former one of two points.
fn before(
    new: &Point,
    last: Option<&Point>,
    former: Option<&Point>,
    resolution: SignedDuration,
) -> Option<Point> {
    match last {
        // The same run.
        Some(last) if new.started < last.at => {
            if new.at > last.at {
                Some(*last)
            } else {
                former.copied()
            }
        }
        _ => {
            let age = new.at.duration_since(new.started);
            let fresh = age >= FRESH_CONTAINER && age < resolution;
            fresh.then_some(Point { at: new.started, cpu: 0, memory: 0, ..*new })
        }
    }
}

fn rate(before: &Point, last: &Point) -> Option<Figures<Usage>> {
    let window = last.at.duration_since(before.at);
    let used = last.cpu.checked_sub(before.cpu)?;
    if !window.is_positive() {
        return None;
    }
    let cpu = (used as f64 / window.as_secs_f64()).floor() as u64;
    Some(Figures { at: last.at, window, usage: Usage { cpu, memory: last.memory } })
}

impl Points {
    /// Takes a page of a node. Containers younger than `resolution`, the time between two pages, may count from their start.
    pub fn add(&mut self, node: &str, page: NodePage, resolution: SignedDuration) {
        let kept = self.nodes.entry(node.to_owned()).or_default();
        let node_before = |new: &Point| {
            before(new, kept.last.node.as_ref(), kept.node_before.as_ref(), SignedDuration::ZERO)
        };
        kept.node_before = page.node.as_ref().and_then(node_before);
        let mut pods_before = PodPoints::new();
        for (pod, containers) in &page.pods {
            let (last, former) = (kept.last.pods.get(pod), kept.pods_before.get(pod));
            for (name, new) in containers {
                let last = last.and_then(|l| l.get(name));
                let former = former.and_then(|f| f.get(name));
                if let Some(point) = before(new, last, former, resolution) {
                    pods_before.entry(pod.clone()).or_default().insert(name.clone(), point);
                }
            }
        }
        kept.pods_before = pods_before;
        for pod in kept.last.pods.keys().filter(|pod| !page.pods.contains_key(*pod)) {
            if self.places.get(pod).is_some_and(|place| place == node) {
                self.places.remove(pod);
            }
        }
        self.places.extend(page.pods.keys().map(|pod| (pod.clone(), node.to_owned())));
        kept.last = page;
    }

    /// Forgets the nodes that are not among these.
    pub fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        self.nodes.retain(|name, _| wanted(name));
        let nodes = &self.nodes;
        self.places.retain(|_, node| nodes.contains_key(node));
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Points::default();
    }

    /// What a node uses.
    pub fn node(&self, name: &str) -> Option<Figures<Usage>> {
        let kept = self.nodes.get(name)?;
        rate(kept.node_before.as_ref()?, kept.last.node.as_ref()?)
    }

    /// What the containers of a pod use, by their names. Time and window are of the container that was read first.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<Figures<BTreeMap<String, Usage>>> {
        let key = (namespace.to_owned(), name.to_owned());
        let kept = self.nodes.get(self.places.get(&key)?)?;
        let (last, former) = (kept.last.pods.get(&key)?, kept.pods_before.get(&key)?);
        let mut whole: Option<Figures<BTreeMap<String, Usage>>> = None;
        for (container, point) in last {
            let Figures { at, window, usage } = rate(former.get(container)?, point)?;
            let whole = whole.get_or_insert_with(|| Figures { at, window, usage: BTreeMap::new() });
            if at < whole.at {
                (whole.at, whole.window) = (at, window);
            }
            whole.usage.insert(container.clone(), usage);
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EVERY: SignedDuration = SignedDuration::from_secs(15);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn point(second: i64, started: i64, cores: f64, memory: u64) -> Point {
        Point { at: at(second), started: at(started), cpu: (cores * 1e9) as u64, memory }
    }

    fn page(node: Option<Point>, containers: &[(&str, Point)]) -> NodePage {
        let containers: BTreeMap<_, _> = containers.iter().map(|(n, p)| ((*n).to_owned(), *p)).collect();
        let pods = if containers.is_empty() { vec![] } else { vec![(("n".into(), "p".into()), containers)] };
        NodePage { node, pods: pods.into_iter().collect() }
    }

    #[test]
    fn usage_is_of_two_points() {
        let mut points = Points::default();
        points.add("a", page(Some(point(100, 0, 10.0, 5)), &[("c", point(100, 1, 2.0, 7))]), EVERY);
        assert_eq!((points.node("a"), points.pod("n", "p")), (None, None));
        points.add("a", page(Some(point(110, 0, 15.0, 6)), &[("c", point(110, 1, 4.5, 8))]), EVERY);
        expect_test::expect![[r#"
            Some(Figures { at: 1970-01-01T00:01:50Z, window: 10s, usage: Usage { cpu: 500000000, memory: 6 } })
            Some(Figures { at: 1970-01-01T00:01:50Z, window: 10s, usage: {"c": Usage { cpu: 250000000, memory: 8 }} })"#]]
        .assert_eq(&format!("{:?}\n{:?}", points.node("a"), points.pod("n", "p")));
        // The same reading again changes nothing.
        points.add("a", page(Some(point(110, 0, 15.0, 6)), &[("c", point(110, 1, 4.5, 8))]), EVERY);
        assert_eq!(points.node("a").unwrap().usage.cpu, 500_000_000);
        assert_eq!(points.pod("n", "p").unwrap().window, SignedDuration::from_secs(10));
        points.retain(|node| node != "a");
        assert_eq!((points.node("a"), points.pod("n", "p")), (None, None));
    }

    #[test]
    fn a_restart_and_a_counter_that_fell_give_no_rate() {
        let mut points = Points::default();
        points.add("a", page(Some(point(100, 0, 10.0, 5)), &[("c", point(100, 1, 2.0, 7))]), EVERY);
        points.add("a", page(Some(point(110, 0, 9.0, 5)), &[("c", point(110, 105, 1.0, 7))]), EVERY);
        assert_eq!((points.node("a"), points.pod("n", "p")), (None, None));
        points.add("a", page(Some(point(120, 0, 10.0, 5)), &[("c", point(120, 105, 2.0, 7))]), EVERY);
        assert_eq!(points.node("a").unwrap().usage.cpu, 100_000_000);
        assert_eq!(points.pod("n", "p").unwrap().usage["c"].cpu, 100_000_000);
    }

    #[test]
    fn a_fresh_container_counts_from_its_start() {
        let mut points = Points::default();
        points.add("a", page(None, &[("c", point(112, 100, 6.0, 7))]), EVERY);
        let figures = points.pod("n", "p").unwrap();
        assert_eq!((figures.usage["c"].cpu, figures.window.as_secs()), (500_000_000, 12));
        let mut points = Points::default();
        for young_or_old in [point(105, 100, 6.0, 7), point(200, 100, 6.0, 7)] {
            points.clear();
            points.add("a", page(None, &[("c", young_or_old)]), EVERY);
            assert_eq!(points.pod("n", "p"), None);
        }
    }

    #[test]
    fn a_pod_needs_all_its_containers() {
        let mut points = Points::default();
        let first = ("c", point(100, 1, 2.0, 7));
        points.add("a", page(None, &[first]), EVERY);
        points.add("a", page(None, &[("c", point(110, 1, 3.0, 7)), ("d", point(109, 108, 0.0, 7))]), EVERY);
        assert_eq!(points.pod("n", "p"), None);
        points.add("a", page(None, &[("c", point(120, 1, 4.0, 7)), ("d", point(119, 108, 1.0, 7))]), EVERY);
        let figures = points.pod("n", "p").unwrap();
        assert_eq!((figures.at, figures.usage.len()), (at(119), 2));
        points.add("a", page(None, &[]), EVERY);
        assert_eq!(points.pod("n", "p"), None);
    }

    proptest! {
        /// Whatever nodes say, a rate has a positive window, and is what the counters say of it.
        #[test]
        fn rates_are_of_the_counters(readings in prop::collection::vec((0i64..500, 0i64..500, 0.0..1e4f64), 1..20)) {
            let mut points = Points::default();
            for (second, started, cpu) in readings {
                points.add("a", page(Some(point(second, 0, cpu, 1)), &[("c", point(second, started, cpu, 1))]), EVERY);
                if let Some(figures) = points.pod("n", "p") {
                    prop_assert!(figures.window.is_positive());
                    prop_assert_eq!(figures.at, at(second));
                    let most = cpu * 1e9 / figures.window.as_secs_f64();
                    prop_assert!(figures.usage["c"].cpu as f64 <= most + 1.0);
                }
            }
        }
    }
}
