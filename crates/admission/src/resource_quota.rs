//! `ResourceQuota`: charges an object to its namespace's quotas before it is written, and refuses what exceeds them.
//!
//! Invariants:
//! - A charge and the object it is for are one transaction: no failure in between leaves one without the other, and
//!   two writers never spend the same amount.
//! - Charges of one namespace wait for each other in memory, so that they need not try again; while one waits for its
//!   turn it holds nothing. The holder of the turn creates nothing else in a namespace with quotas.
//! - Only the quota controller gives back, from what it counts.

use kaji_engine::{Admission, Attributes, ExtraUpdate, Operation, Phases};
use kaji_meta::{GroupResource, Status, object};
use kaji_quota::{Change, Context, Evaluator, Usage, charged_to_pod, check, pod_of};
use kaji_resource::BoxFuture;
use serde_json::Value;
use std::{
    collections::{BTreeMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::Arc,
};
use tokio::sync::Mutex;

/// Namespaces share this many turns.
const TURNS: usize = 256;

/// The plugin.
pub(super) struct ResourceQuota {
    turns: Vec<Arc<Mutex<()>>>,
}

impl ResourceQuota {
    pub(super) fn new() -> Self {
        ResourceQuota { turns: (0..TURNS).map(|_| Arc::default()).collect() }
    }

    fn turn(&self, namespace: &str) -> Arc<Mutex<()>> {
        let mut hasher = DefaultHasher::new();
        namespace.hash(&mut hasher);
        self.turns[(hasher.finish() % TURNS as u64) as usize].clone()
    }

    async fn charge(&self, a: &Attributes<'_>, evaluator: &Evaluator) -> Result<(), Status> {
        let Some(new) = a.new_object() else { return Ok(()) };
        let quotas = GroupResource::new("", "resourcequotas");
        // Over a store that cannot tell, the first quota of another server counts a moment later, rather than that each object asks
        // the store.
        if a.api.lags() {
            a.api.sync().await?;
        }
        if !a.api.any(&quotas, Some(a.namespace), &|_| true) {
            return Ok(());
        }
        let turn = self.turn(a.namespace).lock_owned().await;
        // As those before us have left them.
        a.api.sync().await?;
        let quotas_here = a.api.list(&quotas, Some(a.namespace));
        let extended = extended_resources(a, evaluator);
        let charged_to_pods = charged_to_pods(a, evaluator, new);
        let cx = Context { now: a.now, extended_resources: &extended, charged_to_pods: &charged_to_pods };
        let change = Change { subresource: a.subresource, old: a.old, new };
        let charged = check(&quotas_here, evaluator, change, &cx).map_err(|text| a.forbidden(text))?;
        if a.dry_run || charged.is_empty() {
            return Ok(());
        }
        for (index, used) in charged {
            let mut quota = (*quotas_here[index]).clone();
            object::set_at(&mut quota, &["status", "used"], used);
            a.extras.update(ExtraUpdate { resource: quotas.clone(), object: quota });
        }
        a.extras.hold(turn);
        Ok(())
    }
}

/// The extended resources that device classes stand for; for resource claims alone.
fn extended_resources(a: &Attributes<'_>, evaluator: &Evaluator) -> BTreeMap<String, String> {
    if *evaluator != Evaluator::ResourceClaims {
        return BTreeMap::new();
    }
    let classes = a.api.list(&GroupResource::new("resource.k8s.io", "deviceclasses"), None);
    let named = |class: &Arc<Value>| {
        let resource = object::str_at(class, &["spec", "extendedResourceName"]);
        (!resource.is_empty()).then(|| (object::name(class).to_owned(), resource.to_owned()))
    };
    classes.iter().filter_map(named).collect()
}

/// What the pod is charged that a claim was made for, by the claim's name.
fn charged_to_pods(a: &Attributes<'_>, evaluator: &Evaluator, claim: &Value) -> BTreeMap<String, Usage> {
    let pod = (*evaluator == Evaluator::ResourceClaims).then(|| pod_of(claim)).flatten();
    let pod = pod.and_then(|(name, _)| a.api.get(&GroupResource::new("", "pods"), a.namespace, name));
    let Some(pod) = pod else { return BTreeMap::new() };
    let claims = a.api.list(&GroupResource::new("resource.k8s.io", "resourceclaims"), Some(a.namespace));
    let usage = charged_to_pod(claim, &pod, claims.iter().map(|claim| &**claim), a.now);
    usage.map(|usage| (object::name(claim).to_owned(), usage)).into_iter().collect()
}

impl Admission for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        let _ = (group, resource);
        Phases::VALIDATING.when(matches!(operation, Operation::Create | Operation::Update))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        // A namespace is admitted as if it were in itself, but no quota can be there before it.
        a.def.namespaced()
            && !a.namespace.is_empty()
            && a.def.stored
            && matches!(a.subresource, "" | "status" | "resize")
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let Some(evaluator) = Evaluator::of(&a.group_resource()) else { return Ok(()) };
            let Some(new) = a.new_object() else { return Ok(()) };
            if !evaluator.handles(a.subresource, a.old, new) {
                return Ok(());
            }
            self.charge(a, &evaluator).await
        })
    }
}
