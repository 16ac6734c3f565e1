//! Forwarding a request to the server that stands behind an APIService.
//!
//! Invariants:
//! - The server is told who asks by this server alone: whatever a client says about that is taken out before.
//! - What was authorized is what is sent: path and query go on as they were understood here.
//! - A request that is answered in pieces, or that switches protocols, is passed on as it comes; when one side ends, so
//!   does the other. An answer that breaks off breaks off here too and never looks complete.
//!
//! Source: upstream's `proxyHandler` and the reverse proxy that it uses.

use crate::{Aggregator, Route};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header, request::Parts,
};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use kaji_outbound::{CallError, Lane, RequestBody, Slot, body};
use kaji_resource::{BoxFuture, UserInfo};
use std::{
    any::Any,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Instant, sleep_until};

/// Documents that clients wait for are there soon or not at all.
const DOCUMENT: Duration = Duration::from_secs(5);

/// Headers that are about one connection alone (RFC 9110, 7.6.1, and those that older software takes for such).
const HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
/// What browsers may do with an answer is this server's to say.
const CORS: [HeaderName; 4] = [
    header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
    header::ACCESS_CONTROL_ALLOW_HEADERS,
    header::ACCESS_CONTROL_ALLOW_METHODS,
    header::ACCESS_CONTROL_ALLOW_ORIGIN,
];
const USER: HeaderName = HeaderName::from_static("x-remote-user");
const UID: HeaderName = HeaderName::from_static("x-remote-uid");
const GROUP: HeaderName = HeaderName::from_static("x-remote-group");
const EXTRA: &str = "x-remote-extra-";
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The body of an answer from elsewhere.
pub type ForeignBody = UnsyncBoxBody<Bytes, Broken>;

/// The other side did not finish what it began.
#[derive(Debug, thiserror::Error)]
#[error("an answer from elsewhere broke off: {0}")]
pub struct Broken(String);

/// What is known of a request besides what the client sent.
pub struct Facts<'a> {
    /// Its path, as it was understood and authorized.
    pub path: &'a str,
    /// Likewise its query.
    pub query: &'a [(String, String)],
    /// Whether it is about a resource.
    pub resource: bool,
    /// Who asks.
    pub user: &'a UserInfo,
    /// The id in the audit log.
    pub audit_id: &'a HeaderValue,
    /// Where it came from; `None` for parts of this process.
    pub remote: Option<IpAddr>,
    /// How long the whole exchange may take; `None` for what stays open by design.
    pub time: Option<Duration>,
    /// What counts the connection, which is held as long as it speaks another protocol.
    pub connection: Option<Arc<dyn Any + Send + Sync>>,
}

