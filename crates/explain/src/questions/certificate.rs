//! A certificate request without a certificate: approval, and the signer.

use crate::{
    case::{Case, condition_is, tell},
    names::nearest,
    report::{Cause, Sort},
};
use kaji_meta::object::{self, str_at, strs_at};
use serde_json::Value;

/// The signers of Kubernetes itself, and whether their requests are approved without a person.
const SIGNERS: &[(&str, bool)] = &[
    ("kubernetes.io/kube-apiserver-client", false),
    ("kubernetes.io/kube-apiserver-client-kubelet", true),
    ("kubernetes.io/kubelet-serving", false),
    ("kubernetes.io/legacy-unknown", false),
];

/// Usages of a kubelet's client certificate.
const USAGES: &[&str] = &["client auth", "digital signature", "key encipherment"];

/// Why there is no certificate.
pub async fn causes(case: &Case<'_>) -> Vec<Cause> {
    let request = case.object;
    if !str_at(request, &["status", "certificate"]).is_empty() {
        return vec![];
    }
    let signer = str_at(request, &["spec", "signerName"]);
    let cause =
        Cause::new(Sort::Certificate, "it has no certificate").known(format!("its signer is {signer}"));
    for sort in ["Denied", "Failed"] {
        if let Some(condition) = condition_is(request, sort, "True") {
            return vec![
                cause.known(tell(condition)).fix("make a new request: a decision is not taken back"),
            ];
        }
    }
    let known = SIGNERS.iter().find(|(name, _)| *name == signer);
    if condition_is(request, "Approved", "True").is_none() {
        let cause = cause.known("it is not approved");
        let cause = match known {
            Some((_, true)) => automatic(request, cause),
            Some((_, false)) => cause.known("requests of this signer wait for an administrator's approval"),
            None => misspelt(
                cause.inferred(
                    "an approver of this signer may do it; without one it waits for an administrator",
                ),
                signer,
            ),
        };
        let cause = match object::creation_timestamp(request) {
            Some(since) => cause.known(format!(
                "it waits since {since}; a request without a decision is removed after 24 hours"
            )),
            None => cause,
        };
        return vec![
            cause.fix(format!("look at the request, then: kubectl certificate approve {}", case.name())),
        ];
    }
    let cause = cause.known("it is approved");
    vec![match known {
        Some(("kubernetes.io/legacy-unknown", _)) => {
            cause.known("certificates.k8s.io/v1 requests of this signer are not signed")
        }
        Some(_) => cause.inferred("the signing controller has not signed it yet, or does not run"),
        None => {
            let cause = cause.inferred(format!(
                "the controller that signs for {signer} is not installed, fails, or waits"
            ));
            match near(signer) {
                Some(_) => misspelt(cause, signer),
                None => cause.fix(format!("look at the controller that signs for {signer}")),
            }
        }
    }]
}

/// What the approver of kubelets' requests looks at.
fn automatic(request: &Value, cause: Cause) -> Cause {
    let usages: Vec<&str> = strs_at(request, &["spec", "usages"]).collect();
    let has = |usage: &str| usages.contains(&usage);
    let exact =
        has("client auth") && has("digital signature") && usages.iter().all(|usage| USAGES.contains(usage));
    if !exact {
        let cause = cause.known(format!("its usages are {}", usages.join(", ")));
        return cause.known(format!(
            "the approver takes {} alone; key encipherment may be left out",
            USAGES.join(", ")
        ));
    }
    cause.inferred("the approver lets it pass if its user may create nodeclient or selfnodeclient requests")
}

/// The signer of Kubernetes with a name that is nearly the same.
fn near(signer: &str) -> Option<&'static str> {
    nearest(signer, SIGNERS.iter().map(|(name, _)| *name))
}

fn misspelt(cause: Cause, signer: &str) -> Cause {
    match near(signer) {
        Some(near) => cause
            .nearest(format!("Kubernetes signs for {near}"))
            .fix("correct spec.signerName in a new request"),
        None => cause,
    }
}
