//! What a simulated kubelet does for a pod: the next status to report, or the pod's removal.
//! Phases, conditions and container states are those that pkg/kubelet's status manager reports.

use super::{
    addresses::Addresses,
    behaviour::{self, Behaviour},
    fleet::Fleet,
};
use kaji_runtime::{
    Cx, EventRecord, Key, PatchKind, Plan, Projection, Reconciler, Step, Target, View, Write,
    objects::{Container, Node, Pod},
};
use serde_json::{Value, json};
use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

/// After this long a pod without an address is reconciled again, and an event is recorded.
const NO_ADDRESS: Duration = Duration::from_secs(10);

/// Reports for the pods of a fleet.
pub struct Pods {
    /// The nodes.
    pub fleet: Fleet,
    /// The addresses of their pods.
    pub addresses: Arc<Addresses>,
}

/// What comes next for a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Nothing, until the pod changes.
    Rest,
    /// Reconcile again after this long.
    Wait(Duration),
    /// There is no address for it, after so long.
    NoAddress(Duration),
    /// Report this status; reconcile again after the duration, if there is one.
    Report(Value, Option<Duration>),
    /// It is over: remove the object.
    Remove,
}

impl Reconciler for Pods {
    fn name(&self) -> &'static str {
        "kubelet"
    }

    fn agent(&self, view: &View, key: &Key) -> Option<String> {
        view.get::<Pod>().by_key(key).map(|pod| super::agent(&pod.spec.node_name))
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let pods = view.get::<Pod>();
        let Some(pod) = pods.by_key(key) else { return Plan::nothing() };
        let Some(place) = self.fleet.place(&pod.spec.node_name) else { return Plan::nothing() };
        let host = place.address;
        let addresses = if pod.spec.host_network {
            vec![host.into()]
        } else {
            let reported: Vec<IpAddr> = pod.status.pod_ips.iter().filter_map(|p| p.ip.parse().ok()).collect();
            self.addresses.assign(&pod.metadata.uid, &reported, || {
                let nodes = view.get::<Node>();
                let node = nodes.get("", &place.name);
                node.iter().flat_map(|n| &n.spec.pod_cidrs).filter_map(|range| range.parse().ok()).collect()
            })
        };
        let target = Target::of::<Pod>(&key.namespace, &key.name);
        match next(pod, &addresses, host, cx.now) {
            Next::Rest => Plan::nothing(),
            Next::Wait(wait) => Plan::nothing().again_after(wait),
            Next::NoAddress(waited) => {
                let plan = Plan::nothing().again_after(NO_ADDRESS);
                if waited < NO_ADDRESS {
                    return plan;
                }
                let text =
                    "Failed to create pod sandbox: the node's ranges (spec.podCIDRs) have no address for it";
                let about = pod.metadata.reference(&Pod::api_version(), Pod::KIND);
                plan.event(EventRecord::warning(about, "FailedCreatePodSandBox", text))
            }
            Next::Report(status, again) => {
                let started = status["phase"] == "Running" && pod.status.phase != "Running";
                let body = json!({"metadata": {"uid": pod.metadata.uid}, "status": status});
                let write =
                    Write::Patch { target: target.subresource("status"), kind: PatchKind::Strategic, body };
                let on_success = started.then(|| {
                    EventRecord::normal(
                        pod.metadata.reference(&Pod::api_version(), Pod::KIND),
                        "Started",
                        "Container started",
                    )
                });
                let plan = Plan::nothing().stage(vec![Step { write, on_success, on_failure: None }]);
                match again {
                    Some(wait) => plan.again_after(wait),
                    None => plan,
                }
            }
            Next::Remove => {
                let options = json!({
                    "apiVersion": "v1",
                    "kind": "DeleteOptions",
                    "gracePeriodSeconds": 0,
                    "preconditions": {"uid": pod.metadata.uid},
                });
                Plan::nothing().then(Write::Delete { target, options })
            }
        }
    }
}

