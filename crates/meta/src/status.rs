//! The `Status` object: the one error type that crosses the API.
//!
//! A value of [`Status`] is always a failure; answers that report success are built with
//! [`Status::success_deleted`] and friends and are plain JSON. Codes, reasons, texts and details are those of
//! apimachinery's `api/errors`. Empty fields are left out of the JSON, as everywhere in the API.

mod reason;
#[cfg(test)]
mod tests;

use crate::field;
use crate::gvk::{GroupKind, GroupResource};
pub use reason::Reason;
use serde_json::{Map, Value, json};
use std::fmt::Display;

/// Cause reason of a read at a resource version that is not there yet.
pub const CAUSE_RESOURCE_VERSION_TOO_LARGE: &str = "ResourceVersionTooLarge";

/// A failed request, as the client sees it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason.
    pub reason: Reason,
    /// Human-readable text; clients match on it all the same.
    pub message: String,
    /// More about the reason.
    pub details: Option<Box<Details>>,
}

/// What a [`Status`] is about. Empty strings and zero mean "not given".
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details {
    /// Name of the object (or, for server timeouts, of the operation).
    pub name: String,
    /// API group.
    pub group: String,
    /// Resource or kind; which of them depends on the reason.
    pub kind: String,
    /// Uid of the object.
    pub uid: String,
    /// One entry a problem.
    pub causes: Vec<Cause>,
    /// Seconds after which a retry makes sense.
    pub retry_after_seconds: u32,
}

/// One of several problems behind a [`Status`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cause {
    /// Machine-readable, e.g. `FieldValueInvalid`.
    pub reason: String,
    /// Human-readable.
    pub message: String,
    /// Path of the field, e.g. `spec.replicas`.
    pub field: String,
}

fn insert_str(map: &mut Map<String, Value>, key: &str, value: &str) {
    if !value.is_empty() {
        map.insert(key.to_owned(), value.into());
    }
}

fn owned(v: &Value, key: &str) -> String {
    v.get(key).and_then(Value::as_str).unwrap_or("").to_owned()
}

impl Cause {
    /// As JSON, without empty fields.
    pub fn to_value(&self) -> Value {
        let mut map = Map::new();
        insert_str(&mut map, "reason", &self.reason);
        insert_str(&mut map, "message", &self.message);
        insert_str(&mut map, "field", &self.field);
        map.into()
    }

    fn from_value(v: &Value) -> Self {
        Self { reason: owned(v, "reason"), message: owned(v, "message"), field: owned(v, "field") }
    }
}

impl From<&field::Error> for Cause {
    fn from(e: &field::Error) -> Self {
        Self { reason: e.ty.as_str().to_owned(), message: e.body(), field: e.field.clone() }
    }
}

impl Details {
    /// Details that name an object of a resource.
    pub fn of(resource: &GroupResource, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            group: resource.group.clone(),
            kind: resource.resource.clone(),
            ..Self::default()
        }
    }

    /// As JSON, without empty fields.
    pub fn to_value(&self) -> Value {
        let mut map = Map::new();
        insert_str(&mut map, "name", &self.name);
        insert_str(&mut map, "group", &self.group);
        insert_str(&mut map, "kind", &self.kind);
        insert_str(&mut map, "uid", &self.uid);
        if !self.causes.is_empty() {
            map.insert("causes".to_owned(), self.causes.iter().map(Cause::to_value).collect());
        }
        if self.retry_after_seconds > 0 {
            map.insert("retryAfterSeconds".to_owned(), self.retry_after_seconds.into());
        }
        map.into()
    }

    /// Reads details from their JSON; what is missing or of a wrong type is empty.
    pub fn from_value(v: &Value) -> Self {
        let causes = v.get("causes").and_then(Value::as_array);
        let retry = v.get("retryAfterSeconds").and_then(Value::as_u64).unwrap_or(0);
        Self {
            name: owned(v, "name"),
            group: owned(v, "group"),
            kind: owned(v, "kind"),
            uid: owned(v, "uid"),
            causes: causes.into_iter().flatten().map(Cause::from_value).collect(),
            retry_after_seconds: u32::try_from(retry).unwrap_or(u32::MAX),
        }
    }
}

fn retry(seconds: u32) -> Option<Box<Details>> {
    Some(Box::new(Details { retry_after_seconds: seconds, ..Details::default() }))
}