impl Aggregator {
    /// Sends a request on and gives the answer, which is one of this server's if the other cannot be reached.
    pub async fn forward(
        &self,
        route: &Route,
        parts: &mut Parts,
        request_body: RequestBody,
        facts: &Facts<'_>,
    ) -> Response<ForeignBody> {
        if !route.service.is_available() {
            return text(StatusCode::SERVICE_UNAVAILABLE, "service unavailable\n");
        }
        let client = match route.client(&self.callers) {
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
        let request = match request(parts, request_body, facts, upgrade) {
            Ok(request) => request,
            Err(why) => return unavailable(&format!("error trying to reach service: {why}")),
        };
        let about = format!(
            "{} {:?}: ",
            verb(request.method()),
            format!("https://{}{}", route.authority(), request.uri())
        );
        let is_document = !facts.resource && facts.path.trim_matches('/').split('/').count() == 3;
        let lane = if facts.time.is_none() { Lane::Open } else { Lane::Short };
        let sent = client.send(request, lane);
        let answer = match is_document {
            true => tokio::time::timeout(DOCUMENT, sent)
                .await
                .unwrap_or_else(|_| Err(CallError::Timeout("context deadline exceeded".into()))),
            false => sent.await,
        };
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
                let answer = answer.map(|b| b.map_err(|e| Broken(e.to_string())).boxed_unsync());
                match ours {
                    Some(ours) => self.switch(answer, protocol.as_ref(), ours, facts.connection.clone()),
                    None => pass(answer, self.end(until)),
                }
            }
        }
    }

    /// When an answer ends, whatever there is of it by then: one that is open by design when this server does.
    fn end(&self, until: Option<Instant>) -> BoxFuture<'static, End> {
        let mut stop = self.stop.subscribe();
        match until {
            Some(until) => Box::pin(async move {
                sleep_until(until).await;
                End::Late
            }),
            None => Box::pin(async move {
                // An error says that nobody is left who could stop it.
                let _ = stop.wait_for(|s| *s).await;
                End::Stopped
            }),
        }
    }

    /// Connects both sides once they have agreed on another protocol.
    fn switch(
        &self,
        mut answer: Response<ForeignBody>,
        protocol: Option<&HeaderValue>,
        ours: OnUpgrade,
        connection: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Response<ForeignBody> {
        let code = answer.status();
        if code != StatusCode::SWITCHING_PROTOCOLS {
            if code.as_u16() < 400 {
                return unavailable(&format!("invalid upgrade response: status code {}", code.as_u16()));
            }
            return pass(answer, self.end(None));
        }
        if let Err(why) = agreed(protocol, answer.headers().get(header::UPGRADE)) {
            return text(StatusCode::BAD_GATEWAY, why);
        }
        let theirs = hyper::upgrade::on(&mut answer);
        let slot = answer.extensions_mut().remove::<Slot>();
        let mut stop = self.stop.subscribe();
        tokio::spawn(async move {
            let _held = (slot, connection);
            let both = async { tokio::join!(ours, theirs) };
            let both = tokio::select! {
                both = both => both,
                _ = stop.wait_for(|s| *s) => return,
            };
            let (Ok(ours), Ok(theirs)) = both else { return };
            let (mut from_client, mut to_client) = tokio::io::split(TokioIo::new(ours));
            let (mut from_server, mut to_server) = tokio::io::split(TokioIo::new(theirs));
            // Whichever side ends first ends the other.
            let ended = tokio::select! {
                ended = tokio::io::copy(&mut from_client, &mut to_server) => ended,
                ended = tokio::io::copy(&mut from_server, &mut to_client) => ended,
                _ = stop.wait_for(|s| *s) => Ok(0),
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection to an extension server ended");
            }
            use tokio::io::AsyncWriteExt;
            // What was written before the end is still delivered.
            let _ = tokio::join!(to_client.shutdown(), to_server.shutdown());
        });
        let (parts, _) = answer.into_parts();
        Response::from_parts(parts, empty())
    }
}

/// Whether the protocol that the other side switches to is one that the client asked for.
///
/// # Errors
/// Go's text for one that is not.
fn agreed(asked: Option<&HeaderValue>, found: Option<&HeaderValue>) -> Result<(), String> {
    let text = |value: Option<&HeaderValue>| {
        value.map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned()).unwrap_or_default()
    };
    let (asked, found) = (text(asked), text(found));
    if asked.split(',').any(|one| one.trim().eq_ignore_ascii_case(found.trim())) {
        return Ok(());
    }
    Err(format!("backend tried to switch protocol {found:?} when {asked:?} was requested"))
}

