//! The rollback that an annotation asks for: `spec.rollbackTo` of the APIs before `apps/v1`.
//!
//! Invariant: the patch that rolls back, or gives it up, takes off the annotation, so that each rollback is decided once.

use super::{
    API_VERSION, HASH_LABEL, equal_ignoring_hash,
    sets::{NOT_COPIED, ROLLBACK_TO, Set},
};
use kaji_runtime::{
    EventRecord, PatchKind, Plan, Projection, Step, Write,
    client::Target,
    objects::{Deployment, ReplicaSet},
};
use serde_json::{Map, Value, json};

/// The revision that a deployment is to go back to; 0 stands for the last one.
pub fn revision(d: &Deployment) -> Option<i64> {
    d.metadata.annotations.get(ROLLBACK_TO)?.parse().ok()
}

/// The last revision but one.
fn last(sets: &[Set]) -> Option<i64> {
    let mut revisions: Vec<i64> = sets.iter().filter_map(Set::revision).collect();
    revisions.sort_unstable();
    revisions.iter().rev().nth(1).copied().filter(|revision| *revision != 0)
}

/// Adds the patch that gives the deployment the template and the annotations of a revision's set, or what keeps it from that. A set
/// without uid is about to be made of the present template.
pub fn add(plan: Plan, d: &Deployment, sets: &[Set], revision: i64) -> Plan {
    let (meta, regarding) = (&d.metadata, d.metadata.reference(API_VERSION, Deployment::KIND));
    let (found, missing) = match revision {
        0 => (last(sets), "Unable to find last revision."),
        _ => (Some(revision), "Unable to find the revision to rollback to."),
    };
    let target = sets.iter().find(|set| found.is_some() && set.revision() == found);
    let mut body = json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version,
        "annotations": {ROLLBACK_TO: null}}});
    let mut done = None;
    let warning = match target {
        None => Some(("DeploymentRollbackRevisionNotFound", missing.to_owned())),
        Some(set) if set.seen.metadata.uid.is_empty() || same_template(d, &set.seen) => {
            let text = format!(
                "The rollback revision contains the same template as current deployment {:?}",
                meta.name
            );
            Some(("DeploymentRollbackTemplateUnchanged", text))
        }
        Some(set) => {
            body["metadata"]["annotations"] = annotations(d, set).into();
            body["spec"] = json!({"template": template(&set.seen)});
            let text =
                format!("Rolled back deployment {:?} to revision {}", meta.name, found.unwrap_or_default());
            done = Some(EventRecord::normal(regarding.clone(), "DeploymentRollback", text));
            None
        }
    };
    let target = Target::of::<Deployment>(&meta.namespace, &meta.name);
    let write = Write::Patch { target, kind: PatchKind::Strategic, body };
    let plan = plan.stage(vec![Step { write, on_success: done, on_failure: None }]);
    match warning {
        Some((reason, text)) => plan.event(EventRecord::warning(regarding, reason, text)),
        None => plan,
    }
}

fn same_template(d: &Deployment, set: &ReplicaSet) -> bool {
    equal_ignoring_hash(&d.spec.template, &set.spec.template)
}

/// A set's annotations in place of the deployment's, but for those that each has of its own.
fn annotations(d: &Deployment, set: &Set) -> Map<String, Value> {
    let copied = |key: &str| !NOT_COPIED.contains(&key) || key == ROLLBACK_TO;
    let former = d.metadata.annotations.keys().filter(|key| copied(key));
    let mut all: Map<String, Value> = former.map(|key| (key.clone(), Value::Null)).collect();
    let new = set.annotations.iter().filter(|(key, _)| !NOT_COPIED.contains(&key.as_str()));
    all.extend(new.map(|(key, value)| (key.clone(), value.as_str().into())));
    all
}

/// A set's template without what makes it that set's, in place of another one.
fn template(set: &ReplicaSet) -> Value {
    let mut template = set.spec.template.clone();
    if let Some(labels) = template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove(HASH_LABEL);
    }
    template["$patch"] = "replace".into();
    template
}
