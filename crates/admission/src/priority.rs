//! `Priority`: sets the priority of a pod, and of a group of pods, from its priority class; there is one default class at most.

use super::find;
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{GroupResource, Status, object};
use kaji_resource::BoxFuture;
use serde_json::Value;
use std::sync::Arc;

/// The plugin.
pub(super) struct Priority;

fn classes() -> GroupResource {
    GroupResource::new("scheduling.k8s.io", "priorityclasses")
}

/// The class of pods that name none: of several, the one with the lowest value.
fn default_class(a: &Attributes<'_>) -> Option<Arc<Value>> {
    let is_default = |c: &Arc<Value>| object::bool_at(c, &["globalDefault"]) == Some(true);
    a.api
        .list(&classes(), None)
        .into_iter()
        .filter(is_default)
        .min_by_key(|c| c["value"].as_i64().unwrap_or(0))
}

impl Admission for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        let phases = match (group, resource) {
            ("", "pods") => Phases::MUTATING,
            ("scheduling.k8s.io", "podgroups") => Phases::MUTATING.when(operation == Operation::Create),
            ("scheduling.k8s.io", "priorityclasses") => Phases::VALIDATING,
            _ => Phases::NONE,
        };
        phases.when(matches!(operation, Operation::Create | Operation::Update))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource.is_empty()
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if a.operation == Operation::Create {
                return create(a).await;
            }
            // What was computed stays although clients leave it out.
            let Some(old) = a.old else { return Ok(()) };
            if let Some(pod) = a.object.as_deref_mut() {
                for field in ["priority", "preemptionPolicy"] {
                    if pod["spec"][field].is_null() && !old["spec"][field].is_null() {
                        object::set_at(pod, &["spec", field], old["spec"][field].clone());
                    }
                }
            }
            Ok(())
        })
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let Some(class) = a.new_object() else {
                return Ok(());
            };
            if object::bool_at(class, &["globalDefault"]) != Some(true) {
                return Ok(());
            }
            // A default made a moment ago counts, so that two cannot both pass.
            a.api.sync().await?;
            match default_class(a) {
                Some(other)
                    if a.operation == Operation::Create || object::name(&other) != object::name(class) =>
                {
                    let name = object::name(&other);
                    let text = format!(
                        "PriorityClass {name} is already marked as default. Only one default can exist"
                    );
                    Err(a.forbidden(text))
                }
                _ => Ok(()),
            }
        })
    }
}

/// A group's priority is that of its class; how its pods preempt is theirs.
fn of_group(a: &mut Attributes<'_>, class: &str, value: i64) -> Result<(), Status> {
    let given = a.new_object().and_then(|group| group["spec"]["priority"].as_i64());
    if let Some(given) = given.filter(|given| *given != value) {
        return Err(a.forbidden(format!(
            "priority set in the pod group ({given}) must match the priority computed ({value}) based on the priority class set in the spec"
        )));
    }
    if let Some(group) = a.object.as_deref_mut() {
        if !class.is_empty() {
            object::set_at(group, &["spec", "priorityClassName"], class);
        }
        object::set_at(group, &["spec", "priority"], value);
    }
    Ok(())
}

async fn create(a: &mut Attributes<'_>) -> Result<(), Status> {
    let named = a.new_object().map(|pod| object::str_at(pod, &["spec", "priorityClassName"]).to_owned());
    let Some(named) = named else { return Ok(()) };
    let class = match named.as_str() {
        "" => default_class(a),
        name => Some(
            find(a, &classes(), name)
                .await?
                .ok_or_else(|| a.forbidden(format!("no PriorityClass with name {name} was found")))?,
        ),
    };
    let (name, value, policy) = match &class {
        Some(c) => (object::name(c), c["value"].as_i64().unwrap_or(0), c["preemptionPolicy"].as_str()),
        None => ("", 0, Some("PreemptLowerPriority")),
    };
    if a.resource.resource == "podgroups" {
        return of_group(a, name, value);
    }
    let pod = a.new_object().unwrap_or(&Value::Null);
    if let Some(given) = pod["spec"]["priority"].as_i64().filter(|p| *p != value) {
        return Err(a.forbidden(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
        )));
    }
    if let (Some(given), Some(policy)) = (pod["spec"]["preemptionPolicy"].as_str(), policy)
        && given != policy
    {
        return Err(a.forbidden(format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        )));
    }
    if let Some(pod) = a.object.as_deref_mut() {
        if !name.is_empty() {
            object::set_at(pod, &["spec", "priorityClassName"], name);
        }
        object::set_at(pod, &["spec", "priority"], value);
        if let Some(policy) = policy {
            object::set_at(pod, &["spec", "preemptionPolicy"], policy);
        }
    }
    Ok(())
}
