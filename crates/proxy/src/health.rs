//! The proxy's own health, and that of services for load balancers: answers as upstream's, and the server that gives them.
//!
//! Invariant: a service's health is that of the family by which it is asked for, as upstream has a server of each family.

use crate::endpoints::LocalReady;
use crate::metrics::Metrics;
use crate::pages;
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Response, StatusCode};
use jiff::{SignedDuration, Timestamp};
use kaji_exposition::{CONTENT_TYPE, slis::Slis};
use kaji_meta::time::Clock;
use kaji_netfilter::Family;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::net::TcpListener;

/// A change that is not in force for so long means that the proxy is unhealthy: twice upstream's sync period.
const LATE: SignedDuration = SignedDuration::from_secs(60);

/// What health depends on.
#[derive(Debug, Default)]
struct State {
    updated: Option<Timestamp>,
    queued: Option<Timestamp>,
    /// Whether the Node exists, is not being deleted and not about to be by an autoscaler.
    eligible: bool,
    /// Local ready endpoints by service, for those with a health check node port.
    services: BTreeMap<(String, String), LocalReady>,
}

/// Health, shared by the proxy and its listeners.
pub struct Health {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    metrics: Metrics,
    slis: Slis,
}

impl Health {
    /// Healthy, of a node that is not eligible yet.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Health> {
        Arc::new(Health {
            clock,
            state: Mutex::default(),
            metrics: Metrics::default(),
            slis: Slis::default(),
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the proxy counts.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The time of changes and rules.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A change waits.
    pub fn queued(&self) {
        let now = self.clock.now();
        self.with(|state| {
            state.queued.get_or_insert(now);
        });
    }

    /// All changes are in force.
    pub fn updated(&self) {
        let now = self.clock.now();
        self.with(|state| {
            state.queued = None;
            state.updated = Some(now);
        });
    }

    /// Whether load balancers may use the node.
    pub fn set_eligible(&self, eligible: bool) {
        self.with(|state| state.eligible = eligible);
    }

    /// The local ready endpoints of a service with a health check node port; `None` for one without.
    pub fn set_service(&self, namespace: &str, name: &str, endpoints: Option<LocalReady>) {
        let key = (namespace.to_owned(), name.to_owned());
        self.with(|state| match endpoints {
            Some(endpoints) => state.services.insert(key, endpoints),
            None => state.services.remove(&key),
        });
    }

    /// Whether changes take effect in time.
    pub fn healthy(&self) -> bool {
        let now = self.clock.now();
        self.with(|state| state.queued.is_none_or(|queued| now.duration_since(queued) < LATE))
    }

    /// What `/healthz` and `/livez` answer. Only the former depends on the node.
    fn proxy(&self, with_node: bool) -> (StatusCode, Value) {
        let now = self.clock.now();
        let sound = self.healthy();
        let (updated, eligible) = self.with(|state| (state.updated, state.eligible));
        let healthy = sound && (eligible || !with_node);
        let time = |time: Option<Timestamp>| {
            time.map_or_else(|| "0001-01-01T00:00:00Z".to_owned(), |time| time.to_string())
        };
        let last = if healthy { time(Some(now)) } else { time(updated) };
        let mut status = serde_json::Map::new();
        if updated.is_some() {
            for family in ["IPv4", "IPv6"] {
                status.insert(family.into(), json!({"lastUpdated": time(updated), "healthy": sound}));
            }
        }
        let mut body = json!({"lastUpdated": last, "currentTime": time(Some(now))});
        if with_node {
            body["nodeEligible"] = eligible.into();
        }
        body["status"] = status.into();
        (if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, body)
    }

    /// What the health check node port of a service answers to a client of a family: code, number of endpoints, body.
    fn service(&self, namespace: &str, name: &str, family: Family) -> (StatusCode, usize, String) {
        let healthy = self.healthy();
        let key = (namespace.to_owned(), name.to_owned());
        let count = self.with(|state| state.services.get(&key).copied()).unwrap_or_default().of(family);
        let code = if count != 0 && healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let (namespace, name) = (Value::from(namespace), Value::from(name));
        let body = format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": {namespace},\n\t\t\"name\": {name}\n\t}},\n\t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
        );
        (code, count, body)
    }
}

/// What a listener answers for.
#[derive(Debug, Clone)]
pub enum Subject {
    /// `/healthz` and `/livez`.
    Proxy,
    /// `/metrics`, `/metrics/slis`, `/healthz` of the listener itself, and `/proxyMode`.
    Metrics,
    /// A service, whatever the path.
    Service {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
}

fn answer(health: &Health, subject: &Subject, family: Family, path: &str) -> Response<Full<Bytes>> {
    const JSON: &str = "application/json";
    match subject {
        Subject::Proxy if matches!(path, "/healthz" | "/livez") => {
            let (code, body) = health.proxy(path == "/healthz");
            health.metrics.checked(path == "/healthz", code);
            pages::page(code, JSON, body.to_string())
        }
        Subject::Proxy => pages::not_found(),
        Subject::Metrics => match path {
            "/metrics" => pages::page(StatusCode::OK, CONTENT_TYPE, health.metrics.page()),
            "/metrics/slis" => pages::page(StatusCode::OK, CONTENT_TYPE, health.slis.page()),
            "/healthz" => {
                for check in ["ping", "log"] {
                    health.slis.observe(check, "healthz", true);
                }
                pages::page(StatusCode::OK, "text/plain; charset=utf-8", "ok".to_owned())
            }
            "/proxyMode" => pages::page(StatusCode::OK, "text/plain; charset=utf-8", "nftables".to_owned()),
            _ => pages::not_found(),
        },
        Subject::Service { namespace, name } => {
            let (code, count, body) = health.service(namespace, name, family);
            let mut response = pages::page(code, JSON, body);
            response.headers_mut().insert("x-load-balancing-endpoint-weight", count.into());
            response
        }
    }
}

/// Serves until the future is dropped.
pub async fn serve(listener: TcpListener, health: Arc<Health>, subject: Subject) {
    let pages = move |family: Family, path: &str| answer(&health, &subject, family, path);
    pages::serve_families(listener, Arc::new(pages)).await;
}
