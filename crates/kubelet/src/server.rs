//! The kubelet's HTTPS server, one listener a node.
//!
//! Invariants:
//! - A request is authenticated and authorized before it is handled: see [`Auth`].
//! - Client certificates are verified with the API server's client certificate authorities, also after `--client-ca-file`
//!   has changed.
//! - Connections of a node are bounded; a handshake, a request or its head that does not arrive in time ends its
//!   connection.
//!
//! Source: upstream's `pkg/kubelet/server`.

mod auth;
mod certificates;

use auth::{Auth, Rejection, TokenReviewCache};
use bytes::Bytes;
use certificates::{Serving, Signer};
use futures_util::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kaji_auth::authn::ClusterAuthenticationInfo;
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
/// How long the server waits after `accept` has failed, mostly for lack of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

const PLAIN: &str = "text/plain; charset=utf-8";

/// The response to a path: its content type and its text. `None` for a path that is not served.
pub type Handler = Box<dyn Fn(&str) -> Option<(&'static str, String)> + Send + Sync>;

/// What the servers of a cluster's nodes share.
pub struct KubeletServerConfig {
    signer: Arc<Signer>,
    /// The client certificate authorities of the API server.
    authentication: watch::Receiver<ClusterAuthenticationInfo>,
    token_reviews: TokenReviewCache,
    clock: Arc<dyn Clock>,
}

impl KubeletServerConfig {
    /// For nodes of a cluster with this certificate authority, which verify clients as its API server does.
    ///
    /// # Errors
    /// When no certificates can be issued.
    pub fn new(
        authority: &Identity,
        authentication: watch::Receiver<ClusterAuthenticationInfo>,
        clock: Arc<dyn Clock>,
    ) -> Result<KubeletServerConfig, PkiError> {
        let signer = Signer::new(authority, clock.clone())?;
        Ok(KubeletServerConfig { signer, authentication, token_reviews: TokenReviewCache::default(), clock })
    }

    /// Serves a node's listener until `stop` turns true. `client` is the node's own client of the API server, which reviews
    /// tokens and access.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn serve(
        &self,
        node: &str,
        listener: TcpListener,
        client: Client,
        handler: Handler,
        stop: watch::Receiver<bool>,
    ) -> io::Result<BoxFuture<'static, ()>> {
        let serving = Serving::new(self.signer.clone(), node, listener.local_addr()?.ip());
        let auth = Auth::new(node, client, self.token_reviews.clone(), self.clock.clone());
        let mut authentication = self.authentication.clone();
        let client_ca = authentication.borrow_and_update().client_ca.clone();
        let server = KubeletServer::new(serving, &client_ca, auth, handler).map_err(io::Error::other)?;
        Ok(Box::pin(Arc::new(server).serve(listener, authentication, stop)))
    }
}

/// The server of one node.
struct KubeletServer {
    serving: Arc<Serving>,
    front: TlsConfigHandle,
    auth: Auth,
    handler: Handler,
}

/// The TLS configuration for these client certificate authorities.
fn tls_config(serving: Arc<Serving>, client_ca: &str) -> Result<(TlsAcceptor, Arc<Authorities>), StackError> {
    let authorities = Arc::new(Authorities::new(client_ca, client_ca)?);
    Ok((kaji_server::tls(&TlsOptions::default(), serving, authorities.clone())?, authorities))
}

impl KubeletServer {
    fn new(serving: Serving, client_ca: &str, auth: Auth, handler: Handler) -> Result<Self, StackError> {
        let serving = Arc::new(serving);
        let (tls, authorities) = tls_config(serving.clone(), client_ca)?;
        let front = TlsConfigHandle::new(tls, authorities);
        Ok(KubeletServer { serving, front, auth, handler })
    }

    /// Replaces the client certificate authorities, also for open connections. Unusable ones change nothing.
    fn set_client_ca(&self, client_ca: &str) {
        match tls_config(self.serving.clone(), client_ca) {
            Ok((tls, authorities)) => self.front.set(tls, authorities),
            Err(error) => {
                tracing::warn!(%error, "kubelet server: cannot use the client certificate authorities")
            }
        }
    }

    /// Serves until `stop` turns true, which ends requests in flight.
    async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        mut authentication: watch::Receiver<ClusterAuthenticationInfo>,
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
                Ok(()) = authentication.changed() => {
                    let client_ca = authentication.borrow_and_update().client_ca.clone();
                    self.set_client_ca(&client_ca);
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
                    tracing::warn!(%error, "kubelet server: accept failed");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    async fn connection(self: Arc<Self>, stream: TcpStream) {
        // Responses are written whole; waiting to fill a segment only adds latency.
        let _ = stream.set_nodelay(true);
        let accepted = self.front.tls().accept(stream);
        let Ok(Ok(stream)) = timeout(HANDSHAKE_TIMEOUT, accepted).await else { return };
        let handshake = stream.get_ref().1;
        let (builder, first_request) = (protocol(handshake, STREAMS), FirstRequestTimeout::default());
        let peer = PeerIdentity::new(self.front.clone(), handshake.peer_certificates());
        let requests = first_request.clone();
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            requests.received();
            request.extensions_mut().insert(peer.peer());
            let server = self.clone();
            async move { Ok::<_, Infallible>(server.handle(request).await) }
        });
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        if let Some(Err(error)) = first_request.serve(connection).await {
            tracing::debug!(error, "kubelet server: connection ended");
        }
    }

    async fn handle(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (parts, _) = request.into_parts();
        let path = kaji_meta::query::unescape(parts.uri.path(), false);
        match self.auth.check(&parts, &path).await {
            Ok(()) => {}
            Err(Rejection { code, text }) => return response(code, PLAIN, text),
        }
        let Some((content_type, text)) = (self.handler)(&path) else {
            return response(StatusCode::NOT_FOUND, PLAIN, "404: Page Not Found".into());
        };
        if parts.method != Method::GET {
            return response(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "405: Method Not Allowed".into());
        }
        response(StatusCode::OK, content_type, text)
    }
}

fn response(code: StatusCode, content_type: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
