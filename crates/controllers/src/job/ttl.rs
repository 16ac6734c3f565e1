//! Deletes finished jobs after their time to live.

use kaji_runtime::{
    Controller, Cx, Informers, Key, Plan, Reconciler, View, Write, client::Target, objects::Job,
};
use serde_json::json;
use std::{sync::Arc, time::Duration};

/// The controller.
pub fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(TimeToLive, informers).reads::<Job>(|change, _| {
        let due = change
            .new
            .as_ref()
            .filter(|j| j.spec.ttl_seconds_after_finished.is_some() && j.finished().is_some());
        due.map(|j| j.metadata.key()).into_iter().collect()
    })
}

pub(super) struct TimeToLive;

impl Reconciler for TimeToLive {
    fn name(&self) -> &'static str {
        "ttl-after-finished-controller"
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let jobs = view.get::<Job>();
        let due = |job: &Job| {
            let end = job.finished()?.last_transition_time?;
            let ttl = job.spec.ttl_seconds_after_finished?;
            jiff::Timestamp::from_second(end.as_second().saturating_add(ttl)).ok()
        };
        let Some(job) = jobs.by_key(key).filter(|j| !j.metadata.deleting()) else { return Plan::nothing() };
        let Some(due) = due(job) else { return Plan::nothing() };
        match Duration::try_from(due.duration_since(cx.now)) {
            Ok(left) if !left.is_zero() => Plan::nothing().again_after(left),
            // The time to live may be longer by now: only the job as it is here goes.
            _ => Plan::nothing().then(Write::Delete {
                target: Target::of::<Job>(&job.metadata.namespace, &job.metadata.name),
                options: json!({
                    "propagationPolicy": "Foreground",
                    "preconditions": {"uid": job.metadata.uid, "resourceVersion": job.metadata.resource_version},
                }),
            }),
        }
    }
}
