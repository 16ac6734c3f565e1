//! Timelines of pods: a pod and what happens to it in, what is written of it out.

use super::*;
use crate::pods::core::ContainerState;
use crate::pods::sources::{Keyed, KeyedKind, KeyedRef};
use kaji_meta::random::SeededRandom;
use proptest::prelude::*;
use serde_json::{Value, json};

type Change = (i64, fn(&mut Value));

/// One pod on a node, with a clock that goes from one thing to do to the next.
struct World {
    pod: Value,
    state: SimulatedPod,
    began: Timestamp,
    now: Timestamp,
    facts: Facts,
    full: bool,
    lines: Vec<String>,
    random: SeededRandom,
}

fn start() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

impl World {
    fn new(mut pod: Value) -> World {
        pod["metadata"]["namespace"] = "n".into();
        pod["metadata"]["name"] = "p".into();
        pod["metadata"]["uid"] = "u".into();
        let typed: Pod = serde_json::from_value(pod.clone()).unwrap();
        World {
            state: SimulatedPod::restore(&typed, start()),
            pod,
            began: start(),
            now: start(),
            facts: Facts::default(),
            full: false,
            lines: vec![],
            random: SeededRandom::new(7),
        }
    }

    fn typed(&self) -> Pod {
        serde_json::from_value(self.pod.clone()).unwrap()
    }

    /// One step, and its write. When there is something to do next; `None` once the pod is removed.
    fn step(&mut self) -> Option<Option<Timestamp>> {
        let pod = self.typed();
        let mut events = vec![];
        let inputs = Inputs {
            pod: &pod,
            host: [172, 30, 0, 1].into(),
            addresses: &[[10, 244, 1, 2].into()],
            facts: Some(&self.facts),
            services: &Vec::new,
            room: &|_| match self.full {
                true => Err(("Deferred".into(), "no room".into())),
                false => Ok(()),
            },
            host_files: &HostFiles::default(),
            random: &self.random,
            now: self.now,
        };
        let outcome = step(&mut self.state, &inputs, &mut events);
        let at = self.now.duration_since(self.began).as_secs();
        if let Some(status) = &outcome.status {
            self.lines.push(format!("+{at}s {}", shown(status)));
            self.pod["status"] = serde_json::to_value(status).unwrap();
        }
        for event in events {
            self.lines.push(format!("  +{at}s {}: {}", event.reason, event.message));
        }
        if outcome.remove {
            self.lines.push(format!("+{at}s removed"));
            return None;
        }
        Some(outcome.again)
    }

    /// Runs until so many seconds after the start.
    fn run(&mut self, seconds: i64, changes: &[Change]) -> &mut World {
        let mut changes = changes.iter().peekable();
        let at = |seconds: i64| start() + Duration::from_secs(seconds.unsigned_abs());
        while let Some(again) = self.step() {
            let change = changes.peek().map(|(seconds, _)| at(*seconds));
            let Some(next) = again.into_iter().chain(change).min().filter(|next| *next <= at(seconds)) else {
                break;
            };
            self.now = next.max(self.now);
            while let Some((_, change)) = changes.next_if(|(seconds, _)| at(*seconds) <= self.now) {
                change(&mut self.pod);
            }
        }
        self
    }

    fn text(&self) -> String {
        self.lines.join("\n")
    }
}

fn state(state: &ContainerState) -> String {
    if state.running.is_some() {
        return "running".into();
    }
    match (&state.terminated, &state.waiting) {
        (Some(t), _) => {
            let message = t.message.as_deref().map(|m| format!(" {m:?}")).unwrap_or_default();
            format!("{}({}){message}", t.reason.as_deref().unwrap_or_default(), t.exit_code)
        }
        (None, Some(w)) => {
            let message = w.message.as_deref().map(|m| format!(" {m:?}")).unwrap_or_default();
            format!("{}{message}", w.reason.as_deref().unwrap_or_default())
        }
        (None, None) => "-".into(),
    }
}

