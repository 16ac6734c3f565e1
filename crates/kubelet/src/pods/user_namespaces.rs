//! Ranges of ids for pods with user namespaces (`hostUsers: false`). Upstream's `userns` manager.
//!
//! Each such pod gets 65,536 ids of its own, the same for users and groups, from which no other pod of the node has any. The range is
//! in the file `userns` of the pod's directory, in upstream's form, before it is used.
//!
//! Invariants: a range is never of two pods at once; ids below 65,536 are never handed out; a range is free again when the pod's
//! directory is gone.

use kaji_containers::{IdMapping, UserNamespace};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use thiserror::Error;

/// Ids of a pod.
pub const IDS_PER_POD: u32 = 65_536;
const FILE: &str = "userns";
/// Ranges in all, but for the one that is the node's own.
const RANGES: u32 = u32::MAX / IDS_PER_POD;

/// Why a pod has no range.
#[derive(Debug, Error)]
pub enum UserNamespaceError {
    /// All are taken.
    #[error("create user namespace: could not find an empty slot to allocate a user namespace")]
    Exhausted,
    /// The file says something else than what was written.
    #[error("user namespace: invalid user namespace configuration: {0}")]
    Invalid(String),
    /// The file cannot be read or written.
    #[error("user namespace: {0}")]
    Io(#[from] io::Error),
}

/// The file of a pod.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mappings {
    uid_mappings: Vec<IdMapping>,
    gid_mappings: Vec<IdMapping>,
}

/// Hands out ranges.
#[derive(Debug)]
pub struct UserNamespaces {
    pods: PathBuf,
    /// First id by pod uid; `None` before the directories of pods were read.
    taken: Mutex<Option<BTreeMap<String, u32>>>,
}

impl UserNamespaces {
    /// Below the kubelet's directory.
    #[must_use]
    pub fn new(root: &Path) -> UserNamespaces {
        UserNamespaces { pods: root.join("pods"), taken: Mutex::new(None) }
    }

    /// The user namespace of a pod: the one that it has, or a new one.
    ///
    /// # Errors
    /// [`UserNamespaceError`]; its text is the end of an event's.
    pub fn of_pod(&self, uid: &str) -> Result<UserNamespace, UserNamespaceError> {
        let mut taken = self.read()?;
        let taken = taken.get_or_insert_default();
        if let Some(first) = taken.get(uid) {
            return Ok(namespace(*first));
        }
        let used: std::collections::BTreeSet<u32> = taken.values().copied().collect();
        let first = (1..=RANGES).map(|number| number * IDS_PER_POD).find(|first| !used.contains(first));
        let first = first.ok_or(UserNamespaceError::Exhausted)?;
        self.write(uid, first)?;
        taken.insert(uid.to_owned(), first);
        Ok(namespace(first))
    }

    /// A pod's directory is gone.
    pub fn release(&self, uid: &str) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = taken.as_mut()
            && !self.pods.join(uid).join(FILE).exists()
        {
            taken.remove(uid);
        }
    }

    fn read(&self) -> Result<MutexGuard<'_, Option<BTreeMap<String, u32>>>, UserNamespaceError> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.is_none() {
            *taken = Some(self.read_pods()?);
        }
        Ok(taken)
    }

    fn read_pods(&self) -> Result<BTreeMap<String, u32>, UserNamespaceError> {
        let mut found = BTreeMap::new();
        let entries = match std::fs::read_dir(&self.pods) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let bytes = match std::fs::read(entry.path().join(FILE)) {
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
                {
                    continue;
                }
                bytes => bytes?,
            };
            let first = first_id(&bytes)?;
            if found.values().any(|known| *known == first) {
                return Err(UserNamespaceError::Invalid(format!("range {first} is of two pods")));
            }
            found.insert(entry.file_name().to_string_lossy().into_owned(), first);
        }
        Ok(found)
    }

    /// The file lasts, as the ids of what the pod writes do.
    fn write(&self, uid: &str, first: u32) -> Result<(), UserNamespaceError> {
        let directory = self.pods.join(uid);
        std::fs::create_dir_all(&directory)?;
        let UserNamespace { uids, gids } = namespace(first);
        let mappings = Mappings { uid_mappings: uids, gid_mappings: gids };
        let bytes = serde_json::to_vec(&mappings).map_err(io::Error::from)?;
        let temporary = directory.join(".userns");
        let mut file = std::fs::File::create(&temporary)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, directory.join(FILE))?;
        Ok(std::fs::File::open(&directory)?.sync_all()?)
    }
}

