//! Pod sandboxes: namespaces, files and the network that the containers of a pod share.
//!
//! Invariants: there is no process for a sandbox, but for pods that share a pid namespace; a sandbox that could not be made is
//! taken back whole.

use super::namespaces::{Wanted, create, unmount};
use super::state::{Container, ContainerRecord, Layout, SandboxRecord};
use super::{Inner, new_id, no_sandbox, overlay, shims};
use crate::cgroup;
use crate::records::{self, FinalCapabilities, RunRecord, ShimConfig, now_nanos};
use crate::seccomp::profile::runtime_default;
use crate::user_namespaces::Staging;
use crate::{shim, spec, user_namespaces};
use kaji_containers::{
    ContainerMetadata, NamespaceMode, PodSandboxConfig, PodSandboxState, RuntimeError, RuntimeEventKind,
};
use kaji_files::NamespaceIds;
use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// User and group of the first process of a pid namespace that a pod shares.
const REAPER: u32 = 65_535;

/// The namespaces of a sandbox and where they are pinned.
pub fn pins(layout: &Layout, id: &str, config: &PodSandboxConfig) -> Vec<(&'static str, PathBuf)> {
    let options = &config.security.namespaces;
    let own = |mode: NamespaceMode| !matches!(mode, NamespaceMode::Node);
    let mut pins = vec![];
    if options.user.is_some() {
        pins.push(("user", layout.namespace(id, "user")));
    }
    if own(options.network) {
        // The host name is the node's in the node's network.
        pins.extend([("net", layout.namespace(id, "net")), ("uts", layout.namespace(id, "uts"))]);
    }
    if own(options.ipc) {
        pins.push(("ipc", layout.namespace(id, "ipc")));
    }
    pins
}

/// The OCI configuration of the first process of a pod's pid namespace.
fn reaper_configuration(rootfs: &Path, namespaces: &[Value], cgroup: &str) -> Value {
    let resources = cgroup::available().then(|| json!({}));
    let ids = NamespaceIds::own();
    let user = if ids.has_user(REAPER) && ids.has_group(REAPER) { REAPER } else { 0 };
    let needed = ["CAP_SYS_ADMIN", "CAP_SETPCAP"];
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": user, "gid": user}, "args": ["pause"], "env": ["PATH=/"], "cwd": "/",
            "noNewPrivileges": true,
            "capabilities": {
                "bounding": needed, "effective": needed, "permitted": needed, "inheritable": [], "ambient": [],
            },
        },
        "root": {"path": rootfs, "readonly": true},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]}],
        "linux": {
            "namespaces": namespaces,
            "cgroupsPath": cgroup::in_configuration(cgroup),
            "resources": resources,
        },
    })
}

impl Inner {
    /// Makes a sandbox.
    pub(super) async fn run_sandbox(
        self: &Arc<Inner>,
        config: PodSandboxConfig,
    ) -> Result<String, RuntimeError> {
        if let Some(user) = &config.security.namespaces.user {
            user_namespaces::check(user)?;
            if matches!(config.security.namespaces.network, NamespaceMode::Node) {
                return Err(RuntimeError::InvalidArgument(
                    "a pod with a user namespace cannot be in the node's network".into(),
                ));
            }
        }
        if !config.runtime_handler.is_empty() {
            return Err(RuntimeError::InvalidArgument(format!(
                "no runtime for {:?} is configured",
                config.runtime_handler
            )));
        }
        let id = new_id();
        let mut record = SandboxRecord {
            id: id.clone(),
            config,
            created_at_nanos: now_nanos(),
            state: PodSandboxState::NotReady,
            ..Default::default()
        };
        {
            let mut state = self.state();
            let taken = state.sandboxes.values().find(|known| {
                let (known, new) = (&known.config.metadata, &record.config.metadata);
                known.uid == new.uid
                    && known.attempt == new.attempt
                    && known.namespace == new.namespace
                    && known.name == new.name
            });
            if let Some(known) = taken {
                return Err(RuntimeError::AlreadyExists(format!(
                    "failed to reserve sandbox name {:?}: name is reserved for {:?}",
                    record.config.metadata.name, known.id
                )));
            }
            state.sandboxes.insert(id.clone(), record.clone());
        }
        let held = self.sandbox_operation(&id).lock_owned().await;
        // What is given up goes on, and what is removed meanwhile waits for its end: nothing of it is made later.
        let inner = self.clone();
        let made = tokio::spawn(async move {
            let _held = held;
            match inner.make_sandbox(&mut record).await {
                Ok(()) => {
                    inner.state().sandboxes.insert(id.clone(), record);
                    inner.emit_sandbox(RuntimeEventKind::Started, &id);
                    Ok(id)
                }
                Err(error) => {
                    if let Err(error) = inner.remove_made(&id).await {
                        tracing::warn!("sandbox {id} was not made and not removed: {error}");
                    }
                    Err(error)
                }
            }
        });
        made.await.map_err(|error| RuntimeError::Internal(error.to_string()))?
    }

