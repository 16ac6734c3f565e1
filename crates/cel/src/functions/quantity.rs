//! Resource quantities.

use super::{Called, Native, no_overload};
use crate::{
    error::Error,
    value::{Ext, Value},
};
use kaji_meta::{Quantity, quantity::Format};
use std::cmp::Ordering;

pub(super) const DECLARATIONS: &str = "\
quantity string_to_quantity string quantity
isQuantity is_quantity_string string bool
sign quantity_sign .quantity int
isGreaterThan quantity_is_greater_than .quantity,quantity bool
isGreaterThan semver_is_greater_than .semver,semver bool
isLessThan quantity_is_less_than .quantity,quantity bool
isLessThan semver_is_less_than .semver,semver bool
compareTo quantity_compare_to .quantity,quantity int
compareTo semver_compare_to .semver,semver int
asApproximateFloat quantity_get_float .quantity double
asInteger quantity_get_int .quantity int
isInteger quantity_is_integer .quantity bool
add quantity_add .quantity,quantity quantity
add quantity_add_int .quantity,int quantity
sub quantity_sub .quantity,quantity quantity
sub quantity_sub_int .quantity,int quantity
";

pub(super) fn native(name: &str) -> Option<Native> {
    Some(match name {
        "quantity" => |args| match args {
            [Value::String(s)] => match Quantity::parse(s) {
                Ok(q) => Ok(constructed(q)),
                Err(e) => Err(Error::eval(e.to_string())),
            },
            _ => no_overload(),
        },
        "isQuantity" => |args| match args {
            [Value::String(s)] => Ok(Value::Bool(Quantity::parse(s).is_ok())),
            _ => no_overload(),
        },
        "sign" => |args| one(args, |q| Ok(Value::Int(q.sign().into()))),
        "isGreaterThan" => |args| ordered(args, |o| Value::Bool(o.is_gt())),
        "isLessThan" => |args| ordered(args, |o| Value::Bool(o.is_lt())),
        "compareTo" => |args| ordered(args, |o| Value::Int(o as i64)),
        "asApproximateFloat" => |args| one(args, |q| Ok(Value::Double(q.as_f64()))),
        "asInteger" => |args| {
            one(args, |q| {
                q.as_i64().map(Value::Int).ok_or_else(|| Error::eval("cannot convert value to integer"))
            })
        },
        "isInteger" => |args| one(args, |q| Ok(Value::Bool(q.as_i64().is_some()))),
        "add" => |args| two(args, Quantity::add),
        "sub" => |args| two(args, Quantity::sub),
        _ => return None,
    })
}

fn constructed<'a>(q: Quantity) -> Value<'a> {
    Value::Ext(Ext::Quantity(q.into()))
}

fn one<'a>(args: &[Value<'a>], of: fn(&Quantity) -> Result<Value<'a>, Error>) -> Called<'a> {
    match args {
        [Value::Ext(Ext::Quantity(q))] => of(q),
        _ => no_overload(),
    }
}

fn two<'a>(args: &[Value<'a>], of: fn(&Quantity, &Quantity) -> Quantity) -> Called<'a> {
    match args {
        [Value::Ext(Ext::Quantity(a)), Value::Ext(Ext::Quantity(b))] => Ok(constructed(of(a, b))),
        [Value::Ext(Ext::Quantity(a)), Value::Int(b)] => {
            Ok(constructed(of(a, &Quantity::new(*b, Format::DecimalSi))))
        }
        _ => no_overload(),
    }
}

/// Quantities and versions share these functions.
fn ordered<'a>(args: &[Value<'a>], of: fn(Ordering) -> Value<'a>) -> Called<'a> {
    match args {
        [Value::Ext(Ext::Quantity(a)), Value::Ext(Ext::Quantity(b))] => Ok(of((**a).cmp(&**b))),
        [Value::Ext(Ext::Semver(a)), Value::Ext(Ext::Semver(b))] => Ok(of((**a).cmp(&**b))),
        _ => no_overload(),
    }
}
