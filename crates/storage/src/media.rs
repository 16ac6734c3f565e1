//! Values as upstream's API server writes them: a store around a store, with values that are JSON above, and JSON or protobuf below.
//!
//! Invariants: above, every value is JSON without whitespace around it, whatever wrote it; a value of a kind without protobuf form
//! (custom resources) is written as JSON; a value that cannot be read ends what met it with an error that names its key; what an
//! API server of upstream wrote gets the defaults that upstream fills in when it reads; values of no resource are left alone.

use crate::{crd_v1beta1, former, internal_keys::is_internal};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use kaji_engine::storage;
use kaji_meta::TypeMeta;
use kaji_options::StorageMediaType;
use kaji_schema::{SchemaRef, protobuf, types};
use kaji_store::{
    BoxFuture, KeyValue, Op, Range, RangeResult, Revision, Store, StoreError, Txn, TxnOutcome,
    UnreadableChange, WatchBatch, WatchStream,
};
use serde_json::Value;
use std::sync::Arc;

/// The store.
pub struct MediaStore {
    inner: Arc<dyn Store>,
    writes: StorageMediaType,
    defaults: Defaults,
}

/// Fills in the defaults of a version and kind.
pub type Defaults = Arc<dyn Fn(&str, &str, &mut Value) + Send + Sync>;

impl MediaStore {
    /// Around a store of clear values.
    pub fn new(inner: Arc<dyn Store>, writes: StorageMediaType, defaults: Defaults) -> MediaStore {
        MediaStore { inner, writes, defaults }
    }
}

fn schema(api_version: &str, kind: &str) -> Option<SchemaRef> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    types::entry_for_gvk(group, version, kind).map(SchemaRef::Named)
}

/// The schema of what was stored, with the version that it is of: another one, if that is not served any more.
fn schema_of(stored: &str, kind: &str) -> Option<(String, SchemaRef)> {
    let own = schema(stored, kind).map(|schema| (stored.to_owned(), schema));
    own.or_else(|| {
        let served = former::served(stored, kind)?;
        schema(&served, kind).map(|schema| (served, schema))
    })
}

/// A stored value as JSON.
pub(crate) fn json(key: &str, value: Bytes, defaults: &Defaults) -> Result<Bytes, StoreError> {
    if is_internal(key) {
        return Ok(value);
    }
    if !value.starts_with(protobuf::MAGIC) {
        // Go's encoder ends what it writes with a line feed.
        let end = value.iter().rposition(|byte| !byte.is_ascii_whitespace()).map_or(0, |at| at + 1);
        return if end == value.len() { Ok(value) } else { of_upstream(key, value.slice(..end), defaults) };
    }
    let unreadable = |why: &dyn std::fmt::Display| StoreError::undecodable(key, why);
    let mut envelope = protobuf::open(&value).map_err(|e| unreadable(&e))?;
    let converted = crd_v1beta1::convert(&mut envelope).map_err(|e| unreadable(&e))?;
    let (stored, kind, raw) = (envelope.api_version, envelope.kind, envelope.raw);
    let (version, schema) = schema_of(&stored, &kind)
        .ok_or_else(|| unreadable(&TypeMeta { api_version: &stored, kind: &kind }.unregistered()))?;
    let mut object =
        protobuf::decode(&schema, converted.as_deref().unwrap_or(raw)).map_err(|e| unreadable(&e))?;
    former::adapt(&stored, &kind, &mut object);
    if let Value::Object(map) = &mut object {
        map.insert("apiVersion".into(), version.into());
        map.insert("kind".into(), kind.into());
        if let Some(Value::Object(meta)) = map.get_mut("metadata") {
            meta.retain(|_, value| match value {
                Value::Null => false,
                Value::Object(map) => !map.is_empty(),
                Value::Array(list) => !list.is_empty(),
                _ => true,
            });
        }
    }
    complete(&schema, &mut object, defaults);
    Ok(storage::encode(&object))
}

/// What upstream wrote as JSON.
fn of_upstream(key: &str, value: Bytes, defaults: &Defaults) -> Result<Bytes, StoreError> {
    let mut object: Value = serde_json::from_slice(&value).map_err(|e| StoreError::undecodable(key, &e))?;
    let before = object.clone();
    let text = |object: &Value, member: &str| object[member].as_str().unwrap_or_default().to_owned();
    if crd_v1beta1::is_former(&text(&object, "apiVersion"), &text(&object, "kind")) {
        crd_v1beta1::object(&mut object);
    }
    let (stored, kind) = (text(&object, "apiVersion"), text(&object, "kind"));
    // Custom resources get their defaults from their definition.
    let Some((version, schema)) = schema_of(&stored, &kind) else { return Ok(value) };
    if version != stored {
        former::adapt(&stored, &kind, &mut object);
        object["apiVersion"] = version.into();
    }
    complete(&schema, &mut object, defaults);
    Ok(if object == before { value } else { storage::encode(&object) })
}

