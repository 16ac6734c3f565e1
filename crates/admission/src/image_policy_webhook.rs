//! `ImagePolicyWebhook`: a service decides about the images of pods, by ImageReview. Source: kubernetes
//! `plugin/pkg/admission/imagepolicy`; imagepolicy.k8s.io/v1alpha1.
//!
//! Invariants: only what the service has decided is kept, for as long as the configuration says; what is kept is bounded in
//! number, and answers to questions that are long are not kept. Without an answer the configuration decides.

use crate::{
    Deps,
    config::Configuration,
    lru::Lru,
    pod_spec::{LISTS, containers},
    webhooks::server::Server,
};
use bytes::Bytes;
use jiff::Timestamp;
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{Random, Status, TypeMeta, duration, object, status::Reason, validation::is_qualified_name};
use kaji_outbound::{CallError, ClientCache};
use kaji_resource::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

const VERSION: &str = "imagepolicy.k8s.io/v1alpha1";
/// Before the keys of audit annotations.
const AUDIT: &str = "imagepolicywebhook.image-policy.k8s.io/";
/// What the annotations of a pod that the service sees have in their keys.
const SHOWN: &str = ".image-policy.k8s.io/";
/// Decisions that are kept.
const MOST: usize = 1024;
/// Bytes of a question beyond which its decision is not kept.
const LONGEST: usize = 10_000;
/// Bytes of an answer.
const LARGEST: usize = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(30);
/// How often a question is asked until the service answers.
const ATTEMPTS: u32 = 5;

/// The file, which has no kind.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct File {
    kube_config_file: String,
    #[serde(rename = "allowTTL")]
    allow_ttl: i64,
    #[serde(rename = "denyTTL")]
    deny_ttl: i64,
    retry_backoff: i64,
    default_allow: bool,
}

/// How long decisions are kept, and how long is waited before a question is asked again.
#[derive(Debug, PartialEq, Eq)]
struct Periods {
    allow: Duration,
    deny: Duration,
    retry: Duration,
}

impl Periods {
    fn of(file: &File) -> Result<Periods, String> {
        const SECOND: i64 = 1000;
        let ttl = |value, default| period(value, SECOND, ("1s", SECOND, "30m0s", 1800 * SECOND), default);
        Ok(Periods {
            retry: period(file.retry_backoff, 1, ("1ns", 1, "5m0s", 300 * SECOND), 500)?,
            allow: ttl(file.allow_ttl, 300 * SECOND)?,
            deny: ttl(file.deny_ttl, 30 * SECOND)?,
        })
    }
}

/// -1 for none, 0 for the default, or a number of units within bounds. Milliseconds, bounds also as Go prints them.
fn period(
    value: i64,
    unit: i64,
    (least_text, least, most_text, most): (&str, i64, &str, i64),
    default: i64,
) -> Result<Duration, String> {
    let millis = match value {
        -1 => 0,
        0 => default,
        value => value.saturating_mul(unit),
    };
    if value > 0 && (least..=most).contains(&millis) || matches!(value, -1 | 0) {
        return Ok(Duration::from_millis(millis.unsigned_abs()));
    }
    let given = duration::format_nanoseconds(i128::from(millis) * 1_000_000);
    Err(format!("valid value is between {least_text} and {most_text}, got {given}"))
}

/// What the service said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Decision {
    allowed: bool,
    reason: String,
    audit_annotations: Option<BTreeMap<String, String>>,
}

/// The plugin.
pub(super) struct ImagePolicyWebhook {
    server: Server,
    callers: Arc<ClientCache>,
    periods: Periods,
    default_allow: bool,
    /// By question, until then.
    known: Mutex<Lru<(Timestamp, Decision)>>,
}

impl ImagePolicyWebhook {
    /// With its part of the `AdmissionConfiguration`, without which there is no service.
    ///
    /// # Errors
    /// What is wrong with that, in words.
    pub(super) fn configured(file: Option<Configuration<'_>>, deps: &Deps) -> Result<Self, String> {
        let file = file.ok_or("no config specified")?;
        let read = file.read;
        let fields = match file.without_kind().get_mut("imagePolicy").map(Value::take) {
            None | Some(Value::Null) => File::default(),
            Some(fields) => serde_json::from_value(fields).map_err(|e| format!("imagePolicy: {e}"))?,
        };
        Ok(ImagePolicyWebhook {
            periods: Periods::of(&fields)?,
            server: Server::read(&fields.kube_config_file, read)?,
            callers: deps.callers.clone(),
            default_allow: fields.default_allow,
            known: Mutex::new(Lru::new(MOST)),
        })
    }

