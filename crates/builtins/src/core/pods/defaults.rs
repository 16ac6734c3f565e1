//! Defaults of pods and pod templates (`v1`).
//!
//! Invariants: idempotent, because objects read back are defaulted again; what only pods get (requests from limits,
//! host ports, `enableServiceLinks`) is never put into templates.

use super::{CONTAINER_LISTS, image};
use crate::shared::{
    Fields,
    rules::round_quantities,
    value::{default_int, default_text, ensure_object, list_mut, object_mut, put, set_default},
};
use serde_json::{Value, json};

/// Defaults of a pod.
pub fn pod(pod: &mut Value) {
    let spec = ensure_object(pod, "spec");
    spec_fields(spec);
    pod_only(spec);
    if let Some(status) = object_mut(pod, "status") {
        for list in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
            for s in list_mut(status, list) {
                round_quantities(s, "allocatedResources");
                requirements(s);
            }
        }
        round_quantities(status, "allocatedResources");
        requirements(status);
    }
}

/// Defaults of a pod template, at `key` of its owner (`template`).
pub fn template(owner: &mut Value, key: &str) {
    let template = ensure_object(owner, key);
    ensure_object(template, "metadata");
    spec_fields(ensure_object(template, "spec"));
}

/// What every pod spec gets.
fn spec_fields(spec: &mut Value) {
    default_text(spec, "dnsPolicy", "ClusterFirst");
    default_text(spec, "restartPolicy", "Always");
    set_default(spec, "securityContext", || json!({}));
    set_default(spec, "terminationGracePeriodSeconds", || 30.into());
    default_text(spec, "schedulerName", "default-scheduler");
    service_account(spec);
    for v in list_mut(spec, "volumes") {
        volume(v);
    }
    for list in CONTAINER_LISTS {
        for c in list_mut(spec, list) {
            container(c);
        }
    }
    round_quantities(spec, "overhead");
    requirements(spec);
}

/// `serviceAccount` is the old name of `serviceAccountName`; both are kept equal, the new one wins.
fn service_account(spec: &mut Value) {
    let name = match (spec.text("serviceAccountName"), spec.text("serviceAccount")) {
        ("", "") => return,
        ("", old) => old.to_owned(),
        (new, old) if new == old => return,
        (new, _) => new.to_owned(),
    };
    put(spec, "serviceAccount", name.as_str());
    put(spec, "serviceAccountName", name);
}

/// What a pod's spec gets beyond a template's.
fn pod_only(spec: &mut Value) {
    for list in ["containers", "initContainers"] {
        for c in list_mut(spec, list) {
            requests_from_limits(c);
        }
    }
    set_default(spec, "enableServiceLinks", || true.into());
    if spec.flag("hostNetwork") {
        for list in ["containers", "initContainers"] {
            for p in list_mut(spec, list).iter_mut().flat_map(|c| list_mut(c, "ports")) {
                let port = p.int("containerPort");
                default_int(p, "hostPort", port);
            }
        }
    }
}

/// A resource with a limit and no request requests its limit.
fn requests_from_limits(container: &mut Value) {
    let limits = container.at("resources").at("limits");
    let Some(limits) = limits.as_object().filter(|l| !l.is_empty()).cloned() else { return };
    let requests = ensure_object(ensure_object(container, "resources"), "requests");
    for (name, quantity) in limits {
        set_default(requests, &name, || quantity);
    }
}

fn container(c: &mut Value) {
    if c.text("imagePullPolicy").is_empty() {
        let policy = image::default_pull_policy(c.text("image"));
        put(c, "imagePullPolicy", policy);
    }
    default_text(c, "terminationMessagePath", "/dev/termination-log");
    default_text(c, "terminationMessagePolicy", "File");
    set_default(c, "resources", || json!({}));
    requirements(c);
    for p in list_mut(c, "ports") {
        default_text(p, "protocol", "TCP");
    }
    for e in list_mut(c, "env") {
        let Some(from) = object_mut(e, "valueFrom") else { continue };
        field_ref(from);
        if let Some(f) = object_mut(from, "fileKeyRef") {
            set_default(f, "optional", || false.into());
        }
        if let Some(r) = object_mut(from, "resourceFieldRef") {
            // Go writes this struct even when it is zero.
            set_default(r, "divisor", || "0".into());
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(p) = object_mut(c, name) {
            probe(p);
        }
    }
    if let Some(l) = object_mut(c, "lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(h) = object_mut(l, hook).and_then(|h| object_mut(h, "httpGet")) {
                http_get(h);
            }
        }
    }
}

fn probe(p: &mut Value) {
    default_int(p, "timeoutSeconds", 1);
    default_int(p, "periodSeconds", 10);
    default_int(p, "successThreshold", 1);
    default_int(p, "failureThreshold", 3);
    if let Some(h) = object_mut(p, "httpGet") {
        http_get(h);
    }
    if let Some(g) = object_mut(p, "grpc") {
        set_default(g, "service", || "".into());
    }
}

fn http_get(h: &mut Value) {
    default_text(h, "path", "/");
    default_text(h, "scheme", "HTTP");
}

fn field_ref(holder: &mut Value) {
    if let Some(f) = object_mut(holder, "fieldRef") {
        default_text(f, "apiVersion", "v1");
    }
}

fn downward_items(source: &mut Value) {
    for item in list_mut(source, "items") {
        field_ref(item);
        if let Some(r) = object_mut(item, "resourceFieldRef") {
            set_default(r, "divisor", || "0".into());
        }
    }
}

