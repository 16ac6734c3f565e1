//! The pod spec: defaulting, validation and what is derived from it, shared by every kind that holds a pod template.
//!
//! Invariants: nothing here looks at other objects; functions take the wire form (`v1`), in which host namespaces
//! (`hostNetwork`, …) are fields of the spec.

pub mod binding;
pub mod columns;
pub mod defaults;
pub mod diff;
pub mod drop;
pub mod eviction;
pub mod image;
pub mod matching;
pub mod resize;
pub mod resources;
pub mod status;
pub mod streams;
pub mod template;
pub mod update;
pub mod validate;
pub mod warnings;

use crate::shared::Fields;
use kaji_meta::Path;
use serde_json::Value;

/// The lists of a pod spec that hold containers, in the order in which upstream visits them.
pub const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Calls `f` with every container of a pod spec and its path.
pub fn each_container<'a>(spec: &'a Value, path: &Path, mut f: impl FnMut(&'a Value, &Path)) {
    for list in CONTAINER_LISTS {
        let items = spec.list(list);
        if items.is_empty() {
            continue;
        }
        let path = path.child(list);
        for (i, c) in items.iter().enumerate() {
            f(c, &path.index(i));
        }
    }
}

/// Whether an init container is a sidecar (`restartPolicy: Always`).
pub fn is_sidecar(container: &Value) -> bool {
    container.text("restartPolicy") == "Always"
}

/// Whether a pod's phase is final.
pub fn is_terminal(pod: &Value) -> bool {
    matches!(pod.at("status").text("phase"), "Succeeded" | "Failed")
}

#[cfg(test)]
mod tests {
    use crate::shared::testing;
    use expect_test::expect;

    /// What discovery says of the workload kinds.
    #[test]
    fn workload_resources() {
        let groups = ["", "apps", "batch", "autoscaling", "policy"];
        let plurals = ["bindings", "pods", "podtemplates", "replicationcontrollers"];
        let mut lines = vec![];
        for d in crate::all(&testing::deps()) {
            let group = d.group.as_ref();
            if !groups.contains(&group) || (group.is_empty() && !plurals.contains(&d.plural.as_ref())) {
                continue;
            }
            let versions: Vec<&str> = d.versions.iter().map(|v| v.name.as_ref()).collect();
            let subs: Vec<&str> = d.versions[0].subresources.iter().map(|s| s.name.as_ref()).collect();
            lines.push(format!(
                "{group}/{} {} {:?} {:?} {}",
                versions.join(","),
                d.plural,
                d.short_names,
                d.categories,
                subs.join(",")
            ));
        }
        lines.sort();
        expect![[r#"
            /v1 bindings [] [] 
            /v1 pods ["po"] ["all"] status,ephemeralcontainers,resize,attach,binding,eviction,exec,log,portforward,proxy
            /v1 podtemplates [] [] 
            /v1 replicationcontrollers ["rc"] ["all"] status,scale
            apps/v1 controllerrevisions [] [] 
            apps/v1 daemonsets ["ds"] ["all"] status
            apps/v1 deployments ["deploy"] ["all"] status,scale
            apps/v1 replicasets ["rs"] ["all"] status,scale
            apps/v1 statefulsets ["sts"] ["all"] status,scale
            autoscaling/v2,v1 horizontalpodautoscalers ["hpa"] ["all"] status
            batch/v1 cronjobs ["cj"] ["all"] status
            batch/v1 jobs [] ["all"] status
            policy/v1 poddisruptionbudgets ["pdb"] [] status"#]].assert_eq(&lines.join("\n"));
    }
}
