//! The clusters of one process: the one that is set up, and forks. Each has two listeners: the server's own, and one with the fault layer
//! in front, for the client under test.
//!
//! Invariants: names are unique, and those of DNS labels; directories are numbered, never named by a client. A fork begins with the objects, the
//! certificates and the time of its source, which it never changes.

use super::routes::RequestRejection;
use crate::{
    api::ApiError,
    cluster::{RunningCluster, StartCluster},
    layer::{FaultLayer, Signal},
    listener::{FaultListener, ListenError},
    scenario::ClusterSpec,
};
use http::StatusCode;
use kaji_meta::time::Clock;
use kaji_runtime::VirtualClock;
use kaji_storage::forks::{self, ForkError};
use serde::Serialize;
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinHandle,
};

/// The cluster that is set up.
pub const BASE: &str = "base";
/// Clusters at one time.
const MOST: usize = 128;
/// Clusters that start at one time; the others wait.
const STARTS: usize = 4;
const LONGEST_NAME: usize = 40;

/// Why there is no control, or no cluster.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// A file, or a socket.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A cluster does not start.
    #[error("the cluster does not start: {0}")]
    Start(String),
    /// It is not forked.
    #[error("the cluster is not forked: {0}")]
    Fork(#[from] ForkError),
    /// Its listener with faults.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Its API.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// A task of this program.
    #[error("a task panicked or was cancelled: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// What the client asks for.
    #[error("{0}")]
    Request(RequestRejection),
}

/// How a listener is reached.
#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Access {
    /// Its URL.
    pub url: String,
    /// An administrator's kubeconfig for it.
    pub kubeconfig: String,
    /// A file with the same.
    pub kubeconfig_file: PathBuf,
}

/// A cluster, as a client has to know it.
#[derive(Clone, Serialize)]
pub struct Description {
    /// Its name.
    pub name: String,
    /// What it is a fork of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Its own listener.
    #[serde(flatten)]
    pub access: Access,
    /// The listener with the fault layer.
    pub faults: Access,
}

/// A cluster.
pub struct Entry {
    pub cluster: RunningCluster,
    pub layer: Arc<FaultLayer>,
    pub description: Description,
    /// How often the client under test was to be killed.
    pub kills: watch::Receiver<u64>,
    spec: ClusterSpec,
    directory: PathBuf,
    listener: RefCell<Option<FaultListener>>,
    signals: JoinHandle<()>,
}

/// See the module.
pub struct Clusters {
    directory: PathBuf,
    start: StartCluster,
    delay: Duration,
    /// `None` while it starts.
    entries: RefCell<BTreeMap<String, Option<Rc<Entry>>>>,
    numbers: Cell<u64>,
    starts: Semaphore,
}

/// A name that is taken until the cluster is there.
struct Reserved<'a> {
    clusters: &'a Clusters,
    name: String,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut entries = self.clusters.entries.borrow_mut();
        if entries.get(&self.name).is_some_and(Option::is_none) {
            entries.remove(&self.name);
        }
    }
}

impl Clusters {
    /// None yet, below an empty directory.
    #[must_use]
    pub fn new(directory: PathBuf, start: StartCluster, delay: Duration) -> Clusters {
        let (entries, numbers) = (RefCell::default(), Cell::new(0));
        Clusters { directory, start, delay, entries, numbers, starts: Semaphore::new(STARTS) }
    }

