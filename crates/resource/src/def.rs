//! `ResourceDef`: everything the engine needs to serve a resource, as data.
//!
//! Invariants: `storage` is an index into `versions`; a definition never changes once the engine has it.

mod build;

use crate::{Carries, Column, Conversion, Hooks};
use kaji_meta::{GroupResource, GroupVersionKind};
use kaji_schema::{SchemaRef, jsonpath::JsonPath};
use std::{borrow::Cow, sync::Arc, time::Duration};

/// A string that is usually static (built-ins) and sometimes owned (custom resources).
pub type Str = Cow<'static, str>;

/// Whether objects live in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Objects live in a namespace.
    Namespaced,
    /// Objects belong to the cluster.
    Cluster,
}

/// The verbs of discovery, in upstream's spelling through [`Verb::as_str`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Verb {
    Create,
    Delete,
    DeleteCollection,
    Get,
    List,
    Patch,
    Update,
    Watch,
}

impl Verb {
    /// Every verb, in discovery order.
    pub const ALL: &'static [Verb] = &[
        Verb::Create,
        Verb::Delete,
        Verb::DeleteCollection,
        Verb::Get,
        Verb::List,
        Verb::Patch,
        Verb::Update,
        Verb::Watch,
    ];
    /// Only creation: the review kinds (`TokenReview`, `SubjectAccessReview`, …) that are never stored.
    pub const CREATE_ONLY: &'static [Verb] = &[Verb::Create];

    /// The verb as discovery and authorization spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Create => "create",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Patch => "patch",
            Verb::Update => "update",
            Verb::Watch => "watch",
        }
    }
}

/// When `metadata.generation` moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// Never set (ConfigMap, Secret, …): what a client says on creation stays.
    None,
    /// Not set on creation, +1 when anything but metadata and status changes.
    Changes,
    /// 1 on creation, +1 when anything but metadata and status changes.
    Spec,
}

/// What deletion does with dependents when the client names no propagation policy. Source: upstream's
/// `rest.GarbageCollectionPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GarbageCollectionPolicy {
    /// The garbage collector deletes dependents in the background.
    #[default]
    DeleteDependents,
    /// Dependents are orphaned (batch/v1 jobs, replication controllers).
    OrphanDependents,
    /// Objects of this resource own nothing (events): deletion never sets a finalizer.
    Unsupported,
}

/// A field that field selectors may use besides `metadata.name` and `metadata.namespace`.
#[derive(Clone, Debug)]
pub struct SelectableField {
    /// The selector's spelling, such as `spec.nodeName` or `status.phase`.
    pub name: Str,
    /// Path segments into the object. Missing fields select as `missing`.
    pub path: Vec<Str>,
    /// The value of an absent field: `""` mostly, `"0"` or `"false"` for numbers and booleans.
    pub missing: &'static str,
    /// The name of another field of the resource; its value counts when this one is absent or empty.
    pub or: Option<&'static str>,
    /// Whether watchers are indexed by it (worth it for fields that many watchers select on, such as `spec.nodeName`).
    pub indexed: bool,
}

impl SelectableField {
    /// A string field selected under its own dotted path.
    pub fn new(path: &'static str) -> Self {
        SelectableField {
            name: Cow::Borrowed(path),
            path: path.split('.').map(Cow::Borrowed).collect(),
            missing: "",
            or: None,
            indexed: false,
        }
    }

    /// The same field; where it is absent or empty, another field's value counts.
    pub fn or(mut self, other: &'static str) -> Self {
        self.or = Some(other);
        self
    }

    /// The same field, with watchers indexed by its value.
    pub fn indexed(mut self) -> Self {
        self.indexed = true;
        self
    }

    /// The same field with another value for objects that lack it.
    pub fn missing(mut self, value: &'static str) -> Self {
        self.missing = value;
        self
    }
}

