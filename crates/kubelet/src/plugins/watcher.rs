//! Finds plug-ins that register by a socket in `plugins_registry`. Upstream's `pluginmanager`.
//!
//! Invariant: a socket is registered once; one that was made anew, after its plug-in was started again, is registered again; the plug-in of
//! one that is gone is forgotten.

use super::csi_node::CsiNode;
use super::devices::DeviceManager;
use super::dra::DraManager;
use crate::volumes::CsiDrivers;
use jiff::Timestamp;
use kaji_csi::registration::{PluginInfo, Registrar};
use kaji_meta::Clock;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// How often the directory is scanned: upstream's reconciler's.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Directories below each other, and entries of all together.
const DEEPEST: usize = 4;
const MOST: usize = 4096;
/// Delays after registrations that failed.
const FIRST_DELAY: Duration = Duration::from_millis(500);
const LONGEST_DELAY: Duration = Duration::from_secs(120);

const CSI: &str = "CSIPlugin";
const DEVICE: &str = "DevicePlugin";
const DRA: &str = "DRAPlugin";

/// One making of a socket.
type Identity = (u64, i64, i64);

enum Progress {
    Registering,
    Registered(PluginInfo),
    Failed { again: Timestamp, delay: Duration },
}

struct Known {
    identity: Identity,
    progress: Progress,
}

/// The plug-ins of a node.
pub struct PluginWatcher {
    dir: PathBuf,
    csi: Arc<CsiDrivers>,
    node: Arc<CsiNode>,
    devices: Arc<DeviceManager>,
    dra: Arc<DraManager>,
    clock: Arc<dyn Clock>,
}

/// How a registration ended.
type Outcome = (PathBuf, Identity, Result<PluginInfo, String>);

impl PluginWatcher {
    /// Of the directory below the kubelet's.
    #[must_use]
    pub fn new(
        root: &Path,
        csi: Arc<CsiDrivers>,
        node: Arc<CsiNode>,
        devices: Arc<DeviceManager>,
        dra: Arc<DraManager>,
        clock: Arc<dyn Clock>,
    ) -> PluginWatcher {
        PluginWatcher { dir: root.join("plugins_registry"), csi, node, devices, dra, clock }
    }

    /// Scans the directory repeatedly, until it is dropped.
    pub async fn run(self) {
        if let Err(error) = std::fs::DirBuilder::new().recursive(true).mode(0o750).create(&self.dir) {
            tracing::error!(%error, directory = %self.dir.display(), "plug-ins cannot register");
            return;
        }
        let watcher = Arc::new(self);
        let mut known: HashMap<PathBuf, Known> = HashMap::new();
        let mut tasks: JoinSet<Outcome> = JoinSet::new();
        loop {
            watcher.scan(&mut known, &mut tasks).await;
            tokio::select! {
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => match ended {
                    Ok(outcome) => watcher.note(&mut known, outcome).await,
                    Err(error) => tracing::error!(%error, "a registration ended early"),
                },
                () = kaji_runtime::time::sleep(&*watcher.clock, SCAN_INTERVAL) => {}
            }
        }
    }

    async fn scan(self: &Arc<Self>, known: &mut HashMap<PathBuf, Known>, tasks: &mut JoinSet<Outcome>) {
        let found = sockets(&self.dir);
        let gone: Vec<PathBuf> = known
            .iter()
            .filter(|(p, k)| found.get(*p) != Some(&k.identity))
            .map(|(p, _)| p.clone())
            .collect();
        for path in gone {
            if let Some(Known { progress: Progress::Registered(info), .. }) = known.remove(&path) {
                self.deregister(&info).await;
            }
        }
        let now = self.clock.now();
        for (path, identity) in found {
            let due = match known.get(&path).map(|k| &k.progress) {
                None => true,
                Some(Progress::Failed { again, .. }) => *again <= now,
                Some(_) => false,
            };
            if !due {
                continue;
            }
            // The delay of a failure before is kept while it is tried again.
            match known.get_mut(&path) {
                Some(Known { progress: Progress::Failed { again, delay }, .. }) => {
                    *again = now.checked_add(LONGEST_DELAY).unwrap_or(*again);
                    *delay = (*delay * 2).min(LONGEST_DELAY);
                }
                _ => drop(known.insert(path.clone(), Known { identity, progress: Progress::Registering })),
            }
            let watcher = self.clone();
            tasks.spawn(async move {
                let outcome = watcher.register(&path).await;
                (path, identity, outcome)
            });
        }
    }

