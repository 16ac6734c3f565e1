//! PodCertificateRequests: a kubelet's request for a certificate in a pod's name.

use super::pem::blocks;
use crate::shared::{
    check, conditions, rules,
    rules::base64_bytes,
    table::{labels, name},
    value::{Fields, put},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    semantic_equal, validation,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SelectableField, SubresourceDef, name_column};
use serde_json::{Value, json};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "PodName",
        "string",
        0,
        "podName is the name of the pod into which the certificate will be mounted.",
    ),
    Column::new(
        "ServiceAccountName",
        "string",
        0,
        "serviceAccountName is the name of the service account the pod is running as.",
    ),
    Column::new("NodeName", "string", 0, "nodeName is the name of the node the pod is assigned to."),
    Column::new("SignerName", "string", 0, "signerName indicates the requested signer."),
    Column::new("State", "string", 0, "Is the request Pending, Issued, Denied, or Failed?"),
    Column::new(
        "UnverifiedUserAnnotations",
        "string",
        1,
        "unverifiedUserAnnotations allow pod authors to pass additional information to the signer implementation.",
    ),
];

const STATES: &[&str] = &["Issued", "Denied", "Failed"];
const MIN_SECONDS: i64 = 3600;
const MAX_SECONDS: i64 = 91 * 24 * 3600;
const KUBERNETES_MAX_SECONDS: i64 = 24 * 3600;
const MAX_CHAIN: usize = 100 * 1024;
const TEN_MINUTES: i64 = 600;

struct Requests;

fn path(field: &str) -> Path {
    Path::new("spec").child(field)
}

fn status_path(field: &str) -> Path {
    Path::new("status").child(field)
}

fn validate(object: &Value) -> ErrorList {
    let (mut errs, spec) = (vec![], object.at("spec"));
    let signer = spec.text("signerName");
    rules::signer_name(&mut errs, &path("signerName"), signer);
    errs.extend(validation::validate_annotations(
        spec.at("unverifiedUserAnnotations"),
        &path("unverifiedUserAnnotations"),
    ));
    for (name, uid) in
        [("podName", "podUID"), ("serviceAccountName", "serviceAccountUID"), ("nodeName", "nodeUID")]
    {
        check::dns_subdomain(&mut errs, &path(name), spec.text(name));
        let value = spec.text(uid);
        if value.is_empty() {
            errs.push(Error::invalid(&path(uid), value, "must not be empty"));
        }
        if value.len() > 128 {
            errs.push(Error::too_long(&path(uid), value, 128));
        }
    }
    let Some(seconds) = spec.opt_int("maxExpirationSeconds") else {
        errs.push(Error::required(&path("maxExpirationSeconds"), "must be set"));
        return errs;
    };
    let own =
        signer.split_once('/').is_some_and(|(d, _)| d == "kubernetes.io" || d.ends_with(".kubernetes.io"));
    let max = if own { KUBERNETES_MAX_SECONDS } else { MAX_SECONDS };
    if !(MIN_SECONDS..=max).contains(&seconds) {
        let text = format!("must be in the range [{MIN_SECONDS}, {max}]");
        errs.push(Error::invalid(&path("maxExpirationSeconds"), seconds, text));
    }
    key_rules(&mut errs, spec);
    errs
}

fn key_rules(errs: &mut ErrorList, spec: &Value) {
    let [stub, key, proof] =
        ["stubPKCS10Request", "pkixPublicKey", "proofOfPossession"].map(|f| base64_bytes(spec.text(f)));
    let omitted = |at: &Path, text: &str| Error::invalid(at, Value::Null, text).without_value();
    match (stub.is_empty(), key.is_empty(), proof.is_empty()) {
        (false, true, true) => {
            if x509_parser::certification_request::X509CertificationRequest::from_der(&stub).is_err() {
                errs.push(omitted(&path("stubPKCS10Request"), "must be a valid PKCS#10 CSR"));
            }
        }
        (true, false, false) => {
            if x509_parser::x509::SubjectPublicKeyInfo::from_der(&key).is_err() {
                errs.push(omitted(&path("pkixPublicKey"), "must be a valid PKIX-serialized public key"));
            }
        }
        _ => {
            let text = "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set";
            errs.push(omitted(&Path::new("spec"), text));
        }
    }
}

