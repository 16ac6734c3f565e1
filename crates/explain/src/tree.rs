//! What an object hangs on and what hangs on it: owners above, dependents below, and references beside.
//!
//! Invariants: dependents are objects with an owner reference to the object's uid, over all kinds that the caller may list; kinds that could
//! not be listed are named. A tree ends at a depth and at a number of objects, and says so.

use crate::{
    Api, ExplainError, Refusal, Subject,
    discovery::{Discovery, Resource},
    reader::{Found, Reader},
};
use kaji_meta::object::{self, arr_at, str_at};
use serde_json::Value;
use std::{
    collections::{BTreeSet, HashMap},
    fmt::Write as _,
    sync::Arc,
};

/// Owners of owners, and dependents of dependents.
const DEPTH: usize = 8;
/// Objects of a tree.
const OBJECTS: usize = 2_000;

/// The tree of an object as text.
///
/// # Errors
/// When the object cannot be read.
pub async fn tree(api: &dyn Api, subject: &Subject, namespace: &str) -> Result<String, ExplainError> {
    let reader = Reader::new(api);
    let discovery = Discovery::read(api).await?;
    let resource = discovery.resolve(&subject.kind)?;
    let namespace = if resource.namespaced { namespace } else { "" };
    let object =
        api.get(&resource.path(namespace, &subject.name)).await.map_err(|refusal| match refusal {
            Refusal::NotFound(text) => ExplainError::NotFound(text),
            Refusal::Forbidden(text) | Refusal::Failed(text) => ExplainError::Unreadable(text),
        })?;
    let dependents = dependents(&reader, &discovery, resource, namespace).await;
    let mut lines = vec![];
    owners(&reader, &discovery, &object, 0, &mut lines).await;
    lines.reverse();
    let mut out = String::new();
    for (depth, line) in lines.iter().enumerate() {
        // A String takes any text.
        let _ = writeln!(out, "{}{line}", "  ".repeat(depth));
    }
    let mut tree =
        Tree { reader: &reader, discovery: &discovery, dependents: &dependents, shown: BTreeSet::new(), out };
    tree.add(&object, lines.len(), 0).await;
    let mut out = tree.out;
    for refused in reader.refused() {
        let _ = writeln!(out, "unknown: {refused}");
    }
    Ok(out)
}

/// Objects by the uids of their owners.
type Dependents = HashMap<String, Vec<Arc<Value>>>;

/// All objects with owners that may depend on the object: those of its namespace, or, for objects of the cluster, all.
async fn dependents(
    reader: &Reader<'_>,
    discovery: &Discovery,
    of: &Resource,
    namespace: &str,
) -> Dependents {
    let of_cluster = !of.namespaced;
    let kinds = discovery.stored().filter(|resource| resource.plural != "events");
    let kinds = kinds.filter(|resource| of_cluster || resource.namespaced);
    let paths: Vec<String> = kinds.map(|resource| resource.path(namespace, "")).collect();
    let mut all = Dependents::new();
    for list in reader.lists(&paths).await.into_iter().flatten() {
        for object in list.iter().filter(|object| !object::owner_references(object).is_empty()) {
            let shared = Arc::new(object.clone());
            for owner in object::owner_references(object) {
                all.entry(str_at(owner, &["uid"]).to_owned()).or_default().push(shared.clone());
            }
        }
    }
    all
}

/// Adds the first owner, its first owner and so on; further owners are named beside.
async fn owners(
    reader: &Reader<'_>,
    discovery: &Discovery,
    object: &Value,
    depth: usize,
    lines: &mut Vec<String>,
) {
    let references = object::owner_references(object);
    let controller = object::controller_of(object).or_else(|| references.first());
    let Some(owner) = controller.filter(|_| depth < DEPTH) else { return };
    let (kind, name) = (str_at(owner, &["kind"]), str_at(owner, &["name"]));
    let others = references.len() - 1;
    let more = if others > 0 { format!(" (and {others} more owners)") } else { String::new() };
    let found = match discovery.of_kind(str_at(owner, &["apiVersion"]), kind) {
        Some(resource) => {
            let namespace = if resource.namespaced { object::namespace(object) } else { "" };
            reader.get(&resource.path(namespace, name)).await
        }
        None => Found::Absent,
    };
    let state = match &found {
        Found::Object(found) if object::uid(found) == str_at(owner, &["uid"]) => status(found),
        Found::Object(_) => " (another object has its name now)".to_owned(),
        Found::Absent => " (not there)".to_owned(),
        Found::Unreadable => " (not readable)".to_owned(),
    };
    lines.push(format!("{kind}/{name}{state}{more}"));
    if let Some(found) = found.object() {
        Box::pin(owners(reader, discovery, found, depth + 1, lines)).await;
    }
}

