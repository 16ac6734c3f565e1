//! Encryption by a KMS plugin: what is stored, keys that change, and plugins that misbehave. The plugin is real and on
//! the other side of a socket; the time is the test's.

use crate::plugin::{Mood, Plugin};
use bytes::Bytes;
use expect_test::expect;
use futures_util::StreamExt;
use jiff::{SignedDuration, Timestamp};
use kaji_encryption::{Config, Deps, EncryptedStore, Metrics, Transformers};
use kaji_meta::{ManualClock, SystemRandom};
use kaji_store::{Range, Store, StoreError, Txn, memory::MemoryStore};
use std::{sync::Arc, time::Duration};

const SECRET: &str = "/registry/core/secrets/ns/a";
const OTHER: &str = "/registry/core/secrets/ns/b";
const GCM: &str = "{aesgcm: {keys: [{name: k, secret: AAECAwQFBgcICQoLDA0ODw==}]}}";
const PREFIX: &[u8] = b"k8s:enc:kms:v2:p:";

/// A plugin, a store beneath, and the time.
struct World {
    plugin: Plugin,
    inner: Arc<dyn Store>,
    clock: Arc<ManualClock>,
    _dir: tempfile::TempDir,
}

/// A server's view: its store and transformers. Another one is as a restart.
struct Server {
    store: EncryptedStore,
    transformers: Arc<Transformers>,
    metrics: Arc<Metrics>,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp::from_second(1_700_000_000).unwrap()));
        let mut plugin = Plugin::new(dir.path());
        plugin.start();
        World { plugin, inner: Arc::new(MemoryStore::new().unwrap()), clock, _dir: dir }
    }

    fn kms(&self, timeout: &str) -> String {
        format!(
            "{{kms: {{apiVersion: v2, name: p, endpoint: '{}', timeout: {timeout}}}}}",
            self.plugin.endpoint()
        )
    }

    async fn server(&self, providers: &[&str]) -> Server {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
             providers: [{}]\n",
            providers.join(", ")
        );
        let metrics = Arc::new(Metrics::new("me"));
        let deps =
            Deps { clock: self.clock.clone(), metrics: metrics.clone(), ..Deps::new(Arc::new(SystemRandom)) };
        let transformers = Arc::new(Transformers::new(&Config::parse(&text).unwrap(), &deps).unwrap());
        transformers.begin(Duration::ZERO).await;
        let store = EncryptedStore::new(self.inner.clone(), transformers.clone());
        Server { store, transformers, metrics }
    }

    /// With the plugin as the only provider.
    async fn started(&self) -> Server {
        self.server(&[&self.kms("20s")]).await
    }

    async fn raw(&self, key: &str) -> Bytes {
        value(&*self.inner, key).await.unwrap()
    }

    fn later(&self, seconds: i64) {
        self.clock.advance(SignedDuration::from_secs(seconds));
    }
}

async fn value(store: &dyn Store, key: &str) -> Result<Bytes, StoreError> {
    Ok(store.range(Range::key(key)).await?.kvs.remove(0).value)
}

impl Server {
    async fn put(&self, key: &str, value: &'static str) -> Result<(), StoreError> {
        self.store.txn(Txn::put(key, value)).await.map(drop)
    }

    async fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        value(&self.store, key).await
    }

    async fn why_not_written(&self) -> String {
        self.put(OTHER, "{other}").await.unwrap_err().to_string()
    }

    /// With what is random left out.
    async fn ill(&self) -> String {
        let text = self.transformers.check().await.unwrap_err();
        match text.split_once("uid=\"") {
            Some((head, rest)) => format!("{head}uid=\"…{}", &rest[36..]),
            None => text,
        }
    }

    fn page(&self) -> String {
        let mut registry = prometheus_client::registry::Registry::default();
        self.metrics.register(&mut registry);
        kaji_exposition::encode(&registry)
    }
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|w| w == text.as_bytes())
}

