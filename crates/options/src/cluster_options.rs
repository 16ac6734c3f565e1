//! What a cluster is started with.

use crate::{
    AuthnOptions, AuthzOptions, ContainerRuntimeFlags, EncryptionFile, HistoryConfig, Nodes, RangeFlags,
    Serving, StartupOptions, StoreKind,
};
use kaji_audit::Options as AuditOptions;
use kaji_controllers::{AutoscalerConfig, LoopConfig, Selection};
use kaji_meta::{
    Features, ServedVersions,
    time::{Clock, SystemClock},
};
use kaji_runtime::VirtualClock;
use kaji_server::{FlagValues, ShutdownOptions, flowcontrol::Limits};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

/// What to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// Holds the store and the PKI.
    pub data_dir: PathBuf,
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Further names that clients use for the server.
    pub names: Vec<String>,
    /// Nodes to bring along.
    pub nodes: Nodes,
    /// Whether the nodes that the store has at the start are simulated, whatever they were in the cluster that it is of.
    pub simulates_found_nodes: bool,
    /// The runtime of a real node; the built-in one without an endpoint.
    pub container_runtime: ContainerRuntimeFlags,
    /// The directory of a real node's kubelet; `None` for the usual one.
    pub root_dir: Option<PathBuf>,
    /// Where nodes and pods reach the server; `None` for where it listens, or the machine's own address.
    pub advertise_address: Option<IpAddr>,
    /// Which ranges of pod addresses nodes are given.
    pub node_ranges: RangeFlags,
    /// Whether controllers and the scheduler run.
    pub controllers: bool,
    /// Which of them, if so.
    pub selection: Selection,
    /// A `KubeSchedulerConfiguration`, as text; upstream's default without one.
    pub scheduler_configuration: Option<String>,
    /// How long unused legacy tokens of service accounts stay; a year without it.
    pub unused_token_period: Option<Duration>,
    /// How replicas are scaled by metrics.
    pub autoscaler: AutoscalerConfig,
    /// Numbers and periods of control loops.
    pub loops: LoopConfig,
    /// Listener, TLS and certificates.
    pub serving: Serving,
    /// Where objects are kept.
    pub store: StoreKind,
    /// `10.96.0.0/12`
    pub service_cidrs: Vec<String>,
    /// Ports that services of the type NodePort may have.
    pub node_ports: RangeInclusive<u16>,
    /// How long events are kept.
    pub event_ttl: Duration,
    /// Watches without a timeout of their own last this long, and up to twice as long.
    pub min_request_timeout: Duration,
    /// The file that says how values are encrypted at rest.
    pub encryption: Option<EncryptionFile>,
    /// The history of objects that is kept; `None` for none. Of objects in memory there is none in any case.
    pub history: Option<HistoryConfig>,
    /// What is recorded of requests, and where.
    pub audit: AuditOptions,
    /// Whether and where traces of requests are exported.
    pub traces: Option<kaji_traces::Config>,
    /// How many requests are served at once.
    pub limits: Limits,
    /// How long a request may take.
    pub request_timeout: Duration,
    /// How the server starts.
    pub startup: StartupOptions,
    /// How the server ends.
    pub shutdown: ShutdownOptions,
    /// Authorization.
    pub authz: AuthzOptions,
    /// Authentication.
    pub authn: AuthnOptions,
    /// Which admission plugins run, and their configuration.
    pub admission: kaji_admission::Flags,
    /// The feature gates.
    pub features: Features,
    /// The API versions that are served although they are off by default.
    pub served: ServedVersions,
    /// The flags of the process, as `/flagz` shows them.
    pub flag_values: FlagValues,
    /// What objects are stamped with and control loops go by, if that is not the machine's clock. Certificates, deadlines
    /// of requests and flow control concern other processes, and use the machine's in any case.
    pub clock: Option<Arc<VirtualClock>>,
}

impl Options {
    /// Whether a controller runs in the server's process.
    pub fn runs(&self, controller: &str) -> bool {
        self.controllers && self.selection.includes(controller)
    }

    /// Components of the control plane that run in the server's process without a lease, by the names of ComponentStatuses.
    pub fn components_without_lease(&self) -> Vec<&'static str> {
        let alone = self.controllers && !matches!(self.store, StoreKind::Etcd(_));
        let runs =
            [("controller-manager", self.selection.controllers()), ("scheduler", self.selection.scheduler())];
        runs.into_iter().filter(|(_, runs)| alone && *runs).map(|(name, _)| name).collect()
    }

    /// The defaults over a data directory: loopback, port 6443.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Options {
            data_dir: data_dir.into(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 6443)),
            names: vec![],
            nodes: Nodes::Simulated(3),
            simulates_found_nodes: false,
            container_runtime: ContainerRuntimeFlags::default(),
            root_dir: None,
            advertise_address: None,
            node_ranges: RangeFlags::default(),
            controllers: true,
            selection: Selection::default(),
            scheduler_configuration: None,
            unused_token_period: None,
            autoscaler: AutoscalerConfig::default(),
            loops: LoopConfig::default(),
            serving: Serving::default(),
            store: StoreKind::Disk,
            service_cidrs: vec!["10.96.0.0/12".into()],
            node_ports: 30000..=32767,
            event_ttl: Duration::from_secs(3600),
            min_request_timeout: Duration::from_secs(1800),
            encryption: None,
            history: Some(HistoryConfig::default()),
            audit: AuditOptions::default(),
            traces: None,
            limits: Limits::default(),
            request_timeout: Duration::from_secs(60),
            startup: StartupOptions::default(),
            shutdown: ShutdownOptions::default(),
            authz: AuthzOptions::default(),
            authn: AuthnOptions::default(),
            admission: kaji_admission::Flags::default(),
            features: Features::default(),
            served: ServedVersions::default(),
            flag_values: FlagValues::default(),
            clock: None,
        }
    }

    /// The clock of objects and control loops.
    pub fn object_clock(&self) -> Arc<dyn Clock> {
        match &self.clock {
            Some(clock) => clock.clone(),
            None => Arc::new(SystemClock),
        }
    }
}
