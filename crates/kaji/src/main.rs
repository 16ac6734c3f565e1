//! The command line.

use clap::{Args, CommandFactory, Parser, Subcommand};
use kaji::{
    AuditFlags, AuthnOptions, AuthzOptions, Cluster, EncryptionFile, Nodes, Options, RangeFlags,
    agent::{Agent, AgentOptions},
    envtest, kubeconfig, serving,
    token::{self, TokenCommand},
};
use kaji_admission::Flags;
use kaji_server::flowcontrol::Limits;
use std::{
    io::Write,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    time::Instant,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Kubernetes in one binary.
#[derive(Parser)]
#[command(name = "kaji", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Starts a whole cluster in the foreground and writes a kubeconfig context for it.
    Up(Up),
    /// Starts an API server alone: no controllers, no scheduler, no nodes.
    Apiserver(Up),
    /// Stands in for the binaries that controller-runtime's envtest starts.
    Envtest(Envtest),
    /// Bootstrap tokens, with which nodes join.
    Token(Token),
    /// The store of a data directory, while no server runs over it.
    Store(StoreArgs),
    /// A node that joins a cluster over the network; simulated, as no container runtime is driven yet.
    Agent(Join),
}

#[derive(Args)]
struct Envtest {
    /// Writes kube-apiserver, etcd and kubectl into this folder and prints its path, which KUBEBUILDER_ASSETS takes.
    #[arg(long, value_name = "DIR")]
    print_assets: PathBuf,
}

#[derive(Args)]
struct Token {
    /// The kubeconfig file to use instead of the user's.
    #[arg(long, global = true)]
    kubeconfig: Option<PathBuf>,
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Args)]
struct StoreArgs {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Subcommand)]
enum StoreCommand {
    /// Leaves nothing but current values in the store's files: gives up history and writes the file anew, so that what was
    /// deleted, or written before it was encrypted, cannot be found in it.
    Scrub(Scrub),
}

#[derive(Args)]
struct Scrub {
    /// Where the cluster keeps its objects.
    #[arg(long, env = "KAJI_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// An EncryptionConfiguration file: what would be stored otherwise under it (in the clear, with an old key) is written
    /// anew first.
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
}

