//! The type checker of validating admission policies. It needs the schemas of resources, which the API server has: crate
//! `kaji` starts it when it is selected.

use crate::{Descriptor, Start};

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "validatingadmissionpolicy-status-controller",
    components: &[],
    service_account: Some("validatingadmissionpolicy-status-controller"),
    workers: None,
    start: Start::External,
};
