//! Validation of services.

use super::{EXTERNAL_NAME, accessible, families, is_headless, needs_health_check, service_type};
use crate::shared::{
    check,
    net::{check_endpoint_ip, check_legacy_cidr, check_legacy_ip},
    rules,
    value::Fields,
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object, validation,
};
use serde_json::Value;

const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const MODE: &str = "service.kubernetes.io/topology-mode";
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const ONLY_LOAD_BALANCER: &str = "may only be used when `type` is 'LoadBalancer'";

fn spec_path(field: &str) -> Path {
    Path::new("spec").child(field)
}

fn annotations() -> Path {
    Path::new("metadata").child("annotations")
}

/// Everything but the rules about transitions.
pub fn service(svc: &Value, old: Option<&Value>) -> ErrorList {
    let mut errs = vec![];
    if let (Some(hints), Some(mode)) = (object::annotation(svc, HINTS), object::annotation(svc, MODE))
        && hints != mode
    {
        let text = format!("must match annotations[{HINTS}] when both are specified");
        errs.push(Error::invalid(&annotations().key(MODE), mode, text));
    }
    by_type(&mut errs, svc);
    ports(&mut errs, svc);
    let spec = svc.at("spec");
    if spec.has("selector") {
        errs.extend(validation::validate_labels(spec.at("selector"), &spec_path("selector")));
    }
    affinity(&mut errs, spec);
    errs.extend(families::check(svc, old));
    external_ips(&mut errs, spec, old);
    let types = ["ClusterIP", EXTERNAL_NAME, "LoadBalancer", "NodePort"];
    check::required_one_of(&mut errs, &spec_path("type"), service_type(svc), &types);
    node_ports(&mut errs, svc);
    source_ranges(&mut errs, svc, old);
    load_balancer(&mut errs, svc);
    traffic(&mut errs, svc);
    errs
}

fn by_type(errs: &mut ErrorList, svc: &Value) {
    let (spec, ty) = (svc.at("spec"), service_type(svc));
    if spec.list("ports").is_empty() && !is_headless(svc) && ty != EXTERNAL_NAME {
        errs.push(Error::required(&spec_path("ports"), ""));
    }
    if ["LoadBalancer", "NodePort"].contains(&ty) && is_headless(svc) {
        let text = format!("may not be set to 'None' for {ty} services");
        errs.push(Error::invalid(&spec_path("clusterIPs").index(0), "None", text));
    }
    if ty != EXTERNAL_NAME {
        return;
    }
    let mut forbid = |field: &str, present: bool| {
        rules::frozen(errs, &spec_path(field), !present, "may not be set for ExternalName services");
    };
    forbid("clusterIPs", !spec.list("clusterIPs").is_empty());
    forbid("ipFamilies", !spec.list("ipFamilies").is_empty());
    forbid("ipFamilyPolicy", spec.has("ipFamilyPolicy"));
    let name = spec.text("externalName");
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() {
        errs.push(Error::required(&spec_path("externalName"), ""));
    } else {
        check::dns_subdomain(errs, &spec_path("externalName"), name);
    }
}

fn ports(errs: &mut ErrorList, svc: &Value) {
    let list = svc.at("spec").list("ports");
    let mut names: Vec<&str> = vec![];
    for (i, p) in list.iter().enumerate() {
        let path = spec_path("ports").index(i);
        let name = p.text("name");
        if name.is_empty() {
            if list.len() > 1 {
                errs.push(Error::required(&path.child("name"), ""));
            }
        } else {
            check::dns_label(errs, &path.child("name"), name);
            if names.contains(&name) {
                errs.push(Error::duplicate(&path.child("name"), name));
            } else {
                names.push(name);
            }
        }
        rules::port_number(errs, &path.child("port"), p.int("port"));
        rules::protocol(errs, &path.child("protocol"), p.text("protocol"));
        check::port_num_or_name(errs, &path.child("targetPort"), p.at("targetPort"));
        if let Some(app) = p.opt_text("appProtocol") {
            check::qualified_name(errs, &path.child("appProtocol"), app);
        }
    }
}