/// The request as the other side gets it.
fn request(
    parts: &Parts,
    request_body: RequestBody,
    facts: &Facts<'_>,
    upgrade: bool,
) -> Result<Request<RequestBody>, String> {
    let mut headers = parts.headers.clone();
    let protocol = headers.get(header::UPGRADE).cloned();
    let host = headers.remove(header::HOST);
    remove_hops(&mut headers);
    headers.remove(header::EXPECT);
    if upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.extend(protocol.map(|p| (header::UPGRADE, p)));
    } else {
        // Of these, only the connection of an upgrade keeps what the client said.
        let uri = HeaderValue::from_str(&escaped(facts.path)).map_err(|e| e.to_string())?;
        headers.insert("x-forwarded-uri", uri);
        headers.extend(host.map(|h| (HeaderName::from_static("x-forwarded-host"), h)));
        headers.insert("x-forwarded-proto", HeaderValue::from_static("https"));
    }
    if let Some(remote) = facts.remote {
        append_remote(&mut headers, remote);
    }
    identify(&mut headers, facts.user)?;
    headers.insert("audit-id", facts.audit_id.clone());
    let mut target = escaped(facts.path);
    if !facts.query.is_empty() {
        target.push('?');
        target.push_str(&encoded(facts.query));
    }
    let mut request = Request::new(request_body);
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = target.parse::<Uri>().map_err(|e| e.to_string())?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// A request of this server's own, for JSON and the like.
pub(crate) fn own_request(path: &str, user: &UserInfo, accept: HeaderValue) -> Request<RequestBody> {
    let mut request = Request::new(body(Bytes::new()));
    // A path that is none leads to the root, where the answer is of no use either.
    *request.uri_mut() = path.parse().unwrap_or_default();
    let headers = request.headers_mut();
    headers.insert(header::ACCEPT, accept);
    headers.insert(header::USER_AGENT, HeaderValue::from_static("kube-aggregator"));
    // Names of this server's own are plain.
    let _ = identify(headers, user);
    request
}

/// Says who asks, and nothing else about that.
fn identify(headers: &mut HeaderMap, user: &UserInfo) -> Result<(), String> {
    let said: Vec<HeaderName> = headers
        .keys()
        .filter(|k| [USER, UID, GROUP].contains(k) || k.as_str().starts_with(EXTRA))
        .cloned()
        .collect();
    said.iter().for_each(|name| drop(headers.remove(name)));
    let value = |name: &HeaderName, text: &str| {
        HeaderValue::from_bytes(text.as_bytes())
            .map_err(|_| format!("net/http: invalid header field value for {:?}", name.as_str()))
    };
    headers.insert(USER, value(&USER, &user.name)?);
    if !user.uid.is_empty() {
        headers.insert(UID, value(&UID, &user.uid)?);
    }
    for group in &user.groups {
        headers.append(GROUP, value(&GROUP, group)?);
    }
    for (key, values) in &user.extra {
        let name = HeaderName::try_from(format!("{EXTRA}{}", escaped_key(key))).map_err(|e| e.to_string())?;
        for text in values {
            headers.append(&name, value(&name, text)?);
        }
    }
    Ok(())
}

/// A key of extra attributes as a header's name: everything that such a name cannot hold is escaped.
fn escaped_key(key: &str) -> String {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&b);
    escape(key.as_bytes(), legal)
}

/// A path as Go's `URL.EscapedPath` writes it.
fn escaped(path: &str) -> String {
    escape(path.as_bytes(), |b| b.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&b))
}

fn encoded(query: &[(String, String)]) -> String {
    let part = |text: &str| escape(text.as_bytes(), |b| b.is_ascii_alphanumeric() || b"-_.~".contains(&b));
    let pairs: Vec<String> = query.iter().map(|(k, v)| format!("{}={}", part(k), part(v))).collect();
    pairs.join("&")
}

fn escape(bytes: &[u8], legal: impl Fn(u8) -> bool) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        if legal(*byte) {
            out.push(char::from(*byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

fn append_remote(headers: &mut HeaderMap, remote: IpAddr) {
    let before: Vec<&[u8]> = headers.get_all(&FORWARDED_FOR).iter().map(HeaderValue::as_bytes).collect();
    let mut all = before.join(&b", "[..]);
    if !all.is_empty() {
        all.extend_from_slice(b", ");
    }
    all.extend_from_slice(remote.to_string().as_bytes());
    if let Ok(value) = HeaderValue::from_bytes(&all) {
        headers.insert(FORWARDED_FOR, value);
    }
}

fn remove_hops(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP.iter().chain(&named) {
        headers.remove(name);
    }
    let trailers = headers.get(header::TE).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"trailers"));
    if !trailers {
        headers.remove(header::TE);
    }
}

/// Whether a client wants another protocol on its connection.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    let lower = |v: &HeaderValue| v.to_str().unwrap_or_default().to_ascii_lowercase();
    headers.get_all(header::CONNECTION).iter().any(|v| lower(v).contains("upgrade"))
}

