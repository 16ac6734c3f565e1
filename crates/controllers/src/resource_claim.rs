//! Claims of devices: made from the templates that pods name, reserved for pods that were bound without the scheduler, released
//! when their pods are done.
//!
//! Invariants:
//! - A claim is made once for a pod: one that has the pod as its controller and names the pod's claim is used.
//! - A claim that is not the pod's own is left alone; the pod gets another.
//! - A pod's reservation is removed only when the pod is known to be gone or done (`release`).
//!
//! Source: upstream's `pkg/controller/resourceclaim`. Claims of pod groups belong to an API that is not served.

mod metrics;
mod release;

use crate::{Descriptor, Start, WorkersFlag};
use kaji_runtime::{
    Change, Controller, Cx, EventRecord, Informers, Key, Metric, ObjectSnapshot, PatchKind, Plan, Projection,
    Reconciler, Step, View, Write,
    client::Target,
    objects::{DeviceClaim, Pod, ResourceClaim, ResourceClaimTemplate},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// The name that upstream's events have.
const COMPONENT: &str = "resource_claim";
/// On claims that were made from a template: the claim's name in the pod.
const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";
/// Longest prefix of a generated name.
const MAX_PREFIX: usize = 57;
/// The most consumers of a claim.
const MAX_CONSUMERS: usize = 256;

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "resourceclaim-controller",
    components: &[COMPONENT],
    service_account: Some("resource-claim-controller"),
    workers: Some(WorkersFlag { name: "concurrent-resourceclaim-syncs", default: 50 }),
    start: Start::Reconcilers(|informers, _| vec![pods(informers), release::controller(informers)]),
};

fn pods(informers: &Arc<Informers>) -> Controller {
    Controller::new(PodClaims, informers)
        .reads::<Pod>(|change, _| {
            let pod = change.new.iter().filter(|pod| concerned(pod));
            pod.map(|pod| pod.metadata.key()).collect()
        })
        .reads::<ResourceClaim>(keys_of_claim)
        .reads::<ResourceClaimTemplate>(|change, view| {
            let (meta, pods) = (&change.any().metadata, view.get::<Pod>());
            let index = format!("{}/{}", meta.namespace, meta.name);
            pods.indexed(Pod::DEVICE_TEMPLATE, &index).map(|pod| pod.metadata.key()).collect()
        })
        .gauges(|view| metrics::gauges(&view.get()))
}

/// The pods that use a claim, and the one that it was made for.
fn keys_of_claim(change: &Change<ResourceClaim>, view: &View) -> Vec<Key> {
    let (meta, pods) = (&change.any().metadata, view.get::<Pod>());
    let index = format!("{}/{}", meta.namespace, meta.name);
    let users = pods.indexed(Pod::DEVICE_CLAIM, &index).map(|pod| pod.metadata.key());
    let owner = meta.controller().filter(|owner| owner.kind == Pod::KIND);
    let owner = owner.map(|owner| Key::new(meta.namespace.as_str(), owner.name.as_str()));
    users.chain(owner).collect()
}

fn concerned(pod: &Pod) -> bool {
    !pod.metadata.deleting() && !pod.spec.resource_claims.is_empty()
}

struct PodClaims;

impl Reconciler for PodClaims {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &metrics::METRICS
    }

    fn reconcile(&self, view: &View, key: &Key, _: &Cx<'_>) -> Plan {
        let pods = view.get::<Pod>();
        let Some(pod) = pods.by_key(key).filter(|pod| concerned(pod)) else { return Plan::nothing() };
        let work = Work { pod, claims: view.get(), templates: view.get() };
        let (mut plan, mut creations, mut made) = (Plan::nothing(), vec![], vec![]);
        for claim in &pod.spec.resource_claims {
            match work.claim(claim) {
                Ok(Next::Nothing) => {}
                Ok(Next::Created(name)) => made.push(json!({"name": claim.name, "resourceClaimName": name})),
                Ok(Next::Create(write)) => creations.push(Step {
                    write: *write,
                    on_success: None,
                    on_failure: Some(work.failed(claim, "create ResourceClaim : {error}")),
                }),
                Err(error) => plan = plan.event(work.failed(claim, &error)),
            }
        }
        if !made.is_empty() {
            plan = plan.then(Write::Patch {
                target: Target::of::<Pod>(&key.namespace, &key.name).subresource("status"),
                kind: PatchKind::Strategic,
                body: json!({"metadata": {"uid": pod.metadata.uid}, "status": {"resourceClaimStatuses": made}}),
            });
        }
        // Once they exist, the next reconcile puts their names into the pod's status.
        let plan = metrics::created(
            plan.stage(creations),
            &Target::of::<ResourceClaim>(&pod.metadata.namespace, ""),
        );
        if pod.spec.node_name.is_empty() || pod.finished() { plan } else { plan.stage(work.reservations()) }
    }
}

