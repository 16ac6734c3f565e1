//! The pods that default constraints count: those of the same services and the same workload.

use crate::{
    framework::{Listers, Reads},
    spreading::narrowed,
};
use kaji_meta::labels::Selector;
use kaji_runtime::{
    OwnerRef,
    objects::{Pod, Service, Workload, WorkloadVisitor, visit_workloads},
};
use std::collections::BTreeMap;

/// What it is deduced from.
pub fn reads(reads: &mut Reads<'_>) {
    struct Reading<'a, 'b>(&'a mut Reads<'b>);

    impl WorkloadVisitor for Reading<'_, '_> {
        fn visit<W: Workload>(&mut self) {
            self.0.read::<W>();
        }
    }

    reads.read::<Service>();
    visit_workloads(&mut Reading(reads));
}

/// Looks up the workload that an owner reference names.
struct Owner<'a> {
    reference: &'a OwnerRef,
    namespace: &'a str,
    listers: &'a Listers,
    selector: Option<Selector>,
}

impl WorkloadVisitor for Owner<'_> {
    fn visit<W: Workload>(&mut self) {
        if self.reference.kind == W::KIND && self.reference.api_version == W::api_version() {
            let workloads = self.listers.get::<W>();
            let workload = workloads.get(self.namespace, &self.reference.name);
            self.selector = workload.map(|workload| workload.pod_selector());
        }
    }
}

/// The selector; `None` for a pod of no service and no workload.
pub fn deduce(pod: &Pod, listers: &Listers) -> Option<Selector> {
    let (namespace, labels) = (pod.metadata.namespace.as_str(), &*pod.metadata.labels);
    let services = listers.get::<Service>();
    let mut demanded: BTreeMap<String, String> = BTreeMap::new();
    for service in Service::selecting(&services, namespace, labels) {
        demanded.extend(service.spec.selector.labels.clone());
    }
    let workload = pod.metadata.controller().and_then(|reference| {
        let mut owner = Owner { reference, namespace, listers, selector: None };
        visit_workloads(&mut owner);
        owner.selector
    });
    let workload = workload.filter(|selector| !selector.is_nothing()).unwrap_or_else(Selector::everything);
    let selector = narrowed(workload, demanded.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    (!selector.is_everything()).then_some(selector)
}
