//! CertificateSigningRequests: approval and issued certificate are written through their own subresources.

use super::pem::blocks;
use crate::shared::{
    check, metadata, rules,
    rules::base64_bytes,
    table::{age, human, name},
    value::{Fields, copy_field, ensure_object, list_mut, put},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    semantic_equal,
};
use kaji_resource::{
    Column, Ctx, Hooks, ResourceDef, Scope, SelectableField, SubresourceDef, Verb, age_column, name_column,
};
use serde_json::{Value, json};
use x509_parser::prelude::FromDer;

const COLUMNS: &[Column] = &[
    name_column(),
    age_column(),
    Column::new(
        "SignerName",
        "string",
        0,
        "Requested signer for the request. It is a qualified name in the form: `scope-hostname.io/name`. If empty, it will be defaulted:\n 1. If it's a kubelet client certificate, it is assigned\n    \"kubernetes.io/kube-apiserver-client-kubelet\".\n 2. If it's a kubelet serving certificate, it is assigned\n    \"kubernetes.io/kubelet-serving\".\n 3. Otherwise, it is assigned \"kubernetes.io/legacy-unknown\".\nDistribution of trust for signers happens out of band. You can select on this field using `spec.signerName`.",
    ),
    Column::new("Requestor", "string", 0, "Base64-encoded PKCS#10 CSR data"),
    Column::new(
        "RequestedDuration",
        "string",
        0,
        "expirationSeconds is the requested duration of validity of the issued certificate. The certificate signer may issue a certificate with a different validity duration so a client must check the delta between the notBefore and and notAfter fields in the issued certificate to determine the actual duration.\n\nThe v1.22+ in-tree implementations of the well-known Kubernetes signers will honor this field as long as the requested duration is not greater than the maximum duration they will honor per the --cluster-signing-duration CLI flag to the Kubernetes controller manager.\n\nCertificate signers may not honor this field for various reasons:\n\n  1. Old signer that is unaware of the field (such as the in-tree\n     implementations prior to v1.22)\n  2. Signer whose configured maximum is shorter than the requested duration\n  3. Signer whose configured minimum is longer than the requested duration\n\nThe minimum valid value for expirationSeconds is 600, i.e. 10 minutes.",
    ),
    Column::new("Condition", "string", 0, "Conditions applied to the request, such as approval or denial."),
];

const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

struct Requests;

fn certificate_problem(certificate: &str) -> Option<String> {
    let bytes = base64_bytes(certificate);
    if bytes.is_empty() {
        return None;
    }
    let all = blocks(&bytes);
    for block in &all {
        if block.label != "CERTIFICATE" {
            return Some(format!("only CERTIFICATE PEM blocks are allowed, found {:?}", block.label));
        }
        if x509_parser::certificate::X509Certificate::from_der(&block.contents).is_err() {
            return Some("x509: malformed certificate".into());
        }
    }
    all.is_empty().then(|| "must contain at least one CERTIFICATE PEM block".into())
}

fn conditions(errs: &mut ErrorList, object: &Value) {
    let path = Path::new("status").child("conditions");
    let list = object.at("status").list("conditions");
    for (i, c) in list.iter().enumerate() {
        let (at, ty, status) = (path.index(i), c.text("type"), c.text("status"));
        check::required(errs, &at.child("type"), ty);
        let valid: &[&str] = if ["Approved", "Denied", "Failed"].contains(&ty) {
            &["True"]
        } else {
            &["False", "True", "Unknown"]
        };
        check::required_one_of(errs, &at.child("status"), status, valid);
        let before = &list[..i];
        let other = match ty {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if !other.is_empty() && before.iter().any(|b| b.text("type") == other) {
            errs.push(Error::invalid(&path, ty, "Approved and Denied conditions are mutually exclusive"));
        }
        if before.iter().any(|b| b.text("type") == ty) {
            errs.push(Error::duplicate(&at.child("type"), ty));
        }
    }
}

fn validate(object: &Value, old: Option<&Value>) -> ErrorList {
    let (mut errs, spec, path) = (vec![], object.at("spec"), Path::new("spec"));
    // Spec is immutable: what was accepted once stays so.
    if old.is_none() {
        let request = spec.text("request");
        if let Some(problem) = super::request::problem(&base64_bytes(request)) {
            // Upstream shows bytes; those that are not given are null.
            let shown = spec.at("request").clone();
            errs.push(Error::invalid(&path.child("request"), shown, problem));
        }
        let usages: Vec<&str> = spec.strings("usages").collect();
        if usages.is_empty() {
            errs.push(Error::required(&path.child("usages"), ""));
        }
        for (i, u) in usages.iter().enumerate() {
            check::one_of(&mut errs, &path.child("usages").index(i), u, USAGES);
        }
        for (i, u) in usages.iter().enumerate().filter(|(i, u)| usages[..*i].contains(u)) {
            errs.push(Error::duplicate(&path.child("usages").index(i), *u));
        }
        let signer = spec.text("signerName");
        if signer == "kubernetes.io/legacy-unknown" {
            let text = "the legacy signerName is not allowed via this API version";
            errs.push(Error::invalid(&path.child("signerName"), signer, text));
        } else {
            rules::signer_name(&mut errs, &path.child("signerName"), signer);
        }
        if let Some(s) = spec.opt_int("expirationSeconds").filter(|s| *s < 600) {
            let text = "may not specify a duration less than 600 seconds (10 minutes)";
            errs.push(Error::invalid(&path.child("expirationSeconds"), s, text));
        }
    }
    conditions(&mut errs, object);
    let certificate = object.at("status").text("certificate");
    let same = old.is_some_and(|o| o.at("status").text("certificate") == certificate);
    if !same && let Some(problem) = certificate_problem(certificate) {
        let path = Path::new("status").child("certificate");
        errs.push(Error::invalid(&path, "<certificate data>", problem));
    }
    errs
}

fn of_type<'a>(object: &'a Value, ty: &str) -> Vec<&'a Value> {
    object.at("status").list("conditions").iter().filter(|c| c.text("type") == ty).collect()
}

