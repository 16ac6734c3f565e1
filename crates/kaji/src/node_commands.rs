//! The commands of a machine that is a node: joining a cluster, and taking away what a node has left.

use crate::{Command, default_data_dir, stop_signal};
use clap::{Args, Subcommand};
use kaji::{
    Cluster, Environment, Nodes, Options,
    agent::{Agent, AgentOptions},
};
use kaji_clusters::service_manager::{Notice, notify};
use kaji_meta::random::SystemRandom;
use kaji_node::{
    fleet::{self, FleetConfig, NodeFleet},
    joined::{self, JoinedNodeOptions},
    network::{self, NodeNetworkError, NodeThreads},
    requirements,
    reset::{self, Removed},
};
use kaji_oci::rootless::{self, Facts};
use kaji_options::{CloudProviderName, ContainerRuntimeFlags, ServerFlags, server_flags::SIMULATED};
use kaji_server::FlagValues;
use std::{
    io::Write,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
};

/// Flags of `kaji agent`.
#[derive(Args)]
pub struct Join {
    /// The API server, host:port.
    #[arg(long, alias = "server", value_name = "HOST:PORT")]
    join: String,
    /// The bootstrap token; required until the data directory has a certificate.
    #[arg(long, env = "KAJI_TOKEN", hide_env_values = true, default_value = "")]
    token: String,
    /// The public key of the cluster's authority, sha256:HEX; may be repeated.
    #[arg(
        long = "discovery-token-ca-cert-hash",
        value_name = "HASH",
        value_delimiter = ',',
        required = true
    )]
    hashes: Vec<String>,
    /// The node's name; the machine's if it is left out.
    #[arg(long, alias = "hostname-override")]
    node_name: Option<String>,
    /// A simulated node: pods report what a kubelet would, no container runs; root is not needed.
    #[arg(long, conflicts_with_all = ["node_ips", "container_runtime_endpoint", "image_credential_provider_config", "kubelet_config", "cni", "registries"])]
    simulated: bool,
    /// external: the node takes no pods before a cloud-controller-manager has initialized it; empty for a machine without a cloud.
    #[arg(long, value_name = "PROVIDER", default_value = "", hide_default_value = true)]
    cloud_provider: CloudProviderName,
    #[command(flatten)]
    runtime: ContainerRuntimeFlags,
    /// Ends when standard input does: the agent is a part of the process at the pipe's other end.
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
    /// The directory of the node's key and certificate, images and containers.
    #[arg(long, env = "KAJI_AGENT_DIR")]
    data_dir: Option<PathBuf>,
    /// The kubelet's directory, of volumes and the sockets of plug-ins. Default: /var/lib/kubelet with the usual data directory, else in
    /// the data directory.
    #[arg(long)]
    root_dir: Option<PathBuf>,
    /// All flags of the process, for `/flagz`.
    #[arg(skip)]
    pub flag_values: FlagValues,
}

/// Joins a cluster, and is its node until a signal comes.
pub async fn agent(args: Join) -> Result<(), Box<dyn std::error::Error>> {
    if !args.simulated && !rustix::process::geteuid().is_root() {
        return Err(
            "containers need root; --simulated runs a node with pods that only report what a kubelet would"
                .into(),
        );
    }
    let data_dir = args
        .data_dir
        .unwrap_or_else(|| default_data_dir(std::env::var("HOME").ok().as_deref()).join("agent"));
    let node = match args.node_name {
        Some(name) => name,
        // As a kubelet does: host names may have capitals, nodes may not.
        None => std::fs::read_to_string("/proc/sys/kernel/hostname")?.trim().to_ascii_lowercase(),
    };
    args.runtime.check_node_ips()?;
    kaji_node::node::check_files(&args.runtime)?;
    let external_cloud = args.cloud_provider == CloudProviderName::External;
    let options = AgentOptions {
        token: args.token,
        hashes: args.hashes,
        external_cloud,
        ..AgentOptions::new(&args.join, &node, &data_dir)
    };
    let real = JoinedNodeOptions {
        data_dir: data_dir.clone(),
        root_dir: args.root_dir,
        server: args.join.clone(),
        container_runtime: args.runtime,
        external_cloud,
        flag_values: args.flag_values,
    };
    let mut agent = if args.simulated {
        Agent::start(options).await?
    } else {
        Agent::start_with(options, |node| joined::run(real, node)).await?
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "Node {} of the cluster at {}", agent.node(), args.join)?;
    writeln!(out, "  data  {}", data_dir.display())?;
    match args.simulated {
        true => writeln!(
            out,
            "It is simulated: pods report what a kubelet would, no container runs. Ctrl-C ends it."
        )?,
        false => {
            writeln!(out, "Ctrl-C ends the agent; containers go on, and the next start finds them again.")?
        }
    }
    out.flush()?;
    drop(out);
    notify(Notice::Ready);
    let outcome = tokio::select! {
        stopped = stop_signal() => stopped.map_err(Into::into),
        failed = agent.failed() => Err(failed.into()),
        () = input_ends(), if args.until_stdin_closes => Ok(()),
    };
    notify(Notice::Stopping);
    agent.stop().await;
    outcome
}

