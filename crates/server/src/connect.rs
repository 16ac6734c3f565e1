//! Connections of clients to nodes, pods and services: the engine says where to (`kaji_resource::Connection`), this carries
//! them out.
//!
//! Invariants:
//! - A request comes here authenticated, authorized and admitted. What is sent is made from the path that was authorized and
//!   from the options that were admitted; nothing reads the client's URI again.
//! - No identity of the client leaves: the other server sees this server's certificate, or none.
//! - The other server's redirections are not followed.
//! - Everything here ends when this server does.
//!
//! Source: upstream's `UpgradeAwareHandler` and its `Transport`, and `LocationStreamer` for logs.

mod nodes;
mod page;
mod rewrite;

pub use nodes::{ADDRESS_TYPES, NodeClient};

use crate::{
    body::ResponseBody,
    plain,
    route::RequestInfo,
    websocket::{self, Handshake},
};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header, request::Parts};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use hyper::upgrade::OnUpgrade;
use kaji_meta::{GroupResource, Query, Reason, Status};
use kaji_outbound::{
    Client, ClientCache, RequestBody, RequestClass, body,
    reverse_proxy::{
        ConnectionHold, Redirects, SwitchError, empty, end, escaped, forwarded, is_loop, is_upgrade, pass,
        reason, streamed, switch,
    },
    spans,
};
use kaji_resource::{Carries, Connection, Location, LocationQuery, Security};
use kaji_traces::Span;
use rewrite::Links;
use std::{net::IpAddr, sync::Arc, time::Duration};
use tokio::sync::watch;

/// Bytes of a refusal that become part of a status.
const MAX_REFUSAL: usize = 50_000;

/// Connects clients to other servers.
pub struct Connector {
    clients: ClientCache,
    nodes: NodeClient,
    /// Turns true when the server ends.
    stop: watch::Receiver<bool>,
}

/// What is known of a request besides what the client sent.
pub(crate) struct ConnectContext<'a> {
    /// Path, query and target, as they were authorized.
    pub info: &'a RequestInfo,
    /// Where it came from; `None` for parts of this process.
    pub remote: Option<IpAddr>,
    /// What counts the connection, which is held as long as it speaks another protocol.
    pub connection: ConnectionHold,
}

/// Upstream's answer to an error that is no status of the API.
fn plain_error(message: impl Into<String>) -> Status {
    Status::new(500, Reason::Unknown, message)
}

impl Connector {
    /// Connects as `nodes` says, until `stop` turns true.
    pub fn new(nodes: NodeClient, stop: watch::Receiver<bool>) -> Arc<Connector> {
        Arc::new(Connector { clients: ClientCache::default(), nodes, stop })
    }

    /// How this server reaches nodes.
    pub fn nodes(&self) -> &NodeClient {
        &self.nodes
    }

    /// Carries out a connection.
    ///
    /// # Errors
    /// What keeps the other server from answering.
    pub(crate) async fn carry_out(
        &self,
        connection: Connection,
        context: &ConnectContext<'_>,
        parts: &mut Parts,
        request_body: RequestBody,
    ) -> Result<Response<ResponseBody>, Status> {
        let Some(location) = connection.location else {
            // A log of which nothing is there yet.
            return Ok(plain::empty(StatusCode::NO_CONTENT));
        };
        let upgrade = is_upgrade(&parts.headers);
        match connection.carries {
            Carries::Body => self.read(location, context, parts).await,
            Carries::Upgrade if !upgrade => Err(Status::bad_request("Upgrade request required")),
            Carries::Upgrade | Carries::Requests if upgrade => self.upgrade(location, context, parts).await,
            _ => self.forward(location, context, parts, request_body).await,
        }
    }

    /// Reads a document of a kubelet for this server itself: at most `limit` bytes of it, within `timeout`.
    ///
    /// # Errors
    /// What keeps the kubelet from answering.
    pub async fn read_document(
        &self,
        location: &Location,
        timeout: Duration,
        limit: usize,
    ) -> Result<Bytes, Status> {
        let client = self.client(location).await?;
        let answer = client.get(&escaped(&location.path), timeout, limit).await;
        answer.map_err(|error| plain_error(error.to_string()))
    }

    async fn client(&self, location: &Location) -> Result<Arc<Client>, Status> {
        let config = self.nodes.config(location).await?;
        self.clients.client(&config).map_err(|error| plain_error(error.to_string()))
    }

