//! `AdmissionReview`: the request as it is sent, and the response after it was checked.
//!
//! Sources: admission.k8s.io/v1 and v1beta1; upstream's `plugin/webhook/request`.

use super::source::ReviewVersion;
use crate::matching::Matched;
use base64::{Engine, prelude::BASE64_STANDARD};
use kaji_engine::{Attributes, decode::json};
use kaji_meta::{
    GroupVersion, GroupVersionKind, GroupVersionResource, Reason, Status, object, status::Details,
    text::quote,
};
use kaji_resource::UserInfo;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    kind: &'static str,
    api_version: String,
    request: Request<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    uid: &'a str,
    kind: Kind<'a>,
    resource: Resource<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    sub_resource: &'a str,
    request_kind: Kind<'a>,
    request_resource: Resource<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_sub_resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    operation: &'static str,
    user_info: User<'a>,
    object: Option<&'a Value>,
    old_object: Option<&'a Value>,
    dry_run: bool,
    options: Value,
}

#[derive(Serialize)]
struct Kind<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
}

#[derive(Serialize)]
struct Resource<'a> {
    group: &'a str,
    version: &'a str,
    resource: &'a str,
}

#[derive(Serialize)]
struct User<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    groups: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: &'a BTreeMap<String, Vec<String>>,
}

impl<'a> From<&'a GroupVersionKind> for Kind<'a> {
    fn from(k: &'a GroupVersionKind) -> Self {
        Kind { group: &k.group, version: &k.version, kind: &k.kind }
    }
}

impl<'a> From<&'a GroupVersionResource> for Resource<'a> {
    fn from(r: &'a GroupVersionResource) -> Self {
        Resource { group: &r.group, version: &r.version, resource: &r.resource }
    }
}

impl<'a> From<&'a UserInfo> for User<'a> {
    fn from(user: &'a UserInfo) -> Self {
        User { username: &user.name, uid: &user.uid, groups: &user.groups, extra: &user.extra }
    }
}

/// The question about a request, as what it was taken for.
pub(crate) fn question(
    version: ReviewVersion,
    uid: &str,
    a: &Attributes<'_>,
    matched: &Matched,
    (new, old): (Option<&Value>, Option<&Value>),
) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&Review {
        kind: "AdmissionReview",
        api_version: api_version(version),
        request: Request {
            uid,
            kind: (&matched.kind).into(),
            resource: (&matched.resource).into(),
            sub_resource: a.subresource,
            request_kind: a.kind.into(),
            request_resource: a.resource.into(),
            request_sub_resource: a.subresource,
            name: a.name,
            namespace: a.namespace,
            operation: a.operation.as_str(),
            user_info: a.user.into(),
            object: new,
            old_object: old,
            dry_run: a.dry_run,
            options: a.options.to_value(),
        },
    })
}

fn api_version(version: ReviewVersion) -> String {
    format!("admission.k8s.io/{}", version.as_str())
}

/// An answer.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub allowed: bool,
    /// JSON, not yet read; never empty.
    pub patch: Option<Vec<u8>>,
    pub patch_type: String,
    /// Why not; a `Status`, more or less.
    pub result: Option<Value>,
    pub annotations: Vec<(String, String)>,
    pub warnings: Vec<String>,
}

/// What is wrong with an answer.
#[derive(Debug, PartialEq)]
pub(crate) enum Wrong {
    /// It is no review at all.
    Unreadable(String),
    /// It is a failure of the server there.
    Failure(Box<Status>),
    /// It is a review that says what it must not.
    Invalid(String),
}

