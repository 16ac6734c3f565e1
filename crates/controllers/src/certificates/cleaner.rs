//! Old requests go: certificate signing requests by what became of them, pods' certificate requests by age.
//!
//! Invariant: a request is deleted by uid, at its deadline, which the loop waits for instead of polling hourly.

use super::ago;
use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use kaji_runtime::{
    Controller, Cx, Informers, Key, Meta, Plan, Projection, Reconciler, View, Write,
    client::Target,
    objects::{CertificateSigningRequest, PodCertificateRequest},
};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use x509_parser::pem::Pem;

/// After approval (with a certificate) or denial or failure.
const DECIDED: SignedDuration = SignedDuration::from_hours(1);
/// After creation without a decision, or after approval without a certificate.
const PENDING: SignedDuration = SignedDuration::from_hours(24);
/// After the creation of a pod's request, whatever became of it: all flows are faster.
const POD: SignedDuration = SignedDuration::from_mins(15);

/// The cleaner of certificate signing requests.
pub fn requests(informers: &Arc<Informers>) -> Controller {
    Controller::new(Requests, informers)
        .reads::<CertificateSigningRequest>(|change, _| vec![change.any().metadata.key()])
}

/// The cleaner of pods' certificate requests.
pub fn pod_requests(informers: &Arc<Informers>) -> Controller {
    Controller::new(PodRequests, informers)
        .reads::<PodCertificateRequest>(|change, _| vec![change.any().metadata.key()])
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

/// Deletes what is past its deadline, waits for what is not.
fn clean<T: Projection>(meta: &Meta, deadline: Option<Timestamp>, now: Timestamp) -> Plan {
    let Some(deadline) = deadline else { return Plan::nothing() };
    match ago(deadline, now) {
        Some(_) => Plan::nothing().then(Write::Delete {
            target: Target::of::<T>(&meta.namespace, &meta.name),
            options: json!({"preconditions": {"uid": meta.uid}}),
        }),
        None => {
            let left = Duration::try_from(deadline.duration_since(now)).unwrap_or_default();
            Plan::nothing().again_after(left + Duration::from_secs(1))
        }
    }
}

struct Requests;

impl Reconciler for Requests {
    fn name(&self) -> &'static str {
        "csrcleaner"
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let requests = view.get::<CertificateSigningRequest>();
        let Some(csr) = requests.by_key(key).filter(|csr| !csr.metadata.deleting()) else {
            return Plan::nothing();
        };
        clean::<CertificateSigningRequest>(&csr.metadata, deadline(csr), cx.now)
    }
}

struct PodRequests;

impl Reconciler for PodRequests {
    fn name(&self) -> &'static str {
        "podcertificaterequestcleaner"
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let requests = view.get::<PodCertificateRequest>();
        let Some(request) = requests.by_key(key).filter(|r| !r.metadata.deleting()) else {
            return Plan::nothing();
        };
        let deadline = request.metadata.creation_timestamp.map(|t| t + POD);
        clean::<PodCertificateRequest>(&request.metadata, deadline, cx.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, reconcile, snapshot, text};
    use expect_test::expect;
    use serde_json::Value;

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
    fn deadlines() {
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

    #[test]
    fn pods_requests_live_a_quarter_of_an_hour() {
        let plan = |age| {
            let request = json!({"metadata": {"name": "r", "namespace": "ns", "uid": "u", "creationTimestamp": ago(age)}});
            let view = View::default().with(snapshot::<PodCertificateRequest>([request]));
            text(&reconcile(&PodRequests, &view, "ns", "r", &[]))
        };
        expect!["again after 1s\n"].assert_eq(&plan(900));
        expect![[r#"
            delete /apis/certificates.k8s.io/v1/namespaces/ns/podcertificaterequests/r {"preconditions":{"uid":"u"}}
        "#]]
        .assert_eq(&plan(901));
    }
}
