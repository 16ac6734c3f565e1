//! Lists: Kubernetes' own functions (`isSorted`, `sum`, ...) and cel-go's `ext/lists`, version 3.

use super::{Called, MAX_ELEMENTS, Native, no_overload, operators};
use crate::{
    compare,
    error::Error,
    value::{Key, List, Value},
};
use std::{cmp::Ordering, collections::BTreeSet};

pub(super) const DECLARATIONS: &str = "\
indexOf list_a_index_of_int .list(A),A int
lastIndexOf list_a_last_index_of_int .list(A),A int
isSorted list_int_is_sorted_bool .list(int) bool
isSorted list_uint_is_sorted_bool .list(uint) bool
isSorted list_double_is_sorted_bool .list(double) bool
isSorted list_bool_is_sorted_bool .list(bool) bool
isSorted list_duration_is_sorted_bool .list(duration) bool
isSorted list_timestamp_is_sorted_bool .list(timestamp) bool
isSorted list_string_is_sorted_bool .list(string) bool
isSorted list_bytes_is_sorted_bool .list(bytes) bool
sum list_int_sum_int .list(int) int
sum list_uint_sum_uint .list(uint) uint
sum list_double_sum_double .list(double) double
sum list_duration_sum_duration .list(duration) duration
max list_int_max_int .list(int) int
max list_uint_max_uint .list(uint) uint
max list_double_max_double .list(double) double
max list_bool_max_bool .list(bool) bool
max list_duration_max_duration .list(duration) duration
max list_timestamp_max_timestamp .list(timestamp) timestamp
max list_string_max_string .list(string) string
max list_bytes_max_bytes .list(bytes) bytes
min list_int_min_int .list(int) int
min list_uint_min_uint .list(uint) uint
min list_double_min_double .list(double) double
min list_bool_min_bool .list(bool) bool
min list_duration_min_duration .list(duration) duration
min list_timestamp_min_timestamp .list(timestamp) timestamp
min list_string_min_string .list(string) string
min list_bytes_min_bytes .list(bytes) bytes
slice list_slice .list(T),int,int list(T)
flatten list_flatten .list(list(T)) list(T)
flatten list_flatten_int .list(dyn),int list(dyn)
sort list_int_sort .list(int) list(int)
sort list_uint_sort .list(uint) list(uint)
sort list_double_sort .list(double) list(double)
sort list_bool_sort .list(bool) list(bool)
sort list_google.protobuf.Duration_sort .list(duration) list(duration)
sort list_google.protobuf.Timestamp_sort .list(timestamp) list(timestamp)
sort list_string_sort .list(string) list(string)
sort list_bytes_sort .list(bytes) list(bytes)
@sortByAssociatedKeys list_int_sortByAssociatedKeys .list(T),list(int) list(T)
@sortByAssociatedKeys list_uint_sortByAssociatedKeys .list(T),list(uint) list(T)
@sortByAssociatedKeys list_double_sortByAssociatedKeys .list(T),list(double) list(T)
@sortByAssociatedKeys list_bool_sortByAssociatedKeys .list(T),list(bool) list(T)
@sortByAssociatedKeys list_google.protobuf.Duration_sortByAssociatedKeys .list(T),list(duration) list(T)
@sortByAssociatedKeys list_google.protobuf.Timestamp_sortByAssociatedKeys .list(T),list(timestamp) list(T)
@sortByAssociatedKeys list_string_sortByAssociatedKeys .list(T),list(string) list(T)
@sortByAssociatedKeys list_bytes_sortByAssociatedKeys .list(T),list(bytes) list(T)
lists.range lists_range int list(int)
reverse list_reverse .list(T) list(T)
distinct list_distinct .list(T) list(T)
";

pub(super) fn native(name: &str) -> Option<Native> {
    Some(match name {
        "isSorted" => is_sorted,
        "sum" => |args| sum(args, Value::Int(0)),
        "max" => |args| extreme(args, "max", Ordering::Greater),
        "min" => |args| extreme(args, "min", Ordering::Less),
        "slice" => slice,
        "flatten" => flatten,
        "sort" => |args| match args {
            [Value::List(list)] => sorted(list, list),
            _ => no_overload(),
        },
        "@sortByAssociatedKeys" => |args| match args {
            [Value::List(list), Value::List(keys)] => sorted(list, keys),
            _ => no_overload(),
        },
        "lists.range" => range,
        "reverse" => reverse,
        "distinct" => distinct,
        _ => return None,
    })
}

fn is_sorted<'a>(args: &[Value<'a>]) -> Called<'a> {
    let [Value::List(list)] = args else { return no_overload() };
    let mut before: Option<Value<'a>> = None;
    for element in list.iter() {
        let element = element?;
        if let Some(before) = &before
            && compare::order(before, &element)? == Ordering::Greater
        {
            return Ok(Value::Bool(false));
        }
        before = Some(element);
    }
    Ok(Value::Bool(true))
}

/// `sum` of an overload: an empty list gives the zero of its type.
pub(crate) fn sum_of(overload: &str) -> Native {
    match overload {
        "list_uint_sum_uint" => |args| sum(args, Value::Uint(0)),
        "list_double_sum_double" => |args| sum(args, Value::Double(0.0)),
        "list_duration_sum_duration" => |args| sum(args, Value::Duration(0)),
        _ => |args| sum(args, Value::Int(0)),
    }
}

