//! The commands about all objects of a cluster: snapshots, and moving them between the embedded store and etcd.

use crate::{cluster_commands::Base, default_data_dir, up_command};
use clap::{Args, Subcommand};
use kaji::{EncryptionFile, EtcdConfig, Options, StoreKind};
use kaji_access::client_connection::config_of_flags;
use kaji_clusters::{ClusterError, ClusterName, ClusterRecord};
use kaji_encryption::sealed::SealingKey;
use kaji_meta::text::hex;
use kaji_options::{ClientConnectionFlags, StoreFlags};
use kaji_storage::{
    STORE,
    progress::ProgressLine,
    snapshots::{self, BUMP, Contents, ETCD_BUMP, SnapshotFile},
    transfer::{export, import},
};
use kaji_store::archive::Layout;
use std::{error::Error, fmt::Write as _, io::Write, path::PathBuf, time::Duration};

/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(30);

/// Flags of `kaji snapshot`.
#[derive(Args)]
pub struct Snapshot {
    #[command(subcommand)]
    command: SnapshotCommand,
}

#[derive(Subcommand)]
enum SnapshotCommand {
    /// Takes one: of a cluster of this machine, of the running server of a kubeconfig, or of a store that is named.
    Save(Save),
    /// Makes a new cluster of one, a store in a data directory without one, or objects of an etcd without keys below the prefix.
    Restore(Restore),
    /// Checks a file, and shows what it holds.
    Inspect {
        #[command(flatten)]
        file: FileArgs,
    },
}

#[derive(Args)]
struct FileArgs {
    /// The snapshot.
    file: PathBuf,
    /// The key that the whole file is encrypted with: 32 bytes in base64, as `head -c 32 /dev/urandom | base64` makes them. The
    /// same key is needed to restore it.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl FileArgs {
    fn read(self) -> Result<SnapshotFile, Box<dyn Error>> {
        let key = self.key_file.as_deref().map(SealingKey::read).transpose()?;
        Ok(SnapshotFile { path: self.file, key })
    }
}

#[derive(Args)]
struct Save {
    #[command(flatten)]
    file: FileArgs,
    /// A cluster of this machine, while its server runs or not; kaji list shows their names.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["kubeconfig", "context", "data_dir", "store", "etcd_servers"])]
    cluster: Option<ClusterName>,
    /// The kubeconfig file to use instead of the user's.
    #[arg(long, value_name = "FILE", conflicts_with = "data_dir")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig.
    #[arg(long, value_name = "NAME", conflicts_with = "data_dir")]
    context: Option<String>,
    /// The directory of a server that does not run.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    store: StoreFlags,
}

#[derive(Args)]
struct Restore {
    #[command(flatten)]
    file: FileArgs,
    /// The new cluster of this machine; kaji start starts it.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["data_dir", "store", "etcd_servers"])]
    cluster: Option<ClusterName>,
    /// The directory of the new cluster's objects.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// By how much the revision is raised above the snapshot's, so that none is used again that a client has seen: at least as much
    /// as was written after the snapshot. Default: 1000000000, and 10000 for etcd, where each step is a write.
    #[arg(long, value_name = "N")]
    bump_revision: Option<u64>,
    #[command(flatten)]
    store: StoreFlags,
}

/// Flags of `kaji etcd`.
#[derive(Args)]
pub struct Etcd {
    #[command(subcommand)]
    command: EtcdCommand,
}

#[derive(Subcommand)]
enum EtcdCommand {
    /// Copies the objects of a data directory to etcd. Run it again if it was interrupted.
    Export(Transfer),
    /// Copies the objects of etcd into a data directory without a store. resourceVersions stay.
    Import(Transfer),
}

#[derive(Args)]
struct Transfer {
    /// The directory of the cluster's objects.
    #[arg(long, env = "KAJI_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// The EncryptionConfiguration file of both sides.
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
    #[command(flatten)]
    store: StoreFlags,
}

fn home() -> Option<String> {
    std::env::var("HOME").ok()
}

