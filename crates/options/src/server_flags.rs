//! The command line of `kaji up` and `kaji apiserver`.
//!
//! Invariant: the flags without a heading are those that a first-time user needs; `-h` shows only them, `--help` all.

use crate::{
    AdmissionFlags, AuditFlags, AuthnOptions, AuthzOptions, ContainerRuntimeFlags, FeatureFlags,
    HistoryFlags, KubeletClient, Nodes, Options, ProxyClient, RangeFlags, RuntimeFlags, Serving, StoreKind,
    autoscaler::AutoscalerFlags,
    control_loops::ControlLoopFlags,
    encryption::EncryptionFlags,
    etcd::StoreFlags,
    serving::{ConnectionFlags, Files},
    shutdown::ShutdownFlags,
    startup::StartupFlags,
    traces::TraceFlags,
};
use clap::{ArgAction, Args, Command};
use kaji_controllers::Selection;
use kaji_meta::Features;
use kaji_server::{FlagValues, TlsOptions, flowcontrol::Limits};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

/// Upstream's port.
const DEFAULT_PORT: u16 = 6443;
/// The nodes of a cluster on a machine that cannot run containers.
pub const SIMULATED: Nodes = Nodes::Simulated(3);

/// What `kaji up` and `kaji apiserver` take.
#[derive(Args, Clone, Debug)]
pub struct ServerFlags {
    /// The directory of the cluster's objects and certificates.
    #[arg(long, env = "KAJI_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// The port of the API server; 0 chooses a free one. Default: 6443, and a free one for a cluster with a name.
    #[arg(long, alias = "secure-port")]
    pub port: Option<u16>,
    /// The address to listen on: the loopback by default, but every address with a real node, since its pods connect.
    #[arg(long, help_heading = "Network")]
    pub bind_address: Option<IpAddr>,
    /// The address at which nodes and pods reach the server; the machine's if it is left out.
    #[arg(long, help_heading = "Network")]
    pub advertise_address: Option<IpAddr>,
    /// Writes this kubeconfig file instead of merging into the user's.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Writes no kubeconfig.
    #[arg(long, conflicts_with = "kubeconfig", help_heading = "Start")]
    no_kubeconfig: bool,
    /// Nodes to run: real (this machine runs containers; as root), real:N (N of them, in network namespaces), sim:N (simulated), or none. Default: real where the machine can
    /// run containers, otherwise sim:3.
    #[arg(long)]
    pub nodes: Option<Nodes>,
    /// The kubelet's directory, of volumes and the sockets of plug-ins. Default: /var/lib/kubelet with the usual data directory, else in the data
    /// directory.
    #[arg(long, help_heading = "Container runtime")]
    root_dir: Option<PathBuf>,
    /// Which controllers run: names, * for all others, -name for all but one, -* or nothing for none (the scheduler counts
    /// as one). Default: all for `kaji up`, none for `kaji apiserver`. Nodes are no controllers: see --nodes.
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true, help_heading = "Controllers")]
    controllers: Option<Vec<String>>,
    #[command(flatten)]
    store: StoreFlags,
    #[command(flatten)]
    runtime: ContainerRuntimeFlags,
    #[command(flatten)]
    network: NetworkFlags,
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    connections: ConnectionFlags,
    #[command(flatten)]
    requests: RequestFlags,
    #[command(flatten)]
    startup: StartupFlags,
    #[command(flatten)]
    shutdown: ShutdownFlags,
    #[command(flatten)]
    authn: AuthnOptions,
    #[command(flatten)]
    authz: AuthzOptions,
    #[command(flatten)]
    admission: AdmissionFlags,
    #[command(flatten)]
    encryption: EncryptionFlags,
    #[command(flatten)]
    history: HistoryFlags,
    #[command(flatten)]
    proxy: ProxyClient,
    #[command(flatten)]
    kubelets: KubeletClient,
    #[command(flatten)]
    controller_flags: ControllerFlags,
    #[command(flatten)]
    loops: ControlLoopFlags,
    #[command(flatten)]
    autoscaler: AutoscalerFlags,
    #[command(flatten)]
    audit: AuditFlags,
    #[command(flatten)]
    traces: TraceFlags,
    #[command(flatten)]
    features: FeatureFlags,
    #[command(flatten)]
    runtime_config: RuntimeFlags,
    /// Nodes that are found in the store are simulated: those of the cluster that a fork begins as.
    #[arg(long = "simulate-found-nodes", hide = true)]
    pub simulates_found_nodes: bool,
    /// The data directory is removed at the end.
    #[arg(skip)]
    pub is_temporary: bool,
    /// All flags of the process, for `/flagz`.
    #[arg(skip)]
    pub flag_values: FlagValues,
}

