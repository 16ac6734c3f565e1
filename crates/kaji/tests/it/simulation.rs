//! Whole clusters in a simulation: seeds break no law.

use futures_util::future::LocalBoxFuture;
use kaji::simulation::WholeCluster;
use kaji_sim::{Outcome, Parts, Scenario, Settings, SimulatedCluster, Subject, run};
use kaji_store::Store;
use serde_json::json;
use std::{
    collections::BTreeSet,
    sync::{Mutex, Weak},
    time::Duration,
};

fn outcome(seed: u64, allowed: Option<BTreeSet<u64>>) -> Outcome {
    let settings = Settings { seed, nodes: 3, allowed, scenario: Scenario::Drawn };
    run(&settings, &WholeCluster).unwrap()
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
fn a_seed_gives_one_trace() {
    let (one, other) = (outcome(7, None), outcome(7, None));
    let differing = one.trace.iter().zip(&other.trace).find(|(one, other)| one != other);
    assert_eq!((differing, one.digest), (None, other.digest));
    assert_ne!(one.digest, outcome(8, None).digest);
}

#[test]
fn objects_of_a_user_are_created_in_place_of_a_drawn_workload() {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "shops.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "shops", "singular": "shop", "kind": "Shop"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    });
    let shop = json!({"apiVersion": "example.com/v1", "kind": "Shop", "metadata": {"name": "a", "namespace": "default"}});
    let objects = vec![definition, shop.clone()];
    let settings = Settings { seed: 1, nodes: 1, allowed: None, scenario: Scenario::Objects(objects) };
    let outcome = run(&settings, &WholeCluster).unwrap();
    assert_eq!(outcome.violations, []);
    assert!(outcome.trace.iter().any(|line| line.contains("create /registry/example.com/shops/default/a")));
    let missing = Settings { scenario: Scenario::Objects(vec![shop]), ..settings };
    let refused = run(&missing, &WholeCluster).unwrap_err();
    assert!(refused.starts_with("\"Shop\" \"a\": ") && refused.contains("404"), "{refused}");
}

#[test]
fn a_busy_cluster_comes_to_rest() {
    let scenario = Scenario::Churn(Duration::from_secs(60));
    let outcome = run(&Settings { seed: 1, nodes: 5, allowed: None, scenario }, &WholeCluster).unwrap();
    assert_eq!(outcome.violations, []);
    assert!(outcome.writes > 500, "{} writes", outcome.writes);
}

#[test]
fn faults_that_are_not_allowed_do_not_come_about() {
    assert_eq!(outcome(2, Some(BTreeSet::new())).faults, []);
    // One of machines and processes, and nothing else.
    let faults = outcome(3, Some([1].into())).faults;
    assert_eq!(faults.iter().map(|fault| fault.number).collect::<Vec<_>>(), [1]);
}

/// A cluster, with references to what it was started over.
#[derive(Default)]
struct Followed(Mutex<Vec<Weak<dyn Store>>>);

impl Subject for Followed {
    fn start(&self, parts: Parts) -> LocalBoxFuture<'_, Result<Box<dyn SimulatedCluster>, String>> {
        self.0.lock().unwrap().push(std::sync::Arc::downgrade(&parts.store));
        WholeCluster.start(parts)
    }
}

/// Thousands of seeds are run in one process.
#[test]
fn nothing_of_a_simulated_cluster_outlives_it() {
    let followed = Followed::default();
    let settings = Settings { seed: 3, nodes: 1, allowed: None, scenario: Scenario::Drawn };
    run(&settings, &followed).unwrap();
    let stores = followed.0.into_inner().unwrap();
    assert!(!stores.is_empty());
    assert!(stores.iter().all(|store| store.strong_count() == 0));
}
