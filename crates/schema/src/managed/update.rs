//! Field management of creates, updates and patches.

use std::collections::{HashMap, hash_map::Entry as Known};

use kaji_meta::{Status, Work};
use serde_json::{Map, Value};

use super::compare::{Comparison, compare_objects};
use super::entry::{self, Entry, Identity, Operation};
use super::{Versions, filter, reconcile, schema_at};
use crate::fieldset::from_value::created;
use crate::fieldset::{FieldSet, Node, Tree, ops};
use crate::schema::SchemaRef;

/// The arguments of [`update`].
pub struct UpdateArgs<'a> {
    /// The schema of the kind at `api_version`.
    pub schema: &'a SchemaRef,
    /// The stored object at `api_version`; null on create.
    pub live: &'a Value,
    /// The object to be stored, defaulted, as the client sent it otherwise (its managedFields included).
    pub new: &'a mut Value,
    /// The manager that writes: the `fieldManager` option, else the user agent's first part.
    pub manager: &'a str,
    /// The version of the request, "apps/v1".
    pub api_version: &'a str,
    /// "" for the main resource.
    pub subresource: &'a str,
    /// The time of the request, RFC 3339 in whole seconds and UTC.
    pub now: &'a str,
    /// Fields that the strategy sets itself, hence that no manager owns through this endpoint.
    pub reset: Option<&'a FieldSet>,
    /// The kind's other versions, for managers recorded there.
    pub convert: &'a dyn Versions,
    /// The deadline and size budget.
    pub work: &'a Work<'a>,
}

/// Recomputes `metadata.managedFields` of `new`: the writer owns what it changed, all other managers lose that and what
/// is removed, managers without fields disappear, and the writer's time moves only if it changed something. An object
/// without managers stays so, unless it is being created.
///
/// # Errors
/// 504 when the time is over. Else none: where ownership cannot be computed, all managers are dropped and the write goes
/// on, as upstream does.
pub fn update(args: UpdateArgs<'_>) -> Result<(), Status> {
    let entries = starting_entries(args.live, args.new, args.subresource);
    let entries = if entries.is_empty() && !is_create(args.live) {
        None
    } else {
        match tracked(&args, entries) {
            Ok(entries) => entry::encode(entries),
            Err(_) => {
                args.work.check()?;
                None
            }
        }
    };
    store(args.new, entries);
    Ok(())
}

/// Whether there was no object before.
pub(super) fn is_create(live: &Value) -> bool {
    live.get("metadata").and_then(|m| m.get("uid")).and_then(Value::as_str).unwrap_or("").is_empty()
}

/// Sets or removes `metadata.managedFields`.
pub(super) fn store(object: &mut Value, managed_fields: Option<Value>) {
    let Value::Object(root) = object else { return };
    match (root.get_mut("metadata"), managed_fields) {
        (Some(Value::Object(meta)), Some(entries)) => drop(meta.insert("managedFields".into(), entries)),
        (Some(Value::Object(meta)), None) => drop(meta.remove("managedFields")),
        (_, Some(entries)) => {
            let meta = Map::from_iter([("managedFields".to_owned(), entries)]);
            root.insert("metadata".into(), Value::Object(meta));
        }
        (_, None) => {}
    }
}

/// The entries to start from: those sent, if the client may and does send usable ones, else the stored ones. Takes
/// them out of `new`.
fn starting_entries(live: &Value, new: &mut Value, subresource: &str) -> Vec<Entry> {
    let meta = new.get_mut("metadata").and_then(Value::as_object_mut);
    let sent = meta.and_then(|m| m.remove("managedFields")).unwrap_or_default();
    let stored = live.get("metadata").and_then(|m| m.get("managedFields")).unwrap_or(&Value::Null);
    let unchanged = sent == *stored;
    if !unchanged && subresource.is_empty() && !sent.is_null() {
        if entry::is_reset(&sent) {
            return Vec::new();
        }
        if let Ok(entries) = entry::decode(&sent)
            && !entries.is_empty()
        {
            return entries;
        }
        // Clients that do not understand managedFields must not delete them by accident.
    }
    let ours = if unchanged { sent } else { stored.clone() };
    entry::trust(ours).or_else(|| entry::decode(stored).ok()).unwrap_or_default()
}

