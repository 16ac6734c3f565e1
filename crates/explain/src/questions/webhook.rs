//! Admission webhooks that do not answer, and webhooks that refuse the pods of their own backend.

use crate::{
    case::{Case, has_ready_endpoint},
    paths::path,
    reader::Found,
    report::{Cause, Sort, some},
};
use kaji_meta::{
    labels::Selector,
    object::{self, arr_at, at, str_at, str_map_at, strs_at},
};
use serde_json::Value;

const NAMED: usize = 5;

/// Webhooks of the configuration that have no backend, or that could not be called last.
pub async fn causes(case: &Case<'_>) -> Vec<Cause> {
    let mut causes = vec![];
    for webhook in arr_at(case.object, &["webhooks"]) {
        let found = match at(webhook, &["clientConfig", "service"]) {
            Some(service) => of_backend(case, webhook, service).await,
            None => None,
        };
        let name = str_at(webhook, &["name"]);
        let failed = super::decisions::of_webhook(case, name).await;
        let failed = failed.map(|failed| format!("its last call failed {failed}"));
        causes.extend(match (found, failed) {
            (Some(cause), Some(failed)) => Some(cause.known(failed)),
            (None, Some(failed)) => {
                let summary = format!("webhook {name} cannot be called");
                Some(fails(webhook, Cause::new(Sort::Webhook, summary).known(failed)))
            }
            (found, None) => found,
        });
    }
    causes
}

/// The webhook that a message of the API server names: `failed calling webhook "NAME": …`.
pub async fn named_in(case: &Case<'_>, message: &str) -> Vec<Cause> {
    let Some(name) =
        message.split_once("failed calling webhook \"").and_then(|(_, rest)| rest.split('"').next())
    else {
        return vec![];
    };
    let mut causes = vec![];
    for plural in ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"] {
        for configuration in case
            .reader
            .list(&path("admissionregistration.k8s.io/v1", "", plural, ""))
            .await
            .unwrap_or_default()
            .iter()
        {
            let named = arr_at(configuration, &["webhooks"])
                .iter()
                .filter(|webhook| str_at(webhook, &["name"]) == name);
            for webhook in named {
                let Some(service) = at(webhook, &["clientConfig", "service"]) else { continue };
                causes.extend(of_backend(case, webhook, service).await);
            }
        }
    }
    causes
}

async fn of_backend(case: &Case<'_>, webhook: &Value, service: &Value) -> Option<Cause> {
    let (namespace, name) = (str_at(service, &["namespace"]), str_at(service, &["name"]));
    let cause = Cause::new(Sort::Webhook, format!("webhook {} has no backend", str_at(webhook, &["name"])));
    let cause = cause.known(format!("its backend is Service {namespace}/{name}"));
    let object = match case.reader.get(&path("v1", namespace, "services", name)).await {
        Found::Unreadable => return None,
        Found::Absent => {
            return Some(fails(webhook, cause.known("the Service does not exist")).fix(format!(
                "install its server again, or delete the configuration that names {}",
                str_at(webhook, &["name"])
            )));
        }
        Found::Object(object) => object,
    };
    if has_ready_endpoint(&case.endpoint_slices(namespace, name).await?) {
        return None;
    }
    let cause = fails(webhook, cause.known("the Service has no ready endpoints"));
    if let Some(proof) = locks_out_its_backend(case, webhook, namespace, &object).await {
        let labels: Vec<String> =
            str_map_at(&object, &["spec", "selector"]).map(|(k, v)| format!("{k}={v}")).collect();
        return Some(
            cause
                .known(proof)
                .inferred("it refuses the pods that would answer for it: a dead-lock")
                .fix(format!("let its namespaceSelector leave {namespace} out (kubernetes.io/metadata.name NotIn [{namespace}])"))
                .fix(format!("until then delete the webhook configuration, let the pods of {} start, and apply it again", labels.join(","))),
        );
    }
    Some(cause.fix(format!("kaji why service/{name} -n {namespace}")))
}

fn fails(webhook: &Value, cause: Cause) -> Cause {
    match str_at(webhook, &["failurePolicy"]) {
        "Ignore" => cause.known("failurePolicy is Ignore: requests pass without it"),
        _ => cause.known(format!("failurePolicy is Fail: it refuses {}", rules(webhook))),
    }
}

/// `CREATE of pods, UPDATE of pods`
fn rules(webhook: &Value) -> String {
    let rules = arr_at(webhook, &["rules"]).iter().map(|rule| {
        let operations: Vec<&str> = strs_at(rule, &["operations"]).collect();
        let resources: Vec<&str> = strs_at(rule, &["resources"]).collect();
        format!("{} of {}", operations.join("/"), resources.join(", "))
    });
    some(&rules.collect::<Vec<_>>(), NAMED)
}

/// What shows that the webhook is asked about pods of its own backend.
async fn locks_out_its_backend(
    case: &Case<'_>,
    webhook: &Value,
    namespace: &str,
    service: &Value,
) -> Option<String> {
    if str_at(webhook, &["failurePolicy"]) == "Ignore" {
        return None;
    }
    let asks = |rule: &&Value| {
        let has =
            |path: &[&str], wanted: &[&str]| strs_at(rule, path).any(|is| is == "*" || wanted.contains(&is));
        has(&["operations"], &["CREATE"])
            && has(&["apiGroups"], &["", "apps"])
            && has(&["resources"], &["pods", "replicasets", "*/*", "deployments"])
    };
    let rule = arr_at(webhook, &["rules"]).iter().find(asks)?;
    let found = case.reader.get(&path("v1", "", "namespaces", namespace)).await;
    let selects = |selector: &str, object: &Value| match at(webhook, &[selector]) {
        Some(given) => {
            Selector::from_label_selector(given).is_ok_and(|selector| selector.matches_object(object))
        }
        None => true,
    };
    if !selects("namespaceSelector", found.object()?) {
        return None;
    }
    let labels = serde_json::json!({"metadata": {"labels": at(service, &["spec", "selector"])}});
    if !selects("objectSelector", &labels) {
        return None;
    }
    let resources: Vec<&str> = strs_at(rule, &["resources"]).collect();
    let but = if arr_at(webhook, &["matchConditions"]).is_empty() {
        ""
    } else {
        ", but for what its matchConditions leave out"
    };
    Some(format!(
        "it is asked about the creation of {} in the namespace {namespace}, where {} runs{but}",
        resources.join(", "),
        object::name(service)
    ))
}
