//! The few files that simulated containers write: those in an emptyDir volume are the pod's, those below a hostPath volume are the
//! node's, all others are the container's own and are gone with its run.
//!
//! Invariant: a pod has at most [`MOST_FILES`] files, all nodes together have at most [`MOST_HOST_FILES`].

use super::script::Files;
use crate::pods::core::{Container, Pod};
use crate::pods::model;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

const MOST_FILES: usize = 64;
const MOST_HOST_FILES: usize = 10_000;

/// Files below hostPath volumes, by node and path.
#[derive(Debug, Default)]
pub struct HostFiles(Mutex<BTreeMap<String, String>>);

/// Where a path leads.
enum FileLocation {
    /// A key of the pod's files.
    Pod(String),
    /// A key of the nodes' files.
    Host(String),
}

/// The files of one container.
pub struct ContainerFiles<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The container.
    pub container: &'a Container,
    /// The pod's files.
    pub files: &'a mut BTreeMap<String, String>,
    /// The nodes' files.
    pub host: &'a HostFiles,
}

/// Forgets the files of a container that are not in a volume.
pub fn reset(files: &mut BTreeMap<String, String>, container: &str) {
    let own = format!("container {container} ");
    files.retain(|key, _| !key.starts_with(&own));
}

impl ContainerFiles<'_> {
    fn locate(&self, path: &str) -> FileLocation {
        let mounts = self.container.volume_mounts.iter().flatten();
        let inside = mounts.filter_map(|mount| {
            let rest = path.strip_prefix(mount.mount_path.trim_end_matches('/'))?;
            (rest.is_empty() || rest.starts_with('/')).then_some((mount, rest))
        });
        // The volume that is mounted deepest.
        let found = inside.max_by_key(|(mount, _)| mount.mount_path.len());
        if let Some((mount, rest)) = found {
            let rest = format!("/{}{rest}", mount.sub_path.as_deref().unwrap_or_default());
            let volumes = model::spec(self.pod).volumes.iter().flatten();
            if let Some(volume) = volumes.into_iter().find(|volume| volume.name == mount.name) {
                if let Some(host) = &volume.host_path {
                    let node = model::spec(self.pod).node_name.as_deref().unwrap_or_default();
                    return FileLocation::Host(format!("{node} {}{rest}", host.path));
                }
                if volume.empty_dir.is_some() {
                    return FileLocation::Pod(format!("volume {} {rest}", volume.name));
                }
            }
        }
        FileLocation::Pod(format!("container {} {path}", self.container.name))
    }

    fn host(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, String>> {
        self.host.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn insert(files: &mut BTreeMap<String, String>, key: String, text: String, most: usize) {
    if files.len() < most || files.contains_key(&key) {
        files.insert(key, text);
    }
}

impl Files for ContainerFiles<'_> {
    fn read(&self, path: &str) -> Option<String> {
        match self.locate(path) {
            FileLocation::Pod(key) => self.files.get(&key).cloned(),
            FileLocation::Host(key) => self.host().get(&key).cloned(),
        }
    }

    fn write(&mut self, path: &str, text: String) {
        match self.locate(path) {
            FileLocation::Pod(key) => insert(self.files, key, text, MOST_FILES),
            FileLocation::Host(key) => insert(&mut self.host(), key, text, MOST_HOST_FILES),
        }
    }

    fn remove(&mut self, path: &str) {
        match self.locate(path) {
            FileLocation::Pod(key) => drop(self.files.remove(&key)),
            FileLocation::Host(key) => drop(self.host().remove(&key)),
        }
    }
}
