//! Creation: from a decoded object to one in the store.

use super::{
    MODIFIED, Op, Races, Uncommitted, Written, commit_object, conversion_stage, manage, metadata, settle,
};
use crate::{
    admission::{self, Operation},
    decode, storage, trace,
};
use kaji_meta::{
    Path, Reason, Status, field::Error, object, objectmeta, random, validation::path_segment_name,
};
use kaji_resource::Generation;
use kaji_store::{KeyValue, Range, Revision, Txn};
use serde_json::Value;

/// How many names are tried for `generateName` (upstream since 1.30).
const MAX_GENERATED_NAMES: usize = 8;

/// What an attempt to create has come to.
pub(crate) enum Created {
    /// It is done.
    Done(Box<Written>),
    /// The name is taken, by this.
    Exists(Option<KeyValue>),
    /// What it depends on has changed.
    Again,
}

/// Creates an object that was decoded (request's version, defaulted): the body of POST.
///
/// # Errors
/// Everything that upstream refuses a creation for.
pub(crate) async fn create(op: &Op<'_>, mut object: Value) -> Result<Written, Status> {
    metadata::wipe(&mut object);
    metadata::match_namespace(op, &mut object)?;
    metadata::dedup_owners(op, &mut object, false);
    conversion_stage::record_new(op, &mut object).await?;
    op.conversion.to_hub(&mut object)?;
    admit(op, &mut object).await?;
    let base = object::generate_name(&object).to_owned();
    if base.is_empty() || !object::name(&object).is_empty() {
        let unnamed = base.is_empty() && object::name(&object).is_empty();
        let given = if unnamed { op.target.res.def.hooks.default_name(&*op.engine.random) } else { None };
        let name = given.unwrap_or_else(|| object::name(&object).to_owned());
        return match attempt(op, object, &name).await? {
            Created::Done(written) => Ok(*written),
            Created::Exists(current) => Err(exists(op, &name, &base, current.as_ref())),
            Created::Again => Err(op.target.conflict(&name, MODIFIED)),
        };
    }
    let mut taken = None;
    for round in 1..=MAX_GENERATED_NAMES {
        let name = random::generate_name(&base, &*op.engine.random);
        let last = round == MAX_GENERATED_NAMES;
        let copy = if last { std::mem::take(&mut object) } else { object.clone() };
        match attempt(op, copy, &name).await? {
            Created::Done(written) => return Ok(*written),
            Created::Exists(current) => taken = Some(exists(op, &name, &base, current.as_ref())),
            Created::Again => return Err(op.target.conflict(&name, MODIFIED)),
        }
    }
    Err(taken.unwrap_or_else(|| op.target.conflict(&base, MODIFIED)))
}

/// Mutating admission of a creation, if the kind takes new objects at all.
pub(crate) async fn admit(op: &Op<'_>, object: &mut Value) -> Result<(), Status> {
    let name = object::name(object).to_owned();
    op.target.res.def.hooks.check_create(&op.ctx(&name))?;
    let doubtful =
        admission::handled_dynamically(&op.plugins(), &op.attributes(&name, Operation::Create, None, None));
    let before = manage::snapshot(doubtful, object);
    let mut attributes = op.attributes(&name, Operation::Create, Some(object), None);
    admission::admit(&op.plugins(), &mut attributes).await?;
    manage::guard(op, before, object);
    metadata::dedup_owners(op, object, true);
    Ok(())
}

