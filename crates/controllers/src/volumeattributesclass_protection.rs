//! Volume attributes classes that claims or volumes name are protected from deletion by a finalizer.
//!
//! Invariant: a class is in use while the index of claims or of volumes has its name.

use crate::{
    Descriptor, Start,
    shared::protection::{Protected, Protection, concerned},
};
use kaji_runtime::{
    Controller, Informers, Key, View,
    objects::{ATTRIBUTES_CLASS, PersistentVolume, PersistentVolumeClaim, VolumeAttributesClass},
};
use std::{marker::PhantomData, sync::Arc, time::Duration};

/// Time for a claim that was created before the deletion to be observed.
const SETTLED: Duration = Duration::from_secs(1);
const COMPONENT: &str = "vac-protection-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "volumeattributesclass-protection-controller",
    components: &[COMPONENT],
    service_account: Some("volumeattributesclass-protection-controller"),
    workers: None,
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(Protection::<VolumeAttributesClass>(PhantomData), informers)
        .reads::<VolumeAttributesClass>(|change, _| concerned::<VolumeAttributesClass>(change))
        .reads::<PersistentVolumeClaim>(|change, _| {
            let old = change.old.iter().flat_map(|claim| claim.attributes_classes());
            old.map(|class| Key::new("", class)).collect()
        })
        .reads::<PersistentVolume>(|change, _| {
            let old = change.old.iter().filter_map(|v| v.spec.volume_attributes_class_name.as_deref());
            old.map(|class| Key::new("", class)).collect()
        })
}

impl Protected for VolumeAttributesClass {
    const FINALIZER: &'static str = "kubernetes.io/vac-protection";
    const COMPONENT: &'static str = COMPONENT;
    const QUEUE: &'static str = "vacprotection";
    const WAIT: Duration = SETTLED;

    fn used(&self, view: &View) -> bool {
        let name = &self.metadata.name;
        view.get::<PersistentVolumeClaim>().indexed(ATTRIBUTES_CLASS, name).next().is_some()
            || view.get::<PersistentVolume>().indexed(ATTRIBUTES_CLASS, name).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, reconcile, snapshot, text};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn protects_classes_that_are_named() {
        let class = |name: &str| {
            json!({"metadata": {"name": name, "uid": name, "resourceVersion": "7",
                "finalizers": [VolumeAttributesClass::FINALIZER], "deletionTimestamp": ago(9)}})
        };
        let volume = json!({"metadata": {"name": "v"}, "spec": {"volumeAttributesClassName": "fast"}});
        let claim = json!({"metadata": {"name": "c", "namespace": "ns"}, "status": {"modifyVolumeStatus": {"targetVolumeAttributesClassName": "slow"}}});
        let view = View::default()
            .with(snapshot::<PersistentVolume>([volume]))
            .with(snapshot::<PersistentVolumeClaim>([claim]))
            .with(snapshot::<VolumeAttributesClass>([class("fast"), class("slow"), class("none")]));
        let reconciler = Protection::<VolumeAttributesClass>(PhantomData);
        let plan = |name| text(&reconcile(&reconciler, &view, "", name, &[]));
        assert_eq!((plan("fast"), plan("slow")), (String::new(), String::new()));
        expect![[r#"
            merge /apis/storage.k8s.io/v1/volumeattributesclasses/none {"metadata":{"finalizers":[],"resourceVersion":"7","uid":"none"}}
        "#]]
        .assert_eq(&plan("none"));
    }
}
