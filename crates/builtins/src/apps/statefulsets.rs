//! StatefulSets.

use super::rolling;
use crate::{
    core::pods::{defaults, drop, template, warnings},
    shared::{
        Fields, check, claim, metadata, replicas, table,
        value::{default_text, drop_field, ensure_object, list_mut, object_mut, put, set_default},
    },
};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
    labels::Selector,
    object, validation,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new("Ready", "string", 0, "Number of the pod with ready state"),
    age_column(),
    table::containers_column(1),
    table::images_column(1),
];

struct StatefulSets;

/// The statefulsets resource.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        "apps",
        "v1",
        "StatefulSet",
        "statefulsets",
        Scope::Namespaced,
        COLUMNS,
        StatefulSets,
    )
    .optional_to_start()
    .metadata_checks(&[metadata::UPDATE], &[metadata::UPDATE])
    .pod_template(&["spec", "template"])
    .short(&["sts"])
    .category(&["all"])
    .with_generation()
    .named(validation::name_is_dns_label)
    .sub(&[SubresourceDef::status(), SubresourceDef::scale()])
}

/// What a set is validated for. An update may leave a pod template as it was found, also one that is not valid.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Create,
    Update,
    UpdateOfInvalid,
}

fn spec(errs: &mut ErrorList, spec: &Value, of: Of) {
    let path = Path::new("spec");
    let policy = spec.text("podManagementPolicy");
    match policy {
        "" => errs.push(Error::required(&path.child("podManagementPolicy"), "")),
        "OrderedReady" | "Parallel" => {}
        other => {
            let text = "must be 'OrderedReady' or 'Parallel'";
            errs.push(Error::invalid(&path.child("podManagementPolicy"), other, text));
        }
    }
    strategy(errs, &path.child("updateStrategy"), spec.at("updateStrategy"));
    if let Some(policy) = spec.get_field("persistentVolumeClaimRetentionPolicy") {
        let path = path.child("persistentVolumeClaimRetentionPolicy");
        for when in ["whenDeleted", "whenScaled"] {
            check::one_of(errs, &path.child(when), policy.text(when), &["Retain", "Delete"]);
        }
    }
    if of == Of::Create {
        for (i, t) in spec.list("volumeClaimTemplates").iter().enumerate() {
            claim::spec(errs, &path.child("volumeClaimTemplates").index(i).child("spec"), t.at("spec"));
        }
    }
    check::not_negative_fields(errs, &path, spec, &["replicas", "minReadySeconds"]);
    if let Some(start) = spec.at("ordinals").opt_int("start") {
        check::not_negative(errs, &path.child("ordinals.start"), start);
    }
    if of == Of::Create && !spec.text("serviceName").is_empty() {
        check::dns_label(errs, &path.child("serviceName"), spec.text("serviceName"));
    }
    check::workload_selector(errs, &path.child("selector"), spec.at("selector"), "statefulset");
    match Selector::from_label_selector(spec.at("selector")) {
        Err(_) => {
            let at = path.child("selector");
            errs.push(check::invalid_struct(&at, check::LABEL_SELECTOR, spec.at("selector"), ""));
        }
        Ok(s) => pod_template(errs, &path.child("template"), spec, &s, of),
    }
    template::only_restarted(errs, &path.child("template"), spec.at("template"), "StatefulSet");
}

/// The template as pods will have it: claims stand for the volumes of their templates, and host names are the
/// controller's to set.
fn pod_template(errs: &mut ErrorList, path: &Path, spec: &Value, selector: &Selector, of: Of) {
    if !selector.is_everything() {
        check::selector_matches_template(errs, path, selector, spec.at("template"));
    }
    let mut t = spec.at("template").clone();
    if let Some(pod) = object_mut(&mut t, "spec") {
        drop_field(pod, "subdomain");
        drop_field(pod, "hostname");
        let claims = spec.list("volumeClaimTemplates");
        if !claims.is_empty() {
            let name = |c: &Value| c.at("metadata").text("name").to_owned();
            // Of claims with one name the last counts.
            let last = |i: usize| !claims[i + 1..].iter().any(|c| name(c) == name(&claims[i]));
            let mut volumes: Vec<Value> = claims
                .iter()
                .enumerate()
                .filter(|(i, _)| last(*i))
                .map(|(_, c)| c)
                .map(|c| json!({"name": name(c), "persistentVolumeClaim": {"claimName": name(c)}}))
                .collect();
            let own =
                pod.list("volumes").iter().filter(|v| !claims.iter().any(|c| name(c) == v.text("name")));
            volumes.extend(own.cloned());
            put(pod, "volumes", volumes);
        }
    }
    if of != Of::UpdateOfInvalid {
        template::validate(errs, path, &t);
    }
    // Upstream checks these twice.
    let meta = spec.at("template").at("metadata");
    errs.extend(validation::validate_labels(meta.at("labels"), &path.child("labels")));
    errs.extend(validation::validate_annotations(meta.at("annotations"), &path.child("annotations")));
}

