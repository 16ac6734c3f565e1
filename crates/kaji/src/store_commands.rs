//! The commands about all objects of a cluster: snapshots, and moving them between the embedded store and etcd.

use crate::default_data_dir;
use clap::{Args, Subcommand};
use kaji::{EncryptionFile, EtcdConfig, Options, StoreKind, kubeconfig, kubeconfig_file};
use kaji_encryption::sealed::SealingKey;
use kaji_meta::text::hex;
use kaji_options::StoreFlags;
use kaji_storage::{
    snapshots::{self, BUMP, Contents, ETCD_BUMP, SnapshotFile},
    transfer::{export, import},
};
use kaji_store::archive::Layout;
use std::{error::Error, fmt::Write as _, io::Write, path::PathBuf};

/// Flags of `kaji snapshot`.
#[derive(Args)]
pub struct Snapshot {
    #[command(subcommand)]
    command: SnapshotCommand,
}

#[derive(Subcommand)]
enum SnapshotCommand {
    /// Takes one: of the running server of a kubeconfig, or of a store that is named.
    Save(Save),
    /// Makes a store of one, in a data directory without a store or in an etcd without keys below the prefix.
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
    /// The kubeconfig file to use instead of the user's.
    #[arg(long, conflicts_with = "data_dir")]
    kubeconfig: Option<PathBuf>,
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
    let contents = match (args.store.kind()?, args.data_dir) {
        (StoreKind::Memory, _) => return Err("objects in memory are their server's: use --kubeconfig".into()),
        (StoreKind::Disk, None) => {
            let variable = std::env::var("KUBECONFIG").ok();
            let path = args
                .kubeconfig
                .unwrap_or_else(|| kubeconfig::default_path(variable.as_deref(), home().as_deref()));
            let mut config = kubeconfig_file::client_config(&path).await?;
            // A large store takes its time.
            config.read_timeout = None;
            snapshots::save_from_server(&kube::Client::try_from(config)?, &file).await?
        }
        (store, data_dir) => {
            let options = Options { store, ..Options::new(data_dir.unwrap_or_default()) };
            snapshots::save_store(&options, &file).await?
        }
    };
    say(&completed(&file, &contents))
}

async fn restore(args: Restore) -> Result<(), Box<dyn Error>> {
    let (file, bump) = (args.file.read()?, args.bump_revision);
    let (count, revision, place) = match (args.store.kind()?, args.data_dir) {
        (StoreKind::Etcd(config), None) => {
            let (count, revision) =
                snapshots::restore_to_etcd(&file, &config, bump.unwrap_or(ETCD_BUMP)).await?;
            (count, revision, "etcd".to_owned())
        }
        (StoreKind::Disk, Some(dir)) => {
            let place = dir.display().to_string();
            let restored = tokio::task::spawn_blocking(move || {
                snapshots::restore_to_disk(&file, &dir, bump.unwrap_or(BUMP))
            });
            let (count, revision) = restored.await??;
            (count, revision, place)
        }
        _ => return Err("name where to restore to: --data-dir or --etcd-servers".into()),
    };
    say(&format!("{count} objects are in {place}, which is at revision {revision}.\n"))
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
            let done = export(&dir, &*etcd_config(store)?, encryption.as_ref()).await?;
            say(&format!(
                "Both sides have {}.\nWritten now: {}. etcd is at revision {}; uids are the same, resourceVersions are etcd's.\n",
                done.content, done.written, done.revision
            ))
        }
        EtcdCommand::Import(Transfer { store, .. }) => {
            let done = import(&*etcd_config(store)?, &dir, encryption.as_ref()).await?;
            say(&format!(
                "Both sides have {}.\nBoth are at revision {}; uids and resourceVersions are the same.\n",
                done.content, done.revision
            ))
        }
    }
}
