//! `AlwaysAdmit`: accepts every write. Upstream keeps the name for command lines that still have it.

use kaji_engine::{Admission, Attributes};

/// The plugin.
pub(super) struct AlwaysAdmit;

impl Admission for AlwaysAdmit {
    fn name(&self) -> &'static str {
        "AlwaysAdmit"
    }

    fn handles(&self, _: &Attributes<'_>) -> bool {
        false
    }
}
