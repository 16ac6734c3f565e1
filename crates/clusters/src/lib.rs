//! The clusters of this machine as things with a name: where each has its files, what is recorded of it, whether its process runs,
//! and how it is started in the background and stopped.
//!
//! - `name`: names of clusters.
//! - `directories`: from a name to the directory of the cluster's files, and back.
//! - `record`: what a cluster's server writes of itself.
//! - `process`: which process serves a cluster, and signals to it.
//! - `doctor`: what the machine has and lacks for clusters.
//! - `launch`: starting a server in the background.
//! - `log`: the end of a server's log.
//! - `service_manager`: notices of start and end for systemd.
//!
//! Invariants: nothing is removed but directories with a record. A process is only sent signals if it is the one in the record: its
//! id, its start and the machine's boot are compared, since ids of processes are used again.

pub mod directories;
pub mod doctor;
pub mod launch;
pub mod log;
pub mod name;
pub mod process;
pub mod record;
pub mod service_manager;

pub use directories::ClusterDirectories;
pub use name::ClusterName;
pub use process::ProcessId;
pub use record::{ClusterRecord, State};

use std::{io, path::PathBuf};

/// Why something could not be done with a cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// There is none.
    #[error("there is no cluster {name} in {directory}; kaji list shows those that there are")]
    Unknown {
        /// Its name.
        name: ClusterName,
        /// The directory of all.
        directory: PathBuf,
    },
    /// Its server runs.
    #[error("the cluster {name} runs already, as process {pid}; kaji stop {name} stops it")]
    Running {
        /// Its name.
        name: ClusterName,
        /// The process.
        pid: i32,
    },
    /// A server that was started has ended before it was ready.
    #[error("the server ended before it was ready; the end of its log, {log}:\n{text}")]
    Ended {
        /// The log.
        log: PathBuf,
        /// Its last lines.
        text: String,
    },
    /// A server that was started is not ready in time. It goes on.
    #[error("the server is not ready after {seconds} s; it keeps running; its log is {log}")]
    NotReady {
        /// The time.
        seconds: u64,
        /// The log.
        log: PathBuf,
    },
    /// A process that does not end.
    #[error("process {pid} has not ended after {seconds} s; --force kills it")]
    NotStopped {
        /// The process.
        pid: i32,
        /// The time.
        seconds: u64,
    },
    /// A record that is none.
    #[error("{path} is not the record of a cluster: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A file or process.
    #[error("{what}: {source}")]
    Io {
        /// Which.
        what: String,
        /// What went wrong.
        source: io::Error,
    },
}

/// Says of what an error is.
pub(crate) fn io_error(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> ClusterError {
    move |source| ClusterError::Io { what: what.to_string(), source }
}
