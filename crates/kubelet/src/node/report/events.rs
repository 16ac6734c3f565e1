//! Events about the node: its kubelet starts, it is ready or not, takes pods or not, its machine was restarted. Upstream's texts.
//!
//! Pure. Invariant: a change has one event, however long it takes until the Node shows it.

use super::conditions_of;
use crate::node::reference;
use crate::pods::core::Node;
use kaji_runtime::EventRecord;

/// What events have said of the node.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// The readiness that the Node does not show yet.
    ready: Option<bool>,
    /// `spec.unschedulable` of the last event.
    unschedulable: bool,
    /// A restart has one event in the life of this process.
    rebooted: bool,
}

/// The kubelet has started.
pub(super) fn starting(name: &str) -> EventRecord {
    EventRecord::normal(reference(name), "Starting", "Starting kubelet.")
}

impl Recorded {
    /// The events that follow from the Node as the API shows it and from how the machine is.
    pub(super) fn events(&mut self, name: &str, node: &Node, ready: bool, boot_id: &str) -> Vec<EventRecord> {
        let now = |reason: &str| {
            EventRecord::normal(reference(name), reason, format!("Node {name} status is now: {reason}"))
        };
        let mut events = vec![];
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        let former_boot = info.map(|info| info.boot_id.as_str()).unwrap_or_default();
        if !self.rebooted && !former_boot.is_empty() && former_boot != boot_id {
            self.rebooted = true;
            let message = format!("Node {name} has been rebooted, boot id: {boot_id}");
            events.push(EventRecord::warning(reference(name), "Rebooted", message));
        }
        // A first status has no former one.
        if let Some(former) = conditions_of(node).iter().find(|c| c.type_ == "Ready") {
            let status = if ready { "True" } else { "False" };
            if former.status == status {
                self.ready = None;
            } else if self.ready != Some(ready) {
                self.ready = Some(ready);
                events.push(now(if ready { "NodeReady" } else { "NodeNotReady" }));
            }
        }
        let unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
        if unschedulable != self.unschedulable {
            self.unschedulable = unschedulable;
            events.push(now(if unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" }));
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(ready: Option<&str>, unschedulable: bool, boot_id: &str) -> Node {
        let conditions: Vec<_> =
            ready.iter().map(|status| json!({"type": "Ready", "status": status})).collect();
        let info = json!({
            "architecture": "", "bootID": boot_id, "containerRuntimeVersion": "", "kernelVersion": "",
            "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "",
            "osImage": "", "systemUUID": "",
        });
        serde_json::from_value(json!({
            "metadata": {"name": "n"},
            "spec": {"unschedulable": unschedulable},
            "status": {"conditions": conditions, "nodeInfo": info},
        }))
        .unwrap()
    }

    #[test]
    fn a_change_of_the_node_has_one_event() {
        let mut recorded = Recorded::default();
        let mut shown = vec![];
        let mut look = |label: &str, node: Node, ready: bool| {
            let events = recorded.events("n", &node, ready, "second");
            let events = events.iter().map(|e| format!("{:?} {}: {}", e.kind, e.reason, e.message));
            shown.push(format!("{label}: {}", events.collect::<Vec<_>>().join(", ")));
        };
        look("new", node(None, false, ""), false);
        look("ready", node(Some("False"), false, "second"), true);
        look("not shown yet", node(Some("False"), false, "second"), true);
        look("shown", node(Some("True"), false, "second"), true);
        look("not ready", node(Some("True"), false, "second"), false);
        look("silent for long", node(Some("Unknown"), false, "second"), false);
        look("again", node(Some("False"), false, "second"), false);
        look("ready after silence", node(Some("Unknown"), false, "second"), true);
        look("cordoned", node(Some("True"), true, "second"), true);
        look("still", node(Some("True"), true, "second"), true);
        look("uncordoned", node(Some("True"), false, "second"), true);
        look("rebooted", node(Some("True"), false, "first"), true);
        look("not shown yet", node(Some("True"), false, "first"), true);
        expect_test::expect![[r#"
            new: 
            ready: Normal NodeReady: Node n status is now: NodeReady
            not shown yet: 
            shown: 
            not ready: Normal NodeNotReady: Node n status is now: NodeNotReady
            silent for long: 
            again: 
            ready after silence: Normal NodeReady: Node n status is now: NodeReady
            cordoned: Normal NodeNotSchedulable: Node n status is now: NodeNotSchedulable
            still: 
            uncordoned: Normal NodeSchedulable: Node n status is now: NodeSchedulable
            rebooted: Warning Rebooted: Node n has been rebooted, boot id: second
            not shown yet: "#]]
        .assert_eq(&shown.join("\n"));
        expect_test::expect!["Starting: Starting kubelet."].assert_eq(&{
            let event = starting("n");
            format!("{}: {}", event.reason, event.message)
        });
    }
}
