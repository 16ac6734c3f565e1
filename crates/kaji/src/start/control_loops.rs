//! The control loops of a cluster: controllers, scheduler and nodes. Simulated nodes share the informers of the controllers, a
//! real one sees what its Node's user may read.
//!
//! Invariant: every loop is a client of the API server through the in-process transport, with the user that upstream's
//! component has; of several servers over one etcd, one runs the controllers, and one the scheduler.

use crate::environment::Environment;
use kaji_access::identities;
use kaji_auth::authn::{ClusterAuthenticationInfo, SigningKey};
use kaji_controllers::{
    Authorities, NodeRanges,
    cloud_provider::{BareMachines, CloudProvider},
};
use kaji_controlplane::{CacheFeed, LocalBatches, cache_checks::CacheChecks, cluster_dns};
use kaji_decisions::Decisions;
use kaji_kubelet::{
    cloud::ExternalCloud,
    hostname::node_name,
    node::NodeServer,
    server::KubeletServerConfig,
    simulated::{self, Fleet},
};
use kaji_meta::{GroupResource, object, time::SystemClock};
use kaji_node::node::{self, RealNodeConfig};
use kaji_options::{Nodes, Options, StoreKind, addresses::dns_service_ip};
use kaji_resource::ObjectReader;
use kaji_runtime::{Client, ControllerMetrics, Election, Informers, LeaseTiming, Selected, Shared};
use kaji_server::{Certificates, Identities, LocalService, Metrics, Stack};
use std::{net::IpAddr, sync::Arc};
use tokio::{sync::watch, task::JoinSet};

/// The metrics of the loops of this process. Clones share the numbers.
#[derive(Clone, Default)]
pub(crate) struct LoopMetrics {
    scheduler: kaji_scheduler::Metrics,
    controllers: ControllerMetrics,
    leases: kaji_runtime::LeaseMetrics,
    pub cache_checks: CacheChecks,
}

impl LoopMetrics {
    /// Adds them to those of the server.
    pub fn add_to(&self, metrics: Metrics) -> Metrics {
        let metrics = metrics.with(|registry| self.scheduler.register(registry));
        let metrics = metrics.with(|registry| self.cache_checks.register(registry));
        let metrics = metrics.with(|registry| self.leases.register(registry));
        metrics.with(|registry| self.controllers.register(registry))
    }
}

/// Upstream's components, by which loops are known.
const CONTROLLER_MANAGER: &str = "kube-controller-manager";
const SCHEDULER: &str = "kube-scheduler";

/// What control loops need of the server.
#[derive(Clone)]
pub(crate) struct ControlLoopConfig {
    pub options: Box<Options>,
    pub environment: Environment,
    pub stack: Arc<Stack>,
    pub certificates: Arc<Certificates>,
    pub node_ranges: Option<NodeRanges>,
    pub token_signer: Arc<SigningKey>,
    pub loop_metrics: LoopMetrics,
    /// Of this machine, where other machines reach it.
    pub machine_address: IpAddr,
    pub authentication: watch::Receiver<ClusterAuthenticationInfo>,
    pub decisions: Arc<Decisions>,
}

/// The loops that run.
#[derive(Default)]
pub(crate) struct ControlLoops {
    tasks: JoinSet<()>,
    // Dropped after the tasks: reflectors end with their informers.
    _informers: Option<Arc<Informers>>,
}

