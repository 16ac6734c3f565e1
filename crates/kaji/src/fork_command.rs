//! `kaji fork`: a second cluster that begins as another one is, for tests and experiments; with a name it is one of this machine's clusters.

use crate::{
    cluster_commands::Base,
    up_command::{self, Registration, Server, Start},
};
use clap::{ArgAction, ArgGroup, ArgMatches, Args, Command, parser::ValueSource};
use kaji::Nodes;
use kaji_clusters::{ClusterDirectories, ClusterName, ClusterRecord};
use kaji_encryption::sealed::SealingKey;
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

/// Flags that are of the fork and not of its server.
const OWN: [&str; 6] = ["source", "key_file", "name", "detach", "no_start", "data_dir"];

/// Flags of `kaji fork`.
#[derive(Args)]
#[command(group = ArgGroup::new("place").args(["name", "data_dir"]))]
pub struct Fork {
    /// The cluster to fork, while its server runs or not: its name, its data directory, or the file of a snapshot. Default: the one
    /// without a name.
    source: Option<PathBuf>,
    /// The key that a snapshot is encrypted with, as for kaji snapshot.
    #[arg(long, value_name = "FILE", requires = "source")]
    key_file: Option<PathBuf>,
    /// The new cluster's name: it is listed, stopped, started and deleted as others are, and has a kubeconfig context (kaji-NAME).
    #[arg(long)]
    name: Option<ClusterName>,
    /// Starts the new cluster in the background, and returns when it is ready; kaji stop stops it.
    #[arg(long, requires = "name", conflicts_with = "no_start")]
    detach: bool,
    /// Makes the new cluster's files, and starts nothing.
    #[arg(long, requires = "place")]
    no_start: bool,
    /// The command line after `kaji up` that starts the fork again.
    #[arg(skip)]
    pub arguments: Vec<String>,
    #[command(flatten)]
    server: ServerFlags,
}

/// Changes the defaults of the server's flags: a fork has a port of its own.
pub fn defaults(command: Command) -> Command {
    command.mut_subcommand("fork", |fork| {
        fork.mut_arg("port", |port| port.default_value("0")).mut_arg("data_dir", |dir| {
            dir.env(None::<&'static str>).help(
                "The directory of a new cluster without a name; without it, one that is removed at the end",
            )
        })
    })
}

/// The flags of the server that were given to `kaji fork`, as `kaji up` takes them.
pub fn server_arguments(command: &Command, matches: &ArgMatches) -> Vec<String> {
    let Some((name, matches)) = matches.subcommand() else { return vec![] };
    let Some(command) = command.find_subcommand(name) else { return vec![] };
    let mut arguments = vec![];
    for argument in command.get_arguments() {
        let (id, Some(long)) = (argument.get_id().as_str(), argument.get_long()) else { continue };
        let given = !OWN.contains(&id) && !argument.is_global_set();
        if !given || matches.try_contains_id(id).is_err() {
            continue;
        }
        if matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        if matches!(argument.get_action(), ArgAction::SetTrue | ArgAction::SetFalse) {
            arguments.push(format!("--{long}"));
            continue;
        }
        let values = matches.get_raw(id).into_iter().flatten().map(|value| value.to_string_lossy());
        match argument.get_value_delimiter() {
            Some(delimiter) => {
                let values: Vec<_> = values.collect();
                arguments.push(format!("--{long}={}", values.join(&delimiter.to_string())));
            }
            None => arguments.extend(values.map(|value| format!("--{long}={value}"))),
        }
    }
    arguments
}

/// What is forked, and the key of its snapshot.
struct Source {
    path: PathBuf,
    key: Option<SealingKey>,
}

/// A directory that is removed with this.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "the directory of the fork could not be removed");
        }
    }
}

