//! The commands for the clusters of this machine: list, status, start, stop, delete and logs.
//!
//! Exit codes of `kaji status`: 0 when the cluster is ready, 3 when it does not run, 4 when it runs and is not ready.

use crate::{default_data_dir, up_command};
use clap::{Args, ValueEnum};
use kaji::kubeconfig;
use kaji_access::client_connection::config_of_flags;
use kaji_clusters::{ClusterDirectories, ClusterError, ClusterName, ClusterRecord, State, log::Log};
use kaji_files::DirectoryUsage;
use kaji_oci::rootless::{self, Facts};
use kaji_options::ClientConnectionFlags;
use serde_json::{Value, json};
use std::{
    error::Error,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// How long a server's end is waited for: it lets requests finish, and stops nodes.
const STOP_TIMEOUT: Duration = Duration::from_secs(90);
/// How often a log that is followed is read.
const INTERVAL: Duration = Duration::from_millis(200);
/// How long a server may take to say that it is ready.
const ANSWER: Duration = Duration::from_secs(5);
/// Of a directory that is counted.
const MOST_INODES: u64 = 1 << 20;
const NOT_RUNNING: u8 = 3;
const NOT_READY: u8 = 4;

/// Where clusters are.
#[derive(Args, Clone)]
pub struct Base {
    /// The directory of clusters.
    #[arg(long, env = "KAJI_DATA_DIR")]
    data_dir: Option<PathBuf>,
}

impl Base {
    /// That of commands without a flag for it.
    pub fn of_environment() -> Base {
        Base { data_dir: std::env::var_os("KAJI_DATA_DIR").map(PathBuf::from) }
    }

    /// The directories of clusters in it.
    ///
    /// # Errors
    /// That the working directory is not known.
    pub fn directories(&self) -> std::io::Result<ClusterDirectories> {
        let base = self.data_dir.clone();
        let base = base.unwrap_or_else(|| default_data_dir(std::env::var("HOME").ok().as_deref()));
        Ok(ClusterDirectories::new(std::path::absolute(base)?))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Text,
    Json,
    Name,
}

/// Flags of `kaji list`.
#[derive(Args)]
pub struct List {
    #[command(flatten)]
    base: Base,
    /// The form of the answer.
    #[arg(long, short, value_name = "FORM", default_value = "text")]
    output: Form,
}

/// Flags of `kaji status`, `kaji start`.
#[derive(Args)]
pub struct One {
    /// The cluster; the one without a name if it is left out.
    #[arg(default_value_t)]
    name: ClusterName,
    #[command(flatten)]
    base: Base,
}

/// Flags of `kaji stop` and `kaji delete`.
#[derive(Args)]
pub struct Several {
    /// The clusters; the one without a name if they are left out.
    #[arg(conflicts_with = "all")]
    names: Vec<ClusterName>,
    /// All clusters.
    #[arg(long)]
    all: bool,
    /// Kills a server that does not end in time.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    base: Base,
}

/// Flags of `kaji kubeconfig`.
#[derive(Args)]
pub struct KubeconfigFlags {
    #[command(flatten)]
    one: One,
    /// The server's URL as the reader of the kubeconfig reaches it.
    #[arg(long, value_name = "URL")]
    server: Option<String>,
}

/// Flags of `kaji logs`.
#[derive(Args)]
pub struct Logs {
    #[command(flatten)]
    one: One,
    /// Goes on with what is added, until a signal comes.
    #[arg(long, short)]
    follow: bool,
    /// Only the last lines.
    #[arg(long, value_name = "LINES")]
    tail: Option<usize>,
}

impl Several {
    /// The directory of clusters, if one of these runs containers, or has left what they had: without root, files in it belong to users of
    /// a user namespace.
    pub fn directory_of_containers(&self) -> Option<PathBuf> {
        let directories = self.base.directories().ok()?;
        let names = self.clusters(&directories).ok()?;
        let records = names.iter().filter_map(|name| directories.record(name).ok());
        records.into_iter().any(|record| record.runs_containers).then(|| directories.base().to_owned())
    }

    fn clusters(&self, directories: &ClusterDirectories) -> Result<Vec<ClusterName>, ClusterError> {
        match (self.all, self.names.is_empty()) {
            (true, _) => directories.names(),
            (false, true) => Ok(vec![ClusterName::default()]),
            (false, false) => Ok(self.names.clone()),
        }
    }
}

fn status_of(record: &ClusterRecord) -> &'static str {
    match (record.running(), record.state) {
        (None, _) => "Stopped",
        (Some(_), State::Starting) => "Starting",
        (Some(_), State::Ready) => "Running",
    }
}

/// A time that has passed, as kubectl shows an age.
fn age(started: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    kaji_meta::time::human_duration(i64::try_from(now.saturating_sub(started)).unwrap_or(i64::MAX))
}

/// Shows all clusters.
pub fn list(args: &List) -> Result<(), Box<dyn Error>> {
    let directories = args.base.directories()?;
    let mut rows = Vec::new();
    for name in directories.names()? {
        rows.push((directories.of(&name), directories.record(&name)?));
    }
    let mut out = std::io::stdout().lock();
    match args.output {
        Form::Name => {
            for (_, record) in rows {
                writeln!(out, "{}", record.name)?;
            }
        }
        Form::Json => {
            let items: Vec<Value> =
                rows.iter().map(|(directory, record)| as_json(directory, record)).collect();
            serde_json::to_writer_pretty(&mut out, &items)?;
            writeln!(out)?;
        }
        Form::Text if rows.is_empty() => {
            writeln!(std::io::stderr(), "No clusters in {}.", directories.base().display())?;
        }
        Form::Text => {
            let header = ["NAME", "STATUS", "AGE", "VERSION", "SERVER", "CONTEXT"].map(str::to_owned);
            let cells = rows.iter().map(|(_, record)| {
                let age = record.running().map_or_else(|| "-".to_owned(), |_| age(record.started));
                let url = record.url.clone().unwrap_or_else(|| "-".to_owned());
                let name = record.name.to_string();
                [name, status_of(record).to_owned(), age, record.version.clone(), url, record.name.context()]
            });
            write!(out, "{}", columns(std::iter::once(header).chain(cells)))?;
        }
    }
    Ok(())
}

fn as_json(directory: &Path, record: &ClusterRecord) -> Value {
    json!({
        "name": record.name.as_str(),
        "status": status_of(record),
        "pid": record.running().map(|process| process.pid),
        "startedSeconds": record.started,
        "version": record.version,
        "server": record.url,
        "kubeconfig": record.kubeconfig,
        "context": record.name.context(),
        "nodes": record.nodes,
        "directory": directory,
    })
}

/// Rows as kubectl prints them: each column as wide as its widest cell, three spaces between.
fn columns<const N: usize>(rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = rows.collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("   ").trim_end());
        text.push('\n');
    }
    text
}

