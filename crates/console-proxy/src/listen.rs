//! The listener: HTTP/1.1 on a loopback address, a bounded number of connections.

use crate::Proxy;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{convert::Infallible, io, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::Semaphore};

/// Connections at one time. A browser opens six, and one for each terminal.
const CONNECTIONS: usize = 128;
/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(10);
/// After a failure to accept, as when files run out.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until the task is dropped.
///
/// # Errors
/// When the listener has no address.
pub async fn serve(listener: TcpListener, proxy: Arc<Proxy>) -> io::Result<()> {
    let port = listener.local_addr()?.port();
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = tokio::task::JoinSet::new();
    loop {
        // Closed by nothing.
        let Ok(slot) = slots.clone().acquire_owned().await else { return Ok(()) };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "accept");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let proxy = proxy.clone();
        connections.spawn(async move {
            let _slot = slot;
            let service = service_fn(move |request: hyper::Request<Incoming>| {
                let proxy = proxy.clone();
                async move { Ok::<_, Infallible>(proxy.answer(request, port).await) }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEAD);
            let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection of the console ended");
            }
        });
    }
}
