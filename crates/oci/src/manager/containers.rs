//! Containers: creating, starting, stopping, removing.

use super::state::{Container, ContainerRecord, signal_number, stop_signal_name};
use super::{Inner, overlay, shims};
use crate::cdi;
use crate::protocol::{Reply, Request};
use crate::records::{self, ExitRecord, RunRecord, now_nanos};
use crate::spec::{self, Parts};
use crate::user_namespaces::{self, Staging};
use crate::{cgroup, manager::new_id};
use kaji_containers::{
    ContainerConfig, NamespaceMode, PodSandboxConfig, ResourceUpdate, RuntimeError, RuntimeEventKind,
};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

impl Inner {
    /// Creates a container: its bundle and its root file system. No process runs yet.
    pub(super) async fn create_container(
        self: &Arc<Inner>,
        sandbox: &str,
        config: ContainerConfig,
    ) -> Result<String, RuntimeError> {
        let (pod, _) = self.ready_sandbox(sandbox)?;
        let id = new_id();
        let log_path = log_path(&pod.config, &config);
        let record = ContainerRecord {
            id: id.clone(),
            sandbox: sandbox.to_owned(),
            config,
            created_at_nanos: now_nanos(),
            log_path,
            ..Default::default()
        };
        let held = self.reserve(&record)?.lock_owned().await;
        // A creation that is given up goes on: what is removed meanwhile waits for its end, so that nothing of it is made later.
        let inner = self.clone();
        let created = tokio::spawn(async move {
            let _held = held;
            inner.finish_creation(record, pod.config).await
        });
        created.await.map_err(|error| RuntimeError::Internal(error.to_string()))??;
        Ok(id)
    }

    async fn finish_creation(
        self: &Arc<Inner>,
        record: ContainerRecord,
        sandbox: PodSandboxConfig,
    ) -> Result<(), RuntimeError> {
        let id = record.id.clone();
        let mut leases = vec![];
        match self.make_container(record, sandbox, &mut leases).await {
            Ok(record) => {
                self.with_container(&id, |container| container.record = record)?;
                self.emit(RuntimeEventKind::Created, &id);
                Ok(())
            }
            Err(error) => {
                if let Err(error) = overlay::remove_directory(&self.layout.bundle(&id)) {
                    tracing::warn!("container {id} was not created and its bundle not removed: {error}");
                }
                self.release(&leases).await;
                self.forget_container(&id);
                Err(error)
            }
        }
    }

    /// Leases the layers, and makes the bundle of them.
    async fn make_container(
        self: &Arc<Inner>,
        mut record: ContainerRecord,
        sandbox: PodSandboxConfig,
        leases: &mut Vec<String>,
    ) -> Result<ContainerRecord, RuntimeError> {
        leases.push(record.id.clone());
        let image = self.options.images.lease(&record.config.image, &record.id).await?;
        let mut volumes = vec![];
        for (index, mount) in record.config.mounts.iter().enumerate() {
            if let Some(wanted) = &mount.image {
                let owner = format!("{}-{index}", record.id);
                leases.push(owner.clone());
                let layers = self.options.images.lease(wanted, &owner).await?.layers;
                volumes.push((mount.container_path.clone(), mount.image_sub_path.clone(), layers));
            }
        }
        (record.image_id, record.image) = (image.id, image.config);
        record.leases.clone_from(leases);
        let inner = self.clone();
        tokio::task::spawn_blocking(move || inner.make_bundle(record, &image.layers, &sandbox, &volumes))
            .await
            .map_err(|error| RuntimeError::Internal(error.to_string()))?
    }

    /// Ends leases on layers. One that cannot be ended is ended by the next manager.
    pub(super) async fn release(&self, leases: &[String]) {
        for owner in leases {
            if let Err(error) = self.options.images.release(owner).await {
                tracing::warn!("the layers of {owner} were not released: {error}");
            }
        }
    }

