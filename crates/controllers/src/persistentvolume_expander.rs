//! Says what expands a claim that asks for more than its volume has. Source: upstream's `pkg/controller/volume/expand`;
//! of the plugins that it had, none is left that could expand a volume itself.
//!
//! Invariant: nothing is written but events.

use crate::{Descriptor, Start};
use kaji_runtime::{
    Change, Controller, Cx, EventRecord, Informers, Key, Plan, Projection, Reconciler, View,
    objects::{PersistentVolume, PersistentVolumeClaim},
};
use std::sync::Arc;

const COMPONENT: &str = "volume_expand";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "persistentvolume-expander-controller",
    components: &[COMPONENT],
    service_account: Some("expand-controller"),
    workers: None,
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(Expander, informers)
        .reads::<PersistentVolume>(|_, _| vec![])
        .reads::<PersistentVolumeClaim>(keys)
}

/// Bound claims that are new here, or ask for more, or have more, than before.
fn keys(change: &Change<PersistentVolumeClaim>, _: &View) -> Vec<Key> {
    let Some(new) = change.new.as_ref().filter(|claim| claim.status.phase == "Bound") else { return vec![] };
    let more = change.old.as_ref().is_none_or(|old| {
        new.spec.request() > old.spec.request() || new.status.storage() > old.status.storage()
    });
    more.then(|| new.metadata.key()).into_iter().collect()
}

struct Expander;

impl Reconciler for Expander {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "volume_expand"
    }

    fn reconcile(&self, view: &View, key: &Key, _: &Cx<'_>) -> Plan {
        let (claims, volumes) = (view.get::<PersistentVolumeClaim>(), view.get::<PersistentVolume>());
        let Some(claim) = claims.by_key(key) else { return Plan::nothing() };
        let small = claim.spec.request() > claim.status.storage().unwrap_or_default();
        let volume = volumes.get("", &claim.spec.volume_name);
        let own = volume.and_then(|v| v.spec.claim_ref.as_ref()).is_some_and(|r| r.uid == claim.metadata.uid);
        if !(small && own) {
            return Plan::nothing();
        }
        let about = claim.metadata.reference("v1", PersistentVolumeClaim::KIND);
        let message = "waiting for an external controller to expand this PVC";
        Plan::nothing().event(EventRecord::normal(about, "ExternalExpanding", message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{object, reconcile, snapshot, text};
    use serde_json::{Value, json};

    fn claim(phase: &str, request: &str, capacity: &str) -> Value {
        json!({
            "metadata": {"name": "c", "namespace": "ns", "uid": "c1"},
            "spec": {"volumeName": "v", "resources": {"requests": {"storage": request}}},
            "status": {"phase": phase, "capacity": {"storage": capacity}},
        })
    }

    #[test]
    fn says_that_claims_wait_for_expansion() {
        let plan = |claim: Value, uid: &str| {
            let volume = json!({"metadata": {"name": "v"},
                "spec": {"claimRef": {"namespace": "ns", "name": "c", "uid": uid}}});
            let view = View::default().with(snapshot::<PersistentVolumeClaim>([claim])).with(snapshot::<
                PersistentVolume,
            >([
                volume,
            ]));
            text(&reconcile(&Expander, &view, "ns", "c", &[]))
        };
        let waits =
            "event: Normal ExternalExpanding: waiting for an external controller to expand this PVC\n";
        assert_eq!(plan(claim("Bound", "2Gi", "1Gi"), "c1"), waits);
        assert_eq!(plan(claim("Bound", "2Gi", "1Gi"), "another"), "");
        assert_eq!(plan(claim("Bound", "1024Mi", "1Gi"), "c1"), "");
        let claim = |value: Value| Some(Arc::new(object::<PersistentVolumeClaim>(value)));
        let old = claim(self::claim("Bound", "1Gi", "1Gi"));
        let change = |new: Value| keys(&Change { old: old.clone(), new: claim(new) }, &View::default()).len();
        assert_eq!(change(self::claim("Bound", "2Gi", "1Gi")), 1);
        assert_eq!(change(self::claim("Bound", "1Gi", "1Gi")), 0);
        assert_eq!(change(self::claim("Pending", "2Gi", "1Gi")), 0);
    }
}
