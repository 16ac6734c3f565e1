//! The permission to sign: a user that changes the status of a request needs the verb `sign` for its signer.
//!
//! Invariant: the signer is that of the stored request.

use crate::shared::value::Fields;
use kaji_auth::{Authorizer, authz::signers::may_act_for};
use kaji_meta::{
    GroupKind, Status,
    field::{Error, Path},
    object, semantic_equal,
    text::quote,
};
use kaji_resource::Ctx;
use serde_json::Value;

/// Checks the permission of a request's user for the change of a status.
///
/// # Errors
/// 422 without the permission, as upstream's strategy answers.
pub(super) async fn may_sign(
    authorizer: &dyn Authorizer,
    ctx: &Ctx<'_>,
    new: &Value,
    old: &Value,
) -> Result<(), Status> {
    if semantic_equal(new.at("status"), old.at("status")) {
        return Ok(());
    }
    let signer = old.at("spec").text("signerName");
    if may_act_for(authorizer, ctx.user, "sign", signer).await {
        return Ok(());
    }
    let user = quote(&ctx.user.name);
    let text = format!("User {user} is not permitted to \"sign\" for signer {}", quote(signer));
    let error = Error::forbidden(&Path::new("spec").child("signerName"), text);
    Err(Status::invalid(
        &GroupKind::new("certificates.k8s.io", "PodCertificateRequest"),
        object::name(new),
        &[error],
    ))
}
