//! Entries of `metadata.managedFields`, kept as the JSON objects that they are.

use std::{cmp::Ordering, collections::HashMap};

use kaji_meta::time::Time;
use serde_json::{Map, Value};

use super::value::json;
use crate::fieldset::{FieldSet, Tree, ops};

/// The most entries of updates that an object keeps; older ones are merged.
const MAX_UPDATE_MANAGERS: usize = 10;
const OLD_UPDATES: &str = "ancient-changes";

/// What an entry records: the spelling of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// The manager that an entry belongs to. An applier has one entry whatever version it applied, an updater one per version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity<'a> {
    pub manager: &'a str,
    pub operation: Operation,
    pub api_version: &'a str,
    pub subresource: &'a str,
}

impl<'a> Identity<'a> {
    /// The identity of a request; a manager without a name is "unknown".
    pub(crate) fn of_request(
        manager: &'a str,
        operation: Operation,
        api_version: &'a str,
        subresource: &'a str,
    ) -> Identity<'a> {
        let manager = if manager.is_empty() { "unknown" } else { manager };
        Identity { manager, operation, api_version, subresource }
    }

    /// Upstream's key of the manager; conflicts are in its order.
    pub(crate) fn key(&self) -> String {
        let mut out = String::from("{");
        let mut put = |name: &str, value: &str| {
            if !value.is_empty() {
                if out.len() > 1 {
                    out.push(',');
                }
                out.push_str(&format!("\"{name}\":{}", json(&Value::from(value))));
            }
        };
        put("manager", self.manager);
        put("operation", self.operation.as_str());
        if self.operation == Operation::Update {
            put("apiVersion", self.api_version);
        }
        put("subresource", self.subresource);
        out.push('}');
        out
    }
}

impl PartialEq for Identity<'_> {
    fn eq(&self, other: &Identity<'_>) -> bool {
        self.operation == other.operation
            && self.manager == other.manager
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }
}

/// One entry: operation, apiVersion and fieldsV1 are there and valid.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry(Map<String, Value>);

impl Entry {
    pub(crate) fn new(id: Identity<'_>, time: Option<&str>, fields: Tree) -> Entry {
        let mut map = Map::new();
        if !id.manager.is_empty() {
            map.insert("manager".into(), id.manager.into());
        }
        map.insert("operation".into(), id.operation.as_str().into());
        map.insert("apiVersion".into(), id.api_version.into());
        if let Some(time) = time {
            map.insert("time".into(), time.into());
        }
        map.insert("fieldsType".into(), "FieldsV1".into());
        map.insert("fieldsV1".into(), Value::Object(fields));
        if !id.subresource.is_empty() {
            map.insert("subresource".into(), id.subresource.into());
        }
        Entry(map)
    }

    fn text(&self, key: &str) -> &str {
        self.0.get(key).and_then(Value::as_str).unwrap_or("")
    }

    pub(crate) fn api_version(&self) -> &str {
        self.text("apiVersion")
    }

    pub(crate) fn operation(&self) -> Operation {
        if self.text("operation") == "Apply" { Operation::Apply } else { Operation::Update }
    }

    pub(crate) fn id(&self) -> Identity<'_> {
        Identity {
            manager: self.text("manager"),
            operation: self.operation(),
            api_version: self.api_version(),
            subresource: self.text("subresource"),
        }
    }

    pub(crate) fn time(&self) -> Option<&str> {
        self.0.get("time").and_then(Value::as_str)
    }

    pub(crate) fn set_time(&mut self, time: &str) {
        self.0.insert("time".into(), time.into());
    }

    pub(crate) fn fields(&self) -> &Tree {
        self.0.get("fieldsV1").map_or_else(|| ops::tree(&Value::Null), ops::tree)
    }

    pub(crate) fn fields_mut(&mut self) -> &mut Tree {
        let slot = self.0.entry("fieldsV1").or_insert_with(|| Value::Object(Map::new()));
        if !slot.is_object() {
            *slot = Value::Object(Map::new());
        }
        match slot {
            Value::Object(tree) => tree,
            _ => unreachable!("made an object above"),
        }
    }
}

/// Decodes entries in any spelling to canonical form. Of two entries of one manager the later counts.
///
/// # Errors
/// Upstream's text of the first thing that is wrong.
pub(crate) fn decode(managed_fields: &Value) -> Result<Vec<Entry>, String> {
    let list = match managed_fields {
        Value::Null => return Ok(Vec::new()),
        Value::Array(list) => list,
        _ => return Err("managedFields must be a list".into()),
    };
    let mut out: Vec<Entry> = Vec::with_capacity(list.len());
    let mut known: HashMap<String, usize> = HashMap::with_capacity(list.len());
    for (i, raw) in list.iter().enumerate() {
        let entry = decode_one(i, raw)?;
        let at = *known.entry(entry.id().key()).or_insert(out.len());
        match out.get_mut(at) {
            Some(earlier) => *earlier = entry,
            None => out.push(entry),
        }
    }
    Ok(out)
}

/// Entries by their manager's key; of two of one manager the first.
pub(crate) fn by_key(entries: &[Entry]) -> HashMap<String, usize> {
    let mut out = HashMap::with_capacity(entries.len());
    for (i, entry) in entries.iter().enumerate() {
        out.entry(entry.id().key()).or_insert(i);
    }
    out
}