fn affinity(errs: &mut ErrorList, spec: &Value) {
    let kind = spec.text("sessionAffinity");
    check::required_one_of(errs, &spec_path("sessionAffinity"), kind, &["ClientIP", "None"]);
    let (path, config) = (spec_path("sessionAffinityConfig"), spec.at("sessionAffinityConfig"));
    if kind == "None" {
        let text = "must not be set when session affinity is None";
        rules::frozen(errs, &path, config.is_null(), text);
    }
    if kind != "ClientIP" {
        return;
    }
    let timeout = config.at("clientIP").opt_int("timeoutSeconds");
    let path = match (config.is_null(), config.has("clientIP")) {
        (true, _) => path,
        (_, false) => path.child("clientIP"),
        _ => path.child("clientIP").child("timeoutSeconds"),
    };
    match timeout {
        None => errs.push(Error::required(&path, "when session affinity type is ClientIP")),
        Some(t) if t <= 0 || t > 86400 => {
            errs.push(Error::invalid(&path, t, "must be greater than 0 and less than 86400"));
        }
        Some(_) => {}
    }
}

fn external_ips(errs: &mut ErrorList, spec: &Value, old: Option<&Value>) {
    let known: Vec<&str> = old.map(|o| o.at("spec").strings("externalIPs").collect()).unwrap_or_default();
    for (i, ip) in spec.strings("externalIPs").enumerate() {
        let path = spec_path("externalIPs").index(i);
        let bad = check_legacy_ip(&path, ip, &known);
        errs.extend(if bad.is_empty() { check_endpoint_ip(&path, ip) } else { bad });
    }
}

fn node_ports(errs: &mut ErrorList, svc: &Value) {
    let list = svc.at("spec").list("ports");
    let path = |i: usize| spec_path("ports").index(i);
    if service_type(svc) == "ClusterIP" {
        for (i, _) in list.iter().enumerate().filter(|(_, p)| p.int("nodePort") != 0) {
            errs.push(Error::forbidden(
                &path(i).child("nodePort"),
                "may not be used when `type` is 'ClusterIP'",
            ));
        }
    }
    let mut seen = vec![];
    for (i, p) in list.iter().enumerate().filter(|(_, p)| p.int("nodePort") != 0) {
        let key = (p.text("protocol"), p.int("nodePort"));
        if seen.contains(&key) {
            errs.push(Error::duplicate(&path(i).child("nodePort"), key.1));
        }
        seen.push(key);
    }
    let mut seen = vec![];
    for (i, p) in list.iter().enumerate() {
        let key = (p.text("protocol"), p.int("port"));
        if seen.contains(&key) {
            let shown = format!(
                r#"{{"Name":"","Protocol":{:?},"AppProtocol":null,"Port":{},"TargetPort":0,"NodePort":0}}"#,
                key.0, key.1
            );
            errs.push(Error::duplicate(&path(i), Value::Null).showing(shown));
        }
        seen.push(key);
    }
}

fn source_ranges(errs: &mut ErrorList, svc: &Value, old: Option<&Value>) {
    let balanced = service_type(svc) == "LoadBalancer";
    let trimmed = |v: &Value| -> Vec<String> {
        v.at("spec").strings("loadBalancerSourceRanges").map(|s| s.trim().to_owned()).collect()
    };
    let ranges = trimmed(svc);
    if !ranges.is_empty() {
        let path = spec_path("LoadBalancerSourceRanges");
        rules::frozen(errs, &path, balanced, ONLY_LOAD_BALANCER);
        let known = old.map(trimmed).unwrap_or_default();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        for (i, r) in ranges.iter().enumerate() {
            errs.extend(check_legacy_cidr(&path.index(i), r, &known));
        }
        return;
    }
    let Some(text) = object::annotation(svc, SOURCE_RANGES) else { return };
    let path = annotations().key(SOURCE_RANGES);
    rules::frozen(errs, &path, balanced, ONLY_LOAD_BALANCER);
    let same = old.is_some_and(|o| object::annotation(o, SOURCE_RANGES) == Some(text));
    if !same && !text.trim().is_empty() {
        text.trim().split(',').for_each(|r| errs.extend(check_legacy_cidr(&path, r.trim(), &[])));
    }
}

fn load_balancer(errs: &mut ErrorList, svc: &Value) {
    let (spec, balanced) = (svc.at("spec"), service_type(svc) == "LoadBalancer");
    let allocates = spec.has("allocateLoadBalancerNodePorts");
    if allocates && !balanced {
        errs.push(Error::forbidden(&spec_path("allocateLoadBalancerNodePorts"), ONLY_LOAD_BALANCER));
    }
    if !allocates && balanced {
        errs.push(Error::required(&Path::new("allocateLoadBalancerNodePorts"), ""));
    }
    if let Some(class) = spec.opt_text("loadBalancerClass") {
        if balanced {
            check::qualified_name(errs, &spec_path("loadBalancerClass"), class);
        } else {
            errs.push(Error::forbidden(&spec_path("loadBalancerClass"), ONLY_LOAD_BALANCER));
        }
    }
}

