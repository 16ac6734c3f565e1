//! `kaji up` and `kaji apiserver`: run a server until a signal comes; or start it in the background.
//!
//! Invariant: a cluster's record is written before its server starts and when it is ready, so that the other commands see it.

use crate::{default_data_dir, node_commands, stop_signal};
use clap::Args;
use kaji::{Cluster, kubeconfig};
use kaji_clusters::{
    ClusterDirectories, ClusterError, ClusterName, ClusterRecord, ProcessId, State,
    launch::{self, Launch},
    service_manager::{Notice, notify},
};
use kaji_oci::rootless::Facts;
use kaji_options::{ServerFlags, server_flags::SIMULATED};
use std::{
    collections::BTreeMap,
    error::Error,
    io::{IsTerminal, Write},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// How long a server in the background is waited for: one with much data on a slow disk takes seconds.
pub const START_TIMEOUT: Duration = Duration::from_secs(300);
/// Variables that a server reads, besides the directory's.
const VARIABLES: [&str; 2] = ["KUBECONFIG", "KAJI_LOG"];
/// The directory of clusters.
const DATA_DIR: &str = "KAJI_DATA_DIR";

/// Flags of `kaji up`.
#[derive(Args)]
pub struct Up {
    /// The cluster's name: it has a directory, a port and a kubeconfig context (kaji-NAME) of its own, and several run at once.
    #[arg(long)]
    name: Option<ClusterName>,
    /// Starts the cluster in the background, and returns when it is ready; kaji stop stops it.
    #[arg(long)]
    detach: bool,
    /// This is the server in the background.
    #[arg(long, hide = true, conflicts_with = "detach")]
    in_background: bool,
    #[command(flatten)]
    pub server: ServerFlags,
}

/// A server that is run.
pub struct Server {
    /// Its flags, with a data directory.
    pub flags: ServerFlags,
    /// Whether control loops and nodes run.
    pub controllers: bool,
    /// When the program was started.
    pub started: Instant,
    /// Why there is no user namespace.
    pub refusal: Option<String>,
    /// The cluster that it serves.
    pub registration: Registration,
}

/// What is recorded of a cluster; nothing of one that is not to be found again.
pub struct Registration {
    name: ClusterName,
    directory: PathBuf,
    record: Option<ClusterRecord>,
    in_background: bool,
    /// Why this machine is not the cluster's node, though it could be.
    reason: Option<String>,
}

impl Registration {
    /// Of a cluster without a record.
    pub fn none(directory: PathBuf) -> Registration {
        Registration {
            name: ClusterName::default(),
            directory,
            record: None,
            in_background: false,
            reason: None,
        }
    }

    fn write(&self) -> Result<(), ClusterError> {
        match &self.record {
            Some(record) => record.write(&self.directory),
            None => Ok(()),
        }
    }

    fn ready(&mut self, change: impl FnOnce(&mut ClusterRecord)) -> Result<(), ClusterError> {
        if let Some(record) = &mut self.record {
            record.state = State::Ready;
            change(record);
        }
        self.write()
    }

    fn how_to_stop(&self) -> String {
        match self.in_background {
            true => format!("kaji stop {} stops the cluster", self.name),
            false => "Ctrl-C stops the cluster".to_owned(),
        }
    }
}

impl Up {
    /// Whether the caller's process is to be the server.
    pub fn serves(&self) -> bool {
        !self.detach
    }
}

/// How a cluster of this machine is started.
pub struct Start {
    /// Its name, if one was given.
    pub name: Option<ClusterName>,
    /// Whether it is started in the background.
    pub detach: bool,
    /// Whether this process is the server in the background.
    pub in_background: bool,
    /// The command line after `kaji up` that starts it again.
    pub arguments: Vec<String>,
}

/// Runs a whole cluster until a signal comes, or starts it in the background.
pub async fn up(args: Up, started: Instant, refusal: Option<String>) -> Result<(), Box<dyn Error>> {
    let Up { name, detach, in_background, server } = args;
    if in_background {
        launch::lead_session()?;
    }
    let start = Start { name, detach, in_background, arguments: arguments(std::env::args()) };
    start_cluster(start, server, started, refusal).await
}

/// The record of a cluster that a command line starts here.
pub fn new_record(
    name: &ClusterName,
    arguments: Vec<String>,
    directories: &ClusterDirectories,
) -> ClusterRecord {
    let mut record = ClusterRecord::new(name.clone(), arguments);
    record.environment = environment(directories);
    record.working_directory = std::env::current_dir().unwrap_or_default();
    record
}

/// Runs a cluster until a signal comes, or starts it in the background.
pub async fn start_cluster(
    start: Start,
    mut flags: ServerFlags,
    started: Instant,
    refusal: Option<String>,
) -> Result<(), Box<dyn Error>> {
    let Start { name, detach, in_background, arguments } = start;
    let named = name.is_some();
    let name = name.unwrap_or_default();
    let base = flags.data_dir.take().unwrap_or_else(|| default_data_dir(home().as_deref()));
    let directories = ClusterDirectories::new(std::path::absolute(base)?);
    let directory = directories.of(&name);
    let mut registration = Registration { in_background, ..Registration::none(directory.clone()) };
    if flags.is_persistent() || named || detach || in_background {
        let last = ClusterRecord::read(&directory)?;
        if let Some(process) = last.as_ref().and_then(ClusterRecord::running) {
            return Err(ClusterError::Running { name, pid: process.pid }.into());
        }
        let mut record = new_record(&name, arguments, &directories);
        record.url = last.as_ref().and_then(|record| record.url.clone());
        record.runs_containers = last.is_some_and(|record| record.runs_containers);
        record.started = now();
        kaji_files::parent_of_private(directories.base())?;
        if !name.is_default() {
            kaji_files::private_dir(&directory)?;
        }
        if detach {
            record.write(&directory)?;
            return in_the_background(&record, &directory);
        }
        record.process = Some(ProcessId::current()?);
        if !name.is_default() && flags.port.is_none() {
            flags.port = Some(record.port().filter(|port| is_free(*port)).unwrap_or(0));
        }
        registration.reason = keep_off_the_machine(&mut flags, &directories)?;
        registration.name = name;
        registration.record = Some(record);
    }
    flags.data_dir = Some(directory);
    Box::pin(serve(Server { flags, controllers: true, started, refusal, registration })).await
}

/// Runs an API server alone until a signal comes.
pub async fn api_server(mut flags: ServerFlags, started: Instant) -> Result<(), Box<dyn Error>> {
    let data_dir = flags.data_dir.take().unwrap_or_else(|| default_data_dir(home().as_deref()));
    let registration = Registration::none(data_dir.clone());
    flags.data_dir = Some(data_dir);
    serve(Server { flags, controllers: false, started, refusal: None, registration }).await
}

/// The command line of a server, without what is only of one start of it.
fn arguments(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let command = arguments.skip_while(|argument| argument != "up").skip(1);
    command.filter(|argument| argument != "--detach" && argument != launch::FLAG).collect()
}

fn environment(directories: &ClusterDirectories) -> BTreeMap<String, String> {
    let set = |name: &str| std::env::var(name).ok().map(|value| (name.to_owned(), value));
    let mut variables: BTreeMap<_, _> = VARIABLES.into_iter().filter_map(set).collect();
    variables.insert(DATA_DIR.to_owned(), directories.base().display().to_string());
    variables
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn home() -> Option<String> {
    std::env::var("HOME").ok()
}

/// Whether a port of the loopback has no listener.
fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// A machine is the node of one cluster at a time: others have simulated nodes. Why, then.
fn keep_off_the_machine(
    flags: &mut ServerFlags,
    directories: &ClusterDirectories,
) -> Result<Option<String>, Box<dyn Error>> {
    if Facts::entered().is_some() {
        // A node in a user namespace has a network of its own.
        return Ok(None);
    }
    let mut other = None;
    for name in directories.names()? {
        let record = directories.record(&name)?;
        if record.runs_containers && record.running().is_some() {
            other = Some(name);
        }
    }
    let Some(other) = other else { return Ok(None) };
    match flags.nodes {
        Some(nodes) if nodes.run_containers() => Err(format!(
            "this machine runs the containers of the cluster {other}; kaji stop {other} stops it"
        )
        .into()),
        Some(_) => Ok(None),
        None => {
            flags.nodes = Some(SIMULATED);
            Ok(Some(format!("this machine runs those of the cluster {other}")))
        }
    }
}

/// Starts a cluster's server, and describes it when it is ready.
pub fn in_the_background(record: &ClusterRecord, directory: &Path) -> Result<(), Box<dyn Error>> {
    let launch = Launch { program: std::env::current_exe()?, record, directory };
    let begun = Instant::now();
    let ready = launch.run(START_TIMEOUT, progress())?;
    if std::io::stderr().is_terminal() {
        write!(std::io::stderr(), "\r\x1b[K")?;
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "Kubernetes {}", ready.version)?;
    let url = ready.url.as_deref().unwrap_or_default();
    writeln!(out, "  server      {url} (ready after {} ms)", begun.elapsed().as_millis())?;
    writeln!(out, "  data        {}", directory.display())?;
    writeln!(out, "  nodes       {}", ready.nodes)?;
    if let Some(path) = &ready.kubeconfig {
        writeln!(out, "  kubeconfig  {} (context {})", path.display(), ready.name.context())?;
    }
    writeln!(
        out,
        "It runs in the background: kaji status, logs, stop, start and delete {} are for it.",
        ready.name
    )?;
    Ok(())
}

/// On a terminal, says how long a start takes that takes long.
fn progress() -> impl FnMut(Duration) {
    let is_terminal = std::io::stderr().is_terminal();
    let mut shown = 0;
    move |passed| {
        if is_terminal && passed.as_secs() > shown {
            shown = passed.as_secs();
            // Standard error may be closed.
            let _ = write!(std::io::stderr(), "\rStarting, for {shown} s …");
        }
    }
}

/// Runs a server until a signal comes.
pub async fn serve(server: Server) -> Result<(), Box<dyn Error>> {
    let Server { mut flags, controllers, started, refusal, mut registration } = server;
    let variable = |name: &str| std::env::var(name).ok();
    let data_dir = registration.directory.clone();
    let (persistent, writes) = (flags.is_persistent(), flags.writes_kubeconfig());
    let stays = persistent && !flags.is_temporary;
    let path = flags
        .kubeconfig
        .clone()
        .unwrap_or_else(|| kubeconfig::default_path(variable("KUBECONFIG").as_deref(), home().as_deref()));
    let context = registration.name.context();
    registration.write()?;
    let reason = node_commands::choose_nodes(&mut flags, controllers, &data_dir, refusal)?;
    let reason = registration.reason.take().or(reason);
    let options = flags.into_options(&data_dir, controllers)?;
    let (nodes, everywhere) = (options.nodes, options.listen.ip().is_unspecified());
    let (found, agent_flags) = (options.simulates_found_nodes, node_commands::agent_flags(&options)?);
    node_commands::check(&options)?;
    let (environment, _node_threads) = node_commands::environment(&options).await?;
    let cluster = Cluster::start_in(options, environment).await?;
    let fleet = node_commands::fleet(&cluster, nodes, agent_flags, &data_dir).await?;
    let ready = started.elapsed();
    if writes {
        kubeconfig::write(
            &path,
            &context,
            &cluster.url(),
            &cluster.certificates.trust(),
            &cluster.pki.admin,
        )?;
    }
    let nodes_text = node_commands::description(nodes, found, reason.as_deref());
    let kubeconfig_path = writes.then(|| std::path::absolute(&path)).transpose()?;
    registration.ready(|record| {
        record.url = Some(cluster.url());
        record.kubeconfig = kubeconfig_path;
        record.nodes.clone_from(&nodes_text);
        record.runs_containers = nodes.run_containers();
        record.version = kaji_server::version().to_owned();
    })?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "Kubernetes {}", kaji_server::version())?;
    let others = if everywhere { ", and every address of this machine" } else { "" };
    writeln!(out, "  server      {}{others} (ready after {} ms)", cluster.url(), ready.as_millis())?;
    match persistent {
        true => writeln!(out, "  data        {}", data_dir.display())?,
        false => writeln!(out, "  data        in memory")?,
    }
    writeln!(out, "  nodes       {nodes_text}")?;
    if writes {
        writeln!(out, "  kubeconfig  {} (context {context})", path.display())?;
    }
    let data = if stays { "stays" } else { "is discarded" };
    writeln!(out, "{}; the data {data}.", registration.how_to_stop())?;
    out.flush()?;
    drop(out);
    notify(Notice::Ready);
    until_stopped(&cluster, writes.then_some((&*path, &*context))).await?;
    notify(Notice::Stopping);
    if let Some(fleet) = fleet {
        fleet.stop().await;
    }
    cluster.stop().await;
    Ok(())
}

/// Keeps the kubeconfig's certificate current until a signal comes.
async fn until_stopped(cluster: &Cluster, kubeconfig: Option<(&Path, &str)>) -> std::io::Result<()> {
    let mut renewed = cluster.certificates.subscribe();
    let stop = stop_signal();
    tokio::pin!(stop);
    loop {
        tokio::select! {
            stopped = &mut stop => return stopped,
            Ok(()) = renewed.changed(), if kubeconfig.is_some() => {
                let Some((path, context)) = kubeconfig else { continue };
                let pki = renewed.borrow_and_update().clone();
                // The old certificate stays valid for a while; the next start writes the new one at the latest.
                let trust = cluster.certificates.trust();
                if let Err(error) = kubeconfig::renew(path, context, &cluster.url(), &trust, &pki.admin) {
                    tracing::error!(%error, "the renewed client certificate is not in the kubeconfig");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_command_line_but_what_is_of_one_start() {
        let given =
            ["kaji", "up", "--name", "a", "--detach", "--nodes=none", "--in-background", "--port", "up"];
        let kept = arguments(given.into_iter().map(str::to_owned));
        assert_eq!(kept, ["--name", "a", "--nodes=none", "--port", "up"]);
    }
}
