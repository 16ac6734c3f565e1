//! The annotation of nodes that says for how long a kubelet may keep secrets and config maps without asking again, by the number of
//! nodes.
//!
//! Invariant: the sizes at which it changes differ for growing and shrinking clusters, so that one at a boundary keeps its value. A
//! node is brought up to date when it changes the next time, as upstream.
//!
//! Source: upstream's `pkg/controller/ttl`.

use crate::{Descriptor, Start};
use kaji_runtime::{
    Controller, Cx, Informers, Key, PatchKind, Plan, Reconciler, View, Write, client::Target, objects::Node,
};
use serde_json::json;
use std::sync::{Arc, Mutex, PoisonError};

const COMPONENT: &str = "ttl-controller";
const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "ttl-controller",
    components: &[COMPONENT],
    service_account: Some("ttl-controller"),
    workers: None,
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(Ttl::default(), informers)
        .reads::<Node>(|change, _| change.new.iter().map(|node| node.metadata.key()).collect())
}

/// From so many nodes to so many, and the seconds.
const STEPS: [(usize, usize, u32); 5] =
    [(0, 100, 0), (90, 500, 15), (450, 1000, 30), (900, 2000, 60), (1800, usize::MAX, 300)];

/// The step that the cluster is on, from which growing and shrinking ones differ.
#[derive(Default)]
struct Ttl {
    step: Mutex<usize>,
}

impl Ttl {
    /// The seconds for a cluster of so many nodes.
    fn seconds(&self, nodes: usize) -> u32 {
        let mut step = self.step.lock().unwrap_or_else(PoisonError::into_inner);
        // The first begins with nothing, the last has no end.
        while nodes > STEPS[*step].1 {
            *step += 1;
        }
        while nodes < STEPS[*step].0 {
            *step -= 1;
        }
        STEPS[*step].2
    }
}

impl Reconciler for Ttl {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "ttlcontroller"
    }

    fn reconcile(&self, view: &View, key: &Key, _: &Cx<'_>) -> Plan {
        let nodes = view.get::<Node>();
        let Some(node) = nodes.by_key(key) else { return Plan::nothing() };
        let seconds = self.seconds(nodes.len());
        let current = node.metadata.annotations.get(ANNOTATION).and_then(|text| text.parse().ok());
        if current == Some(seconds) {
            return Plan::nothing();
        }
        Plan::nothing().then(Write::Patch {
            target: Target::of::<Node>("", &key.name),
            kind: PatchKind::Strategic,
            body: json!({"metadata": {"annotations": {ANNOTATION: seconds.to_string()}}}),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{reconcile, snapshot, text};
    use expect_test::expect;
    use serde_json::Value;

    fn node(number: usize, ttl: &Value) -> Value {
        json!({"metadata": {"name": format!("n{number}"), "annotations": {ANNOTATION: ttl}}})
    }

    fn plan(annotations: &Value) -> String {
        let mut node = node(0, &Value::Null);
        node["metadata"]["annotations"] = annotations.clone();
        let view = View::default().with(snapshot::<Node>([node]));
        text(&reconcile(&Ttl::default(), &view, "", "n0", &[]))
    }

    #[test]
    fn annotates_nodes_with_another_value() {
        expect![[r#"
            strategic /api/v1/nodes/n0 {"metadata":{"annotations":{"node.alpha.kubernetes.io/ttl":"0"}}}
        "#]]
        .assert_eq(&plan(&json!({})));
        assert_eq!(plan(&json!({ANNOTATION: "0"})), "");
        for other in ["15", "", "-1", "0s", "99999999999999999999"] {
            assert!(plan(&json!({ANNOTATION: other})).starts_with("strategic "), "{other:?}");
        }
        let none = View::default().with(snapshot::<Node>([]));
        assert_eq!(text(&reconcile(&Ttl::default(), &none, "", "n0", &[])), "");
    }

    #[test]
    fn a_cluster_at_a_boundary_keeps_its_value() {
        let ttl = Ttl::default();
        let sizes = [1, 100, 101, 95, 90, 89, 95, 500, 501, 450, 449, 1001, 2001, 1800, 1799, 5000, 0];
        let seconds: Vec<String> = sizes.iter().map(|n| format!("{n}:{}", ttl.seconds(*n))).collect();
        expect!["1:0 100:0 101:15 95:15 90:15 89:0 95:0 500:15 501:30 450:30 449:15 1001:60 2001:300 1800:300 1799:60 5000:300 0:0"]
            .assert_eq(&seconds.join(" "));
    }
}
