//! Snapshots of a cluster's objects: taken while it runs or of a store that no server uses, looked at, and restored into an empty
//! store of either kind. With a key, the whole file is encrypted (`kaji_encryption::sealed`).
//!
//! Invariants: a snapshot is of one revision; a file gets its name only when it is complete and was read back, until when it is
//! `<name>.partial`, which one process at a time writes, and which the next one begins anew; a restored store is at a later revision than the snapshot, and nothing before that can be read or watched, so that no client takes a revision
//! that it has seen for another one; values that are encrypted are restored only where their keys are the same.

use crate::{
    OpenError, STORE,
    backend::{defaults, open_disk, open_etcd},
    internal_keys::{ALLOCATIONS, SERVER_LEASES, is_internal},
    media,
    progress::{Amount, Progress},
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use kaji_encryption::sealed::{self, SealedReader, SealedWriter, SealingKey};
use kaji_meta::random::SystemRandom;
use kaji_options::{EtcdConfig, Options, StoreKind};
use kaji_store::{
    KeyValue, Op, Revision, Store, StoreError, Txn, TxnOutcome,
    archive::{ArchiveError, Header, Layout, Reader, Snapshotting, Summary},
    disk::{DiskOptions, DiskStore},
};
use rustix::fs::OFlags;
use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions, Permissions, TryLockError},
    io::{BufRead, BufReader, BufWriter, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// What all keys begin with.
const ALL: &str = "/registry/";
/// What encrypted values begin with.
const ENCRYPTED: &[u8] = b"k8s:enc:";
/// By how much the revision of a restored embedded store is raised, unless a flag says otherwise: what etcd's documentation
/// recommends, since the former cluster cannot have gone so far after the snapshot.
pub const BUMP: u64 = 1_000_000_000;
/// The same for etcd, where each step is a write.
pub const ETCD_BUMP: u64 = 10_000;
/// More steps than this are refused for etcd.
const MOST_STEPS: u64 = 20_000_000;
/// A symbolic link is no file of a snapshot's.
const NO_FOLLOW: i32 = OFlags::NOFOLLOW.bits().cast_signed();
/// Writes to etcd at a time.
const WRITES: usize = 64;
/// What keys that had a lease get.
const LEASE: Duration = Duration::from_secs(3600);

/// Why a snapshot was not taken or restored.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// A file.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: ArchiveError,
    },
    /// A file that is encrypted, and no key; or a key, and a file that is not encrypted.
    #[error("{0}: {1}")]
    Key(PathBuf, &'static str),
    /// Another process writes the same file.
    #[error("{0}: another snapshot is being written to it")]
    Busy(PathBuf),
    /// A store.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// A store that cannot be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// The server that was asked for a snapshot.
    #[error("the server does not give a snapshot: {0}")]
    Server(String),
    /// Values that would not be readable.
    #[error(
        "{0:?} is encrypted under the keys of {1}: restore the snapshot into {1}, and move the objects with `kaji etcd`"
    )]
    Encrypted(String, &'static str),
    /// etcd holds something.
    #[error("etcd has {0} keys below the prefix; remove them first: etcdctl del --prefix <prefix>/")]
    NotEmpty(usize),
    /// The revision cannot be reached.
    #[error(
        "etcd would need {0} writes to reach revision {1}; restore into the etcd that the cluster was on, or with etcdutl \
         snapshot restore --bump-revision"
    )]
    TooFar(u64, Revision),
}

fn file_error(path: &Path) -> impl FnOnce(ArchiveError) -> SnapshotError + '_ {
    move |source| SnapshotError::File { path: path.to_owned(), source }
}

fn io_error(path: &Path) -> impl FnOnce(std::io::Error) -> SnapshotError + '_ {
    move |source| SnapshotError::File { path: path.to_owned(), source: source.into() }
}

/// A source of snapshots that a running server answers requests from. An item that is an error ends the answer before the end of
/// the file, by which clients see that it is incomplete.
pub fn source(store: Arc<dyn Store>, kind: &StoreKind) -> kaji_server::SnapshotSource {
    let layout = match kind {
        StoreKind::Etcd(_) => Layout::Etcd,
        StoreKind::Disk | StoreKind::Memory => Layout::Embedded,
    };
    Arc::new(move || {
        pieces(store.clone(), layout)
            .filter_map(|piece| {
                let piece =
                    piece.inspect_err(|error| tracing::error!(%error, "a snapshot was not completed")).ok();
                std::future::ready(piece)
            })
            .boxed()
    })
}