/// Where a table's cells come from.
#[derive(Clone, Debug)]
pub enum ColumnSource {
    /// `Hooks::row` computes them (built-ins).
    Hooks(&'static [Column]),
    /// Each column has a path (custom resources); `Name` is put in front by the engine.
    Paths(Vec<(Column, JsonPath)>),
}

/// One served or stored version of a resource.
#[derive(Clone, Debug)]
pub struct VersionDef {
    /// `v1`
    pub name: Str,
    /// Whether requests in this version are answered.
    pub served: bool,
    /// Upstream's deprecation warning, sent in the `Warning` header.
    pub deprecation: Option<Str>,
    /// The shape of objects in this version.
    pub schema: SchemaRef,
    /// The table's columns (without the row's object).
    pub columns: ColumnSource,
    /// Fields for field selectors in this version.
    pub selectable: Vec<SelectableField>,
    /// Subresources in this version.
    pub subresources: Vec<SubresourceDef>,
}

/// Paths of the scale subresource (dotted path split in segments).
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleDef {
    /// `spec.replicas`
    pub spec_replicas: Vec<Str>,
    /// `status.replicas`
    pub status_replicas: Vec<Str>,
    /// Where the selector is. Built-ins hold a LabelSelector object or a map there, custom resources a string.
    pub selector: Option<Vec<Str>>,
}

/// What a subresource does.
#[derive(Clone, Debug, PartialEq)]
pub enum SubresourceKind {
    /// GET/PUT/PATCH of the object in which only status (and some metadata) may change.
    Status,
    /// GET/PUT/PATCH of `autoscaling/v1 Scale`.
    Scale(ScaleDef),
    /// GET/PUT/PATCH of the whole object; hooks decide what may change by `Ctx::subresource`
    /// (`approval`, `ephemeralcontainers`, `resize`, `finalize`).
    Update,
    /// Connects to another server, which `CallHooks::connect` names (`log`, `exec`, `proxy`, …).
    Connect {
        /// The kind of discovery, and of the options that admission sees.
        kind: GroupVersionKind,
        /// What the connection carries.
        carries: Carries,
    },
    /// Anything else: the engine decodes the body and calls `Hooks::call` (`binding`, `eviction`, `token`, …).
    Call {
        /// The kind of the request body (and of discovery).
        kind: GroupVersionKind,
    },
}

/// A subresource of a resource.
#[derive(Clone, Debug, PartialEq)]
pub struct SubresourceDef {
    /// `status`
    pub name: Str,
    /// What it does.
    pub kind: SubresourceKind,
    /// The verbs discovery lists and the engine allows.
    pub verbs: &'static [Verb],
}

impl SubresourceDef {
    /// `status` with get, patch, update.
    pub fn status() -> Self {
        SubresourceDef {
            name: "status".into(),
            kind: SubresourceKind::Status,
            verbs: &[Verb::Get, Verb::Patch, Verb::Update],
        }
    }

    /// `scale` at the usual paths, with the selector at `spec.selector`.
    pub fn scale() -> Self {
        SubresourceDef {
            name: "scale".into(),
            kind: SubresourceKind::Scale(ScaleDef {
                spec_replicas: vec!["spec".into(), "replicas".into()],
                status_replicas: vec!["status".into(), "replicas".into()],
                selector: Some(vec!["spec".into(), "selector".into()]),
            }),
            verbs: &[Verb::Get, Verb::Patch, Verb::Update],
        }
    }

    /// A whole-object subresource (see [`SubresourceKind::Update`]).
    pub fn update(name: &'static str, verbs: &'static [Verb]) -> Self {
        SubresourceDef { name: name.into(), kind: SubresourceKind::Update, verbs }
    }

    /// A subresource answered by `Hooks::call`.
    pub fn call(name: &'static str, kind: GroupVersionKind, verbs: &'static [Verb]) -> Self {
        SubresourceDef { name: name.into(), kind: SubresourceKind::Call { kind }, verbs }
    }

    /// A subresource that connects to what `CallHooks::connect` says.
    pub fn connect(
        name: &'static str,
        kind: GroupVersionKind,
        carries: Carries,
        verbs: &'static [Verb],
    ) -> Self {
        SubresourceDef { name: name.into(), kind: SubresourceKind::Connect { kind, carries }, verbs }
    }
}

/// One of upstream's validators of metadata, as a kind calls it when an object changes: what is wrong is then reported
/// once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataCheck {
    /// `ValidateObjectMeta`; `finalizers`: that of `core`, which requires finalizers to be qualified or well known.
    Whole {
        /// See above.
        finalizers: bool,
    },
    /// `ValidateObjectMetaUpdate`; `finalizers`: as above.
    Update {
        /// See above.
        finalizers: bool,
    },
}

/// The validators of metadata that a kind calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetadataChecks {
    /// When an object is updated.
    pub update: &'static [MetadataCheck],
    /// When its status is.
    pub status: &'static [MetadataCheck],
}

impl MetadataChecks {
    /// Whether new objects' finalizers have to be qualified or well known.
    pub fn finalizers(&self) -> bool {
        use MetadataCheck::{Update, Whole};
        self.update.iter().any(|c| matches!(c, Whole { finalizers: true } | Update { finalizers: true }))
    }
}

