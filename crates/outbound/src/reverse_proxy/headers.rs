//! The headers of a request that is sent on to another server, and of its response.
//!
//! Invariants:
//! - This server alone states the user and the origin of a request: whatever the client states about either,
//!   in any spelling that a server might take for it, is left out.
//! - Every pass through an API server leaves a mark, so that a request that comes back again and again is refused.
//! - The length of a body is said by the connection that carries it, never by a header that was copied.

use http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts};
use kaji_meta::query::escape_except;
use std::net::IpAddr;

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
/// What only this server says. Many servers cannot tell `_` from `-` in a header's name.
const OURS: [&str; 5] = ["x-remote-", "x-forwarded-", "impersonate-", "x-real-ip", "audit-id"];
/// The same, where the whole name counts.
const OURS_WHOLE: [&str; 3] = ["forwarded", "authorization", "via"];
/// By this name the API servers of a cluster know themselves in `Via` (RFC 9110, 7.6.3).
const PSEUDONYM: &str = "kube-aggregator";
/// An extension server may send a request to an API server on behalf of the client that it serves, which another
/// extension server answers; deeper than this it is a loop.
const MAX_PASSES: usize = 4;

/// Whether a request has come through API servers so often that it goes around in a circle.
pub fn is_loop(headers: &HeaderMap) -> bool {
    let entries = headers.get_all(header::VIA).iter().flat_map(|v| v.as_bytes().split(|b| *b == b','));
    let ours = |entry: &&[u8]| entry.trim_ascii_end().ends_with(PSEUDONYM.as_bytes());
    entries.filter(ours).count() >= MAX_PASSES
}

/// The headers of a request as they are sent on, and the host that the client named, which is not among them.
///
/// # Errors
/// When something of it cannot be said in HTTP.
pub fn forwarded(
    parts: &Parts,
    remote: Option<IpAddr>,
    upgrade: bool,
) -> Result<(HeaderMap, Option<HeaderValue>), String> {
    let mut headers = parts.headers.clone();
    let protocol = headers.get(header::UPGRADE).cloned();
    let host = headers.remove(header::HOST);
    // An HTTP/2 client says it in the request's target.
    let host = host.or_else(|| HeaderValue::from_str(parts.uri.authority()?.as_str()).ok());
    remove_hops(&mut headers);
    headers.remove(header::EXPECT);
    headers.remove(header::CONTENT_LENGTH);
    let passes: Vec<HeaderValue> = headers.get_all(header::VIA).iter().cloned().collect();
    remove_ours(&mut headers);
    if upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.extend(protocol.map(|p| (header::UPGRADE, p)));
    }
    if let Some(remote) = remote {
        let remote = HeaderValue::from_str(&remote.to_string()).map_err(|e| e.to_string())?;
        headers.insert("x-forwarded-for", remote);
    }
    for pass in passes {
        headers.append(header::VIA, pass);
    }
    let version = if parts.version >= http::Version::HTTP_2 { "2" } else { "1.1" };
    let pass = HeaderValue::from_str(&format!("{version} {PSEUDONYM}")).map_err(|e| e.to_string())?;
    headers.append(header::VIA, pass);
    Ok((headers, host))
}

fn remove_ours(headers: &mut HeaderMap) {
    let ours = |name: &&HeaderName| {
        let name = name.as_str().replace('_', "-");
        OURS.iter().any(|prefix| name.starts_with(prefix)) || OURS_WHOLE.contains(&name.as_str())
    };
    let said: Vec<HeaderName> = headers.keys().filter(ours).cloned().collect();
    said.iter().for_each(|name| drop(headers.remove(name)));
}

/// A path as Go's `URL.EscapedPath` writes it.
pub fn escaped(path: &str) -> String {
    escape_except(path.as_bytes(), |b| b.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&b))
}

/// Removes what is about one connection alone.
pub fn remove_hops(headers: &mut HeaderMap) {
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

/// Whether a client asks for another protocol on its connection.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    let lower = |v: &HeaderValue| v.to_str().unwrap_or_default().to_ascii_lowercase();
    headers.get_all(header::CONNECTION).iter().any(|v| lower(v).contains("upgrade"))
}
