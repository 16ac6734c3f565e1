//! The evaluator.

use std::cmp::Ordering;

use serde_json::Value;

use super::{Filter, MAX_NODES, Operand, Operator, Step};

/// What `steps` select, starting at `from` in the document `root`.
pub(super) fn find<'v>(steps: &[Step], from: &'v Value, root: &'v Value) -> Vec<&'v Value> {
    let mut nodes = vec![from];
    for step in steps {
        let mut next = Vec::new();
        for node in nodes {
            apply(step, node, root, &mut next);
            if next.len() >= MAX_NODES {
                break;
            }
        }
        nodes = next;
    }
    nodes
}

fn apply<'v>(step: &Step, node: &'v Value, root: &'v Value, out: &mut Vec<&'v Value>) {
    match step {
        Step::Root => out.push(root),
        Step::Fields(names) => out.extend(names.iter().filter_map(|n| node.get(&**n))),
        Step::Index(list) => {
            let Some(items) = node.as_array() else { return };
            out.extend(list.iter().filter_map(|i| items.get(position(*i, items.len())?)));
        }
        Step::Slice { start, end, step } => {
            if let Some(items) = node.as_array() {
                slice(items, *start, *end, *step, out);
            }
        }
        Step::Wildcard => match node {
            Value::Array(items) => out.extend(items),
            Value::Object(map) => out.extend(map.values()),
            _ => {}
        },
        Step::Recursive => descend(node, out),
        Step::Filter(f) => {
            let items = match node {
                Value::Array(items) => items.as_slice(),
                _ => return,
            };
            out.extend(items.iter().filter(|i| holds(f, i, root)));
        }
    }
}

/// An index from the end, if it is negative, as one from the start.
fn position(i: i64, len: usize) -> Option<usize> {
    match usize::try_from(i) {
        Ok(i) => Some(i),
        Err(_) => len.checked_sub(usize::try_from(i.unsigned_abs()).ok()?),
    }
}

fn slice<'v>(items: &'v [Value], start: Option<i64>, end: Option<i64>, step: i64, out: &mut Vec<&'v Value>) {
    let len = items.len();
    let start = start.map_or(Some(0), |s| position(s, len)).unwrap_or(0);
    let end = end.map_or(Some(len), |e| position(e, len)).unwrap_or(0).min(len);
    let step = usize::try_from(step).unwrap_or(1).max(1);
    if start < end {
        out.extend(items[start..end].iter().step_by(step));
    }
}

/// The value and everything in it; the depth is that of the parsed document, which is limited.
fn descend<'v>(node: &'v Value, out: &mut Vec<&'v Value>) {
    if out.len() >= MAX_NODES {
        return;
    }
    out.push(node);
    match node {
        Value::Array(items) => items.iter().for_each(|v| descend(v, out)),
        Value::Object(map) => map.values().for_each(|v| descend(v, out)),
        _ => {}
    }
}

fn holds(f: &Filter, item: &Value, root: &Value) -> bool {
    let left = operand(&f.left, item, root);
    let Some((operator, right)) = &f.right else { return !left.is_empty() };
    // One value is compared with one value.
    let right = operand(right, item, root);
    let (&[left], &[right, ..]) = (left.as_slice(), right.as_slice()) else { return false };
    compare(*operator, left, right)
}

fn operand<'v>(o: &'v Operand, item: &'v Value, root: &'v Value) -> Vec<&'v Value> {
    match o {
        Operand::Literal(v) => vec![v],
        Operand::Path(steps) => find(steps, item, root),
    }
}

fn compare(operator: Operator, left: &Value, right: &Value) -> bool {
    let order = match (left, right) {
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => Some(a.cmp(&b)),
            _ => a.as_f64().zip(b.as_f64()).and_then(|(a, b)| a.partial_cmp(&b)),
        },
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Bool(a), Value::Bool(b)) => match operator {
            Operator::Equal | Operator::NotEqual => Some(a.cmp(b)),
            _ => None,
        },
        _ => None,
    };
    let Some(order) = order else { return false };
    match operator {
        Operator::Equal => order == Ordering::Equal,
        Operator::NotEqual => order != Ordering::Equal,
        Operator::Less => order == Ordering::Less,
        Operator::LessOrEqual => order != Ordering::Greater,
        Operator::Greater => order == Ordering::Greater,
        Operator::GreaterOrEqual => order != Ordering::Less,
    }
}
