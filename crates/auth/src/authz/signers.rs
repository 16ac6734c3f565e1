//! Permissions for the signers of certificates: verbs such as `sign`, `approve` and `attest` on `signers.certificates.k8s.io`.

use super::{Attributes, Authorizer};
use kaji_resource::UserInfo;

/// Whether a user may act for a signer: for it by name, or for all of its domain.
pub async fn may_act_for(authorizer: &dyn Authorizer, user: &UserInfo, verb: &str, signer: &str) -> bool {
    let domain = format!("{}/*", signer.split('/').next().unwrap_or_default());
    for name in [signer, &domain] {
        let question =
            Attributes { name, ..Attributes::resource(user, verb, "certificates.k8s.io", "signers") };
        if authorizer.authorize(&question).await.allowed() {
            return true;
        }
    }
    false
}
