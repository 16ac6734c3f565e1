//! Whole clusters in a simulation: seeds break no law.

use kaji::simulation::WholeCluster;
use kaji_sim::{Outcome, Settings, run};
use std::collections::BTreeSet;

fn outcome(seed: u64, allowed: Option<BTreeSet<u64>>) -> Outcome {
    let settings = Settings { seed, nodes: 3, allowed, objects: vec![] };
    run(&settings, &WholeCluster::new()).unwrap()
}

#[test]
fn seeds_break_no_law() {
    for seed in 2..5 {
        let outcome = outcome(seed, None);
        assert!(!outcome.faults.is_empty());
        assert!(outcome.writes > 500 && outcome.simulated.as_secs() > 600, "{} writes", outcome.writes);
        assert_eq!(outcome.violations, [], "kaji sim --seed {seed} --nodes 3");
    }
}

#[test]
fn faults_that_are_not_allowed_do_not_come_about() {
    assert_eq!(outcome(2, Some(BTreeSet::new())).faults, []);
}
