//! The commands of a machine that is a node: joining a cluster, and taking away what a node has left.

use crate::{default_data_dir, stop_signal};
use clap::{Args, Subcommand};
use kaji::{
    Cluster, Nodes,
    agent::{Agent, AgentOptions},
    joined_node::{self, JoinedNodeOptions},
    node_fleet::{self, FleetConfig, NodeFleet},
    node_requirements, node_reset,
};
use kaji_meta::random::SystemRandom;
use kaji_options::{ContainerRuntimeFlags, ServerFlags, server_flags::SIMULATED};
use std::{
    io::Write,
    net::IpAddr,
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
    /// The node's address; the one from which the API server is reached if it is left out.
    #[arg(long)]
    node_ip: Option<IpAddr>,
    /// A simulated node: pods report what a kubelet would, no container runs; root is not needed.
    #[arg(long, conflicts_with_all = ["node_ip", "container_runtime_endpoint", "image_credential_provider_config", "kubelet_config", "cni"])]
    simulated: bool,
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
    let options = AgentOptions {
        token: args.token,
        hashes: args.hashes,
        ..AgentOptions::new(&args.join, &node, &data_dir)
    };
    let real = JoinedNodeOptions {
        data_dir: data_dir.clone(),
        root_dir: args.root_dir,
        server: args.join.clone(),
        address: args.node_ip,
        container_runtime: args.runtime,
    };
    let mut agent = if args.simulated {
        Agent::start(options).await?
    } else {
        Agent::start_with(options, |joined| joined_node::run(real, joined)).await?
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
    let outcome = tokio::select! {
        stopped = stop_signal() => stopped.map_err(Into::into),
        failed = agent.failed() => Err(failed.into()),
        () = input_ends(), if args.until_stdin_closes => Ok(()),
    };
    agent.stop().await;
    outcome
}

/// Resolves when standard input has ended.
async fn input_ends() {
    let ends =
        tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()));
    if let Ok(Err(error)) = ends.await {
        tracing::warn!(%error, "standard input");
    }
}

/// Chooses the nodes that the command line leaves open: this machine if it can be one. Why it cannot, otherwise.
pub fn choose_nodes(flags: &mut ServerFlags, controllers: bool, data_dir: &Path) -> Option<String> {
    let mut reason = None;
    if controllers && flags.nodes.is_none() {
        reason = node_requirements::Machine::default().can_run_containers(data_dir).err();
        flags.nodes = Some(if reason.is_some() { SIMULATED } else { Nodes::Real });
    }
    if let Some(Nodes::RealInNamespaces(_)) = flags.nodes {
        flags.advertise_address.get_or_insert(node_fleet::GATEWAY);
    }
    reason
}

/// What a new cluster says of its nodes, and why they are simulated.
pub fn description(nodes: Nodes, reason: Option<&str>) -> String {
    match (nodes, reason) {
        (Nodes::None, _) => "none".to_owned(),
        (Nodes::Real, _) => "1, this machine: containers run on it".to_owned(),
        (Nodes::RealInNamespaces(n), _) => {
            format!("{n} on this machine, in network namespaces: containers run on them")
        }
        (Nodes::Simulated(n), None) => {
            format!("{n} simulated: pods report what a kubelet would, no container runs")
        }
        (Nodes::Simulated(n), Some(reason)) => format!("{n} simulated, no container runs: {reason}"),
    }
}

/// The nodes of `--nodes real:N`; the cluster stops if they cannot be started.
pub async fn fleet(
    cluster: &Cluster,
    nodes: Nodes,
    data_dir: &Path,
) -> Result<Option<NodeFleet>, Box<dyn std::error::Error>> {
    let Nodes::RealInNamespaces(count) = nodes else { return Ok(None) };
    let config = FleetConfig {
        count,
        data_dir: std::path::absolute(data_dir)?,
        port: cluster.address.port(),
        authorities: cluster.authorities()?,
        client: cluster.administrator(),
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
pub async fn node(args: NodeArgs) -> Result<(), Box<dyn std::error::Error>> {
    let NodeCommand::Reset(args) = args.command;
    if !rustix::process::geteuid().is_root() {
        return Err("what a node has left can be removed by root only".into());
    }
    let data_dir = args.data_dir.unwrap_or_else(|| default_data_dir(None));
    if !data_dir.is_dir() {
        return Err(format!("{} is no directory", data_dir.display()).into());
    }
    let removed = node_reset::reset(&data_dir.canonicalize()?, args.keep_credentials).await?;
    writeln!(
        std::io::stdout().lock(),
        "Nothing of the node in {} is left; pods removed: {}.",
        data_dir.display(),
        removed.pods
    )?;
    Ok(())
}
