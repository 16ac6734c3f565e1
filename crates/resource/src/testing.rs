//! Test helpers: an [`Api`](crate::Api) over objects in memory, and a request context.
//!
//! Invariants: the objects are held as they were put in; no hook, admission plugin or field management runs; no future
//! waits. Only what is put in late is not read at once. `resourceVersion` is not maintained.

use crate::{
    BoxFuture, Change, Ctx, DeleteOptions, ObjectReader, ObjectWriter, ResourceDef, TypeRegistry,
    UpdateOptions, UserInfo,
};
use kaji_meta::{Features, GroupResource, GroupVersionKind, SeededRandom, Status, object, random::Random};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Resource, namespace and name.
type Key = (String, String, String);

fn key(resource: &GroupResource, namespace: &str, name: &str) -> Key {
    (resource.to_string(), namespace.to_owned(), name.to_owned())
}

/// A cluster's objects in memory.
#[derive(Default)]
pub struct FakeApi {
    objects: Mutex<BTreeMap<Key, Arc<Value>>>,
    changes: AtomicU64,
    /// What the caches do not have yet.
    late: Mutex<Vec<(Key, Arc<Value>)>>,
    /// Groups of definitions that share storage.
    pub shared: Vec<Arc<ResourceDef>>,
    /// The kinds that are served, with their resources, and whether these are in namespaces.
    pub kinds: Vec<(GroupVersionKind, GroupResource, bool)>,
    /// Whether objects are written by other servers too.
    pub others: bool,
}

impl FakeApi {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<Value>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Stores an object under its own namespace and name; replaces one that is there.
    pub fn put(&self, resource: &GroupResource, object: Value) {
        let key = key(resource, object::namespace(&object), object::name(&object));
        self.lock().insert(key, Arc::new(object));
        self.count_change();
    }

    /// Stores an object as an acknowledged write that reads return from the next `sync` on.
    pub fn put_late(&self, resource: &GroupResource, object: Value) {
        let key = key(resource, object::namespace(&object), object::name(&object));
        self.late().push((key, Arc::new(object)));
    }

    fn late(&self) -> MutexGuard<'_, Vec<(Key, Arc<Value>)>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes an object. Returns whether it was there.
    pub fn remove(&self, resource: &GroupResource, namespace: &str, name: &str) -> bool {
        let removed = self.lock().remove(&key(resource, namespace, name));
        self.count_change();
        removed.is_some()
    }

    /// Changes an object in place. Returns whether it was there.
    pub fn change(
        &self,
        resource: &GroupResource,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> bool {
        let mut objects = self.lock();
        let found = objects.get_mut(&key(resource, namespace, name)).map(Arc::make_mut).map(change);
        self.count_change();
        found.is_some()
    }

    /// The names of a resource's objects, in order.
    pub fn names(&self, resource: &GroupResource) -> Vec<String> {
        self.list(resource, None).iter().map(|o| object::name(o).to_owned()).collect()
    }
}

impl ObjectReader for FakeApi {
    fn get(&self, resource: &GroupResource, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.lock().get(&key(resource, namespace, name)).cloned()
    }

    fn list(&self, resource: &GroupResource, namespace: Option<&str>) -> Vec<Arc<Value>> {
        let resource = resource.to_string();
        let of = |(r, n, _): &Key| *r == resource && namespace.is_none_or(|namespace| namespace == n);
        self.lock().iter().filter(|(key, _)| of(key)).map(|(_, object)| object.clone()).collect()
    }

    fn changed(&self, _: &GroupResource) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    fn sync<'a>(&'a self) -> BoxFuture<'a, Result<(), Status>> {
        let late = std::mem::take(&mut *self.late());
        if !late.is_empty() {
            self.lock().extend(late);
            self.count_change();
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn lags(&self) -> bool {
        !self.late().is_empty()
    }

    fn has_other_writers(&self) -> bool {
        self.others
    }
}

impl TypeRegistry for FakeApi {
    fn resource_of(&self, kind: &GroupVersionKind) -> Option<(GroupResource, bool)> {
        let found = self.kinds.iter().find(|(served, ..)| served == kind);
        found.map(|(_, resource, namespaced)| (resource.clone(), *namespaced))
    }

    fn sharing(&self, group: &str, resource: &str) -> Vec<Arc<ResourceDef>> {
        let shares = self.shared.iter().any(|def| def.group == group && def.plural == resource);
        if shares { self.shared.clone() } else { vec![] }
    }

    fn converted<'a>(&'a self, _: Value, to: &'a GroupVersionKind) -> BoxFuture<'a, Result<Value, Status>> {
        let error = Status::internal(format!("unable to convert to {to}: unknown kind"));
        Box::pin(std::future::ready(Err(error)))
    }