    /// Held by making, stopping and removing a sandbox.
    fn sandbox_operation(&self, id: &str) -> Arc<tokio::sync::Mutex<()>> {
        self.state().sandbox_operations.entry(id.to_owned()).or_default().clone()
    }

    async fn make_sandbox(self: &Arc<Inner>, record: &mut SandboxRecord) -> Result<(), RuntimeError> {
        let id = record.id.clone();
        let directory = self.layout.sandbox(&id);
        fs::DirBuilder::new().mode(0o700).create(&directory)?;
        self.layout.save_sandbox(record)?;
        let config = &record.config;
        self.write_files(record)?;
        let pins = pins(&self.layout, &id, config);
        if !config.sysctls.is_empty() && pins.is_empty() {
            return Err(RuntimeError::InvalidArgument("sysctls of a pod in the node's namespaces".into()));
        }
        if !pins.is_empty() {
            let (hostname, sysctls) = (config.hostname.clone(), config.sysctls.clone());
            let pins = pins.into_iter().map(|(name, path)| (name.to_owned(), path)).collect();
            match &config.security.namespaces.user {
                None => create(Wanted { pins, hostname, sysctls }).await?,
                Some(user) => {
                    let mapping = user_namespaces::check(user)?;
                    let request = shim::namespaces::Request { mapping, pins, hostname, sysctls };
                    let path = directory.join("namespaces.json");
                    records::write(&path, &request)?;
                    shims::spawn(&self.shim, "namespaces", &path).await.map_err(|error| {
                        RuntimeError::Internal(format!("failed to create the pod's user namespace: {error}"))
                    })?;
                }
            }
        }
        if let (Some(network), Some(setup)) = (&self.options.network, self.network_setup(record)) {
            record.addresses = network.set_up(setup).await?.addresses;
        }
        if matches!(config.security.namespaces.pid, NamespaceMode::Pod) {
            record.reaper = Some(self.start_reaper(&id, record).await?);
        }
        record.state = PodSandboxState::Ready;
        Ok(self.layout.save_sandbox(record)?)
    }

