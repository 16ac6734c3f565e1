//! Equality and order. Numbers compare by value whatever their types; lists that schemas declare as sets or maps compare
//! without regard to order, as `x-kubernetes-list-type` says.

use crate::{
    constructed::Struct,
    decl::ListKind,
    error::Error,
    value::{Ext, Key, List, Map, Value},
};
use serde_json::Value as Json;
use std::{cmp::Ordering, collections::BTreeMap};

/// Whether two values are equal. Values of different types are not, numbers aside.
pub(crate) fn equal(a: &Value<'_>, b: &Value<'_>) -> Result<bool, Error> {
    Ok(match (a, b) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::String(a), Value::String(b)) => a == b,
        (Value::Bytes(a), Value::Bytes(b)) => a == b,
        (Value::Timestamp(a), Value::Timestamp(b)) => a == b,
        (Value::Duration(a), Value::Duration(b)) => a == b,
        (Value::Type(a), Value::Type(b)) => a == b,
        (Value::List(a), Value::List(b)) => return lists(a, b),
        (Value::Map(a), Value::Map(b)) => return maps(a, b),
        (Value::Optional(None), Value::Optional(None)) => true,
        (Value::Optional(Some(a)), Value::Optional(Some(b))) => return equal(a, b),
        (Value::Struct(a), Value::Struct(b)) => return structs(a, b),
        (Value::Ext(a), Value::Ext(b)) => exts(a, b),
        _ => numbers(a, b) == Some(Ordering::Equal),
    })
}

fn structs(a: &Struct<'_>, b: &Struct<'_>) -> Result<bool, Error> {
    if a.name != b.name || a.fields.len() != b.fields.len() {
        return Ok(false);
    }
    for (name, value) in &a.fields {
        match b.get(name) {
            Some(other) if equal(value, other)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn exts(a: &Ext, b: &Ext) -> bool {
    match (a, b) {
        (Ext::Quantity(a), Ext::Quantity(b)) => a.cmp(b) == Ordering::Equal,
        (Ext::Url(a), Ext::Url(b)) => a == b,
        (Ext::Ip(a), Ext::Ip(b)) => a == b,
        (Ext::Cidr(a), Ext::Cidr(b)) => a == b,
        (Ext::Format(a), Ext::Format(b)) => a.name == b.name,
        (Ext::Semver(a), Ext::Semver(b)) => a.cmp(b) == Ordering::Equal,
        (Ext::Authorizer(a), Ext::Authorizer(b))
        | (Ext::PathCheck(a), Ext::PathCheck(b))
        | (Ext::GroupCheck(a), Ext::GroupCheck(b))
        | (Ext::ResourceCheck(a), Ext::ResourceCheck(b)) => a.same(b),
        (Ext::Decision(a), Ext::Decision(b)) => a == b,
        _ => false,
    }
}

/// The order of two numbers; none if one is no number or not a number.
pub(crate) fn numbers(a: &Value<'_>, b: &Value<'_>) -> Option<Ordering> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::Uint(a), Value::Uint(b)) => Some(a.cmp(b)),
        (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (Value::Int(a), Value::Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Value::Uint(a), Value::Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Value::Double(a), Value::Int(b)) => double_int(*a, i128::from(*b)),
        (Value::Double(a), Value::Uint(b)) => double_int(*a, i128::from(*b)),
        (Value::Int(a), Value::Double(b)) => double_int(*b, i128::from(*a)).map(Ordering::reverse),
        (Value::Uint(a), Value::Double(b)) => double_int(*b, i128::from(*a)).map(Ordering::reverse),
        _ => None,
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "in range; the fraction decides ties"
)]
fn double_int(d: f64, i: i128) -> Option<Ordering> {
    if d.is_nan() {
        return None;
    }
    if d.abs() >= 1e20 {
        return Some(if d > 0.0 { Ordering::Greater } else { Ordering::Less });
    }
    let whole = d.trunc() as i128;
    Some(whole.cmp(&i).then(d.fract().partial_cmp(&0.0)?))
}

/// The order of two values for `<` and its like, and for sorting.
pub(crate) fn order(a: &Value<'_>, b: &Value<'_>) -> Result<Ordering, Error> {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => Ok(a.cmp(b)),
        (Value::String(a), Value::String(b)) => Ok(a.cmp(b)),
        (Value::Bytes(a), Value::Bytes(b)) => Ok(a.cmp(b)),
        (Value::Timestamp(a), Value::Timestamp(b)) => Ok(a.cmp(b)),
        (Value::Duration(a), Value::Duration(b)) => Ok(a.cmp(b)),
        _ => {
            let nan = |v: &Value<'_>| matches!(v, Value::Double(d) if d.is_nan());
            let number = |v: &Value<'_>| matches!(v, Value::Int(_) | Value::Uint(_) | Value::Double(_));
            match numbers(a, b) {
                Some(order) => Ok(order),
                None if number(a) && number(b) && (nan(a) || nan(b)) => {
                    Err(Error::eval("NaN values cannot be ordered"))
                }
                None => Err(Error::Overload),
            }
        }
    }
}

fn lists(a: &List<'_>, b: &List<'_>) -> Result<bool, Error> {
    if a.len() != b.len() {
        return Ok(false);
    }
    match a.kind().or(b.kind()) {
        Some(ListKind::Set) => sets(a, b),
        Some(ListKind::Map(keys)) => keyed(a, b, keys),
        _ => {
            for (a, b) in a.iter().zip(b.iter()) {
                if !equal(&a?, &b?)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
    }
}

/// Elements of sets are scalars, without repetition.
fn sets(a: &List<'_>, b: &List<'_>) -> Result<bool, Error> {
    let mut known = std::collections::BTreeSet::new();
    for v in a.iter() {
        known.extend(Key::of(&v?));
    }
    for v in b.iter() {
        if !Key::of(&v?).is_some_and(|k| known.contains(&k)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn keyed(a: &List<'_>, b: &List<'_>, keys: &[String]) -> Result<bool, Error> {
    let mut known = BTreeMap::new();
    for v in a.iter() {
        let v = v?;
        known.insert(map_key(&v, keys), v);
    }
    for v in b.iter() {
        let v = v?;
        match known.get(&map_key(&v, keys)) {
            Some(other) if equal(other, &v)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// What tells an element of a map-like list from others: the JSON of its key properties.
pub(crate) fn map_key(element: &Value<'_>, keys: &[String]) -> String {
    let Value::Map(Map::Object { object, .. } | Map::Json { object, .. }) = element else {
        return String::new();
    };
    let list: Vec<&Json> = keys.iter().map(|k| object.get(k).unwrap_or(&Json::Null)).collect();
    serde_json::to_string(&list).unwrap_or_default()
}

fn maps(a: &Map<'_>, b: &Map<'_>) -> Result<bool, Error> {
    if a.len() != b.len() {
        return Ok(false);
    }
    if let (Map::Object { object: left, fields }, Map::Object { object: right, .. }) = (a, b) {
        let hidden = |name: &str| !fields.values().any(|f| f.name == name);
        for (name, json) in left.iter().filter(|(name, _)| hidden(name)) {
            if right.get(name).is_some_and(|other| !kaji_meta::equality::semantic_equal(json, other)) {
                return Ok(false);
            }
        }
    }
    for key in a.keys() {
        match (a.get(&key)?, b.get(&key)?) {
            (None, None) => {}
            (Some(a), Some(b)) if equal(&a, &b)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}
