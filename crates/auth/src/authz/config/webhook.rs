//! The configuration of a webhook authorizer.

use crate::authz::webhook::Conditions;
use kaji_meta::{
    duration,
    field::{Error, ErrorList, Path},
};
use serde_json::Value;
use std::{path::PathBuf, time::Duration};

/// What is answered in place of a service that did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// The next authorizer decides.
    NoOpinion,
    /// No.
    Deny,
}

/// A webhook authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookConfig {
    /// Its name, in metrics too.
    pub name: String,
    /// How long one try may take.
    pub timeout: Duration,
    /// How long a yes is kept; zero for not at all.
    pub authorized_ttl: Duration,
    /// How long a no is kept, likewise.
    pub unauthorized_ttl: Duration,
    /// The version of the reviews it is sent: `v1` or `v1beta1`.
    pub version: &'static str,
    /// What is answered in its place.
    pub on_failure: OnFailure,
    /// The kubeconfig file that says where it is.
    pub kubeconfig: PathBuf,
    /// When it is called; always without any.
    pub conditions: Conditions,
}

/// A field, and what it has to be.
type Field = (&'static str, fn(&Value) -> bool);

const FIELDS: &[Field] = &[
    ("authorizedTTL", is_duration),
    ("cacheAuthorizedRequests", Value::is_boolean),
    ("unauthorizedTTL", is_duration),
    ("cacheUnauthorizedRequests", Value::is_boolean),
    ("timeout", is_duration),
    ("subjectAccessReviewVersion", Value::is_string),
    ("matchConditionSubjectAccessReviewVersion", Value::is_string),
    ("failurePolicy", Value::is_string),
    ("connectionInfo", Value::is_object),
    ("matchConditions", Value::is_array),
];

/// Longest time that a request may be held up.
const LONGEST: i64 = 30 * SECOND;
const SECOND: i64 = 1_000_000_000;

fn is_duration(value: &Value) -> bool {
    value.as_str().is_some_and(|text| duration::parse(text).is_ok())
}

fn fields(value: &Value, known: &[Field], at: &str) -> Result<(), String> {
    for (key, value) in value.as_object().into_iter().flatten() {
        match known.iter().find(|(name, _)| name == key) {
            None => return Err(format!("strict decoding error: unknown field \"{at}.{key}\"")),
            Some((_, good)) if !value.is_null() && !good(value) => {
                return Err(format!("strict decoding error: {at}.{key}: {value} cannot be used here"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether it has the form.
pub(super) fn decode(webhook: &Value, at: &str) -> Result<(), String> {
    if !webhook.is_object() {
        return Err(format!("strict decoding error: {at}: expected an object"));
    }
    fields(webhook, FIELDS, at)?;
    let known: &[Field] = &[("type", Value::is_string), ("kubeConfigFile", Value::is_string)];
    if let Some(connection) = webhook.get("connectionInfo") {
        fields(connection, known, &format!("{at}.connectionInfo"))?;
    }
    for (i, condition) in conditions(webhook).iter().enumerate() {
        let at = format!("{at}.matchConditions[{i}]");
        if !condition.is_object() {
            return Err(format!("strict decoding error: {at}: expected an object"));
        }
        fields(condition, &[("expression", Value::is_string)], &at)?;
    }
    Ok(())
}

fn conditions(webhook: &Value) -> &[Value] {
    webhook.get("matchConditions").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// How long answers are kept: zero stands for the default.
fn ttl(
    webhook: &Value,
    (field, cached): (&str, &str),
    default: i64,
    path: &Path,
    errors: &mut ErrorList,
) -> Duration {
    let text = webhook.get(field).and_then(Value::as_str).unwrap_or("0");
    let given = Some(duration::parse(text).unwrap_or_default()).filter(|t| *t != 0);
    if given.is_some_and(|t| t < 0) {
        errors.push(Error::invalid(&path.child(field), text, "must be > 0s"));
    }
    match webhook.get(cached).and_then(Value::as_bool) {
        Some(false) => Duration::ZERO,
        _ => nanos(given.unwrap_or(default)),
    }
}

/// Nanoseconds as a duration; a negative one is none.
fn nanos(n: i64) -> Duration {
    Duration::from_nanos(u64::try_from(n).unwrap_or_default())
}

/// Reads what is said about a service; `None` with errors. Upstream reports all of its fields as the authorizer's.
pub(super) fn read(
    name: &str,
    webhook: &Value,
    path: &Path,
    errors: &mut ErrorList,
) -> Option<WebhookConfig> {
    let before = errors.len();
    let text = |field: &str| webhook.get(field).and_then(Value::as_str).unwrap_or_default();
    let given = text("timeout");
    let timeout = duration::parse(given).unwrap_or_default();
    if timeout == 0 {
        errors.push(Error::required(&path.child("timeout"), ""));
    } else if !(0..=LONGEST).contains(&timeout) {
        errors.push(Error::invalid(&path.child("timeout"), given, "must be > 0s and <= 30s"));
    }
    let authorized = ttl(webhook, ("authorizedTTL", "cacheAuthorizedRequests"), 300 * SECOND, path, errors);
    let unauthorized =
        ttl(webhook, ("unauthorizedTTL", "cacheUnauthorizedRequests"), 30 * SECOND, path, errors);
    let version = one_of(
        text("subjectAccessReviewVersion"),
        &["v1", "v1beta1"],
        "subjectAccessReviewVersion",
        path,
        errors,
    );
    let conditions = conditions(webhook);
    let at = path.child("matchConditionSubjectAccessReviewVersion");
    match text("matchConditionSubjectAccessReviewVersion") {
        "" if !conditions.is_empty() => {
            errors.push(Error::required(&at, "required if match conditions are specified"));
        }
        "" | "v1" => {}
        other => errors.push(Error::not_supported(&at, other, &["v1"])),
    }
    let policy = one_of(text("failurePolicy"), &["NoOpinion", "Deny"], "failurePolicy", path, errors);
    let kubeconfig = connection(webhook.get("connectionInfo").unwrap_or(&Value::Null), path, errors);
    let texts: Vec<&str> =
        conditions.iter().map(|c| c.get("expression").and_then(Value::as_str).unwrap_or_default()).collect();
    let conditions = Conditions::compile(&texts, &path.child("matchConditions"), errors);
    (errors.len() == before).then(|| WebhookConfig {
        name: name.to_owned(),
        timeout: nanos(timeout),
        authorized_ttl: authorized,
        unauthorized_ttl: unauthorized,
        version: version.unwrap_or("v1"),
        on_failure: if policy == Some("Deny") { OnFailure::Deny } else { OnFailure::NoOpinion },
        kubeconfig,
        conditions,
    })
}

fn one_of(
    given: &str,
    known: &[&'static str],
    field: &str,
    path: &Path,
    errors: &mut ErrorList,
) -> Option<&'static str> {
    let found = known.iter().find(|k| **k == given).copied();
    match (found, given) {
        (Some(_), _) => {}
        (None, "") => errors.push(Error::required(&path.child(field), "")),
        (None, other) => errors.push(Error::not_supported(&path.child(field), other, known)),
    }
    found
}

fn connection(info: &Value, path: &Path, errors: &mut ErrorList) -> PathBuf {
    let text = |field: &str| info.get(field).and_then(Value::as_str).unwrap_or_default();
    let (at, kind, file) = (path.child("connectionInfo"), text("type"), text("kubeConfigFile"));
    let at_file = at.child("kubeConfigFile");
    let mut bad = |why: &str| errors.push(Error::invalid(&at_file, file, why));
    match kind {
        "" => errors.push(Error::required(&at.child("type"), "")),
        "InClusterConfig" => {
            if info.get("kubeConfigFile").is_some_and(|f| !f.is_null()) {
                bad("can only be set when type=KubeConfigFile");
            }
            // Upstream's server lets the file pass and does not start.
            let why = "the API server itself runs in no pod; use KubeConfigFile";
            errors.push(Error::invalid(&at.child("type"), kind, why));
        }
        "KubeConfigFile" if file.is_empty() => errors.push(Error::required(&at_file, "")),
        "KubeConfigFile" if !std::path::Path::new(file).is_absolute() => bad("must be an absolute path"),
        "KubeConfigFile" => match std::fs::metadata(file) {
            Err(error) => bad(&format!("error loading file: {error}")),
            Ok(found) if !found.is_file() => bad("must be a regular file"),
            Ok(_) => {}
        },
        other => {
            errors.push(Error::not_supported(
                &at.child("type"),
                other,
                &["InClusterConfig", "KubeConfigFile"],
            ));
        }
    }
    file.into()
}
