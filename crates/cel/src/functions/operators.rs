//! Operators and `size`.

use super::{Called, MAX_ELEMENTS, MAX_TEXT, Native, no_overload};
use crate::{
    compare,
    decl::ListKind,
    error::Error,
    value::{List, Value},
};
use std::{cmp::Ordering, sync::Arc};

pub(super) const DECLARATIONS: &str = "\
_?_:_ conditional bool,A,A A
_&&_ logical_and bool,bool bool
_||_ logical_or bool,bool bool
!_ logical_not bool bool
@not_strictly_false not_strictly_false bool bool
_==_ equals A,A bool
_!=_ not_equals A,A bool
_+_ add_bytes bytes,bytes bytes
_+_ add_double double,double double
_+_ add_duration_duration duration,duration duration
_+_ add_duration_timestamp duration,timestamp timestamp
_+_ add_timestamp_duration timestamp,duration timestamp
_+_ add_int64 int,int int
_+_ add_list list(A),list(A) list(A)
_+_ add_string string,string string
_+_ add_uint64 uint,uint uint
_-_ subtract_double double,double double
_-_ subtract_duration_duration duration,duration duration
_-_ subtract_int64 int,int int
_-_ subtract_timestamp_duration timestamp,duration timestamp
_-_ subtract_timestamp_timestamp timestamp,timestamp duration
_-_ subtract_uint64 uint,uint uint
_*_ multiply_double double,double double
_*_ multiply_int64 int,int int
_*_ multiply_uint64 uint,uint uint
_/_ divide_double double,double double
_/_ divide_int64 int,int int
_/_ divide_uint64 uint,uint uint
_%_ modulo_int64 int,int int
_%_ modulo_uint64 uint,uint uint
-_ negate_double double double
-_ negate_int64 int int
_<_ less_bool bool,bool bool
_<_ less_int64 int,int bool
_<_ less_int64_double int,double bool
_<_ less_int64_uint64 int,uint bool
_<_ less_uint64 uint,uint bool
_<_ less_uint64_double uint,double bool
_<_ less_uint64_int64 uint,int bool
_<_ less_double double,double bool
_<_ less_double_int64 double,int bool
_<_ less_double_uint64 double,uint bool
_<_ less_string string,string bool
_<_ less_bytes bytes,bytes bool
_<_ less_timestamp timestamp,timestamp bool
_<_ less_duration duration,duration bool
_<=_ less_equals_bool bool,bool bool
_<=_ less_equals_int64 int,int bool
_<=_ less_equals_int64_double int,double bool
_<=_ less_equals_int64_uint64 int,uint bool
_<=_ less_equals_uint64 uint,uint bool
_<=_ less_equals_uint64_double uint,double bool
_<=_ less_equals_uint64_int64 uint,int bool
_<=_ less_equals_double double,double bool
_<=_ less_equals_double_int64 double,int bool
_<=_ less_equals_double_uint64 double,uint bool
_<=_ less_equals_string string,string bool
_<=_ less_equals_bytes bytes,bytes bool
_<=_ less_equals_timestamp timestamp,timestamp bool
_<=_ less_equals_duration duration,duration bool
_>_ greater_bool bool,bool bool
_>_ greater_int64 int,int bool
_>_ greater_int64_double int,double bool
_>_ greater_int64_uint64 int,uint bool
_>_ greater_uint64 uint,uint bool
_>_ greater_uint64_double uint,double bool
_>_ greater_uint64_int64 uint,int bool
_>_ greater_double double,double bool
_>_ greater_double_int64 double,int bool
_>_ greater_double_uint64 double,uint bool
_>_ greater_string string,string bool
_>_ greater_bytes bytes,bytes bool
_>_ greater_timestamp timestamp,timestamp bool
_>_ greater_duration duration,duration bool
_>=_ greater_equals_bool bool,bool bool
_>=_ greater_equals_int64 int,int bool
_>=_ greater_equals_int64_double int,double bool
_>=_ greater_equals_int64_uint64 int,uint bool
_>=_ greater_equals_uint64 uint,uint bool
_>=_ greater_equals_uint64_double uint,double bool
_>=_ greater_equals_uint64_int64 uint,int bool
_>=_ greater_equals_double double,double bool
_>=_ greater_equals_double_int64 double,int bool
_>=_ greater_equals_double_uint64 double,uint bool
_>=_ greater_equals_string string,string bool
_>=_ greater_equals_bytes bytes,bytes bool
_>=_ greater_equals_timestamp timestamp,timestamp bool
_>=_ greater_equals_duration duration,duration bool
_[_] index_list list(A),int A
_[_] index_map map(A,B),A B
_[_] optional_list_index_int optional(list(V)),int optional(V)
_[_] optional_map_index_value optional(map(K,V)),K optional(V)
@in in_list A,list(A) bool
@in in_map A,map(A,B) bool
size size_bytes bytes int
size bytes_size .bytes int
size size_list list(A) int
size list_size .list(A) int
size size_map map(A,B) int
size map_size .map(A,B) int
size size_string string int
size string_size .string int
cel.@mapInsert @mapInsert_map_key_value map(K,V),K,V map(K,V)
cel.@mapInsert @mapInsert_map_map map(K,V),map(K,V) map(K,V)
";

