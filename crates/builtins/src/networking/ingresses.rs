//! Ingresses.

use crate::{
    core::services::balancer_addresses,
    shared::{
        check, metadata,
        net::{check_legacy_ip, parse_ip_sloppy},
        rules,
        table::{age, name},
        value::{Fields, put},
    },
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object, validation,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Class",
        "string",
        0,
        "The name of the IngressClass resource that should be used for additional configuration",
    ),
    Column::new(
        "Hosts",
        "string",
        0,
        "Hosts that incoming requests are matched against before the ingress rule",
    ),
    Column::new("Address", "string", 0, "Address is a list containing ingress points for the load-balancer"),
    Column::new("Ports", "string", 0, "Ports of TLS configurations that open"),
    age_column(),
];

const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

struct Ingresses;

/// The API group, kind and name of a reference.
pub(super) fn reference(errs: &mut ErrorList, path: &Path, value: &Value) {
    if let Some(group) = value.opt_text("apiGroup") {
        check::dns_subdomain(errs, &path.child("apiGroup"), group);
    }
    for field in ["kind", "name"] {
        let text = value.text(field);
        if text.is_empty() {
            errs.push(Error::required(&path.child(field), ""));
        } else {
            check::each(errs, &path.child(field), text, validation::path_segment_name(text, false));
        }
    }
}

fn backend(errs: &mut ErrorList, path: &Path, backend: &Value) {
    match (backend.has("resource"), backend.has("service")) {
        (true, true) => errs.push(Error::invalid(path, "", "cannot set both resource and service backends")),
        (true, false) => reference(errs, &path.child("resource"), backend.at("resource")),
        (false, false) => errs.push(Error::invalid(path, "", "resource or service backend is required")),
        (false, true) => service_backend(errs, path, backend.at("service")),
    }
}

fn service_backend(errs: &mut ErrorList, path: &Path, service: &Value) {
    let (at, named) = (path.child("service"), service.text("name"));
    if named.is_empty() {
        errs.push(Error::required(&at.child("name"), ""));
    } else {
        check::dns_label(errs, &at.child("name"), named);
    }
    let port = service.at("port");
    match (port.text("name"), port.int("number")) {
        ("", 0) => errs.push(Error::required(path, "port name or number is required")),
        ("", n) => rules::port_number(errs, &at.child("port").child("number"), n),
        (name, 0) => {
            check::each(errs, &at.child("port").child("name"), name, validation::is_valid_port_name(name));
        }
        _ => errs.push(Error::invalid(path, "", "cannot set both port name & port number")),
    }
}

fn http_path(errs: &mut ErrorList, at: &Path, rule: &Value) {
    let (path, text) = (at.child("path"), rule.text("path"));
    let Some(ty) = rule.opt_text("pathType") else {
        errs.push(Error::required(&at.child("pathType"), "pathType must be specified"));
        return;
    };
    let mut bad = |detail: &str| errs.push(Error::invalid(&path, text, detail));
    match ty {
        "Exact" | "Prefix" => {
            if !text.starts_with('/') {
                bad("must be an absolute path");
            }
            for part in ["//", "/./", "/../", "%2f", "%2F"].iter().filter(|p| text.contains(**p)) {
                bad(&format!("must not contain '{part}'"));
            }
            for end in ["/..", "/."].iter().filter(|e| text.ends_with(**e)) {
                bad(&format!("cannot end with '{end}'"));
            }
        }
        "ImplementationSpecific" => {
            if !text.is_empty() && !text.starts_with('/') {
                bad("must be an absolute path");
            }
        }
        other => {
            let valid = ["Exact", "ImplementationSpecific", "Prefix"];
            errs.push(Error::not_supported(&at.child("pathType"), other, &valid));
        }
    }
    backend(errs, &at.child("backend"), rule.at("backend"));
}

fn host(errs: &mut ErrorList, path: &Path, host: &str) {
    if host.contains('*') {
        check::each(errs, path, host, validation::is_wildcard_dns1123_subdomain(host));
    } else {
        check::dns_subdomain(errs, path, host);
    }
}

fn validate(object: &Value, old: Option<&Value>) -> ErrorList {
    let (mut errs, spec, path) = (vec![], object.at("spec"), Path::new("spec"));
    if spec.list("rules").is_empty() && !spec.has("defaultBackend") {
        let text = "either `defaultBackend` or `rules` must be specified";
        errs.push(Error::invalid(&path, spec.at("rules").clone(), text));
    }
    if spec.has("defaultBackend") {
        backend(&mut errs, &path.child("defaultBackend"), spec.at("defaultBackend"));
    }
    for (i, rule) in spec.list("rules").iter().enumerate() {
        let (at, name) = (path.child("rules").index(i), rule.text("host"));
        if !name.is_empty() {
            if parse_ip_sloppy(name).is_some() {
                errs.push(Error::invalid(&at.child("host"), name, "must be a DNS name, not an IP address"));
            }
            host(&mut errs, &at.child("host"), name);
        }
        if rule.has("http") {
            let (at, paths) = (at.child("http").child("paths"), rule.at("http").list("paths"));
            if paths.is_empty() {
                errs.push(Error::required(&at, ""));
            }
            paths.iter().enumerate().for_each(|(j, p)| http_path(&mut errs, &at.index(j), p));
        }
    }
    let secrets_were_bad = old.is_some_and(|o| {
        let names = o.at("spec").list("tls").iter().map(|t| t.text("secretName"));
        names.filter(|n| !n.is_empty()).any(|n| !validation::is_dns1123_subdomain(n).is_empty())
    });
    for (i, tls) in spec.list("tls").iter().enumerate() {
        let at = path.child("tls").index(i);
        tls.strings("hosts").enumerate().for_each(|(j, h)| host(&mut errs, &at.child("hosts").index(j), h));
        let secret = tls.text("secretName");
        if !secret.is_empty() && !secrets_were_bad {
            check::dns_subdomain(&mut errs, &at.child("secretName"), secret);
        }
    }
    if let Some(class) = spec.opt_text("ingressClassName") {
        check::dns_subdomain(&mut errs, &path.child("ingressClassName"), class);
    }
    errs
}

