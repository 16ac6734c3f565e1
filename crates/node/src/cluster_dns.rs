//! Cluster DNS of a node: its sockets at the node's addresses, its pages, and what it follows.
//!
//! Invariant: nothing is answered before it is known which names exist and which resolvers are to be asked; the API server may keep
//! the latter from the node, and the node's own resolvers are asked then.

use crate::node::{DNS_METRICS_PORT, RealNodeConfig, serve_pages};
use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use kaji_containers::DnsConfig;
use kaji_dns::{
    customization::Customization,
    feed::Feed,
    forward::Forwarder,
    metrics::Metrics,
    resolv_conf::{NodeResolvers, RESOLV_CONF},
    server::{Listeners, Service},
    zone::Zone,
};
use kaji_exposition::CONTENT_TYPE;
use kaji_kubelet::{
    configuration::DnsConfiguration,
    pods::network::{DnsSettings, NodeDns},
};
use kaji_options::addresses::dns_service_ip;
use kaji_proxy::pages;
use kaji_runtime::Informers;
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::watch, task::JoinSet};

/// The domain of services' names, if none is configured.
const CLUSTER_DOMAIN: &str = "cluster.local";
/// How long the map with the resolvers to ask is waited for.
const CUSTOMIZED: Duration = Duration::from_secs(5);

/// What cluster DNS and pods' resolvers have in common.
#[derive(Clone)]
pub struct ClusterDns {
    domain: String,
    /// Addresses of the DNS service.
    services: Vec<IpAddr>,
    /// What pods are given instead.
    configured: Vec<IpAddr>,
    node: Arc<NodeResolvers>,
    /// Of the node's resolvers.
    file: String,
}

impl ClusterDns {
    /// As a configuration says, and a flag, which comes first as with upstream.
    pub fn new(config: &RealNodeConfig, configuration: &DnsConfiguration) -> ClusterDns {
        let domain = config.container_runtime.cluster_domain.as_ref().or(configuration.domain.as_ref());
        let file = configuration.resolv_conf.as_deref();
        ClusterDns {
            domain: domain.map_or(CLUSTER_DOMAIN, String::as_str).to_owned(),
            services: dns_service_ip(&config.service_cidrs).into_iter().collect(),
            configured: configuration.servers.clone(),
            node: Arc::new(NodeResolvers::new(file)),
            file: file.map_or_else(|| RESOLV_CONF.to_owned(), |path| path.display().to_string()),
        }
    }

    /// For the kubelet.
    pub fn settings(&self) -> DnsSettings {
        let node = self.node.clone();
        let read = move || {
            let found = node.present();
            DnsConfig {
                servers: found.name_servers.iter().map(|server| server.ip().to_string()).collect(),
                searches: found.searches.clone(),
                options: found.options.clone(),
            }
        };
        let servers = if self.configured.is_empty() { &self.services } else { &self.configured };
        DnsSettings {
            servers: servers.clone(),
            domain: self.domain.clone(),
            node: NodeDns::new(&self.file, read),
        }
    }
}

/// The pages of cluster DNS: CoreDNS has them at several ports.
fn dns_pages(metrics: &Metrics, ready: bool, path: &str) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    match path {
        "/metrics" => pages::page(StatusCode::OK, CONTENT_TYPE, metrics.page()),
        "/health" => pages::page(StatusCode::OK, TEXT, "OK".to_owned()),
        "/ready" if ready => pages::page(StatusCode::OK, TEXT, "OK".to_owned()),
        "/ready" => pages::page(StatusCode::SERVICE_UNAVAILABLE, TEXT, "kubernetes".to_owned()),
        _ => pages::not_found(),
    }
}

/// Answers for the cluster's names at every address of the node. `own` are informers with the node's rights. `served` turns true with
/// the first answer that could be given.
pub async fn serve(
    addresses: Vec<IpAddr>,
    dns: ClusterDns,
    cluster: Arc<Informers>,
    own: Arc<Informers>,
    served: watch::Sender<bool>,
) {
    let mut listeners = vec![];
    for address in &addresses {
        let address = SocketAddr::new(*address, kaji_dns::PORT);
        match Listeners::bind(address).await {
            Ok(bound) => listeners.push(bound),
            Err(error) => tracing::error!(%error, %address, "cluster DNS is not served"),
        }
    }
    let Some(primary) = addresses.first().filter(|_| listeners.len() == addresses.len()) else {
        // The Node announces its DNS for all of its addresses.
        return;
    };
    let metrics = Metrics::default();
    let zone = Zone::new(&dns.domain, dns.services.clone());
    let service = Arc::new(Service::new(zone, Forwarder::new(dns.node.clone()), metrics.clone()));
    let (ready, mut is_ready) = watch::channel(false);
    let shown = is_ready.clone();
    let address = SocketAddr::new(*primary, DNS_METRICS_PORT);
    let measured = serve_pages("metrics of cluster DNS", address, async |listener| {
        let pages = Arc::new(move |path: &str| dns_pages(&metrics, *shown.borrow(), path));
        pages::serve(listener, pages).await;
    });
    let customization = Customization::new(&own);
    let answer = async {
        // Before the first list, names that exist would be denied.
        if is_ready.wait_for(|ready| *ready).await.is_err() {
            return;
        }
        if tokio::time::timeout(CUSTOMIZED, customization.synced()).await.is_err() {
            tracing::warn!(
                "the configuration of cluster DNS's resolvers cannot be read; the node's resolvers are used"
            );
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(customization.run(service.clone()));
        for bound in listeners {
            tasks.spawn(bound.serve(service.clone()));
        }
        served.send_replace(true);
        while tasks.join_next().await.is_some() {}
    };
    tokio::join!(Feed::new(&cluster).run(service.clone(), ready), answer, measured);
}
