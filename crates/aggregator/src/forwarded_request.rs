//! A request as the server behind an APIService gets it.
//!
//! Invariants:
//! - This server alone states the user and the origin of a request: whatever the client states about either,
//!   in any spelling that a server might take for it, is left out.
//! - What was authorized is what is sent: path and query go on as they were understood here.

use crate::ForwardContext;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, header, request::Parts};
use kaji_meta::query::escape_except;
use kaji_outbound::{
    RequestBody, body,
    reverse_proxy::{escaped, forwarded},
};
use kaji_resource::UserInfo;

const USER: HeaderName = HeaderName::from_static("x-remote-user");
const UID: HeaderName = HeaderName::from_static("x-remote-uid");
const GROUP: HeaderName = HeaderName::from_static("x-remote-group");
const EXTRA: &str = "x-remote-extra-";

/// The request to send.
///
/// # Errors
/// When something of it cannot be said in HTTP.
pub(crate) fn request(
    parts: &Parts,
    request_body: RequestBody,
    facts: &ForwardContext<'_>,
    upgrade: bool,
) -> Result<Request<RequestBody>, String> {
    let (mut headers, host) = forwarded(parts, facts.remote, upgrade)?;
    let path = escaped(facts.path);
    headers.insert("x-forwarded-uri", HeaderValue::from_str(&path).map_err(|e| e.to_string())?);
    headers.extend(host.map(|h| (HeaderName::from_static("x-forwarded-host"), h)));
    headers.insert("x-forwarded-proto", HeaderValue::from_static("https"));
    identify(&mut headers, facts.user)?;
    headers.insert("audit-id", facts.audit_id.clone());
    let mut target = path;
    if !facts.query.is_empty() {
        target.push('?');
        target.push_str(&facts.query.encode(facts.resource));
    }
    let mut request = Request::new(request_body);
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = target.parse::<Uri>().map_err(|e| e.to_string())?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// A request of this server's own, which takes whatever form the answer has.
pub(crate) fn own_request(path: &str, user: &UserInfo) -> Request<RequestBody> {
    let mut request = Request::new(body(Bytes::new()));
    // A path that is none leads to the root, where the answer is of no use either.
    *request.uri_mut() = path.parse().unwrap_or_default();
    let headers = request.headers_mut();
    headers.insert(header::USER_AGENT, HeaderValue::from_static("kube-aggregator"));
    // Names of this server's own are plain.
    let _ = identify(headers, user);
    request
}

/// Sets the headers that name the user of the request.
fn identify(headers: &mut HeaderMap, user: &UserInfo) -> Result<(), String> {
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
    escape_except(key.as_bytes(), legal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::Query;
    use kaji_outbound::reverse_proxy::{is_loop, is_upgrade};
    use kaji_testing::headers::show;
    use std::collections::BTreeMap;

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
        let facts = ForwardContext {
            path: "/apis/a.io/v1/x y/é",
            query: &Query::parse("watch=f&watch=0&labelSelector=a%3Db,c&dryRun=All&dryRun=&b=1;2"),
            resource: true,
            user: &user,
            audit_id: &HeaderValue::from_static("id"),
            remote: Some([10, 1, 2, 3].into()),
            time: None,
            connection: None,
        };
        super::request(&parts, body(Bytes::new()), &facts, upgrade).unwrap()
    }

    /// What clients might say to be taken for others.
    const CLAIMS: [(&str, &str); 14] = [
        ("x-remote-user", "root"),
        ("x_remote_user", "root"),
        ("x-remote_group", "system:masters"),
        ("x-remote-group", "system:masters"),
        ("x-remote-extra-foo", "bar"),
        ("x_remote_extra_foo", "bar"),
        ("x-forwarded-for", "1.1.1.1"),
        ("x_forwarded_for", "1.1.1.1"),
        ("x-forwarded-host", "evil"),
        ("x-forwarded-client-cert", "evil"),
        ("forwarded", "for=1.1.1.1"),
        ("x-real-ip", "1.1.1.1"),
        ("impersonate_user", "root"),
        ("accept", "*/*"),
    ];

    #[test]
    fn identity_and_origin_are_said_by_this_server_alone() {
        let hops = [("connection", "close, x-private"), ("x-private", "1"), ("te", "gzip")];
        let request = sent(false, &[&CLAIMS[..], &hops].concat());
        expect_test::expect![[r#"
            /apis/a.io/v1/x%20y/%C3%A9?dryRun=All&dryRun=&labelSelector=a%3Db%2Cc&watch=true
            accept: */*
            audit-id: id
            via: 1.1 kube-aggregator
            x-forwarded-for: 10.1.2.3
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
    fn own_requests_take_any_form() {
        let user = UserInfo { name: "prober".into(), groups: vec!["g".into()], ..UserInfo::default() };
        let request = own_request("/apis/a.io/v1", &user);
        expect_test::expect![[r#"
            /apis/a.io/v1
            user-agent: kube-aggregator
            x-remote-group: g
            x-remote-user: prober
        "#]]
        .assert_eq(&format!("{}\n{}", request.uri(), show(request.headers())));
    }

    #[test]
    fn upgrades_keep_their_headers() {
        let headers = [("connection", "keep-alive, Upgrade"), ("upgrade", "SPDY/3.1")];
        let request = sent(true, &[&CLAIMS[..], &headers].concat());
        assert!(is_upgrade(request.headers()));
        expect_test::expect![[r#"
            accept: */*
            audit-id: id
            connection: Upgrade
            upgrade: SPDY/3.1
            via: 1.1 kube-aggregator
            x-forwarded-for: 10.1.2.3
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
        .assert_eq(&show(request.headers()));
    }

    #[test]
    fn a_request_that_keeps_coming_back_is_a_loop() {
        let mut headers = HeaderMap::new();
        headers.append("via", HeaderValue::from_static("1.1 proxy.example, 1.0 other"));
        for pass in 0..4 {
            assert!(!is_loop(&headers), "{pass}");
            let all: Vec<HeaderValue> = headers.get_all("via").iter().cloned().collect();
            let mut request = Request::get("https://api/apis/a.io/v1/x");
            for value in &all {
                request = request.header("via", value);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            let facts = ForwardContext {
                path: "/apis/a.io/v1/x",
                query: &Query::default(),
                resource: true,
                user: &UserInfo::default(),
                audit_id: &HeaderValue::from_static("id"),
                remote: None,
                time: None,
                connection: None,
            };
            let sent = super::request(&parts, body(Bytes::new()), &facts, false).unwrap();
            headers = sent.headers().clone();
        }
        assert!(is_loop(&headers));
        // Also when something in between has put the values into one line.
        let line = headers.get_all("via").iter().map(|v| v.to_str().unwrap()).collect::<Vec<_>>().join(", ");
        headers.insert("via", HeaderValue::from_str(&line).unwrap());
        assert!(is_loop(&headers));
    }
}
