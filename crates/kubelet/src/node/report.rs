//! The Node object of a real node: registration, status, lease. Upstream's `kubelet_node_status.go` and `nodestatus`.
//!
//! Invariants: the lease is renewed every quarter of its duration, whatever else fails; the status is written when it differs, and
//! every five minutes; a transition's time changes only with its status, and has an event.

mod events;

use super::eviction::thresholds::Pressure;
use super::machine::Machine;
use crate::cloud::{ExternalCloud, PROVIDED_NODE_IP, node_addresses, uninitialized_taint};
use crate::node_lease::{RENEWAL, Renewer};
use crate::pods::context::NodeContext;
use crate::pods::core::{Node, NodeCondition};
use events::Recorded;
use kaji_containers::{RuntimeError, RuntimeStatus};
use kaji_meta::time::Time;
use kaji_runtime::{Client, Error, EventRecord, PatchKind, Target};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// The longest wait after a lease that could not be renewed: upstream's.
const LONGEST_LEASE_WAIT: Duration = Duration::from_secs(7);
/// Upstream's `nodeStatusUpdateFrequency`.
const UPDATE: Duration = Duration::from_secs(10);
/// Upstream's `nodeStatusReportFrequency`, in seconds.
const REPORT_SECONDS: i64 = 300;
/// Images that the status lists: upstream's `nodeStatusMaxImages`.
const MOST_IMAGES: usize = 50;
/// The port of the kubelet's HTTPS API.
pub const KUBELET_PORT: u16 = 10250;