fn about(resource: &GroupResource, name: &str) -> Option<Box<Details>> {
    Some(Box::new(Details::of(resource, name)))
}

impl Status {
    /// A failure without details.
    pub fn new(code: u16, reason: Reason, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None }
    }

    fn with(code: u16, reason: Reason, message: String, details: Option<Box<Details>>) -> Self {
        Self { code, reason, message, details }
    }

    /// 404: there is no such object.
    pub fn not_found(resource: &GroupResource, name: &str) -> Self {
        let message = format!("{resource} {} not found", crate::text::quote(name));
        Self::with(404, Reason::NotFound, message, about(resource, name))
    }

    /// 404 for a path that no handler serves, as generated for a non-resource response.
    pub fn generic_not_found() -> Self {
        Self::generic(404, "", &GroupResource::default(), "", "")
    }

    /// What is said of a bare HTTP status code. `verb` is the HTTP method; `server_message` is what the answer said,
    /// if anything; resource and name may be empty.
    pub fn generic(
        code: u16,
        verb: &str,
        resource: &GroupResource,
        name: &str,
        server_message: &str,
    ) -> Self {
        let (reason, mut message) = generic_text(code, verb, server_message);
        if !resource.is_empty() {
            let name = if name.is_empty() { String::new() } else { format!(" {name}") };
            message = format!("{message} ({} {resource}{name})", verb.to_lowercase());
        }
        Self::with(code, reason, message, about(resource, name))
    }

    /// 409: an object of that name exists.
    pub fn already_exists(resource: &GroupResource, name: &str) -> Self {
        let message = format!("{resource} {} already exists", crate::text::quote(name));
        Self::with(409, Reason::AlreadyExists, message, about(resource, name))
    }

    /// 409: the generated name exists; the client should try again.
    pub fn generate_name_conflict(resource: &GroupResource, name: &str, retry_after: u32) -> Self {
        let message = format!(
            "{resource} {} already exists, the server was not able to generate a unique name for the object",
            crate::text::quote(name)
        );
        let details = Details { retry_after_seconds: retry_after, ..Details::of(resource, name) };
        Self::with(409, Reason::AlreadyExists, message, Some(Box::new(details)))
    }

    /// 409: the write does not fit the stored object.
    pub fn conflict(resource: &GroupResource, name: &str, err: impl Display) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {resource} {}: {err}", crate::text::quote(name));
        Self::with(409, Reason::Conflict, message, about(resource, name))
    }

    /// 409 of server-side apply: one cause a conflicting field and manager.
    pub fn apply_conflict(causes: Vec<Cause>, message: impl Into<String>) -> Self {
        let details = Details { causes, ..Details::default() };
        Self::with(409, Reason::Conflict, message.into(), Some(Box::new(details)))
    }

    /// 410: gone, and no forwarding address is known. Prefer [`Status::resource_expired`].
    pub fn gone(message: impl Into<String>) -> Self {
        Self::new(410, Reason::Gone, message)
    }

    /// 410: the requested resource version or continue token is no longer served.
    pub fn resource_expired(message: impl Into<String>) -> Self {
        Self::new(410, Reason::Expired, message)
    }

    /// 422: validation failed; one cause a field error.
    pub fn invalid(kind: &GroupKind, name: &str, errors: &[field::Error]) -> Self {
        let mut message = format!("{kind} {} is invalid", crate::text::quote(name));
        if !errors.is_empty() {
            message.push_str(": ");
            message.push_str(&field::aggregate(errors));
        }
        let details = Details {
            name: name.to_owned(),
            group: kind.group.clone(),
            kind: kind.kind.clone(),
            causes: errors.iter().map(Cause::from).collect(),
            ..Details::default()
        };
        Self::with(422, Reason::Invalid, message, Some(Box::new(details)))
    }

    /// 400: the request makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, Reason::BadRequest, message)
    }

    /// 401: the request is not authenticated. An empty message reads `not authorized`.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        let message: String = message.into();
        Self::new(
            401,
            Reason::Unauthorized,
            if message.is_empty() { "not authorized".to_owned() } else { message },
        )
    }

    /// 403: known, but not allowed. An empty resource or name is left out of the text.
    pub fn forbidden(resource: &GroupResource, name: &str, err: impl Display) -> Self {
        let message = if resource.is_empty() {
            format!("forbidden: {err}")
        } else if name.is_empty() {
            format!("{resource} is forbidden: {err}")
        } else {
            format!("{resource} {} is forbidden: {err}", crate::text::quote(name))
        };
        Self::with(403, Reason::Forbidden, message, about(resource, name))
    }

    /// 405: the resource does not have this verb.
    pub fn method_not_supported(resource: &GroupResource, action: &str) -> Self {
        let kind = crate::text::quote(&resource.to_string());
        let message = format!("{action} is not supported on resources of kind {kind}");
        Self::with(405, Reason::MethodNotAllowed, message, about(resource, ""))
    }

    /// 406: none of the accepted media types can be produced.
    pub fn not_acceptable(message: impl Into<String>) -> Self {
        Self::new(406, Reason::NotAcceptable, message)
    }

    /// 406 that lists the media types that can be produced.
    pub fn not_acceptable_types(accepted: &[&str]) -> Self {
        Self::not_acceptable(format!("only the following media types are accepted: {}", accepted.join(", ")))
    }

    /// 415: the request body's media type cannot be read.
    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(415, Reason::UnsupportedMediaType, message)
    }

    /// 415 that lists the media types that can be read.
    pub fn unsupported_media_types(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::unsupported_media_type(message)
    }

    /// 429: come back in `retry_after` seconds.
    pub fn too_many_requests(message: impl Into<String>, retry_after: u32) -> Self {
        Self::with(429, Reason::TooManyRequests, message.into(), retry(retry_after))
    }

    /// 413: the body is larger than the server reads.
    pub fn request_entity_too_large(message: impl Display) -> Self {
        Self::new(413, Reason::RequestEntityTooLarge, format!("Request entity too large: {message}"))
    }

    /// 500 with reason `ServerTimeout`: the operation did not complete and should be tried again.
    pub fn server_timeout(resource: &GroupResource, operation: &str, retry_after: u32) -> Self {
        let message = format!(
            "The {operation} operation against {resource} could not be completed at this time, please try again."
        );
        let details = Details { retry_after_seconds: retry_after, ..Details::of(resource, operation) };
        Self::with(500, Reason::ServerTimeout, message, Some(Box::new(details)))
    }

    /// 504: time ran out; the operation may still complete.
    pub fn timeout(message: impl Display, retry_after: u32) -> Self {
        Self::with(504, Reason::Timeout, format!("Timeout: {message}"), retry(retry_after))
    }

    /// 504 for a read at a resource version that the server has not reached, with the cause that clients check.
    pub fn resource_version_too_large(requested: u64, current: u64, retry_after: u32) -> Self {
        let message = format!("Too large resource version: {requested}, current: {current}");
        let mut status = Self::timeout(message, retry_after);
        let causes = vec![Cause {
            reason: CAUSE_RESOURCE_VERSION_TOO_LARGE.to_owned(),
            message: "Too large resource version".to_owned(),
            field: String::new(),
        }];
        status.details =
            Some(Box::new(Details { causes, retry_after_seconds: retry_after, ..Details::default() }));
        status
    }

    /// 500: the server's fault.
    pub fn internal(err: impl Display) -> Self {
        let cause = err.to_string();
        let message = format!("Internal error occurred: {cause}");
        let causes = vec![Cause { message: cause, ..Cause::default() }];
        Self::with(
            500,
            Reason::InternalError,
            message,
            Some(Box::new(Details { causes, ..Details::default() })),
        )
    }

    /// 503: not now.
    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Self::new(503, Reason::ServiceUnavailable, message)
    }

    /// The JSON object on the wire.
    pub fn to_value(&self) -> Value {
        let mut map = envelope("Failure");
        insert_str(&mut map, "message", &self.message);
        insert_str(&mut map, "reason", self.reason.as_str());
        if let Some(details) = &self.details {
            map.insert("details".to_owned(), details.to_value());
        }
        if self.code != 0 {
            map.insert("code".to_owned(), self.code.into());
        }
        map.into()
    }

    /// Reads a failure from its JSON. `None` if the value is not a `Status`, or reports success.
    pub fn from_value(v: &Value) -> Option<Self> {
        if v.get("kind")?.as_str()? != "Status" {
            return None;
        }
        let api_version = v.get("apiVersion").and_then(Value::as_str).unwrap_or("");
        if !matches!(api_version, "v1" | "meta.k8s.io/v1") || v.get("status").is_some_and(|s| s == "Success")
        {
            return None;
        }
        let code = v.get("code").and_then(Value::as_u64).and_then(|c| u16::try_from(c).ok());
        Some(Self {
            code: code.filter(|c| *c != 0).unwrap_or(500),
            reason: Reason::parse(v.get("reason").and_then(Value::as_str).unwrap_or("")),
            message: owned(v, "message"),
            details: v.get("details").filter(|d| d.is_object()).map(|d| Box::new(Details::from_value(d))),
        })
    }

    /// The body that answers a completed DELETE.
    pub fn success_deleted(details: &Details) -> Value {
        let mut map = envelope("Success");
        map.insert("details".to_owned(), details.to_value());
        map.into()
    }

    /// A body that only says that all went well, e.g. for a created binding (code 201).
    pub fn success(code: u16) -> Value {
        let mut map = envelope("Success");
        map.insert("code".to_owned(), code.into());
        map.into()
    }

    /// Seconds after which the client should retry, if the status suggests it.
    pub fn suggests_retry(&self) -> Option<u32> {
        let seconds = self.details.as_ref()?.retry_after_seconds;
        (seconds > 0 || self.reason == Reason::ServerTimeout).then_some(seconds)
    }

    /// The first cause with a given reason.
    pub fn cause(&self, reason: &str) -> Option<&Cause> {
        self.details.as_ref()?.causes.iter().find(|c| c.reason == reason)
    }

    /// A reason that is known counts; for any other the code decides.
    fn is(&self, reason: &Reason, code: u16) -> bool {
        self.reason == *reason || (!self.reason.is_known() && self.code == code)
    }

    /// Whether the object was not found.
    pub fn is_not_found(&self) -> bool {
        self.is(&Reason::NotFound, 404)
    }

    /// Whether the object exists already.
    pub fn is_already_exists(&self) -> bool {
        self.reason == Reason::AlreadyExists
    }

    /// Whether the write conflicted with the stored object.
    pub fn is_conflict(&self) -> bool {
        self.is(&Reason::Conflict, 409)
    }
}

