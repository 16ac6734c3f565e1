//! Deletion: at once, gracefully, or when the last finalizer is gone.
//!
//! The rules are those of upstream's `BeforeDelete` and generic registry. A deletion that has to wait is an update that
//! sets the deletion timestamp (and the garbage collector's finalizers); the request that removes the last finalizer, or deletes
//! again with grace period 0, ends it.
//!
//! Invariant: a request that does not hasten a deletion which has begun changes nothing, and admission is not asked about it.

use super::{Op, Races, State, commit, delete_attributes, finish, metadata, rfc3339};
use crate::{admission, storage, store_error::store_status};
use kaji_meta::{Details, GroupResource, Status, object};
use kaji_resource::{DeleteOptions, GarbageCollectionPolicy};
use kaji_store::{KeyValue, Txn};
use serde_json::Value;
use std::sync::atomic::Ordering;

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// What a deletion has come to.
pub(crate) struct Removed {
    /// The object with its present resourceVersion: as it is now, or as it was last.
    pub object: Value,
    /// Whether the answer shows the object, rather than a `Status` about it.
    pub show: bool,
    /// Whether it is gone.
    pub gone: bool,
}

impl Removed {
    /// The `Status` that a deletion answers with when it does not show the object.
    pub fn status(&self, gr: &GroupResource) -> Value {
        Status::success_deleted(&Details {
            name: object::name(&self.object).to_owned(),
            group: gr.group.clone(),
            // Upstream puts the resource here.
            kind: gr.resource.clone(),
            uid: object::uid(&self.object).to_owned(),
            ..Details::default()
        })
    }
}

/// What is to be done about an object.
enum Decision {
    /// Write it with the marks of deletion; then remove it as well, if so said.
    Mark { object: Value, then_remove: bool },
    /// Remove it.
    Remove,
}

enum Step {
    Done(Removed),
    /// Its deletion has begun already and this request does not hasten it.
    Pending(Removed),
    Conflict(Option<KeyValue>),
}

/// Deletes an object, or begins to.
///
/// # Errors
/// Everything that upstream refuses a deletion for.
pub(crate) async fn remove(op: &Op<'_>, name: &str, options: &DeleteOptions) -> Result<Removed, Status> {
    let key = op.target.key(name);
    let (mut state, mut latest) = op.cached(&key).await?;
    let mut races = Races::default();
    loop {
        let unconfirmed = match attempt(op, name, &key, state.as_ref(), options).await {
            Ok(Step::Done(removed)) => return Ok(removed),
            Ok(Step::Pending(removed)) => Ok(removed),
            Ok(Step::Conflict(current)) => {
                races.lost(op, name)?;
                state = op.found(current).await?;
                latest = true;
                continue;
            }
            Err(status) => Err(status),
        };
        if latest || op.uncertain.load(Ordering::Relaxed) {
            return unconfirmed;
        }
        let stored = op.stored(&key).await?;
        if stored.as_ref().map(|s| s.revision) == state.as_ref().map(|s| s.revision) {
            return unconfirmed;
        }
        (state, latest) = (stored, true);
    }
}

