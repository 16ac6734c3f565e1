//! A small HTTP/1 server of pages: health checks and metrics of a node's parts.
//!
//! Invariants: the number of connections is bounded; a request's head has to arrive in time; bodies are not read.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response, StatusCode, body::Incoming, header::HeaderValue, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use kaji_netfilter::Family;
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::Semaphore};

/// Connections to one listener.
const CONNECTIONS: usize = 64;
/// For a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// What is answered at a path.
pub type Pages = Arc<dyn Fn(&str) -> Response<Full<Bytes>> + Send + Sync>;

/// What is answered at a path, to clients of each family.
pub type FamilyPages = Arc<dyn Fn(Family, &str) -> Response<Full<Bytes>> + Send + Sync>;

/// A response with a body of a type.
#[must_use]
pub fn page(code: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static(content_type));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// Upstream's answer at a path that is not served.
#[must_use]
pub fn not_found() -> Response<Full<Bytes>> {
    page(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n".to_owned())
}

/// Serves until the future is dropped.
pub async fn serve(listener: TcpListener, pages: Pages) {
    serve_families(listener, Arc::new(move |_: Family, path: &str| pages(path))).await;
}

/// Serves until the future is dropped. One listener may be for both families.
pub async fn serve_families(listener: TcpListener, pages: FamilyPages) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        // The semaphore is never closed.
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection of the metrics and health server failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // A listener of IPv6 shows a client of IPv4 with a mapped address.
        let family = Family::of(client.ip().to_canonical());
        let pages = pages.clone();
        connections.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let response = pages(family, request.uri().path());
                async move { Ok::<_, Infallible>(response) }
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            if let Err(error) = served {
                tracing::debug!(%error, "a connection of the metrics and health server failed");
            }
            drop(permit);
        });
    }
}
