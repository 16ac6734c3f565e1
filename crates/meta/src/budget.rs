//! Bounds on what one request makes the process do: memory that its document takes when decoded or completed
//! ([`SizeBudget`]), and steps of a computation over it ([`Work`]).
//!
//! Invariants: memory is charged before it is allocated, so that what exceeds the budget never exists; a computation that
//! reports its steps ends soon after its time is over. Both count, so that tests read counters instead of a clock or the
//! process.

use crate::Status;
use serde_json::{Map, Value};
use std::cell::Cell;

/// Memory that completing one document may take. An object that can be stored has 1.5 MiB of JSON; as a tree of maps it
/// takes ten times that, and up to forty times when it consists of tiny maps.
pub const DOCUMENT_BYTES: usize = 64 << 20;

/// A value itself, as an element of a list.
const NODE: usize = size_of::<Value>();
/// The first entry of a map brings a tree node with room for eleven.
const FIRST_ENTRY: usize = 11 * (size_of::<String>() + size_of::<Value>()) + 16;
/// What a further entry takes of such a node, which is half full at least.
const ENTRY: usize = 2 * (size_of::<String>() + size_of::<Value>());
/// What the allocator adds to a text.
const TEXT: usize = 16;

/// A document takes more memory than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {limit} bytes of memory")]
pub struct OverBudget {
    /// The bytes that were allowed.
    pub limit: usize,
}

impl From<OverBudget> for Status {
    fn from(over: OverBudget) -> Status {
        Status::request_entity_too_large(format!("limit is {} bytes of memory", over.limit))
    }
}

/// Memory that a document may still take.
#[derive(Debug)]
pub struct SizeBudget {
    limit: usize,
    used: usize,
}

impl Default for SizeBudget {
    fn default() -> Self {
        SizeBudget::new(DOCUMENT_BYTES)
    }
}

impl SizeBudget {
    /// So many bytes.
    pub fn new(limit: usize) -> SizeBudget {
        SizeBudget { limit, used: 0 }
    }

    /// Bytes charged so far.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Charges bytes.
    ///
    /// # Errors
    /// When they exceed what is left; nothing is charged then.
    pub fn take(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let used = self.used.saturating_add(bytes);
        if used > self.limit {
            return Err(OverBudget { limit: self.limit });
        }
        self.used = used;
        Ok(())
    }

    /// Charges a value, node by node: one that exceeds the budget is not walked to its end.
    ///
    /// # Errors
    /// When it exceeds what is left.
    pub fn take_value(&mut self, value: &Value) -> Result<(), OverBudget> {
        match value {
            Value::String(text) => self.take(NODE + TEXT + text.len()),
            Value::Array(list) => {
                self.take(NODE)?;
                list.iter().try_for_each(|v| self.take_value(v))
            }
            Value::Object(map) => {
                self.take(NODE)?;
                map.iter().enumerate().try_for_each(|(i, (key, v))| {
                    self.take_key(i == 0, key)?;
                    self.take_value(v)
                })
            }
            _ => self.take(NODE),
        }
    }

    /// Charges a map that is not filled yet.
    ///
    /// # Errors
    /// When it exceeds what is left.
    pub fn take_map(&mut self) -> Result<(), OverBudget> {
        self.take(NODE + FIRST_ENTRY)
    }

    fn take_key(&mut self, first: bool, key: &str) -> Result<(), OverBudget> {
        self.take(if first { FIRST_ENTRY } else { ENTRY } + TEXT + key.len())
    }

    /// A copy of a value.
    ///
    /// # Errors
    /// When it exceeds what is left; it is not made then.
    pub fn copy(&mut self, value: &Value) -> Result<Value, OverBudget> {
        self.take_value(value)?;
        Ok(value.clone())
    }

    /// Adds a copy of a value to a map.
    ///
    /// # Errors
    /// When entry and copy exceed what is left; they are not made then.
    pub fn insert(
        &mut self,
        map: &mut Map<String, Value>,
        key: &str,
        value: &Value,
    ) -> Result<(), OverBudget> {
        self.take_key(map.is_empty(), key)?;
        let value = self.copy(value)?;
        map.insert(key.to_owned(), value);
        Ok(())
    }
}

/// About the memory that a value takes.
pub fn footprint(value: &Value) -> usize {
    let mut budget = SizeBudget::new(usize::MAX);
    // No value exceeds all memory.
    let _ = budget.take_value(value);
    budget.used()
}

