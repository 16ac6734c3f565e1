//! `OwnerReferencesPermissionEnforcement`: a user that sets an owner reference must be allowed to do to both objects what
//! follows from it.

use kaji_auth::{Attributes as Question, Authorizer, Outcome};
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{GroupVersionKind, Status, object, semantic_equal};
use kaji_resource::BoxFuture;
use serde_json::Value;
use std::sync::Arc;

/// The plugin.
pub(super) struct OwnerReferencesPermissionEnforcement(pub(super) Arc<dyn Authorizer>);

impl Admission for OwnerReferencesPermissionEnforcement {
    fn name(&self) -> &'static str {
        "OwnerReferencesPermissionEnforcement"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        let _ = (group, resource);
        Phases::VALIDATING.when(matches!(operation, Operation::Create | Operation::Update))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        // The status of pods cannot change owners, and old kubelets send what they do not know.
        let status =
            a.resource.group.is_empty() && a.resource.resource == "pods" && a.subresource == "status";
        matches!(a.operation, Operation::Create | Operation::Update)
            && !status
            && changes(a.new_object().unwrap_or(&Value::Null), a.old)
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let new = a.new_object().unwrap_or(&Value::Null);
            // A user that creates an object needs no more; one that changes it must be able to delete it, for that is
            // what becomes of it without its owner.
            if a.operation != Operation::Create {
                let question = Question {
                    namespace: a.namespace,
                    version: &a.resource.version,
                    subresource: a.subresource,
                    name: a.name,
                    ..Question::resource(a.user, "delete", &a.resource.group, &a.resource.resource)
                };
                let outcome = self.0.authorize(&question).await;
                if !outcome.allowed() {
                    return Err(a.forbidden(format!(
                        "cannot set an ownerRef on a resource you can't delete: {}",
                        why(&outcome)
                    )));
                }
            }
            self.blocking(a, &blocking(new, a.old)).await
        })
    }
}

impl OwnerReferencesPermissionEnforcement {
    /// An object that blocks the deletion of its owner is like a finalizer there.
    async fn blocking(&self, a: &Attributes<'_>, references: &[&Value]) -> Result<(), Status> {
        if references.is_empty() {
            return Ok(());
        }
        let anything = Question { name: "*", ..finalize(a, "*", "*") };
        if self.0.authorize(&anything).await.allowed() {
            return Ok(());
        }
        for reference in references {
            let text = |field: &str| object::str_at(reference, &[field]);
            let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
            let kind = GroupVersionKind::new(group, version, text("kind"));
            let Some((owner, namespaced)) = a.api.resource_of(&kind) else {
                return Err(a.forbidden(format!(
                    "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {0} Kind {1}: no matches for kind \"{1}\" in version \"{0}\"",
                    text("apiVersion"),
                    text("kind")
                )));
            };
            let question = Question {
                version,
                name: text("name"),
                namespace: if namespaced { a.namespace } else { "" },
                ..finalize(a, &owner.group, &owner.resource)
            };
            let outcome = self.0.authorize(&question).await;
            if !outcome.allowed() {
                return Err(a.forbidden(format!(
                    "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: {}",
                    why(&outcome)
                )));
            }
        }
        Ok(())
    }
}

fn finalize<'a>(a: &'a Attributes<'_>, group: &'a str, resource: &'a str) -> Question<'a> {
    Question { subresource: "finalizers", ..Question::resource(a.user, "update", group, resource) }
}

/// The reason and the error, as Go prints them.
fn why(outcome: &Outcome) -> String {
    format!("{}, {}", outcome.reason, outcome.error.as_deref().unwrap_or("<nil>"))
}

/// Whether a write changes the owners of an object.
fn changes(new: &Value, old: Option<&Value>) -> bool {
    let (new, old) = (object::owner_references(new), old.map_or(&[][..], object::owner_references));
    new.len() != old.len() || new.iter().zip(old).any(|(n, o)| !semantic_equal(n, o))
}

/// The references that block the deletion of an owner and did not before.
fn blocking<'a>(new: &'a Value, old: Option<&Value>) -> Vec<&'a Value> {
    let old = old.map_or(&[][..], object::owner_references);
    let blocks = |reference: &Value| reference["blockOwnerDeletion"] == true;
    let did = |reference: &Value| old.iter().rfind(|o| o["uid"] == reference["uid"]).is_some_and(blocks);
    object::owner_references(new).iter().filter(|r| blocks(r) && !did(r)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn checks_only_new_blocking_references() {
        let with = |refs: Value| json!({"metadata": {"ownerReferences": refs}});
        let reference = |uid: &str, block: Value| json!({"uid": uid, "blockOwnerDeletion": block});
        let old = with(json!([
            reference("a", json!(true)),
            reference("b", json!(false)),
            reference("c", json!(true))
        ]));
        let new = with(json!([
            reference("a", json!(true)),
            reference("b", json!(true)),
            reference("d", json!(true)),
            reference("e", json!(null))
        ]));
        let uids = |list: Vec<&Value>| {
            list.iter().map(|r| r["uid"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(uids(blocking(&new, Some(&old))), ["b", "d"]);
        assert_eq!(uids(blocking(&new, None)), ["a", "b", "d"]);
        assert!(changes(&new, Some(&old)) && changes(&new, None));
        assert!(!changes(&old, Some(&old)) && !changes(&with(json!([])), None));
    }
}
