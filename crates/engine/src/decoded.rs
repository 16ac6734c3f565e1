//! A cache of small decoded objects that hooks and admission plugins read repeatedly.
//!
//! Invariants: an object is returned only for the revision and the definition that it was decoded with; bounded by the size
//! of the encodings (decoded they take several times that).

use crate::{cache::Entry, registry::Resource};
use kaji_resource::ResourceDef;
use kaji_store::Revision;
use serde_json::Value;
use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

struct CachedObject {
    revision: Revision,
    /// What converted and defaulted it.
    def: Arc<ResourceDef>,
    value: Arc<Value>,
}

/// Small objects that were decoded before (namespaces, above all, are read by every write), by key and revision.
#[derive(Default)]
pub(crate) struct DecodedObjects(RwLock<Inner>);

#[derive(Default)]
struct Inner {
    objects: HashMap<Arc<str>, CachedObject>,
    /// Bytes of their encodings since the last clearing.
    bytes: usize,
}

impl DecodedObjects {
    const TOTAL_BYTES: usize = 512 * 1024;
    const MAX_BYTES: usize = 4 * 1024;

    /// The object, if it was decoded before at this revision and by this definition.
    pub fn get(&self, res: &Resource, entry: &Entry) -> Option<Arc<Value>> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let cached = all.objects.get(&entry.key)?;
        (cached.revision == entry.revision && Arc::ptr_eq(&cached.def, &res.def))
            .then(|| cached.value.clone())
    }

    /// Caches an object, if it is small.
    pub fn insert(&self, res: &Resource, entry: &Entry, value: &Arc<Value>) {
        let size = entry.object_len();
        if size > Self::MAX_BYTES {
            return;
        }
        let cached = CachedObject { revision: entry.revision, def: res.def.clone(), value: value.clone() };
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if all.bytes + size > Self::TOTAL_BYTES {
            *all = Inner::default();
        }
        all.bytes += size;
        all.objects.insert(entry.key.clone(), cached);
    }
}
