//! An API server of fixtures: objects by path, made of YAML-like JSON, and refusals.

use crate::{Api, Request, RequestError, Subject, explain, explain_forbidden, explain_text};
use futures_util::future::BoxFuture;
use kaji_meta::{labels::Selector, object};
use serde_json::{Value, json};

/// Plural, singular, kind, group version, short name; a name without a namespace is of the cluster.
const RESOURCES: &[(&str, &str, &str, &str, bool)] = &[
    ("pods", "pod", "Pod", "v1", true),
    ("nodes", "node", "Node", "v1", false),
    ("services", "service", "Service", "v1", true),
    ("secrets", "secret", "Secret", "v1", true),
    ("configmaps", "configmap", "ConfigMap", "v1", true),
    ("events", "event", "Event", "v1", true),
    ("namespaces", "namespace", "Namespace", "v1", false),
    ("resourcequotas", "resourcequota", "ResourceQuota", "v1", true),
    ("persistentvolumes", "persistentvolume", "PersistentVolume", "v1", false),
    ("persistentvolumeclaims", "persistentvolumeclaim", "PersistentVolumeClaim", "v1", true),
    ("deployments", "deployment", "Deployment", "apps/v1", true),
    ("replicasets", "replicaset", "ReplicaSet", "apps/v1", true),
    ("storageclasses", "storageclass", "StorageClass", "storage.k8s.io/v1", false),
    ("csidrivers", "csidriver", "CSIDriver", "storage.k8s.io/v1", false),
    ("endpointslices", "endpointslice", "EndpointSlice", "discovery.k8s.io/v1", true),
    ("poddisruptionbudgets", "poddisruptionbudget", "PodDisruptionBudget", "policy/v1", true),
    (
        "horizontalpodautoscalers",
        "horizontalpodautoscaler",
        "HorizontalPodAutoscaler",
        "autoscaling/v2",
        true,
    ),
    (
        "certificatesigningrequests",
        "certificatesigningrequest",
        "CertificateSigningRequest",
        "certificates.k8s.io/v1",
        false,
    ),
    (
        "customresourcedefinitions",
        "customresourcedefinition",
        "CustomResourceDefinition",
        "apiextensions.k8s.io/v1",
        false,
    ),
    ("guards", "guard", "Guard", "acme.example.com/v1", true),
    ("apiservices", "apiservice", "APIService", "apiregistration.k8s.io/v1", false),
    (
        "validatingwebhookconfigurations",
        "validatingwebhookconfiguration",
        "ValidatingWebhookConfiguration",
        "admissionregistration.k8s.io/v1",
        false,
    ),
    ("nodes", "", "NodeMetrics", "metrics.k8s.io/v1beta1", false),
    ("pods", "", "PodMetrics", "metrics.k8s.io/v1beta1", true),
    ("podgroups", "podgroup", "PodGroup", "scheduling.k8s.io/v1beta1", true),
    ("refusals", "refusal", "Refusal", "kaji.dev/v1alpha1", true),
    ("decisions", "decision", "Decision", "kaji.dev/v1alpha1", true),
    ("revisions", "revision", "Revision", "history.kaji.dev/v1alpha1", true),
    ("roles", "role", "Role", "rbac.authorization.k8s.io/v1", true),
    ("clusterroles", "clusterrole", "ClusterRole", "rbac.authorization.k8s.io/v1", false),
    ("rolebindings", "rolebinding", "RoleBinding", "rbac.authorization.k8s.io/v1", true),
    (
        "clusterrolebindings",
        "clusterrolebinding",
        "ClusterRoleBinding",
        "rbac.authorization.k8s.io/v1",
        false,
    ),
];

/// A server.
pub struct Fixture {
    objects: Vec<Value>,
    forbidden: Vec<&'static str>,
    not_served: Vec<&'static str>,
    stale: Vec<&'static str>,
}

/// Of objects `{"kind": ..., "name": ..., ...}` in the namespace `d`; other members are those of the object.
pub fn fixture(objects: &[Value]) -> Fixture {
    Fixture {
        objects: objects.iter().map(complete).collect(),
        forbidden: vec![],
        not_served: vec![],
        stale: vec![],
    }
}

fn complete(object: &Value) -> Value {
    let mut object = object.clone();
    let kind = object["kind"].as_str().unwrap().to_owned();
    let (_, _, _, api_version, namespaced) = *RESOURCES.iter().find(|r| r.2 == kind).unwrap();
    let name = object.as_object_mut().unwrap().remove("name").unwrap();
    let mut metadata = json!({"uid": format!("{kind}-{}", name.as_str().unwrap()), "name": name});
    if namespaced {
        metadata["namespace"] = object.get("namespace").cloned().unwrap_or(json!("d"));
    }
    for (key, value) in object.get("metadata").and_then(Value::as_object).into_iter().flatten() {
        metadata[key] = value.clone();
    }
    object["metadata"] = metadata;
    object["apiVersion"] = json!(api_version);
    object
}

impl Fixture {
    /// Lists and objects with a path that contains this are forbidden.
    pub fn forbidding(mut self, part: &'static str) -> Self {
        self.forbidden.push(part);
        self
    }

