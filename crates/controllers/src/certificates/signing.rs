//! Signers: approved requests get their certificate, or the reason why not.
//!
//! Invariants: one controller a signer name; nothing is signed that is not approved, or denied, or failed; a
//! certificate is issued once.

use super::{Authority, authority::lifetime, policy, request::Request};
use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::SignedDuration;
use kaji_runtime::{
    Change, Controller, Cx, Informers, Key, PatchKind, Plan, Reconciler, View, Write, client::Target,
    objects::CertificateSigningRequest,
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// How long certificates live at most: `--cluster-signing-duration` of the controller manager.
const LONGEST: SignedDuration = SignedDuration::from_hours(365 * 24);
/// When to look again at a request that cannot be signed now.
const RETRY: Duration = Duration::from_secs(300);

/// Signers by controller name.
const SIGNERS: [(&str, &str); 4] = [
    ("csrsigning-kubelet-serving", policy::KUBELET_SERVING),
    ("csrsigning-kubelet-client", policy::KUBELET_CLIENT),
    ("csrsigning-kube-apiserver-client", policy::CLIENT),
    ("csrsigning-legacy-unknown", policy::LEGACY),
];

/// The controllers of all of Kubernetes' signers.
pub fn controllers(informers: &Arc<Informers>, authority: &Arc<Authority>) -> Vec<Controller> {
    let controller = |(name, signer): (&'static str, &'static str)| {
        Controller::new(Signer { name, signer, authority: authority.clone() }, informers)
            .reads::<CertificateSigningRequest>(move |change: &Change<CertificateSigningRequest>, _| {
            let csr = change.any();
            if csr.spec.signer_name == signer { vec![csr.metadata.key()] } else { vec![] }
        })
    };
    SIGNERS.map(controller).into()
}

struct Signer {
    name: &'static str,
    signer: &'static str,
    authority: Arc<Authority>,
}

/// A write of a status, if the request is still as it was seen.
pub fn status(csr: &CertificateSigningRequest, subresource: &str, status: Value) -> Write {
    let meta = &csr.metadata;
    Write::Patch {
        target: Target::of::<CertificateSigningRequest>("", &meta.name).subresource(subresource),
        kind: PatchKind::Merge,
        body: json!({
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": status,
        }),
    }
}

/// The conditions with one more.
pub fn with_condition(csr: &CertificateSigningRequest, condition: Value) -> Value {
    let all: Vec<Value> = csr.status.conditions.iter().cloned().chain([condition]).collect();
    json!({"conditions": all})
}

/// The decoded request.
pub fn parse(csr: &CertificateSigningRequest) -> Result<Request, String> {
    let pem = STANDARD.decode(&csr.spec.request).map_err(|e| e.to_string())?;
    Request::parse(&pem)
}

impl Reconciler for Signer {
    fn name(&self) -> &'static str {
        self.name
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let requests = view.get::<CertificateSigningRequest>();
        let Some(csr) = requests.by_key(key) else { return Plan::nothing() };
        let failed = csr
            .conditions("Failed")
            .any(|c| c["status"].as_str().is_none_or(|s| s == "True" || s.is_empty()));
        if csr.spec.signer_name != self.signer
            || !csr.status.certificate.is_empty()
            || !csr.has("Approved")
            || csr.has("Denied")
            || failed
        {
            return Plan::nothing();
        }
        let again = |error: String| {
            tracing::warn!(csr = csr.metadata.name, error, "error auto signing csr");
            Plan::nothing().again_after(RETRY)
        };
        let request = match parse(csr) {
            Ok(request) => request,
            Err(error) => return again(error),
        };
        if let Err(message) = policy::check(self.signer, &request, &csr.spec.usages) {
            let condition = json!({
                "type": "Failed",
                "status": "True",
                "reason": "SignerValidationFailure",
                "message": message,
                "lastUpdateTime": kaji_meta::Time::from(cx.now).to_string(),
            });
            return Plan::nothing().then(status(csr, "status", with_condition(csr, condition)));
        }
        let lifetime = lifetime(csr.spec.expiration_seconds, LONGEST);
        match self.authority.sign(&request, &csr.spec.usages, lifetime, cx.now, cx.random) {
            Ok(pem) => {
                Plan::nothing().then(status(csr, "status", json!({"certificate": STANDARD.encode(pem)})))
            }
            Err(error) => again(error),
        }
    }
}

/// A controller's reconciler, for tests.
#[cfg(test)]
pub fn signer(signer: &'static str, authority: Arc<Authority>) -> impl Reconciler {
    Signer { name: "csrsigning-test", signer, authority }
}
