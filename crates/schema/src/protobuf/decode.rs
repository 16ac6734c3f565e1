//! From the wire to JSON values.
//!
//! Invariants: each byte is read a bounded number of times (once, and once more for each level of messages around it that
//! is skipped over by its length); a field that comes again replaces what was there, is merged into it if it is a message,
//! or is appended if it is repeated, as in Go.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kaji_meta::SizeBudget;
use serde_json::{Map, Number, Value};
use std::cell::RefCell;

use super::layout::{self, Slot};
use super::wire::{BYTES, Error, FIXED32, FIXED64, Reader, VARINT};
use super::{Envelope, MAX_DEPTH, raw};
use crate::schema::{Format, Omit, Property, Props, Schema, SchemaRef, Type};

/// Reads `runtime.Unknown`.
pub(super) fn envelope(body: &[u8]) -> Result<Envelope<'_>, Error> {
    let mut out = Envelope::default();
    let mut reader = Reader(body);
    while !reader.is_empty() {
        match reader.tag()? {
            (1, BYTES) => type_meta(reader.bytes()?, &mut out)?,
            (2, BYTES) => out.raw = reader.bytes()?,
            (3 | 4, BYTES) => drop(reader.bytes()?),
            (n @ 1..=4, wire) => {
                let names = ["", "typeMeta", "raw", "contentEncoding", "contentType"];
                let field = names.get(usize::from(n)).copied().unwrap_or("").to_owned();
                return Err(Error::WireType { wire, field });
            }
            (_, wire) => reader.skip(wire)?,
        }
    }
    Ok(out)
}

fn type_meta(bytes: &[u8], out: &mut Envelope<'_>) -> Result<(), Error> {
    let mut reader = Reader(bytes);
    while !reader.is_empty() {
        match reader.tag()? {
            (1, BYTES) => out.api_version = text(reader.bytes()?),
            (2, BYTES) => out.kind = text(reader.bytes()?),
            (n @ 1..=2, wire) => {
                let field = if n == 1 { "aPIVersion" } else { "kind" };
                return Err(Error::WireType { wire, field: field.into() });
            }
            (_, wire) => reader.skip(wire)?,
        }
    }
    Ok(())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Reads messages. Memory is charged for what two bytes can ask for: messages, and elements of lists.
pub(super) struct Decoder {
    pub budget: RefCell<SizeBudget>,
}

/// What is charged for an element before it is read.
const EMPTY_TEXT: Value = Value::String(String::new());

/// What is known about the place that a value is read for.
#[derive(Clone, Copy)]
struct Position<'a> {
    /// The field's JSON name, for messages.
    field: &'a str,
    /// How many values there are around and including this one.
    depth: usize,
}

impl Decoder {
    fn charge(&self, element: &Value) -> Result<(), Error> {
        self.budget.borrow_mut().take_value(element).map_err(Error::Large)
    }

