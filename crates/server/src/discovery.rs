//! Discovery: which groups, versions and resources are served; legacy documents and the aggregated v2 list.
//! Source: Kubernetes API concepts, "API discovery"; KEP-3352.
//!
//! Invariant: every document is a function of the registry and of what is known of extension servers, never of a call to
//! one. The aggregated one is kept, with its ETag, until either changes.

use kaji_aggregator::{
    Aggregator, Extension, Extensions,
    priorities::{self, Priority, version_rank},
};
use kaji_engine::{Registry, Resource};
use kaji_meta::{GroupVersionKind, Status};
use kaji_resource::{ResourceDef, SubresourceDef, SubresourceKind, Verb, VersionDef};
use kaji_schema::SchemaRef;
use serde_json::{Value, json};
use sha2::{Digest, Sha512};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// An encoded document with its ETag.
#[derive(Clone)]
pub struct Document {
    /// JSON.
    pub body: bytes::Bytes,
    /// Quoted entity tag.
    pub etag: String,
}

/// What documents are made of: the registry's generation and the extensions'.
type Generations = (u64, (u64, u64));

/// Discovery of one server.
#[derive(Default)]
pub struct Discovery {
    aggregated: Mutex<Option<(Generations, Document, Document)>>,
}

/// One group with its versions in order of preference.
struct Group {
    name: String,
    versions: Vec<(String, Content)>,
}

/// What a version consists of.
enum Content {
    /// Resources of this server, by name.
    Here(Vec<Arc<Resource>>),
    /// What another server says.
    Extension(Arc<Value>),
}

impl Discovery {
    /// `GET /api` or `/apis` with `as=APIGroupDiscoveryList`: the core group alone, or all others.
    pub fn aggregated(&self, registry: &Registry, aggregator: &Aggregator, core: bool) -> Document {
        let mut kept = self.aggregated.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let made = (registry.generation, aggregator.generation());
        if kept.as_ref().is_none_or(|(of, ..)| *of != made) {
            let extensions = aggregator.extensions();
            let (own, other): (Vec<Group>, Vec<Group>) =
                grouped(registry.iter(), &extensions).into_iter().partition(|g| g.name.is_empty());
            let made = (registry.generation, extensions.generation);
            *kept = Some((made, document(&own), document(&other)));
        }
        let empty = || Document { body: bytes::Bytes::new(), etag: String::new() };
        kept.as_ref().map_or_else(empty, |(_, own, other)| if core { own.clone() } else { other.clone() })
    }

    /// `GET /api`
    pub fn core_versions(address: &str) -> Value {
        json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
        })
    }

    /// `GET /apis`
    pub fn group_list(registry: &Registry, extensions: &Extensions) -> Value {
        let groups: Vec<Value> = grouped(registry.iter(), extensions)
            .iter()
            .filter(|g| !g.name.is_empty())
            .map(group_value)
            .collect();
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    }

    /// `GET /apis/{group}`
    pub fn group(registry: &Registry, extensions: &Extensions, name: &str) -> Option<Value> {
        let mut extensions = extensions.clone();
        extensions.versions.retain(|e| e.group == name);
        let found = grouped(registry.iter().filter(|r| r.def.group == name), &extensions).pop()?;
        let mut value = group_value(&found);
        value["kind"] = "APIGroup".into();
        value["apiVersion"] = "v1".into();
        Some(value)
    }

    /// `GET /api/v1` and `/apis/{group}/{version}` of what is served here.
    pub fn resources(registry: &Registry, group: &str, version: &str) -> Result<Value, Status> {
        let own = registry.iter().filter(|r| r.def.group == group);
        let found = grouped(own, &Extensions::default()).pop();
        let found = found.and_then(|g| g.versions.into_iter().find(|(v, _)| v == version));
        let Some((_, Content::Here(resources))) = found else { return Err(Status::generic_not_found()) };
        let list: Vec<Value> = resources
            .iter()
            .filter_map(|r| Some((r, r.def.version(version)?)))
            .flat_map(|(r, v)| legacy(r, v))
            .collect();
        let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let mut value = json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": list});
        // As upstream: the core group's list has no apiVersion.
        if !group.is_empty() {
            value["apiVersion"] = "v1".into();
        }
        Ok(value)
    }
}

/// Where a version of this server stands.
fn priority(group: &str, version: &str) -> Priority {
    match group {
        "apiregistration.k8s.io" => priorities::OWN,
        _ => priorities::builtin(group, version).unwrap_or(priorities::CUSTOM),
    }
}

