//! Plans: which faults a run has. A learned run gives the points; a file keeps a plan that found something.
//!
//! Invariant: equal points, faults, limits and seeds give equal plans.

use crate::{
    fault::{Fault, FaultKind, Point},
    scenario::Scenario,
};
use kaji_files::yaml::{self, YamlError};
use kaji_meta::random::{Random, SeededRandom};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// Why a file is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// It cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It says what no plan can say.
    #[error("{path}: {source}")]
    Content {
        /// Which.
        path: PathBuf,
        /// What.
        source: YamlError,
    },
    /// It cannot be written as YAML.
    #[error("the plan cannot be written: {0}")]
    Encode(String),
}

/// A plan, as a file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PlanFile {
    /// The scenario's file.
    pub scenario: PathBuf,
    /// The seed of the run that found it.
    pub seed: u64,
    /// The faults.
    pub faults: Vec<Fault>,
    /// What was found.
    #[serde(default)]
    pub found: Vec<String>,
}

impl PlanFile {
    /// Reads one.
    ///
    /// # Errors
    /// When it cannot be read, or is no plan.
    pub fn read(path: &Path) -> Result<PlanFile, PlanError> {
        let text =
            fs::read_to_string(path).map_err(|source| PlanError::File { path: path.to_owned(), source })?;
        yaml::decode(&text).map_err(|source| PlanError::Content { path: path.to_owned(), source })
    }

    /// Writes it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), PlanError> {
        let text = serde_saphyr::to_string(self).map_err(|error| PlanError::Encode(error.to_string()))?;
        kaji_files::replace(path, text.as_bytes(), 0o644)
            .map_err(|source| PlanError::File { path: path.to_owned(), source })
    }
}

/// The plans of one fault each, in the order in which they are run, and how many were left out. If there are more than the limit, a seed
/// draws them.
#[must_use]
pub fn single_faults(
    points: &BTreeMap<(String, String, String), u32>,
    scenario: &Scenario,
    seed: u64,
) -> (Vec<Fault>, usize) {
    let mut all = Vec::new();
    for ((client, verb, resource), count) in points {
        if !scenario.resources.is_empty() && !scenario.resources.contains(resource) {
            continue;
        }
        let main = resource.split('/').next().unwrap_or_default();
        let watched = points.contains_key(&(client.clone(), "watch".to_owned(), main.to_owned()));
        let comes_about = |kind: &&FaultKind| {
            // What the client does not watch it cannot see late.
            let of_views = matches!(kind, FaultKind::StaleView | FaultKind::LateEvents);
            kind.applies(verb, resource) && (watched || !of_views)
        };
        for kind in scenario.faults.iter().filter(comes_about) {
            // A read that is refused is one as another.
            let most = if matches!(verb.as_str(), "get" | "list") { 1 } else { scenario.limits.nth };
            // Leases are renewed without an end.
            let most = if *kind == FaultKind::LostLease { most.min(3) } else { most };
            for nth in 1..=most.min(*count) {
                let (client, verb, resource) = (client.clone(), verb.clone(), resource.clone());
                all.push(Fault { kind: *kind, at: Point { client, verb, resource, nth } });
            }
        }
    }
    let left_out = all.len().saturating_sub(scenario.limits.runs);
    if left_out > 0 {
        shuffle(&mut all, &SeededRandom::new(seed));
        all.truncate(scenario.limits.runs);
        all.sort();
    }
    (all, left_out)
}

/// Plans of several faults each, drawn by the seed.
#[must_use]
pub fn combinations(single: &[Fault], count: usize, seed: u64) -> Vec<Vec<Fault>> {
    let random = SeededRandom::new(seed ^ 0x5eed);
    let mut plans = Vec::new();
    for _ in 0..count {
        let mut drawn = single.to_vec();
        shuffle(&mut drawn, &random);
        let mut plan: Vec<Fault> = Vec::new();
        for fault in drawn {
            // One fault a point.
            if plan.len() < 3 && plan.iter().all(|other| other.at != fault.at) {
                plan.push(fault);
            }
        }
        plans.push(plan);
    }
    plans
}

fn shuffle<T>(items: &mut [T], random: &SeededRandom) {
    for end in (1..items.len()).rev() {
        let drawn = random.u64() % (end as u64 + 1);
        items.swap(end, usize::try_from(drawn).unwrap_or(end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn scenario(limits: &str) -> Scenario {
        let text = format!("operator: {{command: [x]}}\nsteps: []\nlimits: {limits}");
        yaml::decode(&text).unwrap()
    }

    fn points(all: &[(&str, &str, u32)]) -> BTreeMap<(String, String, String), u32> {
        let key = |(verb, resource): (&str, &str)| ("op".to_owned(), verb.to_owned(), resource.to_owned());
        all.iter().map(|(verb, resource, count)| (key((verb, resource)), *count)).collect()
    }

    #[test]
    fn plans_have_a_fault_at_each_point() {
        let points = points(&[("list", "pods", 7), ("patch", "pods/status", 3), ("watch", "pods", 1)]);
        let (faults, left_out) = single_faults(&points, &scenario("{nth: 2}"), 0);
        assert_eq!(left_out, 0);
        let of = |verb: &str, nth| -> Vec<&str> {
            let at = |fault: &&Fault| fault.at.verb == verb && fault.at.nth == nth;
            faults.iter().filter(at).map(|fault| fault.kind.name()).collect()
        };
        expect![[r#"
            (
                [
                    "answer-lost",
                    "kill",
                    "stale-view",
                    "late-events",
                    "conflict",
                    "too-many-requests",
                    "internal-error",
                    "unavailable",
                    "webhook-timeout",
                    "expired-token",
                    "time-jump",
                ],
                [
                    "expired-token",
                ],
                [
                    "skipped-states",
                ],
            )
        "#]]
        .assert_debug_eq(&(of("patch", 1), of("list", 1), of("watch", 1)));
        assert_eq!(of("patch", 1), of("patch", 2));
        assert_eq!((of("patch", 3).len(), of("list", 2).len()), (0, 0));
    }

    #[test]
    fn a_seed_draws_what_is_tried() {
        let points = points(&[("create", "pods", 10), ("create", "services", 10)]);
        let draw = |seed| single_faults(&points, &scenario("{runs: 15}"), seed);
        let (faults, left_out) = draw(1);
        let all = single_faults(&points, &scenario("{}"), 1).0;
        assert_eq!((faults.len(), faults.len() + left_out), (15, all.len()));
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let plans = combinations(&all, 5, 3);
        assert!(plans.iter().all(|plan| plan.len() == 3) && plans == combinations(&all, 5, 3));
    }

    #[test]
    fn a_file_keeps_a_plan() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plan.yaml");
        let at = Point { client: "op".into(), verb: "create".into(), resource: "pods".into(), nth: 2 };
        let plan = PlanFile {
            scenario: "/a/b.yaml".into(),
            seed: 7,
            faults: vec![Fault { kind: FaultKind::StaleView, at }],
            found: vec!["final state: \"x\": missing".into()],
        };
        plan.write(&path).unwrap();
        assert_eq!(PlanFile::read(&path).unwrap(), plan);
        fs::write(&path, "scenario: a\nseed: 1\nfaults: []\nmore: 1").unwrap();
        assert!(matches!(PlanFile::read(&path), Err(PlanError::Content { .. })));
    }
}
