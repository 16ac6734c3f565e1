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

/// What signs the requests to each of Kubernetes' signers. One without an authority signs nothing.
#[derive(Clone, Debug, Default)]
pub struct Authorities {
    /// `kubernetes.io/kubelet-serving`
    pub kubelet_serving: Option<Arc<Authority>>,
    /// `kubernetes.io/kube-apiserver-client-kubelet`
    pub kubelet_client: Option<Arc<Authority>>,
    /// `kubernetes.io/kube-apiserver-client`
    pub client: Option<Arc<Authority>>,
    /// `kubernetes.io/legacy-unknown`
    pub legacy_unknown: Option<Arc<Authority>>,
}

impl Authorities {
    /// The same authority for all.
    pub fn one(authority: Arc<Authority>) -> Authorities {
        let one = Some(authority);
        Authorities {
            kubelet_serving: one.clone(),
            kubelet_client: one.clone(),
            client: one.clone(),
            legacy_unknown: one,
        }
    }
}

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
        controllers(informers, &config.authorities, longest)
    }),
};

/// The controllers of Kubernetes' signers that have an authority.
fn controllers(
    informers: &Arc<Informers>,
    authorities: &Authorities,
    longest: SignedDuration,
) -> Vec<Controller> {
    let all = [
        ("csrsigning-kubelet-serving", signers::KUBELET_SERVING, &authorities.kubelet_serving),
        ("csrsigning-kubelet-client", signers::KUBELET_CLIENT, &authorities.kubelet_client),
        ("csrsigning-kube-apiserver-client", signers::CLIENT, &authorities.client),
        ("csrsigning-legacy-unknown", signers::LEGACY, &authorities.legacy_unknown),
    ];
    let controller = |(name, signer, authority): (&'static str, &'static str, &Option<Arc<Authority>>)| {
        let decides = Signer { name, signer, authority: authority.clone()?, longest };
        let keys = move |change: &Change<CertificateSigningRequest>, _: &View| {
            let csr = change.any();
            if csr.spec.signer_name == signer { vec![csr.metadata.key()] } else { vec![] }
        };
        Some(Controller::new(decides, informers).reads(keys))
    };
    all.into_iter().filter_map(controller).collect()
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