fn strategy(errs: &mut ErrorList, path: &Path, strategy: &Value) {
    let rolling = path.child("rollingUpdate");
    match (strategy.text("type"), strategy.get_field("rollingUpdate")) {
        ("", _) => errs.push(Error::required(path, "")),
        ("OnDelete", Some(r)) => {
            let ty = "io.k8s.api.apps.v1.RollingUpdateStatefulSetStrategy";
            let text = "only allowed for updateStrategy 'RollingUpdate'";
            errs.push(check::invalid_struct(&rolling, ty, r, text));
        }
        ("OnDelete", None) | ("RollingUpdate", None) => {}
        ("RollingUpdate", Some(r)) => {
            check::not_negative_fields(errs, &rolling, r, &["partition"]);
            if let Some(n) = r.get_field("maxUnavailable") {
                rolling::not_zero(errs, &rolling.child("maxUnavailable"), n);
            }
        }
        (other, given) => {
            let text = "must be 'RollingUpdate' or 'OnDelete'";
            let shown = rolling::shown(other, given, &["partition", "maxUnavailable"]);
            errs.push(Error::invalid(path, Value::Null, text).showing(shown));
        }
    }
}

fn status(errs: &mut ErrorList, object: &Value) {
    let path = Path::new("status");
    let s = object.at("status");
    let counters = [
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ];
    check::not_negative_fields(errs, &path, s, &counters);
    let bounded = ["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
    check::not_above_replicas(errs, &path, s, &bounded);
    replicas::available_not_above_ready(errs, &path, s, "cannot be greater than status.readyReplicas");
}

impl Hooks for StatefulSets {
    fn default(&self, _version: &str, object: &mut Value) {
        let spec = ensure_object(object, "spec");
        default_text(spec, "podManagementPolicy", "OrderedReady");
        set_default(spec, "replicas", || 1.into());
        set_default(spec, "revisionHistoryLimit", || 10.into());
        // Go writes the service's name even when it is empty.
        set_default(spec, "serviceName", || "".into());
        let strategy = ensure_object(spec, "updateStrategy");
        if strategy.text("type").is_empty() {
            put(strategy, "type", "RollingUpdate");
            set_default(strategy, "rollingUpdate", || json!({}));
        }
        if strategy.text("type") == "RollingUpdate"
            && let Some(r) = object_mut(strategy, "rollingUpdate")
        {
            set_default(r, "partition", || 0.into());
            set_default(r, "maxUnavailable", || 1.into());
        }
        let policy = ensure_object(spec, "persistentVolumeClaimRetentionPolicy");
        default_text(policy, "whenDeleted", "Retain");
        default_text(policy, "whenScaled", "Retain");
        defaults::template(spec, "template");
        for c in list_mut(spec, "volumeClaimTemplates") {
            // Upstream's conversion writes both, whatever was given.
            put(c, "apiVersion", "v1");
            put(c, "kind", "PersistentVolumeClaim");
            ensure_object(c, "metadata");
            defaults::claim_spec(ensure_object(c, "spec"));
            default_text(ensure_object(c, "status"), "phase", "Pending");
        }
    }

    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({"availableReplicas": 0, "replicas": 0}));
        drop::of_template(ctx.features, object, &["spec", "template"], None);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = vec![];
        spec(&mut errs, object.at("spec"), Of::Create);
        errs
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if ctx.subresource.is_empty() {
            drop::of_template(ctx.features, new, &["spec", "template"], Some(old));
        }
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        if ctx.subresource == "status" {
            status(&mut errs, new);
            check::collision_count(&mut errs, new, old);
            return errs;
        }
        let mut before = vec![];
        spec(&mut before, old.at("spec"), Of::Update);
        let of = if before.is_empty() { Of::Update } else { Of::UpdateOfInvalid };
        spec(&mut errs, new.at("spec"), of);
        let (path, n, o) = (Path::new("spec"), new.at("spec"), old.at("spec"));
        check::immutable_selector(&mut errs, &path.child("selector"), n.at("selector"), o.at("selector"));
        let (claims, ty) = ("volumeClaimTemplates", "io.k8s.api.core.v1.PersistentVolumeClaim");
        check::immutable_struct(&mut errs, &path.child(claims), ty, n.at(claims), o.at(claims));
        for field in ["serviceName", "podManagementPolicy"] {
            check::immutable(&mut errs, &path.child(field), n.at(field), o.at(field));
        }
        errs
    }

    fn warnings(&self, ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        if !ctx.subresource.is_empty() {
            return vec![];
        }
        let path = Path::new("spec");
        let mut out = vec![];
        if old.is_none_or(|o| object::generation(new) != object::generation(o)) {
            out = template::warn(&path.child("template"), new.at("spec").at("template"));
        }
        for (i, c) in new.at("spec").list("volumeClaimTemplates").iter().enumerate() {
            let mut path = path.child("volumeClaimTemplates").index(i);
            if old.is_some() {
                path = path.child("Spec");
            }
            warnings::claim_spec(&mut out, &path, c.at("spec"));
        }
        if new.at("spec").int("revisionHistoryLimit") < 0 {
            let text = "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 \
                        is recommended";
            out.push(text.to_owned());
        }
        out
    }

    fn row(&self, _version: &str, s: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let spec = s.at("spec");
        let [names, images] = table::containers(spec.at("template").at("spec"));
        let ready = format!("{}/{}", s.at("status").int("readyReplicas"), spec.int("replicas"));
        vec![table::name(s), ready.into(), table::age(s, now), names, images]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{TestContext, show};
    use expect_test::expect;

    fn set() -> Value {
        let mut s = json!({
            "metadata": {"name": "db", "creationTimestamp": "2026-01-02T03:00:05Z"},
            "spec": {
                "selector": {"matchLabels": {"a": "b"}},
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}}}}],
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "x", "image": "i:1",
                    "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]}}
            }
        });
        StatefulSets.default("v1", &mut s);
        s
    }

    #[test]
    fn fills_in_defaults() {
        let mut s = set();
        s["spec"]["template"].take();
        expect![[r#"{"persistentVolumeClaimRetentionPolicy":{"whenDeleted":"Retain","whenScaled":"Retain"},"podManagementPolicy":"OrderedReady","replicas":1,"revisionHistoryLimit":10,"selector":{"matchLabels":{"a":"b"}},"serviceName":"","template":null,"updateStrategy":{"rollingUpdate":{"maxUnavailable":1,"partition":0},"type":"RollingUpdate"},"volumeClaimTemplates":[{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"data"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}},"volumeMode":"Filesystem"},"status":{"phase":"Pending"}}]}"#]]
        .assert_eq(&s["spec"].to_string());
    }

    #[test]
    fn rejects_forbidden_changes() {
        let w = TestContext::default();
        let s = set();
        assert_eq!(show(&StatefulSets.validate_create(&w.ctx(&s, "", "v1"), &s)), "");
        let mut new = s.clone();
        new["spec"]["serviceName"] = "other".into();
        new["spec"]["podManagementPolicy"] = "Parallel".into();
        new["spec"]["selector"] = json!({"matchLabels": {"a": "c"}});
        new["spec"]["template"]["metadata"]["labels"]["a"] = "c".into();
        new["spec"]["replicas"] = 3.into();
        expect![[r#"
            spec.selector: Invalid value: {"matchLabels":{"a":"c"}}: field is immutable
            spec.serviceName: Invalid value: "other": field is immutable
            spec.podManagementPolicy: Invalid value: "Parallel": field is immutable"#]]
        .assert_eq(&show(&StatefulSets.validate_update(&w.ctx(&s, "", "v1"), &new, &s)));
        let mut bad = s.clone();
        bad["spec"]["updateStrategy"] = json!({"type": "X"});
        bad["spec"]["podManagementPolicy"] = "Y".into();
        let mut twice = bad["spec"]["volumeClaimTemplates"].as_array().cloned().unwrap_or_default();
        twice.extend(twice.clone());
        let mut doubled = bad.clone();
        doubled["spec"]["volumeClaimTemplates"] = twice.into();
        let found = show(&StatefulSets.validate_create(&w.ctx(&doubled, "", "v1"), &doubled));
        assert!(!found.contains("Duplicate value"), "{found}");
        bad["spec"]["volumeClaimTemplates"][0]["spec"] = json!({});
        expect![[r#"
            spec.podManagementPolicy: Invalid value: "Y": must be 'OrderedReady' or 'Parallel'
            spec.updateStrategy: Invalid value: {"Type":"X","RollingUpdate":null}: must be 'RollingUpdate' or 'OnDelete'
            spec.volumeClaimTemplates[0].spec.accessModes: Required value: at least 1 access mode is required
            spec.volumeClaimTemplates[0].spec.resources[storage]: Required value"#]]
        .assert_eq(&show(&StatefulSets.validate_create(&w.ctx(&s, "", "v1"), &bad)));
        expect![[r#"["db","0/1","4m","x","i:1"]"#]]
            .assert_eq(&Value::from(StatefulSets.row("v1", &s, w.now)).to_string());
    }

    #[test]
    fn an_update_leaves_an_invalid_template_alone() {
        let w = TestContext::default();
        let errors =
            |new: &Value, old: &Value| show(&StatefulSets.validate_update(&w.ctx(new, "", "v1"), new, old));
        let mut invalid = set();
        invalid["spec"]["template"]["spec"]["containers"][0]["name"] = "X".into();
        assert!(errors(&invalid, &set()).starts_with("spec.template.spec.containers[0].name: Invalid value"));
        assert_eq!(errors(&invalid, &invalid), "");
    }
}
