//! Equal parts of schemas exist once.
//!
//! Definitions repeat themselves and each other: plain and constrained scalars, pod templates, selectors, resources. Nodes
//! are looked up from the leaves upwards, so that a node's hash covers its own facts and the addresses of its children.
//! The table holds weak references only: it keeps nothing alive, and dead entries are swept when it has doubled.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use crate::schema::{ListKind, Schema, SchemaRef};
use crate::validate::Constraints;

/// Below this many entries sweeping is not worth it.
const SWEEP_FLOOR: usize = 4096;

#[derive(Default)]
struct Table {
    nodes: HashMap<u64, Vec<Weak<Schema>>>,
    /// Sweep when there are this many hashes.
    sweep_at: usize,
}

/// Wraps `s`, or returns the schema equal to it that is already there.
pub(super) fn intern(s: Schema) -> SchemaRef {
    static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);
    let hash = shallow_hash(&s);
    let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    if table.nodes.len() >= table.sweep_at.max(SWEEP_FLOOR) {
        table.nodes.retain(|_, list| {
            list.retain(|w| w.strong_count() > 0);
            !list.is_empty()
        });
        table.sweep_at = table.nodes.len() * 2;
    }
    let list = table.nodes.entry(hash).or_default();
    if let Some(known) = list.iter().filter_map(Weak::upgrade).find(|k| **k == s) {
        return SchemaRef::Owned(known);
    }
    list.retain(|w| w.strong_count() > 0);
    let fresh = Arc::new(s);
    list.push(Arc::downgrade(&fresh));
    SchemaRef::Owned(fresh)
}

/// Equal schemas with interned children have equal hashes.
fn shallow_hash(s: &Schema) -> u64 {
    let h = &mut DefaultHasher::new();
    (s.ty, s.format, s.nullable, s.preserve_unknown, s.embedded_resource).hash(h);
    (s.list_declared, s.required.len(), s.map as u8).hash(h);
    if let ListKind::Map { keys } = &s.list {
        keys.hash(h);
    }
    for p in s.properties.iter().flatten() {
        p.name.hash(h);
        address(&p.schema).hash(h);
    }
    s.items.as_ref().map(address).hash(h);
    s.additional.as_deref().map(address).hash(h);
    s.required.hash(h);
    s.default.as_ref().map(ToString::to_string).hash(h);
    if let Some(c) = &s.constraints {
        constraints(c, h);
    }
    h.finish()
}

fn address(s: &SchemaRef) -> usize {
    match s {
        SchemaRef::Owned(a) => Arc::as_ptr(a) as usize,
        SchemaRef::Named(e) => std::ptr::from_ref(*e) as usize,
    }
}

fn constraints(c: &Constraints, h: &mut DefaultHasher) {
    for n in [c.maximum, c.minimum, c.multiple_of] {
        n.map(f64::to_bits).hash(h);
    }
    [c.max_length, c.min_length, c.max_items, c.min_items, c.max_properties, c.min_properties].hash(h);
    c.pattern.as_ref().map(|p| p.source()).hash(h);
    c.enumeration.iter().for_each(|v| v.to_string().hash(h));
    [c.all_of.len(), c.any_of.len(), c.one_of.len()].hash(h);
}

#[cfg(test)]
mod tests {
    use super::super::build;
    use super::*;
    use serde_json::json;

    #[test]
    fn equal_parts_are_shared() {
        let schema = |name: &str| {
            build(&json!({"properties": {name: {"type": "object", "properties": {
                "x": {"type": "string", "pattern": "^intern$"}}}, "other": {"type": "integer", "maximum": 5}}}))
        };
        let (a, b) = (schema("a"), schema("b"));
        let address_of = |s: &Schema, n: &str| address(s.child(n).unwrap());
        assert_eq!(address_of(&a, "a"), address_of(&b, "b"));
        assert_ne!(address_of(&a, "a"), address_of(&a, "other"));
        assert_ne!(a, b);
    }
}
