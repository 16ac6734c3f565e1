//! Moving a cluster's objects between the embedded store and etcd, while no server runs.
//!
//! Invariants: objects are read at one revision, decrypted, and written as the other store has them; what is there already is not
//! written again, so that an export that was interrupted is run again, and a value that differs is never overwritten; the objects
//! of both sides are counted and compared by a checksum before a transfer is reported as done. An import keeps uids,
//! resourceVersions and creation revisions; an export keeps uids, since etcd numbers writes itself, and begins above all revisions
//! that the embedded store has had.

use crate::{
    OpenError, STORE,
    backend::{around, open_disk, open_etcd, stored_keys},
    encryption::Encryption,
    internal_keys::is_internal,
    progress::{Amount, Progress},
    snapshots::{SnapshotError, raise_revision},
};
use futures_util::{StreamExt, TryStreamExt, stream};
use kaji_meta::text::hex;
use kaji_options::{EncryptionFile, EtcdConfig, Options, StoreKind};
use kaji_store::{
    Compare, KeyValue, LeaseId, Op, Range, Revision, Store, StoreError, Txn, TxnOutcome,
    disk::{DiskOptions, DiskStore},
    memory::MemoryStore,
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::{path::Path, sync::Arc, time::Duration};
use tokio::sync::mpsc;

const ALL: &str = "/registry/";
/// Keys read at once.
const PAGE: usize = 500;
/// Writes at a time.
const WRITES: usize = 32;
/// What keys that had a lease get: how much of it is left is not known.
const LEASE: Duration = Duration::from_secs(3600);

/// Why objects were not moved.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// A store.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// A store that cannot be opened, or etcd's revision.
    #[error("{0}")]
    Open(#[from] SnapshotError),
    /// The encryption configuration.
    #[error("{0}")]
    Encryption(#[from] kaji_encryption::ConfigError),
    /// The target has another value.
    #[error(
        "etcd has {0:?} otherwise than the data directory: it holds another cluster's objects, or a server has changed them since"
    )]
    Differs(String),
    /// The sides are not the same afterwards.
    #[error("the stores differ after the transfer: {from} and {to}")]
    Unequal {
        /// The source.
        from: Content,
        /// The target.
        to: Content,
    },
}

impl From<OpenError> for TransferError {
    fn from(error: OpenError) -> TransferError {
        TransferError::Open(error.into())
    }
}

/// Objects as they are compared: their number, and a checksum that does not depend on their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Objects.
    pub count: u64,
    /// The exclusive or of SHA-256 of each key and its value, decoded.
    pub checksum: [u8; 32],
}

impl std::fmt::Display for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} objects with the checksum {}", self.count, hex(&self.checksum))
    }
}

impl Content {
    /// A value is compared as it is read: members of objects may come in another order.
    fn add(&mut self, kv: &KeyValue) {
        let mut digest = Sha256::new();
        digest.update(kv.key.as_bytes());
        digest.update([0]);
        match serde_json::from_slice::<Value>(&kv.value) {
            Ok(value) => digest.update(value.to_string()),
            Err(_) => digest.update(&kv.value),
        }
        let sum: [u8; 32] = digest.finalize().into();
        self.checksum.iter_mut().zip(sum).for_each(|(all, one)| *all ^= one);
        self.count += 1;
    }
}

/// Objects of a store at a revision, page by page.
struct Pages {
    store: Arc<dyn Store>,
    range: Option<Range>,
}

impl Pages {
    fn new(store: Arc<dyn Store>, revision: Revision) -> Pages {
        Pages { store, range: Some(Range::prefix(ALL).limit(PAGE).at(revision).uncounted()) }
    }

    async fn next(&mut self) -> Result<Option<Vec<KeyValue>>, StoreError> {
        let Some(range) = self.range.take() else { return Ok(None) };
        let mut page = self.store.range(range.clone()).await?;
        match page.kvs.last() {
            Some(last) if page.more => {
                self.range = Some(Range { start: format!("{}\0", last.key), ..range });
            }
            None if page.more => {
                return Err(StoreError::Unavailable("too many keys of etcd are no object's".into()));
            }
            _ => {}
        }
        page.kvs.retain(|kv| !is_internal(&kv.key));
        Ok(Some(page.kvs))
    }
}

