//! What the kinds' tests share: a request context over an in-memory API, and printing of results.

use kaji_meta::{GroupResource, SeededRandom, Status, field::Error, object, random::Random};
use kaji_resource::{Api, BoxFuture, Ctx, DeleteOptions, ResourceDef, UserInfo};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

type Key = (String, String, String);

/// Objects by resource, namespace and name.
#[derive(Default)]
pub struct FakeApi {
    objects: Mutex<BTreeMap<Key, Arc<Value>>>,
}

fn key(resource: &GroupResource, namespace: &str, name: &str) -> Key {
    (resource.to_string(), namespace.to_owned(), name.to_owned())
}

impl FakeApi {
    /// Puts an object in, under its own namespace and name.
    pub fn put(&self, resource: &GroupResource, object: Value) {
        let k = key(resource, object::namespace(&object), object::name(&object));
        self.objects.lock().unwrap().insert(k, Arc::new(object));
    }

    /// The names of a resource's objects.
    pub fn names(&self, resource: &GroupResource) -> Vec<String> {
        self.list(resource, None).iter().map(|o| object::name(o).to_owned()).collect()
    }
}

impl Api for FakeApi {
    fn get(&self, resource: &GroupResource, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.objects.lock().unwrap().get(&key(resource, namespace, name)).cloned()
    }
    fn list(&self, resource: &GroupResource, namespace: Option<&str>) -> Vec<Arc<Value>> {
        let resource = resource.to_string();
        let objects = self.objects.lock().unwrap();
        objects
            .iter()
            .filter(|((r, n, _), _)| *r == resource && namespace.is_none_or(|want| want == n))
            .map(|(_, v)| v.clone())
            .collect()
    }
    fn resource_of(&self, _: &kaji_meta::GroupVersionKind) -> Option<(GroupResource, bool)> {
        None
    }
    fn create<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        object: Value,
        dry_run: bool,
    ) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(async move {
            let k = key(resource, namespace, object::name(&object));
            let mut objects = self.objects.lock().unwrap();
            if objects.contains_key(&k) {
                return Err(Status::already_exists(resource, &k.2));
            }
            if !dry_run {
                objects.insert(k, Arc::new(object.clone()));
            }
            Ok(object)
        })
    }
    fn update<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        name: &'a str,
        _subresource: &'a str,
        dry_run: bool,
        change: &'a (dyn Fn(&mut Value) -> Result<(), Status> + Send + Sync),
    ) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(async move {
            let k = key(resource, namespace, name);
            let mut objects = self.objects.lock().unwrap();
            let Some(old) = objects.get(&k) else { return Err(Status::not_found(resource, name)) };
            let mut new = Value::clone(old);
            change(&mut new)?;
            if !dry_run {
                objects.insert(k, Arc::new(new.clone()));
            }
            Ok(new)
        })
    }
    fn delete<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        name: &'a str,
        _options: DeleteOptions,
    ) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(async move {
            let gone = self.objects.lock().unwrap().remove(&key(resource, namespace, name));
            gone.map(|v| Value::clone(&v)).ok_or_else(|| Status::not_found(resource, name))
        })
    }
}

/// The fixture of one test: the user, the time, randomness and the other objects.
pub struct World {
    /// The caller.
    pub user: UserInfo,
    /// The time.
    pub now: jiff::Timestamp,
    /// Randomness.
    pub random: Box<dyn Random>,
    /// Other objects.
    pub api: Arc<FakeApi>,
    /// Warnings given.
    pub warnings: Mutex<Vec<String>>,
}

impl Default for World {
    fn default() -> Self {
        World {
            user: UserInfo { name: "alice".into(), groups: vec!["devs".into()], ..UserInfo::default() },
            now: "2026-01-02T03:04:05Z".parse().unwrap(),
            random: Box::new(SeededRandom::new(7)),
            api: Arc::default(),
            warnings: Mutex::default(),
        }
    }
}

impl World {
    /// A request for an object of a namespace, on a subresource.
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
            random: self.random.as_ref(),
            api: self.api.as_ref(),
            warnings: &self.warnings,
        }
    }
}

/// Dependencies with a fixed clock and seed.
pub fn deps() -> crate::Deps {
    let now = "2026-01-02T03:04:05Z".parse().unwrap();
    crate::Deps::new(Arc::new(kaji_meta::ManualClock::new(now)), Arc::new(SeededRandom::new(7)))
}

/// Every message on its own line.
pub fn show(errors: &[Error]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn storage(def: &ResourceDef) -> String {
    def.storage_version().name.to_string()
}

/// The object after defaulting and preparation, as pretty JSON.
pub fn created(def: &ResourceDef, object: Value) -> String {
    serde_json::to_string_pretty(&create(def, object).0).unwrap()
}

/// The errors of creating the object (defaulted and prepared before), one a line.
pub fn create_errors(def: &ResourceDef, object: Value) -> String {
    create(def, object).1
}

fn create(def: &ResourceDef, mut object: Value) -> (Value, String) {
    let (world, version) = (World::default(), storage(def));
    def.hooks.default(&version, &mut object);
    let seen = object.clone();
    let ctx = world.ctx(&seen, "", &version);
    def.hooks.prepare_create(&ctx, &mut object);
    let errors = show(&def.hooks.validate_create(&ctx, &object));
    (object, errors)
}

/// The errors of changing `old` to `new` (both defaulted, `new` prepared), one a line.
pub fn update_errors(def: &ResourceDef, subresource: &str, new: Value, old: Value) -> String {
    update(def, subresource, new, old).1
}

/// The object after an update's defaulting and preparation, and its errors.
pub fn update(def: &ResourceDef, subresource: &str, mut new: Value, mut old: Value) -> (Value, String) {
    let (world, version) = (World::default(), storage(def));
    def.hooks.default(&version, &mut new);
    def.hooks.default(&version, &mut old);
    let seen = new.clone();
    let ctx = world.ctx(&seen, subresource, &version);
    def.hooks.prepare_update(&ctx, &mut new, &old);
    let errors = show(&def.hooks.validate_update(&ctx, &new, &old));
    (new, errors)
}

/// The table's row, cells parted by ` | `. The clock stands at 2026-01-02T03:04:05Z.
pub fn row(def: &ResourceDef, object: &Value) -> String {
    let cells = def.hooks.row(&storage(def), object, World::default().now);
    cells
        .iter()
        .map(|c| c.as_str().map_or_else(|| c.to_string(), str::to_owned))
        .collect::<Vec<_>>()
        .join(" | ")
}

/// Creates a review, or calls the subresource of a kind without an object.
pub fn call(world: &World, def: &ResourceDef, body: Value) -> Result<(u16, Value), Status> {
    let seen = body.clone();
    let ctx = world.ctx(&seen, "", "v1");
    let request = kaji_resource::CallRequest {
        verb: kaji_resource::Verb::Create,
        body,
        object: None,
        query: &Default::default(),
        delete_options: None,
    };
    let answer = futures_util::FutureExt::now_or_never(def.hooks.call(&ctx, request));
    answer.expect("the fake API never waits")
}
