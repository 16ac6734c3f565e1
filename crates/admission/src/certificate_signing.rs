//! `CertificateSigning`: a user that changes a request's certificate or conditions through its status needs the verb `sign`
//! for its signer.
//!
//! Invariant: the signer is that of the stored request, which the write cannot change.

use crate::certificate_signing_requests::{GROUP, REQUESTS, signer};
use kaji_auth::{Authorizer, authz::signers::may_act_for};
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{Status, semantic_equal, text::quote};
use kaji_resource::BoxFuture;
use serde_json::Value;
use std::sync::Arc;

/// The plugin.
pub(super) struct CertificateSigning(pub(super) Arc<dyn Authorizer>);

impl Admission for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::VALIDATING.when(operation == Operation::Update && (group, resource) == (GROUP, REQUESTS))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource == "status"
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let (old, new) = (a.old.unwrap_or(&Value::Null), a.new_object().unwrap_or(&Value::Null));
            let field = |request: &Value, name| request["status"][name].clone();
            let same = |name| semantic_equal(&field(old, name), &field(new, name));
            let signer = signer(old);
            if same("certificate") && same("conditions")
                || may_act_for(&*self.0, a.user, "sign", signer).await
            {
                return Ok(());
            }
            Err(a.forbidden(format!("user not permitted to sign requests with signerName {}", quote(signer))))
        })
    }
}
