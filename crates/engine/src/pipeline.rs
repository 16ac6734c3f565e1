//! The one path of every write: what a request is about ([`Op`]), what became of it ([`Written`]), and the steps in the
//! modules below, in upstream's order.
//!
//! Invariants:
//! - Objects inside the pipeline are in the storage version; only decoding, defaulting, patching and field management
//!   see the request's version. Of resources whose conversion is not that of a hub, they are in the request's version,
//!   and are converted as they leave the store and as they enter it.
//! - A write is one compare-and-set on the object's key. What was decided on a cached object that turns out to be
//!   stale is decided again on the stored one.
//! - Of a reservation's two futures exactly one runs: the server never cancels a write half way (see `dispatch`).

pub(crate) mod create;
mod defaults;
pub(crate) mod foreign;
pub(crate) mod limit;
pub(crate) mod manage;
pub(crate) mod metadata;
pub mod options;
pub(crate) mod remove;
pub(crate) mod update;

use crate::{
    admission::{self, Annotations, Attributes, Operation, TransactionExtras},
    deadline::Deadline,
    decode::{self, Want},
    encode,
    engine::{Engine, store_status},
    registry::Resource,
    request::{Accept, ApiRequest, Encoding, Form, MemoryReservation},
    response::{ApiResponse, Body},
    storage,
};
use bytes::Bytes;
pub(crate) use defaults::default;
use foreign::Conversions;
use kaji_meta::{GroupVersionKind, GroupVersionResource, Status, object};
use kaji_resource::{Ctx, DeleteOptions, Reservation, SubresourceDef, UserInfo, VersionDef};
use kaji_schema::SchemaRef;
use kaji_store::{KeyValue, Range, Revision, StoreError, Txn, TxnOutcome};
use options::{OperationOptions, WriteOptions};
use serde_json::Value;
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

