//! Records of sandboxes on disk, one file a sandbox, and the record of a pod of the built-in network, the addresses of which survive a
//! restart by it.
//!
//! Invariant: a file is whole or absent, since it is renamed into place. It is not synced: after a crash of the machine no sandbox
//! is left that a record could be about.

use crate::NetworkError;
use kaji_containers::PortMapping;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    fs, io,
    marker::PhantomData,
    net::IpAddr,
    path::{Path, PathBuf},
};

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

impl SandboxRecord for Record {
    fn sandbox(&self) -> &str {
        &self.sandbox
    }
}

/// What is kept about a sandbox.
pub trait SandboxRecord: Serialize + DeserializeOwned {
    /// The sandbox's id.
    fn sandbox(&self) -> &str;
}

/// A directory of records.
#[derive(Debug)]
pub struct Records<R> {
    directory: PathBuf,
    record: PhantomData<fn() -> R>,
}

impl<R: SandboxRecord> Records<R> {
    /// Makes the directory. Files that were not finished are removed.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(directory: PathBuf) -> Result<Records<R>, NetworkError> {
        let shown = directory.display().to_string();
        fs::create_dir_all(&directory).map_err(NetworkError::io(&shown))?;
        for entry in fs::read_dir(&directory).map_err(NetworkError::io(&shown))? {
            let path = entry.map_err(NetworkError::io(&shown))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                fs::remove_file(&path).map_err(NetworkError::io(path.display().to_string()))?;
            }
        }
        Ok(Records { directory, record: PhantomData })
    }

    /// Ids come from the runtime, which makes them; a path in one is a mistake.
    fn path(&self, sandbox: &str) -> Result<PathBuf, NetworkError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if sandbox.is_empty() || sandbox.len() > 200 || !sandbox.chars().all(plain) {
            return Err(NetworkError::Invalid(format!("invalid sandbox id {sandbox:?}")));
        }
        Ok(self.directory.join(format!("{sandbox}.json")))
    }

    /// A sandbox's record.
    ///
    /// # Errors
    /// Those of the file system, and a record that does not decode.
    pub fn read(&self, sandbox: &str) -> Result<Option<R>, NetworkError> {
        read_file(&self.path(sandbox)?)
    }

    /// All of them.
    ///
    /// # Errors
    /// Those of the file system, and a record that does not decode.
    pub fn all(&self) -> Result<Vec<R>, NetworkError> {
        let shown = self.directory.display().to_string();
        let mut found = vec![];
        for entry in fs::read_dir(&self.directory).map_err(NetworkError::io(&shown))? {
            let path = entry.map_err(NetworkError::io(&shown))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                found.extend(read_file(&path)?);
            }
        }
        Ok(found)
    }

    /// Writes a record.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, record: &R) -> Result<(), NetworkError> {
        let path = self.path(record.sandbox())?;
        let (shown, unfinished) = (path.display().to_string(), path.with_extension("new"));
        let text = serde_json::to_vec(record)
            .map_err(|error| NetworkError::Io(shown.clone(), io::Error::other(error)))?;
        fs::write(&unfinished, text)
            .and_then(|()| fs::rename(&unfinished, &path))
            .map_err(NetworkError::io(shown))
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

fn read_file<R: DeserializeOwned>(path: &Path) -> Result<Option<R>, NetworkError> {
    let shown = path.display().to_string();
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|error| NetworkError::Io(shown, io::Error::other(error))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(NetworkError::Io(shown, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_whole_and_ids_are_no_paths() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Records::<Record>::open(directory.path().to_owned()).unwrap();
        let record = |sandbox: &str| Record { sandbox: sandbox.to_owned(), ..Record::default() };
        open().write(&record("a-1")).unwrap();
        open().write(&record("b_2")).unwrap();
        fs::write(directory.path().join("c.new"), "{").unwrap();
        let records = open();
        assert!(!directory.path().join("c.new").exists());
        assert_eq!(records.read("a-1").unwrap(), Some(record("a-1")));
        records.remove("a-1").unwrap();
        records.remove("a-1").unwrap();
        assert_eq!(records.all().unwrap(), [record("b_2")]);
        for id in ["", "../x", "a/b", "a.b", &"a".repeat(201)] {
            assert!(matches!(records.read(id), Err(NetworkError::Invalid(_))), "{id}");
        }
        fs::write(directory.path().join("d.json"), "{").unwrap();
        assert!(matches!(records.all(), Err(NetworkError::Io(..))));
    }
}
