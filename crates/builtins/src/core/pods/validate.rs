//! Validation of pod specs, with upstream's texts and (where a client could depend on it) upstream's order.
//!
//! Invariants: works on the wire form after defaulting; never panics on shapes that decoding accepts.

pub mod annotations;
mod containers;
mod env;
pub(crate) mod old_volumes;
mod paths;
mod probes;
mod projected;
mod requirements;
mod scheduling;
mod security;
mod volumes;

pub use paths::no_backsteps;
pub use projected::{is_kubernetes_signer, signer_name};
pub use requirements::requirements as container_requirements;
pub(crate) use scheduling::only_deleted_gates;
pub use scheduling::{node_selector, node_selector_with, tolerations};
pub(crate) use volumes::{host_path, nfs};

use crate::shared::{Fields, check, value::FieldTable};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
    validation,
};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};

/// What the parts of a spec's validation share.
pub(crate) struct Cx<'a> {
    pub spec: &'a FieldTable<'a>,
    /// The spec belongs to a Pod, not to a template.
    pub is_pod: bool,
    /// Well-formed volumes by name.
    pub volumes: HashMap<&'a str, &'a Value>,
    /// Names in `spec.resourceClaims`.
    pub claims: BTreeSet<&'a str>,
    pub grace: Option<i64>,
    pub host_users: bool,
    /// `linux`, `windows` or nothing.
    pub os: Option<&'a str>,
}

/// Validates a pod's or template's spec. `metadata` is the pod's own; templates have none.
pub fn pod_spec(errs: &mut ErrorList, path: &Path, spec: &Value, metadata: Option<&Value>) {
    let spec = &FieldTable::of(spec);
    let grace = spec.opt_int("terminationGracePeriodSeconds");
    if grace.is_none() {
        errs.push(Error::required(&path.child("terminationGracePeriodSeconds"), ""));
    }
    let volumes = volumes::volumes(errs, &path.child("volumes"), spec.value(), metadata);
    let cx = Cx {
        spec,
        is_pod: metadata.is_some(),
        volumes,
        claims: spec
            .list("resourceClaims")
            .iter()
            .map(|c| c.text("name"))
            .filter(|n| !n.is_empty())
            .collect(),
        grace,
        host_users: spec.opt_flag("hostUsers").unwrap_or(true),
        os: spec.get_field("os").map(|o| o.text("name")),
    };
    resource_claims(errs, &path.child("resourceClaims"), spec, metadata);
    containers::containers(errs, &cx, &path.child("containers"));
    containers::init_containers(errs, &cx, &path.child("initContainers"));
    containers::ephemeral_containers(errs, &cx, &path.child("ephemeralContainers"));
    requirements::pod_level(errs, &cx, path);
    host_network_ports(errs, &cx, path);
    check::required_one_of(
        errs,
        &path.child("restartPolicy"),
        spec.text("restartPolicy"),
        &["Always", "OnFailure", "Never"],
    );
    check::required_one_of(
        errs,
        &path.child("dnsPolicy"),
        spec.text("dnsPolicy"),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
    );
    errs.extend(validation::validate_labels(spec.at("nodeSelector"), &path.child("nodeSelector")));
    security::pod_security_context(errs, &cx, &path.child("securityContext"));
    scheduling::affinity(errs, &path.child("affinity"), spec.at("affinity"));
    dns_config(errs, &path.child("dnsConfig"), spec);
    gates(errs, path, spec);
    scheduling::topology_spread(errs, &path.child("topologySpreadConstraints"), spec.value());
    security::windows_host_process(errs, &cx, path);
    security::host_users(errs, &cx, path);
    host_names(errs, path, spec);
    names_and_numbers(errs, path, spec);
    security::operating_system(errs, &cx, path);
    scheduling_group(errs, &path.child("schedulingGroup"), spec);
    env::file_key_volumes(errs, &cx, path);
}