fn traffic(errs: &mut ErrorList, svc: &Value) {
    let (spec, ty) = (svc.at("spec"), service_type(svc));
    let external = spec.text("externalTrafficPolicy");
    if accessible(svc) {
        check::required_one_of(errs, &spec_path("externalTrafficPolicy"), external, &["Cluster", "Local"]);
    } else if !external.is_empty() {
        let text = "may only be set for externally-accessible services";
        errs.push(Error::invalid(&spec_path("externalTrafficPolicy"), external, text));
    }
    // Where a port is needed and absent, one is allocated after validation.
    let health = spec.int("healthCheckNodePort");
    if !needs_health_check(svc) && health != 0 {
        let text = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errs.push(Error::invalid(&spec_path("healthCheckNodePort"), health, text));
    } else if health != 0 {
        rules::port_number(errs, &spec_path("healthCheckNodePort"), health);
    }
    let path = spec_path("internalTrafficPolicy");
    match spec.opt_text("internalTrafficPolicy") {
        None if ["NodePort", "LoadBalancer", "ClusterIP"].contains(&ty) => {
            errs.push(Error::required(&path, ""))
        }
        None => {}
        Some(p) => check::one_of(errs, &path, p, &["Cluster", "Local"]),
    }
    if let Some(d) = spec.opt_text("trafficDistribution") {
        let valid = ["PreferClose", "PreferSameZone", "PreferSameNode"];
        check::one_of(errs, &spec_path("trafficDistribution"), d, &valid);
    }
}

/// The rules about an update of the main resource.
pub fn update(new: &Value, old: &Value) -> ErrorList {
    let mut errs = families::check_transition(new, old);
    let balanced = |s: &Value| service_type(s) == "LoadBalancer";
    let class = |s: &Value| s.at("spec").at("loadBalancerClass").clone();
    if balanced(new) && balanced(old) && class(new) != class(old) {
        errs.push(Error::invalid(&spec_path("loadBalancerClass"), class(new), "may not change once set"));
    }
    let health = |s: &Value| s.at("spec").int("healthCheckNodePort");
    if needs_health_check(new) && needs_health_check(old) && health(new) != health(old) {
        errs.push(Error::forbidden(&spec_path("healthCheckNodePort"), check::IMMUTABLE));
    }
    errs.extend(service(new, Some(old)));
    errs
}

/// The rules about an update of the status.
pub fn status(new: &Value, old: &Value) -> ErrorList {
    let mut errs = vec![];
    let path = Path::new("status").child("loadBalancer").child("ingress");
    let list = |s: &'_ Value| -> Vec<Value> { s.at("status").at("loadBalancer").list("ingress").to_vec() };
    let ingress = list(new);
    if service_type(new) != "LoadBalancer" && !ingress.is_empty() {
        errs.push(Error::forbidden(&path, "may only be used when `spec.type` is 'LoadBalancer'"));
        return errs;
    }
    let before = list(old);
    let known: Vec<&str> = before.iter().map(|i| i.text("ip")).filter(|ip| !ip.is_empty()).collect();
    for (i, point) in ingress.iter().enumerate() {
        let at = path.index(i);
        let (ip, mode, host) = (point.text("ip"), point.opt_text("ipMode"), point.text("hostname"));
        if !ip.is_empty() {
            errs.extend(check_legacy_ip(&at.child("ip"), ip, &known));
        }
        match mode {
            None if !ip.is_empty() => {
                errs.push(Error::required(&at.child("ipMode"), "must be specified when `ip` is set"));
            }
            None => {}
            Some(_) if ip.is_empty() => {
                errs.push(Error::forbidden(&at.child("ipMode"), "may not be specified when `ip` is not set"));
            }
            Some(m) => check::one_of(&mut errs, &at.child("ipMode"), m, &["Proxy", "VIP"]),
        }
        if !host.is_empty() {
            rules::ingress_point_hostname(&mut errs, &at.child("hostname"), host);
        }
    }
    errs
}
