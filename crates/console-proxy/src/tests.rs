//! The proxy before an API server that says what it was asked.

use super::*;
use http::HeaderMap;
use kaji_meta::random::SeededRandom;
use std::convert::Infallible;
use tower::service_fn;

const PORT: u16 = 4711;

/// An API server that answers with the request's line and headers.
fn proxy() -> Proxy {
    let echo = service_fn(|request: Request<kube::client::Body>| async move {
        let mut said = vec![format!("{} {}", request.method(), request.uri())];
        said.extend(
            request.headers().iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())),
        );
        let mut response = Response::new(Full::new(Bytes::from(said.join("\n"))));
        response.headers_mut().insert(header::SET_COOKIE, HeaderValue::from_static("a=b"));
        Ok::<_, Infallible>(response)
    });
    let client = kube::Client::new(echo, "default");
    Proxy::new(client, "https://cluster".into(), "shop".into(), Arc::new(SeededRandom::new(7)))
}

async fn ask(
    proxy: &Proxy,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, HeaderMap, String) {
    let mut request = Request::builder().method(method).uri(path);
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header("host", format!("127.0.0.1:{PORT}"));
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
    let (parts, body) = proxy.answer(request, PORT).await.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts.status.as_u16(), parts.headers, String::from_utf8_lossy(&body).into_owned())
}

async fn signed_in(proxy: &Proxy) -> String {
    let code = proxy.sessions.code();
    let (status, _, body) = ask(proxy, "POST", "/kaji-console/session", &[], &code).await;
    assert_eq!(status, 200, "{body}");
    let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(answer["namespace"], "shop");
    format!("Bearer {}", answer["token"].as_str().unwrap())
}

#[tokio::test]
async fn a_code_is_good_once_and_for_five_minutes() {
    let proxy = proxy();
    let code = proxy.sessions.code();
    assert_eq!(ask(&proxy, "POST", "/kaji-console/session", &[], &code).await.0, 200);
    assert_eq!(ask(&proxy, "POST", "/kaji-console/session", &[], &code).await.0, 403);
    assert_eq!(ask(&proxy, "POST", "/kaji-console/session", &[], "").await.0, 403);
    assert_eq!(ask(&proxy, "POST", "/kaji-console/session", &[], &"a".repeat(300)).await.0, 413);
    tokio::time::pause();
    let code = proxy.sessions.code();
    tokio::time::advance(Duration::from_secs(301)).await;
    assert_eq!(ask(&proxy, "POST", "/kaji-console/session", &[], &code).await.0, 403);
}

#[tokio::test]
async fn nothing_but_files_is_served_without_the_token() {
    let proxy = proxy();
    let token = signed_in(&proxy).await;
    assert_eq!(ask(&proxy, "GET", "/console/", &[], "").await.0, 200);
    assert_eq!(ask(&proxy, "GET", "/", &[], "").await.0, 307);
    for path in ["/api/v1/pods", "/kaji/why", "/kaji/why?subject=pod/a", "/metrics", "/other"] {
        assert_eq!(ask(&proxy, "GET", path, &[], "").await.0, 401, "{path}");
        assert_eq!(ask(&proxy, "GET", path, &[("authorization", "Bearer x")], "").await.0, 401, "{path}");
        assert_eq!(ask(&proxy, "GET", path, &[("cookie", &token)], "").await.0, 401, "{path}");
    }
    for path in ["/other", "/kaji/snapshot", "//api/v1/pods"] {
        assert_eq!(ask(&proxy, "GET", path, &[("authorization", &token)], "").await.0, 404, "{path}");
    }
}

#[tokio::test]
async fn pages_of_other_sites_reach_nothing() {
    let proxy = proxy();
    let token = signed_in(&proxy).await;
    for (name, value) in [
        ("host", "evil.example:4711"),
        ("host", "127.0.0.1:1"),
        ("origin", "https://evil.example"),
        ("origin", "null"),
    ] {
        for path in ["/api/v1/pods", "/console/", "/kaji-console/session"] {
            assert_eq!(
                ask(&proxy, "GET", path, &[(name, value), ("authorization", &token)], "").await.0,
                403,
                "{value}"
            );
        }
    }
    let own =
        [("origin", "http://localhost:4711"), ("host", "localhost:4711"), ("authorization", token.as_str())];
    assert_eq!(ask(&proxy, "GET", "/api/v1/pods", &own, "").await.0, 200);
}

#[tokio::test]
async fn what_authenticates_here_is_not_sent_on_and_no_user_is_chosen() {
    let proxy = proxy();
    let token = signed_in(&proxy).await;
    let headers = [
        ("authorization", token.as_str()),
        ("cookie", "a=b"),
        ("impersonate-user", "root"),
        ("x-remote-user", "root"),
        ("content-type", "application/json"),
        ("accept", "text/plain"),
    ];
    let (status, answer, body) = ask(&proxy, "POST", "/api/v1/pods?limit=5", &headers, "{}").await;
    assert_eq!((status, answer.get("set-cookie")), (200, None));
    let mut lines: Vec<&str> = body.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["POST /api/v1/pods?limit=5", "accept: text/plain", "content-type: application/json"]);
}

#[tokio::test]
async fn a_web_socket_carries_the_token_as_a_subprotocol() {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    let proxy = proxy();
    let token = signed_in(&proxy).await;
    let token = URL_SAFE_NO_PAD.encode(token.trim_start_matches("Bearer "));
    let admits = |text: String| {
        let mut headers = HeaderMap::new();
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, text.parse().unwrap());
        proxy.sessions.admits(&headers)
    };
    assert!(admits(format!("v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.{token}")));
    assert!(!admits(format!("v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.x{token}")));
    assert!(!admits("v5.channel.k8s.io".into()));
}

#[tokio::test]
async fn explanations_need_a_subject_and_a_turn() {
    let proxy = proxy();
    let token = signed_in(&proxy).await;
    let headers = [("authorization", token.as_str())];
    let (code, _, parameters) = ask(&proxy, "GET", "/kaji/why", &headers, "").await;
    assert_eq!((code, parameters.as_str()), (200, r#"{"parameters":["subject","namespace","refusal"]}"#));
    assert_eq!(ask(&proxy, "GET", "/kaji/why?subject=", &headers, "").await.0, 400);
    assert_eq!(ask(&proxy, "GET", "/kaji/why?refusal=nonsense", &headers, "").await.0, 400);
    let _all = proxy.explanations.acquire_many(u32::try_from(EXPLANATIONS).unwrap()).await.unwrap();
    assert_eq!(ask(&proxy, "GET", "/kaji/why?subject=pod/a", &headers, "").await.0, 429);
    assert_eq!(ask(&proxy, "GET", "/kaji/why", &headers, "").await.0, 200);
}