fn describe(contents: &Contents) -> String {
    let Contents { header, summary, bytes, resources } = contents;
    let kind = match header.layout {
        Layout::Embedded => "the embedded store",
        Layout::Etcd => "etcd",
    };
    let millis = i64::try_from(header.taken_millis).unwrap_or(i64::MAX);
    let taken = jiff::Timestamp::from_millisecond(millis).map(|t| t.to_string()).unwrap_or_default();
    let mut text = format!(
        "  revision  {}\n  taken     {taken}\n  of        {kind}\n  objects   {} ({bytes} bytes)\n  sha256    {}\n",
        header.revision,
        summary.count,
        hex(&summary.checksum)
    );
    for (resource, (count, encrypted)) in resources {
        let of_them = if *encrypted > 0 { format!(", {encrypted} encrypted") } else { String::new() };
        // Writing to a String cannot fail.
        let _ =
            writeln!(text, "    {count:>8}  {}{of_them}", resource.strip_prefix("core/").unwrap_or(resource));
    }
    text
}

fn say(text: &str) -> Result<(), Box<dyn Error>> {
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}

/// Runs `kaji snapshot`.
pub async fn snapshot(args: Snapshot) -> Result<(), Box<dyn Error>> {
    match args.command {
        SnapshotCommand::Save(args) => save(args).await,
        SnapshotCommand::Restore(args) => restore(args).await,
        SnapshotCommand::Inspect { file } => {
            let file = file.read()?;
            let checked = file.clone();
            let contents = tokio::task::spawn_blocking(move || snapshots::inspect(&checked)).await??;
            say(&completed(&file, &contents))
        }
    }
}

fn completed(file: &SnapshotFile, contents: &Contents) -> String {
    let encrypted = if file.key.is_some() { ", and encrypted" } else { "" };
    format!("{} is complete{encrypted}.\n{}", file.path.display(), describe(contents))
}

async fn save(args: Save) -> Result<(), Box<dyn Error>> {
    let file = args.file.read()?;
    let contents = match (args.cluster, args.store.kind()?, args.data_dir) {
        (Some(name), ..) => save_cluster(&name, &file).await?,
        (None, StoreKind::Memory, _) => {
            return Err("objects in memory are their server's: use --kubeconfig".into());
        }
        (None, StoreKind::Disk, None) => save_server(args.kubeconfig, args.context, &file).await?,
        (None, store, data_dir) => {
            let options = Options { store, ..Options::new(data_dir.unwrap_or_default()) };
            save_store(&options, &file).await?
        }
    };
    say(&completed(&file, &contents))
}

/// Of a cluster of this machine: of its server, or of its store while that does not run.
async fn save_cluster(name: &ClusterName, file: &SnapshotFile) -> Result<Contents, Box<dyn Error>> {
    let directories = Base::of_environment().directories()?;
    let (record, directory) = (directories.record(name)?, directories.of(name));
    if record.running().is_some() {
        let kubeconfig = record.kubeconfig.ok_or("the cluster has written no kubeconfig")?;
        return save_server(Some(kubeconfig), Some(name.context()), file).await;
    }
    if !directory.join(STORE).exists() {
        return Err(format!(
            "the cluster {name} does not run, and has no store in {}: start it, or name its etcd",
            directory.display()
        )
        .into());
    }
    save_store(&Options { store: StoreKind::Disk, ..Options::new(directory) }, file).await
}

async fn save_server(
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    file: &SnapshotFile,
) -> Result<Contents, Box<dyn Error>> {
    let flags = ClientConnectionFlags {
        kubeconfig,
        context,
        request_timeout: CONNECT,
        ..ClientConnectionFlags::default()
    };
    let mut config = config_of_flags(&flags).await?;
    // A large store takes its time.
    config.read_timeout = None;
    let line = ProgressLine::new("Saving");
    let client = kube::Client::try_from(config)?;
    Ok(snapshots::save_from_server(&client, file, &|amount| line.show(amount)).await?)
}

async fn save_store(options: &Options, file: &SnapshotFile) -> Result<Contents, Box<dyn Error>> {
    let line = ProgressLine::new("Saving");
    Ok(snapshots::save_store(options, file, &|amount| line.show(amount)).await?)
}