async fn attempt(
    op: &Op<'_>,
    name: &str,
    key: &str,
    state: Option<&State>,
    options: &DeleteOptions,
) -> Result<Step, Status> {
    let Some(state) = state else { return Err(op.target.not_found(name)) };
    let hooks = &op.target.res.def.hooks;
    check_preconditions(op, name, state, options)?;
    let shows = op.target.res.def.returns_deleted_object;
    // As upstream: the deletion was admitted when it began.
    let Some(decision) = decide(op, name, &state.object, options) else {
        let object = state.object.clone();
        return Ok(Step::Pending(Removed { object, show: shows, gone: false }));
    };
    if !op.conversion.raw {
        let mut attributes = delete_attributes(op, options, Some(&state.object));
        admission::admit(&op.plugins(), &mut attributes).await?;
        admission::validate(&op.plugins(), &attributes).await?;
    }
    let ctx = op.ctx(name);
    hooks.deletion().check_delete(&ctx, &state.object, options)?;
    let done = |object, show, gone| Ok(Step::Done(Removed { object, show, gone }));
    let (mut object, mut revision) = (None, state.revision);
    match decision {
        Decision::Remove => {}
        Decision::Mark { object: mut marked, then_remove } => {
            if marked != state.object && !options.dry_run {
                let form = op.conversion.stored_form(&marked).await?;
                let txn = Txn::update(key, state.revision, storage::encode(form.as_ref().unwrap_or(&marked)));
                match commit(op, txn).await? {
                    Ok(at) => revision = at,
                    Err(current) => return Ok(Step::Conflict(current)),
                }
                object::meta_mut(&mut marked).insert("resourceVersion".into(), revision.to_string().into());
            }
            if !then_remove {
                return done(marked, true, false);
            }
            if options.dry_run {
                return done(marked, true, true);
            }
            object = Some(marked);
        }
    }
    let mut gone_at = None;
    if !options.dry_run {
        let txn = Txn::delete(key, revision);
        let outcome = match object {
            // It has begun.
            Some(_) => finish(op, txn).await.map_err(|e| store_status(&e))?,
            None => commit(op, txn).await?,
        };
        match outcome {
            // Another request finished the deletion that was marked here.
            Err(None) if object.is_some() => {}
            Err(current) => return Ok(Step::Conflict(current)),
            Ok(at) => gone_at = Some(at),
        }
    }
    let mut object = object.unwrap_or_else(|| state.object.clone());
    if let Some(at) = gone_at.filter(|_| shows) {
        // As watchers see it: the version in which it was no more.
        object::meta_mut(&mut object).insert("resourceVersion".into(), at.to_string().into());
    }
    if !options.dry_run {
        hooks.deleted(&ctx, &object).await;
    }
    done(object, shows, true)
}

fn check_preconditions(
    op: &Op<'_>,
    name: &str,
    state: &State,
    options: &DeleteOptions,
) -> Result<(), Status> {
    let def = &op.target.res.def;
    if def.hooks.deletion().marks_timestamp_only() {
        return check_preconditions_by_hand(op, name, state, options);
    }
    // Upstream names the kind here, where other conflicts name the resource: the kind that is stored.
    let group = def.shares_storage_of.as_ref().map_or(def.group.as_ref(), |owner| owner.group.as_str());
    let about = GroupResource::new(group, def.kind.as_ref());
    let found = object::uid(&state.object);
    if let Some(wanted) = options.uid.as_deref().filter(|u| *u != found) {
        return Err(Status::conflict(
            &about,
            name,
            format!(
                "the UID in the precondition ({wanted}) does not match the UID in record ({found}). The object might have been deleted and then recreated"
            ),
        ));
    }
    let found = state.revision.to_string();
    if let Some(wanted) = options.resource_version.as_deref().filter(|v| *v != found) {
        return Err(Status::conflict(
            &about,
            name,
            format!(
                "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({found}). The object might have been modified"
            ),
        ));
    }
    Ok(())
}

/// Kinds with registries that set deletionTimestamp themselves check preconditions themselves, too.
fn check_preconditions_by_hand(
    op: &Op<'_>,
    name: &str,
    state: &State,
    options: &DeleteOptions,
) -> Result<(), Status> {
    let (uid, version) = (object::uid(&state.object).to_owned(), state.revision.to_string());
    for (what, wanted, found) in
        [("UID", &options.uid, uid), ("ResourceVersion", &options.resource_version, version)]
    {
        if let Some(wanted) = wanted.as_ref().filter(|w| **w != found) {
            let text = format!(
                "Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"
            );
            return Err(Status::conflict(&op.target.res.group_resource, name, text));
        }
    }
    Ok(())
}

