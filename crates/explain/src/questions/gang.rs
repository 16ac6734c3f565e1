//! A pod of a group that waits, and the group itself: whether the group is there, has pods enough, and has been placed.

use crate::{
    case::{Case, condition_is, is_finished, tell},
    report::{Cause, Sort, some},
};
use kaji_meta::object::{self, i64_at, str_at};
use serde_json::Value;

/// Any version of the group's kind; the server's preferred one is read.
const KIND: (&str, &str) = ("scheduling.k8s.io/v1beta1", "PodGroup");
const NAMED: usize = 5;

/// The name of the group that a pod is scheduled with; empty for none.
pub fn group_of(pod: &Value) -> &str {
    str_at(pod, &["spec", "schedulingGroup", "podGroupName"])
}

fn has_node(pod: &Value) -> bool {
    !str_at(pod, &["spec", "nodeName"]).is_empty()
}

/// Why the group's pods have no nodes.
pub async fn causes(case: &Case<'_>) -> Vec<Cause> {
    if object::kind(case.object) == KIND.1 {
        return group_cause(case, case.object).await.into_iter().collect();
    }
    let name = group_of(case.object);
    if name.is_empty() || has_node(case.object) || is_finished(case.object) {
        return vec![];
    }
    let Some(resource) = case.discovery.of_kind(KIND.0, KIND.1) else { return vec![] };
    let found = case.reader.get(&resource.path(case.namespace(), name)).await;
    if found.is_absent() {
        let cause = Cause::new(Sort::Scheduling, format!("its group {name} is not there"))
            .known(format!("spec.schedulingGroup.podGroupName is {name}, and there is no such PodGroup"))
            .inferred("the scheduler does not try a pod before its group is there");
        return vec![cause.fix(format!(
            "create the PodGroup {name}, or look at the controller that makes the groups of this workload"
        ))];
    }
    match found.object() {
        Some(group) => group_cause(case, group).await.into_iter().collect(),
        None => vec![],
    }
}

/// What holds a group back; `None` for one that has nodes for as many pods as it needs.
async fn group_cause(case: &Case<'_>, group: &Value) -> Option<Cause> {
    let name = object::name(group);
    let needed = i64_at(group, &["spec", "schedulingPolicy", "gang", "minCount"])?;
    let all = case.all_beside("v1", "pods").await?;
    let pods: Vec<&Value> = all.iter().filter(|pod| group_of(pod) == name && !is_finished(pod)).collect();
    let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    let (waiting, placed): (Vec<&Value>, Vec<&Value>) = pods.iter().partition(|pod| !has_node(pod));
    if count(placed.len()) >= needed {
        return None;
    }
    if count(pods.len()) < needed {
        let cause = Cause::new(Sort::Scheduling, format!("group {name} waits for more pods"))
            .known(format!("PodGroup {name}: minCount is {needed}, and {} of its pods exist", pods.len()))
            .inferred("no pod of the group is tried before so many exist");
        return Some(cause.fix(format!(
            "kaji why for the workload that makes the pods; or lower minCount of PodGroup {name}"
        )));
    }
    let mut cause =
        Cause::new(Sort::Scheduling, format!("group {name} waits for nodes for {needed} pods at once"));
    if let Some(condition) = condition_is(group, "PodGroupInitiallyScheduled", "False") {
        cause = cause.known(tell(condition));
    }
    cause = cause
        .known(format!(
            "PodGroup {name}: minCount is {needed}; {} of {} pods have nodes",
            placed.len(),
            pods.len()
        ))
        .inferred("a group is placed as a whole: a pod that fits nowhere holds the others back");
    let others: Vec<&str> =
        waiting.iter().map(|pod| object::name(pod)).filter(|other| *other != case.name()).collect();
    Some(match others.is_empty() {
        true => cause.fix("free room for all of them, or add nodes"),
        false => cause.fix(format!("kaji why for the others that wait: {}", some(&others, NAMED))),
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::fixture;
    use expect_test::expect;
    use serde_json::{Value, json};

    fn member(name: &str, node: &str) -> Value {
        json!({
            "kind": "Pod", "name": name,
            "spec": {"schedulingGroup": {"podGroupName": "g"}, "nodeName": node,
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "3"}}}]},
            "status": {"phase": "Pending"},
        })
    }

    fn gang(count: u32) -> Value {
        json!({
            "kind": "PodGroup", "name": "g", "spec": {"schedulingPolicy": {"gang": {"minCount": count}}},
            "status": {"conditions": [{
                "type": "PodGroupInitiallyScheduled", "status": "False", "reason": "Unschedulable", "message": "no room",
            }]},
        })
    }

    #[tokio::test]
    async fn tells_what_a_group_waits_for() {
        let room = || {
            json!({"kind": "Node", "name": "a", "status": {
                "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            }})
        };
        let alone = fixture(&[member("p", ""), room()]);
        expect![[r#"
            Pod d/p: its group g is not there
              known    spec.schedulingGroup.podGroupName is g, and there is no such PodGroup
              inferred the scheduler does not try a pod before its group is there
              fix      create the PodGroup g, or look at the controller that makes the groups of this workload
            Pod d/p: it has no node
              inferred it fits now on a
              inferred its group g is placed as a whole, or not at all
        "#]]
        .assert_eq(&alone.why("pod/p").await);
        let few = fixture(&[member("p", ""), member("q", ""), gang(3), room()]);
        expect![[r#"
            PodGroup d/g: group g waits for more pods
              known    PodGroup g: minCount is 3, and 2 of its pods exist
              inferred no pod of the group is tried before so many exist
              fix      kaji why for the workload that makes the pods; or lower minCount of PodGroup g
        "#]]
        .assert_eq(&few.why("podgroup/g").await);
        let crowded = fixture(&[member("p", ""), member("q", ""), gang(2), room()]);
        expect![[r#"
            Pod d/p: group g waits for nodes for 2 pods at once
              known    condition PodGroupInitiallyScheduled is False (Unschedulable): no room
              known    PodGroup g: minCount is 2; 0 of 2 pods have nodes
              inferred a group is placed as a whole: a pod that fits nowhere holds the others back
              fix      kaji why for the others that wait: q
            Pod d/p: it has no node
              inferred it fits now on a
              inferred its group g is placed as a whole, or not at all
            PodGroup d/g: group g waits for nodes for 2 pods at once
              known    condition PodGroupInitiallyScheduled is False (Unschedulable): no room
              known    PodGroup g: minCount is 2; 0 of 2 pods have nodes
              inferred a group is placed as a whole: a pod that fits nowhere holds the others back
              fix      kaji why for the others that wait: p, q
        "#]]
        .assert_eq(&(crowded.why("pod/p").await + &crowded.why("podgroup/g").await));
        // The group has its pods; this one waits for itself.
        let placed = fixture(&[member("p", ""), member("q", "a"), gang(1), room()]);
        let text = placed.why("pod/p").await;
        assert!(!text.contains("at once") && text.contains("no node takes it"), "{text}");
    }
}
