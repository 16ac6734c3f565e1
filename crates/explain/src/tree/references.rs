//! The objects that an object names in its spec.

use kaji_meta::object::{self, arr_at, str_at};
use serde_json::Value;
use std::collections::BTreeSet;

/// A name in an object.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    pub kind: &'static str,
    pub api_version: &'static str,
    pub name: String,
    /// Whether the object may be missing.
    pub optional: bool,
}

/// What the object names: of pods and what has a template of them, autoscalers, claims, bindings, ingresses.
pub fn references(object: &Value) -> BTreeSet<Reference> {
    let mut all = BTreeSet::new();
    let mut add = |kind, api_version, name: &str, optional| {
        if !name.is_empty() {
            all.insert(Reference { kind, api_version, name: name.to_owned(), optional });
        }
    };
    let spec = &object["spec"];
    let pod = match object::kind(object) {
        "Pod" => Some(spec),
        _ => spec.pointer("/jobTemplate/spec/template/spec").or_else(|| spec.pointer("/template/spec")),
    };
    if let Some(pod) = pod {
        pod_references(pod, &mut add);
    }
    if pod.is_some() {
        add("Service", "v1", str_at(spec, &["serviceName"]), false);
    }
    match object::kind(object) {
        "PersistentVolumeClaim" => {
            add("PersistentVolume", "v1", str_at(spec, &["volumeName"]), false);
            add("StorageClass", "storage.k8s.io/v1", str_at(spec, &["storageClassName"]), false);
        }
        "Ingress" => {
            add("IngressClass", "networking.k8s.io/v1", str_at(spec, &["ingressClassName"]), false);
            add("Service", "v1", str_at(spec, &["defaultBackend", "service", "name"]), false);
            for rule in arr_at(spec, &["rules"]) {
                for path in arr_at(rule, &["http", "paths"]) {
                    add("Service", "v1", str_at(path, &["backend", "service", "name"]), false);
                }
            }
            for tls in arr_at(spec, &["tls"]) {
                add("Secret", "v1", str_at(tls, &["secretName"]), false);
            }
        }
        "RoleBinding" | "ClusterRoleBinding" => {
            let kind = if str_at(object, &["roleRef", "kind"]) == "Role" { "Role" } else { "ClusterRole" };
            add(kind, "rbac.authorization.k8s.io/v1", str_at(object, &["roleRef", "name"]), false);
        }
        _ => {}
    }
    all
}

fn pod_references(pod: &Value, add: &mut impl FnMut(&'static str, &'static str, &str, bool)) {
    let optional = |source: &Value| object::bool_at(source, &["optional"]).unwrap_or_default();
    add("ServiceAccount", "v1", str_at(pod, &["serviceAccountName"]), false);
    add("Node", "v1", str_at(pod, &["nodeName"]), false);
    add("PriorityClass", "scheduling.k8s.io/v1", str_at(pod, &["priorityClassName"]), false);
    for secret in arr_at(pod, &["imagePullSecrets"]) {
        add("Secret", "v1", str_at(secret, &["name"]), true);
    }
    for volume in arr_at(pod, &["volumes"]) {
        let source = |name: &str| volume.get(name).unwrap_or(&Value::Null);
        add("PersistentVolumeClaim", "v1", str_at(source("persistentVolumeClaim"), &["claimName"]), false);
        add("Secret", "v1", str_at(source("secret"), &["secretName"]), optional(source("secret")));
        add("ConfigMap", "v1", str_at(source("configMap"), &["name"]), optional(source("configMap")));
        for projected in arr_at(volume, &["projected", "sources"]) {
            for (member, kind) in [("secret", "Secret"), ("configMap", "ConfigMap")] {
                let source = projected.get(member).unwrap_or(&Value::Null);
                add(kind, "v1", str_at(source, &["name"]), optional(source));
            }
        }
    }
    for list in ["containers", "initContainers"] {
        for container in arr_at(pod, &[list]) {
            for variable in arr_at(container, &["env"]) {
                for (member, kind) in [("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")] {
                    let source = object::at(variable, &["valueFrom", member]).unwrap_or(&Value::Null);
                    add(kind, "v1", str_at(source, &["name"]), optional(source));
                }
            }
            for from in arr_at(container, &["envFrom"]) {
                for (member, kind) in [("secretRef", "Secret"), ("configMapRef", "ConfigMap")] {
                    let source = from.get(member).unwrap_or(&Value::Null);
                    add(kind, "v1", str_at(source, &["name"]), optional(source));
                }
            }
        }
    }
}
