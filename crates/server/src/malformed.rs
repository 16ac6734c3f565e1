//! Requests over a socket that Go's server refuses before any handler sees them.

use crate::{body::ResponseBody, plain};
use http::{HeaderValue, Request, Response, Version, header};
use kaji_meta::query::has_broken_escape;

/// The response to a malformed request: 400, after which the connection ends. Source: Go's `net/http`
/// (`readRequest`, `conn.readRequest`).
pub fn refusal<B>(request: &Request<B>) -> Option<Response<ResponseBody>> {
    let text = reason(request)?;
    let mut response = plain::text(400, "text/plain; charset=utf-8", text);
    response.headers_mut().remove(header::CACHE_CONTROL);
    response.headers_mut().remove(header::X_CONTENT_TYPE_OPTIONS);
    if request.version() < Version::HTTP_2 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Some(response)
}

fn reason<B>(request: &Request<B>) -> Option<&'static str> {
    if has_broken_escape(request.uri().path()) {
        return Some("400 Bad Request");
    }
    if request.version() >= Version::HTTP_2 {
        return None;
    }
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (_, Some(_)) => Some("400 Bad Request"),
        (None, None) if request.version() == Version::HTTP_11 => {
            Some("400 Bad Request: missing required Host header")
        }
        (Some(host), None) if !host.as_bytes().iter().all(|b| is_host_byte(*b)) => {
            Some("400 Bad Request: malformed Host header")
        }
        _ => None,
    }
}

/// Source: `httpguts.ValidHostHeader`.
fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=[]_~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_is_required_and_escapes_are_whole() {
        let ask = |version, path: &str, hosts: &[&str]| {
            let request = hosts.iter().fold(Request::get(path).version(version), |r, h| r.header("host", *h));
            reason(&request.body(()).unwrap()).unwrap_or("fine")
        };
        let old = Version::HTTP_11;
        assert_eq!(ask(old, "/a%2Fb?c=%zz", &["x:6443"]), "fine");
        assert_eq!(ask(old, "/", &[""]), "fine");
        assert_eq!(ask(old, "/%zz", &["x"]), "400 Bad Request");
        assert_eq!(ask(old, "/", &["x", "x"]), "400 Bad Request");
        assert_eq!(ask(old, "/", &["a b"]), "400 Bad Request: malformed Host header");
        assert_eq!(ask(old, "/", &[]), "400 Bad Request: missing required Host header");
        assert_eq!(ask(Version::HTTP_10, "/", &[]), "fine");
        assert_eq!(ask(Version::HTTP_2, "/", &[]), "fine");
        assert_eq!(ask(Version::HTTP_2, "/%4", &[]), "400 Bad Request");
    }
}
