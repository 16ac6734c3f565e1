//! The command line.

mod cluster_commands;
mod component_commands;
#[cfg(feature = "console")]
mod console_command;
mod doctor_command;
mod envtest_command;
mod events_command;
mod fork_command;
mod history_commands;
mod node_commands;
mod repair_commands;
mod shell_commands;
mod sim_command;
mod store_commands;
mod test_command;
mod top_command;
mod up_command;
mod why_command;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use kaji::{
    kubeconfig, kubeconfig_file,
    token::{self, TokenCommand},
};
use kaji_clusters::{ClusterDirectories, ClusterName};
use kaji_cri::cni::plugin;
use kaji_envtest as envtest;
use kaji_images::cli::ImageCommand;
use kaji_oci::rootless::Facts;
use kaji_options::logging::{Logging, LoggingFlags};
use kaji_options::{ControllerManagerFlags, SchedulerFlags, ServerFlags, server_flags::shorten_help};
use node_commands::{Join, NodeArgs};
use std::{ffi::OsString, io::Write, path::PathBuf, process::ExitCode, time::Instant};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Kubernetes in one binary.
#[derive(Parser)]
#[command(name = "kaji", version, about, args_override_self = true)]
struct Cli {
    #[command(flatten)]
    logging: LoggingFlags,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Starts a whole cluster and writes a kubeconfig context for it.
    Up(Box<up_command::Up>),
    /// Shows the clusters of this machine.
    List(cluster_commands::List),
    /// Shows one cluster: whether it runs and is ready, and where its things are.
    Status(cluster_commands::One),
    /// Starts a cluster in the background as it was started before.
    Start(cluster_commands::One),
    /// Stops clusters; their data stays.
    Stop(cluster_commands::Several),
    /// Stops clusters and removes their data, containers and kubeconfig contexts.
    Delete(cluster_commands::Several),
    /// Prints a kubeconfig of one cluster alone, to be handed on.
    Kubeconfig(cluster_commands::KubeconfigFlags),
    /// Shows the log of a cluster that runs in the background.
    Logs(cluster_commands::Logs),
    /// Shows what this machine has and lacks for clusters, and what to do about it.
    Doctor(doctor_command::Doctor),
    /// Starts an API server alone: no controllers, no scheduler, no nodes.
    Apiserver(Box<ServerFlags>),
    /// Runs the controllers alone, against the API server of a kubeconfig.
    ControllerManager(Box<ControllerManagerFlags>),
    /// Runs the scheduler alone, against the API server of a kubeconfig.
    Scheduler(Box<SchedulerFlags>),
    /// Replaces the binaries that controller-runtime's envtest starts.
    Envtest(envtest_command::Envtest),
    /// Manages bootstrap tokens, with which nodes join.
    Token(Token),
    /// Maintains the store of a data directory while no server uses it.
    Store(StoreArgs),
    /// Takes, restores and shows snapshots of all objects.
    Snapshot(store_commands::Snapshot),
    /// Starts a second cluster that begins as another one is, of its data directory or a snapshot: its own port, kubeconfig and directory,
    /// the same certificates, and its nodes simulated.
    Fork(Box<fork_command::Fork>),
    /// Moves all objects between a data directory and etcd while no server runs.
    Etcd(store_commands::Etcd),
    /// Loads, lists, pulls and removes the images of this machine's node.
    Image(Image),
    /// Runs a node that joins a cluster over the network: this machine runs containers, which takes root.
    Agent(Join),
    /// Maintains this machine's node while neither server nor agent runs.
    Node(NodeArgs),
    /// Explains why an object is not as it was asked to be, or why a request is forbidden: what is known, what follows, what to do.
    Why(why_command::Why),
    /// Shows all recorded revisions of an object, or what changed in a namespace: when, which user, which client, and what changed.
    History(history_commands::History),
    /// Shows what differs between two recorded states of an object.
    Diff(history_commands::Diff),
    /// Shows the request that each field of an object is from.
    Blame(history_commands::Blame),
    /// Shows an object as it was at a time.
    Get(history_commands::Get),
    /// Writes an object anew as it was at a time, after showing what would change.
    Restore(history_commands::Restore),
    /// Shows the owners of an object, its dependents, and what it refers to.
    Tree(history_commands::Tree),
    /// Shows the events of an object and of all that it owns, or of a namespace, in order, and follows them.
    Events(events_command::EventsFlags),
    /// Shows what nodes and pods use at present: processors and memory.
    Top(top_command::Top),
    /// Serves the web console on a loopback address, with the credentials of a kubeconfig.
    #[cfg(feature = "console")]
    Console(console_command::Console),
    /// Tests an operator by faults: records a run of its scenario, and evaluates one with each fault that the API permits.
    Test(test_command::Test),
    /// Runs whole clusters in a simulation, with faults drawn from a seed, and checks what must hold of them.
    Sim(sim_command::Sim),
    /// Writes completions for a shell: bash, zsh, fish, powershell or elvish.
    Completion(shell_commands::Completion),
    /// Writes manual pages.
    Man(shell_commands::Man),
    /// Shows the versions of this program and of the Kubernetes that it serves.
    Version(shell_commands::Version),
}

