//! Which zones and nodes an endpoint should serve first.
//! Source: KEP-4444, KEP-3015 (`spec.trafficDistribution`); `topology` has those by the older annotation.

use kaji_runtime::objects::Service;
use serde_json::{Map, Value, json};

/// The traffic distribution that a service requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// No hints.
    None,
    /// Endpoints of the client's zone.
    Zone,
    /// Endpoints of the client's node, then of its zone.
    Node,
    /// Endpoints of the zone that they are allotted to.
    Auto,
}

impl Preference {
    /// By the field, unless the older annotation requests topology-aware hints.
    pub fn of(service: &Service) -> Self {
        let annotations = &service.metadata.annotations;
        let mode = annotations
            .get("service.kubernetes.io/topology-aware-hints")
            .or_else(|| annotations.get("service.kubernetes.io/topology-mode"));
        if mode.is_some_and(|m| m == "Auto" || m == "auto") {
            return Preference::Auto;
        }
        match service.spec.traffic_distribution.as_deref() {
            Some("PreferClose" | "PreferSameZone") => Preference::Zone,
            Some("PreferSameNode") => Preference::Node,
            _ => Preference::None,
        }
    }

    /// The hints of a ready endpoint that follow from its place; null for none.
    pub fn hints(self, zone: Option<&str>, node: Option<&str>) -> Value {
        let mut hints = Map::new();
        if let Some(zone) = zone.filter(|_| matches!(self, Preference::Zone | Preference::Node)) {
            hints.insert("forZones".into(), json!([{"name": zone}]));
        }
        if let Some(node) = node.filter(|_| self == Preference::Node) {
            hints.insert("forNodes".into(), json!([{"name": node}]));
        }
        if hints.is_empty() { Value::Null } else { Value::Object(hints) }
    }
}
