//! What keeps a pod's volumes from being set up.

use std::fmt;
use std::time::Duration;

/// Why a volume is not set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Problem {
    /// What it is could not be found out: the end of upstream's text.
    Unprocessed(String),
    /// An operation failed: the whole text.
    Failed(String),
    /// Something else has to happen first, and there will be no event about it.
    Waits(String),
    /// The volume is not attached because the node takes no more of this driver.
    Exhausted(String),
}

/// How long volumes are waited for before a pod with volumes that the node cannot take is refused: upstream's `podAttachAndMountTimeout`.
pub const ATTACH_TIMEOUT: Duration = Duration::from_secs(123);

/// Why volumes of a pod are not set up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NotSetUp {
    /// Texts of `FailedMount` events.
    pub failures: Vec<String>,
    /// What is waited for, for the log.
    pub waits: Vec<String>,
    /// Drivers of which the node takes no more volumes, and upstream's text about it.
    pub exhausted: Option<(Vec<String>, String)>,
}

impl fmt::Display for NotSetUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<&str> = self.failures.iter().chain(&self.waits).map(String::as_str).collect();
        f.write_str(&all.join("; "))
    }
}

impl NotSetUp {
    /// From the problems of volumes by name; `unmounted` are the names of all that are not set up.
    pub(super) fn of(problems: Vec<(String, Problem)>) -> NotSetUp {
        let list = |names: Vec<&str>| format!("[{}]", names.join(" "));
        let mut unmounted: Vec<&str> = problems.iter().map(|(name, _)| name.as_str()).collect();
        unmounted.sort_unstable();
        let mut unattached: Vec<&str> = problems
            .iter()
            .filter(|(_, p)| matches!(p, Problem::Waits(_) | Problem::Exhausted(_)))
            .map(|(name, _)| name.as_str())
            .collect();
        unattached.sort_unstable();
        let unprocessed: Vec<(&str, &str)> = problems
            .iter()
            .filter_map(|(name, p)| match p {
                Problem::Unprocessed(text) => Some((name.as_str(), text.as_str())),
                _ => None,
            })
            .collect();
        let mut found = NotSetUp::default();
        if !unprocessed.is_empty() {
            let names = unprocessed.iter().map(|(name, _)| *name).collect();
            let texts: Vec<&str> = unprocessed.iter().map(|(_, text)| *text).collect();
            found.failures.push(format!(
                "Unable to attach or mount volumes: unmounted volumes={}, unattached volumes={}, failed to process volumes={}: {}",
                list(unmounted.clone()),
                list(unattached.clone()),
                list(names),
                texts.join("; ")
            ));
        }
        let drivers = problems.iter().filter_map(|(_, p)| match p {
            Problem::Exhausted(driver) => Some(driver.clone()),
            _ => None,
        });
        let drivers: Vec<String> = drivers.collect();
        if !drivers.is_empty() {
            let names = unprocessed.iter().map(|(name, _)| *name).collect();
            let text = format!(
                "Node has reached its volume attachment limit, rejecting pod. unmounted volumes={}, unattached volumes={}, failed to process volumes={}: context deadline exceeded",
                list(unmounted),
                list(unattached),
                list(names)
            );
            found.exhausted = Some((drivers, text));
        }
        for (_, problem) in &problems {
            match problem {
                Problem::Unprocessed(_) => {}
                Problem::Failed(text) => found.failures.push(text.clone()),
                Problem::Waits(text) => found.waits.push(text.clone()),
                Problem::Exhausted(driver) => {
                    found.waits.push(format!("the node takes no more volumes of {driver}"));
                }
            }
        }
        found
    }
}
