//! A deletion that does not end: finalizers and what removes them, dependents, what is left in a namespace, grace periods.

use crate::{
    case::{Case, condition_is, is_finished, tell, title, uses_claim},
    report::{Cause, Sort, some},
};
use kaji_meta::object::{self, arr_at, bool_at, str_at};
use serde_json::Value;

/// Names of objects in one statement.
const NAMED: usize = 8;

/// Finalizers of Kubernetes itself: what removes them, and when.
const FINALIZERS: &[(&str, &str)] = &[
    ("foregroundDeletion", "the garbage collector, when no dependent that blocks the deletion is left"),
    ("orphan", "the garbage collector, when the dependents have lost their owner references"),
    ("kubernetes.io/pvc-protection", "the PVC protection controller, when no pod uses the claim"),
    ("kubernetes.io/pv-protection", "the PV protection controller, when the volume is bound to no claim"),
    ("service.kubernetes.io/load-balancer-cleanup", "the service controller, when the load balancer is gone"),
    ("batch.kubernetes.io/job-tracking", "the job controller, when the pod is counted in the Job's status"),
    ("customresourcecleanup.apiextensions.k8s.io", "the API server, when no object of the resource is left"),
    ("resource.kubernetes.io/delete-protection", "the resource claim controller, when no pod uses the claim"),
    (
        "networking.k8s.io/service-cidr-finalizer",
        "the service CIDR controller, when no IPAddress needs the range",
    ),
    ("kubernetes", "the namespace controller, when nothing is left in the namespace"),
];

/// Why a deletion does not end.
pub async fn causes(case: &Case<'_>) -> Vec<Cause> {
    let Some(since) = object::deletion_timestamp(case.object) else { return vec![] };
    let in_spec = arr_at(case.object, &["spec", "finalizers"]).iter().filter_map(Value::as_str);
    let is_namespace = object::kind(case.object) == "Namespace";
    let finalizers: Vec<&str> =
        object::finalizers(case.object).chain(in_spec.filter(|_| is_namespace)).collect();
    let mut cause =
        Cause::new(Sort::Deletion, "it is being deleted").known(format!("deletionTimestamp is {since}"));
    if finalizers.is_empty() {
        return vec![grace(case, cause)];
    }
    cause.summary = format!("its deletion waits for finalizers: {}", some(&finalizers, NAMED));
    for finalizer in &finalizers {
        cause = of_finalizer(case, cause, finalizer).await;
    }
    if is_namespace {
        cause = remaining(case, cause).await;
    }
    vec![cause]
}

/// Without finalizers an object goes when its grace period ends: a pod when its kubelet says that it has.
fn grace(case: &Case<'_>, cause: Cause) -> Cause {
    let seconds = object::deletion_grace_period_seconds(case.object).unwrap_or_default();
    let cause = cause.known(format!("it has no finalizers, and a grace period of {seconds} s"));
    match str_at(case.object, &["spec", "nodeName"]) {
        "" => cause,
        node => cause
            .inferred(format!("the kubelet of node {node} deletes it when its containers have ended"))
            .fix(format!(
                "kaji why node/{node}; if the machine is gone for good: kubectl delete node {node}"
            )),
    }
}

