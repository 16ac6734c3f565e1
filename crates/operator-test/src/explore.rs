//! All runs of a scenario: it is learned, each fault has a run, what fails is run again with fewer faults.
//!
//! Invariants: what is reported as found was seen in a run with exactly the faults of its plan; a law that does not hold without faults is
//! reported once, and not held against faults.

use crate::{
    cluster::StartCluster,
    fault::Fault,
    plan::{combinations, single_faults},
    run::{Bench, Law, Run, TestError, Violation},
    scenario::Scenario,
    state::Mask,
};
use kaji_sim::shrink::shrink;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::{runtime::Handle, task::JoinSet};

/// Runs with which fewer faults are looked for.
const SHRINK_RUNS: u32 = 12;
/// A run with faults may ask so many times as much as one without, and [`MORE`] on top, before it is a hot loop.
const TIMES: u64 = 10;
const MORE: u64 = 300;

/// How to explore.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Draws what is tried if there is more than the limit, and combinations.
    pub seed: u64,
    /// Runs at the same time.
    pub jobs: usize,
    /// Plans of three faults each, besides those of one.
    pub combinations: usize,
}

/// What is known of a scenario without faults.
#[derive(Clone, Debug)]
pub struct Reference {
    first: Run,
    second: Run,
    final_mask: Mask,
    deletion_mask: Mask,
    points: BTreeMap<(String, String, String), u32>,
    /// Laws that do not hold without faults.
    pub violations: Vec<Violation>,
}

/// A run and what is held against it.
#[derive(Clone, Debug)]
pub struct Tried {
    /// Its number.
    pub number: usize,
    /// Its plan.
    pub faults: Vec<Fault>,
    /// What came of it.
    pub run: Run,
    /// Laws that did not hold because of its faults.
    pub violations: Vec<Violation>,
    /// For one that failed: in how many of two runs.
    pub seen: Option<u8>,
}

impl Tried {
    /// Whether the points of its faults were reached.
    #[must_use]
    pub fn reached(&self) -> bool {
        self.run.fired.len() == self.faults.len()
    }
}

/// What came of all runs.
#[derive(Clone, Debug)]
pub struct Exploration {
    /// Without faults.
    pub reference: Reference,
    /// With faults.
    pub tried: Vec<Tried>,
    /// Points that were not tried.
    pub left_out: usize,
}

impl Reference {
    /// Records a scenario by two runs.
    ///
    /// # Errors
    /// When it cannot be run, or its steps do not come about without faults.
    pub async fn learn(bench: &Bench) -> Result<Reference, TestError> {
        let first = bench.run(0, vec![]).await?;
        for run in [&first] {
            if let Some(violation) = run.violations.iter().find(|v| v.law == Law::Steps) {
                let text =
                    format!("without faults, {violation}; the operator's log is {}", run.log.display());
                return Err(TestError::Step(text));
            }
        }
        let second = bench.run(1, vec![]).await?;
        let ignore = &bench.scenario.ignore;
        let final_mask = first.state.mask(&second.state, ignore);
        let deletion_mask = match (&first.after_deletion, &second.after_deletion) {
            (Some(one), Some(two)) => one.mask(two, ignore),
            _ => Mask::default(),
        };
        let both = |(key, count): (&(String, String, String), &u32)| {
            second.points.get(key).map(|other| (key.clone(), *count.min(other)))
        };
        let points = first.points.iter().filter_map(both).collect();
        let mut violations = first.violations.clone();
        violations.extend(second.violations.iter().filter(|v| !has(&first.violations, v.law)).cloned());
        Ok(Reference { first, second, final_mask, deletion_mask, points, violations })
    }

    /// Requests until rest.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.first.requests
    }

    /// Objects and fields that differ by themselves, and are not compared.
    #[must_use]
    pub fn not_compared(&self) -> Vec<String> {
        self.final_mask.names()
    }

    /// The requests and events that both runs have.
    #[must_use]
    pub fn points(&self) -> &BTreeMap<(String, String, String), u32> {
        &self.points
    }

    /// The two runs.
    #[must_use]
    pub fn runs(&self) -> [&Run; 2] {
        [&self.first, &self.second]
    }

    /// What is held against a run.
    #[must_use]
    pub fn evaluate(&self, run: &Run) -> Vec<Violation> {
        let own = run.violations.iter().filter(|v| !has(&self.violations, v.law));
        let mut violations: Vec<Violation> = own.cloned().collect();
        let state = run.state.differences(&self.first.state, &self.final_mask);
        let final_state = state.into_iter().map(|text| Violation { law: Law::FinalState, text });
        violations.extend(final_state);
        if let (Some(is), Some(should)) = (&run.after_deletion, &self.first.after_deletion) {
            // What is different before the deletion is so after it.
            if !has(&violations, Law::FinalState) {
                let left = is.differences(should, &self.deletion_mask).into_iter();
                let text = |text| format!("after the deletion, {text}");
                violations.extend(left.map(|t| Violation { law: Law::Deletion, text: text(t) }));
            }
        }
        let most = self.first.requests.saturating_mul(TIMES).saturating_add(MORE);
        if run.requests > most && !has(&violations, Law::HotLoop) {
            let text = format!("{} requests, {} without faults", run.requests, self.first.requests);
            violations.push(Violation { law: Law::HotLoop, text });
        }
        violations
    }
}

