//! Rotation of containers' log files. Upstream's `container_log_manager.go`.
//!
//! `0.log` becomes `0.log.<time>` when it has grown too large; at the next rotation that one becomes `0.log.<time>.gz`.
//!
//! Invariants: a container has at most [`LogLimits::max_files`] log files once a rotation is complete; the file that was rotated last
//! is not compressed, so that the container's last writes and those that follow it are not lost; a log that cannot be
//! opened anew goes on under its own name.

use super::context::NodeContext;
use flate2::{Compression, write::GzEncoder};
use jiff::Timestamp;
use kaji_containers::{ContainerFilter, ContainerRuntime, ContainerState, RuntimeError};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Upstream's `containerLogMonitorInterval`.
const INTERVAL: Duration = Duration::from_secs(10);
/// Ends of the names of compressed files, and of those that are being written.
const COMPRESSED: &str = ".gz";
const UNFINISHED: &str = ".tmp";

/// How much log a container keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// Bytes at which a log is rotated: `containerLogMaxSize`.
    pub max_bytes: u64,
    /// Files of one container, the one that is written included: `containerLogMaxFiles`, two at least.
    pub max_files: usize,
}

impl Default for LogLimits {
    fn default() -> LogLimits {
        LogLimits { max_bytes: 10 << 20, max_files: 5 }
    }
}

/// Why a log was not rotated.
#[derive(Debug, Error)]
pub enum RotationError {
    /// A file.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The runtime did not open the log anew.
    #[error("failed to reopen container log: {0}")]
    Reopen(#[from] RuntimeError),
    /// The task that compresses ended early.
    #[error("compressing ended early: {0}")]
    Task(#[from] tokio::task::JoinError),
}

fn file(path: &Path) -> impl FnOnce(io::Error) -> RotationError + '_ {
    |error| RotationError::File { path: path.to_owned(), error }
}

/// Rotates the logs of a node's containers, for ever.
pub async fn run(cx: Arc<NodeContext>, limits: LogLimits) {
    loop {
        kaji_runtime::time::sleep(&*cx.clock, INTERVAL).await;
        if let Err(error) = rotate_all(&cx, limits).await {
            tracing::warn!(%error, "the containers' logs cannot be inspected");
        }
    }
}

async fn rotate_all(cx: &NodeContext, limits: LogLimits) -> Result<(), RuntimeError> {
    // What does not run writes nothing more.
    let filter = ContainerFilter { state: Some(ContainerState::Running), ..ContainerFilter::default() };
    for info in cx.runtime.list_containers(filter).await? {
        let status = match cx.runtime.container_status(&info.id).await {
            Ok(status) => status,
            Err(error) if error.is_not_found() => continue,
            Err(error) => return Err(error),
        };
        if status.log_path.is_empty() {
            continue;
        }
        let log = Path::new(&status.log_path);
        if let Err(error) = rotate(&*cx.runtime, &info.id, log, limits, cx.clock.now()).await {
            tracing::warn!(container = info.id, %error, "the container's log could not be rotated");
        }
    }
    Ok(())
}

/// Rotates one container's log if it is too large. Whether it was.
///
/// # Errors
/// The log goes on then; what was done is completed by the next rotation.
pub async fn rotate(
    runtime: &dyn ContainerRuntime,
    container: &str,
    log: &Path,
    limits: LogLimits,
    now: Timestamp,
) -> Result<bool, RotationError> {
    match fs::metadata(log) {
        Ok(found) if found.len() < limits.max_bytes => return Ok(false),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // It was renamed, and the process that did it ended before the log was opened anew.
            runtime.reopen_container_log(container).await?;
            return Ok(false);
        }
        Err(error) => return Err(file(log)(error)),
    }
    let path = log.to_owned();
    tokio::task::spawn_blocking(move || tidy(&path, limits.max_files)).await??;
    let mut rotated = log.as_os_str().to_owned();
    rotated.push(now.strftime(".%Y%m%d-%H%M%S").to_string());
    let rotated = PathBuf::from(rotated);
    fs::rename(log, &rotated).map_err(file(log))?;
    if let Err(error) = runtime.reopen_container_log(container).await {
        fs::rename(&rotated, log).map_err(file(&rotated))?;
        return Err(error.into());
    }
    Ok(true)
}

/// Removes and compresses files of former rotations.
fn tidy(log: &Path, max_files: usize) -> Result<(), RotationError> {
    let (Some(directory), Some(name)) = (log.parent(), log.file_name().and_then(|n| n.to_str())) else {
        return Ok(());
    };
    let plan = plan(&rotated_files(directory, name).map_err(file(directory))?, max_files);
    for name in &plan.remove {
        let path = directory.join(name);
        fs::remove_file(&path).map_err(file(&path))?;
    }
    for name in &plan.compress {
        let path = directory.join(name);
        compress(&path).map_err(file(&path))?;
    }
    Ok(())
}

