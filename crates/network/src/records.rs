//! Pods' records on disk: one file a sandbox, so that addresses survive a restart.
//!
//! Invariant: a file is whole or absent, since it is renamed into place. It is not synced: after a crash of the machine no sandbox
//! is left that a record could be about.

use crate::NetworkError;
use kaji_containers::PortMapping;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fs, io, net::IpAddr, path::PathBuf};

/// What was set up for a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    /// The sandbox's id.
    pub sandbox: String,
    /// `namespace/name` of the pod, for people.
    pub pod: String,
    /// Addresses, the primary one first.
    pub addresses: Vec<IpAddr>,
    /// Of the interface on the node.
    pub link: String,
    /// Those with a host port.
    pub ports: Vec<PortMapping>,
}

/// The directory of records.
#[derive(Debug)]
pub struct Records {
    directory: PathBuf,
}

impl Records {
    /// Makes the directory and reads what is in it. Files that were not finished are removed.
    ///
    /// # Errors
    /// Those of the file system, and a record that does not decode.
    pub fn open(directory: PathBuf) -> Result<(Records, BTreeMap<String, Record>), NetworkError> {
        let shown = directory.display().to_string();
        fs::create_dir_all(&directory).map_err(NetworkError::io(&shown))?;
        let mut records = BTreeMap::new();
        for entry in fs::read_dir(&directory).map_err(NetworkError::io(&shown))? {
            let path = entry.map_err(NetworkError::io(&shown))?.path();
            let shown = path.display().to_string();
            if path.extension().is_none_or(|extension| extension != "json") {
                fs::remove_file(&path).map_err(NetworkError::io(&shown))?;
                continue;
            }
            let text = fs::read(&path).map_err(NetworkError::io(&shown))?;
            let record: Record = serde_json::from_slice(&text)
                .map_err(|error| NetworkError::Io(shown, io::Error::other(error)))?;
            records.insert(record.sandbox.clone(), record);
        }
        Ok((Records { directory }, records))
    }

    /// Ids come from the runtime, which makes them; a path in one is a mistake.
    fn path(&self, sandbox: &str) -> Result<PathBuf, NetworkError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if sandbox.is_empty() || sandbox.len() > 200 || !sandbox.chars().all(plain) {
            return Err(NetworkError::Invalid(format!("invalid sandbox id {sandbox:?}")));
        }
        Ok(self.directory.join(format!("{sandbox}.json")))
    }

    /// Writes a record.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, record: &Record) -> Result<(), NetworkError> {
        let path = self.path(&record.sandbox)?;
        let shown = path.display().to_string();
        let unfinished = path.with_extension("new");
        let text = serde_json::to_vec(record)
            .map_err(|error| NetworkError::Io(shown.clone(), io::Error::other(error)))?;
        fs::write(&unfinished, text).map_err(NetworkError::io(&shown))?;
        fs::rename(&unfinished, &path).map_err(NetworkError::io(&shown))
    }

    /// Removes a record, if there is one.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn remove(&self, sandbox: &str) -> Result<(), NetworkError> {
        let path = self.path(sandbox)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(NetworkError::Io(path.display().to_string(), error))
            }
            _ => Ok(()),
        }
    }
}
