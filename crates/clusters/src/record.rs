//! What a cluster's server writes of itself into the cluster's directory: how it was started, its process, and where it is reached.
//!
//! Invariants: the file is whole at any moment. What a newer version of the program wrote is refused, not misread.

use crate::{ClusterError, ClusterName, ProcessId, io_error};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// The file's name.
const FILE: &str = "cluster.json";
/// The file's format.
const FORMAT: u32 = 1;
/// A record is a page of text; whatever is longer is none.
const LONGEST: u64 = 1 << 20;

/// How far a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// It is not ready yet.
    Starting,
    /// It was ready.
    Ready,
}

/// A cluster's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRecord {
    format: u32,
    /// The cluster's name.
    #[serde(with = "name_as_text")]
    pub name: ClusterName,
    /// How far the server in `process` is, or was when it ended.
    pub state: State,
    /// The command line after `kaji up`.
    pub arguments: Vec<String>,
    /// Variables of the environment that the command line was read with.
    pub environment: BTreeMap<String, String>,
    /// The directory in which the command line was given.
    pub working_directory: PathBuf,
    /// The server's process, which may have ended.
    pub process: Option<ProcessId>,
    /// The API server.
    pub url: Option<String>,
    /// The kubeconfig file with the cluster's context; none was written if it is missing.
    pub kubeconfig: Option<PathBuf>,
    /// The nodes, as a line of text.
    pub nodes: String,
    /// Whether containers run.
    pub runs_containers: bool,
    /// The version of Kubernetes that is served.
    pub version: String,
    /// When the server was started, in seconds since 1970.
    pub started: u64,
}

mod name_as_text {
    use super::ClusterName;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(name: &ClusterName, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(name.as_str())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ClusterName, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl ClusterRecord {
    /// Of a cluster that is about to start.
    pub fn new(name: ClusterName, arguments: Vec<String>) -> ClusterRecord {
        ClusterRecord {
            format: FORMAT,
            name,
            state: State::Starting,
            arguments,
            environment: BTreeMap::new(),
            working_directory: PathBuf::new(),
            process: None,
            url: None,
            kubeconfig: None,
            nodes: String::new(),
            runs_containers: false,
            version: String::new(),
            started: 0,
        }
    }

    /// The process that serves the cluster now.
    pub fn running(&self) -> Option<&ProcessId> {
        self.process.as_ref().filter(|process| process.is_alive())
    }

    /// The port of the last server.
    pub fn port(&self) -> Option<u16> {
        self.url.as_deref()?.trim_end_matches('/').rsplit(':').next()?.parse().ok()
    }

    /// Whether a directory has one.
    pub fn exists(directory: &Path) -> bool {
        directory.join(FILE).is_file()
    }

    /// Whether a path is that of a record.
    pub fn is_record(path: &Path) -> bool {
        path.file_name().is_some_and(|name| name == FILE)
    }

    /// Reads the record in a cluster's directory, if there is one.
    ///
    /// # Errors
    /// When it cannot be read, is malformed, or of a newer version of the program.
    pub fn read(directory: &Path) -> Result<Option<ClusterRecord>, ClusterError> {
        let path = directory.join(FILE);
        let malformed = |reason: String| ClusterError::Malformed { path: path.clone(), reason };
        let length = match fs::metadata(&path) {
            Ok(found) => found.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error(path.display())(error)),
        };
        if length > LONGEST {
            return Err(malformed(format!("it has {length} bytes")));
        }
        let text = fs::read(&path).map_err(io_error(path.display()))?;
        let value: serde_json::Value = serde_json::from_slice(&text).map_err(|e| malformed(e.to_string()))?;
        match value["format"].as_u64() {
            Some(format) if format > u64::from(FORMAT) => {
                return Err(malformed(format!(
                    "its format is {format}, of a newer version; this one knows {FORMAT}"
                )));
            }
            _ => {}
        }
        serde_json::from_value(value).map(Some).map_err(|e| malformed(e.to_string()))
    }

    /// Writes the record into a cluster's directory.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, directory: &Path) -> Result<(), ClusterError> {
        let path = directory.join(FILE);
        let text = serde_json::to_vec_pretty(self).map_err(io::Error::from);
        text.and_then(|text| kaji_files::replace(&path, &text, kaji_files::PRIVATE))
            .map_err(io_error(path.display()))
    }

    /// Removes the record in a cluster's directory.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(directory: &Path) -> Result<(), ClusterError> {
        let path = directory.join(FILE);
        fs::remove_file(&path).map_err(io_error(path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(ClusterRecord::read(dir.path()).unwrap(), None);
        let mut record = ClusterRecord::new("dev".parse().unwrap(), vec!["--port=1".into()]);
        record.url = Some("https://127.0.0.1:7001".into());
        record.process = ProcessId::of(1);
        record.write(dir.path()).unwrap();
        assert_eq!(ClusterRecord::read(dir.path()).unwrap(), Some(record.clone()));
        assert_eq!(record.port(), Some(7001));
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        let dir = tempfile::tempdir().unwrap();
        let reason = |text: &str| {
            fs::write(dir.path().join(FILE), text).unwrap();
            let error = ClusterRecord::read(dir.path()).unwrap_err().to_string();
            error.replace(&*dir.path().to_string_lossy(), "")
        };
        expect_test::expect![[r#"
            /cluster.json is not the record of a cluster: expected ident at line 1 column 2
            /cluster.json is not the record of a cluster: its format is 2, of a newer version; this one knows 1
            /cluster.json is not the record of a cluster: missing field `format`"#]]
        .assert_eq(&[reason("no"), reason(r#"{"format":2}"#), reason("{}")].join("\n"));
    }
}
