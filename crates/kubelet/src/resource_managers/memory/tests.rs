//! The static policy on machines of several shapes.

use super::*;
use proptest::prelude::{prop_assert, prop_assert_eq, proptest};
use serde_json::{Value, json};
use std::fs;

const MIB: u64 = 1 << 20;

/// NUMA nodes with so many MiB each; the last one has 64 huge pages of 2 MiB.
fn machine(sizes: &[u64]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (number, mib) in sizes.iter().enumerate() {
        let node = dir.path().join(format!("node/node{number}"));
        let pages = node.join("hugepages/hugepages-2048kB");
        fs::create_dir_all(&pages).unwrap();
        fs::write(
            node.join("meminfo"),
            format!("Node {number} MemTotal:  {} kB\nNode {number} MemFree: 1 kB\n", mib * 1024),
        )
        .unwrap();
        fs::write(pages.join("nr_hugepages"), if number + 1 == sizes.len() { "64\n" } else { "0\n" })
            .unwrap();
    }
    dir
}

fn options(reserved_mib: u64) -> MemoryOptions {
    MemoryOptions {
        reserved: [(0, [(MEMORY.to_owned(), reserved_mib * MIB)].into())].into(),
        expected: 100 * MIB,
        eviction: Some(Amount::Units(100 << 20)),
    }
}

fn open(root: &Path, system: &tempfile::TempDir, nodes: &[u32]) -> Result<MemoryManager, String> {
    MemoryManager::open(root, system.path(), nodes, &options(200))
}

fn container(name: &str, mib: u64, huge: u64) -> Value {
    let mut amounts = json!({"cpu": "1", "memory": format!("{mib}Mi")});
    if huge > 0 {
        amounts["hugepages-2Mi"] = json!(format!("{huge}Mi"));
    }
    json!({"name": name, "resources": {"requests": amounts, "limits": amounts}})
}

fn pod(uid: &str, inits: Vec<Value>, containers: Vec<Value>) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": uid, "namespace": "n", "uid": uid},
        "spec": {"initContainers": inits, "containers": containers},
        "status": {"qosClass": "Guaranteed"},
    }))
    .unwrap()
}

fn any_node() -> Hint {
    Hint { nodes: None, preferred: false }
}

fn admit(manager: &mut MemoryManager, pod: &Pod, hint: Hint) -> String {
    let all = model::init_containers(pod).iter().chain(model::containers(pod));
    let mut shown = vec![];
    for container in all {
        match manager.allocate(pod, container, hint) {
            Ok(()) => shown.push(format!(
                "{} on {}",
                container.name,
                manager.nodes_of(model::uid(pod), &container.name)
            )),
            Err((reason, message)) => shown.push(format!("{reason}: {message}")),
        }
    }
    shown.join(", ")
}

fn free(manager: &MemoryManager) -> Vec<u64> {
    manager.machine.values().map(|node| node.memory_map[MEMORY].free / MIB).collect()
}

