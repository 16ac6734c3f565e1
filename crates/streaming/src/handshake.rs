//! The opening handshakes: from the head of a request to the protocol that both sides speak, or a refusal in HTTP.
//!
//! Source: upstream's `httpstream.Handshake`, `spdy.responseUpgrader`, `wsstream`, `golang.org/x/net/websocket`.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use ring::digest;

/// The upgrade token of SPDY.
const SPDY: &str = "SPDY/3.1";
/// Before the name of a protocol of SPDY: a WebSocket that carries a SPDY connection.
pub(crate) const TUNNEL_PREFIX: &str = "SPDY/3.1+";
/// After the name of any protocol of Kubernetes.
const KUBERNETES_SUFFIX: &str = ".k8s.io";
/// The subprotocol in which clients close single channels.
pub(crate) const V5: &str = "v5.channel.k8s.io";

const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const ACCEPTED_VERSIONS: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");

/// The only version of WebSockets.
const WEBSOCKET_VERSION: &[u8] = b"13";
/// What the client's key is hashed with (RFC 6455, 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The head of a request that asks for another protocol.
#[derive(Debug, Clone, Copy)]
pub struct UpgradeRequest<'a> {
    /// WebSockets take GET only.
    pub method: &'a Method,
    /// All of them.
    pub headers: &'a HeaderMap,
    /// The connection, after the switch; absent where the protocol of the request has no upgrades.
    pub upgrade: Option<&'a OnUpgrade>,
}

/// The answer to a handshake that succeeded.
pub struct Upgrade {
    /// Switches protocols.
    pub response: Response<()>,
    /// Serves the client after the switch; to be polled when the response has been given to the connection.
    pub session: BoxFuture<'static, ()>,
}

impl std::fmt::Debug for Upgrade {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upgrade").field("response", &self.response).finish_non_exhaustive()
    }
}

/// The answer to a request that is not upgraded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct UpgradeRejection {
    /// Of the response.
    pub code: StatusCode,
    /// Of the response, beside those of its body.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body, plain text.
    pub text: String,
}

impl UpgradeRejection {
    /// Without further headers.
    #[must_use]
    pub fn new(code: StatusCode, text: impl Into<String>) -> UpgradeRejection {
        UpgradeRejection { code, headers: vec![], text: text.into() }
    }
}

/// Whether a request asks for another protocol.
pub(crate) fn is_upgrade(headers: &HeaderMap) -> bool {
    headers.get_all(header::CONNECTION).iter().any(|value| contains(value, "upgrade"))
}

/// Whether a request asks for a WebSocket.
pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE);
    upgrade.is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"websocket")) && is_upgrade(headers)
}

fn contains(value: &HeaderValue, lower: &str) -> bool {
    value.to_str().unwrap_or_default().to_ascii_lowercase().contains(lower)
}

/// The subprotocols that a client of WebSockets offers.
pub(crate) fn subprotocols(headers: &HeaderMap) -> Vec<&str> {
    list(headers, &header::SEC_WEBSOCKET_PROTOCOL)
}

/// The values of a header that lists names, in order.
fn list<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<&'a str> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|name| !name.is_empty()).collect()
}

/// Whether a client offers to carry a SPDY connection in a WebSocket.
pub(crate) fn offers_tunnel(headers: &HeaderMap) -> bool {
    is_websocket(headers) && !tunnelled(headers).is_empty()
}

/// The protocols of SPDY that a client offers to speak in a WebSocket.
pub(crate) fn tunnelled(headers: &HeaderMap) -> Vec<&str> {
    let offered = subprotocols(headers).into_iter().filter(|name| name.ends_with(KUBERNETES_SUFFIX));
    offered.filter_map(|name| name.strip_prefix(TUNNEL_PREFIX)).collect()
}

/// Go's `%v` of a list of strings.
fn go_list(names: &[&str]) -> String {
    format!("[{}]", names.join(" "))
}

/// The first protocol of the client that the server has.
pub(crate) fn negotiate<'a>(offered: &[&'a str], accepted: &[&str]) -> Result<&'a str, UpgradeRejection> {
    let found = offered.iter().find(|name| accepted.contains(*name));
    found.copied().ok_or_else(|| {
        let text = format!(
            "unable to upgrade: unable to negotiate protocol: client supports {}, server accepts {}",
            go_list(offered),
            go_list(accepted)
        );
        let mut refusal = UpgradeRejection::new(StatusCode::FORBIDDEN, text);
        for name in accepted {
            // Names of protocols are valid in headers.
            if let Ok(value) = HeaderValue::from_str(name) {
                refusal.headers.push((ACCEPTED_VERSIONS, value));
            }
        }
        refusal
    })
}

