//! The static policy on machines of several shapes.

use super::super::topology::tests::machine;
use super::*;
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
use serde_json::json;

fn no_hint() -> Hint {
    Hint { nodes: None, preferred: true }
}

fn container(name: &str, cpu: &str) -> serde_json::Value {
    json!({"name": name, "image": "i", "resources": {"requests": {"cpu": cpu, "memory": "1Mi"}, "limits": {"cpu": cpu, "memory": "1Mi"}}})
}

fn pod(uid: &str, inits: Vec<serde_json::Value>, containers: Vec<serde_json::Value>) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": uid, "namespace": "n", "uid": uid},
        "spec": {"initContainers": inits, "containers": containers},
        "status": {"qosClass": "Guaranteed"},
    }))
    .unwrap()
}

fn open(dir: &Path, options: CpuOptions) -> CpuManager {
    CpuManager::open(dir, machine(1, 2, 2, 2), options, Err(1)).unwrap()
}

fn admit(manager: &mut CpuManager, pod: &Pod) -> Result<String, Refused> {
    let all: Vec<Container> =
        model::init_containers(pod).iter().chain(model::containers(pod)).cloned().collect();
    for container in &all {
        manager.allocate(pod, container, no_hint())?;
    }
    Ok(all.iter().map(|c| format!("{}={} ", c.name, manager.of(model::uid(pod), &c.name))).collect())
}

