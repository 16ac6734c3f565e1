//! Services and slices, as informers show them, become changes of the tables.

use crate::{
    Dataplane, NodeConfig, ProxyError, endpoints,
    health::{Health, Subject, serve},
    metrics::{Metrics, Trigger},
    service::{Compiled, compile},
};
use kaji_network::Cidr;
use kaji_runtime::{
    EventRecord, Informer, Informers, Key,
    objects::{EndpointSlice, Node, SERVICE_NAME_LABEL, Service},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::ErrorKind,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};

/// Before a change that failed is repeated.
const RETRY: Duration = Duration::from_secs(1);
/// Before health check node ports are tried again that were not free: upstream's `syncPeriod`.
const CHECK_RETRY: Duration = Duration::from_secs(30);
/// Before the address of `/healthz` is tried again, as upstream.
const HEALTH_RETRY: Duration = Duration::from_secs(5);
/// The zone's label.
const ZONE: &str = "topology.kubernetes.io/zone";
/// Put on nodes that an autoscaler is about to delete.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// When what made the endpoints change has happened.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Services with rules that may have to change.
#[derive(Default)]
struct Pending {
    keys: Mutex<BTreeSet<Key>>,
    changed: Notify,
}

impl Pending {
    fn add(&self, keys: impl IntoIterator<Item = Key>) {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).extend(keys);
        self.changed.notify_one();
    }

    fn take(&self) -> BTreeSet<Key> {
        std::mem::take(&mut *self.keys.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Records an event, or drops it.
pub type Events = Arc<dyn Fn(EventRecord) + Send + Sync>;

/// The proxy of one node.
pub struct ServiceProxy {
    config: NodeConfig,
    dataplane: Dataplane,
    health: Arc<Health>,
    services: Arc<Informer<Service>>,
    slices: Arc<Informer<EndpointSlice>>,
    nodes: Arc<Informer<Node>>,
    pending: Arc<Pending>,
    /// Listeners of health check node ports, by service.
    checks: BTreeMap<Key, (u16, Check)>,
    /// Services without the listener that they should have.
    unheard: BTreeSet<Key>,
    events: Events,
    /// No rules were in force yet.
    first: bool,
}

/// A listener that ends with its service.
struct Check(JoinHandle<()>);

impl Drop for Check {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ServiceProxy {
    /// Subscribes to the informers and starts the thread of the tables.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn start(
        config: NodeConfig,
        informers: &Informers,
        events: Events,
    ) -> Result<ServiceProxy, ProxyError> {
        let proxy = ServiceProxy {
            dataplane: Dataplane::start(config.clone()).await?,
            health: Health::new(informers.clock().clone()),
            services: informers.get::<Service>(),
            slices: informers.get::<EndpointSlice>(),
            nodes: informers.get::<Node>(),
            pending: Arc::default(),
            checks: BTreeMap::new(),
            unheard: BTreeSet::new(),
            events,
            first: true,
            config,
        };
        let (pending, health) = (proxy.pending.clone(), proxy.health.clone());
        proxy.services.handle(move |change| {
            health.queued();
            health.metrics().service_changed(health.now());
            pending.add([change.any().metadata.key()]);
        });
        let (pending, health, started) = (proxy.pending.clone(), proxy.health.clone(), proxy.health.now());
        proxy.slices.handle(move |change| {
            let proxied = |slice: &&EndpointSlice| !endpoints::headless(slice);
            let old = change.old.as_deref().filter(proxied);
            let new = change.new.as_deref().filter(proxied);
            if old.is_none() && new.is_none() {
                return;
            }
            health.queued();
            health.metrics().endpoints_changed(health.now());
            measure(health.metrics(), old, new, started);
            pending.add([old, new].into_iter().flatten().filter_map(owner));
        });
        let (pending, name) = (proxy.pending.clone(), proxy.config.name.clone());
        proxy.nodes.handle(move |change| {
            if change.any().metadata.name == name {
                pending.add([]);
            }
        });
        Ok(proxy)
    }

    /// The proxy's health, for a listener of `/healthz`.
    #[must_use]
    pub fn health(&self) -> Arc<Health> {
        self.health.clone()
    }

    /// The tables, for their removal.
    #[must_use]
    pub fn dataplane(&self) -> Dataplane {
        self.dataplane.clone()
    }

    /// Resolves when the first rules can be computed.
    async fn synced(&self) {
        self.services.synced().await;
        self.slices.synced().await;
        self.nodes.synced().await;
    }

    /// What the Node object says. Answers whether rules depend on what has changed.
    fn read_node(&mut self) -> bool {
        let nodes = self.nodes.snapshot();
        let node = nodes.get("", &self.config.name);
        let eligible = node.is_some_and(|node| {
            !node.metadata.deleting() && !node.spec.taints.iter().any(|taint| taint.key == TO_BE_DELETED)
        });
        self.health.set_eligible(eligible);
        let Some(node) = node else { return false };
        let mut config = self.config.clone();
        config.zone = node.metadata.labels.get(ZONE).cloned().unwrap_or_default();
        let cidrs: Vec<Cidr> = node.spec.pod_cidrs.iter().filter_map(|text| text.parse().ok()).collect();
        for range in cidrs {
            if !config.local_cidrs.iter().any(|known| known.covers(&range)) {
                config.local_cidrs.push(range);
            }
        }
        config.node_ips = node
            .status
            .addresses
            .iter()
            .filter(|address| &*address.kind == "InternalIP")
            .filter_map(|address| address.address.parse().ok())
            .collect();
        let changed = config != self.config;
        self.config = config;
        changed
    }

    /// Brings the rules of changed services up to date; of all when the node has changed.
    async fn sync(&mut self) -> Result<(), ProxyError> {
        let began = tokio::time::Instant::now();
        let mut whole = std::mem::take(&mut self.first);
        let mut keys = self.pending.take();
        keys.extend(std::mem::take(&mut self.unheard));
        self.health.metrics().taken();
        let (services, slices) = (self.services.snapshot(), self.slices.snapshot());
        if self.read_node() {
            whole = true;
            keys.extend(services.iter().map(|service| service.metadata.key()));
            self.dataplane.reconfigure(self.config.clone()).await?;
        }
        let mut compiled = vec![];
        for key in &keys {
            let name = key.to_string();
            let service = services.by_key(key);
            let own: Vec<Arc<EndpointSlice>> = slices.indexed("service", &name).cloned().collect();
            let result = service.map(|service| compile(service, &own, &self.config)).unwrap_or_default();
            self.check(key, &result).await;
            compiled.push((name, result));
        }
        let result = self.dataplane.update(compiled).await;
        let at = result.as_ref().map(|_| self.health.now()).map_err(drop);
        self.health.metrics().synced(began.elapsed(), whole, at);
        if result.is_err() {
            self.pending.add(keys.iter().cloned());
        }
        let changes = result?;
        if self.pending.keys.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            self.health.updated();
        }
        tracing::debug!(services = keys.len(), changes, "service rules are in force");
        Ok(())
    }

    /// Listens at the health check node port of a service, or ends that. One listener is for both families.
    async fn check(&mut self, key: &Key, compiled: &Compiled) {
        self.health.set_service(
            &key.namespace,
            &key.name,
            compiled.health_check.map(|(_, endpoints)| endpoints),
        );
        let port = compiled.health_check.map(|(port, _)| port);
        if self.checks.get(key).map(|(port, _)| *port) == port {
            return;
        }
        self.checks.remove(key);
        let Some(port) = port else { return };
        let address = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port);
        let listener = self.dataplane.listen(address).await.and_then(|listener| {
            tokio::net::TcpListener::from_std(listener)
                .map_err(|error| ProxyError::Io(address.to_string(), error))
        });
        match listener {
            Ok(listener) => {
                let subject = Subject::Service { namespace: key.namespace.clone(), name: key.name.clone() };
                let task = tokio::spawn(serve(listener, self.health.clone(), subject));
                self.checks.insert(key.clone(), (port, Check(task)));
            }
            Err(error) => {
                let event = unheard(&self.config.name, key, address, &error);
                tracing::warn!("{}", event.message);
                (self.events)(event);
                self.unheard.insert(key.clone());
            }
        }
    }
}

