//! Reading the object that a write changes: from the cache, or from the store when the cache is stale.
//!
//! Invariant: what is read from the store is the latest; what is read from the cache says whether it is.

use super::{Op, State};
use crate::store_error::store_status;
use kaji_meta::{Status, object};
use kaji_store::{KeyValue, Range};
use serde_json::Value;

impl Op<'_> {
    /// The object as the cache has it, and whether that is known to be the latest.
    pub async fn cached(&self, key: &str) -> Result<(Option<State>, bool), Status> {
        let latest = self.cache_is_latest();
        let state = match self.target.res.cache.get(key) {
            Some(entry) => Some(self.conversion.state(entry.decode(), entry.revision).await?),
            None => None,
        };
        Ok((state, latest))
    }

    /// Whether the cache is known to have everything that the store has.
    fn cache_is_latest(&self) -> bool {
        self.engine.store.current_revision_hint().is_some_and(|r| self.engine.applied() >= r)
    }

    /// Whether there is an object.
    pub async fn exists(&self, key: &str) -> Result<bool, Status> {
        let latest = self.cache_is_latest();
        if self.target.res.cache.get(key).is_some() {
            return Ok(true);
        }
        Ok(!latest && self.read(key).await?.is_some())
    }

    async fn read(&self, key: &str) -> Result<Option<KeyValue>, Status> {
        let result = self.engine.store.range(Range::key(key)).await.map_err(|e| store_status(&e))?;
        Ok(result.kvs.into_iter().next())
    }

    /// The object as the store has it.
    pub async fn stored(&self, key: &str) -> Result<Option<State>, Status> {
        match self.read(key).await? {
            Some(kv) => self.decode_stored(&kv).await.map(Some),
            None => Ok(None),
        }
    }

    /// The object that a conflicting transaction found, if any.
    pub async fn found(&self, current: Option<KeyValue>) -> Result<Option<State>, Status> {
        match current {
            Some(kv) => self.decode_stored(&kv).await.map(Some),
            None => Ok(None),
        }
    }

    /// A value of the store as an object with its revision.
    async fn decode_stored(&self, kv: &KeyValue) -> Result<State, Status> {
        let mut object: Value = serde_json::from_slice(&kv.value)
            .map_err(|e| Status::internal(format!("stored object {} cannot be read: {e}", kv.key)))?;
        self.conversion.normalize(&mut object);
        object::meta_mut(&mut object).insert("resourceVersion".into(), kv.mod_revision.to_string().into());
        self.conversion.state(object, kv.mod_revision).await
    }
}
