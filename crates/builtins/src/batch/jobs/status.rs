//! Updates of a job's status: the job controller, and external ones (`managedBy`), are held to its invariants.

use super::indexes;
use crate::shared::{Fields, check, conditions::is_true, table};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
    semantic_equal,
};
use serde_json::Value;
use std::collections::HashSet;

/// A job before or after the update.
#[derive(Clone, Copy)]
struct Side<'a> {
    job: &'a Value,
    status: &'a Value,
}

impl<'a> Side<'a> {
    fn of(job: &'a Value) -> Self {
        Side { job, status: job.at("status") }
    }
    fn has(&self, condition: &str) -> bool {
        self.status
            .list("conditions")
            .iter()
            .any(|c| c.text("type") == condition && c.text("status") == "True")
    }
    fn complete(&self) -> bool {
        self.has("Complete")
    }
    fn failed(&self) -> bool {
        self.has("Failed")
    }
    fn finished(&self) -> bool {
        self.complete() || self.failed()
    }
    fn time(&self, field: &str) -> Option<jiff::Timestamp> {
        table::parse_time(self.status.text(field))
    }
}

/// Upstream's `ValidateJobUpdateStatus`, without ObjectMeta.
pub fn validate(errs: &mut ErrorList, new: &Value, old: &Value) {
    let (n, o) = (Side::of(new), Side::of(old));
    let path = Path::new("status");
    counters(errs, &path, n);
    conditions(errs, &path, n, o);
    times(errs, &path, n, o);
    finished(errs, &path, n, o);
    index_lists(errs, &path, n, o);
    if changed(n, o, &["ready", "active"])
        && let Some(ready) = n.status.opt_int("ready").filter(|r| *r > n.status.int("active"))
    {
        errs.push(Error::invalid(&path.child("ready"), ready, "cannot set more ready pods than active"));
    }
    progress(errs, &path, n, o);
}

fn changed(n: Side<'_>, o: Side<'_>, fields: &[&str]) -> bool {
    fields.iter().any(|f| !semantic_equal(n.status.at(f), o.status.at(f)))
}

fn counters(errs: &mut ErrorList, path: &Path, n: Side<'_>) {
    let fields = ["active", "succeeded", "failed", "ready", "terminating"];
    check::not_negative_fields(errs, path, n.status, &fields);
    let path = path.child("uncountedTerminatedPods");
    let mut seen = HashSet::new();
    for list in ["succeeded", "failed"] {
        for (i, uid) in n.status.at("uncountedTerminatedPods").strings(list).enumerate() {
            let path = path.child(list).index(i);
            if uid.is_empty() {
                errs.push(Error::invalid(&path, uid, "must not be empty"));
            } else if !seen.insert(uid) {
                errs.push(Error::duplicate(&path, uid));
            }
        }
    }
}

fn conditions(errs: &mut ErrorList, path: &Path, n: Side<'_>, o: Side<'_>) {
    let path = path.child("conditions");
    let mut refuse = |text: &str| errs.push(Error::invalid(&path, Value::Null, text).without_value());
    let moved = |c: &str| n.has(c) != o.has(c);
    let (complete, failed, met) = (n.complete(), n.failed(), n.has("SuccessCriteriaMet"));
    let target = n.has("FailureTarget");
    if (moved("Complete") || moved("Failed")) && complete && failed {
        refuse("cannot set Complete=True and Failed=true conditions");
    }
    if (moved("Complete") || moved("FailureTarget")) && complete && target {
        refuse("cannot set Complete=True and FailureTarget=true conditions");
    }
    if (moved("Failed") || changed(n, o, &["failedIndexes"])) && failed && !target {
        refuse("cannot set Failed=True condition without the FailureTarget=true condition");
    }
    if (moved("Complete") || moved("SuccessCriteriaMet")) && complete && !met {
        refuse("cannot set Complete=True condition without the SuccessCriteriaMet=true condition");
    }
    if met && failed {
        refuse("cannot set SuccessCriteriaMet=True and Failed=true conditions");
    }
    if met && target {
        refuse("cannot set SuccessCriteriaMet=True and FailureTarget=true conditions");
    }
    if n.job.at("spec").has("successPolicy") && !met && complete {
        refuse("cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True");
    }
}

fn times(errs: &mut ErrorList, path: &Path, n: Side<'_>, o: Side<'_>) {
    let completion = path.child("completionTime");
    let shown = n.status.at("completionTime");
    let complete_moved = n.complete() != o.complete();
    if complete_moved || changed(n, o, &["completionTime"]) {
        if !shown.is_null() && !n.complete() {
            let text = "cannot set completionTime when there is no Complete=True condition";
            errs.push(Error::invalid(&completion, shown.clone(), text));
        }
        if shown.is_null() && n.complete() {
            errs.push(Error::required(&completion, "completionTime is required for Complete jobs"));
        }
    }
    if changed(n, o, &["startTime", "completionTime"])
        && let (Some(start), Some(end)) = (n.time("startTime"), n.time("completionTime"))
        && end < start
    {
        errs.push(Error::invalid(&completion, shown.clone(), "must be equal to or after `startTime`"));
    }
}

