//! An autoscaler that does nothing: its target, its metrics, and where they come from.

use crate::{
    case::{Case, condition_is, is_finished, tell},
    names::nearest,
    paths,
    reader::Found,
    report::{Cause, Sort, some},
};
use kaji_meta::{
    labels::Selector,
    object::{self, arr_at, at, str_at},
};
use serde_json::Value;

const NAMED: usize = 5;

/// Why the autoscaler has no figures, or may not act.
pub async fn causes(case: &Case<'_>) -> Vec<Cause> {
    let target = at(case.object, &["spec", "scaleTargetRef"]);
    let Some(target) = target else { return vec![] };
    let mut conditions = vec![];
    for sort in ["AbleToScale", "ScalingActive"] {
        conditions.extend(condition_is(case.object, sort, "False"));
    }
    if arr_at(case.object, &["status", "conditions"]).is_empty() {
        let cause = Cause::new(Sort::Autoscaling, "nothing has looked at it yet")
            .known("its status has no conditions");
        return vec![
            cause.inferred("the autoscaling controller looks every 15 s; it is late, or does not run"),
        ];
    }
    if conditions.is_empty() {
        return limited(case);
    }
    let mut cause = Cause::new(Sort::Autoscaling, "it does not scale");
    for condition in &conditions {
        cause = cause.known(tell(condition));
    }
    let (api_version, kind, name) =
        (str_at(target, &["apiVersion"]), str_at(target, &["kind"]), str_at(target, &["name"]));
    let Some(resource) = case.discovery.of_kind(api_version, kind) else {
        return vec![
            cause
                .known(format!("the server has no kind {kind} in {api_version}"))
                .fix("correct spec.scaleTargetRef"),
        ];
    };
    let object = match case.reader.get(&resource.path(case.namespace(), name)).await {
        Found::Absent => {
            let cause = cause.known(format!("its target {kind} {name} does not exist"));
            let others = case.reader.list(&resource.path(case.namespace(), "")).await.unwrap_or_default();
            let near = nearest(name, others.iter().map(object::name));
            let cause = cause.nearest_if(near.map(|near| format!("{kind} {near}")));
            return vec![cause.fix("correct spec.scaleTargetRef.name")];
        }
        Found::Unreadable => return vec![cause],
        Found::Object(object) => object,
    };
    if conditions.iter().any(|c| str_at(c, &["reason"]) == "ScalingDisabled") {
        return vec![
            cause
                .known(format!("{kind} {name} has 0 replicas, which turns autoscaling off"))
                .fix(format!("kubectl scale {}/{name} --replicas=1", kind.to_lowercase())),
        ];
    }
    vec![metrics(case, cause, &object).await]
}