#[derive(Args)]
struct Join {
    /// The API server, host:port.
    #[arg(long, value_name = "HOST:PORT")]
    join: String,
    /// The bootstrap token; needed until the data directory holds a certificate.
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
    #[arg(long)]
    node_name: Option<String>,
    /// Where the node keeps its key and certificate.
    #[arg(long, env = "KAJI_AGENT_DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Args)]
struct Up {
    #[command(flatten)]
    flags: serving::Flags,
    /// Where the cluster keeps its objects and certificates.
    #[arg(long, env = "KAJI_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// The port of the API server; 0 takes a free one.
    #[arg(long, alias = "secure-port", default_value_t = 6443)]
    port: u16,
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    bind_address: IpAddr,
    /// Writes this kubeconfig file instead of merging into the user's.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Nodes to bring along: sim:N or none.
    #[arg(long, default_value = "sim:3")]
    nodes: Nodes,
    #[command(flatten)]
    ranges: RangeFlags,
    /// A further name or address in the serving certificate; may be repeated.
    #[arg(long = "tls-san")]
    names: Vec<String>,
    /// The range of service addresses; a second one makes the cluster dual-stack.
    #[arg(long, alias = "service-cluster-ip-range", value_delimiter = ',', default_value = "10.96.0.0/12")]
    service_cidr: Vec<String>,
    /// An EncryptionConfiguration file (apiserver.config.k8s.io/v1): which resources are encrypted at rest, and how.
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
    /// Whether that file is followed: what it says counts without a restart.
    #[arg(long, default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    encryption_provider_config_automatic_reload: bool,
    /// Whether requests share the server by API Priority and Fairness; if not, they are only counted.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_priority_and_fairness: bool,
    /// Reading requests served at once; together with the mutating ones, the seats of API Priority and Fairness.
    #[arg(long, default_value_t = 400)]
    max_requests_inflight: u32,
    /// Mutating requests served at once.
    #[arg(long, default_value_t = 200)]
    max_mutating_requests_inflight: u32,
    /// How long a request may take, watches and streams apart (60s, 1m30s).
    #[arg(long, default_value = "60s", value_parser = kaji_server::parse_timeout)]
    request_timeout: std::time::Duration,
    #[command(flatten)]
    authz: AuthzOptions,
    #[command(flatten)]
    authn: AuthnOptions,
    #[command(flatten)]
    audit: AuditFlags,
    /// Admission plugins besides those that are on by default.
    #[arg(long, value_delimiter = ',')]
    enable_admission_plugins: Vec<String>,
    /// Admission plugins that are on by default and shall not be.
    #[arg(long, value_delimiter = ',')]
    disable_admission_plugins: Vec<String>,
    /// A file with an AdmissionConfiguration.
    #[arg(long)]
    admission_control_config_file: Option<PathBuf>,
}

fn main() -> ExitCode {
    let started = Instant::now();
    let filter = tracing_subscriber::EnvFilter::try_from_env("KAJI_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,kaji::envtest=info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let program = std::env::args_os().next().unwrap_or_default();
    let cli = match envtest::Role::of(program.as_ref()) {
        None => Cli::parse(),
        Some(role) => match stand_in(role) {
            Ok(Some(cli)) => cli,
            Ok(None) => return ExitCode::SUCCESS,
            Err(error) => return fail(&*error),
        },
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    let outcome = match cli.command {
        Command::Up(up) => runtime.block_on(serve(up, true, started)),
        Command::Apiserver(up) => runtime.block_on(serve(up, false, started)),
        Command::Envtest(envtest) => assets(&envtest),
        Command::Token(token) => runtime.block_on(tokens(token)),
        Command::Store(StoreArgs { command: StoreCommand::Scrub(args) }) => runtime.block_on(scrub(args)),
        Command::Agent(join) => runtime.block_on(agent(join)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&*error),
    }
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    // Nothing is left to be done when standard error is gone.
    let _ = writeln!(std::io::stderr(), "kaji: {error}");
    ExitCode::FAILURE
}

/// The parts that envtest starts: the command line of an API server, or `None` for what is done already.
fn stand_in(role: envtest::Role) -> Result<Option<Cli>, Box<dyn std::error::Error>> {
    let args = std::env::args().skip(1);
    let text = match role {
        envtest::Role::Etcd => {
            // It has little to do, and there may be many.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let stop = async { drop(stop_signal().await) };
            runtime.block_on(envtest::etcd(args, stop))?.unwrap_or_default()
        }
        envtest::Role::Apiserver => {
            let cli = Cli::command();
            let command = cli.find_subcommand("apiserver").ok_or("there is no API server")?;
            let controllers = std::env::var(envtest::CONTROLLERS).ok();
            match envtest::apiserver(args, command, controllers.as_deref())? {
                envtest::CommandLine::Print(text) => text,
                envtest::CommandLine::Start(args) => {
                    return Ok(Some(Cli::parse_from(
                        std::iter::once("kube-apiserver".to_owned()).chain(args),
                    )));
                }
            }
        }
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(None)
}

fn assets(args: &Envtest) -> Result<(), Box<dyn std::error::Error>> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let dir = envtest::write_assets(&args.print_assets, &std::env::current_exe()?, &search)?;
    writeln!(std::io::stdout().lock(), "{}", dir.display())?;
    Ok(())
}

#[expect(clippy::too_many_lines, reason = "to be divided")]
async fn serve(up: Up, controllers: bool, started: Instant) -> Result<(), Box<dyn std::error::Error>> {
    let variable = |name: &str| std::env::var(name).ok();
    let data_dir = up.data_dir.unwrap_or_else(|| default_data_dir(variable("HOME").as_deref()));
    let nodes = if controllers { up.nodes } else { Nodes::None };
    let limits = Limits {
        reading: up.max_requests_inflight,
        mutating: up.max_mutating_requests_inflight,
        fair: up.enable_priority_and_fairness,
    };
    let options = Options {
        listen: SocketAddr::new(up.bind_address, up.port),
        names: up.names,
        nodes,
        node_ranges: up.ranges,
        controllers,
        service_cidrs: up.service_cidr,
        encryption: EncryptionFile::from_flags(
            up.encryption_provider_config,
            up.encryption_provider_config_automatic_reload,
        )?,
        limits: limits.checked()?,
        request_timeout: up.request_timeout,
        authn: up.authn,
        audit: up.audit.into(),
        admission: Flags {
            enable: up.enable_admission_plugins,
            disable: up.disable_admission_plugins,
            config_file: up.admission_control_config_file,
        },
        authz: up.authz,
        ..Options::new(&data_dir)
    };
    let (lasting, writes) = (up.flags.lasting(), up.flags.kubeconfig());
    let cluster = Cluster::start(up.flags.apply(options)?).await?;
    let ready = started.elapsed();
    let path = up.kubeconfig.unwrap_or_else(|| {
        kubeconfig::default_path(variable("KUBECONFIG").as_deref(), variable("HOME").as_deref())
    });
    if writes {
        kubeconfig::write(&path, &cluster.url(), &cluster.certificates.trust(), &cluster.pki.admin)?;
    }
    let nodes = match nodes {
        Nodes::None => "none".to_owned(),
        Nodes::Simulated(n) => format!("{n} simulated: pods report what a kubelet would, no container runs"),
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "Kubernetes {}", kaji_server::version())?;
    writeln!(out, "  server      {} (ready after {} ms)", cluster.url(), ready.as_millis())?;
    match lasting {
        true => writeln!(out, "  data        {}", data_dir.display())?,
        false => writeln!(out, "  data        in memory")?,
    }
    writeln!(out, "  nodes       {nodes}")?;
    if writes {
        writeln!(out, "  kubeconfig  {} (context {})", path.display(), kubeconfig::NAME)?;
    }
    writeln!(out, "Ctrl-C ends it; the data {}.", if lasting { "stays" } else { "goes" })?;
    out.flush()?;
    drop(out);
    let mut renewed = cluster.certificates.subscribe();
    let stop = stop_signal();
    tokio::pin!(stop);
    loop {
        tokio::select! {
            stopped = &mut stop => break stopped?,
            Ok(()) = renewed.changed(), if writes => {
                let pki = renewed.borrow_and_update().clone();
                // The old certificate is good for a while; the next start writes the new one at the latest.
                let trust = cluster.certificates.trust();
                if let Err(error) = kubeconfig::renew(&path, &cluster.url(), &trust, &pki.admin) {
                    tracing::error!(%error, "the renewed client certificate is not in the kubeconfig");
                }
            }
        }
    }
    cluster.stop().await;
    Ok(())
}

async fn tokens(args: Token) -> Result<(), Box<dyn std::error::Error>> {
    let variable = |name: &str| std::env::var(name).ok();
    let path = args.kubeconfig.unwrap_or_else(|| {
        kubeconfig::default_path(variable("KUBECONFIG").as_deref(), variable("HOME").as_deref())
    });
    let config = kube::config::Kubeconfig::read_from(&path)?;
    let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await?;
    let at = token::ClusterAt::of(&config);
    let client = kaji_runtime::Client::new(kube::Client::try_from(config)?, "kaji");
    let now = jiff::Timestamp::now();
    let out = token::run(&args.command, &client, &at, now, &kaji_meta::random::SystemRandom).await?;
    std::io::stdout().lock().write_all(out.as_bytes())?;
    Ok(())
}

async fn scrub(args: Scrub) -> Result<(), Box<dyn std::error::Error>> {
    let data_dir = args.data_dir.unwrap_or_else(|| default_data_dir(std::env::var("HOME").ok().as_deref()));
    let written = kaji::scrub::scrub(&data_dir, args.encryption_provider_config.as_deref()).await?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "The store in {} holds nothing but current values.", data_dir.display())?;
    if args.encryption_provider_config.is_some() {
        writeln!(out, "Values written anew: {written}.")?;
    }
    Ok(())
}

async fn agent(args: Join) -> Result<(), Box<dyn std::error::Error>> {
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
    let mut agent = Agent::start(options).await?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "Node {} of the cluster at {}", agent.node(), args.join)?;
    writeln!(out, "  data  {}", data_dir.display())?;
    writeln!(out, "It is simulated: pods report what a kubelet would, no container runs. Ctrl-C ends it.")?;
    out.flush()?;
    drop(out);
    let outcome = tokio::select! {
        stopped = stop_signal() => stopped.map_err(Into::into),
        failed = agent.failed() => Err(failed.into()),
    };
    agent.stop().await;
    outcome
}

async fn stop_signal() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    Ok(())
}

/// `/var/lib/kaji` for root, else below the home directory.
fn default_data_dir(home: Option<&str>) -> PathBuf {
    use std::os::unix::fs::MetadataExt;
    // A process's own entry belongs to its user.
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0);
    match home {
        Some(home) if !root => PathBuf::from(home).join(".local/share/kaji"),
        _ => "/var/lib/kaji".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_for_this_machine_unless_told_otherwise() {
        let address = |args: &[&str]| match Cli::try_parse_from([&["kaji"], args].concat()).unwrap().command {
            Command::Up(up) | Command::Apiserver(up) => up.bind_address,
            _ => panic!("{args:?} starts no server"),
        };
        for command in ["up", "apiserver"] {
            assert!(address(&[command]).is_loopback());
            assert_eq!(address(&[command, "--bind-address=0.0.0.0"]), IpAddr::from([0, 0, 0, 0]));
        }
        assert!(Options::new("d").listen.ip().is_loopback());
    }
}
