//! Field documentation for `kubectl explain` and OpenAPI, taken at run time from the schemas of `k8s-openapi`.
//!
//! Invariants:
//! - Nothing is computed before the first question, and [`release`] gives all memory back until the next one.
//! - Each text is held once: many fields (`metadata`, `kind`, …) share theirs.

mod roots;

use k8s_openapi::schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::Value;
use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

/// The documentation of a type (`io.k8s.api.apps.v1.Deployment`), or of one of its fields.
pub fn type_doc(type_name: &str, field: Option<&str>) -> Option<String> {
    let docs = docs();
    docs.get(type_name, field).map(str::to_owned).or_else(|| list_doc(&docs, type_name, field))
}

/// Drops what has been computed; the next question computes it again.
pub fn release() {
    *CACHE.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

static CACHE: Mutex<Option<Arc<Docs>>> = Mutex::new(None);

fn docs() -> Arc<Docs> {
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    cache.get_or_insert_with(|| Arc::new(Builder::build())).clone()
}

type Span = Range<u32>;

/// Documentation of all types: one text, and where each part of it is.
struct Docs {
    text: Box<str>,
    types: HashMap<Box<str>, TypeDoc>,
}

#[derive(Default)]
struct TypeDoc {
    doc: Span,
    /// Names and documentation, sorted by name.
    fields: Box<[(Span, Span)]>,
}

impl Docs {
    fn slice(&self, span: &Span) -> &str {
        self.text.get(span.start as usize..span.end as usize).unwrap_or("")
    }

    fn get(&self, type_name: &str, field: Option<&str>) -> Option<&str> {
        let ty = self.types.get(type_name)?;
        let span = match field {
            None => &ty.doc,
            Some(name) => {
                let at = ty.fields.binary_search_by(|(n, _)| self.slice(n).cmp(name)).ok()?;
                &ty.fields[at].1
            }
        };
        Some(self.slice(span)).filter(|t| !t.is_empty())
    }
}

/// Lists have no schemas of their own there: their documentation follows from their items'.
fn list_doc(docs: &Docs, type_name: &str, field: Option<&str>) -> Option<String> {
    let item = type_name.strip_suffix("List")?;
    docs.types.get(item)?;
    let kind = item.rsplit('.').next()?;
    match field {
        None => Some(format!("{kind}List is a list of {kind}")),
        Some("items") => Some(format!("List of {kind} objects.")),
        Some("metadata") => Some(
            "Standard list metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds"
                .into(),
        ),
        Some(name) => docs.get(item, Some(name)).map(str::to_owned),
    }
}

/// Collects documentation type by type, dropping each schema once it is read.
struct Builder {
    generator: SchemaGenerator,
    text: String,
    known: HashMap<Box<str>, Span>,
    types: HashMap<Box<str>, TypeDoc>,
}

impl Builder {
    fn build() -> Docs {
        let generator = SchemaSettings::default().into_generator();
        let mut builder =
            Builder { generator, text: String::new(), known: HashMap::new(), types: HashMap::new() };
        roots::visit(&mut builder);
        Docs { text: builder.text.into_boxed_str(), types: builder.types }
    }

    /// Reads a type and all that it refers to.
    fn root<T: JsonSchema>(&mut self) {
        self.generator.subschema_for::<T>();
        let mut fresh = vec![];
        for (name, schema) in self.generator.definitions_mut() {
            if schema.is_object() {
                // The key stays, so that the type is not generated again for the next root.
                fresh.push((name.clone(), std::mem::replace(schema, Value::Bool(true))));
            }
        }
        for (name, schema) in fresh {
            let doc = self.describe(&schema);
            let properties = schema.get("properties").and_then(Value::as_object);
            let mut fields: Vec<(&String, Span)> =
                properties.into_iter().flatten().map(|(k, v)| (k, self.describe(v))).collect();
            fields.sort_by(|a, b| a.0.cmp(b.0));
            let fields = fields.into_iter().map(|(k, d)| (self.intern(k), d)).collect();
            self.types.insert(name.into_boxed_str(), TypeDoc { doc, fields });
        }
    }

    fn describe(&mut self, schema: &Value) -> Span {
        let text = schema.get("description").and_then(Value::as_str).unwrap_or("").to_owned();
        self.intern(&text)
    }

    fn intern(&mut self, text: &str) -> Span {
        if let Some(span) = self.known.get(text) {
            return span.clone();
        }
        let start = self.text.len() as u32;
        self.text.push_str(text);
        let span = start..self.text.len() as u32;
        self.known.insert(text.into(), span.clone());
        span
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn types_and_fields() {
        let show = |t: &str, f: Option<&str>| type_doc(t, f).unwrap_or_else(|| "none".into());
        let all = [
            show("io.k8s.api.apps.v1.Deployment", None),
            show("io.k8s.api.apps.v1.DeploymentSpec", Some("replicas")),
            show("io.k8s.api.core.v1.PodSpec", Some("nodeName")),
            show("io.k8s.api.core.v1.Container", Some("image")),
            show("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", Some("uid")),
            show("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps", Some("$ref")),
            show("io.k8s.api.core.v1.PodList", None),
            show("io.k8s.api.core.v1.PodSpec", Some("nope")),
            show("io.k8s.nope", None),
        ];
        expect![[r#"
            Deployment enables declarative updates for Pods and ReplicaSets.
            Number of desired pods. This is a pointer to distinguish between explicit zero and not specified. Defaults to 1.
            NodeName indicates in which node this pod is scheduled. If empty, this pod is a candidate for scheduling by the scheduler defined in schedulerName. Once this field is set, the kubelet for this node becomes responsible for the lifecycle of this pod. This field should not be used to express a desire for the pod to be scheduled on a specific node. https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#nodename
            Container image name. More info: https://kubernetes.io/docs/concepts/containers/images This field is optional to allow higher level config management to default or override container images in workload controllers like Deployments and StatefulSets.
            UID is the unique in time and space value for this object. It is typically generated by the server on successful creation of a resource and is not allowed to change on PUT operations.

            Populated by the system. Read-only. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#uids
            none
            PodList is a list of Pod
            none
            none"#]].assert_eq(&all.join("\n"));
        release();
        assert!(type_doc("io.k8s.api.core.v1.Pod", None).is_some());
    }

    #[test]
    fn every_kind_is_documented() {
        let deps = crate::shared::testing::deps();
        for def in crate::all(&deps) {
            for version in &def.versions {
                let schema = version.schema.get();
                let name = schema.name.as_ref().map_or("", |n| n.as_ref());
                assert!(type_doc(name, None).is_some(), "{def:?} {name}");
            }
        }
    }
}
