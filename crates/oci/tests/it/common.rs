//! A runtime in a directory of its own, with one image made of a static busybox.

use kaji_containers::{
    BoxFuture, ContainerConfig, ContainerMetadata, ContainerRuntime, ContainerState, ContainerStatus,
    ImageConfig, ImageLayers, ImageRootfs, ImageSpec, PodSandboxConfig, PodSandboxMetadata, RuntimeError,
};
use kaji_oci::{Manager, ManagerOptions, leftovers};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, io};

#[derive(Default)]
pub struct OneImage {
    layers: ImageLayers,
    leases: Mutex<Vec<String>>,
}

impl ImageRootfs for OneImage {
    fn resolve<'a>(&'a self, image: &'a ImageSpec) -> BoxFuture<'a, Result<ImageLayers, RuntimeError>> {
        Box::pin(async move {
            if image.image == "missing" {
                return Err(RuntimeError::ImageNotPresent("missing".into()));
            }
            Ok(self.layers.clone())
        })
    }

    fn lease<'a>(
        &'a self,
        image: &'a ImageSpec,
        owner: &'a str,
    ) -> BoxFuture<'a, Result<ImageLayers, RuntimeError>> {
        self.leases.lock().unwrap().push(owner.to_owned());
        self.resolve(image)
    }

    fn release<'a>(&'a self, owner: &'a str) -> BoxFuture<'a, Result<(), RuntimeError>> {
        self.leases.lock().unwrap().retain(|known| known != owner);
        Box::pin(async { Ok(()) })
    }

    fn leases(&self) -> BoxFuture<'_, Result<Vec<String>, RuntimeError>> {
        Box::pin(async { Ok(self.leases.lock().unwrap().clone()) })
    }
}

pub struct Node {
    pub directory: tempfile::TempDir,
    pub manager: Option<Manager>,
    images: Arc<OneImage>,
    cgroup: String,
    next: AtomicU32,
}

/// A node, or `None` after saying why there is none.
pub async fn node(test: &str) -> Option<Node> {
    if let Some(reason) = missing() {
        kaji_testing::skip::skipped(test, &reason);
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    make_layer(&directory.path().join("layer")).unwrap();
    let cgroup = format!("/kaji-oci-{}-{test}", std::process::id());
    let layers = ImageLayers {
        layers: vec![directory.path().join("layer")],
        config: ImageConfig { cmd: vec!["/bin/sh".into()], ..Default::default() },
        id: "sha256:1".into(),
    };
    let images = Arc::new(OneImage { layers, ..Default::default() });
    let mut node = Node { directory, manager: None, images, cgroup, next: AtomicU32::new(0) };
    node.open().await;
    Some(node)
}

fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".into());
    }
    if busybox().is_none() {
        return Some("needs a static busybox".into());
    }
    let supported = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    (!supported.contains("overlay")).then(|| "needs overlayfs".into())
}

fn busybox() -> Option<PathBuf> {
    ["/usr/bin/busybox", "/bin/busybox"].map(PathBuf::from).into_iter().find(|path| path.exists())
}

