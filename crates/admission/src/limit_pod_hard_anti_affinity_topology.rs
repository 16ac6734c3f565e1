//! `LimitPodHardAntiAffinityTopology`: required anti-affinity keeps pods apart by nodes only, never by zones or more.
//! Source: kubernetes `plugin/pkg/admission/antiaffinity`.

use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{Status, object};
use kaji_resource::BoxFuture;
use serde_json::Value;

const HOSTNAME: &str = "kubernetes.io/hostname";
const TERMS: [&str; 4] =
    ["spec", "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];

/// The plugin.
pub(super) struct LimitPodHardAntiAffinityTopology;

impl Admission for LimitPodHardAntiAffinityTopology {
    fn name(&self) -> &'static str {
        "LimitPodHardAntiAffinityTopology"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::VALIDATING.when(
            matches!(operation, Operation::Create | Operation::Update) && (group, resource) == ("", "pods"),
        )
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource.is_empty()
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let pod = a.new_object().unwrap_or(&Value::Null);
        let mut keys = object::arr_at(pod, &TERMS).iter().map(|term| object::str_at(term, &["topologyKey"]));
        let result = match keys.find(|key| *key != HOSTNAME) {
            None => Ok(()),
            Some(key) => Err(Status::forbidden(
                &a.group_resource(),
                object::name(pod),
                format!(
                    "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {key} but only key {HOSTNAME} is allowed"
                ),
            )),
        };
        Box::pin(std::future::ready(result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::Request;
    use expect_test::expect;
    use kaji_resource::Scope;
    use serde_json::json;

    async fn written(anti_affinity: Value) -> String {
        let mut request = Request::of("", "v1", "Pod", "pods", Scope::Namespaced);
        request.object = Some(
            json!({"metadata": {"name": "p"}, "spec": {"affinity": {"podAntiAffinity": anti_affinity}}}),
        );
        let result = request.with(async |a| LimitPodHardAntiAffinityTopology.validate(a).await).await;
        result.map_or_else(|status| format!("{} {status}", status.code), |()| "admitted".to_owned())
    }

    #[tokio::test]
    async fn required_anti_affinity_is_by_nodes() {
        const REQUIRED: &str = TERMS[3];
        let by = |keys: &[&str]| {
            let terms: Vec<Value> = keys.iter().map(|key| json!({"topologyKey": key})).collect();
            json!({REQUIRED: terms})
        };
        assert_eq!(written(Value::Null).await, "admitted");
        assert_eq!(written(by(&[HOSTNAME, HOSTNAME])).await, "admitted");
        let preferred = json!({"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}]});
        assert_eq!(written(preferred).await, "admitted");
        expect![[r#"403 pods "p" is forbidden: affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey zone but only key kubernetes.io/hostname is allowed"#]]
            .assert_eq(&written(by(&[HOSTNAME, "zone"])).await);
    }
}