fn finished(errs: &mut ErrorList, path: &Path, n: Side<'_>, o: Side<'_>) {
    let moved = n.finished() != o.finished();
    if !n.finished() {
        return;
    }
    let active = n.status.int("active");
    if (moved || changed(n, o, &["active"])) && active > 0 {
        errs.push(Error::invalid(&path.child("active"), active, "active>0 is invalid for finished job"));
    }
    let spec = n.job.at("spec");
    let nothing_to_do = spec.flag("suspend") && spec.opt_int("completions") == Some(0);
    if (moved || changed(n, o, &["startTime"])) && !nothing_to_do && !n.status.has("startTime") {
        errs.push(Error::required(&path.child("startTime"), "startTime is required for finished job"));
    }
    let uncounted = n.status.at("uncountedTerminatedPods");
    let waiting = uncounted.list("failed").len() + uncounted.list("succeeded").len();
    if (moved || changed(n, o, &["uncountedTerminatedPods"])) && waiting > 0 {
        let path = path.child("uncountedTerminatedPods");
        let ty = "io.k8s.api.batch.v1.UncountedTerminatedPods";
        errs.push(check::invalid_struct(&path, ty, uncounted, "must be empty for finished job"));
    }
    let terminating = n.status.int("terminating");
    if (moved || changed(n, o, &["terminating"])) && terminating > 0 {
        let text = "terminating>0 is invalid for finished job";
        errs.push(Error::invalid(&path.child("terminating"), terminating, text));
    }
}

fn index_lists(errs: &mut ErrorList, path: &Path, n: Side<'_>, o: Side<'_>) {
    let spec = n.job.at("spec");
    let completed_moved = changed(n, o, &["completedIndexes"]);
    let failed_moved = changed(n, o, &["failedIndexes"]);
    let (completed, failed) = (n.status.text("completedIndexes"), n.status.opt_text("failedIndexes"));
    let (at_completed, at_failed) = (path.child("completedIndexes"), path.child("failedIndexes"));
    let per_index = spec.has("backoffLimitPerIndex");
    if let Some(total) = spec.opt_int("completions") {
        if completed_moved && let Err(e) = indexes::count(completed, total) {
            errs.push(Error::invalid(
                &at_completed,
                completed,
                format!("error parsing completedIndexes: {e}"),
            ));
        }
        if let Some(f) = failed.filter(|_| failed_moved && per_index)
            && let Err(e) = indexes::count(f, total)
        {
            errs.push(Error::invalid(&at_failed, f, format!("error parsing failedIndexes: {e}")));
        }
        if let Some(f) = failed.filter(|_| completed_moved || failed_moved)
            && let Some(i) = indexes::overlap(completed, f, total)
        {
            let text = format!("failedIndexes and completedIndexes overlap at index: {i}");
            errs.push(Error::invalid(&at_failed, f, text));
        }
    }
    if completed_moved && !completed.is_empty() && spec.text("completionMode") != "Indexed" {
        let text = "cannot set non-empty completedIndexes when non-indexed completion mode";
        errs.push(Error::invalid(&at_completed, completed, text));
    }
    if let Some(f) = failed.filter(|_| failed_moved && !per_index) {
        let text = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
        errs.push(Error::invalid(&at_failed, f, text));
    }
}

/// What only ever moves one way.
fn progress(errs: &mut ErrorList, path: &Path, n: Side<'_>, o: Side<'_>) {
    let conditions = path.child("conditions");
    for c in ["Failed", "Complete", "FailureTarget"] {
        if o.has(c) && !n.has(c) {
            let text = format!("cannot disable the terminal {c}=True condition");
            errs.push(Error::invalid(&conditions, Value::Null, text).without_value());
        }
    }
    let spec = n.job.at("spec");
    let elastic = spec.text("completionMode") == "Indexed"
        && spec.opt_int("completions") == spec.opt_int("parallelism");
    for (field, fixed) in [("failed", true), ("succeeded", !elastic)] {
        if fixed && n.status.int(field) < o.status.int(field) {
            let text = format!("cannot decrease the {field} counter");
            errs.push(Error::invalid(&path.child(field), n.status.int(field), text));
        }
    }
    let (was, is) = (o.status.at("completionTime"), n.status.at("completionTime"));
    if !was.is_null() && !is.is_null() && was != is {
        errs.push(Error::invalid(&path.child("completionTime"), is.clone(), check::IMMUTABLE));
    }
    let (was, is) = (o.status.at("startTime"), n.status.at("startTime"));
    let resuming =
        is_true(o.status, "Suspended") && crate::shared::conditions::is(n.status, "Suspended", "False");
    if was != is && !was.is_null() && !resuming && !spec.flag("suspend") {
        let text = "field is immutable for unsuspended job once set";
        errs.push(Error::invalid(&path.child("startTime"), is.clone(), text));
    }
    let mut refuse = |text: &str| errs.push(Error::invalid(&conditions, Value::Null, text).without_value());
    if o.has("SuccessCriteriaMet") && !n.has("SuccessCriteriaMet") {
        refuse("cannot disable the SuccessCriteriaMet=True condition");
    }
    if o.complete() && !o.has("SuccessCriteriaMet") && n.has("SuccessCriteriaMet") {
        refuse("cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions");
    }
}