#[derive(Args)]
struct Image {
    /// The directory of the cluster's objects and the node's images.
    #[arg(long, env = "KAJI_DATA_DIR", global = true)]
    data_dir: Option<PathBuf>,
    /// The cluster, if it has a name.
    #[arg(long, global = true, value_name = "NAME")]
    cluster: Option<ClusterName>,
    #[command(subcommand)]
    command: ImageCommand,
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
    /// Removes everything but current values from the store's files: drops history and rewrites the file, so that it has no
    /// values that were deleted, or written before they were encrypted. The archive of `kaji history` is removed.
    Scrub(Scrub),
    /// Reads the store's files and compares all of it with its checksums. Changes nothing.
    Check(repair_commands::Check),
    /// Makes a new store of what is intact in a damaged one, and says what is lost.
    Salvage(repair_commands::Salvage),
}

#[derive(Args)]
struct Scrub {
    /// The directory of the cluster's objects.
    #[arg(long, env = "KAJI_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// An EncryptionConfiguration file: values that it would store differently (unencrypted, with an old key) are rewritten
    /// first.
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
}

/// The first argument of a container's shim, which this program starts.
const SHIM: &str = "shim";

fn main() -> ExitCode {
    // Before anything starts a thread: a shim has one.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == SHIM) {
        return kaji_oci::shim::main(std::env::args_os().skip(2).collect());
    }
    // A container runtime starts this program as its network plug-in, by a link.
    if std::env::var_os(plugin::COMMAND).is_some() && std::env::args_os().len() == 1 {
        return plugin::main();
    }
    let started = Instant::now();
    let logging = Logging::start("warn,kaji_envtest=info");
    let program = std::env::args_os().next().unwrap_or_default();
    let cli = match envtest::Role::of(program.as_ref()) {
        None if why_command::is_plugin(program.as_ref()) => why_command::as_plugin(),
        None => parse(command(), std::env::args_os()),
        Some(role) => match run_as(role) {
            Ok(Some(cli)) => cli,
            Ok(None) => return ExitCode::SUCCESS,
            Err(error) => return fail(&*error),
        },
    };
    logging.set(cli.logging);
    // Before anything starts a thread, too: the program is executed anew in a user namespace.
    let refusal = node_commands::enter_namespaces(&cli.command);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    match run(cli.command, &runtime, (started, refusal)) {
        Ok(code) => code,
        Err(error) => fail(&*error),
    }
}

