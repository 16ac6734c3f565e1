//! The engine as hooks and admission plugins use it, in three traits by what uses them: reads, types and writes.
//!
//! Invariants:
//! - Reads come from the watch cache and never wait. Objects are in their storage version.
//! - Writes take the same pipeline as a client's.

use crate::{DeleteOptions, ResourceDef, hooks::BoxFuture};
use kaji_meta::{GroupResource, GroupVersionKind, Status, labels::Selector, object};
use serde_json::Value;
use std::sync::Arc;

/// An object at one of its versions: what a write may expect of another object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    /// Its resource.
    pub resource: GroupResource,
    /// `""` for cluster scope.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its `resourceVersion`; 0 if it has none that is a number, which no stored object has.
    pub resource_version: u64,
    /// Whether it has a `deletionTimestamp`.
    pub deleting: bool,
}

impl ObjectVersion {
    /// The version that was read of an object.
    pub fn of(resource: &GroupResource, object: &Value) -> ObjectVersion {
        ObjectVersion {
            resource: resource.clone(),
            namespace: object::namespace(object).to_owned(),
            name: object::name(object).to_owned(),
            resource_version: object::resource_version(object).parse().unwrap_or(0),
            deleting: object::deletion_timestamp(object).is_some(),
        }
    }
}

/// Reads of other objects, from the watch cache.
pub trait ObjectReader: Send + Sync {
    /// An object, if the cache has it.
    fn get(&self, resource: &GroupResource, namespace: &str, name: &str) -> Option<Arc<Value>>;

    /// The version of an object that the cache has; cheaper than the object where that is large.
    fn object_version(&self, resource: &GroupResource, namespace: &str, name: &str) -> Option<ObjectVersion> {
        Some(ObjectVersion::of(resource, &*self.get(resource, namespace, name)?))
    }

    /// All objects, of one namespace or (`None`) of all.
    fn list(&self, resource: &GroupResource, namespace: Option<&str>) -> Vec<Arc<Value>>;

    /// The objects with labels that match a selector; the others are not decoded.
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

    /// Whether the predicate holds for any object; stops at the first.
    fn any(&self, resource: &GroupResource, namespace: Option<&str>, want: &dyn Fn(&Value) -> bool) -> bool {
        self.list(resource, namespace).iter().any(|v| want(v))
    }

    /// A number that changes whenever an object of a resource is written or removed, before the write is acknowledged;
    /// cheap. What was computed from the objects stays valid as long as it does not change.
    fn changed(&self, resource: &GroupResource) -> u64;

    /// Whether reads of a resource return all its objects. Only kinds that are not required to start may lack some.
    ///
    /// # Errors
    /// The error that requests for the resource get.
    fn readable(&self, resource: &GroupResource) -> Result<(), Status> {
        let _ = resource;
        Ok(())
    }

    /// An object as the store has it, whether or not other objects of its resource can be read.
    ///
    /// # Errors
    /// The store does not answer, or the object cannot be read.
    fn stored<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<Value>>, Status>> {
        Box::pin(std::future::ready(Ok(self.get(resource, namespace, name))))
    }

    /// An object from the cache, or from the store while the cache does not have all of its resource.
    ///
    /// # Errors
    /// Those of [`ObjectReader::stored`].
    fn get_or_read<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<Value>>, Status>> {
        Box::pin(async move {
            match self.readable(resource) {
                Ok(()) => Ok(self.get(resource, namespace, name)),
                Err(_) => self.stored(resource, namespace, name).await,
            }
        })
    }

    /// Waits until reads here return everything that was committed before the call. For decisions that must not be made on
    /// a stale cache (about a namespace that was created a moment ago).
    fn sync<'a>(&'a self) -> BoxFuture<'a, Result<(), Status>>;

    /// Whether reads here are known to miss acknowledged writes. Costs nothing; false when the store cannot tell.
    fn lags(&self) -> bool;

    /// Whether other servers write to the same store: what this process remembers of its own writes is not all.
    fn has_other_writers(&self) -> bool {
        false
    }
}

/// The kinds that are served, and conversion among their versions.
pub trait TypeRegistry: Send + Sync {
    /// The resource that serves a kind in a version, and whether its objects are in namespaces.
    fn resource_of(&self, kind: &GroupVersionKind) -> Option<(GroupResource, bool)>;