impl ControlLoops {
    /// Waits until all have returned, which `stop` makes them do.
    pub async fn join(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

impl ControlLoopConfig {
    /// Starts the loops that the options select; they return once `stop` turns true.
    pub fn start(&self, stop: &watch::Receiver<bool>) -> ControlLoops {
        let options = &self.options;
        if !options.controllers || (options.selection.is_empty() && options.nodes == Nodes::None) {
            return ControlLoops::default();
        }
        let informers = self.informers();
        let mut tasks = JoinSet::new();
        match &options.store {
            StoreKind::Etcd(_) => self.start_elected(&mut tasks, &informers, stop),
            StoreKind::Disk | StoreKind::Memory => {
                self.start_controllers(&mut tasks, &informers, stop);
                self.start_scheduler(&mut tasks, &informers, stop);
            }
        }
        for fleet in self.simulated_nodes() {
            let client = self.client("kubelet", identities::kubelets(&fleet.names().swap_remove(0)));
            let (servers, shared) = (self.kubelet_servers(), self.shared(client));
            tasks.spawn(simulated::run(fleet, servers, informers.clone(), shared, stop.clone()));
        }
        if options.nodes == Nodes::Real {
            let name = node_name();
            let shared = self.shared(self.client("kubelet", identities::kubelets(&name)));
            let addresses = options.container_runtime.node_ips_or(self.machine_address);
            let config = RealNodeConfig {
                data_dir: options.data_dir.clone(),
                root_dir: options.root_dir.clone(),
                name,
                server: self.kubelet_servers().map(|config| NodeServer { config, address: addresses[0] }),
                addresses,
                service_cidrs: options.service_cidrs.clone(),
                container_runtime: options.container_runtime.clone(),
                external_cloud: options.loops.cloud.external.then(ExternalCloud::default),
                flag_values: options.flag_values.clone(),
            };
            let node = node::run(config, informers.clone(), shared, stop.clone());
            let node = async move {
                if let Err(error) = node.await {
                    // The cluster goes on without it.
                    tracing::error!(%error, "this machine cannot be a node");
                }
            };
            match &self.environment.node_network {
                Some(network) => tasks.spawn_on(node, network.handle()),
                None => tasks.spawn(node),
            };
        }
        ControlLoops { tasks, _informers: Some(informers) }
    }

    /// The nodes that this process simulates: numbered ones, and those that are there from another cluster.
    fn simulated_nodes(&self) -> Vec<Fleet> {
        let options = &self.options;
        let mut found = vec![];
        if options.simulates_found_nodes {
            let nodes = self.stack.engine.list(&GroupResource::new("", "nodes"), None);
            found = nodes.iter().map(|node| object::name(node).to_owned()).collect();
        }
        let asked = if let Nodes::Simulated(count) = options.nodes { count } else { 0 };
        let has = |index: &u16| found.contains(&simulated::name(*index));
        let count = asked.max((1..=u16::MAX).take_while(has).last().unwrap_or(0));
        let allocated = self.node_ranges.is_some() && options.selection.includes(kaji_controllers::NODE_IPAM);
        let numbered = if allocated { Fleet::numbered(count) } else { Fleet::with_ranges(count) };
        let others = found.iter().filter(|name| !numbered.has(name)).map(|name| Fleet::named(name)).collect();
        let numbered = (count > 0).then(|| numbered.clone());
        let all = numbered.into_iter().chain::<Vec<Fleet>>(others);
        all.map(|fleet| fleet.with_external_cloud(options.loops.cloud.external)).collect()
    }

    fn informers(&self) -> Arc<Informers> {
        let client = self.client(CONTROLLER_MANAGER, identities::controllers());
        let (clock, metrics) = (self.environment.object_clock.clone(), self.loop_metrics.controllers.clone());
        let resync = self.options.loops.resync(self.environment.random.clone());
        Informers::resyncing(client, Selected::default(), clock, metrics, resync)
    }

    /// Controllers and scheduler run in one of the servers of an etcd, each under the lease of upstream's component. Nodes
    /// belong to their server.
    fn start_elected(
        &self,
        tasks: &mut JoinSet<()>,
        informers: &Arc<Informers>,
        stop: &watch::Receiver<bool>,
    ) {
        let identity = format!("{}_{}", node_name(), kaji_meta::random::uid(&*self.environment.random));
        type Start = fn(&ControlLoopConfig, &mut JoinSet<()>, &Arc<Informers>, &watch::Receiver<bool>);
        let controllers = (CONTROLLER_MANAGER, identities::controllers(), Self::start_controllers as Start);
        let scheduler = (SCHEDULER, identities::component(SCHEDULER), Self::start_scheduler as Start);
        for (name, identities, start) in [controllers, scheduler] {
            let election = Election {
                client: self.client(name, identities),
                namespace: "kube-system".into(),
                name: name.into(),
                identity: identity.clone(),
                timing: LeaseTiming::default(),
                clock: self.environment.object_clock.clone(),
                metrics: self.loop_metrics.leases.clone(),
            };
            let (config, mut first) = (self.clone(), Some(informers.clone()));
            tasks.spawn(election.run(stop.clone(), move |tasks, ending| {
                // What loops of a former term have registered ended with them.
                let informers = first.take().unwrap_or_else(|| config.informers());
                start(&config, tasks, &informers, ending);
                let (held, mut ending) = (informers, ending.clone());
                tasks.spawn(async move {
                    // The sender outlives the tasks.
                    let _ends = ending.wait_for(|ending| *ending).await;
                    drop(held);
                });
            }));
        }
    }

    fn start_scheduler(
        &self,
        tasks: &mut JoinSet<()>,
        informers: &Arc<Informers>,
        stop: &watch::Receiver<bool>,
    ) {
        if !self.options.selection.scheduler() {
            return;
        }
        let client = self.client(SCHEDULER, identities::component(SCHEDULER));
        let file = self.options.scheduler_configuration.as_deref();
        match kaji_scheduler::Configuration::of_file(file, self.options.features) {
            Ok(configuration) => {
                let process = &configuration.process;
                process
                    .warnings
                    .iter()
                    .for_each(|warning| tracing::warn!("scheduler configuration: {warning}"));
                for field in process.without_effect_in_server() {
                    tracing::warn!(
                        field,
                        "the field of the scheduler configuration is used by kaji scheduler only"
                    );
                }
                let metrics = self.loop_metrics.scheduler.clone();
                let (shared, stop) = (self.shared(client), stop.clone());
                tasks.spawn(kaji_scheduler::run(informers.clone(), shared, configuration, metrics, stop));
            }
            Err(error) => tracing::error!(%error, "the scheduler does not run"),
        }
    }

    fn start_controllers(
        &self,
        tasks: &mut JoinSet<()>,
        informers: &Arc<Informers>,
        stop: &watch::Receiver<bool>,
    ) {
        let client = self.client(CONTROLLER_MANAGER, identities::controllers());
        let options = &self.options;
        if let Ok(address) = dns_service_ip(&options.service_cidrs) {
            let engine = Arc::downgrade(&self.stack.engine);
            tasks.spawn(cluster_dns::follow(engine, informers.clone(), address, stop.clone()));
        }
        let ca = &self.certificates.current().ca;
        // A certificate authority without its key verifies clients, and signs no requests.
        let authority = kaji_controllers::Authority::new(&ca.certificate, &ca.key)
            .inspect_err(|error| tracing::warn!(error, "certificate signing requests will not be signed"));
        let config = kaji_controllers::Config {
            root_ca: self.certificates.trust(),
            selection: options.selection.clone(),
            authorities: authority.ok().map(Arc::new).map(Authorities::one).unwrap_or_default(),
            unused_token_period: options.unused_token_period,
            token_signer: Some(self.token_signer.clone()),
            autoscaler: options.autoscaler.clone(),
            loops: options.loops.clone(),
            features: options.features,
            node_ranges: self.node_ranges.clone(),
            cloud: self.cloud(),
        };
        let shared = &self.shared(client);
        let context =
            kaji_controllers::ControllerContext { informers, shared, config: &config, stop: stop.clone() };
        kaji_controllers::spawn(tasks, &context);
        if options.selection.includes(kaji_controllers::POLICY_STATUS) {
            let checks = kaji_admission::check_types(Arc::downgrade(&self.stack.engine), stop.clone());
            tasks.spawn(kaji_controllers::delayed(checks, &options.loops, shared, stop.clone()));
        }
    }

    /// The cloud of this cluster's machines: that of the environment, or machines without one, with addresses of nodes for services
    /// where containers run. `None` if a cloud-controller-manager outside has the cloud.
    fn cloud(&self) -> Option<Arc<dyn CloudProvider>> {
        let options = &self.options;
        if options.loops.cloud.external {
            return None;
        }
        if let Some(cloud) = &self.environment.cloud {
            return Some(cloud.clone());
        }
        Some(Arc::new(match options.nodes.run_containers() {
            true => {
                BareMachines::with_load_balancing([&[options.listen.port()], node::SERVER_PORTS].concat())
            }
            false => BareMachines::new(),
        }))
    }

    /// A client of the in-process transport, for a component that sends `agent` as its user agent.
    fn client(&self, agent: &str, identities: Identities) -> Client {
        let service = LocalService::by_agent(self.stack.clone(), identities);
        let feed = Arc::new(CacheFeed::new(service.clone()));
        let batches = Arc::new(LocalBatches::new(service.clone()));
        let client = Client::new(kube::Client::new(service, "default"), agent);
        let client = client.with_feed(feed).with_batches(batches);
        match &self.environment.interception {
            Some(interception) => client.intercepted(interception.clone()),
            None => client,
        }
    }

    fn shared(&self, client: Client) -> Shared {
        let Environment { object_clock, random, .. } = self.environment.clone();
        Shared { client, clock: object_clock, random, decisions: Some(self.decisions.clone()) }
    }

    /// The HTTPS servers of nodes. In a cluster without a listener nodes have none either.
    fn kubelet_servers(&self) -> Option<KubeletServerConfig> {
        if self.options.serving.local {
            return None;
        }
        let ca = &self.certificates.current().ca;
        KubeletServerConfig::new(ca, self.authentication.clone(), Arc::new(SystemClock))
            .inspect_err(|error| tracing::warn!(%error, "nodes do not serve the kubelet API"))
            .ok()
    }
}