/// What upstream checks on the whole of a pod besides ObjectMeta.
pub fn pod(errs: &mut ErrorList, pod: &Value) {
    let (meta, spec) = (pod.at("metadata"), pod.at("spec"));
    let path = Path::new("spec");
    annotations::annotations(errs, &Path::new("metadata").child("annotations"), meta, spec);
    pod_spec(errs, &path, spec, Some(meta));
    if spec.text("serviceAccountName").is_empty() {
        for (vi, v) in spec.list("volumes").iter().enumerate() {
            for (si, source) in v.at("projected").list("sources").iter().enumerate() {
                if source.has("serviceAccountToken") {
                    let p = path.child("volumes").index(vi).child("projected").child("sources").index(si);
                    errs.push(Error::forbidden(
                        &p.child("serviceAccountToken"),
                        "must not be specified when serviceAccountName is not set",
                    ));
                }
            }
        }
    }
    for list in ["containers", "initContainers"] {
        for (i, c) in spec.list(list).iter().enumerate() {
            image_without_spaces(errs, &path.child(list).index(i), c);
        }
    }
}

/// The image may not begin or end with white space (pods only; templates tolerate it).
pub(crate) fn image_without_spaces(errs: &mut ErrorList, path: &Path, container: &Value) {
    let image = container.text("image");
    if image.trim() != image {
        let text = "must not have leading or trailing whitespace";
        errs.push(Error::invalid(&path.child("image"), image, text));
    }
}

fn resource_claims(errs: &mut ErrorList, path: &Path, spec: &FieldTable<'_>, metadata: Option<&Value>) {
    let mirror = metadata.is_some_and(|m| m.at("annotations").has("kubernetes.io/config.mirror"));
    let mut seen = BTreeSet::new();
    for (i, claim) in spec.list("resourceClaims").iter().enumerate() {
        if mirror {
            errs.push(Error::forbidden(&Path::root(), "static pods do not support resource claims"));
            continue;
        }
        let path = path.index(i);
        let name = claim.text("name");
        if name.is_empty() {
            errs.push(Error::required(&path.child("name"), ""));
        } else if !seen.insert(name) {
            errs.push(Error::duplicate(&path.child("name"), name));
        } else {
            check::dns_label(errs, &path.child("name"), name);
        }
        let (direct, template) =
            (claim.opt_text("resourceClaimName"), claim.opt_text("resourceClaimTemplateName"));
        if direct.is_some() && template.is_some() {
            let text = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified";
            errs.push(check::invalid_struct(&path, "io.k8s.api.core.v1.PodResourceClaim", claim, text));
        }
        if direct.is_none() && template.is_none() {
            let text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
            errs.push(check::invalid_struct(&path, "io.k8s.api.core.v1.PodResourceClaim", claim, text));
        }
        for (field, value) in [("resourceClaimName", direct), ("resourceClaimTemplateName", template)] {
            if let Some(v) = value {
                check::dns_subdomain(errs, &path.child(field), v);
            }
        }
    }
}

fn host_network_ports(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path) {
    if !cx.spec.flag("hostNetwork") {
        return;
    }
    for (ci, c) in cx.spec.list("containers").iter().enumerate() {
        for (pi, p) in c.list("ports").iter().enumerate() {
            let (host, own) = (p.int("hostPort"), p.int("containerPort"));
            if (cx.is_pod || host != 0) && host != own {
                let p = path.child("containers").index(ci).child("ports").index(pi).child("hostPort");
                errs.push(Error::invalid(&p, host, "must match `containerPort` when `hostNetwork` is true"));
            }
        }
    }
}

fn dns_config(errs: &mut ErrorList, path: &Path, spec: &FieldTable<'_>) {
    let config = spec.get_field("dnsConfig");
    if spec.text("dnsPolicy") == "None" {
        let Some(c) = config else {
            errs.push(Error::required(path, "must provide `dnsConfig` when `dnsPolicy` is None"));
            return;
        };
        if c.list("nameservers").is_empty() {
            let text = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errs.push(Error::required(&path.child("nameservers"), text));
            return;
        }
    }
    let Some(c) = config else { return };
    let servers = path.child("nameservers");
    if c.list("nameservers").len() > 3 {
        errs.push(Error::invalid(
            &servers,
            c.at("nameservers").clone(),
            "must not have more than 3 nameservers",
        ));
    }
    for (i, ns) in c.strings("nameservers").enumerate() {
        check::ip(errs, &servers.index(i), ns, &[]);
    }
    let searches = path.child("searches");
    let list = c.list("searches");
    if list.len() > 32 {
        errs.push(Error::invalid(
            &searches,
            c.at("searches").clone(),
            "must not have more than 32 search paths",
        ));
    }
    if c.strings("searches").map(|s| s.len() + 1).sum::<usize>() > 2049 {
        let text = "must not have more than 2048 characters (including spaces) in the search list";
        errs.push(Error::invalid(&searches, c.at("searches").clone(), text));
    }
    for (i, search) in c.strings("searches").enumerate().filter(|(_, s)| *s != ".") {
        let s = search.strip_suffix('.').unwrap_or(search);
        check::each(errs, &searches.index(i), s, validation::is_dns1123_subdomain_with_underscore(s));
    }
    for (i, option) in c.list("options").iter().enumerate() {
        if option.text("name").is_empty() {
            errs.push(Error::required(&path.child("options").index(i), "must not be empty"));
        }
    }
}