/// Resource metrics: pods that request nothing, and the metrics API.
async fn metrics(case: &Case<'_>, mut cause: Cause, target: &Value) -> Cause {
    let sources = arr_at(case.object, &["spec", "metrics"]);
    let resources: Vec<&str> = sources
        .iter()
        .flat_map(|m| [str_at(m, &["resource", "name"]), str_at(m, &["containerResource", "name"])])
        .filter(|name| !name.is_empty())
        .collect();
    for (sort, group) in [
        ("Resource", "metrics.k8s.io"),
        ("Pods", "custom.metrics.k8s.io"),
        ("Object", "custom.metrics.k8s.io"),
        ("External", "external.metrics.k8s.io"),
    ] {
        if !sources.iter().any(|metric| str_at(metric, &["type"]).ends_with(sort)) {
            continue;
        }
        let services =
            case.reader.list("/apis/apiregistration.k8s.io/v1/apiservices").await.unwrap_or_default();
        let mut of_group =
            services.iter().filter(|service| str_at(service, &["spec", "group"]) == group).peekable();
        // A server may serve the group itself, without an APIService.
        if of_group.peek().is_none() && !case.discovery.serves(group) {
            cause = cause
                .known(format!("the server does not serve {group}"))
                .fix(format!("install a metrics adapter that serves {group}"));
        }
        for service in of_group.filter(|service| condition_is(service, "Available", "False").is_some()) {
            let name = object::name(service);
            cause = cause
                .known(format!("APIService {name} is not available"))
                .fix(format!("kaji why apiservice/{name}"));
        }
    }
    let Some(selector) =
        at(target, &["spec", "selector"]).and_then(|s| Selector::from_label_selector(s).ok())
    else {
        return cause;
    };
    let pods = case.all_beside("v1", "pods").await.unwrap_or_default();
    let selected: Vec<&Value> =
        pods.iter().filter(|pod| !is_finished(pod) && selector.matches_object(pod)).collect();
    if selected.is_empty() {
        let (kind, name) = (object::kind(target), object::name(target));
        return cause.known(format!("{kind} {name} has no pods")).fix(format!(
            "kaji why {}/{name} -n {}",
            kind.to_lowercase(),
            case.namespace()
        ));
    }
    cause = containers(sources, cause, &selected);
    for resource in &resources {
        let lacking: Vec<String> = selected
            .iter()
            .filter_map(|pod| Some(format!("{} of {}", lacks(pod, resource)?, object::name(pod))))
            .collect();
        if !lacking.is_empty() {
            cause = cause
                .known(format!("containers without a request of {resource}: {}", some(&lacking, NAMED)))
                .fix(format!(
                    "set resources.requests.{resource} in the template: utilization is a part of the request"
                ));
        }
    }
    if resources.is_empty() { cause } else { without_figures(case, cause, &selected).await }
}

/// The first container of a pod without a request.
fn lacks(pod: &Value, resource: &str) -> Option<String> {
    let mut containers = arr_at(pod, &["spec", "containers"]).iter();
    let found = containers.find(|c| at(c, &["resources", "requests", resource]).is_none())?;
    Some(str_at(found, &["name"]).to_owned())
}

/// Metrics of a container that the pods do not have.
fn containers(sources: &[Value], mut cause: Cause, pods: &[&Value]) -> Cause {
    let names: Vec<&str> = pods
        .iter()
        .flat_map(|pod| arr_at(pod, &["spec", "containers"]))
        .map(|container| str_at(container, &["name"]))
        .collect();
    for source in sources {
        let wanted = str_at(source, &["containerResource", "container"]);
        if !wanted.is_empty() && !names.contains(&wanted) {
            let near = nearest(wanted, names.iter().copied());
            cause = cause
                .known(format!("its pods have no container {wanted}"))
                .nearest_if(near.map(|near| format!("container {near}")))
                .fix("correct spec.metrics[].containerResource.container");
        }
    }
    cause
}

/// Pods of which the resource metrics API has no figures.
async fn without_figures(case: &Case<'_>, cause: Cause, pods: &[&Value]) -> Cause {
    if !case.discovery.serves("metrics.k8s.io") {
        return cause;
    }
    let path = paths::path("metrics.k8s.io/v1beta1", case.namespace(), "pods", "");
    let Some(figures) = case.reader.list(&path).await else { return cause };
    let has = |pod: &Value| figures.iter().any(|figure| object::name(figure) == object::name(pod));
    let without: Vec<&str> = pods.iter().filter(|pod| !has(pod)).map(|pod| object::name(pod)).collect();
    if without.is_empty() {
        return cause;
    }
    cause.known(format!("metrics.k8s.io has no figures of {}", some(&without, NAMED))).fix(format!(
        "kaji why pod/{} -n {}: a pod has figures half a minute after its start",
        without[0],
        case.namespace()
    ))
}

/// Scaling that stops at its limits.
fn limited(case: &Case<'_>) -> Vec<Cause> {
    let Some(condition) = condition_is(case.object, "ScalingLimited", "True") else { return vec![] };
    let cause = Cause::new(Sort::Autoscaling, "it would scale further").known(tell(condition));
    let fix = match str_at(condition, &["reason"]) {
        "TooManyReplicas" => "raise spec.maxReplicas",
        "TooFewReplicas" => "nothing is wrong: spec.minReplicas keeps so many",
        _ => "nothing is wrong: spec.behavior limits the pace",
    };
    vec![cause.fix(fix)]
}