/// The bytes of a snapshot of a store.
fn pieces(store: Arc<dyn Store>, layout: Layout) -> impl Stream<Item = Result<Bytes, StoreError>> + Send {
    let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
    let begun = stream::once(Snapshotting::begin(store, ALL, layout, now));
    begun
        .map_ok(|taking| {
            stream::try_unfold(taking, |mut taking| async move {
                Ok(taking.next().await?.map(|bytes| (Bytes::from(bytes), taking)))
            })
        })
        .try_flatten()
}

/// What a snapshot file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// What it says about itself.
    pub header: Header,
    /// What it has.
    pub summary: Summary,
    /// Bytes of values.
    pub bytes: u64,
    /// Objects by `<group or core>/<plural>`, and how many of them are encrypted.
    pub resources: BTreeMap<String, (u64, u64)>,
}

/// A snapshot's file, and the key that it is or is to be encrypted with.
#[derive(Clone, Debug)]
pub struct SnapshotFile {
    /// The file.
    pub path: PathBuf,
    /// `None` for a file that is not encrypted.
    pub key: Option<SealingKey>,
}

impl SnapshotFile {
    /// One that is not encrypted.
    pub fn plain(path: &Path) -> SnapshotFile {
        SnapshotFile { path: path.to_owned(), key: None }
    }

    fn open(&self) -> Result<Reader<Box<dyn Read + Send>>, SnapshotError> {
        let path = &self.path;
        let mut file = BufReader::with_capacity(1 << 20, File::open(path).map_err(io_error(path))?);
        let encrypted = file.fill_buf().map_err(io_error(path))?.starts_with(sealed::MAGIC);
        let input: Box<dyn Read + Send> = match (&self.key, encrypted) {
            (Some(key), true) => Box::new(SealedReader::open(file, key).map_err(io_error(path))?),
            (None, false) => Box::new(file),
            (None, true) => {
                return Err(SnapshotError::Key(path.clone(), "the snapshot is encrypted: name its key"));
            }
            (Some(_), false) => {
                return Err(SnapshotError::Key(
                    path.clone(),
                    "the snapshot is not encrypted, and a key is named",
                ));
            }
        };
        Reader::open(input).map_err(file_error(path))
    }

    /// The same at another path.
    fn at(&self, path: &Path) -> SnapshotFile {
        SnapshotFile { path: path.to_owned(), key: self.key.clone() }
    }
}

/// Where the pieces of a snapshot go.
enum Sink {
    Plain(File),
    Sealed(Box<SealedWriter<BufWriter<File>>>),
}

impl Sink {
    fn put(&mut self, piece: &[u8]) -> std::io::Result<()> {
        match self {
            Sink::Plain(file) => file.write_all(piece),
            Sink::Sealed(writer) => writer.write_all(piece),
        }
    }

    fn finish(self) -> std::io::Result<()> {
        let file = match self {
            Sink::Plain(file) => file,
            Sink::Sealed(writer) => {
                writer.finish()?.into_inner().map_err(std::io::IntoInnerError::into_error)?
            }
        };
        file.sync_all()
    }
}

/// Reads a whole file, and checks it. Blocks.
///
/// # Errors
/// For a file that is no complete snapshot.
pub fn inspect(file: &SnapshotFile) -> Result<Contents, SnapshotError> {
    let (mut reader, path) = (file.open()?, &file.path);
    let (mut bytes, mut resources) = (0, BTreeMap::<String, (u64, u64)>::new());
    while let Some(kv) = reader.next().map_err(file_error(path))? {
        bytes += kv.value.len() as u64;
        let rest = kv.key.strip_prefix(ALL).unwrap_or(&kv.key);
        let end = rest.match_indices('/').nth(1).map_or(rest.len(), |(end, _)| end);
        let (all, encrypted) = resources.entry(rest[..end].to_owned()).or_default();
        *all += 1;
        *encrypted += u64::from(kv.value.starts_with(ENCRYPTED));
    }
    let summary = reader.summary().ok_or(ArchiveError::Format).map_err(file_error(path))?;
    Ok(Contents { header: *reader.header(), summary, bytes, resources })
}

/// Writes pieces to a file that gets its name when it is complete.
///
/// # Errors
/// Those of the pieces and of the file.
pub async fn write(
    target: &SnapshotFile,
    pieces: impl Stream<Item = Result<Bytes, SnapshotError>>,
    progress: Progress<'_>,
) -> Result<Contents, SnapshotError> {
    let partial = Partial::begin(&target.path)?;
    let contents = fill(target, &partial, pieces, progress).await;
    // A file that is no snapshot is of no use; the error is what counts.
    let contents = contents.inspect_err(|_| drop(std::fs::remove_file(&partial.path)))?;
    std::fs::rename(&partial.path, &target.path).map_err(io_error(&target.path))?;
    // The name is on disk, too, before the snapshot is said to be complete.
    let directory = target.path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    File::open(directory).and_then(|dir| dir.sync_all()).map_err(io_error(directory))?;
    Ok(contents)
}