struct Tree<'a> {
    reader: &'a Reader<'a>,
    discovery: &'a Discovery,
    dependents: &'a Dependents,
    /// Uids.
    shown: BTreeSet<String>,
    out: String,
}

impl Tree<'_> {
    async fn add(&mut self, object: &Value, indent: usize, depth: usize) {
        let mark = if depth == 0 { "* " } else { "" };
        self.line(
            indent,
            &format!("{mark}{}/{}{}", object::kind(object), object::name(object), status(object)),
        );
        if !self.shown.insert(object::uid(object).to_owned()) {
            return;
        }
        for reference in references(object) {
            let state = match self.discovery.of_kind(reference.api_version, reference.kind) {
                Some(resource) => {
                    let namespace = if resource.namespaced { object::namespace(object) } else { "" };
                    match self.reader.get(&resource.path(namespace, &reference.name)).await {
                        Found::Object(_) => "",
                        Found::Absent if reference.optional => " (not there, optional)",
                        Found::Absent => " (not there)",
                        Found::Unreadable => " (not readable)",
                    }
                }
                None => " (kind not served)",
            };
            self.line(indent + 1, &format!("-> {}/{}{state}", reference.kind, reference.name));
        }
        let below = self.dependents.get(object::uid(object)).map(Vec::as_slice).unwrap_or_default();
        if depth >= DEPTH && !below.is_empty() {
            self.line(indent + 1, &format!("... {} dependents, deeper than is shown", below.len()));
            return;
        }
        for (place, dependent) in below.iter().enumerate() {
            if self.shown.len() >= OBJECTS {
                self.line(indent + 1, &format!("... {} more dependents", below.len() - place));
                return;
            }
            Box::pin(self.add(dependent, indent + 1, depth + 1)).await;
        }
    }

    fn line(&mut self, indent: usize, text: &str) {
        let _ = writeln!(self.out, "{}{text}", "  ".repeat(indent));
    }
}

/// What an object's state is, in a word, where it has one.
fn status(object: &Value) -> String {
    if object::deletion_timestamp(object).is_some() {
        return " (being deleted)".to_owned();
    }
    let phase = str_at(object, &["status", "phase"]);
    if !phase.is_empty() {
        return format!(" ({phase})");
    }
    let wanted = object::i64_at(object, &["spec", "replicas"]);
    match wanted {
        Some(wanted) => {
            let ready = object::i64_at(object, &["status", "readyReplicas"]).unwrap_or(0);
            format!(" ({ready}/{wanted} ready)")
        }
        None => String::new(),
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Reference {
    kind: &'static str,
    api_version: &'static str,
    name: String,
    optional: bool,
}

/// What the object names: of pods and what has a template of them, autoscalers, claims, bindings, ingresses.
fn references(object: &Value) -> BTreeSet<Reference> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fixture;
    use serde_json::json;

    fn owned(kind: &str, name: &str) -> Value {
        json!({"ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": format!("{kind}-{name}"), "controller": true}]})
    }

    #[tokio::test]
    async fn owners_dependents_and_references() {
        let server = fixture(&[
            json!({"kind": "Deployment", "name": "web", "spec": {"replicas": 1}, "status": {"readyReplicas": 1}}),
            json!({"kind": "ReplicaSet", "name": "web-1", "metadata": owned("Deployment", "web")}),
            json!({"kind": "Pod", "name": "web-1-a", "metadata": owned("ReplicaSet", "web-1"), "status": {"phase": "Running"},
                "spec": {"volumes": [{"configMap": {"name": "settings"}}, {"secret": {"secretName": "gone", "optional": true}}]}}),
            json!({"kind": "ConfigMap", "name": "settings"}),
        ]);
        let subject = Subject { kind: "replicaset".into(), name: "web-1".into() };
        let text = tree(&server, &subject, "d").await.unwrap();
        expect_test::expect![[r"
            Deployment/web (1/1 ready)
              * ReplicaSet/web-1
                Pod/web-1-a (Running)
                  -> ConfigMap/settings
                  -> Secret/gone (not there, optional)
        "]]
        .assert_eq(&text);
    }
}