fn state(object: &Value) -> Option<&'static str> {
    STATES.iter().copied().find(|s| conditions::find(object.at("status"), s).is_some())
}

fn condition_rules(errs: &mut ErrorList, new: &Value) {
    let mut known = 0;
    for (i, c) in new.at("status").list("conditions").iter().enumerate() {
        // Upstream adds the index as a separate field.
        let at = status_path("conditions").child(&format!("[{i}]"));
        let ty = c.text("type");
        if !STATES.contains(&ty) {
            errs.push(Error::not_supported(&at.child("type"), ty, STATES));
            continue;
        }
        known += 1;
        if known > 1 {
            let text = "There may be at most one condition with type \"Issued\", \"Denied\", or \"Failed\"";
            errs.push(Error::invalid(&at.child("type"), ty, text));
        }
        check::one_of(errs, &at.child("status"), c.text("status"), &["True"]);
    }
    errs.extend(validation::validate_conditions(
        new.at("status").at("conditions"),
        &status_path("conditions"),
    ));
}

fn validate_status(ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
    let (mut errs, status) = (vec![], new.at("status"));
    condition_rules(&mut errs, new);
    if !errs.is_empty() {
        return errs;
    }
    let same = semantic_equal(status, old.at("status"));
    let mut equal = |same: bool, text: &str| {
        if !same {
            errs.push(Error::invalid(&Path::new("status"), status.clone(), text));
        }
    };
    if state(old).is_some() {
        equal(same, "immutable after PodCertificateRequest is issued, denied, or failed");
        return errs;
    }
    match state(new) {
        Some("Issued") => issued(&mut errs, ctx, new),
        Some(_) => {
            let only = json!({"conditions": status.at("conditions")});
            let text =
                "non-condition status fields must be empty when denying or failing the PodCertificateRequest";
            equal(semantic_equal(status, &only), text);
        }
        None => {
            equal(same, "status is immutable unless transitioning to \"Issued\", \"Denied\", or \"Failed\"")
        }
    }
    errs
}

fn issued(errs: &mut ErrorList, ctx: &Ctx<'_>, new: &Value) {
    let (status, at) = (new.at("status"), status_path("certificateChain"));
    let chain = status.text("certificateChain");
    if chain.len() > MAX_CHAIN {
        errs.push(Error::too_long(&at, "", MAX_CHAIN));
        return;
    }
    let all = blocks(chain.as_bytes());
    let mut bad = |text: &str| errs.push(Error::invalid(&at, chain, text));
    let Some(leaf) = all.first() else {
        return bad("issued certificate chain must contain at least one certificate");
    };
    if all.iter().any(|b| b.label != "CERTIFICATE") {
        return bad("issued certificate chain must consist entirely of CERTIFICATE PEM blocks");
    }
    let Ok((_, leaf)) = X509Certificate::from_der(&leaf.contents) else {
        return bad("leaf certificate does not parse as valid X.509");
    };
    if all[1..].iter().any(|b| X509Certificate::from_der(&b.contents).is_err()) {
        return bad("intermediate certificate does not parse as valid X.509");
    }
    if !requested_key(new.at("spec"), &leaf) {
        return bad("leaf certificate was not issued to the requested public key");
    }
    times(errs, ctx, new, &leaf);
}

/// Whether a certificate is for the requested key.
fn requested_key(spec: &Value, leaf: &X509Certificate<'_>) -> bool {
    let stub = base64_bytes(spec.text("stubPKCS10Request"));
    if stub.is_empty() {
        return leaf.public_key().raw == base64_bytes(spec.text("pkixPublicKey"));
    }
    x509_parser::certification_request::X509CertificationRequest::from_der(&stub)
        .is_ok_and(|(_, r)| r.certification_request_info.subject_pki.raw == leaf.public_key().raw)
}

