//! Jobs.

mod indexes;
pub(super) mod spec;
mod status;

use crate::{
    core::pods::template,
    shared::{
        Fields, check,
        conditions::is_true,
        metadata, table,
        value::{copy_field, ensure_object, list_mut, object_mut, put, set_default},
    },
};
use kaji_meta::{
    Path, Status,
    field::{Error, ErrorList},
    labels::Selector,
    object, semantic_equal, validation,
};
use kaji_resource::{
    Column, Ctx, DeleteOptions, DeletionHooks, GarbageCollectionPolicy, Hooks, ResourceDef, Scope,
    SelectableField, SubresourceDef, age_column, name_column,
};
use serde_json::{Value, json};

const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";
/// Labels of pods that carry the job's uid: the current one and that of old.
const UID_LABELS: [&str; 2] = ["controller-uid", CONTROLLER_UID];
/// Labels of pods that carry the job's name.
const NAME_LABELS: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];

/// Upstream's warning about deleting a job without a propagation policy.
const ORPHANS: &str = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning";

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new("Status", "string", 0, "Status of the job."),
    Column::new(
        "Completions",
        "string",
        0,
        "The number of pods which reached phase Succeeded. The value increases monotonically for a given spec. However, it may decrease in reaction to scale down of elastic indexed jobs.",
    ),
    Column::new("Duration", "string", 0, "Time required to complete the job."),
    age_column(),
    table::containers_column(1),
    table::images_column(1),
    table::selector_column(
        "A label query over pods that should match the pod count. Normally, the system sets this field for you. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors",
    ),
];

struct Jobs;

/// The jobs resource.
pub fn def() -> ResourceDef {
    ResourceDef::builtin("batch", "v1", "Job", "jobs", Scope::Namespaced, COLUMNS, Jobs)
        .optional_to_start()
        .metadata_checks(&[metadata::WHOLE, metadata::UPDATE], &[metadata::UPDATE])
        .pod_template(&["spec", "template"])
        .with_garbage_collection(GarbageCollectionPolicy::OrphanDependents)
        .category(&["all"])
        .with_generation()
        .select(&[{
            let mut f = SelectableField::new("status.succeeded").missing("0");
            f.name = "status.successful".into();
            f
        }])
        .sub(&[SubresourceDef::status()])
}

/// The job's own selector and the labels that its pods need for it, unless the client manages them.
fn generate_selector(job: &mut Value) {
    if job.at("spec").flag("manualSelector") {
        return;
    }
    let (uid, name) = (object::uid(job).to_owned(), object::name(job).to_owned());
    let spec = ensure_object(job, "spec");
    let labels = ensure_object(ensure_object(ensure_object(spec, "template"), "metadata"), "labels");
    for (keys, value) in [(NAME_LABELS, &name), (UID_LABELS, &uid)] {
        for key in keys {
            set_default(labels, key, || value.as_str().into());
        }
    }
    let matches = ensure_object(ensure_object(spec, "selector"), "matchLabels");
    set_default(matches, CONTROLLER_UID, || uid.into());
}

fn generated_selector(errs: &mut ErrorList, job: &Value, prefixed: bool) {
    let spec = job.at("spec");
    if spec.flag("manualSelector") || !spec.has("selector") {
        return;
    }
    let (uid, name) = (object::uid(job), object::name(job));
    if uid.is_empty() {
        errs.push(Error::required(&Path::new("metadata").child("uid"), ""));
    }
    let labels = spec.at("template").at("metadata").at("labels");
    let path = Path::new("spec").child("template").child("metadata").child("labels");
    let mut expected = serde_json::Map::new();
    for i in 0..=usize::from(prefixed) {
        for (key, want) in [(UID_LABELS[i], uid), (NAME_LABELS[i], name)] {
            expected.insert(key.to_owned(), want.into());
            match labels.opt_text(key) {
                None => errs.push(Error::required(&path.key(key), format!("must be '{want}'"))),
                Some(v) if v != want => {
                    errs.push(Error::invalid(&path.key(key), labels.clone(), format!("must be '{want}'")));
                }
                Some(_) => {}
            }
        }
    }
    if Selector::from_label_selector(spec.at("selector"))
        .is_ok_and(|s| !s.matches_value(&Value::Object(expected)))
    {
        let path = Path::new("spec").child("selector");
        let (selector, text) = (spec.at("selector"), "`selector` not auto-generated");
        errs.push(check::invalid_struct(&path, check::LABEL_SELECTOR, selector, text));
    }
}

