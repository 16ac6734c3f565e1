//! The kubelet's HTTPS server, one listener a node. Components of the control plane that run alone have the same one, with
//! authorization by paths.
//!
//! `request` has what a [`Handler`] gets and answers; `node_api` is the handler of a real node, with a table of routes; simulated
//! nodes bring handlers of their own.
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
mod checkpoint;
mod configz;
pub(crate) mod logs;
pub mod lookup;
mod metrics;
mod node_api;
mod pods;
pub mod request;
pub(crate) mod streams;
mod summary;
mod system_logs;
mod usage;

pub use lookup::NodePods;
pub(crate) use metrics::{kubelet as kubelet_metrics, resource as resource_metrics};
pub use node_api::NodeApi;
pub use request::{Handler, KubeletRequest};
use request::{ServerBody, Sessions};

use auth::{Auth, Rejection, Scope, TokenReviewCache};
pub use certificates::ReplaceableCertificate;
use certificates::{Serving, Signer};
use futures_util::future::BoxFuture;
use http::{Request, Response, Version, header};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use kaji_auth::authn::ClusterAuthenticationInfo;
use kaji_meta::{Clock, query::Query};
use kaji_runtime::Client;
use kaji_server::{
    Authorities, FirstRequestTimeout, PeerIdentity, StackError, TlsAcceptor, TlsConfigHandle, TlsOptions,
    leave_out_body_of_head,
    pki::{Identity, PkiError},
    protocol,
};
use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::rustls::server::ResolvesServerCert;

/// Connections to a simulated node at a time.
const CONNECTIONS: usize = 64;
/// Connections to a real node at a time: each of exec, attach, port-forward and of logs that are followed has one.
const NODE_CONNECTIONS: usize = 1024;
/// Streams of an h2 connection.
const STREAMS: u32 = 64;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the server waits after `accept` has failed, mostly for lack of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// How long the server of a real node waits until it tries again to listen, at first and at most.
const LISTEN_RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// What the servers of a cluster's nodes share.
#[derive(Clone)]
pub struct KubeletServerConfig {
    certificates: Certificates,
    /// The client certificate authorities of the API server.
    authentication: watch::Receiver<ClusterAuthenticationInfo>,
    token_reviews: TokenReviewCache,
    tls: TlsOptions,
    clock: Arc<dyn Clock>,
}

