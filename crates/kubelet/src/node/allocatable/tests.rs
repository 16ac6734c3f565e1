//! Bounds and allocatable of a machine, by fixtures.

use super::*;
use serde_json::json;
use std::sync::Mutex;

fn machine(reservations: Reservations) -> Machine {
    Machine {
        processors: 4,
        memory: 8 << 30,
        storage: 100 << 30,
        pods: 110,
        processes: 32_768,
        hugepages: BTreeMap::from([("2Mi".to_owned(), 4 << 20)]),
        reservations,
        ..Machine::default()
    }
}

fn amounts(of: &[(&str, i64)]) -> Amounts {
    of.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
}

fn reserving() -> Reservations {
    Reservations {
        system: amounts(&[("cpu", 300), ("memory", 512 << 20), ("pid", 1000)]),
        kube: amounts(&[("cpu", 200), ("memory", 512 << 20), ("ephemeral-storage", 1 << 30)]),
        system_cgroup: "/system.slice".into(),
        kube_cgroup: "/kube.slice".into(),
        ..Reservations::default()
    }
}

#[test]
fn pods_may_use_the_capacity_less_the_reservations_and_the_status_shows_less_by_the_thresholds() {
    let none = Reservations { enforced: BTreeSet::new(), ..reserving() };
    let percent = Reservations { eviction: BTreeMap::from([("memory", Amount::Part(0.05))]), ..reserving() };
    let mut shown = vec![];
    for reservations in [Reservations::default(), reserving(), none, percent] {
        let machine = machine(reservations);
        let bounds = pods_bounds(&machine);
        let pages = bounds.hugepages.iter().map(|p| format!("{}={}", p.page_size, p.limit));
        let shares = bounds.cpu_shares.unwrap();
        let (memory, pids) = (bounds.memory.unwrap(), bounds.pids.unwrap());
        let kept = machine.allocatable();
        let status = ["cpu", "memory", "ephemeral-storage"].map(|name| kept[name].clone()).join(" ");
        let pages = pages.collect::<String>();
        shown.push(format!("shares {shares} memory {memory} pids {pids} {pages}; {status}"));
    }
    expect_test::expect![[r#"
        shares 4096 memory 8585740288 pids 32768 2MB=4194304; 4 8282112Ki 96636764000
        shares 3584 memory 7511998464 pids 31768 2MB=4194304; 3500m 7233536Ki 95563022176
        shares 4096 memory 8589934592 pids 32768 2MB=4194304; 3500m 7233536Ki 95563022176
        shares 3584 memory 7511998464 pids 31768 2MB=4194304; 3500m 7082501728 106300440576"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn more_than_there_is_cannot_be_reserved() {
    let too_much = Reservations {
        system: amounts(&[("cpu", 4001), ("memory", (8 << 30) - (99 << 20))]),
        ..Reservations::default()
    };
    assert_eq!(validate(&machine(reserving())), Ok(()));
    let error = validate(&machine(too_much)).unwrap_err();
    expect_test::expect![[r#"invalid Node Allocatable configuration. Resource "cpu" has a reservation of 4001m but capacity of 4. Expected capacity >= reservation. Resource "memory" has a reservation of 8193Mi but capacity of 8Gi. Expected capacity >= reservation."#]].assert_eq(&error);
}

#[test]
fn burstable_pods_have_the_weight_of_what_they_request() {
    let pod = |name: &str, phase: &str, resources: serde_json::Value| -> Pod {
        let container = json!({"name": "c", "image": "i", "resources": resources});
        let pod = json!({
            "metadata": {"name": name, "uid": name},
            "spec": {"containers": [container]},
            "status": {"phase": phase},
        });
        serde_json::from_value(pod).unwrap()
    };
    let asks = |cpu: &str| json!({"requests": {"cpu": cpu}});
    let all = json!({"cpu": "1", "memory": "1Gi"});
    let pods = [
        pod("a", "Running", asks("250m")),
        pod("b", "Pending", asks("1750m")),
        pod("over", "Succeeded", asks("9")),
        pod("guaranteed", "Running", json!({"requests": all, "limits": all})),
        pod("best-effort", "Running", json!({})),
    ];
    assert_eq!(burstable_shares(pods.iter()), 2048);
    assert_eq!(burstable_shares(pods.iter().skip(2)), 2);
}

#[test]
fn the_cgroups_of_pods_are_protected_as_far_as_those_below_them() {
    let [pods, burstable] = protections(Protected { min: 7, low: 5 });
    assert_eq!((pods.0, pods.1.memory_min, pods.1.memory_low), ("/kubepods", Some(12), Some(5)));
    assert_eq!(burstable.0, "/kubepods/burstable");
    assert_eq!((burstable.1.memory_min, burstable.1.memory_low), (None, Some(5)));
}

#[test]
fn memory_that_is_kept_for_the_system_is_protected() {
    let kept = amounts(&[("cpu", 300), ("memory", 1 << 30)]);
    let of = |compressible| reserved_bounds(&kept, compressible).memory_min;
    assert_eq!([of(false), of(true)], [Some(1 << 30), None]);
}

/// Cgroups of the system: `/system.slice`, which has no controller of processes, is all there is.
#[derive(Default)]
struct System(Mutex<Vec<String>>);

impl PodCgroups for System {
    fn ensure(&self, _: &str, _: &kaji_containers::LinuxResources) -> Result<(), String> {
        Err("not of a pod".into())
    }
    fn remove(&self, _: &str) -> Result<(), String> {
        Err("not of a pod".into())
    }
    fn bound(&self, path: &str, bounds: &CgroupBounds) -> Result<Vec<String>, String> {
        self.0.lock().unwrap().push(format!("{path} {:?} {:?}", bounds.cpu_shares, bounds.memory));
        Ok(bounds.pids.map(|_| "pids.max".to_owned()).into_iter().collect())
    }
    fn exists(&self, path: &str) -> bool {
        path == "/system.slice"
    }
    fn pods(&self) -> Vec<(String, String)> {
        vec![]
    }
}

#[test]
fn cgroups_of_the_system_are_bounded_where_they_exist() {
    use Enforcement::{KubeReserved, Pods, SystemReserved, SystemReservedCompressible};
    let (system, nothing) = (System::default(), Amounts::new());
    let with = |enforced: Enforcement, system: &Amounts| Reservations {
        enforced: [Pods, enforced].into(),
        system: system.clone(),
        ..reserving()
    };
    let (all, without_pids) = (reserving().system, amounts(&[("cpu", 300), ("memory", 1 << 30)]));
    let mut shown: Vec<String> = [
        (SystemReserved, &without_pids),
        (SystemReservedCompressible, &all),
        (SystemReserved, &all),
        (SystemReserved, &nothing),
        (KubeReserved, &all),
    ]
    .into_iter()
    .map(|(enforced, amounts)| format!("{:?}", enforce_reserved(Some(&system), &with(enforced, amounts))))
    .collect();
    shown.push(format!("{:?}", enforce_reserved(None, &with(SystemReserved, &all))));
    shown.extend(system.0.into_inner().unwrap());
    assert_eq!(enforce_reserved(None, &Reservations::default()), Ok(()));
    expect_test::expect![[r#"
        Ok(())
        Ok(())
        Err("Failed to enforce System Reserved Cgroup Limits on \"/system.slice\": the cgroup has no pids.max")
        Err("Failed to enforce System Reserved Cgroup Limits on \"/system.slice\": \"/system.slice\" cgroup is not configured properly")
        Err("Failed to enforce Kube Reserved Cgroup Limits on \"/kube.slice\": \"/kube.slice\" cgroup does not exist")
        Err("Failed to enforce System Reserved Cgroup Limits on \"/system.slice\": cgroups cannot be changed here")
        /system.slice Some(307) Some(1073741824)
        /system.slice Some(307) None
        /system.slice Some(307) Some(536870912)"#]].assert_eq(&shown.join("\n"));
}