#[test]
fn memory_is_taken_of_few_nodes_and_groups_do_not_mix() {
    let (root, system) = (tempfile::tempdir().unwrap(), machine(&[1200, 1128]));
    let mut manager = open(root.path(), &system, &[0, 1]).unwrap();
    let mut shown = vec![format!("{:?}", free(&manager))];
    let second = Hint { nodes: Some(NumaMask::of([1])), preferred: true };
    let burstable: Pod = serde_json::from_value(json!({
        "metadata": {"name": "b", "uid": "b"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"memory": "1Mi"}}}]},
    }))
    .unwrap();
    for (pod, hint) in [
        (pod("small", vec![], vec![container("c", 600, 0)]), any_node()),
        (burstable, any_node()),
        (pod("aligned", vec![], vec![container("c", 300, 64)]), second),
        (pod("extends", vec![], vec![container("c", 800, 0)]), second),
        (pod("large", vec![], vec![container("c", 1500, 0)]), any_node()),
        (pod("pages", vec![], vec![container("c", 1, 128)]), any_node()),
    ] {
        let admitted = admit(&mut manager, &pod, hint);
        shown.push(format!("{}: {admitted} {:?}", model::uid(&pod), free(&manager)));
    }
    manager.keep_pods(&BTreeSet::new());
    shown.push(format!("gone: {:?}", free(&manager)));
    for pod in [
        pod("both", vec![], vec![container("c", 1500, 0)]),
        pod("one", vec![], vec![container("c", 10, 0)]),
        pod("both-too", vec![], vec![container("c", 500, 0)]),
    ] {
        let hint =
            Hint { nodes: (model::uid(&pod) == "both-too").then(|| NumaMask::of([0, 1])), preferred: false };
        let admitted = admit(&mut manager, &pod, hint);
        shown.push(format!("{}: {admitted} {:?}", model::uid(&pod), free(&manager)));
    }
    expect_test::expect![[r#"
        [1000, 1000]
        small: c on 0 [400, 1000]
        b: c on  [400, 1000]
        aligned: c on 1 [400, 700]
        extends: UnexpectedAdmissionError: Allocate failed due to [memorymanager] failed to find NUMA nodes to extend the current topology hint, which is unexpected [400, 700]
        large: UnexpectedAdmissionError: Allocate failed due to [memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available, which is unexpected [400, 700]
        pages: UnexpectedAdmissionError: Allocate failed due to [memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available, which is unexpected [400, 700]
        gone: [1000, 1000]
        both: c on 0,1 [0, 500]
        one: c on 0,1 [0, 490]
        both-too: UnexpectedAdmissionError: Allocate failed due to [memorymanager] failed to find NUMA nodes to extend the current topology hint, which is unexpected [0, 490]"#]].assert_eq(&shown.join("\n"));
}

#[test]
fn init_containers_leave_their_memory_to_those_after_them() {
    let (root, system) = (tempfile::tempdir().unwrap(), machine(&[1200]));
    let mut manager = open(root.path(), &system, &[0]).unwrap();
    let mut sidecar = container("sidecar", 100, 0);
    sidecar["restartPolicy"] = json!("Always");
    let inits = vec![container("first", 400, 0), container("second", 500, 0), sidecar];
    let pod = pod("p", inits, vec![container("main", 300, 0), container("other", 250, 0)]);
    let shown = admit(&mut manager, &pod, any_node());
    // 500 of the init containers, and 150 more: those that run at last need 650.
    assert_eq!((shown.contains("Error"), free(&manager)), (false, vec![872 - 650]), "{shown}");
    let again = open(root.path(), &system, &[0]).unwrap();
    assert_eq!(again.assigned, manager.assigned);
    manager.keep_pods(&BTreeSet::new());
    assert_eq!(free(&manager), [872]);
}

#[test]
fn hints_say_where_memory_is() {
    let (root, system) = (tempfile::tempdir().unwrap(), machine(&[1200, 1128]));
    let mut manager = open(root.path(), &system, &[0, 1]).unwrap();
    let show = |manager: &MemoryManager, pod: &Pod| {
        let of = |hints: Vec<ResourceHints>| {
            let one = |h: &Hint| format!("{:02b}{}", h.nodes.unwrap().0, if h.preferred { "!" } else { "" });
            let all =
                hints.iter().flatten().map(|of_kind| of_kind.iter().map(one).collect::<Vec<_>>().join(" "));
            all.collect::<Vec<_>>().join(" | ")
        };
        format!("{} / {}", of(manager.hints(pod, &model::containers(pod)[0])), of(manager.pod_hints(pod)))
    };
    let small = pod("small", vec![], vec![container("c", 600, 2)]);
    let large =
        pod("large", vec![container("i", 10, 0)], vec![container("c", 900, 0), container("d", 900, 0)]);
    let too_large = pod("too-large", vec![], vec![container("c", 9000, 0)]);
    let mut shown = vec![show(&manager, &small), show(&manager, &large), show(&manager, &too_large)];
    admit(&mut manager, &small, any_node());
    shown.extend([show(&manager, &small), show(&manager, &large)]);
    expect_test::expect![[r#"
        10! 11 | 10! 11 / 10! 11 | 10! 11
        01! 10! 11 / 11!
         / 
        10! | 10! / 10! | 10!
        01! / "#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn what_does_not_fit_the_machine_is_refused() {
    let system = machine(&[1200]);
    let fails = |options: MemoryOptions, checkpoint: &str| {
        let root = tempfile::tempdir().unwrap();
        if !checkpoint.is_empty() {
            fs::write(root.path().join(CHECKPOINT), checkpoint).unwrap();
        }
        let error = MemoryManager::open(root.path(), system.path(), &[0], &options).err().unwrap();
        error.replace(&root.path().display().to_string(), "DIR")
    };
    let node = r#"{"numberOfAssignments":0,"memoryMap":{},"cells":[0]}"#;
    let block = r#"{"numaAffinity":[NODE],"type":"KIND","size":1}"#;
    let with = |number: &str, kind: &str| {
        let block = block.replace("NODE", number).replace("KIND", kind);
        format!(
            r#"{{"policyName":"Static","machineState":{{}},"entries":{{"p":{{"c":[{block}]}}}},"checksum":0}}"#
        )
    };
    let shown = [
        fails(options(201), ""),
        fails(MemoryOptions { reserved: [(3, BTreeMap::new())].into(), ..options(200) }, ""),
        fails(MemoryOptions::default(), ""),
        fails(options(200), "{"),
        fails(options(200), r#"{"policyName":"None","machineState":{},"checksum":0}"#),
        fails(
            options(200),
            &format!(r#"{{"policyName":"Static","machineState":{{"0":{node}}},"checksum":0}}"#),
        ),
        fails(options(200), &with("7", "memory")),
        fails(options(200), &with("0", "x")),
    ];
    expect_test::expect![[r#"
        the total amount "201Mi" of type "memory" is not equal to the value "200Mi" determined by Node Allocatable feature
        the reserved memory configuration references a NUMA node 3 that does not exist on this machine
        [memorymanager] you should specify the system reserved memory
        could not restore state from checkpoint: the file cannot be read, please drain this node and delete the memory manager checkpoint file "DIR/memory_manager_state" before restarting Kubelet
        could not restore state from checkpoint: [memorymanager] configured policy "Static" differs from state checkpoint policy "None", please drain this node and delete the memory manager checkpoint file "DIR/memory_manager_state" before restarting Kubelet
        [memorymanager] the expected machine state is different from the real one
        [memorymanager] (pod: p, container: c) the memory assignment uses the NUMA that does not exist
        [memorymanager] (pod: p, container: c) the memory assignment uses memory resource that does not exist"#]].assert_eq(&shown.join("\n"));
}

proptest! {
    #[test]
    fn what_is_given_adds_up_and_comes_back(
        sizes in proptest::collection::vec((1_u64..900, 0_usize..4), 1..12),
        seed: u32,
    ) {
        let (root, system) = (tempfile::tempdir().unwrap(), machine(&[800, 700, 900]));
        let all = [0, 1, 2];
        let mut manager = open(root.path(), &system, &all).unwrap();
        let whole = free(&manager);
        let mut active: BTreeSet<String> = BTreeSet::new();
        for (index, (mib, hint)) in sizes.iter().enumerate() {
            let pod = pod(&format!("p{index}"), vec![], vec![container("c", *mib, 0)]);
            let nodes = (*hint < 3).then(|| NumaMask::of([u32::try_from(*hint).unwrap()]));
            if manager.allocate(&pod, &model::containers(&pod)[0], Hint { nodes, preferred: false }).is_ok() {
                active.insert(format!("p{index}"));
            }
            if seed >> (index % 32) & 1 == 1 {
                active.pop_first();
                manager.keep_pods(&active.iter().map(String::as_str).collect());
            }
            let given: u64 = blocks(&manager.assigned).map(|(_, _, block)| block.size / MIB).sum();
            prop_assert_eq!(given + free(&manager).iter().sum::<u64>(), whole.iter().sum::<u64>());
            let held = manager.machine.values().all(|n| n.memory_map.values().all(|t| t.free + t.reserved == t.allocatable));
            prop_assert!(held);
            prop_assert!(open(root.path(), &system, &all).is_ok());
        }
        manager.keep_pods(&BTreeSet::new());
        prop_assert_eq!(free(&manager), whole);
    }
}