/// Fills, validates and stores an admitted object (of the pipeline's version) under a name.
pub(crate) async fn attempt(op: &Op<'_>, mut object: Value, name: &str) -> Result<Created, Status> {
    let hooks = &op.target.res.def.hooks;
    fill(op, &mut object, name)?;
    let ctx = op.ctx(name);
    if decode::is_custom(&op.target.version.schema)
        && op.target.version.has_status()
        && let Value::Object(map) = &mut object
    {
        map.remove("status");
    }
    hooks.prepare_create(&ctx, &mut object);
    op.conversion.as_stored(&mut object);
    check(op, &object, name)?;
    hooks.canonicalize(&mut object);
    let mut races = Races::default();
    loop {
        op.output.extras.clear();
        let attributes = op.attributes(name, Operation::Create, Some(&mut object), None);
        admission::validate(&op.plugins(), &attributes).await?;
        if !op.options.dry_run {
            hooks.expected(&ctx)?.into_iter().for_each(|version| op.output.extras.expect(version));
        }
        let again = op.output.extras.any() && hooks.fills_in_reservations();
        let unreserved = again.then(|| object.clone());
        hooks.permit(&ctx, &object, None).await?;
        let reservation = hooks.reserve(&ctx, &mut object, None).await?;
        let result = store(op, &mut object, name).await;
        op.output.extras.clear();
        settle(reservation, matches!(&result, Ok(Created::Done(w)) if w.revision != 0)).await;
        match result? {
            Created::Done(mut written) => {
                written.object = object;
                return Ok(Created::Done(written));
            }
            Created::Again => object = unreserved.unwrap_or(object),
            exists @ Created::Exists(_) => return Ok(exists),
        }
        // The next attempt sees what has changed.
        races.lost(op, name)?;
        op.engine.wait_consistent().await?;
    }
}

/// Name, uid, creation time, generation.
fn fill(op: &Op<'_>, object: &mut Value, name: &str) -> Result<(), Status> {
    metadata::match_namespace(op, object)?;
    let counted = op.target.res.def.generation == Generation::Spec;
    metadata::set_generation(object, if counted { 1 } else { object::generation(object) });
    let meta = object::meta_mut(object);
    decode::prune_empty_metadata(meta);
    if !name.is_empty() {
        meta.insert("name".into(), name.into());
    }
    meta.insert("uid".into(), random::uid(&*op.engine.random).into());
    meta.insert("creationTimestamp".into(), op.now_text.as_str().into());
    Ok(())
}

/// Validation and warnings.
fn check(op: &Op<'_>, object: &Value, name: &str) -> Result<(), Status> {
    let def = &op.target.res.def;
    let ctx = op.ctx(name);
    let meta = object.get("metadata").unwrap_or(&Value::Null);
    let errs = super::validated(op, || {
        let path = Path::new("metadata");
        let mut errs = objectmeta::validate_object_meta(meta, def.namespaced(), def.validate_name, &path);
        if def.metadata_checks.finalizers() {
            let path = path.child("finalizers");
            errs.extend(objectmeta::validate_qualified_finalizers(meta.get("finalizers"), &path));
        }
        errs.extend(def.hooks.validate_create(&ctx, object));
        errs
    });
    if !errs.is_empty() {
        return Err(Status::invalid(&op.target.res.group_kind(), name, &errs));
    }
    // Some kinds let every name through. As upstream, a name that no path can have is refused after all else.
    let wrong = path_segment_name(name, false);
    if !wrong.is_empty() {
        let path = Path::new("metadata").child("name");
        let errs: Vec<_> = wrong.into_iter().map(|text| Error::invalid(&path, name, text)).collect();
        return Err(Status::invalid(&op.target.res.group_kind(), name, &errs));
    }
    def.hooks.warnings(&ctx, object, None).into_iter().for_each(|w| op.output.warn(w));
    Ok(())
}

/// Refuses a name that admission has made invalid, where the object is stored under the request's. (A valid one is put back:
/// upstream keeps it inside of an object that is stored, and found, under the request's.)
pub(crate) fn check_renamed(op: &Op<'_>, object: &Value, name: &str) -> Result<(), Status> {
    let own = object::name(object);
    if own == name {
        return Ok(());
    }
    let meta = object.get("metadata").unwrap_or(&Value::Null);
    let (def, path) = (&op.target.res.def, Path::new("metadata"));
    let errs = objectmeta::validate_object_meta(meta, def.namespaced(), def.validate_name, &path);
    if errs.is_empty() { Ok(()) } else { Err(Status::invalid(&op.target.res.group_kind(), own, &errs)) }
}

