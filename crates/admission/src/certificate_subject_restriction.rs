//! `CertificateSubjectRestriction`: refuses requests for client certificates in the group `system:masters`.

use crate::certificate_signing_requests::{GROUP, REQUESTS, signer, subject};
use kaji_auth::names::MASTERS;
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::Status;
use kaji_resource::BoxFuture;

/// The plugin.
pub(super) struct CertificateSubjectRestriction;

const CLIENT: &str = "kubernetes.io/kube-apiserver-client";

impl Admission for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::VALIDATING.when(operation == Operation::Create && (group, resource) == (GROUP, REQUESTS))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource.is_empty()
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let result = match a.new_object().filter(|request| signer(request) == CLIENT).map(subject) {
            Some(Err(error)) => Err(a.forbidden(format!("failed to parse CSR: {error}"))),
            Some(Ok(subject)) if subject.organizations.iter().any(|group| group == MASTERS) => {
                Err(a.forbidden(format!("use of {CLIENT} signer with {MASTERS} group is not allowed")))
            }
            _ => Ok(()),
        };
        Box::pin(std::future::ready(result))
    }
}
