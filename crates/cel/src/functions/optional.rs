//! Optional values.

use super::{Called, Native, no_overload};
use crate::{error::Error, value::Value};

pub(super) const DECLARATIONS: &str = "\
optional.of optional_of V optional(V)
optional.ofNonZeroValue optional_ofNonZeroValue V optional(V)
optional.none optional_none () optional(V)
value optional_value .optional(V) V
hasValue optional_hasValue .optional(V) bool
or optional_or_optional .optional(V),optional(V) optional(V)
orValue optional_orValue_value .optional(V),V V
_?._ select_optional_field dyn,string optional(V)
_[?_] list_optindex_optional_int list(V),int optional(V)
_[?_] optional_list_optindex_optional_int optional(list(V)),int optional(V)
_[?_] map_optindex_optional_value map(K,V),K optional(V)
_[?_] optional_map_optindex_optional_value optional(map(K,V)),K optional(V)
last list_last .list(V) optional(V)
first list_first .list(V) optional(V)
optional.unwrap optional_unwrap list(optional(V)) list(V)
unwrapOpt optional_unwrapOpt .list(optional(V)) list(V)
";

pub(super) fn native(name: &str) -> Option<Native> {
    Some(match name {
        "optional.of" => |args| match args {
            [v] => Ok(Value::some(v.clone())),
            _ => no_overload(),
        },
        "optional.ofNonZeroValue" => |args| match args {
            [v] if is_zero(v) => Ok(Value::Optional(None)),
            [v] => Ok(Value::some(v.clone())),
            _ => no_overload(),
        },
        "optional.none" => |_| Ok(Value::Optional(None)),
        "value" => |args| match args {
            [Value::Optional(Some(v))] => Ok((**v).clone()),
            [Value::Optional(None)] => Err(Error::eval("optional.none() dereference")),
            _ => no_overload(),
        },
        "hasValue" => |args| match args {
            [Value::Optional(v)] => Ok(Value::Bool(v.is_some())),
            _ => no_overload(),
        },
        "first" => |args| at(args, |_| 0),
        "last" => |args| at(args, |len| len.saturating_sub(1)),
        "optional.unwrap" | "unwrapOpt" => unwrap,
        _ => return None,
    })
}

fn is_zero(v: &Value<'_>) -> bool {
    match v {
        Value::Null | Value::Optional(None) => true,
        Value::Bool(b) => !b,
        Value::Int(i) | Value::Duration(i) => *i == 0,
        Value::Uint(u) => *u == 0,
        Value::Double(d) => *d == 0.0,
        Value::String(s) => s.is_empty(),
        Value::Bytes(b) => b.is_empty(),
        Value::List(l) => l.is_empty(),
        Value::Map(m) => m.is_empty(),
        // The year 1, as Go counts.
        Value::Timestamp(t) => t.as_nanosecond() == -62_135_596_800_000_000_000,
        _ => false,
    }
}

fn at<'a>(args: &[Value<'a>], index: fn(usize) -> usize) -> Called<'a> {
    let [Value::List(list)] = args else { return no_overload() };
    Ok(Value::Optional(list.get(index(list.len())).transpose()?.map(Into::into)))
}

fn unwrap<'a>(args: &[Value<'a>]) -> Called<'a> {
    let [Value::List(list)] = args else { return no_overload() };
    let mut out = vec![];
    for element in list.iter() {
        match element? {
            Value::Optional(v) => out.extend(v.map(|v| (*v).clone())),
            other => {
                let message = format!("optional.unwrap(), expected optional_type, got {}", other.ty().name());
                return Err(Error::eval(message));
            }
        }
    }
    Ok(Value::list(out))
}
