//! CronJobs.

use super::jobs::spec as job_spec;
use crate::{
    core::pods::template,
    shared::{
        Fields, check, metadata, table,
        value::{default_text, ensure_object, put, set_default},
    },
};
use kaji_meta::{
    Path,
    cron::{self, Schedule},
    field::{Error, ErrorList},
    object, semantic_equal,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Schedule",
        "string",
        0,
        "The schedule in Cron format, see https://en.wikipedia.org/wiki/Cron.",
    ),
    Column::new(
        "Timezone",
        "string",
        0,
        "The time zone name for the given schedule, see https://en.wikipedia.org/wiki/List_of_tz_database_time_zones. If not specified, this will default to the time zone of the kube-controller-manager process. The set of valid time zone names and the time zone offset is loaded from the system-wide time zone database by the API server during CronJob validation and the controller manager during execution. If no system-wide time zone database can be found a bundled version of the database is used instead. If the time zone name becomes invalid during the lifetime of a CronJob or due to a change in host configuration, the controller will stop creating new new Jobs and will create a system event with the reason UnknownTimeZone. More information can be found in https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/#time-zones",
    ),
    Column::new(
        "Suspend",
        "boolean",
        0,
        "This flag tells the controller to suspend subsequent executions, it does not apply to already started executions.  Defaults to false.",
    ),
    Column::new("Active", "integer", 0, "A list of pointers to currently running jobs."),
    Column::new(
        "Last Schedule",
        "string",
        0,
        "Information when was the last time the job was successfully scheduled.",
    ),
    age_column(),
    table::containers_column(1),
    table::images_column(1),
    table::selector_column(
        "A label query over pods that should match the pod count. Normally, the system sets this field for you. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors",
    ),
];
/// The longest name: the controller appends 11 characters for its jobs.
const MAX_NAME: usize = 52;

struct CronJobs;

/// The cronjobs resource.
pub fn def() -> ResourceDef {
    ResourceDef::builtin("batch", "v1", "CronJob", "cronjobs", Scope::Namespaced, COLUMNS, CronJobs)
        .optional_to_start()
        .metadata_checks(&[metadata::UPDATE], &[])
        .pod_template(&["spec", "jobTemplate", "spec", "template"])
        .short(&["cj"])
        .category(&["all"])
        .with_generation()
        .sub(&[SubresourceDef::status()])
}

fn spec(errs: &mut ErrorList, spec: &Value, old: Option<&Value>) {
    let path = Path::new("spec");
    let schedule = spec.text("schedule");
    let zone = spec.opt_text("timeZone");
    let at = path.child("schedule");
    if schedule.is_empty() {
        errs.push(Error::required(&at, ""));
    } else {
        if let Err(e) = Schedule::parse(schedule) {
            errs.push(Error::invalid(&at, schedule, e));
        }
        // Schedules that had a zone in them before may keep it.
        let had = old.is_some_and(|o| o.text("schedule").contains("TZ"));
        if schedule.contains("TZ") && !had {
            let text = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
            errs.push(Error::invalid(&at, schedule, text));
        } else if schedule.contains("TZ") && zone.is_some() {
            let text = "cannot use both timeZone field and TZ or CRON_TZ in schedule";
            errs.push(Error::invalid(&at, schedule, text));
        }
    }
    check::not_negative_fields(errs, &path, spec, &["startingDeadlineSeconds"]);
    if let Some(z) = zone
        && old.is_none_or(|o| o.opt_text("timeZone") != zone)
    {
        time_zone(errs, &path.child("timeZone"), z);
    }
    let policies = ["Allow", "Forbid", "Replace"];
    check::required_one_of(errs, &path.child("concurrencyPolicy"), spec.text("concurrencyPolicy"), &policies);
    let (path_job, job) = (path.child("jobTemplate").child("spec"), spec.at("jobTemplate").at("spec"));
    job_spec::validate(errs, &path_job, job);
    if job.has("selector") {
        let text = "`selector` will be auto-generated";
        let at = path_job.child("selector");
        errs.push(check::invalid_struct(&at, check::LABEL_SELECTOR, job.at("selector"), text));
    }
    if job.flag("manualSelector") {
        errs.push(Error::not_supported(&path_job.child("manualSelector"), true, &["nil", "false"]));
    }
    check::not_negative_fields(errs, &path, spec, &["successfulJobsHistoryLimit", "failedJobsHistoryLimit"]);
}

fn time_zone(errs: &mut ErrorList, path: &Path, zone: &str) {
    if zone.is_empty() {
        errs.push(Error::invalid(path, zone, "timeZone must be nil or non-empty string"));
        return;
    }
    let good = |part: &str| {
        !matches!(part, "." | "..")
            && !part.starts_with('-')
            && (1..=14).contains(&part.len())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '+'))
    };
    if !zone.split('/').all(good) {
        errs.push(Error::invalid(path, zone, format!("unknown time zone {zone}")));
        return;
    }
    if zone.eq_ignore_ascii_case("Local") {
        let text = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        errs.push(Error::invalid(path, zone, text));
    }
    if let Err(e) = cron::time_zone(zone) {
        errs.push(Error::invalid(path, zone, e));
    }
}

fn drop_disabled(ctx: &Ctx<'_>, object: &mut Value, old: Option<&Value>) {
    let old = old.map(|old| old.at("spec").at("jobTemplate").at("spec"));
    if let Some(spec) = object.pointer_mut("/spec/jobTemplate/spec") {
        job_spec::drop_disabled(ctx.features, spec, old);
    }
}