/// No less than the memory that a text in JSON takes when it is decoded, estimated from its punctuation. Each map counts as one
/// that has entries: those of built-in kinds get some.
pub fn footprint_of_json(text: &[u8]) -> usize {
    let (mut maps, mut entries, mut others) = (0_usize, 0_usize, 0_usize);
    let mut rest = text.iter();
    while let Some(b) = rest.next() {
        match b {
            b'{' => maps += 1,
            b':' => entries += 1,
            b'[' | b',' => others += NODE,
            b'"' => {
                others += TEXT;
                while let Some(b) = rest.next() {
                    match b {
                        b'\\' => drop(rest.next()),
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let further = entries.saturating_sub(maps);
    text.len() + NODE + others + maps * (NODE + FIRST_ENTRY) + further * ENTRY
}

/// The most memory that a byte of JSON can take when it is decoded, by [`footprint_of_json`].
pub const MOST_PER_BYTE: usize = NODE + FIRST_ENTRY + 1;

/// Memory that the body of one request may take when it is decoded: an object that can be stored takes less, even one of
/// nothing but maps with one entry.
pub const BODY_BYTES: usize = 3 * DOCUMENT_BYTES;

/// The time of a computation is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request did not complete within the allotted timeout")]
pub struct Late;

impl From<Late> for Status {
    fn from(late: Late) -> Status {
        Status::timeout(late, 0)
    }
}

/// Steps between two reads of the clock.
const STEPS: u64 = 1024;

/// The steps of a computation that must end when its request does.
pub struct Work<'a> {
    over: &'a dyn Fn() -> bool,
    steps: Cell<u64>,
}

impl<'a> Work<'a> {
    /// Until `over` returns true; it is called every [`STEPS`] steps.
    pub fn new(over: &'a dyn Fn() -> bool) -> Work<'a> {
        Work { over, steps: Cell::new(0) }
    }

    /// However long it takes: for what is bounded otherwise.
    pub fn unbounded() -> Work<'static> {
        Work { over: &|| false, steps: Cell::new(0) }
    }

    /// Notes steps. A step is a visit of a node, or a comparison.
    ///
    /// # Errors
    /// When the time is over.
    pub fn step(&self, steps: usize) -> Result<(), Late> {
        let before = self.steps.get();
        let after = before.saturating_add(steps as u64);
        self.steps.set(after);
        if before / STEPS != after / STEPS && (self.over)() { Err(Late) } else { Ok(()) }
    }

    /// Reads the clock now: before a computation of unknown length.
    ///
    /// # Errors
    /// When the time is over.
    pub fn check(&self) -> Result<(), Late> {
        if (self.over)() { Err(Late) } else { Ok(()) }
    }

    /// The steps so far.
    pub fn steps(&self) -> u64 {
        self.steps.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_testing::json::{Shape, values_of};
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn refuses_a_copy_before_it_is_made() {
        let large = json!({"list": ["x".repeat(600), "y".repeat(600)]});
        let mut budget = SizeBudget::new(2 * 1024);
        assert!(budget.copy(&large).is_ok());
        let used = budget.used();
        assert_eq!(budget.copy(&large), Err(OverBudget { limit: 2048 }));
        assert!(budget.used() < 2048 && budget.used() >= used);
        let status = Status::from(OverBudget { limit: 5 });
        assert_eq!(
            (status.code, &*status.message),
            (413, "Request entity too large: limit is 5 bytes of memory")
        );
    }

    #[test]
    fn ends_work_when_its_time_is_over() {
        let over = Cell::new(false);
        let is_over = || over.get();
        let work = Work::new(&is_over);
        assert_eq!(work.step(5_000), Ok(()));
        over.set(true);
        assert_eq!((0..2).map(|_| work.step(1_000)).find(Result::is_err), Some(Err(Late)));
        assert!(work.steps() <= 7_000);
    }

    const SHAPE: Shape =
        Shape { depth: 5, size: 64, items: 5, texts: "[a-z{}\\[\\]:,\" ]{0,12}", keys: "[a-z\",:]{0,4}" };

    #[test]
    fn punctuation_inside_of_texts_is_not_counted() {
        let text = json!({"data": {"template": "{{[\"\\,:".repeat(1000)}}).to_string();
        assert!(footprint_of_json(text.as_bytes()) < text.len() + 2 * FIRST_ENTRY + 500);
    }

    proptest! {
        #[test]
        fn a_text_is_never_taken_for_less_than_it_becomes(v in values_of(SHAPE)) {
            let text = v.to_string();
            prop_assert!(footprint_of_json(text.as_bytes()) >= footprint(&v), "{text}");
            let pretty = serde_json::to_string_pretty(&v).unwrap();
            prop_assert!(footprint_of_json(pretty.as_bytes()) >= footprint(&v), "{text}");
        }
    }
}
