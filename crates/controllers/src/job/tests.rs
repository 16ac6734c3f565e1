//! Tests of `job`: fixtures in, expectations out.

use super::*;
use crate::testing::{ago, now, object, observed, reconcile, sample, snapshot, text};
use expect_test::expect;
use kaji_runtime::ObjectSnapshot;

fn job(spec: Value, status: Value) -> Value {
    let mut job = json!({
        "metadata": {"name": "work", "namespace": "ns", "uid": "j1", "resourceVersion": "7", "generation": 1},
        "spec": {
            "parallelism": 2, "completions": 3, "backoffLimit": 1,
            "selector": {"matchLabels": {"job": "work"}},
            "template": {"metadata": {"labels": {"job": "work"}},
                "spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}},
        },
        "status": status,
    });
    for (field, value) in spec.as_object().unwrap() {
        job["spec"][field] = value.clone();
    }
    job
}

fn started(more: Value) -> Value {
    let mut status = json!({"startTime": ago(100), "ready": 0, "terminating": 0,
        "uncountedTerminatedPods": {}});
    for (field, value) in more.as_object().unwrap() {
        status[field] = value.clone();
    }
    status
}

fn pod(name: &str, phase: &str, index: Option<i64>) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"job": "work"},
            "creationTimestamp": ago(500), "finalizers": [FINALIZER],
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "work", "uid": "j1", "controller": true}]},
        "spec": {"nodeName": "n1"},
        "status": {"phase": phase},
    });
    if let Some(index) = index {
        pod["metadata"]["annotations"] = json!({pods::INDEX: index.to_string()});
    }
    pod
}

fn ended(name: &str, phase: &str, index: Option<i64>, seconds: i64, code: i64) -> Value {
    let mut pod = pod(name, phase, index);
    pod["status"]["containerStatuses"] =
        json!([{"name": "c", "state": {"terminated": {"exitCode": code, "finishedAt": ago(seconds)}}}]);
    pod
}

fn released(mut pod: Value) -> Value {
    pod["metadata"]["finalizers"] = json!([]);
    pod
}

fn plan(job: Value, pods: Vec<Value>) -> String {
    plan_of(&Jobs::default(), job, pods)
}

fn plan_of(jobs: &Jobs, job: Value, pods: Vec<Value>) -> String {
    let view = View::default().with(ObjectSnapshot::of([object::<Job>(job)])).with(snapshot::<Pod>(pods));
    let text = text(&reconcile(jobs, &view, "ns", "work", &[]));
    text.lines()
        .filter(|l| !l.contains("    failed:"))
        .map(|l| l.replace("/api/v1/namespaces/ns/", "").replace("/apis/batch/v1/namespaces/ns/", "") + "\n")
        .collect()
}