/// Accepts a request for SPDY/3.1 with one of these protocols.
pub(crate) fn spdy<'a>(
    request: UpgradeRequest<'a>,
    accepted: &[&str],
) -> Result<(&'a str, Response<()>, OnUpgrade), UpgradeRejection> {
    let headers = request.headers;
    let bad = |text: String| UpgradeRejection::new(StatusCode::BAD_REQUEST, text);
    if !headers.contains_key(&PROTOCOL_VERSION) {
        return Err(bad(format!(
            "unable to upgrade: header X-Stream-Protocol-Version does not exist in request with {} headers",
            headers.keys().filter(|name| **name != header::HOST).count()
        )));
    }
    let offered = list(headers, &PROTOCOL_VERSION);
    if offered.is_empty() {
        let values = headers.get_all(&PROTOCOL_VERSION).iter().filter_map(|v| v.to_str().ok());
        return Err(bad(format!(
            "unable to upgrade: header X-Stream-Protocol-Version contains {}, but no valid protocols",
            go_list(&values.collect::<Vec<_>>())
        )));
    }
    let protocol = negotiate(&offered, accepted)?;
    let upgrade = headers.get(header::UPGRADE);
    if !is_upgrade(headers) || !upgrade.is_some_and(|value| contains(value, "spdy/3.1")) {
        return Err(bad("unable to upgrade: missing upgrade headers in request".to_owned()));
    }
    // Without one this is HTTP/2, or a request from within the process.
    let upgrade = request.upgrade.cloned().ok_or_else(|| {
        let text = "unable to upgrade: unable to hijack response";
        UpgradeRejection::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    })?;
    let response = switch(SPDY, [(PROTOCOL_VERSION, protocol)])?;
    Ok((protocol, response, upgrade))
}

/// Accepts a request for a WebSocket, with this subprotocol if it is not empty.
pub(crate) fn websocket(
    request: UpgradeRequest<'_>,
    protocol: &str,
) -> Result<(Response<()>, OnUpgrade), UpgradeRejection> {
    let bytes = |name| request.headers.get(name).map(HeaderValue::as_bytes).unwrap_or_default();
    let bad = |text: &str| UpgradeRejection::new(StatusCode::BAD_REQUEST, text);
    let upgrade = request.upgrade.cloned().filter(|_| request.method == Method::GET);
    let upgrade = upgrade.ok_or_else(|| bad("not websocket protocol"))?;
    let key = bytes(header::SEC_WEBSOCKET_KEY);
    if key.is_empty() {
        return Err(bad("mismatch challenge/response"));
    }
    if bytes(header::SEC_WEBSOCKET_VERSION) != WEBSOCKET_VERSION {
        let mut refusal = bad("missing or bad WebSocket Version");
        refusal.headers.push((header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13")));
        return Err(refusal);
    }
    let mut hash = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    hash.update(key);
    hash.update(GUID);
    let accept = STANDARD.encode(hash.finish());
    let chosen = (!protocol.is_empty()).then_some((header::SEC_WEBSOCKET_PROTOCOL, protocol));
    let response = switch("websocket", [(header::SEC_WEBSOCKET_ACCEPT, &*accept)].into_iter().chain(chosen))?;
    Ok((response, upgrade))
}

fn switch<'a>(
    protocol: &'static str,
    more: impl IntoIterator<Item = (HeaderName, &'a str)>,
) -> Result<Response<()>, UpgradeRejection> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(protocol));
    for (name, value) in more {
        let value = HeaderValue::from_str(value).map_err(|_| {
            UpgradeRejection::new(StatusCode::BAD_REQUEST, "unable to upgrade: invalid header")
        })?;
        headers.insert(name, value);
    }
    Ok(response)
}

/// The subprotocol of a WebSocket with channels: the first that the client offers and the server has, or none if the client
/// offers none.
pub(crate) fn channel_protocol<'a>(
    headers: &'a HeaderMap,
    accepted: &[&str],
) -> Result<&'a str, UpgradeRejection> {
    let offered = subprotocols(headers);
    if offered.is_empty() {
        return Ok("");
    }
    // Go's server answers without a text.
    let found = offered.iter().find(|name| accepted.contains(*name));
    found.copied().ok_or_else(|| UpgradeRejection::new(StatusCode::FORBIDDEN, ""))
}
