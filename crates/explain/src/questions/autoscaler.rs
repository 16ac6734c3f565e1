//! An autoscaler that does nothing: its target, its metrics, and where they come from.

use crate::{
    case::{Case, condition_is, tell},
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
            let near = crate::names::nearest(name, others.iter().map(object::name));
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
        if of_group.peek().is_none() {
            cause = cause
                .known(format!("no APIService serves {group}"))
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
    let selected: Vec<&Value> = pods.iter().filter(|pod| selector.matches_object(pod)).collect();
    for resource in resources {
        let lacks = |pod: &Value| {
            let containers = arr_at(pod, &["spec", "containers"]).iter();
            containers
                .filter(|c| at(c, &["resources", "requests", resource]).is_none())
                .map(|c| str_at(c, &["name"]).to_owned())
                .next()
        };
        let lacking: Vec<String> = selected
            .iter()
            .filter_map(|pod| Some(format!("{} of {}", lacks(pod)?, object::name(pod))))
            .collect();
        if !lacking.is_empty() {
            cause = cause
                .known(format!("containers without a request of {resource}: {}", some(&lacking, NAMED)))
                .fix(format!(
                    "set resources.requests.{resource} in the template: utilization is a part of the request"
                ));
        }
    }
    cause
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