impl Hooks for CronJobs {
    fn default(&self, _version: &str, object: &mut Value) {
        let spec = ensure_object(object, "spec");
        default_text(spec, "concurrencyPolicy", "Allow");
        set_default(spec, "suspend", || false.into());
        set_default(spec, "successfulJobsHistoryLimit", || 3.into());
        set_default(spec, "failedJobsHistoryLimit", || 1.into());
        let job = ensure_object(spec, "jobTemplate");
        ensure_object(job, "metadata");
        job_spec::default_common(ensure_object(job, "spec"));
    }

    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({}));
        drop_disabled(ctx, object, None);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = vec![];
        spec(&mut errs, object.at("spec"), None);
        let name = object::name(object);
        if name.len() > MAX_NAME {
            let path = Path::new("metadata").child("name");
            errs.push(Error::invalid(&path, name, "must be no more than 52 characters"));
        }
        errs
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if ctx.subresource.is_empty() {
            drop_disabled(ctx, new, Some(old));
        }
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        if ctx.subresource.is_empty() {
            spec(&mut errs, new.at("spec"), Some(old.at("spec")));
        }
        errs
    }

    fn warnings(&self, ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        if !ctx.subresource.is_empty() {
            return vec![];
        }
        let path = Path::new("spec").child("jobTemplate").child("spec");
        let job = new.at("spec").at("jobTemplate").at("spec");
        let Some(old) = old else {
            let name = template::warn_name(object::name(new), "Pod names and hostnames");
            return name.into_iter().chain(job_spec::warn(&path, job)).collect();
        };
        let mut out = vec![];
        if !semantic_equal(new.at("spec"), old.at("spec")) {
            out = job_spec::warn(&path, job);
        }
        if new.at("spec").text("schedule").contains("TZ") {
            // The doubled "spec" is upstream's.
            out.push(
                "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see \
                 https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
                    .to_owned(),
            );
        }
        out
    }

    fn row(&self, _version: &str, c: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let (spec, status) = (c.at("spec"), c.at("status"));
        let job = spec.at("jobTemplate").at("spec");
        let [names, images] = table::containers(job.at("template").at("spec"));
        let last = status.opt_text("lastScheduleTime");
        let suspend = match spec.opt_flag("suspend") {
            Some(true) => "True",
            Some(false) => "False",
            None => "<unset>",
        };
        vec![
            table::name(c),
            spec.text("schedule").into(),
            spec.opt_text("timeZone").unwrap_or("<none>").into(),
            suspend.into(),
            status.list("active").len().into(),
            last.map_or_else(|| "<none>".to_owned(), |t| table::since(Some(t), now)).into(),
            table::age(c, now),
            names,
            images,
            table::selector(job.at("selector")).into(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{TestContext, show};
    use expect_test::expect;

    fn cron_job(change: impl FnOnce(&mut Value)) -> Value {
        let mut c = json!({
            "metadata": {"name": "c", "creationTimestamp": "2026-01-02T03:00:05Z"},
            "spec": {"schedule": "*/5 * * * *", "jobTemplate": {"spec": {"template": {"spec": {
                "restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}]}}}}}
        });
        change(&mut c);
        CronJobs.default("v1", &mut c);
        c
    }

    #[test]
    fn rejects_invalid_fields() {
        let w = TestContext::default();
        let good = cron_job(|_| {});
        assert_eq!(show(&CronJobs.validate_create(&w.ctx(&good, "", "v1"), &good)), "");
        let bad = cron_job(|c| {
            c["metadata"]["name"] = "x".repeat(53).into();
            c["spec"]["schedule"] = "TZ=UTC 61 * * * *".into();
            c["spec"]["timeZone"] = "Mars/Base".into();
            c["spec"]["concurrencyPolicy"] = "No".into();
            c["spec"]["jobTemplate"]["spec"]["manualSelector"] = true.into();
            c["spec"]["failedJobsHistoryLimit"] = (-1).into();
        });
        expect![[r#"
            spec.schedule: Invalid value: "TZ=UTC 61 * * * *": end of range (61) above maximum (59): 61
            spec.schedule: Invalid value: "TZ=UTC 61 * * * *": cannot use TZ or CRON_TZ in schedule, use timeZone field instead
            spec.timeZone: Invalid value: "Mars/Base": unknown time zone Mars/Base
            spec.concurrencyPolicy: Unsupported value: "No": supported values: "Allow", "Forbid", "Replace"
            spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: "nil", "false"
            spec.failedJobsHistoryLimit: Invalid value: -1: must be greater than or equal to 0
            metadata.name: Invalid value: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx": must be no more than 52 characters"#]]
        .assert_eq(&show(&CronJobs.validate_create(&w.ctx(&bad, "", "v1"), &bad)));
    }

    #[test]
    fn fields_of_features_that_are_off_are_dropped() {
        let w = TestContext::default();
        let scheduled = || cron_job(|c| c["spec"]["jobTemplate"]["spec"]["scheduling"] = json!({}));
        let kept = |old: Option<Value>| {
            let mut new = scheduled();
            let sent = new.clone();
            let ctx = w.ctx(&sent, "", "v1");
            match &old {
                None => CronJobs.prepare_create(&ctx, &mut new),
                Some(old) => CronJobs.prepare_update(&ctx, &mut new, old),
            }
            new["spec"]["jobTemplate"]["spec"].get("scheduling").is_some()
        };
        assert!(!kept(None) && !kept(Some(cron_job(|_| {}))) && kept(Some(scheduled())));
    }

    #[test]
    fn prints_a_row() {
        let w = TestContext::default();
        let mut c = cron_job(|_| {});
        c["status"] = json!({"active": [{}], "lastScheduleTime": "2026-01-02T03:04:00Z"});
        expect![[r#"["c","*/5 * * * *","<none>","False",1,"5s","4m","c","i:1","<none>"]"#]]
            .assert_eq(&Value::from(CronJobs.row("v1", &c, w.now)).to_string());
    }
}
