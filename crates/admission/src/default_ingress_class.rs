//! `DefaultIngressClass`: a new ingress that names no class gets the default one.

use crate::default_class;
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{GroupResource, Status};
use kaji_resource::BoxFuture;

/// The plugin.
pub(super) struct DefaultIngressClass;

impl Admission for DefaultIngressClass {
    fn name(&self) -> &'static str {
        "DefaultIngressClass"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::MUTATING
            .when(operation == Operation::Create && (group, resource) == ("networking.k8s.io", "ingresses"))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource.is_empty()
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let classes = GroupResource::new("networking.k8s.io", "ingressclasses");
            let marks = &["ingressclass.kubernetes.io/is-default-class"];
            default_class::set(a, "ingressClassName", "kubernetes.io/ingress.class", &classes, marks).await
        })
    }
}