fn gates(errs: &mut ErrorList, path: &Path, spec: &FieldTable<'_>) {
    for (i, gate) in spec.list("readinessGates").iter().enumerate() {
        let p = path.child("readinessGates").index(i).child("conditionType");
        check::qualified_name(errs, &p, gate.text("conditionType"));
    }
    let mut seen = BTreeSet::new();
    for (i, gate) in spec.list("schedulingGates").iter().enumerate() {
        let p = path.child("schedulingGates").index(i);
        let name = gate.text("name");
        check::qualified_name(errs, &p, name);
        if !seen.insert(name) {
            errs.push(Error::duplicate(&p, name));
        }
    }
}

fn host_names(errs: &mut ErrorList, path: &Path, spec: &FieldTable<'_>) {
    let Some(name) = spec.opt_text("hostnameOverride") else { return };
    let path = path.child("hostnameOverride");
    if spec.flag("setHostnameAsFQDN") {
        errs.push(Error::forbidden(&path, "may not be specified when setHostnameAsFQDN is true"));
    }
    if spec.flag("hostNetwork") {
        errs.push(Error::forbidden(&path, "may not be specified when hostNetwork is true"));
    }
    if name.len() > 64 {
        errs.push(Error::too_long(&path, "", 64));
    }
    check::dns_subdomain(errs, &path, name);
}

fn names_and_numbers(errs: &mut ErrorList, path: &Path, spec: &FieldTable<'_>) {
    for field in ["serviceAccountName", "nodeName"] {
        if !spec.text(field).is_empty() {
            check::dns_subdomain(errs, &path.child(field), spec.text(field));
        }
    }
    if let Some(n) = spec.opt_int("activeDeadlineSeconds")
        && !(1..=i64::from(i32::MAX)).contains(&n)
    {
        let text = "must be between 1 and 2147483647, inclusive";
        errs.push(Error::invalid(&path.child("activeDeadlineSeconds"), n, text));
    }
    for field in ["hostname", "subdomain"] {
        if !spec.text(field).is_empty() {
            check::dns_label(errs, &path.child(field), spec.text(field));
        }
    }
    scheduling::tolerations(errs, &path.child("tolerations"), spec.list("tolerations"));
    for (i, alias) in spec.list("hostAliases").iter().enumerate() {
        let p = path.child("hostAliases").index(i);
        check::ip(errs, &p.child("ip"), alias.text("ip"), &[]);
        for (j, name) in alias.strings("hostnames").enumerate() {
            check::dns_subdomain(errs, &p.child("hostnames").index(j), name);
        }
    }
    if !spec.text("priorityClassName").is_empty() {
        check::dns_subdomain(errs, &path.child("priorityClassName"), spec.text("priorityClassName"));
    }
    if let Some(name) = spec.opt_text("runtimeClassName") {
        check::dns_subdomain(errs, &path.child("runtimeClassName"), name);
    }
    if let Some(policy) = spec.opt_text("preemptionPolicy") {
        let allowed = ["PreemptLowerPriority", "Never"];
        check::required_one_of(errs, &path.child("preemptionPolicy"), policy, &allowed);
    }
    if spec.has("overhead") {
        let overhead = serde_json::json!({"limits": spec.at("overhead")});
        requirements::requirements(errs, &path.child("overhead"), &overhead, &BTreeSet::new());
    }
}

fn scheduling_group(errs: &mut ErrorList, path: &Path, spec: &FieldTable<'_>) {
    let Some(group) = spec.get_field("schedulingGroup") else { return };
    let path = path.child("podGroupName");
    match group.opt_text("podGroupName") {
        None => errs.push(Error::invalid(&path, Value::Null, "must specify one of: `podGroupName`")),
        Some(name) => check::dns_subdomain(errs, &path, name),
    }
}
