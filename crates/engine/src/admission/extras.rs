//! What a write has to do with other objects: changes of them that hold exactly if the write does, and versions of them without
//! which it is not made.
//!
//! A plugin that keeps a ledger (quotas) registers its entry here. Both go to the store in one transaction, so that the
//! ledger is never ahead of the objects nor behind them, whatever fails in between. What a decision was made on (the namespace
//! of a new object) is expected in the same transaction: neither time nor another server can come in between.
//!
//! Invariant: when one of the other objects has changed meanwhile, nothing is written and validation runs again.

use crate::{registry::Registry, storage};
use kaji_meta::{GroupResource, Status, object};
use kaji_resource::ObjectVersion;
use kaji_store::{Compare, Op, Txn};
use serde_json::Value;
use std::{
    any::Any,
    sync::{Mutex, PoisonError},
};

/// A change of an object of another resource: the whole object in its storage version; its metadata say which it is
/// and at which resourceVersion it was read.
#[derive(Clone, Debug)]
pub struct ExtraUpdate {
    /// Its resource.
    pub resource: GroupResource,
    /// The object as it shall be.
    pub object: Value,
}

#[derive(Default)]
struct Inner {
    updates: Vec<ExtraUpdate>,
    expected: Vec<ObjectVersion>,
    /// Dropped when the write is over, however it ends.
    guards: Vec<Box<dyn Any + Send>>,
}

/// What one write has registered.
#[derive(Default)]
pub struct TransactionExtras(Mutex<Inner>);

impl TransactionExtras {
    /// Has an object change if, and only if, the write is made.
    pub fn update(&self, update: ExtraUpdate) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).updates.push(update);
    }

    /// Has the write made only if an object is still at this version.
    pub fn expect(&self, version: ObjectVersion) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).expected.push(version);
    }

    /// Keeps a value (a lock, mostly) until the write is over.
    pub fn hold(&self, guard: impl Any + Send) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).guards.push(Box::new(guard));
    }

    /// Whether the write depends on other objects.
    pub(crate) fn any(&self) -> bool {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !inner.updates.is_empty() || !inner.expected.is_empty()
    }

    /// Whether the caches have the latest versions of these objects: otherwise the next attempt would find the same as this one.
    ///
    /// # Errors
    /// The error that requests for the resource get.
    pub(crate) fn readable(&self, registry: &Registry) -> Result<(), Status> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let updated = inner.updates.iter().map(|update| &update.resource);
        let mut resources = updated.chain(inner.expected.iter().map(|version| &version.resource));
        resources.try_for_each(|resource| {
            registry.by_group_resource(resource).map_or(Ok(()), |res| res.readable())
        })
    }

    /// Forgets everything, before validation and after the write.
    pub(crate) fn clear(&self) {
        let old = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        // Out of the lock: guards may do anything as they go.
        drop(old);
    }

    /// Adds the updates and the expected versions to a transaction, behind its own.
    ///
    /// # Errors
    /// A resource is not served, or an update has no resourceVersion.
    pub(crate) fn extend(&self, registry: &Registry, txn: &mut Txn) -> Result<(), Status> {
        let served = |resource: &GroupResource| {
            let found = registry.by_group_resource(resource);
            found.ok_or_else(|| Status::internal(format!("{resource} is not served")))
        };
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for version in &inner.expected {
            let key = served(&version.resource)?.key(&version.namespace, &version.name);
            txn.compare.push(Compare { key, mod_revision: version.resource_version });
        }
        for update in &inner.updates {
            let resource = served(&update.resource)?;
            let revision = object::resource_version(&update.object)
                .parse()
                .map_err(|_| Status::internal(format!("a {} without a resourceVersion", update.resource)))?;
            let key = resource.key(object::namespace(&update.object), object::name(&update.object));
            txn.compare.push(Compare { key: key.clone(), mod_revision: revision });
            txn.ops.push(Op::Put { key, value: storage::encode(&update.object), lease: None });
        }
        Ok(())
    }
}
