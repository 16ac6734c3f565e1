//! Lists of amounts by name, and their arithmetic.

use kaji_meta::{
    object,
    quantity::{Format, Quantity},
};
use serde_json::{Map, Value};
use std::{cmp::Ordering, collections::BTreeMap};

/// Amounts by resource name.
pub type Usage = BTreeMap<String, Quantity>;

/// Reads a resource list. What is no amount is left out: validation has refused it already.
pub fn amounts(list: Option<&Value>) -> Usage {
    let entries = list.and_then(Value::as_object).into_iter().flatten();
    entries.filter_map(|(name, v)| Some((name.clone(), Quantity::from_value(v).ok()?))).collect()
}

/// The resource list at a path.
pub(crate) fn at(v: &Value, path: &[&str]) -> Usage {
    amounts(object::at(v, path))
}

/// A count.
pub(crate) fn number(n: usize) -> Quantity {
    Quantity::new(i64::try_from(n).unwrap_or(i64::MAX), Format::DecimalSi)
}

/// Adds one usage to another.
pub fn add(sum: &mut Usage, more: &Usage) {
    for (name, amount) in more {
        match sum.get_mut(name) {
            Some(total) => *total = total.add(amount),
            None => drop(sum.insert(name.clone(), amount.clone())),
        }
    }
}

/// Keeps the larger of each amount.
pub(crate) fn largest(a: &mut Usage, b: &Usage) {
    for (name, amount) in b {
        if a.get(name).is_none_or(|have| compare(amount, have) == Ordering::Greater) {
            a.insert(name.clone(), amount.clone());
        }
    }
}

/// By amount, independent of the spelling.
pub(crate) fn compare(a: &Quantity, b: &Quantity) -> Ordering {
    a.sub(b).sign().cmp(&0)
}

/// `a` minus `b`, never below nothing.
pub(crate) fn increase(a: &Usage, b: &Usage) -> Usage {
    let less = |(name, amount): (&String, &Quantity)| {
        let rest = b.get(name).map_or_else(|| amount.clone(), |old| amount.sub(old));
        (name.clone(), if rest.sign() < 0 { number(0) } else { rest })
    };
    a.iter().map(less).collect()
}

/// As a resource list.
pub(crate) fn to_value(usage: &Usage) -> Value {
    let entries = usage.iter().map(|(name, amount)| (name.clone(), Value::from(amount.to_string())));
    Value::Object(entries.collect::<Map<_, _>>())
}

/// `cpu=1,pods=2`
pub(crate) fn print(usage: &Usage) -> String {
    let parts: Vec<String> = usage.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
    parts.join(",")
}
