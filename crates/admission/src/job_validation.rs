//! `JobValidation`: the parallelism of a job stays while a group schedules its pods as a gang.
//!
//! Invariant: without the gate `GenericWorkload` there are no groups, and nothing is refused.

use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{GroupResource, Status, object, text::quote};
use kaji_resource::BoxFuture;
use serde_json::Value;
use std::sync::Arc;

/// The plugin.
pub(super) struct JobValidation;

impl Admission for JobValidation {
    fn name(&self) -> &'static str {
        "JobValidation"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::VALIDATING.when(operation == Operation::Update && (group, resource) == ("batch", "jobs"))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource.is_empty()
    }

    fn handles_unchanged(&self) -> bool {
        false
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let (Some(new), Some(old)) = (a.new_object(), a.old) else { return Ok(()) };
            if new["spec"]["parallelism"] == old["spec"]["parallelism"] {
                return Ok(());
            }
            a.api.sync().await?;
            match gang(a, old) {
                Some(group) => Err(a.forbidden(format!(
                    "cannot change parallelism for a Job referencing gang-scheduled PodGroup {}",
                    quote(object::name(&group))
                ))),
                None => Ok(()),
            }
        })
    }
}

/// The group that schedules a job's pods as a gang: the one that its template names, or else one that it controls.
fn gang(a: &Attributes<'_>, job: &Value) -> Option<Arc<Value>> {
    let groups = GroupResource::new("scheduling.k8s.io", "podgroups");
    let is_gang = |group: &Arc<Value>| {
        object::at(group, &["spec", "schedulingPolicy", "gang"]).is_some_and(|g| !g.is_null())
    };
    let name = object::at(job, &["spec", "template", "spec", "schedulingGroup", "podGroupName"]);
    if let Some(name) = name.and_then(Value::as_str) {
        return a.api.get(&groups, a.namespace, name).filter(is_gang);
    }
    let uid = object::uid(job);
    let controlled =
        |group: &Arc<Value>| object::controller_of(group).is_some_and(|owner| owner["uid"] == *uid);
    a.api.list(&groups, Some(a.namespace)).into_iter().find(|group| controlled(group) && is_gang(group))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::Request;
    use expect_test::expect;
    use kaji_resource::Scope;
    use serde_json::json;

    fn job(parallelism: i64, group: Option<&str>) -> Value {
        let mut job = json!({"metadata": {"name": "j", "namespace": "n", "uid": "1"},
            "spec": {"parallelism": parallelism, "template": {"spec": {}}}});
        if let Some(name) = group {
            job["spec"]["template"]["spec"]["schedulingGroup"] = json!({"podGroupName": name});
        }
        job
    }

    async fn updated(old: Value, new: Value) -> String {
        let mut request = Request::of("batch", "v1", "Job", "jobs", Scope::Namespaced);
        let group = |name: &str, owner: &str, policy: &str| {
            json!({"metadata": {"name": name, "namespace": "n", "ownerReferences": [
                {"kind": "Job", "name": "j", "uid": owner, "controller": true}]},
                "spec": {"schedulingPolicy": {policy: {}}}})
        };
        for group in [group("a", "2", "gang"), group("b", "1", "basic"), group("c", "1", "gang")] {
            request.api.put(&GroupResource::new("scheduling.k8s.io", "podgroups"), group);
        }
        (request.operation, request.name) = (Operation::Update, "j");
        (request.old, request.object) = (Some(old), Some(new));
        let result = request.with(async |a| JobValidation.validate(a).await).await;
        result.map_or_else(|status| format!("{} {status}", status.code), |()| "admitted".to_owned())
    }

    #[tokio::test]
    async fn gangs_keep_their_size() {
        assert_eq!(updated(job(2, Some("a")), job(2, Some("a"))).await, "admitted");
        expect![[r#"403 jobs.batch "j" is forbidden: cannot change parallelism for a Job referencing gang-scheduled PodGroup "a""#]]
            .assert_eq(&updated(job(2, Some("a")), job(3, Some("a"))).await);
        assert_eq!(updated(job(2, Some("b")), job(3, Some("b"))).await, "admitted");
        assert_eq!(updated(job(2, Some("gone")), job(3, Some("gone"))).await, "admitted");
        // The template names none: the groups that the job controls count.
        expect![[r#"403 jobs.batch "j" is forbidden: cannot change parallelism for a Job referencing gang-scheduled PodGroup "c""#]]
            .assert_eq(&updated(job(2, None), job(3, None)).await);
        let mut other = job(2, None);
        other["metadata"]["uid"] = "3".into();
        assert_eq!(updated(other, job(3, None)).await, "admitted");
    }
}
