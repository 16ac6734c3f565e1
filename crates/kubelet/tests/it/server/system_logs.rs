//! The node's logs: lists, files, ranges, and what is not served.

use super::{Served, whole};
use bytes::Bytes;
use expect_test::expect;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

/// A node with logs; their directory.
async fn with_logs() -> (Served, PathBuf) {
    let served = Served::start().await;
    let logs = served.fake.cx.config.system_log_dir.clone();
    std::fs::create_dir_all(logs.join("pods/n_p_u/c")).unwrap();
    std::fs::create_dir(logs.join("containers")).unwrap();
    std::fs::write(logs.join("pods/n_p_u/c/0.log"), "a container's log\n").unwrap();
    symlink(logs.join("pods/n_p_u/c/0.log"), logs.join("containers/p_n_c.log")).unwrap();
    std::fs::write(logs.join("boot.log"), "0123456789").unwrap();
    std::fs::write(logs.join("empty"), "").unwrap();
    std::fs::write(logs.join("a <b>&\"c\".log"), "<script>\n").unwrap();
    std::fs::write(logs.join("wtmp"), [7, 0, 0, 0]).unwrap();
    std::fs::write(logs.join("old.gz"), [0x1f, 0x8b, 8, 0]).unwrap();
    (served, logs)
}

fn header(response: &Response<Incoming>, name: &str) -> String {
    response.headers().get(name).map_or_else(|| "-".into(), |value| value.to_str().unwrap().to_owned())
}

async fn ask(served: &Served, path: &str, range: &str) -> Response<Incoming> {
    let request =
        Request::builder().uri(path).header("host", "node-1").header("authorization", "Bearer admin");
    let request = if range.is_empty() { request } else { request.header("range", range) };
    served.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await
}

