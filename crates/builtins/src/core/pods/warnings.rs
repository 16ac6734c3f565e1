//! Upstream's warnings about pod specs: deprecated fields, duplicates, shapes that are legal but do not do what they
//! seem to.

use super::{each_container, validate::annotations};
use crate::shared::{Fields, check::quantity, value::FieldTable};
use kaji_meta::{
    Path,
    text::quote,
    validation::{is_valid_label_value, parse_ip_sloppy},
};
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};

/// Deprecated node labels, and the warnings about them.
const NODE_LABELS: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", r#"deprecated since v1.14; use "kubernetes.io/arch" instead"#),
    ("beta.kubernetes.io/os", r#"deprecated since v1.14; use "kubernetes.io/os" instead"#),
    (
        "failure-domain.beta.kubernetes.io/region",
        r#"deprecated since v1.17; use "topology.kubernetes.io/region" instead"#,
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        r#"deprecated since v1.17; use "topology.kubernetes.io/zone" instead"#,
    ),
    (
        "beta.kubernetes.io/instance-type",
        r#"deprecated since v1.17; use "node.kubernetes.io/instance-type" instead"#,
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    ("node-role.kubernetes.io/master", r#"use "node-role.kubernetes.io/control-plane" instead"#),
];
const ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        r#"non-functional in v1.16+; use the "priorityClassName" field instead"#,
    ),
    ("security.alpha.kubernetes.io/sysctls", r#"non-functional in v1.11+; use the "sysctls" field instead"#),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        r#"non-functional in v1.11+; use the "sysctls" field instead"#,
    ),
];
/// Kinds of volumes, the names that warnings give them, and texts.
const VOLUMES: [(&str, &str, &str); 9] = [
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
];
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// The name that warnings give a deprecated kind of volume, and the text about it.
pub fn deprecated_volume(field: &str) -> Option<(&'static str, &'static str)> {
    VOLUMES.iter().find(|(kind, ..)| *kind == field).map(|(_, name, text)| (*name, *text))
}

/// The warning about a deprecated node label.
pub fn deprecated_node_label(key: &str) -> Option<&'static str> {
    NODE_LABELS.iter().find(|(k, _)| *k == key).map(|(_, m)| *m)
}