fn times(errs: &mut ErrorList, ctx: &Ctx<'_>, new: &Value, leaf: &X509Certificate<'_>) {
    let status = new.at("status");
    let time = |f: &str| status.text(f).parse::<jiff::Timestamp>().ok().map(|t| t.as_second());
    let [before, after, refresh] = ["notBefore", "notAfter", "beginRefreshAt"].map(time);
    let needed = [
        ("notBefore", before, "must be present and consistent with the issued certificate"),
        ("notAfter", after, "must be present and consistent with the issued certificate"),
        ("beginRefreshAt", refresh, "must be present and in the range [notbefore+10min, notafter-10min]"),
    ];
    for (f, _, text) in needed.iter().filter(|(_, t, _)| t.is_none()) {
        errs.push(Error::required(&status_path(f), *text));
    }
    let (Some(before), Some(after), Some(refresh)) = (before, after, refresh) else { return };
    let (from, to) = (leaf.validity().not_before.timestamp(), leaf.validity().not_after.timestamp());
    let max = new.at("spec").int("maxExpirationSeconds");
    let checks = [
        (
            "notBefore",
            before == from,
            "must be set to the NotBefore time encoded in the leaf certificate".to_owned(),
        ),
        (
            "notBefore",
            (before - ctx.now.as_second()).abs() <= 300,
            "must be set to within 5 minutes of kube-apiserver's current time".to_owned(),
        ),
        (
            "notAfter",
            after == to,
            "must be set to the NotAfter time encoded in the leaf certificate".to_owned(),
        ),
        ("certificateChain", to - from >= 3600, "leaf certificate lifetime must be >= 1 hour".to_owned()),
        (
            "certificateChain",
            to - from <= max,
            format!("leaf certificate lifetime must be <= spec.maxExpirationSeconds ({max})"),
        ),
        (
            "beginRefreshAt",
            refresh >= before + TEN_MINUTES,
            "must be at least 10 minutes after status.notBefore".to_owned(),
        ),
        (
            "beginRefreshAt",
            refresh <= after - TEN_MINUTES,
            "must be at least 10 minutes before status.notAfter".to_owned(),
        ),
    ];
    if let Some((f, _, text)) = checks.into_iter().find(|(_, ok, _)| !ok) {
        errs.push(Error::invalid(&status_path(f), status.at(f).clone(), text));
    }
}

impl Hooks for Requests {
    fn default(&self, _version: &str, object: &mut Value) {
        if let Some(spec) = object.get_mut("spec") {
            crate::shared::value::set_default(spec, "maxExpirationSeconds", || 86400.into());
        }
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({}));
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        validate(object)
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if ctx.subresource == "status" {
            rules::keep_meta_on_status(new, old);
        }
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        if ctx.subresource == "status" {
            return validate_status(ctx, new, old);
        }
        let mut errs = vec![];
        check::immutable(&mut errs, &Path::new("spec"), new.at("spec"), old.at("spec"));
        errs
    }

    /// Writers of the main resource may own the status, though it is not taken from them.
    fn reset_fields(&self, _version: &str, subresource: &str) -> &'static [&'static [&'static str]] {
        if subresource == "status" { &[&["spec"]] } else { &[] }
    }

    fn row(&self, _version: &str, object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        let spec = object.at("spec");
        vec![
            name(object),
            spec.text("podName").into(),
            spec.text("serviceAccountName").into(),
            spec.text("nodeName").into(),
            spec.text("signerName").into(),
            state(object).unwrap_or("Pending").into(),
            labels(spec.at("unverifiedUserAnnotations")).into(),
        ]
    }
}

/// The definition of PodCertificateRequests.
pub fn def() -> ResourceDef {
    let fields = ["spec.signerName", "spec.podName", "spec.nodeName"].map(SelectableField::new);
    ResourceDef::builtin(
        "certificates.k8s.io",
        "v1",
        "PodCertificateRequest",
        "podcertificaterequests",
        Scope::Namespaced,
        COLUMNS,
        Requests,
    )
    .conditional_update_only()
    .sub(&[SubresourceDef::status()])
    .select(&fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row, update_errors};
    use expect_test::expect;

    fn request() -> Value {
        json!({"metadata": {"name": "r"}, "spec": {"signerName": "x.io/y", "podName": "p", "podUID": "1", "serviceAccountName": "s",
            "serviceAccountUID": "2", "nodeName": "n", "nodeUID": "3"}})
    }

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        expect!["spec: Invalid value: exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set"]
            .assert_eq(&create_errors(&def(), request()));
        let mut new = request();
        new["status"] = json!({"conditions": [{"type": "x", "status": "True"}]});
        assert!(
            update_errors(&def(), "status", new, request())
                .starts_with("status.conditions.[0].type: Unsupported value: \"x\"")
        );
        assert_eq!(row(&def(), &request()), "r | p | s | n | x.io/y | Pending | <none>");
    }
}