    fn versioned<'a>(
        &'a self,
        object: Value,
        to: &'a GroupVersionKind,
    ) -> BoxFuture<'a, Result<Value, Status>> {
        self.converted(object, to)
    }

    fn received(&self, object: Value, _: &GroupVersionKind, _: bool) -> Result<Value, String> {
        Ok(object)
    }

    fn prune(&self, _: &mut Value) {}
}

impl ObjectWriter for FakeApi {
    fn create<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        object: Value,
        dry_run: bool,
    ) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(async move {
            let key = key(resource, namespace, object::name(&object));
            let mut objects = self.lock();
            if objects.contains_key(&key) {
                return Err(Status::already_exists(resource, &key.2));
            }
            if !dry_run {
                objects.insert(key, Arc::new(object.clone()));
                self.count_change();
            }
            Ok(object)
        })
    }

    fn update<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        name: &'a str,
        options: UpdateOptions<'a>,
        change: &'a Change<'a>,
    ) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(async move {
            let mut objects = self.lock();
            let Some(stored) = objects.get_mut(&key(resource, namespace, name)) else {
                return Err(Status::not_found(resource, name));
            };
            let mut new = Value::clone(stored);
            change(&mut new)?;
            if !options.dry_run {
                *stored = Arc::new(new.clone());
                self.count_change();
            }
            Ok(new)
        })
    }

    fn delete<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        name: &'a str,
        options: DeleteOptions,
    ) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(async move {
            let found =
                self.get(resource, namespace, name).ok_or_else(|| Status::not_found(resource, name))?;
            if !options.dry_run {
                self.remove(resource, namespace, name);
            }
            Ok(Value::clone(&found))
        })
    }
}

/// The context of one request in a test: user, time, randomness and other objects.
pub struct TestContext {
    /// The user: `alice` of the group `devs`.
    pub user: UserInfo,
    /// The time: 2026-01-02T03:04:05Z.
    pub now: jiff::Timestamp,
    /// The feature gates.
    pub features: Features,
    /// Randomness, seeded.
    pub random: Box<dyn Random>,
    /// Other objects.
    pub api: Arc<FakeApi>,
    /// Warnings given.
    pub warnings: Mutex<Vec<String>>,
}

impl Default for TestContext {
    fn default() -> Self {
        TestContext {
            user: UserInfo { name: "alice".into(), groups: vec!["devs".into()], ..UserInfo::default() },
            now: jiff::Timestamp::constant(1_767_323_045, 0),
            features: Features::default(),
            random: Box::new(SeededRandom::new(7)),
            api: Arc::default(),
            warnings: Mutex::default(),
        }
    }
}

impl TestContext {
    /// The context of a request about an object, on a subresource.
    pub fn ctx<'a>(&'a self, object: &'a Value, subresource: &'a str, version: &'a str) -> Ctx<'a> {
        Ctx {
            user: &self.user,
            namespace: object::namespace(object),
            name: object::name(object),
            subresource,
            version,
            labelled: true,
            dry_run: false,
            now: self.now,
            features: self.features,
            random: self.random.as_ref(),
            api: self.api.as_ref(),
            warnings: &self.warnings,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FieldManagement;
    use futures_util::FutureExt;
    use serde_json::json;

    fn now<T>(future: impl Future<Output = T>) -> T {
        future.now_or_never().expect("the fake API never waits")
    }

    #[test]
    fn writes_conflict_and_miss_as_the_engine_does() {
        let (api, pods) = (FakeApi::default(), GroupResource::new("", "pods"));
        let pod = json!({"metadata": {"name": "a", "namespace": "n"}});
        let options = UpdateOptions::new("", FieldManagement::Record);
        let grow = |object: &mut Value| {
            object::set_at(object, &["spec"], 1);
            Ok(())
        };
        assert_eq!(now(api.update(&pods, "n", "a", options, &grow)).unwrap_err().code, 404);
        now(api.create(&pods, "n", pod.clone(), true)).unwrap();
        assert!(api.list(&pods, None).is_empty());
        now(api.create(&pods, "n", pod.clone(), false)).unwrap();
        assert_eq!(now(api.create(&pods, "n", pod, false)).unwrap_err().code, 409);
        let before = api.changed(&pods);
        now(api.update(&pods, "n", "a", options.dry_run(true), &grow)).unwrap();
        assert_eq!((api.get(&pods, "n", "a").unwrap().get("spec"), api.changed(&pods)), (None, before));
        now(api.update(&pods, "n", "a", options, &grow)).unwrap();
        assert_eq!(api.get(&pods, "n", "a").unwrap()["spec"], 1);
        assert!(api.changed(&pods) > before);
        assert_eq!((api.list(&pods, Some("m")).len(), api.list(&pods, Some("n")).len()), (0, 1));
        now(api.delete(&pods, "n", "a", DeleteOptions::default())).unwrap();
        assert_eq!(now(api.delete(&pods, "n", "a", DeleteOptions::default())).unwrap_err().code, 404);
    }
}