/// The event of a health check node port that cannot be listened at, with Go's text for one that is taken.
fn unheard(node: &str, service: &Key, address: SocketAddr, error: &ProxyError) -> EventRecord {
    let error = match error {
        ProxyError::Io(_, error) if error.kind() == ErrorKind::AddrInUse => {
            format!("listen tcp {address}: bind: address already in use")
        }
        error => error.to_string(),
    };
    let (name, port) = (service.to_string(), address.port());
    let message = format!("node {node} failed to start healthcheck {name:?} on port {port}: {error}");
    let regarding = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Service",
        "namespace": service.namespace.as_str(),
        "name": service.name.as_str(),
    });
    EventRecord::warning(regarding, "FailedToStartServiceHealthcheck", message)
}

fn owner(slice: &EndpointSlice) -> Option<Key> {
    let name = slice.metadata.labels.get(SERVICE_NAME_LABEL)?;
    Some(Key::new(slice.metadata.namespace.as_str(), name.as_str()))
}

/// Notes what has made a slice change, if it says so and that was after the proxy's start.
fn measure(
    metrics: &Metrics,
    old: Option<&EndpointSlice>,
    new: Option<&EndpointSlice>,
    started: jiff::Timestamp,
) {
    let Some(service) = new.or(old).and_then(owner) else { return };
    let Some(slice) = new else { return metrics.slice_removed(&service) };
    let told = |slice: &EndpointSlice| slice.metadata.annotations.get(TRIGGER_TIME)?.parse().ok();
    let Some(at) = told(slice).filter(|at| *at > started && old.and_then(told) != Some(*at)) else { return };
    let family = if slice.address_type == "IPv6" { "IPv6" } else { "IPv4" };
    metrics.triggered(Trigger { service, family, at });
}

