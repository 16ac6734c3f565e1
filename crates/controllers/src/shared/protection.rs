//! Protection of objects that are in use by a finalizer, which the controller removes when the object is deleted and unused.
//!
//! Invariants:
//! - A finalizer is removed only [`Protected::WAIT`] after the deletion, so that users created before it have been observed.
//! - Every write names the uid and resourceVersion that it was decided for.

use kaji_runtime::{
    Change, Cx, Key, Meta, PatchKind, Plan, Projection, Reconciler, View, Write, client::Target,
};
use serde_json::json;
use std::{marker::PhantomData, time::Duration};

/// A resource with a finalizer that protects its objects while they are in use.
pub trait Protected: Projection {
    /// The finalizer, which admission adds.
    const FINALIZER: &'static str;
    /// The component name of the controller.
    const COMPONENT: &'static str;
    /// The name of the controller's queue in metrics.
    const QUEUE: &'static str;
    /// How old a deletion must be before the finalizer is removed: the informers may lag behind that long.
    const WAIT: Duration = Duration::ZERO;
    /// Whether the controller adds the finalizer to objects that are older than the admission plugin.
    const ADDS: bool = true;
    /// Whether an object uses this one.
    fn used(&self, view: &View) -> bool;
    /// What the controller writes before all else to an object that is not being deleted. The write's own event brings the key back.
    fn upkeep(&self, _view: &View, _cx: &Cx<'_>) -> Option<Write> {
        None
    }
}

/// The key of an object that lacks its finalizer, or that waits for its removal.
pub fn concerned<T: Protected>(change: &Change<T>) -> Vec<Key> {
    let meta = change.any().meta();
    let has = meta.finalizers.iter().any(|f| f == T::FINALIZER);
    let differs = meta.deleting() == has && (has || T::ADDS);
    if change.new.is_some() && differs { vec![meta.key()] } else { vec![] }
}

/// Adds the finalizer of a `T`, and removes it once the object is deleted and unused.
pub struct Protection<T>(pub PhantomData<T>);

impl<T: Protected> Reconciler for Protection<T> {
    fn name(&self) -> &'static str {
        T::COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        T::QUEUE
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let objects = view.get::<T>();
        let Some(object) = objects.by_key(key) else { return Plan::nothing() };
        let meta = object.meta();
        let has = meta.finalizers.iter().any(|f| f == T::FINALIZER);
        if !meta.deleting()
            && let Some(write) = object.upkeep(view, cx)
        {
            return Plan::nothing().then(write);
        }
        let mut finalizers = meta.finalizers.clone();
        match meta.deletion_timestamp {
            Some(_) if !has || object.used(view) => return Plan::nothing(),
            Some(since) => {
                let age = cx.now.duration_since(since);
                if age < jiff::SignedDuration::try_from(T::WAIT).unwrap_or_default() {
                    return Plan::nothing().again_after(T::WAIT);
                }
                finalizers.retain(|f| f != T::FINALIZER);
            }
            None if has || !T::ADDS => return Plan::nothing(),
            // Older than the admission plugin.
            None => finalizers.push(T::FINALIZER.into()),
        }
        Plan::nothing().then(patch::<T>(meta, &finalizers))
    }
}

fn patch<T: Projection>(meta: &Meta, finalizers: &[String]) -> Write {
    Write::Patch {
        target: Target::of::<T>(&meta.namespace, &meta.name),
        kind: PatchKind::Merge,
        body: json!({"metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "finalizers": finalizers,
        }}),
    }
}