#[tokio::test]
async fn values_are_stored_as_upstream_stores_them() {
    let world = World::new();
    world.plugin.state().annotation = Some(("version.example.com".into(), "7".into()));
    let server = world.started().await;
    server.put(SECRET, "{clear}").await.unwrap();
    server.put(OTHER, "{clear}").await.unwrap();
    let stored = world.raw(SECRET).await;
    let envelope = stored.strip_prefix(PREFIX).unwrap();
    // EncryptedObject: encryptedData of 32 random bytes, 12 of nonce, the value and 16 of tag; then the rest.
    assert_eq!(envelope[..2], [0x0a, 32 + 12 + 7 + 16]);
    let rest = &envelope[2 + 67..];
    assert!(rest.starts_with(b"\x12\x05key-1\x1a\x20"), "{rest:?}");
    assert!(rest.ends_with(b"\x22\x18\x0a\x13version.example.com\x12\x017\x28\x01"), "{rest:?}");
    assert!(!holds(&stored, "clear"));
    assert_eq!(world.plugin.state().calls, ["Status", "Encrypt"], "writing needs no call");

    // Read by the same server without a call, and by another with one, for all values of one seed.
    assert_eq!(server.get(SECRET).await.unwrap(), "{clear}");
    assert_eq!(world.plugin.calls("Decrypt"), 0);
    let again = world.started().await;
    assert_eq!(again.get(SECRET).await.unwrap(), "{clear}");
    assert_eq!(again.get(OTHER).await.unwrap(), "{clear}");
    assert_eq!(world.plugin.calls("Decrypt"), 1);
    assert!(!again.store.stale(SECRET).await.unwrap(), "another seed of the same key is as good");
    assert_eq!(again.transformers.check().await, Ok(()));

    // A value that was moved does not open.
    world.inner.txn(Txn::put(OTHER, stored.clone())).await.unwrap();
    assert_eq!(
        again.get(OTHER).await.unwrap_err().to_string(),
        format!("store is corrupt: unable to transform key {OTHER:?}: cipher: message authentication failed")
    );
    let cut = stored.slice(..stored.len() - 1);
    world.inner.txn(Txn::put(OTHER, cut)).await.unwrap();
    assert!(matches!(again.get(OTHER).await, Err(StoreError::Corrupt(_))));
}

#[tokio::test]
async fn keys_rotate_and_everything_stays_readable() {
    let world = World::new();
    let server = world.started().await;
    server.put(SECRET, "{one}").await.unwrap();
    world.plugin.state().key_id = "key-2".into();
    // Noticed by the next look at the plugin's status, not before.
    server.put(SECRET, "{one}").await.unwrap();
    assert!(holds(&world.raw(SECRET).await, "key-1") && !server.store.stale(SECRET).await.unwrap());
    world.later(60);
    assert_eq!(server.transformers.check().await, Ok(()));
    assert!(server.store.stale(SECRET).await.unwrap());
    assert_eq!(server.get(SECRET).await.unwrap(), "{one}");
    server.put(OTHER, "{two}").await.unwrap();
    assert!(holds(&world.raw(OTHER).await, "key-2"));

    // After a restart both are read, each with one call; once the old one is written again its key is not needed.
    let again = world.started().await;
    assert_eq!(again.get(SECRET).await.unwrap(), "{one}");
    assert_eq!(again.get(OTHER).await.unwrap(), "{two}");
    again.put(SECRET, "{one}").await.unwrap();
    world.plugin.state().lost.push("key-1".into());
    let last = world.started().await;
    assert_eq!(last.get(SECRET).await.unwrap(), "{one}");
    assert_eq!(last.get(OTHER).await.unwrap(), "{two}");
}