/// Decides. Pure: the pod as reported so far, its addresses (none: the node has none left), its node's, the time.
pub fn next(pod: &Pod, addresses: &[IpAddr], host: Ipv4Addr, now: jiff::Timestamp) -> Next {
    let behaviour = behaviour::of(pod);
    let report = Report { pod, behaviour: &behaviour, addresses, host, now };
    if pod.metadata.deleting() {
        let ended =
            pod.finished() || pod.status.container_statuses.iter().all(|c| c.state.terminated.is_some());
        return match stopping(pod, &behaviour, now) {
            _ if ended => Next::Remove,
            Some(left) => Next::Wait(left),
            None => Next::Report(report.ended(0), None),
        };
    }
    if pod.finished() {
        return Next::Rest;
    }
    let Some(start) = pod.status.start_time else {
        return Next::Report(report.pending(), Some(Duration::ZERO));
    };
    let since = |t: jiff::Timestamp| Duration::try_from(now.duration_since(t)).unwrap_or_default();
    if let Some(limit) =
        pod.spec.active_deadline_seconds.and_then(|s| u64::try_from(s).ok()).map(Duration::from_secs)
        && since(start) >= limit
    {
        return Next::Report(report.deadline(), None);
    }
    if pod.status.phase != "Running" {
        if behaviour.waiting.is_some() {
            return Next::Rest;
        }
        if addresses.is_empty() {
            return Next::NoAddress(since(start));
        }
        return match behaviour.start_after.checked_sub(since(start)).filter(|left| !left.is_zero()) {
            Some(left) => Next::Wait(left),
            None => Next::Report(report.running(), behaviour.exit_after),
        };
    }
    match behaviour.exit_after {
        // A container that must always run is started again by a kubelet; a simulated one stays down in its backoff.
        Some(after) if pod.spec.restart_policy != "Always" => {
            match after.checked_sub(since(start)).filter(|l| !l.is_zero()) {
                Some(left) => Next::Wait(left),
                None => Next::Report(report.ended(behaviour.exit_code), None),
            }
        }
        _ => report.readiness(),
    }
}

/// How long a deleted pod's containers still take to stop. Its timestamp has whole seconds, so one more is waited for:
/// containers must not seem to stop before the deletion.
fn stopping(pod: &Pod, behaviour: &Behaviour, now: jiff::Timestamp) -> Option<Duration> {
    let deadline = pod.metadata.deletion_timestamp?;
    let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or_default();
    let deleted = deadline.as_second() - grace;
    let stop = behaviour.stop_after + Duration::from_secs(1);
    let limit = stop.min(Duration::from_secs(u64::try_from(grace).unwrap_or_default()));
    let since = Duration::try_from(now.duration_since(jiff::Timestamp::from_second(deleted).ok()?))
        .unwrap_or_default();
    limit.checked_sub(since).filter(|left| !left.is_zero())
}

struct Report<'a> {
    pod: &'a Pod,
    behaviour: &'a Behaviour,
    addresses: &'a [IpAddr],
    host: Ipv4Addr,
    now: jiff::Timestamp,
}

