//! Persistent volumes that are bound are protected from deletion by a finalizer.
//!
//! Invariant: a volume is in use exactly while its phase is `Bound`.

use crate::{
    Descriptor, Start,
    shared::protection::{Protected, Protection, concerned},
};
use kaji_runtime::{Controller, Informers, View, objects::PersistentVolume};
use std::{marker::PhantomData, sync::Arc};

const COMPONENT: &str = "pv-protection-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "persistentvolume-protection-controller",
    components: &[COMPONENT],
    service_account: Some("pv-protection-controller"),
    workers: None,
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(Protection::<PersistentVolume>(PhantomData), informers)
        .reads::<PersistentVolume>(|change, _| concerned::<PersistentVolume>(change))
}

impl Protected for PersistentVolume {
    const FINALIZER: &'static str = "kubernetes.io/pv-protection";
    const COMPONENT: &'static str = COMPONENT;
    const QUEUE: &'static str = "pvprotection";

    fn used(&self, _: &View) -> bool {
        self.status.phase == "Bound"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, reconcile, snapshot, text};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn protects_bound_volumes() {
        let volume = |name: &str, phase: &str| {
            json!({
                "metadata": {"name": name, "uid": name, "resourceVersion": "7",
                    "finalizers": [PersistentVolume::FINALIZER], "deletionTimestamp": ago(9)},
                "status": {"phase": phase},
            })
        };
        let volumes = [volume("bound", "Bound"), volume("free", "Released")];
        let view = View::default().with(snapshot::<PersistentVolume>(volumes));
        let reconciler = Protection::<PersistentVolume>(PhantomData);
        let plan = |name| text(&reconcile(&reconciler, &view, "", name, &[]));
        assert_eq!(plan("bound"), "");
        expect![[r#"
            merge /api/v1/persistentvolumes/free {"metadata":{"finalizers":[],"resourceVersion":"7","uid":"free"}}
        "#]]
        .assert_eq(&plan("free"));
    }
}
