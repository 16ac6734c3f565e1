//! The one path of every write: the write ([`Op`]: its [`Target`], its [`ConversionStage`], its [`Output`]), its result
//! ([`Written`]), and the steps in the modules below, in upstream's order.
//!
//! Invariants:
//! - Objects inside the pipeline are in the storage version; only decoding, defaulting, patching and field management
//!   see the request's version. Of resources without a hub version to convert through, they are in the request's version,
//!   and are converted as they leave the store and as they enter it.
//! - A write is one compare-and-set on the object's key. A decision that was made on a stale cached object is made again on
//!   the stored one.
//! - Of a reservation's two futures exactly one runs: the server never cancels a write half way (see `dispatch`).

mod conversion_stage;
pub(crate) mod create;
mod defaults;
mod limit;
pub(crate) mod manage;
pub(crate) mod members;
pub(crate) mod metadata;
pub(crate) mod remove;
pub(crate) mod scale;
mod stored;
pub(crate) mod update;

use crate::{
    admission::{self, Annotations, Attributes, Chain, Operation, TransactionExtras},
    attribution::Attributions,
    deadline::Deadline,
    decode::{self, ExpectedKind},
    engine::Engine,
    options::{OperationOptions, WriteOptions},
    registry::Resource,
    request::{ApiRequest, MemoryReservation},
    store_error::store_status,
    webhook_time::WebhookTime,
};
use bytes::Bytes;
pub(crate) use conversion_stage::{ConversionStage, State};
pub(crate) use defaults::default;
use kaji_meta::{ErrorList, GroupVersionKind, GroupVersionResource, Status, field, object};
use kaji_resource::{Ctx, DeleteOptions, ObjectReader, Reservation, SubresourceDef, UserInfo, VersionDef};
use kaji_store::{KeyValue, Revision, StoreError, Txn, TxnOutcome};
use serde_json::Value;
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

/// How often a write without a deadline, which only the server's own have, is tried against objects that change under it.
const MAX_ATTEMPTS: usize = 64;
/// Upstream's text for a lost race.
pub(crate) const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// What is wrong with an object by its kind's validation, which must depend on the object alone. Paths of fields are made only
/// for errors: most objects have none. Custom resources, of which validation may be dear, are validated once.
fn validated(op: &Op<'_>, validate: impl Fn() -> ErrorList) -> ErrorList {
    if decode::is_custom(&op.target.version.schema) {
        return validate();
    }
    if field::without_paths(&validate).is_empty() {
        debug_assert!(validate().is_empty(), "a validation that depends on the texts of paths");
        return vec![];
    }
    validate()
}

/// What a write is about: the resource, the version and the object that the request's path names.
pub(crate) struct Target<'a> {
    pub res: &'a Arc<Resource>,
    /// The request's version.
    pub version: &'a VersionDef,
    pub sub: Option<&'a SubresourceDef>,
    pub namespace: &'a str,
    /// Of the path; `""` when a collection is addressed.
    pub name: &'a str,
    pub kind: GroupVersionKind,
    pub resource: GroupVersionResource,
}

impl<'a> Target<'a> {
    /// `""` for the main resource.
    pub fn subresource(&self) -> &'a str {
        self.sub.map_or("", |s| s.name.as_ref())
    }

    /// The kind that bodies must have.
    pub fn want(&self) -> ExpectedKind<'_> {
        ExpectedKind {
            group: &self.res.def.group,
            version: &self.version.name,
            kind: &self.res.def.kind,
            schema: &self.version.schema,
        }
    }

    /// The key of an object of this request's namespace.
    pub fn key(&self, name: &str) -> String {
        let namespace = if self.res.def.namespaced() { self.namespace } else { "" };
        self.res.key(namespace, name)
    }

    /// 404 about the object.
    pub fn not_found(&self, name: &str) -> Status {
        Status::not_found(&self.res.group_resource, name)
    }

    /// 409 about the object.
    pub fn conflict(&self, name: &str, reason: impl std::fmt::Display) -> Status {
        Status::conflict(&self.res.group_resource, name, reason)
    }
}

/// What a write produces besides the object, filled in by hooks and plugins.
#[derive(Default)]
pub(crate) struct Output {
    /// Texts for the `Warning` header.
    pub warnings: Mutex<Vec<String>>,
    /// Annotations of the audit event.
    pub annotations: Annotations,
    /// What plugins add to the transaction.
    pub extras: TransactionExtras,
}

impl Output {
    /// Adds a text for the `Warning` header, once.
    pub fn warn(&self, text: String) {
        admission::warn(&self.warnings, text);
    }
}

