//! Unknown and duplicate fields in the order of the document, as Go's strict decoder meets them.
//!
//! Only asked when there is something to report: what a document holds is known from a value, which has forgotten its
//! order. Invariant: what an unknown field holds is not looked at, and nothing is reported twice.

use super::json::{Link, MAX_STRICT_ERRORS, Step};
use kaji_meta::{
    json::{Malformed, Reader},
    text,
};
use kaji_schema::{Property, Props, Schema, SchemaRef, Type};
use std::{borrow::Cow, collections::HashSet, sync::LazyLock};

/// What there is to report of a document of a built-in type. Texts that are no JSON were refused before.
pub(super) fn reports(schema: &Schema, document: &str) -> Vec<String> {
    let mut walk = Walk::default();
    let done = walk.value(&mut Reader::new(document), Some(schema), None);
    debug_assert!(done.is_ok(), "{done:?}");
    walk.found
}

/// What there is to report of a JSON patch.
pub(crate) fn reports_of_patch(document: &str) -> Vec<String> {
    static OPERATIONS: LazyLock<Schema> = LazyLock::new(|| {
        let any = || SchemaRef::owned(Schema::of(Type::Any));
        let members = ["op", "path", "from", "value"].map(|name| Property::new(name, any()));
        let operation = Schema { properties: Some(Props::new(members.into())), ..Schema::of(Type::Object) };
        Schema { items: Some(SchemaRef::owned(operation)), ..Schema::of(Type::Array) }
    });
    reports(&OPERATIONS, document)
}

#[derive(Default)]
struct Walk {
    found: Vec<String>,
}

/// What the members of an object are.
enum Members<'s> {
    Fields(&'s Schema),
    Keys(Option<&'s Schema>),
    /// Their type reads them by itself.
    Raw,
}

fn members(schema: Option<&Schema>) -> Members<'_> {
    let Some(schema) = schema else { return Members::Keys(None) };
    match (schema.ty, &schema.properties, &schema.additional, &schema.items) {
        (Type::Object, Some(_), ..) => Members::Fields(schema),
        (Type::Object, None, Some(values), _) => Members::Keys(Some(values.get())),
        (Type::Any, ..) if schema.name.is_none() => Members::Keys(None),
        _ => Members::Raw,
    }
}

impl Walk {
    fn report(&mut self, what: &str, link: &Link<'_>) {
        let mut path = String::new();
        link.write(&mut path);
        let text = format!("{what} field {}", text::quote(&path));
        if self.found.len() < MAX_STRICT_ERRORS && !self.found.contains(&text) {
            self.found.push(text);
        }
    }

    fn value(
        &mut self,
        reader: &mut Reader<'_>,
        schema: Option<&Schema>,
        at: Option<&Link<'_>>,
    ) -> Result<(), Malformed> {
        match reader.peek() {
            Some(b'{') => match members(schema) {
                Members::Raw => reader.value().map(drop),
                members => self.object(reader, &members, at),
            },
            Some(b'[') if schema.is_some_and(|schema| schema.ty == Type::SchemaOr) => {
                reader.value().map(drop)
            }
            Some(b'[') => {
                reader.take(b'[');
                let items = schema.and_then(|s| s.items.as_ref()).map(SchemaRef::get);
                let mut index = 0;
                while reader.element() {
                    let link = Link { parent: at, step: Step::Index(index) };
                    self.value(reader, items, Some(&link))?;
                    index += 1;
                }
                Ok(())
            }
            _ => reader.value().map(drop),
        }
    }

    fn object(
        &mut self,
        reader: &mut Reader<'_>,
        members: &Members<'_>,
        at: Option<&Link<'_>>,
    ) -> Result<(), Malformed> {
        reader.take(b'{');
        let mut seen: HashSet<Cow<'_, str>> = HashSet::new();
        while let Some(key) = reader.key()? {
            let link = Link { parent: at, step: Step::Key(&key) };
            let schema = match members {
                Members::Fields(schema) => match schema.property(&key) {
                    Some(property) => Some(property.schema.get()),
                    None => {
                        self.report("unknown", &link);
                        reader.value()?;
                        continue;
                    }
                },
                Members::Keys(values) => *values,
                Members::Raw => None,
            };
            if seen.contains(&key) {
                self.report("duplicate", &link);
            }
            self.value(reader, schema, Some(&link))?;
            seen.insert(key);
        }
        Ok(())
    }
}
