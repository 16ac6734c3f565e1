//! Answers of the layer: refusals with upstream's texts, and what an answer to a write says.

use crate::fault::FaultKind;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use kaji_meta::{GroupKind, Status, field};
use kaji_server::ResponseBody;
use serde::Deserialize;

/// The longest answer to a write: an object with its metadata.
const LONGEST: usize = 16 << 20;

/// What an answer to a write says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub revision: Option<u64>,
    pub name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Answer {
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    resource_version: String,
}

/// Why a request is refused without reaching the server; `None` for other faults.
pub fn refusal(fault: FaultKind) -> Option<Status> {
    Some(match fault {
        FaultKind::TooManyRequests => {
            Status::too_many_requests("too many requests, please try again later", 1)
        }
        FaultKind::InternalError => Status::internal("etcdserver: leader changed"),
        FaultKind::Unavailable => {
            Status::service_unavailable("apiserver is shutting down, please try again later")
        }
        FaultKind::WebhookTimeout => Status::internal(
            "failed calling webhook \"validate.kaji.dev\": failed to call webhook: \
             Post \"https://webhook.example.svc:443/validate?timeout=10s\": context deadline exceeded",
        ),
        FaultKind::ExpiredToken => Status::unauthorized("Unauthorized"),
        _ => return None,
    })
}

/// The refusal of a server that does not stream lists.
pub fn no_streamed_lists() -> Status {
    let kind = GroupKind { group: "meta.k8s.io".into(), kind: "ListOptions".into() };
    let text = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
    Status::invalid(&kind, "", &[field::Error::forbidden(&field::Path::new("sendInitialEvents"), text)])
}

pub fn status_response(status: &Status) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::full(status.to_value().to_string()));
    *response.status_mut() = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = status.suggests_retry() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Reads an answer to a write. One that cannot be read is a broken connection's, which the client sees as it is: empty.
pub async fn written(response: Response<ResponseBody>) -> (Response<ResponseBody>, Written) {
    let (parts, body) = response.into_parts();
    let bytes = match Limited::new(body, LONGEST).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            tracing::warn!(%error, "the answer to a write was not read");
            Bytes::new()
        }
    };
    let written = of_json(&bytes).filter(|_| parts.status.is_success()).unwrap_or_default();
    (Response::from_parts(parts, ResponseBody::full(bytes)), written)
}

fn of_json(bytes: &[u8]) -> Option<Written> {
    let answer: Answer = serde_json::from_slice(bytes).ok()?;
    Some(Written { revision: answer.metadata.resource_version.parse().ok(), name: answer.metadata.name })
}
