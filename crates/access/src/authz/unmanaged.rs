//! Decoding an object without its managed fields: authorizers read none of them, and they are half of what decoding costs.
//!
//! Invariant: everything else is decoded as it is.

use kaji_engine::cache::Entry;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Map, Value};
use std::fmt;

/// The object of an entry.
pub(super) fn decode(entry: &Entry) -> Value {
    serde_json::from_slice::<Object>(&entry.object()).map_or_else(
        |error| {
            tracing::error!(key = &*entry.key, %error, "decoding a cached object");
            Value::Null
        },
        |object| Value::Object(object.0),
    )
}

/// An object.
struct Object(Map<String, Value>);

/// Its metadata.
struct Metadata(Value);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_map(Members)
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let mut members = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value =
                if key == "metadata" { map.next_value::<Metadata>()?.0 } else { map.next_value::<Value>()? };
            members.insert(key, value);
        }
        Ok(Object(members))
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_map(MetadataMembers).map(Metadata)
    }
}

struct MetadataMembers;

impl<'de> Visitor<'de> for MetadataMembers {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("metadata")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if key == "managedFields" {
                map.next_value::<IgnoredAny>()?;
            } else {
                members.insert(key, map.next_value()?);
            }
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn leaves_out_managed_fields_of_the_object_alone() {
        let fields = json!([{"manager": "m"}]);
        let text = json!({
            "metadata": {"name": "a", "annotations": {"b": "c"}, "managedFields": fields},
            "spec": {"managedFields": fields, "nodeName": "n"}, "kind": "K",
        });
        let object: Object = serde_json::from_str(&text.to_string()).unwrap();
        let mut want = text;
        want["metadata"].as_object_mut().unwrap().remove("managedFields");
        assert_eq!(Value::Object(object.0), want);
    }
}