async fn of_finalizer(case: &Case<'_>, cause: Cause, finalizer: &str) -> Cause {
    let known = FINALIZERS.iter().find(|(name, _)| *name == finalizer);
    let mut cause = match known {
        Some((name, remover)) => cause.known(format!("{name} is removed by {remover}")),
        None => foreign(case, cause, finalizer).await,
    };
    match finalizer {
        "kubernetes.io/pvc-protection" => {
            let users = users_of_claim(case).await;
            if !users.is_empty() {
                cause = cause.known(format!("pods that use the claim: {}", some(&users, NAMED)));
                cause = cause.fix("delete these pods, or the workloads that own them");
            }
        }
        "kubernetes.io/pv-protection" => {
            let claim = object::at(case.object, &["spec", "claimRef"]);
            if let Some(claim) = claim {
                let text = format!(
                    "it is bound to claim {}/{}",
                    str_at(claim, &["namespace"]),
                    str_at(claim, &["name"])
                );
                cause = cause.known(text).fix("delete the claim");
            }
        }
        "customresourcecleanup.apiextensions.k8s.io" => cause = instances(case, cause).await,
        "foregroundDeletion" => {
            let dependents = dependents(case).await;
            cause = match dependents.is_empty() {
                true => cause.inferred("no dependent that blocks it was found: the garbage collector has not seen it yet, or does not run"),
                false => {
                    let names: Vec<String> = dependents.iter().map(title).collect();
                    let arguments: Vec<String> = dependents.iter().filter(|d| object::deletion_timestamp(d).is_some())
                        .map(|d| format!("kaji why {}/{} -n {}", object::kind(d).to_lowercase(), object::name(d), object::namespace(d)))
                        .take(2)
                        .collect();
                    let cause = cause.known(format!("dependents that block it: {}", some(&names, NAMED)));
                    arguments.into_iter().fold(cause, Cause::fix)
                }
            };
        }
        _ => {}
    }
    cause
}

/// A finalizer of a controller that is not part of Kubernetes: which manager set it, and what may run that controller.
async fn foreign(case: &Case<'_>, cause: Cause, finalizer: &str) -> Cause {
    let manager = arr_at(case.object, &["metadata", "managedFields"]).iter().find(|entry| {
        let key = format!("v:\"{finalizer}\"");
        object::at(entry, &["fieldsV1", "f:metadata", "f:finalizers", &key]).is_some()
    });
    let mut cause = cause;
    if let Some(manager) = manager {
        let text = format!(
            "field manager {} set {finalizer} at {}",
            str_at(manager, &["manager"]),
            str_at(manager, &["time"])
        );
        cause = cause.known(text);
    }
    let domain = finalizer.split('/').next().unwrap_or_default();
    let words: Vec<&str> =
        domain.split(['.', '-']).filter(|word| word.len() > 3 && *word != "finalizer").collect();
    let deployments = case.reader.list("/apis/apps/v1/deployments").await.unwrap_or_default();
    let likely: Vec<&Value> = deployments
        .iter()
        .filter(|deployment| words.first().is_some_and(|word| object::name(deployment).contains(word)))
        .collect();
    let running = |d: &&&Value| object::i64_at(d, &["status", "readyReplicas"]).unwrap_or_default() > 0;
    match (likely.first(), likely.iter().find(running)) {
        (None, _) => cause
            .inferred(format!("the controller of {domain} removes it; no Deployment of a like name was found: it may have been uninstalled"))
            .fix(format!(
                "install the controller of {domain} again and let it clean up; only if what it guards is gone: kubectl edit {}/{} and remove {finalizer}",
                case.resource.argument(),
                case.name()
            )),
        (Some(one), None) => cause
            .inferred(format!("its controller may be {}, which has no ready replica", title(one)))
            .fix(format!("kaji why deployment/{} -n {}", object::name(one), object::namespace(one))),
        (_, Some(one)) => cause
            .inferred(format!("its controller may be {}, which is running: it refuses, fails or is slow", title(one)))
            .fix(format!("kubectl logs -n {} deployment/{}", object::namespace(one), object::name(one))),
    }
}

/// The objects of a CustomResourceDefinition that are left.
async fn instances(case: &Case<'_>, cause: Cause) -> Cause {
    let spec = |path: &[&str]| str_at(case.object, &[&["spec"][..], path].concat());
    let (group, plural) = (spec(&["group"]), spec(&["names", "plural"]));
    let Some(resource) = case.discovery.of_kind(&format!("{group}/"), spec(&["names", "kind"])) else {
        return cause.known(format!("{plural}.{group} is not served any more"));
    };
    let left = case.reader.list(&resource.path("", "")).await.unwrap_or_default();
    let Some(first) = left.iter().find(|object| object::finalizers(object).next().is_some()) else {
        return cause.known(format!("objects of it that are left: {}", left.len()));
    };
    let place = match object::namespace(first) {
        "" => String::new(),
        namespace => format!(" -n {namespace}"),
    };
    cause
        .known(format!(
            "objects of it that are left: {}; {} has the finalizers {}",
            left.len(),
            title(first),
            object::finalizers(first).collect::<Vec<_>>().join(", ")
        ))
        .fix(format!("kaji why {}/{}{place}", resource.argument(), object::name(first)))
}

