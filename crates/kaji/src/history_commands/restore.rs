//! `kaji restore`: writes a recorded state anew, after it has shown what the server would make of it.

use super::{Object, lines, moment, print, state, tell};
use clap::Args;
use kaji_explain::history::Restoration;
use std::{
    error::Error,
    io::{BufRead, Write},
};

/// Flags of `kaji restore`.
#[derive(Args)]
pub struct Restore {
    /// The state to restore: a time (2026-01-31T12:00:00Z), how long ago (5m), or a resourceVersion. An object that was deleted is restored
    /// as it was last, without this flag.
    #[arg(long, value_name = "MOMENT")]
    at: Option<String>,
    /// Shows what would change, and writes nothing.
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// Writes without asking.
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    object: Object,
}

/// Restores a state.
pub async fn restore(args: Restore) -> Result<(), Box<dyn Error>> {
    let at = args.at.as_deref().map(moment).transpose()?;
    let (server, history) = args.object.history().await?;
    let revision = match &at {
        Some(moment) => state(&history, moment)?,
        None => history.deleted()?,
    };
    let restoration = Restoration::prepare(&server, &history, revision).await?;
    let object = format!("{}/{}", history.resource, history.name);
    if restoration.changes().is_empty() {
        return print(&format!("{object} is as it was; nothing to restore\n"));
    }
    print(&lines(restoration.changes()))?;
    if args.dry_run {
        return Ok(());
    }
    let how = if restoration.creates() { "Create it anew" } else { "Restore it" };
    if !args.yes && !confirmed(&format!("{how} as of revision {}? [y/N] ", revision.revision))? {
        return Err("nothing was written (--yes skips the question)".into());
    }
    let written = restoration.write(&server).await?;
    tell(&format!("{object} restored as of revision {}: it is revision {written} now", revision.revision));
    Ok(())
}

/// Asks on standard error, and reads a line.
fn confirmed(question: &str) -> std::io::Result<bool> {
    let mut error = std::io::stderr().lock();
    error.write_all(question.as_bytes())?;
    error.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