/// How often a write is tried against objects that change under it.
pub(crate) const MAX_ATTEMPTS: usize = 64;
/// Upstream's text for a lost race.
pub(crate) const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// One write: everything about it that does not change while it is tried.
pub(crate) struct Op<'a> {
    pub engine: &'a Engine,
    pub res: &'a Arc<Resource>,
    /// The request's version.
    pub version: &'a VersionDef,
    pub sub: Option<&'a SubresourceDef>,
    pub user: &'a UserInfo,
    pub namespace: &'a str,
    /// Of the path; `""` when a collection is addressed.
    pub name: &'a str,
    pub options: WriteOptions,
    pub kind: GroupVersionKind,
    pub resource: GroupVersionResource,
    pub now: jiff::Timestamp,
    /// `now`, RFC 3339 in whole seconds.
    pub now_text: String,
    /// Made by the server itself, as part of another request or as it starts.
    pub internal: bool,
    /// Until when it may be committed.
    pub deadline: Deadline,
    /// Whether the object had labels before its defaults were applied.
    pub labelled: AtomicBool,
    /// Memory that its request has reserved.
    pub memory: Option<Arc<dyn MemoryReservation>>,
    pub warnings: Mutex<Vec<String>>,
    /// What plugins tell the audit log.
    pub annotations: Annotations,
    /// What plugins want to be written with the object.
    pub extras: TransactionExtras,
    /// Conversions by somebody else that field management has asked for; `None` when the resource has none such.
    pub conversions: Option<Conversions>,
    /// Objects stay in the version that they are stored in, and no plugin sees them: for removing what there is.
    pub raw: bool,
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
        Ok(Op { internal: false, deadline: req.deadline, memory: req.memory.clone(), ..op })
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
            res,
            version,
            sub,
            user,
            namespace,
            name,
            options,
            kind: res.def.gvk(&version.name),
            resource: GroupVersionResource::new(
                res.def.group.as_ref(),
                version.name.as_ref(),
                res.def.plural.as_ref(),
            ),
            now,
            now_text: rfc3339(now),
            internal: true,
            deadline: Deadline::default(),
            labelled: AtomicBool::new(false),
            memory: None,
            warnings: Mutex::new(vec![]),
            annotations: Annotations::default(),
            extras: TransactionExtras::default(),
            conversions: res.def.conversion.webhook().map(|_| Conversions::default()),
            raw: false,
        })
    }

    /// `""` for the main resource.
    pub fn subresource(&self) -> &'a str {
        self.sub.map_or("", |s| s.name.as_ref())
    }

    /// What hooks are told.
    pub fn ctx<'b>(&'b self, name: &'b str) -> Ctx<'b> {
        Ctx {
            user: self.user,
            namespace: self.namespace,
            name,
            subresource: self.subresource(),
            version: &self.version.name,
            labelled: self.labelled.load(Ordering::Relaxed),
            dry_run: self.options.dry_run,
            now: self.now,
            random: &*self.engine.random,
            api: self.engine,
            warnings: &self.warnings,
        }
    }

    /// What admission is told. `kind` may be replaced by the caller.
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
        let own = self.resource.group.is_empty() && self.resource.resource == "namespaces";
        Attributes {
            user: self.user,
            kind: &self.kind,
            resource: &self.resource,
            subresource: self.subresource(),
            namespace: if own { name } else { self.namespace },
            name,
            operation,
            options,
            old,
            object,
            dry_run: self.options.dry_run,
            internal: self.internal,
            reinvocation: None,
            def: &self.res.def,
            api: self.engine,
            warnings: &self.warnings,
            annotations: &self.annotations,
            extras: &self.extras,
            now: self.now,
            deadline: self.deadline,
            random: &*self.engine.random,
        }
    }

    /// The kind that bodies must have.
    pub fn want(&self) -> Want<'_> {
        Want {
            group: &self.res.def.group,
            version: &self.version.name,
            kind: &self.res.def.kind,
            schema: &self.version.schema,
        }
    }

    /// Adds a text for the `Warning` header, once.
    pub fn warn(&self, text: String) {
        admission::warn(&self.warnings, text);
    }

    /// Decodes the body in the request's version, and defaults it.
    pub fn decode(&self, req: &ApiRequest) -> Result<Value, Status> {
        let mut object = self.decode_as(&self.want(), req)?;
        self.default(&mut object)?;
        req.audit.iter().for_each(|t| t.object(&object));
        Ok(object)
    }

    /// Decodes a body of any kind.
    pub fn decode_as(&self, want: &Want<'_>, req: &ApiRequest) -> Result<Value, Status> {
        let syntax = decode::syntax(&req.content_type)?;
        let registry = self.engine.registry();
        decode::object(&registry, want, syntax, &req.body, self.options.directive(), &mut |w| self.warn(w))
    }

    /// Decodes a body that was accepted before once more; it has warned already.
    pub fn decode_again(&self, req: &ApiRequest) -> Result<Value, Status> {
        let syntax = decode::syntax(&req.content_type)?;
        let registry = self.engine.registry();
        let mut object =
            decode::object(&registry, &self.want(), syntax, &req.body, decode::Directive::Ignore, &mut drop)?;
        self.default(&mut object)?;
        Ok(object)
    }

    /// Brings an object of the storage version, after hooks have changed it, into the form that is stored.
    pub fn as_stored(&self, object: &mut Value) {
        as_written(&self.res.storage_schema, object);
    }

    /// From the request's version to the one that the pipeline works in.
    pub fn to_hub(&self, object: &mut Value) -> Result<(), Status> {
        if self.res.def.conversion.direct() { Ok(()) } else { encode::convert_in(self.res, object) }
    }

    /// Whether the pipeline works in the request's version.
    pub fn in_hub(&self) -> bool {
        self.res.def.conversion.direct() || self.is_storage()
    }

    /// Whether the stored form is also that of the request's version.
    pub fn is_storage(&self) -> bool {
        self.res.storage_api_version == self.res.api_version(&self.version.name)
    }

    /// An object of the pipeline in the request's version.
    pub fn in_version(&self, hub: &Value) -> Result<Value, Status> {
        let mut object = hub.clone();
        if !self.res.def.conversion.direct() {
            encode::convert_out(self.res, &mut object, &self.version.name)?;
        }
        Ok(object)
    }

    /// An object of the pipeline as it is stored, if that is in another version.
    pub async fn stored_form(&self, hub: &Value) -> Result<Option<Value>, Status> {
        let res = self.res;
        if self.raw || !res.def.conversion.direct() || object::api_version(hub) == res.storage_api_version {
            return Ok(None);
        }
        let mut object = hub.clone();
        // As the store has it, which knows revisions better.
        object::meta_mut(&mut object).remove("resourceVersion");
        // Defaults of the storage version are for readers; those of the request's version are stored.
        self.converted(object, &res.storage_api_version).await.map(Some)
    }

    /// What a reader of this version sees of an object that is stored in another: answers to writes are what was
    /// written, read back.
    pub async fn read_back(&self, mut form: Value) -> Result<Value, Status> {
        self.normalize(&mut form);
        self.converted(form, &self.res.api_version(&self.version.name)).await
    }

    /// An object in another version, which somebody else may have to say, in the time that is left.
    pub async fn converted(&self, object: Value, api_version: &str) -> Result<Value, Status> {
        self.deadline.within(encode::convert_to(self.res, object, api_version)).await
    }

    /// Puts an object in the version that it names into the shape that readers see.
    pub fn normalize(&self, object: &mut Value) {
        if let Some(normalizer) = self.res.def.hooks.normalizer() {
            normalizer.normalize(object);
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

    /// The answer to a write: the object or the refusal, either with the warnings.
    pub fn answer(&self, accept: &Accept, result: Result<Written, Status>) -> Result<ApiResponse, Status> {
        self.warned(result.and_then(|written| self.respond(accept, written)))
    }

    /// Adds the warnings and annotations to an answer, also to a refusal.
    pub fn warned(&self, result: Result<ApiResponse, Status>) -> Result<ApiResponse, Status> {
        let (warnings, annotations) = (self.take_warnings(), self.annotations.take());
        if warnings.is_empty() && annotations.is_empty() {
            return result;
        }
        let mut response = result.unwrap_or_else(ApiResponse::from);
        response.warnings.extend(warnings);
        response.annotations.extend(annotations);
        Ok(response)
    }

    fn respond(&self, accept: &Accept, written: Written) -> Result<ApiResponse, Status> {
        let plain = accept.form == Form::Object && accept.encoding == Encoding::Json && !accept.pretty;
        match &written.bytes {
            Some(bytes) if plain && self.is_storage() => Ok(ApiResponse {
                code: written.code,
                content_type: "application/json",
                warnings: vec![],
                annotations: vec![],
                body: encode::ended(Body::Full(match written.revision {
                    0 => bytes.clone(),
                    revision => storage::with_revision(bytes, revision),
                })),
            }),
            _ => {
                let (code, object) = (written.code, written.into_object());
                encode::object_response(self.engine, self.res, &self.version.name, accept, code, object)
            }
        }
    }

    /// The warnings so far.
    pub fn take_warnings(&self) -> Vec<String> {
        self.warnings.lock().map(|mut w| std::mem::take(&mut *w)).unwrap_or_default()
    }

    /// The object as the cache has it, and whether that is known to be the latest.
    pub async fn cached(&self, key: &str) -> Result<(Option<State>, bool), Status> {
        let latest = self.cache_is_latest();
        let state = match self.res.cache.get(key) {
            Some(entry) => Some(self.state(entry.decode(), entry.revision).await?),
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
        if self.res.cache.get(key).is_some() {
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

    /// The object that a lost race has found, if any.
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
        self.normalize(&mut object);
        object::meta_mut(&mut object).insert("resourceVersion".into(), kv.mod_revision.to_string().into());
        self.state(object, kv.mod_revision).await
    }

    async fn state(&self, mut object: Value, revision: Revision) -> Result<State, Status> {
        let migrate = object::api_version(&object) != self.res.storage_api_version;
        if self.raw {
            return Ok(State { object, revision, migrate, stored: None });
        }
        if self.res.def.conversion.direct() {
            let here = self.res.api_version(&self.version.name);
            let stored = (object::api_version(&object) != here).then(|| object.clone());
            object = self.converted(object, &here).await?;
            return Ok(State { object, revision, migrate, stored });
        }
        if migrate {
            encode::convert_in(self.res, &mut object)?;
        }
        Ok(State { object, revision, migrate, stored: None })
    }
}

/// An object as stored, in the version that the pipeline works in, with its resourceVersion.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub object: Value,
    pub revision: Revision,
    /// What it was converted from, if the pipeline works in the request's version and it is stored in another.
    pub stored: Option<Value>,
    /// It is stored in a version that is not the storage version any more: even a write that changes nothing is made.
    pub migrate: bool,
}

/// What a write has come to.
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
    /// The request's time is over: its client has been told that it failed.
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
    match engine.leases.commit(&*engine.store, txn, op.res.def.ttl, op.now).await? {
        TxnOutcome::Committed { revision, .. } => {
            if op.res.def.writes_wait_for_caches {
                // In vain at worst: it is written, and the caches will have it.
                engine.wait_fresh(revision).await;
            }
            Ok(Ok(revision))
        }
        TxnOutcome::Conflict { current, .. } => Ok(Err(current.into_iter().next().flatten())),
    }
}

/// Brings an object of a built-in kind into the form in which Go writes it: empty values of optional fields go, fields
/// that Go always writes appear. So a stored object, a changed one and one that a client sends back compare as upstream's
/// do. Custom resources are as their clients write them.
pub(crate) fn as_written(schema: &SchemaRef, object: &mut Value) {
    if !decode::is_custom(schema)
        && let Err(error) = kaji_schema::decode::typed(schema.get(), object)
    {
        // Clients' types were checked when the body was decoded.
        tracing::error!(%error, kind = object::kind(object), "an object was given a value of a wrong type");
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
        ..op.attributes(op.name, Operation::Delete, None, old)
    }
}