/// What is to be done for a claim of a pod.
enum Next {
    Nothing,
    /// The claim exists, and the pod's status does not say so.
    Created(String),
    Create(Box<Write>),
}

struct Work<'a> {
    pod: &'a Arc<Pod>,
    claims: ObjectSnapshot<ResourceClaim>,
    templates: ObjectSnapshot<ResourceClaimTemplate>,
}

impl Work<'_> {
    fn failed(&self, claim: &DeviceClaim, error: &str) -> EventRecord {
        let about = self.pod.metadata.reference(&Pod::api_version(), Pod::KIND);
        let text = format!("PodResourceClaim {}: {error}", claim.name);
        EventRecord::warning(about, "FailedResourceClaimCreation", text)
    }

    fn owned(&self, claim: &ResourceClaim) -> bool {
        claim.metadata.controller().is_some_and(|owner| owner.uid == self.pod.metadata.uid)
    }

    fn claim(&self, wanted: &DeviceClaim) -> Result<Next, String> {
        let meta = &self.pod.metadata;
        let Some(template) = &wanted.resource_claim_template_name else {
            return match &wanted.resource_claim_name {
                Some(_) => Ok(Next::Nothing),
                None => Err(format!(
                    "checking for claim before creating it: pod \"{}/{}\", spec.resourceClaim \"{}\": none of the supported \
                     fields are set",
                    meta.namespace, meta.name, wanted.name
                )),
            };
        };
        match self.pod.device_claim(wanted) {
            // Found out before: it is not needed.
            Some(None) => return Ok(Next::Nothing),
            Some(Some(name)) if self.claims.get(&meta.namespace, name).is_some_and(|c| self.owned(c)) => {
                return Ok(Next::Nothing);
            }
            _ => {}
        }
        let mut own = self.claims.owned_by(&meta.uid);
        let made = own.find(|claim| {
            claim.metadata.annotations.get(POD_CLAIM).map(String::as_str) == Some(&*wanted.name)
        });
        if let Some(made) = made {
            return Ok(Next::Created(made.metadata.name.clone()));
        }
        let found = self.templates.get(&meta.namespace, template).ok_or_else(|| {
            format!(
                "resource claim template \"{template}\": resourceclaimtemplate.resource.k8s.io \"{template}\" not found"
            )
        })?;
        Ok(Next::Create(Box::new(creation(self.pod, wanted, found))))
    }

    /// The claims of a bound pod that were allocated and are not reserved for it: it was bound without the scheduler.
    fn reservations(&self) -> Vec<Step> {
        let meta = &self.pod.metadata;
        let reserve = |wanted: &DeviceClaim| {
            let claim = self.claims.get(&meta.namespace, self.pod.device_claim(wanted)??)?;
            let usable = wanted.resource_claim_name.is_some() || self.owned(claim);
            let status = &claim.status;
            let missing = status.allocation.is_some()
                && status.reserved_for.len() < MAX_CONSUMERS
                && !status.reserved_for.iter().any(|consumer| consumer.uid == meta.uid);
            (usable && missing).then(|| {
                let mut consumers = json!(status.reserved_for);
                if let Some(list) = consumers.as_array_mut() {
                    list.push(json!({"resource": "pods", "name": meta.name, "uid": meta.uid}));
                }
                let write = release::status(claim, json!({"reservedFor": consumers}));
                Step { write, on_success: None, on_failure: None }
            })
        };
        self.pod.spec.resource_claims.iter().filter_map(reserve).collect()
    }
}

/// `POD-CLAIM-`, each part cut in proportion.
fn prefix(pod: &str, claim: &str) -> String {
    let whole = format!("{pod}-{claim}-");
    if whole.len() <= MAX_PREFIX {
        return whole;
    }
    let cut = |text: &str| text.chars().take(text.len() * MAX_PREFIX / whole.len()).collect::<String>();
    format!("{}-{}", cut(pod), cut(claim))
}

fn creation(pod: &Pod, wanted: &DeviceClaim, template: &ResourceClaimTemplate) -> Write {
    let meta = &pod.metadata;
    let from = &template.spec.metadata;
    let mut annotations =
        from.get("annotations").cloned().filter(Value::is_object).unwrap_or_else(|| json!({}));
    annotations[POD_CLAIM] = (&*wanted.name).into();
    let mut metadata = json!({
        "generateName": prefix(&meta.name, &wanted.name),
        "annotations": annotations,
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid, "controller": true}],
    });
    if let Some(labels) = from.get("labels").filter(|labels| labels.is_object()) {
        metadata["labels"] = labels.clone();
    }
    Write::Create {
        target: Target::of::<ResourceClaim>(&meta.namespace, ""),
        body: json!({"apiVersion": ResourceClaim::api_version(), "kind": ResourceClaim::KIND,
            "metadata": metadata, "spec": template.spec.spec}),
    }
}

#[cfg(test)]
mod tests;
