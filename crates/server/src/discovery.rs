//! Discovery: which groups, versions and resources are served; legacy documents and the aggregated v2 list.
//! Source: Kubernetes API concepts, "API discovery"; KEP-3352.
//!
//! Invariant: every document is a function of the registry alone. The aggregated one is kept, with its ETag, until the
//! registry's generation moves.

use kaji_engine::{Registry, Resource};
use kaji_meta::{GroupVersionKind, Status};
use kaji_resource::{SubresourceDef, SubresourceKind, Verb, VersionDef};
use kaji_schema::SchemaRef;
use serde_json::{Value, json};
use sha2::{Digest, Sha512};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// Built-in groups in the order upstream lists them; others follow by name.
const ORDER: &[&str] = &[
    "",
    "apiregistration.k8s.io",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
    "resource.k8s.io",
    "flowcontrol.apiserver.k8s.io",
];

/// An encoded document with its ETag.
#[derive(Clone)]
pub struct Document {
    /// JSON.
    pub body: bytes::Bytes,
    /// Quoted entity tag.
    pub etag: String,
}

/// Discovery of one server.
#[derive(Default)]
pub struct Discovery {
    aggregated: Mutex<Option<(u64, Document, Document)>>,
}

/// One group with its versions in order of preference, each with its resources by name.
struct Group {
    name: String,
    versions: Vec<(String, Vec<Arc<Resource>>)>,
}

impl Discovery {
    /// `GET /api` or `/apis` with `as=APIGroupDiscoveryList`: the core group alone, or all others.
    pub fn aggregated(&self, registry: &Registry, core: bool) -> Document {
        let mut kept = self.aggregated.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if kept.as_ref().is_none_or(|(generation, ..)| *generation != registry.generation) {
            let (own, other): (Vec<Group>, Vec<Group>) =
                groups(registry).into_iter().partition(|g| g.name.is_empty());
            *kept = Some((registry.generation, document(&own), document(&other)));
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
    pub fn group_list(registry: &Registry) -> Value {
        let groups: Vec<Value> =
            groups(registry).iter().filter(|g| !g.name.is_empty()).map(group_value).collect();
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    }

    /// `GET /apis/{group}`
    pub fn group(registry: &Registry, name: &str) -> Option<Value> {
        let found = one_group(registry, name)?;
        let mut value = group_value(&found);
        value["kind"] = "APIGroup".into();
        value["apiVersion"] = "v1".into();
        Some(value)
    }

    /// `GET /api/v1` and `/apis/{group}/{version}`
    pub fn resources(registry: &Registry, group: &str, version: &str) -> Result<Value, Status> {
        let found = one_group(registry, group)
            .and_then(|g| g.versions.into_iter().find(|(v, _)| v == version))
            .ok_or_else(Status::generic_not_found)?;
        let list: Vec<Value> = found
            .1
            .iter()
            .filter_map(|r| Some((r, r.def.version(version)?)))
            .flat_map(|(r, v)| legacy(r, v))
            .collect();
        let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        Ok(
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list}),
        )
    }
}

fn groups(registry: &Registry) -> Vec<Group> {
    grouped(registry.iter())
}

fn one_group(registry: &Registry, name: &str) -> Option<Group> {
    grouped(registry.iter().filter(|r| r.def.group == name)).pop()
}

fn grouped<'a>(resources: impl Iterator<Item = &'a Arc<Resource>>) -> Vec<Group> {
    type Versions = BTreeMap<String, Vec<Arc<Resource>>>;
    let mut found: BTreeMap<(usize, String), Versions> = BTreeMap::new();
    for resource in resources {
        let group = resource.def.group.to_string();
        let rank = ORDER.iter().position(|g| *g == group).unwrap_or(ORDER.len());
        let versions = found.entry((rank, group)).or_default();
        for version in resource.def.versions.iter().filter(|v| v.served) {
            versions.entry(version.name.to_string()).or_default().push(resource.clone());
        }
    }
    found
        .into_iter()
        .filter(|(_, versions)| !versions.is_empty())
        .map(|((_, name), versions)| {
            let mut versions: Vec<_> = versions.into_iter().collect();
            versions.sort_by(|a, b| version_rank(&b.0).cmp(&version_rank(&a.0)).then(a.0.cmp(&b.0)));
            for (_, resources) in &mut versions {
                resources.sort_by(|a, b| a.def.plural.cmp(&b.def.plural));
            }
            Group { name, versions }
        })
        .collect()
}

