//! Flags of the history of objects: whether it is kept, and how much of it.
//!
//! Invariants: it is on by default with the embedded store alone, and off where objects end with the process; a flag that would
//! have no effect is refused.

use crate::StoreKind;
use clap::{Args, ValueEnum};
use kaji_history::Limits;
use kaji_meta::{GroupResource, Quantity};
use std::time::Duration;

/// The fewest bytes that are accepted: a limit below a few files would keep next to nothing.
const FEWEST: u64 = 1 << 20;

/// The history that a server keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryConfig {
    /// How much is kept.
    pub limits: Limits,
    /// Resources of which nothing is kept.
    pub excluded: Vec<GroupResource>,
    /// How Secrets are kept.
    pub secrets: SecretValues,
}

/// What is kept of the values of Secrets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SecretValues {
    /// A hash, by which a change is visible.
    #[default]
    Redacted,
    /// The values, in the clear.
    Whole,
}

impl Default for HistoryConfig {
    /// All but events, within the archive's default limits.
    fn default() -> Self {
        HistoryConfig {
            limits: Limits::default(),
            excluded: vec![GroupResource::new("", "events")],
            secrets: SecretValues::Redacted,
        }
    }
}

/// What is kept.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "History")]
pub struct HistoryFlags {
    /// Whether each revision of each object is kept with the request that made it, in the data directory, for `kaji history` and
    /// what goes with it. Default: true with the embedded store. With etcd it is off unless asked for: each server then keeps an archive of its
    /// own, in which the writes of other servers have no user.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    history: Option<bool>,
    /// How long revisions are kept (default 168h).
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    history_max_age: Option<Duration>,
    /// How many bytes of files are kept, at least 1Mi (default 64Mi).
    #[arg(long, value_name = "QUANTITY", value_parser = bytes)]
    history_max_bytes: Option<u64>,
    /// Resources of which nothing is kept (plural.group), comma separated; an empty value keeps all (default events).
    #[arg(long, value_name = "RESOURCES", value_delimiter = ',')]
    history_exclude: Option<Vec<String>>,
    /// What is kept of the values of Secrets (default redacted: a hash of each). With whole they are in the files of the history in the clear,
    /// also those that were deleted or changed since, and can be restored; a server that encrypts its store refuses it.
    #[arg(long, value_name = "HOW")]
    history_secrets: Option<SecretValues>,
}

/// `64Mi`
fn bytes(text: &str) -> Result<u64, String> {
    let quantity = Quantity::parse(text).map_err(|error| error.to_string())?;
    match u64::try_from(quantity.value()) {
        Ok(bytes) if bytes >= FEWEST => Ok(bytes),
        _ => Err("it must be at least 1Mi".into()),
    }
}

impl HistoryFlags {
    /// What they choose for a store; `None` for no history.
    ///
    /// # Errors
    /// For a history of objects in memory, limits of none, and Secrets in the clear beside a store that encrypts.
    pub fn config(self, store: &StoreKind, encrypts: bool) -> Result<Option<HistoryConfig>, String> {
        let is_kept = match (self.history, store) {
            (Some(true), StoreKind::Memory) => {
                return Err(
                    "--history needs a store that outlives the process: leave out --store memory".into()
                );
            }
            (Some(choice), _) => choice,
            (None, StoreKind::Disk) => true,
            (None, StoreKind::Memory | StoreKind::Etcd(_)) => false,
        };
        let given = [
            ("--history-max-age", self.history_max_age.is_some()),
            ("--history-max-bytes", self.history_max_bytes.is_some()),
            ("--history-exclude", self.history_exclude.is_some()),
            ("--history-secrets", self.history_secrets.is_some()),
        ];
        if !is_kept {
            return match given.into_iter().find(|(_, given)| *given) {
                Some((flag, _)) => Err(format!("{flag} needs --history")),
                None => Ok(None),
            };
        }
        let secrets = self.history_secrets.unwrap_or_default();
        if secrets == SecretValues::Whole && encrypts {
            let text = "--history-secrets=whole would keep in the clear what --encryption-provider-config encrypts: leave out either";
            return Err(text.into());
        }
        let HistoryConfig { limits, excluded, .. } = HistoryConfig::default();
        let named = |names: Vec<String>| {
            names.iter().filter(|name| !name.is_empty()).map(|name| GroupResource::parse(name)).collect()
        };
        Ok(Some(HistoryConfig {
            limits: Limits {
                bytes: self.history_max_bytes.unwrap_or(limits.bytes),
                age: self.history_max_age.unwrap_or(limits.age),
            },
            excluded: self.history_exclude.map_or(excluded, named),
            secrets,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        history: HistoryFlags,
    }

    fn config(line: &str, store: &StoreKind) -> Result<Option<HistoryConfig>, String> {
        let line = Line::try_parse_from(std::iter::once("kaji").chain(line.split_whitespace()));
        line.map_err(|error| error.to_string())?.history.config(store, false)
    }

    #[test]
    fn history_that_flags_choose() {
        assert_eq!(config("", &StoreKind::Disk), Ok(Some(HistoryConfig::default())));
        assert_eq!(config("--history=false", &StoreKind::Disk), Ok(None));
        assert_eq!(config("", &StoreKind::Memory), Ok(None));
        let line = "--history --history-max-age 1h --history-max-bytes 2Mi --history-exclude leases.coordination.k8s.io,pods";
        let limits = Limits { bytes: 2 << 20, age: Duration::from_secs(3600) };
        let excluded =
            vec![GroupResource::new("coordination.k8s.io", "leases"), GroupResource::new("", "pods")];
        let secrets = SecretValues::Redacted;
        assert_eq!(config(line, &StoreKind::Disk), Ok(Some(HistoryConfig { limits, excluded, secrets })));
        let all = config("--history-exclude=", &StoreKind::Disk).unwrap().unwrap();
        assert_eq!(all.excluded, []);
        let whole = config("--history-secrets=whole", &StoreKind::Disk).unwrap().unwrap();
        assert_eq!(whole.secrets, SecretValues::Whole);
    }

    #[test]
    fn flags_without_an_effect_are_refused() {
        let refused = |line: &str, store| config(line, &store).unwrap_err();
        assert!(refused("--history", StoreKind::Memory).contains("leave out --store memory"));
        assert_eq!(refused("--history-max-age 1h", StoreKind::Memory), "--history-max-age needs --history");
        assert_eq!(
            refused("--history=false --history-exclude pods", StoreKind::Disk),
            "--history-exclude needs --history"
        );
        assert_eq!(
            refused("--history=false --history-secrets whole", StoreKind::Disk),
            "--history-secrets needs --history"
        );
        assert!(refused("--history-secrets some", StoreKind::Disk).contains("redacted, whole"));
        let flags = |how| HistoryFlags { history_secrets: Some(how), ..HistoryFlags::default() };
        let beside_encryption = flags(SecretValues::Whole).config(&StoreKind::Disk, true).unwrap_err();
        assert!(beside_encryption.contains("--encryption-provider-config"), "{beside_encryption}");
        assert!(flags(SecretValues::Redacted).config(&StoreKind::Disk, true).is_ok());
        assert!(refused("--history-max-bytes 10k", StoreKind::Disk).contains("at least 1Mi"));
        assert!(refused("--history-max-age x", StoreKind::Disk).contains("--history-max-age"));
    }
}
