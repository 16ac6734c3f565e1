//! Merging lists, and the order of what comes out.

use std::collections::{HashMap, HashSet};
use std::mem::discriminant;

use serde_json::Value;

use super::{Error, FieldMeta, Meta, Object, PATCH, SET_ORDER, merge_map, target_of, without_directives};
use crate::managed::go_plain as plain;
use kaji_meta::text::go_type;

const LIST: &str = "[]interface {}";
const MAP: &str = "map[string]interface {}";

fn bad(expected: &'static str, received: &Value) -> Error {
    Error::BadArgument { expected, received: go_type(received) }
}

/// Merges the lists that have a `$setElementOrder`, and takes them out of the patch.
pub(super) fn merge_ordered(original: &mut Object, patch: &mut Object, meta: Meta<'_>) -> Result<(), Error> {
    let directives: Vec<String> = patch.keys().filter(|k| k.starts_with(SET_ORDER)).cloned().collect();
    for directive in directives {
        let order = match patch.remove(&directive) {
            Some(Value::Array(order)) => order,
            other => return Err(bad(LIST, &other.unwrap_or_default())),
        };
        let key = target_of(&directive, SET_ORDER)?;
        let old = list_of(original.get(key))?;
        let new = list_of(patch.get(key))?;
        let field = meta.list(key)?;
        check_order(new.unwrap_or_default(), &order, field.merge_key)?;
        let merged = match (old, new) {
            (None, None) => continue,
            (Some(old), None) => old.to_vec(),
            (None, Some(new)) => new.iter().cloned().filter_map(without_directives).collect(),
            (Some(old), Some(new)) => merge(old.to_vec(), new.to_vec(), &field, false)?,
        };
        let old = old.unwrap_or_default();
        let maps = are_maps([old, new.unwrap_or_default()])?;
        let (listed, rest) = partition(merged, &order, field.merge_key)?;
        let sorted = in_order(listed, rest, &order, old, field.merge_key, maps)?;
        original.insert(key.to_owned(), Value::Array(sorted));
        patch.remove(key);
    }
    Ok(())
}

fn list_of(value: Option<&Value>) -> Result<Option<&[Value]>, Error> {
    match value {
        None => Ok(None),
        Some(Value::Array(list)) => Ok(Some(list)),
        Some(other) => Err(bad(LIST, other)),
    }
}

/// The items of the patch must all be in the order list, in the same order (deletions aside).
fn check_order(patch: &[Value], order: &[Value], merge_key: &str) -> Result<(), Error> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut left = Vec::new();
    for item in patch {
        let keyed = !merge_key.is_empty();
        if keyed && !item.is_object() {
            return Err(bad(MAP, item));
        }
        let directive = item.get(PATCH);
        if !(keyed && directive.is_some_and(|d| d == "delete")) && directive.is_none() {
            left.push(item);
        }
    }
    let mut at = 0;
    for wanted in order {
        let Some(item) = left.get(at) else { return Ok(()) };
        if same_key(item, wanted, merge_key)? {
            at += 1;
        }
    }
    if at < left.len() {
        let show = |list: &[Value]| plain(&Value::Array(list.to_vec()));
        return Err(Error::Other(format!(
            "The order in patch list:\n{}\n doesn't match {SET_ORDER} list:\n{}\n",
            show(patch),
            show(order)
        )));
    }
    Ok(())
}

fn same_key(a: &Value, b: &Value, merge_key: &str) -> Result<bool, Error> {
    if merge_key.is_empty() {
        return Ok(a == b);
    }
    Ok(key_of(a, merge_key)? == key_of(b, merge_key)?)
}

fn key_of<'v>(item: &'v Value, merge_key: &str) -> Result<&'v Value, Error> {
    match item {
        Value::Object(map) => map
            .get(merge_key)
            .ok_or_else(|| Error::NoMergeKey { map: item.clone(), key: merge_key.to_owned() }),
        other => Err(bad(MAP, other)),
    }
}

