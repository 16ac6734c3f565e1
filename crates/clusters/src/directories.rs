//! Where clusters have their files: the default cluster in the base directory, the others in a directory of their name below it.
//!
//! Invariant: only a directory with a record is removed, and of the base directory only what is the default cluster's.

use crate::{ClusterError, ClusterName, ClusterRecord, io_error};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// In the base directory: those of clusters that have a name.
const NAMED: &str = "clusters";

/// The directories of this user's clusters.
#[derive(Clone, Debug)]
pub struct ClusterDirectories {
    base: PathBuf,
}

impl ClusterDirectories {
    /// Below a base directory, which need not exist.
    pub fn new(base: impl Into<PathBuf>) -> ClusterDirectories {
        ClusterDirectories { base: base.into() }
    }

    /// The base directory.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// The data directory of a cluster, which need not exist.
    pub fn of(&self, name: &ClusterName) -> PathBuf {
        match name.is_default() {
            true => self.base.clone(),
            false => self.base.join(NAMED).join(name.as_str()),
        }
    }

    /// What is recorded of a cluster.
    ///
    /// # Errors
    /// When there is no such cluster, or its record cannot be read.
    pub fn record(&self, name: &ClusterName) -> Result<ClusterRecord, ClusterError> {
        ClusterRecord::read(&self.of(name))?
            .ok_or_else(|| ClusterError::Unknown { name: name.clone(), directory: self.base.clone() })
    }

    /// The names of all clusters that have a record, in order, the default one first.
    ///
    /// # Errors
    /// When a directory cannot be read.
    pub fn names(&self) -> Result<Vec<ClusterName>, ClusterError> {
        let mut names = Vec::new();
        let named = self.base.join(NAMED);
        let entries = match fs::read_dir(&named) {
            Ok(entries) => entries.collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        };
        for entry in entries.map_err(io_error(named.display()))? {
            let name = entry.file_name().to_str().and_then(|name| name.parse::<ClusterName>().ok());
            names.extend(name.filter(|name| !name.is_default()));
        }
        names.sort();
        names.insert(0, ClusterName::default());
        names.retain(|name| ClusterRecord::exists(&self.of(name)));
        Ok(names)
    }

    /// Removes all files of a cluster, which must not run.
    ///
    /// # Errors
    /// When there is no such cluster, or something cannot be removed.
    pub fn remove(&self, name: &ClusterName) -> Result<(), ClusterError> {
        let directory = self.of(name);
        if !ClusterRecord::exists(&directory) {
            return Err(ClusterError::Unknown { name: name.clone(), directory: self.base.clone() });
        }
        if !name.is_default() {
            return fs::remove_dir_all(&directory).map_err(io_error(directory.display()));
        }
        for entry in fs::read_dir(&directory).map_err(io_error(directory.display()))? {
            let entry = entry.map_err(io_error(directory.display()))?;
            let path = entry.path();
            if entry.file_name() == NAMED || ClusterRecord::is_record(&path) {
                continue;
            }
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let removed = if is_directory { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(io_error(path.display()))?;
        }
        // Last, so that an interrupted removal can be repeated.
        ClusterRecord::remove(&directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(directories: &ClusterDirectories, name: &ClusterName) {
        let directory = directories.of(name);
        fs::create_dir_all(directory.join("store")).unwrap();
        fs::write(directory.join("store/data"), "x").unwrap();
        ClusterRecord::new(name.clone(), Vec::new()).write(&directory).unwrap();
    }

    #[test]
    fn finds_and_removes_only_what_has_a_record() {
        let base = tempfile::tempdir().unwrap();
        let directories = ClusterDirectories::new(base.path());
        assert_eq!(directories.names().unwrap(), []);
        let [a, b]: [ClusterName; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        for name in [&b, &a, &ClusterName::default()] {
            cluster(&directories, name);
        }
        fs::create_dir_all(base.path().join("clusters/other/files")).unwrap();
        assert_eq!(directories.names().unwrap(), [ClusterName::default(), a.clone(), b.clone()]);

        directories.remove(&ClusterName::default()).unwrap();
        assert_eq!(directories.names().unwrap(), [a.clone(), b.clone()]);
        assert!(!base.path().join("store").exists());

        directories.remove(&a).unwrap();
        assert_eq!(directories.names().unwrap(), [b]);
        assert!(matches!(directories.remove(&a), Err(ClusterError::Unknown { .. })));
        let other = "other".parse().unwrap();
        assert!(matches!(directories.remove(&other), Err(ClusterError::Unknown { .. })));
        assert!(base.path().join("clusters/other/files").exists());
    }
}
