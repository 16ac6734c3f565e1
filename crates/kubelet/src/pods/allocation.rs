//! What the kubelet has granted of the resources that pods ask for. Upstream's `allocation` and its checkpoint.
//!
//! Invariants: a pod runs with what it was granted, not with what its spec asks for at the moment; what was granted is on disk
//! before it has an effect, so that a kubelet that starts grants nothing anew.

use super::admission;
use super::core::{Node, Pod, ResourceRequirements};
use super::model;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Granted resources of a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Allocation {
    /// Of containers and init containers, by name.
    pub containers: BTreeMap<String, ResourceRequirements>,
    /// Of the pod as a whole.
    pub pod: Option<ResourceRequirements>,
}

impl Allocation {
    /// What a pod asks for.
    #[must_use]
    pub fn of(pod: &Pod) -> Allocation {
        let all = model::containers(pod).iter().chain(model::init_containers(pod));
        let of = |c: &super::core::Container| (c.name.clone(), c.resources.clone().unwrap_or_default());
        Allocation { containers: all.map(of).collect(), pod: model::spec(pod).resources.clone() }
    }

    /// Whether a pod asks for this.
    #[must_use]
    pub fn is_of(&self, pod: &Pod) -> bool {
        let none = ResourceRequirements::default();
        let (regular, init) = (model::containers(pod), model::init_containers(pod));
        let same = |c: &super::core::Container| {
            self.containers.get(&c.name) == Some(c.resources.as_ref().unwrap_or(&none))
        };
        self.pod == model::spec(pod).resources
            && self.containers.len() == regular.len() + init.len()
            && regular.iter().chain(init).all(same)
    }

    /// The pod as it runs: with what it was granted.
    #[must_use]
    pub fn apply(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        if self.is_of(pod) {
            return pod.clone();
        }
        let mut granted = Pod::clone(pod);
        if let Some(spec) = &mut granted.spec {
            spec.resources.clone_from(&self.pod);
            let all = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
            for container in all {
                if let Some(resources) = self.containers.get(&container.name) {
                    container.resources = Some(resources.clone());
                }
            }
        }
        Arc::new(granted)
    }
}

/// Whether what a pod asks for can be granted beside what the others were granted.
///
/// # Errors
/// The message of the condition `PodResizePending`.
pub fn can_resize(desired: &Pod, others: &[&Pod], node: &Node) -> Result<(), String> {
    admission::admit(desired, others, node).map_err(|refusal| refusal.message)
}

/// The text of an event about a resize, as upstream has it: a prefix, and what the containers ask for.
#[must_use]
pub fn event(prefix: &str, pod: &Pod, error: &str) -> String {
    #[derive(Serialize)]
    struct Of<'a> {
        name: &'a str,
        resources: ResourceRequirements,
    }
    #[derive(Serialize)]
    struct Summary<'a> {
        #[serde(rename = "initContainers", skip_serializing_if = "Vec::is_empty")]
        init: Vec<Of<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        containers: Vec<Of<'a>>,
        generation: i64,
        #[serde(skip_serializing_if = "str::is_empty")]
        error: &'a str,
    }
    fn named(list: &[super::core::Container]) -> Vec<Of<'_>> {
        list.iter()
            .map(|c| Of { name: &c.name, resources: c.resources.clone().unwrap_or_default() })
            .collect()
    }
    let generation = pod.metadata.generation.unwrap_or(0);
    let summary = Summary {
        init: named(model::init_containers(pod)),
        containers: named(model::containers(pod)),
        generation,
        error,
    };
    match serde_json::to_string(&summary) {
        Ok(text) => format!("{prefix}: {text}"),
        Err(_) => prefix.to_owned(),
    }
}

/// Reads a checkpoint; `None` where there is none, or none that can be read.
#[must_use]
pub fn load<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let bytes = std::fs::read(path).ok()?;
    match serde_json::from_slice(&bytes) {
        Ok(value) => Some(value),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "a checkpoint cannot be read");
            None
        }
    }
}

/// Replaces a checkpoint; its directory is made if need be.
///
/// # Errors
/// Those of the file system.
pub fn save<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let unfinished = path.with_extension("tmp");
    std::fs::write(&unfinished, serde_json::to_vec(value)?)?;
    std::fs::rename(&unfinished, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, cpu: &str) -> Arc<Pod> {
        let resources = json!({"requests": {"cpu": cpu}});
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "n", "uid": name, "generation": 2},
                "spec": {
                    "initContainers": [{"name": "a", "image": "i"}],
                    "containers": [{"name": "c", "image": "i", "resources": resources}],
                },
            }))
            .unwrap(),
        )
    }

    #[test]
    fn a_pod_runs_with_what_it_was_granted() {
        let (before, after) = (pod("p", "100m"), pod("p", "2"));
        let granted = Allocation::of(&before);
        assert!(granted.is_of(&before) && !granted.is_of(&after));
        assert!(Arc::ptr_eq(&granted.apply(&before), &before));
        assert!(granted.is_of(&granted.apply(&after)));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pods/u/allocated_resources.json");
        assert_eq!(load::<Allocation>(&file), None);
        save(&file, &granted).unwrap();
        assert_eq!(load(&file), Some(granted));
        std::fs::write(&file, "{").unwrap();
        assert_eq!(load::<Allocation>(&file), None);
        expect_test::expect![[r#"Pod resize started: {"initContainers":[{"name":"a","resources":{}}],"containers":[{"name":"c","resources":{"requests":{"cpu":"2"}}}],"generation":2}"#]]
            .assert_eq(&event("Pod resize started", &after, ""));
    }

    #[test]
    fn what_does_not_fit_beside_the_others_waits() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "10"}},
        }))
        .unwrap();
        let other = pod("other", "1");
        assert_eq!(can_resize(&pod("p", "1"), &[&other], &node), Ok(()));
        expect_test::expect![
            "Node didn't have enough resource: cpu, requested: 1100, used: 1000, capacity: 2000"
        ]
        .assert_eq(&can_resize(&pod("p", "1100m"), &[&other], &node).unwrap_err());
    }
}