/// Fills in defaults, in the form in which Go writes objects.
fn complete(schema: &SchemaRef, object: &mut Value, defaults: &Defaults) {
    let text = |object: &Value, member: &str| object[member].as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(object, "apiVersion"), text(object, "kind"));
    defaults(&version, &kind, object);
    if let Err(error) = kaji_schema::decode::typed(schema.get(), object) {
        tracing::error!(%error, "a stored object has a value of a wrong type");
    }
}

/// A JSON value as protobuf; `None` for one of a kind that has no such form.
pub(crate) fn binary(key: &str, value: &[u8]) -> Result<Option<Bytes>, StoreError> {
    let invalid = |why: &dyn std::fmt::Display| {
        StoreError::Invalid(format!("the value of {key:?} is not an object: {why}"))
    };
    let object: Value = serde_json::from_slice(value).map_err(|e| invalid(&e))?;
    let text = |member: &str| object.get(member).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let Some(schema) = schema(version, kind) else { return Ok(None) };
    let encoded = protobuf::object(&schema, version, kind, &object).map_err(|e| invalid(&e))?;
    Ok(Some(encoded.into()))
}

fn read(kv: &mut KeyValue, defaults: &Defaults) -> Result<(), StoreError> {
    kv.value = json(&kv.key, std::mem::take(&mut kv.value), defaults)?;
    Ok(())
}

fn read_batch(batch: WatchBatch, defaults: &Defaults) -> WatchBatch {
    let WatchBatch { revision, mut events, mut unreadable } = batch;
    events.retain_mut(|event| {
        let outcome = event.values_mut().try_for_each(|kv| read(kv, defaults));
        let is_readable = outcome.is_ok();
        unreadable.extend(outcome.err().map(|error| UnreadableChange { key: event.kv.key.clone(), error }));
        is_readable
    });
    WatchBatch { revision, events, unreadable }
}