fn volume(v: &mut Value) {
    let empty = v.as_object().is_some_and(|m| m.iter().all(|(k, v)| k == "name" || v.is_null()));
    if empty {
        put(v, "emptyDir", json!({}));
    }
    if let Some(i) = object_mut(v, "image")
        && i.text("pullPolicy").is_empty()
    {
        let policy = image::default_pull_policy(i.text("reference"));
        put(i, "pullPolicy", policy);
    }
    for name in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(s) = object_mut(v, name) {
            set_default(s, "defaultMode", || 0o644.into());
        }
    }
    if let Some(d) = object_mut(v, "downwardAPI") {
        downward_items(d);
    }
    if let Some(p) = object_mut(v, "projected") {
        for source in list_mut(p, "sources") {
            if let Some(d) = object_mut(source, "downwardAPI") {
                downward_items(d);
            }
            if let Some(t) = object_mut(source, "serviceAccountToken") {
                set_default(t, "expirationSeconds", || 3600.into());
            }
        }
    }
    if let Some(t) = object_mut(v, "ephemeral").and_then(|e| object_mut(e, "volumeClaimTemplate")) {
        ensure_object(t, "metadata");
        claim_spec(ensure_object(t, "spec"));
    }
    volume_source(v);
}

/// Defaults of the sources that PersistentVolumes have, too. Those of plug-ins of old still have some.
pub fn volume_source(v: &mut Value) {
    if let Some(h) = object_mut(v, "hostPath") {
        set_default(h, "type", || "".into());
    }
    if let Some(i) = object_mut(v, "iscsi") {
        default_text(i, "iscsiInterface", "default");
    }
    if let Some(r) = object_mut(v, "rbd") {
        default_text(r, "pool", "rbd");
        default_text(r, "user", "admin");
        default_text(r, "keyring", "/etc/ceph/keyring");
    }
    if let Some(a) = object_mut(v, "azureDisk") {
        set_default(a, "cachingMode", || "ReadWrite".into());
        set_default(a, "fsType", || "ext4".into());
        set_default(a, "readOnly", || false.into());
        set_default(a, "kind", || "Shared".into());
    }
    if let Some(s) = object_mut(v, "scaleIO") {
        default_text(s, "storageMode", "ThinProvisioned");
        default_text(s, "fsType", "xfs");
    }
}

/// Defaults of a PersistentVolumeClaim's spec.
pub fn claim_spec(spec: &mut Value) {
    set_default(spec, "volumeMode", || "Filesystem".into());
    set_default(spec, "resources", || json!({}));
    requirements(spec);
}

/// Rounds the quantities of `resources.limits` and `.requests`.
fn requirements(holder: &mut Value) {
    if let Some(r) = object_mut(holder, "resources") {
        round_quantities(r, "limits");
        round_quantities(r, "requests");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn fills_in_the_defaults_of_a_pod() {
        let mut p = json!({"spec": {
            "hostNetwork": true,
            "serviceAccount": "old",
            "containers": [{
                "name": "a", "image": "nginx",
                "ports": [{"containerPort": 80}],
                "resources": {"limits": {"cpu": "1u", "memory": "1Gi"}},
                "livenessProbe": {"httpGet": {"port": 80}},
                "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
            }],
            "volumes": [{"name": "v"}, {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]
        }});
        pod(&mut p);
        let once = p.clone();
        pod(&mut p);
        assert_eq!(once, p);
        expect![[r#"
            {
              "spec": {
                "containers": [
                  {
                    "env": [
                      {
                        "name": "N",
                        "valueFrom": {
                          "fieldRef": {
                            "apiVersion": "v1",
                            "fieldPath": "metadata.name"
                          }
                        }
                      }
                    ],
                    "image": "nginx",
                    "imagePullPolicy": "Always",
                    "livenessProbe": {
                      "failureThreshold": 3,
                      "httpGet": {
                        "path": "/",
                        "port": 80,
                        "scheme": "HTTP"
                      },
                      "periodSeconds": 10,
                      "successThreshold": 1,
                      "timeoutSeconds": 1
                    },
                    "name": "a",
                    "ports": [
                      {
                        "containerPort": 80,
                        "hostPort": 80,
                        "protocol": "TCP"
                      }
                    ],
                    "resources": {
                      "limits": {
                        "cpu": "1m",
                        "memory": "1Gi"
                      },
                      "requests": {
                        "cpu": "1m",
                        "memory": "1Gi"
                      }
                    },
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File"
                  }
                ],
                "dnsPolicy": "ClusterFirst",
                "enableServiceLinks": true,
                "hostNetwork": true,
                "restartPolicy": "Always",
                "schedulerName": "default-scheduler",
                "securityContext": {},
                "serviceAccount": "old",
                "serviceAccountName": "old",
                "terminationGracePeriodSeconds": 30,
                "volumes": [
                  {
                    "emptyDir": {},
                    "name": "v"
                  },
                  {
                    "name": "p",
                    "projected": {
                      "defaultMode": 420,
                      "sources": [
                        {
                          "serviceAccountToken": {
                            "expirationSeconds": 3600,
                            "path": "t"
                          }
                        }
                      ]
                    }
                  }
                ]
              }
            }"#]]
        .assert_eq(&serde_json::to_string_pretty(&p).unwrap());
    }
}
