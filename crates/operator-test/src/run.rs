//! One run: a fork of the prepared cluster, the operator behind the fault layer, the steps of the scenario, and what is looked at then.
//!
//! Invariant: a run leaves nothing behind but its directory; the operator and the cluster have ended when it is over.

use crate::{
    api::{Api, ApiError},
    cluster::{RunningCluster, StartCluster},
    fault::{Fault, Point},
    layer::FaultLayer,
    listener::{FaultListener, ListenError},
    operator::Operator,
    record::{Note, Record, Recorder},
    scenario::{Scenario, ScenarioError, Step},
    state::{self, State},
};
use kaji_storage::forks::{self, ForkError};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};
use tokio::time::{Instant, sleep, timeout};

/// Between two looks at the operator.
const LOOK: Duration = Duration::from_millis(100);

/// Why there is no outcome.
#[derive(Debug, thiserror::Error)]
pub enum TestError {
    /// The scenario.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The cluster does not start.
    #[error("the cluster does not start: {0}")]
    Start(String),
    /// It is not forked.
    #[error("the cluster is not forked: {0}")]
    Fork(#[from] ForkError),
    /// The listener.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The API.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The operator, or a file.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A step of the set-up, or of the scenario without faults.
    #[error("{0}")]
    Step(String),
    /// A task of this program.
    #[error("the task of a run panicked or was cancelled: {0}")]
    Task(String),
}

/// What must hold of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Law {
    /// The steps come about.
    Steps,
    /// The final state is that of a run without faults.
    FinalState,
    /// It comes to rest.
    Quiescence,
    /// At rest it asks little.
    HotLoop,
    /// Started again, it writes nothing.
    Restart,
    /// Objects have their owners.
    Orphans,
    /// What was applied can be deleted, and leaves what it leaves without faults.
    Deletion,
    /// It does not end by itself again and again.
    Exits,
}

impl std::fmt::Display for Law {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Law::Steps => "steps",
            Law::FinalState => "final state",
            Law::Quiescence => "quiescence",
            Law::HotLoop => "hot loop",
            Law::Restart => "restart",
            Law::Orphans => "orphans",
            Law::Deletion => "deletion",
            Law::Exits => "exits",
        })
    }
}

/// A law that did not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Which.
    pub law: Law,
    /// How.
    pub text: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.law, self.text)
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The faults that came about.
    pub fired: Vec<Fault>,
    /// Laws that did not hold, of those that one run tells of.
    pub violations: Vec<Violation>,
    /// The requests.
    pub records: Vec<Record>,
    /// What the test did.
    pub notes: Vec<Note>,
    /// How many requests and events of a kind there were until rest.
    pub points: BTreeMap<(String, String, String), u32>,
    /// Requests until rest.
    pub requests: u64,
    /// The state at rest.
    pub state: State,
    /// The state after the deletion.
    pub after_deletion: Option<State>,
    /// How long it took.
    pub millis: u64,
    /// What the operator printed.
    pub log: PathBuf,
}

/// Makes runs of a scenario.
#[derive(Clone)]
pub struct Bench {
    /// What is run.
    pub scenario: Arc<Scenario>,
    start: StartCluster,
    base: PathBuf,
    directory: PathBuf,
}

impl Bench {
    /// Prepares the cluster that runs are forks of, in an empty directory.
    ///
    /// # Errors
    /// When it does not start, or a step of the set-up fails.
    pub async fn prepare(
        scenario: Arc<Scenario>,
        start: StartCluster,
        directory: PathBuf,
    ) -> Result<Bench, TestError> {
        let base = directory.join("base");
        let cluster = start(base.clone(), scenario.cluster.clone(), Arc::default());
        let cluster = cluster.await.map_err(TestError::Start)?;
        let setup = async {
            let admin =
                write_kubeconfig(&cluster, &cluster.url, None, &directory.join("base.kubeconfig")).await?;
            let steps = Steps { api: Api::new(cluster.administrator()), scenario: &scenario, admin };
            for step in &scenario.setup {
                steps.perform(step, &mut Vec::new()).await?;
            }
            Ok(())
        };
        let done = setup.await;
        cluster.stop().await;
        done.map(|()| Bench { scenario, start, base, directory })
    }

