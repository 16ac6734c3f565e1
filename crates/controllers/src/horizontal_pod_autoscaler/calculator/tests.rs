//! What metrics ask for, by upstream's rules for pods that are not ready and for values that are missing.

use super::*;
use crate::testing::{ago, now, object};
use proptest::prelude::*;
use serde_json::{Value, json};

const TENTH: Tolerances = Tolerances { down: 0.1, up: 0.1 };

fn periods() -> StartPeriods {
    StartPeriods {
        cpu_initialization: SignedDuration::from_secs(300),
        initial_readiness: SignedDuration::from_secs(30),
    }
}

/// A pod that has been ready for an hour and requests one core.
fn pod(name: &str, change: impl FnOnce(&mut Value)) -> Arc<Pod> {
    let mut value = json!({
        "metadata": {"name": name, "namespace": "n"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]},
        "status": {"phase": "Running", "startTime": ago(3600),
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": ago(3590)}]},
    });
    change(&mut value);
    Arc::new(object(value))
}

fn ready(count: usize) -> Vec<Arc<Pod>> {
    (0..count).map(|i| pod(&format!("p{i}"), |_| ())).collect()
}

fn values(values: &[i64]) -> PodMetrics {
    let metric = |value: &i64| PodMetric { value: *value, at: now(), window: SignedDuration::from_secs(30) };
    values.iter().enumerate().map(|(i, value)| (format!("p{i}"), metric(value))).collect()
}

fn by_utilization(pods: &[Arc<Pod>], used: &[i64], target: i64) -> Result<Utilized, String> {
    let current = i64::try_from(pods.len()).unwrap();
    let pods = Pods { pods, periods: periods(), now: now() };
    pods.by_utilization(values(used), current, target, ("cpu", ""), TENTH)
}

#[test]
fn computes_the_utilization_of_ready_pods() {
    let replicas = |used: &[i64], target| by_utilization(&ready(used.len()), used, target).unwrap().replicas;
    // Upstream's own cases: more, fewer, within the tolerance.
    assert_eq!(replicas(&[300, 500, 700], 30), 5);
    assert_eq!(replicas(&[100, 300, 500, 250, 250], 50), 3);
    assert_eq!(replicas(&[1010, 1030, 1020], 100), 3);
    let shown = by_utilization(&ready(2), &[250, 750], 50).unwrap();
    assert_eq!(shown, Utilized { replicas: 2, utilization: 50, average: 500 });
}

#[test]
fn young_pods_do_not_count_as_busy() {
    let unready = |value: &mut Value| {
        value["status"]["startTime"] = ago(60).into();
        value["status"]["conditions"][0] =
            json!({"type": "Ready", "status": "False", "lastTransitionTime": ago(50)});
    };
    let pods = [pod("p0", unready), pod("p1", |_| ()), pod("p2", |_| ())];
    // 300 of p0 is ignored; with it counted as idle the two others are at two thirds of what they were.
    assert_eq!(by_utilization(&pods, &[300, 500, 700], 30).unwrap().replicas, 4);
    // Within its first minutes, only a sample that is wholly of the time after it became ready counts.
    let became = |seconds: i64| {
        move |value: &mut Value| {
            value["status"]["startTime"] = ago(60).into();
            value["status"]["conditions"][0]["lastTransitionTime"] = ago(seconds).into();
        }
    };
    let count =
        |pod| Groups::of(&Pods { pods: &[pod], periods: periods(), now: now() }, &values(&[1]), "cpu");
    assert_eq!(count(pod("p0", became(31))).ready, 1);
    assert_eq!(count(pod("p0", became(29))).unready.len(), 1);
    // Later a pod that was ready once counts, whatever it is now; memory counts always.
    let fell = |value: &mut Value| value["status"]["conditions"][0]["status"] = "False".into();
    assert_eq!(count(pod("p0", fell)).unready.len(), 1);
    let fell_late = |value: &mut Value| {
        value["status"]["conditions"][0] =
            json!({"type": "Ready", "status": "False", "lastTransitionTime": ago(5)});
    };
    assert_eq!(count(pod("p0", fell_late)).ready, 1);
    let memory = Groups::of(
        &Pods { pods: &[pod("p0", unready)], periods: periods(), now: now() },
        &values(&[1]),
        "memory",
    );
    assert_eq!(memory.ready, 1);
}

#[test]
fn missing_values_count_against_the_change() {
    let pods = ready(4);
    // Up: the one without a value counts as idle. 3 * 1000 of 4 cores at 50 % are 6 pods; without that rule it were 8.
    assert_eq!(by_utilization(&pods, &[1000, 1000, 1000], 50).unwrap().replicas, 6);
    // Down: it counts as busy with all that it requests.
    assert_eq!(by_utilization(&pods, &[100, 100, 100], 50).unwrap().replicas, 3);
    // Nothing turns around.
    assert_eq!(by_utilization(&pods, &[600], 50).unwrap().replicas, 4);
    let failing = |value: &mut Value| value["status"]["phase"] = "Failed".into();
    let pods = [pod("p0", |_| ()), pod("p1", failing)];
    assert_eq!(by_utilization(&pods, &[1000, 1000], 50).unwrap().replicas, 2);
}

