//! `AlwaysPullImages`: sets every image's pull policy to `Always`, so that each pod proves with its own credentials that it
//! may use its images, also on a node that already has them.

use crate::pod_spec::{LISTS, containers};
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{ErrorList, Path, Status, field, object};
use kaji_resource::BoxFuture;
use serde_json::Value;
use std::collections::BTreeSet;

/// The plugin.
pub(super) struct AlwaysPullImages;

const ALWAYS: &str = "Always";

impl Admission for AlwaysPullImages {
    fn name(&self) -> &'static str {
        "AlwaysPullImages"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::BOTH.when(
            matches!(operation, Operation::Create | Operation::Update) && (group, resource) == ("", "pods"),
        )
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        let new_images = || match (a.old, a.new_object()) {
            (Some(old), Some(new)) => !images(new).is_subset(&images(old)),
            _ => true,
        };
        a.subresource.is_empty() && (a.operation == Operation::Create || new_images())
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        if let Some(pod) = a.object.as_deref_mut() {
            pull(pod);
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let errors = a.new_object().map(unpulled).unwrap_or_default();
        let result = if errors.is_empty() { Ok(()) } else { Err(a.forbidden(field::aggregate(&errors))) };
        Box::pin(std::future::ready(result))
    }
}

fn images(pod: &Value) -> BTreeSet<&str> {
    LISTS.iter().flat_map(|list| containers(pod, list)).map(|c| object::str_at(c, &["image"])).collect()
}

fn pull(pod: &mut Value) {
    for list in LISTS {
        for container in list_mut(pod, list) {
            object::set_at(container, &["imagePullPolicy"], ALWAYS);
        }
    }
    for volume in list_mut(pod, "volumes") {
        if volume["image"].is_object() {
            object::set_at(volume, &["image", "pullPolicy"], ALWAYS);
        }
    }
}

fn list_mut<'a>(pod: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    pod.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut).into_iter().flatten()
}

/// What would not be pulled.
fn unpulled(pod: &Value) -> ErrorList {
    let spec = Path::new("spec");
    let mut errors = vec![];
    let mut check = |path: Path, policy: &Value| {
        if policy != ALWAYS {
            errors.push(field::Error::not_supported(&path, policy.as_str().unwrap_or_default(), &[ALWAYS]));
        }
    };
    for list in [LISTS[1], LISTS[0], LISTS[2]] {
        for (i, container) in containers(pod, list).iter().enumerate() {
            check(spec.child(list).index(i).child("imagePullPolicy"), &container["imagePullPolicy"]);
        }
    }
    for (i, volume) in object::arr_at(pod, &["spec", "volumes"]).iter().enumerate() {
        if volume["image"].is_object() {
            let path = spec.child("volumes").index(i).child("image").child("pullPolicy");
            check(path, &volume["image"]["pullPolicy"]);
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn sets_pull_policy_of_all_images() {
        let mut pod = json!({"spec": {"initContainers": [{"image": "a", "imagePullPolicy": "Never"}], "containers": [{"image": "b"}],
            "volumes": [{"name": "v", "image": {"reference": "c", "pullPolicy": "IfNotPresent"}}, {"name": "e", "emptyDir": {}}]}});
        expect![[r#"[spec.initContainers[0].imagePullPolicy: Unsupported value: "Never": supported values: "Always", spec.containers[0].imagePullPolicy: Unsupported value: "": supported values: "Always", spec.volumes[0].image.pullPolicy: Unsupported value: "IfNotPresent": supported values: "Always"]"#]]
        .assert_eq(&field::aggregate(&unpulled(&pod)));
        pull(&mut pod);
        assert!(unpulled(&pod).is_empty());
        assert_eq!(pod["spec"]["volumes"][1], json!({"name": "e", "emptyDir": {}}));
        assert_eq!(images(&pod).into_iter().collect::<Vec<_>>(), ["a", "b"]);
    }
}
