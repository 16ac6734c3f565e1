//! How HTTP is spoken on a connection, here and by whoever else listens.
//!
//! Invariants: a client that says nothing is not waited for for ever; heads and streams are bounded.

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
const SILENCE: Duration = Duration::from_secs(90);
/// Bytes of a request's line and headers, as Go's servers take them.
const MAX_HEAD: usize = 1 << 20;

/// Headers of a request over HTTP/1. Go counts bytes alone; here each needs a place before it is read.
const MAX_HEADERS: usize = 2048;

/// Speaks what was agreed on in that handshake, with so many streams at once where there are streams. Served with upgrades,
/// it is found out by what the client says first.
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

/// Whether a client has asked anything yet.
#[derive(Clone, Default)]
pub struct Spoken(Arc<AtomicBool>);

impl Spoken {
    /// It has.
    pub fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Serves a connection, unless its client asks nothing for a while after the handshake: `None`.
    pub async fn serve<F: Future>(&self, connection: F) -> Option<F::Output> {
        self.within(SILENCE, connection).await
    }

    async fn within<F: Future>(&self, silence: Duration, connection: F) -> Option<F::Output> {
        let mut connection = pin!(connection);
        match tokio::time::timeout(silence, &mut connection).await {
            Ok(outcome) => Some(outcome),
            Err(_) if self.0.load(Ordering::Relaxed) => Some(connection.await),
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    #[tokio::test]
    async fn who_says_nothing_is_let_go_and_who_has_asked_is_not() {
        let silent = Spoken::default();
        assert_eq!(silent.within(Duration::ZERO, pending::<()>()).await, None);
        let asks = Spoken::default();
        asks.note();
        let served = asks.within(Duration::ZERO, tokio::time::sleep(Duration::from_millis(1)));
        assert_eq!(served.await, Some(()));
    }
}
