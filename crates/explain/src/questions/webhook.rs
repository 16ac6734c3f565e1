//! Admission webhooks that do not answer, webhooks that refuse the pods of their own backend, and writes that wait for a webhook until its
//! time is over.

use crate::{
    case::{Case, has_ready_endpoint},
    paths::path,
    reader::{Found, Reader},
    report::{Cause, Sort, some},
};
use kaji_meta::{
    labels::Selector,
    object::{self, arr_at, at, str_at, str_map_at, strs_at},
};
use serde_json::Value;

const NAMED: usize = 5;
const CONFIGURATIONS: [&str; 2] = ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"];
/// The default of timeoutSeconds.
const TIMEOUT: i64 = 10;

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

/// A webhook that could not be called, as a refusal says it.
pub struct Called<'a> {
    /// `guard.acme.example.com`
    name: &'a str,
    /// The rest of the message.
    why: &'a str,
}

/// A webhook in its configuration.
pub struct Configured {
    /// `validatingwebhookconfiguration/guard`
    configuration: String,
    webhook: Value,
}

impl<'a> Called<'a> {
    /// Of the API server's message `failed calling webhook "NAME": …`.
    pub fn of(message: &'a str) -> Option<Called<'a>> {
        let (_, rest) = message.split_once("failed calling webhook \"")?;
        let (name, why) = rest.split_once('"')?;
        Some(Called { name, why })
    }

    fn hangs(&self) -> bool {
        ["deadline exceeded", "timed out", "imeout"].iter().any(|text| self.why.contains(text))
    }

    /// Of the write that called it.
    pub fn summary(&self) -> String {
        match self.hangs() {
            true => format!("a write of it hung until webhook {} had timed out", self.name),
            false => format!("webhook {} could not be called, so a write of it was refused", self.name),
        }
    }

    /// Where it is configured, if the caller may read that.
    pub async fn find(&self, reader: &Reader<'_>) -> Option<Configured> {
        for plural in CONFIGURATIONS {
            let list = reader.list(&path("admissionregistration.k8s.io/v1", "", plural, "")).await;
            for configuration in list.unwrap_or_default().iter() {
                let mut webhooks = arr_at(configuration, &["webhooks"]).iter();
                if let Some(webhook) = webhooks.find(|webhook| str_at(webhook, &["name"]) == self.name) {
                    let kind = plural.trim_end_matches('s');
                    let configuration = format!("{kind}/{}", object::name(configuration));
                    return Some(Configured { configuration, webhook: webhook.clone() });
                }
            }
        }
        None
    }
}

impl Configured {
    /// Where the webhook is, how long it is waited for, and what that means.
    pub fn described(&self, cause: Cause) -> Cause {
        let backend = match at(&self.webhook, &["clientConfig", "service"]) {
            Some(service) => {
                format!("Service {}/{}", str_at(service, &["namespace"]), str_at(service, &["name"]))
            }
            None => str_at(&self.webhook, &["clientConfig", "url"]).to_owned(),
        };
        let seconds = object::i64_at(&self.webhook, &["timeoutSeconds"]).unwrap_or(TIMEOUT);
        let cause = cause.known(format!(
            "{} names it: {backend}, which each request waits for up to {seconds} s",
            self.configuration
        ));
        fails(&self.webhook, cause).fix(format!("kaji why {}", self.configuration))
    }
}

/// Writes of the object that wait for webhooks which lately did not answer in time, whether they are refused then or not.
pub async fn hanging(case: &Case<'_>) -> Vec<Cause> {
    if !case.is_first() {
        return vec![];
    }
    let refused = super::refusals::messages(case).await;
    let mut causes = vec![];
    for failed in super::decisions::of_webhooks(case).await {
        let message = str_at(&failed, &["message"]);
        let Some(called) = Called::of(message).filter(Called::hangs) else { continue };
        if refused.iter().any(|refused| Called::of(refused).is_some_and(|other| other.name == called.name)) {
            continue;
        }
        let Some(found) = called.find(case.reader).await else { continue };
        if !arr_at(&found.webhook, &["rules"]).iter().any(|rule| asks_about_updates(rule, case)) {
            continue;
        }
        let summary = format!("writes of it wait for webhook {}, which does not answer", called.name);
        let cause = Cause::new(Sort::Webhook, summary)
            .known(format!("its last call failed {}", super::decisions::last(&failed)));
        causes.push(found.described(cause));
    }
    causes
}

/// Whether a rule is about changes of the object. Selectors are not looked at: they say less, and never more.
fn asks_about_updates(rule: &Value, case: &Case<'_>) -> bool {
    let has = |path: &str, wanted: &str| strs_at(rule, &[path]).any(|is| is == "*" || is == wanted);
    let resources = strs_at(rule, &["resources"]).any(|is| is == "*/*");
    has("operations", "UPDATE")
        && has("apiGroups", &case.resource.group)
        && (resources || has("resources", &case.resource.plural))
}

/// The webhook that a message of the API server names: `failed calling webhook "NAME": …`.
pub async fn named_in(case: &Case<'_>, message: &str) -> Vec<Cause> {
    let Some(Called { name, .. }) = Called::of(message) else { return vec![] };
    let mut causes = vec![];
    for plural in CONFIGURATIONS {
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
