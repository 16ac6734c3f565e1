//! What a manager finds when it starts, and when a shim is lost.
//!
//! Invariants:
//! - A container that runs is adopted, by a new shim if its own is gone.
//! - A start that no shim had begun with is finished. A shim that begins late finds the bundle taken: a container runs once.
//! - One that a shim had begun to start and that neither runs nor has an exit record is recorded as exited, and not started again.
//! - What belongs to no record is removed.

use super::state::{Container, ContainerRecord, SandboxRecord};
use super::{Inner, overlay, shims};
use crate::records::{self, ExitRecord, RunRecord, now_nanos};
use crate::{cgroup, spec};
use kaji_containers::{NetworkSetup, PodSandboxState, RuntimeError};
use std::fs::{self, File};
use std::io;
use std::sync::Arc;

/// What became of a container that has lost its connection to its shim.
pub enum Found {
    /// It has exited.
    Ended,
    /// It runs, and has a shim.
    Running,
}

impl Inner {
    /// Looks after a container after its shim has ended or closed its connection.
    pub(super) async fn recover(self: &Arc<Inner>, id: &str) -> Found {
        let bundle = self.layout.bundle(id);
        loop {
            match records::read::<ExitRecord>(&bundle.join(records::EXIT)) {
                Ok(Some(exit)) => {
                    self.clean_up(id).await;
                    self.has_exited(id, exit);
                    return Found::Ended;
                }
                Ok(None) => {}
                Err(error) => tracing::warn!("the exit record of container {id} cannot be read: {error}"),
            }
            if !bundle.exists() {
                return Found::Ended;
            }
            if shims::is_alive(&bundle) {
                // It is about to listen, or to write its record.
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                if bundle.join(records::SOCKET).exists() && !bundle.join(records::EXIT).exists() {
                    return Found::Running;
                }
                continue;
            }
            if bundle.join(records::EXIT).exists() {
                continue;
            }
            if !bundle.join(records::CLAIM).exists() {
                match self.finish_start(id).await {
                    Some(found) => return found,
                    None => continue,
                }
            }
            let run = records::read::<RunRecord>(&bundle.join(records::RUN)).ok().flatten();
            if run.is_some_and(|run| run.is_alive()) {
                match shims::spawn(&self.shim, "adopt", &bundle).await {
                    Ok(()) => return Found::Running,
                    Err(error) => tracing::warn!("container {id} could not be adopted: {error}"),
                }
            }
            if let Err(error) = self.record_lost(id).await {
                tracing::warn!("the exit of container {id} cannot be recorded: {error}");
                return Found::Ended;
            }
        }
    }

    /// Starts a container that was asked to start, and that no shim has claimed. `None` when the bundle is to be looked at again.
    async fn finish_start(self: &Arc<Inner>, id: &str) -> Option<Found> {
        let bundle = self.layout.bundle(id);
        let Ok(sandbox) = self.with_container(id, |container| container.record.sandbox.clone()) else {
            return Some(Found::Ended);
        };
        if self.ready_sandbox(&sandbox).is_err() {
            // A shim that begins from now on gives up.
            return match File::options().write(true).create_new(true).open(bundle.join(records::CLAIM)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Some(Found::Ended),
                _ => None,
            };
        }
        let error = match shims::spawn(&self.shim, "start", &bundle).await {
            Ok(()) => return Some(Found::Running),
            Err(error) => error,
        };
        if shims::is_alive(&bundle) {
            // The former manager's shim has begun.
            return None;
        }
        if let Err(error) = self.record_failed_start(id, &error).await {
            tracing::warn!("the exit of container {id} cannot be recorded: {error}");
        }
        Some(Found::Ended)
    }

    /// Nothing can tell how the container ended.
    async fn record_lost(&self, id: &str) -> Result<(), RuntimeError> {
        self.clean_up(id).await;
        let bundle = self.layout.bundle(id);
        let run = records::read::<RunRecord>(&bundle.join(records::RUN))?.unwrap_or_default();
        let exit = ExitRecord {
            exit_code: 255,
            started_at_nanos: run.started_at_nanos,
            finished_at_nanos: now_nanos(),
            reason: "Unknown".into(),
            message: "the container's shim was lost".into(),
        };
        Ok(records::write(&bundle.join(records::EXIT), &exit)?)
    }