async fn restore(args: Restore) -> Result<(), Box<dyn Error>> {
    let (file, bump) = (args.file.read()?, args.bump_revision);
    let (count, revision, place) = match (args.cluster, args.store.kind()?, args.data_dir) {
        (Some(name), ..) => restore_cluster(&name, file, bump).await?,
        (None, StoreKind::Etcd(config), None) => {
            let line = ProgressLine::new("Restoring");
            let bump = bump.unwrap_or(ETCD_BUMP);
            let (count, revision) =
                snapshots::restore_to_etcd(&file, &config, bump, &|amount| line.show(amount)).await?;
            (count, revision, "etcd".to_owned())
        }
        (None, StoreKind::Disk, Some(dir)) => {
            let place = dir.display().to_string();
            let (count, revision) = restore_directory(file, dir, bump).await?;
            (count, revision, place)
        }
        _ => return Err("name where to restore to: --cluster, --data-dir or --etcd-servers".into()),
    };
    say(&format!("{count} objects are in {place}, which is at revision {revision}.\n"))
}

/// Into a cluster of this machine that has no objects yet; it is recorded, so that it can be started.
async fn restore_cluster(
    name: &ClusterName,
    file: SnapshotFile,
    bump: Option<u64>,
) -> Result<(u64, u64, String), Box<dyn Error>> {
    let directories = Base::of_environment().directories()?;
    let directory = directories.of(name);
    let record = ClusterRecord::read(&directory)?;
    if let Some(process) = record.as_ref().and_then(ClusterRecord::running) {
        return Err(ClusterError::Running { name: name.clone(), pid: process.pid }.into());
    }
    if directory.join(STORE).exists() {
        return Err(format!("the cluster {name} has objects; kaji delete {name} removes it").into());
    }
    kaji_files::parent_of_private(directories.base())?;
    kaji_files::private_dir(&directory)?;
    let (count, revision) = restore_directory(file, directory.clone(), bump).await?;
    if record.is_none() {
        let arguments = vec![format!("--name={name}")];
        up_command::new_record(name, arguments, &directories).write(&directory)?;
    }
    Ok((count, revision, format!("the cluster {name} (kaji start {name} starts it)")))
}

async fn restore_directory(
    file: SnapshotFile,
    dir: PathBuf,
    bump: Option<u64>,
) -> Result<(u64, u64), Box<dyn Error>> {
    let line = ProgressLine::new("Restoring");
    let restored = tokio::task::spawn_blocking(move || {
        snapshots::restore_to_disk(&file, &dir, bump.unwrap_or(BUMP), &|amount| line.show(amount))
    });
    Ok(restored.await??)
}

fn etcd_config(store: StoreFlags) -> Result<Box<EtcdConfig>, Box<dyn Error>> {
    match store.kind()? {
        StoreKind::Etcd(config) => Ok(config),
        StoreKind::Disk | StoreKind::Memory => Err("--etcd-servers must be specified".into()),
    }
}

/// Runs `kaji etcd`.
pub async fn etcd(args: Etcd) -> Result<(), Box<dyn Error>> {
    let (EtcdCommand::Export(transfer) | EtcdCommand::Import(transfer)) = &args.command;
    let dir = transfer.data_dir.clone().unwrap_or_else(|| default_data_dir(home().as_deref()));
    let path = transfer.encryption_provider_config.clone();
    let encryption = path.map(|path| EncryptionFile { path, follow: false });
    match args.command {
        EtcdCommand::Export(Transfer { store, .. }) => {
            let line = ProgressLine::new("Exporting");
            let show = |amount| line.show(amount);
            let done = export(&dir, &*etcd_config(store)?, encryption.as_ref(), &show).await?;
            drop(line);
            say(&format!(
                "Both sides have {}.\nWritten now: {}. etcd is at revision {}; uids are the same, resourceVersions are etcd's.\n",
                done.content, done.written, done.revision
            ))
        }
        EtcdCommand::Import(Transfer { store, .. }) => {
            let line = ProgressLine::new("Importing");
            let show = |amount| line.show(amount);
            let done = import(&*etcd_config(store)?, &dir, encryption.as_ref(), &show).await?;
            drop(line);
            say(&format!(
                "Both sides have {}.\nBoth are at revision {}; uids and resourceVersions are the same.\n",
                done.content, done.revision
            ))
        }
    }
}
