//! Updates of a few members of an object: those are decoded, changed and put back into the stored text. The rest of it, which
//! is most of its bytes, is copied.
//!
//! Invariants:
//! - What is stored is what an update of the whole object stores (a property test compares them). Where that is not certain, or
//!   something is refused, there is no result, and the caller updates the whole object.
//! - A transaction is sent once: one that failed is an error, only one that certainly changed nothing is no result.

use super::{Op, Uncommitted, commit, metadata};
use crate::{
    admission::{self, Operation},
    storage,
};
use bytes::Bytes;
use kaji_meta::{
    Path, Status, field,
    json::{self, Reader},
    object, objectmeta, validation,
};
use kaji_resource::{Change, Members};
use kaji_schema::{Schema, order};
use kaji_store::Txn;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// Larger objects are updated as a whole: they may be too large to be stored.
const LARGEST: usize = 1 << 20;

/// Updates an object of which `change` reads and sets these members alone; name and namespace are among them. What was updated, with these members; `None` when
/// the whole object has to be updated instead.
///
/// # Errors
/// That of the transaction.
pub(crate) async fn update(
    op: &Op<'_>,
    name: &str,
    members: Members,
    change: &Change<'_>,
) -> Result<Option<Value>, Status> {
    let res = op.target.res;
    let plain = !op.conversion.raw && !res.def.conversion.direct() && res.def.hooks.normalizer().is_none();
    if op.options.dry_run || !plain {
        return Ok(None);
    }
    let key = op.target.key(name);
    let Some(entry) = res.cache.get(&key).filter(|e| !e.is_sparse() && !e.meta.deleting) else {
        return Ok(None);
    };
    let stored = entry.object();
    let schema = order::of_kind(&res.storage_api_version, &res.storage_kind);
    let current = storage::peek_api_version(&stored) == Some(res.storage_api_version.as_str());
    let (Some(schema), true, Ok(text)) = (schema, current, std::str::from_utf8(&stored)) else {
        return Ok(None);
    };
    let Some(parts) = split(text, members) else { return Ok(None) };
    let Some(old) = decoded(&parts, members) else { return Ok(None) };
    let Some(mut new) = changed(op, (name, &old), change) else { return Ok(None) };
    if !admitted(op, name, &mut new, &old).await {
        op.output.extras.clear();
        op.output.annotations.take();
        return Ok(None);
    }
    let Some(bytes) = joined(&parts, members, (&old, &new), schema).filter(|b| b.len() <= LARGEST) else {
        return Ok(None);
    };
    match commit(op, Txn::update(key, entry.revision, bytes)).await {
        Ok(Ok(revision)) => {
            object::meta_mut(&mut new).insert("resourceVersion".into(), revision.to_string().into());
            Ok(Some(new))
        }
        // Another write was faster.
        Ok(Err(_)) => Ok(None),
        Err(why) if Uncommitted::too_large(&why) => Ok(None),
        Err(why) => Err(why.into()),
    }
}

/// The members after a change that nothing refuses, in the form in which they are stored.
fn changed(op: &Op<'_>, (name, old): (&str, &Value), change: &Change<'_>) -> Option<Value> {
    let res = op.target.res;
    let mut new = old.clone();
    change(&mut new).ok()?;
    let map = new.as_object_mut()?;
    map.insert("kind".into(), res.storage_kind.as_ref().into());
    map.insert("apiVersion".into(), res.storage_api_version.as_str().into());
    op.conversion.as_stored(&mut new);
    crate::decode::prune_empty_metadata(object::meta_mut(&mut new));
    metadata::match_name(&new, name).ok()?;
    let (new_meta, old_meta) = (new.get("metadata")?, old.get("metadata")?);
    if ["labels", "annotations"].iter().any(|key| new_meta.get(key) != old_meta.get(key)) {
        let valid = field::without_paths(|| {
            let (path, check) = (Path::new("metadata"), validation::path_segment_name);
            objectmeta::validate_object_meta(new_meta, res.def.namespaced(), check, &path).is_empty()
        });
        valid.then_some(())?;
    }
    Some(new)
}

/// Whether plugins let the update pass that look at its target alone, and no others are concerned.
async fn admitted(op: &Op<'_>, name: &str, new: &mut Value, old: &Value) -> bool {
    let plugins = op.plugins();
    let mut attributes = op.attributes(name, Operation::Update, Some(new), Some(old));
    if admission::handles_unchanged(&plugins, &attributes) {
        return false;
    }
    admission::admit(&plugins, &mut attributes).await.is_ok()
        && admission::validate(&plugins, &attributes).await.is_ok()
        && !op.output.extras.any()
}

/// A member of an object, as text.
enum Part<'t> {
    /// One that is copied.
    Whole(&'t str),
    /// The members of one of which some may change.
    Members(Vec<(&'t str, &'t str)>),
}

/// The next key; the outer `None` for one that is written with escapes, or for what is no JSON.
fn key<'t>(reader: &mut Reader<'t>) -> Option<Option<&'t str>> {
    match reader.key().ok()? {
        None => Some(None),
        Some(Cow::Borrowed(key)) => Some(Some(key)),
        Some(Cow::Owned(_)) => None,
    }
}