    /// Reads the fields of a struct into `out`, which is a value at `depth`.
    pub fn message(
        &self,
        schema: &SchemaRef,
        bytes: &[u8],
        out: &mut Map<String, Value>,
        depth: usize,
    ) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::Depth);
        }
        self.budget.borrow_mut().take_map().map_err(Error::Large)?;
        let (slots, props) = layout::of(schema).ok_or(Error::NoSchema)?;
        self.fields(props, slots, 0, bytes, out, depth)
    }

    /// Reads the fields of a struct, or of one that JSON inlines into it.
    fn fields(
        &self,
        props: &Props,
        slots: &[Slot],
        level: usize,
        bytes: &[u8],
        out: &mut Map<String, Value>,
        depth: usize,
    ) -> Result<(), Error> {
        let mut reader = Reader(bytes);
        while !reader.is_empty() {
            let (number, wire) = reader.tag()?;
            let found = layout::with_number(slots, level, number);
            let Some(slot) = found.first() else {
                reader.skip(wire)?;
                continue;
            };
            let Some(p) = slot.property(props) else { return Err(Error::NoSchema) };
            if slot.inlined(level) {
                let inner = message_bytes(&mut reader, wire, &p.name)?;
                self.fields(props, found, level + 1, inner, out, depth)?;
            } else {
                self.field(p, &mut reader, wire, out, depth)?;
            }
        }
        Ok(())
    }

    fn field(
        &self,
        p: &Property,
        reader: &mut Reader<'_>,
        wire: u8,
        out: &mut Map<String, Value>,
        depth: usize,
    ) -> Result<(), Error> {
        let schema = &p.schema;
        let place = Position { field: &p.name, depth: depth + 1 };
        match schema.ty {
            Type::Array if !schema.wrapped => {
                let items = schema.items.as_ref().ok_or(Error::NoSchema)?;
                let list = match out.get_mut(&*p.name) {
                    Some(Value::Array(list)) => list,
                    _ => match out.entry(p.name.to_string()).or_insert(Value::Array(vec![])) {
                        Value::Array(list) => list,
                        _ => return Err(Error::NoSchema),
                    },
                };
                self.repeated(items, reader, wire, list, place)
            }
            Type::Object if schema.properties.is_none() => {
                let values = schema.additional.as_deref().ok_or(Error::NoSchema)?;
                let bytes = message_bytes(reader, wire, &p.name)?;
                let map = match out.entry(p.name.to_string()).or_insert_with(|| Value::Object(Map::new())) {
                    Value::Object(map) => map,
                    _ => return Err(Error::NoSchema),
                };
                self.entry(values, bytes, map, place)
            }
            Type::Object if matches!(out.get(&*p.name), Some(Value::Object(_))) => {
                let bytes = message_bytes(reader, wire, &p.name)?;
                match out.get_mut(&*p.name) {
                    Some(Value::Object(map)) => self.message(schema, bytes, map, place.depth),
                    _ => Err(Error::NoSchema),
                }
            }
            _ => {
                let value = self.value(schema, reader, wire, place)?;
                if value.is_null() || !p.pointer && absent(p.omit, schema, &value) {
                    out.remove(&*p.name);
                } else {
                    out.insert(p.name.to_string(), value);
                }
                Ok(())
            }
        }
    }

    /// One element of a repeated field, or several packed ones.
    fn repeated(
        &self,
        items: &SchemaRef,
        reader: &mut Reader<'_>,
        wire: u8,
        list: &mut Vec<Value>,
        place: Position<'_>,
    ) -> Result<(), Error> {
        let place = Position { depth: place.depth + 1, ..place };
        let unpacked = match items.ty {
            Type::Integer | Type::Boolean => VARINT,
            Type::Number if items.format == Format::Float => FIXED32,
            Type::Number => FIXED64,
            _ => BYTES,
        };
        if wire == BYTES && unpacked != BYTES {
            let mut packed = Reader(reader.bytes()?);
            while !packed.is_empty() {
                self.charge(&Value::Null)?;
                list.push(self.value(items, &mut packed, unpacked, place)?);
            }
            return Ok(());
        }
        self.charge(&EMPTY_TEXT)?;
        list.push(self.value(items, reader, wire, place)?);
        Ok(())
    }

    /// One entry of a map.
    fn entry(
        &self,
        values: &SchemaRef,
        bytes: &[u8],
        map: &mut Map<String, Value>,
        place: Position<'_>,
    ) -> Result<(), Error> {
        let place = Position { depth: place.depth + 1, ..place };
        self.charge(&EMPTY_TEXT)?;
        let mut reader = Reader(bytes);
        let (mut key, mut value) = (String::new(), None);
        while !reader.is_empty() {
            // As Go: the wire types of an entry's fields are not looked at, only what they must be is read.
            match reader.tag()? {
                (1, _) => key = text(reader.bytes()?),
                (2, wire) => value = Some(self.value(values, &mut reader, wire, place)?),
                (_, wire) => reader.skip(wire)?,
            }
        }
        let value = match value {
            Some(value) => value,
            None => self.missing(values, place)?,
        };
        map.insert(key, value);
        Ok(())
    }

    /// The value of a map entry that has none.
    fn missing(&self, schema: &SchemaRef, place: Position<'_>) -> Result<Value, Error> {
        match schema.ty {
            Type::Integer => Ok(0.into()),
            Type::Boolean => Ok(false.into()),
            Type::String => Ok("".into()),
            Type::Bytes => Ok(Value::Null),
            _ => self.value(schema, &mut Reader(&[0]), BYTES, place),
        }
    }

    /// A value that is neither a repeated field nor a map.
    fn value(
        &self,
        schema: &SchemaRef,
        reader: &mut Reader<'_>,
        wire: u8,
        place: Position<'_>,
    ) -> Result<Value, Error> {
        let want = |wanted: u8| {
            if wire == wanted { Ok(()) } else { Err(Error::WireType { wire, field: place.field.to_owned() }) }
        };
        match schema.ty {
            Type::String => want(BYTES).and_then(|()| Ok(text(reader.bytes()?).into())),
            Type::Bytes => want(BYTES).and_then(|()| Ok(STANDARD.encode(reader.bytes()?).into())),
            Type::Boolean => want(VARINT).and_then(|()| Ok((reader.varint()? != 0).into())),
            Type::Integer => {
                want(VARINT)?;
                let n = reader.varint()?;
                Ok(if schema.format == Format::Int32 { (n as i32).into() } else { (n as i64).into() })
            }
            Type::Number if schema.format == Format::Float => {
                want(FIXED32)?;
                number(f64::from(f32::from_bits(reader.fixed32()?)))
            }
            Type::Number => {
                want(FIXED64)?;
                number(f64::from_bits(reader.fixed64()?))
            }
            _ => {
                let bytes = message_bytes(reader, wire, place.field)?;
                self.special(schema, bytes, place)
            }
        }
    }

    /// A value that is a message on the wire.
    fn special(&self, schema: &SchemaRef, bytes: &[u8], place: Position<'_>) -> Result<Value, Error> {
        match schema.ty {
            Type::Quantity => raw::quantity(bytes),
            Type::Time | Type::MicroTime => raw::time(schema.ty, bytes),
            Type::IntOrString => raw::int_or_string(bytes),
            Type::Any if schema.short_name() == "FieldsV1" => raw::fields(bytes, place.depth),
            Type::Any => raw::json(bytes, place.depth),
            Type::SchemaOr => self.schema_or(schema, bytes, place),
            Type::Array => {
                let items = schema.items.as_ref().ok_or(Error::NoSchema)?;
                let mut list = vec![];
                let mut reader = Reader(bytes);
                while !reader.is_empty() {
                    match reader.tag()? {
                        (1, wire) => self.repeated(items, &mut reader, wire, &mut list, place)?,
                        (_, wire) => reader.skip(wire)?,
                    }
                }
                Ok(Value::Array(list))
            }
            Type::Object => {
                let mut map = Map::new();
                self.message(schema, bytes, &mut map, place.depth)?;
                Ok(Value::Object(map))
            }
            _ => Err(Error::NoSchema),
        }
    }

    /// The messages that stand for a schema or something simpler.
    fn schema_or(&self, schema: &Schema, bytes: &[u8], place: Position<'_>) -> Result<Value, Error> {
        let props = schema.items.as_ref().ok_or(Error::NoSchema)?;
        let form = SchemaOr::of(schema);
        let (mut one, mut list, mut allows) = (None, vec![], false);
        let mut reader = Reader(bytes);
        while !reader.is_empty() {
            match (reader.tag()?, form) {
                ((1, VARINT), SchemaOr::Bool) => allows = reader.varint()? != 0,
                ((2, BYTES), SchemaOr::Bool) | ((1, BYTES), SchemaOr::Array | SchemaOr::Strings) => {
                    let map = one.get_or_insert_with(Map::new);
                    self.message(props, reader.bytes()?, map, place.depth)?;
                }
                ((2, BYTES), SchemaOr::Array) => {
                    let mut map = Map::new();
                    self.message(props, reader.bytes()?, &mut map, place.depth + 1)?;
                    list.push(Value::Object(map));
                }
                ((2, BYTES), SchemaOr::Strings) => list.push(text(reader.bytes()?).into()),
                ((1 | 2, wire), _) => {
                    return Err(Error::WireType { wire, field: place.field.to_owned() });
                }
                ((_, wire), _) => reader.skip(wire)?,
            }
        }
        Ok(match (one, form) {
            _ if !list.is_empty() => Value::Array(list),
            (Some(map), _) => Value::Object(map),
            (None, SchemaOr::Bool) => allows.into(),
            (None, _) => Value::Null,
        })
    }
}

