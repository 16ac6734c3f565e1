//! Volumes of CSI drivers: attached by the control plane, staged once on the node, published to each pod. Upstream's
//! `pkg/volume/csi`.
//!
//! Invariants:
//! - What was asked of a driver is on disk ([`record`]) before it is asked, and until the driver has undone it: a restart, and a pod
//!   that the API does not show any more, lose nothing.
//! - One operation on a volume at a time. A volume is unstaged only when no pod's directory has a record of it.
//! - A volume is in `node.status.volumesInUse` before it is staged and until it is unstaged, so that it is not detached.

mod attach;
mod expand;
mod publish;
mod record;
mod stage;
mod tear_down;
mod volume;

pub(super) use publish::REPUBLISH;

use kaji_csi::Driver;
use kaji_csi::registration::{Version, highest_supported};
use record::Record;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::Notify;

/// The plug-in's name, and the start of its texts.
pub(super) const PLUGIN: &str = "kubernetes.io/csi";
/// Its directories in those of pods.
pub(super) const DIRECTORY: &str = "csi";

struct Registered {
    driver: Arc<Driver>,
    version: Version,
}

/// The CSI drivers of a node, and the volumes that they attached to it.
pub struct CsiDrivers {
    root: PathBuf,
    drivers: Mutex<BTreeMap<String, Registered>>,
    locks: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
    /// Unique names of attached volumes that pods are about to use, by uid.
    desired: Mutex<HashMap<String, BTreeSet<String>>>,
    /// Of those that are staged.
    staged: Mutex<BTreeSet<String>>,
    /// Drivers that have attached as many volumes as the node takes, and are to be asked how many that is.
    exhausted: Mutex<BTreeSet<String>>,
    changed: Arc<Notify>,
}

impl CsiDrivers {
    /// Below the kubelet's directory; what a kubelet before this one has staged is found again.
    #[must_use]
    pub fn new(root: &Path) -> CsiDrivers {
        let drivers = CsiDrivers {
            root: root.to_owned(),
            drivers: Mutex::default(),
            locks: Mutex::default(),
            desired: Mutex::default(),
            staged: Mutex::default(),
            exhausted: Mutex::default(),
            changed: Arc::default(),
        };
        let staged = record::staged(&drivers.global_dir());
        let names = staged.iter().filter(|(_, r)| r.attachable).map(|(_, r)| r.unique_name()).collect();
        *drivers.staged.lock().unwrap_or_else(PoisonError::into_inner) = names;
        drivers
    }

    fn global_dir(&self) -> PathBuf {
        self.root.join("plugins").join(PLUGIN)
    }

    /// Whether a driver may register with these versions.
    ///
    /// # Errors
    /// Upstream's text.
    pub fn validate(&self, name: &str, endpoint: &str, versions: &[String]) -> Result<(), String> {
        self.version("ValidatePlugin", name, versions).map(drop).map_err(|error| {
            format!("validation failed for CSI Driver {name} at endpoint {endpoint}: {error}")
        })
    }

    fn version(&self, caller: &str, name: &str, versions: &[String]) -> Result<Version, String> {
        let start = format!("{PLUGIN}: {caller} for CSI driver \"{name}\" failed.");
        if versions.is_empty() {
            return Err(format!("{start} Plugin returned an empty list for supported versions"));
        }
        let version = highest_supported(versions).map_err(|error| {
            format!("{start} None of the versions specified {versions:?} are supported. err={error}")
        })?;
        let drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        match drivers.get(name).filter(|known| known.version >= version) {
            None => Ok(version),
            Some(known) => Err(format!(
                "{start} Another driver with the same name is already registered with a higher supported version: \"{}\"",
                known.version
            )),
        }
    }

    /// Takes a driver over.
    ///
    /// # Errors
    /// Upstream's text.
    pub fn register(&self, name: &str, endpoint: &str, versions: &[String]) -> Result<Arc<Driver>, String> {
        let version = self.version("RegisterPlugin", name, versions)?;
        let driver = Driver::new(name, endpoint).map(Arc::new).ok_or_else(|| {
            format!("{PLUGIN}: the endpoint {endpoint} of CSI driver \"{name}\" is no socket's path")
        })?;
        let registered = Registered { driver: driver.clone(), version };
        self.drivers.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), registered);
        Ok(driver)
    }

    /// Forgets a driver.
    pub fn unregister(&self, name: &str) {
        self.drivers.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// A registered driver.
    ///
    /// # Errors
    /// Upstream's text.
    pub fn get(&self, name: &str) -> Result<Arc<Driver>, String> {
        let drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        let found = drivers.get(name).map(|known| known.driver.clone());
        found.ok_or_else(|| format!("driver name {name} not found in the list of registered CSI drivers"))
    }

    /// The registered drivers.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.drivers.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Notes that the node takes no more volumes of a driver.
    pub fn note_exhausted(&self, name: &str) {
        self.exhausted.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
    }

    /// Whether that was noted since the call before.
    pub fn take_exhausted(&self, name: &str) -> bool {
        self.exhausted.lock().unwrap_or_else(PoisonError::into_inner).remove(name)
    }

    /// `status.volumesInUse` of the node.
    #[must_use]
    pub fn in_use(&self) -> Vec<String> {
        let mut names = self.staged.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let desired = self.desired.lock().unwrap_or_else(PoisonError::into_inner);
        names.extend(desired.values().flatten().cloned());
        names.into_iter().collect()
    }

    /// Notified when [`CsiDrivers::in_use`] changes.
    #[must_use]
    pub fn changes(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    fn desire(&self, uid: &str, name: &str) {
        let mut desired = self.desired.lock().unwrap_or_else(PoisonError::into_inner);
        if desired.entry(uid.to_owned()).or_default().insert(name.to_owned()) {
            self.changed.notify_one();
        }
    }

    /// A volume that a pod desired is staged.
    fn settle(&self, uid: &str, name: &str) {
        let mut desired = self.desired.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(names) = desired.get_mut(uid) {
            names.remove(name);
        }
    }

    fn forget(&self, uid: &str) {
        if self.desired.lock().unwrap_or_else(PoisonError::into_inner).remove(uid).is_some() {
            self.changed.notify_one();
        }
    }

    fn note_staged(&self, record: &Record, is_staged: bool) {
        if !record.attachable {
            return;
        }
        let mut staged = self.staged.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = if is_staged {
            staged.insert(record.unique_name())
        } else {
            staged.remove(&record.unique_name())
        };
        if changed {
            self.changed.notify_one();
        }
    }

    /// The lock of a volume's operations.
    fn lock(&self, driver: &str, handle: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| lock.strong_count() > 0);
        let key = format!("{driver}^{handle}");
        let kept = locks.get(&key).and_then(Weak::upgrade);
        kept.unwrap_or_else(|| {
            let lock = Arc::default();
            locks.insert(key, Arc::downgrade(&lock));
            lock
        })
    }
}