/// Runs a command.
fn run(
    command: Command,
    runtime: &tokio::runtime::Runtime,
    (started, refusal): (Instant, Option<String>),
) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let outcome = match command {
        Command::Up(args) => runtime.block_on(up_command::up(*args, started, refusal)),
        Command::Apiserver(flags) => runtime.block_on(up_command::api_server(*flags, started)),
        Command::List(args) => cluster_commands::list(&args),
        Command::Status(args) => return runtime.block_on(cluster_commands::status(args)),
        Command::Doctor(args) => return doctor_command::doctor(args),
        Command::Start(args) => cluster_commands::start(&args),
        Command::Stop(args) => cluster_commands::stop(&args),
        Command::Delete(args) => cluster_commands::delete(&args),
        Command::Logs(args) => cluster_commands::logs(&args),
        Command::Kubeconfig(args) => cluster_commands::print_kubeconfig(&args),
        Command::ControllerManager(flags) => runtime.block_on(component_commands::controller_manager(*flags)),
        Command::Scheduler(flags) => runtime.block_on(component_commands::scheduler(*flags)),
        Command::Envtest(args) => runtime.block_on(envtest_command::envtest(args)),
        Command::Token(token) => runtime.block_on(tokens(token)),
        Command::Store(args) => runtime.block_on(maintain(args)),
        Command::Fork(args) => runtime.block_on(fork_command::fork(*args, started)),
        Command::Snapshot(args) => runtime.block_on(store_commands::snapshot(args)),
        Command::Etcd(args) => runtime.block_on(store_commands::etcd(args)),
        Command::Image(image) => runtime.block_on(images(image)),
        Command::Node(node) => runtime.block_on(node_commands::node(node, refusal)),
        Command::Why(args) => return Ok(runtime.block_on(why_command::why(args))),
        Command::History(args) => runtime.block_on(history_commands::history(args)),
        Command::Diff(args) => runtime.block_on(history_commands::diff(args)),
        Command::Blame(args) => runtime.block_on(history_commands::blame(args)),
        Command::Get(args) => runtime.block_on(history_commands::get(args)),
        Command::Restore(args) => runtime.block_on(history_commands::restore(args)),
        Command::Tree(args) => runtime.block_on(history_commands::tree(args)),
        Command::Events(args) => runtime.block_on(events_command::events(args)),
        Command::Top(args) => runtime.block_on(top_command::top(args)),
        #[cfg(feature = "console")]
        Command::Console(args) => runtime.block_on(console_command::console(args)),
        Command::Test(args) => return runtime.block_on(test_command::test(args)),
        Command::Sim(args) => sim_command::simulate(&args),
        Command::Completion(args) => shell_commands::completion(&args, self::command()),
        Command::Man(args) => shell_commands::man(&args, self::command()),
        Command::Version(args) => shell_commands::version(&args),
        Command::Agent(join) => runtime.block_on(node_commands::agent(join)),
    };
    outcome.map(|()| ExitCode::SUCCESS)
}

/// The command line.
fn command() -> clap::Command {
    let long = [
        "up",
        "apiserver",
        "controller-manager",
        "scheduler",
        "fork",
        "agent",
        "console",
        "test",
        "why",
        "history",
        "diff",
        "blame",
        "get",
        "restore",
        "tree",
        "events",
        "top",
    ];
    let command = fork_command::defaults(long.into_iter().fold(Cli::command(), shorten_help));
    shell_commands::group_commands(command)
}

fn parse(mut command: clap::Command, line: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Cli {
    let matches = command.try_get_matches_from_mut(line).unwrap_or_else(|error| error.exit());
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let values = kaji_options::flag_values(&command, &matches);
    match &mut cli.command {
        Command::Up(args) => args.server.flag_values = values,
        Command::Apiserver(flags) => flags.flag_values = values,
        Command::ControllerManager(flags) => flags.set_flag_values(values),
        Command::Scheduler(flags) => flags.set_flag_values(values),
        Command::Agent(join) => join.flag_values = values,
        Command::Fork(args) => args.arguments = fork_command::server_arguments(&command, &matches),
        _ => {}
    }
    cli
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr(), "kaji: {error}");
    ExitCode::FAILURE
}

