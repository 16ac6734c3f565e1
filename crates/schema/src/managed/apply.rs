//! Server-side apply.

use std::collections::{HashMap, hash_map::Entry as Known};
use std::sync::LazyLock;

use kaji_meta::{Reason, Status, Work};
use serde_json::Value;

use super::compare::{Comparison, compare_objects};
use super::conflict::{self, Conflict};
use super::entry::{self, Entry, Identity, Operation};
use super::prune::Prune;
use super::update::{before_first_apply, is_create, store};
use super::value::equal_objects;
use super::{Versions, check, failure, filter, last_applied, merge, reconcile, schema_at};
use crate::fieldset::from_value::{UNTRACKED_META, applied};
use crate::fieldset::{FieldSet, Node, Tree, ops};
use crate::schema::SchemaRef;

/// The arguments of [`apply`].
pub struct ApplyArgs<'a> {
    /// The schema of the kind at `api_version`.
    pub schema: &'a SchemaRef,
    /// The stored object at `api_version`; null (or an object without uid) if there is none yet.
    pub live: &'a Value,
    /// The applied configuration, as sent.
    pub config: &'a Value,
    /// The `fieldManager` option.
    pub manager: &'a str,
    /// The version of the request, "apps/v1".
    pub api_version: &'a str,
    /// "" for the main resource.
    pub subresource: &'a str,
    /// The time of the request, RFC 3339 in whole seconds and UTC.
    pub now: &'a str,
    /// Fields that the strategy sets itself, hence that no manager owns through this endpoint.
    pub reset: Option<&'a FieldSet>,
    /// Take fields over from other managers.
    pub force: bool,
    /// The kind's other versions, for managers recorded there.
    pub convert: &'a dyn Versions,
    /// The deadline and size budget.
    pub work: &'a Work<'a>,
}

/// Merges the configuration into the live object, removes what this manager applied before and does not any more, and
/// records the ownership. The result is neither pruned of unknown nulls nor defaulted: that follows. `None`: nothing
/// changed, neither the object nor its owners.
///
/// # Errors
/// 504 when the time is over; 409 with a cause per conflict; 400 for a configuration of another version or with managedFields; 500, as upstream
/// has it, for one that does not fit the schema.
pub fn apply(args: ApplyArgs<'_>) -> Result<Option<Value>, Status> {
    precheck(&args)?;
    let attempt = match attempt(&args, args.force) {
        Err(Failure::Conflicts(conflicts)) if args.manager == last_applied::MANAGER => {
            match last_applied::remaining(&args, conflicts) {
                remaining if remaining.is_empty() => attempt(&args, true),
                remaining => Err(Failure::Conflicts(remaining)),
            }
        }
        other => other,
    };
    match attempt {
        Ok(applied) => Ok(finish(&args, applied)),
        Err(Failure::Status(status)) => Err(status),
        Err(Failure::Conflicts(conflicts)) => Err(conflict::status(conflicts)),
    }
}

enum Failure {
    Conflicts(Vec<Conflict>),
    Status(Status),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure::Status(status)
    }
}

/// A merge that went through.
struct Applied {
    /// Without managedFields.
    object: Value,
    entries: Vec<Entry>,
    changed: bool,
}

fn text<'v>(v: &'v Value, key: &str) -> &'v str {
    v.get(key).and_then(Value::as_str).unwrap_or("")
}

/// Upstream's printing of a group-version-kind: "apps/v1, Kind=Deployment".
fn gvk(object: &Value) -> String {
    let version = text(object, "apiVersion");
    let slash = if version.contains('/') { "" } else { "/" };
    format!("{slash}{version}, Kind={}", text(object, "kind"))
}

/// "namespace/name; group/version, Kind=kind" for error texts.
fn describe(object: &Value) -> String {
    let meta = object.get("metadata").unwrap_or(&Value::Null);
    format!("{}/{}; {}", text(meta, "namespace"), text(meta, "name"), gvk(object))
}

/// The answer to a configuration that merges into no object of its built-in type, for this reason: upstream's, which
/// is a plain error.
pub fn not_of_type(config: &Value, reason: &str) -> Status {
    let text = format!(
        "failed to convert new object ({}) to proper version: unable to convert unstructured object to {}: {reason}",
        describe(config),
        gvk(config)
    );
    Status::new(500, Reason::Unknown, text)
}