    fn make_bundle(
        &self,
        mut record: ContainerRecord,
        layers: &[PathBuf],
        sandbox: &PodSandboxConfig,
        volumes: &[(String, String, Vec<PathBuf>)],
    ) -> Result<ContainerRecord, RuntimeError> {
        let bundle = self.layout.bundle(&record.id);
        fs::DirBuilder::new().mode(0o700).create(&bundle)?;
        // The record comes first: what is mounted below has an owner from now on.
        self.layout.save_container(&record)?;
        let user = self.layout.namespace(&record.sandbox, "user");
        let ids = match &sandbox.security.namespaces.user {
            Some(range) => Some((user.as_path(), user_namespaces::check(range)?)),
            None => None,
        };
        let rootfs = overlay::mount_root(&bundle, layers, ids)?;
        let mut image_mounts = vec![];
        for (index, (path, sub_path, layers)) in volumes.iter().enumerate() {
            let mounted = overlay::mount_read_only(&bundle, &format!("image-{index}"), layers, ids)?;
            image_mounts.push((path.clone(), within(&mounted, sub_path)?));
        }
        let namespaces = self.namespaces_of(&record, sandbox)?;
        let pod_files = self.pod_files(&record.sandbox, sandbox);
        let built = spec::build(&Parts {
            id: &record.id,
            config: &record.config,
            sandbox,
            image: &record.image,
            rootfs: &rootfs,
            namespaces: &namespaces,
            pod_files: &pod_files,
            image_mounts: &image_mounts,
            cdi: &cdi::edits(&record.config.cdi_devices, &self.options.cdi_directories)?,
            available: &self.capabilities,
            staging: match ids {
                Some((user, range)) => Some(Staging::new(&bundle, user, range)?),
                None => None,
            },
            apparmor: self.apparmor.profile(&record.config.security)?,
        })?;
        if let Some(directory) = built.shim.log_path.as_deref().and_then(Path::parent) {
            fs::create_dir_all(directory)?;
        }
        records::write(&bundle.join(records::SPEC), &built.spec)?;
        records::write(&bundle.join(records::SHIM_CONFIG), &built.shim)?;
        fs::DirBuilder::new().mode(0o700).create(bundle.join("libcontainer"))?;
        record.user = built.user;
        self.layout.save_container(&record)?;
        Ok(record)
    }

    /// Paths of the namespaces that a container joins.
    fn namespaces_of(
        &self,
        record: &ContainerRecord,
        sandbox: &PodSandboxConfig,
    ) -> Result<Vec<(&'static str, PathBuf)>, RuntimeError> {
        let mut found = vec![];
        let pinned = [("user", "user"), ("network", "net"), ("ipc", "ipc"), ("uts", "uts")];
        for (kind, name) in pinned {
            let path = self.layout.namespace(&record.sandbox, name);
            if path.exists() {
                found.push((kind, path));
            }
        }
        let options = &record.config.security.namespaces;
        match options.pid {
            NamespaceMode::Pod => {
                let reaper = self.ready_sandbox(&record.sandbox)?.0.reaper;
                let run = reaper.and_then(|id| {
                    records::read::<RunRecord>(&self.layout.bundle(&id).join(records::RUN)).ok()?
                });
                let run = run.filter(RunRecord::is_alive).ok_or_else(|| {
                    RuntimeError::FailedPrecondition("the sandbox has no pid namespace of its own".into())
                })?;
                found.push(("pid", format!("/proc/{}/ns/pid", run.pid).into()));
            }
            NamespaceMode::Target => {
                let run = self.with_container(&options.target, |target| target.run.clone())?;
                let run = run.filter(RunRecord::is_alive).ok_or_else(|| {
                    RuntimeError::FailedPrecondition(format!("container {:?} does not run", options.target))
                })?;
                found.push(("pid", format!("/proc/{}/ns/pid", run.pid).into()));
            }
            NamespaceMode::Container | NamespaceMode::Node => {}
        }
        if matches!(sandbox.security.namespaces.ipc, NamespaceMode::Node) {
            found.retain(|(kind, _)| *kind != "ipc");
        }
        Ok(found)
    }

    /// Starts a container.
    pub(super) async fn start_container(self: &Arc<Inner>, id: &str) -> Result<(), RuntimeError> {
        let operation = self.with_container(id, |container| container.operation.clone())?;
        let held = operation.lock_owned().await;
        let mut record = self.with_container(id, |container| container.record.clone())?;
        if record.started {
            return Err(RuntimeError::FailedPrecondition(format!("container {id:?} was started already")));
        }
        record.started = true;
        self.layout.save_container(&record)?;
        self.with_container(id, |container| container.record.started = true)?;
        // A start that is given up goes on: what runs is always watched.
        let (inner, id) = (self.clone(), id.to_owned());
        let started = tokio::spawn(async move {
            let _held = held;
            inner.start_shim(&id).await
        });
        started.await.map_err(|error| RuntimeError::Internal(error.to_string()))?
    }