fn namespace(first: u32) -> UserNamespace {
    let range = IdMapping { host_id: first, container_id: 0, length: IDS_PER_POD };
    UserNamespace { uids: vec![range], gids: vec![range] }
}

fn first_id(bytes: &[u8]) -> Result<u32, UserNamespaceError> {
    let invalid = |what: String| UserNamespaceError::Invalid(what);
    let mappings: Mappings = serde_json::from_slice(bytes).map_err(|error| invalid(error.to_string()))?;
    let [range] = mappings.uid_mappings.as_slice() else {
        return Err(invalid("no more than one mapping allowed.".to_owned()));
    };
    if mappings.uid_mappings != mappings.gid_mappings {
        return Err(invalid("GID and UID mapping should be identical".to_owned()));
    }
    if range.container_id != 0 {
        return Err(invalid("UID 0 must be mapped".to_owned()));
    }
    if range.length != IDS_PER_POD {
        return Err(invalid(format!("wrong user namespace length {}", range.length)));
    }
    if range.host_id == 0 || range.host_id % IDS_PER_POD != 0 {
        return Err(invalid(format!("wrong user namespace offset specified {}", range.host_id)));
    }
    Ok(range.host_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(namespaces: &UserNamespaces, uid: &str) -> u32 {
        namespaces.of_pod(uid).unwrap().uids[0].host_id
    }

    #[test]
    fn ranges_are_kept_and_freed() {
        let dir = tempfile::tempdir().unwrap();
        let namespaces = UserNamespaces::new(dir.path());
        assert_eq!([first(&namespaces, "a"), first(&namespaces, "b")], [65_536, 131_072]);
        assert_eq!(first(&namespaces, "a"), 65_536);
        let text = std::fs::read_to_string(dir.path().join("pods/a/userns")).unwrap();
        assert_eq!(
            text,
            r#"{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}"#
        );
        // A range is its pod's as long as the pod's directory is there.
        namespaces.release("a");
        assert_eq!(first(&namespaces, "c"), 196_608);
        std::fs::remove_dir_all(dir.path().join("pods/a")).unwrap();
        namespaces.release("a");
        assert_eq!(first(&namespaces, "d"), 65_536);
        let again = UserNamespaces::new(dir.path());
        assert_eq!([first(&again, "b"), first(&again, "c"), first(&again, "e")], [131_072, 196_608, 262_144]);
    }

    #[test]
    fn files_that_say_something_else_are_refused() {
        let file = |host: u32, container: u32, length: u32, gids: &str| {
            let range = format!(r#"{{"hostId":{host},"containerId":{container},"length":{length}}}"#);
            let gids = if gids.is_empty() { range.clone() } else { gids.to_owned() };
            first_id(format!(r#"{{"uidMappings":[{range}],"gidMappings":[{gids}]}}"#).as_bytes()).ok()
        };
        assert_eq!(file(65_536, 0, 65_536, ""), Some(65_536));
        assert_eq!(file(0, 0, 65_536, ""), None);
        assert_eq!(file(65_537, 0, 65_536, ""), None);
        assert_eq!(file(65_536, 1, 65_536, ""), None);
        assert_eq!(file(65_536, 0, 1000, ""), None);
        assert_eq!(file(65_536, 0, 65_536, r#"{"hostId":0,"containerId":0,"length":65536}"#), None);
        assert!(first_id(b"{").is_err());
    }
}