fn has(violations: &[Violation], law: Law) -> bool {
    violations.iter().any(|violation| violation.law == law)
}

/// Explores a scenario in an empty directory. `progress` is called for each run.
///
/// # Errors
/// When the cluster, or the scenario without faults, does not run.
pub async fn explore(
    scenario: Arc<Scenario>,
    start: StartCluster,
    directory: PathBuf,
    settings: Settings,
    progress: impl Fn(&str),
) -> Result<Exploration, TestError> {
    progress("preparing the cluster");
    let bench = Bench::prepare(scenario.clone(), start, directory).await?;
    progress("learning the scenario without faults");
    let reference = Arc::new(Reference::learn(&bench).await?);
    let (single, left_out) = single_faults(&reference.points, &scenario, settings.seed);
    let mut plans: Vec<Vec<Fault>> = single.iter().map(|fault| vec![fault.clone()]).collect();
    plans.extend(combinations(&single, settings.combinations, settings.seed));
    progress(&format!("{} runs with faults, {left_out} left out", plans.len()));
    let explorer = Explorer { bench, reference: reference.clone(), next: Arc::new(Mutex::new(2)) };
    let (mut tasks, total) = (JoinSet::new(), plans.len());
    let (mut tried, mut plans) = (BTreeMap::new(), plans.into_iter().enumerate());
    loop {
        while tasks.len() < settings.jobs.max(1) {
            let Some((place, plan)) = plans.next() else { break };
            let (explorer, handle) = (explorer.clone(), Handle::current());
            // A thread for each: minimising is a plain loop over runs.
            tasks.spawn_blocking(move || explorer.attempt(&handle, plan).map(|tried| (place, tried)));
        }
        let Some(done) = tasks.join_next().await else { break };
        let (place, outcome) = done.map_err(|error| TestError::Task(error.to_string()))??;
        progress(&describe(&outcome, tried.len() + 1, total));
        tried.insert(place, outcome);
    }
    Ok(Exploration { reference: (*reference).clone(), tried: tried.into_values().collect(), left_out })
}

fn describe(tried: &Tried, done: usize, total: usize) -> String {
    let faults: Vec<String> = tried.faults.iter().map(ToString::to_string).collect();
    let verdict = match (tried.violations.first(), tried.reached()) {
        (Some(violation), _) => format!("FAILED {violation}"),
        (None, true) => "passed".to_owned(),
        (None, false) => "not reached".to_owned(),
    };
    format!("{done}/{total} {}: {verdict}", faults.join(" and "))
}

#[derive(Clone)]
struct Explorer {
    bench: Bench,
    reference: Arc<Reference>,
    next: Arc<Mutex<usize>>,
}

impl Explorer {
    async fn once(&self, faults: Vec<Fault>) -> Result<Tried, TestError> {
        let number = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            *next += 1;
            *next - 1
        };
        let run = self.bench.run(number, faults.clone()).await?;
        let violations = self.reference.evaluate(&run);
        Ok(Tried { number, faults, run, violations, seen: None })
    }

    /// Runs a plan. One that fails is run with fewer faults, if it has several, and a second time.
    fn attempt(&self, handle: &Handle, faults: Vec<Fault>) -> Result<Tried, TestError> {
        let mut tried = handle.block_on(self.once(faults))?;
        if tried.violations.is_empty() {
            return Ok(tried);
        }
        if tried.faults.len() > 1
            && let Some(fewer) = self.fewer(handle, &tried.faults)
        {
            tried = fewer;
        }
        let again = handle.block_on(self.once(tried.faults.clone()))?;
        tried.seen = Some(if again.violations.is_empty() { 1 } else { 2 });
        Ok(tried)
    }

    /// The run with the fewest faults that fails, if there is one with fewer.
    fn fewer(&self, handle: &Handle, faults: &[Fault]) -> Option<Tried> {
        let mut best = None;
        let all: BTreeSet<u64> = (0..faults.len() as u64).collect();
        let pick = |numbers: &BTreeSet<u64>| -> Vec<Fault> {
            let chosen = |(i, fault): (usize, &Fault)| numbers.contains(&(i as u64)).then(|| fault.clone());
            faults.iter().enumerate().filter_map(chosen).collect()
        };
        shrink(all, SHRINK_RUNS, |numbers| match handle.block_on(self.once(pick(&numbers))) {
            Ok(tried) if !tried.violations.is_empty() => {
                best = Some(tried);
                true
            }
            _ => false,
        });
        best
    }
}

/// Runs a plan once, beside the learned reference.
///
/// # Errors
/// As [`explore`].
pub async fn replay(
    scenario: Arc<Scenario>,
    start: StartCluster,
    directory: PathBuf,
    faults: Vec<Fault>,
) -> Result<Exploration, TestError> {
    let bench = Bench::prepare(scenario, start, directory).await?;
    let reference = Arc::new(Reference::learn(&bench).await?);
    let explorer = Explorer { bench, reference: reference.clone(), next: Arc::new(Mutex::new(2)) };
    let tried = explorer.once(faults).await?;
    Ok(Exploration { reference: (*reference).clone(), tried: vec![tried], left_out: 0 })
}
