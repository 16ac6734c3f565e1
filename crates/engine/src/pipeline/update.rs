//! Changing what is stored: PUT, PATCH and every subresource that writes its parent.

use super::{
    MODIFIED, Op, Races, State, Uncommitted, Written, commit, commit_object, create, manage, metadata, scale,
    settle,
};
use crate::{
    admission::{self, Attributes, Operation},
    decode, list_options,
    pipeline::create::Created,
    request::ApiRequest,
    storage,
    store_error::store_status,
    trace,
};
use kaji_meta::{
    ErrorList, GroupKind, GroupVersionKind, Path, Reason, Status, field, object, objectmeta, validation,
};
use kaji_resource::{Generation, MetadataCheck, ScaleDef, SubresourceKind, status_only};
use kaji_schema::managed;
use kaji_store::{KeyValue, Txn};
use serde_json::Value;
use std::sync::atomic::Ordering;

/// The new object, computed from the stored one.
pub(crate) enum UpdatedObject {
    /// The object in the pipeline's version, its managed fields recorded.
    Object(Value),
    /// Nothing changes.
    Unchanged,
}

/// How new objects are made; called again when the stored one has changed meanwhile. `None`: there is none.
pub(crate) type UpdatedObjectInfo<'m> =
    dyn FnMut(Option<&State>) -> Result<UpdatedObject, Status> + Send + 'm;

/// What is particular about one update.
#[derive(Default)]
pub(crate) struct Plan<'a> {
    /// A missing object is created, if the user of this request is authorized to.
    pub create: Option<&'a ApiRequest>,
    /// The uid that the client's object names.
    pub uid: Option<&'a str>,
    /// The update goes through the scale subresource at these paths.
    pub scale: Option<&'a ScaleDef>,
    /// A patch: its object always carries the stored resourceVersion unless it sets another.
    pub keep_managed_fields: bool,
}

enum Step {
    Done(Box<Written>),
    /// Another write was faster; this is the key's present value.
    Conflict(Option<KeyValue>),
}

/// Reads, makes, validates and writes with compare-and-set until it holds.
///
/// # Errors
/// Everything that upstream refuses an update for. Errors that result from a cached object are not returned until the
/// store has confirmed that it is the latest.
pub(crate) async fn update(
    op: &Op<'_>,
    name: &str,
    plan: &Plan<'_>,
    make: &mut UpdatedObjectInfo<'_>,
) -> Result<Written, Status> {
    let key = op.target.key(name);
    let (mut state, mut latest) = op.cached(&key).await?;
    let mut races = Races::default();
    loop {
        let warned = op.output.warnings.lock().map(|w| w.len()).unwrap_or(0);
        let result = attempt(op, name, &key, state.as_ref(), plan, make).await;
        let retry = match result {
            // What was written was the latest; so was what was not, if that is known.
            Ok(Step::Done(written)) if latest || (written.bytes.is_some() && !op.options.dry_run) => {
                return Ok(*written);
            }
            Ok(Step::Conflict(current)) => {
                state = op.found(current).await?;
                latest = true;
                Ok(())
            }
            // A write that may have happened would be made a second time, on top of itself.
            Err(status) if latest || op.uncertain.load(Ordering::Relaxed) => return Err(status),
            Ok(Step::Done(written)) => Err(Ok(*written)),
            Err(status) => Err(Err(status)),
        };
        if let Err(unconfirmed) = retry {
            let stored = op.stored(&key).await?;
            if stored.as_ref().map(|s| s.revision) == state.as_ref().map(|s| s.revision) {
                return unconfirmed;
            }
            (state, latest) = (stored, true);
        }
        // The next attempt warns anew.
        if let Ok(mut w) = op.output.warnings.lock() {
            w.truncate(warned);
        }
        op.output.annotations.take();
        races.lost(op, name)?;
    }
}