    async fn note(&self, known: &mut HashMap<PathBuf, Known>, (path, identity, outcome): Outcome) {
        let current = known.get_mut(&path).filter(|k| k.identity == identity);
        match (current, outcome) {
            (Some(current), Ok(info)) => {
                tracing::info!(plugin = info.name, kind = info.kind, "a plug-in has registered");
                current.progress = Progress::Registered(info);
            }
            (Some(current), Err(error)) => {
                tracing::warn!(error, "a plug-in could not be registered");
                let delay = match current.progress {
                    Progress::Failed { delay, .. } => delay,
                    _ => FIRST_DELAY,
                };
                let now = self.clock.now();
                current.progress = Progress::Failed { again: now.checked_add(delay).unwrap_or(now), delay };
            }
            // Its socket is gone already.
            (None, Ok(info)) => self.deregister(&info).await,
            (None, Err(_)) => {}
        }
    }

    /// Registers the plug-in of a socket, and lets it know.
    async fn register(&self, socket: &Path) -> Result<PluginInfo, String> {
        let shown = socket.display();
        let registrar = Registrar::new(socket);
        let mut info = registrar.info().await.map_err(|e| {
            format!("RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {shown}, err: {e}")
        })?;
        if info.endpoint.is_empty() {
            info.endpoint = socket.display().to_string();
        }
        let taken = self.take(&info, socket).await;
        let failed = |e| {
            format!("RegisterPlugin error -- failed to send registration status at socket {shown}, err: {e}")
        };
        match taken {
            Ok(()) => {
                if let Err(error) = registrar.notify(None).await.map_err(failed) {
                    self.deregister(&info).await;
                    return Err(error);
                }
                Ok(info)
            }
            Err(error) => {
                registrar.notify(Some(error.clone())).await.map_err(failed)?;
                Err(error)
            }
        }
    }

    /// Hands a plug-in to what speaks with plug-ins of its kind.
    async fn take(&self, info: &PluginInfo, socket: &Path) -> Result<(), String> {
        let invalid = |e| format!("RegisterPlugin error -- plugin validation failed with err: {e}");
        let failed = |e| format!("RegisterPlugin error -- plugin registration failed with err: {e}");
        let (name, endpoint, versions) = (&info.name, &info.endpoint, &info.supported_versions);
        match info.kind.as_str() {
            CSI => {
                self.csi.validate(name, endpoint, versions).map_err(invalid)?;
                self.register_csi(info).await.map_err(failed)
            }
            DRA => {
                self.dra.validate(name, endpoint, versions).map_err(invalid)?;
                self.dra.register(name, endpoint, versions).await.map_err(failed)
            }
            DEVICE => self.devices.found(name, PathBuf::from(endpoint)).await,
            kind => Err(format!(
                "RegisterPlugin error -- no handler registered for plugin type: {kind} at socket {}",
                socket.display()
            )),
        }
    }

    async fn register_csi(&self, info: &PluginInfo) -> Result<(), String> {
        let driver = self.csi.register(&info.name, &info.endpoint, &info.supported_versions)?;
        let shown = match driver.info().await {
            Ok(node) => self.node.install(&info.name, &node).await,
            Err(error) => Err(error.to_string()),
        };
        if shown.is_err() {
            self.deregister(info).await;
        }
        shown
    }

    async fn deregister(&self, info: &PluginInfo) {
        match info.kind.as_str() {
            CSI => {}
            DRA => return self.dra.unregister(&info.name, &info.endpoint).await,
            // Those of devices end with their streams.
            _ => return,
        }
        self.csi.unregister(&info.name);
        if let Err(error) = self.node.uninstall(&info.name).await {
            tracing::warn!(
                driver = info.name,
                error,
                "the driver could not be removed from the node's CSINode"
            );
        }
    }
}

/// The sockets below a directory.
fn sockets(dir: &Path) -> BTreeMap<PathBuf, Identity> {
    let mut found = BTreeMap::new();
    let mut left = vec![(dir.to_owned(), 0)];
    let mut count = 0;
    while let Some((dir, depth)) = left.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            count += 1;
            if count > MOST || entry.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() && depth < DEEPEST {
                left.push((entry.path(), depth + 1));
            } else if metadata.file_type().is_socket() {
                found.insert(entry.path(), (metadata.ino(), metadata.mtime(), metadata.mtime_nsec()));
            }
        }
    }
    found
}