/// Reads an answer.
pub(crate) fn answer(
    version: ReviewVersion,
    uid: &str,
    mutating: bool,
    body: &[u8],
) -> Result<Answer, Wrong> {
    if body.is_empty() {
        return Err(Wrong::Unreadable("0-length response with status code: 200 and content type: ".into()));
    }
    let unreadable =
        |e: String| Wrong::Unreadable(format!("couldn't get version/kind; json parse error: {e}"));
    let mut review = json(body).map_err(unreadable)?;
    if review.is_null() {
        // To Go, that is a value with nothing in it.
        review = Value::Object(serde_json::Map::new());
    }
    if !review.is_object() {
        let found = object::json_type(&review);
        let text = format!(
            "json: cannot unmarshal {found} into Go value of type struct {{ APIVersion string; Kind string }}"
        );
        return Err(unreadable(text));
    }
    let own = of_kind(version, &review)?;
    // Another version's answer was decoded as such, and this one's stayed empty.
    let response = review.get("response").filter(|r| own && !r.is_null());
    let response = response.ok_or_else(|| Wrong::Invalid("webhook response was absent".into()))?;
    let fields = Fields(response).check().map_err(Wrong::Unreadable)?;
    let strict = version == ReviewVersion::V1;
    if strict {
        verify(uid, &review, &fields)?;
    }
    let patch = fields.patch().map_err(Wrong::Unreadable)?;
    let patch_type = fields.text("patchType").map(str::to_owned);
    let mut answer = Answer {
        allowed: response["allowed"] == true,
        patch: None,
        patch_type: String::new(),
        result: response.get("status").filter(|s| !s.is_null()).cloned(),
        annotations: fields.annotations(),
        warnings: fields.warnings(),
    };
    if strict {
        pair(mutating, patch.is_some(), patch_type.as_deref()).map_err(|e| Wrong::Invalid(e.into()))?;
    }
    if mutating {
        // The older version has one type only, whatever it says.
        answer.patch_type = if strict { patch_type.unwrap_or_default() } else { "JSONPatch".into() };
        answer.patch = patch;
    }
    Ok(answer)
}

/// Whether an answer is a review of the requested version, rather than of another.
fn of_kind(version: ReviewVersion, review: &Value) -> Result<bool, Wrong> {
    let text = |key: &str| review[key].as_str().unwrap_or("");
    let (own, kind) = (text("apiVersion"), text("kind"));
    match (own, kind) {
        // A field that is missing counts as the requested one.
        (v, "AdmissionReview" | "") if v == api_version(version) || v.is_empty() => Ok(true),
        ("admission.k8s.io/v1" | "admission.k8s.io/v1beta1", "AdmissionReview") => Ok(false),
        ("v1", "Status") => match Status::from_value(review) {
            Some(status) => Err(Wrong::Failure(Box::new(status))),
            None => Ok(false),
        },
        _ => Err(Wrong::Unreadable(format!(
            "no kind {} is registered for version {} in scheme \"k8s.io/apiserver/pkg/util/webhook\"",
            quote(kind),
            quote(own)
        ))),
    }
}

fn verify(uid: &str, review: &Value, fields: &Fields<'_>) -> Result<(), Wrong> {
    let found = fields.text("uid").unwrap_or("");
    if found != uid {
        return Err(Wrong::Invalid(format!("expected response.uid={}, got {}", quote(uid), quote(found))));
    }
    let text = |key: &str| review[key].as_str().unwrap_or("");
    let gv = GroupVersion::parse(text("apiVersion")).unwrap_or_else(|_| GroupVersion::new("", ""));
    let found = GroupVersionKind::new(gv.group.as_str(), gv.version.as_str(), text("kind"));
    let wanted = GroupVersionKind::new("admission.k8s.io", "v1", "AdmissionReview");
    if found != wanted {
        return Err(Wrong::Invalid(format!("expected webhook response of {wanted}, got {found}")));
    }
    Ok(())
}

/// A patch needs a type, and is accepted from mutating webhooks alone.
fn pair(mutating: bool, patch: bool, patch_type: Option<&str>) -> Result<(), &'static str> {
    match (mutating, patch, patch_type) {
        (false, true, _) => Err("validating webhook may not return response.patch"),
        (false, _, Some(_)) => Err("validating webhook may not return response.patchType"),
        (true, true, None) => Err("webhook returned response.patch but not response.patchType"),
        (true, false, Some(_)) => Err("webhook returned response.patchType but not response.patch"),
        (true, true, Some("")) => Err("webhook returned invalid response.patchType of \"\""),
        _ => Ok(()),
    }
}

