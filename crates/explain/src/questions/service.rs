//! A service without endpoints: the label or the port that differs.

use crate::{
    case::{Case, has_ready_endpoint, is_finished},
    names::nearest,
    report::{Cause, Sort, some},
};
use kaji_meta::{
    labels::Selector,
    object::{self, arr_at, str_at, str_map_at},
};
use serde_json::Value;

const NAMED: usize = 5;

/// Why the service has no ready endpoint.
pub async fn causes(case: &Case<'_>) -> Vec<Cause> {
    if str_at(case.object, &["spec", "type"]) == "ExternalName" {
        return vec![];
    }
    let Some(slices) = case.endpoint_slices(case.namespace(), case.name()).await else { return vec![] };
    if has_ready_endpoint(&slices) && slices.iter().any(|slice| !arr_at(slice, &["ports"]).is_empty()) {
        return vec![];
    }
    let selector: Vec<(&str, &str)> = str_map_at(case.object, &["spec", "selector"]).collect();
    if selector.is_empty() {
        let text = "it has no selector, and no EndpointSlice names an endpoint for it";
        let cause = Cause::new(Sort::Endpoints, "it has no endpoints").known(text);
        return vec![cause.fix(
            "give it a selector, or create an EndpointSlice with the label kubernetes.io/service-name",
        )];
    }
    let Some(pods) = case.all_beside("v1", "pods").await else { return vec![] };
    vec![without_endpoints(case, &selector, &pods)]
}

fn without_endpoints(case: &Case<'_>, selector: &[(&str, &str)], pods: &[Value]) -> Cause {
    let text: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let cause = Cause::new(Sort::Endpoints, "it has no ready endpoints")
        .known(format!("its selector is {}", text.join(",")));
    let matcher = Selector::from_map(selector.iter().copied());
    let selected: Vec<&Value> =
        pods.iter().filter(|pod| !is_finished(pod)).filter(|pod| matcher.matches_object(pod)).collect();
    if selected.is_empty() {
        return nothing_selected(case, cause, selector, pods);
    }
    let names: Vec<&str> = selected.iter().map(|pod| object::name(pod)).collect();
    let cause = cause.known(format!("it selects {}", some(&names, NAMED)));
    let ports = wrong_ports(case.object, &selected);
    if !ports.is_empty() {
        let cause = ports.iter().fold(cause, |cause, text| cause.known(text));
        return cause.fix("correct targetPort, or name the container's port so");
    }
    let unready: Vec<&str> = selected
        .iter()
        .filter(|pod| crate::case::condition_is(pod, "Ready", "True").is_none())
        .map(|pod| object::name(pod))
        .collect();
    match unready.first() {
        Some(first) => cause
            .known(format!("of these are not ready: {}", some(&unready, NAMED)))
            .fix(format!("kaji why pod/{first} -n {}", case.namespace())),
        None => {
            cause.inferred("the endpoint slice controller has not made its endpoints yet, or does not run")
        }
    }
}

/// The pod with labels that match the most of the selector, and how they differ.
fn nothing_selected(case: &Case<'_>, cause: Cause, selector: &[(&str, &str)], pods: &[Value]) -> Cause {
    let cause = cause.known(format!("no pod of the namespace {} matches it", case.namespace()));
    let matching = |pod: &Value| selector.iter().filter(|(k, v)| object::label(pod, k) == Some(*v)).count();
    let like = |pod: &Value| {
        let values = selector
            .iter()
            .filter(|(k, v)| object::label(pod, k).is_some_and(|is| nearest(v, [is]).is_some()));
        values.count()
    };
    let best = pods.iter().map(|pod| ((matching(pod), like(pod)), pod)).max_by_key(|(score, _)| *score);
    let Some((score, pod)) = best else { return cause.fix("create pods with these labels") };
    if score == (0, 0) {
        let key = selector.iter().find(|(key, _)| object::label(pod, key).is_some());
        let Some((key, _)) = key else {
            return cause.fix("create pods with these labels, or correct the selector");
        };
        return cause.nearest(format!(
            "{} has {key}={}",
            object::name(pod),
            object::label(pod, key).unwrap_or_default()
        ));
    }
    let differing: Vec<String> = selector
        .iter()
        .filter(|(key, value)| object::label(pod, key) != Some(*value))
        .map(|(key, value)| match object::label(pod, key) {
            Some(is) => format!("{key} is {is}, not {value}"),
            None => format!("{key} is missing"),
        })
        .collect();
    cause
        .nearest(format!("pod {}: {}", object::name(pod), differing.join("; ")))
        .fix("let the selector say what the pods' template has, or the other way round")
}

/// Ports of the service that lead to a port's name which no selected pod has.
fn wrong_ports(service: &Value, pods: &[&Value]) -> Vec<String> {
    let names: Vec<&str> = pods
        .iter()
        .flat_map(|pod| {
            arr_at(pod, &["spec", "containers"]).iter().chain(arr_at(pod, &["spec", "initContainers"]))
        })
        .flat_map(|container| arr_at(container, &["ports"]))
        .map(|port| str_at(port, &["name"]))
        .filter(|name| !name.is_empty())
        .collect();
    arr_at(service, &["spec", "ports"])
        .iter()
        .filter_map(|port| {
            let target = port.get("targetPort")?.as_str()?;
            if names.contains(&target) {
                return None;
            }
            let near = nearest(target, names.iter().copied())
                .map_or_else(String::new, |near| format!("; they have {near}"));
            Some(format!("targetPort {target} is no port of these pods{near}"))
        })
        .collect()
}
