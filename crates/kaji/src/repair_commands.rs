//! `kaji store check` and `kaji store salvage`: what a damaged store still holds, and a new store of it.

use crate::default_data_dir;
use clap::Args;
use kaji_storage::{STORE, snapshots::BUMP};
use kaji_store::disk::{self, Checkup, DiskOptions, Lost};
use std::{error::Error, fmt::Write as _, io::Write, path::PathBuf};

/// Lines of a list that is cut off.
const MOST_LINES: usize = 1000;

/// Flags of `kaji store check`.
#[derive(Args)]
pub struct Check {
    /// The directory of the cluster's objects.
    #[arg(long, env = "KAJI_DATA_DIR")]
    data_dir: Option<PathBuf>,
}

/// Flags of `kaji store salvage`.
#[derive(Args)]
pub struct Salvage {
    /// The data directory with the damaged store, which is not changed.
    from: PathBuf,
    /// The data directory of the new store, which must not have one.
    to: PathBuf,
    /// Of objects of which the last change is damaged, saves the last intact one before it.
    #[arg(long)]
    older_values: bool,
    /// By how much the revision is raised above all that is known of the damaged store, so that none is used again that a client has
    /// seen.
    #[arg(long, value_name = "N", default_value_t = BUMP)]
    bump_revision: u64,
}

/// The resource and the object of a key, for a reader.
fn object(key: &str) -> String {
    let rest = key.strip_prefix("/registry/").unwrap_or(key);
    match rest.match_indices('/').nth(1) {
        Some((end, _)) => {
            let (resource, name) = rest.split_at(end);
            format!("{} {}", resource.strip_prefix("core/").unwrap_or(resource), &name[1..])
        }
        None => key.to_owned(),
    }
}

fn lost(lost: &Lost) -> String {
    let what = lost.key.as_deref().map_or_else(|| "an object that cannot be named".to_owned(), object);
    let older =
        lost.older.map_or_else(String::new, |older| format!("; its value of revision {older} is intact"));
    format!("{what}, changed at revision {}{older}", lost.revision)
}

fn list(text: &mut String, title: &str, lines: impl ExactSizeIterator<Item = String>) {
    let count = lines.len();
    if count == 0 {
        return;
    }
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{title}:");
    for line in lines.take(MOST_LINES) {
        let _ = writeln!(text, "  {line}");
    }
    if count > MOST_LINES {
        let _ = writeln!(text, "  and {} more", count - MOST_LINES);
    }
}

fn describe(checkup: &Checkup) -> String {
    let revision = checkup.revision.map_or_else(|| "not known".to_owned(), |revision| revision.to_string());
    let mut text = format!(
        "  revision  {revision}\n  pages     {} intact\n  changes   {} intact, {} of the journal's commits not in the database yet\n  \
         objects   {} intact, {} damaged\n",
        checkup.pages,
        checkup.changes,
        checkup.journaled,
        checkup.intact,
        checkup.lost.len()
    );
    list(&mut text, "Damaged", checkup.damage.iter().map(ToString::to_string));
    list(&mut text, "Lost", checkup.lost.iter().map(lost));
    // Writing to a String cannot fail.
    if checkup.missing > 0 {
        let _ =
            writeln!(text, "{} changes are missing of which the objects cannot be named.", checkup.missing);
    }
    if let Some(before) = checkup.uncertain_before.filter(|_| checkup.uncertain > 0) {
        let before = if before == u64::MAX {
            "at any revision".to_owned()
        } else {
            format!("before revision {before}")
        };
        let _ = writeln!(
            text,
            "{} of the intact objects were last changed {before}; a change that cannot be named may have been a later one of them, or \
             their deletion.",
            checkup.uncertain
        );
    }
    checkup.notes.iter().for_each(|note| {
        let _ = writeln!(text, "{note}");
    });
    text
}

fn say(text: &str) -> std::io::Result<()> {
    std::io::stdout().lock().write_all(text.as_bytes())
}

/// Runs `kaji store check`; fails if something is damaged.
pub async fn check(args: Check) -> Result<(), Box<dyn Error>> {
    let data_dir = args.data_dir.unwrap_or_else(|| default_data_dir(std::env::var("HOME").ok().as_deref()));
    let store = data_dir.join(STORE);
    let checkup = tokio::task::spawn_blocking(move || disk::check(&store)).await??;
    let dir = data_dir.display();
    if checkup.damage.is_empty() {
        say(&format!("The store in {dir} is intact.\n{}", describe(&checkup)))?;
        return Ok(());
    }
    say(&format!("The store in {dir} is damaged.\n{}", describe(&checkup)))?;
    Err(format!(
        "the store in {dir} is damaged; `kaji store salvage {dir} NEW_DIRECTORY` makes a store of what is intact"
    )
    .into())
}

/// Runs `kaji store salvage`.
pub async fn salvage(args: Salvage) -> Result<(), Box<dyn Error>> {
    let Salvage { from, to, older_values, bump_revision } = args;
    let (source, target) = (from.join(STORE), to.join(STORE));
    kaji_files::parent_of_private(&to).map_err(|e| format!("{}: {e}", to.display()))?;
    let done = tokio::task::spawn_blocking(move || {
        disk::salvage(&source, &target, &DiskOptions::default(), bump_revision, older_values)
    });
    let done = done.await??;
    let (from, to) = (from.display(), to.display());
    say(&format!(
        "The store in {from}:\n{}{} objects are in {to}, {} of them with older values; it is at revision {}.\nCertificates and keys \
         are still in {from}/pki only: to go on, rename {from}/{STORE}, and move {to}/{STORE} into its place.\n",
        describe(&done.checkup),
        done.saved,
        done.older,
        done.revision
    ))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::object;

    #[test]
    fn keys_are_named_as_objects() {
        assert_eq!(object("/registry/core/pods/default/a"), "pods default/a");
        assert_eq!(object("/registry/apps/deployments/ns/a"), "apps/deployments ns/a");
        assert_eq!(object("/registry/core/nodes/a"), "nodes a");
        assert_eq!(object("/other"), "/other");
    }
}