/// What to do about an object; `None` if its deletion has begun already and this request does not hasten it.
fn decide(op: &Op<'_>, name: &str, old: &Value, options: &DeleteOptions) -> Option<Decision> {
    let hooks = op.target.res.def.hooks.deletion();
    let first = object::deletion_timestamp(old).is_none();
    let by_hand = hooks.marks_timestamp_only();
    if by_hand && !first && hooks.deletion_waits(old) {
        return None;
    }
    let mut options = options.clone();
    if options.grace_period_seconds.is_some_and(|s| s < 0) {
        options.grace_period_seconds = Some(1);
    }
    let mut object = old.clone();
    let grace = match grace(op, name, &mut object, &options) {
        Grace::Pending => return None,
        Grace::None => None,
        Grace::Seconds(s) => Some(s),
    };
    let ignored = first && hooks.first_delete_ignores_propagation();
    // Without a garbage collector nothing would remove them.
    let collected = op.engine.options.garbage_collection && !ignored;
    let policy = op.target.res.def.garbage_collection;
    let finalizers = gc_finalizers(&object, &options, policy, by_hand && first).filter(|_| collected);
    if let Some(finalizers) = finalizers {
        let meta = object::meta_mut(&mut object);
        if finalizers.is_empty() {
            meta.remove("finalizers");
        } else {
            meta.insert("finalizers".into(), finalizers.into());
        }
    }
    let waits = object::finalizers(&object).next().is_some() || hooks.deletion_waits(&object);
    let ctx = op.ctx(name);
    Some(match grace {
        Some(seconds) => {
            hooks.mark_deleted(&ctx, &mut object);
            Decision::Mark { object, then_remove: !waits && seconds <= 0 }
        }
        None if waits => {
            mark(op, &mut object);
            if first {
                hooks.mark_deleted(&ctx, &mut object);
            }
            Decision::Mark { object, then_remove: false }
        }
        None => Decision::Remove,
    })
}

enum Grace {
    /// Not graceful.
    None,
    /// Graceful deletion is under way and stays as it is.
    Pending,
    /// The object now carries a deletion timestamp and this grace period.
    Seconds(i64),
}

/// Sets or shortens the grace period.
fn grace(op: &Op<'_>, name: &str, object: &mut Value, options: &DeleteOptions) -> Grace {
    let Some(since) = object::deletion_timestamp(object).map(str::to_owned) else {
        let ctx = op.ctx(name);
        let Some(seconds) = op.target.res.def.hooks.deletion().grace_period(&ctx, object, options) else {
            return Grace::None;
        };
        let at = after(op.now, seconds);
        let generation = object::generation(object);
        set_deletion(object, &at, seconds);
        if generation > 0 {
            metadata::set_generation(object, generation + 1);
        }
        return Grace::Seconds(seconds);
    };
    let current = match object::deletion_grace_period_seconds(object) {
        None | Some(0) => return Grace::None,
        Some(s) => s.max(1),
    };
    let Some(mut period) = options.grace_period_seconds.filter(|p| *p < current) else {
        return Grace::Pending;
    };
    let since: jiff::Timestamp = since.parse().unwrap_or(op.now);
    let mut at = since.checked_add(jiff::SignedDuration::from_secs(period - current)).unwrap_or(op.now);
    if at < op.now {
        at = op.now;
        if period != 0 {
            period = 1;
        }
    }
    set_deletion(object, &rfc3339(at), period);
    Grace::Seconds(period)
}

fn after(now: jiff::Timestamp, seconds: i64) -> String {
    rfc3339(now.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap_or(now))
}

fn set_deletion(object: &mut Value, at: &str, grace: i64) {
    let meta = object::meta_mut(object);
    meta.insert("deletionTimestamp".into(), at.into());
    meta.insert("deletionGracePeriodSeconds".into(), grace.into());
}

/// Marks an object for a deletion that is not graceful but has to wait.
fn mark(op: &Op<'_>, object: &mut Value) {
    let generation = object::generation(object);
    let hooks = &op.target.res.def.hooks;
    let (by_hand, first) =
        (hooks.deletion().marks_timestamp_only(), object::deletion_timestamp(object).is_none());
    let at = match object::deletion_timestamp(object) {
        None => {
            if generation > 0 && !by_hand {
                metadata::set_generation(object, generation + 1);
            }
            op.now_text.clone()
        }
        Some(since) if since.parse::<jiff::Timestamp>().is_ok_and(|t| t > op.now) => op.now_text.clone(),
        Some(since) => since.to_owned(),
    };
    if by_hand && (first || !hooks.deletion().first_delete_ignores_propagation()) {
        object::meta_mut(object).insert("deletionTimestamp".into(), at.into());
    } else {
        set_deletion(object, &at, 0);
    }
}