fn precheck(args: &ApplyArgs<'_>) -> Result<(), Status> {
    let kind = text(args.live, "kind");
    let wrong_kind = !kind.is_empty() && text(args.config, "kind") != kind;
    if text(args.config, "apiVersion") != args.api_version || wrong_kind {
        return Err(Status::bad_request(format!("invalid object type: {}", gvk(args.config))));
    }
    if args.config.pointer("/metadata/managedFields").is_some_and(Value::is_array) {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    Ok(())
}

fn attempt(args: &ApplyArgs<'_>, force: bool) -> Result<Applied, Failure> {
    let schema = args.schema.get();
    let stored = args.live.get("metadata").and_then(|m| m.get("managedFields")).unwrap_or(&Value::Null);
    let mut entries = match entry::trust(stored.clone()) {
        Some(entries) => entries,
        None => {
            entry::decode(stored).map_err(|e| failure(format!("failed to decode managed fields: {e}")))?
        }
    };
    if entries.is_empty() && !args.live.is_null() {
        entries = before_first_apply(
            args.schema,
            args.live,
            args.api_version,
            args.subresource,
            args.now,
            args.reset,
        )?;
    }
    reconcile::entries(args.schema, args.live, &mut entries, (args.convert, args.api_version), args.work)
        .map_err(Status::from)?;
    check::object(schema, args.config).map_err(|e| {
        failure(format!("failed to create typed patch object ({}): {e}", describe(args.config)))
    })?;
    let merged = merge::objects(schema, args.live, args.config)
        .map_err(|e| failure(format!("failed to merge config: {e}")))?;

    let id = Identity::of_request(args.manager, Operation::Apply, args.api_version, args.subresource);
    let mut set = applied(Node::root(schema), args.config);
    filter(&mut set, args.reset);
    let last = entries.iter().position(|e| e.id() == id).map(|at| entries.remove(at));
    entries.push(Entry::new(id, last.as_ref().and_then(Entry::time), set));
    let object = match &last {
        Some(last) => Prune {
            schema: args.schema,
            api_version: args.api_version,
            versions: args.convert,
            work: args.work,
            entries: &entries,
            last: last.fields(),
            last_version: last.api_version(),
        }
        .run(merged)?,
        None => merged,
    };
    let Some(mine) = entries.pop() else { return Err(Failure::Status(failure("the applier has no entry"))) };
    take_over(args, &object, &mut entries, force)?;
    entries.push(strip(mine));
    let changed = is_create(args.live) || !equal_objects(args.live, &object);
    // Equal is not identical: 1.0 stays as the 1 that it was.
    let object = if changed { object } else { without_managed_fields(args.live) };
    Ok(Applied { object, entries, changed })
}

fn without_managed_fields(object: &Value) -> Value {
    let mut copy = object.clone();
    store(&mut copy, None);
    copy
}

/// Removes from the applier's entry the fields without an owner.
fn strip(mut entry: Entry) -> Entry {
    static UNTRACKED: LazyLock<FieldSet> = LazyLock::new(|| {
        let mut set = FieldSet::from_paths(&[&["apiVersion"], &["kind"], &["metadata"]]);
        UNTRACKED_META.iter().for_each(|name| set.insert(&["metadata", name]));
        set
    });
    ops::subtract(entry.fields_mut(), &UNTRACKED.0);
    entry
}

/// Finds what the apply changes of other managers' fields: conflicts, or with `force` losses.
fn take_over(
    args: &ApplyArgs<'_>,
    object: &Value,
    entries: &mut Vec<Entry>,
    force: bool,
) -> Result<(), Failure> {
    let mut changes: HashMap<String, Option<Comparison>> = HashMap::new();
    let mut conflicts = Vec::new();
    let mut kept = Vec::with_capacity(entries.len());
    for mut entry in entries.drain(..) {
        args.work.step(1 + entry.fields().len()).map_err(Status::from)?;
        let change = match changes.entry(entry.api_version().to_owned()) {
            Known::Occupied(known) => &*known.into_mut(),
            Known::Vacant(new) => {
                let change = change_at(args, object, new.key())?;
                &*new.insert(change)
            }
        };
        let Some(change) = change else { continue };
        let mut written: Tree = ops::intersection(entry.fields(), &change.modified);
        ops::union(&mut written, &ops::intersection(entry.fields(), &change.added));
        if !written.is_empty() {
            if !force {
                conflicts.extend(conflict::with(&entry, &written));
            }
            ops::subtract(entry.fields_mut(), &written);
        }
        ops::subtract(entry.fields_mut(), &change.removed);
        kept.push(entry);
    }
    if !conflicts.is_empty() {
        return Err(Failure::Conflicts(conflicts));
    }
    *entries = kept;
    Ok(())
}

/// What the apply changes, at the version of a manager; `None` if there is no such version.
fn change_at(args: &ApplyArgs<'_>, object: &Value, version: &str) -> Result<Option<Comparison>, Status> {
    args.work.check()?;
    let compare = |schema: &SchemaRef, live: &Value, new: &Value| {
        compare_objects(schema.get(), live, new)
            .map_err(|e| failure(format!("failed to compare objects: {e}")))
            .map(|mut change| {
                for set in [&mut change.added, &mut change.modified, &mut change.removed] {
                    filter(set, args.reset);
                }
                Some(change)
            })
    };
    if version == args.api_version {
        return compare(args.schema, args.live, object);
    }
    // Upstream converts the live object first when it reconciles entries with schemas, and says of its failure no more.
    let convert = |object: &Value, prefix: &str| match args.convert.convert(object, version) {
        Ok(converted) => Ok(Some(converted)),
        Err(status) if status.code == 404 => Ok(None),
        Err(status) => Err(failure(format!("{prefix}{status}"))),
    };
    let schema = schema_at(args.convert, object, version, args.schema);
    match (convert(args.live, "")?, convert(object, "failed to convert new object: ")?) {
        (Some(live), Some(new)) => compare(&schema, &live, &new),
        _ => Ok(None),
    }
}

/// The object to store, unless all is as it was.
fn finish(args: &ApplyArgs<'_>, applied: Applied) -> Option<Value> {
    let Applied { mut object, mut entries, changed } = applied;
    if changed {
        let id = Identity::of_request(args.manager, Operation::Apply, args.api_version, args.subresource);
        if let Some(mine) = entries.iter_mut().find(|e| e.id() == id) {
            mine.set_time(args.now);
        }
    }
    let annotated = args.manager == last_applied::MANAGER && last_applied::refresh(&mut object, args.config);
    let managed = entry::encode(entries);
    let stored = args.live.get("metadata").and_then(|m| m.get("managedFields"));
    if !changed && !annotated && managed.as_ref() == stored {
        return None;
    }
    store(&mut object, managed);
    Some(object)
}
