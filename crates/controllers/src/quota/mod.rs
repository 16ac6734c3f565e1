//! Resource quotas: their usage, counted from what there is.
//!
//! Invariants:
//! - `status.hard` is `spec.hard`, and `status.used` has the same names as far as their usage is known.
//! - A change in a namespace without quotas costs one look at an empty range.

mod usage;

use crate::pods::status_patch;
use kaji_meta::quantity::{Format, Quantity};
use kaji_runtime::{
    Change, Controller, Cx, Informers, Key, Plan, Projection, Reconciler, View,
    objects::{
        ConfigMap, CronJob, DaemonSet, Deployment, Job, PersistentVolumeClaim, Pod, ReplicaSet,
        ReplicationController, ResourceQuota, Secret, Service, StatefulSet,
    },
};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, sync::Arc};
use usage::{Usage, add, in_scope, of_claim, of_pod, of_service, scoped};

/// The controller.
pub fn controller(informers: &Arc<Informers>) -> Controller {
    let controller = Controller::new(Quotas, informers)
        .reads::<ResourceQuota>(|change, _| vec![change.any().metadata.key()])
        // Quotas count quotas: the others of the namespace, which are to be seen only from the second reading on.
        .reads::<ResourceQuota>(|change, view| keys_of(change, view, |_| ()))
        .reads::<Pod>(|change, view| {
            keys_of(change, view, |p| (p.finished(), p.metadata.deleting(), p.spec.containers.clone()))
        })
        .reads::<Service>(|change, view| {
            keys_of(change, view, |s| (s.spec.kind.clone(), s.spec.ports.clone()))
        })
        .reads::<PersistentVolumeClaim>(|change, view| keys_of(change, view, |c| c.spec.clone()));
    let controller = counted::<Secret>(counted::<ConfigMap>(controller));
    let controller = counted::<Deployment>(counted::<ReplicationController>(controller));
    let controller = counted::<StatefulSet>(counted::<ReplicaSet>(controller));
    counted::<CronJob>(counted::<Job>(counted::<DaemonSet>(controller)))
}

/// Objects that only count.
fn counted<T: Projection>(controller: Controller) -> Controller {
    controller.reads::<T>(|change, view| keys_of(change, view, |_| ()))
}

/// The quotas of the namespace of an object that came, went, or changed in what counts.
fn keys_of<T: Projection, F: PartialEq>(
    change: &Change<T>,
    view: &View,
    facts: impl Fn(&T) -> F,
) -> Vec<Key> {
    let quotas = view.get::<ResourceQuota>();
    let mut here = quotas.in_namespace(&change.any().meta().namespace).map(|q| q.metadata.key()).peekable();
    if here.peek().is_none() {
        return vec![];
    }
    match (&change.old, &change.new) {
        (Some(old), Some(new)) if facts(old) == facts(new) => vec![],
        _ => here.collect(),
    }
}

struct Quotas;

impl Reconciler for Quotas {
    fn name(&self) -> &'static str {
        "resourcequota-controller"
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let quotas = view.get::<ResourceQuota>();
        let Some(quota) = quotas.by_key(key).filter(|q| !q.metadata.deleting()) else {
            return Plan::nothing();
        };
        let total = total(quota, view, cx.now);
        let zero = Quantity::new(0, Format::DecimalSi);
        let known = |name: &String| total.contains_key(name) || countable(name);
        let mut used: BTreeMap<String, Value> = BTreeMap::new();
        for name in quota.spec.hard.keys().filter(|n| known(n)) {
            let amount = total.get(name).unwrap_or(&zero);
            // The present spelling stays if it means the same.
            let present = quota.status.used.get(name);
            let same =
                present.and_then(|p| Quantity::from_value(p).ok()).is_some_and(|p| p.sub(amount).is_zero());
            let value = present.filter(|_| same).cloned().unwrap_or_else(|| amount.to_string().into());
            used.insert(name.clone(), value);
        }
        if used == quota.status.used && quota.spec.hard == quota.status.hard {
            return Plan::nothing();
        }
        let status = json!({
            "hard": replaced(&quota.status.hard, &quota.spec.hard),
            "used": replaced(&quota.status.used, &used),
        });
        Plan::nothing().then(status_patch::<ResourceQuota>(&quota.metadata, status))
    }
}