/// Runs under the names of envtest's programs: the command line of an API server, or `None` when it is done.
fn run_as(role: envtest::Role) -> Result<Option<Cli>, Box<dyn std::error::Error>> {
    let args = std::env::args().skip(1);
    let text = match role {
        envtest::Role::Etcd => {
            // One thread is enough, and there may be many processes.
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
                    let line = std::iter::once("kube-apiserver".to_owned()).chain(args);
                    return Ok(Some(parse(Cli::command(), line)));
                }
            }
        }
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(None)
}

async fn tokens(args: Token) -> Result<(), Box<dyn std::error::Error>> {
    let variable = |name: &str| std::env::var(name).ok();
    let path = args.kubeconfig.unwrap_or_else(|| {
        kubeconfig::default_path(variable("KUBECONFIG").as_deref(), variable("HOME").as_deref())
    });
    let config = kubeconfig_file::client_config(&path).await?;
    let at = token::ClusterAt::of(&config);
    let client = kaji_runtime::Client::new(kube::Client::try_from(config)?, "kaji");
    let now = jiff::Timestamp::now();
    let out = token::run(&args.command, &client, &at, now, &kaji_meta::random::SystemRandom).await?;
    std::io::stdout().lock().write_all(out.as_bytes())?;
    Ok(())
}

async fn images(args: Image) -> Result<(), Box<dyn std::error::Error>> {
    let base = args.data_dir.unwrap_or_else(|| default_data_dir(std::env::var("HOME").ok().as_deref()));
    let data_dir = ClusterDirectories::new(base).of(&args.cluster.unwrap_or_default());
    kaji_images::cli::run(args.command, &data_dir.join("images"), std::io::stdout()).await?;
    Ok(())
}

async fn maintain(args: StoreArgs) -> Result<(), Box<dyn std::error::Error>> {
    match args.command {
        StoreCommand::Scrub(args) => scrub(args).await,
        StoreCommand::Check(args) => repair_commands::check(args).await,
        StoreCommand::Salvage(args) => repair_commands::salvage(args).await,
    }
}

async fn scrub(args: Scrub) -> Result<(), Box<dyn std::error::Error>> {
    let data_dir = args.data_dir.unwrap_or_else(|| default_data_dir(std::env::var("HOME").ok().as_deref()));
    let written = kaji_encryption::scrub(
        &data_dir.join(kaji_storage::STORE),
        args.encryption_provider_config.as_deref(),
    )
    .await?;
    let archives = kaji_history::erase_below(&data_dir)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "The store in {} holds nothing but current values.", data_dir.display())?;
    if args.encryption_provider_config.is_some() {
        writeln!(out, "Rewritten values: {written}.")?;
    }
    if archives > 0 {
        writeln!(out, "The history of objects was removed.")?;
    }
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
    // A process's own entry belongs to its user. Root of a user namespace is not the machine's.
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0) && Facts::entered().is_none();
    match home {
        Some(home) if !root => PathBuf::from(home).join(".local/share/kaji"),
        _ => "/var/lib/kaji".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listens_on_the_loopback_by_default() {
        let address = |args: &[&str]| match Cli::try_parse_from([&["kaji"], args].concat()).unwrap().command {
            Command::Up(up) => up.server.into_options("d".as_ref(), true).unwrap().listen.ip(),
            Command::Apiserver(up) => up.into_options("d".as_ref(), false).unwrap().listen.ip(),
            _ => panic!("{args:?} starts no server"),
        };
        for command in ["up", "apiserver"] {
            assert!(address(&[command]).is_loopback());
            assert_eq!(address(&[command, "--bind-address=0.0.0.0"]), std::net::IpAddr::from([0, 0, 0, 0]));
        }
        assert!(kaji::Options::new("d").listen.ip().is_loopback());
    }
}
