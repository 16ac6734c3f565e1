//! The aggregation layer: group versions that other servers serve behind this one.
//!
//! Requests of a group version are proxied to the service that its APIService names (`proxy`), once a controller has found the
//! server available (`availability_controller`, `availability`); the controller also fetches the server's discovery
//! documents (`documents`). APIServices of the groups that this server serves are created by `autoregister`.
//!
//! Invariants:
//! - Whether a request leaves is decided by the APIServices alone, as of the moment that it is routed (`routes`).
//! - A cluster without such servers pays two loads a request; servers that hang delay only their own group versions.
//!
//! Source: upstream's kube-aggregator.

mod autoregister;
mod availability;
mod availability_controller;
mod changes;
mod documents;
mod forwarded_request;
mod merge;
mod metrics;
pub mod priorities;
mod proxy;
mod routes;
mod service;
mod specs;
mod v3;

pub use autoregister::ensure;
pub use documents::Extension;
pub use proxy::ForwardContext;
pub use routes::{Identity, Route, Table};
pub use service::{ApiService, Backend, Condition, api_services};
pub use specs::Swaggers;

use changes::{Changes, Watched};
use documents::Documents;
use kaji_decisions::Decisions;
use kaji_engine::{Engine, cache::Follower};
use kaji_meta::Clock;
use kaji_outbound::ClientCache;
use metrics::Metrics;
use routes::Routes;
use specs::Specs;
use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};
use tokio::{
    sync::{Semaphore, watch},
    task::{AbortHandle, JoinSet},
};

/// Concurrent probes.
const LOOKS: usize = 32;

/// The aggregation layer of one server.
pub struct Aggregator {
    engine: Arc<Engine>,
    clients: Arc<ClientCache>,
    routes: Routes,
    documents: Documents,
    specs: Specs,
    metrics: Metrics,
    clock: Arc<dyn Clock>,
    decisions: Arc<Decisions>,
    looks: Semaphore,
    stop: watch::Sender<bool>,
}

/// What discovery adds to what this server serves itself.
#[derive(Clone, Default)]
pub struct Extensions {
    /// Changes whenever the rest does.
    pub generation: (u64, u64),
    /// Group versions, by group and version.
    pub versions: Vec<Extension>,
}

impl Aggregator {
    /// Over an engine that serves APIServices. `identity` is how this server proves itself to others.
    pub fn new(
        engine: Arc<Engine>,
        clients: Arc<ClientCache>,
        identity: Identity,
        clock: Arc<dyn Clock>,
        decisions: Arc<Decisions>,
    ) -> Arc<Aggregator> {
        Arc::new(Aggregator {
            decisions,
            routes: Routes::new(&engine, identity),
            engine,
            clients,
            documents: Documents::default(),
            specs: Specs::default(),
            metrics: Metrics::default(),
            clock,
            looks: Semaphore::new(LOOKS),
            stop: watch::Sender::new(false),
        })
    }

    /// Makes the availability of APIServices part of a page of metrics.
    pub fn register_metrics(&self, registry: &mut prometheus_client::registry::Registry) {
        self.metrics.register(registry);
    }

    /// The route of a path that an extension server serves.
    pub fn route(&self, path: &str) -> Option<Arc<Route>> {
        let found = self.routes.route(path);
        match path.strip_prefix("/openapi/v3/") {
            Some(document) => self.specs.owner(&self.routes.table(), document.trim_end_matches('/')),
            None => found,
        }
    }

    /// What others add to the OpenAPI v2 document.
    pub fn swaggers(&self) -> Swaggers {
        self.specs.v2(&self.routes.table())
    }

    /// What others add to the index of OpenAPI v3: names of documents and where they are.
    pub fn openapi_v3(&self) -> std::collections::BTreeMap<String, String> {
        self.specs.v3(&self.routes.table())
    }

    /// A document of that index that this server has made, for a server that has it in the older form only: its text, and
    /// a name of its content.
    pub fn openapi_v3_document(&self, name: &str) -> Option<(bytes::Bytes, String)> {
        self.specs.cached(&self.routes.table(), name)
    }

    /// Tells whether [`Aggregator::extensions`] would give something else. Cheap.
    pub fn generation(&self) -> (u64, u64) {
        (self.routes.table().generation, self.documents.generation())
    }