    /// Runs it with these faults, in the directory of this number.
    ///
    /// # Errors
    /// When the cluster or the operator cannot be started.
    pub async fn run(&self, number: usize, faults: Vec<Fault>) -> Result<Run, TestError> {
        let directory = self.directory.join(format!("run-{number}"));
        let (from, to) = (self.base.clone(), directory.join("data"));
        std::fs::create_dir_all(&directory)
            .map_err(|source| TestError::File { path: directory.clone(), source })?;
        let forked = tokio::task::spawn_blocking(move || forks::fork(&from, &to)).await;
        forked.map_err(|error| TestError::Task(error.to_string()))??;
        let cluster = (self.start)(directory.join("data"), self.scenario.cluster.clone(), Arc::default());
        let cluster = cluster.await.map_err(TestError::Start)?;
        let outcome = self.run_in(&cluster, &directory, faults).await;
        cluster.stop().await;
        if let Err(error) = std::fs::remove_dir_all(directory.join("data")) {
            tracing::warn!(%error, "the data of a run could not be removed");
        }
        outcome
    }

    async fn run_in(
        &self,
        cluster: &RunningCluster,
        directory: &Path,
        faults: Vec<Fault>,
    ) -> Result<Run, TestError> {
        let (scenario, began) = (&*self.scenario, Instant::now());
        let api = Api::new(cluster.administrator());
        let admin =
            write_kubeconfig(cluster, &cluster.url, None, &directory.join("admin.kubeconfig")).await?;
        let delay = scenario.limits.delay();
        let clock = Some(cluster.clock.clone());
        let (layer, signals) = FaultLayer::new(cluster.administrator(), clock, faults, delay);
        let listener =
            FaultListener::bind(cluster.stack.clone(), &cluster.certificates, layer.clone()).await?;
        let account = scenario.operator.service_account.as_deref();
        let kubeconfig =
            write_kubeconfig(cluster, &listener.url(), account, &directory.join("kubeconfig")).await?;
        let log = directory.join("operator.log");
        let operator =
            Operator::start(scenario, &kubeconfig, &log, (layer.clone(), signals)).map_err(|source| {
                TestError::File { path: scenario.operator.command[0].clone().into(), source }
            })?;
        let steps = Steps { api: api.clone(), scenario, admin };
        let mut trial = Trial { scenario, api, layer, operator, steps, violations: vec![] };
        let outcome = trial.carry_out().await?;
        trial.operator.stop().await;
        let (records, notes) = trial.layer.recorder(|r| (r.records().to_vec(), r.notes().to_vec()));
        Ok(Run {
            fired: trial.layer.fired(),
            violations: trial.violations,
            records,
            notes,
            points: outcome.points,
            requests: outcome.requests,
            state: outcome.state,
            after_deletion: outcome.after_deletion,
            millis: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            log,
        })
    }
}

async fn write_kubeconfig(
    cluster: &RunningCluster,
    url: &str,
    account: Option<&str>,
    path: &Path,
) -> Result<PathBuf, TestError> {
    let text = cluster.kubeconfig(url, account).await?;
    kaji_files::replace(path, text.as_bytes(), 0o600)
        .map_err(|source| TestError::File { path: path.to_owned(), source })?;
    Ok(path.to_owned())
}

struct Observed {
    points: BTreeMap<(String, String, String), u32>,
    requests: u64,
    state: State,
    after_deletion: Option<State>,
}

/// A run under way.
struct Trial<'a> {
    scenario: &'a Scenario,
    api: Api,
    layer: Arc<FaultLayer>,
    operator: Operator,
    steps: Steps<'a>,
    violations: Vec<Violation>,
}