fn job(errs: &mut ErrorList, job: &Value, prefixed: bool) {
    generated_selector(errs, job, prefixed);
    spec(errs, job.at("spec"));
    let (spec, name) = (job.at("spec"), object::name(job));
    if let Some(n) = spec.opt_int("completions").filter(|n| *n > 0)
        && spec.text("completionMode") == "Indexed"
    {
        let host = format!("{name}-{}", n - 1);
        if !validation::is_dns1123_label(&host).is_empty() {
            let text = format!("will not able to create pod with invalid DNS label: {host}");
            errs.push(Error::invalid(&Path::new("metadata").child("name"), name, text));
        }
    }
}

fn spec(errs: &mut ErrorList, spec: &Value) {
    let path = Path::new("spec");
    spec::validate(errs, &path, spec);
    let selector = spec.at("selector");
    if selector.is_null() {
        errs.push(Error::required(&path.child("selector"), ""));
    } else {
        errs.extend(validation::validate_label_selector(selector, &path.child("selector")));
    }
    if let Ok(s) = Selector::from_label_selector(selector) {
        check::selector_matches_template(errs, &path.child("template"), &s, spec.at("template"));
    }
}

/// While a job is suspended and has no pods, their resources and where they may run can still change.
fn template_update(errs: &mut ErrorList, new: &Value, old_job: &Value) {
    let (old_spec, status) = (old_job.at("spec"), old_job.at("status"));
    let suspended = old_spec.flag("suspend");
    let idle = !status.has("startTime") || is_true(status, "Suspended");
    let mutable = suspended && idle && status.int("active") == 0;
    let template = new.at("template");
    let mut old = old_spec.at("template").clone();
    if mutable {
        let pod = template.at("spec");
        if let Some(p) = object_mut(&mut old, "spec") {
            let affinity = ensure_object(p, "affinity");
            copy_field(affinity, pod.at("affinity"), "nodeAffinity");
            for f in ["nodeSelector", "tolerations", "schedulingGates"] {
                copy_field(p, pod, f);
            }
        }
        let meta = ensure_object(&mut old, "metadata");
        for f in ["annotations", "labels"] {
            copy_field(meta, template.at("metadata"), f);
        }
    }
    let path = Path::new("spec");
    if !suspended || !mutable {
        check::immutable_struct(
            errs,
            &path.child("template"),
            "io.k8s.api.core.v1.PodTemplateSpec",
            template,
            &old,
        );
        return;
    }
    let (pod, mut old) = (template.at("spec"), old.at("spec").clone());
    for list in ["containers", "initContainers"] {
        if pod.list(list).len() == old.list(list).len() {
            for (o, n) in list_mut(&mut old, list).iter_mut().zip(pod.list(list)) {
                if o.text("name") == n.text("name") {
                    copy_field(o, n, "resources");
                }
            }
        }
    }
    check::immutable_struct(errs, &path.child("template.spec"), "io.k8s.api.core.v1.PodSpec", pod, &old);
}

fn update(errs: &mut ErrorList, new: &Value, old: &Value) {
    let path = Path::new("spec");
    let (n, o) = (new.at("spec"), old.at("spec"));
    spec(errs, n);
    let completions = path.child("completions");
    if n.text("completionMode") != "Indexed" {
        check::immutable(errs, &completions, n.at("completions"), o.at("completions"));
    } else if n.has("completions")
        && n.at("completions") != o.at("completions")
        && n.opt_int("completions") != n.opt_int("parallelism")
    {
        let text = "can only be modified in tandem with spec.parallelism";
        errs.push(Error::invalid(&completions, n.at("completions").clone(), text));
    }
    check::immutable_selector(errs, &path.child("selector"), n.at("selector"), o.at("selector"));
    template_update(errs, n, old);
    let policy = "io.k8s.api.batch.v1.PodFailurePolicy";
    check::immutable(errs, &path.child("completionMode"), n.at("completionMode"), o.at("completionMode"));
    let (new, old) = (n.at("podFailurePolicy"), o.at("podFailurePolicy"));
    check::immutable_struct(errs, &path.child("podFailurePolicy"), policy, new, old);
    for f in ["backoffLimitPerIndex", "managedBy"] {
        check::immutable(errs, &path.child(f), n.at(f), o.at(f));
    }
    let (new, old, policy) =
        (n.at("successPolicy"), o.at("successPolicy"), "io.k8s.api.batch.v1.SuccessPolicy");
    check::immutable_struct(errs, &path.child("successPolicy"), policy, new, old);
}