    /// Reads what a former manager left, adopts it and removes the rest.
    pub(super) async fn restore(self: &Arc<Inner>) -> Result<(), RuntimeError> {
        for name in names(&self.layout.sandboxes())? {
            let record = records::read::<SandboxRecord>(&self.layout.sandbox(&name).join("sandbox.json"))?;
            match record.filter(|record| record.id == name) {
                Some(mut record) => {
                    if record.state == PodSandboxState::Ready && !self.is_intact(&mut record).await {
                        record.state = PodSandboxState::NotReady;
                        self.layout.save_sandbox(&record)?;
                    }
                    self.state().sandboxes.insert(name, record);
                }
                None => overlay::remove_directory(&self.layout.sandbox(&name))?,
            }
        }
        for name in names(&self.layout.containers())? {
            let bundle = self.layout.bundle(&name);
            let record = records::read::<ContainerRecord>(&bundle.join("container.json"))?;
            let owned = record.filter(|r| r.id == name && self.sandbox(&r.sandbox).is_some());
            let complete = bundle.join(records::SHIM_CONFIG).exists();
            match owned {
                Some(record) if complete => self.restore_container(record).await?,
                _ => overlay::remove_directory(&bundle)?,
            }
        }
        let leases = self.options.images.leases().await?;
        let held: Vec<String> =
            self.state().containers.values().flat_map(|container| container.record.leases.clone()).collect();
        let lost: Vec<String> = leases.into_iter().filter(|owner| !held.contains(owner)).collect();
        self.release(&lost).await;
        if let Some(network) = &self.options.network {
            let known: Vec<String> = self.state().sandboxes.keys().cloned().collect();
            network.sweep(known).await?;
        }
        Ok(())
    }

    async fn restore_container(self: &Arc<Inner>, record: ContainerRecord) -> Result<(), RuntimeError> {
        let id = record.id.clone();
        let bundle = self.layout.bundle(&id);
        let run = records::read::<RunRecord>(&bundle.join(records::RUN))?;
        let exit = records::read::<ExitRecord>(&bundle.join(records::EXIT))?;
        let (started, ended) = (record.started, exit.is_some());
        self.state().containers.insert(id.clone(), Container::new(record, run, exit));
        if started && !ended {
            // A start that was under way when the former manager ended goes on: its shim lives, or the start failed.
            if matches!(self.recover(&id).await, Found::Running) {
                let run = records::read::<RunRecord>(&bundle.join(records::RUN))?;
                self.with_container(&id, |container| container.run = run)?;
                self.clone().watch(id);
            }
        } else if ended {
            self.clean_up(&id).await;
        }
        Ok(())
    }

    async fn is_intact(&self, record: &mut SandboxRecord) -> bool {
        let wanted = super::sandboxes::pins(&self.layout, &record.id, &record.config);
        let mounted = super::namespaces::mounts_below(&self.layout.sandbox(&record.id)).unwrap_or_default();
        if !wanted.iter().all(|(_, path)| mounted.contains(path)) {
            return false;
        }
        let Some(network) = self.options.network.as_ref() else { return true };
        let Some(setup) = self.network_setup(record) else { return true };
        match network.adopt(setup).await {
            Ok(found) => {
                record.addresses = found.addresses;
                true
            }
            Err(error) => {
                tracing::warn!("the network of sandbox {} was lost: {error}", record.id);
                false
            }
        }
    }

    /// What the network needs to know of a sandbox; `None` in the node's network.
    pub(super) fn network_setup(&self, record: &SandboxRecord) -> Option<NetworkSetup> {
        let config = &record.config;
        if matches!(config.security.namespaces.network, kaji_containers::NamespaceMode::Node) {
            return None;
        }
        Some(NetworkSetup {
            sandbox_id: record.id.clone(),
            metadata: config.metadata.clone(),
            namespace: self.layout.namespace(&record.id, "net"),
            port_mappings: config.port_mappings.clone(),
            annotations: config.annotations.clone(),
        })
    }

    /// The cgroups that the containers of a sandbox may have left.
    pub(super) fn sweep_cgroups(
        &self,
        record: &SandboxRecord,
        containers: &[String],
    ) -> Result<(), RuntimeError> {
        for id in containers {
            let directories = cgroup::directories(&spec::container_cgroup(&record.config, id));
            cgroup::kill_all(&directories);
            cgroup::remove(&directories)?;
        }
        Ok(())
    }
}

fn names(directory: &std::path::Path) -> Result<Vec<String>, RuntimeError> {
    let mut names = vec![];
    for entry in fs::read_dir(directory)? {
        names.extend(entry?.file_name().into_string().ok());
    }
    Ok(names)
}
