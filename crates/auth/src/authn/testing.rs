//! Fixtures for tests of authenticators: a clock, a cluster's objects, keys.

use super::SigningKey;
use kaji_meta::{GroupResource, ManualClock};
use kaji_resource::{Api, ObjectReader, UserInfo, testing::FakeApi};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair},
};
use serde_json::Value;
use std::{
    future::Future,
    sync::{Arc, Weak},
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

/// A cluster on New Year's Day of 2026.
pub struct World {
    /// The time.
    pub clock: Arc<ManualClock>,
    objects: Arc<FakeApi>,
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
        self.objects.put(&GroupResource::new("", resource), object);
    }

    /// An object.
    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.objects.get(&GroupResource::new("", resource), namespace, name)
    }

    /// Takes an object out.
    pub fn delete(&self, resource: &str, namespace: &str, name: &str) {
        assert!(self.objects.remove(&GroupResource::new("", resource), namespace, name));
    }

    /// Changes an object.
    pub fn change(&self, resource: &str, namespace: &str, name: &str, change: impl Fn(&mut Value)) {
        assert!(self.objects.change(&GroupResource::new("", resource), namespace, name, change));
    }
}
