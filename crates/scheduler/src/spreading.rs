//! Topology spread constraints of pods, parsed once.
//!
//! Source: API reference, `TopologySpreadConstraint`; KEP-3022 (minDomains), KEP-3094 (inclusion policies), KEP-3243
//! (matchLabelKeys).

use kaji_meta::labels::{Operator, Requirement, Selector};
use serde_json::Value;
use std::collections::BTreeMap;

/// One constraint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpreadConstraint {
    /// How many more pods one domain may have than another.
    pub max_skew: i64,
    /// The label of nodes that share a domain.
    pub topology_key: Box<str>,
    /// `DoNotSchedule`, rather than `ScheduleAnyway`.
    pub hard: bool,
    /// The pods that count, of the pod's namespace. `None` in default constraints: it is deduced of each pod.
    pub selector: Option<Selector>,
    /// With fewer domains the least count is taken for 0.
    pub min_domains: usize,
    /// Nodes that the pod's node affinity excludes count not.
    pub honor_affinity: bool,
    /// Nodes with taints that the pod does not tolerate count not.
    pub honor_taints: bool,
}

impl SpreadConstraint {
    /// One without a selector.
    pub fn defaulted(topology_key: &str, max_skew: i64, hard: bool) -> Self {
        SpreadConstraint {
            max_skew,
            topology_key: topology_key.into(),
            hard,
            selector: None,
            min_domains: 1,
            honor_affinity: true,
            honor_taints: false,
        }
    }

    /// Of the `topologySpreadConstraints` of a pod with these labels, or of a configuration. Both were validated before.
    pub fn parse_all(raw: Option<&Value>, labels: &BTreeMap<String, String>) -> Box<[Self]> {
        let list = raw.and_then(Value::as_array).into_iter().flatten();
        list.map(|raw| Self::parse(raw, labels)).collect()
    }

    fn parse(raw: &Value, labels: &BTreeMap<String, String>) -> Self {
        let selector = match &raw["labelSelector"] {
            Value::Null => Selector::nothing(),
            raw => Selector::from_label_selector(raw).unwrap_or_else(|_| Selector::nothing()),
        };
        let keys = raw["matchLabelKeys"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let own = keys.filter_map(|key| Some((key, labels.get(key)?.as_str())));
        let number = |key: &str| raw[key].as_i64().unwrap_or(1);
        SpreadConstraint {
            max_skew: number("maxSkew"),
            topology_key: raw["topologyKey"].as_str().unwrap_or_default().into(),
            hard: raw["whenUnsatisfiable"] != "ScheduleAnyway",
            selector: Some(narrowed(selector, own)),
            min_domains: usize::try_from(number("minDomains")).unwrap_or(1),
            honor_affinity: raw["nodeAffinityPolicy"] != "Ignore",
            honor_taints: raw["nodeTaintsPolicy"] == "Honor",
        }
    }
}

/// A selector that demands these labels too.
pub fn narrowed<'a>(selector: Selector, labels: impl Iterator<Item = (&'a str, &'a str)>) -> Selector {
    let more =
        labels.filter_map(|(key, value)| Requirement::new(key, Operator::In, vec![value.to_owned()]).ok());
    let more: Vec<Requirement> = more.collect();
    if more.is_empty() || selector.is_nothing() {
        return selector;
    }
    Selector::new(selector.requirements().iter().cloned().chain(more).collect())
}