async fn attempt(
    op: &Op<'_>,
    name: &str,
    key: &str,
    state: Option<&State>,
    plan: &Plan<'_>,
    make: &mut UpdatedObjectInfo<'_>,
) -> Result<Step, Status> {
    let Some(state) = state else {
        return create_instead(op, name, plan, make).await;
    };
    let old = &state.object;
    if let Some(uid) = plan.uid
        && uid != object::uid(old)
    {
        return Err(uid_precondition(op, name, uid, object::uid(old)));
    }
    let mut new = match op.conversion.compute(|| make(Some(state))).await? {
        UpdatedObject::Object(new) => new,
        UpdatedObject::Unchanged
            if !state.migrate && !must_be_seen(op, name, old) && !stale(op, key).await? =>
        {
            return Ok(unchanged(state.clone()));
        }
        // Plugins see what changes nothing, too.
        UpdatedObject::Unchanged => old.clone(),
    };
    admit(op, name, plan, &mut new, old).await?;
    check_revision(op, name, &mut new, state)?;
    before_update(op, name, &mut new, old)?;
    op.target.res.def.hooks.canonicalize(&mut new);
    op.output.extras.clear();
    validate_admission(op, name, plan, &mut new, old).await?;
    if should_delete(op, &new, old) {
        return delete_instead(op, name, key, new, state).await;
    }
    let form = op.conversion.stored_form(&new).await?;
    if same(op, &new, form.as_ref(), state) && !state.migrate && !stale(op, key).await? {
        return Ok(unchanged(state.clone()));
    }
    let ctx = op.ctx(name);
    let hooks = &op.target.res.def.hooks;
    hooks.permit(&ctx, &new, Some(old)).await?;
    let reservation = hooks.reserve(&ctx, &mut new, Some(old)).await?;
    let result = store(op, key, (&mut new, form), state, plan).await;
    op.output.extras.clear();
    let committed = matches!(result, Ok(Step::Done(_))) && !op.options.dry_run;
    settle(reservation, committed).await;
    let mut step = result?;
    if let Step::Done(written) = &mut step {
        written.object = new;
    }
    Ok(step)
}

/// Whether a write changes nothing: where conversions lose something, the stored forms are compared.
fn same(op: &Op<'_>, new: &Value, form: Option<&Value>, state: &State) -> bool {
    let Some(form) = form else { return *new == state.object };
    let Some(stored) = &state.stored else { return false };
    let mut form = form.clone();
    op.conversion.normalize(&mut form);
    // Made without, since it is not stored.
    let revision = object::resource_version(stored).to_owned();
    object::meta_mut(&mut form).insert("resourceVersion".into(), revision.into());
    form == *stored
}

/// Whether even a write that changes nothing is to be made, because the store keeps the value in an outdated way.
async fn stale(op: &Op<'_>, key: &str) -> Result<bool, Status> {
    if op.options.dry_run {
        return Ok(false);
    }
    op.engine.store.stale(key).await.map_err(|e| store_status(&e))
}

/// Not written, hence without bytes.
fn unchanged(state: State) -> Step {
    Step::Done(Box::new(Written { object: state.object, bytes: None, revision: state.revision, code: 200 }))
}