    /// Sends any request and passes the response on.
    async fn forward(
        &self,
        mut location: Location,
        context: &ConnectContext<'_>,
        parts: &mut Parts,
        request_body: RequestBody,
    ) -> Result<Response<ResponseBody>, Status> {
        let path = &context.info.path;
        if location.path.is_empty()
            && !path.ends_with('/')
            && matches!(parts.method, Method::GET | Method::HEAD)
        {
            return to_root(path, parts);
        }
        if !location.path.ends_with('/') && (location.path.is_empty() || path.ends_with('/')) {
            location.path.push('/');
        }
        let config = self.nodes.config(&location).await?;
        let links = Links {
            prefix: escaped(prefix(context.info)),
            server: config.target.authority(),
            requested: requested_host(parts),
        };
        let client = self.clients.client(&config).map_err(|error| plain_error(error.to_string()))?;
        let mut request = sent(&location, context, parts, request_body, false)?;
        let unreachable =
            |why: String| Status::service_unavailable(format!("error trying to reach service: {why}"));
        let mut span = span(&location, &mut request);
        let answer = client.send(request, RequestClass::LongRunning).await;
        spans::answered(span.as_mut(), &answer);
        let answer = answer.map_err(|error| unreachable(reason(&error)))?;
        let answer = pass(streamed(answer), Redirects::Passed, end(self.stop.clone(), None));
        let answer = page::rewritten(answer, &links);
        Ok(answer.map(|inner| ResponseBody::Proxied { inner, held: vec![] }))
    }

    /// Asks for another protocol, and connects both sides once it is agreed on.
    async fn upgrade(
        &self,
        location: Location,
        context: &ConnectContext<'_>,
        parts: &mut Parts,
    ) -> Result<Response<ResponseBody>, Status> {
        let Some(ours) = parts.extensions.remove::<OnUpgrade>() else {
            return Err(plain_error("request connection cannot be hijacked"));
        };
        let client = self.client(&location).await?;
        let protocol = parts.headers.get(header::UPGRADE).cloned();
        let mut request = sent(&location, context, parts, body(Bytes::new()), true)?;
        let mut span = span(&location, &mut request);
        let answer = client.send(request, RequestClass::LongRunning).await;
        spans::answered(span.as_mut(), &answer);
        let answer =
            answer.map_err(|error| plain_error(format!("error dialing backend: {}", reason(&error))))?;
        if answer.status().as_u16() >= 400 && answer.body().is_end_stream() {
            // It says nothing: clients would show nothing.
            return Err(refusal(streamed(answer), context.info).await);
        }
        let (connection, stop) = (context.connection.clone(), self.stop.clone());
        let switched = switch(streamed(answer), protocol.as_ref(), ours, connection, stop);
        let answer = switched.map_err(|error| match error {
            SwitchError::Code(_) => plain_error(error.to_string()),
            SwitchError::Protocol { .. } => Status::new(502, Reason::Unknown, error.to_string()),
        })?;
        Ok(answer.map(|inner| ResponseBody::Proxied { inner, held: vec![] }))
    }

    /// Reads a body and passes it on as text, in messages if the client asks for a WebSocket.
    async fn read(
        &self,
        location: Location,
        context: &ConnectContext<'_>,
        parts: &mut Parts,
    ) -> Result<Response<ResponseBody>, Status> {
        let handshake = Handshake::of(parts);
        let client = self.client(&location).await?;
        let mut request = Request::new(body(Bytes::new()));
        *request.uri_mut() = target(&location, parts)?;
        request.headers_mut().insert(header::USER_AGENT, HeaderValue::from_static("kube-apiserver"));
        let mut span = span(&location, &mut request);
        let answer = client.send(request, RequestClass::LongRunning).await;
        spans::answered(span.as_mut(), &answer);
        let answer = streamed(answer.map_err(|error| plain_error(error.to_string()))?);
        match answer.status().as_u16() {
            200..=206 => {}
            300..=399 => return Err(plain_error("redirects forbidden")),
            _ => return Err(refusal(answer, context.info).await),
        }
        let mut answer = pass(answer, Redirects::Refused, end(self.stop.clone(), None));
        if let Some(handshake) = handshake {
            return Ok(websocket::body(handshake, answer.into_body()));
        }
        let mut response = Response::new(std::mem::replace(answer.body_mut(), empty()));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        Ok(response.map(|inner| ResponseBody::Proxied { inner, held: vec![] }))
    }
}

