//! Routes to the pods of nodes, in clouds with a network that has to know where pod CIDRs are. Every period the provider's routes are
//! compared with the nodes' CIDRs; whether a node has all of its routes is its condition `NetworkUnavailable`. Source: upstream's
//! route controller of `k8s.io/cloud-provider`.
//!
//! Invariants:
//! - Routes to ranges outside of the cluster's pods are left alone.
//! - Where a route follows the addresses of its node, all deletions come before the first creation: a route that is made anew has
//!   the same name.
//! - A condition is written when its status or its reason changes.

use crate::{
    Descriptor, Start,
    cloud_provider::{CloudError, CloudProvider, Route, Routes},
    loop_config::CloudLoops,
    node_ipam::NodeRanges,
    shared::{
        conditions::seconds,
        running::{RUNNING, running},
    },
};
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use kaji_runtime::{
    Client, Controller, Cx, EventRecord, Informers, Key, Metric, Moment, ObjectSnapshot, PatchKind, Plan,
    Projection, Reconciler, Step, View, Write,
    client::Target,
    objects::{Node, NodeAddress},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::time::Instant;

const COMPONENT: &str = "route_controller";
/// Calls of the provider in flight at once.
const PARALLEL: usize = 200;
const CONDITION: &str = "NetworkUnavailable";

static SYNCS: Metric = Metric::counter(
    "route_controller_route_sync_total",
    "[ALPHA] A metric counting the amount of times routes have been synced with the cloud provider.",
    &[],
);
/// The metrics of the controller.
pub static METRICS: [&Metric; 2] = [&SYNCS, &RUNNING];

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "node-route-controller",
    components: &[COMPONENT],
    service_account: Some("route-controller"),
    workers: None,
    start: Start::Reconcilers(|informers, config| {
        let cloud = config.cloud.as_ref().filter(|cloud| cloud.routes().is_some());
        let wanted = config.loops.cloud.configure_routes;
        match (cloud, &config.node_ranges) {
            (Some(cloud), Some(ranges)) if wanted => {
                vec![controller(informers, cloud.clone(), ranges.clone(), config.loops.cloud.clone())]
            }
            _ => vec![],
        }
    }),
};

fn controller(
    informers: &Arc<Informers>,
    cloud: Arc<dyn CloudProvider>,
    ranges: NodeRanges,
    loops: CloudLoops,
) -> Controller {
    let routes = NodeRoutes { cloud, ranges, loops, looked: Mutex::default() };
    let controller = Controller::new(routes, informers).workers(1).reads::<Node>(|_, _| vec![]);
    controller.gauges(|_| vec![running("route")]).seed(Key::default())
}

/// What has to be done so that the provider's routes are those of the nodes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Work {
    delete: Vec<Route>,
    /// With the node's uid.
    create: Vec<(String, Route)>,
    /// Whether creations have to wait for deletions.
    ordered: bool,
    /// Nodes with a CIDR.
    complete: BTreeSet<String>,
    /// Nodes without a CIDR to which routes lead nevertheless.
    without: BTreeSet<String>,
}

/// Compares routes with the CIDRs of nodes.
fn work(nodes: &ObjectSnapshot<Node>, routes: Vec<Route>, ranges: &NodeRanges) -> Work {
    let mut work = Work { ordered: routes.first().is_some_and(|r| r.follows_addresses), ..Work::default() };
    let mut kept: BTreeSet<(String, String)> = BTreeSet::new();
    for node in nodes.iter() {
        let name = &node.metadata.name;
        let mut own = routes.iter().filter(|route| route.target_node == *name);
        if node.spec.pod_cidrs.is_empty() {
            if own.next().is_some() {
                work.without.insert(name.clone());
            }
            continue;
        }
        work.complete.insert(name.clone());
        for cidr in &node.spec.pod_cidrs {
            let found = own.clone().find(|route| route.destination == *cidr);
            let same = |route: &&Route| {
                !route.follows_addresses || same_addresses(&route.target_addresses, &node.status.addresses)
            };
            if found.filter(same).is_some() {
                kept.insert((name.clone(), cidr.clone()));
                continue;
            }
            let route = Route {
                target_node: name.clone(),
                target_addresses: node.status.addresses.to_vec(),
                destination: cidr.clone(),
                ..Route::default()
            };
            work.create.push((node.metadata.uid.clone(), route));
        }
    }
    let unused = |route: &Route| {
        route.blackhole || !kept.contains(&(route.target_node.clone(), route.destination.clone()))
    };
    work.delete = routes.into_iter().filter(|r| ranges.has(&r.destination) && unused(r)).collect();
    work
}

/// Whether two lists have the same addresses, in whatever order.
fn same_addresses(a: &[NodeAddress], b: &[NodeAddress]) -> bool {
    a.len() == b.len() && a.iter().all(|address| b.contains(address))
}

/// What became of a look.
#[derive(Default)]
struct Looked {
    /// Whether a node has all of its routes.
    nodes: BTreeMap<String, bool>,
    /// Of nodes: why a route could not be made.
    failures: Vec<(String, String)>,
}