fn generic_text(code: u16, verb: &str, server_message: &str) -> (Reason, String) {
    let (reason, text) = match code {
        400 => (Reason::BadRequest, "the server rejected our request for an unknown reason"),
        401 => (Reason::Unauthorized, "the server has asked for the client to provide credentials"),
        403 => (Reason::Forbidden, server_message),
        404 => (Reason::NotFound, "the server could not find the requested resource"),
        405 => (Reason::MethodNotAllowed, "the server does not allow this method on the requested resource"),
        406 if matches!(server_message, "" | "unknown") => (
            Reason::NotAcceptable,
            "the server was unable to respond with a content type that the client supports",
        ),
        406 => (Reason::NotAcceptable, server_message),
        409 if verb == "POST" => (Reason::AlreadyExists, "the server reported a conflict"),
        409 => (Reason::Conflict, "the server reported a conflict"),
        415 => (Reason::UnsupportedMediaType, server_message),
        422 => (Reason::Invalid, "the server rejected our request due to an error in our request"),
        429 => (
            Reason::TooManyRequests,
            "the server has received too many requests and has asked us to try again later",
        ),
        503 => (Reason::ServiceUnavailable, "the server is currently unable to handle the request"),
        504 => (
            Reason::Timeout,
            "the server was unable to return a response in the time allotted, but may still be processing the request",
        ),
        500.. => {
            let quoted = crate::text::quote(server_message);
            let text = format!("an error on the server ({quoted}) has prevented the request from succeeding");
            return (Reason::InternalError, text);
        }
        _ => {
            let text = format!(
                "the server responded with the status code {code} but did not return more information"
            );
            return (Reason::Unknown, text);
        }
    };
    (reason, text.to_owned())
}

fn envelope(status: &str) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("kind".to_owned(), "Status".into());
    map.insert("apiVersion".to_owned(), "v1".into());
    map.insert("metadata".to_owned(), json!({}));
    map.insert("status".to_owned(), status.into());
    map
}