/// Names of the files that rotations of a log have left.
fn rotated_files(directory: &Path, log: &str) -> io::Result<Vec<String>> {
    let prefix = format!("{log}.");
    let mut names = vec![];
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        names.extend(name.to_str().filter(|n| n.starts_with(&prefix)).map(str::to_owned));
    }
    Ok(names)
}

/// What to do with the files of former rotations.
#[derive(Debug, Default, PartialEq, Eq)]
struct LogPlan {
    remove: Vec<String>,
    compress: Vec<String>,
}

/// Half-written files, files of which there is a compressed one, and the oldest ones go; the others are compressed. Two files are
/// about to be there besides: the one that is rotated now, and the new one.
fn plan(names: &[String], max_files: usize) -> LogPlan {
    let compressed = |name: &String| names.iter().any(|other| other.strip_suffix(COMPRESSED) == Some(name));
    let (unused, mut used): (Vec<String>, Vec<String>) =
        names.iter().cloned().partition(|name| name.ends_with(UNFINISHED) || compressed(name));
    // Times in names sort as times.
    used.sort_unstable();
    let excess = used.len().saturating_sub(max_files.saturating_sub(2));
    let kept = used.split_off(excess);
    LogPlan {
        remove: unused.into_iter().chain(used).collect(),
        compress: kept.into_iter().filter(|name| !name.ends_with(COMPRESSED)).collect(),
    }
}

/// Replaces a file by its compressed form.
fn compress(path: &Path) -> io::Result<()> {
    let with = |end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    let mut from = File::open(path)?;
    let unfinished = with(UNFINISHED);
    let mode = from.metadata()?.mode() & 0o777;
    let to = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&unfinished)?;
    let mut encoder = GzEncoder::new(to, Compression::default());
    io::copy(&mut from, &mut encoder)?;
    encoder.finish()?;
    fs::rename(&unfinished, with(COMPRESSED))?;
    fs::remove_file(path)
}

/// Removes a container's log and the files of its rotations.
///
/// # Errors
/// Those of the file system.
pub fn remove_logs(log: &Path) -> io::Result<()> {
    let (Some(directory), Some(name)) = (log.parent(), log.file_name().and_then(|n| n.to_str())) else {
        return Ok(());
    };
    let absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let rotated = match rotated_files(directory, name) {
        Err(error) if absent(&error) => return Ok(()),
        names => names?,
    };
    for name in rotated.iter().map(String::as_str).chain([name]) {
        match fs::remove_file(directory.join(name)) {
            Err(error) if !absent(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_oldest_files_go_and_the_others_are_compressed() {
        let names = [
            "0.log.20260101-000000.gz",
            "0.log.20260102-000000.gz",
            "0.log.20260103-000000",
            "0.log.20260103-000000.gz",
            "0.log.20260104-000000",
            "0.log.20260104-000000.tmp",
            "0.log.20260105-000000",
        ];
        let names: Vec<String> = names.map(str::to_owned).to_vec();
        let shown = |max| {
            let plan = plan(&names, max);
            format!("remove {}\ncompress {}", plan.remove.join(" "), plan.compress.join(" "))
        };
        expect_test::expect![[r#"
            remove 0.log.20260103-000000 0.log.20260104-000000.tmp 0.log.20260101-000000.gz 0.log.20260102-000000.gz
            compress 0.log.20260104-000000 0.log.20260105-000000"#]]
        .assert_eq(&shown(5));
        expect_test::expect![[r#"
            remove 0.log.20260103-000000 0.log.20260104-000000.tmp 0.log.20260101-000000.gz 0.log.20260102-000000.gz 0.log.20260103-000000.gz 0.log.20260104-000000 0.log.20260105-000000
            compress "#]]
        .assert_eq(&shown(2));
    }

    proptest! {
        #[test]
        fn each_file_is_kept_or_removed_once_and_the_newest_stay(
            days in proptest::collection::btree_set((1..40_u32, 0..3_usize), 0..12), max in 0..8_usize,
        ) {
            let names: Vec<String> =
                days.iter().map(|(day, end)| format!("0.log.202601{day:02}{}", ["", COMPRESSED, UNFINISHED][*end])).collect();
            let plan = plan(&names, max);
            let kept: Vec<&String> = names.iter().filter(|n| !plan.remove.contains(n)).collect();
            prop_assert!(kept.len() <= max.saturating_sub(2));
            prop_assert!(plan.compress.iter().all(|n| kept.contains(&n)));
            prop_assert!(kept.iter().all(|n| n.ends_with(COMPRESSED) || plan.compress.contains(n)));
            let oldest = kept.iter().map(|n| &n[..14]).min();
            let used = |n: &&String| !n.ends_with(UNFINISHED) && !names.contains(&format!("{n}{COMPRESSED}"));
            let gone = plan.remove.iter().filter(used).map(|n| &n[..14]).max();
            prop_assert!(oldest.is_none() || gone.is_none() || gone <= oldest);
        }
    }
}
