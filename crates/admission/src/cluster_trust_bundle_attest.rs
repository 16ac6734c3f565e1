//! `ClusterTrustBundleAttest`: a user that writes a cluster trust bundle of a signer needs the verb `attest` for that signer.

use crate::certificate_signing_requests::{GROUP, signer};
use kaji_auth::{Authorizer, authz::signers::may_act_for};
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{Status, object, semantic_equal, text::quote};
use kaji_resource::BoxFuture;
use serde_json::Value;
use std::sync::Arc;

/// The plugin.
pub(super) struct ClusterTrustBundleAttest(pub(super) Arc<dyn Authorizer>);

impl Admission for ClusterTrustBundleAttest {
    fn name(&self) -> &'static str {
        "ClusterTrustBundleAttest"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::VALIDATING.when(
            matches!(operation, Operation::Create | Operation::Update)
                && (group, resource) == (GROUP, "clustertrustbundles"),
        )
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource.is_empty()
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let new = a.new_object().unwrap_or(&Value::Null);
            let signer = signer(new);
            let untouched = a.old.is_some_and(|old| only_collected(old, new));
            if signer.is_empty() || untouched || may_act_for(&*self.0, a.user, "attest", signer).await {
                return Ok(());
            }
            Err(a.forbidden(format!("user not permitted to attest for signerName {}", quote(signer))))
        })
    }
}

/// Whether a write changes nothing but what garbage collection does.
fn only_collected(old: &Value, new: &Value) -> bool {
    let bare = |object: &Value| {
        let mut bare = object.clone();
        for field in ["ownerReferences", "finalizers", "managedFields"] {
            object::remove_at(&mut bare, &["metadata", field]);
        }
        bare
    };
    semantic_equal(&bare(old), &bare(new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn garbage_collection_needs_no_attest_permission() {
        let old = json!({"metadata": {"name": "b", "finalizers": ["x"]}, "spec": {"trustBundle": "a"}});
        let mut new = json!({"metadata": {"name": "b", "ownerReferences": [{"uid": "1"}]}, "spec": {"trustBundle": "a"}});
        assert!(only_collected(&old, &new));
        new["spec"]["trustBundle"] = json!("b");
        assert!(!only_collected(&old, &new));
    }
}
