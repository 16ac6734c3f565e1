//! Tests of `pod`: fixtures in, expectations out.

use super::*;
use crate::shared::testing::{TestContext, show};
use expect_test::expect;
use futures_util::FutureExt;
use kaji_meta::GroupResource;

fn pod(change: impl FnOnce(&mut Value)) -> Value {
    let mut p = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "resourceVersion": "5",
            "creationTimestamp": "2026-01-02T03:00:05Z", "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "nginx:1"}]}
    });
    change(&mut p);
    Pods.default("v1", &mut p);
    p
}

fn row(p: &Value) -> String {
    Value::from(Pods.row("v1", p, TestContext::default().now)).to_string()
}

fn pods() -> GroupResource {
    GroupResource::new("", "pods")
}

#[test]
fn a_new_pod_is_pending_with_its_qos_class() {
    let w = TestContext::default();
    let mut p = pod(|p| p["spec"]["schedulingGates"] = json!([{"name": "example.com/g"}]));
    Pods.prepare_create(&w.ctx(&p.clone(), "", "v1"), &mut p);
    expect![[r#"{"conditions":[{"lastProbeTime":null,"lastTransitionTime":"2026-01-02T03:04:05Z","message":"Scheduling is blocked due to non-empty scheduling gates","reason":"SchedulingGated","status":"False","type":"PodScheduled"}],"phase":"Pending","qosClass":"BestEffort"}"#]]
    .assert_eq(&p["status"].to_string());
    assert_eq!(show(&Pods.validate_create(&w.ctx(&p, "", "v1"), &p)), "");
    expect![[r#"["p","0/1","SchedulingGated","0","4m","<none>","<none>","<none>","<none>"]"#]]
        .assert_eq(&row(&p));
}

#[test]
fn refuses_what_upstream_refuses() {
    let w = TestContext::default();
    let p = pod(|p| {
        p["spec"] = json!({
            "restartPolicy": "Sometimes",
            "nodeName": "N",
            "hostNetwork": true,
            "securityContext": {"sysctls": [{"name": "foo-"}, {"name": "kernel.shmmax"}, {"name": "safe-and-unsafe"},
                {"name": "bar.."}, {"name": "net.ipv4.tcp_syncookies"}], "runAsUser": -1},
            "tolerations": [{"operator": "Equal"}, {"key": "a", "operator": "Exists", "value": "v", "effect": "Never"}],
            "volumes": [{"name": "A"}, {"name": "h", "hostPath": {"path": "/a/../b"}, "emptyDir": {}}, {"name": "s", "secret": {}}],
            "containers": [
                {"name": "c", "image": "", "ports": [{"containerPort": 70000}, {"name": "http", "containerPort": 80, "protocol": "X"}],
                 "env": [{"name": "a=b", "valueFrom": {}}, {"name": "", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}],
                 "volumeMounts": [{"name": "nope", "mountPath": ""}],
                 "resources": {"limits": {"cpu": "1", "example.com/x": "1.5", "hugepages-2Mi": "3Mi", "foo": "1"},
                    "requests": {"cpu": "2", "example.com/x": "1"}},
                 "livenessProbe": {"successThreshold": 2}},
                {"name": "c", "image": " x ", "lifecycle": {"preStop": {"sleep": {"seconds": 99}}},
                 "securityContext": {"privileged": true, "allowPrivilegeEscalation": false}}
            ]
        });
    });
    expect![[r#"
        spec.volumes[0].name: Invalid value: "A": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')
        spec.volumes[1].hostPath: Forbidden: may not specify more than 1 volume type
        spec.volumes[2].secret.secretName: Required value
        spec.containers[0].image: Required value
        spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive
        spec.containers[0].ports[0].hostPort: Invalid value: 70000: must be between 1 and 65535, inclusive
        spec.containers[0].ports[1].protocol: Unsupported value: "X": supported values: "SCTP", "TCP", "UDP"
        spec.containers[0].env[0].name: Invalid value: "a=b": a valid environment variable name must consist only of printable ASCII characters other than '='
        spec.containers[0].env[0].valueFrom: Invalid value: "": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`
        spec.containers[0].env[1].name: Required value
        spec.containers[0].env[1].valueFrom.fieldRef.fieldPath: Invalid value: "spec.x": error converting fieldPath: field label not supported: spec.x
        spec.containers[0].volumeMounts[0].name: Not found: "nope"
        spec.containers[0].volumeMounts[0].mountPath: Required value
        spec.containers[0].resources.limits[example.com/x]: Invalid value: "1500m": must be an integer
        spec.containers[0].resources.limits[foo]: Invalid value: "foo": must be a standard resource type or fully qualified
        spec.containers[0].resources.limits[foo]: Invalid value: "foo": must be a standard resource for containers
        spec.containers[0].resources.limits[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple of hugepages-2Mi
        spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1
        spec.containers[0].resources.requests: Invalid value: "1": must be equal to example.com/x limit of 1500m
        spec.containers[0].resources.requests[foo]: Invalid value: "foo": must be a standard resource type or fully qualified
        spec.containers[0].resources.requests[foo]: Invalid value: "foo": must be a standard resource for containers
        spec.containers[0].resources.requests[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple of hugepages-2Mi
        spec.containers[0].livenessProbe: Required value: must specify a handler type
        spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1
        spec.containers[1].securityContext: Invalid value: {"Capabilities":null,"Privileged":true,"SELinuxOptions":null,"WindowsOptions":null,"RunAsUser":null,"RunAsGroup":null,"RunAsNonRoot":null,"ReadOnlyRootFilesystem":null,"AllowPrivilegeEscalation":false,"ProcMount":null,"SeccompProfile":null,"AppArmorProfile":null}: cannot set `allowPrivilegeEscalation` to false and `privileged` to true
        spec.containers[1].name: Duplicate value: "c"
        spec.containers[1].lifecycle.preStop.sleep: Invalid value: 99: must be non-negative and less than terminationGracePeriodSeconds (30)
        spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"
        spec.securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive
        spec.securityContext.sysctls[0].name: Invalid value: "foo-": must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$
        spec.securityContext.sysctls[3].name: Invalid value: "bar..": must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$
        spec.securityContext.sysctls[4].name: Invalid value: "net.ipv4.tcp_syncookies": may not be specified when 'hostNetwork' is true
        spec.nodeName: Invalid value: "N": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
        spec.tolerations[0].operator: Invalid value: "Equal": operator must be Exists when `key` is empty, which means "match all values and all keys"
        spec.tolerations[1].operator: Invalid value: "v": value must be empty when `operator` is 'Exists'
        spec.tolerations[1].effect: Unsupported value: "Never": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"
        spec.containers[1].image: Invalid value: " x ": must not have leading or trailing whitespace"#]]
    .assert_eq(&show(&Pods.validate_create(&w.ctx(&p, "", "v1"), &p)));
}

#[test]
fn pod_certificates_have_bounds() {
    let w = TestContext::default();
    let with = |signer: &str, seconds: i64| {
        let p = pod(|p| {
            p["spec"]["serviceAccountName"] = "s".into();
            p["spec"]["volumes"] = json!([{"name": "v", "projected": {"sources": [{"podCertificate": {"signerName": signer,
                "keyType": "ED25519", "credentialBundlePath": "b.pem", "maxExpirationSeconds": seconds}}]}}]);
        });
        show(&Pods.validate_create(&w.ctx(&p, "", "v1"), &p))
    };
    assert_eq!(with("row-major.net/spiffe", 3600), "");
    expect!["spec.volumes[0].projected.sources[0].podCertificate.maxExpirationSeconds: Invalid value: 3599: if provided, maxExpirationSeconds must be >= 3600"]
        .assert_eq(&with("row-major.net/spiffe", 3599));
    expect!["spec.volumes[0].projected.sources[0].podCertificate.maxExpirationSeconds: Invalid value: 7862401: if provided, maxExpirationSeconds must be <= 7862400"]
        .assert_eq(&with("row-major.net/spiffe", 7_862_401));
    expect!["spec.volumes[0].projected.sources[0].podCertificate.maxExpirationSeconds: Invalid value: 86401: if provided, maxExpirationSeconds must be <= 86400"]
        .assert_eq(&with("kubernetes.io/kube-apiserver-client-pod", 86_401));
}

#[test]
fn little_of_a_pod_may_change() {
    let w = TestContext::default();
    let old = pod(|_| {});
    let mut new = old.clone();
    new["spec"]["containers"][0]["image"] = "nginx:2".into();
    new["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    assert_eq!(show(&Pods.validate_update(&w.ctx(&old, "", "v1"), &new, &old)), "");
    new["spec"]["hostname"] = "h".into();
    expect![[r#"
        spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)
        @@ -11,6 +11,7 @@
          ],
          "dnsPolicy": "ClusterFirst",
          "enableServiceLinks": true,
        + "hostname": "h",
          "restartPolicy": "Always",
          "schedulerName": "default-scheduler",
          "securityContext": {},
    "#]]
    .assert_eq(&show(&Pods.validate_update(&w.ctx(&old, "", "v1"), &new, &old)));
    new["spec"]["containers"] = json!([]);
    expect![[r#"
        spec.containers: Required value
        spec.containers: Forbidden: pod updates may not add or remove containers"#]]
    .assert_eq(&show(&Pods.validate_update(&w.ctx(&old, "", "v1"), &new, &old)));
}

#[test]
fn gated_pods_may_be_narrowed() {
    let w = TestContext::default();
    let old = pod(|p| {
        p["spec"]["schedulingGates"] = json!([{"name": "g"}]);
        p["spec"]["nodeSelector"] = json!({"a": "b"});
    });
    let mut new = old.clone();
    new["spec"]["schedulingGates"] = json!([{"name": "other"}]);
    new["spec"]["nodeSelector"] = json!({"c": "d"});
    expect![[r#"
        spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'other'
        spec.nodeSelector: Invalid value: {"c":"d"}: only additions to spec.nodeSelector are allowed (no mutations or deletions)"#]]
    .assert_eq(&show(&Pods.validate_update(&w.ctx(&old, "", "v1"), &new, &old)));
    new["spec"]["schedulingGates"] = json!([]);
    new["spec"]["nodeSelector"] = json!({"a": "b", "c": "d"});
    assert_eq!(show(&Pods.validate_update(&w.ctx(&old, "", "v1"), &new, &old)), "");
}

#[test]
fn resize_changes_cpu_and_memory_alone() {
    let w = TestContext::default();
    let old = pod(|p| {
        p["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}});
        p["status"] = json!({"qosClass": "Burstable"});
    });
    let mut new = old.clone();
    new["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "2"}, "limits": {"cpu": "3"}});
    new["spec"]["hostname"] = "dropped".into();
    Pods.prepare_update(&w.ctx(&old, "resize", "v1"), &mut new, &old);
    assert!(!new["spec"].has("hostname"));
    assert_eq!(new["spec"]["containers"][0]["resources"]["limits"]["cpu"], "3");
    assert_eq!(show(&Pods.validate_update(&w.ctx(&old, "resize", "v1"), &new, &old)), "");
    new["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "1"}, "limits": {}});
    expect![[r#"
        spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed
        spec: Forbidden: only cpu and memory resources are mutable"#]]
    .assert_eq(&show(&Pods.validate_update(&w.ctx(&old, "resize", "v1"), &new, &old)));
}

#[test]
fn ephemeral_containers_are_added_only() {
    let w = TestContext::default();
    let old = pod(|_| {});
    let mut new = old.clone();
    new["spec"]["ephemeralContainers"] = json!([{"name": "debug", "image": "b", "targetContainerName": "c"}]);
    new["spec"]["hostname"] = "dropped".into();
    Pods.default("v1", &mut new);
    Pods.prepare_update(&w.ctx(&old, "ephemeralcontainers", "v1"), &mut new, &old);
    assert!(!new["spec"].has("hostname"));
    assert_eq!(show(&Pods.validate_update(&w.ctx(&old, "ephemeralcontainers", "v1"), &new, &old)), "");
    expect![[r#"
        spec.ephemeralContainers: Forbidden: existing ephemeral containers "debug" may not be removed
    "#]]
    .assert_eq(&show(&Pods.validate_update(&w.ctx(&old, "ephemeralcontainers", "v1"), &old, &new)));
    new["spec"]["ephemeralContainers"][0]["ports"] = json!([{"containerPort": 1, "protocol": "TCP"}]);
    expect!["spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container"]
        .assert_eq(&show(&Pods.validate_update(&w.ctx(&old, "ephemeralcontainers", "v1"), &new, &old)));
}

#[test]
fn prints_the_status_as_kubectl_shows_it() {
    let p = |status: Value| pod(|p| p["status"] = status);
    let cases = [
        json!({"phase": "Pending"}),
        json!({"phase": "Pending", "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}),
        json!({"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "c", "ready": true, "restartCount": 2, "state": {"running": {}},
            "lastState": {"terminated": {"finishedAt": "2026-01-02T03:01:05Z"}}}]}),
        json!({"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}),
        json!({"phase": "Succeeded", "containerStatuses": [{"name": "c", "state": {"terminated": {"reason": "Completed"}}}]}),
        json!({"phase": "Failed", "reason": "Evicted"}),
        json!({"phase": "Failed", "containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 3}}}]}),
    ];
    let words: Vec<String> = cases.into_iter().map(|c| row(&p(c))).collect();
    expect![[r#"
        ["p","0/1","Pending","0","4m","<none>","<none>","<none>","<none>"]
        ["p","0/1","ImagePullBackOff","0","4m","<none>","<none>","<none>","<none>"]
        ["p","1/1","Running","2 (3m ago)","4m","10.0.0.1","<none>","<none>","<none>"]
        ["p","0/1","CrashLoopBackOff","3","4m","<none>","<none>","<none>","<none>"]
        ["p","0/1","Completed","0","4m","<none>","<none>","<none>","<none>"]
        ["p","0/1","Evicted","0","4m","<none>","<none>","<none>","<none>"]
        ["p","0/1","ExitCode:3","0","4m","<none>","<none>","<none>","<none>"]"#]]
    .assert_eq(&words.join("\n"));
    let init = pod(|p| {
        p["spec"]["initContainers"] =
            json!([{"name": "s", "image": "i", "restartPolicy": "Always"}, {"name": "i", "image": "i"}]);
        p["spec"]["readinessGates"] = json!([{"conditionType": "g"}]);
        p["status"] = json!({"phase": "Pending", "conditions": [{"type": "g", "status": "True"}], "initContainerStatuses": [
            {"name": "s", "started": true, "ready": true, "state": {"running": {}}, "restartCount": 1},
            {"name": "i", "state": {"running": {}}}]});
    });
    expect![[r#"["p","1/2","Init:1/2","1","4m","<none>","<none>","<none>","1/1"]"#]].assert_eq(&row(&init));
    let gone = pod(|p| {
        p["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
        p["status"] = json!({"phase": "Running"});
    });
    expect![[r#"["p","0/1","Terminating","0","4m","<none>","<none>","<none>","<none>"]"#]]
        .assert_eq(&row(&gone));
}

#[test]
fn computes_the_grace_period_of_a_deletion() {
    let w = TestContext::default();
    let grace = |p: &Value, seconds: Option<i64>| {
        let options = DeleteOptions { grace_period_seconds: seconds, ..DeleteOptions::default() };
        Pods.grace_period(&w.ctx(p, "", "v1"), p, &options)
    };
    let scheduled = pod(|p| p["spec"]["nodeName"] = "n".into());
    assert_eq!(grace(&scheduled, None), Some(30));
    assert_eq!(grace(&scheduled, Some(5)), Some(5));
    assert_eq!(grace(&scheduled, Some(-1)), Some(1));
    assert_eq!(grace(&pod(|_| {}), None), Some(0));
    let mut over = scheduled.clone();
    over["status"] = json!({"phase": "Failed"});
    assert_eq!(grace(&over, Some(60)), Some(0));
}

fn call(w: &TestContext, p: &Value, sub: &str, body: Value) -> String {
    let ctx = w.ctx(p, sub, "v1");
    let request = CallRequest {
        verb: Verb::Create,
        body,
        object: Some(p),
        query: &Default::default(),
        delete_options: None,
    };
    let done = Pods.call(&ctx, request).now_or_never().unwrap();
    match done {
        Ok((code, v)) => format!("{code} {v}"),
        Err(s) => format!("{} {}", s.code, s.to_value()),
    }
}

#[test]
fn binding_assigns_once() {
    let w = TestContext::default();
    let p = pod(|_| {});
    w.api.put(&pods(), p.clone());
    let to = |n: &str| json!({"metadata": {"name": "p", "annotations": {"a": "b"}}, "target": {"kind": "Node", "name": n}});
    expect![[r#"201 {"apiVersion":"v1","code":201,"kind":"Status","metadata":{},"status":"Success"}"#]]
        .assert_eq(&call(&w, &p, "binding", to("n1")));
    let bound = kaji_resource::ObjectReader::get(w.api.as_ref(), &pods(), "default", "p").unwrap();
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(bound["metadata"]["annotations"]["a"], "b");
    assert!(!Pods.bumps_generation(&bound, &p));
    expect![[r#"409 {"apiVersion":"v1","code":409,"details":{"kind":"pods/binding","name":"p"},"kind":"Status","message":"Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"n1\"","metadata":{},"reason":"Conflict","status":"Failure"}"#]]
    .assert_eq(&call(&w, &p, "binding", to("n2")));
    expect![[r#"500 {"apiVersion":"v1","code":500,"kind":"Status","message":"target.name: Required value","metadata":{},"status":"Failure"}"#]]
        .assert_eq(&call(&w, &p, "binding", to("")));
}

#[test]
fn eviction_takes_from_the_budget() {
    let w = TestContext::default();
    let budgets = GroupResource::new("policy", "poddisruptionbudgets");
    let p = pod(|p| {
        p["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})
    });
    w.api.put(&pods(), p.clone());
    let mut b = json!({"metadata": {"name": "b", "namespace": "default", "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": "a"}}},
        "status": {"observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 2, "desiredHealthy": 2}});
    w.api.put(&budgets, b.clone());
    let eviction = json!({"metadata": {"name": "p"}});
    expect![[r#"429 {"apiVersion":"v1","code":429,"details":{"causes":[{"message":"The disruption budget b needs 2 healthy pods and has 2 currently","reason":"DisruptionBudget"}]},"kind":"Status","message":"Cannot evict pod as it would violate the pod's disruption budget.","metadata":{},"reason":"TooManyRequests","status":"Failure"}"#]]
    .assert_eq(&call(&w, &p, "eviction", eviction.clone()));
    b["metadata"]["generation"] = 2.into();
    w.api.put(&budgets, b.clone());
    expect![[r#"429 {"apiVersion":"v1","code":429,"details":{"causes":[{"message":"The disruption budget b is still being processed by the server.","reason":"DisruptionBudget"}],"retryAfterSeconds":10},"kind":"Status","message":"Cannot evict pod as it would violate the pod's disruption budget.","metadata":{},"reason":"TooManyRequests","status":"Failure"}"#]]
    .assert_eq(&call(&w, &p, "eviction", eviction.clone()));
    b["status"] =
        json!({"observedGeneration": 2, "disruptionsAllowed": 1, "currentHealthy": 3, "desiredHealthy": 2});
    w.api.put(&budgets, b);
    expect![[r#"201 {"apiVersion":"v1","code":201,"kind":"Status","metadata":{},"status":"Success"}"#]]
        .assert_eq(&call(&w, &p, "eviction", eviction.clone()));
    let left = kaji_resource::ObjectReader::get(w.api.as_ref(), &budgets, "default", "b").unwrap();
    expect![[r#"{"conditions":[{"lastTransitionTime":"2026-01-02T03:04:05Z","message":"","observedGeneration":2,"reason":"InsufficientPods","status":"False","type":"DisruptionAllowed"}],"currentHealthy":3,"desiredHealthy":2,"disruptedPods":{"p":"2026-01-02T03:04:05Z"},"disruptionsAllowed":0,"observedGeneration":2}"#]]
    .assert_eq(&left["status"].to_string());
    assert!(w.api.names(&pods()).is_empty());
    expect![[r#"404 {"apiVersion":"v1","code":404,"details":{"kind":"pods","name":"p"},"kind":"Status","message":"pods \"p\" not found","metadata":{},"reason":"NotFound","status":"Failure"}"#]]
        .assert_eq(&call(&w, &p, "eviction", eviction));
}

#[test]
fn rejects_forbidden_changes_of_the_status() {
    let w = TestContext::default();
    let old = pod(|p| {
        p["status"] = json!({"phase": "Running", "qosClass": "BestEffort", "containerStatuses": [
            {"name": "c", "state": {"terminated": {"exitCode": 0}}}]});
        p["spec"]["restartPolicy"] = "Never".into();
    });
    let mut new = old.clone();
    new["status"] = json!({"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [{"name": "c", "state": {"running": {}}}],
        "conditions": [{"type": "not a name", "status": "True"}]});
    Pods.prepare_update(&w.ctx(&old, "status", "v1"), &mut new, &old);
    assert_eq!(new["status"]["podIPs"], json!([{"ip": "10.0.0.1"}]));
    assert_eq!(new["status"]["qosClass"], "BestEffort");
    expect![[r#"
        status.conditions[0].Type: Invalid value: "not a name": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
        status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"#]]
    .assert_eq(&show(&Pods.validate_update(&w.ctx(&old, "status", "v1"), &new, &old)));
}

#[test]
fn warns_of_deprecated_and_duplicate_fields() {
    let w = TestContext::default();
    let p = pod(|p| {
        p["metadata"]["name"] = "a.b".into();
        p["spec"]["nodeSelector"] = json!({"beta.kubernetes.io/os": "linux"});
        p["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]);
        p["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "100m"}});
        p["spec"]["containers"][0]["ports"] =
            json!([{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "TCP"}]);
        p["spec"]["imagePullSecrets"] = json!([{"name": ""}]);
        p["spec"]["terminationGracePeriodSeconds"] = (-1).into();
    });
    expect![[r#"
        metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]
        spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use "kubernetes.io/os" instead
        spec.imagePullSecrets[0].name: invalid empty name ""
        spec.containers[0].resources.limits[memory]: fractional byte value "100m" is invalid, must be an integer
        spec.containers[0].resources.requests[memory]: fractional byte value "100m" is invalid, must be an integer
        spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using apply
        spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]"#]]
    .assert_eq(&Pods.warnings(&w.ctx(&p, "", "v1"), &p, None).join("\n"));
}

#[test]
fn a_negative_grace_period_of_a_pod_is_a_second() {
    let mut pod = json!({"spec": {"terminationGracePeriodSeconds": -5, "containers": []}});
    def().hooks.default("v1", &mut pod);
    assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 1);
}

#[test]
fn claims_for_extended_resources_name_what_the_pod_asks_for() {
    let w = TestContext::default();
    let old = pod(|p| {
        p["spec"]["initContainers"] = json!([{"name": "i", "image": "i:1"}]);
        p["spec"]["containers"][0]["resources"] = json!({"requests": {"example.com/gpu": "1"}});
    });
    let mapping = |container: &str, resource: &str, request: &str| json!({"containerName": container, "resourceName": resource, "requestName": request});
    let with = |claim: Value| {
        let mut new = old.clone();
        new["status"] = json!({"extendedResourceClaimStatus": claim});
        show(&Pods.validate_update(&w.ctx(&old, "status", "v1"), &new, &old))
    };
    let one = mapping("c", "example.com/gpu", "r-0");
    assert_eq!(with(json!({"resourceClaimName": "x", "requestMappings": [one]})), "");
    expect![[r#"
        status.extendedResourceClaimStatus.requestMappings: Required value: at least one request mapping is required
        status.extendedResourceClaimStatus.resourceClaimName: Required value"#]].assert_eq(&with(json!({})));
    let wrong =
        [&one, &one, &mapping("i", "example.com/gpu", "UPPER"), &mapping("z", "example.com/gpu", "a.b")];
    expect![[r#"
        status.extendedResourceClaimStatus.requestMappings[1].containerName: Duplicate value: "c"
        status.extendedResourceClaimStatus.requestMappings[1].resourceName: Duplicate value: "example.com/gpu"
        status.extendedResourceClaimStatus.requestMappings[1].requestName: Duplicate value: "r-0"
        status.extendedResourceClaimStatus.requestMappings[2].resourceName: Invalid value: "example.com/gpu": must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests
        status.extendedResourceClaimStatus.requestName: Invalid value: "UPPER": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')
        status.extendedResourceClaimStatus.requestMappings[3].containerName: Invalid value: "z": must match the name of an entry in spec.initContainers.name or spec.containers.name
        status.extendedResourceClaimStatus.requestName: Invalid value: "a.b": must not contain dots
        status.extendedResourceClaimStatus.resourceClaimName: Invalid value: "A": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"#]].assert_eq(&with(json!({"resourceClaimName": "A", "requestMappings": wrong})));
}

#[test]
fn statuses_of_containers_are_checked() {
    let w = TestContext::default();
    let old = pod(|p| {
        p["spec"]["containers"][0]["resources"] =
            json!({"requests": {"cpu": "1"}, "claims": [{"name": "a"}, {"name": "b", "request": "r"}]});
    });
    let with = |status: Value| {
        let mut new = old.clone();
        new["status"] = status;
        show(&Pods.validate_update(&w.ctx(&old, "status", "v1"), &new, &old))
    };
    let names = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Value>();
    let right = json!({"name": "c", "allocatedResourcesStatus": names(&["cpu", "claim:a", "claim:b/r"]),
        "user": {"linux": {"uid": 0, "gid": 1, "supplementalGroups": [2]}}});
    assert_eq!(
        with(json!({"containerStatuses": [right], "ephemeralContainerStatuses": [{"name": "e"}]})),
        ""
    );
    let resources = json!([{"resourceID": "x", "health": "Ill", "message": ""}, {"resourceID": "x", "health": "Unknown"}]);
    let wrong = json!({"name": "c", "allocatedResourcesStatus": names(&["memory", "claim:b", "claim:a/r"]),
        "user": {"linux": {"uid": -1, "gid": -1, "supplementalGroups": [-1]}}});
    let other =
        json!({"name": "gone", "allocatedResourcesStatus": [{"name": "any", "resources": resources}]});
    expect![[r#"
        status.containerStatuses[0].user.linux.uid: Invalid value: -1: must be between 0 and 2147483647, inclusive
        status.containerStatuses[0].user.linux.gid: Invalid value: -1: must be between 0 and 2147483647, inclusive
        status.containerStatuses[0].user.linux.supplementalGroups[0]: Invalid value: -1: must be between 0 and 2147483647, inclusive
        status.containerStatuses[0].allocatedResourcesStatus[0].name: Invalid value: "memory": must match one of the container's resource requests
        status.containerStatuses[0].allocatedResourcesStatus[1].name: Invalid value: "claim:b": must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty
        status.containerStatuses[0].allocatedResourcesStatus[2].name: Invalid value: "claim:a/r": must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty
        status.containerStatuses[1].allocatedResourcesStatus[0].resources[0].health: Unsupported value: "Ill": supported values: "Healthy", "Unhealthy", "Unknown"
        status.containerStatuses[1].allocatedResourcesStatus[0].resources[0].message: Required value: must be non-empty if specified
        status.containerStatuses[1].allocatedResourcesStatus[0].resources[1].resourceID: Duplicate value: "x"
        status.ephemeralContainerStatuses[0].allocatedResourcesStatus: Forbidden: must not be specified in container status"#]].assert_eq(&with(json!({"containerStatuses": [wrong, other],
        "ephemeralContainerStatuses": [{"name": "e", "allocatedResourcesStatus": names(&["cpu"])}]})));
    expect![[r#"
        status.podIPs[1]: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)
        status.podIPs: Internal error: failed to check for dual stack with error:invalid IP[1]: x
        status.podIPs: Invalid value: [{"IP":"10.0.0.1"},{"IP":"x"}]: may specify no more than one IP for each IP family"#]].assert_eq(&with(json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "x"}]})));
}