fn status_word(job: &Value) -> &'static str {
    let status = job.at("status");
    if is_true(status, "Complete") {
        "Complete"
    } else if is_true(status, "Failed") {
        "Failed"
    } else if object::deletion_timestamp(job).is_some() {
        "Terminating"
    } else if is_true(status, "Suspended") {
        "Suspended"
    } else if is_true(status, "FailureTarget") {
        "FailureTarget"
    } else if is_true(status, "SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

/// A job without labels has those of its pods.
fn label_as_pods(job: &mut Value) {
    let labels = job.at("spec").at("template").at("metadata").at("labels").clone();
    if labels.as_object().is_some_and(|l| !l.is_empty()) {
        put(ensure_object(job, "metadata"), "labels", labels);
    }
}

impl Hooks for Jobs {
    fn deletion(&self) -> &dyn DeletionHooks {
        self
    }

    fn default(&self, _version: &str, object: &mut Value) {
        spec::default_job(ensure_object(object, "spec"));
        if object.at("metadata").map("labels").is_none_or(|l| l.is_empty()) {
            label_as_pods(object);
        }
    }

    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        generate_selector(object);
        if !ctx.labelled {
            // Also with those that were generated.
            label_as_pods(object);
        }
        put(object, "status", json!({}));
        spec::drop_disabled(ctx.features, ensure_object(object, "spec"), None);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = vec![];
        job(&mut errs, object, true);
        errs
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if ctx.subresource.is_empty() {
            spec::drop_disabled(ctx.features, ensure_object(new, "spec"), Some(old.at("spec")));
        }
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        if ctx.subresource == "status" {
            status::validate(&mut errs, new, old);
            return errs;
        }
        let labels = old.at("spec").at("template").at("metadata").at("labels");
        job(&mut errs, new, labels.has(NAME_LABELS[1]) && labels.has(UID_LABELS[1]));
        update(&mut errs, new, old);
        errs
    }

    fn warnings(&self, ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let path = Path::new("spec");
        match old {
            None => {
                let name = template::warn_name(object::name(new), "Pod names and hostnames");
                name.into_iter().chain(spec::warn(&path, new.at("spec"))).collect()
            }
            Some(o) if ctx.subresource.is_empty() && !semantic_equal(new.at("spec"), o.at("spec")) => {
                spec::warn(&path, new.at("spec"))
            }
            Some(_) => vec![],
        }
    }

    fn row(&self, _version: &str, job: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let (spec, status) = (job.at("spec"), job.at("status"));
        let done = status.int("succeeded");
        let completions = match (spec.opt_int("completions"), spec.int("parallelism")) {
            (Some(n), _) => format!("{done}/{n}"),
            (None, p) if p > 1 => format!("{done}/1 of {p}"),
            (None, _) => format!("{done}/1"),
        };
        let end = table::parse_time(status.text("completionTime")).unwrap_or(now);
        let duration = table::parse_time(status.text("startTime"))
            .map_or_else(String::new, |start| table::human(table::seconds_between(start, end)));
        let [names, images] = table::containers(spec.at("template").at("spec"));
        vec![
            table::name(job),
            status_word(job).into(),
            completions.into(),
            duration.into(),
            table::age(job, now),
            names,
            images,
            table::selector(spec.at("selector")).into(),
        ]
    }
}