/// One write: everything about it that does not change while it is tried.
pub(crate) struct Op<'a> {
    pub engine: &'a Engine,
    pub target: Target<'a>,
    pub conversion: ConversionStage<'a>,
    pub output: Output,
    pub user: &'a UserInfo,
    pub options: WriteOptions,
    pub now: jiff::Timestamp,
    /// `now`, RFC 3339 in whole seconds.
    pub now_text: String,
    /// Made by the server itself, as part of another request or as it starts.
    pub internal: bool,
    /// Until when it may be committed.
    pub deadline: Deadline,
    /// Whether the object had labels before its defaults were applied.
    pub labelled: AtomicBool,
    /// A write was sent, and what became of it is not known: it must not be made again.
    pub uncertain: AtomicBool,
    /// Memory that its request has reserved.
    pub memory: Option<Arc<dyn MemoryReservation>>,
    /// Counts the time of webhooks.
    pub webhooks: Arc<WebhookTime>,
}

/// The races that a write has lost against other writers of its object.
#[derive(Default)]
pub(crate) struct Races(usize);

impl Races {
    /// Another one is lost: until the request's deadline the write is tried again.
    ///
    /// # Errors
    /// 504 after the deadline; without one 409 once it was tried often.
    pub fn lost(&mut self, op: &Op<'_>, name: &str) -> Result<(), Status> {
        self.0 += 1;
        match op.deadline.instant() {
            None if self.0 >= MAX_ATTEMPTS => Err(op.target.conflict(name, MODIFIED)),
            _ => op.deadline.check(),
        }
    }
}

impl<'a> Op<'a> {
    /// The write that a request asks for.
    ///
    /// # Errors
    /// 404 if the version is not served or has no such subresource.
    pub fn new(
        engine: &'a Engine,
        res: &'a Arc<Resource>,
        req: &'a ApiRequest,
        options: WriteOptions,
    ) -> Result<Self, Status> {
        let (subresource, namespace, name) = (&req.subresource, &req.namespace, &req.name);
        let op =
            Self::internal(engine, res, &req.version, subresource, &req.user, (namespace, name), options)?;
        let conversion = op.conversion.with_deadline(req.deadline);
        let (deadline, memory, webhooks) = (req.deadline, req.memory.clone(), req.webhooks.clone());
        Ok(Op { internal: false, deadline, memory, webhooks, conversion, ..op })
    }

    /// A write from inside the process.
    pub fn internal(
        engine: &'a Engine,
        res: &'a Arc<Resource>,
        version: &str,
        subresource: &str,
        user: &'a UserInfo,
        (namespace, name): (&'a str, &'a str),
        options: WriteOptions,
    ) -> Result<Self, Status> {
        let version = res.def.version(version).ok_or_else(Status::generic_not_found)?;
        let sub = match subresource {
            "" => None,
            named => Some(version.subresource(named).ok_or_else(Status::generic_not_found)?),
        };
        let now = engine.clock.now();
        Ok(Op {
            engine,
            target: Target {
                res,
                version,
                sub,
                namespace,
                name,
                kind: res.def.gvk(&version.name),
                resource: GroupVersionResource::new(
                    res.def.group.as_ref(),
                    version.name.as_ref(),
                    res.def.plural.as_ref(),
                ),
            },
            conversion: ConversionStage::new(res, version),
            output: Output::default(),
            user,
            options,
            now,
            now_text: rfc3339(now),
            internal: true,
            deadline: Deadline::default(),
            labelled: AtomicBool::new(false),
            uncertain: AtomicBool::new(false),
            memory: None,
            webhooks: Arc::default(),
        })
    }

    /// The admission plugins in force.
    pub fn plugins(&self) -> Arc<Chain> {
        self.engine.admission.load_full()
    }

    /// The context of hooks.
    pub fn ctx<'b>(&'b self, name: &'b str) -> Ctx<'b> {
        Ctx {
            user: self.user,
            namespace: self.target.namespace,
            name,
            subresource: self.target.subresource(),
            version: &self.target.version.name,
            labelled: self.labelled.load(Ordering::Relaxed),
            dry_run: self.options.dry_run,
            now: self.now,
            features: self.engine.options.features,
            random: &*self.engine.random,
            api: self.engine,
            warnings: &self.output.warnings,
        }
    }

    /// The attributes for admission. `kind` may be replaced by the caller.
    pub fn attributes<'b>(
        &'b self,
        name: &'b str,
        operation: Operation,
        object: Option<&'b mut Value>,
        old: Option<&'b Value>,
    ) -> Attributes<'b> {
        let options = match operation {
            Operation::Create => OperationOptions::Create(&self.options),
            Operation::Update => OperationOptions::Update(&self.options),
            Operation::Delete | Operation::Connect => OperationOptions::None,
        };
        // As upstream does, a namespace is admitted as if it were in itself.
        let own = self.target.res.def.is_own_namespace;
        Attributes {
            user: self.user,
            kind: &self.target.kind,
            resource: &self.target.resource,
            subresource: self.target.subresource(),
            namespace: if own { name } else { self.target.namespace },
            name,
            operation,
            options,
            old,
            object,
            dry_run: self.options.dry_run,
            internal: self.internal,
            reinvocation: None,
            def: &self.target.res.def,
            api: self.engine,
            warnings: &self.output.warnings,
            annotations: &self.output.annotations,
            extras: &self.output.extras,
            now: self.now,
            deadline: self.deadline,
            webhooks: &self.webhooks,
            random: &*self.engine.random,
        }
    }
}