fn shown(status: &PodStatus) -> String {
    let condition = |kind: &str| status.conditions.iter().flatten().find(|c| c.type_ == kind);
    let ready = condition("Ready").map(|c| (c.status.as_str(), c.reason.as_deref().unwrap_or_default()));
    let ready = ready.map_or("-".into(), |(status, reason)| match reason {
        "" => status.to_owned(),
        reason => format!("{status}/{reason}"),
    });
    let mut text = format!("{} ready={ready}", status.phase.as_deref().unwrap_or_default());
    for status in
        [&status.init_container_statuses, &status.container_statuses].into_iter().flatten().flatten()
    {
        let last = status
            .last_state
            .as_ref()
            .filter(|s| s.terminated.is_some())
            .map(|s| format!(" last={}", state(s)));
        let restarts =
            if status.restart_count == 0 { String::new() } else { format!("#{}", status.restart_count) };
        let now = status.state.as_ref().map(state).unwrap_or_default();
        text += &format!(" | {}{restarts} {now}{}", status.name, last.unwrap_or_default());
    }
    if let Some(reason) = &status.reason {
        text += &format!(" | {reason}");
    }
    text
}

fn pod(spec: Value) -> Value {
    annotated(json!({}), spec)
}

fn annotated(annotations: Value, mut spec: Value) -> Value {
    spec["nodeName"] = "sim-1".into();
    if spec.get("containers").is_none() {
        spec["containers"] = json!([{"name": "c", "image": "i"}]);
    }
    json!({"metadata": {"annotations": annotations}, "spec": spec})
}

fn command(command: Value) -> Value {
    json!([{"name": "c", "image": "busybox", "command": command}])
}

fn timeline(pod: Value, seconds: i64, changes: &[Change]) -> String {
    World::new(pod).run(seconds, changes).text()
}

fn delete(pod: &mut Value) {
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z".into();
    pod["metadata"]["deletionGracePeriodSeconds"] = 30.into();
}

