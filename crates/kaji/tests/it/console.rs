//! The console's files over TLS, to clients without credentials.

use crate::common::{TestCluster, wire};
use bytes::Bytes;
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt, Empty};

async fn ask(cluster: &TestCluster, line: &str, headers: &[(&str, &str)]) -> (u16, HeaderMap, Bytes) {
    let (method, path) = line.split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let stream = wire::connect(cluster, false).await;
    let response = wire::send_on(stream, request.body(Empty::new()).unwrap()).await;
    let (parts, body) = response.into_parts();
    (parts.status.as_u16(), parts.headers, body.collect().await.unwrap().to_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_is_served_without_credentials_and_nothing_else_is() {
    // Without anonymous users, so that what is answered here needs no user at all.
    let cluster = TestCluster::start_with(|options| options.authn.anonymous_auth = Some(false)).await;
    let (code, headers, body) = ask(&cluster, "GET /console", &[]).await;
    assert_eq!((code, &headers[header::LOCATION], body.len()), (308, &"/console/".parse().unwrap(), 0));
    let (code, headers, body) = ask(&cluster, "GET /console/", &[]).await;
    let page = String::from_utf8(body.to_vec()).unwrap();
    let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
    let nonce = page.split("csp-nonce\" content=\"").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!((code, nonce.len()), (200, 32));
    assert!(
        policy.contains("script-src 'self';") && policy.contains(&format!("'nonce-{nonce}'")),
        "{policy}"
    );
    let (_, other, _) = ask(&cluster, "GET /console/", &[]).await;
    assert_ne!(other[header::CONTENT_SECURITY_POLICY], headers[header::CONTENT_SECURITY_POLICY]);

    let module = page.split("src=\"").nth(1).unwrap().split('"').next().unwrap();
    let (code, headers, plain) = ask(&cluster, &format!("GET {module}"), &[]).await;
    assert_eq!(
        (code, &headers[header::CONTENT_TYPE]),
        (200, &"text/javascript; charset=utf-8".parse().unwrap())
    );
    assert!(
        headers[header::CACHE_CONTROL].to_str().unwrap().contains("immutable") && plain.starts_with(b"//")
    );
    let etag = headers[header::ETAG].to_str().unwrap();
    let (code, _, body) = ask(&cluster, &format!("GET {module}"), &[("if-none-match", etag)]).await;
    assert_eq!((code, body.len()), (304, 0));
    let (_, headers, packed) = ask(&cluster, &format!("GET {module}"), &[("accept-encoding", "gzip")]).await;
    assert_eq!(headers[header::CONTENT_ENCODING], "gzip");
    assert!(packed.len() < plain.len());
    let (code, headers, body) = ask(&cluster, &format!("HEAD {module}"), &[]).await;
    assert_eq!((code, body.len()), (200, 0));
    assert_eq!(headers[header::CONTENT_LENGTH], plain.len().to_string());

    let traversal = [
        "GET /console/../api/v1/namespaces",
        "GET /console/%2e%2e/api/v1/namespaces",
        "GET /console/../../etc/passwd",
        "GET /console/none",
        "GET /console//",
    ];
    for line in traversal {
        let (code, _, body) = ask(&cluster, line, &[]).await;
        assert_eq!((code, &*body), (404, &b"404 page not found\n"[..]), "{line}");
    }
    assert_eq!(ask(&cluster, "POST /console/", &[]).await.0, 405);
    for line in ["GET /consoles", "GET /api/v1/namespaces", "GET /kaji/why", "GET //console/"] {
        assert_eq!(ask(&cluster, line, &[]).await.0, 401, "{line}");
    }
    cluster.stop().await;
}