#[test]
fn whole_processors_of_guaranteed_pods_are_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = open(dir.path(), CpuOptions::default());
    let mut shown = vec![manager.of("x", "y").to_string()];
    let burstable: Pod = serde_json::from_value(json!({
        "metadata": {"name": "b", "uid": "b"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]},
    }))
    .unwrap();
    for pod in [
        pod("a", vec![], vec![container("one", "2"), container("half", "500m")]),
        burstable,
        pod("i", vec![container("first", "3"), container("second", "1")], vec![container("main", "2")]),
        pod("large", vec![], vec![container("c", "5")]),
    ] {
        shown.push(
            admit(&mut manager, &pod).unwrap_or_else(|(reason, message)| format!("{reason}: {message}")),
        );
    }
    shown.push(std::fs::read_to_string(dir.path().join(CHECKPOINT)).unwrap());
    // A restart knows what was assigned; what is gone is shared again.
    let mut manager = open(dir.path(), CpuOptions::default());
    shown.push(format!("{:?} {}", manager.counts(), manager.has_own("a")));
    manager.keep_pods(&["i"].into());
    shown.push(format!("{:?} {} {:?}", manager.counts(), manager.has_own("a"), manager.own("a", "one")));
    expect_test::expect![[r#"
        0-7
        one=1,5 half=0,2-4,6-7 
        c=0,2-4,6-7 
        first=2,4,6 second=4 main=2,6 
        UnexpectedAdmissionError: Allocate failed due to not enough cpus available to satisfy request: requested=5, available=2, which is unexpected
        {"policyName":"static","defaultCpuSet":"0,3,7","entries":{"a":{"one":"1,5"},"i":{"first":"2,4,6","main":"2,6","second":"4"}},"checksum":0}
        (3000, 5) true
        (5000, 3) false None"#]].assert_eq(&shown.join("\n"));
}

#[test]
fn allocates_whole_cores_only() {
    let dir = tempfile::tempdir().unwrap();
    let mut manager =
        open(dir.path(), CpuOptions { whole_cores: true, strict_reservation: true, ..CpuOptions::default() });
    let mut shown: Vec<String> = [("odd", "3"), ("much", "8"), ("fits", "4"), ("more", "4")]
        .into_iter()
        .map(|(uid, cpu)| {
            let pod = pod(uid, vec![], vec![container("c", cpu)]);
            admit(&mut manager, &pod).unwrap_or_else(|(reason, message)| format!("{reason}: {message}"))
        })
        .collect();
    shown.push(manager.of("x", "y").to_string());
    expect_test::expect![[r#"
        SMTAlignmentError: SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2
        SMTAlignmentError: SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 6, requested CPUs = 8, CPUs per core = 2
        c=2-3,6-7 
        SMTAlignmentError: SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 2, requested CPUs = 4, CPUs per core = 2
        1,4-5"#]].assert_eq(&shown.join("\n"));
}

#[test]
fn hints_say_which_nodes_have_room() {
    let dir = tempfile::tempdir().unwrap();
    let mut manager = open(dir.path(), CpuOptions::default());
    let mut shown = String::new();
    let mut show = |manager: &CpuManager, pod: &Pod| {
        let text = |hints: ResourceHints| match hints {
            None => "no preference".to_owned(),
            Some(hints) => hints
                .iter()
                .map(|h| format!("{:02b}{} ", h.nodes.map_or(0, |n| n.0), if h.preferred { "!" } else { "" }))
                .collect(),
        };
        for container in model::containers(pod) {
            shown +=
                &format!("{} {}: {}\n", model::uid(pod), container.name, text(manager.hints(pod, container)));
        }
        shown += &format!("{}: {}\n", model::uid(pod), text(manager.pod_hints(pod)));
    };
    let (three, five) =
        (pod("three", vec![], vec![container("c", "3")]), pod("five", vec![], vec![container("c", "5")]));
    let shares = pod("shares", vec![], vec![container("c", "1500m")]);
    for pod in [&three, &five, &shares] {
        show(&manager, pod);
    }
    let on_second = Hint { nodes: Some(NumaMask::of([1])), preferred: true };
    manager.allocate(&three, &model::containers(&three)[0], on_second).unwrap();
    for pod in [&three, &pod("two", vec![], vec![container("a", "2"), container("b", "1")]), &five] {
        show(&manager, pod);
    }
    shown += &manager.of("three", "c").to_string();
    expect_test::expect![[r#"
        three c: 01! 10! 11 
        three: 01! 10! 11 
        five c: 11! 
        five: 11! 
        shares c: no preference
        shares: no preference
        three c: 10! 11 
        three: 10! 11 
        two a: 01! 11 
        two b: 01! 10! 11 
        two: 01! 11 
        five c: 
        five: 
        2-3,6"#]]
    .assert_eq(&shown);
}

#[test]
fn checkpoints_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut shown = vec![];
    let mut failed = |text: &str, options: CpuOptions, reserve| {
        std::fs::write(dir.path().join(CHECKPOINT), text).unwrap();
        let opened = CpuManager::open(dir.path(), machine(1, 1, 4, 1), options, reserve);
        shown.push(opened.err().unwrap().replace(&dir.path().display().to_string(), "DIR"));
    };
    let plain = CpuOptions::default();
    failed(r#"{"policyName": "none", "defaultCpuSet": "", "checksum": 0}"#, plain, Err(1));
    failed(r#"{"policyName": "static", "defaultCpuSet": "0-2", "checksum": 0}"#, plain, Err(1));
    failed(
        r#"{"policyName": "static", "defaultCpuSet": "0-3", "entries": {"p": {"c": "3"}}, "checksum": 0}"#,
        plain,
        Err(1),
    );
    failed(
        r#"{"policyName": "static", "defaultCpuSet": "1-3", "entries": {"p": {"c": "0"}}, "checksum": 0}"#,
        plain,
        Err(1),
    );
    let strict = CpuOptions { strict_reservation: true, ..plain };
    failed(r#"{"policyName": "static", "defaultCpuSet": "0-3", "checksum": 0}"#, strict, Err(1));
    failed("{", plain, Err(1));
    failed("{", plain, Err(0));
    failed("{", plain, Ok(CpuSet::parse("7").unwrap()));
    expect_test::expect![[r#"
        could not restore state from checkpoint: configured policy "static" differs from state checkpoint policy "none", please drain this node and delete the CPU manager checkpoint file "DIR/cpu_manager_state" before restarting Kubelet
        could not restore state from checkpoint: current set of available CPUs "0-3" doesn't match with CPUs in state "0-2", please drain this node and delete the CPU manager checkpoint file "DIR/cpu_manager_state" before restarting Kubelet
        could not restore state from checkpoint: pod: p, container: c cpuset: "3" overlaps with default cpuset "0-3", please drain this node and delete the CPU manager checkpoint file "DIR/cpu_manager_state" before restarting Kubelet
        could not restore state from checkpoint: not all reserved cpus: "0" are present in defaultCpuSet: "1-3", please drain this node and delete the CPU manager checkpoint file "DIR/cpu_manager_state" before restarting Kubelet
        could not restore state from checkpoint: some of strictly reserved cpus: "0" are present in defaultCpuSet: "0-3", please drain this node and delete the CPU manager checkpoint file "DIR/cpu_manager_state" before restarting Kubelet
        could not restore state from checkpoint: the file cannot be read, please drain this node and delete the CPU manager checkpoint file "DIR/cpu_manager_state" before restarting Kubelet
        [cpumanager] unable to determine reserved CPU resources for static policy: the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero
        unable to reserve CPUs 7: this machine has 0-3"#]].assert_eq(&shown.join("\n"));
}

proptest! {
    #[test]
    fn no_processor_has_two_owners(steps in proptest::collection::vec((0_usize..6, 0_u32..5, any::<bool>()), 1..30)) {
        let dir = tempfile::tempdir().unwrap();
        let mut manager = open(dir.path(), CpuOptions::default());
        let mut running: BTreeSet<String> = BTreeSet::new();
        for (index, cpus, ends) in steps {
            let uid = format!("p{index}");
            if ends {
                running.remove(&uid);
                manager.keep_pods(&running.iter().map(String::as_str).collect());
            } else if !running.contains(&uid) {
                let pod = pod(&uid, vec![], vec![container("c", &cpus.to_string())]);
                if admit(&mut manager, &pod).is_ok() {
                    running.insert(uid);
                }
            }
            let mut seen = manager.shared.clone();
            prop_assert!(manager.reserved.0.is_subset(&seen.0));
            for cpus in manager.assigned.values().flat_map(BTreeMap::values) {
                prop_assert!(seen.common(cpus).is_empty());
                seen = seen.union(cpus);
            }
            prop_assert_eq!(seen, manager.topology.all());
        }
    }
}
