//! The owners of pods that every cluster has: the kinds that [`visit_workloads`] shows, read from informers.

use kaji_runtime::{
    OwnerRef, View,
    objects::{Deployment, Workload, WorkloadVisitor, visit_workloads},
};

/// Whether an owner is of one of the kinds.
pub fn is_workload(owner: &OwnerRef) -> bool {
    struct Known<'a>(&'a OwnerRef, bool);

    impl WorkloadVisitor for Known<'_> {
        fn visit<W: Workload>(&mut self) {
            self.1 |= names::<W>(self.0);
        }
    }

    let mut known = Known(owner, false);
    visit_workloads(&mut known);
    known.1
}

/// Uid and desired replicas of what controls a pod in the end: its owner, or the deployment that owns that.
pub fn scale(owner: &OwnerRef, namespace: &str, view: &View) -> Option<(String, i64)> {
    let mut scale = Scale { owner, namespace, view, found: None };
    visit_workloads(&mut scale);
    scale.found
}

fn names<W: Workload>(owner: &OwnerRef) -> bool {
    owner.kind == W::KIND && owner.api_version == W::api_version()
}

struct Scale<'a> {
    owner: &'a OwnerRef,
    namespace: &'a str,
    view: &'a View,
    found: Option<(String, i64)>,
}

impl Scale<'_> {
    fn of<W: Workload>(&self) -> Option<(String, i64)> {
        let workloads = self.view.get::<W>();
        let workload = workloads.get(self.namespace, &self.owner.name)?;
        let meta = workload.meta();
        if meta.uid != self.owner.uid {
            return None;
        }
        let Some(parent) = meta.controller().filter(|owner| owner.kind == "Deployment") else {
            return Some((meta.uid.clone(), workload.replicas()));
        };
        let deployments = self.view.get::<Deployment>();
        let deployment =
            deployments.get(self.namespace, &parent.name).filter(|d| d.metadata.uid == parent.uid)?;
        Some((deployment.metadata.uid.clone(), deployment.replicas()))
    }
}

impl WorkloadVisitor for Scale<'_> {
    fn visit<W: Workload>(&mut self) {
        if names::<W>(self.owner) {
            self.found = self.of::<W>();
        }
    }
}
