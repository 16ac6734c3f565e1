//! Short readers of one field of a JSON object.
//!
//! Invariants: readers borrow and never fail; JSON null and a value of another type read as absent.

use kaji_meta::object;
use serde_json::{Map, Value};

static NULL: Value = Value::Null;

/// Reads a field of an object by its name.
pub trait Fields {
    /// The field, unless absent or null.
    fn get_field(&self, key: &str) -> Option<&Value>;

    /// The field, or null.
    fn at(&self, key: &str) -> &Value {
        self.get_field(key).unwrap_or(&NULL)
    }

    /// Whether the field is there (and not null). For Go's pointers: `!= nil`.
    fn has(&self, key: &str) -> bool {
        self.get_field(key).is_some()
    }

    /// A string; `""` if absent.
    fn text(&self, key: &str) -> &str {
        self.opt_text(key).unwrap_or("")
    }

    /// A string.
    fn opt_text(&self, key: &str) -> Option<&str> {
        self.get_field(key).and_then(Value::as_str)
    }

    /// An integer; 0 if absent.
    fn int(&self, key: &str) -> i64 {
        self.opt_int(key).unwrap_or(0)
    }

    /// An integer.
    fn opt_int(&self, key: &str) -> Option<i64> {
        self.get_field(key).and_then(Value::as_i64)
    }

    /// A boolean; false if absent.
    fn flag(&self, key: &str) -> bool {
        self.opt_flag(key).unwrap_or(false)
    }

    /// A boolean.
    fn opt_flag(&self, key: &str) -> Option<bool> {
        self.get_field(key).and_then(Value::as_bool)
    }

    /// A list; empty if absent.
    fn list(&self, key: &str) -> &[Value] {
        self.get_field(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// A map.
    fn map(&self, key: &str) -> Option<&Map<String, Value>> {
        self.get_field(key).and_then(Value::as_object)
    }

    /// The strings in a map, by key.
    fn string_map(&self, key: &str) -> impl Iterator<Item = (&str, &str)> {
        self.map(key).into_iter().flatten().filter_map(|(k, v)| Some((k.as_str(), v.as_str()?)))
    }

    /// The strings in a list.
    fn strings(&self, key: &str) -> impl Iterator<Item = &str> {
        self.list(key).iter().filter_map(Value::as_str)
    }
}

impl Fields for Value {
    fn get_field(&self, key: &str) -> Option<&Value> {
        object::member(self.as_object()?, key).filter(|v| !v.is_null())
    }
}

impl Fields for Map<String, Value> {
    fn get_field(&self, key: &str) -> Option<&Value> {
        object::member(self, key).filter(|v| !v.is_null())
    }
}

/// The fields of an object that is read very often. A lookup in a large map compares several names; here it compares one, and
/// hashing a name that is known beforehand is done by the compiler.
pub struct FieldTable<'a> {
    object: &'a Value,
    /// By hash, else in the next free slot. Empty for objects of so many fields that there would be no free slot.
    slots: [Option<(&'a str, &'a Value)>; SLOTS],
    complete: bool,
}

/// Twice as many as a pod's spec has fields that are set together.
const SLOTS: usize = 64;

impl<'a> FieldTable<'a> {
    /// The fields of an object; none of another value.
    pub fn of(object: &'a Value) -> FieldTable<'a> {
        let mut table = FieldTable { object, slots: [None; SLOTS], complete: true };
        let Some(fields) = object.as_object() else { return table };
        table.complete = fields.len() <= SLOTS / 2;
        for (name, value) in fields.iter().take(SLOTS / 2) {
            let mut at = slot(name);
            while table.slots[at].is_some() {
                at = (at + 1) % SLOTS;
            }
            table.slots[at] = Some((name, value));
        }
        table
    }

    /// The object.
    pub fn value(&self) -> &'a Value {
        self.object
    }
}

/// Field names of one object differ in length and letters enough for this.
#[inline]
fn slot(name: &str) -> usize {
    let name = name.as_bytes();
    let (Some(first), Some(last)) = (name.first(), name.last()) else { return 0 };
    let middle = name[name.len() / 2];
    (name.len() * 31 + usize::from(*first) * 7 + usize::from(middle) * 3 + usize::from(*last)) % SLOTS
}

impl Fields for FieldTable<'_> {
    #[inline]
    fn get_field(&self, key: &str) -> Option<&Value> {
        if !self.complete {
            return self.object.get_field(key);
        }
        let mut at = slot(key);
        // At least half of the slots are empty, so this ends.
        while let Some((name, value)) = self.slots[at] {
            if name == key {
                return Some(value).filter(|v| !v.is_null());
            }
            at = (at + 1) % SLOTS;
        }
        None
    }
}

/// Sets a field of an object when it is absent or null. Does nothing to a value that is no object.
pub fn set_default(v: &mut Value, key: &str, default: impl FnOnce() -> Value) {
    if !v.has(key) {
        put(v, key, default());
    }
}

/// Sets a string field when it is absent, null or empty.
pub fn default_text(v: &mut Value, key: &str, default: &str) {
    if v.text(key).is_empty() {
        put(v, key, default);
    }
}

/// Sets an integer field when it is absent, null or 0.
pub fn default_int(v: &mut Value, key: &str, default: i64) {
    if v.int(key) == 0 {
        put(v, key, default);
    }
}

/// Sets a field of an object. Does nothing to a value that is no object.
pub fn put(v: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(map) = v.as_object_mut() {
        map.insert(key.to_owned(), value.into());
    }
}

/// Removes a field of an object.
pub fn drop_field(v: &mut Value, key: &str) {
    if let Some(map) = v.as_object_mut() {
        map.remove(key);
    }
}

/// Copies a field from one object to another, removing it where the source has none.
pub fn copy_field(to: &mut Value, from: &Value, key: &str) {
    match from.get_field(key) {
        Some(v) => put(to, key, v.clone()),
        None => drop_field(to, key),
    }
}

/// The items of a list field, to change them; empty if absent.
pub fn list_mut<'a>(v: &'a mut Value, key: &str) -> &'a mut [Value] {
    match v.get_mut(key) {
        Some(Value::Array(items)) => items,
        _ => &mut [],
    }
}

/// An object field, to change it; none if absent, null or something else.
pub fn object_mut<'a>(v: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    v.get_mut(key).filter(|v| v.is_object())
}

/// An object field, made if it is not there. The value itself must be an object, else it becomes one.
pub fn ensure_object<'a>(v: &'a mut Value, key: &str) -> &'a mut Value {
    if !v.is_object() {
        *v = Value::Object(Map::new());
    }
    let slot = &mut v[key];
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_table_of_fields_reads_as_its_object(names in prop::collection::btree_set("[a-c]{0,4}", 0..50), other in "[a-c]{0,4}") {
            let fields: Map<String, Value> =
                names.iter().map(|n| (n.clone(), if n.len() == 3 { Value::Null } else { n.as_str().into() })).collect();
            let object = Value::Object(fields);
            let table = FieldTable::of(&object);
            for name in names.iter().chain([&other]) {
                prop_assert_eq!(table.get_field(name), object.get_field(name));
            }
            let none = FieldTable::of(&Value::Null);
            prop_assert_eq!(none.get_field(&other), None);
        }
    }
}
