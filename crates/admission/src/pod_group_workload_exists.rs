//! `PodGroupWorkloadExists`: a group of pods that names a template of a workload is created only while both are there.

use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{GroupResource, Status, object};
use kaji_resource::BoxFuture;
use serde_json::Value;

/// The plugin.
pub(super) struct PodGroupWorkloadExists;

impl Admission for PodGroupWorkloadExists {
    fn name(&self) -> &'static str {
        "PodGroupWorkloadExists"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        let group = (group, resource) == ("scheduling.k8s.io", "podgroups");
        Phases::VALIDATING.when(group && operation == Operation::Create)
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource.is_empty()
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let Some(reference) = a.new_object().map(|group| &group["spec"]["workloadRef"]) else {
                return Ok(());
            };
            if reference.is_null() {
                return Ok(());
            }
            // A workload that was created a moment ago counts.
            a.api.sync().await?;
            let name = object::str_at(reference, &["workloadName"]);
            let workload =
                a.api.get(&GroupResource::new("scheduling.k8s.io", "workloads"), a.namespace, name);
            check(workload.as_deref(), name, object::str_at(reference, &["templateName"]))
                .map_err(|text| a.forbidden(format!("PodGroup rejected: {text}")))
        })
    }
}

fn check(workload: Option<&Value>, name: &str, template: &str) -> Result<(), String> {
    let Some(workload) = workload else {
        return Err(format!("Workload {name:?} not found"));
    };
    if !workload["metadata"]["deletionTimestamp"].is_null() {
        return Err(format!("Workload {name:?} is being deleted"));
    }
    let templates = object::arr_at(workload, &["spec", "podGroupTemplates"]);
    match templates.iter().any(|t| t["name"] == template) {
        true => Ok(()),
        false => Err(format!("PodGroupTemplate {template:?} not found in Workload {name:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_template_has_to_be_there() {
        let workload = json!({"spec": {"podGroupTemplates": [{"name": "t"}]}});
        let ending = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(check(Some(&workload), "w", "t"), Ok(()));
        let all = [
            check(None, "w", "t").unwrap_err(),
            check(Some(&ending), "w", "t").unwrap_err(),
            check(Some(&workload), "w", "u").unwrap_err(),
        ];
        expect_test::expect![[r#"
            Workload "w" not found
            Workload "w" is being deleted
            PodGroupTemplate "u" not found in Workload "w""#]]
        .assert_eq(&all.join("\n"));
    }
}