    /// The group is not served.
    pub fn not_serving(mut self, group: &'static str) -> Self {
        self.not_served.push(group);
        self
    }

    /// The extension server of the group does not answer.
    pub fn stale(mut self, group: &'static str) -> Self {
        self.stale.push(group);
        self
    }

    /// The explanation of an object, as text.
    pub async fn why(&self, subject: &str) -> String {
        let subject = Subject::parse(&[subject.to_owned()]).unwrap();
        let now = "2026-01-01T00:10:00Z".parse().unwrap();
        match explain(self, &subject, "d", now).await {
            Ok(report) => report.to_string(),
            Err(error) => format!("error: {error}\n"),
        }
    }

    /// The explanation of a refusal, as text.
    pub async fn why_forbidden(&self, text: &str) -> String {
        explain_forbidden(self, &Request::parse(text).unwrap()).await.to_string()
    }

    /// The explanation of a refusal's text, about an object if that is named.
    pub async fn why_text(&self, text: &str, subject: Option<&str>) -> String {
        let subject = subject.map(|subject| Subject::parse(&[subject.to_owned()]).unwrap());
        let now = "2026-01-01T00:10:00Z".parse().unwrap();
        match explain_text(self, text, subject.as_ref(), "d", now).await {
            Ok(Some(report)) => report.to_string(),
            Ok(None) => "no refusal\n".to_owned(),
            Err(error) => format!("error: {error}\n"),
        }
    }

    fn answer(&self, path: &str) -> Result<Value, RequestError> {
        if matches!(path, "/api" | "/apis") {
            let mut document = discovery(path == "/api");
            if let Some(items) = document["items"].as_array_mut() {
                if path == "/apis" {
                    items.extend(self.stale.iter().map(|name| {
                        json!({"metadata": {"name": name}, "versions": [{"version": "v1", "freshness": "Stale"}]})
                    }));
                }
                items.retain(|group| !self.not_served.iter().any(|name| group["metadata"]["name"] == *name));
            }
            return Ok(document);
        }
        if self.forbidden.iter().any(|part| path.contains(part)) {
            return Err(RequestError::Forbidden(format!("{} is forbidden", path.split('?').next().unwrap())));
        }
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let path = path.trim_start_matches("/apis/").trim_start_matches("/api/");
        for (plural, _, kind, api_version, _) in RESOURCES {
            let Some(rest) = path.strip_prefix(api_version).and_then(|rest| rest.strip_prefix('/')) else {
                continue;
            };
            let parts: Vec<&str> = rest.split('/').collect();
            let (namespace, rest) = match parts.as_slice() {
                ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
                rest => (None, rest),
            };
            if rest.first() != Some(plural) {
                continue;
            }
            let of =
                |o: &&Value| object::kind(o) == *kind && namespace.is_none_or(|n| object::namespace(o) == n);
            let mut of_kind = self.objects.iter().filter(of);
            return match rest {
                [_] => {
                    let items: Vec<&Value> = of_kind.filter(|object| selected(object, query)).collect();
                    Ok(
                        json!({"kind": format!("{kind}List"), "apiVersion": api_version, "metadata": {}, "items": items}),
                    )
                }
                [_, name] => of_kind
                    .find(|object| object::name(object) == *name)
                    .cloned()
                    .ok_or_else(|| RequestError::NotFound(format!("{plural} \"{name}\" not found"))),
                _ => Err(RequestError::NotFound("no such path".to_owned())),
            };
        }
        Err(RequestError::NotFound(format!("{path} is not served")))
    }
}

fn selected(object: &Value, query: &str) -> bool {
    query.split('&').all(|pair| match pair.split_once('=') {
        Some(("labelSelector", selector)) => {
            let text = selector.replace("%2F", "/").replace("%3D", "=");
            Selector::parse(&text).unwrap().matches_object(object)
        }
        Some(("fieldSelector", selector)) => {
            let text = selector.replace("%3D", "=").replace("%2C", ",");
            text.split(',').all(|term| {
                let (path, wanted) = term.split_once('=').unwrap();
                let pointer = format!("/{}", path.replace('.', "/"));
                object.pointer(&pointer).and_then(Value::as_str).unwrap_or_default() == wanted
            })
        }
        _ => true,
    })
}

fn discovery(core: bool) -> Value {
    let of = RESOURCES.iter().filter(|r| r.3.contains('/') != core);
    let items = of.map(|(plural, singular, kind, api_version, namespaced)| {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let scope = if *namespaced { "Namespaced" } else { "Cluster" };
        json!({"metadata": {"name": group}, "versions": [{"version": version, "resources": [{
            "resource": plural, "singularResource": singular, "responseKind": {"kind": kind}, "scope": scope, "verbs": ["list", "delete"],
        }]}]})
    });
    json!({"items": items.collect::<Vec<_>>()})
}

impl Api for Fixture {
    fn get<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Value, RequestError>> {
        Box::pin(async move { self.answer(path) })
    }

    fn text<'a>(&'a self, _path: &'a str, _limit: usize) -> BoxFuture<'a, Result<String, RequestError>> {
        Box::pin(async { Ok("starting\nfatal: no configuration\n".to_owned()) })
    }
}