impl Report<'_> {
    fn stamp(&self) -> String {
        kaji_meta::time::Time::new(self.now).to_string()
    }

    /// A condition; its transition time stays while its status does.
    fn condition(&self, kind: &str, status: bool, reason: Option<(&str, String)>) -> Value {
        let status = if status { "True" } else { "False" };
        let known =
            self.pod.condition(kind).filter(|c| c.status == status).and_then(|c| c.last_transition_time);
        let since = known.map_or_else(|| self.stamp(), |t| kaji_meta::time::Time::new(t).to_string());
        let mut condition =
            json!({"type": kind, "status": status, "lastProbeTime": null, "lastTransitionTime": since});
        let (reason, message) = reason.map_or((Value::Null, Value::Null), |(r, m)| (r.into(), m.into()));
        if self.pod.metadata.generation != 0 {
            condition["observedGeneration"] = self.pod.metadata.generation.into();
        }
        condition["reason"] = reason;
        condition["message"] = message;
        condition
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.pod.spec.containers.iter().map(|c| &*c.name).collect();
        format!("[{}]", names.join(" "))
    }

    /// A status with the generation that it is about.
    fn observed(&self, mut status: Value) -> Value {
        if self.pod.metadata.generation != 0 {
            status["observedGeneration"] = self.pod.metadata.generation.into();
        }
        status
    }

    /// Whether the gates that a user put before readiness are open.
    fn gates_open(&self) -> bool {
        self.pod
            .spec
            .readiness_gates
            .iter()
            .all(|gate| self.pod.condition(&gate.condition_type).is_some_and(|c| c.status == "True"))
    }

    fn conditions(&self, initialized: bool, containers_ready: bool, unready: &str) -> Value {
        let reason = || (unready, format!("containers with unready status: {}", self.names()));
        let ready = match (containers_ready, self.gates_open()) {
            (true, true) => self.condition("Ready", true, None),
            (true, false) => {
                let reason =
                    ("ReadinessGatesNotReady", "the status of pod readiness gate is not \"True\"".to_owned());
                self.condition("Ready", false, Some(reason))
            }
            (false, _) => self.condition("Ready", false, Some(reason())),
        };
        json!([
            self.condition("PodReadyToStartContainers", initialized, None),
            self.condition("Initialized", initialized, None),
            ready,
            self.condition("ContainersReady", containers_ready, (!containers_ready).then(reason)),
            self.condition("PodScheduled", true, None),
        ])
    }

    fn containers(&self, list: &[Container], ready: bool, state: impl Fn(&Container) -> Value) -> Vec<Value> {
        list.iter()
            .map(|c| {
                let (name, image) = (&*c.name, &*c.image);
                let state = state(c);
                let started = state.get("running").is_some();
                let mut status = json!({
                    "name": name,
                    "image": image,
                    "imageID": if state.get("waiting").is_some() { String::new() } else { format!("simulated://{image}") },
                    "ready": ready,
                    "started": started,
                    "restartCount": 0,
                    "state": state,
                    "lastState": {},
                });
                if status["state"].get("waiting").is_none() {
                    status["containerID"] = format!("simulated://{}-{name}", self.pod.metadata.uid).into();
                }
                status
            })
            .collect()
    }

    /// Init containers as they stand once the pod runs: sidecars run on, the others are done.
    fn init(&self, state: impl Fn(bool) -> Value) -> Vec<Value> {
        self.containers(&self.pod.spec.init_containers, true, |c| state(c.sidecar()))
    }

    fn addresses(&self, status: &mut Value) {
        status["hostIP"] = self.host.to_string().into();
        status["hostIPs"] = json!([{"ip": self.host.to_string()}]);
        if let Some(first) = self.addresses.first() {
            status["podIP"] = first.to_string().into();
            status["podIPs"] = self.addresses.iter().map(|a| json!({"ip": a.to_string()})).collect();
        }
    }

    fn pending(&self) -> Value {
        let reason = self.behaviour.waiting.as_deref().unwrap_or("ContainerCreating");
        let waiting = |_: &Container| json!({"waiting": {"reason": reason}});
        let mut status = json!({
            "phase": "Pending",
            "startTime": self.stamp(),
            "conditions": self.conditions(false, false, "ContainersNotReady"),
            "containerStatuses": self.containers(&self.pod.spec.containers, false, waiting),
        });
        if !self.pod.spec.init_containers.is_empty() {
            let waiting = |_: &Container| json!({"waiting": {"reason": "PodInitializing"}});
            status["initContainerStatuses"] =
                self.containers(&self.pod.spec.init_containers, false, waiting).into();
        }
        status["hostIP"] = self.host.to_string().into();
        status["hostIPs"] = json!([{"ip": self.host.to_string()}]);
        self.observed(status)
    }

    fn running(&self) -> Value {
        let ready = !self.behaviour.unready;
        let running = || json!({"running": {"startedAt": self.stamp()}});
        let mut status = json!({
            "phase": "Running",
            "conditions": self.conditions(true, ready, "ContainersNotReady"),
            "containerStatuses": self.containers(&self.pod.spec.containers, ready, |_| running()),
        });
        if !self.pod.spec.init_containers.is_empty() {
            status["initContainerStatuses"] =
                self.init(|sidecar| if sidecar { running() } else { self.terminated(0) }).into();
        }
        self.addresses(&mut status);
        self.observed(status)
    }

    fn terminated(&self, code: i64) -> Value {
        let started = self.pod.status.start_time.unwrap_or(self.now);
        json!({"terminated": {
            "exitCode": code,
            "reason": if code == 0 { "Completed" } else { "Error" },
            "startedAt": kaji_meta::time::Time::new(started).to_string(),
            "finishedAt": self.stamp(),
        }})
    }

    /// All containers have ended. A pod that is being deleted keeps the phase that its containers' codes give it.
    fn ended(&self, code: i64) -> Value {
        let terminated = |_: &Container| self.terminated(code);
        let reason = if code == 0 { "PodCompleted" } else { "PodFailed" };
        let mut status = json!({
            "phase": if code == 0 { "Succeeded" } else { "Failed" },
            "conditions": self.conditions(true, false, reason),
            "containerStatuses": self.containers(&self.pod.spec.containers, false, terminated),
        });
        if !self.pod.spec.init_containers.is_empty() {
            status["initContainerStatuses"] = self.init(|_| self.terminated(0)).into();
        }
        self.addresses(&mut status);
        self.observed(status)
    }

    fn deadline(&self) -> Value {
        let mut status = self.ended(137);
        status["reason"] = "DeadlineExceeded".into();
        status["message"] = "Pod was active on the node longer than the specified deadline".into();
        status
    }

    /// A running pod's readiness may change by its gates; what changes in its spec is taken notice of.
    fn readiness(&self) -> Next {
        let wanted = !self.behaviour.unready && self.gates_open();
        if wanted == self.pod.ready() && self.pod.status.observed_generation >= self.pod.metadata.generation {
            return Next::Rest;
        }
        let conditions = self.conditions(true, !self.behaviour.unready, "ContainersNotReady");
        Next::Report(self.observed(json!({"conditions": conditions})), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> jiff::Timestamp {
        "2026-01-01T00:01:00Z".parse().unwrap()
    }

    /// Applies a report as the server would, as far as these tests need it.
    fn report(pod: &mut Value, status: &Value) {
        for (k, v) in status.as_object().unwrap() {
            pod["status"][k] = v.clone();
        }
        // A null in a patch removes.
        for condition in pod["status"]["conditions"].as_array_mut().unwrap() {
            condition.as_object_mut().unwrap().retain(|_, v| !v.is_null());
        }
    }

    fn walk(pod: Value, steps: usize) -> String {
        walk_with(&[Ipv4Addr::new(10, 244, 1, 2).into()], pod, steps)
    }

    fn walk_with(addresses: &[IpAddr], mut pod: Value, steps: usize) -> String {
        let mut lines = vec![];
        for _ in 0..steps {
            let typed: Pod = serde_json::from_value(pod.clone()).unwrap();
            match next(&typed, addresses, Ipv4Addr::new(172, 30, 0, 1), now()) {
                Next::Report(status, again) => {
                    report(&mut pod, &status);
                    let typed: Pod = serde_json::from_value(pod.clone()).unwrap();
                    let state = pod["status"]["containerStatuses"][0]["state"]
                        .as_object()
                        .unwrap()
                        .keys()
                        .next()
                        .unwrap()
                        .clone();
                    lines.push(format!(
                        "{} ready={} {state} ip={} again={again:?}",
                        typed.status.phase,
                        typed.ready(),
                        typed.status.pod_ip
                    ));
                }
                other => lines.push(format!("{other:?}")),
            }
        }
        lines.join("\n")
    }

    fn pod(annotations: Value, policy: &str) -> Value {
        json!({
            "metadata": {"name": "p", "uid": "u", "annotations": annotations},
            "spec": {"nodeName": "sim-1", "restartPolicy": policy, "containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": "Pending"},
        })
    }

    #[test]
    fn a_status_names_the_generation_that_it_is_about() {
        let mut pod = pod(json!({}), "Always");
        let step = |pod: &mut Value, generation: i64| {
            pod["metadata"]["generation"] = generation.into();
            let typed: Pod = serde_json::from_value(pod.clone()).unwrap();
            let addresses = [Ipv4Addr::new(10, 244, 1, 2).into()];
            let Next::Report(status, _) = next(&typed, &addresses, Ipv4Addr::new(172, 30, 0, 1), now())
            else {
                return "rests".to_owned();
            };
            report(pod, &status);
            let of = |v: &Value| v["observedGeneration"].to_string();
            let conditions = pod["status"]["conditions"].as_array().unwrap();
            assert!(conditions.iter().all(|c| of(c) == of(&status)));
            of(&status)
        };
        let seen: Vec<String> = [1, 1, 1, 2, 2].into_iter().map(|g| step(&mut pod, g)).collect();
        assert_eq!(seen, ["1", "1", "rests", "2", "rests"]);
    }

    #[test]
    fn a_pod_starts_and_runs() {
        expect_test::expect![[r#"
            Pending ready=false waiting ip= again=Some(0ns)
            Running ready=true running ip=10.244.1.2 again=None
            Rest"#]]
        .assert_eq(&walk(pod(json!({}), "Always"), 3));
    }

    #[test]
    fn a_pod_waits_for_an_address() {
        expect_test::expect![[r#"
            Pending ready=false waiting ip= again=Some(0ns)
            NoAddress(0ns)"#]]
        .assert_eq(&walk_with(&[], pod(json!({}), "Always"), 2));
    }

    #[test]
    fn annotations_change_the_phases() {
        expect_test::expect![[r#"
            Pending ready=false waiting ip= again=Some(0ns)
            Running ready=true running ip=10.244.1.2 again=Some(0ns)
            Failed ready=false terminated ip=10.244.1.2 again=None
            Rest"#]]
        .assert_eq(&walk(pod(json!({"sim.kaji.dev/exit-code": "2"}), "Never"), 4));
        expect_test::expect![[r#"
            Pending ready=false waiting ip= again=Some(0ns)
            Wait(5s)"#]]
        .assert_eq(&walk(pod(json!({"sim.kaji.dev/start-after": "5s"}), "Always"), 2));
        expect_test::expect![[r#"
            Pending ready=false waiting ip= again=Some(0ns)
            Rest"#]]
        .assert_eq(&walk(pod(json!({"sim.kaji.dev/waiting": "ImagePullBackOff"}), "Always"), 2));
        expect_test::expect![[r#"
            Pending ready=false waiting ip= again=Some(0ns)
            Running ready=false running ip=10.244.1.2 again=None
            Rest"#]]
        .assert_eq(&walk(pod(json!({"sim.kaji.dev/ready": "false"}), "Always"), 3));
    }

    #[test]
    fn a_deleted_pod_ends_before_it_goes() {
        let mut p = pod(json!({}), "Always");
        p["status"] = json!({"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [{"name": "c", "state": {"running": {}}}]});
        p["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:30Z".into();
        p["metadata"]["deletionGracePeriodSeconds"] = 30.into();
        assert_eq!(walk(p.clone(), 1), "Wait(2s)");
        p["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:28Z".into();
        expect_test::expect![[r#"
            Succeeded ready=false terminated ip=10.244.1.2 again=None
            Remove"#]]
        .assert_eq(&walk(p, 2));
    }

    #[test]
    fn gates_hold_readiness_back() {
        let mut p = pod(json!({}), "Always");
        p["spec"]["readinessGates"] = json!([{"conditionType": "example.com/gate"}]);
        expect_test::expect![[r#"
            Pending ready=false waiting ip= again=Some(0ns)
            Running ready=false running ip=10.244.1.2 again=None
            Rest"#]]
        .assert_eq(&walk(p.clone(), 3));
        p["status"] = json!({"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "podIP": "10.244.1.2",
            "conditions": [{"type": "example.com/gate", "status": "True"}], "containerStatuses": [{"name": "c", "state": {"running": {}}}]});
        assert!(walk(p, 1).starts_with("Running ready=true running"), "opens");
    }
}