/// Refuses an object that says which version it has. As upstream, the store does that, hence after everything else, and a
/// dry run never gets there; what is no number was always let through.
fn refuse_versioned(object: &Value) -> Result<(), Status> {
    let version = object::resource_version(object);
    let number = version.bytes().all(|b| b.is_ascii_digit());
    if number && version.parse::<u64>().is_ok_and(|version| version != 0) {
        let text = "resourceVersion should not be set on objects to be created";
        return Err(Status::new(500, Reason::Unknown, text));
    }
    Ok(())
}

/// Puts the object where nothing must be yet. `written.object` is left empty.
async fn store(op: &Op<'_>, object: &mut Value, name: &str) -> Result<Created, Status> {
    let key = op.target.key(name);
    let done = |bytes, revision| {
        Created::Done(Box::new(Written { object: Value::Null, bytes: Some(bytes), revision, code: 201 }))
    };
    if !op.options.dry_run {
        // A client's is gone by now; upstream's store drops one that admission brought.
        object::meta_mut(object).remove("selfLink");
    }
    let mut form = op.conversion.stored_form(object).await?;
    if op.options.dry_run {
        if let Some(form) = form {
            *object = op.conversion.read_back(form).await?;
        }
        // The answer has the resourceVersion that was sent, if one was.
        return Ok(if op.exists(&key).await? {
            Created::Exists(None)
        } else {
            done(storage::encode_object(object), 0)
        });
    }
    refuse_versioned(object)?;
    op.target.res.def.hooks.complete_created(form.as_mut().unwrap_or(&mut *object));
    let mut span = trace::transaction("Create etcd3", &key, &op.target.res.group_resource);
    let txn = |bytes: &bytes::Bytes| {
        let mut txn = Txn::create(key.clone(), bytes.clone());
        op.output.extras.extend(&op.engine.registry(), &mut txn).map(|()| txn)
    };
    let mut stored = form.as_ref().unwrap_or(object);
    let mut bytes = storage::encode(stored);
    trace::event(&mut span, "Encode succeeded", &[("len", bytes.len().into())]);
    let mut outcome = commit_object(op, &key, stored, bytes.len(), txn(&bytes)?).await;
    if outcome.as_ref().is_err_and(Uncommitted::too_large) && manage::drop_entries(object) {
        form.as_mut().map(manage::drop_entries);
        stored = form.as_ref().unwrap_or(object);
        bytes = storage::encode(stored);
        outcome = commit_object(op, &key, stored, bytes.len(), txn(&bytes)?).await;
    }
    if let Err(Uncommitted::Store(error)) = &outcome
        && !error.is_refusal()
        && let Some(revision) = found_by_uid(op, &key, object).await
    {
        outcome = Ok(Ok(revision));
    }
    match outcome? {
        Ok(revision) => {
            if let Some(form) = form {
                *object = op.conversion.read_back(form).await?;
            }
            Ok(done(bytes, revision))
        }
        // The name is free, so it was another object.
        Err(None) if op.output.extras.any() => {
            op.output.extras.readable(&op.engine.registry())?;
            Ok(Created::Again)
        }
        Err(current) => Ok(Created::Exists(current)),
    }
}

/// The revision at which an object came into being, if the store has it: its answer was lost, but no other has its uid.
async fn found_by_uid(op: &Op<'_>, key: &str, object: &Value) -> Option<Revision> {
    let found = op.engine.store.range(Range::key(key)).await.ok()?.kvs.into_iter().next()?;
    let stored: Value = serde_json::from_slice(&found.value).ok()?;
    (object::uid(&stored) == object::uid(object)).then_some(found.create_revision)
}

/// The 409 for a name that is taken.
fn exists(op: &Op<'_>, name: &str, generated_from: &str, current: Option<&KeyValue>) -> Status {
    let gr = &op.target.res.group_resource;
    let mut status = if generated_from.is_empty() {
        Status::already_exists(gr, name)
    } else {
        Status::generate_name_conflict(gr, name, 1)
    };
    let deleting = match current {
        Some(kv) => serde_json::from_slice::<Value>(&kv.value)
            .is_ok_and(|stored| object::deletion_timestamp(&stored).is_some()),
        None => op.target.res.cache.get(&op.target.key(name)).is_some_and(|entry| entry.deleting()),
    };
    if deleting {
        status.message = format!("object is being deleted: {}", status.message);
    }
    status
}
