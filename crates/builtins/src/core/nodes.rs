//! Nodes.

mod annotations;

use super::services::PROXY_VERBS;
use crate::shared::{
    check, conditions,
    connect::{self, Target},
    metadata,
    net::{Cidr, check_legacy_cidr, cidr_warnings},
    rules,
    table::{age, name},
    value::{Fields, copy_field, drop_field, ensure_object, put},
};
use kaji_meta::{
    GroupVersionKind, Status,
    field::{Error, ErrorList, Path},
    object, text,
};
use kaji_resource::{
    BoxFuture, CallHooks, Carries, Column, ConnectRequest, Ctx, Hooks, Location, LocationQuery, ResourceDef,
    Scope, SelectableField, SubresourceDef, age_column, name_column,
};
use serde_json::Value;
use std::{cmp::Ordering, collections::BTreeSet};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new("Status", "string", 0, "The status of the node"),
    Column::new("Roles", "string", 0, "The roles of the node"),
    age_column(),
    Column::new("Version", "string", 0, "Kubelet Version reported by the node."),
    Column::new(
        "Internal-IP",
        "string",
        1,
        "List of addresses reachable to the node. Queried from cloud provider, if available. More info: https://kubernetes.io/docs/reference/node/node-status/#addresses Note: This field is declared as mergeable, but the merge key is not sufficiently unique, which can cause data corruption when it is merged. Callers should instead use a full-replacement patch. See https://pr.k8s.io/79391 for an example. Consumers should assume that addresses can change during the lifetime of a Node. However, there are some exceptions where this may not be possible, such as Pods that inherit a Node's address in its own status or consumers of the downward API (status.hostIP).",
    ),
    Column::new(
        "External-IP",
        "string",
        1,
        "List of addresses reachable to the node. Queried from cloud provider, if available. More info: https://kubernetes.io/docs/reference/node/node-status/#addresses Note: This field is declared as mergeable, but the merge key is not sufficiently unique, which can cause data corruption when it is merged. Callers should instead use a full-replacement patch. See https://pr.k8s.io/79391 for an example. Consumers should assume that addresses can change during the lifetime of a Node. However, there are some exceptions where this may not be possible, such as Pods that inherit a Node's address in its own status or consumers of the downward API (status.hostIP).",
    ),
    Column::new(
        "OS-Image",
        "string",
        1,
        "OS Image reported by the node from /etc/os-release (e.g. Debian GNU/Linux 7 (wheezy)).",
    ),
    Column::new(
        "Kernel-Version",
        "string",
        1,
        "Kernel Version reported by the node from 'uname -r' (e.g. 3.16.0-0.bpo.4-amd64).",
    ),
    Column::new(
        "Container-Runtime",
        "string",
        1,
        "ContainerRuntime Version reported by the node through runtime remote API (e.g. containerd://1.4.2).",
    ),
];

struct Nodes;

fn validate(node: &Value) -> ErrorList {
    let mut errs = vec![];
    annotations::validate(&mut errs, node);
    let spec = node.at("spec");
    rules::taints(&mut errs, &Path::new("metadata").child("taints"), spec.list("taints"));
    resources(&mut errs, node);
    let swap = node.at("status").at("nodeInfo").at("swap");
    if let Some(capacity) = swap.opt_int("capacity") {
        check::positive(
            &mut errs,
            &Path::new("metadata").child("nodeSwapStatus").child("capacity"),
            capacity,
        );
    }
    declared_features(&mut errs, node);
    let (path, cidrs) = (Path::new("spec").child("podCIDRs"), spec.list("podCIDRs"));
    for (i, cidr) in spec.strings("podCIDRs").enumerate() {
        errs.extend(check_legacy_cidr(&path.index(i), cidr, &[]));
    }
    if cidrs.len() > 1 {
        let broken =
            spec.strings("podCIDRs").enumerate().find(|(_, cidr)| Cidr::parse_sloppy(cidr).is_none());
        if let Some((i, cidr)) = broken {
            let text = format!(
                "invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[{i}]: <nil> (invalid CIDR address: {cidr})"
            );
            errs.push(Error::internal(&path, text));
        }
        let v6 = spec.strings("podCIDRs").filter(|c| c.contains(':')).count();
        if v6 == 0 || v6 == cidrs.len() || cidrs.len() > 2 {
            errs.push(Error::invalid(
                &path,
                cidrs.to_vec(),
                "may specify no more than one CIDR for each IP family",
            ));
        }
    }
    errs
}

fn resources(errs: &mut ErrorList, node: &Value) {
    for field in ["capacity", "allocatable"] {
        let path = Path::new("status").child(field);
        for (k, v) in node.at("status").map(field).into_iter().flatten() {
            rules::resource_amount(errs, &path.child(k), k, v);
        }
    }
}

