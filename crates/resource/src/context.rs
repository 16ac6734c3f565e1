//! What a hook knows about the request it serves, and the way it may look at other objects.

use crate::{ResourceDef, hooks::BoxFuture};
use kaji_meta::{GroupResource, GroupVersionKind, Status, labels::Selector, random::Random};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    /// `system:admin`
    pub name: String,
    /// Unique id, where the authenticator has one.
    pub uid: String,
    /// `system:masters`, `system:authenticated`, …
    pub groups: Vec<String>,
    /// Further attributes.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// `DeleteOptions` (meta/v1) once decoded, from body and query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeleteOptions {
    /// `gracePeriodSeconds`
    pub grace_period_seconds: Option<i64>,
    /// `preconditions.uid`
    pub uid: Option<String>,
    /// `preconditions.resourceVersion`
    pub resource_version: Option<String>,
    /// `propagationPolicy`: `Orphan`, `Background`, `Foreground`.
    pub propagation_policy: Option<String>,
    /// The deprecated `orphanDependents`.
    pub orphan_dependents: Option<bool>,
    /// `dryRun: [All]`
    pub dry_run: bool,
    /// `ignoreStoreReadErrorWithClusterBreakingPotential`
    pub ignore_store_read_error: bool,
    /// It is one of a collection: what upstream's registries add to DELETE does not count then.
    pub of_collection: bool,
}

/// The context of one request.
pub struct Ctx<'a> {
    /// Who asks.
    pub user: &'a UserInfo,
    /// Namespace of the request, `""` for cluster-scoped.
    pub namespace: &'a str,
    /// Name in the request's path, or of the object.
    pub name: &'a str,
    /// `""` for the main resource, else `status`, `approval`, ….
    pub subresource: &'a str,
    /// The requested API version (`v1`).
    pub version: &'a str,
    /// The object that was sent had labels, before defaults were applied to it.
    pub labelled: bool,
    /// Nothing is to be persisted.
    pub dry_run: bool,
    /// The time of the request.
    pub now: jiff::Timestamp,
    /// Randomness.
    pub random: &'a dyn Random,
    /// Other objects.
    pub api: &'a dyn Api,
    /// Texts for the `Warning` header; bounded by the engine when sent.
    pub warnings: &'a Mutex<Vec<String>>,
}

impl Ctx<'_> {
    /// Adds a text for the `Warning` header, once.
    pub fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        if let Ok(mut w) = self.warnings.lock()
            && !w.contains(&text)
        {
            w.push(text);
        }
    }
}

/// The engine as hooks and admission see it: reads come from the watch cache (decoded on demand), writes go through
/// the same pipeline as a client's. Objects are in their storage version.
pub trait Api: Send + Sync {
    /// An object, if the cache has it.
    fn get(&self, resource: &GroupResource, namespace: &str, name: &str) -> Option<Arc<Value>>;
    /// All objects, of one namespace or (`None`) of all.
    fn list(&self, resource: &GroupResource, namespace: Option<&str>) -> Vec<Arc<Value>>;
    /// Those of them whose labels a selector wants; the others cost next to nothing.
    fn selected(
        &self,
        resource: &GroupResource,
        namespace: Option<&str>,
        selector: &Selector,
    ) -> Vec<Arc<Value>> {
        let mut all = self.list(resource, namespace);
        all.retain(|object| selector.matches_object(object));
        all
    }
    /// Whether any object exists that the predicate wants; stops at the first.
    fn any(&self, resource: &GroupResource, namespace: Option<&str>, want: &dyn Fn(&Value) -> bool) -> bool {
        self.list(resource, namespace).iter().any(|v| want(v))
    }
    /// The resource that serves a kind in a version, and whether its objects are in namespaces.
    fn resource_of(&self, kind: &GroupVersionKind) -> Option<(GroupResource, bool)>;
    /// Moves whenever an object of a resource is written or removed, before that is acknowledged; cheap. What is made of
    /// objects is as good as they are while it stays.
    fn changed(&self, resource: &GroupResource) -> u64 {
        let _ = resource;
        0
    }
    /// The definitions of all resources that show the objects of this one, itself among them: resources of other groups
    /// that share its storage.
    fn sharing(&self, group: &str, resource: &str) -> Vec<Arc<ResourceDef>> {
        let _ = (group, resource);
        vec![]
    }
    /// An object in another version, or as another resource that shares its storage shows it: `to` is a kind, and the
    /// object one of a kind that is served. The result is defaulted.
    ///
    /// # Errors
    /// Nobody serves the kinds, or what the conversion says.
    fn converted<'a>(
        &'a self,
        object: Value,
        to: &'a GroupVersionKind,
    ) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(async move {
            let _ = object;
            Err(Status::internal(format!("unable to convert to {to}: unknown kind")))
        })
    }
    /// An object that somebody else made of one of this kind, brought into the shape that a client's would be given:
    /// unknown fields go (or, where this is `strict` and the kind is built in, are errors), types are checked, what is
    /// missing is defaulted.
    ///
    /// # Errors
    /// Go's text for a value of a wrong type, or for another kind.
    fn received(&self, object: Value, kind: &GroupVersionKind, strict: bool) -> Result<Value, String> {
        let _ = (kind, strict);
        Ok(object)
    }
    /// Waits until reads here see everything that was committed before the call. For decisions that must not be made on
    /// a cache that lags behind (a namespace that was created a moment ago).
    fn sync<'a>(&'a self) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async { Ok(()) })
    }
    /// Whether reads here are known to miss what was acknowledged already. Costs nothing; a store that cannot tell says no.
    fn lags(&self) -> bool {
        false
    }
    /// Creates an object.
    fn create<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        object: Value,
        dry_run: bool,
    ) -> BoxFuture<'a, Result<Value, Status>>;
    /// Reads, changes and writes with compare-and-set until it holds. `subresource` as in `Ctx`.
    fn update<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        name: &'a str,
        subresource: &'a str,
        dry_run: bool,
        change: &'a (dyn Fn(&mut Value) -> Result<(), Status> + Send + Sync),
    ) -> BoxFuture<'a, Result<Value, Status>>;
    /// As `update`, but the managed fields stay as they are: upstream's storage of some subresources (`binding`,
    /// `eviction`) writes past field management.
    fn update_unmanaged<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        name: &'a str,
        subresource: &'a str,
        dry_run: bool,
        change: &'a (dyn Fn(&mut Value) -> Result<(), Status> + Send + Sync),
    ) -> BoxFuture<'a, Result<Value, Status>> {
        self.update(resource, namespace, name, subresource, dry_run, change)
    }
    /// Deletes an object.
    fn delete<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        name: &'a str,
        options: DeleteOptions,
    ) -> BoxFuture<'a, Result<Value, Status>>;
}