/// Groups by the highest priority of any of their versions, then by name; versions by priority, then as Kubernetes orders
/// them. Group versions of extension servers take precedence over those of this server with the same name.
fn grouped<'a>(resources: impl Iterator<Item = &'a Arc<Resource>>, extensions: &Extensions) -> Vec<Group> {
    type Versions = BTreeMap<String, (Priority, Content)>;
    let mut found: BTreeMap<String, Versions> = BTreeMap::new();
    for Extension { group, version, group_priority, version_priority, document } in &extensions.versions {
        let priority = Priority { group: *group_priority, version: *version_priority };
        let content = Content::Extension(document.clone());
        found.entry(group.clone()).or_default().insert(version.clone(), (priority, content));
    }
    for resource in resources {
        let group: &str = &resource.def.group;
        for version in resource.def.versions.iter().filter(|v| v.served) {
            let make = || (priority(group, &version.name), Content::Here(vec![]));
            let versions = found.entry(group.to_owned()).or_default();
            let (_, content) = versions.entry(version.name.to_string()).or_insert_with(make);
            if let Content::Here(resources) = content {
                resources.push(resource.clone());
            }
        }
    }
    let mut groups: Vec<(i64, Group)> = vec![];
    for (name, versions) in found {
        let Some(highest) = versions.values().map(|(p, _)| p.group).max() else { continue };
        let mut versions: Vec<_> = versions.into_iter().collect();
        versions.sort_by(|(a, (p, _)), (b, (q, _))| {
            q.version.cmp(&p.version).then_with(|| version_rank(b).cmp(&version_rank(a))).then(a.cmp(b))
        });
        let sorted = |(version, (_, mut content)): (String, (Priority, Content))| {
            if let Content::Here(resources) = &mut content {
                resources.sort_by(|a, b| a.def.plural.cmp(&b.def.plural));
            }
            (version, content)
        };
        groups.push((highest, Group { name, versions: versions.into_iter().map(sorted).collect() }));
    }
    // Stable: names of the same priority stay in order.
    groups.sort_by_key(|(priority, _)| std::cmp::Reverse(*priority));
    groups.into_iter().map(|(_, group)| group).collect()
}

fn group_value(group: &Group) -> Value {
    let version = |v: &str| json!({"groupVersion": format!("{}/{v}", group.name), "version": v});
    let versions: Vec<Value> = group.versions.iter().map(|(v, _)| version(v)).collect();
    json!({"name": group.name, "preferredVersion": versions[0], "versions": versions})
}

/// Verbs in discovery's order. Only the main resource of something stored can be watched and so on; defs say so.
fn verbs(list: &[Verb]) -> Vec<&'static str> {
    list.iter().map(|v| v.as_str()).collect()
}

/// The verbs of a main resource. Upstream lists those of custom ones in an order of their own: what a definition that is
/// being deleted still serves, then the rest.
fn main_verbs(def: &ResourceDef, custom: bool) -> Vec<&'static str> {
    const RANKS: [&str; 8] =
        ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
    let hidden = def.undiscovered_verbs;
    let shown = def.verbs.iter().filter(|v| !hidden.contains(v)).map(|v| v.as_str());
    let mut verbs: Vec<&str> = shown.collect();
    if custom {
        verbs.sort_by_key(|verb| RANKS.iter().position(|v| v == verb));
    }
    verbs
}

/// The kind a subresource answers with.
fn response_kind(resource: &Resource, version: &str, sub: &SubresourceDef) -> GroupVersionKind {
    match &sub.kind {
        SubresourceKind::Status | SubresourceKind::Update => resource.def.gvk(version),
        SubresourceKind::Scale(_) => GroupVersionKind::new("autoscaling", "v1", "Scale"),
        SubresourceKind::Call { kind } | SubresourceKind::Connect { kind, .. } => kind.clone(),
    }
}

