//! `PodGroupProtection`: new groups of pods get the finalizer that keeps them while pods name them. The controller of the same
//! name removes it.

use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{Status, object};
use kaji_resource::BoxFuture;

/// The plugin.
pub(super) struct PodGroupProtection;

const FINALIZER: &str = "scheduling.k8s.io/podgroup-protection";

impl Admission for PodGroupProtection {
    fn name(&self) -> &'static str {
        "PodGroupProtection"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        let group = (group, resource) == ("scheduling.k8s.io", "podgroups");
        Phases::MUTATING.when(group && operation == Operation::Create)
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource.is_empty()
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        if let Some(group) = a.object.as_deref_mut() {
            let mut all = object::arr_at(group, &["metadata", "finalizers"]).to_vec();
            if !all.iter().any(|f| f == FINALIZER) {
                all.push(FINALIZER.into());
                object::set_at(group, &["metadata", "finalizers"], all);
            }
        }
        Box::pin(std::future::ready(Ok(())))
    }
}
