//! The socket that device plug-ins register on, and following each of them.

use super::messages::{self as m, Empty, RegisterRequest};
use super::{CHECKPOINT, DeviceManager, Endpoint, Found, Plugin, state};
use kaji_grpc::{CallError, Router, Status, bind, serve};
use kaji_meta::resource_name::is_extended;
use std::collections::HashMap;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::task::{AbortHandle, JoinSet};

const SOCKET: &str = "kubelet.sock";

impl DeviceManager {
    /// Serves the socket and follows plug-ins, until it is dropped.
    pub async fn run(self: Arc<Self>) {
        clean(&self.dir);
        let listener = match bind(&self.dir.join(SOCKET)) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%error, directory = %self.dir.display(), "device plug-ins cannot register");
                return;
            }
        };
        let manager = self.clone();
        let router = Router::default().unary(m::REGISTER, move |request: RegisterRequest| {
            let manager = manager.clone();
            async move { manager.registration(request).await }
        });
        let follow = async {
            let mut queue = self.queue.lock().await;
            let mut followed: HashMap<String, AbortHandle> = HashMap::new();
            let mut tasks = JoinSet::new();
            loop {
                let found = tokio::select! {
                    found = queue.recv() => found,
                    Some(_) = tasks.join_next(), if !tasks.is_empty() => continue,
                };
                let Some(found) = found else { return };
                let resource = found.resource.clone();
                let task = tasks.spawn(self.clone().follow(found));
                // The newest registration of a resource counts.
                if let Some(former) = followed.insert(resource, task) {
                    former.abort();
                }
            }
        };
        tokio::join!(serve(listener, router), follow);
    }

    async fn registration(&self, request: RegisterRequest) -> Result<Empty, Status> {
        if request.version != m::VERSION {
            return Err(Status::unknown(format!(
                "requested API version \"{}\" is not supported by kubelet. Supported version is \"{}\"",
                request.version,
                m::VERSION
            )));
        }
        if !is_extended(&request.resource_name) {
            return Err(Status::unknown(format!(
                "the ResourceName \"{}\" is invalid",
                request.resource_name
            )));
        }
        let name = Path::new(&request.endpoint).file_name();
        if name.is_none_or(|name| name != request.endpoint.as_str()) {
            return Err(Status::invalid_argument("the endpoint is no name of a socket"));
        }
        self.found(&request.resource_name, self.dir.join(&request.endpoint))
            .await
            .map_err(Status::unavailable)?;
        Ok(Empty {})
    }

    /// Takes a plug-in over that serves a resource on a socket.
    ///
    /// # Errors
    /// A text, when the kubelet ends.
    pub async fn found(&self, resource: &str, socket: PathBuf) -> Result<(), String> {
        let found = Found { resource: resource.to_owned(), socket };
        self.found.send(found).await.map_err(|_| "the kubelet is about to end".to_owned())
    }

    async fn follow(self: Arc<Self>, found: Found) {
        let ended = self.lists(&found).await;
        let mut state = self.state();
        if let Some(resource) = state.devices.resources.get_mut(&found.resource) {
            resource.disconnect();
        }
        if let Some(plugin) = state.plugins.get_mut(&found.resource) {
            plugin.stopped = Some(self.clock.now());
        }
        self.changed.notify_one();
        let error = ended.err();
        tracing::info!(resource = found.resource, ?error, "the connection to a device plug-in ended");
    }

    async fn lists(&self, found: &Found) -> Result<(), CallError> {
        let endpoint = Arc::new(Endpoint::connect(&found.socket).await?);
        let mut lists = endpoint.watch().await?;
        {
            let mut state = self.state();
            let plugin = Plugin { endpoint: Some(endpoint), stopped: None };
            state.plugins.insert(found.resource.clone(), plugin);
        }
        while let Some(list) = lists.next().await? {
            let resource = state::Resource::of(list.devices);
            let mut state = self.state();
            if state.devices.resources.get(&found.resource) != Some(&resource) {
                state.devices.resources.insert(found.resource.clone(), resource);
                self.save(&state);
                self.changed.notify_one();
            }
        }
        Ok(())
    }
}

/// Removes sockets of before: plug-ins see by it that the kubelet was started anew.
fn clean(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten().filter(|e| e.file_name() != CHECKPOINT) {
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if is_socket && let Err(error) = std::fs::remove_file(entry.path()) {
            tracing::warn!(%error, path = %entry.path().display(), "a stale socket cannot be removed");
        }
    }
}