/// The method as Go's client writes it.
fn verb(method: &Method) -> String {
    let (first, rest) = method.as_str().split_at(method.as_str().len().min(1));
    format!("{first}{}", rest.to_ascii_lowercase())
}

/// The answer as the client gets it.
fn pass(answer: Response<ForeignBody>, end: BoxFuture<'static, End>) -> Response<ForeignBody> {
    let (mut parts, inner) = answer.into_parts();
    if parts.status.is_informational() {
        return text(StatusCode::BAD_GATEWAY, "the backend switched protocols, which nobody asked for");
    }
    if parts.status.is_redirection() && parts.headers.contains_key(header::LOCATION) {
        let refused = "the backend attempted to redirect this request, which is not permitted";
        return text(StatusCode::BAD_GATEWAY, refused);
    }
    remove_hops(&mut parts.headers);
    CORS.iter().for_each(|name| drop(parts.headers.remove(name)));
    parts.extensions = http::Extensions::new();
    parts.version = http::Version::HTTP_11;
    Response::from_parts(parts, Ending { inner, end }.boxed_unsync())
}

/// Why a body ends before its other side says so.
enum End {
    /// Its time is over.
    Late,
    /// This server ends.
    Stopped,
}

/// A body that ends in any case.
struct Ending {
    inner: ForeignBody,
    end: BoxFuture<'static, End>,
}

