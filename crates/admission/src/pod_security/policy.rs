//! Levels and versions of the Pod Security Standards, and the policy of a namespace from its labels.

use kaji_meta::{ErrorList, Path, field};
use serde_json::{Map, Value};
use std::{cmp::Ordering, fmt};

/// How strict; in that order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    pub(super) fn parse(text: &str) -> Option<Level> {
        match text {
            "privileged" => Some(Level::Privileged),
            "baseline" => Some(Level::Baseline),
            "restricted" => Some(Level::Restricted),
            _ => None,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        })
    }
}

/// A minor version of the standards, or the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Latest,
    Minor(u32),
}

impl Version {
    pub(super) fn parse(text: &str) -> Option<Version> {
        if text == "latest" {
            return Some(Version::Latest);
        }
        let minor = text.strip_prefix("v1.")?;
        let plain = minor.bytes().all(|b| b.is_ascii_digit()) && (minor == "0" || !minor.starts_with('0'));
        // Versions beyond what is known mean the latest.
        let number = || minor.parse().unwrap_or(u32::MAX);
        (plain && !minor.is_empty()).then(|| Version::Minor(number()))
    }

    /// Whether the standards were like that since `minor`.
    pub(super) fn since(self, minor: u32) -> bool {
        match self {
            Version::Latest => true,
            Version::Minor(own) => own.cmp(&minor) != Ordering::Less,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Version::Latest => f.write_str("latest"),
            Version::Minor(minor) => write!(f, "v1.{minor}"),
        }
    }
}

/// `restricted:v1.25`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LevelVersion {
    pub level: Level,
    pub version: Version,
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.level, self.version)
    }
}

/// The policy of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub enforce: LevelVersion,
    pub audit: LevelVersion,
    pub warn: LevelVersion,
}

impl Policy {
    /// Of a namespace's labels, with what is wrong about them. What cannot be read is enforced as the strictest level,
    /// and not audited or warned about.
    pub(super) fn of(labels: &Map<String, Value>, defaults: &Policy) -> (Policy, ErrorList) {
        // Most namespaces have no such label, and each new pod comes here.
        if !labels.keys().any(|label| label.starts_with(PREFIX)) {
            return (*defaults, vec![]);
        }
        let mut errors = vec![];
        let (enforce, enforces) = mode(labels, "enforce", defaults.enforce, Level::Restricted, &mut errors);
        let (audit, _) = mode(labels, "audit", defaults.audit, Level::Privileged, &mut errors);
        let (mut warn, _) = mode(labels, "warn", defaults.warn, Level::Privileged, &mut errors);
        let says = |label: &str| labels.contains_key(&format!("{PREFIX}{label}"));
        // A namespace that enforces a level and sets none for warnings is warned by the enforced one.
        if !says("warn") && enforces && enforce.level > warn.level {
            warn.level = enforce.level;
            if !says("warn-version") {
                warn.version = enforce.version;
            }
        }
        (Policy { enforce, audit, warn }, errors)
    }

    pub(super) fn fully_privileged(&self) -> bool {
        self.modes().iter().all(|(_, m)| m.level == Level::Privileged)
    }

    /// The modes by their names.
    pub(super) fn modes(&self) -> [(&'static str, LevelVersion); 3] {
        [("enforce", self.enforce), ("audit", self.audit), ("warn", self.warn)]
    }

    /// Whether two policies allow the same.
    pub(super) fn equivalent(&self, other: &Policy) -> bool {
        let same = |a: LevelVersion, b: LevelVersion| {
            a == b || a.level == Level::Privileged && b.level == Level::Privileged
        };
        self.modes().iter().zip(other.modes()).all(|(a, b)| same(a.1, b.1))
    }
}

impl Default for Policy {
    fn default() -> Self {
        let open = LevelVersion { level: Level::Privileged, version: Version::Latest };
        Policy { enforce: open, audit: open, warn: open }
    }
}

/// What labels and audit annotations begin with.
pub(super) const PREFIX: &str = "pod-security.kubernetes.io/";
/// What is wrong about a level.
pub(super) const LEVELS: &str = "must be one of privileged, baseline, restricted";
/// What is wrong about a version.
pub(super) const VERSIONS: &str = "must be \"latest\" or \"v1.x\"";

/// The level and version of one mode, and whether the level was said well.
fn mode(
    labels: &Map<String, Value>,
    mode: &str,
    default: LevelVersion,
    unreadable: Level,
    errors: &mut ErrorList,
) -> (LevelVersion, bool) {
    let path = Path::new("metadata").child("labels");
    let mut read = |label: String, detail: &str, good: &mut dyn FnMut(&str) -> bool| {
        let Some(text) = labels.get(&label).and_then(Value::as_str) else { return };
        if !good(text) {
            errors.push(field::Error::invalid(&path.key(&label), text, detail));
        }
    };
    let mut own = default;
    let mut said = false;
    read(format!("{PREFIX}{mode}"), LEVELS, &mut |text| {
        let level = Level::parse(text);
        said = level.is_some();
        own.level = level.unwrap_or(unreadable);
        said
    });
    read(format!("{PREFIX}{mode}-version"), VERSIONS, &mut |text| {
        let version = Version::parse(text);
        own.version = version.unwrap_or(Version::Latest);
        version.is_some()
    });
    (own, said)
}