/// A condition of pressure: reason, message and the reason of an event, when it holds and when it does not.
struct PressureTexts {
    pressure: Pressure,
    holds: (&'static str, &'static str, &'static str),
    holds_not: (&'static str, &'static str, &'static str),
}

const PRESSURES: [PressureTexts; 3] = [
    PressureTexts {
        pressure: Pressure::Memory,
        holds: (
            "KubeletHasInsufficientMemory",
            "kubelet has insufficient memory available",
            "NodeHasInsufficientMemory",
        ),
        holds_not: (
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
            "NodeHasSufficientMemory",
        ),
    },
    PressureTexts {
        pressure: Pressure::Disk,
        holds: ("KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"),
        holds_not: ("KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"),
    },
    PressureTexts {
        pressure: Pressure::Pid,
        holds: (
            "KubeletHasInsufficientPID",
            "kubelet has insufficient PID available",
            "NodeHasInsufficientPID",
        ),
        holds_not: (
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
            "NodeHasSufficientPID",
        ),
    },
];

/// Registers the node and reports it until `stop` turns true.
pub(super) async fn run(
    cx: Arc<NodeContext>,
    client: Client,
    machine: Machine,
    pressures: watch::Receiver<BTreeSet<Pressure>>,
    mut stop: watch::Receiver<bool>,
) {
    let mut changes = pressures.clone();
    let (volumes, devices) = (cx.volumes.csi_drivers().changes(), cx.devices.changes());
    let mut shutdown = cx.shutdown.changes();
    let reporter = Reporter { cx: cx.clone(), client, machine, pressures, recorded: Mutex::default() };
    let mut pause = Duration::from_millis(200);
    while let Err(error) = reporter.register().await {
        tracing::warn!(%error, "the node could not be registered");
        tokio::select! {
            () = kaji_runtime::time::sleep(&*cx.clock, pause) => pause = (pause * 2).min(Duration::from_secs(7)),
            _ = stop.wait_for(|s| *s) => return,
        }
    }
    // Not before: where nothing can be registered, an event is lost.
    cx.api.record(events::starting(&cx.config.node_name));
    let mut lease = Renewer::new(reporter.client.clone(), cx.config.node_name.clone());
    let lease = async {
        let mut failed = Duration::from_millis(200);
        loop {
            let uid = cx.facts.node().and_then(|node| node.metadata.uid.clone());
            let pause = match lease.renew(uid.as_deref(), cx.clock.now()).await {
                Ok(()) => {
                    failed = Duration::from_millis(200);
                    RENEWAL
                }
                Err(error) => {
                    tracing::warn!(%error, "the node's lease could not be renewed");
                    let pause = failed;
                    failed = (failed * 2).min(LONGEST_LEASE_WAIT);
                    pause
                }
            };
            kaji_runtime::time::sleep(&*cx.clock, pause).await;
        }
    };
    let status = async {
        loop {
            let pause = match reporter.status().await {
                // A node that is not ready is looked at more often.
                Ok(ready) => {
                    if ready {
                        UPDATE
                    } else {
                        Duration::from_millis(500)
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "the node's status could not be written");
                    Duration::from_secs(1)
                }
            };
            tokio::select! {
                () = kaji_runtime::time::sleep(&*cx.clock, pause) => {}
                Ok(()) = changes.changed() => {}
                Ok(()) = shutdown.changed() => {}
                () = volumes.notified() => {}
                () = devices.notified() => {}
            }
        }
    };
    tokio::select! {
        () = lease => {}
        () = status => {}
        _ = stop.wait_for(|s| *s) => {}
    }
}

struct Reporter {
    cx: Arc<NodeContext>,
    client: Client,
    machine: Machine,
    pressures: watch::Receiver<BTreeSet<Pressure>>,
    /// What events have said.
    recorded: Mutex<Recorded>,
}

impl Reporter {
    fn target(&self) -> Target {
        Target {
            version: "v1".into(),
            resource: "nodes".into(),
            name: self.cx.config.node_name.clone(),
            ..Target::default()
        }
    }

    /// Creates the Node object, or brings the labels of one that is there up to date.
    async fn register(&self) -> Result<(), Error> {
        let name = &self.cx.config.node_name;
        let architecture = &self.machine.architecture;
        let labels = json!({
            "beta.kubernetes.io/arch": architecture,
            "beta.kubernetes.io/os": "linux",
            "kubernetes.io/arch": architecture,
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
        });
        let mut annotations = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
        let cloud = self.cx.config.external_cloud.as_ref();
        let provided = cloud.and_then(ExternalCloud::provided);
        let mut body = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "status": self.body(None).await.0,
        });
        if cloud.is_some() {
            body["spec"] = json!({"taints": [uninitialized_taint()]});
        }
        if let Some(provided) = &provided {
            annotations[PROVIDED_NODE_IP] = provided.as_str().into();
        }
        body["metadata"]["annotations"] = annotations.clone();
        // A node that is there keeps its taints; it may have been initialized. What it was started with before goes.
        annotations[PROVIDED_NODE_IP] = provided.into();
        let mut collection = self.target();
        collection.name.clear();
        match self.client.create(&collection, &body).await {
            // One that may not be created may be there all the same.
            Err(error) if error.conflict() || error.code() == Some(403) => {
                let patch = json!({"metadata": {"labels": labels, "annotations": annotations}});
                let kind = PatchKind::Strategic.content_type();
                self.client.patch(&self.target(), kind, "", &patch).await.map(drop)
            }
            created => created.map(drop),
        }
    }

    /// Writes the status if it differs or is old. Whether the node is ready.
    async fn status(&self) -> Result<bool, Error> {
        let Some(node) = self.cx.facts.node() else { return Ok(false) };
        let (status, ready) = self.body(Some(&node)).await;
        self.record(&node, ready);
        let shown = serde_json::to_value(&node.status).unwrap_or_default();
        let last = conditions_of(&node)
            .iter()
            .find(|c| c.type_ == "Ready")
            .and_then(|c| c.last_heartbeat_time.clone());
        let age = last.map_or(i64::MAX, |t| self.cx.clock.now().as_second() - t.0.as_second());
        if age < REPORT_SECONDS && !differs(&shown, &status) {
            return Ok(ready);
        }
        let body = json!({"status": status});
        let kind = PatchKind::Strategic.content_type();
        self.client.patch(&self.target().subresource("status"), kind, "", &body).await?;
        Ok(ready)
    }

    /// Records what has changed since the status that the Node shows.
    fn record(&self, node: &Node, ready: bool) {
        // A change of what it protects is complete before anything can panic.
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        let events = recorded.events(&self.cx.config.node_name, node, ready, &self.machine.boot_id);
        events.into_iter().for_each(|event| self.cx.api.record(event));
    }