/// Resolves when standard input has ended.
async fn input_ends() {
    let ends =
        tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()));
    if let Ok(Err(error)) = ends.await {
        tracing::warn!(%error, "standard input could not be read");
    }
}

/// Executes this program anew in a user namespace if the command has to do with a real node and its caller is not root. Otherwise it
/// returns, with the reason if that is impossible.
pub fn enter_namespaces(command: &Command) -> Option<String> {
    if rustix::process::geteuid().is_root() || Facts::entered().is_some() {
        return None;
    }
    let data_dir = match command {
        // A CRI runtime's socket is root's.
        Command::Up(up) if up.serves() && up.server.uses_built_in_runtime() => match up.server.nodes {
            None | Some(Nodes::Real) => up.server.data_dir.clone(),
            Some(_) => return None,
        },
        Command::Image(image) => image.data_dir.clone(),
        Command::Delete(args) => Some(args.directory_of_containers()?),
        Command::Node(NodeArgs { command: NodeCommand::Reset(args) }) => args.data_dir.clone(),
        _ => return None,
    };
    let home = std::env::var("HOME").ok();
    let data_dir = data_dir.unwrap_or_else(|| default_data_dir(home.as_deref()));
    Some(rootless::enter(&data_dir))
}

/// Chooses the nodes that the command line leaves open: this machine if it can be one. Why it cannot, otherwise. `refusal` is why
/// there is no user namespace.
///
/// # Errors
/// A real node is asked for that cannot be.
pub fn choose_nodes(
    flags: &mut ServerFlags,
    controllers: bool,
    data_dir: &Path,
    refusal: Option<String>,
) -> Result<Option<String>, String> {
    let mut reason = None;
    if controllers && Facts::entered().is_some() {
        flags.nodes.get_or_insert(Nodes::Real);
        if flags.nodes == Some(Nodes::Real) {
            // Pods have a listener of their own.
            flags.bind_address.get_or_insert(IpAddr::V4(Ipv4Addr::LOCALHOST));
            flags.advertise_address.get_or_insert(network::ADDRESS);
        }
    }
    let refusal = refusal.map(|why| format!("containers need root or a user namespace, and {why}"));
    if controllers && flags.nodes.is_none() {
        let machine = requirements::Machine::default();
        reason = refusal.or_else(|| machine.can_run_containers(data_dir).err());
        flags.nodes = Some(if reason.is_some() { SIMULATED } else { Nodes::Real });
    } else if let (Some(Nodes::Real), Some(refusal)) = (flags.nodes, refusal) {
        return Err(refusal);
    }
    if let Some(Nodes::RealInNamespaces(_)) = flags.nodes {
        flags.advertise_address.get_or_insert(fleet::GATEWAY);
    }
    Ok(reason)
}

/// What a cluster takes from this machine; without root, threads in the network of its node.
///
/// # Errors
/// The network of a node without root cannot be made.
pub async fn environment(options: &Options) -> Result<(Environment, Option<NodeThreads>), NodeNetworkError> {
    let mut environment = Environment::machine(options);
    if options.nodes != Nodes::Real || Facts::entered().is_none() {
        return Ok((environment, None));
    }
    let threads = NodeThreads::start(&options.data_dir).await?;
    if let Some(network) = threads.network() {
        network.divide(&[&options.service_cidrs[..], &options.node_ranges.cluster_cidr].concat());
        environment.node_network = Some(network);
    }
    Ok((environment, Some(threads)))
}

/// What a node without root can do, and what it lacks.
fn without_root(facts: &Facts) -> String {
    let mut lacks = vec!["no network outside of the cluster".to_owned()];
    if facts.ids == 0 {
        lacks.push("no other user than root in containers (newuidmap and /etc/subuid give some)".into());
    }
    if !facts.overlays {
        lacks.push("no overlays (each container has a copy of its image)".into());
    }
    if !facts.cgroups {
        lacks.push(
            "no limits of memory and processors (systemd-run --user --scope -p Delegate=yes kaji up has them)"
                .into(),
        );
    }
    format!("1, this machine, without root: containers run on it in a user namespace; {}", lacks.join(", "))
}

