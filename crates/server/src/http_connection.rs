//! The configuration of HTTP/1.1 and h2 on a connection, for this server and those of simulated kubelets.
//!
//! Invariants: a connection without a request is closed after a while; request heads and streams are bounded.

use http::{Method, Response, header};
use http_body_util::{Either, Empty};
use hyper::body::Body;
use hyper_util::{
    rt::{TokioExecutor, TokioTimer},
    server::conn::auto,
};
use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio_rustls::rustls::ServerConnection;

const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Upstream's `IdleTimeout`.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Bytes of a request's line and headers, as Go's servers take them.
const MAX_HEAD: usize = 1 << 20;

/// Headers of a request over HTTP/1. Go counts bytes alone; here memory for all of them is allocated and written, 64 bytes each,
/// before a request is read. Enough for a user with as many groups as a Windows token has (1,015), a header each.
const MAX_HEADERS: usize = 1056;

/// The protocol that the handshake negotiated, with a limit of open streams.
pub fn protocol(handshake: &ServerConnection, streams: u32) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .max_header_list_size(MAX_HEAD as u32)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(15));
    if handshake.alpn_protocol() == Some(b"h2") { builder.http2_only() } else { builder.http1_only() }
}

/// A response as a request of this method gets it: without a body for `HEAD`. hyper leaves it out over HTTP/1.1 alone, and to clients a
/// body over h2 is an error of the protocol.
pub fn leave_out_body_of_head<B: Body>(
    method: &Method,
    response: Response<B>,
) -> Response<Either<B, Empty<B::Data>>> {
    let (mut parts, body) = response.into_parts();
    if method != Method::HEAD {
        return Response::from_parts(parts, Either::Left(body));
    }
    if let Some(length) = body.size_hint().exact() {
        parts.headers.entry(header::CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    Response::from_parts(parts, Either::Right(Empty::new()))
}

/// Closes a connection on which no first request arrives in time.
#[derive(Clone, Default)]
pub struct FirstRequestTimeout(Arc<AtomicBool>);

impl FirstRequestTimeout {
    /// A request has arrived.
    pub fn received(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Serves a connection; `None` if no request arrives in time after the handshake.
    pub async fn serve<F: Future>(&self, connection: F) -> Option<F::Output> {
        self.within(IDLE_TIMEOUT, connection).await
    }

    async fn within<F: Future>(&self, timeout: Duration, connection: F) -> Option<F::Output> {
        let mut connection = pin!(connection);
        match tokio::time::timeout(timeout, &mut connection).await {
            Ok(outcome) => Some(outcome),
            Err(_) if self.0.load(Ordering::Relaxed) => Some(connection.await),
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;
    use std::future::pending;

    #[test]
    fn responses_to_head_have_no_body_but_its_length() {
        let answered = |method| leave_out_body_of_head(&method, Response::new(Full::new(&b"abc"[..])));
        let head = answered(Method::HEAD);
        assert!(head.body().is_end_stream());
        assert_eq!(head.headers()[header::CONTENT_LENGTH], "3");
        assert!(!answered(Method::GET).body().is_end_stream());
    }

    #[tokio::test]
    async fn closes_connections_without_a_request_only() {
        let idle = FirstRequestTimeout::default();
        assert_eq!(idle.within(Duration::ZERO, pending::<()>()).await, None);
        let active = FirstRequestTimeout::default();
        active.received();
        let served = active.within(Duration::ZERO, tokio::time::sleep(Duration::from_millis(1)));
        assert_eq!(served.await, Some(()));
    }
}
