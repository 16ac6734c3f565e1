//! `kaji fork`: a second cluster that begins as another one is, for tests and experiments.

use crate::{
    default_data_dir,
    up_command::{self, Registration, Server},
};
use clap::{Args, Command};
use kaji::Nodes;
use kaji_clusters::{ClusterDirectories, ClusterName, ClusterRecord};
use kaji_options::ServerFlags;
use kaji_storage::forks::{self, Forked};
use std::{
    error::Error,
    fs::DirBuilder,
    io::Write,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Instant,
};

/// Flags of `kaji fork`.
#[derive(Args)]
pub struct Fork {
    /// The cluster to fork, while its server runs or not: its name, its data directory, or the file of a snapshot. Default: the one
    /// without a name.
    source: Option<PathBuf>,
    /// Makes the new data directory, and starts nothing.
    #[arg(long, requires = "data_dir")]
    no_start: bool,
    #[command(flatten)]
    server: ServerFlags,
}

/// Changes the defaults of the server's flags: a fork has a port of its own.
pub fn defaults(command: Command) -> Command {
    command.mut_subcommand("fork", |fork| {
        fork.mut_arg("port", |port| port.default_value("0")).mut_arg("data_dir", |dir| {
            dir.env(None::<&'static str>)
                .help("The directory of the new cluster; without it, one that is removed at the end")
        })
    })
}

/// A directory that is removed with this.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "the directory of the fork is left");
        }
    }
}

/// Forks a cluster and runs the new one until a signal comes.
pub async fn fork(args: Fork, started: Instant) -> Result<(), Box<dyn Error>> {
    let Fork { source, no_start, server: mut flags } = args;
    if !flags.is_embedded() {
        return Err("a fork has an embedded store: leave out --store and --etcd-servers".into());
    }
    let source = source_directory(source)?;
    let (data_dir, temporary) = match &flags.data_dir {
        Some(dir) => (dir.clone(), None),
        None => {
            let dir = std::env::temp_dir().join(format!("kaji-fork-{}", std::process::id()));
            // It must not be there yet: it could be another user's.
            DirBuilder::new().mode(0o700).create(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
            (dir.clone(), Some(Temporary(dir)))
        }
    };
    let (from, to) = (source.clone(), data_dir.clone());
    let begun = Instant::now();
    let forked = tokio::task::spawn_blocking(move || forks::fork(&from, &to)).await??;
    describe(&forked, (&source, &data_dir), begun)?;
    if no_start {
        return Ok(());
    }
    if flags.kubeconfig.is_none() {
        flags.kubeconfig = Some(data_dir.join("kubeconfig"));
    }
    flags.data_dir = Some(data_dir.clone());
    flags.is_temporary = temporary.is_some();
    if flags.nodes.is_none() {
        flags.nodes = Some(Nodes::None);
        flags.simulates_found_nodes = true;
    }
    let registration = Registration::none(data_dir);
    up_command::serve(Server { flags, controllers: true, started, refusal: None, registration }).await
}

/// A path, or the name of a cluster.
fn source_directory(source: Option<PathBuf>) -> std::io::Result<PathBuf> {
    let base = default_data_dir(std::env::var("HOME").ok().as_deref());
    let Some(source) = source else { return Ok(base) };
    let base = std::env::var_os("KAJI_DATA_DIR").map_or(base, PathBuf::from);
    let directories = ClusterDirectories::new(std::path::absolute(base)?);
    let name = source.to_str().and_then(|text| text.parse::<ClusterName>().ok());
    let directory =
        name.map(|name| directories.of(&name)).filter(|directory| ClusterRecord::exists(directory));
    Ok(match directory {
        Some(directory) if !source.exists() => directory,
        _ => source,
    })
}

fn describe(forked: &Forked, (source, to): (&Path, &Path), begun: Instant) -> std::io::Result<()> {
    let what = match forked {
        Forked::Store(forked) => {
            let how = if forked.shared { "shared blocks" } else { "copied" };
            format!("{} bytes, {how}", forked.bytes)
        }
        Forked::Snapshot { objects, revision } => format!("{objects} objects, at revision {revision}"),
    };
    let millis = begun.elapsed().as_secs_f64() * 1000.0;
    let (source, to) = (source.display(), to.display());
    writeln!(std::io::stdout().lock(), "Forked {source} into {to} in {millis:.1} ms ({what})")
}