/// The finalizers after adding or removing those of the garbage collector; `None` when they stay. To upstream's registries that mark
/// objects `by_hand` the old option's `false` means foreground.
fn gc_finalizers(
    object: &Value,
    options: &DeleteOptions,
    default: GarbageCollectionPolicy,
    by_hand: bool,
) -> Option<Vec<String>> {
    let old: Vec<&str> = object::finalizers(object).collect();
    let (orphan, foreground) =
        match (default, options.orphan_dependents, options.propagation_policy.as_deref()) {
            (GarbageCollectionPolicy::Unsupported, _, _) => (false, false),
            (_, Some(orphan), _) => (orphan, by_hand && !orphan),
            (_, _, Some("Orphan")) => (true, false),
            (_, _, Some("Foreground")) => (false, true),
            (_, _, Some("Background")) => (false, false),
            _ => match old.iter().find(|f| matches!(**f, ORPHAN | FOREGROUND)) {
                Some(f) => (*f == ORPHAN, *f == FOREGROUND),
                None => (default == GarbageCollectionPolicy::OrphanDependents, false),
            },
        };
    if orphan == old.contains(&ORPHAN) && foreground == old.contains(&FOREGROUND) {
        return None;
    }
    let mut new: Vec<String> =
        old.iter().filter(|f| !matches!(**f, ORPHAN | FOREGROUND)).map(|f| (*f).to_owned()).collect();
    new.extend(orphan.then(|| ORPHAN.to_owned()));
    new.extend(foreground.then(|| FOREGROUND.to_owned()));
    Some(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use GarbageCollectionPolicy::{
        DeleteDependents as DELETE, OrphanDependents as ORPHAN_DEPENDENTS, Unsupported as UNSUPPORTED,
    };
    use serde_json::json;

    #[test]
    fn finalizers_of_the_garbage_collector() {
        let gc = |finalizers: Value, options: DeleteOptions, default| {
            gc_finalizers(&json!({"metadata": {"finalizers": finalizers}}), &options, default, false)
        };
        let policy = |p: &str| DeleteOptions { propagation_policy: Some(p.into()), ..Default::default() };
        let orphan = |b| DeleteOptions { orphan_dependents: Some(b), ..Default::default() };
        let none = DeleteOptions::default;
        assert_eq!(gc(json!([]), none(), DELETE), None);
        assert_eq!(gc(json!([]), none(), ORPHAN_DEPENDENTS), Some(vec!["orphan".into()]));
        assert_eq!(gc(json!([]), policy("Background"), ORPHAN_DEPENDENTS), None);
        assert_eq!(gc(json!(["a"]), policy("Orphan"), DELETE), Some(vec!["a".into(), "orphan".into()]));
        assert_eq!(
            gc(json!(["a"]), policy("Foreground"), DELETE),
            Some(vec!["a".into(), "foregroundDeletion".into()])
        );
        assert_eq!(
            gc(json!(["orphan"]), policy("Foreground"), DELETE),
            Some(vec!["foregroundDeletion".into()])
        );
        assert_eq!(gc(json!(["orphan", "b"]), policy("Background"), DELETE), Some(vec!["b".into()]));
        assert_eq!(gc(json!(["orphan"]), none(), DELETE), None);
        assert_eq!(gc(json!(["foregroundDeletion"]), none(), ORPHAN_DEPENDENTS), None);
        assert_eq!(gc(json!([]), orphan(true), DELETE), Some(vec!["orphan".into()]));
        assert_eq!(gc(json!(["foregroundDeletion"]), orphan(false), DELETE), Some(vec![]));
        assert_eq!(gc(json!(["x"]), policy("Orphan"), UNSUPPORTED), None);
        let by_hand = |b| gc_finalizers(&json!({"metadata": {}}), &orphan(b), DELETE, true);
        assert_eq!(by_hand(false), Some(vec!["foregroundDeletion".into()]));
        assert_eq!(by_hand(true), Some(vec!["orphan".into()]));
    }
}