fn decode_one(i: usize, raw: &Value) -> Result<Entry, String> {
    let text = |key: &str| raw.get(key).and_then(Value::as_str).unwrap_or("");
    let operation = match text("operation") {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        _ => return Err("operation must be `Apply` or `Update`".into()),
    };
    if text("apiVersion").is_empty() {
        return Err("apiVersion must not be empty".into());
    }
    match text("fieldsType") {
        "FieldsV1" => {}
        "" => return Err(format!("missing fieldsType in managed fields entry {i}")),
        other => return Err(format!("invalid fieldsType {other:?} in managed fields entry {i}")),
    }
    let fields = FieldSet::from_fields_v1(raw.get("fieldsV1").unwrap_or(&Value::Null))
        .map_err(|e| format!("error decoding versioned set from {raw}: error decoding set: {e}"))?;
    let time = match raw.get("time") {
        None | Some(Value::Null) => None,
        Some(Value::String(s)) => {
            let time =
                Time::parse(s).map_err(|_| format!("invalid time {s:?} in managed fields entry {i}"))?;
            Some(time.to_string())
        }
        Some(other) => return Err(format!("invalid time {other} in managed fields entry {i}")),
    };
    let id = Identity {
        manager: text("manager"),
        operation,
        api_version: text("apiVersion"),
        subresource: text("subresource"),
    };
    Ok(Entry::new(id, time.as_deref(), fields.0))
}

/// Takes over entries that were stored by this module or by upstream, without decoding their sets. `None` if they do
/// not look like it.
pub(crate) fn trust(managed_fields: Value) -> Option<Vec<Entry>> {
    let Value::Array(list) = managed_fields else { return managed_fields.is_null().then(Vec::new) };
    list.into_iter()
        .map(|raw| {
            let Value::Object(map) = raw else { return None };
            let text = |key: &str| map.get(key).and_then(Value::as_str).unwrap_or("");
            let fine = matches!(text("operation"), "Apply" | "Update")
                && !text("apiVersion").is_empty()
                && text("fieldsType") == "FieldsV1"
                && map.get("fieldsV1").is_some_and(Value::is_object);
            if fine { Some(Entry(map)) } else { None }
        })
        .collect()
}

/// True for the two spellings of "remove all managers": `[]` and `[{}]`.
pub(crate) fn is_reset(managed_fields: &Value) -> bool {
    match managed_fields.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([only]) => only.as_object().is_some_and(|o| o.values().all(|v| v.is_null() || v == "")),
        _ => false,
    }
}

/// The JSON of the entries: sorted, `None` if there are none.
pub(crate) fn encode(mut entries: Vec<Entry>) -> Option<Value> {
    entries.retain(|e| !e.fields().is_empty());
    if entries.is_empty() {
        return None;
    }
    entries.sort_by(order);
    Some(Value::Array(entries.into_iter().map(|e| Value::Object(e.0)).collect()))
}

/// By operation, time, manager, version, subresource. Times are canonical, so their text sorts as they do.
fn order(a: &Entry, b: &Entry) -> Ordering {
    let updates = |e: &Entry| e.operation() == Operation::Update;
    let first = updates(a).cmp(&updates(b)).then_with(|| a.time().unwrap_or("").cmp(b.time().unwrap_or("")));
    if first.is_ne() {
        return first;
    }
    let rest = ["manager", "apiVersion", "subresource"];
    rest.iter().map(|k| a.text(k).cmp(b.text(k))).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
}

/// Merges the oldest entries of updates, version by version, until no more than ten are left (as far as that goes).
pub(crate) fn cap(entries: &mut Vec<Entry>) {
    let updates = || entries.iter().enumerate().filter(|(_, e)| e.operation() == Operation::Update);
    let mut count = updates().count();
    if count <= MAX_UPDATE_MANAGERS {
        return;
    }
    let mut updaters: Vec<(String, String, usize)> =
        updates().map(|(i, e)| (e.time().unwrap_or("").to_owned(), e.id().key(), i)).collect();
    updaters.sort();
    let mut slots: Vec<Option<Entry>> = entries.drain(..).map(Some).collect();
    // By version: the oldest entry, and the one that older ones are merged into.
    let mut oldest: HashMap<String, usize> = HashMap::new();
    let mut buckets: HashMap<String, usize> = HashMap::new();
    for (i, entry) in slots.iter().enumerate() {
        if let Some(entry) = entry.as_ref().filter(|e| e.id() == bucket_id(e.api_version())) {
            buckets.entry(entry.api_version().to_owned()).or_insert(i);
        }
    }
    for (_, _, at) in updaters {
        if count <= MAX_UPDATE_MANAGERS {
            break;
        }
        let Some(version) = slots[at].as_ref().map(|e| e.api_version().to_owned()) else { continue };
        let Some(&first) = oldest.get(&version) else {
            oldest.insert(version, at);
            continue;
        };
        let Some(merged) = slots[at].take() else { continue };
        let bucket = buckets.get(&version).copied().filter(|b| *b != at).unwrap_or(first);
        buckets.insert(version.clone(), bucket);
        let Some(target) = slots[bucket].as_mut() else { continue };
        if target.id() != bucket_id(&version) {
            *target = Entry::new(bucket_id(&version), None, std::mem::take(target.fields_mut()));
        }
        ops::union(target.fields_mut(), merged.fields());
        // The merged entry is the younger one.
        match merged.time() {
            Some(time) => target.set_time(time),
            None => drop(target.0.remove("time")),
        }
        count -= 1;
    }
    entries.extend(slots.into_iter().flatten());
}

/// The entry that old updates of a version are merged into.
fn bucket_id(api_version: &str) -> Identity<'_> {
    Identity { manager: OLD_UPDATES, operation: Operation::Update, api_version, subresource: "" }
}