/// The entries after the write.
fn tracked(args: &UpdateArgs<'_>, mut entries: Vec<Entry>) -> Result<Vec<Entry>, Status> {
    if matches!(args.schema, SchemaRef::Owned(_)) {
        reconcile::entries(
            args.schema,
            args.live,
            &mut entries,
            (args.convert, args.api_version),
            args.work,
        )?;
    }
    let change = change(args)?;
    take_from_others(&mut entries, &change, args)?;
    let Comparison { mut added, modified, .. } = change;
    ops::union(&mut added, &modified);
    give(&mut entries, added, args);
    entries.retain(|e| !e.fields().is_empty());
    entry::cap(&mut entries);
    Ok(entries)
}

fn internal(text: String) -> Status {
    Status::internal(text)
}

/// What the write does to the object at its own version.
fn change(args: &UpdateArgs<'_>) -> Result<Comparison, Status> {
    let mut change = if args.live.is_null() {
        let added = created(Node::root(args.schema.get()), args.new).map_err(internal)?;
        Comparison { added, ..Comparison::default() }
    } else {
        compare_objects(args.schema.get(), args.live, args.new).map_err(internal)?
    };
    for set in [&mut change.added, &mut change.modified, &mut change.removed] {
        filter(set, args.reset);
    }
    Ok(change)
}

/// All managers lose what was written or removed, in terms of the versions of their entries.
fn take_from_others(
    entries: &mut Vec<Entry>,
    here: &Comparison,
    args: &UpdateArgs<'_>,
) -> Result<(), Status> {
    let mut others: HashMap<String, Option<Comparison>> = HashMap::new();
    let mut kept = Vec::with_capacity(entries.len());
    for mut entry in entries.drain(..) {
        args.work.step(1 + entry.fields().len())?;
        let change = if entry.api_version() == args.api_version {
            Some(here)
        } else {
            match others.entry(entry.api_version().to_owned()) {
                Known::Occupied(known) => &*known.into_mut(),
                Known::Vacant(new) => {
                    let change = change_at(args, new.key())?;
                    &*new.insert(change)
                }
            }
            .as_ref()
        };
        // Managers of versions that are no more are forgotten.
        let Some(change) = change else { continue };
        if !change.is_empty() {
            let fields = entry.fields_mut();
            ops::subtract(fields, &change.modified);
            ops::subtract(fields, &change.added);
            ops::subtract(fields, &change.removed);
        }
        kept.push(entry);
    }
    *entries = kept;
    Ok(())
}

/// The change at another version; `None` if that version does not exist.
fn change_at(args: &UpdateArgs<'_>, version: &str) -> Result<Option<Comparison>, Status> {
    args.work.check()?;
    let convert = |object: &Value| match args.convert.convert(object, version) {
        Ok(converted) => Ok(Some(converted)),
        Err(status) if status.code == 404 => Ok(None),
        Err(status) => Err(status),
    };
    let schema = schema_at(args.convert, args.new, version, args.schema);
    let Some(new) = convert(args.new)? else { return Ok(None) };
    let mut change = if args.live.is_null() {
        let added = created(Node::root(schema.get()), &new).map_err(internal)?;
        Comparison { added, ..Comparison::default() }
    } else {
        let Some(live) = convert(args.live)? else { return Ok(None) };
        compare_objects(schema.get(), &live, &new).map_err(internal)?
    };
    for set in [&mut change.added, &mut change.modified, &mut change.removed] {
        filter(set, args.reset);
    }
    Ok(Some(change))
}

/// The writer gets what it wrote.
fn give(entries: &mut Vec<Entry>, fields: Tree, args: &UpdateArgs<'_>) {
    if fields.is_empty() {
        return;
    }
    let id = Identity::of_request(args.manager, Operation::Update, args.api_version, args.subresource);
    match entries.iter_mut().find(|e| e.id() == id) {
        Some(entry) => {
            ops::union(entry.fields_mut(), &fields);
            entry.set_time(args.now);
        }
        None => entries.push(Entry::new(id, Some(args.now), fields)),
    }
}

/// The entry of an existing object without managers, which the first apply makes: everything in it belongs to
/// "before-first-apply".
pub(super) fn before_first_apply(
    schema: &SchemaRef,
    live: &Value,
    api_version: &str,
    subresource: &str,
    now: &str,
    reset: Option<&FieldSet>,
) -> Result<Vec<Entry>, Status> {
    let mut fields = created(Node::root(schema.get()), live).map_err(internal)?;
    filter(&mut fields, reset);
    if fields.is_empty() {
        return Ok(Vec::new());
    }
    let id = Identity::of_request("before-first-apply", Operation::Update, api_version, subresource);
    Ok(vec![Entry::new(id, Some(now), fields)])
}