fn transitions(errs: &mut ErrorList, new: &Value, old: &Value, subresource: &str) {
    let path = Path::new("status").child("conditions");
    let mut bad = |text: String| errs.push(Error::forbidden(&path, text));
    for ty in ["Approved", "Denied", "Failed"] {
        if of_type(new, ty).len() < of_type(old, ty).len() {
            bad(format!("updates may not remove a condition of type {ty:?}"));
        }
    }
    for ty in ["Approved", "Denied"].into_iter().filter(|_| subresource != "approval") {
        let (n, o) = (of_type(new, ty), of_type(old, ty));
        if n.len() > o.len() {
            bad(format!("updates may not add a condition of type {ty:?}"));
        } else if n.len() == o.len() && n.iter().zip(&o).any(|(a, b)| !semantic_equal(a, b)) {
            bad(format!("updates may not modify a condition of type {ty:?}"));
        }
    }
    let certificate = |v: &Value| v.at("status").text("certificate").to_owned();
    let path = Path::new("status").child("certificate");
    if certificate(new) != certificate(old) {
        if subresource != "status" {
            errs.push(Error::forbidden(&path, "updates may not set certificate content"));
        } else if !certificate(old).is_empty() {
            errs.push(Error::forbidden(&path, "updates may not modify existing certificate content"));
        }
    }
}

/// Fills in times of conditions that lack them; an unchanged condition keeps its transition time.
fn stamp(ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
    let now = kaji_meta::Time::new(ctx.now).to_string();
    for c in list_mut(ensure_object(new, "status"), "conditions") {
        if !c.has("lastUpdateTime") {
            put(c, "lastUpdateTime", now.clone());
        }
        if !c.has("lastTransitionTime") {
            let same = |o: &&Value| {
                o.text("type") == c.text("type")
                    && o.text("status") == c.text("status")
                    && o.has("lastTransitionTime")
            };
            let before = old.at("status").list("conditions").iter().find(same);
            let time = before.map_or_else(|| now.clone(), |o| o.text("lastTransitionTime").to_owned());
            put(c, "lastTransitionTime", time);
        }
    }
}

/// Takes conditions that only approval may write from the old object, if there are as many.
fn preserve(new: &mut Value, old: &Value, ty: &str) {
    let before: Vec<Value> = of_type(old, ty).into_iter().cloned().collect();
    if before.len() != of_type(new, ty).len() {
        return;
    }
    let list = list_mut(ensure_object(new, "status"), "conditions");
    list.iter_mut().filter(|c| c.text("type") == ty).zip(before).for_each(|(c, b)| *c = b);
}

