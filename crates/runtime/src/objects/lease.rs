//! Lease, projected: when its holder last renewed it. Leases are renewed often; nothing else is kept.

use crate::{Meta, Projection};
use serde::Deserialize;

/// A lease's spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpec {
    /// When it was last renewed, by the clock of its holder.
    pub renew_time: Option<jiff::Timestamp>,
}

/// A lease.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Lease {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: LeaseSpec,
}

impl Lease {
    /// The namespace of the leases that kubelets renew; they have the names of their nodes.
    pub const OF_NODES: &'static str = "kube-node-lease";
}

impl Projection for Lease {
    const GROUP: &'static str = "coordination.k8s.io";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "leases";
    const KIND: &'static str = "Lease";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