fn legacy(resource: &Resource, version: &VersionDef) -> Vec<Value> {
    let def = &resource.def;
    let mut main = json!({
        "name": def.plural,
        "singularName": def.singular,
        "namespaced": def.namespaced(),
        "kind": def.kind,
        "verbs": main_verbs(def, is_custom(version)),
    });
    if !def.short_names.is_empty() {
        main["shortNames"] = json!(def.short_names);
    }
    if !def.categories.is_empty() {
        main["categories"] = json!(def.categories);
    }
    if def.stored {
        main["storageVersionHash"] = storage_version_hash(resource).into();
    }
    let mut list = vec![main];
    let mut subs: Vec<&SubresourceDef> = version.subresources.iter().collect();
    sort_subresources(&mut subs, is_custom(version));
    for sub in subs {
        let kind = response_kind(resource, &version.name, sub);
        let mut entry = json!({
            "name": format!("{}/{}", def.plural, sub.name),
            "singularName": "",
            "namespaced": def.namespaced(),
            "kind": kind.kind,
            "verbs": verbs(sub.verbs),
        });
        if kind.group != def.group || kind.version != version.name {
            entry["group"] = kind.group.into();
            entry["version"] = kind.version.into();
        }
        list.push(entry);
    }
    list
}

/// Upstream's `discovery.StorageVersionHash`: base64 of the first 8 bytes of SHA-256 over `group/version/kind`.
fn storage_version_hash(resource: &Resource) -> String {
    use base64::Engine;
    let def = &resource.def;
    let text = format!("{}/{}/{}", def.group, def.storage_version().name, def.kind);
    base64::engine::general_purpose::STANDARD.encode(&sha2::Sha256::digest(text.as_bytes())[..8])
}

fn document(groups: &[Group]) -> Document {
    let items: Vec<Value> = groups.iter().map(aggregated_group).collect();
    let value = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    });
    let mut body = Vec::new();
    kaji_schema::order::write_document(&mut body, &value);
    body.push(b'\n');
    let body = bytes::Bytes::from(body);
    let etag = format!("\"{}\"", kaji_meta::text::hex(&Sha512::digest(&body)).to_uppercase());
    Document { body, etag }
}

fn aggregated_group(group: &Group) -> Value {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|(name, content)| match content {
            Content::Here(resources) => {
                let list: Vec<Value> = resources
                    .iter()
                    .filter_map(|r| Some(aggregated_resource(r, r.def.version(name)?)))
                    .collect();
                json!({"version": name, "resources": list, "freshness": "Current"})
            }
            Content::Extension(document) => Value::clone(document),
        })
        .collect();
    let mut metadata = json!({});
    if !group.name.is_empty() {
        metadata["name"] = group.name.as_str().into();
    }
    json!({"metadata": metadata, "versions": versions})
}

fn kind_value(kind: &GroupVersionKind) -> Value {
    json!({"group": kind.group, "version": kind.version, "kind": kind.kind})
}

/// By name; of custom resources, scale comes after status.
fn sort_subresources(subs: &mut [&SubresourceDef], custom: bool) {
    subs.sort_by(|a, b| {
        (custom && a.name != "status").cmp(&(custom && b.name != "status")).then(a.name.cmp(&b.name))
    });
}

fn is_custom(version: &VersionDef) -> bool {
    matches!(version.schema, SchemaRef::Owned(_))
}

/// Upstream leaves the group-version of a built-in resource's own kinds empty here, where clients fill it in.
fn response_kind_value(resource: &Resource, version: &VersionDef, kind: &GroupVersionKind) -> Value {
    if !is_custom(version) && kind.group == resource.def.group && kind.version == version.name {
        return json!({"group": "", "version": "", "kind": kind.kind});
    }
    kind_value(kind)
}

fn aggregated_resource(resource: &Resource, version: &VersionDef) -> Value {
    let def = &resource.def;
    let mut value = json!({
        "resource": def.plural,
        "responseKind": response_kind_value(resource, version, &def.gvk(&version.name)),
        "scope": if def.namespaced() { "Namespaced" } else { "Cluster" },
        "singularResource": def.singular,
        "verbs": main_verbs(def, is_custom(version)),
    });
    if !def.short_names.is_empty() {
        value["shortNames"] = json!(def.short_names);
    }
    if !def.categories.is_empty() {
        value["categories"] = json!(def.categories);
    }
    let mut subs: Vec<&SubresourceDef> = version.subresources.iter().collect();
    sort_subresources(&mut subs, is_custom(version));
    if !subs.is_empty() {
        value["subresources"] = subs
            .into_iter()
            .map(|sub| {
                json!({
                    "subresource": sub.name,
                    "responseKind": response_kind_value(resource, version, &response_kind(resource, &version.name, sub)),
                    "verbs": verbs(sub.verbs),
                })
            })
            .collect();
    }
    value
}
