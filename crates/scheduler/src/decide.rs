//! The decision: filter the nodes that a pod may run on, score them, take the best.
//! Reasons and their wording are upstream's (`pkg/scheduler/framework/plugins`, `FitError`).

use crate::{
    affinity,
    cluster::{Cluster, NodeInfo, PodInfo},
};
use kaji_meta::random::Random;
use kaji_runtime::objects::{Taint, Toleration};
use std::collections::BTreeMap;

/// What became of a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Bind it there.
    Bind(String),
    /// No node takes it; upstream's message.
    Unschedulable(String),
}

/// Decides. `random` breaks ties, so that equal nodes fill evenly.
pub fn decide(cluster: &Cluster, pod: &PodInfo, random: &dyn Random) -> Decision {
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut best: Option<(i64, &NodeInfo)> = None;
    let mut equals = 0;
    for node in cluster.nodes() {
        let refused = filter(pod, node);
        if !refused.is_empty() {
            refused.into_iter().for_each(|r| *reasons.entry(r).or_default() += 1);
            continue;
        }
        let score = score(pod, node);
        match best {
            Some((top, _)) if score < top => {}
            Some((top, _)) if score == top => {
                equals += 1;
                // The n-th equal replaces the others with probability 1/n.
                if random.u64().is_multiple_of(equals) {
                    best = Some((score, node));
                }
            }
            _ => {
                equals = 1;
                best = Some((score, node));
            }
        }
    }
    match best {
        Some((_, node)) => Decision::Bind(node.node.metadata.name.clone()),
        None => Decision::Unschedulable(message(cluster.nodes().len(), &reasons)),
    }
}

fn message(nodes: usize, reasons: &BTreeMap<String, usize>) -> String {
    if nodes == 0 {
        return "no nodes available to schedule pods".into();
    }
    let mut texts: Vec<String> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    texts.sort();
    format!("0/{nodes} nodes are available: {}.", texts.join(", "))
}

/// Why a node cannot take a pod; empty when it can.
fn filter(pod: &PodInfo, info: &NodeInfo) -> Vec<String> {
    let (spec, node) = (&pod.pod.spec, &info.node);
    if node.spec.unschedulable {
        let taint = Taint {
            key: "node.kubernetes.io/unschedulable".into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        };
        if !tolerated(&spec.tolerations, &taint) {
            return vec!["node(s) were unschedulable".into()];
        }
    }
    let repelling = node.spec.taints.iter().find(|t| {
        matches!(t.effect.as_str(), "NoSchedule" | "NoExecute") && !tolerated(&spec.tolerations, t)
    });
    if let Some(taint) = repelling {
        return vec![format!("node(s) had untolerated taint {{{}: {}}}", taint.key, taint.value)];
    }
    if !affinity::required(&pod.pod, node) {
        return vec!["node(s) didn't match Pod's node affinity/selector".into()];
    }
    if info.port_conflict(&pod.ports) {
        return vec!["node(s) didn't have free ports for the requested pod ports".into()];
    }
    info.allocatable.missing(&info.used, &pod.request)
}

/// Whether some toleration tolerates a taint (API reference, `Toleration`).
pub fn tolerated(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|t| {
        (t.effect.is_empty() || t.effect == taint.effect)
            && (t.key.is_empty() || t.key == taint.key)
            && match t.operator.as_str() {
                "Exists" => true,
                "" | "Equal" => t.value == taint.value && !t.key.is_empty(),
                _ => false,
            }
    })
}

