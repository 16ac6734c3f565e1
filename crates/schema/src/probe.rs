//! What a type that implements `Deserialize` reads, compared with the schema of what it is read from.
//!
//! The loops keep projections of objects: structs of their own with the few members that they read. Nothing in the compiler ties the
//! members of a projection to the kind's schema; this does, in tests: the type is deserialized from the schema itself, each value
//! being the simplest one that the schema allows, and members that it asks for and the schema lacks are reported.
//!
//! Invariants: a value is made for each member that the schema has, down to [`DEPTH`]; a type that takes a value of another sort than
//! the schema's is reported, too. Members of a flattened struct cannot be told, because serde reads them as a map.

use crate::{Schema, SchemaRef, schema::Type, types};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, VariantAccess, Visitor, value::Error,
};
use std::cell::RefCell;

/// Types that hold themselves end here.
const DEPTH: usize = 16;
/// The member of a map.
const MEMBER: &str = "a";

/// Members that `T` reads and `schema` does not have, as paths, and what else keeps a `T` from being read; sorted.
pub fn mismatches<T: DeserializeOwned>(schema: &SchemaRef) -> Vec<String> {
    let found = RefCell::default();
    if let Err(error) =
        T::deserialize(Probe { schema: Some(schema), path: String::new(), depth: 0, found: &found })
    {
        found.borrow_mut().push(error.to_string());
    }
    let mut found = found.into_inner();
    found.sort();
    found.dedup();
    found
}

/// The same for a built-in kind.
pub fn mismatches_with_kind<T: DeserializeOwned>(group: &str, version: &str, kind: &str) -> Vec<String> {
    match types::for_gvk(group, version, kind) {
        Some(schema) => mismatches::<T>(&schema),
        None => vec![format!("{group}/{version} has no kind {kind}")],
    }
}

/// One value of the schema.
struct Probe<'a> {
    /// `None` for what the schema says nothing of.
    schema: Option<&'a SchemaRef>,
    path: String,
    depth: usize,
    found: &'a RefCell<Vec<String>>,
}

impl<'a> Probe<'a> {
    fn schema(&self) -> Option<&'a Schema> {
        self.schema.map(SchemaRef::get)
    }

    fn ty(&self) -> Type {
        self.schema().map_or(Type::Any, |schema| schema.ty)
    }

    fn report(&self, what: &str) {
        self.found.borrow_mut().push(format!("{}: {what}", self.path));
    }

    fn child(&self, name: &str, schema: Option<&'a SchemaRef>) -> Probe<'a> {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Probe { schema, path, depth: self.depth + 1, found: self.found }
    }

    /// The members that the schema has.
    fn members(&self) -> Members<'a> {
        let mut list = vec![];
        if let Some(schema) = self.schema().filter(|_| self.depth < DEPTH) {
            let properties = schema.properties.iter().flatten();
            list.extend(properties.map(|p| (p.name.to_string(), self.child(&p.name, Some(&p.schema)))));
            if let Some(additional) = &schema.additional {
                list.push((MEMBER.to_owned(), self.child(MEMBER, Some(additional))));
            }
        }
        list.reverse();
        Members { list, next: None }
    }

    /// The one element.
    fn elements(&self) -> Elements<'a> {
        let items = self.schema().and_then(|schema| schema.items.as_ref()).filter(|_| self.depth < DEPTH);
        Elements(items.map(|items| self.child("[]", Some(items))))
    }

    /// A text as the schema's type has it.
    fn text(&self) -> &'static str {
        match self.ty() {
            Type::Quantity | Type::IntOrString => "1",
            Type::Time => "2026-01-02T03:04:05Z",
            Type::MicroTime => "2026-01-02T03:04:05.000006Z",
            Type::Duration => "1s",
            Type::Bytes => "YQ==",
            _ => "a",
        }
    }

    fn expect(&self, what: &str, allowed: &[Type]) {
        let ty = self.ty();
        if ty != Type::Any && !allowed.contains(&ty) {
            self.report(&format!("is read as {what}, and is {ty:?}"));
        }
    }
}

macro_rules! whole_numbers {
    ($($method:ident $visit:ident $ty:ty),*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.expect("a whole number", &[Type::Integer, Type::IntOrString]);
            visitor.$visit(1 as $ty)
        })*
    };
}

