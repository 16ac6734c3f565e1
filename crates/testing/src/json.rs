//! Random JSON values.
//!
//! Invariants: a value is no deeper than its `Shape` says, and its texts and keys are full of the punctuation that parsers
//! and printers trip over, unless the shape says otherwise.

use proptest::prelude::*;
use serde_json::Value;

/// What random values look like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How deep lists and objects are nested at most.
    pub depth: u32,
    /// About how many values there are in all.
    pub size: u32,
    /// How many items a list or an object has at most.
    pub items: u32,
    /// The regular expression of texts.
    pub texts: &'static str,
    /// The regular expression of keys.
    pub keys: &'static str,
}

impl Default for Shape {
    fn default() -> Self {
        Shape {
            depth: 4,
            size: 24,
            items: 3,
            texts: "[a-z0-9 :#\"'\\-\\n{}\\[\\],]{0,8}",
            keys: "[a-z:\" ]{0,4}",
        }
    }
}

/// Values of the default shape.
pub fn values() -> impl Strategy<Value = Value> {
    values_of(Shape::default())
}

/// Values of a shape.
pub fn values_of(shape: Shape) -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        shape.texts.prop_map(Value::from),
    ];
    let items = 0..=shape.items as usize;
    leaf.prop_recursive(shape.depth, shape.size, shape.items, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), items.clone()).prop_map(Value::from),
            prop::collection::btree_map(shape.keys, inner, items.clone())
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(value: &Value) -> u32 {
        match value {
            Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or_default(),
            Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or_default(),
            _ => 0,
        }
    }

    proptest! {
        #[test]
        fn values_are_no_deeper_than_their_shape(value in values_of(Shape { depth: 2, ..Shape::default() })) {
            prop_assert!(depth(&value) <= 2, "{value}");
        }
    }
}
