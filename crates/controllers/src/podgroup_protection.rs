//! Groups of pods are protected from deletion by a finalizer while pods name them that are not over.

use crate::{
    Descriptor, Start,
    shared::protection::{Protected, Protection, concerned},
};
use kaji_runtime::{
    Change, Controller, Informers, Key, View,
    objects::{Pod, PodGroup},
};
use std::{marker::PhantomData, sync::Arc, time::Duration};

/// Time for a pod that was created before the deletion to be observed.
const SETTLED: Duration = Duration::from_secs(1);
const COMPONENT: &str = "podgroup-protection-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: COMPONENT,
    components: &[COMPONENT],
    service_account: Some("podgroup-protection-controller"),
    workers: None,
    start: Start::Reconcilers(|informers, config| match config.features.generic_workload {
        true => vec![controller(informers)],
        false => vec![],
    }),
};

fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(Protection::<PodGroup>(PhantomData), informers)
        .reads::<PodGroup>(|change, _| concerned::<PodGroup>(change))
        .reads::<Pod>(|change, _| left(change))
}

/// The group that a pod does not use any more.
fn left(change: &Change<Pod>) -> Vec<Key> {
    let uses = |new: &Arc<Pod>, old: &Pod| new.metadata.uid == old.metadata.uid && !new.finished();
    match (&change.old, &change.new) {
        (Some(old), Some(new)) if uses(new, old) => vec![],
        (Some(old), _) => old.scheduling_group().into_iter().collect(),
        // Over already when it was seen first.
        (None, Some(new)) if new.finished() => new.scheduling_group().into_iter().collect(),
        (None, _) => vec![],
    }
}

impl Protected for PodGroup {
    const FINALIZER: &'static str = "scheduling.k8s.io/podgroup-protection";
    const COMPONENT: &'static str = COMPONENT;
    const QUEUE: &'static str = "podgroupprotection";
    const WAIT: Duration = SETTLED;
    const ADDS: bool = false;

    fn used(&self, view: &View) -> bool {
        let group = self.metadata.key().to_string();
        view.get::<Pod>().indexed(Pod::SCHEDULING_GROUP, &group).any(|pod| !pod.finished())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, reconcile, snapshot, text};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn protects_groups_that_pods_name() {
        let group = |name: &str, deleted: bool, finalizers: &[&str]| {
            json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "7",
                "finalizers": finalizers, "deletionTimestamp": deleted.then(|| ago(9))}})
        };
        let own = [PodGroup::FINALIZER];
        let groups = [
            group("used", true, &own),
            group("over", true, &own),
            group("kept", false, &own),
            group("older", false, &[]),
        ];
        let pod = |name: &str, phase: &str| {
            json!({"metadata": {"name": name, "namespace": "ns", "uid": name},
                "spec": {"schedulingGroup": {"podGroupName": name}}, "status": {"phase": phase}})
        };
        let pods = [pod("used", "Pending"), pod("over", "Failed")];
        let view = View::default().with(snapshot::<PodGroup>(groups)).with(snapshot::<Pod>(pods));
        let reconciler = Protection::<PodGroup>(PhantomData);
        let plan = |name: &&str| text(&reconcile(&reconciler, &view, "ns", name, &[]));
        let all: Vec<String> = ["used", "over", "kept", "older"].iter().map(plan).collect();
        expect![[r#"
            merge /apis/scheduling.k8s.io/v1beta1/namespaces/ns/podgroups/over {"metadata":{"finalizers":[],"resourceVersion":"7","uid":"over"}}
        "#]]
        .assert_eq(&all.concat());
    }
}