macro_rules! texts {
    ($($method:ident),*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.expect("a text", &TEXTS);
            visitor.visit_str(self.text())
        })*
    };
}

const TEXTS: [Type; 7] = [
    Type::String,
    Type::Quantity,
    Type::IntOrString,
    Type::Time,
    Type::MicroTime,
    Type::Duration,
    Type::Bytes,
];

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.ty() {
            Type::Object => visitor.visit_map(self.members()),
            Type::Array => visitor.visit_seq(self.elements()),
            Type::Integer | Type::IntOrString => visitor.visit_i64(1),
            Type::Number => visitor.visit_f64(1.0),
            Type::Boolean => visitor.visit_bool(true),
            Type::SchemaOr | Type::Any => visitor.visit_unit(),
            _ => visitor.visit_str(self.text()),
        }
    }

    whole_numbers!(
        deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16, deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64, deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32, deserialize_u64 visit_u64 u64
    );
    texts!(
        deserialize_char,
        deserialize_str,
        deserialize_string,
        deserialize_bytes,
        deserialize_byte_buf,
        deserialize_identifier
    );

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.expect("a number", &[Type::Number, Type::Integer]);
        visitor.visit_f64(1.0)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.expect("a boolean", &[Type::Boolean]);
        visitor.visit_bool(true)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        // A type that holds itself ends somewhere.
        if self.depth >= DEPTH { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.expect("a list", &[Type::Array]);
        visitor.visit_seq(self.elements())
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.expect("an object", &[Type::Object]);
        visitor.visit_map(self.members())
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.expect("an object", &[Type::Object]);
        let declared = self.schema().and_then(|schema| schema.properties.as_ref());
        for field in
            fields.iter().filter(|field| declared.is_some_and(|declared| declared.get(field).is_none()))
        {
            self.child(field, None).report("is not in the schema");
        }
        visitor.visit_map(self.members())
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.expect("one of several texts", &TEXTS);
        visitor.visit_enum(First(variants.first().copied().unwrap_or_default()))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }
}

/// The members of an object, the next one last.
struct Members<'a> {
    list: Vec<(String, Probe<'a>)>,
    next: Option<Probe<'a>>,
}

impl<'de> MapAccess<'de> for Members<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some((name, probe)) = self.list.pop() else { return Ok(None) };
        self.next = Some(probe);
        seed.deserialize(name.into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        match self.next.take() {
            Some(probe) => seed.deserialize(probe),
            None => Err(de::Error::custom("a value without its key")),
        }
    }
}

/// The elements of a list: one.
struct Elements<'a>(Option<Probe<'a>>);

impl<'de> SeqAccess<'de> for Elements<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.0.take().map(|probe| seed.deserialize(probe)).transpose()
    }
}

/// An enum of texts, by its first one.
struct First(&'static str);

impl<'de> EnumAccess<'de> for First {
    type Error = Error;
    type Variant = First;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, First), Error> {
        Ok((seed.deserialize(self.0.into_deserializer())?, self))
    }
}

impl<'de> VariantAccess<'de> for First {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, Error> {
        Err(de::Error::custom("a variant with a value is not read from a text"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Error> {
        Err(de::Error::custom("a variant with values is not read from a text"))
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], _: V) -> Result<V::Value, Error> {
        Err(de::Error::custom("a variant with members is not read from a text"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde::Deserialize;
    use std::collections::BTreeMap;

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    #[expect(dead_code, reason = "only read")]
    struct Read {
        metadata: Metadata,
        spec: Spec,
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Metadata {
        name: String,
        labels: BTreeMap<String, String>,
        generation: String,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    #[expect(dead_code, reason = "only read")]
    struct Spec {
        node_name: Option<String>,
        node: Option<String>,
        containers: Vec<Container>,
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Container {
        name: BTreeMap<String, String>,
        env: Option<bool>,
    }

    #[test]
    fn reports_members_and_types_that_the_schema_lacks() {
        let found = mismatches_with_kind::<Read>("", "v1", "Pod").join("\n");
        expect![[r#"
            metadata.generation: is read as a text, and is Integer
            spec.containers.[].env: is read as a boolean, and is Array
            spec.containers.[].name: is read as an object, and is String
            spec.node: is not in the schema"#]]
        .assert_eq(&found);
        assert_eq!(mismatches_with_kind::<Read>("", "v1", "Pot"), ["/v1 has no kind Pot"]);
    }
}