/// A merge patch from one map to another, whole.
fn replaced(old: &BTreeMap<String, Value>, new: &BTreeMap<String, Value>) -> Map<String, Value> {
    let gone = old.keys().filter(|k| !new.contains_key(*k)).map(|k| (k.clone(), Value::Null));
    gone.chain(new.iter().map(|(k, v)| (k.clone(), v.clone()))).collect()
}

/// Names whose usage is counted here, so that none means zero.
fn countable(name: &str) -> bool {
    const PLAIN: [&str; 14] = [
        "pods",
        "services",
        "services.nodeports",
        "services.loadbalancers",
        "configmaps",
        "secrets",
        "replicationcontrollers",
        "resourcequotas",
        "persistentvolumeclaims",
        "cpu",
        "memory",
        "ephemeral-storage",
        "requests.storage",
        "storage",
    ];
    const COUNTED: [&str; 13] = [
        "pods",
        "services",
        "configmaps",
        "secrets",
        "replicationcontrollers",
        "resourcequotas",
        "persistentvolumeclaims",
        "deployments.apps",
        "replicasets.apps",
        "statefulsets.apps",
        "daemonsets.apps",
        "jobs.batch",
        "cronjobs.batch",
    ];
    PLAIN.contains(&name)
        || name.strip_prefix("count/").is_some_and(|rest| COUNTED.contains(&rest))
        || name.starts_with("requests.")
        || name.starts_with("limits.")
        || name.starts_with("hugepages-")
        || name.contains(".storageclass.storage.k8s.io/")
}

/// What all objects of a namespace use.
fn total(quota: &ResourceQuota, view: &View, now: jiff::Timestamp) -> Usage {
    let namespace = quota.metadata.namespace.as_str();
    let mut sum = Usage::new();
    let pods = view.get::<Pod>();
    pods.in_namespace(namespace).filter(|p| in_scope(quota, p)).for_each(|p| add(&mut sum, of_pod(p, now)));
    if scoped(quota) {
        return sum;
    }
    view.get::<Service>().in_namespace(namespace).for_each(|s| add(&mut sum, of_service(s)));
    view.get::<PersistentVolumeClaim>().in_namespace(namespace).for_each(|c| add(&mut sum, of_claim(c)));
    let hard = &quota.spec.hard;
    count::<ConfigMap>(&mut sum, hard, view, namespace);
    count::<Secret>(&mut sum, hard, view, namespace);
    count::<ReplicationController>(&mut sum, hard, view, namespace);
    count::<ResourceQuota>(&mut sum, hard, view, namespace);
    count::<Deployment>(&mut sum, hard, view, namespace);
    count::<ReplicaSet>(&mut sum, hard, view, namespace);
    count::<StatefulSet>(&mut sum, hard, view, namespace);
    count::<DaemonSet>(&mut sum, hard, view, namespace);
    count::<Job>(&mut sum, hard, view, namespace);
    count::<CronJob>(&mut sum, hard, view, namespace);
    sum
}

