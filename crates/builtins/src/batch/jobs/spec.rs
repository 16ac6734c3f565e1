//! The spec of a job, which other kinds may hold as a template.

use super::indexes;
use crate::{
    core::pods::{defaults, drop, template},
    shared::{
        Fields, check,
        disabled::{self, Feature},
        value::{ensure_object, list_mut, object_mut, put, set_default},
    },
};
use kaji_meta::{
    Features, Path,
    field::{Error, ErrorList},
    validation,
};
use serde_json::Value;
use std::collections::HashSet;

/// From how many completions on an Indexed job with a limit per index is bounded more tightly.
const MANY: i64 = 100_000;
/// The bounds from there on.
const MANY_LIMIT: i64 = 10_000;
/// The most pods of an Indexed job, running or failed, at a time.
const MAX_INDEXED: i64 = 100_000;
/// Features that are off.
const OFF: [Feature; 1] = [
    // WorkloadWithJob
    &[&["scheduling"]],
];

/// Defaults of a Job object (upstream gives a job template only those of its pods).
pub fn default_job(spec: &mut Value) {
    if !spec.has("completions") && !spec.has("parallelism") {
        put(spec, "completions", 1);
    }
    set_default(spec, "parallelism", || 1.into());
    let per_index = spec.has("backoffLimitPerIndex");
    set_default(spec, "backoffLimit", || if per_index { i32::MAX.into() } else { 6.into() });
    set_default(spec, "completionMode", || "NonIndexed".into());
    set_default(spec, "suspend", || false.into());
    let failed = spec.has("podFailurePolicy");
    set_default(spec, "podReplacementPolicy", || {
        if failed { "Failed".into() } else { "TerminatingOrFailed".into() }
    });
    set_default(spec, "manualSelector", || false.into());
    default_common(spec);
}

/// Defaults of any job spec.
pub fn default_common(spec: &mut Value) {
    defaults::template(spec, "template");
    if let Some(policy) = object_mut(spec, "podFailurePolicy") {
        for rule in list_mut(policy, "rules") {
            for pattern in list_mut(rule, "onPodConditions") {
                crate::shared::value::default_text(pattern, "status", "True");
            }
        }
    }
    ensure_object(spec, "template");
}

/// Drops disabled fields of a job's spec, and of its pods'.
pub fn drop_disabled(features: Features, spec: &mut Value, old: Option<&Value>) {
    disabled::drop_fields(spec, old.unwrap_or(&Value::Null), &OFF);
    drop::of_template(features, spec, &["template"], old);
}