    async fn start_shim(self: &Arc<Inner>, id: &str) -> Result<(), RuntimeError> {
        let bundle = self.layout.bundle(id);
        match shims::spawn(&self.shim, "start", &bundle).await {
            Ok(()) => {
                let run = records::read::<RunRecord>(&bundle.join(records::RUN))?;
                self.with_container(id, |container| container.run = run)?;
                self.emit(RuntimeEventKind::Started, id);
                self.clone().watch(id.to_owned());
                Ok(())
            }
            Err(error) => Err(RuntimeError::StartFailed(self.record_failed_start(id, &error).await?)),
        }
    }

    /// Records that a container could not be started. Answers the message.
    pub(super) async fn record_failed_start(
        &self,
        id: &str,
        error: &RuntimeError,
    ) -> Result<String, RuntimeError> {
        let message = format!(
            "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create \
             failed: unable to start container process: {error}: unknown"
        );
        let exit = ExitRecord {
            exit_code: 128,
            finished_at_nanos: now_nanos(),
            reason: "StartError".into(),
            message: message.clone(),
            ..Default::default()
        };
        records::write(&self.layout.bundle(id).join(records::EXIT), &exit)?;
        self.clean_up(id).await;
        self.has_exited(id, exit);
        Ok(message)
    }

    /// Waits in the background for a container's exit, as long as there is a manager.
    pub(super) fn watch(self: Arc<Inner>, id: String) {
        let bundle = self.layout.bundle(&id);
        let manager = Arc::downgrade(&self);
        tokio::spawn(async move {
            loop {
                if let Ok(mut connection) = shims::Connection::open(&bundle, &Request::Wait, &[]).await {
                    while let Ok(Some((reply, _))) = connection.reply().await {
                        if let Reply::Exited { .. } = reply {
                            break;
                        }
                    }
                }
                let Some(inner) = manager.upgrade() else { return };
                match inner.recover(&id).await {
                    super::recovery::Found::Ended => return,
                    super::recovery::Found::Running => {}
                }
            }
        });
    }

