//! Explanations of broken objects, in full.

mod conflicts;
mod decisions;
mod near_misses;

use crate::testing::fixture;
use expect_test::expect;
use serde_json::{Value, json};

fn node(name: &str, cpu: &str, taints: Value) -> Value {
    json!({
        "kind": "Node", "name": name, "spec": {"taints": taints},
        "status": {
            "allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

fn pending(cpu: &str) -> Value {
    json!({
        "kind": "Pod", "name": "web",
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"phase": "Pending"},
    })
}

#[tokio::test]
async fn tells_what_each_node_says_to_a_pending_pod() {
    let taint = json!([{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]);
    let server = fixture(&[
        pending("6"),
        node("a", "4", taint.clone()),
        node("b", "4", json!([])),
        node("c", "8", taint),
    ]);
    expect![[r#"
        Pod d/web: no node takes it (0 of 3)
          inferred NodeResourcesFit: Insufficient cpu, on a, b (requests cpu 6; a can allocate cpu 4, memory 8Gi, pods 110 to all its pods)
          inferred TaintToleration: node(s) had untolerated taint(s), on a, c (a has gpu=yes:NoSchedule)
          nearest  node b: NodeResourcesFit alone rejects it
          fix      lower the requests in the pod's template, free room, or add a node
    "#]].assert_eq(&server.why("pod/web").await);
}

#[tokio::test]
async fn tells_what_the_caller_may_not_read() {
    let server = fixture(&[pending("6"), node("a", "4", json!([]))]).forbidding("/nodes");
    expect![[r#"
        Pod d/web: it has no node
          unknown  /api/v1/nodes is forbidden
    "#]]
    .assert_eq(&server.why("pod/web").await);
}

#[tokio::test]
async fn tells_gates_and_foreign_schedulers() {
    let gated =
        json!({"kind": "Pod", "name": "g", "spec": {"schedulingGates": [{"name": "example.com/wait"}]}});
    let foreign = json!({"kind": "Pod", "name": "f", "spec": {"schedulerName": "volcano"}, "status": {"phase": "Pending"}});
    let server = fixture(&[gated, foreign]);
    expect![[r#"
        Pod d/g: scheduling gates hold it back: example.com/wait
          known    the scheduler does not look at a pod that has gates
          fix      the controller that set the gates removes them; look at its logs (example.com/wait)
        Pod d/f: it has no node
          known    spec.schedulerName is volcano
          inferred no scheduler of the name volcano has bound it
          fix      start the scheduler volcano, or let the template say schedulerName: default-scheduler
    "#]]
    .assert_eq(&(server.why("pod/g").await + &server.why("pod/f").await));
}

#[tokio::test]
async fn tells_why_containers_do_not_start() {
    let waiting = |reason: &str, message: &str| json!({"waiting": {"reason": reason, "message": message}});
    let pod = json!({
        "kind": "Pod", "name": "web",
        "spec": {"nodeName": "a", "containers": [
            {"name": "pull", "image": "registry.example/app:1"},
            {"name": "conf", "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "confg", "key": "a"}}},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "passwrd"}}}]},
            {"name": "crash"},
        ]},
        "status": {"phase": "Pending", "containerStatuses": [
            {"name": "pull", "image": "registry.example/app:1", "state": waiting("ImagePullBackOff", "unauthorized")},
            {"name": "conf", "state": waiting("CreateContainerConfigError", "configmap \"confg\" not found")},
            {"name": "crash", "restartCount": 3, "state": waiting("CrashLoopBackOff", "back-off 40s"),
                "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}},
        ]},
    });
    let others = [
        node("a", "4", json!([])),
        json!({"kind": "ConfigMap", "name": "config", "data": {"a": "1"}}),
        json!({"kind": "Secret", "name": "s", "data": {"password": ""}}),
    ];
    let server = fixture(&[&[pod], &others[..]].concat());
    expect![[r#"
        Pod d/web: the image registry.example/app:1 cannot be pulled
          known    container pull waits: ImagePullBackOff: unauthorized
          inferred the registry asks for credentials, and the pod names no pull secret
          fix      create a docker-registry secret and name it in imagePullSecrets; or correct the image's name (registries answer so for names they do not have)
        Pod d/web: ConfigMap d/confg does not exist
          known    container conf waits: CreateContainerConfigError: configmap "confg" not found
          known    container conf names it, and it is not optional
          known    Secret s has no key passwrd
          nearest  it has the key password
          fix      create ConfigMap confg in the namespace d, or correct the name
          fix      add the key passwrd to Secret s, or correct the reference
        Pod d/web: container crash ends with code 137, restarted 3 times
          known    container crash waits: CrashLoopBackOff: back-off 40s
          known    its last end: OOMKilled, exit code 137
          inferred it used more memory than its limit
          known    its last lines:
                   starting
                   fatal: no configuration
          fix      raise resources.limits.memory, or let it use less
          fix      kubectl logs -n d web -c crash --previous
    "#]].assert_eq(&server.why("pod/web").await);
}

#[tokio::test]
async fn tells_finalizers_and_their_controllers() {
    let deleted = |finalizer: &str| {
        json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [finalizer],
        "managedFields": [{"manager": "acme-operator", "time": "2026-01-01T00:00:00Z",
            "fieldsV1": {"f:metadata": {"f:finalizers": {"v:\"acme.example.com/guard\"": {}}}}}]})
    };
    let server = fixture(&[
        json!({"kind": "ConfigMap", "name": "guarded", "metadata": deleted("acme.example.com/guard")}),
        json!({"kind": "PersistentVolumeClaim", "name": "data", "metadata": deleted("kubernetes.io/pvc-protection"),
            "status": {"phase": "Bound"}}),
        json!({"kind": "Pod", "name": "user", "spec": {"nodeName": "a",
            "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}}),
        json!({"kind": "Deployment", "name": "owner", "metadata": deleted("foregroundDeletion"),
            "spec": {"replicas": 1, "template": {"spec": {}}}}),
        json!({"kind": "ReplicaSet", "name": "owner-1", "metadata": {"finalizers": ["acme.example.com/guard"],
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{"uid": "Deployment-owner", "blockOwnerDeletion": true}]}}),
    ]);
    let mut text = String::new();
    for subject in
        ["cm/guarded", "configmap/guarded", "pvc/data", "persistentvolumeclaim/data", "deployment/owner"]
    {
        text += &server.why(subject).await;
    }
    expect![[r#"
        error: the server doesn't have a resource type "cm"
        ConfigMap d/guarded: its deletion waits for finalizers: acme.example.com/guard
          known    deletionTimestamp is 2026-01-01T00:00:00Z
          known    field manager acme-operator set acme.example.com/guard at 2026-01-01T00:00:00Z
          inferred the controller of acme.example.com removes it; no Deployment of a like name was found: it may have been uninstalled
          fix      install the controller of acme.example.com again and let it clean up; only if what it guards is gone: kubectl edit configmaps/guarded and remove acme.example.com/guard
        error: the server doesn't have a resource type "pvc"
        PersistentVolumeClaim d/data: its deletion waits for finalizers: kubernetes.io/pvc-protection
          known    deletionTimestamp is 2026-01-01T00:00:00Z
          known    kubernetes.io/pvc-protection is removed by the PVC protection controller, when no pod uses the claim
          known    pods that use the claim: user
          fix      delete these pods, or the workloads that own them
        Deployment d/owner: its deletion waits for finalizers: foregroundDeletion
          known    deletionTimestamp is 2026-01-01T00:00:00Z
          known    foregroundDeletion is removed by the garbage collector, when no dependent that blocks the deletion is left
          known    dependents that block it: ReplicaSet d/owner-1
          fix      kaji why replicaset/owner-1 -n d
    "#]].assert_eq(&text);
}

#[tokio::test]
async fn tells_what_is_left_in_a_namespace() {
    let server = fixture(&[
        json!({"kind": "Namespace", "name": "d", "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"conditions": [{"type": "NamespaceFinalizersRemaining", "status": "True",
                "reason": "SomeFinalizersRemain", "message": "Some content in the namespace has finalizers remaining: acme.example.com/guard in 1 resource instances"}]}}),
        json!({"kind": "ConfigMap", "name": "guarded", "metadata": {"finalizers": ["acme.example.com/guard"]}}),
        json!({"kind": "APIService", "name": "v1.acme.example.com", "status": {"conditions":
            [{"type": "Available", "status": "False", "reason": "ServiceNotFound"}]}}),
    ]);
    expect![[r#"
        Namespace d: its deletion waits for finalizers: kubernetes
          known    deletionTimestamp is 2026-01-01T00:00:00Z
          known    kubernetes is removed by the namespace controller, when nothing is left in the namespace
          known    condition NamespaceFinalizersRemaining is True (SomeFinalizersRemain): Some content in the namespace has finalizers remaining: acme.example.com/guard in 1 resource instances
          known    APIService v1.acme.example.com is not available: its objects cannot be deleted
          known    objects in it with finalizers: ConfigMap d/guarded (acme.example.com/guard)
          fix      kaji why apiservice/v1.acme.example.com; if its server is gone for good: kubectl delete apiservice v1.acme.example.com
          fix      kaji why configmap/guarded -n d
    "#]].assert_eq(&server.why("namespace/d").await);
}

#[tokio::test]
async fn tells_why_a_service_has_no_endpoints() {
    let service = |name: &str, selector: Value, target: Value| {
        json!({"kind": "Service", "name": name,
            "spec": {"selector": selector, "ports": [{"port": 80, "targetPort": target}]}})
    };
    let pod = |name: &str, labels: Value, ready: &str| {
        json!({"kind": "Pod", "name": name, "metadata": {"labels": labels}, "spec": {"nodeName": "a", "containers":
            [{"name": "c", "ports": [{"name": "http", "containerPort": 80}]}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}})
    };
    let server = fixture(&[
        service("typo", json!({"app": "web", "tier": "fornt"}), json!(80)),
        service("port", json!({"app": "web"}), json!("htpp")),
        service("unready", json!({"app": "db"}), json!("http")),
        service("none", json!({"app": "zzz"}), json!("http")),
        pod("web-1", json!({"app": "web", "tier": "front"}), "True"),
        pod("db-1", json!({"app": "db"}), "False"),
    ]);
    let mut text = String::new();
    for name in ["typo", "port", "unready", "none"] {
        text += &server.why(&format!("service/{name}")).await;
    }
    expect![[r#"
        Service d/typo: it has no ready endpoints
          known    its selector is app=web,tier=fornt
          known    no pod of the namespace d matches it
          nearest  pod web-1: tier is front, not fornt
          fix      let the selector say what the pods' template has, or the other way round
        Service d/port: it has no ready endpoints
          known    its selector is app=web
          known    it selects web-1
          known    targetPort htpp is no port of these pods; they have http
          fix      correct targetPort, or name the container's port so
        Service d/unready: it has no ready endpoints
          known    its selector is app=db
          known    it selects db-1
          known    of these are not ready: db-1
          fix      kaji why pod/db-1 -n d
        Service d/none: it has no ready endpoints
          known    its selector is app=zzz
          known    no pod of the namespace d matches it
          nearest  db-1 has app=db
    "#]]
    .assert_eq(&text);
}

#[tokio::test]
async fn tells_why_a_claim_is_not_bound() {
    let claim = |name: &str, class: Value| {
        json!({"kind": "PersistentVolumeClaim", "name": name, "spec": {"storageClassName": class,
            "accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "10Gi"}}},
            "status": {"phase": "Pending"}})
    };
    let class = |name: &str, provisioner: &str, mode: &str| json!({"kind": "StorageClass", "name": name, "provisioner": provisioner, "volumeBindingMode": mode});
    let server = fixture(&[
        claim("none", Value::Null),
        claim("typo", json!("fst")),
        claim("waits", json!("slow")),
        claim("driver", json!("fast")),
        claim("manual", json!("manual")),
        class("fast", "csi.acme.example.com", "Immediate"),
        class("slow", "csi.acme.example.com", "WaitForFirstConsumer"),
        class("manual", "kubernetes.io/no-provisioner", "Immediate"),
        json!({"kind": "PersistentVolume", "name": "v1", "spec": {"storageClassName": "manual",
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "20Gi"}}, "status": {"phase": "Available"}}),
        json!({"kind": "PersistentVolume", "name": "v2", "spec": {"storageClassName": "manual",
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "5Gi"}}, "status": {"phase": "Available"}}),
    ]);
    let mut text = String::new();
    for name in ["none", "typo", "waits", "driver", "manual"] {
        text += &server.why(&format!("persistentvolumeclaim/{name}")).await;
    }
    expect![[r#"
        PersistentVolumeClaim d/none: it is not bound
          known    it names no storage class
          known    no storage class is the default one
          nearest  volume v1: its class is "manual", not ""; its access modes are ReadWriteOnce, without ReadWriteMany
          fix      name a storageClassName, or make a class the default one
        PersistentVolumeClaim d/typo: it is not bound
          known    storage class fst does not exist
          nearest  volume v1: its class is "manual", not "fst"; its access modes are ReadWriteOnce, without ReadWriteMany
          fix      correct storageClassName (a claim's class is immutable: make a new claim), or create the class
        PersistentVolumeClaim d/waits: it is not bound
          known    class slow binds when the first pod that uses the claim is scheduled
          known    no pod uses it
          fix      nothing is wrong: create a pod that uses it
        PersistentVolumeClaim d/driver: it is not bound
          known    class fast leaves it to the provisioner csi.acme.example.com
          known    there is no CSIDriver csi.acme.example.com
          inferred the provisioner is not installed
          fix      install the driver csi.acme.example.com, or use another class
        PersistentVolumeClaim d/manual: it is not bound
          known    class manual has no provisioner
          nearest  volume v1: its access modes are ReadWriteOnce, without ReadWriteMany
          fix      create a PersistentVolume of this class
    "#]].assert_eq(&text);
}

#[tokio::test]
async fn follows_a_rollout_to_what_refuses_its_pods() {
    let message =
        "pods \"web-1-\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2";
    let owner = |kind: &str, name: &str| json!([{"kind": kind, "name": name, "uid": format!("{kind}-{name}"), "controller": true}]);
    let server = fixture(&[
        json!({"kind": "Deployment", "name": "web", "spec": {"replicas": 3, "template": {"spec": {}}},
            "status": {"replicas": 2, "readyReplicas": 2, "updatedReplicas": 2, "availableReplicas": 2,
                "conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}]}}),
        json!({"kind": "ReplicaSet", "name": "web-1", "metadata": {"ownerReferences": owner("Deployment", "web")},
            "spec": {"replicas": 3, "template": {"spec": {}}}, "status": {"replicas": 2, "readyReplicas": 2}}),
        json!({"kind": "ResourceQuota", "name": "q", "spec": {"hard": {"pods": "2"}},
            "status": {"hard": {"pods": "2"}, "used": {"pods": "2"}}}),
        json!({"kind": "Deployment", "name": "slow", "spec": {"replicas": 1, "template": {"spec": {}}},
            "status": {"replicas": 1, "updatedReplicas": 1, "conditions": [{"type": "Progressing", "status": "False",
                "reason": "ProgressDeadlineExceeded", "message": "ReplicaSet \"slow-1\" has timed out progressing."}]}}),
        json!({"kind": "ReplicaSet", "name": "slow-1", "metadata": {"ownerReferences": owner("Deployment", "slow")},
            "spec": {"replicas": 1, "template": {"spec": {}}}, "status": {"replicas": 1}}),
        json!({"kind": "Pod", "name": "slow-1-a", "metadata": {"ownerReferences": owner("ReplicaSet", "slow-1")},
            "spec": {"nodeName": "a", "containers": [{"name": "c", "readinessProbe": {}}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}],
                "containerStatuses": [{"name": "c", "ready": false, "started": true, "state": {"running": {}}}]}}),
        node("a", "4", json!([])),
    ]);
    let mut text = String::new();
    for subject in ["deployment/web", "deployment/slow", "resourcequota/q"] {
        text += &server.why(subject).await;
    }
    expect![[r#"
        Deployment d/web: its pods are refused
          known    condition ReplicaFailure is True (FailedCreate): pods "web-1-" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2
          known    ResourceQuota q: pods: used 2 of 2
          fix      delete what is not needed, lower the requests, or raise the quota
        Deployment d/slow: Pod d/slow-1-a: it is not ready
          known    condition Ready is False (ContainersNotReady)
          inferred the readinessProbe of container c does not succeed
        ResourceQuota d/q: nothing more is admitted
          known    pods: used 2 of 2
          fix      delete what is not needed, or raise spec.hard
    "#]].assert_eq(&text);
}

#[tokio::test]
async fn says_what_a_quota_refuses_pods_for() {
    let deployment = |name: &str, refusal: &str| {
        let message = format!("pods \"{name}-1-\" is forbidden: {refusal}");
        json!({"kind": "Deployment", "name": name, "spec": {"replicas": 3, "template": {"spec": {}}}, "status": {
            "conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}]}})
    };
    let server = fixture(&[
        deployment(
            "large",
            "exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=3, limited: requests.cpu=4",
        ),
        deployment("silent", "failed quota: q: must specify requests.cpu for: main"),
        deployment("former", "exceeded quota: gone, requested: pods=1, used: pods=2, limited: pods=2"),
        json!({"kind": "ResourceQuota", "name": "other", "status": {"hard": {"secrets": "2"}, "used": {"secrets": "2"}}}),
        json!({"kind": "ResourceQuota", "name": "q",
            "status": {"hard": {"pods": "9", "requests.cpu": "4"}, "used": {"pods": "3", "requests.cpu": "3"}}}),
    ]);
    let mut text = String::new();
    for subject in ["deployment/large", "deployment/silent", "deployment/former"] {
        text += &server.why(subject).await;
    }
    expect![[r#"
        Deployment d/large: its pods are refused
          known    condition ReplicaFailure is True (FailedCreate): pods "large-1-" is forbidden: exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=3, limited: requests.cpu=4
          known    ResourceQuota q: requests.cpu: used 3 of 4
          fix      delete what is not needed, lower the requests, or raise the quota
        Deployment d/silent: its pods are refused
          known    condition ReplicaFailure is True (FailedCreate): pods "silent-1-" is forbidden: failed quota: q: must specify requests.cpu for: main
          fix      give its containers the requests and limits that are named, or create a LimitRange with defaults
        Deployment d/former: its pods are refused
          known    condition ReplicaFailure is True (FailedCreate): pods "former-1-" is forbidden: exceeded quota: gone, requested: pods=1, used: pods=2, limited: pods=2
          known    there is no ResourceQuota gone any more
          fix      try again; a controller does so by itself
    "#]].assert_eq(&text);
}

#[tokio::test]
async fn finds_a_webhook_that_refuses_its_own_backend() {
    let message =
        "Internal error occurred: failed calling webhook \"guard.acme.example.com\": no endpoints available";
    let server = fixture(&[
        json!({"kind": "Deployment", "name": "web", "spec": {"replicas": 1, "template": {"spec": {}}}, "status": {
            "conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}]}}),
        json!({"kind": "ValidatingWebhookConfiguration", "name": "guard", "webhooks": [{
            "name": "guard.acme.example.com", "failurePolicy": "Fail",
            "clientConfig": {"service": {"namespace": "acme", "name": "guard"}},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "resources": ["pods"]}]}]}),
        json!({"kind": "Service", "name": "guard", "namespace": "acme", "spec": {"selector": {"app": "guard"}}}),
        json!({"kind": "Namespace", "name": "acme"}),
    ]);
    expect![[r#"
        Deployment d/web: its pods are refused
          known    condition ReplicaFailure is True (FailedCreate): Internal error occurred: failed calling webhook "guard.acme.example.com": no endpoints available
        Deployment d/web: webhook guard.acme.example.com has no backend
          known    its backend is Service acme/guard
          known    the Service has no ready endpoints
          known    failurePolicy is Fail: it refuses CREATE of pods
          known    it is asked about the creation of pods in the namespace acme, where guard runs
          inferred it refuses the pods that would answer for it: a dead-lock
          fix      let its namespaceSelector leave acme out (kubernetes.io/metadata.name NotIn [acme])
          fix      until then delete the webhook configuration, let the pods of app=guard start, and apply it again
    "#]].assert_eq(&server.why("deployment/web").await);
}

#[tokio::test]
async fn tells_the_arithmetic_of_budgets() {
    let budget = |name: &str, healthy: i64| {
        json!({"kind": "PodDisruptionBudget", "name": name,
            "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": name}}},
            "status": {"disruptionsAllowed": 0, "currentHealthy": healthy, "desiredHealthy": 2, "expectedPods": 2,
                "conditions": [{"type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods"}]}})
    };
    let server = fixture(&[
        budget("full", 2),
        budget("sick", 1),
        json!({"kind": "Pod", "name": "sick-1", "metadata": {"labels": {"app": "sick"}}}),
    ]);
    let text = server.why("poddisruptionbudget/full").await + &server.why("poddisruptionbudget/sick").await;
    expect![[r#"
        PodDisruptionBudget d/full: it allows no eviction
          known    condition DisruptionAllowed is False (InsufficientPods)
          known    minAvailable 2 of 2 pods: 2 must be healthy, 2 are; 2 - 2 = 0 may be evicted
          inferred all its pods are healthy: the rule leaves none to spare
          fix      more replicas, or a rule that leaves one to spare (maxUnavailable: 1)
        PodDisruptionBudget d/sick: it allows no eviction
          known    condition DisruptionAllowed is False (InsufficientPods)
          known    minAvailable 2 of 2 pods: 2 must be healthy, 1 are; 1 - 2 = 0 may be evicted
          known    not healthy: sick-1
          fix      kaji why pod/sick-1 -n d
          fix      spec.unhealthyPodEvictionPolicy: AlwaysAllow lets pods go that are not healthy
    "#]]
    .assert_eq(&text);
}

#[tokio::test]
async fn tells_autoscalers_and_certificates() {
    let scaler = json!({"kind": "HorizontalPodAutoscaler", "name": "web", "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "metrics": [{"type": "Resource", "resource": {"name": "cpu"}}]},
        "status": {"conditions": [{"type": "ScalingActive", "status": "False", "reason": "FailedGetResourceMetric",
            "message": "the HPA was unable to compute the replica count: failed to get cpu utilization"}]}});
    let request = |name: &str, signer: &str, approved: &str| {
        json!({"kind": "CertificateSigningRequest", "name": name, "spec": {"signerName": signer},
            "status": {"conditions": [{"type": "Approved", "status": approved}]}})
    };
    let server = fixture(&[
        scaler,
        json!({"kind": "Deployment", "name": "web", "spec": {"selector": {"matchLabels": {"app": "web"}}}}),
        json!({"kind": "Pod", "name": "web-1", "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c"}]}}),
        request("waits", "kubernetes.io/kube-apiserver-client", "Unknown"),
        request("typo", "kubernetes.io/kube-apiserver-clients", "True"),
    ])
    .not_serving("metrics.k8s.io");
    let mut text = server.why("horizontalpodautoscaler/web").await;
    for name in ["waits", "typo"] {
        text += &server.why(&format!("certificatesigningrequest/{name}")).await;
    }
    expect![[r#"
        HorizontalPodAutoscaler d/web: it does not scale
          known    condition ScalingActive is False (FailedGetResourceMetric): the HPA was unable to compute the replica count: failed to get cpu utilization
          known    the server does not serve metrics.k8s.io
          known    containers without a request of cpu: c of web-1
          fix      install a metrics adapter that serves metrics.k8s.io
          fix      set resources.requests.cpu in the template: utilization is a part of the request
        CertificateSigningRequest waits: it has no certificate
          known    its signer is kubernetes.io/kube-apiserver-client
          known    it is not approved
          known    requests of this signer wait for an administrator's approval
          fix      look at the request, then: kubectl certificate approve waits
        CertificateSigningRequest typo: it has no certificate
          known    its signer is kubernetes.io/kube-apiserver-clients
          known    it is approved
          inferred the controller that signs for kubernetes.io/kube-apiserver-clients is not installed, fails, or waits
          nearest  Kubernetes signs for kubernetes.io/kube-apiserver-client
          fix      correct spec.signerName in a new request
    "#]].assert_eq(&text);
}

#[tokio::test]
async fn finds_the_binding_that_nearly_allows_a_request() {
    let role = |name: &str, rule: Value| json!({"kind": "Role", "name": name, "rules": [rule]});
    let binding = |name: &str, role: &str, subject: Value| json!({"kind": "RoleBinding", "name": name, "roleRef": {"kind": "Role", "name": role}, "subjects": [subject]});
    let user = |name: &str| json!({"kind": "User", "name": name});
    let server = fixture(&[
        role("reader", json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]})),
        role("singular", json!({"apiGroups": [""], "resources": ["secret"], "verbs": ["get"]})),
        binding("reads", "reader", user("bob")),
        binding("typo", "singular", user("bob")),
        binding("dangling", "raeder", user("eve")),
        binding("robot", "reader", json!({"kind": "ServiceAccount", "name": "robot", "namespace": "other"})),
    ]);
    let text = |user: &str, verb: &str, resource: &str| {
        format!(
            "{resource} is forbidden: User \"{user}\" cannot {verb} resource \"{resource}\" in API group \"\" in the namespace \"d\""
        )
    };
    let mut all = String::new();
    for (user, verb, resource) in [
        ("bob", "list", "pods"),
        ("bob", "delete", "pods"),
        ("bob", "get", "secrets"),
        ("bobb", "list", "pods"),
        ("eve", "get", "pods"),
        ("system:serviceaccount:d:robot", "get", "pods"),
    ] {
        all += &server.why_forbidden(&text(user, verb, resource)).await;
    }
    expect![[r#"
        bob may not list pods in the namespace d: it is allowed now
          known    RoleBinding d/reads gives Role reader
          inferred the refusal is older than this, or was made by admission or another authorizer
        bob may not delete pods in the namespace d: no role that is bound to the user allows it
          known    user bob in the groups system:authenticated
          known    RoleBinding d/reads binds Role reader: its rule allows get, list, not delete
          nearest  RoleBinding d/reads: its rule allows get, list, not delete
          fix      kubectl edit role reader -n d
          fix      kubectl create role delete-pods -n d --verb=delete --resource=pods
                   kubectl create rolebinding delete-pods -n d --role=delete-pods --user=bob
        bob may not get secrets in the namespace d: no role that is bound to the user allows it
          known    user bob in the groups system:authenticated
          known    RoleBinding d/typo binds Role singular: its rule is for the resource secret, not secrets
          nearest  RoleBinding d/typo: its rule is for the resource secret, not secrets
          fix      kubectl edit role singular -n d
          fix      kubectl create role get-secrets -n d --verb=get --resource=secrets
                   kubectl create rolebinding get-secrets -n d --role=get-secrets --user=bob
        bobb may not list pods in the namespace d: no role that is bound to the user allows it
          known    user bobb in the groups system:authenticated
          known    RoleBinding d/reads binds Role reader: its subject is the user bob, not bobb
          nearest  RoleBinding d/reads: its subject is the user bob, not bobb
          fix      kubectl edit rolebinding reads -n d
          fix      kubectl create role list-pods -n d --verb=list --resource=pods
                   kubectl create rolebinding list-pods -n d --role=list-pods --user=bobb
        eve may not get pods in the namespace d: no role that is bound to the user allows it
          known    user eve in the groups system:authenticated
          known    RoleBinding d/dangling binds Role raeder: Role raeder does not exist, but Role reader does
          nearest  RoleBinding d/dangling: Role raeder does not exist, but Role reader does
          fix      create Role raeder, or bind another one (roleRef is immutable: delete and create the binding)
          fix      kubectl create role get-pods -n d --verb=get --resource=pods
                   kubectl create rolebinding get-pods -n d --role=get-pods --user=eve
        system:serviceaccount:d:robot may not get pods in the namespace d: no role that is bound to the user allows it
          known    user system:serviceaccount:d:robot in the groups system:serviceaccounts, system:serviceaccounts:d, system:authenticated
          known    RoleBinding d/robot binds Role reader: its subject is the service account robot of the namespace other, not of d
          nearest  RoleBinding d/robot: its subject is the service account robot of the namespace other, not of d
          fix      kubectl edit rolebinding robot -n d
          fix      kubectl create role get-pods -n d --verb=get --resource=pods
                   kubectl create rolebinding get-pods -n d --role=get-pods --serviceaccount=d:robot
    "#]].assert_eq(&all);
}

#[tokio::test]
async fn tells_writes_that_were_refused() {
    let refusal = |name: &str, resource: &str, owner: &str, rule: Value, message: &str| {
        json!({"kind": "Refusal", "name": name, "user": "bob", "verb": "patch", "fieldManager": "mine", "count": 1,
            "lastTimestamp": "2026-01-01T00:05:00Z", "message": message, "rule": rule,
            "object": {"group": "apps", "resource": resource, "namespace": "d", "name": name, "owner": owner}})
    };
    let invalid = "Deployment.apps \"web\" is invalid: spec.replicas: Invalid value: -1";
    let denied = "admission webhook \"guard.acme.example.com\" denied the request: no";
    let changed = |name: &str, time: &str| {
        json!({"kind": "Deployment", "name": name, "metadata": {"managedFields": [
        {"time": time}, {"time": "2026-01-01T00:09:30Z", "subresource": "status"}]}})
    };
    let server = fixture(&[
        changed("web", "2026-01-01T00:00:00Z"),
        changed("later", "2026-01-01T00:09:00Z"),
        refusal("web", "deployments", "", json!({"kind": "Validation"}), invalid),
        refusal("later", "deployments", "", json!({"kind": "Validation"}), invalid),
        refusal(
            "new",
            "deployments",
            "",
            json!({"kind": "Webhook", "name": "guard.acme.example.com"}),
            denied,
        ),
    ]);
    let mut text = String::new();
    for name in ["web", "later", "new", "none"] {
        text += &server.why(&format!("deployment/{name}")).await;
    }
    expect![[r#"
        Deployment d/web: Validation refused a write of it
          known    patch of deployments/web by bob, field manager mine, at 2026-01-01T00:05:00Z
          known    Deployment.apps "web" is invalid: spec.replicas: Invalid value: -1
        Deployment d/later: nothing is wrong with it
        deployments "new" not found: Webhook guard.acme.example.com refused a write of it
          known    patch of deployments/new by bob, field manager mine, at 2026-01-01T00:05:00Z
          known    admission webhook "guard.acme.example.com" denied the request: no
        error: deployments "none" not found
    "#]]
    .assert_eq(&text);
}
