//! What is served: resources by path, by group and resource, and by kind.
//!
//! Invariant: a `Registry` is a snapshot. It is never changed, only replaced; its maps are persistent, so that adding
//! one resource to hundreds copies a few nodes.

use crate::{
    cache::{Cache, ConvertedEntries},
    store_error::store_status,
};
use imbl::{HashMap, OrdMap};
use kaji_meta::{GroupKind, GroupResource, Status};
use kaji_resource::ResourceDef;
use kaji_schema::SchemaRef;
use std::{borrow::Cow, sync::Arc};

/// As in a definition: mostly static.
type Str = Cow<'static, str>;

/// A resource as it is served: its definition and its cache.
pub struct Resource {
    /// The definition.
    pub def: Arc<ResourceDef>,
    /// Objects and events. Shared with another resource when the definition says so; empty for kinds never stored.
    pub cache: Arc<Cache>,
    /// `/registry/<group or core>/<plural>/`
    pub prefix: Arc<str>,
    /// `deployments.apps`, for messages.
    pub group_resource: GroupResource,
    /// The `apiVersion` that objects are stored under; of another group when storage is shared.
    pub storage_api_version: String,
    /// The `kind` that objects are stored under.
    pub storage_kind: Str,
    /// Objects that the conversion webhook has converted for this definition.
    pub(crate) converted: Arc<ConvertedEntries>,
    /// The shape that objects are stored in.
    pub(crate) storage_schema: SchemaRef,
}

impl Resource {
    /// Puts a definition and its cache together.
    pub(crate) fn new(
        def: Arc<ResourceDef>,
        cache: Arc<Cache>,
        storage_api_version: String,
        storage_kind: Str,
    ) -> Self {
        let group_resource = def.group_resource();
        let schema = def.shares_storage_of.as_ref().and_then(|_| {
            let gv = kaji_meta::GroupVersion::parse(&storage_api_version).ok()?;
            kaji_schema::types::for_gvk(&gv.group, &gv.version, &storage_kind)
        });
        let storage_schema = schema.unwrap_or_else(|| def.storage_version().schema.clone());
        Resource {
            prefix: cache.prefix().clone(),
            def,
            cache,
            group_resource,
            storage_api_version,
            storage_kind,
            converted: Arc::default(),
            storage_schema,
        }
    }

    /// Whether the cache has all objects.
    ///
    /// # Errors
    /// Why not: something stored cannot be read.
    pub(crate) fn readable(&self) -> Result<(), Status> {
        self.cache.unreadable().map_or(Ok(()), |error| Err(store_status(&error)))
    }

    /// The storage key of an object; `ns` is `""` for cluster scope.
    pub fn key(&self, ns: &str, name: &str) -> String {
        let mut key = String::with_capacity(self.prefix.len() + ns.len() + name.len() + 1);
        key.push_str(&self.prefix);
        if !ns.is_empty() {
            key.push_str(ns);
            key.push('/');
        }
        key.push_str(name);
        key
    }

    /// The key prefix of a namespace's objects, or (`""`) of all.
    pub fn key_prefix(&self, ns: &str) -> String {
        self.key(ns, "")
    }

    /// `apps/v1` for a version of this resource.
    pub fn api_version(&self, version: &str) -> String {
        kaji_meta::gvk::api_version(&self.def.group, version)
    }

    /// Group and kind of what is stored, for messages about objects that are not valid.
    pub fn group_kind(&self) -> GroupKind {
        let group = self.storage_api_version.rsplit_once('/').map_or("", |(group, _)| group);
        GroupKind::new(group, self.storage_kind.as_ref())
    }
}

impl std::fmt::Debug for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Resource({})", self.group_resource)
    }
}

/// The storage prefix of a resource.
pub(crate) fn prefix_of(gr: &GroupResource) -> String {
    let group = if gr.group.is_empty() { "core" } else { &gr.group };
    format!("/registry/{group}/{}/", gr.resource)
}

/// All resources at one moment.
#[derive(Clone, Default)]
pub struct Registry {
    /// Bumped on each change; discovery and OpenAPI cache by it.
    pub generation: u64,
    resources: OrdMap<(Box<str>, Box<str>), Arc<Resource>>,
    by_plural: HashMap<Box<str>, Vec<Arc<Resource>>>,
    by_kind: HashMap<Box<str>, Vec<Arc<Resource>>>,
}

impl Registry {
    /// The resource that serves a path, if that version is served.
    pub fn lookup(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        let found = self.by_plural.get(plural)?.iter().find(|r| r.def.group == group)?;
        found.def.version(version).filter(|v| v.served).map(|_| found)
    }

    /// A resource in any version.
    pub fn by_group_resource(&self, gr: &GroupResource) -> Option<&Arc<Resource>> {
        self.by_plural.get(gr.resource.as_str())?.iter().find(|r| r.def.group == gr.group)
    }

    /// The resource of a kind. Review kinds count too.
    pub fn by_kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Resource>> {
        let all = self.by_kind.get(kind)?;
        all.iter().find(|r| r.def.group == group && r.def.version(version).is_some())
    }

    /// The definitions of all resources that show the objects of one, itself among them, by group. They have the same
    /// plural.
    pub fn sharing(&self, group: &str, plural: &str) -> Vec<Arc<ResourceDef>> {
        let Some(all) = self.by_plural.get(plural) else { return vec![] };
        let Some(own) = all.iter().find(|r| r.def.group == group) else { return vec![] };
        let mut defs: Vec<Arc<ResourceDef>> =
            all.iter().filter(|r| Arc::ptr_eq(&r.cache, &own.cache)).map(|r| r.def.clone()).collect();
        defs.sort_by(|a, b| a.group.cmp(&b.group));
        defs
    }

    /// All, by group and plural.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.resources.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }

    pub(crate) fn insert(&mut self, resource: Arc<Resource>) {
        self.remove(&resource.group_resource);
        let def = &resource.def;
        self.by_plural.entry(def.plural.as_ref().into()).or_default().push(resource.clone());
        self.by_kind.entry(def.kind.as_ref().into()).or_default().push(resource.clone());
        self.resources.insert(path_key(&resource.group_resource), resource);
    }

    pub(crate) fn remove(&mut self, gr: &GroupResource) -> Option<Arc<Resource>> {
        let old = self.resources.remove(&path_key(gr))?;
        for (map, key) in [(&mut self.by_plural, &old.def.plural), (&mut self.by_kind, &old.def.kind)] {
            if let Some(list) = map.get_mut(key.as_ref()) {
                list.retain(|r| r.group_resource != *gr);
                if list.is_empty() {
                    map.remove(key.as_ref());
                }
            }
        }
        Some(old)
    }
}

fn path_key(gr: &GroupResource) -> (Box<str>, Box<str>) {
    (gr.group.as_str().into(), gr.resource.as_str().into())
}
