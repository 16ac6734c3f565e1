//! Tests of `cronjob`: fixtures in, expectations out.

use super::*;
use crate::testing::{ago, now, object, observed, reconcile, snapshot, text};
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

/// A job that the controller made for a time so many seconds ago.
fn job(seconds: i64, end: &str) -> Value {
    let at = now().as_second() - seconds;
    let name = format!("tick-{}", at / 60);
    let conditions = if end.is_empty() { json!([]) } else { json!([{"type": end, "status": "True"}]) };
    json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "annotations": {SCHEDULED_AT: ago(seconds)},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "CronJob", "name": "tick", "uid": "c1", "controller": true}]},
        "status": {"startTime": ago(seconds), "completionTime": (end == "Complete").then(|| ago(seconds - 5)), "conditions": conditions},
    })
}

/// A job of the cron job that the controller did not make.
fn made_by_hand(name: &str, end: &str) -> Value {
    let mut job = job(0, end);
    job["metadata"]["name"] = name.into();
    job["metadata"]["uid"] = "by-hand".into();
    job["metadata"]["annotations"] = json!({});
    job
}

/// What is done, without bodies.
fn verbs(plan: &str) -> String {
    plan.lines().map(|l| l.split(" {").next().unwrap()).collect::<Vec<_>>().join("\n")
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
        --
        merge cronjobs/tick/status {"metadata":{"uid":"c1"},"status":{"active":null,"lastScheduleTime":"2025-01-01T12:00:00Z","lastSuccessfulTime":null}}
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
    expect![[r#"
        delete jobs/tick-28928870
            ok: Normal SuccessfulDelete: Deleted job tick-28928870
        --
        create jobs
            ok: Normal SuccessfulCreate: Created job
        --
        merge cronjobs/tick/status
        again after 600.1s"#]]
    .assert_eq(&verbs(&replaced));
}

#[test]
fn deletes_old_jobs() {
    let jobs = vec![job(3000, "Complete"), job(2400, "Complete"), job(1800, "Failed"), job(1200, "Failed")];
    let status = json!({"lastScheduleTime": ago(0), "lastSuccessfulTime": ago(0)});
    expect![[r#"
        delete jobs/tick-28928830 {"preconditions":{"uid":"tick-28928830"},"propagationPolicy":"Background"}
            ok: Normal SuccessfulDelete: Deleted job tick-28928830
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

#[test]
fn jobs_that_were_made_by_hand_do_not_move_the_schedule() {
    let status = || json!({"lastScheduleTime": ago(0)});
    // As `kubectl create job tick-$(date +%s) --from=cronjob/tick` names it.
    let manual = made_by_hand("tick-1735732800", "");
    expect![[r#"
        event: Warning UnexpectedJob: Saw a job that the controller did not create or forgot: tick-1735732800
        again after 600.1s
    "#]]
    .assert_eq(&plan(cron(json!({}), status()), vec![manual.clone()]));
    let mut copied = manual;
    copied["metadata"]["annotations"] = json!({SCHEDULED_AT: ago(-6000)});
    assert!(plan(cron(json!({}), status()), vec![copied]).starts_with("event: Warning UnexpectedJob"));
    // Its success counts.
    expect![[r#"
        merge cronjobs/tick/status {"metadata":{"resourceVersion":"7","uid":"c1"},"status":{"active":null,"lastScheduleTime":"2025-01-01T12:00:00Z","lastSuccessfulTime":"2025-01-01T12:00:05Z"}}
        again after 600.1s
    "#]].assert_eq(&plan(cron(json!({}), status()), vec![made_by_hand("tick-1735732800", "Complete")]));
}

#[test]
fn a_job_with_the_name_of_the_next_one_takes_its_place() {
    let taken = || made_by_hand("tick-28928880", "");
    let status = || json!({"lastScheduleTime": ago(600)});
    expect![[r#"
        merge cronjobs/tick/status {"metadata":{"resourceVersion":"7","uid":"c1"},"status":{"active":[{"apiVersion":"batch/v1","kind":"Job","name":"tick-28928880","namespace":"ns","resourceVersion":"","uid":"by-hand"}],"lastScheduleTime":"2025-01-01T12:00:00Z","lastSuccessfulTime":null}}
        event: Warning UnexpectedJob: Saw a job that the controller did not create or forgot: tick-28928880
        again after 600.1s
    "#]].assert_eq(&plan(cron(json!({}), status()), vec![taken()]));
    // One without this owner only stands in its way.
    let mut foreign = taken();
    foreign["metadata"]["ownerReferences"] = json!([]);
    assert_eq!(plan(cron(json!({}), status()), vec![foreign]), "again after 600.1s\n");
}

#[test]
fn inside_a_gap_of_the_schedule_nothing_is_made_up_for() {
    let gap = cron(json!({"schedule": "0,1 6 * * *"}), json!({"lastScheduleTime": "2024-12-31T06:01:00Z"}));
    assert_eq!(plan(gap, vec![]), "again after 64800.1s\n");
    let many = cron(json!({"schedule": "*/10 * * * *"}), json!({"lastScheduleTime": ago(100 * 86_400)}));
    let text = plan(many, vec![]);
    assert!(text.contains("tick-28928880") && text.contains("TooManyMissedTimes"), "{text}");
}

#[test]
fn an_interval_counts_from_its_last_time() {
    let every = cron(json!({"schedule": "@every 1h"}), json!({"lastScheduleTime": ago(1800)}));
    assert_eq!(plan(every, vec![]), "again after 1800.1s\n");
}

#[test]
fn what_was_observed_is_written_before_a_job_is_started() {
    let status = |done: &Value, at: i64| {
        json!({"lastScheduleTime": ago(at),
            "active": [{"name": done["metadata"]["name"], "uid": done["metadata"]["uid"]}]})
    };
    let spec = || json!({"successfulJobsHistoryLimit": 0});
    let done = job(600, "Complete");
    // A refused creation stops neither of the first two stages.
    expect![[r#"
        delete jobs/tick-28928870
            ok: Normal SuccessfulDelete: Deleted job tick-28928870
        -- independent
        merge cronjobs/tick/status
        -- independent
        create jobs
            ok: Normal SuccessfulCreate: Created job
        --
        merge cronjobs/tick/status
        event: Normal SawCompletedJob: Saw completed job: tick-28928870, condition: Complete
        again after 600.1s"#]]
    .assert_eq(&verbs(&plan(cron(spec(), status(&done, 600)), vec![done.clone()])));
    // Until the time of a job is in the status, the job is kept.
    let done = job(0, "Complete");
    expect![[r#"
        merge cronjobs/tick/status
        event: Normal SawCompletedJob: Saw completed job: tick-28928880, condition: Complete
        again after 600.1s"#]]
    .assert_eq(&verbs(&plan(cron(spec(), status(&done, 600)), vec![done.clone()])));
}

#[test]
fn an_edit_of_the_times_waits_for_the_next_one() {
    let at = |spec: Value| {
        let cron: CronJob = object(cron(spec, json!({"lastScheduleTime": ago(600)})));
        Some(Arc::new(cron))
    };
    let wait = |spec: Value| {
        let change = Change { old: at(json!({})), new: at(spec) };
        wait_for_other_times(&change, now()).map(|wait| wait.as_millis())
    };
    // Five minutes ago there was one that the new schedule missed.
    assert_eq!(wait(json!({"schedule": "55 * * * *"})), Some(3_300_100));
    assert_eq!(wait(json!({"schedule": "5 * * * *"})), Some(300_100));
    assert_eq!(wait(json!({"timeZone": "Asia/Kolkata"})), Some(600_100));
    // Other edits, and what the reconcile has to report, are looked at now.
    assert_eq!(wait(json!({"suspend": true})), None);
    assert_eq!(wait(json!({"schedule": "x"})), None);
    let new = Change { old: None, new: at(json!({})) };
    assert_eq!(wait_for_other_times(&new, now()), None);
}
