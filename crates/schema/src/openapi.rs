//! OpenAPI documents as Kubernetes publishes them: one v3 document a group-version, one v2 document of everything (JSON
//! and gnostic protobuf), from lists of resources and their schemas.
//!
//! Built-in types come from the type table, custom resources from the `openAPIV3Schema` of their definitions. Prose comes
//! from a callback, so that it need not be in memory. Output is deterministic.
//!
//! Clients depend on: definition names, `x-kubernetes-group-version-kind` on types and operations, `x-kubernetes-*` merge
//! keys, `dryRun` and `fieldValidation` among the parameters of PATCH.

use std::collections::BTreeMap;

use kaji_meta::GroupVersion;
use serde_json::{Map, Value, json};

use crate::types::{self, Entry};

mod components;
mod connect;
mod custom;
mod gnostic;
mod operations;
mod roots;
mod shared;
mod v2;
mod v3;

pub use gnostic::to_protobuf;
pub use roots::Root;

/// Content type of the protobuf form of the v2 document.
pub const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// The description of a type, or of one of its fields (by JSON name).
pub type Docs<'a> = &'a dyn Fn(&str, Option<&str>) -> Option<String>;

/// What a resource or subresource holds.
#[derive(Clone, Copy)]
pub enum Model<'a> {
    /// A built-in type.
    BuiltIn(&'static Entry),
    /// A custom resource.
    Custom(&'a Custom),
}

impl Model<'_> {
    /// A built-in kind.
    pub fn of_kind(group: &str, version: &str, kind: &str) -> Option<Model<'static>> {
        types::entry_for_gvk(group, version, kind).map(Model::BuiltIn)
    }

    /// The name of its definition.
    pub fn name(&self) -> String {
        match self {
            Model::BuiltIn(e) => e.name().to_string(),
            Model::Custom(c) => c.definition_name(&c.kind),
        }
    }
}

/// One version of a custom resource.
#[derive(Clone, Debug, Default)]
pub struct Custom {
    /// API group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// Kind of lists.
    pub list_kind: String,
    /// Plural name.
    pub plural: String,
    /// `openAPIV3Schema`, if the version has a structural one.
    pub schema: Option<Value>,
    /// JSON paths of selectable fields (".spec.x").
    pub selectable_fields: Vec<String>,
}

impl Custom {
    /// "com.example.stable.v1.CronTab".
    pub fn definition_name(&self, kind: &str) -> String {
        let group: Vec<&str> = self.group.rsplit('.').collect();
        format!("{}.{}.{kind}", group.join("."), self.version)
    }
}

/// A resource of a group-version.
#[derive(Clone)]
pub struct Resource<'a> {
    /// Name in paths.
    pub plural: &'a str,
    /// Kind of one object.
    pub kind: &'a str,
    /// Kind of a list.
    pub list_kind: &'a str,
    /// In namespaces.
    pub namespaced: bool,
    /// Verbs as in discovery.
    pub verbs: &'a [&'a str],
    /// Its schema.
    pub model: Model<'a>,
    /// Subresources.
    pub subresources: Vec<Subresource<'a>>,
}

/// A subresource.
#[derive(Clone)]
pub struct Subresource<'a> {
    /// Name in paths ("status").
    pub name: &'a str,
    /// Group, version and kind of what it exchanges.
    pub gvk: (&'a str, &'a str, &'a str),
    /// Verbs as in discovery; a subresource that connects (exec, proxy) has only methods here ("connect").
    pub verbs: &'a [&'a str],
    /// Its schema; none for subresources that connect.
    pub model: Option<Model<'a>>,
}

/// The resources of one group-version.
#[derive(Clone)]
pub struct Group<'a> {
    /// Group and version.
    pub group_version: GroupVersion,
    /// Its resources.
    pub resources: Vec<Resource<'a>>,
}