/// The longest name of a feature.
const LONGEST_FEATURE: usize = 253;

/// Names of features are segments of letters and digits between slashes, the first with a capital, and sorted.
fn declared_features(errs: &mut ErrorList, node: &Value) {
    let path = Path::new("status").child("declaredFeatures");
    let features: Vec<&str> = node.at("status").strings("declaredFeatures").collect();
    for (i, feature) in features.iter().enumerate() {
        let plain = |s: &str| s.bytes().all(|b| b.is_ascii_alphanumeric());
        let segment = |s: &str| s.starts_with(|c: char| c.is_ascii_alphabetic()) && plain(s);
        let name = text::quote(feature);
        if feature.len() > LONGEST_FEATURE {
            let text =
                format!("invalid feature name {name}: must be no more than {LONGEST_FEATURE} characters");
            errs.push(Error::invalid(&path.index(i), *feature, text));
        } else if !feature.starts_with(|c: char| c.is_ascii_uppercase()) || !feature.split('/').all(segment) {
            let text = format!(
                "invalid feature name {name}: must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes"
            );
            errs.push(Error::invalid(&path.index(i), *feature, text));
        }
        let Some(next) = features.get(i + 1) else { continue };
        match feature.cmp(next) {
            Ordering::Less => {}
            Ordering::Equal => errs.push(Error::duplicate(&path.index(i + 1), *next)),
            Ordering::Greater => {
                errs.push(Error::invalid(&path.index(i + 1), *next, "list must be sorted alphabetically"));
            }
        }
    }
}

fn validate_change(new: &Value, old: &Value) -> ErrorList {
    let mut errs = vec![];
    annotations::validate(&mut errs, new);
    resources(&mut errs, new);
    declared_features(&mut errs, new);
    let addresses = new.at("status").list("addresses");
    for (i, a) in addresses.iter().enumerate() {
        if addresses[..i].contains(a) {
            let path = Path::new("status").child("addresses").index(i);
            let mut error = Error::duplicate(&path, Value::Null).without_value();
            error.detail = format!(r#"{{"Type":{},"Address":{}}}"#, a.at("type"), a.at("address"));
            errs.push(error);
        }
    }
    let (n, o, spec) = (new.at("spec"), old.at("spec"), Path::new("spec"));
    if !o.list("podCIDRs").is_empty() {
        let same = n.list("podCIDRs") == o.list("podCIDRs");
        let text = "node updates may not change podCIDR except from \"\" to valid";
        rules::frozen(&mut errs, &spec.child("podCIDRs"), same, text);
    }
    let provider = o.text("providerID");
    let same = provider.is_empty() || n.text("providerID") == provider;
    let text = "node updates may not change providerID except from \"\" to valid";
    rules::frozen(&mut errs, &spec.child("providerID"), same, text);
    rules::taints(&mut errs, &Path::new("metadata").child("taints"), n.list("taints"));
    let same = n.text("externalID") == o.text("externalID");
    rules::frozen(&mut errs, &spec.child("externalID"), same, "may not be updated");
    errs
}

/// `podCIDR` is the first of `podCIDRs`; a client may set only one of them.
fn sync_pod_cidrs(node: &mut Value) {
    let Some(spec) = node.get_mut("spec") else { return };
    let (one, first) = (spec.text("podCIDR").to_owned(), spec.strings("podCIDRs").next().map(str::to_owned));
    match first {
        Some(first) if one.is_empty() => put(spec, "podCIDR", first),
        // The older field counts where they differ.
        first if !one.is_empty() && first.as_ref() != Some(&one) => {
            put(spec, "podCIDRs", vec![Value::from(one)]);
        }
        _ => {}
    }
}

impl Hooks for Nodes {
    fn calls(&self) -> &dyn CallHooks {
        self
    }

    fn default(&self, _version: &str, object: &mut Value) {
        if let Some(status) = object.get_mut("status")
            && !status.has("allocatable")
            && status.has("capacity")
        {
            let capacity = status.at("capacity").clone();
            put(status, "allocatable", capacity);
        }
        if let Some(status) = object.get_mut("status") {
            ["capacity", "allocatable"].iter().for_each(|list| rules::round_quantities(status, list));
        }
        sync_pod_cidrs(object);
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        if let Some(spec) = object.get_mut("spec") {
            drop_field(spec, "configSource");
        }
        if let Some(status) = object.get_mut("status") {
            drop_field(status, "config");
        }
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        validate(object)
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if ctx.subresource.is_empty() {
            copy_field(new, old, "status");
            if !old.at("spec").has("configSource") {
                drop_field(ensure_object(new, "spec"), "configSource");
            }
        } else if !old.at("status").has("config")
            && let Some(status) = new.get_mut("status")
        {
            drop_field(status, "config");
        }
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = if ctx.subresource.is_empty() { validate(new) } else { vec![] };
        errs.extend(validate_change(new, old));
        errs
    }

    fn warnings(&self, ctx: &Ctx<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        if !ctx.subresource.is_empty() {
            return vec![];
        }
        let (spec, mut all) = (new.at("spec"), vec![]);
        if spec.has("configSource") {
            all.push("spec.configSource: the feature is removed".into());
        }
        if !spec.text("externalID").is_empty() {
            all.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".into());
        }
        let path = Path::new("spec").child("podCIDRs");
        for (i, cidr) in spec.strings("podCIDRs").enumerate() {
            all.extend(cidr_warnings(&path.index(i), cidr));
        }
        all
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let info = object.at("status").at("nodeInfo");
        let known =
            |field: &str| Some(info.text(field)).filter(|t| !t.is_empty()).unwrap_or("<unknown>").to_owned();
        let mut kernel = known("kernelVersion");
        if !info.text("architecture").is_empty() {
            kernel.push_str(&format!(" ({})", info.text("architecture")));
        }
        vec![
            name(object),
            status(object).into(),
            roles(object).into(),
            age(object, now),
            info.text("kubeletVersion").into(),
            address(object, "InternalIP").into(),
            address(object, "ExternalIP").into(),
            known("osImage").into(),
            kernel.into(),
            known("containerRuntimeVersion").into(),
        ]
    }
}

impl CallHooks for Nodes {
    /// Source: `ResourceLocation` in `pkg/registry/core/node`.
    fn connect<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        request: ConnectRequest<'a>,
    ) -> BoxFuture<'a, Result<Option<Location>, Status>> {
        Box::pin(async move {
            let target = Target::parse(ctx.name, "node")?;
            let node = connect::read(ctx, "nodes", "", target.name)?;
            let path = connect::proxied_path(request.options);
            let kubelet = connect::kubelet_port(&node).to_string();
            if target.port.is_empty() || target.port == kubelet {
                let query = LocationQuery::AsReceived;
                return Ok(Some(connect::kubelet(&node, true, path, query)));
            }
            connect::node_port(&node, &target, path).map(Some)
        })
    }
}

