//! `PodResizeValidator`: a pod on a node is resized in place only on Linux, and not beyond all that the node has for pods.
//!
//! Invariant: a resize that changes nothing of the spec is not looked at. What other pods on the node use is the kubelet's question.

use crate::pod_on_node::{self, SpecChange};
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{
    Quantity, Status, object,
    status::{Cause, Details},
    text::quote,
};
use kaji_quota::{Demand, amounts, requests};
use kaji_resource::BoxFuture;
use serde_json::Value;

/// The plugin.
pub(super) struct PodResizeValidator;

impl Admission for PodResizeValidator {
    fn name(&self) -> &'static str {
        "PodResizeValidator"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        pod_on_node::phases(group, resource, operation)
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource == "resize"
    }

    fn handles_unchanged(&self) -> bool {
        false
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let Some(change) = SpecChange::of(a) else { return Ok(()) };
            let node = change.node(a).await?;
            check(change.pod, &node).map_err(|refusal| refusal.into_status(a))
        })
    }
}

/// Why a resize can never be done.
#[derive(Debug, PartialEq, Eq)]
enum InfeasibleResize {
    UnsupportedPlatform(String),
    NodeCapacity(String),
}

impl InfeasibleResize {
    fn into_status(self, a: &Attributes<'_>) -> Status {
        let (reason, message) = match self {
            InfeasibleResize::UnsupportedPlatform(message) => ("UnsupportedPlatform", message),
            InfeasibleResize::NodeCapacity(message) => ("NodeCapacity", message),
        };
        let mut status = a.forbidden(message);
        let details = status.details.get_or_insert_with(Box::<Details>::default);
        details.causes.push(Cause { reason: reason.to_owned(), ..Cause::default() });
        status
    }
}

fn check(pod: &Value, node: &Value) -> Result<(), InfeasibleResize> {
    if let Some(os) = object::label(node, "kubernetes.io/os").filter(|os| *os != "linux") {
        let text = "pod resize is only supported on linux nodes, node";
        return Err(InfeasibleResize::UnsupportedPlatform(format!(
            "{text} {} is {}",
            quote(object::name(node)),
            quote(os)
        )));
    }
    let wanted = requests(pod, Demand { overhead: true, status: false });
    let allocatable = amounts(object::at(node, &["status", "allocatable"]));
    let exceeded = |name: &str, number: fn(&Quantity) -> i64| {
        let wanted = wanted.get(name)?;
        let (wanted_number, allocatable_number) = (number(wanted), allocatable.get(name).map_or(0, number));
        let exceeds = allocatable.get(name).map_or(wanted_number > 0, |most| wanted > most);
        exceeds.then(|| format!("{name}, requested: {wanted_number}, allocatable: {allocatable_number}"))
    };
    let exceeded: Vec<String> = [exceeded("cpu", Quantity::milli_value), exceeded("memory", Quantity::value)]
        .into_iter()
        .flatten()
        .collect();
    match exceeded.is_empty() {
        true => Ok(()),
        false => {
            let text = "node didn't have enough allocatable resources";
            Err(InfeasibleResize::NodeCapacity(format!("{text}: {}", exceeded.join("; "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::Request;
    use expect_test::expect;
    use kaji_meta::GroupResource;
    use kaji_resource::Scope;
    use serde_json::json;

    fn pod(cpu: &str, memory: &str) -> Value {
        json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": "m", "containers": [
            {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]}})
    }

    async fn resized(old: Value, new: Value, nodes: &[Value]) -> String {
        let mut request = Request::of("", "v1", "Pod", "pods", Scope::Namespaced);
        for node in nodes {
            request.api.put(&GroupResource::new("", "nodes"), node.clone());
        }
        (request.operation, request.subresource, request.name) = (Operation::Update, "resize", "p");
        (request.old, request.object) = (Some(old), Some(new));
        let result = request.with(async |a| PodResizeValidator.validate(a).await).await;
        result.map_or_else(
            |status| {
                let causes = status.details.map(|details| details.causes).unwrap_or_default();
                let reasons: Vec<String> = causes.into_iter().map(|cause| cause.reason).collect();
                format!("{} {} [{}]", status.code, status.message, reasons.join(", "))
            },
            |()| "admitted".to_owned(),
        )
    }

    fn node(os: &str) -> Value {
        json!({"metadata": {"name": "m", "labels": {"kubernetes.io/os": os}},
            "status": {"allocatable": {"cpu": "2", "memory": "1Gi"}}})
    }

    #[tokio::test]
    async fn no_more_than_the_node_has_is_admitted() {
        let nodes = [node("linux")];
        let from = || pod("1", "1Mi");
        assert_eq!(resized(from(), pod("2000m", "1Gi"), &nodes).await, "admitted");
        expect![[r#"403 pods "p" is forbidden: node didn't have enough allocatable resources: cpu, requested: 2001, allocatable: 2000 [NodeCapacity]"#]]
            .assert_eq(&resized(from(), pod("2001m", "1Gi"), &nodes).await);
        expect![[r#"403 pods "p" is forbidden: node didn't have enough allocatable resources: cpu, requested: 900000, allocatable: 2000; memory, requested: 2147483648, allocatable: 1073741824 [NodeCapacity]"#]]
            .assert_eq(&resized(from(), pod("900", "2Gi"), &nodes).await);
        let mut overhead = pod("1500m", "1Mi");
        overhead["spec"]["overhead"] = json!({"cpu": "1"});
        expect![[r#"403 pods "p" is forbidden: node didn't have enough allocatable resources: cpu, requested: 2500, allocatable: 2000 [NodeCapacity]"#]]
            .assert_eq(&resized(from(), overhead, &nodes).await);
    }

    #[tokio::test]
    async fn resources_of_the_whole_pod_count_in_place_of_the_sum() {
        let mut whole = pod("5", "1Mi");
        whole["spec"]["resources"] = json!({"requests": {"cpu": "2", "memory": "2Mi"}});
        assert_eq!(resized(pod("1", "1Mi"), whole, &[node("linux")]).await, "admitted");
    }

    #[tokio::test]
    async fn platforms_and_nodes_are_looked_at_when_the_spec_changes() {
        let nodes = [node("windows")];
        assert_eq!(resized(pod("9", "1Mi"), pod("9", "1Mi"), &nodes).await, "admitted");
        expect![[r#"403 pods "p" is forbidden: pod resize is only supported on linux nodes, node "m" is "windows" [UnsupportedPlatform]"#]]
            .assert_eq(&resized(pod("1", "1Mi"), pod("2", "1Mi"), &nodes).await);
        expect![[r#"403 pods "p" is forbidden: node "m" not found []"#]]
            .assert_eq(&resized(pod("1", "1Mi"), pod("2", "1Mi"), &[]).await);
        let unbound = |cpu: &str| {
            let mut pod = pod(cpu, "1Mi");
            pod["spec"]["nodeName"] = Value::Null;
            pod
        };
        assert_eq!(resized(unbound("1"), unbound("2"), &[]).await, "admitted");
    }
}