#[test]
fn reports_metrics_that_cannot_be_computed() {
    let bare = |value: &mut Value| value["spec"]["containers"][0]["resources"] = json!({});
    let pending = |value: &mut Value| value["status"]["phase"] = "Pending".into();
    let container = |pods: &[Arc<Pod>], name: &str| {
        let pods = Pods { pods, periods: periods(), now: now() };
        pods.by_utilization(values(&[1]), 1, 50, ("cpu", name), TENTH).map(|u| u.replicas)
    };
    let seen = [
        by_utilization(&[], &[1], 50).unwrap_err(),
        by_utilization(&[pod("p0", pending)], &[1], 50).unwrap_err(),
        by_utilization(&ready(1), &[], 50).unwrap_err(),
        by_utilization(&[pod("p0", bare)], &[1], 50).unwrap_err(),
        container(&ready(1), "x").unwrap_err(),
        by_utilization(
            &[
                pod("p0", |v| v["spec"]["resources"] = json!({"requests": {"memory": "1Gi"}})),
                pod("p1", bare),
            ],
            &[1],
            50,
        )
        .unwrap_err(),
    ];
    expect_test::expect![[r#"
        no pods returned by selector while calculating replica count
        did not receive metrics for targeted pods (pods might be unready)
        did not receive metrics for targeted pods (pods might be unready)
        missing request for cpu in container c of Pod p0
        container x not found in Pod p0
        missing request for cpu in container c of Pod p1"#]]
    .assert_eq(&seen.join("\n"));
}

#[test]
fn requests_of_pods_and_containers() {
    let sidecar = json!([{"name": "s", "image": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}},
        {"name": "first", "image": "i", "resources": {"requests": {"cpu": "7"}}}]);
    let with_sidecar = pod("p", |v| v["spec"]["initContainers"] = sidecar.clone());
    let whole = pod("p", |v| {
        v["spec"]["resources"] = json!({"requests": {"cpu": "3"}});
        v["spec"]["overhead"] = json!({"cpu": "250m"});
    });
    let other = pod("p", |v| {
        v["spec"]["resources"] = json!({"requests": {"memory": "3Gi"}});
        v["spec"]["initContainers"] = sidecar.clone();
    });
    let of =
        |pod: &Arc<Pod>, container: &str| requests(std::slice::from_ref(pod), container, "cpu").unwrap()["p"];
    let seen =
        [of(&with_sidecar, ""), of(&with_sidecar, "s"), of(&whole, ""), of(&whole, "c"), of(&other, "")];
    assert_eq!(seen, [1500, 500, 3250, 1000, 7500]);
}

#[test]
fn computes_from_metrics_of_other_objects() {
    let pods = ready(4);
    let pods = Pods { pods: &pods, periods: periods(), now: now() };
    let none = Pods { pods: &[], periods: periods(), now: now() };
    assert_eq!(pods.by_ratio(4, 1.5, TENTH), Ok(6));
    assert_eq!(pods.by_ratio(5, 1.05, TENTH), Ok(5));
    assert_eq!(pods.by_ratio(0, 2.5, TENTH), Ok(3));
    assert_eq!(pods.by_ratio(4, 1e30, TENTH), Ok(i64::from(i32::MAX)));
    assert_eq!(
        none.by_ratio(4, 2.0, TENTH).unwrap_err(),
        "unable to calculate ready pods: no pods returned by selector while calculating replica count"
    );
    assert_eq!(per_pod(3, 9000, 2000, TENTH), (5, 3000));
    assert_eq!(per_pod(3, 6100, 2000, TENTH), (3, 2034));
    assert_eq!(per_pod(0, 6000, 2000, TENTH), (3, 6000));
    assert_eq!(
        pods.by_value(values(&[10_000, 20_000, 30_000, 20_000]), 4, 10_000, "", TENTH),
        Ok((8, 20_000))
    );
}

proptest! {
    /// More load never asks for fewer replicas.
    #[test]
    fn recommendations_grow_with_the_load(
        used in prop::collection::vec(0i64..4000, 1..8),
        more in prop::collection::vec(0i64..2000, 8),
        target in 1i64..200,
        silent in 0usize..4,
    ) {
        let pods = ready(used.len() + silent);
        let raised: Vec<i64> = used.iter().zip(&more).map(|(a, b)| a + b).collect();
        let (less, more) = (by_utilization(&pods, &used, target), by_utilization(&pods, &raised, target));
        prop_assert!(less.unwrap().replicas <= more.unwrap().replicas);
    }

    /// Pods without a value do not turn a change around.
    #[test]
    fn silent_pods_do_not_turn_a_change(used in prop::collection::vec(0i64..4000, 1..8), target in 1i64..200, silent in 1usize..6) {
        let known = by_utilization(&ready(used.len()), &used, target).unwrap();
        let all = by_utilization(&ready(used.len() + silent), &used, target).unwrap();
        let (known_of, all_of) = (i64::try_from(used.len()).unwrap(), i64::try_from(used.len() + silent).unwrap());
        if known.replicas > known_of {
            prop_assert!(all.replicas >= all_of);
        }
        if known.replicas < known_of {
            prop_assert!(all.replicas <= all_of);
        }
    }
}