    /// Creates the cluster that is set up.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn create_base(&self, spec: ClusterSpec) -> Result<Description, ControlError> {
        let reserved = self.reserve(Some(BASE.to_owned()))?;
        let directory = self.new_directory()?;
        self.start(reserved, directory, spec, Arc::default(), None).await
    }

    /// Forks a cluster.
    ///
    /// # Errors
    /// When it is not there, the name is taken, or the fork does not start.
    pub async fn fork(&self, source: &str, name: Option<String>) -> Result<Description, ControlError> {
        let from = self.get(source)?;
        let reserved = self.reserve(name)?;
        let _turn = self.starts.acquire().await;
        let directory = self.new_directory()?;
        let (data, to) = (from.directory.join(DATA), directory.join(DATA));
        tokio::task::spawn_blocking(move || forks::fork(&data, &to)).await??;
        let clock = Arc::new(VirtualClock::default());
        clock.advance((*from.cluster.clock).ahead());
        self.start(reserved, directory, from.spec.clone(), clock, Some(source.to_owned())).await
    }

    /// A cluster by its name.
    ///
    /// # Errors
    /// When there is none.
    pub fn get(&self, name: &str) -> Result<Rc<Entry>, ControlError> {
        let entry = self.entries.borrow().get(name).cloned().flatten();
        entry.ok_or_else(|| refused(StatusCode::NOT_FOUND, format!("there is no cluster {name:?}")))
    }

    /// All of them.
    pub fn all(&self) -> Vec<Rc<Entry>> {
        self.entries.borrow().values().flatten().cloned().collect()
    }

    /// Ends a cluster and removes its data.
    ///
    /// # Errors
    /// When there is none, or it is the one that is set up.
    pub async fn delete(&self, name: &str) -> Result<(), ControlError> {
        if name == BASE {
            return Err(refused(StatusCode::CONFLICT, "the base ends with the control".to_owned()));
        }
        let entry = self.get(name)?;
        // Of two that delete it, one ends it.
        self.entries.borrow_mut().remove(name);
        entry.end().await;
        Ok(())
    }

    /// Ends all of them.
    pub async fn end(&self) {
        let entries = std::mem::take(&mut *self.entries.borrow_mut());
        futures_util::future::join_all(entries.values().flatten().map(|entry| entry.end())).await;
    }

    fn new_directory(&self) -> io::Result<PathBuf> {
        let number = self.numbers.get();
        self.numbers.set(number + 1);
        let directory = self.directory.join(number.to_string());
        kaji_files::private_dir(&directory)?;
        Ok(directory)
    }

    /// Takes a name, a new one if none is given.
    fn reserve(&self, name: Option<String>) -> Result<Reserved<'_>, ControlError> {
        let mut entries = self.entries.borrow_mut();
        if entries.len() >= MOST {
            let text = format!("there are {MOST} clusters; delete those that are not needed");
            return Err(refused(StatusCode::TOO_MANY_REQUESTS, text));
        }
        let name = match name {
            Some(name) if !is_name(&name) => {
                let text = format!("{name:?} is no name: up to {LONGEST_NAME} of a-z, 0-9 and dashes");
                return Err(refused(StatusCode::UNPROCESSABLE_ENTITY, text));
            }
            Some(name) if entries.contains_key(&name) => {
                return Err(refused(StatusCode::CONFLICT, format!("there is a cluster {name:?} already")));
            }
            Some(name) => name,
            None => {
                let mut candidates = (self.numbers.get()..).map(|number| format!("fork-{number}"));
                candidates.find(|name| !entries.contains_key(name)).unwrap_or_default()
            }
        };
        entries.insert(name.clone(), None);
        Ok(Reserved { clusters: self, name })
    }

    async fn start(
        &self,
        reserved: Reserved<'_>,
        directory: PathBuf,
        spec: ClusterSpec,
        clock: Arc<VirtualClock>,
        source: Option<String>,
    ) -> Result<Description, ControlError> {
        let started = (self.start)(directory.join(DATA), spec.clone(), clock.clone()).await;
        let cluster = started.map_err(ControlError::Start)?;
        let (layer, signals) = FaultLayer::new(cluster.administrator(), Some(clock), vec![], self.delay);
        let name = reserved.name.clone();
        let (listener, description) = match open(&cluster, &layer, (name, source), &directory).await {
            Ok(opened) => opened,
            Err(error) => {
                cluster.stop().await;
                return Err(error);
            }
        };
        let (kills, receiver) = watch::channel(0);
        let entry = Entry {
            cluster,
            layer,
            description: description.clone(),
            kills: receiver,
            spec,
            directory,
            listener: RefCell::new(Some(listener)),
            signals: tokio::spawn(count(signals, kills)),
        };
        self.entries.borrow_mut().insert(reserved.name.clone(), Some(Rc::new(entry)));
        Ok(description)
    }
}

/// Opens the listener with the fault layer, and describes the cluster.
async fn open(
    cluster: &RunningCluster,
    layer: &Arc<FaultLayer>,
    (name, source): (String, Option<String>),
    directory: &Path,
) -> Result<(FaultListener, Description), ControlError> {
    let listener = FaultListener::bind(cluster.stack.clone(), &cluster.certificates, layer.clone()).await?;
    let own = access(cluster, cluster.url.clone(), None, &directory.join("kubeconfig")).await?;
    let faults = access(cluster, listener.url(), None, &directory.join("faults.kubeconfig")).await?;
    Ok((listener, Description { name, source, access: own, faults }))
}

/// Below a cluster's directory.
const DATA: &str = "data";

impl Entry {
    /// A kubeconfig of an account, or of an administrator, for one of the listeners.
    ///
    /// # Errors
    /// When there is no such account, or the file is not written.
    pub async fn access(&self, faults: bool, account: Option<&str>) -> Result<Access, ControlError> {
        let url = if faults { &self.description.faults.url } else { &self.description.access.url };
        let user = account.map_or("admin".to_owned(), |account| account.replace(['/', ':'], "."));
        let layer = if faults { "faults." } else { "" };
        let path = self.directory.join(format!("{layer}{user}.kubeconfig"));
        access(&self.cluster, url.clone(), account, &path).await
    }

    async fn end(&self) {
        self.signals.abort();
        self.listener.borrow_mut().take();
        self.cluster.stop().await;
        let directory = self.directory.clone();
        let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(directory)).await;
        if !matches!(removed, Ok(Ok(()))) {
            tracing::warn!(?removed, path = %self.directory.display(), "the data of a cluster could not be removed");
        }
    }
}

/// Counts the kills.
async fn count(mut signals: mpsc::Receiver<Signal>, kills: watch::Sender<u64>) {
    while let Some(Signal::Kill) = signals.recv().await {
        kills.send_modify(|kills| *kills += 1);
    }
}

async fn access(
    cluster: &RunningCluster,
    url: String,
    account: Option<&str>,
    path: &Path,
) -> Result<Access, ControlError> {
    let kubeconfig = cluster.kubeconfig(&url, account).await?;
    kaji_files::replace(path, kubeconfig.as_bytes(), 0o600)?;
    Ok(Access { url, kubeconfig, kubeconfig_file: path.to_owned() })
}

fn refused(code: StatusCode, text: String) -> ControlError {
    ControlError::Request(RequestRejection::new(code, &text))
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('-')
}
