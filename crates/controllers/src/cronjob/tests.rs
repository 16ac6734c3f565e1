//! Tests of `cronjob`: fixtures in, expectations out.

use super::*;
use crate::testing::{ago, now, observed, reconcile, snapshot, text};
use expect_test::expect;

fn cron(spec: Value, status: Value) -> Value {
    let mut cron = json!({
        "metadata": {"name": "tick", "namespace": "ns", "uid": "c1", "resourceVersion": "7", "creationTimestamp": ago(3600)},
        "spec": {
            "schedule": "*/10 * * * *", "concurrencyPolicy": "Allow",
            "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 1,
            "jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"template": {}}},
        },
        "status": status,
    });
    for (field, value) in spec.as_object().unwrap() {
        cron["spec"][field] = value.clone();
    }
    cron
}

/// A job for a time so many seconds ago.
fn job(seconds: i64, end: &str) -> Value {
    let at = now().as_second() - seconds;
    let name = format!("tick-{}", at / 60);
    let conditions = if end.is_empty() { json!([]) } else { json!([{"type": end, "status": "True"}]) };
    json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name,
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "CronJob", "name": "tick", "uid": "c1", "controller": true}]},
        "status": {"startTime": ago(seconds), "completionTime": (end == "Complete").then(|| ago(seconds - 5)), "conditions": conditions},
    })
}

fn plan(cron: Value, jobs: Vec<Value>) -> String {
    let view = View::default().with(snapshot::<CronJob>([cron])).with(snapshot::<Job>(jobs));
    let text = text(&reconcile(&CronJobs, &view, "ns", "tick", &[]));
    text.lines()
        .filter(|l| !l.contains("    failed:"))
        .map(|l| l.replace("/apis/batch/v1/namespaces/ns/", "") + "\n")
        .collect()
}