impl Trial<'_> {
    fn violated(&mut self, law: Law, text: impl Into<String>) {
        let violation = Violation { law, text: text.into() };
        self.layer.note(&format!("VIOLATION {violation}"));
        self.violations.push(violation);
    }

    async fn carry_out(&mut self) -> Result<Observed, TestError> {
        let mut applied = Vec::new();
        for (i, step) in self.scenario.steps.iter().enumerate() {
            self.layer.note(&format!("step {}: {}", i + 1, describe(step)));
            if let Err(error) = self.steps.perform(step, &mut applied).await {
                self.violated(Law::Steps, format!("step {} ({}): {error}", i + 1, describe(step)));
                break;
            }
        }
        let (state, objects) = self.rest().await?;
        let requests = self.layer.recorder(Recorder::requests);
        let points = self.layer.recorder(|recorder| points(recorder.records()));
        for orphan in state::orphans(&objects) {
            self.violated(Law::Orphans, format!("{orphan} has an owner that is gone"));
        }
        let mut after_deletion = None;
        // What comes after an end that is none says nothing more.
        if self.violations.is_empty() {
            self.hot_loop().await;
            self.layer.disarm();
            self.restart().await?;
            if self.scenario.deletion {
                after_deletion = self.delete(&applied).await?;
            }
        }
        let exits = self.operator.exits();
        if exits > self.scenario.limits.exits {
            self.violated(Law::Exits, format!("it ended by itself {exits} times"));
        }
        Ok(Observed { points, requests, state, after_deletion })
    }

    /// Waits until nothing is written any more, and the state stays as it is.
    async fn rest(&mut self) -> Result<(State, state::Objects), TestError> {
        let limits = &self.scenario.limits;
        let (deadline, quiet) = (Instant::now() + limits.settle(), limits.quiet());
        let mut former: Option<State> = None;
        loop {
            let is_quiet = self.layer.recorder(Recorder::without_writes) >= quiet && !self.layer.is_at_work();
            let late = Instant::now() > deadline;
            if is_quiet || late {
                let objects = state::objects(&self.api).await?;
                let state = State::of(&objects);
                if late {
                    let writes = self.layer.recorder(|recorder| last_writes(recorder.records()));
                    let text = format!("not within {} s; it writes {writes}", limits.settle_seconds);
                    self.violated(Law::Quiescence, text);
                }
                if late || former.as_ref() == Some(&state) {
                    return Ok((state, objects));
                }
                former = Some(state);
                sleep(quiet / 4).await;
            }
            sleep(LOOK).await;
        }
    }

    async fn hot_loop(&mut self) {
        let (before, time) = (self.layer.recorder(Recorder::requests), Duration::from_secs(1));
        sleep(time).await;
        let requests = self.layer.recorder(Recorder::requests) - before;
        if requests > self.scenario.limits.requests_per_second {
            self.violated(Law::HotLoop, format!("{requests} requests in a second at rest"));
        }
    }

    /// A restart writes nothing.
    async fn restart(&mut self) -> Result<(), TestError> {
        let revision = self.api.revision().await?;
        let from = self.layer.recorder(|recorder| recorder.records().len());
        self.layer.note("the operator is started again, at rest");
        self.operator.restart().await;
        let awake = || self.layer.recorder(|recorder| recorder.records().len() > from);
        let asked = self.api.until("the operator asks", self.scenario.limits.settle(), async || Ok(awake()));
        if asked.await.is_err() {
            self.violated(Law::Restart, "it asks nothing after a restart");
            return Ok(());
        }
        sleep(self.scenario.limits.quiet()).await;
        let before = self.violations.len();
        self.rest().await?;
        if self.violations.len() > before {
            return Ok(());
        }
        let changed = |record: &&Record| {
            record.counts_as_write && record.revision.is_some_and(|written| written > revision)
        };
        let changes: Vec<String> = self.layer.recorder(|recorder| {
            recorder.records()[from..].iter().filter(changed).map(describe_object).collect()
        });
        if !changes.is_empty() {
            let shown = changes.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
            self.violated(Law::Restart, format!("{} writes change something: {shown}", changes.len()));
        }
        Ok(())
    }

    /// What was applied goes.
    async fn delete(&mut self, applied: &[String]) -> Result<Option<State>, TestError> {
        self.layer.note("what was applied is deleted");
        for path in applied.iter().rev() {
            self.api.delete(path).await?;
        }
        for path in applied {
            if let Err(error) = self.api.wait_gone(path, self.scenario.limits.step()).await {
                self.violated(Law::Deletion, error.to_string());
                return Ok(None);
            }
        }
        sleep(self.scenario.limits.quiet()).await;
        let (state, objects) = self.rest().await?;
        for orphan in state::orphans(&objects) {
            self.violated(Law::Orphans, format!("after the deletion, {orphan} has an owner that is gone"));
        }
        Ok(Some(state))
    }
}