/// Begins the span of a request to a kubelet. What goes to pods and services keeps the context that its client has named: it
/// may be of a trace of theirs.
fn span(location: &Location, request: &mut Request<RequestBody>) -> Option<Span> {
    if !matches!(location.security, Security::Mutual { .. }) {
        return None;
    }
    let span = spans::begin(request.method(), "kubelet");
    spans::inject(span.as_ref(), request.headers_mut());
    span
}

/// The host that the client named.
fn requested_host(parts: &Parts) -> String {
    let named = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    named.or_else(|| Some(parts.uri.authority()?.as_str())).unwrap_or_default().to_owned()
}

/// A request for the root of a proxy without a slash is led to the one with it, or relative links would miss the prefix.
fn to_root(path: &str, parts: &Parts) -> Result<Response<ResponseBody>, Status> {
    let mut target = format!("{}/", escaped(path));
    if let Some(query) = parts.uri.query() {
        target.push('?');
        target.push_str(query);
    }
    let mut response = plain::empty(StatusCode::MOVED_PERMANENTLY);
    let target = HeaderValue::try_from(target).map_err(|e| plain_error(e.to_string()))?;
    response.headers_mut().insert(header::LOCATION, target);
    Ok(response)
}

/// Path and query of what is sent.
fn target(location: &Location, parts: &Parts) -> Result<Uri, Status> {
    let mut target = escaped(&location.path);
    let query = match &location.query {
        // It was not read here, and means what the other server takes it for.
        LocationQuery::AsReceived => parts.uri.query().unwrap_or_default().to_owned(),
        LocationQuery::Pairs(pairs) => {
            pairs.iter().map(|(k, v)| (*k, v.as_str())).collect::<Query>().encode(false)
        }
    };
    if target.is_empty() {
        target.push('/');
    }
    if !query.is_empty() {
        target.push('?');
        target.push_str(&query);
    }
    target.parse().map_err(|e| plain_error(format!("{target:?}: {e}")))
}

/// The client's request as the other server gets it.
fn sent(
    location: &Location,
    context: &ConnectContext<'_>,
    parts: &Parts,
    request_body: RequestBody,
    upgrade: bool,
) -> Result<Request<RequestBody>, Status> {
    if is_loop(&parts.headers) {
        let message = "the request was proxied too often: a server behind this one sends requests back";
        return Err(Status::new(508, Reason::Unknown, message));
    }
    let (mut headers, host) = forwarded(parts, context.remote, upgrade).map_err(plain_error)?;
    headers.extend(host.map(|host| (header::HOST, host)));
    if !upgrade {
        // The path by which the client may ask for what it gets.
        let uri = escaped(&format!("{}{}", prefix(context.info), location.path));
        let uri = HeaderValue::try_from(uri).map_err(|e| plain_error(e.to_string()))?;
        headers.insert("x-forwarded-uri", uri);
    }
    let mut request = Request::new(request_body);
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = target(location, parts)?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// What stands before the proxied path in the path of the request: `…/pods/p/proxy`.
fn prefix(info: &RequestInfo) -> &str {
    let path = info.path.trim_end_matches('/');
    let rest = info.resource.as_ref().map_or("", |t| t.subpath.as_str());
    path.strip_suffix(rest).unwrap_or(path).trim_end_matches('/')
}

/// What a refusal says, as a status. Source: `GenericHttpResponseChecker`.
async fn refusal(answer: Response<kaji_outbound::reverse_proxy::ProxiedBody>, info: &RequestInfo) -> Status {
    let code = answer.status().as_u16();
    let mut text = Vec::new();
    let mut body = Limited::new(answer.into_body(), MAX_REFUSAL);
    // What was read until the limit, or until the other server broke off, is what there is to say.
    while let Some(Ok(frame)) = body.frame().await {
        text.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    let target = info.resource.as_ref();
    let resource = target.map_or("", |t| t.resource.as_str());
    let subresource = target.map_or("", |t| t.subresource.as_str());
    match code {
        500 => Status::internal(text),
        400 => Status::bad_request(text),
        _ => {
            let resource = GroupResource::new("", format!("{resource}/{subresource}"));
            Status::generic(code, "", &resource, info.name(), &text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_of_a_proxy() {
        for rest in ["", "/", "/a", "/a/b//", "//a", "/x/../y/", "/proxy/proxy"] {
            for api in ["/api/v1/namespaces/d/pods/https:p:1/proxy", "/api/v1/nodes/n/proxy"] {
                let info =
                    RequestInfo::parse(&Method::GET, &format!("{api}{rest}"), Query::default()).unwrap();
                assert_eq!(prefix(&info), api, "{rest}");
            }
        }
    }
}
