//! Endpoints (deprecated upstream in favour of EndpointSlices, still served).

use crate::shared::{
    check, metadata,
    net::{check_endpoint_ip, check_legacy_ip, ip_warnings},
    rules,
    table::{age, name},
    value::{Fields, default_text, list_mut},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object, semantic_equal,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::Value;

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Endpoints",
        "string",
        0,
        "The set of all endpoints is the union of all subsets. Addresses are placed into subsets according to the IPs they share. A single address with multiple ports, some of which are ready and some of which are not (because they come from different containers) will result in the address being displayed in different subsets for the different ports. No address will appear in both Addresses and NotReadyAddresses in the same subset. Sets of addresses and ports that comprise a service.",
    ),
    age_column(),
];

struct Endpoints;

fn subsets(object: &Value) -> ErrorList {
    let mut errs = vec![];
    for (i, subset) in object.list("subsets").iter().enumerate() {
        let path = Path::new("subsets").index(i);
        if subset.list("addresses").is_empty() && subset.list("notReadyAddresses").is_empty() {
            errs.push(Error::required(&path, "must specify `addresses` or `notReadyAddresses`"));
        }
        for field in ["addresses", "notReadyAddresses"] {
            for (j, a) in subset.list(field).iter().enumerate() {
                address(&mut errs, &path.child(field).index(j), a);
            }
        }
        let ports = subset.list("ports");
        for (j, p) in ports.iter().enumerate() {
            port(&mut errs, &path.child("ports").index(j), p, ports.len() > 1);
        }
    }
    errs
}

fn address(errs: &mut ErrorList, path: &Path, address: &Value) {
    let ip = address.text("ip");
    errs.extend(check_legacy_ip(&path.child("ip"), ip, &[]));
    let host = address.text("hostname");
    if !host.is_empty() {
        check::dns_label(errs, &path.child("hostname"), host);
    }
    if let Some(node) = address.opt_text("nodeName") {
        check::dns_subdomain(errs, &path.child("nodeName"), node);
    }
    errs.extend(check_endpoint_ip(&path.child("ip"), ip));
}

fn port(errs: &mut ErrorList, path: &Path, port: &Value, named: bool) {
    let name = port.text("name");
    if !name.is_empty() {
        check::dns_label(errs, &path.child("name"), name);
    } else if named {
        errs.push(Error::required(&path.child("name"), ""));
    }
    rules::port_number(errs, &path.child("port"), port.int("port"));
    rules::protocol(errs, &path.child("protocol"), port.text("protocol"));
    if let Some(app) = port.opt_text("appProtocol") {
        check::qualified_name(errs, &path.child("appProtocol"), app);
    }
}

/// Up to three addresses, and how many more there are.
fn cell(object: &Value) -> String {
    const MAX: usize = 3;
    let all: Vec<String> = object.list("subsets").iter().flat_map(subset_cell).collect();
    if object.list("subsets").is_empty() {
        return "<none>".into();
    }
    if all.len() > MAX {
        return format!("{} + {} more...", all[..MAX].join(","), all.len() - MAX);
    }
    all.join(",")
}

fn subset_cell(subset: &Value) -> Vec<String> {
    let ips = || subset.list("addresses").iter().map(|a| a.text("ip"));
    if subset.list("ports").is_empty() {
        return ips().map(str::to_owned).collect();
    }
    let join = |ip: &str, port: i64| {
        if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
    };
    subset.list("ports").iter().flat_map(|p| ips().map(move |ip| join(ip, p.int("port")))).collect()
}

impl Hooks for Endpoints {
    fn default(&self, _version: &str, object: &mut Value) {
        for subset in list_mut(object, "subsets") {
            list_mut(subset, "ports").iter_mut().for_each(|p| default_text(p, "protocol", "TCP"));
        }
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        subsets(object)
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        // What was accepted before stays acceptable.
        if semantic_equal(new.at("subsets"), old.at("subsets")) { vec![] } else { subsets(new) }
    }

    fn warnings(&self, _ctx: &Ctx<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        if object::label(new, "endpoints.kubernetes.io/managed-by") == Some("endpoint-controller") {
            return vec![];
        }
        let mut all = vec![];
        for (i, subset) in new.list("subsets").iter().enumerate() {
            let path = Path::new("subsets").index(i);
            for field in ["addresses", "notReadyAddresses"] {
                for (j, a) in subset.list(field).iter().enumerate() {
                    all.extend(ip_warnings(&path.child(field).index(j).child("ip"), a.text("ip")));
                }
            }
        }
        all
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![name(object), cell(object).into(), age(object, now)]
    }
}

/// The definition of Endpoints.
pub fn def() -> ResourceDef {
    let mut def =
        ResourceDef::builtin("", "v1", "Endpoints", "endpoints", Scope::Namespaced, COLUMNS, Endpoints)
            .optional_to_start()
            .storage_prefix("services/endpoints")
            .metadata_checks(&[metadata::UPDATE, metadata::WHOLE], &[metadata::UPDATE])
            .short(&["ep"])
            .create_on_update();
    def.versions[0].deprecation =
        Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".into());
    def
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rejects_invalid_fields() {
        let bad = json!({"subsets": [{}, {"addresses": [{"ip": "127.0.0.1", "hostname": "A_"}, {"ip": "x"}],
            "ports": [{"port": 0}, {"port": 1, "name": "ok", "protocol": "X"}]}]});
        expect![[r#"
            subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`
            subsets[1].addresses[0].hostname: Invalid value: "A_": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')
            subsets[1].addresses[0].ip: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)
            subsets[1].addresses[1].ip: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)
            subsets[1].addresses[1].ip: Invalid value: "x": must be a valid IP address
            subsets[1].ports[0].name: Required value
            subsets[1].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive
            subsets[1].ports[1].protocol: Unsupported value: "X": supported values: "SCTP", "TCP", "UDP""#]]
        .assert_eq(&create_errors(&def(), bad));
    }

    #[test]
    fn prints_a_row() {
        let ep = json!({"metadata": {"name": "e"}, "subsets": [{"addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}],
            "ports": [{"port": 80}, {"port": 443}]}]});
        assert_eq!(row(&def(), &ep), "e | 10.0.0.1:80,10.0.0.2:80,10.0.0.1:443 + 1 more... | <unknown>");
        assert_eq!(row(&def(), &json!({"metadata": {"name": "e"}})), "e | <none> | <unknown>");
    }
}