impl Group<'_> {
    /// Whether its resources are custom ones.
    fn is_custom(&self) -> bool {
        self.resources.first().is_some_and(|resource| matches!(resource.model, Model::Custom(_)))
    }

    /// "/api/v1" or "/apis/apps/v1".
    fn root(&self) -> String {
        let gv = &self.group_version;
        match gv.group.is_empty() {
            true => format!("/api/{}", gv.version),
            false => format!("/apis/{}/{}", gv.group, gv.version),
        }
    }
}

/// The OpenAPI v3 document of a group-version.
pub fn v3(group: &Group<'_>, docs: Docs<'_>) -> Value {
    let mut components = components::Components::new(docs, std::slice::from_ref(&group.group_version));
    let mut paths = Map::new();
    for path in operations::paths(group) {
        path.models.iter().for_each(|m| components.add(*m));
        paths.insert(path.path.clone(), v3::path(&path, docs));
    }
    if group.is_custom() {
        // Upstream's server of custom resources makes these on its own.
        return json!({
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes CRD Swagger", "version": "v0.1.0"},
            "paths": paths,
            "components": {"schemas": components.finish()},
        });
    }
    components.add_named("io.k8s.apimachinery.pkg.apis.meta.v1.APIResourceList");
    document_v3(paths, components)
}

/// The OpenAPI v3 document of a path that belongs to no group-version.
pub fn root_v3(root: &Root, docs: Docs<'_>) -> Value {
    let mut components = components::Components::new(docs, &[]);
    root.answer().iter().for_each(|name| components.add_named(name));
    let path = root.path();
    let paths = Map::from_iter([(path.path.clone(), v3::path(&path, docs))]);
    document_v3(paths, components)
}

fn document_v3(paths: Map<String, Value>, components: components::Components<'_>) -> Value {
    let mut parts = Map::from_iter([("securitySchemes".to_owned(), json!({"BearerToken": bearer_token()}))]);
    let schemas = components.finish();
    if !schemas.is_empty() {
        parts.insert("schemas".into(), schemas.into());
    }
    json!({
        "openapi": "3.0.0",
        "info": info(),
        "paths": paths,
        "components": parts,
    })
}

/// The OpenAPI v2 (Swagger) document of all `groups` and `roots`.
pub fn v2(groups: &[Group<'_>], roots: &[Root], docs: Docs<'_>) -> Value {
    let versions: Vec<GroupVersion> = groups.iter().map(|g| g.group_version.clone()).collect();
    let mut components = components::Components::new(docs, &versions);
    let mut paths = Map::new();
    let mut customs: BTreeMap<String, &Custom> = BTreeMap::new();
    for group in groups {
        for path in operations::paths(group) {
            for model in &path.models {
                match model {
                    Model::BuiltIn(_) => components.add(*model),
                    Model::Custom(c) => {
                        customs.insert(model.name(), c);
                        custom::REFERENCES.iter().for_each(|r| components.add_named(r));
                    }
                }
            }
            paths.insert(path.path.clone(), v2::path(&path, docs));
        }
    }
    components.add_named("io.k8s.apimachinery.pkg.apis.meta.v1.APIResourceList");
    for root in roots {
        root.answer().iter().for_each(|name| components.add_named(name));
        let path = root.path();
        paths.insert(path.path.clone(), v2::path(&path, docs));
    }
    let mut definitions: Map<String, Value> =
        components.finish().into_iter().map(|(k, s)| (k, v2::definition(s))).collect();
    for c in customs.values() {
        definitions.extend(custom::definitions_v2(c, docs));
    }
    let parameters = shared::take(&mut paths);
    json!({
        "swagger": "2.0",
        "info": info(),
        "paths": paths,
        "definitions": definitions,
        "parameters": parameters,
        "securityDefinitions": {"BearerToken": bearer_token()},
        "security": [{"BearerToken": []}],
    })
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": "v1.37.0"})
}

fn bearer_token() -> Value {
    json!({"description": "Bearer Token authentication", "in": "header", "name": "authorization", "type": "apiKey"})
}

/// A group, version and kind as documents write it.
fn gvk(group: &str, version: &str, kind: &str) -> Value {
    json!({"group": group, "version": version, "kind": kind})
}

#[cfg(test)]
mod tests;
