//! What the containers of a simulated node would use: what their pod's annotations say, else a share of what they request,
//! always the same for the same container.
//!
//! Invariant: what a meter says never falls while its container runs, whatever happens to the requests.

use super::{behaviour::annotation, fleet::hash};
use jiff::Timestamp;
use kaji_meta::quantity::Quantity;
use kaji_runtime::objects::{Amounts, Container, Pod};
use std::collections::HashMap;

const MIB: f64 = 1_048_576.0;

/// The usage of a container or a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Cores.
    pub cpu: f64,
    /// Bytes.
    pub memory: f64,
}

/// The usage of a node besides its pods.
pub const NODE: Usage = Usage { cpu: 0.1, memory: 512.0 * MIB };

impl Usage {
    /// A container's: what annotations of its pod say, else between a quarter and three quarters of its requests. One that
    /// requests nothing uses next to nothing; none uses more than its limits.
    pub fn of(pod: &Pod, container: &Container) -> Usage {
        let part = |what: &str| {
            let bits = hash(&format!("{}/{}/{what}", pod.metadata.uid, container.name)) >> 32;
            bits as f64 / f64::from(u32::MAX)
        };
        let used = |name: &str, least: f64| {
            let part = part(name);
            let annotated = annotation(pod, &format!("{name}-usage")).and_then(quantity);
            let requested = amount(&container.resources.requests, name).filter(|a| *a > 0.0);
            let used = annotated.unwrap_or_else(|| {
                requested.map_or(least * (1.0 + 3.0 * part), |requested| requested * (0.25 + 0.5 * part))
            });
            amount(&container.resources.limits, name).map_or(used, |most| used.min(most))
        };
        Usage { cpu: used("cpu", 0.002), memory: used("memory", 8.0 * MIB).floor() }
    }

    /// Both together.
    pub fn and(self, other: Usage) -> Usage {
        Usage { cpu: self.cpu + other.cpu, memory: self.memory + other.memory }
    }
}

fn amount(amounts: &Amounts, name: &str) -> Option<f64> {
    let (_, text) = amounts.iter().find(|(n, _)| *n == name)?;
    quantity(text)
}

/// A quantity that is not negative.
fn quantity(text: &str) -> Option<f64> {
    Some(Quantity::parse(text).ok()?.as_f64()).filter(|amount| *amount >= 0.0)
}

/// Cumulative CPU time of containers and nodes.
#[derive(Debug, Default)]
pub struct Meters {
    all: HashMap<String, Meter>,
    /// Counts readings of all of them.
    round: u64,
}

#[derive(Debug)]
struct Meter {
    nanoseconds: f64,
    at: Timestamp,
    round: u64,
}

impl Meters {
    /// Core-seconds that `key`, which has run since `since`, has used, at so many cores from the last reading on.
    pub fn read(&mut self, key: &str, cores: f64, since: Timestamp, now: Timestamp) -> f64 {
        let round = self.round;
        let meter = self.all.entry(key.to_owned()).or_insert(Meter { nanoseconds: 0.0, at: since, round });
        let passed = now.duration_since(meter.at);
        if passed.is_positive() {
            meter.nanoseconds += cores * passed.as_nanos() as f64;
            meter.at = now;
        }
        meter.round = round;
        meter.nanoseconds.floor() / 1e9
    }

    /// Forgets what was not read since this was called last.
    pub fn sweep(&mut self) {
        let round = self.round;
        self.all.retain(|_, meter| meter.round == round);
        self.round += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn container(resources: &str) -> Container {
        serde_json::from_str(&format!(r#"{{"name": "c", "image": "i", "resources": {resources}}}"#)).unwrap()
    }

    #[test]
    fn a_share_of_what_is_requested() {
        let pod = |uid: &str, annotations: &str| -> Pod {
            let text = format!(r#"{{"metadata": {{"uid": "{uid}", "annotations": {annotations}}}}}"#);
            serde_json::from_str(&text).unwrap()
        };
        let annotated = |uid: &str, annotations: &str, resources: &str| {
            let Usage { cpu, memory } = Usage::of(&pod(uid, annotations), &container(resources));
            format!("{uid} {resources}: {cpu:.4} {:.1}Mi", memory / MIB)
        };
        let show = |uid: &str, resources: &str| annotated(uid, "{}", resources);
        let requests = r#"{"requests": {"cpu": "1", "memory": "100Mi"}}"#;
        let all = [
            show("a", requests),
            show("b", requests),
            show("a", r#"{"requests": {"cpu": "100m"}, "limits": {"memory": "4Mi"}}"#),
            show("a", "{}"),
            annotated(
                "a",
                r#"{"sim.kaji.dev/cpu-usage": "900m", "sim.kaji.dev/memory-usage": "1Gi"}"#,
                requests,
            ),
            annotated("a", r#"{"sim.kaji.dev/cpu-usage": "-1", "sim.kaji.dev/memory-usage": "x"}"#, requests),
        ];
        expect_test::expect![[r#"
            a {"requests": {"cpu": "1", "memory": "100Mi"}}: 0.6613 52.7Mi
            b {"requests": {"cpu": "1", "memory": "100Mi"}}: 0.6910 70.1Mi
            a {"requests": {"cpu": "100m"}, "limits": {"memory": "4Mi"}}: 0.0661 4.0Mi
            a {}: 0.0069 21.3Mi
            a {"requests": {"cpu": "1", "memory": "100Mi"}}: 0.9000 1024.0Mi
            a {"requests": {"cpu": "1", "memory": "100Mi"}}: 0.6613 52.7Mi"#]]
        .assert_eq(&all.join("\n"));
    }

    #[test]
    fn meters_of_what_is_gone_are_forgotten() {
        let mut meters = Meters::default();
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        assert_eq!(meters.read("a", 0.5, at(0), at(10)), 5.0);
        assert_eq!(meters.read("b", 0.5, at(0), at(10)), 5.0);
        meters.sweep();
        assert_eq!(meters.read("a", 1.0, at(0), at(20)), 15.0);
        meters.sweep();
        assert_eq!(meters.all.len(), 1);
    }

    proptest! {
        #[test]
        fn meters_never_fall(readings in prop::collection::vec((0.0..64.0f64, -1_000i64..100_000), 1..50)) {
            let mut meters = Meters::default();
            let mut last = 0.0;
            for (cores, second) in readings {
                let now = Timestamp::from_second(second).unwrap();
                let read = meters.read("c", cores, Timestamp::UNIX_EPOCH, now);
                prop_assert!(read >= last);
                last = read;
            }
        }
    }
}
