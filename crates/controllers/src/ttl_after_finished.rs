//! Deletes finished jobs after their time to live.

use crate::{Descriptor, Start, WorkersFlag};
use kaji_runtime::{
    Buckets, Controller, Cx, Informers, Key, Metric, Moment, Plan, Reconciler, View, Write, client::Target,
    objects::Job,
};
use serde_json::json;
use std::{sync::Arc, time::Duration};

const COMPONENT: &str = "ttl-after-finished-controller";

static DELETION_DURATION: Metric = Metric::histogram(
    "ttl_after_finished_controller_job_deletion_duration_seconds",
    "[ALPHA] The time it took to delete the job since it became eligible for deletion",
    &[],
    Buckets::exponential(0.1, 2.0, 14),
);
/// The metrics of the controller.
pub static METRICS: [&Metric; 1] = [&DELETION_DURATION];

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "ttl-after-finished-controller",
    components: &[COMPONENT],
    service_account: Some("ttl-after-finished-controller"),
    workers: Some(WorkersFlag { name: "concurrent-ttl-after-finished-syncs", default: 5 }),
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

/// The controller.
fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(TimeToLive, informers).reads::<Job>(|change, _| {
        let due = change
            .new
            .as_ref()
            .filter(|j| j.spec.ttl_seconds_after_finished.is_some() && j.finished().is_some());
        due.map(|j| j.metadata.key()).into_iter().collect()
    })
}

struct TimeToLive;

impl Reconciler for TimeToLive {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "ttl_jobs_to_delete"
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &METRICS
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
            _ => {
                let target = Target::of::<Job>(&job.metadata.namespace, &job.metadata.name);
                let late = DELETION_DURATION.sample([], cx.now.duration_since(due).as_secs_f64());
                let options = json!({
                    "propagationPolicy": "Foreground",
                    "preconditions": {"uid": job.metadata.uid, "resourceVersion": job.metadata.resource_version},
                });
                let plan = Plan::nothing().then(Write::Delete { target: target.clone(), options });
                plan.observe_elapsed(Moment::Written(target), late)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, observed, reconcile, snapshot, text};
    use expect_test::expect;

    #[test]
    fn deletes_finished_jobs_after_their_time_to_live() {
        let decide = |ttl: i64| {
            let job = json!({
                "metadata": {"name": "work", "namespace": "ns", "uid": "j1", "resourceVersion": "7"},
                "spec": {"ttlSecondsAfterFinished": ttl},
                "status": {"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": ago(30)}]},
            });
            let view = View::default().with(snapshot::<Job>([job]));
            reconcile(&TimeToLive, &view, "ns", "work", &[])
        };
        let plan = |ttl: i64| text(&decide(ttl));
        expect![[r#"
            again after 10s
        "#]]
        .assert_eq(&plan(40));
        assert_eq!(observed(&decide(40)), "");
        expect![[r#"
            delete /apis/batch/v1/namespaces/ns/jobs/work {"preconditions":{"resourceVersion":"7","uid":"j1"},"propagationPolicy":"Foreground"}
        "#]].assert_eq(&plan(30));
        expect![[r#"
            written /apis/batch/v1/namespaces/ns/jobs/work: ttl_after_finished_controller_job_deletion_duration_seconds = 4 + elapsed
        "#]].assert_eq(&observed(&decide(26)));
    }
}
