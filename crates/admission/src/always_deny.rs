//! `AlwaysDeny`: refuses every write, for tests of clients.

use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::Status;
use kaji_resource::BoxFuture;

/// The plugin.
pub(super) struct AlwaysDeny;

impl Admission for AlwaysDeny {
    fn name(&self) -> &'static str {
        "AlwaysDeny"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        let _ = (group, resource, operation);
        Phases::MUTATING
    }

    fn handles(&self, _: &Attributes<'_>) -> bool {
        true
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let refusal = a.forbidden("admission control is denying all modifications");
        Box::pin(std::future::ready(Err(refusal)))
    }
}