/// What a new cluster says of its nodes, and why they are simulated.
pub fn description(nodes: Nodes, found: bool, reason: Option<&str>) -> String {
    match (nodes, reason) {
        (Nodes::None, _) if found => "those of the source, simulated: no container runs".to_owned(),
        (Nodes::None, _) => "none".to_owned(),
        (Nodes::Real, _) => match Facts::entered() {
            None => "1, this machine: containers run on it".to_owned(),
            Some(facts) => without_root(facts),
        },
        (Nodes::RealInNamespaces(n), _) => {
            format!("{n} on this machine, in network namespaces: containers run on them")
        }
        (Nodes::Simulated(n), None) => {
            format!("{n} simulated: pods report what a kubelet would, no container runs")
        }
        (Nodes::Simulated(n), Some(reason)) => format!("{n} simulated, no container runs: {reason}"),
    }
}

/// Whether a server's node can be as the flags say.
///
/// # Errors
/// What cannot be, or a file that cannot be used.
pub fn check(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    if Facts::entered().is_some() && !options.container_runtime.node_ips.is_empty() {
        return Err("--node-ip needs root: a node without it has a network and an address of its own".into());
    }
    Ok(kaji_node::node::check_files(&options.container_runtime)?)
}

/// The flags of a server that the agents of `--nodes real:N` have as well.
///
/// # Errors
/// A path that cannot be made absolute.
pub fn agent_flags(options: &Options) -> std::io::Result<Vec<String>> {
    let runtime = &options.container_runtime;
    let mut flags = vec![];
    if options.loops.cloud.external {
        flags.push("--cloud-provider=external".to_owned());
    }
    if let Some(path) = &runtime.registries {
        flags.push(format!("--registries={}", std::path::absolute(path)?.display()));
    }
    if let Some(domain) = &runtime.cluster_domain {
        flags.push(format!("--cluster-domain={domain}"));
    }
    Ok(flags)
}

/// The nodes of `--nodes real:N`; the cluster stops if they cannot be started.
pub async fn fleet(
    cluster: &Cluster,
    nodes: Nodes,
    agent_flags: Vec<String>,
    data_dir: &Path,
) -> Result<Option<NodeFleet>, Box<dyn std::error::Error>> {
    let Nodes::RealInNamespaces(count) = nodes else { return Ok(None) };
    let config = FleetConfig {
        count,
        data_dir: std::path::absolute(data_dir)?,
        port: cluster.address.port(),
        authorities: cluster.authorities()?,
        client: cluster.administrator(),
        agent_flags,
    };
    Ok(Some(NodeFleet::start(config, &SystemRandom).await?))
}

/// `kaji node`
#[derive(Args)]
pub struct NodeArgs {
    #[command(subcommand)]
    command: NodeCommand,
}

#[derive(Subcommand)]
enum NodeCommand {
    /// Removes what this machine's node has left: pods, interfaces, routes, rules, mounts, cgroups, logs and its files. The cluster's
    /// objects and images stay. It refuses while a server or an agent runs.
    Reset(Reset),
}

#[derive(Args)]
struct Reset {
    /// Keeps the key and certificates of a joined node, which is to come back.
    #[arg(long)]
    keep_credentials: bool,
    /// The data directory of the server or agent.
    #[arg(long, env = "KAJI_DATA_DIR")]
    data_dir: Option<PathBuf>,
}

/// Takes away what a node has left.
pub async fn node(args: NodeArgs, refusal: Option<String>) -> Result<(), Box<dyn std::error::Error>> {
    let NodeCommand::Reset(args) = args.command;
    if !rustix::process::geteuid().is_root() {
        let why = refusal.unwrap_or_default();
        return Err(
            format!("what a node has left can be removed by root, or in a user namespace: {why}").into()
        );
    }
    let home = std::env::var("HOME").ok().filter(|_| Facts::entered().is_some());
    let data_dir = args.data_dir.unwrap_or_else(|| default_data_dir(home.as_deref()));
    if !data_dir.is_dir() {
        return Err(format!("{} is no directory", data_dir.display()).into());
    }
    let data_dir = data_dir.canonicalize()?;
    let removed = match Facts::entered() {
        None => reset::reset(&data_dir, args.keep_credentials).await?,
        Some(_) => reset_without_root(data_dir.clone(), args.keep_credentials).await?,
    };
    writeln!(
        std::io::stdout().lock(),
        "Nothing of the node in {} is left; pods removed: {}.",
        data_dir.display(),
        removed.pods
    )?;
    Ok(())
}

/// The same in the network namespace of a node without root.
async fn reset_without_root(
    data_dir: PathBuf,
    keep_credentials: bool,
) -> Result<Removed, Box<dyn std::error::Error>> {
    let threads = NodeThreads::start(&data_dir).await?;
    let network = threads.network().ok_or("the node has no threads")?;
    Ok(network.run(async move { reset::reset(&data_dir, keep_credentials).await }).await??)
}