pub(super) fn native(name: &str) -> Option<Native> {
    Some(match name {
        "_+_" => add,
        "_-_" => subtract,
        "_*_" => multiply,
        "_/_" => divide,
        "_%_" => modulo,
        "-_" => negate,
        "_<_" => |args| ordered(args, Ordering::is_lt),
        "_<=_" => |args| ordered(args, Ordering::is_le),
        "_>_" => |args| ordered(args, Ordering::is_gt),
        "_>=_" => |args| ordered(args, Ordering::is_ge),
        "@in" => contained,
        "size" => size,
        _ => return None,
    })
}

fn overflow() -> Error {
    Error::eval("integer overflow")
}

fn unsigned_overflow() -> Error {
    Error::eval("unsigned integer overflow")
}

fn duration_overflow() -> Error {
    Error::eval("duration overflow")
}

fn moved<'a>(t: jiff::Timestamp, nanoseconds: Option<i64>) -> Called<'a> {
    nanoseconds
        .and_then(|n| t.checked_add(jiff::SignedDuration::from_nanos(n)).ok())
        .filter(|t| super::time::in_range(*t))
        .map(Value::Timestamp)
        .ok_or_else(|| Error::eval("timestamp overflow"))
}

pub(super) fn add<'a>(args: &[Value<'a>]) -> Called<'a> {
    let [a, b] = args else { return no_overload() };
    Ok(match (a, b) {
        (Value::Int(a), Value::Int(b)) => Value::Int(a.checked_add(*b).ok_or_else(overflow)?),
        (Value::Uint(a), Value::Uint(b)) => Value::Uint(a.checked_add(*b).ok_or_else(unsigned_overflow)?),
        (Value::Double(a), Value::Double(b)) => Value::Double(a + b),
        (Value::String(a), Value::String(b)) => {
            if a.len() + b.len() > MAX_TEXT {
                return Err(Error::Cost);
            }
            Value::text([&**a, &**b].concat())
        }
        (Value::Bytes(a), Value::Bytes(b)) => {
            if a.len() + b.len() > MAX_TEXT {
                return Err(Error::Cost);
            }
            Value::Bytes([&**a, &**b].concat().into())
        }
        (Value::Duration(a), Value::Duration(b)) => {
            Value::Duration(a.checked_add(*b).ok_or_else(duration_overflow)?)
        }
        (Value::Timestamp(t), Value::Duration(d)) | (Value::Duration(d), Value::Timestamp(t)) => {
            return moved(*t, Some(*d));
        }
        (Value::List(a), Value::List(b)) => return joined(a, b),
        _ => return no_overload(),
    })
}

/// Lists that are sets are united; those that are maps are merged, the right one winning.
fn joined<'a>(a: &List<'a>, b: &List<'a>) -> Called<'a> {
    if a.len() + b.len() > MAX_ELEMENTS {
        return Err(Error::Cost);
    }
    let kind = a.kind();
    let mut list = a.iter().collect::<Result<Vec<_>, _>>()?;
    match kind {
        Some(ListKind::Set) => {
            let mut known: std::collections::BTreeSet<_> =
                list.iter().filter_map(crate::value::Key::of).collect();
            for v in b.iter() {
                let v = v?;
                if crate::value::Key::of(&v).is_none_or(|k| known.insert(k)) {
                    list.push(v);
                }
            }
        }
        Some(ListKind::Map(keys)) => {
            let mut places: std::collections::BTreeMap<_, _> =
                list.iter().enumerate().map(|(i, v)| (compare::map_key(v, keys), i)).collect();
            for v in b.iter() {
                let v = v?;
                let key = compare::map_key(&v, keys);
                match places.get(&key) {
                    Some(place) => list[*place] = v,
                    None => {
                        places.insert(key, list.len());
                        list.push(v);
                    }
                }
            }
        }
        _ => {
            for v in b.iter() {
                list.push(v?);
            }
        }
    }
    Ok(Value::List(List::Constructed(Arc::new(list), kind)))
}

