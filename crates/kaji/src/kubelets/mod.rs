//! The servers of simulated nodes: HTTPS for those who may.
//!
//! Invariants:
//! - Nothing is answered before it is known who asks and that they may: see [`Access`].
//! - Connections of a node are bounded; a handshake, a request or its head that does not arrive in time ends its
//!   connection.
//!
//! Source: upstream's `pkg/kubelet/server`.

mod access;
mod certificates;

use access::{Access, Refused};
use bytes::Bytes;
use certificates::{Serving, Signer};
use futures_util::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kaji_kubelet::fake::{Facing, Pages};
use kaji_meta::Clock;
use kaji_runtime::Client;
use kaji_server::{
    Authorities, Spoken, StackError, TlsAcceptor, TlsOptions,
    pki::{Identity, PkiError},
    protocol,
};
use std::{convert::Infallible, io, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::timeout,
};

/// Connections to one node at a time.
const CONNECTIONS: usize = 64;
/// Streams of an h2 connection.
const STREAMS: u32 = 64;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long nobody is let in after that has failed: out of file descriptors, mostly.
const PAUSE: Duration = Duration::from_millis(50);

const PLAIN: &str = "text/plain; charset=utf-8";

/// Lets those who may ask a cluster's nodes.
pub struct Kubelets {
    signer: Arc<Signer>,
    /// Who signs clients' certificates, PEM.
    clients: String,
    clock: Arc<dyn Clock>,
}

impl Kubelets {
    /// For nodes of a cluster with this authority.
    ///
    /// # Errors
    /// When no certificates can be made.
    pub fn new(authority: &Identity, clock: Arc<dyn Clock>) -> Result<Kubelets, PkiError> {
        let signer = Signer::new(authority, clock.clone())?;
        Ok(Kubelets { signer, clients: authority.certificate.clone(), clock })
    }
}

impl Facing for Kubelets {
    fn serve(
        &self,
        node: &str,
        listener: TcpListener,
        client: Client,
        pages: Pages,
        stop: watch::Receiver<bool>,
    ) -> io::Result<BoxFuture<'static, ()>> {
        let serving = Serving::new(self.signer.clone(), node, listener.local_addr()?.ip());
        let access = Access::new(node, client, self.clock.clone());
        let server = Server::new(serving, &self.clients, access, pages).map_err(io::Error::other)?;
        Ok(Box::pin(Arc::new(server).serve(listener, stop)))
    }
}

/// The server of one node.
struct Server {
    tls: TlsAcceptor,
    authorities: Arc<Authorities>,
    access: Access,
    pages: Pages,
}

impl Server {
    fn new(serving: Serving, authorities: &str, access: Access, pages: Pages) -> Result<Server, StackError> {
        let authorities = Arc::new(Authorities::new(authorities, authorities)?);
        let tls = kaji_server::tls(&TlsOptions::default(), Arc::new(serving), authorities.clone())?;
        Ok(Server { tls, authorities, access, pages })
    }

    /// Serves until `stop` turns true. What is being answered then is cut off.
    async fn serve(self: Arc<Self>, listener: TcpListener, mut stop: watch::Receiver<bool>) {
        let slots = Arc::new(Semaphore::new(CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            let accepted = async {
                let slot = slots.clone().acquire_owned().await;
                (listener.accept().await, slot)
            };
            let (accepted, slot) = tokio::select! {
                accepted = accepted => accepted,
                Some(_) = connections.join_next() => continue,
                _ = stop.wait_for(|s| *s) => return,
            };
            match accepted {
                Ok((stream, _)) => {
                    let server = self.clone();
                    connections.spawn(async move {
                        server.connection(stream).await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a kubelet could not accept a connection");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn connection(self: Arc<Self>, stream: TcpStream) {
        // Answers are written whole; waiting to fill a segment only adds latency.
        let _ = stream.set_nodelay(true);
        let Ok(Ok(stream)) = timeout(HANDSHAKE_TIMEOUT, self.tls.accept(stream)).await else { return };
        let handshake = stream.get_ref().1;
        let (builder, spoken) = (protocol(handshake, STREAMS), Spoken::default());
        let peer = self.authorities.peer(handshake.peer_certificates());
        let asked = spoken.clone();
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            asked.note();
            request.extensions_mut().insert(peer.clone());
            let server = self.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        if let Some(Err(error)) = spoken.serve(connection).await {
            tracing::debug!(error, "a connection to a kubelet ended");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (parts, _) = request.into_parts();
        let path = kaji_server::unescape(parts.uri.path(), false);
        match self.access.check(&parts, &path).await {
            Ok(()) => {}
            Err(Refused { code, text }) => return answer(code, PLAIN, text),
        }
        let Some((content_type, text)) = (self.pages)(&path) else {
            return answer(StatusCode::NOT_FOUND, PLAIN, "404: Page Not Found".into());
        };
        if parts.method != Method::GET {
            return answer(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "405: Method Not Allowed".into());
        }
        answer(StatusCode::OK, content_type, text)
    }
}

fn answer(code: StatusCode, content_type: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