#[test]
fn creates_a_job_when_it_is_due() {
    expect![[r#"
        create jobs {"apiVersion":"batch/v1","kind":"Job","metadata":{"annotations":{"batch.kubernetes.io/cronjob-scheduled-timestamp":"2025-01-01T12:00:00Z"},"labels":{"a":"b"},"name":"tick-28928880","namespace":"ns","ownerReferences":[{"apiVersion":"batch/v1","blockOwnerDeletion":true,"controller":true,"kind":"CronJob","name":"tick","uid":"c1"}]},"spec":{"template":{}}}
            ok: Normal SuccessfulCreate: Created job {name}
        again after 600.1s
    "#]].assert_eq(&plan(cron(json!({}), json!({"lastScheduleTime": ago(600)})), vec![]));
    // Seen to.
    expect![[r#"
        again after 600.1s
    "#]]
    .assert_eq(&plan(cron(json!({}), json!({"lastScheduleTime": ago(0)})), vec![]));
    assert_eq!(plan(cron(json!({"suspend": true}), json!({"lastScheduleTime": ago(600)})), vec![]), "");
    // Of the times that were missed only the last one counts.
    let text = plan(cron(json!({}), json!({})), vec![]);
    assert_eq!(text.matches("create jobs").count(), 1);
    let late = cron(json!({"schedule": "55 * * * *", "startingDeadlineSeconds": 60}), json!({}));
    assert!(!plan(late, vec![]).contains("create"));
}

#[test]
fn updates_the_status_from_jobs() {
    let status = || json!({"lastScheduleTime": ago(600), "active": [{"name": "lost", "uid": "lost"}]});
    expect![[r#"
        merge cronjobs/tick/status {"metadata":{"resourceVersion":"7","uid":"c1"},"status":{"active":[{"apiVersion":"batch/v1","kind":"Job","name":"tick-28928880","namespace":"ns","resourceVersion":"","uid":"tick-28928880"}],"lastScheduleTime":"2025-01-01T12:00:00Z","lastSuccessfulTime":null}}
        event: Normal MissingJob: Active job went missing: lost
        again after 600.1s
    "#]].assert_eq(&plan(cron(json!({}), status()), vec![job(0, "")]));
    let done = job(0, "Complete");
    let status = json!({"lastScheduleTime": ago(0), "active": [{"name": done["metadata"]["name"], "uid": done["metadata"]["uid"]}]});
    expect![[r#"
        merge cronjobs/tick/status {"metadata":{"resourceVersion":"7","uid":"c1"},"status":{"active":null,"lastScheduleTime":"2025-01-01T12:00:00Z","lastSuccessfulTime":"2025-01-01T12:00:05Z"}}
        event: Normal SawCompletedJob: Saw completed job: tick-28928880, condition: Complete
        again after 600.1s
    "#]].assert_eq(&plan(cron(json!({}), status), vec![done]));
}

#[test]
fn applies_the_concurrency_policy() {
    let running = job(600, "");
    let status = || {
        json!({"lastScheduleTime": ago(600),
            "active": [{"name": running["metadata"]["name"], "uid": running["metadata"]["uid"]}]})
    };
    let run =
        |policy: &str| plan(cron(json!({"concurrencyPolicy": policy}), status()), vec![running.clone()]);
    assert!(run("Allow").contains("create jobs"));
    expect![[r#"
        event: Normal JobAlreadyActive: Not starting job because prior execution is running and concurrency policy is Forbid
        again after 600.1s
    "#]].assert_eq(&run("Forbid"));
    let replaced = run("Replace");
    let verbs: Vec<&str> = replaced.lines().map(|l| l.split(" {").next().unwrap()).collect();
    expect![[r#"
        delete jobs/tick-28928870
            ok: Normal SuccessfulDelete: Deleted job tick-28928870
        --
        create jobs
            ok: Normal SuccessfulCreate: Created job
        --
        merge cronjobs/tick/status
        again after 600.1s"#]]
    .assert_eq(&verbs.join("\n"));
}

#[test]
fn deletes_old_jobs() {
    let jobs = vec![job(3000, "Complete"), job(2400, "Complete"), job(1800, "Failed"), job(1200, "Failed")];
    let status = json!({"lastScheduleTime": ago(0), "lastSuccessfulTime": ago(0)});
    expect![[r#"
        delete jobs/tick-28928830 {"preconditions":{"uid":"tick-28928830"},"propagationPolicy":"Background"}
            ok: Normal SuccessfulDelete: Deleted job tick-28928830
        --
        delete jobs/tick-28928850 {"preconditions":{"uid":"tick-28928850"},"propagationPolicy":"Background"}
            ok: Normal SuccessfulDelete: Deleted job tick-28928850
        again after 600.1s
    "#]]
    .assert_eq(&plan(cron(json!({}), status), jobs));
}

#[test]
fn reports_invalid_schedules() {
    expect![[r#"
        event: Warning UnparseableSchedule: unparseable schedule: "x" : expected exactly 5 fields, found 1: [x]
    "#]].assert_eq(&plan(cron(json!({"schedule": "x"}), json!({})), vec![]));
    // The 31st of February never comes.
    expect![[r#"
        event: Warning InvalidSchedule: invalid schedule: 59 23 31 2 * : time difference between two schedules is less than 1 second
    "#]].assert_eq(&plan(cron(json!({"schedule": "59 23 31 2 *"}), json!({})), vec![]));
}

#[test]
fn the_delay_of_a_job_is_measured() {
    let cron = cron(json!({"schedule": "55 * * * *"}), json!({}));
    let view = View::default().with(snapshot::<CronJob>([cron])).with(snapshot::<Job>([]));
    expect![[r#"
        written /apis/batch/v1/namespaces/ns/jobs: cronjob_controller_job_creation_skew_duration_seconds = 300 + elapsed
    "#]]
    .assert_eq(&observed(&reconcile(&CronJobs, &view, "ns", "tick", &[])));
}