impl Body for Ending {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Pending => {}
            ready => return ready,
        }
        match (self.end.as_mut().poll(cx), self.inner.size_hint().exact()) {
            (Poll::Pending, _) => Poll::Pending,
            (Poll::Ready(End::Late), _) => Poll::Ready(Some(Err(Broken("its time is over".into())))),
            // A stream ends as the server's own do.
            (Poll::Ready(End::Stopped), None) => Poll::Ready(None),
            (Poll::Ready(End::Stopped), Some(_)) => {
                Poll::Ready(Some(Err(Broken("the server is shutting down".into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

fn empty() -> ForeignBody {
    Full::new(Bytes::new()).map_err(|never| match never {}).boxed_unsync()
}

fn unavailable(why: &str) -> Response<ForeignBody> {
    text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
}

fn text(code: StatusCode, text: impl Into<Bytes>) -> Response<ForeignBody> {
    let full = Full::new(text.into()).map_err(|never: std::convert::Infallible| match never {});
    let mut response = Response::new(full.boxed_unsync());
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn show(headers: &HeaderMap) -> String {
        let line =
            |(k, v): (&HeaderName, &HeaderValue)| format!("{k}: {}\n", String::from_utf8_lossy(v.as_bytes()));
        let mut lines: Vec<String> = headers.iter().map(line).collect();
        lines.sort();
        lines.concat()
    }

    fn sent(upgrade: bool, add: &[(&'static str, &'static str)]) -> Request<RequestBody> {
        let mut request = Request::post("https://api/apis/a.io/v1/x").header("host", "api:6443");
        for (name, value) in add {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let user = UserInfo {
            name: "alice".into(),
            uid: "7".into(),
            groups: vec!["devs".into(), "ops".into()],
            extra: BTreeMap::from([("a.io/Scope %".to_owned(), vec!["x".to_owned(), "y".to_owned()])]),
        };
        let facts = Facts {
            path: "/apis/a.io/v1/x y/é",
            query: &[("labelSelector".into(), "a=b,c".into()), ("watch".into(), "1".into())],
            resource: true,
            user: &user,
            audit_id: &HeaderValue::from_static("id"),
            remote: Some([10, 1, 2, 3].into()),
            time: None,
            connection: None,
        };
        super::request(&parts, body(Bytes::new()), &facts, upgrade).unwrap()
    }

    #[test]
    fn who_asks_is_said_by_this_server_alone() {
        let request = sent(
            false,
            &[
                ("x-remote-user", "root"),
                ("x-remote-group", "system:masters"),
                ("x-remote-extra-foo", "bar"),
                ("connection", "close, x-private"),
                ("x-private", "1"),
                ("te", "gzip"),
                ("accept", "*/*"),
                ("x-forwarded-for", "1.1.1.1"),
            ],
        );
        expect_test::expect![[r#"
            /apis/a.io/v1/x%20y/%C3%A9?labelSelector=a%3Db%2Cc&watch=1
            accept: */*
            audit-id: id
            x-forwarded-for: 1.1.1.1, 10.1.2.3
            x-forwarded-host: api:6443
            x-forwarded-proto: https
            x-forwarded-uri: /apis/a.io/v1/x%20y/%C3%A9
            x-remote-extra-a.io%2fscope%20%25: x
            x-remote-extra-a.io%2fscope%20%25: y
            x-remote-group: devs
            x-remote-group: ops
            x-remote-uid: 7
            x-remote-user: alice
        "#]]
        .assert_eq(&format!("{}\n{}", request.uri(), show(request.headers())));
    }

    #[test]
    fn upgrades_keep_their_headers() {
        let headers = [("connection", "keep-alive, Upgrade"), ("upgrade", "SPDY/3.1")];
        assert!(is_upgrade(sent(true, &headers).headers()));
        expect_test::expect![[r#"
            audit-id: id
            connection: Upgrade
            upgrade: SPDY/3.1
            x-forwarded-for: 10.1.2.3
            x-remote-extra-a.io%2fscope%20%25: x
            x-remote-extra-a.io%2fscope%20%25: y
            x-remote-group: devs
            x-remote-group: ops
            x-remote-uid: 7
            x-remote-user: alice
        "#]]
        .assert_eq(&show(sent(true, &headers).headers()));
    }

    #[test]
    fn protocols_are_those_that_were_asked_for() {
        let agreed = |asked: Option<&'static str>, found: Option<&'static str>| {
            let value = |text: Option<&'static str>| text.map(HeaderValue::from_static);
            agreed(value(asked).as_ref(), value(found).as_ref())
        };
        assert!(agreed(Some("websocket"), Some("WebSocket")).is_ok());
        assert!(agreed(Some("a, SPDY/3.1"), Some("SPDY/3.1")).is_ok());
        assert_eq!(
            agreed(Some("websocket"), Some("h2c")).unwrap_err(),
            r#"backend tried to switch protocol "h2c" when "websocket" was requested"#
        );
        assert!(agreed(Some("websocket"), None).is_err());
    }

    #[test]
    fn redirects_are_refused_and_hops_stay() {
        let answer = |code: u16, headers: &[(&'static str, &'static str)]| {
            let mut response = Response::builder().status(code);
            for (name, value) in headers {
                response = response.header(*name, *value);
            }
            let answer = pass(response.body(empty()).unwrap(), Box::pin(std::future::pending()));
            format!("{}\n{}", answer.status().as_u16(), show(answer.headers()))
        };
        assert!(answer(302, &[("location", "https://elsewhere")]).starts_with("502\n"));
        assert!(answer(101, &[("upgrade", "x")]).starts_with("502\n"));
        assert_eq!(answer(304, &[("etag", "\"x\"")]), "304\netag: \"x\"\n");
        let headers =
            [("keep-alive", "5"), ("access-control-allow-origin", "*"), ("content-type", "text/html")];
        assert_eq!(answer(200, &headers), "200\ncontent-type: text/html\n");
    }
}