impl Hooks for Requests {
    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        let spec = ensure_object(object, "spec");
        put(spec, "username", ctx.user.name.clone());
        for f in ["uid", "groups", "extra"] {
            crate::shared::value::drop_field(spec, f);
        }
        if !ctx.user.uid.is_empty() {
            put(spec, "uid", ctx.user.uid.clone());
        }
        if !ctx.user.groups.is_empty() {
            put(spec, "groups", ctx.user.groups.clone());
        }
        if !ctx.user.extra.is_empty() {
            put(spec, "extra", json!(ctx.user.extra));
        }
        put(object, "status", json!({}));
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        validate(object, None)
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        copy_field(new, old, "spec");
        match ctx.subresource {
            "status" => {
                preserve(new, old, "Approved");
                preserve(new, old, "Denied");
                stamp(ctx, new, old);
            }
            "approval" => {
                stamp(ctx, new, old);
                let conditions = new.at("status").at("conditions").clone();
                copy_field(new, old, "status");
                if !conditions.is_null() {
                    put(ensure_object(new, "status"), "conditions", conditions);
                }
            }
            _ => copy_field(new, old, "status"),
        }
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = validate(new, Some(old));
        transitions(&mut errs, new, old, ctx.subresource);
        errs
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let spec = object.at("spec");
        let or_none = |s: &str| if s.is_empty() { "<none>".to_owned() } else { s.to_owned() };
        let duration = spec.opt_int("expirationSeconds").map_or_else(|| "<none>".to_owned(), human);
        let has = |ty: &str| !of_type(object, ty).is_empty();
        let mut state = match (has("Denied"), has("Approved")) {
            (true, _) => "Denied",
            (_, true) => "Approved",
            _ => "Pending",
        }
        .to_owned();
        if has("Failed") {
            state.push_str(",Failed");
        }
        if !object.at("status").text("certificate").is_empty() {
            state.push_str(",Issued");
        }
        vec![
            name(object),
            age(object, now),
            or_none(spec.text("signerName")).into(),
            spec.text("username").into(),
            duration.into(),
            state.into(),
        ]
    }

    fn reset_fields(&self, _version: &str, subresource: &str) -> &'static [&'static [&'static str]] {
        match subresource {
            "" => &[&["spec"], &["status"]],
            "status" => &[&["spec"], &["status", "conditions"]],
            _ => &[&["spec"], &["status", "certificate"]],
        }
    }
}

/// The definition of CertificateSigningRequests.
pub fn def() -> ResourceDef {
    const APPROVAL: &[Verb] = &[Verb::Get, Verb::Patch, Verb::Update];
    ResourceDef::builtin(
        "certificates.k8s.io",
        "v1",
        "CertificateSigningRequest",
        "certificatesigningrequests",
        Scope::Cluster,
        COLUMNS,
        Requests,
    )
    .metadata_checks(&[metadata::WHOLE, metadata::UPDATE], &[metadata::WHOLE, metadata::UPDATE])
    .short(&["csr"])
    .named(any_name)
    .sub(&[SubresourceDef::status(), SubresourceDef::update("approval", APPROVAL)])
    .select(&[SelectableField::new("spec.signerName")])
}

/// Names have always been free.
fn any_name(_name: &str, _prefix: bool) -> Vec<String> {
    vec![]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row, update};
    use expect_test::expect;

    #[test]
    fn rejects_invalid_fields() {
        let bad = json!({"spec": {"request": "eA==", "usages": ["x", "signing", "signing"], "signerName": "foo", "expirationSeconds": 5}});
        expect![[r#"
            spec.request: Invalid value: "eA==": PEM block type must be CERTIFICATE REQUEST
            spec.usages[0]: Unsupported value: "x": supported values: "any", "cert sign", "client auth", "code signing", "content commitment", "crl sign", "data encipherment", "decipher only", "digital signature", "email protection", "encipher only", "ipsec end system", "ipsec tunnel", "ipsec user", "key agreement", "key encipherment", "microsoft sgc", "netscape sgc", "ocsp signing", "s/mime", "server auth", "signing", "timestamping"
            spec.usages[2]: Duplicate value: "signing"
            spec.signerName: Invalid value: "foo": must be a fully qualified domain and path of the form 'example.com/signer-name'
            spec.expirationSeconds: Invalid value: 5: may not specify a duration less than 600 seconds (10 minutes)"#]]
        .assert_eq(&create_errors(&def(), bad));
    }

    #[test]
    fn approval_is_written_by_approval_only() {
        let old = json!({"metadata": {"name": "c"}, "spec": {"signerName": "a.io/b", "username": "alice"}, "status": {}});
        let mut new = old.clone();
        new["status"]["conditions"] = json!([{"type": "Approved", "status": "True"}]);
        let (approved, errors) = update(&def(), "approval", new.clone(), old.clone());
        assert_eq!(errors, "");
        assert_eq!(approved["status"]["conditions"][0]["lastUpdateTime"], "2026-01-02T03:04:05Z");
        let (_, errors) = update(&def(), "status", new, old);
        assert_eq!(
            errors,
            r#"status.conditions: Forbidden: updates may not add a condition of type "Approved""#
        );
        assert_eq!(row(&def(), &approved), "c | <unknown> | a.io/b | alice | <none> | Approved");
    }
}