fn sum<'a>(args: &[Value<'a>], zero: Value<'a>) -> Called<'a> {
    let [Value::List(list)] = args else { return no_overload() };
    let mut total: Option<Value<'a>> = None;
    for element in list.iter() {
        let element = element?;
        total = Some(match total {
            None => element,
            Some(total) => operators::add(&[total, element])?,
        });
    }
    Ok(total.unwrap_or(zero))
}

fn extreme<'a>(args: &[Value<'a>], name: &str, prefers: Ordering) -> Called<'a> {
    let [Value::List(list)] = args else { return no_overload() };
    let mut best: Option<Value<'a>> = None;
    for element in list.iter() {
        let element = element?;
        best = Some(match best {
            Some(best) if compare::order(&element, &best)? != prefers => best,
            _ => element,
        });
    }
    best.ok_or_else(|| Error::eval(format!("{name} called on empty list")))
}

fn place<'a>(index: Option<usize>) -> Called<'a> {
    Ok(Value::Int(index.and_then(|i| i64::try_from(i).ok()).unwrap_or(-1)))
}

pub(super) fn index_of<'a>(args: &[Value<'a>]) -> Called<'a> {
    let [Value::List(list), sought] = args else { return no_overload() };
    for (i, element) in list.iter().enumerate() {
        if compare::equal(&element?, sought)? {
            return place(Some(i));
        }
    }
    place(None)
}

pub(super) fn last_index_of<'a>(args: &[Value<'a>]) -> Called<'a> {
    let [Value::List(list), sought] = args else { return no_overload() };
    for i in (0..list.len()).rev() {
        if let Some(element) = list.get(i)
            && compare::equal(&element?, sought)?
        {
            return place(Some(i));
        }
    }
    place(None)
}

fn slice<'a>(args: &[Value<'a>]) -> Called<'a> {
    let [Value::List(list), Value::Int(start), Value::Int(end)] = args else { return no_overload() };
    let refuse = |why: String| Err(Error::eval(format!("cannot slice({start}, {end}), {why}")));
    let (Ok(from), Ok(to)) = (usize::try_from(*start), usize::try_from(*end)) else {
        return refuse("negative indexes not supported".into());
    };
    if from > to {
        return refuse("start index must be less than or equal to end index".into());
    }
    if to > list.len() {
        return refuse(format!("list is length {}", list.len()));
    }
    Ok(Value::list((from..to).filter_map(|i| list.get(i)).collect::<Result<_, _>>()?))
}

fn flatten<'a>(args: &[Value<'a>]) -> Called<'a> {
    let (list, depth) = match args {
        [Value::List(list)] => (list, 1),
        [Value::List(list), Value::Int(depth)] => (list, *depth),
        _ => return no_overload(),
    };
    if depth < 0 {
        return Err(Error::eval("level must be non-negative"));
    }
    let mut out = vec![];
    flatten_into(&mut out, list, depth)?;
    Ok(Value::list(out))
}

/// Values nest no deeper than data or expressions do.
fn flatten_into<'a>(out: &mut Vec<Value<'a>>, list: &List<'a>, depth: i64) -> Result<(), Error> {
    for element in list.iter() {
        match element? {
            Value::List(inner) if depth > 0 => flatten_into(out, &inner, depth - 1)?,
            other => out.push(other),
        }
        if out.len() > MAX_ELEMENTS {
            return Err(Error::Cost);
        }
    }
    Ok(())
}

fn sorted<'a>(list: &List<'a>, keys: &List<'a>) -> Called<'a> {
    if list.len() != keys.len() {
        let message = format!(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got {} and {} elements respectively",
            list.len(),
            keys.len()
        );
        return Err(Error::eval(message));
    }
    let keys = keys.iter().collect::<Result<Vec<_>, _>>()?;
    if let Some(first) = keys.first() {
        for key in &keys {
            if key.ty() != first.ty() {
                return Err(Error::eval("list elements must have the same type"));
            }
            compare::order(first, key)?;
        }
    }
    let mut pairs = list.iter().zip(keys).map(|(e, k)| e.map(|e| (k, e))).collect::<Result<Vec<_>, _>>()?;
    pairs.sort_by(|a, b| compare::order(&a.0, &b.0).unwrap_or(Ordering::Equal));
    Ok(Value::list(pairs.into_iter().map(|(_, e)| e).collect()))
}

fn range<'a>(args: &[Value<'a>]) -> Called<'a> {
    let [Value::Int(n)] = args else { return no_overload() };
    if usize::try_from(*n).is_ok_and(|n| n > MAX_ELEMENTS) {
        return Err(Error::Cost);
    }
    Ok(Value::list((0..*n).map(Value::Int).collect()))
}

fn reverse<'a>(args: &[Value<'a>]) -> Called<'a> {
    match args {
        [Value::List(list)] => {
            Ok(Value::list((0..list.len()).rev().filter_map(|i| list.get(i)).collect::<Result<_, _>>()?))
        }
        _ => no_overload(),
    }
}

fn distinct<'a>(args: &[Value<'a>]) -> Called<'a> {
    let [Value::List(list)] = args else { return no_overload() };
    let (mut known, mut out) = (BTreeSet::new(), Vec::<Value<'a>>::new());
    'elements: for element in list.iter() {
        let element = element?;
        match Key::of(&element) {
            Some(key) => {
                if !known.insert(key) {
                    continue;
                }
            }
            None => {
                for other in &out {
                    if compare::equal(other, &element)? {
                        continue 'elements;
                    }
                }
            }
        }
        out.push(element);
    }
    Ok(Value::list(out))
}