/// Where serving certificates come from.
#[derive(Clone)]
enum Certificates {
    /// One is issued for each node.
    Signed(Arc<Signer>),
    /// The node has its own.
    Own(Arc<dyn ResolvesServerCert>),
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
        let certificates = Certificates::Signed(Signer::new(authority, clock.clone())?);
        Ok(KubeletServerConfig {
            certificates,
            authentication,
            token_reviews: TokenReviewCache::default(),
            tls: TlsOptions::default(),
            clock,
        })
    }

    /// For a node that has a serving certificate of its own.
    pub fn with_certificate(
        certificate: Arc<dyn ResolvesServerCert>,
        authentication: watch::Receiver<ClusterAuthenticationInfo>,
        clock: Arc<dyn Clock>,
    ) -> KubeletServerConfig {
        let certificates = Certificates::Own(certificate);
        KubeletServerConfig {
            certificates,
            authentication,
            token_reviews: TokenReviewCache::default(),
            tls: TlsOptions::default(),
            clock,
        }
    }

    /// The same, with these versions and cipher suites of TLS.
    #[must_use]
    pub fn with_tls(self, tls: TlsOptions) -> KubeletServerConfig {
        KubeletServerConfig { tls, ..self }
    }

    /// Serves a simulated node's listener until `stop` turns true. `client` is the node's own client of the API server, which
    /// reviews tokens and access.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn serve(
        &self,
        node: &str,
        listener: TcpListener,
        client: Client,
        handler: Arc<dyn Handler>,
        stop: watch::Receiver<bool>,
    ) -> io::Result<BoxFuture<'static, ()>> {
        let scope = Scope::Node(node.to_owned());
        self.serve_connections(scope, listener, client, (handler, CONNECTIONS), stop)
    }

    /// Serves a component's listener until `stop` turns true: anonymous requests are authorized too, and all of them by their
    /// path, except those in `always_allowed` (`/healthz`; `/healthz/*` for everything below). `client` reviews tokens and
    /// access.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn serve_component(
        &self,
        component: &str,
        always_allowed: Vec<String>,
        listener: TcpListener,
        client: Client,
        handler: Arc<dyn Handler>,
        stop: watch::Receiver<bool>,
    ) -> io::Result<BoxFuture<'static, ()>> {
        let scope = Scope::Paths { name: component.to_owned(), always_allowed };
        self.serve_connections(scope, listener, client, (handler, NODE_CONNECTIONS), stop)
    }

    fn serve_connections(
        &self,
        scope: Scope,
        listener: TcpListener,
        client: Client,
        (handler, connections): (Arc<dyn Handler>, usize),
        stop: watch::Receiver<bool>,
    ) -> io::Result<BoxFuture<'static, ()>> {
        let serving: Arc<dyn ResolvesServerCert> = match &self.certificates {
            Certificates::Signed(signer) => {
                Arc::new(Serving::new(signer.clone(), scope.name(), listener.local_addr()?.ip()))
            }
            Certificates::Own(certificate) => certificate.clone(),
        };
        let auth = Auth::new(scope, client, self.token_reviews.clone(), self.clock.clone());
        let mut authentication = self.authentication.clone();
        let client_ca = authentication.borrow_and_update().client_ca.clone();
        let server = KubeletServer::new((serving, self.tls.clone()), &client_ca, auth, handler)
            .map_err(io::Error::other)?;
        Ok(Box::pin(Arc::new(server).serve((listener, connections), authentication, stop)))
    }

    /// Listens on a real node's address and serves it until `stop` turns true. An address that cannot be listened on is
    /// tried again, with growing pauses: upstream's kubelet exits, and is started again by its supervisor.
    pub async fn run(
        &self,
        node: &str,
        address: SocketAddr,
        client: Client,
        handler: Arc<dyn Handler>,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut pause = LISTEN_RETRY.0;
        loop {
            let served = match TcpListener::bind(address).await {
                Ok(listener) => self.serve_connections(
                    Scope::Node(node.to_owned()),
                    listener,
                    client.clone(),
                    (handler.clone(), NODE_CONNECTIONS),
                    stop.clone(),
                ),
                Err(error) => Err(error),
            };
            match served {
                Ok(serving) => return serving.await,
                Err(error) => {
                    tracing::error!(%error, %address, node, "the kubelet's API cannot be served; trying again");
                }
            }
            tokio::select! {
                () = kaji_runtime::time::sleep(&*self.clock, pause) => pause = (pause * 2).min(LISTEN_RETRY.1),
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }
}

/// The server of one node.
struct KubeletServer {
    serving: Arc<dyn ResolvesServerCert>,
    tls: TlsOptions,
    front: TlsConfigHandle,
    auth: Auth,
    handler: Arc<dyn Handler>,
}

/// Sessions that are kept: the API server is the one client that comes often, and a process may have many kubelets.
const SESSIONS: usize = 8;

/// The TLS configuration for these client certificate authorities.
fn tls_config(
    serving: Arc<dyn ResolvesServerCert>,
    options: &TlsOptions,
    client_ca: &str,
) -> Result<(TlsAcceptor, Arc<Authorities>), StackError> {
    let authorities = Arc::new(Authorities::new(client_ca, client_ca)?);
    Ok((kaji_server::tls(options, serving, authorities.clone(), SESSIONS)?, authorities))
}

impl KubeletServer {
    fn new(
        (serving, options): (Arc<dyn ResolvesServerCert>, TlsOptions),
        client_ca: &str,
        auth: Auth,
        handler: Arc<dyn Handler>,
    ) -> Result<Self, StackError> {
        let (tls, authorities) = tls_config(serving.clone(), &options, client_ca)?;
        let front = TlsConfigHandle::new(tls, authorities);
        Ok(KubeletServer { serving, tls: options, front, auth, handler })
    }

    /// Replaces the client certificate authorities, also for open connections. Unusable ones change nothing.
    fn set_client_ca(&self, client_ca: &str) {
        match tls_config(self.serving.clone(), &self.tls, client_ca) {
            Ok((tls, authorities)) => self.front.set(tls, authorities),
            Err(error) => {
                tracing::warn!(%error, "kubelet server: cannot use the client certificate authorities")
            }
        }
    }

    /// Serves until `stop` turns true, which ends requests and sessions in flight.
    async fn serve(
        self: Arc<Self>,
        (listener, connections): (TcpListener, usize),
        mut authentication: watch::Receiver<ClusterAuthenticationInfo>,
        mut stop: watch::Receiver<bool>,
    ) {
        let slots = Arc::new(Semaphore::new(connections));
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
        let (sessions, mut session) = mpsc::channel(1);
        let sessions = Sessions(sessions);
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            requests.received();
            request.extensions_mut().insert(peer.peer());
            let (server, sessions, method) = (self.clone(), sessions.clone(), request.method().clone());
            async move {
                let response = server.handle(request, sessions).await;
                Ok::<_, Infallible>(leave_out_body_of_head(&method, response))
            }
        });
        let connection = async move {
            let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
            if let Some(Err(error)) = first_request.serve(connection).await {
                tracing::debug!(error, "kubelet server: connection ended");
            }
        };
        // A session begins when the connection has switched protocols, which it does as it is polled. Without requests no session can
        // come any more: the channel is closed then.
        let sessions = async move {
            while let Some(next) = session.recv().await {
                next.await;
            }
        };
        tokio::join!(connection, sessions);
    }

    async fn handle(&self, request: Request<Incoming>, sessions: Sessions) -> Response<ServerBody> {
        let (mut parts, body) = request.into_parts();
        let path = kaji_meta::query::unescape(parts.uri.path(), false);
        if let Err(Rejection { code, text }) = self.auth.check(&parts, &path).await {
            return self.auth.refusal(code, text);
        }
        let upgrade = parts.extensions.remove::<OnUpgrade>();
        let asked = parts.version == Version::HTTP_11 && parts.headers.contains_key(header::UPGRADE);
        let request = KubeletRequest {
            method: parts.method,
            path,
            query: Query::parse(parts.uri.query().unwrap_or_default()),
            headers: parts.headers,
            body,
            upgrade: upgrade.filter(|_| asked),
            sessions,
        };
        self.handler.clone().handle(request).await
    }
}