/// The file that a snapshot is written to before it gets its name.
struct Partial {
    path: PathBuf,
    /// Locked until it is closed.
    file: File,
}

impl Partial {
    /// Begins one, over what a process that was killed has left.
    fn begin(target: &Path) -> Result<Partial, SnapshotError> {
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(".partial");
        let path = target.with_file_name(name);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(NO_FOLLOW);
        loop {
            let file = options.open(&path).map_err(io_error(&path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(SnapshotError::Busy(path)),
                // Some network file systems have no locks.
                Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {}
                Err(TryLockError::Error(error)) => return Err(io_error(&path)(error)),
            }
            // Meanwhile it may have become another process' snapshot.
            let same = |found: std::fs::Metadata| {
                let own = file.metadata()?;
                Ok::<_, std::io::Error>((own.dev(), own.ino()) == (found.dev(), found.ino()))
            };
            match std::fs::symlink_metadata(&path).and_then(same) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(io_error(&path)(error)),
            }
            file.set_permissions(Permissions::from_mode(0o600)).map_err(io_error(&path))?;
            file.set_len(0).map_err(io_error(&path))?;
            return Ok(Partial { path, file });
        }
    }
}

/// Writes the pieces, and reads back what is written.
async fn fill(
    target: &SnapshotFile,
    Partial { path: partial, file }: &Partial,
    pieces: impl Stream<Item = Result<Bytes, SnapshotError>>,
    progress: Progress<'_>,
) -> Result<Contents, SnapshotError> {
    let file = file.try_clone().map_err(io_error(partial))?;
    let mut sink = match &target.key {
        None => Sink::Plain(file),
        Some(key) => {
            let writer = SealedWriter::begin(BufWriter::new(file), key, &SystemRandom);
            Sink::Sealed(Box::new(writer.map_err(io_error(partial))?))
        }
    };
    let (mut pieces, mut written) = (std::pin::pin!(pieces), 0);
    while let Some(piece) = pieces.try_next().await? {
        sink.put(&piece).map_err(io_error(partial))?;
        written += piece.len() as u64;
        progress(Amount::Bytes(written));
    }
    sink.finish().map_err(io_error(partial))?;
    let checked = target.at(partial);
    let contents = tokio::task::spawn_blocking(move || inspect(&checked)).await;
    contents.map_err(|e| StoreError::Unavailable(e.to_string()))?
}

/// Takes a snapshot of the store that options name, which no server of this program may have open if it is embedded.
///
/// # Errors
/// Those of the store and of the file.
pub async fn save_store(
    options: &Options,
    file: &SnapshotFile,
    progress: Progress<'_>,
) -> Result<Contents, SnapshotError> {
    let (store, layout): (Arc<dyn Store>, Layout) = match &options.store {
        StoreKind::Etcd(config) => (open_etcd(config, None).await?, Layout::Etcd),
        StoreKind::Disk | StoreKind::Memory => (open_disk(options).await?, Layout::Embedded),
    };
    let contents = write(file, pieces(store.clone(), layout).map_err(SnapshotError::from), progress).await;
    store.close().await;
    contents
}

/// Takes a snapshot of a running server.
///
/// # Errors
/// Those of the server and of the file.
pub async fn save_from_server(
    client: &kube::Client,
    file: &SnapshotFile,
    progress: Progress<'_>,
) -> Result<Contents, SnapshotError> {
    let failed = |error: &dyn std::fmt::Display| SnapshotError::Server(error.to_string());
    let request = http::Request::get(kaji_server::SNAPSHOT_PATH).body(kube::client::Body::empty());
    let answer = client.send(request.map_err(|e| failed(&e))?).await.map_err(|e| failed(&e))?;
    if !answer.status().is_success() {
        return Err(SnapshotError::Server(answer.status().to_string()));
    }
    let body = http_body_util::BodyDataStream::new(answer.into_body());
    write(file, body.map_err(|e| SnapshotError::Server(e.to_string())), progress).await
}

