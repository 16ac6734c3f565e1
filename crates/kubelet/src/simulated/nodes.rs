//! The Node objects of simulated nodes, their heartbeats and leases.
//!
//! Invariant: the lease of a node is renewed when it is due, whatever else brings the node's turn.

use super::{
    faults::{self, Faults},
    fleet::{Fleet, SimulatedNode},
    leases::Leases,
    listeners::Listeners,
};
use crate::node_lease::RENEWAL;
use futures_util::future::BoxFuture;
use kaji_runtime::{
    Client, Cx, Error, EventRecord, Key, PatchKind, Plan, Projection, Reconciler, Step, Target, View, Write,
    objects::Node,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

/// Upstream's `nodeStatusReportFrequency`.
const STATUS_SECONDS: i64 = 300;
/// The port that a node without a listener reports: upstream's.
const PORT: u16 = 10250;

/// Keeps Node objects and leases of a fleet.
pub struct Nodes {
    /// The nodes.
    pub fleet: Fleet,
    /// Where their servers listen.
    pub listeners: Listeners,
    /// Which of them are down.
    pub faults: Arc<Faults>,
    /// Their leases.
    pub leases: Leases,
}

/// What a node has for pods: thousandths of processors, bytes.
pub(super) fn allocatable() -> BTreeMap<String, i64> {
    let amounts = [("cpu", 32_000), ("memory", 256 << 30), ("ephemeral-storage", 1 << 40), ("pods", 110)];
    amounts.map(|(name, amount)| (name.to_owned(), amount)).into()
}

impl Reconciler for Nodes {
    fn name(&self) -> &'static str {
        "kubelet"
    }

    fn agent(&self, _view: &View, key: &Key) -> Option<String> {
        Some(super::agent(&key.name))
    }

    fn prepares(&self) -> bool {
        true
    }

    fn prepare<'a>(&'a self, view: &'a View, key: &'a Key, client: &'a Client) -> BoxFuture<'a, ()> {
        let nodes = view.get::<Node>();
        let up = nodes.by_key(key).is_some_and(|node| faults::of(node).is_none());
        Box::pin(async move {
            if up && self.fleet.place(&key.name).is_some() {
                self.leases.read(&key.name, &client.named(&super::agent(&key.name))).await;
            }
        })
    }

    fn written(&self, key: &Key, write: &Write, outcome: Result<&Value, &Error>) {
        self.leases.written(&key.name, write, outcome.ok());
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let Some(place) = self.fleet.place(&key.name) else { return Plan::nothing() };
        let now = kaji_meta::time::Time::new(cx.now).to_string();
        let known = view.get::<Node>();
        let target = Target::of::<Node>("", &key.name);
        match known.get("", &key.name) {
            None => {
                let mut collection = target.clone();
                collection.name.clear();
                let create = Write::Create { target: collection, body: object(&place) };
                // The object's arrival brings the key back, and with it status and lease.
                Plan::nothing().then(create)
            }
            // A node that is down says nothing.
            Some(node) if faults::of(node).is_some() => Plan::nothing(),
            Some(node) => {
                let (boots, known) = (self.faults.boots(&key.name), &*node.status.node_info.boot_id);
                let boot = match known {
                    // Of the process before this one.
                    known if boots == 0 && !known.is_empty() => known.to_owned(),
                    _ => boot_id(&place, boots),
                };
                let listener = self.listeners.of(&key.name);
                // A cloud provider may have replaced them.
                let given = place.external_cloud && !node.status.addresses.is_empty();
                let fresh = reports(node, listener, given)
                    && known == boot
                    && node.status.conditions.iter().find(|c| c.kind == "Ready").is_some_and(|c| {
                        c.status == "True"
                            && c.last_heartbeat_time
                                .is_some_and(|t| cx.now.as_second() - t.as_second() < STATUS_SECONDS)
                    });
                let mut steps = vec![];
                if !fresh {
                    let mut body = json!({"status": status(&place, listener, &now, &boot)});
                    if given && let Some(status) = body["status"].as_object_mut() {
                        status.remove("addresses");
                    }
                    let write = Write::Patch {
                        target: target.subresource("status"),
                        kind: PatchKind::Strategic,
                        body,
                    };
                    let rebooted = (!known.is_empty() && known != boot).then(|| {
                        let about = node.metadata.reference(&Node::api_version(), Node::KIND);
                        let text = format!("Node {} has been rebooted, boot id: {boot}", key.name);
                        EventRecord::warning(about, "Rebooted", text)
                    });
                    steps.push(Step { write, on_success: rebooted, on_failure: None });
                }
                let (renewal, wait) = self.leases.next(node, cx.now);
                steps.extend(renewal.map(plain));
                Plan::nothing().stage(steps).again_after(wait.min(RENEWAL))
            }
        }
    }
}

