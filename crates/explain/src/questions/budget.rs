//! A disruption budget that allows no eviction: its arithmetic, and the pods that are not healthy.

use crate::{
    case::{Case, condition_is, tell},
    report::{Cause, Sort, some},
};
use kaji_meta::{
    labels::Selector,
    object::{self, at, i64_at},
};
use serde_json::Value;

const NAMED: usize = 5;

/// Why the budget allows no eviction.
pub async fn causes(case: &Case<'_>) -> Vec<Cause> {
    let budget = case.object;
    let number = |name: &str| i64_at(budget, &["status", name]).unwrap_or_default();
    if number("disruptionsAllowed") > 0 {
        return vec![];
    }
    let mut cause = Cause::new(Sort::Disruption, "it allows no eviction");
    if let Some(condition) = condition_is(budget, "DisruptionAllowed", "False") {
        cause = cause.known(tell(condition));
    }
    if number("observedGeneration") < object::generation(budget) {
        return vec![cause.known("the disruption controller has not seen its latest version")];
    }
    let rule = ["minAvailable", "maxUnavailable"]
        .into_iter()
        .find_map(|name| Some(format!("{name} {}", kaji_meta::text::plain(at(budget, &["spec", name])?))))
        .unwrap_or_default();
    let (healthy, desired, expected) =
        (number("currentHealthy"), number("desiredHealthy"), number("expectedPods"));
    cause = cause.known(format!(
        "{rule} of {expected} pods: {desired} must be healthy, {healthy} are; {healthy} - {desired} = {} may be evicted",
        (healthy - desired).max(0)
    ));
    if expected == 0 {
        return vec![
            cause
                .known("its selector matches no pod of a controller")
                .fix("correct its selector, or delete it"),
        ];
    }
    let unhealthy = unhealthy(case).await;
    if unhealthy.is_empty() {
        cause = match healthy >= expected {
            true => cause
                .inferred("all its pods are healthy: the rule leaves none to spare")
                .fix("more replicas, or a rule that leaves one to spare (maxUnavailable: 1)"),
            false => cause,
        };
        return vec![cause];
    }
    let first = unhealthy[0].clone();
    vec![
        cause
            .known(format!("not healthy: {}", some(&unhealthy, NAMED)))
            .fix(format!("kaji why pod/{first} -n {}", case.namespace()))
            .fix("spec.unhealthyPodEvictionPolicy: AlwaysAllow lets pods go that are not healthy"),
    ]
}

async fn unhealthy(case: &Case<'_>) -> Vec<String> {
    let Some(selector) = at(case.object, &["spec", "selector"]) else { return vec![] };
    let Ok(selector) = Selector::from_label_selector(selector) else { return vec![] };
    let pods = case.all_beside("v1", "pods").await.unwrap_or_default();
    let unhealthy =
        |pod: &&Value| selector.matches_object(pod) && condition_is(pod, "Ready", "True").is_none();
    pods.iter().filter(unhealthy).map(|pod| object::name(pod).to_owned()).collect()
}