/// Answers `/healthz` and `/livez`; until the address is free, nothing but the listener waits for it.
async fn serve_health(dataplane: Dataplane, address: SocketAddr, health: Arc<Health>) {
    loop {
        let listener = dataplane.listen(address).await.and_then(|listener| {
            tokio::net::TcpListener::from_std(listener)
                .map_err(|error| ProxyError::Io(address.to_string(), error))
        });
        match listener {
            Ok(listener) => return serve(listener, health, Subject::Proxy).await,
            Err(error) => tracing::error!(%error, "Healthz server failed"),
        }
        tokio::time::sleep(HEALTH_RETRY).await;
    }
}

/// Keeps the rules of a node as services and slices say, until `stop` turns true; the rules stay in force then. `/healthz` and
/// `/livez` are served at `health_address`, if there is one.
///
/// # Errors
/// None: changes that the kernel refuses are repeated, and so is a listener that cannot be had.
pub async fn run(
    mut proxy: ServiceProxy,
    health_address: Option<SocketAddr>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), ProxyError> {
    let _health_server = health_address
        .map(|address| Check(tokio::spawn(serve_health(proxy.dataplane(), address, proxy.health()))));
    tokio::select! {
        () = proxy.synced() => {}
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
    }
    loop {
        let failed = match proxy.sync().await {
            Ok(()) => false,
            Err(error) => {
                proxy.health.queued();
                tracing::error!(%error, "the service rules could not be applied");
                true
            }
        };
        let pending = proxy.pending.clone();
        tokio::select! {
            () = pending.changed.notified(), if !failed => {}
            () = tokio::time::sleep(RETRY), if failed => {}
            () = tokio::time::sleep(CHECK_RETRY), if !proxy.unheard.is_empty() => {}
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_health_check_node_port_that_is_taken_has_an_event() {
        let address: SocketAddr = "[::]:30123".parse().unwrap();
        let of = |kind: ErrorKind| {
            let error = ProxyError::Io(address.to_string(), kind.into());
            let event = unheard("node-1", &Key::new("n", "s"), address, &error);
            format!("{} {} {}", event.regarding, event.reason, event.message)
        };
        expect_test::expect![[r#"{"apiVersion":"v1","kind":"Service","name":"s","namespace":"n"} FailedToStartServiceHealthcheck node node-1 failed to start healthcheck "n/s" on port 30123: listen tcp [::]:30123: bind: address already in use"#]]
            .assert_eq(&of(ErrorKind::AddrInUse));
        let other = of(ErrorKind::PermissionDenied);
        assert!(other.contains("30123: permission denied") && !other.contains("in use"), "{other}");
    }
}