/// Upstream's `validateJobSpec`: everything but the selector.
pub fn validate(errs: &mut ErrorList, path: &Path, spec: &Value) {
    let numbers = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    check::not_negative_fields(errs, path, spec, &numbers);
    if spec.has("maxFailedIndexes") && !spec.has("backoffLimitPerIndex") {
        let text = "when maxFailedIndexes is specified";
        errs.push(Error::required(&path.child("backoffLimitPerIndex"), text));
    }
    if let Some(by) = spec.opt_text("managedBy") {
        let path = path.child("managedBy");
        errs.extend(validation::validate_domain_prefixed_path(&path, by));
        if by.len() > 63 {
            errs.push(Error::too_long(&path, "", 63));
        }
    }
    completion_mode(errs, path, spec);
    pod_failure_policy(errs, &path.child("podFailurePolicy"), spec);
    success_policy(errs, &path.child("successPolicy"), spec);
    if let Some(policy) = spec.opt_text("podReplacementPolicy") {
        let allowed: &[&str] =
            if spec.has("podFailurePolicy") { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
        check::one_of(errs, &path.child("podReplacementPolicy"), policy, allowed);
    }
    template::validate(errs, &path.child("template"), spec.at("template"));
    let path = path.child("template").child("spec").child("restartPolicy");
    match spec.at("template").at("spec").text("restartPolicy") {
        "" | "Always" => errs.push(Error::required(&path, "valid values: \"OnFailure\", \"Never\"")),
        "OnFailure" if spec.has("podFailurePolicy") => {
            let text = "only \"Never\" is supported when podFailurePolicy is specified";
            errs.push(Error::invalid(&path, "OnFailure", text));
        }
        "OnFailure" | "Never" => {}
        other => errs.push(Error::not_supported(&path, other, &["OnFailure", "Never"])),
    }
}

fn completion_mode(errs: &mut ErrorList, path: &Path, spec: &Value) {
    let mode = spec.opt_text("completionMode");
    if let Some(m) = mode {
        check::one_of(errs, &path.child("completionMode"), m, &["NonIndexed", "Indexed"]);
    }
    let (completions, parallelism) = (spec.opt_int("completions"), spec.opt_int("parallelism"));
    let max_failed = spec.opt_int("maxFailedIndexes");
    let failed_path = path.child("maxFailedIndexes");
    if matches!(mode, None | Some("NonIndexed")) {
        for f in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if let Some(n) = spec.opt_int(f) {
                errs.push(Error::invalid(&path.child(f), n, "requires indexed completion mode"));
            }
        }
    }
    if mode != Some("Indexed") {
        return;
    }
    if completions.is_none() {
        errs.push(Error::required(&path.child("completions"), "when completion mode is Indexed"));
    }
    if let Some(p) = parallelism.filter(|p| *p > MAX_INDEXED) {
        let text = format!("must be less than or equal to {MAX_INDEXED} when completion mode is Indexed");
        errs.push(Error::invalid(&path.child("parallelism"), p, text));
    }
    if let (Some(c), Some(m)) = (completions, max_failed)
        && m > c
    {
        errs.push(Error::invalid(&failed_path, m, "must be less than or equal to completions"));
    }
    if let Some(m) = max_failed.filter(|m| *m > MAX_INDEXED) {
        errs.push(Error::invalid(&failed_path, m, format!("must be less than or equal to {MAX_INDEXED}")));
    }
    if completions.is_some_and(|c| c > MANY) && spec.has("backoffLimitPerIndex") {
        let text = format!(
            "must be less than or equal to {MANY_LIMIT} when completions are above {MANY} and used with backoff limit \
             per index"
        );
        if max_failed.is_none() {
            let text = format!("must be specified when completions is above {MANY}");
            errs.push(Error::required(&failed_path, text));
        }
        if let Some(p) = parallelism.filter(|p| *p > MANY_LIMIT) {
            errs.push(Error::invalid(&path.child("parallelism"), p, text.as_str()));
        }
        if let Some(m) = max_failed.filter(|m| *m > MANY_LIMIT) {
            errs.push(Error::invalid(&failed_path, m, text));
        }
    }
}

fn pod_failure_policy(errs: &mut ErrorList, path: &Path, spec: &Value) {
    let Some(policy) = spec.get_field("podFailurePolicy") else { return };
    let path = path.child("rules");
    let rules = policy.list("rules");
    if rules.len() > 20 {
        errs.push(Error::too_many(&path, rules.len(), 20));
    }
    let pod = spec.at("template").at("spec");
    let names: HashSet<&str> =
        ["containers", "initContainers"].iter().flat_map(|l| pod.list(l)).map(|c| c.text("name")).collect();
    for (i, rule) in rules.iter().enumerate() {
        let path = path.index(i);
        let action = path.child("action");
        match rule.text("action") {
            "" => errs.push(Error::required(
                &action,
                "valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]",
            )),
            "FailIndex" if !spec.has("backoffLimitPerIndex") => {
                errs.push(Error::invalid(
                    &action,
                    "FailIndex",
                    "requires the backoffLimitPerIndex to be set",
                ));
            }
            a => check::one_of(errs, &action, a, &["Count", "FailIndex", "FailJob", "Ignore"]),
        }
        let (codes, conditions) = (rule.get_field("onExitCodes"), rule.list("onPodConditions"));
        if let Some(c) = codes {
            on_exit_codes(errs, &path.child("onExitCodes"), c, &names);
        }
        on_pod_conditions(errs, &path.child("onPodConditions"), conditions);
        let text = match (codes.is_some(), conditions.is_empty()) {
            (true, false) => "specifying both OnExitCodes and OnPodConditions is not supported",
            (false, true) => "specifying one of OnExitCodes and OnPodConditions is required",
            _ => continue,
        };
        errs.push(Error::invalid(&path, Value::Null, text).without_value());
    }
}

