//! `NodeDeclaredFeatureValidator`: a change of a pod that needs a feature of its node is refused if the node declares none such.
//! Source: KEP-5328, kubernetes `component-helpers/nodedeclaredfeatures`.
//!
//! Invariant: only changes ask for features here. What pods need from their creation on is the scheduler's and the kubelet's question.

use crate::pod_on_node::{self, SpecChange};
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{Status, object, semantic_equal, text::quote};
use kaji_resource::BoxFuture;
use serde_json::Value;

/// The plugin.
pub(super) struct NodeDeclaredFeatureValidator;

impl Admission for NodeDeclaredFeatureValidator {
    fn name(&self) -> &'static str {
        "NodeDeclaredFeatureValidator"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        pod_on_node::phases(group, resource, operation)
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        matches!(a.subresource, "" | "resize")
    }

    fn handles_unchanged(&self) -> bool {
        false
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let Some(change) = SpecChange::of(a) else { return Ok(()) };
            let needed = needed(change.pod, change.old);
            if needed.is_empty() {
                return Ok(());
            }
            let node = change.node(a).await?;
            let declared = object::arr_at(&node, &["status", "declaredFeatures"]);
            let lacking: Vec<&str> =
                needed.into_iter().filter(|feature| !declared.iter().any(|d| d == feature)).collect();
            if lacking.is_empty() {
                return Ok(());
            }
            Err(a.forbidden(format!(
                "pod update requires features {} which are not available on node {}",
                lacking.join(", "),
                quote(object::name(&node))
            )))
        })
    }
}

/// The features that a node needs for a change, in the order of their names.
fn needed(pod: &Value, old: &Value) -> Vec<&'static str> {
    let (new, old) = (&pod["spec"], &old["spec"]);
    let mut features = vec![];
    if !semantic_equal(&new["resources"], &old["resources"]) {
        features.push("InPlacePodLevelResourcesVerticalScaling");
    }
    let (after, before) =
        (object::arr_at(new, &["initContainers"]), object::arr_at(old, &["initContainers"]));
    let resized = |(was, is): (&Value, &Value)| {
        was["restartPolicy"] != "Always" && !semantic_equal(&was["resources"], &is["resources"])
    };
    if before.iter().zip(after).any(resized) {
        features.push("InPlacePodVerticalScalingInitContainers");
    }
    features
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::Request;
    use expect_test::expect;
    use kaji_meta::GroupResource;
    use kaji_resource::Scope;
    use serde_json::json;

    fn pod(whole: &str, init: &str, sidecar: &str) -> Value {
        let asks = |cpu: &str| json!({"requests": {"cpu": cpu}});
        json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": "m", "resources": asks(whole),
            "initContainers": [{"name": "i", "resources": asks(init)},
                {"name": "s", "restartPolicy": "Always", "resources": asks(sidecar)}]}})
    }

    async fn updated(new: Value, declared: Option<&[&str]>) -> String {
        let mut request = Request::of("", "v1", "Pod", "pods", Scope::Namespaced);
        if let Some(declared) = declared {
            let node = json!({"metadata": {"name": "m"}, "status": {"declaredFeatures": declared}});
            request.api.put(&GroupResource::new("", "nodes"), node);
        }
        (request.operation, request.subresource, request.name) = (Operation::Update, "resize", "p");
        (request.old, request.object) = (Some(pod("1", "1", "1")), Some(new));
        let result = request.with(async |a| NodeDeclaredFeatureValidator.validate(a).await).await;
        result.map_or_else(|status| format!("{} {status}", status.code), |()| "admitted".to_owned())
    }

    #[tokio::test]
    async fn changes_need_what_the_node_declares() {
        const WHOLE: &str = "InPlacePodLevelResourcesVerticalScaling";
        // Sidecars are resized on every node.
        assert_eq!(updated(pod("1", "1", "2"), None).await, "admitted");
        assert_eq!(updated(pod("2", "1", "1"), Some(&[WHOLE])).await, "admitted");
        expect![[r#"403 pods "p" is forbidden: pod update requires features InPlacePodVerticalScalingInitContainers which are not available on node "m""#]]
            .assert_eq(&updated(pod("2", "2", "1"), Some(&[WHOLE])).await);
        expect![[r#"403 pods "p" is forbidden: pod update requires features InPlacePodLevelResourcesVerticalScaling, InPlacePodVerticalScalingInitContainers which are not available on node "m""#]]
            .assert_eq(&updated(pod("2", "2", "1"), Some(&[])).await);
        expect![[r#"403 pods "p" is forbidden: node "m" not found"#]]
            .assert_eq(&updated(pod("2", "1", "1"), None).await);
    }
}