fn make_layer(layer: &Path) -> io::Result<()> {
    for directory in ["bin", "etc", "tmp", "proc", "sys", "dev", "home/web"] {
        fs::create_dir_all(layer.join(directory))?;
    }
    fs::copy(busybox().unwrap(), layer.join("bin/busybox"))?;
    for name in [
        "sh", "echo", "cat", "sleep", "id", "ls", "mount", "touch", "true", "false", "kill", "ps", "stty",
        "tty", "head", "mkdir", "chroot", "unshare", "hostname", "dd", "tail", "printf", "seq", "chmod",
        "mknod", "env",
    ] {
        symlink("/bin/busybox", layer.join("bin").join(name))?;
    }
    fs::write(layer.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nweb:x:33:34::/home/web:/bin/sh\n")?;
    fs::write(layer.join("etc/group"), "root:x:0:\nweb:x:34:\nlogs:x:50:web\n")
}

impl Node {
    /// Opens a manager; the former one has to be dropped.
    pub async fn open(&mut self) {
        self.manager = None;
        let images = self.images.clone();
        let options = || ManagerOptions {
            state_directory: self.state(),
            // In a virtual machine it has another path than where it was built.
            shim: vec![
                std::env::var_os("KAJI_OCI_SHIM")
                    .unwrap_or_else(|| env!("CARGO_BIN_EXE_kaji-oci-shim").into()),
            ],
            images: images.clone(),
            network: None,
            cdi_directories: vec![self.cdi_directory()],
        };
        // A former one's lock is held until its last background task has ended.
        let started = Instant::now();
        let manager = loop {
            match Manager::open(options()).await {
                Err(kaji_oci::OpenError::InUse(_)) if started.elapsed() < Duration::from_secs(10) => {
                    tokio::task::yield_now().await;
                }
                other => break other.unwrap(),
            }
        };
        self.manager = Some(manager);
    }

    /// Where specifications of CDI devices are.
    pub fn cdi_directory(&self) -> PathBuf {
        self.directory.path().join("cdi")
    }

    pub fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    pub fn runtime(&self) -> &Manager {
        self.manager.as_ref().unwrap()
    }

    pub fn sandbox_config(&self) -> PodSandboxConfig {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut config = PodSandboxConfig {
            metadata: PodSandboxMetadata {
                name: format!("pod{number}"),
                namespace: "default".into(),
                uid: format!("uid{number}"),
                attempt: 0,
            },
            hostname: format!("pod{number}"),
            log_directory: self.directory.path().join("logs").display().to_string(),
            cgroup_parent: self.cgroup.clone(),
            ..Default::default()
        };
        config.security.namespaces.pid = kaji_containers::NamespaceMode::Container;
        config
    }

    pub async fn sandbox(&self) -> String {
        self.runtime().run_pod_sandbox(self.sandbox_config()).await.unwrap()
    }

    /// A container that runs a shell script.
    pub fn script(&self, text: &str) -> ContainerConfig {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut config = ContainerConfig {
            metadata: ContainerMetadata { name: format!("c{number}"), attempt: 0 },
            image: "busybox".into(),
            command: ["/bin/sh", "-c", text].map(str::to_owned).to_vec(),
            log_path: format!("{number}.log"),
            ..Default::default()
        };
        config.security.namespaces.pid = kaji_containers::NamespaceMode::Container;
        config.security.masked_paths = vec!["/proc/kcore".into(), "/proc/keys".into()];
        config.security.readonly_paths = vec!["/proc/sys".into()];
        config
    }

    pub async fn start(&self, sandbox: &str, config: ContainerConfig) -> String {
        let id = self.runtime().create_container(sandbox, config).await.unwrap();
        self.runtime().start_container(&id).await.unwrap();
        id
    }

    /// Runs a container to its end; its status and what it printed.
    pub async fn run(&self, config: ContainerConfig) -> (ContainerStatus, String) {
        let sandbox = self.sandbox().await;
        let id = self.start(&sandbox, config).await;
        let status = self.ended(&id).await;
        let text = self.output(&status);
        self.runtime().remove_pod_sandbox(&sandbox).await.unwrap();
        (status, text)
    }

    pub async fn ended(&self, id: &str) -> ContainerStatus {
        let ended = self.until(id, |status| status.info.state == ContainerState::Exited).await;
        ended.unwrap_or_else(|status| panic!("the container has not exited: {status:?}"))
    }

    async fn until(
        &self,
        id: &str,
        holds: impl Fn(&ContainerStatus) -> bool,
    ) -> Result<ContainerStatus, ContainerStatus> {
        let started = Instant::now();
        loop {
            let status = self.runtime().container_status(id).await.unwrap();
            if holds(&status) {
                return Ok(status);
            }
            if started.elapsed() > Duration::from_secs(20) {
                return Err(status);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The texts of the log's records.
    pub fn output(&self, status: &ContainerStatus) -> String {
        let log = fs::read_to_string(&status.log_path).unwrap_or_default();
        log.lines().map(|line| format!("{}\n", line.splitn(4, ' ').nth(3).unwrap_or_default())).collect()
    }

    /// Waits for a text in a container's log.
    pub async fn printed(&self, id: &str, text: &str) {
        let printed = self.until(id, |status| self.output(status).contains(text)).await;
        printed.unwrap_or_else(|status| panic!("not printed: {:?}", self.output(&status)));
    }

    /// Removes all sandboxes and checks that nothing is left.
    pub async fn finish(self) {
        for sandbox in self.runtime().list_pod_sandboxes(Default::default()).await.unwrap() {
            self.runtime().remove_pod_sandbox(&sandbox.id).await.unwrap();
        }
        assert_eq!(*self.images.leases.lock().unwrap(), Vec::<String>::new());
        let started = Instant::now();
        loop {
            // A shim may be about to exit.
            let left = leftovers(&self.state(), &self.cgroup).unwrap();
            if left.is_empty() {
                break;
            }
            assert!(started.elapsed() < Duration::from_secs(10), "{left:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for hierarchy in fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
            let _ = fs::remove_dir(hierarchy.path().join(self.cgroup.trim_start_matches('/')));
        }
        let _ = fs::remove_dir(Path::new("/sys/fs/cgroup").join(self.cgroup.trim_start_matches('/')));
    }
}
