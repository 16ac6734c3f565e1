//! The signers: approved requests get their certificate, or a condition with the reason of the failure.
//!
//! Invariants: one controller a signer name; nothing is signed that is not approved, or denied, or failed; a
//! certificate is issued once.

mod authority;

pub use authority::Authority;

use crate::{
    Descriptor, Start,
    shared::certificates::{parse, signers, status, with_condition},
};
use authority::lifetime;
use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::SignedDuration;
use kaji_runtime::{
    Change, Controller, Cx, Informers, Key, Plan, Reconciler, View, objects::CertificateSigningRequest,
};
use serde_json::json;
use std::{sync::Arc, time::Duration};

/// The delay before a request is retried that could not be signed.
const RETRY: Duration = Duration::from_secs(300);

/// Signers by controller name.
const SIGNERS: [(&str, &str); 4] = [
    ("csrsigning-kubelet-serving", signers::KUBELET_SERVING),
    ("csrsigning-kubelet-client", signers::KUBELET_CLIENT),
    ("csrsigning-kube-apiserver-client", signers::CLIENT),
    ("csrsigning-legacy-unknown", signers::LEGACY),
];

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "certificatesigningrequest-signing-controller",
    components: &[
        "csrsigning-kubelet-serving",
        "csrsigning-kubelet-client",
        "csrsigning-kube-apiserver-client",
        "csrsigning-legacy-unknown",
    ],
    service_account: Some("certificate-controller"),
    workers: None,
    start: Start::Reconcilers(|informers, config| {
        let longest = SignedDuration::try_from(config.loops.signing_duration).unwrap_or(SignedDuration::MAX);
        config.authority.iter().flat_map(|authority| controllers(informers, authority, longest)).collect()
    }),
};

/// The controllers of all of Kubernetes' signers.
fn controllers(
    informers: &Arc<Informers>,
    authority: &Arc<Authority>,
    longest: SignedDuration,
) -> Vec<Controller> {
    let controller = |(name, signer): (&'static str, &'static str)| {
        Controller::new(Signer { name, signer, authority: authority.clone(), longest }, informers)
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
    /// How long certificates live at most: `--cluster-signing-duration` of the controller manager.
    longest: SignedDuration,
}

impl Reconciler for Signer {
    fn name(&self) -> &'static str {
        self.name
    }

    fn queue_name(&self) -> &'static str {
        "certificate"
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
        if let Err(message) = signers::check(self.signer, &request, &csr.spec.usages) {
            let condition = json!({
                "type": "Failed",
                "status": "True",
                "reason": "SignerValidationFailure",
                "message": message,
                "lastUpdateTime": kaji_meta::Time::from(cx.now).to_string(),
            });
            return Plan::nothing().then(status(csr, "status", with_condition(csr, condition)));
        }
        let lifetime = lifetime(csr.spec.expiration_seconds, self.longest);
        match self.authority.sign(&request, &csr.spec.usages, lifetime, cx.now, cx.random) {
            Ok(pem) => {
                Plan::nothing().then(status(csr, "status", json!({"certificate": STANDARD.encode(pem)})))
            }
            Err(error) => again(error),
        }
    }
}

#[cfg(test)]
mod tests;
