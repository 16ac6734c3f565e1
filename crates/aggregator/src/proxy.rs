//! Forwarding a request to the server that stands behind an APIService.
//!
//! Invariants:
//! - The forwarded request is built in `forwarded_request`, from what was authorized.
//! - Responses are passed on by `kaji_outbound::reverse_proxy`.
//!
//! Source: upstream's `proxyHandler` and the reverse proxy that it uses.

use crate::{Aggregator, Route, forwarded_request};
use http::{HeaderValue, Method, Response, StatusCode, header, request::Parts};
use hyper::upgrade::OnUpgrade;
use kaji_decisions::{AGGREGATOR, About, Decision};
use kaji_meta::{Query, Reason, Status};
use kaji_outbound::{
    CallError, RequestBody, RequestClass,
    reverse_proxy::{
        ConnectionHold, ProxiedBody, Redirects, SwitchError, end, is_loop, is_upgrade, pass, streamed,
        switch, text,
    },
    spans,
};
use kaji_resource::UserInfo;
use std::{net::IpAddr, time::Duration};
use tokio::time::Instant;

/// Documents that clients wait for are there soon or not at all.
const DOCUMENT: Duration = Duration::from_secs(5);

/// What is known of a request besides what the client sent.
pub struct ForwardContext<'a> {
    /// Its path, as it was understood and authorized.
    pub path: &'a str,
    /// Likewise its query.
    pub query: &'a Query,
    /// Whether it is about a resource.
    pub resource: bool,
    /// The authenticated user.
    pub user: &'a UserInfo,
    /// The id in the audit log.
    pub audit_id: &'a HeaderValue,
    /// Where it came from; `None` for parts of this process.
    pub remote: Option<IpAddr>,
    /// How long the whole exchange may take; `None` for what stays open by design.
    pub time: Option<Duration>,
    /// What counts the connection, which is held as long as it speaks another protocol.
    pub connection: ConnectionHold,
}

impl Aggregator {
    /// Sends a request on and gives the answer, which is one of this server's if the other cannot be reached.
    pub async fn forward(
        &self,
        route: &Route,
        parts: &mut Parts,
        request_body: RequestBody,
        facts: &ForwardContext<'_>,
    ) -> Response<ProxiedBody> {
        if is_loop(&parts.headers) {
            return loop_detected();
        }
        if !route.service.is_available() {
            return text(StatusCode::SERVICE_UNAVAILABLE, "service unavailable\n");
        }
        let client = match route.client(&self.clients) {
            Ok(client) => client,
            Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        };
        let until = facts.time.map(|time| Instant::now() + time);
        let upgrade = is_upgrade(&parts.headers);
        let protocol = parts.headers.get(header::UPGRADE).cloned();
        let ours = upgrade.then(|| parts.extensions.remove::<OnUpgrade>()).flatten();
        if upgrade && ours.is_none() {
            return unavailable("request connection cannot be hijacked");
        }
        let mut request = match forwarded_request::request(parts, request_body, facts, upgrade) {
            Ok(request) => request,
            Err(why) => return unavailable(&format!("error trying to reach service: {why}")),
        };
        let authority = route.authority();
        let about =
            format!("{} {:?}: ", verb(request.method()), format!("https://{authority}{}", request.uri()));
        let is_document = !facts.resource && facts.path.trim_matches('/').split('/').count() == 3;
        let class = if facts.time.is_none() { RequestClass::LongRunning } else { RequestClass::Regular };
        let mut span = spans::begin(request.method(), &authority);
        spans::inject(span.as_ref(), request.headers_mut());
        let sent = client.send(request, class);
        let answer = match is_document {
            true => tokio::time::timeout(DOCUMENT, sent)
                .await
                .unwrap_or_else(|_| Err(CallError::Timeout("context deadline exceeded".into()))),
            false => sent.await,
        };
        spans::answered(span.as_mut(), &answer);
        self.remember(route, answer.as_ref().err().map(|error| error.to_string()));
        match answer {
            Err(CallError::Service { status, .. }) => {
                tracing::info!(name = route.service.name, error = %status, "an extension server cannot be found");
                text(StatusCode::SERVICE_UNAVAILABLE, "service unavailable\n")
            }
            Err(error) => {
                let said = error.to_string();
                let why = said.strip_prefix(&about).unwrap_or(&said);
                match upgrade {
                    true => unavailable(&format!("error dialing backend: {why}")),
                    false => unavailable(&format!("error trying to reach service: {why}")),
                }
            }
            Ok(answer) => {
                let (answer, stop) = (streamed(answer), self.stop.subscribe());
                let Some(ours) = ours else { return pass(answer, Redirects::Refused, end(stop, until)) };
                match switch(answer, protocol.as_ref(), ours, facts.connection.clone(), stop) {
                    Ok(switched) => switched,
                    Err(error @ SwitchError::Code(_)) => unavailable(&error.to_string()),
                    Err(error) => text(StatusCode::BAD_GATEWAY, error.to_string()),
                }
            }
        }
    }
}

impl Aggregator {
    /// Keeps what the last request to a server failed with, for explanations.
    fn remember(&self, route: &Route, failure: Option<String>) {
        let name = &route.service.name;
        let Some(message) = failure else { return self.decisions.settle(AGGREGATOR, name) };
        self.decisions.remember(Decision {
            component: AGGREGATOR.to_owned(),
            key: name.clone(),
            about: About {
                group: "apiregistration.k8s.io".to_owned(),
                resource: "apiservices".to_owned(),
                name: name.clone(),
                ..About::default()
            },
            reason: "ServiceUnavailable".to_owned(),
            message,
            ..Decision::default()
        });
    }
}

/// The method as Go's client writes it.
fn verb(method: &Method) -> String {
    let (first, rest) = method.as_str().split_at(method.as_str().len().min(1));
    format!("{first}{}", rest.to_ascii_lowercase())
}

fn unavailable(why: &str) -> Response<ProxiedBody> {
    text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
}

/// A request goes around in a circle: an extension server sends it back to where it came from.
fn loop_detected() -> Response<ProxiedBody> {
    let message = "the request was forwarded to extension servers too often: one of them sends requests back";
    let status = Status::new(StatusCode::LOOP_DETECTED.as_u16(), Reason::Unknown, message);
    let mut response = text(StatusCode::LOOP_DETECTED, status.to_value().to_string());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