/// What else may stand in the place of a schema.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum SchemaOr {
    Bool,
    Array,
    Strings,
}

impl SchemaOr {
    pub fn of(schema: &Schema) -> SchemaOr {
        match schema.short_name() {
            "JSONSchemaPropsOrBool" => SchemaOr::Bool,
            "JSONSchemaPropsOrArray" => SchemaOr::Array,
            _ => SchemaOr::Strings,
        }
    }
}

fn message_bytes<'a>(reader: &mut Reader<'a>, wire: u8, field: &str) -> Result<&'a [u8], Error> {
    if wire == BYTES { reader.bytes() } else { Err(Error::WireType { wire, field: field.to_owned() }) }
}

/// A number in Go's JSON form: whole ones have no fraction.
fn number(n: f64) -> Result<Value, Error> {
    if n.fract() == 0.0 && n.abs() < 9e15 {
        return Ok((n as i64).into());
    }
    Number::from_f64(n)
        .map(Value::Number)
        .ok_or_else(|| Error::Value(format!("json: unsupported value: {n}")))
}

/// Whether Go leaves out this value of a field that is no pointer.
fn absent(omit: Omit, schema: &Schema, value: &Value) -> bool {
    match (omit, value) {
        (Omit::Never, _) => false,
        (_, Value::Bool(b)) => !b && schema.ty == Type::Boolean,
        (_, Value::Number(n)) => matches!(schema.ty, Type::Integer | Type::Number) && n.as_f64() == Some(0.0),
        (_, Value::String(s)) => s.is_empty() && matches!(schema.ty, Type::String | Type::Bytes),
        (_, Value::Array(list)) => list.is_empty(),
        (Omit::Zero, Value::Object(map)) => map.is_empty(),
        _ => false,
    }
}
