//! `PersistentVolumeClaimResize`: a claim grows only if its storage class allows volume expansion.

use crate::find;
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{GroupResource, Quantity, Status, object};
use kaji_resource::BoxFuture;
use serde_json::Value;

/// The plugin.
pub(super) struct PersistentVolumeClaimResize;

impl Admission for PersistentVolumeClaimResize {
    fn name(&self) -> &'static str {
        "PersistentVolumeClaimResize"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::VALIDATING
            .when(operation == Operation::Update && (group, resource) == ("", "persistentvolumeclaims"))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource.is_empty()
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let (Some(old), Some(new)) = (a.old, a.new_object()) else { return Ok(()) };
            if size(new) <= size(old) {
                return Ok(());
            }
            if old["status"]["phase"] != "Bound" {
                return Err(a.forbidden("Only bound persistent volume claims can be expanded"));
            }
            let name = class(new);
            let grows = if name.is_empty() || name != class(old) {
                false
            } else {
                let found = find(a, &GroupResource::new("storage.k8s.io", "storageclasses"), name).await?;
                found.is_some_and(|class| class["allowVolumeExpansion"] == true)
            };
            if grows {
                return Ok(());
            }
            Err(a.forbidden("only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"))
        })
    }
}

fn size(claim: &Value) -> Quantity {
    let amount = &claim["spec"]["resources"]["requests"]["storage"];
    Quantity::from_value(amount).unwrap_or_else(|_| Quantity::new(0, kaji_meta::quantity::Format::BinarySi))
}

/// The class of a claim: of old it was an annotation.
fn class(claim: &Value) -> &str {
    let annotated = object::annotation(claim, "volume.beta.kubernetes.io/storage-class");
    annotated.unwrap_or_else(|| object::str_at(claim, &["spec", "storageClassName"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_are_compared_by_amount_and_class() {
        let claim = |size: &str| json!({"spec": {"storageClassName": "s", "resources": {"requests": {"storage": size}}}});
        assert!(size(&claim("1Gi")) > size(&claim("1G")) && size(&json!({})) < size(&claim("1")));
        let mut old = claim("1");
        assert_eq!(class(&old), "s");
        old["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"] = json!("a");
        assert_eq!(class(&old), "a");
    }
}
