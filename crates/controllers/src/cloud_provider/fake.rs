//! A cloud in memory for tests: machines, routes and load balancers, a record of the calls, and failures on demand.

use super::{
    Answer, CloudError, CloudProvider, InstanceLifecycle, InstanceMetadata, Instances, LoadBalancers,
    LoadBalancing, Route, Routes,
};
use kaji_runtime::objects::{LoadBalancerIngress, Node, Service};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What the cloud has.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// Machines by the names of their nodes.
    pub machines: BTreeMap<String, InstanceMetadata>,
    /// Nodes with machines that are switched off.
    pub off: BTreeSet<String>,
    /// All routes.
    pub routes: Vec<Route>,
    /// The names of nodes behind load balancers, by `namespace/name` of their services.
    pub balancers: BTreeMap<String, Vec<String>>,
    /// What calls of a name fail with.
    pub failures: BTreeMap<&'static str, CloudError>,
    /// The calls that change something or ask about a machine, one a line.
    pub calls: String,
}

/// A cloud in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct FakeCloud(Arc<Mutex<Contents>>);

impl FakeCloud {
    /// What the cloud has.
    pub fn lock(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calls since the last time.
    pub fn calls(&self) -> String {
        std::mem::take(&mut self.lock().calls)
    }

    /// Adds a machine.
    pub fn with_machine(self, node: &str, metadata: InstanceMetadata) -> FakeCloud {
        self.lock().machines.insert(node.to_owned(), metadata);
        self
    }

    /// Records a call and carries it out.
    fn call<'a, T: Send + 'a>(
        &self,
        name: &'static str,
        what: &str,
        act: impl FnOnce(&mut Contents) -> T,
    ) -> Answer<'a, T> {
        let mut contents = self.lock();
        let _ = writeln!(contents.calls, "{name} {what}");
        let answer = match contents.failures.get(name) {
            Some(error) => Err(error.clone()),
            None => Ok(act(&mut contents)),
        };
        Box::pin(std::future::ready(answer))
    }
}

impl CloudProvider for FakeCloud {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }

    fn lifecycle(&self) -> Option<&dyn InstanceLifecycle> {
        Some(self)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        Some(self)
    }

    fn load_balancing(&self) -> Option<LoadBalancing<'_>> {
        Some(LoadBalancing::Outside(self))
    }
}

impl Instances for FakeCloud {
    fn metadata<'a>(&'a self, node: &'a Node) -> Answer<'a, Option<InstanceMetadata>> {
        let name = &node.metadata.name;
        self.call("metadata", name, |contents| contents.machines.get(name).cloned())
    }
}

impl InstanceLifecycle for FakeCloud {
    fn exists<'a>(&'a self, node: &'a Node) -> Answer<'a, bool> {
        let name = &node.metadata.name;
        self.call("exists", name, |contents| contents.machines.contains_key(name))
    }

    fn is_shut_down<'a>(&'a self, node: &'a Node) -> Answer<'a, bool> {
        let name = &node.metadata.name;
        self.call("is_shut_down", name, |contents| contents.off.contains(name))
    }
}

fn route_text(cluster: &str, route: &Route) -> String {
    format!("{cluster}: {} to {}", route.destination, route.target_node)
}

impl Routes for FakeCloud {
    fn list<'a>(&'a self, cluster: &'a str) -> Answer<'a, Vec<Route>> {
        self.call("list", cluster, |contents| contents.routes.clone())
    }

    fn create<'a>(&'a self, cluster: &'a str, hint: &'a str, route: &'a Route) -> Answer<'a, ()> {
        self.call("create", &route_text(cluster, route), |contents| {
            contents.routes.push(Route { name: hint.to_owned(), ..route.clone() });
        })
    }

    fn delete<'a>(&'a self, cluster: &'a str, route: &'a Route) -> Answer<'a, ()> {
        self.call("delete", &route_text(cluster, route), |contents| {
            contents.routes.retain(|other| other != route);
        })
    }
}

fn key(service: &Service) -> String {
    service.metadata.key().to_string()
}

/// A fake load balancer's address.
fn ingress() -> Vec<LoadBalancerIngress> {
    vec![LoadBalancerIngress { hostname: "lb.example.com".into(), ..LoadBalancerIngress::default() }]
}

fn names(nodes: &[Arc<Node>]) -> Vec<String> {
    nodes.iter().map(|node| node.metadata.name.clone()).collect()
}

impl LoadBalancers for FakeCloud {
    fn get<'a>(
        &'a self,
        _cluster: &'a str,
        service: &'a Service,
    ) -> Answer<'a, Option<Vec<LoadBalancerIngress>>> {
        let key = key(service);
        self.call("get", &key, |contents| contents.balancers.contains_key(&key).then(ingress))
    }

    fn ensure<'a>(
        &'a self,
        _cluster: &'a str,
        service: &'a Service,
        nodes: &'a [Arc<Node>],
    ) -> Answer<'a, Vec<LoadBalancerIngress>> {
        let (key, nodes) = (key(service), names(nodes));
        self.call("ensure", &format!("{key} {}", nodes.join(",")), |contents| {
            contents.balancers.insert(key.clone(), nodes.clone());
            ingress()
        })
    }

    fn update<'a>(
        &'a self,
        _cluster: &'a str,
        service: &'a Service,
        nodes: &'a [Arc<Node>],
    ) -> Answer<'a, ()> {
        let (key, nodes) = (key(service), names(nodes));
        self.call("update", &format!("{key} {}", nodes.join(",")), |contents| {
            contents.balancers.insert(key.clone(), nodes.clone());
        })
    }

    fn ensure_deleted<'a>(&'a self, _cluster: &'a str, service: &'a Service) -> Answer<'a, ()> {
        let key = key(service);
        self.call("ensure_deleted", &key, |contents| drop(contents.balancers.remove(&key)))
    }
}