/// Whether the elements are maps. They must all be of one type, and no lists.
fn are_maps<const N: usize>(lists: [&[Value]; N]) -> Result<bool, Error> {
    let mut all = lists.iter().copied().flatten();
    let Some(first) = all.next() else {
        return Err(Error::Other("no elements in any of the given slices".into()));
    };
    if first.is_array() {
        return Err(Error::ListOfLists);
    }
    let same = |v: &Value| discriminant(v) == discriminant(first) && go_type(v) == go_type(first);
    if all.all(same) {
        return Ok(first.is_object());
    }
    let shown: Vec<String> = lists.iter().map(|l| plain(&Value::Array(l.to_vec()))).collect();
    Err(Error::Other(format!("list element types are not identical: [{}]", shown.join(" "))))
}

/// Merges `new` into `old` by the field's strategy, or deletes the scalars in `new` from `old`.
pub(super) fn merge(
    mut old: Vec<Value>,
    new: Vec<Value>,
    field: &FieldMeta<'_>,
    deletion: bool,
) -> Result<Vec<Value>, Error> {
    if !field.merge && !deletion {
        return Ok(new);
    }
    if old.is_empty() && new.is_empty() {
        return Ok(old);
    }
    let maps = are_maps([&old, &new])?;
    if !maps {
        if deletion {
            let gone = Places::of(&new, "");
            old.retain(|v| gone.of_item(v).is_none());
            return Ok(old);
        }
        let mut known = HashSet::with_capacity(old.len() + new.len());
        let all = old.iter().chain(&new);
        let merged: Vec<Value> = all.filter(|v| known.insert(v.to_string())).cloned().collect();
        return reorder(merged, &new, &old, field.merge_key, false);
    }
    if field.merge_key.is_empty() {
        let what =
            field.below.schema.map_or("interface", |s| if s.properties.is_some() { "struct" } else { "map" });
        return Err(Error::Other(format!("cannot merge lists without merge key for {what}")));
    }
    let (mut old, new) = special_elements(old, new, field.merge_key)?;
    let server = old.clone();
    let mut places = Places::of(&old, field.merge_key);
    for item in &new {
        key_of(item, field.merge_key)?;
        match places.of_item(item) {
            Some(i) => {
                let taken = old.get_mut(i).map(Value::take).unwrap_or_default();
                let (Value::Object(a), Value::Object(b)) = (taken, item.clone()) else { continue };
                let merged = Value::Object(merge_map(a, b, field.below)?);
                if let Some(slot) = old.get_mut(i) {
                    *slot = merged;
                }
            }
            None => {
                places.add(item, old.len());
                old.push(item.clone());
            }
        }
    }
    reorder(old, &new, &server, field.merge_key, true)
}

fn reorder(
    merged: Vec<Value>,
    patch: &[Value],
    server: &[Value],
    merge_key: &str,
    maps: bool,
) -> Result<Vec<Value>, Error> {
    let (listed, rest) = partition(merged, patch, merge_key)?;
    in_order(listed, rest, patch, server, merge_key, maps)
}

/// Deletes and replaces by the elements with `$patch`; returns the lists without those.
fn special_elements(
    mut old: Vec<Value>,
    new: Vec<Value>,
    merge_key: &str,
) -> Result<(Vec<Value>, Vec<Value>), Error> {
    let mut rest = Vec::with_capacity(new.len());
    let mut gone = Places::of(&[], merge_key);
    let mut replace = false;
    for item in new {
        let Some(directive) = item.get(PATCH) else {
            rest.push(item);
            continue;
        };
        match directive.as_str() {
            Some("delete") => {
                key_of(&item, merge_key)?;
                gone.add(&item, 0);
            }
            Some("replace") => replace = true,
            Some("merge") => {
                return Err(Error::Other("merging lists cannot yet be specified in the patch".into()));
            }
            _ => return Err(Error::BadDirective { directive: directive.clone(), map: item }),
        }
    }
    old.retain(|item| gone.of_item(item).is_none());
    Ok(if replace { (rest, Vec::new()) } else { (old, rest) })
}

