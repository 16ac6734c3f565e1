//! A service without endpoints: the label or the port that differs.

use crate::{
    case::{Case, has_ready_endpoint, is_finished},
    names::nearest,
    paths,
    report::{Cause, Sort, some},
};
use kaji_meta::{
    labels::Selector,
    object::{self, arr_at, i64_at, str_at, str_map_at},
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
        return with_endpoints(case).await;
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
    vec![without_endpoints(case, &selector, &pods).await]
}

/// What may be wrong although there are endpoints: no address outside, or a port on which nothing seems to listen.
async fn with_endpoints(case: &Case<'_>) -> Vec<Cause> {
    let mut causes = vec![];
    let addresses = arr_at(case.object, &["status", "loadBalancer", "ingress"]);
    if str_at(case.object, &["spec", "type"]) == "LoadBalancer" && addresses.is_empty() {
        let cause = Cause::new(Sort::Endpoints, "it has no address outside of the cluster")
            .known("status.loadBalancer.ingress is empty");
        causes.push(match str_at(case.object, &["spec", "loadBalancerClass"]) {
            "" => cause
                .inferred("no controller gives addresses to load balancers in this cluster, or it fails")
                .fix("install one (a cloud controller manager, MetalLB), or use the type NodePort"),
            class => cause
                .known(format!("its loadBalancerClass is {class}"))
                .inferred("the controller of this class is not installed, or fails"),
        });
    }
    let selector: Vec<(&str, &str)> = str_map_at(case.object, &["spec", "selector"]).collect();
    // Ports of a headless service are not translated.
    if selector.is_empty() || str_at(case.object, &["spec", "clusterIP"]) == "None" {
        return causes;
    }
    let pods = case.all_beside("v1", "pods").await.unwrap_or_default();
    let matcher = Selector::from_map(selector.iter().copied());
    let selected: Vec<&Value> =
        pods.iter().filter(|pod| !is_finished(pod) && matcher.matches_object(pod)).collect();
    for text in undeclared_ports(case.object, &selected) {
        let cause = Cause::new(Sort::Endpoints, "connections may be refused").known(text);
        causes.push(
            cause
                .inferred(
                    "nothing listens there, unless the containers listen on ports that they do not declare",
                )
                .fix("correct targetPort; or declare the port in the pods' template"),
        );
    }
    causes
}

/// Ports of the service that lead to a number which no pod declares, where each pod declares ports.
fn undeclared_ports(service: &Value, pods: &[&Value]) -> Vec<String> {
    let declared = |pod: &Value, protocol: &str| -> Vec<i64> {
        let containers =
            ["containers", "initContainers"].into_iter().flat_map(|list| arr_at(pod, &["spec", list]));
        let ports = containers.flat_map(|container| arr_at(container, &["ports"]));
        ports
            .filter(|port| self::protocol(port) == protocol)
            .filter_map(|port| i64_at(port, &["containerPort"]))
            .collect()
    };
    let ports = arr_at(service, &["spec", "ports"]).iter().filter_map(|port| {
        let target = match port.get("targetPort") {
            Some(target) => target.as_i64()?,
            None => i64_at(port, &["port"])?,
        };
        let of_pods: Vec<Vec<i64>> = pods.iter().map(|pod| declared(pod, protocol(port))).collect();
        let silent =
            of_pods.is_empty() || of_pods.iter().any(|ports| ports.is_empty() || ports.contains(&target));
        let mut all: Vec<String> = of_pods.iter().flatten().map(ToString::to_string).collect();
        all.sort();
        all.dedup();
        (!silent).then(|| {
            format!(
                "targetPort {target} is none of the {} ports that its pods declare: {}",
                protocol(port),
                some(&all, NAMED)
            )
        })
    });
    ports.collect()
}

fn protocol(port: &Value) -> &str {
    match str_at(port, &["protocol"]) {
        "" => "TCP",
        protocol => protocol,
    }
}

async fn without_endpoints(case: &Case<'_>, selector: &[(&str, &str)], pods: &[Value]) -> Cause {
    let text: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let cause = Cause::new(Sort::Endpoints, "it has no ready endpoints")
        .known(format!("its selector is {}", text.join(",")));
    let matcher = Selector::from_map(selector.iter().copied());
    let selected: Vec<&Value> =
        pods.iter().filter(|pod| !is_finished(pod)).filter(|pod| matcher.matches_object(pod)).collect();
    if selected.is_empty() {
        return nothing_selected(case, cause, selector, pods).await;
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

/// The pod with labels that match the most of the selector, and how they differ; or one of another namespace.
async fn nothing_selected(case: &Case<'_>, cause: Cause, selector: &[(&str, &str)], pods: &[Value]) -> Cause {
    let cause = cause.known(format!("no pod of the namespace {} matches it", case.namespace()));
    let matching = |pod: &Value| selector.iter().filter(|(k, v)| object::label(pod, k) == Some(*v)).count();
    let like = |pod: &Value| {
        let values = selector
            .iter()
            .filter(|(k, v)| object::label(pod, k).is_some_and(|is| nearest(v, [is]).is_some()));
        values.count()
    };
    let best = pods.iter().map(|pod| ((matching(pod), like(pod)), pod)).max_by_key(|(score, _)| *score);
    let pod = match best {
        Some((score, pod)) if score != (0, 0) => pod,
        _ => return nothing_alike(case, cause, selector, pods).await,
    };
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

/// A pod with the labels in another namespace, of those that the caller may list; or one that has a label of the selector at all.
async fn nothing_alike(case: &Case<'_>, cause: Cause, selector: &[(&str, &str)], pods: &[Value]) -> Cause {
    let matcher = Selector::from_map(selector.iter().copied());
    let all = case.reader.list(&paths::path("v1", "", "pods", "")).await.unwrap_or_default();
    if let Some(pod) = all.iter().find(|pod| !is_finished(pod) && matcher.matches_object(pod)) {
        return cause
            .nearest(format!(
                "pod {} of the namespace {} has these labels",
                object::name(pod),
                object::namespace(pod)
            ))
            .fix("a service selects pods of its own namespace alone: create it there");
    }
    let mut labels = pods.iter().flat_map(|pod| {
        selector.iter().filter_map(move |(key, _)| Some((object::name(pod), key, object::label(pod, key)?)))
    });
    match labels.next_back() {
        Some((name, key, value)) => cause.nearest(format!("{name} has {key}={value}")),
        None if pods.is_empty() => cause.fix("create pods with these labels"),
        None => cause.fix("create pods with these labels, or correct the selector"),
    }
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