fn status(node: &Value) -> String {
    let mut text = match conditions::find(node.at("status"), "Ready") {
        Some(c) if c.text("status") == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if node.at("spec").flag("unschedulable") {
        text.push_str(",SchedulingDisabled");
    }
    text
}

fn roles(node: &Value) -> String {
    let role = |(k, v): (&str, &str)| match k.strip_prefix("node-role.kubernetes.io/") {
        Some(role) => Some(role.to_owned()),
        None => (k == "kubernetes.io/role").then(|| v.to_owned()),
    };
    let all: BTreeSet<String> = object::labels(node).filter_map(role).filter(|r| !r.is_empty()).collect();
    if all.is_empty() { "<none>".into() } else { all.into_iter().collect::<Vec<_>>().join(",") }
}

fn address<'a>(node: &'a Value, ty: &str) -> &'a str {
    let found = node.at("status").list("addresses").iter().find(|a| a.text("type") == ty);
    found.map_or("<none>", |a| a.text("address"))
}

/// The definition of Nodes.
pub fn def() -> ResourceDef {
    let proxy = GroupVersionKind::new("", "v1", "NodeProxyOptions");
    ResourceDef::builtin("", "v1", "Node", "nodes", Scope::Cluster, COLUMNS, Nodes)
        .storage_prefix("minions")
        .metadata_checks(&[metadata::WHOLE, metadata::UPDATE], &[metadata::UPDATE])
        .short(&["no"])
        .sub(&[
            SubresourceDef::status(),
            SubresourceDef::connect("proxy", proxy, Carries::Requests, PROXY_VERBS),
        ])
        .select(&[SelectableField::new("spec.unschedulable").missing("false")])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, created, row, update_errors};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn fills_in_defaults() {
        expect![[r#"
            {
              "metadata": {
                "name": "n"
              },
              "spec": {
                "podCIDR": "10.0.0.0/24",
                "podCIDRs": [
                  "10.0.0.0/24"
                ]
              },
              "status": {
                "allocatable": {
                  "cpu": "4"
                },
                "capacity": {
                  "cpu": "4"
                }
              }
            }"#]]
        .assert_eq(&created(
            &def(),
            json!({"metadata": {"name": "n"}, "spec": {"podCIDR": "10.0.0.0/24"}, "status": {"capacity": {"cpu": "4"}}}),
        ));
        // Where the two differ, the older field counts.
        let odd = json!({"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["x"]}});
        let made: Value = serde_json::from_str(&created(&def(), odd)).unwrap();
        assert_eq!(made["spec"]["podCIDRs"], json!(["10.0.0.0/24"]));
    }

    #[test]
    fn rejects_broken_pairs_of_cidrs_and_rounds_amounts() {
        let node =
            json!({"spec": {"podCIDRs": ["10.0.0.0/24", "x-1"]}, "status": {"capacity": {"cpu": "100u"}}});
        expect![[r#"
            spec.podCIDRs[1]: Invalid value: "x-1": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)
            spec.podCIDRs: Internal error: invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[1]: <nil> (invalid CIDR address: x-1)
            spec.podCIDRs: Invalid value: ["10.0.0.0/24","x-1"]: may specify no more than one CIDR for each IP family"#]].assert_eq(&create_errors(&def(), node.clone()));
        let made: Value = serde_json::from_str(&created(&def(), node)).unwrap();
        assert_eq!(made["status"], json!({"capacity": {"cpu": "1m"}, "allocatable": {"cpu": "1m"}}));
    }

    #[test]
    fn rejects_invalid_fields() {
        let bad = json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule"}, {"key": "b"}],
            "podCIDRs": ["10.0.0.0/24", "10.0.1.0/24"]}, "status": {"capacity": {"pods": "1500m", "cpu": "-1"}}});
        expect![[r#"
            metadata.taints[1]: Duplicate value: {"Key":"a","Value":"","Effect":"NoSchedule","TimeAdded":null}: taints must be unique by key and effect pair
            metadata.taints[2].effect: Required value
            status.capacity.cpu: Invalid value: "-1": must be greater than or equal to 0
            status.capacity.pods: Invalid value: "1500m": must be an integer
            status.allocatable.cpu: Invalid value: "-1": must be greater than or equal to 0
            status.allocatable.pods: Invalid value: "1500m": must be an integer
            spec.podCIDRs: Invalid value: ["10.0.0.0/24","10.0.1.0/24"]: may specify no more than one CIDR for each IP family"#]]
        .assert_eq(&create_errors(&def(), bad));
        let old = json!({"spec": {"podCIDRs": ["10.0.0.0/24"], "providerID": "a"}});
        expect![[r#"
            spec.podCIDRs: Forbidden: node updates may not change podCIDR except from "" to valid
            spec.providerID: Forbidden: node updates may not change providerID except from "" to valid"#]]
        .assert_eq(&update_errors(&def(), "", json!({"spec": {"podCIDRs": ["10.0.1.0/24"]}}), old));
        let mut contradicting = json!({"spec": {"podCIDR": "10.0.1.0/24", "podCIDRs": ["10.0.0.0/24"]}});
        sync_pod_cidrs(&mut contradicting);
        assert_eq!(contradicting["spec"]["podCIDRs"], json!(["10.0.1.0/24"]));
    }

    #[test]
    fn declared_features_are_sorted_names() {
        let status = |features: &[&str]| json!({"status": {"declaredFeatures": features}});
        let good = status(&["A1", "A1/b", "Bc"]);
        assert_eq!(update_errors(&def(), "status", good.clone(), json!({})), "");
        assert_eq!(create_errors(&def(), good), "");
        let bad = status(&["a", "B//c", "A", "A", "A-b"]);
        expect![[r#"
            status.declaredFeatures[0]: Invalid value: "a": invalid feature name "a": must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes
            status.declaredFeatures[1]: Invalid value: "B//c": list must be sorted alphabetically
            status.declaredFeatures[1]: Invalid value: "B//c": invalid feature name "B//c": must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes
            status.declaredFeatures[2]: Invalid value: "A": list must be sorted alphabetically
            status.declaredFeatures[3]: Duplicate value: "A"
            status.declaredFeatures[4]: Invalid value: "A-b": invalid feature name "A-b": must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes"#]]
        .assert_eq(&update_errors(&def(), "status", bad, json!({})));
        let long = "A".repeat(LONGEST_FEATURE + 1);
        assert!(
            update_errors(&def(), "status", status(&[&long]), json!({}))
                .contains("no more than 253 characters")
        );
    }

    #[test]
    fn prints_a_row() {
        let node = json!({
            "metadata": {"name": "n", "labels": {"node-role.kubernetes.io/control-plane": "", "kubernetes.io/role": "x"}},
            "spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "addresses": [{"type": "InternalIP", "address": "1.2.3.4"}],
                "nodeInfo": {"kubeletVersion": "v1.37.0", "kernelVersion": "6.1", "architecture": "amd64"}},
        });
        expect!["n | Ready,SchedulingDisabled | control-plane,x | <unknown> | v1.37.0 | 1.2.3.4 | <none> | <unknown> | 6.1 (amd64) | <unknown>"]
            .assert_eq(&row(&def(), &node));
    }
}
