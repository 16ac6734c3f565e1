//! The HTTPS server of a component: `/healthz`, `/livez`, `/readyz`, `/metrics`, `/metrics/slis`, `/statusz` and `/flagz`. Clients are authenticated by certificates of the
//! cluster's authorities and by TokenReviews, and authorized by SubjectAccessReviews, as upstream's components do it.
//!
//! Invariants:
//! - Authorities of clients are those of `--client-ca-file` and of the ConfigMap `kube-system/extension-apiserver-authentication`,
//!   followed while the process runs; without any no certificate is accepted.
//! - A serving certificate that cannot be read any more stays in use as it was.

use crate::api_server::ApiServer;
use futures_util::future::BoxFuture;
use http::{Method, Response, StatusCode};
use kaji_auth::authn::{ClusterAuthenticationInfo, RequestHeader};
use kaji_kubelet::server::{
    Handler, KubeletRequest, KubeletServerConfig, ReplaceableCertificate,
    request::{self, ServerBody},
};
use kaji_meta::time::{Clock, SystemClock};
use kaji_options::component::{ConnectionOptions, ObservationOptions};
use kaji_runtime::Client;
use kaji_server::{
    Health, ZPages,
    cluster_authentication_trust::{NAME, NAMESPACE},
    pki::{self, Identity},
};
use prometheus_client::registry::Registry;
use serde_json::Value;
use std::{fmt, io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

/// How often files and the ConfigMap are read again.
const RELOAD: Duration = Duration::from_secs(60);
/// How long the first read of the ConfigMap may take; it goes on later.
const FIRST_LOOKUP: Duration = Duration::from_secs(5);

/// Why health and metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ObservationError {
    /// The listener.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// Certificates.
    #[error("cannot serve health and metrics: {0}")]
    Certificate(String),
    /// The API server of reviews.
    #[error("cannot set up reviews of requests: {0}")]
    Reviews(String),
}

/// The server, bound and not yet serving.
pub(crate) struct Observation {
    component: &'static str,
    listener: TcpListener,
    options: ObservationOptions,
    config: KubeletServerConfig,
    reviewer: Client,
    metrics: Registry,
    reload: Reload,
}

/// What is read again while the server runs.
struct Reload {
    files: Option<(PathBuf, PathBuf)>,
    presented: Arc<ReplaceableCertificate>,
    held: Identity,
    clients: ClientAuthorities,
    published: watch::Sender<ClusterAuthenticationInfo>,
}

/// Where the authorities of clients come from.
struct ClientAuthorities {
    file: Option<PathBuf>,
    /// Reads the ConfigMap.
    lookup: Option<Client>,
    /// Has signed no client: a server needs one authority at least.
    none: String,
}

fn read_identity((certificate, key): &(PathBuf, PathBuf)) -> Result<Identity, String> {
    let read = |path: &PathBuf| std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()));
    Ok(Identity { certificate: read(certificate)?, key: read(key)? })
}

fn bad(error: impl fmt::Display) -> ObservationError {
    ObservationError::Certificate(error.to_string())
}

impl Observation {
    /// Listens. `client` acts as the component.
    pub async fn open(
        component: &'static str,
        options: ObservationOptions,
        connection: ConnectionOptions,
        client: Client,
        metrics: Registry,
    ) -> Result<Observation, ObservationError> {
        let address = options.listen;
        let listener =
            TcpListener::bind(address).await.map_err(|error| ObservationError::Listen { address, error })?;
        let now = SystemClock.now();
        let own = pki::authority(&format!("{component}-ca@{}", now.as_second()), now).map_err(bad)?;
        let names = ["localhost".to_owned(), "127.0.0.1".into(), "::1".into(), component.into()];
        let held = match &options.files {
            Some(files) => read_identity(files).map_err(bad)?,
            None => pki::component_serving(&own, component, &names, now).map_err(bad)?,
        };
        let presented = Arc::new(ReplaceableCertificate::new(Arc::new(SystemClock)));
        presented.set(&held.certificate, &held.key, None).map_err(bad)?;
        let (authentication, authorization) = &options.reviews;
        let reviews = |path: Option<PathBuf>| {
            let path = path.or_else(|| connection.kubeconfig.clone());
            let usual = client.clone();
            async move {
                match path {
                    Some(path) => ApiServer::reviewer(&path, component).await,
                    None => Ok(usual),
                }
                .map_err(|error| ObservationError::Reviews(error.to_string()))
            }
        };
        let (authenticator, reviewer) =
            (reviews(authentication.clone()).await?, reviews(authorization.clone()).await?);
        let clients = ClientAuthorities {
            file: options.client_ca_file.clone(),
            lookup: options.lookup.then(|| authenticator.clone()),
            none: own.certificate,
        };
        let info = ClusterAuthenticationInfo {
            client_ca: clients.read().await.map_err(bad)?,
            request_header_ca: String::new(),
            request_header: RequestHeader::default(),
        };
        let (published, authentication) = watch::channel(info);
        let config =
            KubeletServerConfig::with_certificate(presented.clone(), authentication, Arc::new(SystemClock))
                .with_tls(options.tls.clone());
        let reload = Reload { files: options.files.clone(), presented, held, clients, published };
        Ok(Observation { component, listener, options, config, reviewer, metrics, reload })
    }