    fn known(&self, question: &str, now: Timestamp) -> Option<Decision> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, decision) = known.take(question).filter(|(until, _)| now <= *until)?;
        known.put(question.to_owned(), (until, decision.clone()));
        Some(decision)
    }

    fn keep(&self, question: String, decision: &Decision, now: Timestamp) {
        let ttl = if decision.allowed { self.periods.allow } else { self.periods.deny };
        if ttl.is_zero() || question.len() > LONGEST {
            return;
        }
        let until = now.saturating_add(ttl).unwrap_or(Timestamp::MAX);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.put(question, (until, decision.clone()));
    }

    /// Asks the service, again where that may help.
    async fn ask(&self, spec: &Value, random: &dyn Random) -> Result<Decision, String> {
        let review = json!({"kind": "ImageReview", "apiVersion": VERSION, "metadata": {}, "spec": spec,
            "status": {"allowed": false}});
        let body = Bytes::from(review.to_string());
        let (mut left, mut delay) = (ATTEMPTS, self.periods.retry);
        loop {
            left -= 1;
            let client = self.callers.client(&self.server.config()?).map_err(|error| error.to_string())?;
            match client.post_json(body.clone(), TIMEOUT, LARGEST).await {
                Ok(answer) => return decision(&answer),
                Err(error) if left == 0 || !is_transient(&error) => return Err(error.to_string()),
                Err(_) => {}
            }
            // Up to a fifth more, so that servers do not ask in step.
            let jitter = u32::try_from(random.u64() % 200).unwrap_or_default();
            tokio::time::sleep(delay + delay * jitter / 1000).await;
            delay = delay * 3 / 2;
        }
    }

    async fn review(&self, a: &Attributes<'_>) -> Result<(), Status> {
        let spec = question(a);
        let key = spec.to_string();
        let decision = match self.known(&key, a.now) {
            Some(decision) => decision,
            None => match self.ask(&spec, a.random).await {
                Ok(decision) => {
                    self.keep(key, &decision, a.now);
                    decision
                }
                Err(_) if self.default_allow => {
                    a.annotations.add(format!("{AUDIT}failed-open"), "true");
                    return Ok(());
                }
                Err(error) => return Err(a.forbidden(error)),
            },
        };
        for (key, value) in decision.audit_annotations.iter().flatten() {
            let key = format!("{AUDIT}{key}");
            if is_qualified_name(&key).is_empty() {
                a.annotations.add(key, value);
            }
        }
        match (decision.allowed, decision.reason.as_str()) {
            (true, _) => Ok(()),
            (false, "") => Err(a.forbidden("one or more images rejected by webhook backend")),
            (false, reason) => {
                Err(a.forbidden(format!("image policy webhook backend denied one or more images: {reason}")))
            }
        }
    }
}

/// The spec of the review of a pod's write.
fn question(a: &Attributes<'_>) -> Value {
    let pod = a.new_object().unwrap_or(&Value::Null);
    let lists = if a.subresource.is_empty() { &LISTS[..2] } else { &LISTS[2..] };
    let images: Vec<Value> = lists
        .iter()
        .flat_map(|list| containers(pod, list))
        .map(|container| json!({"image": object::str_at(container, &["image"])}))
        .collect();
    let shown: BTreeMap<&str, &str> =
        object::annotations(pod).filter(|(key, _)| key.contains(SHOWN)).collect();
    let mut spec = json!({"containers": images});
    if !shown.is_empty() {
        spec["annotations"] = json!(shown);
    }
    spec["namespace"] = a.namespace.into();
    spec
}

fn decision(answer: &[u8]) -> Result<Decision, String> {
    let mut review: Value = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    TypeMeta::of(&review).expect("ImageReview", &[VERSION]).map_err(|error| error.to_string())?;
    serde_json::from_value(review["status"].take()).map_err(|error| error.to_string())
}

/// Whether the service may answer when it is asked again. Upstream's `DefaultShouldRetry`.
fn is_transient(error: &CallError) -> bool {
    match error {
        CallError::Answer(status) => {
            matches!(status.reason, Reason::InternalError | Reason::Timeout | Reason::TooManyRequests)
                || status.suggests_retry().is_some()
        }
        CallError::Transport(text) => {
            text.contains("connection reset by peer") || text.contains("http2: client connection lost")
        }
        _ => false,
    }
}

impl Admission for ImagePolicyWebhook {
    fn name(&self) -> &'static str {
        "ImagePolicyWebhook"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::VALIDATING.when(
            matches!(operation, Operation::Create | Operation::Update) && (group, resource) == ("", "pods"),
        )
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        matches!(a.subresource, "" | "ephemeralcontainers")
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(self.review(a))
    }
}

#[cfg(test)]
mod tests;