impl Store for MediaStore {
    fn txn(&self, mut txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, StoreError>> {
        async move {
            if self.writes == StorageMediaType::Protobuf {
                for op in &mut txn.ops {
                    if let Op::Put { key, value, .. } = op
                        && !is_internal(key)
                        && let Some(encoded) = binary(key, value)?
                    {
                        *value = encoded;
                    }
                }
            }
            let mut outcome = self.inner.txn(txn).await?;
            let (TxnOutcome::Committed { previous: kvs, .. } | TxnOutcome::Conflict { current: kvs, .. }) =
                &mut outcome;
            kvs.iter_mut().flatten().try_for_each(|kv| read(kv, &self.defaults))?;
            Ok(outcome)
        }
        .boxed()
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<RangeResult, StoreError>> {
        async move {
            let mut result = self.inner.range(range).await?;
            result.kvs.iter_mut().try_for_each(|kv| read(kv, &self.defaults))?;
            Ok(result)
        }
        .boxed()
    }

    fn watch(&self, prefix: &str, from: Revision) -> BoxFuture<'_, Result<WatchStream, StoreError>> {
        let (started, defaults) = (self.inner.watch(prefix, from), self.defaults.clone());
        async move {
            let batches = started.await?;
            Ok(batches.map(move |batch| Ok(read_batch(batch?, &defaults))).boxed())
        }
        .boxed()
    }

    kaji_store::delegate_store!(inner: keys, remove_unread, stale, revision, current_revision_hint, write_failure, request_progress);
    kaji_store::delegate_store!(inner: grant_lease, keep_alive, revoke, compact, scrub, compacted, close);
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_store::memory::MemoryStore;

    const POD: &str = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"b","uid":"c","labels":{"d":"e"}},"spec":{"containers":[{"name":"x","image":"y","resources":{}}]},"status":{}}"#;
    const CUSTOM: &str = r#"{"apiVersion":"ex.io/v1","kind":"Foo","metadata":{"name":"a"}}"#;

    fn none() -> Defaults {
        Arc::new(|_, _, _| {})
    }

    #[tokio::test]
    async fn what_upstream_wrote_gets_defaults() {
        let memory: Arc<dyn Store> = Arc::new(MemoryStore::new().unwrap());
        let claim = r#"{"kind":"PersistentVolumeClaim","apiVersion":"v1","metadata":{"name":"a","namespace":"b"},"spec":{"resources":{}},"status":{}}"#;
        let with_defaults = r#"{"kind":"PersistentVolumeClaim","apiVersion":"v1","metadata":{"name":"a","namespace":"b"},"spec":{"resources":{}},"status":{"phase":"Pending"}}"#;
        let binary = binary("/x", claim.as_bytes()).unwrap().unwrap();
        memory.txn(Txn::put("/json", format!("{claim}\n"))).await.unwrap();
        memory.txn(Txn::put("/binary", binary)).await.unwrap();
        memory.txn(Txn::put("/own", claim)).await.unwrap();
        memory.txn(Txn::put(crate::internal_keys::NODE_PORTS, "k8s\0anything\n")).await.unwrap();
        let defaults: Defaults = Arc::new(|version, kind, object| {
            assert_eq!((version, kind), ("v1", "PersistentVolumeClaim"));
            object["status"]["phase"] = "Pending".into();
        });
        let store = MediaStore::new(memory, StorageMediaType::Json, defaults);
        let read = async |key: &str| store.range(Range::key(key)).await.unwrap().kvs[0].value.clone();
        assert_eq!(read("/json").await, with_defaults);
        assert_eq!(read("/binary").await, with_defaults);
        // This program completes objects when it writes them.
        assert_eq!(read("/own").await, claim);
        assert_eq!(read(crate::internal_keys::NODE_PORTS).await, "k8s\0anything\n");
    }

    #[tokio::test]
    async fn values_are_json_above_and_what_is_asked_for_below() {
        let memory: Arc<dyn Store> = Arc::new(MemoryStore::new().unwrap());
        let store = MediaStore::new(memory.clone(), StorageMediaType::Protobuf, none());
        let mut watch = store.watch("/", 0).await.unwrap();
        for (key, value) in [("/a", POD), ("/b", CUSTOM)] {
            store.txn(Txn::create(key, value)).await.unwrap();
            let batch = watch.next().await.unwrap().unwrap();
            assert_eq!(batch.events[0].kv.value, value);
            assert_eq!(store.range(Range::key(key)).await.unwrap().kvs[0].value, value);
        }
        let below = memory.range(Range::prefix("/")).await.unwrap().kvs;
        assert!(below[0].value.starts_with(b"k8s\0\n\t\n\x02v1\x12\x03Pod"));
        assert_eq!(below[1].value, CUSTOM);
        // Each is read whatever is written.
        let json = MediaStore::new(memory.clone(), StorageMediaType::Json, none());
        assert_eq!(json.range(Range::key("/a")).await.unwrap().kvs[0].value, POD);
        let TxnOutcome::Conflict { current, .. } = json.txn(Txn::create("/a", POD)).await.unwrap() else {
            panic!("created twice")
        };
        assert_eq!(current[0].as_ref().unwrap().value, POD);
        json.txn(Txn::put("/a", POD)).await.unwrap();
        assert_eq!(memory.range(Range::key("/a")).await.unwrap().kvs[0].value, POD);
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_named() {
        let memory: Arc<dyn Store> = Arc::new(MemoryStore::new().unwrap());
        memory.txn(Txn::put("/a", &b"k8s\0\n\t\n\x02v9\x12\x03Pod"[..])).await.unwrap();
        memory.txn(Txn::put("/b", "{}\n")).await.unwrap();
        let store = MediaStore::new(memory, StorageMediaType::Json, none());
        let error = store.range(Range::prefix("/")).await.unwrap_err().to_string();
        assert_eq!(
            error,
            r#"store is corrupt: the value of "/a" cannot be decoded: no kind "Pod" is registered for version "v9""#
        );
        assert_eq!(store.range(Range::key("/b")).await.unwrap().kvs[0].value, "{}");
        let mut watch = store.watch("/", 2).await.unwrap();
        let batch = watch.next().await.unwrap().unwrap();
        let seen = (batch.events.len(), &*batch.unreadable[0].key, &batch.unreadable[0].error);
        assert!(matches!(seen, (0 | 1, "/a", StoreError::Corrupt(_))), "{seen:?}");
    }

    #[test]
    fn a_stored_service_is_completed_by_its_kind_alone() {
        let read = |version: &str| {
            let service = serde_json::json!({"kind": "Service", "apiVersion": version, "metadata": {"name": "s"},
                "spec": {"clusterIP": "10.0.0.1"}});
            let value =
                super::json("/registry/x", format!("{service}\n").into(), &crate::backend::defaults());
            serde_json::from_slice::<Value>(&value.unwrap()).unwrap()
        };
        assert_eq!(read("v1")["spec"]["clusterIPs"], serde_json::json!(["10.0.0.1"]));
        assert_eq!(read("example.com/v1")["spec"], serde_json::json!({"clusterIP": "10.0.0.1"}));
    }
}