/// Shows one cluster.
pub async fn status(args: One) -> Result<ExitCode, Box<dyn Error>> {
    let directories = args.base.directories()?;
    let record = directories.record(&args.name)?;
    let directory = directories.of(&args.name);
    let health = match record.running() {
        None => Err("it does not run".to_owned()),
        Some(_) => health(&record).await,
    };
    let mut lines = vec![["cluster".to_owned(), record.name.to_string()]];
    let mut line = |name: &str, text: String| lines.push([format!("  {name}"), text]);
    line("status", status_of(&record).to_owned());
    if let Some(process) = record.running() {
        let memory = process.resident_memory().unwrap_or(0) >> 20;
        line("process", format!("{}, for {}, {memory} MiB", process.pid, age(record.started)));
        line(
            "health",
            match &health {
                Ok(text) | Err(text) => text.clone(),
            },
        );
    }
    line("version", record.version.clone());
    line("server", record.url.clone().unwrap_or_default());
    line("nodes", record.nodes.clone());
    if let Some(path) = &record.kubeconfig {
        line("kubeconfig", format!("{} (context {})", path.display(), record.name.context()));
    }
    let used = DirectoryUsage::of(&directory, MOST_INODES).bytes >> 20;
    line("data", format!("{} ({used} MiB)", directory.display()));
    write!(std::io::stdout().lock(), "{}", columns(lines.into_iter()))?;
    Ok(match (record.running(), health) {
        (None, _) => ExitCode::from(NOT_RUNNING),
        (Some(_), Err(_)) => ExitCode::from(NOT_READY),
        (Some(_), Ok(_)) => ExitCode::SUCCESS,
    })
}

