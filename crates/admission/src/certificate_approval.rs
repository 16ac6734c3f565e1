//! `CertificateApproval`: a user that approves or denies a certificate signing request needs the verb `approve` for its signer.
//!
//! Invariant: the signer is that of the stored request, which the write cannot change.

use crate::certificate_signing_requests::{GROUP, REQUESTS, signer};
use kaji_auth::{Authorizer, authz::signers::may_act_for};
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{Status, text::quote};
use kaji_resource::BoxFuture;
use serde_json::Value;
use std::sync::Arc;

/// The plugin.
pub(super) struct CertificateApproval(pub(super) Arc<dyn Authorizer>);

impl Admission for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::VALIDATING.when(operation == Operation::Update && (group, resource) == (GROUP, REQUESTS))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource == "approval"
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let signer = signer(a.old.unwrap_or(&Value::Null));
            if may_act_for(&*self.0, a.user, "approve", signer).await {
                return Ok(());
            }
            Err(a.forbidden(format!(
                "user not permitted to approve requests with signerName {}",
                quote(signer)
            )))
        })
    }
}
