//! Fixtures: each check, the versions, the labels.

use super::{
    Found, detail, evaluate, existing,
    policy::{Level, LevelVersion, Policy, Version},
};
use expect_test::expect;
use serde_json::{Value, json};
use std::sync::Arc;

fn at(level: Level, version: Version, pod: &Value) -> String {
    detail(&evaluate(LevelVersion { level, version }, pod))
}

fn baseline(spec: Value) -> String {
    at(Level::Baseline, Version::Latest, &json!({"spec": spec}))
}

/// What the restricted level says beyond what every plain container lacks.
fn restricted(spec: Value) -> String {
    let mut pod = json!({"spec": {"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "c", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}});
    for (k, v) in spec.as_object().unwrap() {
        pod["spec"][k] = v.clone();
    }
    at(Level::Restricted, Version::Latest, &pod)
}

fn with_context(context: Value) -> Value {
    json!({"containers": [{"name": "a"}, {"name": "c", "securityContext": context}]})
}

#[test]
fn plain_pod_passes_baseline_only() {
    let plain = json!({"spec": {"containers": [{"name": "c"}]}});
    assert_eq!(at(Level::Baseline, Version::Latest, &plain), "");
    assert_eq!(at(Level::Privileged, Version::Latest, &json!({"spec": {"hostPID": true}})), "");
    expect![[r#"allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container "c" must set securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")"#]]
        .assert_eq(&at(Level::Restricted, Version::Latest, &plain));
    assert_eq!(restricted(json!({})), "");
}

#[test]
fn rejects_what_baseline_forbids() {
    let texts = [
        baseline(json!({"hostNetwork": true, "hostIPC": true})),
        baseline(
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "hostPath": {"path": "/"}}]}),
        ),
        baseline(json!({"containers": [{"name": "a", "ports": [{"hostPort": 80}, {"hostPort": 443}]}]})),
        baseline(
            json!({"containers": [{"name": "a", "livenessProbe": {"httpGet": {"host": "h"}}, "lifecycle": {"preStop": {"tcpSocket": {"host": "g"}}}}]}),
        ),
        baseline(with_context(json!({"privileged": true}))),
        baseline(with_context(json!({"capabilities": {"add": ["CHOWN", "NET_RAW"]}}))),
        baseline(with_context(json!({"procMount": "Unmasked"}))),
        baseline(json!({"securityContext": {"seLinuxOptions": {"type": "x", "user": "u", "role": "r"}}})),
        baseline(with_context(json!({"seccompProfile": {"type": "Unconfined"}}))),
        baseline(with_context(json!({"appArmorProfile": {"type": "Unconfined"}}))),
        baseline(
            json!({"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_rmem"}, {"name": "kernel.x"}]}}),
        ),
        baseline(
            json!({"securityContext": {"windowsOptions": {"hostProcess": true}}, "containers": [{"name": "a", "securityContext": {"windowsOptions": {"hostProcess": true}}}]}),
        ),
    ];
    expect![[r#"
        host namespaces (hostNetwork=true, hostIPC=true)
        hostPath volumes (volumes "v", "w")
        hostPort (container "a" uses hostPorts 443, 80)
        probe or lifecycle host (container "a" uses probe or lifecycle hosts "g", "h")
        privileged (container "c" must not set securityContext.privileged=true)
        non-default capabilities (container "c" must not include "NET_RAW" in securityContext.capabilities.add)
        procMount (container "c" must not set securityContext.procMount to "Unmasked")
        seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type "x"; user may not be set; role may not be set)
        seccompProfile (container "c" must not set securityContext.seccompProfile.type to "Unconfined")
        forbidden AppArmor profile (container "c" must not set AppArmor profile type to "Unconfined")
        forbidden sysctls (kernel.x)
        hostProcess (pod and container "a" must not set securityContext.windowsOptions.hostProcess=true)"#]]
    .assert_eq(&texts.join("\n"));
    let pod = json!({"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}}, "spec": {}});
    expect![[r#"forbidden AppArmor profile (annotation must not set AppArmor profile type to "container.apparmor.security.beta.kubernetes.io/c="unconfined"")"#]]
        .assert_eq(&at(Level::Baseline, Version::Latest, &pod));
}

#[test]
fn rejects_what_restricted_forbids() {
    let context = |more: Value| {
        let mut c = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
        for (k, v) in more.as_object().unwrap() {
            c[k] = v.clone();
        }
        json!({"containers": [{"name": "c", "securityContext": c}]})
    };
    let texts = [
        restricted(context(json!({"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE", "CHOWN"]}}))),
        restricted(
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "nfs": {}}, {"name": "x", "emptyDir": {}}]}),
        ),
        restricted(context(json!({"runAsNonRoot": false}))),
        restricted(context(json!({"runAsUser": 0}))),
        restricted(context(json!({"seccompProfile": {"type": "Unconfined"}}))),
        restricted(context(json!({"procMount": "Unmasked"}))),
        restricted(
            json!({"os": {"name": "windows"}, "securityContext": {"runAsNonRoot": true}, "containers": [{"name": "c"}]}),
        ),
    ];
    expect![[r#"
        unrestricted capabilities (container "c" must not include "CHOWN" in securityContext.capabilities.add)
        restricted volume types (volumes "v", "w" use restricted volume types "hostPath", "nfs")
        runAsNonRoot != true (container "c" must not set securityContext.runAsNonRoot=false)
        runAsUser=0 (container "c" must not set runAsUser=0)
        seccompProfile (container "c" must not set securityContext.seccompProfile.type to "Unconfined")
        procMount (container "c" must not set securityContext.procMount to "Unmasked")
    "#]]
    .assert_eq(&texts.join("\n"));
}

#[test]
fn versions_pin_checks() {
    let old = |minor, spec: Value| at(Level::Baseline, Version::Minor(minor), &json!({"spec": spec}));
    let probe = json!({"containers": [{"name": "a", "startupProbe": {"tcpSocket": {"host": "h"}}}]});
    assert_eq!((old(33, probe.clone()).as_str(), old(34, probe).is_empty()), ("", false));
    let engine = json!({"securityContext": {"seLinuxOptions": {"type": "container_engine_t"}}});
    assert!(!old(30, engine.clone()).is_empty() && old(31, engine).is_empty());
    let sysctl = json!({"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_rmem"}]}});
    assert!(!old(31, sysctl.clone()).is_empty() && old(32, sysctl).is_empty());
    let unmasked = json!({"hostUsers": false, "containers": [{"name": "a", "securityContext": {"procMount": "Unmasked"}}]});
    assert!(!old(34, unmasked.clone()).is_empty() && old(35, unmasked).is_empty());
    let strict = |minor, spec: Value| at(Level::Restricted, Version::Minor(minor), &json!({"spec": spec}));
    let plain = json!({"containers": [{"name": "c"}]});
    expect![[r#"runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true)"#]]
        .assert_eq(&strict(7, plain.clone()));
    assert!(
        !strict(21, plain.clone()).contains("capabilities") && strict(22, plain).contains("capabilities")
    );
    let annotated = json!({"metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}}, "spec": {}});
    expect![[
        r#"seccompProfile (forbidden annotation seccomp.security.alpha.kubernetes.io/pod="unconfined")"#
    ]]
    .assert_eq(&at(Level::Baseline, Version::Minor(18), &annotated));
}

fn policy(labels: Value) -> String {
    let (p, errors) = Policy::of(labels.as_object().unwrap(), &Policy::default());
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    format!("{} {} {} {}", p.enforce, p.audit, p.warn, errors.join(" / "))
}

#[test]
fn reads_policy_from_namespace_labels() {
    assert_eq!(policy(json!({})).trim_end(), "privileged:latest privileged:latest privileged:latest");
    let enforce = "pod-security.kubernetes.io/enforce";
    let version = "pod-security.kubernetes.io/enforce-version";
    let warn = "pod-security.kubernetes.io/warn";
    assert_eq!(
        policy(json!({enforce: "baseline", version: "v1.30"})).trim_end(),
        "baseline:v1.30 privileged:latest baseline:v1.30"
    );
    assert_eq!(
        policy(json!({enforce: "baseline", warn: "privileged"})).trim_end(),
        "baseline:latest privileged:latest privileged:latest"
    );
    expect![[r#"restricted:latest privileged:latest privileged:latest metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: "x": must be one of privileged, baseline, restricted / metadata.labels[pod-security.kubernetes.io/enforce-version]: Invalid value: "v1.01": must be "latest" or "v1.x""#]]
        .assert_eq(&policy(json!({enforce: "x", version: "v1.01"})));
}

#[test]
fn warns_about_existing_pods_by_violation() {
    let pod = |name: &str, spec: Value| Arc::new(json!({"metadata": {"name": name}, "spec": spec}));
    let pods = [
        pod("b", json!({"hostPID": true})),
        pod("a", json!({"hostIPC": true})),
        pod(
            "c",
            json!({"hostPID": true, "containers": [{"name": "c", "securityContext": {"privileged": true}}]}),
        ),
        pod("d", json!({})),
    ];
    let level = LevelVersion { level: Level::Baseline, version: Version::Latest };
    expect![[r#"
        existing pods in namespace "n" violate the new PodSecurity enforce level "baseline:latest"
        a (and 1 other pod): host namespaces
        c: host namespaces, privileged"#]]
    .assert_eq(&existing("n", level, &pods).join("\n"));
    let found = Found { reason: "x", detail: String::new() };
    assert_eq!(detail(&[found]), "x");
}