#[tokio::test]
async fn lists_directories_and_serves_files() {
    let (served, _) = with_logs().await;
    let mut lines = vec![];
    for path in [
        "/logs",
        "/logs/",
        "/logs/pods",
        "/logs/pods/n_p_u/c/",
        "/logs/pods/n_p_u/../../pods/n_p_u/c/0.log",
        "/logs/containers/p_n_c.log",
        "/logs/boot.log/",
        "/logs/empty",
        "/logs/a%20%3Cb%3E&%22c%22.log",
        "/logs/wtmp",
        "/logs/old.gz",
    ] {
        let response = ask(&served, path, "").await;
        let [content_type, location] = ["content-type", "location"].map(|name| header(&response, name));
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8_lossy(&body).into_owned();
        lines.push(format!("{path}: {code} {content_type} {location} {body:?}"));
    }
    expect![[r#"
        /logs: 301 text/plain; charset=utf-8 /logs/ ""
        /logs/: 200 text/html; charset=utf-8 - "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n<a href=\"a%20%3Cb%3E%26%22c%22.log\">a &lt;b&gt;&amp;&#34;c&#34;.log</a>\n<a href=\"boot.log\">boot.log</a>\n<a href=\"containers/\">containers/</a>\n<a href=\"empty\">empty</a>\n<a href=\"old.gz\">old.gz</a>\n<a href=\"pods/\">pods/</a>\n<a href=\"wtmp\">wtmp</a>\n</pre>\n"
        /logs/pods: 301 text/plain; charset=utf-8 pods/ ""
        /logs/pods/n_p_u/c/: 200 text/html; charset=utf-8 - "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n<a href=\"0.log\">0.log</a>\n</pre>\n"
        /logs/pods/n_p_u/../../pods/n_p_u/c/0.log: 200 text/plain; charset=utf-8 - "a container's log\n"
        /logs/containers/p_n_c.log: 200 text/plain; charset=utf-8 - "a container's log\n"
        /logs/boot.log/: 301 text/plain; charset=utf-8 ../boot.log ""
        /logs/empty: 200 text/plain; charset=utf-8 - ""
        /logs/a%20%3Cb%3E&%22c%22.log: 200 text/plain; charset=utf-8 - "<script>\n"
        /logs/wtmp: 200 application/octet-stream - "\u{7}\0\0\0"
        /logs/old.gz: 200 application/x-gzip - "\u{1f}�\u{8}\0""#]].assert_eq(&lines.join("\n"));
}

#[tokio::test]
async fn serves_ranges_of_files() {
    let (served, _) = with_logs().await;
    let mut lines = vec![];
    for range in [
        "",
        "bytes=0-0",
        "bytes=2-4",
        "bytes=8-",
        "bytes=-3",
        "bytes=-30",
        "bytes=9-99",
        "bytes=10-",
        "bytes=-0",
        "bytes=4-2",
        "bytes=0-1,3-4",
        "lines=1-2",
        "bytes=x-",
    ] {
        let response = ask(&served, "/logs/boot.log", range).await;
        let [length, range_sent] = ["content-length", "content-range"].map(|name| header(&response, name));
        let (code, body) = whole(response).await;
        lines.push(format!("{range}: {} {length} {range_sent} {body:?}", code.as_u16()));
    }
    assert_eq!(ask(&served, "/logs/empty", "bytes=0-4").await.status(), StatusCode::OK);
    expect![[r#"
        : 200 10 - "0123456789"
        bytes=0-0: 206 1 bytes 0-0/10 "0"
        bytes=2-4: 206 3 bytes 2-4/10 "234"
        bytes=8-: 206 2 bytes 8-9/10 "89"
        bytes=-3: 206 3 bytes 7-9/10 "789"
        bytes=-30: 206 10 bytes 0-9/10 "0123456789"
        bytes=9-99: 206 1 bytes 9-9/10 "9"
        bytes=10-: 416 33 bytes */10 "invalid range: failed to overlap\n"
        bytes=-0: 416 33 bytes */10 "invalid range: failed to overlap\n"
        bytes=4-2: 200 10 - "0123456789"
        bytes=0-1,3-4: 200 10 - "0123456789"
        lines=1-2: 200 10 - "0123456789"
        bytes=x-: 200 10 - "0123456789""#]]
    .assert_eq(&lines.join("\n"));
}

#[tokio::test]
async fn serves_nothing_outside_of_the_directory() {
    let (served, logs) = with_logs().await;
    let secret = logs.parent().unwrap().join("secret");
    std::fs::write(&secret, "secret").unwrap();
    std::fs::create_dir(logs.join("down")).unwrap();
    symlink(&secret, logs.join("absolute")).unwrap();
    symlink("../../secret", logs.join("down/relative")).unwrap();
    symlink(logs.parent().unwrap(), logs.join("up")).unwrap();
    symlink("loop", logs.join("loop")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, logs.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    for path in [
        "absolute",
        "down/relative",
        "up/secret",
        "up",
        "up/",
        "loop",
        "pipe",
        "../secret",
        "..%2fsecret",
        "%2e%2e/secret",
        "none",
        "boot.log/below",
        "a%00b",
    ] {
        let (code, body) = served.get(&format!("/logs/{path}")).await;
        assert_eq!((code, body.as_str()), (StatusCode::NOT_FOUND, "404 page not found\n"), "{path}");
    }
    let refused = served.send(Method::POST, "/logs/boot.log", "admin").await;
    assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
    let refused = served.send(Method::GET, "/logs/boot.log", "").await;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn lists_no_directory_without_bound() {
    let (served, logs) = with_logs().await;
    std::fs::create_dir(logs.join("many")).unwrap();
    for entry in 0..20_000 {
        std::fs::File::create(logs.join("many").join(entry.to_string())).unwrap();
    }
    let (code, page) = served.get("/logs/many/").await;
    assert_eq!((code, page.matches("<a href").count()), (StatusCode::OK, 20_000));
    std::fs::File::create(logs.join("many/more")).unwrap();
    let refused = (StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error\n".to_owned());
    assert_eq!(served.get("/logs/many/").await, refused);
    assert_eq!(served.get("/logs/many/more").await, (StatusCode::OK, String::new()));
}
