//! How much of answers is read.

use super::*;
use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use std::convert::Infallible;
use tower::service_fn;

/// A server with answers of 60 bytes each.
fn client() -> kube::Client {
    let answer = service_fn(|_: Request<Body>| async {
        let text = format!("\"{}\"", "x".repeat(58));
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
    });
    kube::Client::new(answer, "default")
}

fn said<T>(answer: Result<T, RequestError>) -> String {
    match answer {
        Ok(_) => "read".to_owned(),
        Err(RequestError::Failed(text)) => text,
        Err(refusal) => format!("{refusal:?}"),
    }
}

#[tokio::test]
async fn all_answers_together_are_bounded() {
    let server = ApiServer::bounded(client(), 150);
    let answers = [
        said(server.get("/a").await),
        said(server.text("/b", 59).await),
        said(server.text("/c", 60).await),
        said(server.get("/d").await),
    ];
    expect_test::expect![[r"
        read
        /b: the answer has more than 59 bytes
        read
        /d: all answers together have more bytes than are read here"]]
    .assert_eq(&answers.join("\n"));
    let server = ApiServer::new(client());
    for _ in 0..4 {
        assert_eq!(said(server.get("/a").await), "read");
    }
}