async fn create_instead(
    op: &Op<'_>,
    name: &str,
    plan: &Plan<'_>,
    make: &mut UpdatedObjectInfo<'_>,
) -> Result<Step, Status> {
    let Some(request) = plan.create else { return Err(op.target.not_found(name)) };
    if let Some(uid) = plan.uid {
        return Err(uid_precondition(op, name, uid, ""));
    }
    let UpdatedObject::Object(mut new) = op.conversion.compute(|| make(None)).await? else {
        return Err(op.target.not_found(name));
    };
    let uid = object::uid(&new);
    if !uid.is_empty() {
        let text = format!(
            "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        );
        return Err(op.target.conflict(name, text));
    }
    if let Some(authorizer) = &request.further_authorizer {
        op.deadline.within(authorizer.authorize(request)).await?;
    }
    metadata::wipe(&mut new);
    create::admit(op, &mut new).await?;
    create::check_renamed(op, &new, name)?;
    if !op.options.dry_run {
        // Unlike a POST, this may name a version.
        object::meta_mut(&mut new).remove("resourceVersion");
    }
    match create::attempt(op, new, name).await? {
        Created::Done(written) => Ok(Step::Done(written)),
        Created::Exists(None) if op.options.dry_run => Err(op.target.conflict(name, MODIFIED)),
        Created::Exists(current) => Ok(Step::Conflict(current)),
        Created::Again => Ok(Step::Conflict(None)),
    }
}

fn uid_precondition(op: &Op<'_>, name: &str, wanted: &str, found: &str) -> Status {
    let key = op.target.res.def.storage_key(op.target.namespace, name);
    let reason = format!(
        "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
    );
    op.target.conflict(name, reason)
}

/// Whether a plugin must see this update even if it changes nothing.
fn must_be_seen(op: &Op<'_>, name: &str, old: &Value) -> bool {
    admission::handles_unchanged(&op.plugins(), &op.attributes(name, Operation::Update, None, Some(old)))
}

/// Mutating admission. Through scale it sees, and may change, the scale.
async fn admit(op: &Op<'_>, name: &str, plan: &Plan<'_>, new: &mut Value, old: &Value) -> Result<(), Status> {
    if !admission::handled(&op.plugins(), &op.attributes(name, Operation::Update, None, Some(old))) {
        metadata::dedup_owners(op, new, true);
        return Ok(());
    }
    if let Some(def) = plan.scale {
        let (mut new_scale, old_scale) = (scale::of(op, def, new)?, scale::of(op, def, old)?);
        let kind = scale_kind();
        let attributes = op.attributes(name, Operation::Update, Some(&mut new_scale), Some(&old_scale));
        admission::admit(&op.plugins(), &mut Attributes { kind: &kind, ..attributes }).await?;
        return scale::set_replicas(op, def, new, scale::replicas(&new_scale));
    }
    let doubtful = admission::handled_dynamically(
        &op.plugins(),
        &op.attributes(name, Operation::Update, None, Some(old)),
    );
    let before = manage::snapshot(doubtful, new);
    let mut attributes = op.attributes(name, Operation::Update, Some(new), Some(old));
    admission::admit(&op.plugins(), &mut attributes).await?;
    manage::guard(op, before, new);
    metadata::dedup_owners(op, new, true);
    Ok(())
}

fn scale_kind() -> GroupVersionKind {
    GroupVersionKind::new("autoscaling", "v1", "Scale")
}

async fn validate_admission(
    op: &Op<'_>,
    name: &str,
    plan: &Plan<'_>,
    new: &mut Value,
    old: &Value,
) -> Result<(), Status> {
    if op.engine.admission.load().is_empty() {
        return Ok(());
    }
    if let Some(def) = plan.scale {
        let (mut new_scale, old_scale) = (scale::of(op, def, new)?, scale::of(op, def, old)?);
        let kind = scale_kind();
        let attributes = op.attributes(name, Operation::Update, Some(&mut new_scale), Some(&old_scale));
        return admission::validate(&op.plugins(), &Attributes { kind: &kind, ..attributes }).await;
    }
    let attributes = op.attributes(name, Operation::Update, Some(new), Some(old));
    admission::validate(&op.plugins(), &attributes).await
}

/// Optimistic concurrency: the object's resourceVersion must be the stored one, or absent where that is allowed.
fn check_revision(op: &Op<'_>, name: &str, new: &mut Value, state: &State) -> Result<(), Status> {
    let sent = object::resource_version(new);
    if matches!(sent, "" | "0") {
        if !op.target.res.def.allow_unconditional_update {
            return Err(revision_required(op, name));
        }
    } else {
        // An internal error without a reason, as upstream's: its store parses the value.
        let sent = list_options::go_uint(sent).map_err(|e| Status::new(500, Reason::Unknown, e))?;
        if sent != state.revision {
            return Err(op.target.conflict(name, MODIFIED));
        }
    }
    object::meta_mut(new).insert("resourceVersion".into(), state.revision.to_string().into());
    Ok(())
}

fn revision_required(op: &Op<'_>, name: &str) -> Status {
    let path = Path::new("metadata").child("resourceVersion");
    let error = field::Error::invalid(&path, 0, "must be specified for an update");
    let kind = GroupKind::new(
        op.target.res.group_resource.group.as_str(),
        op.target.res.group_resource.resource.as_str(),
    );
    Status::invalid(&kind, name, &[error])
}

/// Upstream's `BeforeUpdate`: puts back what may not change, prepares, validates.
fn before_update(op: &Op<'_>, name: &str, new: &mut Value, old: &Value) -> Result<(), Status> {
    let def = &op.target.res.def;
    let hooks = &def.hooks;
    let ctx = op.ctx(name);
    metadata::match_namespace(op, new)?;
    metadata::set_generation(new, object::generation(old));
    restrict(op, new, old);
    hooks.prepare_update(&ctx, new, old);
    op.conversion.as_stored(new);
    metadata::keep_system_fields(new, old);
    // Where status is no subresource, it counts as content.
    let status_apart = op.target.version.has_status() || !decode::is_custom(&op.target.version.schema);
    if def.generation != Generation::None
        && object::generation(new) == object::generation(old)
        && metadata::content_differs(new, old, status_apart)
        && hooks.bumps_generation(new, old)
    {
        metadata::set_generation(new, object::generation(old) + 1);
    }
    let (null, path_segment) = (Value::Null, validation::path_segment_name);
    let (new_meta, old_meta) = (new.get("metadata").unwrap_or(&null), old.get("metadata").unwrap_or(&null));
    let errs = super::validated(op, || {
        let path = Path::new("metadata");
        let mut errs = objectmeta::validate_object_meta(new_meta, def.namespaced(), path_segment, &path);
        errs.extend(objectmeta::validate_object_meta_update(new_meta, old_meta, &path));
        errs.extend(checked_again(op, new_meta, old_meta, &path));
        errs.extend(hooks.validate_update(&ctx, new, old));
        errs
    });
    if !errs.is_empty() {
        // By the object's own name, which admission may have changed.
        return Err(Status::invalid(&op.target.res.group_kind(), object::name(new), &errs));
    }
    hooks.warnings(&ctx, new, Some(old)).into_iter().for_each(|w| op.output.warn(w));
    managed::revert_timestamps(old, new);
    Ok(())
}

/// What the kind's own validators say about metadata.
fn checked_again(op: &Op<'_>, new: &Value, old: &Value, path: &Path) -> ErrorList {
    let def = &op.target.res.def;
    let checks = match op.target.subresource() {
        "" => def.metadata_checks.update,
        "status" => def.metadata_checks.status,
        _ => &[],
    };
    let mut errs = vec![];
    for check in checks {
        let finalizers = match check {
            MetadataCheck::Whole { finalizers } => {
                errs.extend(objectmeta::validate_object_meta(new, def.namespaced(), def.validate_name, path));
                *finalizers
            }
            MetadataCheck::Update { finalizers } => {
                errs.extend(objectmeta::validate_object_meta_update(new, old, path));
                *finalizers
            }
        };
        if finalizers {
            let path = path.child("finalizers");
            errs.extend(objectmeta::validate_qualified_finalizers(new.get("finalizers"), &path));
        }
    }
    errs
}

/// Takes back what this endpoint does not write.
fn restrict(op: &Op<'_>, new: &mut Value, old: &Value) {
    match op.target.sub.map(|s| &s.kind) {
        None if op.target.version.has_status() => {
            if let Value::Object(map) = new {
                match old.get("status") {
                    Some(status) => drop(map.insert("status".into(), status.clone())),
                    None => drop(map.remove("status")),
                }
            }
        }
        Some(SubresourceKind::Status) if decode::is_custom(&op.target.version.schema) => {
            let managed = new.get_mut("metadata").and_then(|m| m.get_mut("managedFields")).map(Value::take);
            status_only(new, old, false);
            let mut meta = old.get("metadata").cloned().unwrap_or_default();
            if let Value::Object(meta) = &mut meta {
                match managed {
                    Some(entries) => drop(meta.insert("managedFields".into(), entries)),
                    None => drop(meta.remove("managedFields")),
                }
            }
            object::set_at(new, &["metadata"], meta);
        }
        Some(SubresourceKind::Status) => status_only(new, old, false),
        _ => {}
    }
}

/// Whether this update removes the last thing that a begun deletion waited for.
fn should_delete(op: &Op<'_>, new: &Value, old: &Value) -> bool {
    object::finalizers(new).next().is_none()
        && object::deletion_timestamp(old).is_some()
        && matches!(object::deletion_grace_period_seconds(old), None | Some(0))
        && !op.target.res.def.hooks.deletion().deletion_waits(new)
}

async fn delete_instead(
    op: &Op<'_>,
    name: &str,
    key: &str,
    new: Value,
    state: &State,
) -> Result<Step, Status> {
    if !op.options.dry_run {
        let outcome = commit(op, Txn::delete(key, state.revision)).await?;
        if let Err(current @ Some(_)) = outcome {
            return Ok(Step::Conflict(current));
        }
        op.target.res.def.hooks.deleted(&op.ctx(name), &new).await;
    }
    let bytes = Some(storage::encode(&new));
    Ok(Step::Done(Box::new(Written { object: new, bytes, revision: state.revision, code: 200 })))
}

/// Replaces the stored object by the new one (`form`: as it is stored, where that is in another version).
/// `written.object` is left empty.
async fn store(
    op: &Op<'_>,
    key: &str,
    (new, mut form): (&mut Value, Option<Value>),
    state: &State,
    plan: &Plan<'_>,
) -> Result<Step, Status> {
    let done = |bytes, revision| {
        Step::Done(Box::new(Written { object: Value::Null, bytes: Some(bytes), revision, code: 200 }))
    };
    let mut bytes = storage::encode(form.as_ref().unwrap_or(new));
    if op.options.dry_run {
        if let Some(form) = form {
            *new = op.conversion.read_back(form).await?;
        }
        return Ok(done(bytes, state.revision));
    }
    let mut span = trace::transaction("GuaranteedUpdate etcd3", key, &op.target.res.group_resource);
    trace::event(&mut span, "Encode succeeded", &[("len", bytes.len().into())]);
    let txn = |bytes: &bytes::Bytes| {
        let mut txn = Txn::update(key, state.revision, bytes.clone());
        op.output.extras.extend(&op.engine.registry(), &mut txn).map(|()| txn)
    };
    let mut outcome = commit_object(op, key, form.as_ref().unwrap_or(new), bytes.len(), txn(&bytes)?).await;
    let too_large = outcome.as_ref().is_err_and(Uncommitted::too_large);
    if too_large && !plan.keep_managed_fields && manage::drop_entries(new) {
        form.as_mut().map(manage::drop_entries);
        let stored = form.as_ref().unwrap_or(new);
        bytes = storage::encode(stored);
        outcome = commit_object(op, key, stored, bytes.len(), txn(&bytes)?).await;
    }
    match outcome? {
        Ok(revision) => {
            if let Some(form) = form {
                *new = op.conversion.read_back(form).await?;
            }
            Ok(done(bytes, revision))
        }
        Err(current) => {
            op.output.extras.readable(&op.engine.registry())?;
            Ok(Step::Conflict(current))
        }
    }
}
