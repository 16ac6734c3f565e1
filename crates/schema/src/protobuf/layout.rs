//! The fields of a message in the order of their numbers.
//!
//! Invariant: slots are sorted by path. A path is what leads to a field: the numbers of the messages that JSON inlines,
//! then the field's own, then zeros.

use crate::schema::{Property, Props, SchemaRef};
use crate::types;

/// Where one property of a type is on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    path: [u16; 3],
    /// Its place in [`Props`].
    property: u16,
}

impl Slot {
    /// The number at a level of nesting.
    pub(super) fn number(&self, level: usize) -> u16 {
        self.path.get(level).copied().unwrap_or(0)
    }

    /// Whether the number at `level` is that of a message which JSON inlines.
    pub(super) fn inlined(&self, level: usize) -> bool {
        self.number(level + 1) != 0
    }

    pub(super) fn property<'a>(&self, props: &'a Props) -> Option<&'a Property> {
        props.at(self.property)
    }
}

/// The slots of a type; fields without a number have none.
pub(crate) fn slots(props: &Props) -> Box<[Slot]> {
    let mut slots: Vec<Slot> = (0u16..)
        .zip(props)
        .filter(|(_, p)| p.number != 0)
        .map(|(property, p)| {
            let path = match p.outer.map(u16::from) {
                [0, _] => [p.number, 0, 0],
                [a, 0] => [a, p.number, 0],
                [a, b] => [a, b, p.number],
            };
            Slot { path, property }
        })
        .collect();
    slots.sort();
    slots.into()
}

/// The slots and properties of a struct's schema. None for schemas that are not in the table.
pub(super) fn of(schema: &SchemaRef) -> Option<(&'static [Slot], &Props)> {
    let props = schema.properties.as_ref()?;
    let entry = match schema {
        SchemaRef::Named(entry) => entry,
        // A type with additional facts at one place; its properties are those of the type.
        SchemaRef::Owned(s) => types::entry(s.name?)?,
    };
    Some((entry.slots(), props))
}

/// The slots of one number: none, one field's, or all of an inlined message.
pub(super) fn with_number(slots: &[Slot], level: usize, number: u16) -> &[Slot] {
    let start = slots.partition_point(|s| s.number(level) < number);
    let rest = slots.get(start..).unwrap_or(&[]);
    let end = rest.iter().take_while(|s| s.number(level) == number).count();
    rest.get(..end).unwrap_or(&[])
}