/// Addresses of services and pods, and names of the server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Network")]
struct NetworkFlags {
    /// An additional name or address in the serving certificate; may be repeated.
    #[arg(long = "tls-san")]
    names: Vec<String>,
    /// The range of service addresses; a second one makes the cluster dual-stack.
    #[arg(long, alias = "service-cluster-ip-range", value_delimiter = ',', default_value = "10.96.0.0/12")]
    service_cidr: Vec<String>,
    /// The ports that services of the type NodePort may have (30000-32767, 30000+100).
    #[arg(long, value_name = "PORTS", default_value = "30000-32767", value_parser = crate::port_range::parse)]
    service_node_port_range: RangeInclusive<u16>,
    #[command(flatten)]
    ranges: RangeFlags,
}

/// Limits of requests.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Requests")]
struct RequestFlags {
    /// Whether API Priority and Fairness queues requests; if not, requests in flight are only counted.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    enable_priority_and_fairness: bool,
    /// Non-mutating requests in flight; together with the mutating ones, the seats of API Priority and Fairness.
    #[arg(long, default_value_t = 400)]
    max_requests_inflight: u32,
    /// Mutating requests in flight.
    #[arg(long, default_value_t = 200)]
    max_mutating_requests_inflight: u32,
    /// The timeout of requests except watches and streams (60s, 1m30s).
    #[arg(long, default_value = "60s", value_parser = kaji_server::parse_timeout)]
    request_timeout: Duration,
    /// The seconds that a watch without a timeout of its own lasts, at least; up to twice as many are drawn.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    min_request_timeout: u64,
    /// How long events are kept (1h, 30m).
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = kaji_server::parse_timeout)]
    event_ttl: Duration,
    /// Whether containers may be privileged. Always, here: Pod Security restricts them by namespace.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    allow_privileged: Option<bool>,
}

impl RequestFlags {
    /// How many requests are served at once.
    ///
    /// # Errors
    /// For limits that upstream refuses, and pods that cannot be restricted by a flag.
    fn limits(&self) -> Result<Limits, String> {
        if self.allow_privileged == Some(false) {
            let text = "--allow-privileged=false is not available: label namespaces with pod-security.kubernetes.io/enforce=baseline";
            return Err(text.to_owned());
        }
        let limits = Limits {
            reading: self.max_requests_inflight,
            mutating: self.max_mutating_requests_inflight,
            fair: self.enable_priority_and_fairness,
        };
        limits.checked()
    }
}

/// Flags of controllers.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Controllers")]
struct ControllerFlags {
    /// How long an auto-generated token secret of a service account may be unused before it is marked invalid, and again
    /// until it is deleted (default 8760h).
    #[arg(long, value_name = "DURATION", value_parser = kaji_server::parse_timeout)]
    legacy_service_account_token_clean_up_period: Option<Duration>,
    /// A KubeSchedulerConfiguration file (kubescheduler.config.k8s.io/v1): profiles, their plugins and arguments, extenders, backoffs.
    #[arg(long, value_name = "FILE")]
    scheduler_config: Option<PathBuf>,
}

/// The text of a scheduler configuration that is understood, and what it says of the process.
pub(crate) fn scheduler_configuration(
    flag: &str,
    file: &Path,
    features: Features,
) -> Result<(String, kaji_scheduler::ProcessConfiguration), String> {
    let wrong = |error: &dyn std::fmt::Display| format!("{flag} {}: {error}", file.display());
    let text = std::fs::read_to_string(file).map_err(|e| wrong(&e))?;
    let read = kaji_scheduler::Configuration::parse(&text, features).map_err(|e| wrong(&e))?;
    Ok((text, read.process))
}

impl ServerFlags {
    /// Whether a kubeconfig is to be written.
    pub fn writes_kubeconfig(&self) -> bool {
        !self.no_kubeconfig
    }

    /// Whether containers would run by the built-in runtime, not by one at a socket.
    pub fn uses_built_in_runtime(&self) -> bool {
        self.runtime.container_runtime_endpoint.is_none()
    }

    /// Whether objects outlive the process.
    pub fn is_persistent(&self) -> bool {
        self.store.is_persistent()
    }

    /// Whether objects are in the data directory.
    pub fn is_embedded(&self) -> bool {
        self.store.is_embedded()
    }