    /// The status, and whether the node is ready.
    async fn body(&self, node: Option<&Node>) -> (Value, bool) {
        let (conditions, ready) = self.conditions(node).await;
        let machine = &self.machine;
        let version = match self.cx.runtime.version().await {
            Ok(version) => format!("{}://{}", version.name, version.version),
            Err(_) => format!("{}://Unknown", self.cx.config.runtime_name),
        };
        let config = &self.cx.config;
        let given = node.and_then(|n| n.status.as_ref()?.addresses.as_deref()).unwrap_or_default();
        let mut addresses =
            node_addresses(config.external_cloud.as_ref(), &config.addresses, &config.node_name, given);
        // Merging by type would make one of two that have the same.
        addresses.push(json!({"$patch": "replace"}));
        let runtime = self.cx.runtime.status().await.unwrap_or_default();
        let handlers = runtime.handlers.iter().map(|handler| {
            let (read_only, users) = (handler.recursive_read_only_mounts, handler.user_namespaces);
            let features = json!({"recursiveReadOnlyMounts": read_only, "userNamespaces": users});
            json!({"name": handler.name, "features": features})
        });
        let (mut capacity, mut allocatable) = (machine.capacity(), machine.allocatable());
        let devices = self.cx.devices.capacity();
        let text = |(name, count): (String, usize)| (name, count.to_string());
        // Upstream shows resources of plug-ins that are gone as none, since others may have set them too.
        for amounts in [&mut capacity, &mut allocatable] {
            amounts.extend(devices.removed.iter().map(|name| (name.clone(), "0".to_owned())));
        }
        capacity.extend(devices.capacity.into_iter().map(text));
        allocatable.extend(devices.allocatable.into_iter().map(text));
        let mut status = json!({
            "runtimeHandlers": handlers.collect::<Vec<_>>(),
            "features": {"supplementalGroupsPolicy": runtime.supplemental_groups_policy},
            "declaredFeatures": super::DECLARED_FEATURES,
            "capacity": capacity,
            "allocatable": allocatable,
            "addresses": addresses,
            "conditions": conditions,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
            "images": self.images().await,
            "nodeInfo": {
                "architecture": machine.architecture,
                "bootID": machine.boot_id,
                "containerRuntimeVersion": version,
                "kernelVersion": machine.kernel,
                "kubeProxyVersion": "",
                "kubeletVersion": "v1.37.0",
                "machineID": machine.machine_id,
                "operatingSystem": "linux",
                "osImage": machine.os_image,
                "runningInUserNamespace": machine.user_namespace,
                "systemUUID": machine.system_uuid,
            },
        });
        if machine.swap > 0 {
            status["nodeInfo"]["swap"] = json!({"capacity": machine.swap});
        }
        let volumes = self.cx.volumes.csi_drivers().in_use();
        if !volumes.is_empty() {
            status["volumesInUse"] = json!(volumes);
        } else if node.is_some() {
            status["volumesInUse"] = Value::Null;
        }
        (status, ready)
    }

    /// The largest images.
    async fn images(&self) -> Vec<Value> {
        let Ok(mut images) = self.cx.images.list_images().await else { return vec![] };
        images.sort_by_key(|i| std::cmp::Reverse(i.size));
        let shown = images.into_iter().take(MOST_IMAGES).map(|i| {
            let names: Vec<String> = i.repo_digests.into_iter().chain(i.repo_tags).take(5).collect();
            json!({"names": names, "sizeBytes": i.size})
        });
        shown.collect()
    }

    async fn conditions(&self, node: Option<&Node>) -> (Vec<Value>, bool) {
        let wrong = unready(self.cx.runtime.status().await, self.cx.shutdown.began());
        let ready = wrong.is_empty();
        let now = self.cx.clock.now();
        let former = node.map(conditions_of).unwrap_or_default();
        let condition = |kind: &str, holds: bool, reason: &str, message: &str| {
            let status = if holds { "True" } else { "False" };
            let same = former.iter().find(|c| c.type_ == kind && c.status == status);
            let since = same.and_then(|c| c.last_transition_time.as_ref()).map_or(now, |t| t.0);
            json!({
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": Time::new(now).to_string(),
                "lastTransitionTime": Time::new(since).to_string(),
            })
        };
        let (reason, message) = if ready {
            ("KubeletReady", "kubelet is posting ready status".to_owned())
        } else {
            let message = match wrong.as_slice() {
                [only] => only.clone(),
                several => format!("[{}]", several.join(", ")),
            };
            ("KubeletNotReady", message)
        };
        let pressures = self.pressures.borrow().clone();
        let mut conditions = vec![];
        for texts in &PRESSURES {
            let holds = pressures.contains(&texts.pressure);
            let kind = texts.pressure.name();
            let (reason, message, event) = if holds { texts.holds } else { texts.holds_not };
            conditions.push(condition(kind, holds, reason, message));
            let status = if holds { "True" } else { "False" };
            // A first status has no former one; upstream records those of a new node too.
            if node.is_some() && !former.iter().any(|c| c.type_ == kind && c.status == status) {
                let name = &self.cx.config.node_name;
                let message = format!("Node {name} status is now: {event}");
                self.cx.api.record(EventRecord::normal(super::reference(name), event, message));
            }
        }
        conditions.extend([condition("Ready", ready, reason, &message)]);
        (conditions, ready)
    }
}

