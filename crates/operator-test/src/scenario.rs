//! The file of a scenario: how the operator is started, what is in the cluster before it, and what is done then.
//!
//! Invariant: a field that is not known is an error.

use crate::fault::FaultKind;
use kaji_files::yaml::{self, YamlError};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Why a file is no scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// It cannot be read.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It says what no scenario can say.
    #[error("{path}: {source}")]
    Content {
        /// Which.
        path: PathBuf,
        /// What.
        source: YamlError,
    },
    /// There is no command.
    #[error("{0}: operator.command is empty")]
    NoCommand(PathBuf),
}

/// How the operator is started.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct OperatorSpec {
    /// Program and arguments. `KUBECONFIG` is set; the working directory is that of the file. A program with a slash is looked for from
    /// there.
    pub command: Vec<String>,
    /// More environment variables.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// `namespace/name` of the account that it runs as; an administrator without it.
    #[serde(default)]
    pub service_account: Option<String>,
}

/// The cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ClusterSpec {
    /// Control loops, in the words of kube-controller-manager's `--controllers`.
    pub controllers: Vec<String>,
    /// Simulated nodes.
    pub nodes: u16,
    /// Without the controller of service accounts pods need none, as in envtest. Scenarios have what a whole cluster has.
    #[serde(skip)]
    pub pods_without_accounts: bool,
}

impl Default for ClusterSpec {
    fn default() -> ClusterSpec {
        ClusterSpec { controllers: vec!["*".into()], nodes: 1, pods_without_accounts: false }
    }
}

/// What is waited for.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Wait {
    /// The resource of the object (`deployments`, `webapps.example.com`) or its kind.
    pub resource: String,
    /// Its name.
    pub name: String,
    /// Its namespace, `default` without it.
    #[serde(default)]
    pub namespace: Option<String>,
    /// A condition of its status that is true.
    #[serde(default)]
    pub condition: Option<String>,
    /// A path, `{.status.phase}`, that leads to `value`, or to anything.
    #[serde(default)]
    pub jsonpath: Option<String>,
    /// What is at the end of `jsonpath`, as text.
    #[serde(default)]
    pub value: Option<String>,
    /// It is gone.
    #[serde(default)]
    pub gone: bool,
}

/// One step.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// Applies the objects of a file, server-side.
    Apply(PathBuf),
    /// Deletes the objects of a file.
    Delete(PathBuf),
    /// Patches an object.
    Patch(PatchStep),
    /// Waits.
    Wait(Wait),
    /// Runs a command with an administrator's `KUBECONFIG`; it has to exit with 0.
    Run(Vec<String>),
}

/// A change of an object by another client than the operator.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PatchStep {
    /// Its resource.
    pub resource: String,
    /// Its name.
    pub name: String,
    /// Its namespace, `default` without it.
    #[serde(default)]
    pub namespace: Option<String>,
    /// A JSON merge patch.
    pub patch: Value,
}

/// Bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Limits {
    /// A step takes at most so many seconds.
    pub step_seconds: u64,
    /// The operator is at rest when it has written nothing for so many milliseconds.
    pub quiet_millis: u64,
    /// It has to come to rest within so many seconds.
    pub settle_seconds: u64,
    /// Events are held back, and views stale, for so many milliseconds.
    pub delay_millis: u64,
    /// Faults at the first so many requests of a client to a resource with a verb.
    pub nth: u32,
    /// Runs at most; a seed draws them if there are more points.
    pub runs: usize,
    /// Requests a second at rest, above which it is a hot loop.
    pub requests_per_second: u64,
    /// How often the operator may exit by itself.
    pub exits: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            step_seconds: 60,
            quiet_millis: 1_500,
            settle_seconds: 30,
            delay_millis: 2_500,
            nth: 10,
            runs: 400,
            requests_per_second: 20,
            exits: 10,
        }
    }
}

impl Limits {
    /// For a step.
    #[must_use]
    pub fn step(&self) -> Duration {
        Duration::from_secs(self.step_seconds)
    }

    /// Without a write.
    #[must_use]
    pub fn quiet(&self) -> Duration {
        Duration::from_millis(self.quiet_millis)
    }

    /// Until rest.
    #[must_use]
    pub fn settle(&self) -> Duration {
        Duration::from_secs(self.settle_seconds)
    }

    /// Of events.
    #[must_use]
    pub fn delay(&self) -> Duration {
        Duration::from_millis(self.delay_millis)
    }
}

/// A field that is no part of the final state.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Ignore {
    /// Its resource, `webapps.example.com`.
    pub resource: String,
    /// The beginning of its path, `.status.lastRun`; whole objects without it.
    #[serde(default)]
    pub path: String,
}

/// See the module.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Scenario {
    /// The operator.
    pub operator: OperatorSpec,
    /// The cluster.
    #[serde(default)]
    pub cluster: ClusterSpec,
    /// Done once, before the operator is started and before the cluster is forked.
    #[serde(default)]
    pub setup: Vec<Step>,
    /// Done in each fork, while the operator runs.
    pub steps: Vec<Step>,
    /// Whether the applied objects are deleted in the end, and have to go.
    #[serde(default = "yes")]
    pub deletion: bool,
    /// Fields that are no part of the final state. Those that differ between two runs without faults need not be named.
    #[serde(default)]
    pub ignore: Vec<Ignore>,
    /// Only these faults.
    #[serde(default = "all")]
    pub faults: Vec<FaultKind>,
    /// Only faults at requests to these resources, if there are any.
    #[serde(default)]
    pub resources: Vec<String>,
    /// Bounds.
    #[serde(default)]
    pub limits: Limits,
    /// The directory of the file, from which paths are.
    #[serde(skip)]
    pub directory: PathBuf,
}

fn yes() -> bool {
    true
}

fn all() -> Vec<FaultKind> {
    FaultKind::ALL.to_vec()
}

impl Scenario {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or is no scenario.
    pub fn read(path: &Path) -> Result<Scenario, ScenarioError> {
        let text = read(path)?;
        let mut scenario: Scenario =
            yaml::decode(&text).map_err(|source| ScenarioError::Content { path: path.to_owned(), source })?;
        if scenario.operator.command.is_empty() {
            return Err(ScenarioError::NoCommand(path.to_owned()));
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = parent.unwrap_or(Path::new("."));
        scenario.directory = fs::canonicalize(directory)
            .map_err(|source| ScenarioError::File { path: directory.to_owned(), source })?;
        Ok(scenario)
    }

    /// The objects of a manifest that a step names.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn manifest(&self, path: &Path) -> Result<Vec<Value>, ScenarioError> {
        let path = self.directory.join(path);
        yaml::documents(&read(&path)?).map_err(|source| ScenarioError::Content { path, source })
    }
}

fn read(path: &Path) -> Result<String, ScenarioError> {
    fs::read_to_string(path).map_err(|source| ScenarioError::File { path: path.to_owned(), source })
}