    /// The options of a cluster over a data directory. Controllers run if `controllers` is true or flags name some.
    ///
    /// # Errors
    /// For flags that contradict each other, unknown controllers and unusable TLS options.
    pub fn into_options(self, data_dir: &Path, controllers: bool) -> Result<Options, String> {
        let limits = self.requests.limits()?;
        let tls = TlsOptions {
            oldest: self.connections.tls_min_version.unwrap_or_default(),
            suites: self.connections.tls_cipher_suites,
            curves: self.connections.tls_curve_preferences,
        };
        tls.validate()?;
        let features = self.features.features()?;
        let (store, encryption) = (self.store.kind()?, self.encryption.file()?);
        let (shutdown, goaway) = self.shutdown.into_options()?;
        let nodes = if controllers { self.nodes.unwrap_or(SIMULATED) } else { Nodes::None };
        let everywhere = if nodes.run_containers() { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST };
        let bind_address = self.bind_address.unwrap_or(IpAddr::V4(everywhere));
        Ok(Options {
            listen: SocketAddr::new(bind_address, self.port.unwrap_or(DEFAULT_PORT)),
            names: self.network.names,
            nodes,
            container_runtime: runtime_of(self.runtime, nodes)?,
            root_dir: self.root_dir,
            simulates_found_nodes: self.simulates_found_nodes,
            advertise_address: self.advertise_address,
            node_ranges: self.network.ranges,
            controllers: controllers || self.controllers.is_some(),
            selection: self.controllers.map(Selection::new).transpose()?.unwrap_or_default(),
            scheduler_configuration: self
                .controller_flags
                .scheduler_config
                .as_deref()
                .map(|file| {
                    scheduler_configuration("--scheduler-config", file, features).map(|(text, _)| text)
                })
                .transpose()?,
            unused_token_period: self.controller_flags.legacy_service_account_token_clean_up_period,
            autoscaler: self.autoscaler.into_config()?,
            loops: self.loops.into_config()?,
            serving: Serving {
                local: false,
                ephemeral: store == StoreKind::Memory,
                files: self.files,
                proxy: self.proxy,
                kubelets: self.kubelets,
                tls,
                streams: self.connections.http2_max_streams_per_connection.filter(|n| *n > 0),
                connections: None,
                goaway,
                request_memory: self.connections.max_request_memory.map(|mib| mib.saturating_mul(1 << 20)),
            },
            history: self.history.config(&store, encryption.is_some())?,
            store,
            service_cidrs: self.network.service_cidr,
            encryption,
            audit: self.audit.into(),
            traces: self.traces.config()?,
            limits,
            request_timeout: self.requests.request_timeout,
            min_request_timeout: Duration::from_secs(self.requests.min_request_timeout),
            event_ttl: self.requests.event_ttl,
            node_ports: self.network.service_node_port_range,
            startup: self.startup.into(),
            shutdown,
            authz: self.authz,
            authn: self.authn,
            admission: self.admission.into(),
            features,
            served: self.runtime_config.served()?,
            flag_values: self.flag_values,
            ..Options::new(data_dir)
        })
    }
}

/// A runtime runs the containers of one node, this machine.
fn runtime_of(flags: ContainerRuntimeFlags, nodes: Nodes) -> Result<ContainerRuntimeFlags, String> {
    if flags.container_runtime_endpoint.is_some() && nodes != Nodes::Real {
        return Err(
            "--container-runtime-endpoint needs --nodes real, on a machine that can run containers".into()
        );
    }
    if flags.cni && nodes != Nodes::Real {
        return Err("--cni needs --nodes real, on a machine that can run containers".into());
    }
    flags.check_node_ips()?;
    if !flags.node_ips.is_empty() && nodes != Nodes::Real {
        return Err("--node-ip needs --nodes real, on a machine that can run containers".into());
    }
    if flags.registries.is_some() && !nodes.run_containers() {
        return Err("--registries needs --nodes real or real:N, on a machine that can run containers".into());
    }
    let files = [
        ("--image-credential-provider-config", &flags.image_credential_provider_config),
        ("--kubelet-config", &flags.kubelet_config),
    ];
    for (flag, value) in files {
        if value.is_some() && nodes != Nodes::Real {
            return Err(format!("{flag} needs --nodes real, on a machine that can run containers"));
        }
    }
    Ok(flags)
}

/// Leaves only the main flags in a subcommand's short help (`-h`).
pub fn shorten_help(command: Command, subcommand: &str) -> Command {
    command.mut_subcommand(subcommand, |command| {
        let command = command.mut_args(|arg| {
            let main = arg.get_help_heading().is_none();
            arg.hide_short_help(!main)
        });
        command.after_help("-h shows the main flags only; --help shows all, in groups.")
    })
}