    fn write_files(&self, record: &SandboxRecord) -> Result<(), RuntimeError> {
        let (directory, config) = (self.layout.sandbox(&record.id), &record.config);
        let dns = &config.dns;
        let resolv = if dns.servers.is_empty() && dns.searches.is_empty() && dns.options.is_empty() {
            fs::read_to_string("/etc/resolv.conf").unwrap_or_default()
        } else {
            let mut text = String::new();
            if !dns.searches.is_empty() {
                text.push_str(&format!("search {}\n", dns.searches.join(" ")));
            }
            for server in &dns.servers {
                text.push_str(&format!("nameserver {server}\n"));
            }
            if !dns.options.is_empty() {
                text.push_str(&format!("options {}\n", dns.options.join(" ")));
            }
            text
        };
        let readable = |name: &str, text: &str| -> Result<(), RuntimeError> {
            let path = directory.join(name);
            fs::write(&path, text)?;
            Ok(fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644))?)
        };
        readable("resolv.conf", &resolv)?;
        let hostname = if config.hostname.is_empty() {
            fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
        } else {
            config.hostname.clone()
        };
        readable("hostname", &format!("{hostname}\n"))?;
        if !matches!(config.security.namespaces.ipc, NamespaceMode::Node) {
            let shm = directory.join("shm");
            fs::create_dir(&shm)?;
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            let mut options = "mode=1777,size=65536k".to_owned();
            if let Some(user) = &config.security.namespaces.user {
                let owner = user_namespaces::check(user)?.host_id;
                options = format!("{options},uid={owner},gid={owner}");
            }
            mount(Some("shm"), &shm, Some("tmpfs"), flags, Some(options.as_str())).map_err(|error| {
                RuntimeError::Internal(format!("mounting the pod's shared memory: {error}"))
            })?;
        }
        Ok(())
    }

    /// Files that all containers of a pod get unless they mount their own, with their paths in the containers.
    pub(super) fn pod_files(&self, id: &str, config: &PodSandboxConfig) -> Vec<(&'static str, PathBuf)> {
        let directory = self.layout.sandbox(id);
        let shm = if matches!(config.security.namespaces.ipc, NamespaceMode::Node) {
            PathBuf::from("/dev/shm")
        } else {
            directory.join("shm")
        };
        vec![
            ("/etc/resolv.conf", directory.join("resolv.conf")),
            ("/etc/hostname", directory.join("hostname")),
            ("/dev/shm", shm),
        ]
    }

    /// Starts the first process of a pod's pid namespace: a container without a program.
    async fn start_reaper(
        self: &Arc<Inner>,
        sandbox: &str,
        pod: &SandboxRecord,
    ) -> Result<String, RuntimeError> {
        let id = new_id();
        let mut record = ContainerRecord {
            id: id.clone(),
            sandbox: sandbox.to_owned(),
            created_at_nanos: now_nanos(),
            started: true,
            hidden: true,
            ..Default::default()
        };
        record.config.metadata = ContainerMetadata { name: String::new(), attempt: 0 };
        let bundle = self.layout.bundle(&id);
        fs::DirBuilder::new().mode(0o700).create(&bundle)?;
        self.layout.save_container(&record)?;
        for name in ["rootfs", "libcontainer"] {
            fs::create_dir(bundle.join(name))?;
        }
        for name in ["proc", "dev", "sys"] {
            fs::create_dir(bundle.join("rootfs").join(name))?;
        }
        let cgroup = spec::container_cgroup(&pod.config, &id);
        let (mut rootfs, mut staging) = (bundle.join("rootfs"), None);
        if let Some(user) = &pod.config.security.namespaces.user {
            let range = user_namespaces::check(user)?;
            let mut staged = Staging::new(&bundle, &self.layout.namespace(sandbox, "user"), range)?;
            rootfs = staged.mount(&rootfs, true);
            staging = Some(staged);
        }
        let mut namespaces = vec![json!({"type": "mount"}), json!({"type": "pid"})];
        for (name, path) in pins(&self.layout, sandbox, &pod.config) {
            let kind = if name == "net" { "network" } else { name };
            let path = match &mut staging {
                Some(staged) if name != "user" => staged.namespace(&path),
                _ => path,
            };
            namespaces.push(json!({"type": kind, "path": path}));
        }
        let configuration = reaper_configuration(&rootfs, &namespaces, &cgroup);
        let config = ShimConfig {
            id: id.clone(),
            capabilities: FinalCapabilities::default(),
            seccomp: Some(runtime_default(&[])),
            reaper: true,
            cgroups: cgroup::directories(&cgroup),
            oom_score_adj: -998,
            staging,
            ..Default::default()
        };
        records::write(&bundle.join(records::SPEC), &configuration)?;
        records::write(&bundle.join(records::SHIM_CONFIG), &config)?;
        self.state().containers.insert(id.clone(), Container::new(record, None, None));
        shims::spawn(&self.shim, "start", &bundle).await?;
        let run = records::read::<RunRecord>(&bundle.join(records::RUN))?;
        self.with_container(&id, |container| container.run = run)?;
        self.clone().watch(id.clone());
        Ok(id)
    }

    /// The containers of a sandbox, the first process of its pid namespace last.
    fn containers_of(&self, id: &str) -> Vec<String> {
        let state = self.state();
        let mut found: Vec<(bool, String)> = state
            .containers
            .values()
            .filter(|container| container.record.sandbox == id)
            .map(|container| (container.record.hidden, container.record.id.clone()))
            .collect();
        found.sort();
        found.into_iter().map(|(_, id)| id).collect()
    }

    /// Kills the containers and releases the network.
    pub(super) async fn stop_sandbox(self: &Arc<Inner>, id: &str) -> Result<(), RuntimeError> {
        if self.sandbox(id).is_none() {
            return Ok(());
        }
        let operation = self.sandbox_operation(id);
        let _held = operation.lock().await;
        self.stop_made(id).await
    }

    async fn stop_made(self: &Arc<Inner>, id: &str) -> Result<(), RuntimeError> {
        let Some(mut record) = self.sandbox(id) else { return Ok(()) };
        for container in self.containers_of(id) {
            self.stop_container(&container, Duration::ZERO).await?;
            self.clean_up(&container).await;
        }
        if let (Some(network), Some(setup)) = (&self.options.network, self.network_setup(&record)) {
            network.tear_down(setup).await?;
        }
        // The addresses stay in the record: a status shows them after the stop, too.
        for (_, path) in pins(&self.layout, id, &record.config) {
            unmount(&path)?;
        }
        let was_ready = record.state == PodSandboxState::Ready;
        record.state = PodSandboxState::NotReady;
        if self.layout.sandbox(id).exists() {
            self.layout.save_sandbox(&record)?;
        }
        self.state().sandboxes.insert(id.to_owned(), record);
        if was_ready {
            self.emit_sandbox(RuntimeEventKind::Stopped, id);
        }
        Ok(())
    }

    /// Removes a sandbox and its containers.
    pub(super) async fn remove_sandbox(self: &Arc<Inner>, id: &str) -> Result<(), RuntimeError> {
        if self.sandbox(id).is_none() {
            return Ok(());
        }
        let operation = self.sandbox_operation(id);
        let _held = operation.lock().await;
        self.remove_made(id).await
    }

    async fn remove_made(self: &Arc<Inner>, id: &str) -> Result<(), RuntimeError> {
        let Some(record) = self.sandbox(id) else { return Ok(()) };
        self.stop_made(id).await?;
        let containers = self.containers_of(id);
        for container in &containers {
            self.remove_container(container).await?;
        }
        self.sweep_cgroups(&record, &containers)?;
        let directory = self.layout.sandbox(id);
        tokio::task::spawn_blocking(move || overlay::remove_directory(&directory))
            .await
            .map_err(|error| RuntimeError::Internal(error.to_string()))??;
        self.emit_sandbox(RuntimeEventKind::Deleted, id);
        let mut state = self.state();
        state.sandboxes.remove(id);
        state.sandbox_operations.remove(id);
        state.readings.remove(id);
        Ok(())
    }

    /// A sandbox in which containers can be created, and its network namespace.
    pub(super) fn ready_sandbox(&self, id: &str) -> Result<(SandboxRecord, Option<PathBuf>), RuntimeError> {
        let record = self.sandbox(id).ok_or_else(|| no_sandbox(id))?;
        if record.state != PodSandboxState::Ready {
            return Err(RuntimeError::FailedPrecondition(format!("sandbox {id:?} is not ready")));
        }
        let host = matches!(record.config.security.namespaces.network, NamespaceMode::Node);
        let namespace = (!host).then(|| self.layout.namespace(id, "net"));
        Ok((record, namespace))
    }
}