fn points(records: &[Record]) -> BTreeMap<(String, String, String), u32> {
    let mut points = BTreeMap::new();
    for Record { point: Point { client, verb, resource, nth }, .. } in records {
        let count = points.entry((client.clone(), verb.clone(), resource.clone())).or_insert(0);
        *count = u32::max(*count, *nth);
    }
    points
}

fn last_writes(records: &[Record]) -> String {
    let writes: Vec<String> =
        records.iter().rev().filter(|r| r.counts_as_write).take(3).map(describe_object).collect();
    if writes.is_empty() { "nothing, but the state changes".to_owned() } else { writes.join(", ") }
}

fn describe_object(record: &Record) -> String {
    format!("{} {} {}", record.point.verb, record.point.resource, record.name)
}

fn describe(step: &Step) -> String {
    match step {
        Step::Apply(path) => format!("apply {}", path.display()),
        Step::Delete(path) => format!("delete {}", path.display()),
        Step::Patch(patch) => format!("patch {}/{}", patch.resource, patch.name),
        Step::Wait(wait) => format!("wait for {}/{}", wait.resource, wait.name),
        Step::Run(command) => format!("run {}", command.join(" ")),
    }
}

/// Carries steps out.
struct Steps<'a> {
    api: Api,
    scenario: &'a Scenario,
    /// An administrator's kubeconfig.
    admin: PathBuf,
}

impl Steps<'_> {
    /// Performs a step. Keeps the paths of what it applies in `applied`.
    async fn perform(&self, step: &Step, applied: &mut Vec<String>) -> Result<(), TestError> {
        let within = self.scenario.limits.step();
        match step {
            Step::Apply(file) => {
                for object in self.scenario.manifest(file)? {
                    let path = self.api.apply(&object, within).await?;
                    if !applied.contains(&path) {
                        applied.push(path);
                    }
                }
            }
            Step::Delete(file) => {
                let objects = self.scenario.manifest(file)?;
                for object in objects.iter().rev() {
                    let path = self.api.path_of(object).await?;
                    self.api.delete(&path).await?;
                    self.api.wait_gone(&path, within).await?;
                }
            }
            Step::Patch(patch) => {
                let path = self.api.path(&patch.resource, patch.namespace.as_deref(), &patch.name).await?;
                self.api.patch(&path, &patch.patch).await?;
            }
            Step::Wait(wait) => self.api.wait(wait, within).await?,
            Step::Run(command) => self.command(command, within).await?,
        }
        Ok(())
    }

    async fn command(&self, command: &[String], within: Duration) -> Result<(), TestError> {
        let (program, args) =
            command.split_first().ok_or_else(|| TestError::Step("a command is empty".into()))?;
        let path = if program.contains('/') { self.scenario.directory.join(program) } else { program.into() };
        let mut process = tokio::process::Command::new(&path);
        process.args(args).env("KUBECONFIG", &self.admin).current_dir(&self.scenario.directory);
        process.stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(within, process.output()).await;
        let output = output
            .map_err(|_| TestError::Step(format!("{program} takes longer than {} s", within.as_secs())))?
            .map_err(|source| TestError::File { path, source })?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.trim_end().lines().last().unwrap_or_default();
        Err(TestError::Step(format!("{program} ends with {}: {last}", output.status)))
    }
}
