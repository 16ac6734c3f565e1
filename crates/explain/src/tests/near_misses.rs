//! Explanations of what nearly works: a namespace, a port, a name, a budget.

use crate::testing::fixture;
use expect_test::expect;
use serde_json::{Value, json};

#[tokio::test]
async fn tells_autoscalers_without_figures() {
    let scaler = |name: &str, metric: Value, conditions: Value| {
        json!({"kind": "HorizontalPodAutoscaler", "name": name, "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "metrics": [metric]},
            "status": {"conditions": conditions}})
    };
    let cpu = json!({"type": "Resource", "resource": {"name": "cpu"}});
    let failed = json!([{"type": "ScalingActive", "status": "False", "reason": "FailedGetResourceMetric"}]);
    let container =
        json!({"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "ap"}});
    let server = fixture(&[
        scaler("new", cpu.clone(), json!([])),
        scaler("silent", cpu, failed.clone()),
        scaler("container", container, failed),
        json!({"kind": "Deployment", "name": "web", "spec": {"selector": {"matchLabels": {"app": "web"}}}}),
        json!({"kind": "Pod", "name": "web-1", "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1"}}}]}}),
    ]);
    let mut text = String::new();
    for name in ["new", "silent", "container"] {
        text += &server.why(&format!("horizontalpodautoscaler/{name}")).await;
    }
    expect![[r#"
        HorizontalPodAutoscaler d/new: nothing has looked at it yet
          known    its status has no conditions
          inferred the autoscaling controller looks every 15 s; it is late, or does not run
        HorizontalPodAutoscaler d/silent: it does not scale
          known    condition ScalingActive is False (FailedGetResourceMetric)
          known    metrics.k8s.io has no figures of web-1
          fix      kaji why pod/web-1 -n d: a pod has figures half a minute after its start
        HorizontalPodAutoscaler d/container: it does not scale
          known    condition ScalingActive is False (FailedGetResourceMetric)
          known    its pods have no container ap
          known    metrics.k8s.io has no figures of web-1
          nearest  container app
          fix      correct spec.metrics[].containerResource.container
          fix      kaji why pod/web-1 -n d: a pod has figures half a minute after its start
    "#]]
    .assert_eq(&text);
}

#[tokio::test]
async fn tells_requests_of_certificates_that_are_not_approved() {
    let request = |name: &str, signer: &str, usages: Value| {
        json!({"kind": "CertificateSigningRequest", "name": name, "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"signerName": signer, "usages": usages}})
    };
    let kubelet = "kubernetes.io/kube-apiserver-client-kubelet";
    let server = fixture(&[
        request("usages", kubelet, json!(["client auth", "server auth"])),
        request("rights", kubelet, json!(["client auth", "digital signature"])),
        request("typo", "kubernetes.io/kubelet-servng", json!([])),
        request("foreign", "acme.example.com/signer", json!([])),
    ]);
    let mut text = String::new();
    for name in ["usages", "rights", "typo", "foreign"] {
        text += &server.why(&format!("certificatesigningrequest/{name}")).await;
    }
    expect![[r#"
        CertificateSigningRequest usages: it has no certificate
          known    its signer is kubernetes.io/kube-apiserver-client-kubelet
          known    it is not approved
          known    its usages are client auth, server auth
          known    the approver takes client auth, digital signature, key encipherment alone; key encipherment may be left out
          known    it waits since 2026-01-01T00:00:00Z; a request without a decision is removed after 24 hours
          fix      look at the request, then: kubectl certificate approve usages
        CertificateSigningRequest rights: it has no certificate
          known    its signer is kubernetes.io/kube-apiserver-client-kubelet
          known    it is not approved
          inferred the approver lets it pass if its user may create nodeclient or selfnodeclient requests
          known    it waits since 2026-01-01T00:00:00Z; a request without a decision is removed after 24 hours
          fix      look at the request, then: kubectl certificate approve rights
        CertificateSigningRequest typo: it has no certificate
          known    its signer is kubernetes.io/kubelet-servng
          known    it is not approved
          inferred an approver of this signer may do it; without one it waits for an administrator
          known    it waits since 2026-01-01T00:00:00Z; a request without a decision is removed after 24 hours
          nearest  Kubernetes signs for kubernetes.io/kubelet-serving
          fix      correct spec.signerName in a new request
          fix      look at the request, then: kubectl certificate approve typo
        CertificateSigningRequest foreign: it has no certificate
          known    its signer is acme.example.com/signer
          known    it is not approved
          inferred an approver of this signer may do it; without one it waits for an administrator
          known    it waits since 2026-01-01T00:00:00Z; a request without a decision is removed after 24 hours
          fix      look at the request, then: kubectl certificate approve foreign
    "#]].assert_eq(&text);
}

#[tokio::test]
async fn tells_services_with_endpoints_that_do_not_work() {
    let service = |name: &str, spec: Value| json!({"kind": "Service", "name": name, "spec": spec});
    let slice = |name: &str| {
        json!({"kind": "EndpointSlice", "name": name, "metadata": {"labels": {"kubernetes.io/service-name": name}},
            "endpoints": [{"conditions": {"ready": true}}], "ports": [{"port": 1}]})
    };
    let pod = |name: &str, namespace: &str, app: &str, ports: Value| {
        json!({"kind": "Pod", "name": name, "namespace": namespace, "metadata": {"labels": {"app": app}},
            "spec": {"containers": [{"name": "c", "ports": ports}]}})
    };
    let server = fixture(&[
        service("port", json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]})),
        slice("port"),
        service("right", json!({"selector": {"app": "web"}, "ports": [{"port": 80}]})),
        slice("right"),
        service(
            "silent",
            json!({"selector": {"app": "silent"}, "ports": [{"port": 80, "targetPort": 8080}]}),
        ),
        slice("silent"),
        service("outside", json!({"type": "LoadBalancer"})),
        slice("outside"),
        service("away", json!({"selector": {"app": "away"}})),
        pod("web-1", "d", "web", json!([{"containerPort": 80}, {"containerPort": 8080, "protocol": "UDP"}])),
        pod("silent-1", "d", "silent", json!([])),
        pod("away-1", "other", "away", json!([])),
    ]);
    let mut text = String::new();
    for name in ["port", "right", "silent", "outside", "away"] {
        text += &server.why(&format!("service/{name}")).await;
    }
    expect![[r#"
        Service d/port: connections may be refused
          known    targetPort 8080 is none of the TCP ports that its pods declare: 80
          inferred nothing listens there, unless the containers listen on ports that they do not declare
          fix      correct targetPort; or declare the port in the pods' template
        Service d/right: nothing is wrong with it
        Service d/silent: nothing is wrong with it
        Service d/outside: it has no address outside of the cluster
          known    status.loadBalancer.ingress is empty
          inferred no controller gives addresses to load balancers in this cluster, or it fails
          fix      install one (a cloud controller manager, MetalLB), or use the type NodePort
        Service d/away: it has no ready endpoints
          known    its selector is app=away
          known    no pod of the namespace d matches it
          nearest  pod away-1 of the namespace other has these labels
          fix      a service selects pods of its own namespace alone: create it there
    "#]]
    .assert_eq(&text);
}

#[tokio::test]
async fn tells_evictions_that_are_refused() {
    let pod = |name: &str, node: &str| {
        json!({"kind": "Pod", "name": name, "metadata": {"labels": {"app": name}}, "spec": {"nodeName": node},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
    };
    let budget = |name: &str, app: &str| {
        json!({"kind": "PodDisruptionBudget", "name": name, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}},
            "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}})
    };
    let node = |name: &str, cordoned: bool| {
        json!({"kind": "Node", "name": name, "spec": {"unschedulable": cordoned},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    };
    let server = fixture(&[
        node("cordoned", true),
        node("open", false),
        pod("drained", "cordoned"),
        budget("one", "drained"),
        pod("twice", "cordoned"),
        budget("first", "twice"),
        budget("second", "twice"),
        pod("left", "open"),
        budget("left", "left"),
    ]);
    let mut text = String::new();
    for name in ["drained", "twice", "left"] {
        text += &server.why(&format!("pod/{name}")).await;
    }
    expect![[r#"
        Pod d/drained: it cannot be evicted: PodDisruptionBudget d/one allows none
          known    its node cordoned is cordoned, as one that is drained
          known    minAvailable 1 of 1 pods: 1 must be healthy, 1 are; 1 - 1 = 0 may be evicted
          inferred all its pods are healthy: the rule leaves none to spare
          fix      more replicas, or a rule that leaves one to spare (maxUnavailable: 1)
        Pod d/twice: it cannot be evicted: several budgets select it
          known    its node cordoned is cordoned, as one that is drained
          known    PodDisruptionBudgets that select it: first, second
          fix      let one budget select each pod
        Pod d/left: nothing is wrong with it
    "#]]
    .assert_eq(&text);
}

#[tokio::test]
async fn tells_bindings_with_typing_errors() {
    let role = |kind: &str, name: &str, verbs: Value| json!({"kind": kind, "name": name, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}]});
    let binding = |name: &str, role: (&str, &str), subject: (&str, &str)| {
        json!({"kind": "RoleBinding", "name": name, "roleRef": {"kind": role.0, "name": role.1},
            "subjects": [{"kind": subject.0, "name": subject.1}]})
    };
    let server = fixture(&[
        role("ClusterRole", "reader", json!(["get"])),
        role("Role", "lister", json!(["lists"])),
        binding("kind", ("Role", "reader"), ("User", "ann")),
        binding("name", ("ClusterRole", "raeder"), ("User", "bob")),
        binding("verb", ("Role", "lister"), ("User", "eve")),
        binding("group", ("ClusterRole", "reader"), ("Group", "system:authenticatd")),
    ]);
    let mut text = String::new();
    for (user, verb) in [("ann", "get"), ("bob", "get"), ("eve", "list")] {
        let refusal = format!(
            "pods is forbidden: User \"{user}\" cannot {verb} resource \"pods\" in API group \"\" in the namespace \"d\""
        );
        let found = server.why_forbidden(&refusal).await;
        text.extend(
            found
                .lines()
                .filter(|line| line.contains("known") || line.contains("nearest"))
                .map(|line| format!("{}\n", line.trim())),
        );
    }
    expect![[r#"
        known    user ann in the groups system:authenticated
        known    RoleBinding d/kind binds Role reader: Role reader does not exist, but ClusterRole reader does
        known    RoleBinding d/group binds ClusterRole reader: its subject is the group system:authenticatd, not system:authenticated
        nearest  RoleBinding d/kind: Role reader does not exist, but ClusterRole reader does
        known    user bob in the groups system:authenticated
        known    RoleBinding d/name binds ClusterRole raeder: ClusterRole raeder does not exist, but ClusterRole reader does
        known    RoleBinding d/group binds ClusterRole reader: its subject is the group system:authenticatd, not system:authenticated
        nearest  RoleBinding d/name: ClusterRole raeder does not exist, but ClusterRole reader does
        known    user eve in the groups system:authenticated
        known    RoleBinding d/verb binds Role lister: its rule allows lists, not list (lists is no verb)
        nearest  RoleBinding d/verb: its rule allows lists, not list (lists is no verb)
    "#]].assert_eq(&text);
}

#[tokio::test]
async fn tells_what_keeps_a_definition_and_an_api_that_fails() {
    let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    let mut definition = deleted.clone();
    definition["finalizers"] = json!(["customresourcecleanup.apiextensions.k8s.io"]);
    let server = fixture(&[
        json!({"kind": "CustomResourceDefinition", "name": "guards.acme.example.com", "metadata": definition,
            "spec": {"group": "acme.example.com", "names": {"plural": "guards", "kind": "Guard"}}}),
        json!({"kind": "Guard", "name": "one", "metadata": {"finalizers": ["acme.example.com/guard"]}}),
        json!({"kind": "Guard", "name": "two"}),
        json!({"kind": "Namespace", "name": "gone", "metadata": deleted, "spec": {"finalizers": ["kubernetes"]},
            "status": {"conditions": [{"type": "NamespaceDeletionDiscoveryFailure", "status": "True", "reason": "DiscoveryFailed",
                "message": "stale.example.com/v1: stale GroupVersion discovery"}]}}),
    ])
    .stale("stale.example.com");
    let text = server.why("customresourcedefinition/guards.acme.example.com").await
        + &server.why("namespace/gone").await;
    expect![[r#"
        CustomResourceDefinition guards.acme.example.com: its deletion waits for finalizers: customresourcecleanup.apiextensions.k8s.io
          known    deletionTimestamp is 2026-01-01T00:00:00Z
          known    customresourcecleanup.apiextensions.k8s.io is removed by the API server, when no object of the resource is left
          known    objects of it that are left: 2; Guard d/one has the finalizers acme.example.com/guard
          fix      kaji why guards.acme.example.com/one -n d
        Namespace gone: its deletion waits for finalizers: kubernetes
          known    deletionTimestamp is 2026-01-01T00:00:00Z
          known    kubernetes is removed by the namespace controller, when nothing is left in the namespace
          known    condition NamespaceDeletionDiscoveryFailure is True (DiscoveryFailed): stale.example.com/v1: stale GroupVersion discovery
          known    the extension server of stale.example.com/v1 does not answer: its objects cannot be deleted
          fix      kaji why apiservice/v1.stale.example.com
    "#]].assert_eq(&text);
}

#[tokio::test]
async fn tells_images_that_are_not_there_from_registries_that_are_not() {
    // As containerd says it: every failure is one of resolving the reference.
    let pod = |name: &str, why: &str| {
        let message = format!(
            "Back-off pulling image \"r.example/web:1\": ErrImagePull: failed to resolve reference \"r.example/web:1\": {why}"
        );
        json!({"kind": "Pod", "name": name, "spec": {"nodeName": "a", "containers": [{"name": "c", "image": "r.example/web:1"}]},
            "status": {"phase": "Pending", "containerStatuses": [{"name": "c", "image": "r.example/web:1",
                "state": {"waiting": {"reason": "ImagePullBackOff", "message": message}}}]}})
    };
    let server = fixture(&[
        pod("tag", "r.example/web:1: not found"),
        pod("host", "dial tcp: lookup r.example on 10.0.0.10:53: no such host"),
    ]);
    let text = server.why("pod/tag").await + &server.why("pod/host").await;
    expect![[r#"
        Pod d/tag: its node a does not exist
          known    spec.nodeName names a node that is not there
          inferred the garbage collector of pods deletes it after its grace period
        Pod d/tag: the image r.example/web:1 cannot be pulled
          known    container c waits: ImagePullBackOff: Back-off pulling image "r.example/web:1": ErrImagePull: failed to resolve reference "r.example/web:1": r.example/web:1: not found
          inferred the registry does not have this name or tag
          fix      correct the image's name or tag
        Pod d/host: its node a does not exist
          known    spec.nodeName names a node that is not there
          inferred the garbage collector of pods deletes it after its grace period
        Pod d/host: the image r.example/web:1 cannot be pulled
          known    container c waits: ImagePullBackOff: Back-off pulling image "r.example/web:1": ErrImagePull: failed to resolve reference "r.example/web:1": dial tcp: lookup r.example on 10.0.0.10:53: no such host
          inferred the registry's name cannot be resolved on the node
          fix      correct the registry's name, or the node's DNS
    "#]].assert_eq(&text);
}
