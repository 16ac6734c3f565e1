//! The proxy's own health, and that of services for load balancers: answers as upstream's, and the server that gives them.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response, StatusCode, body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::{SignedDuration, Timestamp};
use kaji_meta::time::Clock;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{net::TcpListener, sync::Semaphore};

/// A change that is not in force for so long means that the proxy is unhealthy: twice upstream's sync period.
const LATE: SignedDuration = SignedDuration::from_secs(60);
/// Connections to one listener.
const CONNECTIONS: usize = 64;
/// For a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// What health depends on.
#[derive(Debug, Default)]
struct State {
    updated: Option<Timestamp>,
    queued: Option<Timestamp>,
    /// Whether the Node exists, is not being deleted and not about to be by an autoscaler.
    eligible: bool,
    /// Local ready endpoints by service, for those with a health check node port.
    services: BTreeMap<(String, String), usize>,
}

/// Health, shared by the proxy and its listeners.
pub struct Health {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

impl Health {
    /// Healthy, of a node that is not eligible yet.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Health> {
        Arc::new(Health { clock, state: Mutex::default() })
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
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
    pub fn set_service(&self, namespace: &str, name: &str, endpoints: Option<usize>) {
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

    /// What the health check node port of a service answers: code, number of endpoints, body.
    fn service(&self, namespace: &str, name: &str) -> (StatusCode, usize, String) {
        let healthy = self.healthy();
        let key = (namespace.to_owned(), name.to_owned());
        let count = self.with(|state| state.services.get(&key).copied()).unwrap_or_default();
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
    /// A service, whatever the path.
    Service {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
}

fn answer(health: &Health, subject: &Subject, path: &str) -> Response<Full<Bytes>> {
    let (code, count, body) = match subject {
        Subject::Proxy => match path {
            "/healthz" | "/livez" => {
                let (code, body) = health.proxy(path == "/healthz");
                (code, None, body.to_string())
            }
            _ => (StatusCode::NOT_FOUND, None, "404 page not found\n".to_owned()),
        },
        Subject::Service { namespace, name } => {
            let (code, count, body) = health.service(namespace, name);
            (code, Some(count), body)
        }
    };
    let json = code != StatusCode::NOT_FOUND;
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    let kind = if json { "application/json" } else { "text/plain; charset=utf-8" };
    headers.insert("content-type", hyper::header::HeaderValue::from_static(kind));
    headers.insert("x-content-type-options", hyper::header::HeaderValue::from_static("nosniff"));
    if let Some(count) = count {
        headers.insert("x-load-balancing-endpoint-weight", count.into());
    }
    response
}

/// Serves until the future is dropped.
pub async fn serve(listener: TcpListener, health: Arc<Health>, subject: Subject) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        // The semaphore is never closed.
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "health check connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (health, subject) = (health.clone(), subject.clone());
        connections.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let response = answer(&health, &subject, request.uri().path());
                async move { Ok::<_, Infallible>(response) }
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            if let Err(error) = served {
                tracing::debug!(%error, "health check connection");
            }
            drop(permit);
        });
    }
}
