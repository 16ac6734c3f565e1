//! The command line.

use clap::{Args, Parser, Subcommand};
use kaji::{
    AuditFlags, AuthnOptions, AuthzOptions, Cluster, Nodes, Options, kubeconfig,
    token::{self, TokenCommand},
};
use kaji_server::flow::Limits;
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
    /// Bootstrap tokens, with which nodes join.
    Token(Token),
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
struct Up {
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
    /// A further name or address in the serving certificate; may be repeated.
    #[arg(long = "tls-san")]
    names: Vec<String>,
    /// The range of service addresses; a second one makes the cluster dual-stack.
    #[arg(long, alias = "service-cluster-ip-range", value_delimiter = ',', default_value = "10.96.0.0/12")]
    service_cidr: Vec<String>,
    /// An EncryptionConfiguration file (apiserver.config.k8s.io/v1): which resources are encrypted at rest, and how.
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
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
}

fn main() -> ExitCode {
    let started = Instant::now();
    let cli = Cli::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("KAJI_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    let outcome = match cli.command {
        Command::Up(up) => runtime.block_on(serve(up, true, started)),
        Command::Apiserver(up) => runtime.block_on(serve(up, false, started)),
        Command::Token(token) => runtime.block_on(tokens(token)),
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
        controllers,
        service_cidrs: up.service_cidr,
        encryption: up.encryption_provider_config,
        limits: limits.checked()?,
        request_timeout: up.request_timeout,
        authn: up.authn,
        audit: up.audit.into(),
        authz: up.authz,
        ..Options::new(&data_dir)
    };
    let cluster = Cluster::start(options).await?;
    let ready = started.elapsed();
    let path = up.kubeconfig.unwrap_or_else(|| {
        kubeconfig::default_path(variable("KUBECONFIG").as_deref(), variable("HOME").as_deref())
    });
    kubeconfig::write(&path, &cluster.url(), &cluster.pki.ca.certificate, &cluster.pki.admin)?;
    let nodes = match nodes {
        Nodes::None => "none".to_owned(),
        Nodes::Simulated(n) => format!("{n} simulated: pods report what a kubelet would, no container runs"),
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "Kubernetes {}", kaji_server::version())?;
    writeln!(out, "  server      {} (ready after {} ms)", cluster.url(), ready.as_millis())?;
    writeln!(out, "  data        {}", data_dir.display())?;
    writeln!(out, "  nodes       {nodes}")?;
    writeln!(out, "  kubeconfig  {} (context {})", path.display(), kubeconfig::NAME)?;
    writeln!(out, "Ctrl-C ends it; the data stays.")?;
    out.flush()?;
    drop(out);
    let mut renewed = cluster.certificates.subscribe();
    let stop = stop_signal();
    tokio::pin!(stop);
    loop {
        tokio::select! {
            stopped = &mut stop => break stopped?,
            Ok(()) = renewed.changed() => {
                let pki = renewed.borrow_and_update().clone();
                // The old certificate is good for a while; the next start writes the new one at the latest.
                if let Err(error) = kubeconfig::renew(&path, &cluster.url(), &pki.ca.certificate, &pki.admin) {
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
    let client = kaji_runtime::Client::new(kube::Client::try_from(config)?, "kaji");
    let now = jiff::Timestamp::now();
    let out = token::run(&args.command, &client, now, &kaji_meta::random::SystemRandom).await?;
    std::io::stdout().lock().write_all(out.as_bytes())?;
    Ok(())
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
