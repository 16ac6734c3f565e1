//! Probes and lifecycle handlers.

use super::Cx;
use crate::shared::{Fields, check};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
};
use serde_json::Value;

/// Probes and lifecycle of a container that runs beside others (no plain init containers).
pub(super) fn of_container(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path, c: &Value) {
    if let Some(l) = c.get_field("lifecycle") {
        let path = path.child("lifecycle");
        for (hook, kinds) in [("postStart", &LIFECYCLE), ("preStop", &LIFECYCLE)] {
            if let Some(h) = l.get_field(hook) {
                handler(errs, cx, &path.child(hook), h, kinds);
            }
        }
        if let Some(signal) = l.opt_text("stopSignal") {
            stop_signal(errs, cx, &path.child("stopSignal"), signal);
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(p) = c.get_field(name) else { continue };
        let path = path.child(name);
        probe(errs, cx, &path, p);
        if name == "readinessProbe" {
            if let Some(n) = p.opt_int("terminationGracePeriodSeconds") {
                let path = path.child("terminationGracePeriodSeconds");
                errs.push(Error::invalid(&path, n, "must not be set for readinessProbes"));
            }
        } else if p.int("successThreshold") != 1 {
            errs.push(Error::invalid(
                &path.child("successThreshold"),
                p.int("successThreshold"),
                "must be 1",
            ));
        }
    }
}

fn probe(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path, p: &Value) {
    handler(errs, cx, path, p, &PROBE);
    let numbers =
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"];
    check::not_negative_fields(errs, path, p, &numbers);
    if let Some(n) = p.opt_int("terminationGracePeriodSeconds")
        && n <= 0
    {
        errs.push(Error::invalid(&path.child("terminationGracePeriodSeconds"), n, "must be greater than 0"));
    }
}

const PROBE: [&str; 4] = ["exec", "httpGet", "tcpSocket", "grpc"];
const LIFECYCLE: [&str; 4] = ["exec", "httpGet", "tcpSocket", "sleep"];

fn handler(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path, holder: &Value, kinds: &[&str]) {
    let mut found = 0;
    for kind in kinds {
        let Some(h) = holder.get_field(kind) else { continue };
        let path = path.child(kind);
        if found > 0 {
            errs.push(Error::forbidden(&path, "may not specify more than 1 handler type"));
            continue;
        }
        found += 1;
        match *kind {
            "exec" => {
                if h.list("command").is_empty() {
                    errs.push(Error::required(&path.child("command"), ""));
                }
            }
            "httpGet" => http_get(errs, &path, h),
            "sleep" => {
                let n = h.int("seconds");
                if let Some(grace) = cx.grace.filter(|g| n < 0 || n > *g) {
                    let text =
                        format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                    errs.push(Error::invalid(&path, n, text));
                }
            }
            _ => check::port_num_or_name(errs, &path.child("port"), h.at("port")),
        }
    }
    if found == 0 {
        errs.push(Error::required(path, "must specify a handler type"));
    }
}

fn http_get(errs: &mut ErrorList, path: &Path, h: &Value) {
    check::required(errs, &path.child("path"), h.text("path"));
    check::port_num_or_name(errs, &path.child("port"), h.at("port"));
    check::one_of(errs, &path.child("scheme"), h.text("scheme"), &["HTTP", "HTTPS"]);
    for header in h.list("httpHeaders") {
        let name = header.text("name");
        check::each(errs, &path.child("httpHeaders"), name, kaji_meta::validation::is_http_header_name(name));
    }
}

fn stop_signal(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path, signal: &str) {
    match cx.os {
        None => errs.push(Error::forbidden(path, "may not be set for containers with empty `spec.os.name`")),
        Some("windows") => check::one_of(errs, path, signal, &["SIGKILL", "SIGTERM"]),
        Some("linux") => {
            let known: Vec<&str> = kaji_schema::types::enum_values("io.k8s.api.core.v1.Signal").collect();
            check::one_of(errs, path, signal, &known);
        }
        Some(_) => {}
    }
}