/// Kubernetes' order of versions: GA before beta before alpha, then higher numbers first; anything else last.
fn version_rank(version: &str) -> (u8, u32, u32) {
    let Some(rest) = version.strip_prefix('v') else { return (0, 0, 0) };
    let split = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (major, suffix) = rest.split_at(split);
    let Ok(major) = major.parse::<u32>() else { return (0, 0, 0) };
    let minor = |s: &str| s.parse::<u32>().ok();
    if suffix.is_empty() {
        (3, major, 0)
    } else if let Some(n) = suffix.strip_prefix("beta").and_then(minor) {
        (2, major, n)
    } else if let Some(n) = suffix.strip_prefix("alpha").and_then(minor) {
        (1, major, n)
    } else {
        (0, 0, 0)
    }
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

/// The kind a subresource answers with.
fn response_kind(resource: &Resource, version: &str, sub: &SubresourceDef) -> GroupVersionKind {
    match &sub.kind {
        SubresourceKind::Status | SubresourceKind::Update => resource.def.gvk(version),
        SubresourceKind::Scale(_) => GroupVersionKind::new("autoscaling", "v1", "Scale"),
        SubresourceKind::Call { kind } => kind.clone(),
    }
}

fn legacy(resource: &Resource, version: &VersionDef) -> Vec<Value> {
    let def = &resource.def;
    let mut main = json!({
        "name": def.plural,
        "singularName": def.singular,
        "namespaced": def.namespaced(),
        "kind": def.kind,
        "verbs": verbs(def.verbs),
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
    subs.sort_by(|a, b| a.name.cmp(&b.name));
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
    let body = bytes::Bytes::from(value.to_string());
    let etag = format!("\"{}\"", hex(&Sha512::digest(&body)).to_uppercase());
    Document { body, etag }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut s, b| {
        // Writing to a String cannot fail.
        let _ = write!(s, "{b:02x}");
        s
    })
}

fn aggregated_group(group: &Group) -> Value {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|(name, resources)| {
            let list: Vec<Value> =
                resources.iter().filter_map(|r| Some(aggregated_resource(r, r.def.version(name)?))).collect();
            json!({"version": name, "resources": list, "freshness": "Current"})
        })
        .collect();
    let mut metadata = json!({"creationTimestamp": null});
    if !group.name.is_empty() {
        metadata["name"] = group.name.as_str().into();
    }
    json!({"metadata": metadata, "versions": versions})
}

fn kind_value(kind: &GroupVersionKind) -> Value {
    json!({"group": kind.group, "version": kind.version, "kind": kind.kind})
}

/// Upstream leaves the group-version of a built-in resource's own kinds empty here, where clients fill it in.
fn response_kind_value(resource: &Resource, version: &VersionDef, kind: &GroupVersionKind) -> Value {
    let custom = matches!(version.schema, SchemaRef::Owned(_));
    if !custom && kind.group == resource.def.group && kind.version == version.name {
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
        "verbs": verbs(def.verbs),
    });
    if !def.short_names.is_empty() {
        value["shortNames"] = json!(def.short_names);
    }
    if !def.categories.is_empty() {
        value["categories"] = json!(def.categories);
    }
    let mut subs: Vec<&SubresourceDef> = version.subresources.iter().collect();
    subs.sort_by(|a, b| a.name.cmp(&b.name));
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

#[cfg(test)]
mod tests {
    use super::version_rank;

    #[test]
    fn versions_are_ordered_as_kubernetes_orders_them() {
        let mut versions =
            ["foo1", "v1alpha1", "v2", "v11beta2", "v10", "v1", "v12alpha1", "v11alpha2", "v3beta1"];
        versions.sort_by(|a, b| version_rank(b).cmp(&version_rank(a)).then(a.cmp(b)));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v11beta2", "v3beta1", "v12alpha1", "v11alpha2", "v1alpha1", "foo1"]
        );
    }
}
