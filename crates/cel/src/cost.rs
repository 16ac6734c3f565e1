//! The cost of evaluation, in upstream's units (one is about 50 ns), and its budget.
//! Sources: cel-go `interpreter/runtimecost.go`, apiserver `cel/library/cost.go`.

use crate::{
    error::Error,
    estimate::Range,
    plan::Call,
    value::{Ext, Map, Value},
};

/// Making a list.
pub(crate) const LIST: u64 = 10;
/// Making a map.
pub(crate) const MAP: u64 = 30;
/// Making an object.
pub(crate) const OBJECT: u64 = 40;
/// Going over text, a character.
pub(crate) const TRAVERSAL: f64 = 0.1;
/// Applying a regular expression, a character of it.
pub(crate) const REGEX: f64 = 0.25;
/// An authorization check: two of them fit into one expression.
pub(crate) const CHECK: u64 = 350_000;

/// What an evaluation may still cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    spent: u64,
    limit: u64,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Budget {
        Budget { spent: 0, limit }
    }

    pub(crate) fn charge(&mut self, cost: u64) -> Result<(), Error> {
        self.spent = self.spent.saturating_add(cost);
        if self.spent > self.limit { Err(Error::Cost) } else { Ok(()) }
    }

    /// Takes back what was charged for nothing.
    pub(crate) fn refund(&mut self, cost: u64) {
        self.spent = self.spent.saturating_sub(cost);
    }

    pub(crate) fn spent(&self) -> u64 {
        self.spent
    }
}

/// Parsing a selector: at worst every second character begins a requirement of its own.
pub(crate) fn selector(length: Range) -> Range {
    let each = f64::from(u32::try_from(LIST + OBJECT).unwrap_or(u32::MAX));
    length.scaled(TRAVERSAL).plus(length.scaled(0.5).scaled(each)).plus(Range::exactly(LIST))
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "upstream's arithmetic"
)]
pub(crate) fn scaled(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}

/// What `==` and `!=` cost.
pub(crate) fn equality(a: &Value<'_>, b: &Value<'_>, equal: bool) -> u64 {
    if equal && matches!(a, Value::Ext(_)) {
        return 1;
    }
    scaled(a.size().min(b.size()), TRAVERSAL)
}

/// What a call costs; none if that takes its result to tell.
pub(crate) fn call(call: &Call, args: &[Value<'_>], result: Option<&Value<'_>>) -> Option<u64> {
    let size = |i: usize| args.get(i).map_or(1, Value::size);
    let text = |i: usize| scaled(size(i), TRAVERSAL);
    Some(match call.name {
        "slice" | "lists.range" | "sort" | "@sortByAssociatedKeys" | "distinct" | "flatten" | "reverse"
            if !call.overload.is_empty() =>
        {
            list_cost(call, args)
        }
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => args.first().map_or(0, traversal),
        "check" => CHECK,
        "fieldSelector" | "labelSelector" => selector(Range::exactly(size(1))).max,
        "jsonpatch.escapeKey" | "url" | "lowerAscii" | "upperAscii" | "substring" | "trim" => text(0),
        "cidr" | "isIP" | "isCIDR" | "quantity" | "isQuantity" | "semver" | "isSemver" => text(0),
        "ip" if matches!(args.first(), Some(Value::Ext(_))) => 1,
        "ip" => text(0),
        "replace" | "split" | "ip.isCanonical" => scaled(size(0), 2.0 * TRAVERSAL),
        "join" => scaled(result?.size(), 2.0 * TRAVERSAL),
        "find" | "findAll" | "matches" if call.overload != "matches" => {
            scaled(size(0) + 1, TRAVERSAL).saturating_mul(scaled(size(1), REGEX))
        }
        "containsIP" | "containsCIDR" => containment(call, args),
        "validate" => match args.first() {
            Some(Value::Ext(Ext::Format(format))) => {
                scaled(size(1) + 1, TRAVERSAL).saturating_mul(scaled(format.regex_size, REGEX))
            }
            _ => 1,
        },
        "startsWith" | "endsWith" | "strings.quote" | "format" => text(0),
        // The language's own functions cost more than 1 only if the checker could tell which one is called.
        "bytes" | "string" if matches!(call.overload, "string_to_bytes" | "bytes_to_string") => text(0),
        "contains" => text(0).saturating_mul(text(1)),
        "sets.contains" | "sets.intersects" => 1 + size(0).saturating_mul(size(1)),
        "sets.equivalent" => 1 + size(0).saturating_mul(size(1)).saturating_mul(2),
        "@in" if call.overload == "in_list" => size(1),
        "_<_" | "_<=_" | "_>_" | "_>=_" if textual(call) => scaled(size(0).min(size(1)), TRAVERSAL),
        "_+_" if textual(call) => scaled(size(0).saturating_add(size(1)), TRAVERSAL),
        _ => 1,
    })
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "upstream's arithmetic"
)]
fn list_cost(call: &Call, args: &[Value<'_>]) -> u64 {
    let size = |i: usize| args.get(i).map_or(0, Value::size);
    let int = |i: usize| match args.get(i) {
        Some(Value::Int(n)) => u64::try_from(*n).unwrap_or_default(),
        _ => 0,
    };
    let compared = |i: usize| {
        let textual = match args.get(i) {
            Some(Value::List(list)) => {
                matches!(list.get(0), Some(Ok(Value::String(_) | Value::Bytes(_))))
            }
            _ => false,
        };
        let factor = if textual { 2.0 + TRAVERSAL } else { 2.0 };
        (size(i).saturating_mul(size(i)) as f64 * factor) as u64
    };
    let work = match call.name {
        "lists.range" => int(0),
        "slice" => int(2).saturating_sub(int(1)),
        "reverse" => size(0),
        "flatten" => size(0).saturating_mul(if args.len() > 1 { int(1) } else { 1 }),
        "@sortByAssociatedKeys" => compared(1),
        _ => compared(0),
    };
    work.saturating_add(1 + LIST)
}

/// A call of the overload for text or bytes.
fn textual(call: &Call) -> bool {
    call.overload.ends_with("_string") || call.overload.ends_with("_bytes")
}

fn containment(call: &Call, args: &[Value<'_>]) -> u64 {
    let size = |i: usize| args.get(i).map_or(1, Value::size);
    let mut cost = scaled(size(0) * 2, TRAVERSAL);
    if call.name == "containsCIDR" {
        cost += scaled(size(0), TRAVERSAL) + 1;
    }
    if call.overload.ends_with("_string") {
        cost += scaled(size(1), TRAVERSAL);
    }
    cost
}

/// What it costs to go over a value and all that is in it.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "upstream's arithmetic"
)]
fn traversal(value: &Value<'_>) -> u64 {
    match value {
        Value::String(s) => (s.len() as f64 * TRAVERSAL) as u64,
        Value::Bytes(b) => (b.len() as f64 * TRAVERSAL) as u64,
        Value::List(list) => list.iter().map(|e| e.map_or(1, |e| traversal(&e))).sum(),
        Value::Map(map) => entries(map),
        _ => 1,
    }
}

fn entries(map: &Map<'_>) -> u64 {
    let cost = |key: &Value<'_>| match map.get(key) {
        Ok(Some(value)) => traversal(key) + traversal(&value),
        _ => traversal(key),
    };
    map.keys().iter().map(cost).sum()
}