struct NodeRoutes {
    cloud: Arc<dyn CloudProvider>,
    ranges: NodeRanges,
    loops: CloudLoops,
    looked: Mutex<Looked>,
}

impl NodeRoutes {
    async fn look(&self, routes: &dyn Routes, nodes: &ObjectSnapshot<Node>) -> Result<Looked, CloudError> {
        let cluster = &*self.loops.cluster_name;
        let Work { delete, create, ordered, complete, without } =
            work(nodes, routes.list(cluster).await?, &self.ranges);
        let deletions = async {
            for batch in delete.chunks(PARALLEL) {
                let calls: FuturesUnordered<_> =
                    batch.iter().map(|route| self.delete(routes, route)).collect();
                calls.collect::<()>().await;
            }
        };
        let creations = async {
            let mut failures = vec![];
            for batch in create.chunks(PARALLEL) {
                let calls: FuturesUnordered<_> =
                    batch.iter().map(|(hint, route)| self.create(routes, hint, route)).collect();
                failures.extend(calls.filter_map(std::future::ready).collect::<Vec<_>>().await);
            }
            failures
        };
        let mut failures = if ordered {
            deletions.await;
            creations.await
        } else {
            futures_util::future::join(deletions, creations).await.1
        };
        failures.sort();
        let mut looked = Looked::default();
        looked.nodes.extend(complete.into_iter().map(|name| (name, true)));
        looked.nodes.extend(without.into_iter().map(|name| (name, false)));
        for (node, _) in &failures {
            looked.nodes.insert(node.clone(), false);
        }
        looked.failures = failures;
        Ok(looked)
    }

    /// Removes a route; one that stays is seen by the next look.
    async fn delete(&self, routes: &dyn Routes, route: &Route) {
        if let Err(error) = routes.delete(&self.loops.cluster_name, route).await {
            tracing::warn!(route = route.name, range = route.destination, %error, "a route cannot be deleted");
        }
    }

    /// Makes a route; the node and the reason if that failed.
    async fn create(&self, routes: &dyn Routes, hint: &str, route: &Route) -> Option<(String, String)> {
        let began = Instant::now();
        let error = routes.create(&self.loops.cluster_name, hint, route).await.err()?;
        let (node, range, took) = (&route.target_node, &route.destination, began.elapsed());
        let text = format!("Could not create route {hint} {range} for node {node} after {took:?}: {error}");
        Some((node.clone(), text))
    }
}

impl Reconciler for NodeRoutes {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "Routes"
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &METRICS
    }

    fn prepares(&self) -> bool {
        true
    }

    fn prepare<'a>(&'a self, view: &'a View, _: &'a Key, _: &'a Client) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Some(routes) = self.cloud.routes() else { return };
            let nodes = view.get::<Node>();
            let looked = self.look(routes, &nodes).await.unwrap_or_else(|error| {
                tracing::warn!(provider = self.cloud.name(), %error, "routes cannot be listed");
                Looked::default()
            });
            *self.looked.lock().unwrap_or_else(PoisonError::into_inner) = looked;
        })
    }

    fn reconcile(&self, view: &View, _: &Key, cx: &Cx<'_>) -> Plan {
        let looked = std::mem::take(&mut *self.looked.lock().unwrap_or_else(PoisonError::into_inner));
        let nodes = view.get::<Node>();
        let mut plan =
            Plan::nothing().again_after(self.loops.route_period).observe(Moment::Decided, SYNCS.one([]));
        for (name, reason) in looked.failures {
            let Some(node) = nodes.get("", &name) else { continue };
            let meta = &node.metadata;
            let about = json!({
                "apiVersion": Node::api_version(), "kind": Node::KIND, "name": name, "uid": meta.uid,
            });
            plan = plan.event(EventRecord::warning(about, "FailedToCreateRoute", reason));
        }
        let changed = looked.nodes.iter().filter_map(|(name, complete)| {
            let node = nodes.get("", name)?;
            (!shows(node, *complete)).then(|| condition(node, *complete, cx.now))
        });
        let steps = changed.map(|write| Step { write, on_success: None, on_failure: None }).collect();
        plan.stage(steps)
    }
}

/// Status, reason and message of the condition.
fn texts(complete: bool) -> (&'static str, &'static str, &'static str) {
    match complete {
        true => ("False", "RouteCreated", "RouteController created a route"),
        false => ("True", "NoRouteCreated", "RouteController failed to create a route"),
    }
}

fn shows(node: &Node, complete: bool) -> bool {
    let (status, reason, _) = texts(complete);
    let found = node.status.conditions.iter().find(|condition| condition.kind == CONDITION);
    found.is_some_and(|condition| condition.status == status && &*condition.reason == reason)
}

fn condition(node: &Node, complete: bool, now: jiff::Timestamp) -> Write {
    let (status, reason, message) = texts(complete);
    let now = seconds(now).to_string();
    Write::Patch {
        target: Target::of::<Node>("", &node.metadata.name).subresource("status"),
        kind: PatchKind::Strategic,
        body: json!({
            "metadata": {"uid": node.metadata.uid},
            "status": {"conditions": [{
                "type": CONDITION,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": now,
            }]},
        }),
    }
}

#[cfg(test)]
mod tests;