/// Restores a snapshot into a data directory without a store. Answers with the number of objects, and the new revision. Blocks.
///
/// # Errors
/// For a file that is no complete snapshot, and those of the store.
pub fn restore_to_disk(
    file: &SnapshotFile,
    data_dir: &Path,
    bump: u64,
    progress: Progress<'_>,
) -> Result<(u64, Revision), SnapshotError> {
    let contents = inspect(file)?;
    let revision = contents.header.revision.saturating_add(bump);
    let mut reader = file.open()?;
    let (defaults, mut failed, mut read) = (defaults(), None, 0);
    let mut next = || loop {
        let kv = match reader.next() {
            Ok(Some(kv)) => kv,
            Ok(None) => return Ok(None),
            Err(error) => return Err(StoreError::Corrupt(error.to_string())),
        };
        if is_internal(&kv.key) {
            continue;
        }
        read += 1;
        progress(Amount::Objects(read));
        if contents.header.layout == Layout::Embedded {
            return Ok(Some(kv));
        }
        if kv.value.starts_with(ENCRYPTED) {
            failed = Some(kv.key.to_string());
            return Err(StoreError::Encryption("an encrypted value".into()));
        }
        let value = media::json(&kv.key, kv.value, &defaults)?;
        return Ok(Some(KeyValue { value, ..kv }));
    };
    kaji_files::parent_of_private(data_dir).map_err(io_error(data_dir))?;
    let restored = DiskStore::restore(data_dir.join(STORE), &DiskOptions::default(), revision, &mut next);
    match (restored, failed) {
        (Ok(count), _) => Ok((count, revision)),
        (Err(_), Some(key)) => Err(SnapshotError::Encrypted(key, "etcd")),
        (Err(error), None) => Err(error.into()),
    }
}

/// Restores a snapshot into an etcd without keys below the prefix. etcd gives the objects new revisions.
///
/// # Errors
/// For a file that is no complete snapshot, and those of etcd.
pub async fn restore_to_etcd(
    file: &SnapshotFile,
    config: &EtcdConfig,
    bump: u64,
    progress: Progress<'_>,
) -> Result<(u64, Revision), SnapshotError> {
    let checked = file.clone();
    let contents = tokio::task::spawn_blocking(move || inspect(&checked)).await;
    let contents = contents.map_err(|e| StoreError::Unavailable(e.to_string()))??;
    let store: Arc<dyn Store> = open_etcd(config, None).await?;
    let found = store.range(kaji_store::Range::prefix(ALL).limit(1)).await?;
    if found.count > 0 {
        return Err(SnapshotError::NotEmpty(found.count));
    }
    raise_revision(&store, contents.header.revision.saturating_add(bump)).await?;
    let (mut reader, mut lease) = (file.open()?, None);
    let mut count = 0;
    loop {
        let mut page = vec![];
        while page.len() < WRITES
            && let Some(kv) = reader.next().map_err(file_error(&file.path))?
        {
            if kv.key.starts_with(SERVER_LEASES) {
                continue;
            }
            if contents.header.layout == Layout::Embedded && kv.value.starts_with(ENCRYPTED) {
                return Err(SnapshotError::Encrypted(kv.key.to_string(), "the embedded store"));
            }
            if kv.lease.is_some() && lease.is_none() {
                lease = Some(store.grant_lease(LEASE).await?);
            }
            let lease = if kv.lease.is_some() { lease } else { None };
            page.push(Op::Put { key: kv.key.to_string(), value: kv.value, lease });
        }
        if page.is_empty() {
            break;
        }
        count += page.len() as u64;
        let writes = page.into_iter().map(|op| store.txn(Txn { compare: vec![], ops: vec![op] }));
        stream::iter(writes).buffer_unordered(WRITES).try_collect::<Vec<TxnOutcome>>().await?;
        progress(Amount::Objects(count));
    }
    let revision = store.revision().await?;
    store.compact(revision).await?;
    store.close().await;
    Ok((count, revision))
}

/// Writes until etcd is at a revision, which each write raises by one.
///
/// # Errors
/// Those of etcd, and when it is too far away.
pub(crate) async fn raise_revision(store: &Arc<dyn Store>, to: Revision) -> Result<(), SnapshotError> {
    let steps = to.saturating_sub(store.revision().await?);
    if steps > MOST_STEPS {
        return Err(SnapshotError::TooFar(steps, to));
    }
    let key = format!("{ALL}{}/revision", ALLOCATIONS.0);
    let writes = (0..steps).map(|_| store.txn(Txn::put(key.clone(), "")));
    stream::iter(writes).buffer_unordered(WRITES).try_for_each(|_| std::future::ready(Ok(()))).await?;
    let delete = Txn { compare: vec![], ops: vec![Op::Delete { key }] };
    store.txn(delete).await?;
    Ok(())
}