/// Counts the objects of a resource, if the quota asks for it.
fn count<T: Projection>(sum: &mut Usage, hard: &BTreeMap<String, Value>, view: &View, namespace: &str) {
    let dot = if T::GROUP.is_empty() { "" } else { "." };
    let counted = format!("count/{}{dot}{}", T::RESOURCE, T::GROUP);
    let plain = T::GROUP.is_empty().then(|| T::RESOURCE.to_owned());
    let names: Vec<String> =
        [Some(counted), plain].into_iter().flatten().filter(|n| hard.contains_key(n)).collect();
    if names.is_empty() {
        return;
    }
    let number = view.get::<T>().in_namespace(namespace).count();
    let amount = Quantity::new(i64::try_from(number).unwrap_or(i64::MAX), Format::DecimalSi);
    sum.extend(names.into_iter().map(|name| (name, amount.clone())));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{reconcile, snapshot, text};
    use expect_test::expect;

    fn pod(name: &str, spec: Value, phase: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec, "status": {"phase": phase}})
    }

    fn plan(spec: Value, status: Value, pods: Vec<Value>) -> String {
        let quota = json!({"metadata": {"name": "q", "namespace": "ns", "uid": "q1", "resourceVersion": "7"},
            "spec": spec, "status": status});
        let object = |name: &str| json!({"metadata": {"name": name, "namespace": "ns"}});
        let service = json!({"metadata": {"name": "s", "namespace": "ns"},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 1, "nodePort": 30000}, {"port": 2}]}});
        let claim = json!({"metadata": {"name": "c", "namespace": "ns"},
            "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "5Gi"}}}});
        let view = View::default()
            .with(snapshot::<ResourceQuota>([quota]))
            .with(snapshot::<Pod>(pods))
            .with(snapshot::<Service>([service]))
            .with(snapshot::<PersistentVolumeClaim>([claim]))
            .with(snapshot::<ConfigMap>([object("a"), object("b")]))
            .with(snapshot::<Secret>([]))
            .with(snapshot::<ReplicationController>([]))
            .with(snapshot::<Deployment>([object("d")]))
            .with(snapshot::<ReplicaSet>([]))
            .with(snapshot::<StatefulSet>([]))
            .with(snapshot::<DaemonSet>([]))
            .with(snapshot::<Job>([]))
            .with(snapshot::<CronJob>([]));
        text(&reconcile(&Quotas, &view, "ns", "q", &[]))
    }

    fn pods() -> Vec<Value> {
        let ask = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": {"cpu": "2"}}});
        vec![
            pod(
                "a",
                json!({"containers": [ask("500m"), ask("250m")], "initContainers": [ask("1")], "overhead": {"cpu": "10m"}}),
                "Running",
            ),
            pod("over", json!({"containers": [ask("9")]}), "Succeeded"),
            pod("best-effort", json!({"containers": [{}], "activeDeadlineSeconds": 5}), "Pending"),
        ]
    }

    #[test]
    fn everything_counts() {
        let names = [
            "pods",
            "count/pods",
            "requests.cpu",
            "cpu",
            "memory",
            "limits.cpu",
            "services",
            "services.nodeports",
            "services.loadbalancers",
            "configmaps",
            "secrets",
            "resourcequotas",
            "count/deployments.apps",
            "requests.storage",
            "fast.storageclass.storage.k8s.io/requests.storage",
            "requests.example.com/gpu",
            "count/widgets.example.com",
        ];
        let hard: Map<String, Value> = names.iter().map(|n| ((*n).to_owned(), json!("10"))).collect();
        let text = plan(json!({"hard": hard}), json!({"used": {"cpu": "1010m", "old": "1"}}), pods());
        let body: Value = serde_json::from_str(text.split_once("status ").unwrap().1).unwrap();
        expect![[r#"{"configmaps":"2","count/deployments.apps":"1","count/pods":"3","cpu":"1010m","fast.storageclass.storage.k8s.io/requests.storage":"5Gi","limits.cpu":"4010m","memory":"2Gi","old":null,"pods":"2","requests.cpu":"1010m","requests.example.com/gpu":"0","requests.storage":"5Gi","resourcequotas":"1","secrets":"0","services":"1","services.loadbalancers":"1","services.nodeports":"1"}"#]].assert_eq(&body["status"]["used"].to_string());
    }

    #[test]
    fn scopes() {
        let used = |scope: &str| {
            let text = plan(json!({"hard": {"pods": "5"}, "scopes": [scope]}), json!({}), pods());
            let body: Value = serde_json::from_str(text.split_once("status ").unwrap().1).unwrap();
            body["status"]["used"]["pods"].as_str().unwrap().to_owned()
        };
        assert_eq!(used("BestEffort"), "1");
        assert_eq!(used("NotBestEffort"), "1");
        assert_eq!(used("Terminating"), "1");
        assert_eq!(used("PriorityClass"), "0");
    }

    #[test]
    fn nothing_new() {
        let status = json!({"hard": {"cpu": "2", "pods": "3"}, "used": {"cpu": "1.01", "pods": "2"}});
        expect![[r#""#]].assert_eq(&plan(json!({"hard": {"cpu": "2", "pods": "3"}}), status, pods()));
    }
}
