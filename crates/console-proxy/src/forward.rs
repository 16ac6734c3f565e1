//! Requests sent on to the API server with the kubeconfig's credentials, and its answers back.
//!
//! Invariants: what authenticates the browser here is taken off before a request is sent on, and so is what could change the user that
//! the kubeconfig names (impersonation, cookies). Only paths of the API are sent on. An answer is passed on as it comes.

use crate::{AnswerBody, LONGEST_BODY, RESPONSE_HEAD_TIMEOUT, refusal, session::TOKEN_PROTOCOL};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header, request::Parts,
    uri::PathAndQuery,
};
use http_body_util::{BodyExt, Limited};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use kube::client::Body;

/// What is passed on of a request.
const PASSED: [HeaderName; 9] = [
    header::ACCEPT,
    header::ACCEPT_ENCODING,
    header::CONTENT_TYPE,
    header::IF_NONE_MATCH,
    header::USER_AGENT,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_VERSION,
    header::CACHE_CONTROL,
    header::RANGE,
];

/// What is not passed on of an answer: it concerns one connection, or what browsers keep and share.
const KEPT_BACK: [&str; 9] = [
    "set-cookie",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "connection",
    "access-control-allow-origin",
    "access-control-allow-credentials",
    "strict-transport-security",
    "alt-svc",
];

/// Whether a path is one of the API's.
pub fn is_api(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    !path.starts_with("//")
        && matches!(
            first,
            "api" | "apis" | "openapi" | "version" | "metrics" | "readyz" | "livez" | "healthz"
        )
}

/// Sends a request on.
pub async fn forward<B>(client: &kube::Client, request: Request<B>) -> Response<AnswerBody>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (mut parts, body) = request.into_parts();
    let ours = parts.extensions.remove::<OnUpgrade>().filter(|_| is_websocket(&parts.headers));
    let Ok(body) = Limited::new(body, LONGEST_BODY).collect().await else {
        return refusal(StatusCode::PAYLOAD_TOO_LARGE, "the body is too long, or was broken off");
    };
    let Some(request) = outgoing(&parts, body.to_bytes(), ours.is_some()) else {
        return refusal(StatusCode::BAD_REQUEST, "the request is malformed");
    };
    let answer = match tokio::time::timeout(RESPONSE_HEAD_TIMEOUT, client.send(request)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            return refusal(StatusCode::BAD_GATEWAY, &format!("the API server does not answer: {error}"));
        }
        Err(_) => return refusal(StatusCode::GATEWAY_TIMEOUT, "the API server does not answer in time"),
    };
    match ours {
        Some(ours) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => switch(ours, answer),
        _ => {
            let mut response = answer.map(|body| body.map_err(Into::into).boxed_unsync());
            keep_back(response.headers_mut());
            response
        }
    }
}

fn outgoing(parts: &Parts, body: Bytes, websocket: bool) -> Option<Request<Body>> {
    let target = parts.uri.path_and_query().map(PathAndQuery::as_str)?;
    let mut request = Request::new(Body::from(body));
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = target.parse::<Uri>().ok()?;
    for name in PASSED {
        for value in parts.headers.get_all(&name) {
            request.headers_mut().append(name.clone(), value.clone());
        }
    }
    if websocket {
        let headers = request.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        let offered = parts.headers.get(header::SEC_WEBSOCKET_PROTOCOL).and_then(|v| v.to_str().ok());
        let rest = offered.unwrap_or_default().split(',').map(str::trim);
        let rest: Vec<&str> = rest.filter(|p| !p.is_empty() && !p.starts_with(TOKEN_PROTOCOL)).collect();
        if !rest.is_empty() {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(&rest.join(", ")).ok()?);
        }
    }
    Some(request)
}

fn is_websocket(headers: &HeaderMap) -> bool {
    headers.get(header::UPGRADE).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

fn keep_back(headers: &mut HeaderMap) {
    for name in KEPT_BACK {
        headers.remove(name);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

/// Both connections have switched protocols: bytes are passed both ways until either side ends.
fn switch(ours: OnUpgrade, answer: Response<Body>) -> Response<AnswerBody> {
    let (parts, body) = answer.into_parts();
    let mut response = Response::new(crate::full(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    for name in
        [header::CONNECTION, header::UPGRADE, header::SEC_WEBSOCKET_ACCEPT, header::SEC_WEBSOCKET_PROTOCOL]
    {
        if let Some(value) = parts.headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    let theirs = hyper::upgrade::on(Response::from_parts(parts, body));
    tokio::spawn(async move {
        let (Ok(ours), Ok(theirs)) = tokio::join!(ours, theirs) else { return };
        let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
        if let Err(error) = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await {
            tracing::debug!(%error, "a terminal's connection ended");
        }
    });
    response
}