/// Where each element of a list first is, by its merge key (without one: by itself). Looking for each element of one list
/// in another takes no longer than reading both.
struct Places<'k> {
    merge_key: &'k str,
    first: HashMap<String, usize>,
}

impl<'k> Places<'k> {
    fn of(list: &[Value], merge_key: &'k str) -> Places<'k> {
        let mut places = Places { merge_key, first: HashMap::with_capacity(list.len()) };
        list.iter().enumerate().for_each(|(i, item)| places.add(item, i));
        places
    }

    /// What identifies an element; `None` for one that lacks the merge key.
    fn identity(&self, item: &Value) -> Option<String> {
        if self.merge_key.is_empty() {
            Some(item.to_string())
        } else {
            Some(item.get(self.merge_key)?.to_string())
        }
    }

    fn add(&mut self, item: &Value, at: usize) {
        if let Some(identity) = self.identity(item) {
            self.first.entry(identity).or_insert(at);
        }
    }

    fn of_item(&self, item: &Value) -> Option<usize> {
        self.first.get(&self.identity(item)?).copied()
    }
}

/// Splits into the items that `by` mentions and the others.
fn partition(list: Vec<Value>, by: &[Value], merge_key: &str) -> Result<(Vec<Value>, Vec<Value>), Error> {
    let (mut listed, mut rest) = (Vec::new(), Vec::new());
    let places = Places::of(by, merge_key);
    for item in list {
        if !merge_key.is_empty() {
            key_of(&item, merge_key)?;
        }
        if places.of_item(&item).is_some() { listed.push(item) } else { rest.push(item) }
    }
    Ok((listed, rest))
}

/// Both lists together: those of the patch in the patch's order, the server's own in the server's order, interleaved
/// as the server had them.
fn in_order(
    patch: Vec<Value>,
    server_only: Vec<Value>,
    patch_order: &[Value],
    server_order: &[Value],
    merge_key: &str,
    maps: bool,
) -> Result<Vec<Value>, Error> {
    let patch = sorted(patch, patch_order, merge_key, maps)?;
    let server_only = sorted(server_only, server_order, merge_key, maps)?;
    let places = Places::of(server_order, if maps { merge_key } else { "" });
    let place = |v: &Value| places.of_item(v);
    let mut out = Vec::with_capacity(patch.len() + server_only.len());
    let mut right = patch.into_iter().peekable();
    for left in server_only {
        let mine = place(&left);
        // The patch's items go first unless both have a place on the server and this one's is before.
        while let Some(next) = right.peek() {
            if matches!((mine, place(next)), (Some(l), Some(r)) if l < r) {
                break;
            }
            out.extend(right.next());
        }
        out.push(left);
    }
    out.extend(right);
    Ok(out)
}

/// Sorts by the place in `order`; items to be deleted come last.
fn sorted(list: Vec<Value>, order: &[Value], merge_key: &str, maps: bool) -> Result<Vec<Value>, Error> {
    let (mut deleted, mut kept) = (Vec::new(), list);
    if maps {
        for item in kept.iter().chain(order) {
            key_of(item, merge_key)?;
        }
        let is_deletion = |v: &Value| v.get(PATCH).is_some_and(|d| d == "delete");
        (deleted, kept) = kept.into_iter().partition(is_deletion);
    }
    // Whatever has no place stays where it is: only those with one are exchanged.
    let known = Places::of(order, if maps { merge_key } else { "" });
    let places: Vec<Option<usize>> = kept.iter().map(|v| known.of_item(v)).collect();
    let mut placed: Vec<(usize, Value)> = Vec::new();
    let mut out: Vec<Option<Value>> = Vec::with_capacity(kept.len());
    for (item, place) in kept.into_iter().zip(places) {
        match place {
            Some(place) => {
                placed.push((place, item));
                out.push(None);
            }
            None => out.push(Some(item)),
        }
    }
    placed.sort_by_key(|(place, _)| *place);
    let mut placed = placed.into_iter().map(|(_, item)| item);
    let mut out: Vec<Value> = out.into_iter().filter_map(|slot| slot.or_else(|| placed.next())).collect();
    out.append(&mut deleted);
    Ok(out)
}
