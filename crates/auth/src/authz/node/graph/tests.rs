//! The graph after many changes is the one that the objects that are left make, and pods of a template share what they need.

use super::*;
use serde_json::json;

fn change(name: &str, object: Option<Value>) -> Change {
    Change { namespace: "n".into(), name: name.into(), object }
}

fn pod(node: &str, map: &str) -> Value {
    json!({"spec": {"nodeName": node, "serviceAccountName": "sa", "volumes": [
        {"name": "v", "configMap": {"name": map}}, {"name": "e", "ephemeral": {}}]}})
}

fn related(graph: &Graph) -> Vec<String> {
    let mut found = vec![];
    for node in ["a", "b", "c"] {
        for (kind, names) in [
            (Kind::Pod, ["p0", "p1", "p2", "p3"]),
            (Kind::Claim, ["p0-e", "p1-e", "p2-e", "p3-e"]),
            (Kind::ConfigMap, ["x", "y", "z", ""]),
            (Kind::ServiceAccount, ["sa", "", "", ""]),
        ] {
            let leads = names.iter().filter(|name| graph.leads_to(kind, "n", name, node));
            found.extend(leads.map(|name| format!("{node} {kind:?} {name}")));
        }
    }
    found
}

#[test]
fn pods_of_a_template_share_what_they_need() {
    let mut graph = Graph::default();
    let spec = |node: &str| json!({"spec": {"nodeName": node, "serviceAccountName": "sa"}});
    graph.pod(&change("p0", Some(spec("a"))));
    graph.pod(&change("p1", Some(spec("b"))));
    graph.pod(&change("p2", Some(spec("b"))));
    let all: Vec<&Pod> = graph.pods.values().collect();
    assert!(Arc::ptr_eq(&all[0].refs, &all[1].refs) && Arc::ptr_eq(&all[1].node, &all[2].node));
    assert!(
        !graph.leads_to(Kind::Pod, "n", "p0", "b") && graph.leads_to(Kind::ServiceAccount, "n", "sa", "b")
    );
}

#[test]
fn is_made_of_the_pods_that_are_left() {
    let mut graph = Graph::default();
    let mut present = std::collections::BTreeMap::new();
    let mut seed = 7_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for _ in 0..2_000 {
        let name = format!("p{}", random(4));
        let object = (random(3) > 0)
            .then(|| pod(["a", "b", "c", ""][random(4) as usize], ["x", "y", "z"][random(3) as usize]));
        let before = graph.clone();
        let was = related(&before);
        graph.pod(&change(&name, object.clone()));
        match object {
            Some(object) => drop(present.insert(name, object)),
            None => drop(present.remove(&name)),
        }
        let mut anew = Graph::default();
        present.iter().for_each(|(name, object)| anew.pod(&change(name, Some(object.clone()))));
        assert_eq!(related(&graph), related(&anew));
        assert_eq!(related(&before), was, "an earlier graph has changed");
    }
    present.keys().for_each(|name| graph.pod(&change(name, None)));
    assert!(
        graph.pods.is_empty() && graph.needed.is_empty() && graph.nodes.is_empty() && graph.refs.is_empty()
    );
}
