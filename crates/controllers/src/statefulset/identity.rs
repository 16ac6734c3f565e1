//! The identity of a stateful set's pod: its name and ordinal, and its claims.

use kaji_runtime::{
    Meta, OwnerRef, Projection,
    objects::{ClaimRetentionPolicy, PersistentVolumeClaim, Pod, StatefulSet, Workload},
};
use serde_json::{Value, json};

/// The pod's name, as a label.
pub const NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
/// The pod's number, as a label.
pub const INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

/// The number in a pod's name, if it is named after this set.
pub fn ordinal(set: &StatefulSet, pod: &Meta) -> Option<i64> {
    let number = pod.name.strip_prefix(&set.metadata.name)?.strip_prefix('-')?;
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    number.parse::<i32>().ok().filter(|_| digits).map(i64::from)
}

/// A pod's name.
pub fn pod_name(set: &StatefulSet, ordinal: i64) -> String {
    format!("{}-{ordinal}", set.metadata.name)
}

/// Whether a number is below the desired replicas, counted from the start.
pub fn in_range(set: &StatefulSet, ordinal: i64) -> bool {
    (set.start()..set.start() + set.replicas()).contains(&ordinal)
}

/// The labels that a pod should have for its identity.
pub fn identity_labels(set: &StatefulSet, ordinal: i64) -> [(&'static str, String); 2] {
    [(NAME_LABEL, pod_name(set, ordinal)), (INDEX_LABEL, ordinal.to_string())]
}

/// Name and body of each claim of a pod, with the name of its template.
pub fn claims(set: &StatefulSet, ordinal: i64) -> Vec<(String, String, Value)> {
    let matched = set.spec.selector.raw.get("matchLabels").and_then(Value::as_object);
    let claim = |template: &Value| {
        let volume = template.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let name = format!("{volume}-{}-{ordinal}", set.metadata.name);
        let mut body = template.clone();
        if let Some(body) = body.as_object_mut() {
            body.remove("status");
        }
        body["apiVersion"] = PersistentVolumeClaim::api_version().into();
        body["kind"] = PersistentVolumeClaim::KIND.into();
        body["metadata"]["name"] = name.as_str().into();
        body["metadata"]["namespace"] = set.metadata.namespace.as_str().into();
        for (key, value) in matched.into_iter().flatten() {
            body["metadata"]["labels"][key] = value.clone();
        }
        if let Some(metadata) = body["metadata"].as_object_mut() {
            metadata.retain(|key, value| key != "creationTimestamp" || !value.is_null());
        }
        (volume.to_owned(), name, body)
    };
    set.spec.volume_claim_templates.iter().map(claim).collect()
}

/// A pod out of a template, with the set's identity for its number and the revision that the template is of.
pub fn pod(set: &StatefulSet, template: &Value, revision: &str, ordinal: i64) -> Value {
    let meta = &set.metadata;
    let reference = meta.controller_ref(&StatefulSet::api_version(), StatefulSet::KIND);
    let mut pod = crate::shared::pods::pod_from_template(template, meta, &reference);
    let name = pod_name(set, ordinal);
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        metadata.remove("generateName");
    }
    pod["metadata"]["name"] = name.as_str().into();
    pod["metadata"]["namespace"] = meta.namespace.as_str().into();
    for (label, value) in identity_labels(set, ordinal) {
        pod["metadata"]["labels"][label] = value.into();
    }
    pod["metadata"]["labels"][crate::shared::history::HASH_LABEL] = revision.into();
    pod["spec"]["hostname"] = name.into();
    pod["spec"]["subdomain"] = set.spec.service_name.as_str().into();
    let claims = claims(set, ordinal);
    let volume = |(volume, claim, _): &(String, String, Value)| json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}});
    let mut volumes: Vec<Value> = claims.iter().map(volume).collect();
    let own = pod["spec"].get("volumes").and_then(Value::as_array).cloned().unwrap_or_default();
    let claimed = |v: &Value| claims.iter().any(|(name, ..)| v.get("name").is_some_and(|n| n == name));
    volumes.extend(own.into_iter().filter(|v| !claimed(v)));
    if !volumes.is_empty() {
        pod["spec"]["volumes"] = volumes.into();
    }
    pod
}

fn refers<T: Projection>(owner: &OwnerRef, meta: &Meta) -> bool {
    owner.api_version == T::api_version() && owner.kind == T::KIND && owner.name == meta.name
}

/// Whether a claim still belongs to a former object of this name, and so is about to go.
pub fn stale<T: Projection>(claim: &PersistentVolumeClaim, meta: &Meta) -> bool {
    claim.metadata.owner_references.iter().find(|o| refers::<T>(o, meta)).is_some_and(|o| o.uid != meta.uid)
}

/// Whether the retention policy deletes claims: with the set, and with pods that it has too many of.
fn deletes(set: &StatefulSet) -> (bool, bool) {
    let deletes = |when: fn(&ClaimRetentionPolicy) -> &String| {
        set.spec.persistent_volume_claim_retention_policy.as_ref().is_some_and(|p| when(p) == "Delete")
    };
    (deletes(|p| &p.when_deleted), deletes(|p| &p.when_scaled))
}

/// Whether a claim that the retention policy would delete has another controller, or a former set or pod of these names.
pub fn conflicting(set: &StatefulSet, pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    deletes(set) != (false, false)
        && claim.metadata.owner_references.iter().any(|owner| {
            if refers::<StatefulSet>(owner, &set.metadata) {
                owner.uid != set.metadata.uid
            } else if refers::<Pod>(owner, &pod.metadata) {
                owner.uid != pod.metadata.uid
            } else {
                owner.controller
            }
        })
}

/// The owners that a claim should have by the set's retention policy; `None` when they are right.
/// Source: KEP-1847.
pub fn owners(set: &StatefulSet, pod: &Pod, claim: &PersistentVolumeClaim) -> Option<Vec<OwnerRef>> {
    let (deleted, scaled) = deletes(set);
    if stale::<StatefulSet>(claim, &set.metadata) || stale::<Pod>(claim, &pod.metadata) {
        return None;
    }
    let current = &claim.metadata.owner_references;
    let ours = |o: &OwnerRef| refers::<StatefulSet>(o, &set.metadata) || refers::<Pod>(o, &pod.metadata);
    let foreign = conflicting(set, pod, claim);
    let condemned = !ordinal(set, &pod.metadata).is_some_and(|n| in_range(set, n));
    let mut wanted: Vec<OwnerRef> = current.iter().filter(|o| !ours(o)).cloned().collect();
    let reference = |meta: &Meta, api_version: String, kind: &str| OwnerRef {
        api_version,
        kind: kind.into(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        controller: true,
        block_owner_deletion: true,
    };
    if !foreign {
        if scaled && condemned {
            wanted.push(reference(&pod.metadata, Pod::api_version(), Pod::KIND));
        } else if deleted {
            wanted.push(reference(&set.metadata, StatefulSet::api_version(), StatefulSet::KIND));
        }
    }
    let key = |o: &OwnerRef| (o.uid.clone(), o.controller);
    let same =
        wanted.len() == current.len() && wanted.iter().all(|w| current.iter().any(|c| key(c) == key(w)));
    (!same).then_some(wanted)
}