async fn content(store: &Arc<dyn Store>) -> Result<Content, StoreError> {
    let (mut content, mut pages) = (Content::default(), Pages::new(store.clone(), store.revision().await?));
    while let Some(page) = pages.next().await? {
        page.iter().for_each(|kv| content.add(kv));
    }
    Ok(content)
}

fn options(data_dir: &Path, store: StoreKind, encryption: Option<&EncryptionFile>) -> Options {
    Options { store, encryption: encryption.cloned(), ..Options::new(data_dir) }
}

/// Values of a store in the clear, as JSON.
async fn clear(raw: Arc<dyn Store>, options: &Options) -> Result<Arc<dyn Store>, TransferError> {
    let (keys, mut unseen) = (stored_keys(options)?, kaji_server::Metrics::default());
    let encryption = Encryption::new(options.encryption.as_ref(), keys, "kaji", &mut unseen).await?;
    Ok(around(options, raw, &encryption))
}

/// What an export has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// What both sides have.
    pub content: Content,
    /// Objects that this run has written; the others were there.
    pub written: u64,
    /// etcd's revision.
    pub revision: Revision,
}

/// Copies the objects of a data directory to etcd.
///
/// # Errors
/// For an etcd that holds something else, and those of the stores.
pub async fn export(
    data_dir: &Path,
    config: &EtcdConfig,
    encryption: Option<&EncryptionFile>,
    progress: Progress<'_>,
) -> Result<Exported, TransferError> {
    let here = options(data_dir, StoreKind::Disk, encryption);
    let there = options(data_dir, StoreKind::Etcd(Box::new(config.clone())), encryption);
    let disk = open_disk(&here).await?;
    let etcd: Arc<dyn Store> = open_etcd(config, None).await?;
    let (source, target) = (clear(disk.clone(), &here).await?, clear(etcd.clone(), &there).await?);
    let revision = source.revision().await?;
    check_target(&source, &target).await?;
    raise_revision(&etcd, revision).await?;
    let (mut sent, mut written, mut lease) = (Content::default(), 0, None);
    let mut pages = Pages::new(source, revision);
    while let Some(page) = pages.next().await? {
        if lease.is_none() && page.iter().any(|kv| kv.lease.is_some()) {
            lease = Some(etcd.grant_lease(LEASE).await?);
        }
        page.iter().for_each(|kv| sent.add(kv));
        let writes = page.into_iter().map(|kv| create(&*target, kv, lease));
        let news: Vec<bool> = stream::iter(writes).buffer_unordered(WRITES).try_collect().await?;
        written += news.into_iter().filter(|new| *new).count() as u64;
        progress(Amount::Objects(sent.count));
    }
    let received = content(&target).await?;
    if received != sent {
        return Err(TransferError::Unequal { from: sent, to: received });
    }
    let revision = etcd.revision().await?;
    disk.close().await;
    etcd.close().await;
    Ok(Exported { content: sent, written, revision })
}

/// Refuses a target with anything that is not in the source: another cluster's objects, or those of servers that have worked with
/// it since. Writing what they have deleted would bring it back.
async fn check_target(source: &Arc<dyn Store>, target: &Arc<dyn Store>) -> Result<(), TransferError> {
    let mut pages = Pages::new(target.clone(), target.revision().await?);
    while let Some(page) = pages.next().await? {
        for kv in page {
            let found = source.range(Range::key(&*kv.key)).await?.kvs.into_iter().next();
            if !found.is_some_and(|found| same(&found.value, &kv.value)) {
                return Err(TransferError::Differs(kv.key.to_string()));
            }
        }
    }
    Ok(())
}

/// Whether two values are the same object.
fn same(one: &[u8], other: &[u8]) -> bool {
    let parsed = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
    one == other || parsed(one).is_some_and(|value| parsed(other) == Some(value))
}

/// Writes an object that is not there. Whether it was not.
async fn create(target: &dyn Store, kv: KeyValue, lease: Option<LeaseId>) -> Result<bool, TransferError> {
    let (key, value) = (kv.key.to_string(), kv.value);
    let lease = lease.filter(|_| kv.lease.is_some());
    let txn = Txn {
        compare: vec![Compare { key: key.clone(), mod_revision: 0 }],
        ops: vec![Op::Put { key: key.clone(), value: value.clone(), lease }],
    };
    let TxnOutcome::Conflict { current, .. } = target.txn(txn).await? else { return Ok(true) };
    match current.into_iter().flatten().next() {
        Some(found) if same(&found.value, &value) => Ok(false),
        _ => Err(TransferError::Differs(key)),
    }
}

