//! `cargo xtask check-watches`: the checker of watches and lists, for longer than `cargo test` runs it.
//!
//! It runs against a server in memory with a history that is compacted, and against a process that is killed, each half of the
//! time. A finding names the seed of its round.

use std::{
    io,
    path::Path,
    process::ExitStatus,
    time::{SystemTime, UNIX_EPOCH},
};

/// What the command takes.
#[derive(clap::Args)]
pub struct Args {
    /// How long it runs.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// The seed of the first round; those after it follow. By default the time.
    #[arg(long)]
    seed: Option<u64>,
}

/// What ends the command early.
#[derive(Debug, thiserror::Error)]
pub enum WatchesError {
    /// Cargo cannot be run.
    #[error("cargo: {0}")]
    Io(#[from] io::Error),
    /// There is a finding.
    #[error("the checker reported a violation or failed to run ({0})")]
    Finding(ExitStatus),
}

/// Runs the checker.
///
/// # Errors
/// When it finds something.
pub fn run(root: &Path, args: &Args) -> Result<(), WatchesError> {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
    // Of the whole workspace, so that what its tests were built from is used again.
    let status = crate::cargo()
        .current_dir(root)
        .args(["test", "--workspace", "--test", "it", "--", "watches::", "--nocapture", "--test-threads=1"])
        .env("KAJI_CHECK_WATCHES_SECONDS", (args.seconds / 2).to_string())
        .env("KAJI_CHECK_WATCHES_SEED", args.seed.unwrap_or_else(now).to_string())
        .status()?;
    if status.success() { Ok(()) } else { Err(WatchesError::Finding(status)) }
}