/// Takes an object apart.
fn split<'t>(text: &'t str, members: Members) -> Option<Vec<(&'t str, Part<'t>)>> {
    let mut reader = Reader::new(text);
    reader.take(b'{').then_some(())?;
    let mut parts = Vec::with_capacity(8);
    while let Some(outer) = key(&mut reader)? {
        if !members.iter().any(|(name, _)| *name == outer) || !reader.take(b'{') {
            parts.push((outer, Part::Whole(reader.value().ok()?)));
            continue;
        }
        let mut inner = Vec::with_capacity(16);
        while let Some(key) = key(&mut reader)? {
            inner.push((key, reader.value().ok()?));
        }
        parts.push((outer, Part::Members(inner)));
    }
    Some(parts)
}

/// The members that may change, as an object that has nothing else.
fn decoded(parts: &[(&str, Part<'_>)], members: Members) -> Option<Value> {
    let mut object = Map::new();
    for (outer, part) in parts {
        let Part::Members(inner) = part else { continue };
        let mut known = Map::new();
        for (key, text) in inner.iter().filter(|(key, _)| members.contains(&(*outer, *key))) {
            known.insert((*key).to_owned(), serde_json::from_str(text).ok()?);
        }
        object.insert((*outer).to_owned(), Value::Object(known));
    }
    Some(Value::Object(object))
}

/// The object with its changed members, as it is stored: without a resourceVersion. `None` if nothing has changed, or a member
/// would have to be put into something that is not there.
fn joined(
    parts: &[(&str, Part<'_>)],
    members: Members,
    (old, new): (&Value, &Value),
    schema: &Schema,
) -> Option<Bytes> {
    let there =
        |name: &str| parts.iter().any(|(outer, part)| *outer == name && matches!(part, Part::Members(_)));
    let lost = |(outer, key): &(&str, &str)| {
        !there(outer) && new.get(outer).and_then(|value| value.get(key)).is_some()
    };
    if members.iter().any(lost) {
        return None;
    }
    let size: usize = parts.iter().map(|(key, part)| key.len() + 4 + size(part)).sum();
    let mut out = Vec::with_capacity(size + 512);
    let mut changes = false;
    for (outer, part) in parts {
        out.push(if out.is_empty() { b'{' } else { b',' });
        json::write_string(&mut out, outer);
        out.push(b':');
        match part {
            Part::Whole(text) => out.extend_from_slice(text.as_bytes()),
            Part::Members(inner) => {
                let touched = members.iter().filter(|(name, _)| name == outer).map(|(_, key)| *key);
                let schema = schema.property(outer).map(|p| p.schema.get());
                let values = (old.get(outer), new.get(outer));
                changes |= write_members(&mut out, inner, touched.collect(), values, (outer, schema));
            }
        }
    }
    out.push(b'}');
    out.shrink_to_fit();
    changes.then(|| Bytes::from(out))
}

fn size(part: &Part<'_>) -> usize {
    match part {
        Part::Whole(text) => text.len(),
        Part::Members(inner) => inner.iter().map(|(key, text)| key.len() + text.len() + 4).sum(),
    }
}

/// What is written for a member.
enum Piece<'p> {
    Text(&'p str),
    Value(&'p Value),
}

/// Writes an object with its changed members; returns whether there are any.
fn write_members(
    out: &mut Vec<u8>,
    inner: &[(&str, &str)],
    touched: Vec<&'static str>,
    (old, new): (Option<&Value>, Option<&Value>),
    (outer, schema): (&str, Option<&Schema>),
) -> bool {
    let property = |key: &str| schema.and_then(|s| s.property(key));
    let (mut changes, mut added) = (false, false);
    let mut pieces = Vec::with_capacity(inner.len() + 2);
    for (key, text) in inner {
        // The store keeps it.
        if (outer, *key) == ("metadata", "resourceVersion") {
            continue;
        }
        let (was, is) = (old.and_then(|o| o.get(key)), new.and_then(|n| n.get(key)));
        if !touched.contains(key) || was == is {
            pieces.push((*key, Piece::Text(text)));
            continue;
        }
        changes = true;
        pieces.extend(is.map(|value| (*key, Piece::Value(value))));
    }
    for key in touched {
        let there = key == "resourceVersion" || inner.iter().any(|(known, _)| *known == key);
        if let Some(value) = new.and_then(|n| n.get(key)).filter(|_| !there) {
            pieces.push((key, Piece::Value(value)));
            (changes, added) = (true, true);
        }
    }
    if added {
        let place = |key: &str| property(key).map_or(u16::MAX, |p| p.place);
        pieces.sort_by(|(a, _), (b, _)| place(a).cmp(&place(b)).then_with(|| a.cmp(b)));
    }
    out.push(b'{');
    for (at, (key, piece)) in pieces.into_iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        json::write_string(out, key);
        out.push(b':');
        match piece {
            Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
            Piece::Value(value) => order::write(out, value, property(key).map(|p| p.schema.get())),
        }
    }
    out.push(b'}');
    changes
}

#[cfg(test)]
mod tests;