/// What an import has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imported {
    /// What both sides have.
    pub content: Content,
    /// The revision of both.
    pub revision: Revision,
}

/// Copies the objects of etcd into a data directory without a store.
///
/// # Errors
/// Those of the stores. Nothing half-made is left, and it can be run again.
pub async fn import(
    config: &EtcdConfig,
    data_dir: &Path,
    encryption: Option<&EncryptionFile>,
    progress: Progress<'_>,
) -> Result<Imported, TransferError> {
    let there = options(data_dir, StoreKind::Etcd(Box::new(config.clone())), encryption);
    let etcd: Arc<dyn Store> = open_etcd(config, None).await?;
    let source = clear(etcd.clone(), &there).await?;
    let revision = source.revision().await?;
    let (sender, mut receiver) = mpsc::channel::<Result<Vec<KeyValue>, StoreError>>(2);
    let dir = data_dir.to_owned();
    let writing = tokio::task::spawn_blocking(move || {
        kaji_files::parent_of_private(&dir)
            .map_err(|e| StoreError::Unavailable(format!("{}: {e}", dir.display())))?;
        let mut page = vec![].into_iter();
        let mut complete = false;
        let mut next = || loop {
            if let Some(kv) = page.next() {
                return Ok(Some(kv));
            }
            match receiver.blocking_recv() {
                Some(Ok(more)) if more.is_empty() => complete = true,
                Some(Ok(more)) => page = more.into_iter(),
                Some(Err(error)) => return Err(error),
                None if complete => return Ok(None),
                None => return Err(StoreError::Unavailable("the import was interrupted".into())),
            }
        };
        DiskStore::restore(dir.join(STORE), &DiskOptions::default(), revision, &mut next)
    });
    let mut sent = Content::default();
    let mut pages = Pages::new(source, revision);
    let here = options(data_dir, StoreKind::Disk, encryption);
    let sealing = Sealing::new(&here).await?;
    loop {
        let mut page = pages.next().await;
        let ends = !matches!(page, Ok(Some(_)));
        if let Ok(Some(kvs)) = &mut page {
            kvs.iter().for_each(|kv| sent.add(kv));
            progress(Amount::Objects(sent.count));
            if kvs.is_empty() {
                continue;
            }
            if let Err(error) = sealing.seal(kvs).await {
                page = Err(error);
            }
        }
        let ends = ends || page.is_err();
        // An empty page is the end; a writer that has failed says why below.
        let sent = sender.send(page.map(Option::unwrap_or_default)).await;
        if ends || sent.is_err() {
            break;
        }
    }
    drop(sender);
    writing.await.map_err(|e| StoreError::Unavailable(e.to_string()))??;
    etcd.close().await;
    let disk = open_disk(&here).await?;
    let received = content(&clear(disk.clone(), &here).await?).await?;
    disk.close().await;
    if received != sent {
        return Err(TransferError::Unequal { from: sent, to: received });
    }
    Ok(Imported { content: sent, revision })
}

/// Makes values what the embedded store keeps, by way of one in memory.
struct Sealing {
    memory: Arc<dyn Store>,
    sealed: Option<Arc<dyn Store>>,
}

impl Sealing {
    async fn new(here: &Options) -> Result<Sealing, TransferError> {
        let memory: Arc<dyn Store> = Arc::new(MemoryStore::new()?);
        let sealed = match here.encryption {
            None => None,
            Some(_) => Some(clear(memory.clone(), here).await?),
        };
        Ok(Sealing { memory, sealed })
    }

    async fn seal(&self, kvs: &mut [KeyValue]) -> Result<(), StoreError> {
        let Some(sealed) = &self.sealed else { return Ok(()) };
        for kv in kvs {
            sealed.txn(Txn::put(&*kv.key, kv.value.clone())).await?;
            let found = self.memory.range(Range::key(&*kv.key)).await?.kvs.into_iter().next();
            kv.value = found.map(|found| found.value).ok_or(StoreError::Closed)?;
            let delete = Op::Delete { key: kv.key.to_string() };
            self.memory.txn(Txn { compare: vec![], ops: vec![delete] }).await?;
        }
        Ok(())
    }
}