fn subtract<'a>(args: &[Value<'a>]) -> Called<'a> {
    let [a, b] = args else { return no_overload() };
    Ok(match (a, b) {
        (Value::Int(a), Value::Int(b)) => Value::Int(a.checked_sub(*b).ok_or_else(overflow)?),
        (Value::Uint(a), Value::Uint(b)) => Value::Uint(a.checked_sub(*b).ok_or_else(unsigned_overflow)?),
        (Value::Double(a), Value::Double(b)) => Value::Double(a - b),
        (Value::Duration(a), Value::Duration(b)) => {
            Value::Duration(a.checked_sub(*b).ok_or_else(duration_overflow)?)
        }
        (Value::Timestamp(t), Value::Duration(d)) => return moved(*t, d.checked_neg()),
        (Value::Timestamp(a), Value::Timestamp(b)) => {
            let span = a.duration_since(*b).as_nanos();
            Value::Duration(i64::try_from(span).map_err(|_| duration_overflow())?)
        }
        _ => return no_overload(),
    })
}

fn multiply<'a>(args: &[Value<'a>]) -> Called<'a> {
    Ok(match args {
        [Value::Int(a), Value::Int(b)] => Value::Int(a.checked_mul(*b).ok_or_else(overflow)?),
        [Value::Uint(a), Value::Uint(b)] => Value::Uint(a.checked_mul(*b).ok_or_else(unsigned_overflow)?),
        [Value::Double(a), Value::Double(b)] => Value::Double(a * b),
        _ => return no_overload(),
    })
}

fn divide<'a>(args: &[Value<'a>]) -> Called<'a> {
    let zero = || Err(Error::eval("division by zero"));
    Ok(match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => return zero(),
        [Value::Int(a), Value::Int(b)] => Value::Int(a.checked_div(*b).ok_or_else(overflow)?),
        [Value::Uint(a), Value::Uint(b)] => Value::Uint(a / b),
        [Value::Double(a), Value::Double(b)] => Value::Double(a / b),
        _ => return no_overload(),
    })
}

fn modulo<'a>(args: &[Value<'a>]) -> Called<'a> {
    let zero = || Err(Error::eval("modulus by zero"));
    Ok(match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => return zero(),
        [Value::Int(a), Value::Int(b)] => Value::Int(a.checked_rem(*b).ok_or_else(overflow)?),
        [Value::Uint(a), Value::Uint(b)] => Value::Uint(a % b),
        _ => return no_overload(),
    })
}

fn negate<'a>(args: &[Value<'a>]) -> Called<'a> {
    Ok(match args {
        [Value::Int(a)] => Value::Int(a.checked_neg().ok_or_else(overflow)?),
        [Value::Double(a)] => Value::Double(-a),
        _ => return no_overload(),
    })
}

fn ordered<'a>(args: &[Value<'a>], holds: fn(Ordering) -> bool) -> Called<'a> {
    let [a, b] = args else { return no_overload() };
    Ok(Value::Bool(holds(compare::order(a, b)?)))
}

fn contained<'a>(args: &[Value<'a>]) -> Called<'a> {
    match args {
        [value, Value::List(list)] => {
            for element in list.iter() {
                if compare::equal(value, &element?)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        [key, Value::Map(map)] => map.contains(key).map(Value::Bool),
        _ => no_overload(),
    }
}

fn size<'a>(args: &[Value<'a>]) -> Called<'a> {
    match args {
        [v @ (Value::String(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_))] => {
            Ok(Value::Int(i64::try_from(v.size()).unwrap_or(i64::MAX)))
        }
        _ => no_overload(),
    }
}