#[test]
fn creates_pods() {
    expect![[r#"
        merge jobs/work/status {"metadata":{"resourceVersion":"7","uid":"j1"},"status":{"active":null,"completedIndexes":null,"completionTime":null,"conditions":null,"failed":null,"failedIndexes":null,"ready":0,"startTime":"2025-01-01T12:00:00Z","succeeded":null,"terminating":0,"uncountedTerminatedPods":{"failed":null,"succeeded":null}}}
        --
        create pods {"apiVersion":"v1","kind":"Pod","metadata":{"finalizers":["batch.kubernetes.io/job-tracking"],"generateName":"work-","labels":{"job":"work"},"ownerReferences":[{"apiVersion":"batch/v1","blockOwnerDeletion":true,"controller":true,"kind":"Job","name":"work","uid":"j1"}]},"spec":{"containers":[{"name":"c"}],"restartPolicy":"Never"}}
            ok: Normal SuccessfulCreate: Created pod: {name}
        --
        create pods {"apiVersion":"v1","kind":"Pod","metadata":{"finalizers":["batch.kubernetes.io/job-tracking"],"generateName":"work-","labels":{"job":"work"},"ownerReferences":[{"apiVersion":"batch/v1","blockOwnerDeletion":true,"controller":true,"kind":"Job","name":"work","uid":"j1"}]},"spec":{"containers":[{"name":"c"}],"restartPolicy":"Never"}}
            ok: Normal SuccessfulCreate: Created pod: {name}
    "#]].assert_eq(&plan(job(json!({}), json!({})), vec![]));
}

#[test]
fn counts_finished_pods_in_three_steps() {
    let spec = || json!({"parallelism": 1, "completions": 2});
    let pods = || vec![ended("a", "Succeeded", None, 5, 0), pod("b", "Running", None)];
    // Recorded in the status, then the finalizer is removed.
    expect![[r#"
        merge jobs/work/status {"metadata":{"resourceVersion":"7","uid":"j1"},"status":{"active":1,"completedIndexes":null,"completionTime":null,"conditions":null,"failed":null,"failedIndexes":null,"ready":0,"startTime":"2025-01-01T11:58:20Z","succeeded":null,"terminating":0,"uncountedTerminatedPods":{"failed":null,"succeeded":["a"]}}}
        --
        strategic pods/a {"metadata":{"$deleteFromPrimitiveList/finalizers":["batch.kubernetes.io/job-tracking"],"uid":"a"}}
    "#]].assert_eq(&plan(job(spec(), started(json!({"active": 1}))), pods()));
    // Counted once its finalizer is removed.
    let status = started(json!({"active": 1, "uncountedTerminatedPods": {"succeeded": ["a"]}}));
    let pods = vec![released(ended("a", "Succeeded", None, 5, 0)), pod("b", "Running", None)];
    expect![[r#"
        merge jobs/work/status {"metadata":{"resourceVersion":"7","uid":"j1"},"status":{"active":1,"completedIndexes":null,"completionTime":null,"conditions":null,"failed":null,"failedIndexes":null,"ready":0,"startTime":"2025-01-01T11:58:20Z","succeeded":1,"terminating":0,"uncountedTerminatedPods":{"failed":null,"succeeded":null}}}
    "#]].assert_eq(&plan(job(spec(), status), pods.clone()));
    assert_eq!(plan(job(spec(), started(json!({"active": 1, "succeeded": 1}))), pods), "");
}

#[test]
fn completes() {
    let spec = || json!({"parallelism": 1, "completions": 1});
    let done = || vec![released(ended("a", "Succeeded", None, 5, 0))];
    expect![[r#"
        merge jobs/work/status {"metadata":{"resourceVersion":"7","uid":"j1"},"status":{"active":null,"completedIndexes":null,"completionTime":null,"conditions":[{"lastProbeTime":"2025-01-01T12:00:00Z","lastTransitionTime":"2025-01-01T12:00:00Z","message":"Reached expected number of succeeded pods","reason":"CompletionsReached","status":"True","type":"SuccessCriteriaMet"}],"failed":null,"failedIndexes":null,"ready":0,"startTime":"2025-01-01T11:58:20Z","succeeded":1,"terminating":0,"uncountedTerminatedPods":{"failed":null,"succeeded":null}}}
    "#]].assert_eq(&plan(job(spec(), started(json!({"succeeded": 1}))), done()));
    let announced = json!([{"type": "SuccessCriteriaMet", "status": "True", "reason": "CompletionsReached",
        "message": "Reached expected number of succeeded pods"}]);
    let status = started(json!({"succeeded": 1, "conditions": announced}));
    expect![[r#"
        merge jobs/work/status {"metadata":{"resourceVersion":"7","uid":"j1"},"status":{"active":null,"completedIndexes":null,"completionTime":"2025-01-01T12:00:00Z","conditions":[{"message":"Reached expected number of succeeded pods","reason":"CompletionsReached","status":"True","type":"SuccessCriteriaMet"},{"lastProbeTime":"2025-01-01T12:00:00Z","lastTransitionTime":"2025-01-01T12:00:00Z","message":"Reached expected number of succeeded pods","reason":"CompletionsReached","status":"True","type":"Complete"}],"failed":null,"failedIndexes":null,"ready":0,"startTime":"2025-01-01T11:58:20Z","succeeded":1,"terminating":0,"uncountedTerminatedPods":{"failed":null,"succeeded":null}}}
            ok: Normal Completed: Job completed
    "#]].assert_eq(&plan(job(spec(), status.clone()), done()));
    // Not while a pod is still there.
    let mut leaving = released(pod("b", "Running", None));
    leaving["metadata"]["deletionTimestamp"] = now().to_string().into();
    let text = plan(job(spec(), status), vec![leaving]);
    assert!(text.contains(r#""terminating":1"#) && !text.contains("Complete\""), "{text}");
    let finished = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    assert_eq!(plan(job(spec(), finished), vec![]), "");
}

#[test]
fn retries_failures_with_backoff_up_to_the_limit() {
    let spec = || json!({"parallelism": 1, "completions": 1});
    let status = || started(json!({"failed": 1}));
    let failed = |seconds| released(ended("a", "Failed", None, seconds, 1));
    expect![[r#"
        again after 6s
    "#]]
    .assert_eq(&plan(job(spec(), status()), vec![failed(4)]));
    assert!(plan(job(spec(), status()), vec![failed(11)]).starts_with("create pods"));
    let pods = vec![failed(60), ended("b", "Failed", None, 40, 1), pod("c", "Running", None)];
    expect![[r#"
        merge jobs/work/status {"metadata":{"resourceVersion":"7","uid":"j1"},"status":{"active":1,"completedIndexes":null,"completionTime":null,"conditions":[{"lastProbeTime":"2025-01-01T12:00:00Z","lastTransitionTime":"2025-01-01T12:00:00Z","message":"Job has reached the specified backoff limit","reason":"BackoffLimitExceeded","status":"True","type":"FailureTarget"}],"failed":1,"failedIndexes":null,"ready":0,"startTime":"2025-01-01T11:58:20Z","succeeded":null,"terminating":0,"uncountedTerminatedPods":{"failed":["b","c"],"succeeded":null}}}
        --
        delete pods/c {"preconditions":{"uid":"c"}}
            ok: Normal SuccessfulDelete: Deleted pod: c
        --
        strategic pods/b {"metadata":{"$deleteFromPrimitiveList/finalizers":["batch.kubernetes.io/job-tracking"],"uid":"b"}}
        strategic pods/c {"metadata":{"$deleteFromPrimitiveList/finalizers":["batch.kubernetes.io/job-tracking"],"uid":"c"}}
    "#]].assert_eq(&plan(job(spec(), started(json!({"failed": 1, "active": 1}))), pods));
}

#[test]
fn fails_after_the_active_deadline() {
    let spec = |s: i64| json!({"activeDeadlineSeconds": s, "parallelism": 1});
    let status = || started(json!({"active": 1}));
    expect![[r#"
        again after 30s
    "#]]
    .assert_eq(&plan(job(spec(130), status()), vec![pod("a", "Running", None)]));
    let text = plan(job(spec(100), status()), vec![pod("a", "Running", None)]);
    assert!(text.contains("DeadlineExceeded") && text.contains("delete pods/a"), "{text}");
}

#[test]
fn suspends_and_resumes() {
    let spec = |s: bool| json!({"suspend": s, "parallelism": 1});
    expect![[r#"
        merge jobs/work/status {"metadata":{"resourceVersion":"7","uid":"j1"},"status":{"active":1,"completedIndexes":null,"completionTime":null,"conditions":[{"lastProbeTime":"2025-01-01T12:00:00Z","lastTransitionTime":"2025-01-01T12:00:00Z","message":"Job suspended","reason":"JobSuspended","status":"True","type":"Suspended"}],"failed":null,"failedIndexes":null,"ready":0,"startTime":null,"succeeded":null,"terminating":0,"uncountedTerminatedPods":{"failed":null,"succeeded":null}}}
            ok: Normal Suspended: Job suspended
        --
        strategic pods/a {"metadata":{"$deleteFromPrimitiveList/finalizers":["batch.kubernetes.io/job-tracking"],"uid":"a"}}
        --
        delete pods/a {"preconditions":{"uid":"a"}}
            ok: Normal SuccessfulDelete: Deleted pod: a
    "#]]
        .assert_eq(&plan(job(spec(true), started(json!({"active": 1}))), vec![pod("a", "Running", None)]));
    let status = json!({"ready": 0, "terminating": 0, "uncountedTerminatedPods": {},
        "conditions": [{"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended"}]});
    let text = plan(job(spec(false), status), vec![]);
    assert!(text.contains("ok: Normal Resumed: Job resumed") && text.contains("create pods"), "{text}");
}

#[test]
fn creates_pods_of_missing_indexes() {
    let spec = || json!({"completionMode": "Indexed", "completions": 5, "parallelism": 3});
    let pods = vec![
        ended("p0", "Succeeded", Some(0), 5, 0),
        pod("p1", "Running", Some(1)),
        pod("p1-again", "Pending", Some(1)),
        pod("p9", "Running", Some(9)),
    ];
    let status = || started(json!({"active": 3, "succeeded": 1, "completedIndexes": "3"}));
    expect![[r#"
        merge jobs/work/status {"metadata":{"resourceVersion":"7","uid":"j1"},"status":{"active":3,"completedIndexes":"0,3","completionTime":null,"conditions":null,"failed":null,"failedIndexes":null,"ready":0,"startTime":"2025-01-01T11:58:20Z","succeeded":2,"terminating":0,"uncountedTerminatedPods":{"failed":null,"succeeded":null}}}
        --
        strategic pods/p0 {"metadata":{"$deleteFromPrimitiveList/finalizers":["batch.kubernetes.io/job-tracking"],"uid":"p0"}}
        --
        strategic pods/p1-again {"metadata":{"$deleteFromPrimitiveList/finalizers":["batch.kubernetes.io/job-tracking"],"uid":"p1-again"}}
        strategic pods/p9 {"metadata":{"$deleteFromPrimitiveList/finalizers":["batch.kubernetes.io/job-tracking"],"uid":"p9"}}
        --
        delete pods/p1-again {"preconditions":{"uid":"p1-again"}}
            ok: Normal SuccessfulDelete: Deleted pod: p1-again
        delete pods/p9 {"preconditions":{"uid":"p9"}}
            ok: Normal SuccessfulDelete: Deleted pod: p9
    "#]].assert_eq(&plan(job(spec(), status()), pods.clone()));
    expect![[r#"
        merge jobs/work/status {"metadata":{"resourceVersion":"7","uid":"j1"},"status":{"active":1,"completedIndexes":"0,3","completionTime":null,"conditions":null,"failed":null,"failedIndexes":null,"ready":0,"startTime":"2025-01-01T11:58:20Z","succeeded":2,"terminating":0,"uncountedTerminatedPods":{"failed":null,"succeeded":null}}}
        --
        strategic pods/p0 {"metadata":{"$deleteFromPrimitiveList/finalizers":["batch.kubernetes.io/job-tracking"],"uid":"p0"}}
        --
        create pods {"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"batch.kubernetes.io/job-completion-index":"2"},"finalizers":["batch.kubernetes.io/job-tracking"],"generateName":"work-2-","labels":{"batch.kubernetes.io/job-completion-index":"2","job":"work"},"ownerReferences":[{"apiVersion":"batch/v1","blockOwnerDeletion":true,"controller":true,"kind":"Job","name":"work","uid":"j1"}]},"spec":{"containers":[{"env":[{"name":"JOB_COMPLETION_INDEX","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['batch.kubernetes.io/job-completion-index']"}}}],"name":"c"}],"hostname":"work-2","restartPolicy":"Never"}}
            ok: Normal SuccessfulCreate: Created pod: {name}
        --
        create pods {"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"batch.kubernetes.io/job-completion-index":"4"},"finalizers":["batch.kubernetes.io/job-tracking"],"generateName":"work-4-","labels":{"batch.kubernetes.io/job-completion-index":"4","job":"work"},"ownerReferences":[{"apiVersion":"batch/v1","blockOwnerDeletion":true,"controller":true,"kind":"Job","name":"work","uid":"j1"}]},"spec":{"containers":[{"env":[{"name":"JOB_COMPLETION_INDEX","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['batch.kubernetes.io/job-completion-index']"}}}],"name":"c"}],"hostname":"work-4","restartPolicy":"Never"}}
            ok: Normal SuccessfulCreate: Created pod: {name}
    "#]].assert_eq(&plan(job(spec(), status()), pods[..2].to_vec()));
}

#[test]
fn applies_the_backoff_limit_per_index() {
    let spec = |max: Value| {
        json!({"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 99,
            "backoffLimitPerIndex": 1, "maxFailedIndexes": max})
    };
    let status = || started(json!({"failedIndexes": ""}));
    // The last failed pod of an index stays until another has taken its place.
    let first = |seconds| ended("p0", "Failed", Some(0), seconds, 1);
    let text = plan(job(spec(Value::Null), status()), vec![first(60)]);
    assert!(text.contains(r#""batch.kubernetes.io/job-index-failure-count":"1""#), "{text}");
    assert!(!text.contains("deleteFromPrimitiveList"), "{text}");
    // While it waits the other index gets its pod.
    let text = plan(job(spec(Value::Null), status()), vec![first(5)]);
    assert_eq!(text.matches("create pods").count(), 1);
    // It failed too often: the index has failed, the job goes on.
    let mut second = first(60);
    second["metadata"]["annotations"][pods::FAILURES] = "1".into();
    let text = plan(job(spec(Value::Null), status()), vec![second.clone()]);
    assert!(
        text.contains(r#""failedIndexes":"0""#) && text.contains(r#"job-completion-index":"1""#),
        "{text}"
    );
    // All indexes are over, or too many failed.
    let done = ended("p1", "Succeeded", Some(1), 9, 0);
    assert!(plan(job(spec(Value::Null), status()), vec![second.clone(), done]).contains("FailedIndexes"));
    assert!(plan(job(spec(json!(0)), status()), vec![second]).contains("MaxFailedIndexesExceeded"));
}

#[test]
fn applies_failure_and_success_policies() {
    let rules = |action: &str| {
        json!({"podFailurePolicy": {"rules": [
        {"action": action, "onExitCodes": {"operator": "In", "values": [42]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}})
    };
    let failed = || ended("a", "Failed", None, 99, 42);
    let text = plan(job(rules("FailJob"), started(json!({}))), vec![failed()]);
    assert!(
        text.contains("Container c for pod ns/a failed with exit code 42 matching FailJob rule at index 0"),
        "{text}"
    );
    let text = plan(job(rules("Ignore"), started(json!({}))), vec![failed()]);
    assert!(text.contains("deleteFromPrimitiveList") && !text.contains(r#""failed":["a"]"#), "{text}");
    let spec = json!({"completionMode": "Indexed", "parallelism": 3,
        "successPolicy": {"rules": [{"succeededIndexes": "0,2", "succeededCount": 1}]}});
    let pods = vec![ended("p2", "Succeeded", Some(2), 5, 0), pod("p1", "Running", Some(1))];
    expect![[r#"
        merge jobs/work/status {"metadata":{"resourceVersion":"7","uid":"j1"},"status":{"active":1,"completedIndexes":"2","completionTime":null,"conditions":[{"lastProbeTime":"2025-01-01T12:00:00Z","lastTransitionTime":"2025-01-01T12:00:00Z","message":"Matched rules at index 0","reason":"SuccessPolicy","status":"True","type":"SuccessCriteriaMet"}],"failed":null,"failedIndexes":null,"ready":0,"startTime":"2025-01-01T11:58:20Z","succeeded":1,"terminating":0,"uncountedTerminatedPods":{"failed":null,"succeeded":null}}}
        --
        delete pods/p1 {"preconditions":{"uid":"p1"}}
            ok: Normal SuccessfulDelete: Deleted pod: p1
        --
        strategic pods/p1 {"metadata":{"$deleteFromPrimitiveList/finalizers":["batch.kubernetes.io/job-tracking"],"uid":"p1"}}
        strategic pods/p2 {"metadata":{"$deleteFromPrimitiveList/finalizers":["batch.kubernetes.io/job-tracking"],"uid":"p2"}}
    "#]].assert_eq(&plan(job(spec, started(json!({"active": 1}))), pods));
}

#[test]
fn adopts_pods_with_the_finalizer() {
    let mut stray = released(pod("stray", "Running", None));
    stray["metadata"]["ownerReferences"] = json!([]);
    let mut lost = pod("lost", "Running", None);
    lost["metadata"]["labels"] = json!({});
    expect![[r#"
        strategic pods/lost {"metadata":{"$deleteFromPrimitiveList/finalizers":["batch.kubernetes.io/job-tracking"],"ownerReferences":[{"$patch":"delete","uid":"j1"}],"uid":"lost"}}
        --
        merge jobs/work/status {"metadata":{"resourceVersion":"7","uid":"j1"}}
        --
        strategic pods/stray {"metadata":{"finalizers":["batch.kubernetes.io/job-tracking"],"ownerReferences":[{"apiVersion":"batch/v1","blockOwnerDeletion":true,"controller":true,"kind":"Job","name":"work","uid":"j1"}],"uid":"stray"}}
    "#]].assert_eq(&plan(job(json!({}), started(json!({}))), vec![stray, lost]));
}

#[test]
fn removes_finalizers_of_orphaned_pods() {
    let release = |jobs: Vec<Value>, pod: Value| {
        let view = View::default().with(snapshot::<Job>(jobs)).with(snapshot::<Pod>([pod]));
        !reconcile(&Orphans, &view, "ns", "a", &[]).is_empty()
    };
    let finished = json!({"conditions": [{"type": "Failed", "status": "True"}]});
    assert!(release(vec![], pod("a", "Running", None)));
    assert!(release(vec![job(json!({}), finished)], pod("a", "Running", None)));
    assert!(!release(vec![job(json!({}), json!({}))], pod("a", "Running", None)));
    let mut other = pod("a", "Running", None);
    other["metadata"]["ownerReferences"][0]["kind"] = "Other".into();
    assert!(!release(vec![], other));
}

#[test]
fn waits_after_failures_of_pods_that_are_gone() {
    let jobs = Jobs::default();
    let again = |pods: Vec<Value>| {
        let job = job(json!({"backoffLimit": 9}), started(json!({"failed": 2})));
        plan_of(&jobs, job, pods).lines().last().unwrap_or_default().to_owned()
    };
    let failed =
        || [ended("a", "Failed", None, 40, 1), ended("b", "Failed", None, 5, 1)].map(released).to_vec();
    assert_eq!(again(failed()), "again after 15s");
    assert_eq!(again(vec![]), "again after 15s");
    let released = released(ended("c", "Succeeded", None, 1, 0));
    assert!(!again(vec![released]).starts_with("again"));
}

/// What a plan counts, without what every sync does, unless `all`.
fn counted(job: Value, pods: Vec<Value>, all: bool) -> String {
    let view = View::default().with(ObjectSnapshot::of([object::<Job>(job)])).with(snapshot::<Pod>(pods));
    let text = observed(&reconcile(&Jobs::default(), &view, "ns", "work", &[]));
    let lines = text.lines().filter(|line| all || !line.contains("job_sync"));
    let short = |line: &str| {
        line.replace("job_controller_", "")
            .replace("/api/v1/namespaces/ns/", "")
            .replace("/apis/batch/v1/namespaces/ns/", "")
    };
    lines.map(|line| short(line) + "\n").collect()
}

#[test]
fn syncs_are_measured_by_their_action() {
    expect![[r#"
        written pods: job_pods_creation_total "new" "succeeded" = 1
        not written pods: job_pods_creation_total "new" "failed" = 1
        succeeded: job_syncs_total "NonIndexed" "success" "pods_created" = 1
        succeeded: job_sync_duration_seconds "NonIndexed" "success" "pods_created" = 0 + elapsed
        failed: job_syncs_total "NonIndexed" "error" "pods_created" = 1
        failed: job_sync_duration_seconds "NonIndexed" "error" "pods_created" = 0 + elapsed
    "#]]
    .assert_eq(&counted(job(json!({}), json!({})), vec![], true));
    let action = |spec: Value, status: Value, pods: Vec<Value>| {
        let text = counted(job(spec, status), pods, true);
        let line = text.lines().find(|line| line.starts_with("succeeded: job_syncs_total")).unwrap();
        line.split('"').nth(5).unwrap().to_owned()
    };
    let running = || vec![pod("a", "Running", None), pod("b", "Running", None)];
    assert_eq!(action(json!({}), started(json!({"active": 2})), running()), "tracking");
    assert_eq!(action(json!({"parallelism": 1}), started(json!({})), running()), "pods_deleted");
    assert_eq!(action(json!({"suspend": true}), started(json!({})), vec![]), "pods_deleted");
    // It waits before it creates pods.
    let failed = vec![released(ended("a", "Failed", None, 4, 1))];
    assert_eq!(action(json!({}), started(json!({"failed": 1})), failed), "pods_created");
    let deadline = json!({"activeDeadlineSeconds": 1});
    assert_eq!(action(deadline, started(json!({})), running()), "reconciling");
    let mut stray = released(pod("stray", "Running", None));
    stray["metadata"]["ownerReferences"] = json!([]);
    assert_eq!(action(json!({}), started(json!({})), vec![stray]), "reconciling");
}

#[test]
fn ends_of_jobs_and_pods_are_counted_with_their_status() {
    let announced = json!([{"type": "SuccessCriteriaMet", "status": "True", "reason": "CompletionsReached"}]);
    let status = started(json!({"active": 1, "conditions": announced,
        "uncountedTerminatedPods": {"succeeded": ["a"], "failed": ["b"]}}));
    let spec = json!({"parallelism": 1, "completions": 1});
    expect![[r#"
        written jobs/work/status: jobs_finished_total "NonIndexed" "succeeded" "CompletionsReached" = 1
        written jobs/work/status: job_pods_finished_total "NonIndexed" "succeeded" = 1
        written jobs/work/status: job_pods_finished_total "NonIndexed" "failed" = 1
    "#]]
    .assert_eq(&counted(job(spec, status), vec![], false));
    let target = json!([{"type": "FailureTarget", "status": "True", "reason": "BackoffLimitExceeded"}]);
    expect![[r#"
        written jobs/work/status: jobs_finished_total "NonIndexed" "failed" "BackoffLimitExceeded" = 1
    "#]]
    .assert_eq(&counted(job(json!({}), started(json!({"failed": 2, "conditions": target}))), vec![], false));
    let spec =
        json!({"completionMode": "Indexed", "completions": 4, "parallelism": 1, "backoffLimitPerIndex": 0});
    let pods = vec![
        ended("p0", "Succeeded", Some(0), 5, 0),
        ended("p1", "Failed", Some(1), 5, 1),
        pod("p2", "Running", Some(2)),
    ];
    let of = |spec: &Value| {
        let status = started(json!({"active": 1, "succeeded": 1, "completedIndexes": "3"}));
        counted(job(spec.clone(), status), pods.clone(), false)
    };
    expect![[r#"
        written jobs/work/status: job_finished_indexes_total "succeeded" "perIndex" = 1
        written jobs/work/status: job_finished_indexes_total "failed" "perIndex" = 1
        written jobs/work/status: job_pods_finished_total "Indexed" "succeeded" = 1
    "#]]
    .assert_eq(&of(&spec));
    let mut global = spec;
    global.as_object_mut().unwrap().remove("backoffLimitPerIndex");
    assert!(
        of(&global).starts_with(
            "written jobs/work/status: job_finished_indexes_total \"succeeded\" \"global\" = 1\n"
        )
    );
}

#[test]
fn failures_that_a_rule_handles_are_counted_by_its_action() {
    let handled = |action: &str, code: i64| {
        let policy = json!({"podFailurePolicy": {"rules": [
            {"action": action, "onExitCodes": {"operator": "In", "values": [42]}}]}});
        let pods = vec![ended("a", "Failed", None, 99, code)];
        let text = counted(job(policy, started(json!({}))), pods, false);
        text.lines().filter(|line| line.contains("failure_policy")).collect::<String>()
    };
    let expected = |action: &str| {
        format!("written jobs/work/status: pod_failures_handled_by_failure_policy_total {action:?} = 1")
    };
    assert_eq!(handled("FailJob", 42), expected("FailJob"));
    assert_eq!(handled("Count", 42), expected("Count"));
    // An ignored failure changes nothing of the status.
    assert_eq!(handled("Ignore", 42), expected("Ignore").replace("written jobs/work/status", "succeeded"));
    assert_eq!(handled("Count", 1), "");
}

#[test]
fn created_pods_are_counted_by_the_reason() {
    let reason = |policy: &str, status: Value, pods: Vec<Value>| {
        let spec = json!({"podReplacementPolicy": policy, "backoffLimit": 9});
        let text = counted(job(spec, started(status)), pods, false);
        text.lines()
            .filter_map(|line| line.strip_prefix("written pods: job_pods_creation_total "))
            .collect::<String>()
    };
    let any = "TerminatingOrFailed";
    assert_eq!(reason(any, json!({}), vec![]), "\"new\" \"succeeded\" = 1");
    assert_eq!(
        reason(any, json!({"failed": 1}), vec![]),
        "\"recreate_terminating_or_failed\" \"succeeded\" = 1"
    );
    assert_eq!(reason("Failed", json!({"failed": 1}), vec![]), "\"recreate_failed\" \"succeeded\" = 1");
}

#[test]
fn changes_of_pods_and_jobs_are_counted() {
    let change = |old: Option<Value>, new: Option<Value>| {
        let pod = |value: Option<Value>| value.map(|value| Arc::new(object::<Pod>(value)));
        let found = metrics::pod_changed(&Change { old: pod(old), new: pod(new) });
        found.map(|found| sample(&found)).unwrap_or_default()
    };
    let name = "job_controller_terminated_pods_tracking_finalizer_total";
    let (running, over) = (pod("a", "Running", None), ended("a", "Failed", None, 5, 1));
    assert_eq!(change(Some(running.clone()), Some(over.clone())), format!("{name} \"add\" = 1"));
    assert_eq!(change(None, Some(over.clone())), format!("{name} \"add\" = 1"));
    assert_eq!(change(Some(over.clone()), Some(released(over.clone()))), format!("{name} \"delete\" = 1"));
    assert_eq!(change(Some(over), None), format!("{name} \"delete\" = 1"));
    assert_eq!(change(None, Some(running)), "");
    let of = |manager: Value, new: bool| {
        let found = Arc::new(object::<Job>(job(json!({"managedBy": manager}), json!({}))));
        let change = Change { old: (!new).then(|| found.clone()), new: Some(found) };
        metrics::job_changed(&change).map(|found| sample(&found)).unwrap_or_default()
    };
    let name = "job_controller_jobs_by_external_controller_total";
    assert_eq!(of(json!("example.com/a"), true), format!("{name} \"example.com/a\" = 1"));
    assert_eq!(of(json!("example.com/a"), false), "");
    assert_eq!(of(json!("kubernetes.io/job-controller"), true), "");
    assert_eq!(of(Value::Null, true), "");
}