    /// Serves until `stop` turns true.
    pub fn spawn(
        self,
        tasks: &mut JoinSet<()>,
        stop: &watch::Receiver<bool>,
    ) -> Result<(), ObservationError> {
        let zpages = ZPages::new(self.component, self.options.flag_values, Arc::new(SystemClock));
        let pages = Arc::new(Pages { health: Health::default(), metrics: self.metrics, zpages });
        let always_allowed = self.options.always_allowed;
        let serving = self.config.serve_component(
            self.component,
            always_allowed,
            self.listener,
            self.reviewer,
            pages,
            stop.clone(),
        );
        tasks.spawn(serving.map_err(bad)?);
        let (reload, mut stop) = (self.reload, stop.clone());
        tasks.spawn(async move {
            tokio::select! {
                biased;
                () = reload.run() => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        });
        Ok(())
    }
}

impl ClientAuthorities {
    /// Those of now, PEM. A file must be there; the ConfigMap need not.
    async fn read(&self) -> Result<String, String> {
        let mut all = String::new();
        if let Some(path) = &self.file {
            all += &std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        if let Some(client) = &self.lookup {
            let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}");
            match tokio::time::timeout(FIRST_LOOKUP, client.get::<Value>(&path)).await {
                Ok(Ok(map)) => all += map["data"]["client-ca-file"].as_str().unwrap_or_default(),
                Ok(Err(error)) => {
                    tracing::warn!(%error, "the cluster's authorities of clients cannot be read");
                }
                Err(_) => tracing::warn!("the cluster's authorities of clients were not read in time"),
            }
        }
        Ok(if all.trim().is_empty() { self.none.clone() } else { all })
    }
}

impl Reload {
    async fn run(mut self) {
        loop {
            tokio::time::sleep(RELOAD).await;
            match self.clients.read().await {
                // What could not be read stays as it was: the file of none is no change of mind of the cluster.
                Ok(client_ca) if client_ca != self.clients.none => {
                    self.published.send_if_modified(|info| {
                        let changed = info.client_ca != client_ca;
                        info.client_ca = client_ca;
                        changed
                    });
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(error, "the authorities of clients are not reloaded"),
            }
            let Some(files) = &self.files else { continue };
            match read_identity(files) {
                Ok(identity) if identity == self.held => {}
                Ok(identity) => match self.presented.set(&identity.certificate, &identity.key, None) {
                    Ok(()) => self.held = identity,
                    Err(error) => tracing::warn!(error, "the serving certificate is not reloaded"),
                },
                Err(error) => tracing::warn!(error, "the serving certificate is not reloaded"),
            }
        }
    }
}

/// What is served.
struct Pages {
    health: Health,
    metrics: Registry,
    zpages: ZPages,
}

/// What [`Pages`] has, for `/statusz`.
const PATHS: [&str; 6] = ["/flagz", "/healthz", "/livez", "/metrics", "/readyz", "/statusz"];

impl Pages {
    async fn page(&self, request: &KubeletRequest) -> Response<ServerBody> {
        if !matches!(request.method, Method::GET | Method::HEAD) {
            return request::method_not_allowed();
        }
        let path = request.path.trim_start_matches('/');
        if path == "metrics" {
            return request::metrics(request, kaji_exposition::component(&self.metrics));
        }
        if path == "metrics/slis" {
            return request::metrics(request, self.health.slis());
        }
        match path {
            "statusz" => return request::zpage(self.zpages.statusz(&request.headers, PATHS)),
            "flagz" => return request::zpage(self.zpages.flagz(&request.headers)),
            _ => {}
        }
        let (endpoint, check) = path.split_once('/').unwrap_or((path, ""));
        if !["healthz", "livez", "readyz"].contains(&endpoint) {
            return request::not_found();
        }
        match self.health.serve(endpoint, check, &request.query).await {
            Some((code, text)) => {
                let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                request::respond(code, request::PLAIN, text)
            }
            None => request::not_found(),
        }
    }
}

impl Handler for Pages {
    fn handle(self: Arc<Self>, request: KubeletRequest) -> BoxFuture<'static, Response<ServerBody>> {
        Box::pin(async move { self.page(&request).await })
    }
}
