//! The files that a container's bundle holds beside its OCI `config.json`, and how they are replaced.
//!
//! Invariant: a file is whole or absent: it is written under another name and renamed.

use crate::seccomp::Profile;
use crate::user_namespaces::Staging;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// OCI runtime configuration.
pub const SPEC: &str = "config.json";
/// [`ShimConfig`].
pub const SHIM_CONFIG: &str = "shim.json";
/// Created exclusively by the shim that starts the container.
pub const CLAIM: &str = "claim";
/// Locked by the shim as long as it lives.
pub const LOCK: &str = "shim.lock";
/// The shim's socket.
pub const SOCKET: &str = "shim.sock";
/// [`RunRecord`].
pub const RUN: &str = "run.json";
/// [`ExitRecord`].
pub const EXIT: &str = "exit.json";

/// What a shim has to know beside the OCI configuration.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ShimConfig {
    /// Of the container.
    pub id: String,
    /// Absolute; `None` for no log.
    pub log_path: Option<PathBuf>,
    /// Standard input is kept open.
    pub stdin: bool,
    /// It is closed after the first client that attached has gone.
    pub stdin_once: bool,
    /// The container has a terminal.
    pub tty: bool,
    /// The user that opens the standard streams by their names in `/dev`.
    pub uid: u32,
    /// Group of the same.
    pub gid: u32,
    /// Capabilities at exec; those in the OCI configuration include what loading the filter needs.
    pub capabilities: FinalCapabilities,
    /// Of system calls; `None`: unconfined.
    pub seccomp: Option<Profile>,
    /// The container has no program: its process only reaps, as the first one of a pod's pid namespace.
    pub reaper: bool,
    /// Directories of the container's cgroup, one a hierarchy.
    pub cgroups: Vec<PathBuf>,
    /// Written to the first process, as far as the kernel permits.
    pub oom_score_adj: i64,
    /// For a container in a pod's user namespace.
    pub staging: Option<Staging>,
}

/// Names as in `CAP_CHOWN`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FinalCapabilities {
    /// Bounding, effective and permitted set.
    pub bounding: Vec<String>,
    /// Inheritable and ambient set.
    pub ambient: Vec<String>,
}

/// A container's process runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunRecord {
    /// On the node.
    pub pid: i32,
    /// Clock ticks since boot, so that another process of the same id is not taken for it.
    pub start_time: u64,
    /// Nanoseconds since the epoch.
    pub started_at_nanos: i64,
}

/// A container has exited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExitRecord {
    /// 128 plus the number of the signal that ended it.
    pub exit_code: i32,
    /// Nanoseconds since the epoch; 0 if it was not started.
    pub started_at_nanos: i64,
    /// Nanoseconds since the epoch.
    pub finished_at_nanos: i64,
    /// As in a container's status.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// Reads a record; `None` when the file does not exist.
///
/// # Errors
/// When it cannot be read or does not parse.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a record, readable by its owner only.
///
/// # Errors
/// Those of the file system.
pub fn write(path: &Path, record: &impl Serialize) -> io::Result<()> {
    write_bytes(path, &serde_json::to_vec(record)?)
}

/// Writes a file, readable by its owner only.
///
/// # Errors
/// Those of the file system.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(bytes)?;
    drop(file);
    fs::rename(&temporary, path)
}

/// Nanoseconds since the epoch.
pub fn now_nanos() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// The fields of a process's `stat` from the third one on; the name before them may hold spaces and parentheses.
pub fn fields_after_name(stat: &str) -> Option<std::str::SplitWhitespace<'_>> {
    Some(stat.rsplit_once(')')?.1.split_whitespace())
}

/// When a process was started, in clock ticks since boot; `None` when there is none, or only a zombie.
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = fields_after_name(&stat)?;
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The parent of a process.
pub fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    fields_after_name(&stat)?.nth(1)?.parse().ok()
}

/// How a process ended, as wait(2) shows it; `None` unless it has ended and was not collected by its parent yet.
pub fn uncollected_status(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = fields_after_name(&stat)?;
    (fields.next()? == "Z").then(|| fields.nth(48)?.parse().ok()).flatten()
}

impl RunRecord {
    /// Whether the process still exists.
    pub fn is_alive(&self) -> bool {
        self.pid > 0 && start_time(self.pid) == Some(self.start_time)
    }
}