/// Whether the server says that it is ready, and how many of its nodes are.
async fn health(record: &ClusterRecord) -> Result<String, String> {
    let kubeconfig = record.kubeconfig.clone().ok_or("unknown: the cluster has written no kubeconfig")?;
    let flags = ClientConnectionFlags {
        kubeconfig: Some(kubeconfig),
        context: Some(record.name.context()),
        request_timeout: ANSWER,
        ..ClientConnectionFlags::default()
    };
    let ask = async {
        let client = kube::Client::try_from(config_of_flags(&flags).await?)?;
        let ready = http::Request::get("/readyz").body(Vec::new())?;
        let text = client.request_text(ready).await?;
        let nodes: Value = client.request(http::Request::get("/api/v1/nodes").body(Vec::new())?).await?;
        let nodes = nodes["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_ready = |node: &&Value| {
            let conditions = node["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        };
        let ready = nodes.iter().filter(is_ready).count();
        Ok::<_, Box<dyn Error>>(format!("{}, {ready} of {} nodes ready", text.trim(), nodes.len()))
    };
    match tokio::time::timeout(ANSWER, ask).await {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(error)) => Err(format!("not ready: {error}")),
        Err(_) => Err(format!("not ready: no answer in {} s", ANSWER.as_secs())),
    }
}

/// Starts a cluster again as it was started before.
pub fn start(args: &One) -> Result<(), Box<dyn Error>> {
    let directories = args.base.directories()?;
    let record = directories.record(&args.name)?;
    if let Some(process) = record.running() {
        return Err(ClusterError::Running { name: args.name.clone(), pid: process.pid }.into());
    }
    up_command::in_the_background(&record, &directories.of(&args.name))
}

/// Stops clusters. One that does not run is none to complain about.
pub fn stop(args: &Several) -> Result<(), Box<dyn Error>> {
    let directories = args.base.directories()?;
    for name in args.clusters(&directories)? {
        let record = directories.record(&name)?;
        let mut out = std::io::stdout().lock();
        match record.running() {
            None => writeln!(out, "Cluster {name} does not run.")?,
            Some(process) => {
                process.stop(STOP_TIMEOUT, args.force)?;
                writeln!(out, "Stopped cluster {name}; its data stays, kaji start {name} starts it again.")?;
            }
        }
    }
    Ok(())
}

/// Stops clusters and removes all that they have: containers and what else their nodes have left, data, and kubeconfig contexts.
pub fn delete(args: &Several) -> Result<(), Box<dyn Error>> {
    let directories = args.base.directories()?;
    for name in args.clusters(&directories)? {
        let record = directories.record(&name)?;
        if let Some(process) = record.running() {
            process.stop(STOP_TIMEOUT, args.force)?;
        }
        let directory = directories.of(&name);
        if record.runs_containers {
            // In a process of its own, since without root it enters the node's user namespace.
            let mut reset = Command::new(std::env::current_exe()?);
            reset.args(["node", "reset", "--data-dir"]).arg(&directory).stdout(Stdio::null());
            if !reset.status()?.success() {
                return Err(format!(
                    "what the node of cluster {name} has left was not removed; its data stays"
                )
                .into());
            }
        }
        if Facts::entered().is_some() {
            // Pinned namespaces of the node, in this process's own table of mounts.
            rootless::unmount_below(&directory)?;
        }
        if let Some(path) = &record.kubeconfig {
            kubeconfig::remove(path, &name.context())?;
        }
        directories.remove(&name)?;
        writeln!(std::io::stdout().lock(), "Deleted cluster {name}.")?;
    }
    Ok(())
}

/// Prints a kubeconfig of one cluster.
pub fn print_kubeconfig(args: &KubeconfigFlags) -> Result<(), Box<dyn Error>> {
    let record = args.one.base.directories()?.record(&args.one.name)?;
    let name = record.name.context();
    let path = record.kubeconfig.as_ref().ok_or("no kubeconfig has been written for this cluster")?;
    let text = kubeconfig::extract(path, &name, args.server.as_deref())?;
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}

/// Shows the log of a cluster's server.
pub fn logs(args: &Logs) -> Result<(), Box<dyn Error>> {
    let directories = args.one.base.directories()?;
    directories.record(&args.one.name)?;
    let mut log = Log::open(&directories.of(&args.one.name), args.tail)?;
    let mut out = std::io::stdout().lock();
    log.copy_to(&mut out)?;
    if !args.follow {
        return Ok(());
    }
    // A signal ends the program.
    loop {
        std::thread::sleep(INTERVAL);
        log.copy_to(&mut out)?;
    }
}