fn plain(write: Write) -> Step {
    Step { write, on_success: None, on_failure: None }
}

/// What a kubelet registers.
fn object(place: &SimulatedNode) -> Value {
    let name = &place.name;
    let mut object = json!({
        "apiVersion": Node::api_version(),
        "kind": Node::KIND,
        "metadata": {
            "name": name,
            "labels": {
                "beta.kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/simulated": "true",
            },
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "spec": {},
    });
    if place.external_cloud {
        object["spec"]["taints"] = json!([crate::cloud::uninitialized_taint()]);
    } else {
        object["spec"]["providerID"] = format!("kaji-sim://{name}").into();
    }
    if let Some(network) = &place.network {
        object["spec"]["podCIDR"] = network.to_string().into();
        object["spec"]["podCIDRs"] = json!([network.to_string()]);
    }
    object
}

/// Whether a Node reports the port of its listener in this process and, unless its addresses are given by others, the address.
fn reports(node: &Node, listener: Option<SocketAddr>, given: bool) -> bool {
    let port = listener.map_or(PORT, |l| l.port());
    let is_first = |listener: SocketAddr| {
        let first = node.status.addresses.iter().find(|a| &*a.kind == "InternalIP");
        first.is_some_and(|a| *a.address == listener.ip().to_string())
    };
    node.status.daemon_endpoints.kubelet_endpoint.port == port && (given || listener.is_none_or(is_first))
}

/// The node's addresses. Clients of kubelets take the first; the address of pods on the node's network comes after it,
/// since endpoints may not be on the loopback.
fn addresses(place: &SimulatedNode, listener: Option<SocketAddr>) -> Value {
    let internal = |address: String| json!({"type": "InternalIP", "address": address});
    let listener = listener.map(|l| internal(l.ip().to_string()));
    let rest = [
        internal(place.address.to_string()),
        json!({"type": "Hostname", "address": place.name}),
        // Merging by type would make one of two that have the same.
        json!({"$patch": "replace"}),
    ];
    listener.into_iter().chain(rest).collect()
}

/// Another one each time that the machine was started.
fn boot_id(place: &SimulatedNode, boots: u32) -> String {
    format!("{boots:08x}-0000-4000-8000-{:012x}", place.number)
}

fn status(place: &SimulatedNode, listener: Option<SocketAddr>, now: &str, boot: &str) -> Value {
    let number = place.number;
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        })
    };
    let amounts = json!({
        "cpu": "32",
        "memory": "256Gi",
        "ephemeral-storage": "1Ti",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "pods": "110",
    });
    json!({
        "capacity": amounts,
        "allocatable": amounts,
        "addresses": addresses(place, listener),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": listener.map_or(PORT, |l| l.port())}},
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        ],
        "declaredFeatures": crate::node::DECLARED_FEATURES,
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": boot,
            "containerRuntimeVersion": "simulated://1.0",
            "kernelVersion": "simulated",
            "kubeProxyVersion": "",
            "kubeletVersion": "v1.37.0",
            "machineID": format!("{number:032x}"),
            "operatingSystem": "linux",
            "osImage": "simulated",
            "systemUUID": format!("00000000-0000-4000-8000-{number:012x}"),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::random::SeededRandom;
    use kaji_runtime::ObjectSnapshot;

    /// The reconciler, which knows that `sim-1` has no lease.
    fn nodes(fleet: Fleet, listeners: &Listeners) -> Nodes {
        let leases = Leases::absent("sim-1");
        Nodes { fleet, listeners: listeners.clone(), faults: Arc::default(), leases }
    }

    fn plan(known: Vec<Node>, listeners: &Listeners) -> Vec<String> {
        let random = SeededRandom::new(1);
        let now = "2026-01-01T00:10:00Z".parse().unwrap();
        let cx = Cx { now, random: &random, failures: &[] };
        let view = View::default().with(ObjectSnapshot::of(known));
        let plan = nodes(Fleet::numbered(2), listeners).reconcile(&view, &Key::new("", "sim-1"), &cx);
        plan.writes()
            .map(|w| match w {
                Write::Create { target, .. } => format!("POST {}", target.path()),
                Write::Patch { target, .. } => format!("PATCH {}", target.path()),
                _ => "?".into(),
            })
            .collect()
    }

    #[test]
    fn registers_a_node_reports_its_status_and_renews_its_lease() {
        let closed = Listeners::default();
        assert_eq!(plan(vec![], &closed), ["POST /api/v1/nodes"]);
        let lease = "POST /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        let place = Fleet::numbered(1).place("sim-1").unwrap();
        let node: Node = serde_json::from_value(object(&place)).unwrap();
        let both = ["PATCH /api/v1/nodes/sim-1/status", lease];
        assert_eq!(plan(vec![node], &closed), both);
        let reported = |listener| {
            let mut reported = object(&place);
            reported["status"] = status(&place, listener, "2026-01-01T00:09:00Z", &boot_id(&place, 0));
            vec![serde_json::from_value(reported).unwrap()]
        };
        assert_eq!(plan(reported(None), &closed), [lease]);
        // The address that a former process reported is replaced.
        let listeners = |port| Listeners::at([("sim-1", SocketAddr::from(([127, 30, 0, 1], port)))]);
        let first = listeners(4711);
        assert_eq!(plan(reported(None), &first), both);
        assert_eq!(plan(reported(first.of("sim-1")), &first), [lease]);
        assert_eq!(plan(reported(first.of("sim-1")), &listeners(4712)), both);
        assert_eq!(plan(reported(first.of("sim-1")), &closed), both);
        let mut down = reported(None);
        down[0]
            .metadata
            .annotations
            .modify(|all| drop(all.insert("sim.kaji.dev/down".into(), "true".into())));
        assert!(plan(down, &closed).is_empty(), "a node that is down writes nothing");
    }

    #[test]
    fn nodes_of_a_cloud_are_registered_uninitialized() {
        let place = Fleet::numbered(1).with_external_cloud(true).place("sim-1").unwrap();
        let spec = &object(&place)["spec"];
        assert_eq!(spec["taints"][0]["key"], "node.cloudprovider.kubernetes.io/uninitialized");
        assert!(spec.get("providerID").is_none());
        // Addresses that the cloud gave stay.
        let fleet = Fleet::numbered(1).with_external_cloud(true);
        let nodes = nodes(fleet, &Listeners::default());
        let mut node = object(&place);
        node["status"] = json!({"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]});
        let node: Node = serde_json::from_value(node).unwrap();
        let random = SeededRandom::new(1);
        let cx = Cx { now: jiff::Timestamp::UNIX_EPOCH, random: &random, failures: &[] };
        let view = View::default().with(ObjectSnapshot::of([node]));
        let plan = nodes.reconcile(&view, &Key::new("", "sim-1"), &cx);
        let Some(Write::Patch { body, .. }) = plan.writes().next() else { panic!("no status") };
        assert!(body["status"].get("addresses").is_none() && body["status"].get("capacity").is_some());
    }

    #[test]
    fn ignores_nodes_of_other_processes() {
        let random = SeededRandom::new(1);
        let cx = Cx { now: jiff::Timestamp::UNIX_EPOCH, random: &random, failures: &[] };
        for other in ["sim-3", "sim-0", "node-1", "sim-"] {
            let view = View::default().with(ObjectSnapshot::<Node>::default());
            assert!(
                nodes(Fleet::numbered(2), &Listeners::default())
                    .reconcile(&view, &Key::new("", other), &cx)
                    .is_empty(),
                "{other}"
            );
        }
    }
}