fn validate_status(new: &Value, old: &Value) -> ErrorList {
    let mut errs = vec![];
    let points = |v: &Value| v.at("status").at("loadBalancer").list("ingress").to_vec();
    let before = points(old);
    let known: Vec<&str> = before.iter().map(|p| p.text("ip")).filter(|ip| !ip.is_empty()).collect();
    for (i, p) in points(new).iter().enumerate() {
        let at = Path::new("status").child("loadBalancer").child("ingress").index(i);
        let (ip, host) = (p.text("ip"), p.text("hostname"));
        if !ip.is_empty() {
            errs.extend(check_legacy_ip(&at.child("ip"), ip, &known));
        }
        if !host.is_empty() {
            rules::ingress_point_hostname(&mut errs, &at.child("hostname"), host);
        }
    }
    errs
}

impl Hooks for Ingresses {
    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({"loadBalancer": {}}));
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = validate(object, None);
        if let (Some(a), Some(class)) =
            (object::annotation(object, CLASS_ANNOTATION), object.at("spec").opt_text("ingressClassName"))
            && a != class
        {
            let path = Path::new("annotations").child(CLASS_ANNOTATION);
            errs.push(Error::invalid(&path, a, "must match `ingressClassName` when both are specified"));
        }
        errs
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        if ctx.subresource == "status" { validate_status(new, old) } else { validate(new, Some(old)) }
    }

    fn warnings(&self, _ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let set = object::annotation(new, CLASS_ANNOTATION).is_some();
        if old.is_none() && set && !new.at("spec").has("ingressClassName") {
            return vec![format!(
                "annotation {CLASS_ANNOTATION:?} is deprecated, please use 'spec.ingressClassName' instead"
            )];
        }
        vec![]
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let spec = object.at("spec");
        let points = object.at("status").at("loadBalancer").list("ingress");
        vec![
            name(object),
            spec.opt_text("ingressClassName").unwrap_or("<none>").into(),
            hosts(spec.list("rules")).into(),
            balancer_addresses(points).join(",").into(),
            (if spec.list("tls").is_empty() { "80" } else { "80, 443" }).into(),
            age(object, now),
        ]
    }
}

fn hosts(rules: &[Value]) -> String {
    const MAX: usize = 3;
    let mut list: Vec<&str> = vec![];
    let mut more = false;
    for rule in rules {
        more |= list.len() == MAX;
        if !more && !rule.text("host").is_empty() {
            list.push(rule.text("host"));
        }
    }
    if list.is_empty() {
        "*".into()
    } else if more {
        format!("{} + {} more...", list.join(","), rules.len() - MAX)
    } else {
        list.join(",")
    }
}

/// The definition of Ingresses.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        "networking.k8s.io",
        "v1",
        "Ingress",
        "ingresses",
        Scope::Namespaced,
        COLUMNS,
        Ingresses,
    )
    .optional_to_start()
    .storage_prefix("ingress")
    .metadata_checks(&[metadata::UPDATE, metadata::WHOLE], &[metadata::UPDATE])
    .short(&["ing"])
    .sub(&[SubresourceDef::status()])
    .with_generation()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row, update_errors};
    use expect_test::expect;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let bad = json!({"spec": {"defaultBackend": {}, "rules": [
            {"host": "1.2.3.4", "http": {"paths": [{"path": "a//b/..", "pathType": "Prefix", "backend": {"service": {"name": "s"}}}, {}]}},
            {"host": "*.Foo", "http": {}},
        ], "tls": [{"hosts": ["A"], "secretName": "B_"}]}});
        expect![[r#"
            spec.defaultBackend: Invalid value: "": resource or service backend is required
            spec.rules[0].host: Invalid value: "1.2.3.4": must be a DNS name, not an IP address
            spec.rules[0].http.paths[0].path: Invalid value: "a//b/..": must be an absolute path
            spec.rules[0].http.paths[0].path: Invalid value: "a//b/..": must not contain '//'
            spec.rules[0].http.paths[0].path: Invalid value: "a//b/..": cannot end with '/..'
            spec.rules[0].http.paths[0].backend: Required value: port name or number is required
            spec.rules[0].http.paths[1].pathType: Required value: pathType must be specified
            spec.rules[1].host: Invalid value: "*.Foo": a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\*\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
            spec.rules[1].http.paths: Required value
            spec.tls[0].hosts[0]: Invalid value: "A": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
            spec.tls[0].secretName: Invalid value: "B_": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"#]]
        .assert_eq(&create_errors(&def(), bad));
        expect![[r#"spec: Invalid value: null: either `defaultBackend` or `rules` must be specified"#]]
            .assert_eq(&create_errors(&def(), json!({"spec": {}})));
        let status = json!({"status": {"loadBalancer": {"ingress": [{"hostname": "1.2.3.4"}]}}});
        expect![[r#"status.loadBalancer.ingress[0].hostname: Invalid value: "1.2.3.4": must be a DNS name, not an IP address"#]]
            .assert_eq(&update_errors(&def(), "status", status, json!({})));
        let i = json!({"metadata": {"name": "i"}, "spec": {"ingressClassName": "nginx", "rules": [{"host": "a"}, {"host": "b"}], "tls": [{}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}, {"hostname": "x"}]}}});
        assert_eq!(row(&def(), &i), "i | nginx | a,b | 1.2.3.4,x | 80, 443 | <unknown>");
    }
}