#[tokio::test]
async fn a_key_that_the_plugin_lost_is_said_and_nothing_is_replaced() {
    let world = World::new();
    let server = world.started().await;
    server.put(SECRET, "{one}").await.unwrap();
    world.plugin.state().lost.push("key-1".into());
    world.plugin.state().key_id = "key-2".into();
    let again = world.started().await;
    let error = again.get(SECRET).await.unwrap_err();
    expect![[r#"unable to transform key "/registry/core/secrets/ns/a": failed to decrypt DEK, error: rpc error: code = NotFound desc = there is no key-1"#]]
        .assert_eq(&error.to_string());
    assert!(matches!(error, StoreError::Encryption(_)), "not damage: the key may come back");
    world.plugin.state().lost.clear();
    assert_eq!(again.get(SECRET).await.unwrap(), "{one}");
}

#[tokio::test]
async fn a_crash_is_coasted_over_and_then_nothing_is_written() {
    let mut world = World::new();
    let server = world.server(&[&world.kms("2s")]).await;
    server.put(SECRET, "{one}").await.unwrap();
    world.plugin.crash();
    world.later(60);
    expect!["kms-provider-0: failed to perform status section of the healthz check for KMS Provider p, error: rpc error: code = Unavailable desc = error reading from server: connection error"]
        .assert_eq(&server.ill().await.replace(&world.plugin.path.display().to_string(), "PATH"));
    server.put(SECRET, "{two}").await.unwrap();
    world.later(120);
    server.put(SECRET, "{three}").await.unwrap();
    // Three minutes after the last good answer the seed has expired. Reads go on.
    world.later(1);
    expect![[r#"encryptedDEKSource with keyID hash "sha256:be2974546978e3739e6d6da85c4be9f334ce32df2b9fd4b6ff1b55c0d57e9d44" expired at 2023-11-14T22:16:20Z (current time is 2023-11-14T22:16:21Z)"#]]
        .assert_eq(&server.why_not_written().await);
    assert_eq!(server.get(SECRET).await.unwrap(), "{three}");
    assert!(server.inner_has_no(&world, OTHER).await);
    // It is back, on a new socket.
    world.plugin.start();
    assert_eq!(server.transformers.check().await, Ok(()));
    server.put(OTHER, "{other}").await.unwrap();
    assert_eq!(server.get(OTHER).await.unwrap(), "{other}");
    assert_eq!(world.plugin.calls("Encrypt"), 1, "the seed is still good");
}

impl Server {
    async fn inner_has_no(&self, world: &World, key: &str) -> bool {
        world.inner.range(Range::key(key)).await.unwrap().kvs.is_empty()
    }
}

#[tokio::test]
async fn a_start_does_not_wait_for_an_absent_plugin() {
    let mut world = World::new();
    world.started().await.put(SECRET, "{one}").await.unwrap();
    world.plugin.crash();
    let server = world.server(&[&world.kms("200ms"), "{identity: {}}"]).await;
    // Not even identity writes in its place.
    assert_eq!(server.why_not_written().await, "got unexpected nil transformer");
    let error = server.get(SECRET).await.unwrap_err().to_string();
    assert!(error.contains("failed to decrypt DEK, error: rpc error: code = DeadlineExceeded"), "{error}");
    world.plugin.start();
    // On a busy machine a call may take longer than this server's timeout.
    while server.transformers.check().await.is_err() {
        world.later(10);
    }
    assert_eq!(server.get(SECRET).await.unwrap(), "{one}");
    server.put(OTHER, "{other}").await.unwrap();
}

#[tokio::test]
async fn hanging_refusing_and_talking_nonsense() {
    let mut world = World::new();
    let server = world.server(&[&world.kms("2s")]).await;
    let mut seen = vec![];
    for mood in [Mood::Hangs, Mood::Refuses(13), Mood::Garbage, Mood::Speechless] {
        world.plugin.state().mood = mood;
        if mood == Mood::Speechless {
            world.plugin.start();
        }
        world.later(30);
        seen.push(format!("{mood:?}: {}", server.ill().await));
    }
    // The last two texts are the libraries'.
    let cut = |text: &str| text.split(" desc = ").next().unwrap().to_owned();
    expect![[r#"
        Hangs: kms-provider-0: failed to perform status section of the healthz check for KMS Provider p, error: rpc error: code = DeadlineExceeded desc = context deadline exceeded
        Refuses(13): kms-provider-0: failed to perform status section of the healthz check for KMS Provider p, error: rpc error: code = Internal desc = no
        Garbage: kms-provider-0: failed to perform status section of the healthz check for KMS Provider p, error: rpc error: code = Internal
        Speechless: kms-provider-0: failed to perform status section of the healthz check for KMS Provider p, error: rpc error: code = Unavailable"#]]
    .assert_eq(&[seen[0].clone(), seen[1].clone(), cut(&seen[2]), cut(&seen[3])].join("\n"));
    world.plugin.state().mood = Mood::Well;
    world.later(30);
    assert_eq!(server.transformers.check().await, Ok(()));
    // An answer holds for a while: no client can make the server call the plugin all the time.
    let calls = world.plugin.calls("Status");
    for _ in 0..5 {
        assert_eq!(server.transformers.check().await, Ok(()));
    }
    assert_eq!(world.plugin.calls("Status"), calls);
}

type Change = fn(&mut crate::plugin::State);

#[tokio::test]
async fn answers_that_are_wrong() {
    let changes: [(&str, Change); 7] = [
        ("ill", |s| s.healthz = "not today".into()),
        ("version", |s| s.version = "v1beta1".into()),
        ("other version", |s| s.version = "v2beta1".into()),
        ("no key", |s| s.key_id = String::new()),
        ("long key", |s| s.key_id = "k".repeat(1025)),
        ("two keys", |s| (s.key_id, s.other_key_id) = ("key-2".into(), Some("key-3".into()))),
        ("annotation", |s| {
            (s.key_id, s.annotation) = ("key-2".into(), Some(("plain".into(), "x".into())));
        }),
    ];
    let mut seen = vec![];
    for (name, change) in changes {
        let world = World::new();
        let server = world.started().await;
        server.put(SECRET, "{one}").await.unwrap();
        change(&mut world.plugin.state());
        world.later(30);
        seen.push(format!("{name}: {}", server.ill().await));
        // What was good is used on.
        server.put(SECRET, "{two}").await.unwrap();
        assert!(holds(&world.raw(SECRET).await, "key-1"), "{name}");
        assert_eq!(server.get(SECRET).await.unwrap(), "{two}");
    }
    expect![[r#"
        ill: kms-provider-0: kmsv2 Provider p is not healthy, error: got unexpected healthz status: not today
        version: kms-provider-0: kmsv2 Provider p is not healthy, error: expected KMSv2 API version v2, got v1beta1
        other version: kms-provider-0: kmsv2 Provider p is not healthy, error: KMSv2 API version should not change after the initial status response version v2, got v2beta1
        no key: kms-provider-0: kmsv2 Provider p is not healthy, error: got invalid KMSv2 KeyID hash "": keyID is empty
        long key: kms-provider-0: kmsv2 Provider p is not healthy, error: got invalid KMSv2 KeyID hash "sha256:011cc8dcade24f43d2d7f95605d8481da1d0b86475def49be02bfc20cee86e65": keyID is 1025 bytes, which exceeds the max size of 1024
        two keys: kms-provider-0: kmsv2 Provider p is not healthy, error: failed to rotate DEK uid="…", useSeed=true, errState=<nil>, errGen=<nil>, statusKeyIDHash="sha256:7c36b0a9dedde119c75165957c6c9c187e65df1ee5db87c4c58ad503ad88cbe3", encryptKeyIDHash="sha256:d9ef8196557c9da69806fb5d777f4e5ad6d5c18593039e0ff62f9fdf003b0198", stateKeyIDHash="sha256:be2974546978e3739e6d6da85c4be9f334ce32df2b9fd4b6ff1b55c0d57e9d44", expirationTimestamp=2023-11-14T22:16:20Z
        annotation: kms-provider-0: kmsv2 Provider p is not healthy, error: failed to rotate DEK uid="…", useSeed=true, errState=<nil>, errGen=failed to validate annotations: annotations: Invalid value: "plain": should be a domain with at least two segments separated by dots, statusKeyIDHash="sha256:7c36b0a9dedde119c75165957c6c9c187e65df1ee5db87c4c58ad503ad88cbe3", encryptKeyIDHash="", stateKeyIDHash="sha256:be2974546978e3739e6d6da85c4be9f334ce32df2b9fd4b6ff1b55c0d57e9d44", expirationTimestamp=2023-11-14T22:16:20Z"#]].assert_eq(&seen.join("\n"));
}

#[tokio::test]
async fn from_identity_to_aesgcm_to_a_plugin_and_back() {
    let world = World::new();
    world.inner.txn(Txn::put(SECRET, "{clear}")).await.unwrap();
    let kms = world.kms("20s");
    let steps: [(&[&str], &[u8]); 4] = [
        (&[GCM, "{identity: {}}"], b"k8s:enc:aesgcm:v1:k:"),
        (&[&kms, GCM], PREFIX),
        (&["{identity: {}}", &kms], b"{clear}"),
        (&[&kms, "{identity: {}}"], PREFIX),
    ];
    for (providers, prefix) in steps {
        let server = world.server(providers).await;
        assert_eq!(server.get(SECRET).await.unwrap(), "{clear}", "{providers:?}");
        assert!(server.store.stale(SECRET).await.unwrap(), "{providers:?}");
        server.put(SECRET, "{clear}").await.unwrap();
        assert!(!server.store.stale(SECRET).await.unwrap(), "{providers:?}");
        assert!(world.raw(SECRET).await.starts_with(prefix), "{providers:?}");
    }
    // Without the plugin in the file the value belongs to another server.
    let without = world.server(&[GCM]).await;
    assert!(without.get(SECRET).await.unwrap_err().to_string().ends_with("no matching prefix found"));
}

#[tokio::test]
async fn a_watch_unlocks_what_it_meets() {
    let world = World::new();
    let (writer, reader) = (world.started().await, world.started().await);
    let mut events = reader.store.watch("/registry/", 0).await.unwrap();
    let mut next = async || loop {
        let batch = events.next().await.unwrap().unwrap();
        if !batch.events.is_empty() || !batch.unreadable.is_empty() {
            break batch;
        }
    };
    writer.put(SECRET, "{one}").await.unwrap();
    assert_eq!(next().await.events[0].kv.value, "{one}");
    // The error of what cannot be unlocked says that the store is not damaged.
    world.plugin.state().key_id = "key-2".into();
    world.plugin.state().lost.push("key-2".into());
    world.later(60);
    assert_eq!(writer.transformers.check().await, Ok(()));
    writer.put(SECRET, "{two}").await.unwrap();
    let error = &next().await.unreadable[0].error;
    assert!(matches!(error, StoreError::Encryption(text) if text.contains("NotFound")), "{error}");
    // Events of other resources do not wait for the plugin behind each of this one's.
    let calls = world.plugin.calls("Decrypt");
    writer.put(SECRET, "{three}").await.unwrap();
    let error = &next().await.unreadable[0].error;
    assert!(matches!(error, StoreError::Encryption(text) if text.contains("failed a moment ago")), "{error}");
    assert_eq!(world.plugin.calls("Decrypt"), calls);
    writer.put("/registry/core/configmaps/ns/a", "{clear}").await.unwrap();
    assert_eq!(next().await.events[0].kv.value, "{clear}");
    // A read does.
    assert!(reader.get(SECRET).await.is_err());
    assert!(world.plugin.calls("Decrypt") > calls);
}

#[tokio::test]
async fn metrics_say_what_happened() {
    let world = World::new();
    world.started().await.put(SECRET, "{one}").await.unwrap();
    let server = world.started().await;
    server.put(OTHER, "{two}").await.unwrap();
    server.get(SECRET).await.unwrap();
    world.plugin.state().key_id = String::new();
    world.later(30);
    server.ill().await;
    let page = server.page();
    let lines =
        page.lines().filter(|l| !l.starts_with('#') && !l.contains("_bucket{") && !l.contains("_sum"));
    let mut lines: Vec<&str> = lines.collect();
    lines.sort();
    expect![[r#"
        apiserver_envelope_encryption_dek_source_cache_size{provider_name="p"} 2
        apiserver_envelope_encryption_invalid_key_id_from_status_total{error="empty",provider_name="p"} 1
        apiserver_envelope_encryption_key_id_hash_last_timestamp_seconds{apiserver_id_hash="sha256:2744ccd10c7533bd736ad890f9dd5cab2adb27b07d500b9493f29cdc420cb2e0",key_id_hash="sha256:be2974546978e3739e6d6da85c4be9f334ce32df2b9fd4b6ff1b55c0d57e9d44",provider_name="p",transformation_type="from_storage"} 1.7e+09
        apiserver_envelope_encryption_key_id_hash_last_timestamp_seconds{apiserver_id_hash="sha256:2744ccd10c7533bd736ad890f9dd5cab2adb27b07d500b9493f29cdc420cb2e0",key_id_hash="sha256:be2974546978e3739e6d6da85c4be9f334ce32df2b9fd4b6ff1b55c0d57e9d44",provider_name="p",transformation_type="to_storage"} 1.7e+09
        apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds{apiserver_id_hash="sha256:2744ccd10c7533bd736ad890f9dd5cab2adb27b07d500b9493f29cdc420cb2e0",key_id_hash="sha256:be2974546978e3739e6d6da85c4be9f334ce32df2b9fd4b6ff1b55c0d57e9d44",provider_name="p"} 1.7e+09
        apiserver_envelope_encryption_key_id_hash_total{apiserver_id_hash="sha256:2744ccd10c7533bd736ad890f9dd5cab2adb27b07d500b9493f29cdc420cb2e0",key_id_hash="sha256:be2974546978e3739e6d6da85c4be9f334ce32df2b9fd4b6ff1b55c0d57e9d44",provider_name="p",transformation_type="from_storage"} 1
        apiserver_envelope_encryption_key_id_hash_total{apiserver_id_hash="sha256:2744ccd10c7533bd736ad890f9dd5cab2adb27b07d500b9493f29cdc420cb2e0",key_id_hash="sha256:be2974546978e3739e6d6da85c4be9f334ce32df2b9fd4b6ff1b55c0d57e9d44",provider_name="p",transformation_type="to_storage"} 1
        apiserver_envelope_encryption_kms_operations_latency_seconds_count{grpc_status_code="OK",method_name="/v2.KeyManagementService/Decrypt",provider_name="p"} 1
        apiserver_envelope_encryption_kms_operations_latency_seconds_count{grpc_status_code="OK",method_name="/v2.KeyManagementService/Encrypt",provider_name="p"} 1
        apiserver_envelope_encryption_kms_operations_latency_seconds_count{grpc_status_code="OK",method_name="/v2.KeyManagementService/Status",provider_name="p"} 2
        apiserver_storage_data_key_generation_duration_seconds_count 1
        apiserver_storage_envelope_transformation_cache_misses_total 1
        apiserver_storage_transformation_duration_seconds_count{transformation_type="from_storage",transformer_prefix="k8s:enc:kms:v2:p:"} 1
        apiserver_storage_transformation_duration_seconds_count{transformation_type="to_storage",transformer_prefix="k8s:enc:kms:v2:p:"} 1
        apiserver_storage_transformation_operations_total{resource="secrets",status="OK",transformation_type="from_storage",transformer_prefix="k8s:enc:kms:v2:p:"} 1
        apiserver_storage_transformation_operations_total{resource="secrets",status="OK",transformation_type="to_storage",transformer_prefix="k8s:enc:kms:v2:p:"} 1"#]].assert_eq(&lines.join("\n"));
}