/// The result of a write.
#[derive(Debug)]
pub(crate) struct Written {
    /// The object in the pipeline's version. Its resourceVersion may be an older one; see `revision`.
    pub object: Value,
    /// The same encoded for the store, when it was.
    pub bytes: Option<Bytes>,
    /// The revision it has now; 0 when it was never stored (dry run of a create).
    pub revision: Revision,
    /// 200 or 201.
    pub code: u16,
}

impl Written {
    /// The object with its present resourceVersion; what was never stored keeps the one that it came with.
    pub fn into_object(mut self) -> Value {
        if self.revision != 0 {
            let meta = object::meta_mut(&mut self.object);
            meta.insert("resourceVersion".into(), self.revision.to_string().into());
        }
        self.object
    }
}

/// Why a transaction was not tried, or could not be.
#[derive(Debug)]
pub(crate) enum Uncommitted {
    /// The request's time is over: its client has the answer that it failed.
    Late,
    /// The object is larger than an object may be.
    Large(Status),
    Store(StoreError),
}

impl Uncommitted {
    /// Whether less would have been taken.
    pub fn too_large(&self) -> bool {
        matches!(self, Uncommitted::Large(_) | Uncommitted::Store(StoreError::TooLarge { .. }))
    }
}

impl From<Uncommitted> for Status {
    fn from(why: Uncommitted) -> Status {
        match why {
            Uncommitted::Late => Deadline::exceeded(),
            Uncommitted::Large(status) => status,
            Uncommitted::Store(error) => store_status(&error),
        }
    }
}

/// What has become of a transaction. `Err(current)` says what the key is when it was not as expected.
pub(crate) type Committed = Result<Revision, Option<KeyValue>>;

/// Commits a transaction that puts `object`, which takes `bytes` of JSON, under `key`, unless it is too large.
pub(crate) async fn commit_object(
    op: &Op<'_>,
    key: &str,
    object: &Value,
    bytes: usize,
    txn: Txn,
) -> Result<Committed, Uncommitted> {
    limit::check(op, key, object, bytes).map_err(Uncommitted::Large)?;
    commit(op, txn).await
}

/// Commits a transaction on one key, if there is time left.
pub(crate) async fn commit(op: &Op<'_>, txn: Txn) -> Result<Committed, Uncommitted> {
    if op.deadline.is_over() {
        return Err(Uncommitted::Late);
    }
    finish(op, txn).await.map_err(Uncommitted::Store)
}

/// Commits a transaction that ends what another of the same request has begun, whatever the time.
pub(crate) async fn finish(op: &Op<'_>, txn: Txn) -> Result<Committed, StoreError> {
    let engine = op.engine;
    let attributed = engine.options.attributions.as_ref().map(Attributions::begin);
    let outcome = match op.target.res.def.ttl {
        None => engine.store.txn(txn).await,
        Some(ttl) => engine.leases.commit(&*engine.store, txn, ttl, op.now).await,
    };
    if let Err(error) = &outcome
        && !error.is_refusal()
    {
        op.uncertain.store(true, Ordering::Relaxed);
    }
    match outcome? {
        TxnOutcome::Committed { revision, .. } => {
            let def = &op.target.res.def;
            if let Some(attributed) = attributed {
                attributed.committed(revision, op.user);
            }
            // A store in this process feeds the caches within microseconds, and `lags` says whether it has; one on other machines
            // does it a moment later, and nothing says when.
            let later = engine.has_other_writers() && !def.acknowledged_when_stored;
            if later || def.writes_wait_for_caches {
                // In vain at worst: it is written, and the caches will have it.
                engine.wait_fresh(revision).await;
            }
            Ok(Ok(revision))
        }
        TxnOutcome::Conflict { current, .. } => Ok(Err(current.into_iter().next().flatten())),
    }
}

/// Ends a reservation.
pub(crate) async fn settle(reservation: Option<Reservation>, committed: bool) {
    if let Some(r) = reservation {
        if committed { r.commit.await } else { r.rollback.await }
    }
}

/// RFC 3339 in whole seconds, as metadata has it.
pub(crate) fn rfc3339(time: jiff::Timestamp) -> String {
    kaji_meta::Time::from(time).to_string()
}

/// What deletions look like to admission: by the request's name, which that of a collection has not.
pub(crate) fn delete_attributes<'b>(
    op: &'b Op<'_>,
    options: &'b DeleteOptions,
    old: Option<&'b Value>,
) -> Attributes<'b> {
    Attributes {
        options: OperationOptions::Delete(options),
        dry_run: options.dry_run,
        ..op.attributes(op.target.name, Operation::Delete, None, old)
    }
}