/// Forks a cluster and runs the new one until a signal comes, or in the background.
pub async fn fork(args: Fork, started: Instant) -> Result<(), Box<dyn Error>> {
    let Fork { source, key_file, name, detach, no_start, arguments, server: mut flags } = args;
    if !flags.is_embedded() {
        return Err("a fork has an embedded store: leave out --store and --etcd-servers".into());
    }
    let directories = Base::of_environment().directories()?;
    let key = key_file.as_deref().map(SealingKey::read).transpose()?;
    let source = Source { path: source_directory(source, &directories)?, key };
    let nodes_given = flags.nodes.is_some();
    if !nodes_given {
        flags.nodes = Some(Nodes::None);
        flags.simulates_found_nodes = true;
    }
    if let Some(name) = name {
        let mut start = Start { name: Some(name.clone()), detach, in_background: false, arguments };
        start.arguments.push(format!("--name={name}"));
        if !nodes_given {
            start.arguments.extend(["--nodes=none", "--simulate-found-nodes"].map(str::to_owned));
        }
        register(&source, &name, &directories, start.arguments.clone()).await?;
        if no_start {
            writeln!(std::io::stdout().lock(), "kaji start {name} starts it.")?;
            return Ok(());
        }
        flags.data_dir = Some(directories.base().to_owned());
        // Another port than the former server's is chosen: there is none.
        flags.port = flags.port.filter(|port| *port != 0);
        return up_command::start_cluster(start, flags, started, None).await;
    }
    let (data_dir, temporary) = match &flags.data_dir {
        Some(dir) => (dir.clone(), None),
        None => {
            let dir = std::env::temp_dir().join(format!("kaji-fork-{}", std::process::id()));
            // It must not be there yet: it could be another user's.
            DirBuilder::new().mode(0o700).create(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
            (dir.clone(), Some(Temporary(dir)))
        }
    };
    make(&source, &data_dir).await?;
    if no_start {
        return Ok(());
    }
    if flags.kubeconfig.is_none() {
        flags.kubeconfig = Some(data_dir.join("kubeconfig"));
    }
    flags.data_dir = Some(data_dir.clone());
    flags.is_temporary = temporary.is_some();
    let registration = Registration::none(data_dir);
    up_command::serve(Server { flags, controllers: true, started, refusal: None, registration }).await
}

/// Makes the files of a cluster with a name, and its record.
async fn register(
    source: &Source,
    name: &ClusterName,
    directories: &ClusterDirectories,
    arguments: Vec<String>,
) -> Result<(), Box<dyn Error>> {
    let directory = directories.of(name);
    if ClusterRecord::exists(&directory) {
        return Err(format!("there is a cluster {name} already; kaji delete {name} removes it").into());
    }
    kaji_files::parent_of_private(directories.base())?;
    let is_new = !directory.exists();
    kaji_files::private_dir(&directory)?;
    if let Err(error) = make(source, &directory).await {
        // What was there before is not this command's.
        if is_new && let Err(left) = std::fs::remove_dir_all(&directory) {
            tracing::warn!(error = %left, path = %directory.display(), "the directory of the fork could not be removed");
        }
        return Err(error);
    }
    up_command::new_record(name, arguments, directories).write(&directory)?;
    Ok(())
}

async fn make(source: &Source, data_dir: &Path) -> Result<(), Box<dyn Error>> {
    let (from, key, to) = (source.path.clone(), source.key.clone(), data_dir.to_owned());
    let begun = Instant::now();
    let forked = tokio::task::spawn_blocking(move || forks::fork_with_key(&from, key, &to)).await??;
    describe(&forked, (&source.path, data_dir), begun)?;
    Ok(())
}

/// A path, or the name of a cluster.
fn source_directory(
    source: Option<PathBuf>,
    directories: &ClusterDirectories,
) -> Result<PathBuf, Box<dyn Error>> {
    let Some(source) = source else { return Ok(directories.base().to_owned()) };
    if source.exists() {
        return Ok(source);
    }
    match source.to_str().and_then(|text| text.parse::<ClusterName>().ok()) {
        Some(name) => {
            directories.record(&name)?;
            Ok(directories.of(&name))
        }
        None => Ok(source),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_is_started_again_with_the_flags_of_its_server() {
        let mut command = crate::command();
        let line = [
            "kaji",
            "fork",
            "a",
            "--name",
            "b",
            "--detach",
            "--tls-san=x",
            "--tls-san",
            "y",
            "--no-kubeconfig",
            "--history-exclude",
            "pods,events",
            "--controllers=-*",
        ];
        let matches = command.try_get_matches_from_mut(line).unwrap();
        let given = server_arguments(&command, &matches);
        let up: Vec<String> = ["kaji", "up"].into_iter().map(str::to_owned).chain(given.clone()).collect();
        assert!(crate::command().try_get_matches_from(up).is_ok(), "{given:?}");
        let mut given = given;
        given.sort();
        assert_eq!(
            given,
            [
                "--controllers=-*",
                "--history-exclude=pods,events",
                "--no-kubeconfig",
                "--tls-san=x",
                "--tls-san=y"
            ]
        );
    }

    #[test]
    fn a_fork_has_a_name_or_a_directory() {
        let refused = |rest: &[&str]| {
            crate::command().try_get_matches_from([&["kaji", "fork", "a"], rest].concat()).is_err()
        };
        assert!(refused(&["--name", "b", "--data-dir", "/x"]));
        assert!(refused(&["--detach"]));
        assert!(refused(&["--no-start"]));
        assert!(refused(&["--name", "b", "--detach", "--no-start"]));
        assert!(refused(&["--name", "A_B"]));
        assert!(!refused(&["--name", "b", "--no-start"]));
        assert!(!refused(&["--data-dir", "/x", "--no-start"]));
    }
}
