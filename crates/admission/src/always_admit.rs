//! `AlwaysAdmit`: accepts every write. Upstream keeps the name for command lines that still have it.

use kaji_engine::{Admission, Attributes, Operation, Phases};

/// The plugin.
pub(super) struct AlwaysAdmit;

impl Admission for AlwaysAdmit {
    fn name(&self) -> &'static str {
        "AlwaysAdmit"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        let _ = (group, resource, operation);
        Phases::NONE
    }

    fn handles(&self, _: &Attributes<'_>) -> bool {
        false
    }
}
