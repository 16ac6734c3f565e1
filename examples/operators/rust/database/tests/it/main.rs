//! `kaji test` finds each planted mistake of the operator, and reports nothing about the operator without them.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code: a panic is a failure")]

use kaji::operator_tests::in_process;
use kaji_operator_test::{
    explore::{Exploration, Settings, explore},
    fault::FaultKind,
    plan::PlanFile,
    report,
    run::Law,
    scenario::Scenario,
};
use std::{path::Path, sync::Arc};

const PROGRAM: &str = env!("CARGO_BIN_EXE_example-database");
const SCENARIO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../manifests/database-test.yaml");

/// Explores the scenario with these faults and, maybe, a mistake.
async fn explored(bug: Option<&str>, faults: &[FaultKind], directory: &Path) -> Exploration {
    let mut scenario = Scenario::read(Path::new(SCENARIO)).unwrap();
    scenario.operator.command = vec![PROGRAM.to_owned()];
    scenario.operator.command.extend(bug.iter().map(|bug| format!("--bug={bug}")));
    scenario.faults = faults.to_vec();
    let settings = Settings { seed: 1, jobs: 4, combinations: 0 };
    let runs = directory.join("runs");
    std::fs::create_dir(&runs).unwrap();
    let progress = |text: &str| println!("{text}");
    explore(Arc::new(scenario), in_process(), runs, settings, progress).await.unwrap()
}

/// The faults with which the mistake shows, each by its kind, verb and resource; and what is said of them.
async fn found(bug: &str, faults: &[FaultKind]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let explored = explored(Some(bug), faults, directory.path()).await;
    assert_eq!(explored.reference.violations, [], "the mistake shows without faults");
    let written = report::write_all(&explored, (Path::new(SCENARIO), 1), directory.path()).unwrap();
    println!("{}", report::summary(&explored, &written));
    let failed: Vec<_> = explored.tried.iter().filter(|tried| !tried.violations.is_empty()).collect();
    assert_eq!(failed.len(), written.plans.len());
    for tried in &failed {
        let plan = PlanFile::read(&written.plans[&tried.number]).unwrap();
        assert_eq!(plan.faults, tried.faults);
    }
    let of = |tried: &&kaji_operator_test::explore::Tried| {
        let (fault, violation) = (&tried.faults[0], &tried.violations[0]);
        assert_eq!(violation.law, Law::FinalState, "{violation}");
        format!("{} at {} of {}: {}", fault.kind, fault.at.verb, fault.at.resource, violation.text)
    };
    failed.iter().map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_read_shows() {
    let found = found("stale-read", &[FaultKind::StaleView]).await;
    let wanted = "stale-view at create of secrets: secrets default/orders-credentials-*: 2 objects, not 1";
    assert!(found.iter().any(|text| text == wanted), "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_was_missed_shows() {
    let found = found("missed-state", &[FaultKind::SkippedStates]).await;
    let wanted = "skipped-states at watch of databases.db.example.com: \
                  configmaps default/database-hosts .data.north.example.com: \"orders\", not absent";
    assert!(found.iter().any(|text| text == wanted), "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_writes_shows() {
    let found = found("crash-between-writes", &[FaultKind::Kill]).await;
    let wanted = "kill at create of configmaps: services default/orders is missing";
    assert!(found.iter().any(|text| text == wanted), "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_shows_without_mistakes() {
    let directory = tempfile::tempdir().unwrap();
    // The faults that show the mistakes, and those after which a write is done again.
    let faults = [
        FaultKind::StaleView,
        FaultKind::SkippedStates,
        FaultKind::Kill,
        FaultKind::AnswerLost,
        FaultKind::Conflict,
    ];
    let explored = explored(None, &faults, directory.path()).await;
    assert_eq!(explored.reference.violations, []);
    let failed: Vec<String> = explored
        .tried
        .iter()
        .flat_map(|tried| tried.violations.iter().map(|v| format!("{}: {v}", tried.faults[0])))
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(explored.tried.len() > 30 && explored.tried.iter().filter(|tried| tried.reached()).count() > 30);
}