impl DeletionHooks for Jobs {
    fn check_delete(&self, ctx: &Ctx<'_>, _object: &Value, options: &DeleteOptions) -> Result<(), Status> {
        if options.propagation_policy.is_none() && options.orphan_dependents.is_none() {
            ctx.warn(ORPHANS);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{TestContext, show};
    use expect_test::expect;

    fn new_job(change: impl FnOnce(&mut Value)) -> Value {
        let w = TestContext::default();
        let mut j = json!({
            "metadata": {"name": "j", "namespace": "default", "uid": "u1", "creationTimestamp": "2026-01-02T03:00:05Z"},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}]}}}
        });
        change(&mut j);
        Jobs.default("v1", &mut j);
        Jobs.prepare_create(&w.ctx(&j.clone(), "", "v1"), &mut j);
        j
    }

    #[test]
    fn a_job_without_labels_has_those_of_its_pods() {
        let w = TestContext::default();
        let made = |labelled: bool| {
            let mut j = json!({"metadata": {"name": "j", "uid": "u1"}, "spec": {"template": {"metadata": {"labels": {"a": "b"}}}}});
            if labelled {
                j["metadata"]["labels"] = json!({"a": "b"});
            }
            Jobs.default("v1", &mut j);
            let sent = j.clone();
            Jobs.prepare_create(&Ctx { labelled, ..w.ctx(&sent, "", "v1") }, &mut j);
            j["metadata"]["labels"].to_string()
        };
        assert_eq!(made(true), r#"{"a":"b"}"#);
        assert_eq!(
            made(false),
            r#"{"a":"b","batch.kubernetes.io/controller-uid":"u1","batch.kubernetes.io/job-name":"j","controller-uid":"u1","job-name":"j"}"#
        );
    }

    #[test]
    fn fields_of_features_that_are_off_are_dropped() {
        let w = TestContext::default();
        let scheduling = json!({"disruptionMode": {"single": {}}});
        let plain = new_job(|_| {});
        assert_eq!(new_job(|j| j["spec"]["scheduling"] = scheduling.clone()), plain);
        let updated = |old: &Value| {
            let mut new = plain.clone();
            new["spec"]["scheduling"] = scheduling.clone();
            let sent = new.clone();
            Jobs.prepare_update(&w.ctx(&sent, "", "v1"), &mut new, old);
            new["spec"].get("scheduling").cloned()
        };
        assert_eq!(updated(&plain), None);
        let mut old = plain.clone();
        old["spec"]["scheduling"] = json!({});
        assert_eq!(updated(&old), Some(scheduling.clone()));
    }

    #[test]
    fn generates_the_selector() {
        let mut j = new_job(|_| {});
        let w = TestContext::default();
        assert_eq!(show(&Jobs.validate_create(&w.ctx(&j, "", "v1"), &j)), "");
        j["spec"]["template"]["spec"].take();
        expect![[r#"{"backoffLimit":6,"completionMode":"NonIndexed","completions":1,"manualSelector":false,"parallelism":1,"podReplacementPolicy":"TerminatingOrFailed","selector":{"matchLabels":{"batch.kubernetes.io/controller-uid":"u1"}},"suspend":false,"template":{"metadata":{"labels":{"batch.kubernetes.io/controller-uid":"u1","batch.kubernetes.io/job-name":"j","controller-uid":"u1","job-name":"j"}},"spec":null}}"#]]
        .assert_eq(&j["spec"].to_string());
    }

    #[test]
    fn rejects_invalid_fields() {
        let w = TestContext::default();
        let j = new_job(|j| {
            j["spec"]["template"]["spec"]["restartPolicy"] = "Always".into();
            j["spec"]["selector"] = json!({"matchLabels": {"a": "b"}});
            j["spec"]["maxFailedIndexes"] = 1.into();
            j["spec"]["podFailurePolicy"] = json!({"rules": [
                {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3, 0, 3]}},
                {"action": "", "onPodConditions": [{"type": "DisruptionTarget"}]},
                {"action": "Ignore"}]});
            j["spec"]["podReplacementPolicy"] = "TerminatingOrFailed".into();
        });
        expect![[r#"
            spec.selector: Invalid value: {"matchLabels":{"a":"b","batch.kubernetes.io/controller-uid":"u1"}}: `selector` not auto-generated
            spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified
            spec.maxFailedIndexes: Invalid value: 1: requires indexed completion mode
            spec.podFailurePolicy.rules[0].onExitCodes.values[1]: Invalid value: 0: must not be 0 for the In operator
            spec.podFailurePolicy.rules[0].onExitCodes.values[2]: Duplicate value: 3
            spec.podFailurePolicy.rules[0].onExitCodes.values: Invalid value: [3,0,3]: must be ordered
            spec.podFailurePolicy.rules[1].action: Required value: valid values: ["Count" "FailIndex" "FailJob" "Ignore"]
            spec.podFailurePolicy.rules[2]: Invalid value: specifying one of OnExitCodes and OnPodConditions is required
            spec.podReplacementPolicy: Unsupported value: "TerminatingOrFailed": supported values: "Failed"
            spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"
            spec.template.metadata.labels: Invalid value: {"batch.kubernetes.io/controller-uid":"u1","batch.kubernetes.io/job-name":"j","controller-uid":"u1","job-name":"j"}: `selector` does not match template `labels`"#]]
        .assert_eq(&show(&Jobs.validate_create(&w.ctx(&j, "", "v1"), &j)));
    }

    #[test]
    fn most_of_the_spec_is_fixed() {
        let w = TestContext::default();
        let old = new_job(|_| {});
        let mut new = old.clone();
        new["spec"]["parallelism"] = 5.into();
        new["spec"]["completions"] = 5.into();
        new["spec"]["completionMode"] = "Indexed".into();
        new["spec"]["managedBy"] = "example.com/x".into();
        expect![[r#"
            spec.completionMode: Invalid value: "Indexed": field is immutable
            spec.managedBy: Invalid value: "example.com/x": field is immutable"#]]
        .assert_eq(&show(&Jobs.validate_update(&w.ctx(&old, "", "v1"), &new, &old)));
        let mut new = old.clone();
        new["spec"]["template"]["spec"]["containers"][0]["image"] = "other".into();
        new["spec"]["selector"] = json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"values": ["b"], "key": "a", "operator": "In"}]});
        new["spec"]["podFailurePolicy"] = json!({"rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]});
        expect![[r#"
            spec.selector: Invalid value: {"matchLabels":{"a":"b"},"matchExpressions":[{"key":"a","operator":"In","values":["b"]}]}: `selector` not auto-generated
            spec.podReplacementPolicy: Unsupported value: "TerminatingOrFailed": supported values: "Failed"
            spec.template.metadata.labels: Invalid value: {"batch.kubernetes.io/controller-uid":"u1","batch.kubernetes.io/job-name":"j","controller-uid":"u1","job-name":"j"}: `selector` does not match template `labels`
            spec.podReplacementPolicy: Unsupported value: "TerminatingOrFailed": supported values: "Failed"
            spec.template.metadata.labels: Invalid value: {"batch.kubernetes.io/controller-uid":"u1","batch.kubernetes.io/job-name":"j","controller-uid":"u1","job-name":"j"}: `selector` does not match template `labels`
            spec.selector: Invalid value: {"matchLabels":{"a":"b"},"matchExpressions":[{"key":"a","operator":"In","values":["b"]}]}: field is immutable
            spec.template: Invalid value: {"labels":{"batch.kubernetes.io/controller-uid":"u1","batch.kubernetes.io/job-name":"j","controller-uid":"u1","job-name":"j"},"Spec":{"Volumes":null,"InitContainers":null,"Containers":[{"Name":"c","Image":"other","Command":null,"Args":null,"WorkingDir":"","Ports":null,"EnvFrom":null,"Env":null,"Resources":{"Limits":null,"Requests":null,"Claims":null},"ResizePolicy":null,"RestartPolicy":null,"RestartPolicyRules":null,"VolumeMounts":null,"VolumeDevices":null,"LivenessProbe":null,"ReadinessProbe":null,"StartupProbe":null,"Lifecycle":null,"TerminationMessagePath":"/dev/termination-log","TerminationMessagePolicy":"File","ImagePullPolicy":"IfNotPresent","SecurityContext":null,"Stdin":false,"StdinOnce":false,"TTY":false}],"EphemeralContainers":null,"RestartPolicy":"Never","TerminationGracePeriodSeconds":30,"ActiveDeadlineSeconds":null,"DNSPolicy":"ClusterFirst","NodeSelector":null,"ServiceAccountName":"","AutomountServiceAccountToken":null,"NodeName":"","SecurityContext":{"HostNetwork":false,"HostPID":false,"HostIPC":false,"ShareProcessNamespace":null,"HostUsers":null,"SELinuxOptions":null,"WindowsOptions":null,"RunAsUser":null,"RunAsGroup":null,"RunAsNonRoot":null,"SupplementalGroups":null,"SupplementalGroupsPolicy":null,"FSGroup":null,"FSGroupChangePolicy":null,"Sysctls":null,"SeccompProfile":null,"AppArmorProfile":null,"SELinuxChangePolicy":null},"ImagePullSecrets":null,"Hostname":"","Subdomain":"","SetHostnameAsFQDN":null,"Affinity":null,"SchedulerName":"default-scheduler","Tolerations":null,"HostAliases":null,"PriorityClassName":"","Priority":null,"PreemptionPolicy":null,"DNSConfig":null,"ReadinessGates":null,"RuntimeClassName":null,"Overhead":null,"EnableServiceLinks":null,"TopologySpreadConstraints":null,"OS":null,"SchedulingGates":null,"ResourceClaims":null,"Resources":null,"HostnameOverride":null,"SchedulingGroup":null,"EvictionResponders":null}}: field is immutable
            spec.podFailurePolicy: Invalid value: {"Rules":[{"Action":"Ignore","OnExitCodes":null,"OnPodConditions":[{"Type":"DisruptionTarget","Status":"True"}]}]}: field is immutable"#]].assert_eq(&show(&Jobs.validate_update(&w.ctx(&old, "", "v1"), &new, &old)));
        let mut suspended = old.clone();
        suspended["spec"]["suspend"] = true.into();
        let mut new = suspended.clone();
        new["spec"]["template"]["spec"]["nodeSelector"] = json!({"a": "b"});
        new["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
        assert_eq!(show(&Jobs.validate_update(&w.ctx(&old, "", "v1"), &new, &suspended)), "");
    }

    #[test]
    fn status_keeps_its_invariants() {
        let w = TestContext::default();
        let mut old = new_job(|_| {});
        old["status"] = json!({"active": 1, "startTime": "2026-01-02T03:00:05Z", "succeeded": 2});
        let mut new = old.clone();
        new["status"] = json!({"active": 1, "succeeded": 1, "completionTime": "2026-01-02T03:00:00Z",
            "startTime": "2026-01-02T03:00:05Z",
            "conditions": [{"type": "Complete", "status": "True"}, {"type": "Failed", "status": "True"}]});
        expect![[r#"
            status.conditions: Invalid value: cannot set Complete=True and Failed=true conditions
            status.conditions: Invalid value: cannot set Failed=True condition without the FailureTarget=true condition
            status.conditions: Invalid value: cannot set Complete=True condition without the SuccessCriteriaMet=true condition
            status.completionTime: Invalid value: "2026-01-02T03:00:00Z": must be equal to or after `startTime`
            status.active: Invalid value: 1: active>0 is invalid for finished job
            status.succeeded: Invalid value: 1: cannot decrease the succeeded counter"#]]
        .assert_eq(&show(&Jobs.validate_update(&w.ctx(&old, "status", "v1"), &new, &old)));
    }

    #[test]
    fn prints_a_row() {
        let w = TestContext::default();
        let mut j = new_job(|_| {});
        j["status"] = json!({"startTime": "2026-01-02T03:01:05Z", "completionTime": "2026-01-02T03:02:05Z", "succeeded": 1,
            "conditions": [{"type": "Complete", "status": "True"}]});
        expect![[r#"["j","Complete","1/1","60s","4m","c","i:1","batch.kubernetes.io/controller-uid=u1"]"#]]
            .assert_eq(&Value::from(Jobs.row("v1", &j, w.now)).to_string());
    }
}
