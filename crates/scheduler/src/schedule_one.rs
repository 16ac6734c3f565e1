//! One scheduling decision: filter the nodes that a pod can run on, score them, choose the best.
//! Reasons and their wording are upstream's (`pkg/scheduler/framework/plugins`, `FitError`).
//!
//! Invariant: the decision is pure; it depends on the cache, the pod and the random source alone.

use crate::{
    cache::{Cache, NodeInfo, PodInfo},
    plugins::{filter, score},
};
use kaji_meta::random::Random;
use std::collections::BTreeMap;

/// The outcome for a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Bind it to this node.
    Bind(String),
    /// No node fits; upstream's message.
    Unschedulable(String),
}

/// Chooses a node. `random` breaks ties, so that equal nodes fill evenly.
pub fn schedule_pod(cache: &Cache, pod: &PodInfo, random: &dyn Random) -> Decision {
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut best: Option<(i64, &NodeInfo)> = None;
    let mut equals = 0;
    for node in cache.nodes() {
        let rejected = filter(pod, node);
        if !rejected.is_empty() {
            rejected.into_iter().for_each(|r| *reasons.entry(r).or_default() += 1);
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
        None => Decision::Unschedulable(message(cache.nodes().len(), &reasons)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::random::SeededRandom;
    use kaji_runtime::Key;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn cache(nodes: &[Value]) -> Cache {
        let mut cache = Cache::default();
        for node in nodes {
            let mut node = node.clone();
            if node["status"].is_null() {
                node["status"] = json!({"allocatable": {"cpu": "2", "memory": "4Gi", "pods": "10"}});
            }
            let node: kaji_runtime::objects::Node = serde_json::from_value(node).unwrap();
            cache.set_node(&node.metadata.name.clone(), Some(Arc::new(node)));
        }
        cache
    }

    fn pod(spec: Value) -> PodInfo {
        PodInfo::new(Arc::new(
            serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap(),
        ))
    }

    fn show(nodes: &[Value], spec: Value) -> String {
        match schedule_pod(&cache(nodes), &pod(spec), &SeededRandom::new(1)) {
            Decision::Bind(node) => format!("-> {node}"),
            Decision::Unschedulable(why) => why,
        }
    }

    #[test]
    fn reports_reasons_as_upstream() {
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
    fn fills_equal_nodes_evenly_up_to_their_capacity() {
        let mut cache = cache(&[json!({"metadata": {"name": "a"}}), json!({"metadata": {"name": "b"}})]);
        let random = SeededRandom::new(7);
        for i in 0..20 {
            let pod = pod(json!({}));
            let Decision::Bind(node) = schedule_pod(&cache, &pod, &random) else { panic!("{i}") };
            cache.add_pod(&Key::new("", format!("p{i}")), &node, &pod);
        }
        let used: Vec<i64> = cache.nodes().map(|n| n.used.pods).collect();
        assert_eq!(used, [10, 10]);
        assert_eq!(
            schedule_pod(&cache, &pod(json!({})), &random),
            Decision::Unschedulable("0/2 nodes are available: 2 Too many pods.".into())
        );
    }
}