/// The fields of a response.
struct Fields<'a>(&'a Value);

impl<'a> Fields<'a> {
    /// Looks at the fields' types, as Go's decoder would.
    fn check(self) -> Result<Self, String> {
        let misfit = |found: &str, field: &str, ty: &str| {
            format!(
                "json: cannot unmarshal {found} into Go struct field AdmissionReview.{field} of type {ty}"
            )
        };
        let wrong = |value: &Value, field: &str, ty: &str| misfit(object::json_type(value), field, ty);
        let Value::Object(map) = self.0 else {
            return Err(wrong(self.0, "response", "v1.AdmissionResponse"));
        };
        for (key, value) in map.iter().filter(|(_, v)| !v.is_null()) {
            let (fits, ty) = match key.as_str() {
                "allowed" => (value.is_boolean(), "bool"),
                "uid" => (value.is_string(), "types.UID"),
                // Encoded, or as kube-rs writes bytes: one number a byte.
                "patch" => match value.as_array().and_then(|l| l.iter().find(|v| octet(v).is_none())) {
                    Some(Value::Number(n)) => {
                        return Err(misfit(&format!("number {n}"), "response.patch", "uint8"));
                    }
                    Some(other) => return Err(wrong(other, "response.patch", "uint8")),
                    None => (value.is_string() || value.is_array(), "[]uint8"),
                },
                "patchType" => (value.is_string(), "v1.PatchType"),
                "status" => (value.is_object(), "v1.Status"),
                "auditAnnotations" => {
                    (value.as_object().is_some_and(|m| m.values().all(Value::is_string)), "string")
                }
                "warnings" => (value.as_array().is_some_and(|l| l.iter().all(Value::is_string)), "string"),
                _ => continue,
            };
            if !fits {
                return Err(wrong(value, &format!("response.{key}"), ty));
            }
        }
        Ok(self)
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        self.0.get(key)?.as_str()
    }

    fn patch(&self) -> Result<Option<Vec<u8>>, String> {
        let patch = match self.0["patch"].as_array() {
            Some(octets) => octets.iter().filter_map(octet).collect(),
            None => BASE64_STANDARD
                .decode(self.text("patch").unwrap_or(""))
                .map_err(|e| format!("illegal base64 data in response.patch: {e}"))?,
        };
        Ok(Some(patch).filter(|p| !p.is_empty()))
    }

    fn annotations(&self) -> Vec<(String, String)> {
        let all = self.0["auditAnnotations"].as_object().into_iter().flatten();
        all.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
    }

    fn warnings(&self) -> Vec<String> {
        self.0["warnings"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    }
}

/// A byte as Go's decoder takes one in a list; null is zero to it.
fn octet(value: &Value) -> Option<u8> {
    if value.is_null() { Some(0) } else { u8::try_from(value.as_u64()?).ok() }
}

/// The refusal of a request by a webhook. Source: upstream's `ToStatusErr`.
pub(crate) fn refusal(webhook: &str, result: Option<&Value>) -> Status {
    let text = |key: &str| result.and_then(|r| r[key].as_str()).unwrap_or("");
    let code = result.and_then(|r| r["code"].as_u64()).and_then(|code| u16::try_from(code).ok());
    let denied = format!("admission webhook {} denied the request", quote(webhook));
    let message = match (text("message"), text("reason")) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (message, _) => format!("{denied}: {message}"),
    };
    let details = result.map(|r| &r["details"]).filter(|d| d.is_object());
    Status {
        // What is no refusal is one all the same, and HTTP has no codes of four digits.
        code: code.filter(|code| (400..1000).contains(code)).unwrap_or(400),
        reason: Reason::parse(text("reason")),
        message,
        details: details.map(|d| Box::new(Details::from_value(d))),
    }
}
