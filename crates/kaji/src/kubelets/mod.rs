//! The servers of simulated nodes: HTTPS for those who may.
//!
//! Invariants:
//! - Nothing is answered before it is known who asks and that they may: see [`Access`].
//! - Clients' certificates count for what they do at the API server, also when `--client-ca-file` changes.
//! - Connections of a node are bounded; a handshake, a request or its head that does not arrive in time ends its
//!   connection.
//!
//! Source: upstream's `pkg/kubelet/server`.

mod access;
mod certificates;

use crate::delegation::Trust;
use access::{Access, Known, Refused};
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
    Authorities, FirstRequestTimeout, PeerIdentity, StackError, TlsAcceptor, TlsConfigHandle, TlsOptions,
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
    /// Whom the API server believes: who signs clients' certificates.
    trust: watch::Receiver<Trust>,
    known: Known,
    clock: Arc<dyn Clock>,
}

impl Kubelets {
    /// For nodes of a cluster with this authority, which believe whom its API server believes.
    ///
    /// # Errors
    /// When no certificates can be made.
    pub fn new(
        authority: &Identity,
        trust: watch::Receiver<Trust>,
        clock: Arc<dyn Clock>,
    ) -> Result<Kubelets, PkiError> {
        let signer = Signer::new(authority, clock.clone())?;
        Ok(Kubelets { signer, trust, known: Known::default(), clock })
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
        let access = Access::new(node, client, self.known.clone(), self.clock.clone());
        let mut trust = self.trust.clone();
        let clients = trust.borrow_and_update().clients.clone();
        let server = Server::new(serving, &clients, access, pages).map_err(io::Error::other)?;
        Ok(Box::pin(Arc::new(server).serve(listener, trust, stop)))
    }
}

/// The server of one node.
struct Server {
    serving: Arc<Serving>,
    front: TlsConfigHandle,
    access: Access,
    pages: Pages,
}

/// What connections are met with when those sign clients' certificates.
fn met(serving: Arc<Serving>, clients: &str) -> Result<(TlsAcceptor, Arc<Authorities>), StackError> {
    let authorities = Arc::new(Authorities::new(clients, clients)?);
    Ok((kaji_server::tls(&TlsOptions::default(), serving, authorities.clone())?, authorities))
}

impl Server {
    fn new(serving: Serving, clients: &str, access: Access, pages: Pages) -> Result<Server, StackError> {
        let serving = Arc::new(serving);
        let (tls, authorities) = met(serving.clone(), clients)?;
        let front = TlsConfigHandle::new(tls, authorities);
        Ok(Server { serving, front, access, pages })
    }

    /// Believes others from now on, on open connections too. What cannot be used changes nothing.
    fn believe(&self, clients: &str) {
        match met(self.serving.clone(), clients) {
            Ok((tls, authorities)) => self.front.set(tls, authorities),
            Err(error) => tracing::warn!(%error, "a kubelet cannot use the authorities of clients"),
        }
    }

    /// Serves until `stop` turns true. What is being answered then is cut off.
    async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        mut trust: watch::Receiver<Trust>,
        mut stop: watch::Receiver<bool>,
    ) {
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
                Ok(()) = trust.changed() => {
                    let clients = trust.borrow_and_update().clients.clone();
                    self.believe(&clients);
                    continue;
                }
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
        let accepted = self.front.tls().accept(stream);
        let Ok(Ok(stream)) = timeout(HANDSHAKE_TIMEOUT, accepted).await else { return };
        let handshake = stream.get_ref().1;
        let (builder, first_request) = (protocol(handshake, STREAMS), FirstRequestTimeout::default());
        let peer = PeerIdentity::new(self.front.clone(), handshake.peer_certificates());
        let asked = first_request.clone();
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            asked.received();
            request.extensions_mut().insert(peer.peer());
            let server = self.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        if let Some(Err(error)) = first_request.serve(connection).await {
            tracing::debug!(error, "a connection to a kubelet ended");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (parts, _) = request.into_parts();
        let path = kaji_meta::query::unescape(parts.uri.path(), false);
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