/// Warnings for a pod (`path` is the root) or a template (`path` is the template's).
pub fn spec_and_meta(path: &Path, is_template: bool, spec: &Value, meta: &Value) -> Vec<String> {
    let spec = &FieldTable::of(spec);
    let mut w = vec![];
    let at = path.child("spec");
    scheduling(&mut w, &at, spec);
    let annotations_path = path.child("metadata").child("annotations");
    for (key, message) in ANNOTATIONS {
        if meta.at("annotations").has(key) {
            w.push(format!("{}: {message}", annotations_path.key(key)));
        }
    }
    volumes(&mut w, &at.child("volumes"), spec);
    overlaps(&mut w, spec);
    duplicates(&mut w, &at, spec);
    fractions(&mut w, &at.child("overhead"), spec.at("overhead"));
    let seccomp = r#"non-functional in v1.27+; use the "seccompProfile" field instead"#;
    let pod_key = "seccomp.security.alpha.kubernetes.io/pod";
    if !spec.at("securityContext").has("seccompProfile") && meta.at("annotations").has(pod_key) {
        w.push(format!("{}: {seccomp}", annotations_path.key(pod_key)));
    }
    each_container(spec, &at, |c, path| {
        if meta.has("annotations") {
            let own = c.at("securityContext");
            let key = format!("container.seccomp.security.alpha.kubernetes.io/{}", c.text("name"));
            if !own.has("seccompProfile") && meta.at("annotations").has(&key) {
                w.push(format!("{}: {seccomp}", annotations_path.key(&key)));
            }
            let key = format!("{}{}", annotations::APP_ARMOR, c.text("name"));
            if let Some(v) =
                meta.at("annotations").opt_text(&key).filter(|_| is_template && !own.has("appArmorProfile"))
            {
                let pod = spec.at("securityContext").get_field("appArmorProfile");
                if pod.is_none() || pod != annotations::app_armor_field(v).as_ref() {
                    let p = annotations_path.key(&key);
                    w.push(format!(
                        r#"{p}: deprecated since v1.30; use the "appArmorProfile" field instead"#
                    ));
                }
            }
        }
        for list in ["limits", "requests"] {
            let amounts = c.at("resources").at(list);
            if !amounts.is_null() {
                fractions(&mut w, &path.child("resources").child(list), amounts);
            }
        }
        env(&mut w, path, c);
    });
    ports(&mut w, &at, spec);
    if spec.int("terminationGracePeriodSeconds") < 0 {
        let p = at.child("terminationGracePeriodSeconds");
        w.push(format!("{p}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    null_selectors(&mut w, &at.child("affinity"), spec.at("affinity"));
    for (i, ns) in spec.at("dnsConfig").strings("nameservers").enumerate() {
        ip(&mut w, &at.child("dnsConfig").child("nameservers").index(i), ns);
    }
    for (i, alias) in spec.list("hostAliases").iter().enumerate() {
        ip(&mut w, &at.child("hostAliases").index(i).child("ip"), alias.text("ip"));
    }
    w
}

fn scheduling(w: &mut Vec<String>, at: &Path, spec: &FieldTable<'_>) {
    for (k, _) in spec.string_map("nodeSelector") {
        if let Some(m) = deprecated_node_label(k) {
            w.push(format!("{}: {m}", at.child("nodeSelector").key(k)));
        }
    }
    let node = spec.at("affinity").at("nodeAffinity");
    let path = at.child("affinity").child("nodeAffinity");
    for (i, term) in node.at(REQUIRED).list("nodeSelectorTerms").iter().enumerate() {
        node_term(w, &path.child(REQUIRED).child("nodeSelectorTerms").index(i), term, false);
    }
    for (i, term) in node.list(PREFERRED).iter().enumerate() {
        node_term(w, &path.child(PREFERRED).index(i).child("preference"), term.at("preference"), true);
    }
    for (i, t) in spec.list("topologySpreadConstraints").iter().enumerate() {
        let path = at.child("topologySpreadConstraints").index(i);
        if let Some(m) = deprecated_node_label(t.text("topologyKey")) {
            w.push(format!("{}: {} is {m}", path.child("topologyKey"), t.text("topologyKey")));
        }
        if !t.has("labelSelector") {
            w.push(format!(
                "{}: a null labelSelector results in matching no pod",
                path.child("labelSelector")
            ));
        }
    }
}

/// Warnings for a NodeSelectorTerm.
pub fn node_term(w: &mut Vec<String>, path: &Path, term: &Value, check_values: bool) {
    for (i, e) in term.list("matchExpressions").iter().enumerate() {
        let path = path.child("matchExpressions").index(i);
        if let Some(m) = deprecated_node_label(e.text("key")) {
            w.push(format!("{}: {} is {m}", path.child("key"), e.text("key")));
        }
        if check_values {
            for (j, v) in e.strings("values").enumerate() {
                for m in is_valid_label_value(v) {
                    w.push(format!("{}: {v} is invalid, {m}", path.child("values").index(j)));
                }
            }
        }
    }
}

fn volumes(w: &mut Vec<String>, at: &Path, spec: &FieldTable<'_>) {
    for (i, v) in spec.list("volumes").iter().enumerate() {
        for (field, shown, message) in VOLUMES {
            if v.has(field) {
                w.push(format!("{}: {message}", at.index(i).child(shown)));
            }
        }
        if let Some(t) = v.at("ephemeral").get_field("volumeClaimTemplate") {
            let path = at.index(i).child("ephemeral").child("volumeClaimTemplate").child("spec");
            claim_spec(w, &path, t.at("spec"));
        }
    }
}

/// Warnings for a PersistentVolumeClaim's spec.
pub fn claim_spec(w: &mut Vec<String>, path: &Path, spec: &Value) {
    let storage = spec.at("resources").at("requests").at("storage");
    if let Some(q) = quantity(storage).filter(|q| q.milli_value() % 1000 != 0) {
        let p = path.child("resources").child("requests").key("storage");
        w.push(format!(
            "{p}: fractional byte value {} is invalid, must be an integer",
            quote(&q.to_string())
        ));
    }
}

fn duplicates(w: &mut Vec<String>, at: &Path, spec: &FieldTable<'_>) {
    for (list, field, what) in
        [("hostAliases", "ip", "duplicate ip"), ("imagePullSecrets", "name", "duplicate name")]
    {
        let mut seen = HashSet::new();
        for (i, item) in spec.list(list).iter().enumerate() {
            if !seen.insert(item.text(field)) {
                w.push(format!(
                    "{}: {what} {}",
                    at.child(list).index(i).child(field),
                    quote(item.text(field))
                ));
            }
        }
    }
    for (i, item) in spec.list("imagePullSecrets").iter().enumerate() {
        if item.text("name").is_empty() {
            w.push(format!(
                "{}: invalid empty name \"\"",
                at.child("imagePullSecrets").index(i).child("name")
            ));
        }
    }
}

fn fractions(w: &mut Vec<String>, path: &Path, list: &Value) {
    for name in ["memory", "ephemeral-storage"] {
        if let Some(q) = quantity(list.at(name)).filter(|q| q.milli_value() % 1000 != 0) {
            let q = quote(&q.to_string());
            w.push(format!("{}: fractional byte value {q} is invalid, must be an integer", path.key(name)));
        }
    }
}

fn env(w: &mut Vec<String>, path: &Path, c: &Value) {
    let mut seen = HashSet::new();
    for (i, e) in c.list("env").iter().enumerate() {
        let name = e.text("name");
        if seen.insert(name) {
            continue;
        }
        // Appending to a former value by reference is fine; hiding it is not.
        let reference = format!("$({name})");
        let value = e.text("value");
        if e.has("valueFrom") || value == reference || !value.contains(&reference) {
            w.push(format!(
                "{}: hides previous definition of {}, which may be dropped when using apply",
                path.child("env").index(i),
                quote(name)
            ));
        }
    }
}

fn ports(w: &mut Vec<String>, at: &Path, spec: &FieldTable<'_>) {
    let mut all: BTreeMap<String, Vec<(Path, &Value)>> = BTreeMap::new();
    each_container(spec, at, |c, path| {
        for (i, p) in c.list("ports").iter().enumerate() {
            let own = path.child("ports").index(i);
            let (ip, host) = (p.text("hostIP"), p.int("hostPort"));
            if !ip.is_empty() && host == 0 {
                w.push(format!(
                    "{own}: hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{} Protocol:{} HostIP:{ip}}}",
                    p.text("name"),
                    p.int("containerPort"),
                    p.text("protocol")
                ));
            }
            let others = all.entry(format!("{}/{}", p.int("containerPort"), p.text("protocol"))).or_default();
            for (other, o) in others.iter() {
                let (oip, ohost) = (o.text("hostIP"), o.int("hostPort"));
                if ip == oip && host == ohost {
                    w.push(format!("{own}: duplicate port definition with {other}"));
                } else if host == 0 || ohost == 0 {
                    w.push(format!("{own}: overlapping port definition with {other}"));
                } else if host == ohost && ip.is_empty() != oip.is_empty() {
                    w.push(format!("{own}: dangerously ambiguous port definition with {other}"));
                }
            }
            others.push((own, p));
        }
    });
    let mut names: BTreeMap<&str, Path> = BTreeMap::new();
    each_container(spec, at, |c, path| {
        for (i, p) in c.list("ports").iter().enumerate().filter(|(_, p)| !p.text("name").is_empty()) {
            let own = path.child("ports").index(i);
            match names.get(p.text("name")) {
                Some(other) => w.push(format!(
                    "{own}: duplicate port name {} with {other}, services and probes that select ports by name will \
                     use {other}",
                    quote(p.text("name"))
                )),
                None => {
                    names.insert(p.text("name"), own);
                }
            }
        }
    });
}

fn null_selectors(w: &mut Vec<String>, at: &Path, affinity: &Value) {
    for kind in ["podAffinity", "podAntiAffinity"] {
        for (list, inner) in [(REQUIRED, None), (PREFERRED, Some("podAffinityTerm"))] {
            for (i, t) in affinity.at(kind).list(list).iter().enumerate() {
                let path = at.child(kind).child(list).index(i);
                let (path, term) = match inner {
                    Some(f) => (path.child(f), t.at(f)),
                    None => (path, t),
                };
                if !term.has("labelSelector") {
                    let p = path.child("labelSelector");
                    w.push(format!("{p}: a null labelSelector results in matching no pod"));
                }
            }
        }
    }
}

/// Warnings for an IP address that is accepted but not in its usual form.
pub fn ip(w: &mut Vec<String>, path: &Path, value: &str) {
    let Some(ip) = parse_ip_sloppy(value) else { return };
    match value.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V6(a)) if a.to_ipv4_mapped().is_none() => {
            if a.to_string() != value {
                let want = quote(&a.to_string());
                let value = quote(value);
                w.push(format!(
                    "{path}: IPv6 address {value} should be in RFC 5952 canonical format ({want})"
                ));
            }
        }
        Ok(std::net::IpAddr::V4(_)) => {}
        _ => {
            let (value, want) = (quote(value), quote(&ip.to_string()));
            w.push(format!("{path}: non-standard IP address {value} is invalid: use {want}"));
        }
    }
}

/// A file of a volume, and what puts it there.
#[derive(PartialEq)]
struct Source {
    path: String,
    from: String,
}

impl Source {
    fn new(path: &str, from: &str) -> Self {
        Source { path: path.trim_end_matches('/').to_owned(), from: from.to_owned() }
    }

    fn show(&self) -> String {
        if self.from.is_empty() {
            quote(&self.path)
        } else {
            format!("{} ({})", quote(&self.path), self.from)
        }
    }

    fn overlaps(&self, other: &Source) -> bool {
        let (a, b) = (format!("{}/", self.path), format!("{}/", other.path));
        !self.path.is_empty() && !other.path.is_empty() && (a.starts_with(&b) || b.starts_with(&a))
    }
}

fn items(s: &Value, from: &str) -> Vec<Source> {
    s.list("items").iter().map(|i| Source::new(i.text("path"), from)).collect()
}

fn overlaps(w: &mut Vec<String>, spec: &FieldTable<'_>) {
    for v in spec.list("volumes") {
        let name = quote(v.text("name"));
        let mut report = |description: &str, sources: Vec<Source>| {
            for (i, s) in sources.iter().enumerate() {
                for other in sources[..i].iter().filter(|o| o.overlaps(s)) {
                    let (a, b) = (s.show(), other.show());
                    w.push(format!("volume {name} ({description}): overlapping paths: {a} with {b}"));
                }
            }
        };
        if let Some(c) = v.get_field("configMap") {
            report(&format!("ConfigMap {}", quote(c.text("name"))), items(c, ""));
        }
        if let Some(s) = v.get_field("secret") {
            report(&format!("Secret {}", quote(s.text("secretName"))), items(s, ""));
        }
        if let Some(d) = v.get_field("downwardAPI") {
            report("DownwardAPI", items(d, ""));
        }
        let Some(p) = v.get_field("projected") else { continue };
        report("Projected", p.list("sources").iter().flat_map(projected).collect());
        for s in p.list("sources") {
            if s.as_object().is_some_and(|m| m.values().all(Value::is_null)) {
                w.push(format!("volume {name} (Projected) has no sources provided"));
            }
        }
    }
}

fn projected(source: &Value) -> Vec<Source> {
    for (field, what) in [("configMap", "ConfigMap"), ("secret", "Secret")] {
        if let Some(s) = source.get_field(field).filter(|s| s.has("items")) {
            return items(s, &format!("{what} {}", quote(s.text("name"))));
        }
    }
    if let Some(d) = source.get_field("downwardAPI").filter(|d| d.has("items")) {
        return items(d, "DownwardAPI");
    }
    if let Some(t) = source.get_field("serviceAccountToken") {
        return vec![Source::new(t.text("path"), "ServiceAccountToken")];
    }
    if let Some(b) = source.get_field("clusterTrustBundle") {
        let name = b.opt_text("name").unwrap_or_else(|| b.text("signerName"));
        return vec![Source::new(b.text("path"), &format!("ClusterTrustBundle {}", quote(name)))];
    }
    let Some(c) = source.get_field("podCertificate") else { return vec![] };
    [
        ("certificateChainPath", "PodCertificate chain"),
        ("keyPath", "PodCertificate key"),
        ("credentialBundlePath", "PodCertificate credential bundle"),
    ]
    .iter()
    .filter(|(f, _)| !c.text(f).is_empty())
    .map(|(f, what)| Source::new(c.text(f), what))
    .collect()
}