async fn users_of_claim(case: &Case<'_>) -> Vec<String> {
    let pods = case.all_beside("v1", "pods").await.unwrap_or_default();
    let users = pods.iter().filter(|pod| !is_finished(pod) && uses_claim(pod, case.name()));
    users.map(|pod| object::name(pod).to_owned()).collect()
}

/// Dependents of the object in its namespace with an owner reference that blocks the deletion.
async fn dependents(case: &Case<'_>) -> Vec<Value> {
    let uid = object::uid(case.object);
    let blocks = |dependent: &&Value| {
        object::owner_references(dependent).iter().any(|owner| {
            str_at(owner, &["uid"]) == uid && bool_at(owner, &["blockOwnerDeletion"]) == Some(true)
        })
    };
    let mut found = contents(case, case.namespace()).await;
    found.retain(|object| blocks(&object));
    found
}

/// All objects of a namespace, but events.
async fn contents(case: &Case<'_>, namespace: &str) -> Vec<Value> {
    let resources = case.discovery.namespaced().filter(|resource| resource.plural != "events");
    let paths: Vec<String> = resources.map(|resource| resource.path(namespace, "")).collect();
    let lists = case.reader.lists(&paths).await;
    lists.into_iter().flatten().flat_map(|list| list.to_vec()).collect()
}

/// What the namespace controller reports, and extension servers without which nothing can be deleted.
async fn remaining(case: &Case<'_>, mut cause: Cause) -> Cause {
    let conditions = [
        "NamespaceDeletionDiscoveryFailure",
        "NamespaceDeletionGroupVersionParsingFailure",
        "NamespaceDeletionContentFailure",
        "NamespaceContentRemaining",
        "NamespaceFinalizersRemaining",
    ];
    for condition in conditions.into_iter().filter_map(|sort| condition_is(case.object, sort, "True")) {
        cause = cause.known(tell(condition));
    }
    let services = case.reader.list("/apis/apiregistration.k8s.io/v1/apiservices").await.unwrap_or_default();
    for service in services.iter().filter(|service| condition_is(service, "Available", "False").is_some()) {
        cause = cause
            .known(format!(
                "APIService {} is not available: its objects cannot be deleted",
                object::name(service)
            ))
            .fix(format!(
                "kaji why apiservice/{0}; if its server is gone for good: kubectl delete apiservice {0}",
                object::name(service)
            ));
    }
    for stale in &case.discovery.stale {
        let (group, version) = stale.split_once('/').unwrap_or((stale, ""));
        let is_named = |service: &Value| object::name(service) == format!("{version}.{group}");
        if !services
            .iter()
            .any(|service| is_named(service) && condition_is(service, "Available", "False").is_some())
        {
            cause = cause
                .known(format!(
                    "the extension server of {stale} does not answer: its objects cannot be deleted"
                ))
                .fix(format!("kaji why apiservice/{version}.{group}"));
        }
    }
    let mut left = contents(case, case.name()).await;
    left.retain(|object| object::finalizers(object).next().is_some());
    if !left.is_empty() {
        let names: Vec<String> = left
            .iter()
            .map(|o| format!("{} ({})", title(o), object::finalizers(o).collect::<Vec<_>>().join(", ")))
            .collect();
        cause = cause.known(format!("objects in it with finalizers: {}", some(&names, NAMED)));
        for object in left.iter().take(2) {
            let (kind, name) = (object::kind(object).to_lowercase(), object::name(object));
            cause = cause.fix(format!("kaji why {kind}/{name} -n {}", case.name()));
        }
    }
    cause
}
