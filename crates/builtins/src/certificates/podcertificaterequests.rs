//! PodCertificateRequests: a kubelet's request for a certificate in a pod's name.
//!
//! Invariant: what is stored has a key of a type that the API names, and the proof that the kubelet has its private half; what
//! is issued is for that key.

mod issued;
mod proof;
mod signers;

use crate::{
    Deps,
    shared::{
        check, conditions, rules,
        table::{labels, name},
        value::{Fields, put},
    },
};
use kaji_auth::Authorizer;
use kaji_meta::{
    Status,
    field::{Error, ErrorList, Path},
    semantic_equal, validation,
};
use kaji_resource::{
    BoxFuture, Column, Ctx, Hooks, ResourceDef, Scope, SelectableField, SubresourceDef, name_column,
};
use serde_json::{Value, json};
use std::sync::Arc;

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

struct Requests(Arc<dyn Authorizer>);

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
    rules::user_annotations(&mut errs, &Path::new("spec"), spec, "unverifiedUserAnnotations");
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
    errs.extend(proof::problem(spec));
    errs
}

fn state(object: &Value) -> Option<&'static str> {
    let holds = |state: &str| {
        conditions::find(object.at("status"), state).is_some_and(|c| c.text("status") == "True")
    };
    STATES.iter().copied().find(|state| holds(state))
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
            errs.push(Error::invalid(&Path::new("status"), Value::Null, text).without_value());
        }
    };
    if state(old).is_some() {
        equal(same, "immutable after PodCertificateRequest is issued, denied, or failed");
        return errs;
    }
    match state(new) {
        Some("Issued") => issued::check(&mut errs, ctx, new, old),
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

    fn permit<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        new: &'a Value,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            match old.filter(|_| ctx.subresource == "status") {
                Some(old) => signers::may_sign(&*self.0, ctx, new, old).await,
                None => Ok(()),
            }
        })
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
pub fn def(deps: &Deps) -> ResourceDef {
    let fields = ["spec.signerName", "spec.podName", "spec.nodeName"].map(SelectableField::new);
    ResourceDef::builtin(
        "certificates.k8s.io",
        "v1",
        "PodCertificateRequest",
        "podcertificaterequests",
        Scope::Namespaced,
        COLUMNS,
        Requests(deps.authorizer.clone()),
    )
    .conditional_update_only()
    .sub(&[SubresourceDef::status()])
    .select(&fields)
}

#[cfg(test)]
mod tests;
