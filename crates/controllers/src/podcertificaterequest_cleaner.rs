//! The cleaner of pods' certificate requests: it deletes them by age.
//!
//! Invariant: a request is deleted by uid, at its deadline.

use crate::{Descriptor, Start, shared::certificates::delete_at};
use jiff::SignedDuration;
use kaji_runtime::{Controller, Cx, Informers, Key, Plan, Reconciler, View, objects::PodCertificateRequest};
use std::sync::Arc;

/// After the creation of a pod's request, whatever became of it: all flows are faster.
const POD: SignedDuration = SignedDuration::from_mins(15);

const COMPONENT: &str = "podcertificaterequestcleaner";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "podcertificaterequest-cleaner-controller",
    components: &[COMPONENT],
    service_account: Some("podcertificaterequestcleaner"),
    workers: None,
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(PodRequests, informers)
        .reads::<PodCertificateRequest>(|change, _| vec![change.any().metadata.key()])
}

struct PodRequests;

impl Reconciler for PodRequests {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let requests = view.get::<PodCertificateRequest>();
        let Some(request) = requests.by_key(key).filter(|r| !r.metadata.deleting()) else {
            return Plan::nothing();
        };
        let deadline = request.metadata.creation_timestamp.map(|t| t + POD);
        delete_at::<PodCertificateRequest>(&request.metadata, deadline, cx.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, reconcile, snapshot, text};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn deletes_requests_after_15_minutes() {
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
