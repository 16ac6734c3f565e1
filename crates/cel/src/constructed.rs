//! Objects that expressions construct (`Object.spec{replicas: 3}`, `JSONPatch{op: "remove", ...}`), and values as JSON.
//! Sources: apiserver `cel/mutation`.

use crate::{
    error::Error,
    types::{Named, Type},
    value::{Ext, Key, Map, Text, Value},
};
use base64::Engine;
use kaji_meta::{OverBudget, SizeBudget};
use serde_json::{Map as Object, Value as Json};
use std::sync::Arc;

/// The type of operations of a JSON patch.
pub(crate) const JSON_PATCH: &str = "JSONPatch";
/// The type of whole objects; parts of them are named after the way to them.
pub(crate) const OBJECT: &str = "Object";

/// An object that an expression made.
#[derive(Clone, Debug)]
pub struct Struct<'a> {
    /// Its type.
    pub name: Arc<str>,
    /// Its fields, in the order in which they were written.
    pub fields: Vec<(Arc<str>, Value<'a>)>,
}

impl<'a> Struct<'a> {
    /// The value of a field, if it was given.
    pub fn get(&self, field: &str) -> Option<&Value<'a>> {
        self.fields.iter().find(|(name, _)| **name == *field).map(|(_, value)| value)
    }

    pub(crate) fn named(&self) -> Named {
        if *self.name == *JSON_PATCH { Named::JsonPatch } else { Named::Object }
    }

    /// What field selection finds.
    pub(crate) fn field(&self, field: &str) -> Result<Option<Value<'a>>, Error> {
        match (self.named(), field) {
            (Named::JsonPatch, "op" | "path" | "from") => {
                Ok(Some(self.get(field).cloned().unwrap_or(Value::String(Text::Borrowed("")))))
            }
            (Named::Object, _) | (Named::JsonPatch, "value") => Ok(self.get(field).cloned()),
            _ => Err(Error::no_such_key(field)),
        }
    }

    /// Whether every part is named after the way to it from the whole object; the texts say which is not.
    pub fn misnamed(&self) -> Vec<String> {
        let mut found = vec![];
        self.check_names(&self.name, &mut found);
        found
    }

    fn check_names(&self, path: &str, found: &mut Vec<String>) {
        if *self.name != *path {
            found.push(format!(
                "unexpected type name {:?}, expected {path:?}, which matches field name path from root Object type",
                self.name
            ));
        }
        for (name, value) in &self.fields {
            check_names(value, &format!("{path}.{name}"), found);
        }
    }
}

fn check_names(value: &Value<'_>, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Struct(part) => part.check_names(path, found),
        Value::List(list) => list.iter().flatten().for_each(|v| check_names(&v, path, found)),
        Value::Map(map @ Map::Constructed(_)) => {
            let values = map.keys().into_iter().filter_map(|k| map.get(&k).ok().flatten());
            values.for_each(|v| check_names(&v, path, found));
        }
        _ => {}
    }
}

/// The type that `name{...}` makes, where expressions may make objects.
pub(crate) fn constructed_type(name: &str) -> Option<Type> {
    let name = name.strip_prefix('.').unwrap_or(name);
    match name {
        JSON_PATCH => Some(Type::Named(Named::JsonPatch)),
        OBJECT => Some(Type::Part(name.into())),
        _ if name.strip_prefix(OBJECT).is_some_and(|rest| rest.starts_with('.')) => {
            Some(Type::Part(name.into()))
        }
        _ => None,
    }
}

/// The type of a field of what is made; none if it has no such field.
pub(crate) fn field_type(of: &Type, field: &str) -> Option<Type> {
    match (of, field) {
        (Type::Part(_), _) | (Type::Named(Named::JsonPatch), "value") => Some(Type::Dyn),
        (Type::Named(Named::JsonPatch), "op" | "path" | "from") => Some(Type::String),
        _ => None,
    }
}

impl Value<'_> {
    /// The value as JSON.
    ///
    /// # Errors
    /// It has no JSON form: a type, a key that is no text, a number that is none; or a very large one, as that of a list of
    /// many references to one large object.
    pub fn to_json(&self) -> Result<Json, Error> {
        self.copied(&mut SizeBudget::default())
    }

    fn copied(&self, budget: &mut SizeBudget) -> Result<Json, Error> {
        let large = |over: OverBudget| Error::eval(format!("the value takes {over}"));
        budget.take_value(&Json::Null).map_err(large)?;
        let none = || Error::eval(format!("{} has no JSON form", self.ty().name()));
        Ok(match self {
            Value::Null | Value::Optional(None) => Json::Null,
            Value::Bool(b) => Json::Bool(*b),
            Value::Int(i) => Json::from(*i),
            Value::Uint(u) => Json::from(*u),
            Value::Double(d) => serde_json::Number::from_f64(*d).map(Json::Number).ok_or_else(none)?,
            Value::String(s) => {
                budget.take(s.len()).map_err(large)?;
                Json::from(&**s)
            }
            Value::Bytes(b) => Json::from(base64::engine::general_purpose::STANDARD.encode(b)),
            Value::Timestamp(t) => Json::from(crate::functions::time::timestamp_text(*t)),
            Value::Duration(nanos) => Json::from(crate::functions::time::duration_text(*nanos)),
            Value::List(list) => {
                Json::Array(list.iter().map(|v| v?.copied(budget)).collect::<Result<Vec<Json>, Error>>()?)
            }
            Value::Map(Map::Json { object, .. } | Map::Object { object, .. }) => {
                budget.take_map().map_err(large)?;
                let mut copy = Object::new();
                for (key, value) in object.iter() {
                    budget.insert(&mut copy, key, value).map_err(large)?;
                }
                Json::Object(copy)
            }
            Value::Map(map) => {
                budget.take_map().map_err(large)?;
                let mut object = Object::new();
                for key in map.keys() {
                    let Some(Key::String(name)) = Key::of(&key) else {
                        let text =
                            format!("map key {:?} is of type {}, not string", key.shown(), key.ty().name());
                        return Err(Error::eval(text));
                    };
                    let value = map.get(&key)?.unwrap_or(Value::Null);
                    object.insert(name.to_string(), value.copied(budget)?);
                }
                Json::Object(object)
            }
            Value::Optional(Some(value)) => value.copied(budget)?,
            Value::Struct(part) => {
                budget.take_map().map_err(large)?;
                let mut object = Object::new();
                for (name, value) in &part.fields {
                    object.insert(name.to_string(), value.copied(budget)?);
                }
                Json::Object(object)
            }
            Value::Ext(Ext::Quantity(q)) => Json::from(q.to_string()),
            Value::Type(_) | Value::Ext(_) => return Err(none()),
        })
    }
}
