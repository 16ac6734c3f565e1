//! The console's files: a web page and its modules, in the program, compressed.
//!
//! Below `/console/` is the page; its modules and styles are below `/console/<digest>/`, where the digest is that of all files, so
//! that browsers may keep them for ever, and a module never meets one of another version.
//!
//! Invariants:
//! - Nothing of a cluster is in a file, and none is made from what a request says: the answers are the same for every client, but for
//!   the nonce of a page. So they need no credentials.
//! - A page's scripts come from here and nowhere, its styles too, or carry the nonce; only the page that signs in with an identity
//!   provider may connect to other hosts, and it loads one module, which shows nothing of a cluster.
//! - A path is looked up as it is in the table of files: there is no file system behind it.

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use std::io::Read as _;

include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// Where the console is.
pub const ROOT: &str = "/console";

const NOT_FOUND: &[u8] = b"404 page not found\n";
const INDEX: &str = include_str!("../web/index.html");
const OIDC: &str = include_str!("../web/oidc.html");

/// A file of the console.
struct File {
    path: &'static str,
    etag: &'static str,
    gzip: &'static [u8],
}

/// Answers a request for a path of the console; `None` when it is none. `nonce` makes what cannot be guessed: letters and digits.
pub fn serve(
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    nonce: impl FnOnce() -> String,
) -> Option<Response<Bytes>> {
    let below = path.strip_prefix(ROOT)?;
    if !below.is_empty() && !below.starts_with('/') {
        return None;
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut response = answer(StatusCode::METHOD_NOT_ALLOWED, "text/plain; charset=utf-8", Bytes::new());
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Some(response);
    }
    Some(match below {
        "" => {
            let mut response =
                answer(StatusCode::PERMANENT_REDIRECT, "text/plain; charset=utf-8", Bytes::new());
            response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/console/"));
            response
        }
        "/" => page(INDEX, "'self'", &nonce()),
        "/oidc" => page(OIDC, "'self' https:", &nonce()),
        _ => match FILES.iter().find(|file| address(file) == below) {
            Some(file) => send(file, headers),
            None => answer(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", Bytes::from_static(NOT_FOUND)),
        },
    })
}

/// The path of a file below the root.
fn address(file: &File) -> String {
    format!("/{DIGEST}/{}", file.path)
}

/// A page with its policy. It is never kept: the nonce in it is that of its answer's header.
fn page(template: &str, connect: &str, nonce: &str) -> Response<Bytes> {
    let text = template.replace("{{digest}}", DIGEST).replace("{{nonce}}", nonce);
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; font-src 'self'; \
         connect-src {connect}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let mut response = answer(StatusCode::OK, "text/html; charset=utf-8", text.into());
    let headers = response.headers_mut();
    // Letters, digits and what stands above: a header takes it.
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(OPENER, HeaderValue::from_static("same-origin"));
    response
}

const OPENER: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

fn send(file: &File, headers: &HeaderMap) -> Response<Bytes> {
    let mut response = if is_kept(headers, file.etag) {
        answer(StatusCode::NOT_MODIFIED, content_type(file.path), Bytes::new())
    } else if takes_gzip(headers) {
        let mut response = answer(StatusCode::OK, content_type(file.path), Bytes::from_static(file.gzip));
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        response
    } else {
        answer(StatusCode::OK, content_type(file.path), unpacked(file))
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, HeaderValue::from_static(file.etag));
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable"));
    response
}

fn unpacked(file: &File) -> Bytes {
    let mut bytes = Vec::new();
    // What the build packed.
    match GzDecoder::new(file.gzip).read_to_end(&mut bytes) {
        Ok(_) => bytes.into(),
        Err(_) => Bytes::new(),
    }
}

fn answer(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("html") => "text/html; charset=utf-8",
        _ => "application/octet-stream",
    }
}

fn is_kept(headers: &HeaderMap, etag: &str) -> bool {
    let given = headers.get(header::IF_NONE_MATCH).and_then(|v| v.to_str().ok()).unwrap_or_default();
    given.split(',').any(|tag| matches!(tag.trim(), "*") || tag.trim().trim_start_matches("W/") == etag)
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT_ENCODING).and_then(|v| v.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|encoding| {
        let mut parts = encoding.trim().split(';');
        parts.next() == Some("gzip") && !parts.any(|part| part.trim() == "q=0")
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "test code: a panic is a failure")]
mod tests;