/// Why the node is not ready.
fn unready(runtime: Result<RuntimeStatus, RuntimeError>, shuts_down: bool) -> Vec<String> {
    let mut wrong = vec![];
    match runtime {
        Err(error) => {
            wrong.push(format!("container runtime status check may not have completed yet: {error}"));
        }
        Ok(status) => {
            for c in status.conditions.iter().filter(|c| !c.status) {
                let what = if c.kind == "NetworkReady" {
                    "container runtime network not ready"
                } else {
                    "container runtime not ready"
                };
                wrong.push(format!("{what}: {}=false reason:{} message:{}", c.kind, c.reason, c.message));
            }
        }
    }
    if shuts_down {
        wrong.push("node is shutting down".to_owned());
    }
    wrong
}

fn conditions_of(node: &Node) -> &[NodeCondition] {
    node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default()
}

/// Whether a status says something else than the one that is shown, heartbeats aside.
fn differs(shown: &Value, status: &Value) -> bool {
    let plain = |conditions: &Value| -> Vec<(String, String, String, String)> {
        let text = |c: &Value, field: &str| c[field].as_str().unwrap_or_default().to_owned();
        let of = |c: &Value| (text(c, "type"), text(c, "status"), text(c, "reason"), text(c, "message"));
        conditions.as_array().map(|c| c.iter().map(of).collect()).unwrap_or_default()
    };
    let kept = plain(&shown["conditions"]);
    if plain(&status["conditions"]).iter().any(|c| !kept.contains(c)) {
        return true;
    }
    let addresses = |v: &Value| -> Vec<Value> {
        let all = v["addresses"].as_array().cloned().unwrap_or_default();
        all.into_iter().filter(|a| a.get("type").is_some()).collect()
    };
    let images = |v: &Value| v["images"].as_array().cloned().unwrap_or_default();
    addresses(shown) != addresses(status)
        || images(shown) != images(status)
        || ["daemonEndpoints", "volumesInUse", "runtimeHandlers", "features", "declaredFeatures"]
            .iter()
            .any(|f| shown[*f] != status[*f])
        // Others may show resources of the node too.
        || ["capacity", "allocatable"].iter().any(|f| {
            status[*f].as_object().is_some_and(|own| own.iter().any(|(k, v)| shown[*f][k] != *v))
        })
        || status["nodeInfo"].as_object().is_some_and(|info| {
            info.iter().any(|(k, v)| shown["nodeInfo"][k] != *v && v.as_str() != Some(""))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_containers::RuntimeCondition;

    #[test]
    fn a_node_that_shuts_down_is_not_ready() {
        let network = RuntimeCondition {
            kind: "NetworkReady".into(),
            status: false,
            reason: "R".into(),
            message: "m".into(),
        };
        let broken = RuntimeStatus { conditions: vec![network], ..RuntimeStatus::default() };
        let shown = [
            unready(Ok(RuntimeStatus::default()), false),
            unready(Ok(RuntimeStatus::default()), true),
            unready(Ok(broken), true),
        ];
        expect_test::expect![[r#"
            [
                [],
                [
                    "node is shutting down",
                ],
                [
                    "container runtime network not ready: NetworkReady=false reason:R message:m",
                    "node is shutting down",
                ],
            ]"#]]
        .assert_eq(&format!("{shown:#?}"));
    }
}
