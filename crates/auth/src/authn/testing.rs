//! Fixtures for tests of authenticators: a clock, a cluster's objects, keys.

use super::SigningKey;
use kaji_meta::{GroupResource, ManualClock, Status, object};
use kaji_resource::{Api, BoxFuture, DeleteOptions, UserInfo};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex, Weak},
};

/// The result of a future that does not wait.
pub fn now_or_never<T>(future: impl Future<Output = T>) -> T {
    futures_util::FutureExt::now_or_never(future).unwrap()
}

/// A user.
pub fn user(name: &str, groups: &[&str]) -> UserInfo {
    UserInfo {
        name: name.into(),
        groups: groups.iter().map(|g| (*g).into()).collect(),
        ..UserInfo::default()
    }
}

/// A new key as PEM.
pub fn ec_pem() -> String {
    use base64::Engine as _;
    let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).unwrap();
    let text = base64::engine::general_purpose::STANDARD.encode(der.as_ref());
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|c| std::str::from_utf8(c).unwrap()).collect();
    format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", lines.join("\n"))
}

/// A new key.
pub fn ec_key() -> SigningKey {
    SigningKey::from_pem(&ec_pem()).unwrap()
}

type Key = (String, String, String);

/// A cluster's objects.
#[derive(Default)]
pub struct Objects(Mutex<BTreeMap<Key, Arc<Value>>>);

fn key(resource: &str, namespace: &str, name: &str) -> Key {
    (resource.into(), namespace.into(), name.into())
}

impl Api for Objects {
    fn get(&self, resource: &GroupResource, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.0.lock().unwrap().get(&key(&resource.resource, namespace, name)).cloned()
    }

    fn list(&self, _: &GroupResource, _: Option<&str>) -> Vec<Arc<Value>> {
        unreachable!("authenticators list nothing")
    }

    fn resource_of(&self, _: &kaji_meta::GroupVersionKind) -> Option<(GroupResource, bool)> {
        unreachable!("authenticators know no kinds")
    }

    fn create<'a>(
        &'a self,
        _: &'a GroupResource,
        _: &'a str,
        _: Value,
        _: bool,
    ) -> BoxFuture<'a, Result<Value, Status>> {
        unreachable!("authenticators create nothing")
    }

    fn update<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        name: &'a str,
        _: &'a str,
        _: bool,
        change: &'a (dyn Fn(&mut Value) -> Result<(), Status> + Send + Sync),
    ) -> BoxFuture<'a, Result<Value, Status>> {
        let mut objects = self.0.lock().unwrap();
        let found = objects.get_mut(&key(&resource.resource, namespace, name)).unwrap();
        let changed = change(Arc::make_mut(found)).map(|()| Value::clone(found));
        Box::pin(std::future::ready(changed))
    }

    fn delete<'a>(
        &'a self,
        _: &'a GroupResource,
        _: &'a str,
        _: &'a str,
        _: DeleteOptions,
    ) -> BoxFuture<'a, Result<Value, Status>> {
        unreachable!("authenticators delete nothing")
    }
}

/// A cluster on New Year's Day of 2026.
pub struct World {
    /// The time.
    pub clock: Arc<ManualClock>,
    objects: Arc<Objects>,
}

impl Default for World {
    fn default() -> Self {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        World { clock: Arc::new(ManualClock::new(now)), objects: Arc::default() }
    }
}

impl World {
    /// The objects as authenticators hold them.
    pub fn weak(&self) -> Weak<dyn Api> {
        let api: Arc<dyn Api> = self.objects.clone();
        Arc::downgrade(&api)
    }

    /// Puts an object in.
    pub fn put(&self, resource: &str, object: Value) {
        let key = key(resource, object::namespace(&object), object::name(&object));
        self.objects.0.lock().unwrap().insert(key, Arc::new(object));
    }

    /// An object.
    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.objects.get(&GroupResource::new("", resource), namespace, name)
    }

    /// Takes an object out.
    pub fn delete(&self, resource: &str, namespace: &str, name: &str) {
        assert!(self.objects.0.lock().unwrap().remove(&key(resource, namespace, name)).is_some());
    }

    /// Changes an object.
    pub fn change(&self, resource: &str, namespace: &str, name: &str, change: impl Fn(&mut Value)) {
        let mut objects = self.objects.0.lock().unwrap();
        change(Arc::make_mut(objects.get_mut(&key(resource, namespace, name)).unwrap()));
    }
}
