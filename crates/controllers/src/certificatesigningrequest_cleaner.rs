//! The cleaner of certificate signing requests: it deletes those that are denied, failed, expired or left pending.
//!
//! Invariant: a request is deleted by uid, at its deadline.

use crate::{Descriptor, Start, shared::certificates::delete_at};
use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use kaji_runtime::{
    Controller, Cx, Informers, Key, Plan, Reconciler, View, objects::CertificateSigningRequest,
};
use std::sync::Arc;
use x509_parser::pem::Pem;

/// After approval (with a certificate) or denial or failure.
const DECIDED: SignedDuration = SignedDuration::from_hours(1);
/// After creation without a decision, or after approval without a certificate.
const PENDING: SignedDuration = SignedDuration::from_hours(24);
const COMPONENT: &str = "csrcleaner";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "certificatesigningrequest-cleaner-controller",
    components: &[COMPONENT],
    service_account: Some("certificate-controller"),
    workers: None,
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(Requests, informers)
        .reads::<CertificateSigningRequest>(|change, _| vec![change.any().metadata.key()])
}

/// When a request goes.
fn deadline(csr: &CertificateSigningRequest) -> Option<Timestamp> {
    let issued = !csr.status.certificate.is_empty();
    let times = |kind: &'static str, after: SignedDuration| {
        let updated =
            csr.conditions(kind).filter_map(|c| c["lastUpdateTime"].as_str()?.parse::<Timestamp>().ok());
        updated.map(move |t| t + after)
    };
    let pending = csr.metadata.creation_timestamp.filter(|_| csr.status.conditions.is_empty());
    times("Denied", DECIDED)
        .chain(times("Failed", DECIDED))
        .chain(times("Approved", if issued { DECIDED } else { PENDING }))
        .chain(pending.map(|t| t + PENDING))
        .chain(expiry(csr).filter(|_| csr.has("Approved")))
        .min()
}

/// When the issued certificate ends.
fn expiry(csr: &CertificateSigningRequest) -> Option<Timestamp> {
    let pem = STANDARD.decode(&csr.status.certificate).ok()?;
    let block = Pem::iter_from_buffer(&pem).find_map(Result::ok)?;
    let certificate = block.parse_x509().ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

struct Requests;

impl Reconciler for Requests {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let requests = view.get::<CertificateSigningRequest>();
        let Some(csr) = requests.by_key(key).filter(|csr| !csr.metadata.deleting()) else {
            return Plan::nothing();
        };
        delete_at::<CertificateSigningRequest>(&csr.metadata, deadline(csr), cx.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, reconcile, snapshot, text};
    use expect_test::expect;
    use serde_json::{Value, json};

    fn plan(age: i64, status: Value) -> String {
        let csr =
            json!({"metadata": {"name": "c", "uid": "u", "creationTimestamp": ago(age)}, "status": status});
        let view = View::default().with(snapshot::<CertificateSigningRequest>([csr]));
        text(&reconcile(&Requests, &view, "", "c", &[]))
    }

    fn decided(kind: &str, age: i64, certificate: &str) -> String {
        let condition = json!({"type": kind, "status": "True", "lastUpdateTime": ago(age)});
        plan(90_000, json!({"conditions": [condition], "certificate": certificate}))
    }

    #[test]
    fn deletes_requests_at_their_deadline() {
        const DELETE: &str = "delete /apis/certificates.k8s.io/v1/certificatesigningrequests/c {\"preconditions\":{\"uid\":\"u\"}}\n";
        expect!["again after 1s\n"].assert_eq(&plan(86_400, json!({})));
        assert_eq!(plan(86_401, json!({})), DELETE);
        for kind in ["Denied", "Failed"] {
            expect!["again after 1s\n"].assert_eq(&decided(kind, 3600, ""));
            assert_eq!(decided(kind, 3601, ""), DELETE);
        }
        expect!["again after 82799s\n"].assert_eq(&decided("Approved", 3602, ""));
        assert_eq!(decided("Approved", 86_401, ""), DELETE);
        // Whatever it holds, it is issued.
        assert_eq!(decided("Approved", 3601, "eA=="), DELETE);
        expect!["again after 1s\n"].assert_eq(&decided("Approved", 3600, "eA=="));
    }
}
