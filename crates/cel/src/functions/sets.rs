//! cel-go's `ext/sets`: lists seen as sets.

use super::{Called, Native, no_overload};
use crate::{
    compare,
    error::Error,
    value::{Key, List, Value},
};
use std::collections::BTreeSet;

pub(super) const DECLARATIONS: &str = "\
sets.contains list_sets_contains_list list(T),list(T) bool
sets.equivalent list_sets_equivalent_list list(T),list(T) bool
sets.intersects list_sets_intersects_list list(T),list(T) bool
";

pub(super) fn native(name: &str) -> Option<Native> {
    Some(match name {
        "sets.contains" => |args| test(args, contains),
        "sets.equivalent" => |args| test(args, |a, b| Ok(contains(a, b)? && contains(b, a)?)),
        "sets.intersects" => |args| test(args, intersects),
        _ => return None,
    })
}

fn test<'a>(
    args: &[Value<'a>],
    holds: for<'b> fn(&List<'b>, &List<'b>) -> Result<bool, Error>,
) -> Called<'a> {
    match args {
        [Value::List(a), Value::List(b)] => holds(a, b).map(Value::Bool),
        _ => no_overload(),
    }
}

/// Elements by key, and those that have none.
fn split<'a>(list: &List<'a>) -> Result<(BTreeSet<Key<'a>>, Vec<Value<'a>>), Error> {
    let (mut keys, mut rest) = (BTreeSet::new(), vec![]);
    for element in list.iter() {
        let element = element?;
        match Key::of(&element) {
            Some(key) => drop(keys.insert(key)),
            None => rest.push(element),
        }
    }
    Ok((keys, rest))
}

fn has<'a>(keys: &BTreeSet<Key<'a>>, rest: &[Value<'a>], element: &Value<'a>) -> Result<bool, Error> {
    if let Some(key) = Key::of(element) {
        return Ok(keys.contains(&key));
    }
    for other in rest {
        if compare::equal(other, element)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Every element of `b` is in `a`.
fn contains(a: &List<'_>, b: &List<'_>) -> Result<bool, Error> {
    let (keys, rest) = split(a)?;
    for element in b.iter() {
        if !has(&keys, &rest, &element?)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn intersects(a: &List<'_>, b: &List<'_>) -> Result<bool, Error> {
    let (keys, rest) = split(a)?;
    for element in b.iter() {
        if has(&keys, &rest, &element?)? {
            return Ok(true);
        }
    }
    Ok(false)
}