    /// A container has exited: what runs below it is killed and its cgroup removed.
    pub(super) async fn clean_up(&self, id: &str) {
        let Ok(record) = self.with_container(id, |container| container.record.clone()) else { return };
        let Some(sandbox) = self.sandbox(&record.sandbox) else { return };
        let directories = cgroup::directories(&spec::container_cgroup(&sandbox.config, id));
        let done = tokio::task::spawn_blocking(move || {
            cgroup::kill_all(&directories);
            cgroup::remove(&directories)
        });
        match done.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("the cgroup of container {id} was not removed: {error}"),
            Err(error) => tracing::warn!("the cgroup of container {id} was not removed: {error}"),
        }
    }

    /// Sends the stop signal, then SIGKILL; answers when the container has exited.
    pub(super) async fn stop_container(
        self: &Arc<Inner>,
        id: &str,
        grace: Duration,
    ) -> Result<(), RuntimeError> {
        // One that is being created, or started, is stopped when that is done.
        let Ok(operation) = self.with_container(id, |container| container.operation.clone()) else {
            return Ok(());
        };
        drop(operation.lock().await);
        self.stop_created(id, grace).await
    }

    async fn stop_created(self: &Arc<Inner>, id: &str, grace: Duration) -> Result<(), RuntimeError> {
        let Ok((mut exit, record, runs)) = self.with_container(id, |container| {
            (container.exit.subscribe(), container.record.clone(), container.run.is_some())
        }) else {
            return Ok(());
        };
        if exit.borrow().is_some() {
            return Ok(());
        }
        if !runs && !record.started {
            let reason = "ContainerCannotRun";
            let exit = ExitRecord {
                exit_code: 255,
                finished_at_nanos: now_nanos(),
                reason: reason.into(),
                ..Default::default()
            };
            records::write(&self.layout.bundle(id).join(records::EXIT), &exit)?;
            self.has_exited(id, exit);
            return Ok(());
        }
        let bundle = self.layout.bundle(id);
        let name = stop_signal_name(&record);
        let signal = signal_number(name)
            .ok_or_else(|| RuntimeError::InvalidArgument(format!("stop signal {name:?} is not known")))?;
        if !grace.is_zero() {
            self.signal(&bundle, signal).await?;
            if tokio::time::timeout(grace, exit.wait_for(Option::is_some)).await.is_ok() {
                return Ok(());
            }
        }
        self.signal(&bundle, libc::SIGKILL).await?;
        let limit = Duration::from_secs(30);
        match tokio::time::timeout(limit, exit.wait_for(Option::is_some)).await {
            Ok(_) => Ok(()),
            Err(_) => {
                Err(RuntimeError::DeadlineExceeded(format!("container {id:?} did not exit after SIGKILL")))
            }
        }
    }

    async fn signal(&self, bundle: &Path, signal: i32) -> Result<(), RuntimeError> {
        match shims::call(bundle, &Request::Signal { signal }).await {
            // It has exited meanwhile, or its shim is being replaced; then the process is signalled directly.
            Err(RuntimeError::Unavailable(_) | RuntimeError::Internal(_)) => {
                if let Some(run) =
                    records::read::<RunRecord>(&bundle.join(records::RUN))?.filter(RunRecord::is_alive)
                    && let Ok(signal) = nix::sys::signal::Signal::try_from(signal)
                {
                    // ESRCH: it has ended since.
                    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(run.pid), signal);
                }
                Ok(())
            }
            other => other,
        }
    }

    /// Removes a container, killing it if it runs.
    pub(super) async fn remove_container(self: &Arc<Inner>, id: &str) -> Result<(), RuntimeError> {
        let Ok(operation) = self.with_container(id, |container| container.operation.clone()) else {
            return Ok(());
        };
        let _held = operation.lock().await;
        let leases = self.with_container(id, |container| container.record.leases.clone())?;
        self.stop_created(id, Duration::ZERO).await?;
        self.clean_up(id).await;
        let bundle = self.layout.bundle(id);
        tokio::task::spawn_blocking(move || overlay::remove_directory(&bundle))
            .await
            .map_err(|error| RuntimeError::Internal(error.to_string()))??;
        self.emit(RuntimeEventKind::Deleted, id);
        self.forget_container(id);
        self.release(&leases).await;
        Ok(())
    }

    /// Changes limits.
    pub(super) fn update_resources(&self, id: &str, update: ResourceUpdate) -> Result<(), RuntimeError> {
        let mut record = self.with_container(id, |container| container.record.clone())?;
        let sandbox = self.sandbox(&record.sandbox).ok_or_else(|| super::no_sandbox(&record.sandbox))?;
        let runs = self.running(id).is_ok();
        if runs {
            cgroup::update(&spec::container_cgroup(&sandbox.config, id), &update.resources)?;
        }
        super::merge_resources(&mut record.config.resources, &update.resources);
        record.config.annotations.extend(update.annotations);
        if !runs && !record.started {
            return Err(RuntimeError::FailedPrecondition(format!("container {id:?} is not running")));
        }
        self.layout.save_container(&record)?;
        self.with_container(id, |container| container.record.config = record.config)
    }

    /// Takes the container's name. Answers the lock of its operations.
    fn reserve(&self, record: &ContainerRecord) -> Result<Arc<tokio::sync::Mutex<()>>, RuntimeError> {
        let mut state = self.state();
        let taken = state.containers.values().find(|known| {
            known.record.sandbox == record.sandbox
                && known.record.config.metadata == record.config.metadata
                && !known.record.hidden
        });
        if let Some(known) = taken {
            return Err(RuntimeError::AlreadyExists(format!(
                "failed to reserve container name {:?}: name is reserved for {:?}",
                record.config.metadata.name, known.record.id
            )));
        }
        let container = Container::new(record.clone(), None, None);
        let operation = container.operation.clone();
        state.containers.insert(record.id.clone(), container);
        Ok(operation)
    }
}

fn log_path(sandbox: &PodSandboxConfig, config: &ContainerConfig) -> String {
    if sandbox.log_directory.is_empty() || config.log_path.is_empty() {
        return String::new();
    }
    Path::new(&sandbox.log_directory).join(&config.log_path).display().to_string()
}

/// A directory of a mounted image; links in the image do not lead out of it.
fn within(root: &Path, sub_path: &str) -> Result<PathBuf, RuntimeError> {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, readlink};
    if sub_path.is_empty() {
        return Ok(root.to_owned());
    }
    let failed =
        |error: rustix::io::Errno| RuntimeError::InvalidArgument(format!("image path {sub_path:?}: {error}"));
    let directory = openat(CWD, root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
    let found =
        kaji_files::open_within(directory, sub_path.trim_start_matches('/'), flags, ResolveFlags::IN_ROOT)
            .map_err(failed)?;
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&found));
    let path = readlink(link, vec![]).map_err(failed)?;
    Ok(PathBuf::from(path.to_string_lossy().into_owned()))
}
