//! Whether an APIService can be available according to its Service and EndpointSlices, before its server is called.
//!
//! Source: the order, reasons and texts of upstream's `AvailableConditionController`.

use crate::service::{Backend, Condition};
use kaji_meta::{object, text::quote};
use serde_json::Value;
use std::sync::Arc;

/// The label with the name of a slice's service.
pub(crate) const OWNER: &str = "kubernetes.io/service-name";

/// Why the service is unavailable; `None` if its server is to be called.
pub(crate) fn unavailable_reason(
    backend: &Backend,
    service: Option<&Value>,
    slices: &[Arc<Value>],
) -> Option<Condition> {
    let Backend { namespace, name, port, .. } = backend;
    let place = || format!("service/{name} in {}", quote(namespace));
    let no = |reason: &str, message: String| Some(Condition::unavailable(reason, message));
    let Some(service) = service else {
        return no("ServiceNotFound", format!("{} is not present", place()));
    };
    // Only services of this type have endpoints.
    if !matches!(object::str_at(service, &["spec", "type"]), "" | "ClusterIP") {
        return None;
    }
    let ports = object::arr_at(service, &["spec", "ports"]);
    let Some(found) = ports.iter().find(|p| p["port"].as_u64() == Some(u64::from(*port))) else {
        return no("ServicePortError", format!("{} is not listening on port {port}", place()));
    };
    let port_name = found["name"].as_str().unwrap_or_default();
    let slices: Vec<&Value> =
        slices.iter().map(|s| &**s).filter(|s| object::label(s, OWNER) == Some(name)).collect();
    if slices.is_empty() {
        return no("EndpointsNotFound", format!("cannot find endpointslices for {}", place()));
    }
    if !slices.iter().any(|slice| has_endpoint(slice, port_name)) {
        let text =
            format!("endpointslices for {} have no addresses with port name {}", place(), quote(port_name));
        return no("MissingEndpoints", text);
    }
    None
}

fn has_endpoint(slice: &Value, port_name: &str) -> bool {
    // What is not said to be unready is ready.
    let ready = object::arr_at(slice, &["endpoints"]).iter().any(|e| e["conditions"]["ready"] != false);
    // A name that is empty is left out by some writers.
    let named = |p: &Value| p["name"].as_str().unwrap_or_default() == port_name && p["port"].is_u64();
    ready && object::arr_at(slice, &["ports"]).iter().any(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reports_reasons_in_upstreams_order() {
        let backend = Backend {
            namespace: "n".into(),
            name: "s".into(),
            port: 443,
            ca_bundle: vec![],
            insecure: false,
        };
        let service =
            |port: u16| json!({"spec": {"type": "ClusterIP", "ports": [{"port": port, "name": "https"}]}});
        let slice = |owner: &str, ready: Value, port: &str| {
            Arc::new(
                json!({"metadata": {"labels": {OWNER: owner}}, "endpoints": [{"addresses": ["1.2.3.4"], "conditions": {"ready": ready}}],
                "ports": [{"name": port, "port": 8443}]}),
            )
        };
        let tell = |service: Option<Value>, slices: &[Arc<Value>]| {
            unavailable_reason(&backend, service.as_ref(), slices)
                .map_or("none".to_owned(), |c| format!("{}: {}", c.reason, c.message))
        };
        let good = slice("s", Value::Null, "https");
        let got = [
            tell(None, &[]),
            tell(Some(service(80)), &[]),
            tell(Some(service(443)), &[slice("other", Value::Null, "https")]),
            tell(Some(service(443)), &[slice("s", false.into(), "https"), slice("s", Value::Null, "http")]),
            tell(Some(service(443)), std::slice::from_ref(&good)),
            tell(Some(json!({"spec": {"type": "ExternalName", "externalName": "a.example.com"}})), &[]),
        ];
        expect_test::expect![[r#"
            ServiceNotFound: service/s in "n" is not present
            ServicePortError: service/s in "n" is not listening on port 443
            EndpointsNotFound: cannot find endpointslices for service/s in "n"
            MissingEndpoints: endpointslices for service/s in "n" have no addresses with port name "https"
            none
            none"#]]
        .assert_eq(&got.join("\n"));
    }
}