#[test]
fn a_plain_pod_is_written_once_at_its_start_and_once_at_its_end() {
    expect_test::expect![[r#"
        +0s Running ready=True | c running
          +0s Started: Container started
        +21s Succeeded ready=False/PodCompleted | c Completed(0)
        +21s removed"#]]
    .assert_eq(&timeline(pod(json!({})), 100, &[(20, delete)]));
}

#[test]
fn restarts_with_growing_delays() {
    expect_test::expect![[r#"
        +0s Running ready=False/ContainersNotReady | c#1 CrashLoopBackOff "back-off 10s restarting failed container=c pod=p_n(u)" last=Error(3)
          +0s Started: Container started
          +0s BackOff: Back-off restarting failed container c in pod p_n(u)
        +10s Running ready=False/ContainersNotReady | c#2 CrashLoopBackOff "back-off 20s restarting failed container=c pod=p_n(u)" last=Error(3)
          +10s BackOff: Back-off restarting failed container c in pod p_n(u)
        +30s Running ready=False/ContainersNotReady | c#3 CrashLoopBackOff "back-off 40s restarting failed container=c pod=p_n(u)" last=Error(3)
          +30s BackOff: Back-off restarting failed container c in pod p_n(u)"#]]
    .assert_eq(&timeline(pod(json!({"containers": command(json!(["sh", "-c", "exit 3"]))})), 60, &[]));
}

#[test]
fn a_container_of_a_job_that_fails_once_is_restarted_in_place() {
    let script = "if [[ -r /data/foo ]]\nthen\nexit 0\nelse\ntouch /data/foo\nexit 1\nfi\n";
    let spec = json!({
        "restartPolicy": "OnFailure",
        "volumes": [{"name": "data", "emptyDir": {}}],
        "containers": [{"name": "c", "image": "busybox", "command": ["/bin/sh", "-c"], "args": [script],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
    });
    expect_test::expect![[r#"
        +0s Succeeded ready=False/PodCompleted | c#1 Completed(0) last=Error(1)
          +0s Started: Container started"#]]
    .assert_eq(&timeline(pod(spec), 100, &[]));
}

#[test]
fn commands_take_their_time_and_leave_messages() {
    let sleeps = json!(["sh", "-c", "sleep 5; echo -n bye > /dev/termination-log; exit 2"]);
    expect_test::expect![[r#"
        +0s Running ready=True | c running
          +0s Started: Container started
        +5s Failed ready=False/PodFailed | c Error(2) "bye""#]]
    .assert_eq(&timeline(pod(json!({"restartPolicy": "Never", "containers": command(sleeps)})), 100, &[]));
}

#[test]
fn init_containers_and_sidecars_run_in_order() {
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [
            {"name": "a", "image": "i", "command": ["sleep", "2"]},
            {"name": "side", "image": "i", "restartPolicy": "Always", "startupProbe": {"initialDelaySeconds": 3}},
            {"name": "b", "image": "i"},
        ],
        "containers": [{"name": "c", "image": "i", "command": ["sleep", "10"]}],
    });
    expect_test::expect![[r#"
        +0s Pending ready=False/ContainersNotReady | a running | side PodInitializing | b PodInitializing | c PodInitializing
        +2s Pending ready=False/ContainersNotReady | a Completed(0) | side running | b PodInitializing | c PodInitializing
        +5s Running ready=True | a Completed(0) | side running | b Completed(0) | c running
          +5s Started: Container started
        +15s Running ready=False/ContainersNotReady | a Completed(0) | side running | b Completed(0) | c Completed(0)
        +16s Succeeded ready=False/PodCompleted | a Completed(0) | side Completed(0) | b Completed(0) | c Completed(0)"#]]
    .assert_eq(&timeline(pod(spec), 100, &[]));
}

#[test]
fn probes_succeed_after_their_delays_and_fail_as_annotations_ask() {
    let spec = json!({"containers": [{
        "name": "c", "image": "i",
        "readinessProbe": {"initialDelaySeconds": 4},
        "livenessProbe": {"initialDelaySeconds": 2, "periodSeconds": 5, "failureThreshold": 2},
    }]});
    let annotations = json!({"sim.kaji.dev/unhealthy-after.c": "10s"});
    expect_test::expect![[r#"
        +0s Running ready=False/ContainersNotReady | c running
          +0s Started: Container started
        +4s Running ready=True | c running
          +15s Unhealthy: Liveness probe failed: as its annotation asks
          +15s Killing: Container c failed liveness probe, will be restarted
        +16s Running ready=False/ContainersNotReady | c#1 running last=Completed(0)
        +20s Running ready=True | c#1 running last=Completed(0)"#]]
    .assert_eq(&timeline(annotated(annotations, spec), 25, &[]));
    let unready = json!({"sim.kaji.dev/ready": "false"});
    expect_test::expect![[r#"
        +0s Running ready=False/ContainersNotReady | c running
          +0s Started: Container started"#]]
    .assert_eq(&timeline(annotated(unready, json!({})), 25, &[]));
}

/// It is killed fifteen seconds after each start, and has ended a second later.
#[test]
fn a_container_that_is_killed_for_a_probe_is_delayed_by_the_run_before() {
    let probe = json!({"periodSeconds": 5, "failureThreshold": 2});
    let spec = json!({"containers": [{"name": "c", "image": "i", "livenessProbe": probe}]});
    let mut world = World::new(annotated(json!({"sim.kaji.dev/unhealthy-after.c": "10s"}), spec));
    let attempt = |world: &World| world.state.runtime.newest("c").unwrap().attempt;
    world.run(63, &[]);
    assert_eq!(attempt(&world), 3);
    assert!(!world.text().contains("CrashLoopBackOff"), "{}", world.text());
    world.run(83, &[]);
    assert_eq!(attempt(&world), 3);
    assert!(world.text().contains("back-off 20s restarting failed container"), "{}", world.text());
    world.run(90, &[]);
    assert_eq!(attempt(&world), 4);
}

#[test]
fn gates_hold_readiness_back() {
    let open: fn(&mut Value) = |pod| {
        let conditions = pod["status"]["conditions"].as_array_mut().unwrap();
        conditions.push(json!({"type": "example.com/gate", "status": "True"}));
    };
    expect_test::expect![[r#"
        +0s Running ready=False/ReadinessGatesNotReady | c running
          +0s Started: Container started
        +5s Running ready=True | c running"#]]
    .assert_eq(&timeline(
        pod(json!({"readinessGates": [{"conditionType": "example.com/gate"}]})),
        9,
        &[(5, open)],
    ));
}

#[test]
fn images_that_are_not_there() {
    let with = |image: &str| pod(json!({"containers": [{"name": "c", "image": image}]}));
    expect_test::expect![[r#"
        +0s Pending ready=False/ContainersNotReady | c ErrImagePull "rpc error: code = NotFound desc = failed to pull and unpack image \"web:404\": failed to resolve reference \"web:404\": web:404: not found"
          +0s Pulling: Pulling image "web:404"
          +0s Failed: Failed to pull image "web:404": rpc error: code = NotFound desc = failed to pull and unpack image "web:404": failed to resolve reference "web:404": web:404: not found
        +1s Pending ready=False/ContainersNotReady | c ImagePullBackOff "Back-off pulling image \"web:404\": ErrImagePull: rpc error: code = NotFound desc = failed to pull and unpack image \"web:404\": failed to resolve reference \"web:404\": web:404: not found"
          +1s BackOff: Back-off pulling image "web:404"
        +5s Running ready=True | c running
          +5s Started: Container started"#]]
    .assert_eq(&timeline(with("web:404"), 9, &[(5, |pod| pod["spec"]["containers"][0]["image"] = "web:1".into())]));
    expect_test::expect![[r#"
        +0s Pending ready=False/ContainersNotReady | c InvalidImageName "Failed to apply default image tag \"invalid\": couldn't parse image name \"invalid\": invalid reference format"
          +0s InspectFailed: Failed to apply default image tag "invalid": couldn't parse image name "invalid": invalid reference format"#]]
    .assert_eq(&timeline(with("invalid"), 9, &[]));
}

#[test]
fn a_pod_waits_for_what_it_refers_to() {
    let spec = json!({
        "volumes": [{"name": "v", "configMap": {"name": "m", "items": [{"key": "k", "path": "k"}]}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "claim"}}],
        "containers": [{"name": "c", "image": "i", "env": [
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}],
    });
    let mut world = World::new(pod(spec));
    world.run(1, &[]);
    let name = |kind, name: &str| KeyedRef { kind, namespace: "n".into(), name: name.into() };
    let keyed =
        |key: &str| Arc::new(Keyed { data: [(key.to_owned(), b"x".to_vec())].into(), ..Keyed::default() });
    world.facts.keyed.insert(name(KeyedKind::ConfigMap, "m"), Ok(Some(keyed("other"))));
    world.run(3, &[]);
    world.facts.keyed.insert(name(KeyedKind::ConfigMap, "m"), Ok(Some(keyed("k"))));
    world.run(6, &[]);
    let claim = serde_json::from_value(json!({
        "metadata": {"name": "claim"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}));
    world.facts.claims.insert("claim".into(), Ok(Some(Arc::new(claim.unwrap()))));
    world.run(9, &[]);
    world.facts.keyed.insert(name(KeyedKind::Secret, "s"), Ok(Some(keyed("k"))));
    world.run(12, &[]);
    expect_test::expect![[r#"
        +0s Pending ready=False/ContainersNotReady | c ContainerCreating
          +0s FailedMount: MountVolume.SetUp failed for volume "v" : configmap "m" not found
          +0s FailedMount: MountVolume.SetUp failed for volume "v" : configmap "m" not found
          +1s FailedMount: MountVolume.SetUp failed for volume "v" : configmap references non-existent config key: k
          +3s FailedMount: Unable to attach or mount volumes: unmounted volumes=[d], unattached volumes=[], failed to process volumes=[d]: error processing PVC n/claim: failed to fetch PVC from API server: persistentvolumeclaims "claim" not found
        +7s Pending ready=False/ContainersNotReady | c CreateContainerConfigError "secret \"s\" not found"
          +7s Failed: Error: secret "s" not found
        +8s Running ready=True | c running
          +8s Started: Container started"#]]
    .assert_eq(&world.text());
}

#[test]
fn a_deadline_ends_a_pod() {
    expect_test::expect![[r#"
        +0s Running ready=True | c running
          +0s Started: Container started
          +10s DeadlineExceeded: Pod was active on the node longer than the specified deadline
        +11s Failed ready=False/PodFailed | c Completed(0) | DeadlineExceeded"#]]
    .assert_eq(&timeline(pod(json!({"activeDeadlineSeconds": 10})), 100, &[]));
}

#[test]
fn hooks_take_their_time() {
    let sleep = |seconds: i64| json!({"sleep": {"seconds": seconds}});
    let spec = json!({"containers": [{"name": "c", "image": "i",
        "lifecycle": {"postStart": sleep(3), "preStop": sleep(4)}}]});
    expect_test::expect![[r#"
        +0s Pending ready=False/ContainersNotReady | c ContainerCreating
        +3s Running ready=True | c running
          +3s Started: Container started
        +25s Succeeded ready=False/PodCompleted | c Completed(0)
        +25s removed"#]]
    .assert_eq(&timeline(pod(spec), 100, &[(20, delete)]));
}

#[test]
fn rules_of_containers_decide_about_their_restarts() {
    let spec = json!({"restartPolicy": "Never", "containers": [{
        "name": "c", "image": "busybox", "command": ["sh", "-c", "sleep 1; exit 42"], "restartPolicy": "Never",
        "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}],
    }]});
    let change: fn(&mut Value) =
        |pod| pod["metadata"]["annotations"] = json!({"sim.kaji.dev/exit-code": "7"});
    expect_test::expect![[r#"
        +0s Running ready=True | c running
          +0s Started: Container started
        +1s Running ready=True | c#1 running last=Error(42)
        +2s Running ready=False/ContainersNotReady | c#1 CrashLoopBackOff "back-off 10s restarting failed container=c pod=p_n(u)" last=Error(42)
          +2s BackOff: Back-off restarting failed container c in pod p_n(u)
        +12s Failed ready=False/PodFailed | c#2 Error(7) last=Error(42)"#]]
    .assert_eq(&timeline(pod(spec), 100, &[(5, change)]));
}

#[test]
fn resources_change_in_place_or_wait_for_room() {
    let spec = json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]});
    let mut world = World::new(pod(spec));
    let cpu = |world: &World| {
        let status = &world.pod["status"];
        let pending =
            status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "PodResizePending");
        let pending = pending.map_or("".to_owned(), |c| format!("{} {}", c["reason"], c["message"]));
        format!("{} {pending}", status["containerStatuses"][0]["resources"]["requests"]["cpu"])
    };
    let mut seen = vec![];
    world.run(1, &[]);
    seen.push(cpu(&world));
    world.pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2".into();
    world.full = true;
    world.run(2, &[]);
    seen.push(cpu(&world));
    world.full = false;
    world.run(3, &[]);
    seen.push(cpu(&world));
    expect_test::expect![[r#"
        "1" 
        "1" "Deferred" "no room"
        "2" "#]]
    .assert_eq(&seen.join("\n"));
    assert_eq!(world.state.runtime.newest("c").unwrap().attempt, 0, "it was not restarted");
}

#[test]
fn a_pod_of_a_machine_that_crashed_is_started_again() {
    let mut world = World::new(pod(json!({})));
    world.run(1, &[]);
    world.now = start() + Duration::from_secs(60);
    world.state.runtime.crash(world.now);
    world.run(70, &[]);
    expect_test::expect![[r#"
        +0s Running ready=True | c running
          +0s Started: Container started
        +60s Running ready=True | c#1 running last=Unknown(255)
          +60s SandboxChanged: Pod sandbox changed, it will be killed and re-created."#]]
    .assert_eq(&world.text());
    let mut never = World::new(pod(json!({"restartPolicy": "Never"})));
    never.run(1, &[]);
    never.state.runtime.crash(never.now);
    never.run(2, &[]);
    assert!(never.text().ends_with("Failed ready=False/PodFailed | c Unknown(255)"), "{}", never.text());
}

#[test]
fn annotations_keep_a_pod_pending() {
    expect_test::expect![[r#"
        +0s Pending ready=False/ContainersNotReady | c ContainerCreating
        +5s Running ready=True | c running
          +5s Started: Container started"#]]
    .assert_eq(&timeline(annotated(json!({"sim.kaji.dev/start-after": "5s"}), json!({})), 9, &[]));
    expect_test::expect!["+0s Pending ready=False/ContainersNotReady | c ImagePullBackOff"].assert_eq(
        &timeline(annotated(json!({"sim.kaji.dev/waiting": "ImagePullBackOff"}), json!({})), 9, &[]),
    );
}

#[test]
fn a_pending_pod_that_is_deleted_fails_before_others_release_it() {
    let mut pending = annotated(json!({"sim.kaji.dev/waiting": "ImagePullBackOff"}), json!({}));
    expect_test::expect![[r#"
        +0s Pending ready=False/ContainersNotReady | c ImagePullBackOff
        +5s removed"#]]
    .assert_eq(&timeline(pending.clone(), 9, &[(5, delete)]));
    pending["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
    expect_test::expect![[r#"
        +0s Pending ready=False/ContainersNotReady | c ImagePullBackOff
        +5s Failed ready=False/PodFailed | c ContainerStatusUnknown(137) "The container could not be located when the pod was terminated"
        +5s removed"#]]
    .assert_eq(&timeline(pending, 9, &[(5, delete)]));
}

fn any_pod() -> impl Strategy<Value = Value> {
    let policy = prop::sample::select(vec!["Always", "OnFailure", "Never"]);
    let command = prop::sample::select(vec![
        "exit 0",
        "exit 1",
        "sleep 3; exit 1",
        "sleep 700; exit 1",
        "sleep infinity",
    ]);
    let containers = prop::collection::vec(command.clone(), 1..3);
    let init = prop::collection::vec((command, any::<bool>()), 0..3);
    let deadline = prop::option::of(1..300_i64);
    (policy, containers, init, deadline).prop_map(|(policy, containers, init, deadline)| {
        let of =
            |name: String, script: &str| json!({"name": name, "image": "i", "command": ["sh", "-c", script]});
        let init: Vec<Value> = init
            .iter()
            .enumerate()
            .map(|(at, (script, sidecar))| {
                let mut container = of(format!("i{at}"), script);
                if *sidecar {
                    container["restartPolicy"] = "Always".into();
                }
                container
            })
            .collect();
        let containers: Vec<Value> =
            containers.iter().enumerate().map(|(at, script)| of(format!("c{at}"), script)).collect();
        let mut spec = json!({"restartPolicy": policy, "containers": containers, "initContainers": init});
        if let Some(deadline) = deadline {
            spec["activeDeadlineSeconds"] = deadline.into();
        }
        pod(spec)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_phase_that_is_final_is_never_left(pod in any_pod(), restart in 0..600_i64) {
        let mut world = World::new(pod);
        let mut last = String::new();
        let mut restarts = 0;
        for round in 0..120 {
            let Some(again) = world.step() else { break };
            let status = world.pod["status"].clone();
            let phase = status["phase"].as_str().unwrap_or_default().to_owned();
            let count: i64 = status["containerStatuses"].as_array().into_iter().flatten()
                .filter_map(|c| c["restartCount"].as_i64()).sum();
            prop_assert!(!matches!(last.as_str(), "Succeeded" | "Failed") || phase == last, "{last} to {phase}");
            prop_assert!(count >= restarts, "restarts are not taken back: {}", world.text());
            (last, restarts) = (phase, count);
            // The process that simulates the node is started anew.
            if round == restart % 40 {
                let typed = world.typed();
                world.state = SimulatedPod::restore(&typed, world.now);
                world.state.plan(&typed, &HostFiles::default());
            }
            let Some(next) = again else { break };
            prop_assert!(next > world.now || round < 100, "no progress: {}", world.text());
            world.now = next.max(world.now);
        }
    }

    #[test]
    fn delays_of_restarts_double_up_to_five_minutes(code in 1..256, runs in 0..30_u64) {
        let script = format!("sleep {runs}; exit {code}");
        let mut world = World::new(pod(json!({"containers": command(json!(["sh", "-c", script]))})));
        let mut gaps = vec![];
        let mut ended: Option<Timestamp> = None;
        let mut attempt = 0;
        for _ in 0..60 {
            let Some(Some(again)) = world.step() else { break };
            let run = world.state.runtime.newest("c").unwrap();
            if run.attempt > attempt {
                let gap = ended.map_or(0, |ended| run.started.duration_since(ended).as_secs());
                // Two runs may begin and end within one step.
                if run.attempt == attempt + 1 {
                    gaps.push(gap);
                }
                attempt = run.attempt;
            }
            if let Some(end) = &run.ended {
                ended = Some(end.at);
            }
            world.now = again;
        }
        let expected = [10, 20, 40, 80, 160, 300, 300];
        let delays: Vec<i64> = gaps.into_iter().filter(|gap| *gap > 0).collect();
        prop_assert!(delays.len() >= 7, "{delays:?}");
        prop_assert_eq!(&delays[..7], &expected[..]);
        prop_assert!(delays.iter().all(|gap| *gap <= 300));
    }
}