/// A resource, whole.
#[derive(Clone)]
pub struct ResourceDef {
    /// `""` for core.
    pub group: Str,
    /// `deployments`
    pub plural: Str,
    /// `deployment`
    pub singular: Str,
    /// `Deployment`
    pub kind: Str,
    /// `DeploymentList`
    pub list_kind: Str,
    /// `deploy`
    pub short_names: Vec<Str>,
    /// `all`
    pub categories: Vec<Str>,
    /// Namespaced or cluster scoped.
    pub scope: Scope,
    /// Versions in order of preference.
    pub versions: Vec<VersionDef>,
    /// Index into `versions` of the one that is stored (and that hooks see).
    pub storage: usize,
    /// The verbs of the main resource.
    pub verbs: &'static [Verb],
    /// False for review kinds that exist only as an answer: `create` goes to `Hooks::call`.
    pub stored: bool,
    /// How `metadata.generation` moves.
    pub generation: Generation,
    /// Another resource that this one shares the storage of (core `events` and `events.k8s.io` `events`).
    /// Objects live under that resource's keys; `Hooks::convert` translates.
    pub shares_storage_of: Option<GroupResource>,
    /// Objects expire this long after they were last written (events).
    pub ttl: Option<Duration>,
    /// Upstream names it validates with: DNS subdomain, label, path segment, … (message texts come with it).
    pub validate_name: fn(&str, bool) -> Vec<String>,
    /// Which of upstream's validators look at metadata besides the general ones.
    pub metadata_checks: MetadataChecks,
    /// Where upstream's etcd has the objects, below `/registry/`; texts of errors show it.
    pub storage_prefix: Str,
    /// The path to the pod template that objects hold; `None` for kinds without one.
    pub pod_template: Option<&'static [&'static str]>,
    /// Whether a PUT to a missing object creates it.
    pub allow_create_on_update: bool,
    /// Whether a PUT without resourceVersion overwrites unconditionally.
    pub allow_unconditional_update: bool,
    /// Whether DELETE answers with the object although it was removed, instead of a `Status` with its uid. Upstream's
    /// `ReturnDeletedObject`: pods, services, volumes and claims, service accounts, quotas, storage and DRA kinds, ….
    pub returns_deleted_object: bool,
    /// What deletion does with dependents by default.
    pub garbage_collection: GarbageCollectionPolicy,
    /// Whether a write is acknowledged only when the caches have it, so that it applies to every later request: kinds that
    /// configure the server itself (webhooks, policies).
    pub writes_wait_for_caches: bool,
    /// Whether the server starts only when all objects can be read: kinds by which it decides about requests. Of another kind on a
    /// store that other programs write to, requests fail until they can.
    pub required_to_start: bool,
    /// Whether a write to a store on other machines is acknowledged as soon as that has it, a moment before the caches do: kinds with
    /// many writes, on which the server decides nothing without a look at the store. As upstream, for which that goes for all.
    pub acknowledged_when_stored: bool,
    /// Whether admission sees each object as in the namespace that it is: the resource of namespaces themselves.
    pub is_own_namespace: bool,
    /// Verbs of the main resource that discovery does not offer, although requests with them are answered.
    pub undiscovered_verbs: &'static [Verb],
    /// How objects are converted between versions.
    pub conversion: Conversion,
    /// Behaviour.
    pub hooks: Arc<dyn Hooks>,
}

impl std::fmt::Debug for ResourceDef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ResourceDef({})", self.group_resource())
    }
}

impl ResourceDef {
    /// `deployments.apps`
    pub fn group_resource(&self) -> GroupResource {
        GroupResource::new(self.group.as_ref(), self.plural.as_ref())
    }

    /// The kind in a given version.
    pub fn gvk(&self, version: &str) -> GroupVersionKind {
        GroupVersionKind::new(self.group.as_ref(), version, self.kind.as_ref())
    }

    /// A served or stored version by name.
    pub fn version(&self, name: &str) -> Option<&VersionDef> {
        self.versions.iter().find(|v| v.name == name)
    }

    /// The version objects are stored in.
    pub fn storage_version(&self) -> &VersionDef {
        &self.versions[self.storage]
    }

    /// Whether it is namespaced.
    pub fn namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }
}

impl VersionDef {
    /// A subresource by name.
    pub fn subresource(&self, name: &str) -> Option<&SubresourceDef> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Whether status is split off to its own subresource.
    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }
}