    /// All group versions of extension servers.
    pub fn extensions(&self) -> Extensions {
        let table = self.routes.table();
        // Before the documents are looked at: what comes meanwhile counts as news.
        let generation = (table.generation, self.documents.generation());
        Extensions { generation, versions: self.documents.list(&table) }
    }

    /// From now on this server proves itself by another certificate.
    pub fn identify(&self, identity: Identity) {
        self.routes.identify(identity);
    }

    /// Looks after APIServices until it is stopped.
    pub async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let (this, engine) = (Arc::downgrade(&self), Arc::downgrade(&self.engine));
        let work = async { tokio::join!(supervise(this), autoregister::follow(engine)) };
        tokio::select! {
            biased;
            _ = work => {}
            _ = stop.wait_for(|s| *s) => {}
        }
        self.stop.send_replace(true);
    }
}

impl Route {
    /// `s.n.svc:443`: the name that the server's certificate is for, and the port of the service.
    pub(crate) fn authority(&self) -> String {
        let Backend { namespace, name, port, .. } = &self.service.backend;
        format!("{name}.{namespace}.svc:{port}")
    }
}

/// The controller of an APIService.
struct Kept {
    route: watch::Sender<Arc<Route>>,
    task: AbortHandle,
}

/// Starts a controller for each APIService with a service, and writes the condition of the others.
async fn supervise(aggregator: Weak<Aggregator>) {
    let mut tasks = JoinSet::new();
    let mut controllers: HashMap<String, Kept> = HashMap::new();
    let mut local: Option<Follower> = None;
    loop {
        let Some(this) = aggregator.upgrade() else { return };
        let Some(mut changes) = Changes::of(&this.engine, [Watched::all(api_services(), "v1")]).await else {
            return;
        };
        drop(this);
        loop {
            let Some(this) = aggregator.upgrade() else { return };
            // Ended controllers are not kept.
            while tasks.try_join_next().is_some() {}
            reconcile(&this, &mut controllers, &mut tasks);
            locals(&this, &mut local).await;
            drop(this);
            if !changes.next().await {
                break;
            }
        }
    }
}

fn reconcile(this: &Arc<Aggregator>, controllers: &mut HashMap<String, Kept>, tasks: &mut JoinSet<()>) {
    let table = this.routes.table();
    controllers.retain(|name, kept| {
        let there = table.named(name).is_some() && !kept.task.is_finished();
        if !there {
            kept.task.abort();
        }
        there
    });
    this.documents.retain(&table);
    this.specs.retain(&table);
    for route in table.routes() {
        match controllers.get(&route.service.name) {
            Some(kept) => {
                kept.route.send_if_modified(|old| {
                    let news = !Arc::ptr_eq(old, route);
                    *old = route.clone();
                    news
                });
            }
            None => {
                let (sender, receiver) = watch::channel(route.clone());
                let (weak, other) = (Arc::downgrade(this), receiver.clone());
                let task = tasks.spawn(async move {
                    tokio::join!(
                        availability_controller::keep(weak.clone(), receiver),
                        specs::follow(weak, other)
                    );
                });
                controllers.insert(route.service.name.clone(), Kept { route: sender, task });
            }
        }
    }
}

/// APIServices without a service are always available; the condition of one that had a service has to be written.
async fn locals(this: &Arc<Aggregator>, follower: &mut Option<Follower>) {
    if follower.is_none() {
        let registry = this.engine.registry();
        *follower = registry.by_group_resource(&api_services()).map(|r| Follower::new(r.cache.clone()));
    }
    let Some(follower) = follower else { return };
    for (entry, there) in follower.take().1 {
        if !there {
            this.metrics.forget(entry.name());
            continue;
        }
        let object = entry.decode();
        if ApiService::parse(&object).is_some() {
            let available = Condition::of(&object).is_some_and(|c| c.is_true());
            this.metrics.is(entry.name(), available);
            continue;
        }
        if let Err(error) = availability_controller::write(this, entry.name(), &Condition::local()).await {
            tracing::warn!(name = entry.name(), %error, "an APIService's condition could not be written");
        }
    }
}