/// Least allocated, balanced allocation, preferred affinity (weight 2) and preferred taints (weight 3), each 0..=100
/// like upstream's default profile.
fn score(pod: &PodInfo, info: &NodeInfo) -> i64 {
    let fraction = |has: i64, used: i64, wants: i64| {
        if has <= 0 { 100 } else { (used.saturating_add(wants).saturating_mul(100) / has).clamp(0, 100) }
    };
    // Pods that ask for nothing still weigh something, so that they spread (upstream's non-zero requests).
    let cpu = fraction(info.allocatable.cpu, info.used.cpu + info.used.pods, pod.request.cpu.max(100));
    let memory = fraction(info.allocatable.memory, info.used.memory, pod.request.memory.max(200 << 20));
    let pods = fraction(info.allocatable.pods, info.used.pods, 1);
    let least = 100 - (cpu + memory + pods) / 3;
    let balanced = 100 - (cpu - memory).abs() / 2;
    let unwanted = info
        .node
        .spec
        .taints
        .iter()
        .filter(|t| t.effect == "PreferNoSchedule" && !tolerated(&pod.pod.spec.tolerations, t))
        .count();
    let taints = 100 - i64::try_from(unwanted).unwrap_or(100).min(100) * 100 / 3;
    least + balanced + 2 * affinity::preferred(&pod.pod, &info.node).min(100) + 3 * taints.max(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::random::SeededRandom;
    use kaji_runtime::Key;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn cluster(nodes: &[Value]) -> Cluster {
        let mut cluster = Cluster::default();
        for node in nodes {
            let mut node = node.clone();
            if node["status"].is_null() {
                node["status"] = json!({"allocatable": {"cpu": "2", "memory": "4Gi", "pods": "10"}});
            }
            let node: kaji_runtime::objects::Node = serde_json::from_value(node).unwrap();
            cluster.set_node(&node.metadata.name.clone(), Some(Arc::new(node)));
        }
        cluster
    }

    fn pod(spec: Value) -> PodInfo {
        PodInfo::new(Arc::new(
            serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap(),
        ))
    }

    fn show(nodes: &[Value], spec: Value) -> String {
        match decide(&cluster(nodes), &pod(spec), &SeededRandom::new(1)) {
            Decision::Bind(node) => format!("-> {node}"),
            Decision::Unschedulable(why) => why,
        }
    }

    #[test]
    fn decisions() {
        let a = json!({"metadata": {"name": "a", "labels": {"disk": "ssd"}}});
        let cordoned = json!({"metadata": {"name": "b"}, "spec": {"unschedulable": true}});
        let tainted = json!({"metadata": {"name": "c"}, "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}});
        let all = [a.clone(), cordoned.clone(), tainted.clone()];
        let big = json!({"containers": [{"resources": {"requests": {"cpu": "3"}}}]});
        let tolerant =
            json!({"nodeSelector": {}, "tolerations": [{"key": "k", "operator": "Equal", "value": "v"}]});
        let lines = [
            show(&all, json!({})),
            show(&all, big),
            show(&all, json!({"nodeSelector": {"disk": "hdd"}})),
            show(&[cordoned.clone(), tainted.clone()], tolerant),
            show(std::slice::from_ref(&cordoned), json!({"tolerations": [{"operator": "Exists"}]})),
            show(&[], json!({})),
        ];
        expect_test::expect![[r#"
            -> a
            0/3 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {k: v}, 1 node(s) were unschedulable.
            0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had untolerated taint {k: v}, 1 node(s) were unschedulable.
            -> c
            -> b
            no nodes available to schedule pods"#]]
        .assert_eq(&lines.join("\n"));
    }

    #[test]
    fn equal_nodes_fill_evenly_and_never_over() {
        let mut cluster = cluster(&[json!({"metadata": {"name": "a"}}), json!({"metadata": {"name": "b"}})]);
        let random = SeededRandom::new(7);
        for i in 0..20 {
            let pod = pod(json!({}));
            let Decision::Bind(node) = decide(&cluster, &pod, &random) else { panic!("{i}") };
            cluster.place(&Key::new("", format!("p{i}")), &node, pod);
        }
        let used: Vec<i64> = cluster.nodes().map(|n| n.used.pods).collect();
        assert_eq!(used, [10, 10]);
        assert_eq!(
            decide(&cluster, &pod(json!({})), &random),
            Decision::Unschedulable("0/2 nodes are available: 2 Too many pods.".into())
        );
    }
}