fn on_exit_codes(errs: &mut ErrorList, path: &Path, codes: &Value, names: &HashSet<&str>) {
    let operator = codes.text("operator");
    if operator.is_empty() {
        errs.push(Error::required(&path.child("operator"), "valid values: [\"In\" \"NotIn\"]"));
    } else {
        check::one_of(errs, &path.child("operator"), operator, &["In", "NotIn"]);
    }
    if let Some(name) = codes.opt_text("containerName")
        && !names.contains(name)
    {
        let text = "must be one of the container or initContainer names in the pod template";
        errs.push(Error::invalid(&path.child("containerName"), name, text));
    }
    let path = path.child("values");
    let values: Vec<i64> = codes.list("values").iter().filter_map(Value::as_i64).collect();
    if values.is_empty() {
        errs.push(Error::invalid(&path, codes.at("values").clone(), "at least one value is required"));
    } else if values.len() > 255 {
        errs.push(Error::too_many(&path, values.len(), 255));
    }
    let mut seen = HashSet::new();
    for (i, v) in values.iter().enumerate() {
        if operator == "In" && *v == 0 {
            errs.push(Error::invalid(&path.index(i), 0, "must not be 0 for the In operator"));
        }
        if !seen.insert(v) {
            errs.push(Error::duplicate(&path.index(i), *v));
        }
    }
    if !values.is_sorted() {
        errs.push(Error::invalid(&path, values, "must be ordered"));
    }
}

fn on_pod_conditions(errs: &mut ErrorList, path: &Path, patterns: &[Value]) {
    if patterns.len() > 20 {
        errs.push(Error::too_many(path, patterns.len(), 20));
    }
    for (i, p) in patterns.iter().enumerate() {
        let path = path.index(i);
        check::qualified_name(errs, &path.child("type"), p.text("type"));
        let status = path.child("status");
        match p.text("status") {
            "" => errs.push(Error::required(&status, "valid values: [\"False\" \"True\" \"Unknown\"]")),
            s => check::one_of(errs, &status, s, &["False", "True", "Unknown"]),
        }
    }
}

fn success_policy(errs: &mut ErrorList, path: &Path, spec: &Value) {
    let Some(policy) = spec.get_field("successPolicy") else { return };
    if spec.text("completionMode") != "Indexed" {
        let ty = "io.k8s.api.batch.v1.SuccessPolicy";
        errs.push(check::invalid_struct(path, ty, policy, "requires indexed completion mode"));
        return;
    }
    let path = path.child("rules");
    let rules = policy.list("rules");
    if rules.is_empty() {
        let text = "at least one rules must be specified when the successPolicy is specified";
        errs.push(Error::required(&path, text));
    }
    if rules.len() > 20 {
        errs.push(Error::too_many(&path, rules.len(), 20));
    }
    let completions = spec.int("completions");
    for (i, rule) in rules.iter().enumerate() {
        let path = path.index(i);
        let (count, list) = (rule.opt_int("succeededCount"), rule.opt_text("succeededIndexes"));
        if count.is_none() && list.is_none() {
            let text = "at least one of succeededCount or succeededIndexes must be specified";
            errs.push(Error::required(&path, text));
        }
        let mut total = 0;
        if let Some(l) = list {
            let path = path.child("succeededIndexes");
            if l.len() > 64 * 1024 {
                errs.push(Error::too_long(&path, "", 64 * 1024));
            }
            match indexes::count(l, completions) {
                Ok(n) => total = n,
                Err(e) => errs.push(Error::invalid(&path, l, format!("error parsing succeededIndexes: {e}"))),
            }
        }
        let Some(n) = count else { continue };
        let path = path.child("succeededCount");
        check::not_negative(errs, &path, n);
        if n > completions {
            let text =
                format!("must be less than or equal to {completions} (the number of specified completions)");
            errs.push(Error::invalid(&path, n, text));
        }
        if list.is_some() && n > total {
            let text = format!(
                "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
            );
            errs.push(Error::invalid(&path, n, text));
        }
    }
}

/// Upstream's warnings for a job spec.
pub fn warn(path: &Path, spec: &Value) -> Vec<String> {
    let mut out = vec![];
    if spec.text("completionMode") == "Indexed"
        && spec.int("completions") > MANY
        && spec.int("parallelism") > MANY_LIMIT
    {
        out.push(format!(
            "{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, \
             Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
        ));
    }
    out.extend(template::warn(&path.child("template"), spec.at("template")));
    out
}
