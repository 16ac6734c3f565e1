//! Requests to a cluster as any user, inside the process.

use super::TestCluster;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use kaji_auth::names::{AUTHENTICATED, MASTERS};
use kaji_resource::UserInfo;
use kaji_server::LocalService;
use serde_json::Value;
use tower::ServiceExt;

/// A user in these groups.
pub fn user(name: &str, groups: &[&str]) -> UserInfo {
    let groups = groups.iter().map(|g| (*g).to_owned()).collect();
    UserInfo { name: name.into(), groups, ..UserInfo::default() }
}

/// An authenticated user.
pub fn person(name: &str) -> UserInfo {
    user(name, &[AUTHENTICATED])
}

/// A user with every right.
pub fn admin() -> UserInfo {
    user("admin", &[MASTERS, AUTHENTICATED])
}

/// `METHOD path`, then lines of headers; a merge patch if the method is PATCH. Code and body, which is a string if it is
/// no JSON.
pub async fn ask(cluster: &TestCluster, user: &UserInfo, request: &str, body: &Value) -> (u16, Value) {
    let mut lines = request.lines();
    let (method, path) = lines.next().unwrap().split_once(' ').unwrap();
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let bytes = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let mut request = http::Request::builder().method(method).uri(path).header("content-type", kind);
    for header in lines {
        let (name, value) = header.split_once(": ").unwrap();
        request = request.header(name, value);
    }
    let service = LocalService::new(cluster.cluster.stack.clone(), user.clone());
    let response = service.oneshot(request.body(Full::new(bytes)).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default();
    let text = || Value::from(String::from_utf8_lossy(&body).into_owned());
    (code, serde_json::from_slice(&body).unwrap_or_else(|_| text()))
}

/// The same, for what must succeed.
pub async fn ok(cluster: &TestCluster, user: &UserInfo, request: &str, body: Value) -> Value {
    let (code, answer) = ask(cluster, user, request, &body).await;
    assert!(code < 300, "{request}: {answer}");
    answer
}