    /// The definitions of all resources that share the storage of this one, itself included.
    fn sharing(&self, group: &str, resource: &str) -> Vec<Arc<ResourceDef>>;

    /// An object in another version, or as another resource that shares its storage shows it. The object is of a served
    /// kind, and so is `to`. The result is defaulted.
    ///
    /// # Errors
    /// A kind is not served, or the conversion fails.
    fn converted<'a>(
        &'a self,
        object: Value,
        to: &'a GroupVersionKind,
    ) -> BoxFuture<'a, Result<Value, Status>>;

    /// An object in another version, as admission shows it: [`TypeRegistry::converted`], but of custom resources that no
    /// webhook converts `apiVersion` alone changes. What the other version lacks stays, since the object is to be converted
    /// back, and nothing is defaulted.
    ///
    /// # Errors
    /// As [`TypeRegistry::converted`].
    fn versioned<'a>(
        &'a self,
        object: Value,
        to: &'a GroupVersionKind,
    ) -> BoxFuture<'a, Result<Value, Status>>;

    /// Decodes an object that a webhook or policy has made of one of this kind, as a client's is decoded: unknown fields
    /// are dropped (or, where this is `strict`, are errors), types are checked, defaults are filled in. Unknown fields of
    /// custom resources stay until [`TypeRegistry::prune`].
    ///
    /// # Errors
    /// Go's text for a value of a wrong type, or for another kind.
    fn received(&self, object: Value, kind: &GroupVersionKind, strict: bool) -> Result<Value, String>;

    /// Drops the fields that the version of a custom object does not know. Other objects stay as they are.
    fn prune(&self, object: &mut Value);
}

/// What an update does to `metadata.managedFields`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldManagement {
    /// Changed fields are recorded under the server's own field manager, as for a client's update.
    Record,
    /// The entries stay as they are: upstream's storage of some subresources (`binding`, `eviction`) writes past field
    /// management.
    Skip,
}

/// Members of members of an object: (`spec`, `nodeName`).
pub type Members = &'static [(&'static str, &'static str)];

/// How an update is made. There is no default: every caller states its field management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateOptions<'a> {
    /// `""` for the main resource.
    pub subresource: &'a str,
    /// What becomes of `metadata.managedFields`.
    pub field_management: FieldManagement,
    /// Nothing is persisted.
    pub dry_run: bool,
    /// The change reads and sets these members alone, and neither the kind's hooks nor its generation have to do with them. Then
    /// the rest of the object need not be decoded: the change may be given, and the answer may have, these alone.
    pub members: Option<Members>,
}

impl<'a> UpdateOptions<'a> {
    /// An update through a subresource (`""`: the main resource) that is persisted.
    pub const fn new(subresource: &'a str, field_management: FieldManagement) -> Self {
        UpdateOptions { subresource, field_management, dry_run: false, members: None }
    }

    /// The same, persisted unless `dry_run`.
    pub const fn dry_run(self, dry_run: bool) -> Self {
        UpdateOptions { dry_run, ..self }
    }

    /// The same, of these members alone.
    pub const fn of_members(self, members: Members) -> Self {
        UpdateOptions { members: Some(members), ..self }
    }
}

/// A change of an object, which may be computed more than once.
pub type Change<'a> = dyn Fn(&mut Value) -> Result<(), Status> + Send + Sync + 'a;

/// Takes a creation that finds its name taken as done: another server may have made the object, or the cache does not show it.
///
/// # Errors
/// All others.
pub fn unless_exists<T>(created: Result<T, Status>) -> Result<(), Status> {
    match created {
        Err(status) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

/// Writes of other objects, as the server itself.
pub trait ObjectWriter: Send + Sync {
    /// Creates an object.
    fn create<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        object: Value,
        dry_run: bool,
    ) -> BoxFuture<'a, Result<Value, Status>>;

    /// Reads, changes and writes with compare-and-set, until no other write interferes.
    fn update<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        name: &'a str,
        options: UpdateOptions<'a>,
        change: &'a Change<'a>,
    ) -> BoxFuture<'a, Result<Value, Status>>;

    /// Deletes an object.
    fn delete<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        name: &'a str,
        options: DeleteOptions,
    ) -> BoxFuture<'a, Result<Value, Status>>;
}

/// All of it.
pub trait Api: ObjectReader + TypeRegistry + ObjectWriter {}

impl<T: ObjectReader + TypeRegistry + ObjectWriter> Api for T {}
