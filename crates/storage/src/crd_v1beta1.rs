//! Definitions of custom resources as upstream's API server stores them: in version `v1beta1`, which is not served any more.
//!
//! What all versions of a definition have alike (schema, subresources, columns, selectable fields) is a field of the specification there;
//! `v1` has it in each version. Source: the published `generated.proto` of both versions and the conversion that the API reference
//! of `v1` describes.
//!
//! Invariants: the result is what upstream's server answers with in `v1`; parts that are the same in both versions are not decoded.

use kaji_schema::protobuf;
use prost::Message;
use serde_json::{Map, Value, json};

/// The version and kind that this is about.
pub(crate) const API_VERSION: &str = "apiextensions.k8s.io/v1beta1";
pub(crate) const KIND: &str = "CustomResourceDefinition";
/// The version that results.
pub(crate) const SERVED: &str = "apiextensions.k8s.io/v1";

/// The strategy that has a webhook.
const WEBHOOK: &str = "Webhook";

/// A definition of either version.
#[derive(Clone, PartialEq, Message)]
struct Definition {
    #[prost(bytes = "vec", optional, tag = "1")]
    metadata: Option<Vec<u8>>,
    #[prost(message, optional, tag = "2")]
    spec: Option<Spec>,
    #[prost(bytes = "vec", optional, tag = "3")]
    status: Option<Vec<u8>>,
}

/// The specification: fields of both versions.
#[derive(Clone, PartialEq, Message)]
struct Spec {
    #[prost(string, tag = "1")]
    group: String,
    #[prost(string, tag = "2")]
    version: String,
    #[prost(bytes = "vec", optional, tag = "3")]
    names: Option<Vec<u8>>,
    #[prost(string, tag = "4")]
    scope: String,
    #[prost(bytes = "vec", optional, tag = "5")]
    validation: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "6")]
    subresources: Option<Vec<u8>>,
    #[prost(message, repeated, tag = "7")]
    versions: Vec<Version>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    columns: Vec<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "9")]
    conversion: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "10")]
    preserve_unknown_fields: Option<bool>,
    #[prost(bytes = "vec", repeated, tag = "11")]
    selectable_fields: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Version {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(bool, tag = "2")]
    served: bool,
    #[prost(bool, tag = "3")]
    storage: bool,
    #[prost(bytes = "vec", optional, tag = "4")]
    schema: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "5")]
    subresources: Option<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "6")]
    columns: Vec<Vec<u8>>,
    #[prost(bool, tag = "7")]
    deprecated: bool,
    #[prost(string, optional, tag = "8")]
    deprecation_warning: Option<String>,
    #[prost(bytes = "vec", repeated, tag = "9")]
    selectable_fields: Vec<Vec<u8>>,
}

/// In `v1beta1`.
#[derive(Clone, PartialEq, Message)]
struct FormerConversion {
    #[prost(string, tag = "1")]
    strategy: String,
    #[prost(bytes = "vec", optional, tag = "2")]
    client_config: Option<Vec<u8>>,
    #[prost(string, repeated, tag = "3")]
    review_versions: Vec<String>,
}

/// In `v1`.
#[derive(Clone, PartialEq, Message)]
struct Conversion {
    #[prost(string, tag = "1")]
    strategy: String,
    #[prost(message, optional, tag = "2")]
    webhook: Option<Webhook>,
}

#[derive(Clone, PartialEq, Message)]
struct Webhook {
    #[prost(bytes = "vec", optional, tag = "2")]
    client_config: Option<Vec<u8>>,
    #[prost(string, repeated, tag = "3")]
    review_versions: Vec<String>,
}

/// The message of `v1` for one of `v1beta1`, both without their envelopes.
///
/// # Errors
/// When it is not such a message.
pub(crate) fn message(former: &[u8]) -> Result<Vec<u8>, prost::DecodeError> {
    let mut definition = Definition::decode(former)?;
    if let Some(spec) = &mut definition.spec {
        let version = std::mem::take(&mut spec.version);
        if spec.versions.is_empty() && !version.is_empty() {
            spec.versions.push(Version { name: version, served: true, storage: true, ..Version::default() });
        }
        let (schema, subresources) = (spec.validation.take(), spec.subresources.take());
        let columns = std::mem::take(&mut spec.columns);
        let selectable = std::mem::take(&mut spec.selectable_fields);
        for version in &mut spec.versions {
            if schema.is_some() {
                version.schema.clone_from(&schema);
            }
            if subresources.is_some() {
                version.subresources.clone_from(&subresources);
            }
            if !columns.is_empty() {
                version.columns.clone_from(&columns);
            }
            if !selectable.is_empty() {
                version.selectable_fields.clone_from(&selectable);
            }
        }
        // It is true by default in this version.
        spec.preserve_unknown_fields.get_or_insert(true);
        if let Some(conversion) = &mut spec.conversion {
            let former = FormerConversion::decode(&conversion[..])?;
            let of_webhook = former.strategy == WEBHOOK;
            let (client_config, mut review_versions) = (former.client_config, former.review_versions);
            if of_webhook && review_versions.is_empty() {
                review_versions.push("v1beta1".into());
            }
            let webhook = (client_config.is_some() || !review_versions.is_empty())
                .then_some(Webhook { client_config, review_versions });
            *conversion = Conversion { strategy: former.strategy, webhook }.encode_to_vec();
        }
    }
    Ok(definition.encode_to_vec())
}

/// The object of `v1` for one of `v1beta1`.
pub(crate) fn object(definition: &mut Value) {
    definition["apiVersion"] = SERVED.into();
    let Some(Value::Object(spec)) = definition.get_mut("spec") else { return };
    let version = spec.remove("version");
    let shared: Map<String, Value> = [
        ("validation", "schema"),
        ("subresources", "subresources"),
        ("additionalPrinterColumns", "additionalPrinterColumns"),
        ("selectableFields", "selectableFields"),
    ]
    .into_iter()
    .filter_map(|(former, name)| Some((name.to_owned(), spec.remove(former)?)))
    .filter(|(_, value)| !value.is_null())
    .collect();
    let versions = spec.entry("versions").or_insert_with(|| json!([]));
    if let (Value::Array(versions), Some(name)) = (&mut *versions, version)
        && versions.is_empty()
    {
        versions.push(json!({"name": name, "served": true, "storage": true}));
    }
    for version in versions.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        version.extend(shared.clone());
        if let Some(Value::Array(columns)) = version.get_mut("additionalPrinterColumns") {
            for column in columns.iter_mut().filter_map(Value::as_object_mut) {
                let path = column.remove("JSONPath");
                column.extend(path.map(|path| ("jsonPath".to_owned(), path)));
            }
        }
    }
    spec.entry("preserveUnknownFields").or_insert(Value::Bool(true));
    if let Some(Value::Object(conversion)) = spec.get_mut("conversion") {
        let mut webhook = Map::new();
        for (former, name) in [
            ("webhookClientConfig", "clientConfig"),
            ("conversionReviewVersions", "conversionReviewVersions"),
        ] {
            webhook.extend(conversion.remove(former).map(|value| (name.to_owned(), value)));
        }
        if conversion.get("strategy").is_some_and(|strategy| strategy == WEBHOOK) {
            webhook.entry("conversionReviewVersions").or_insert_with(|| json!(["v1beta1"]));
        }
        if !webhook.is_empty() {
            conversion.insert("webhook".into(), webhook.into());
        }
    }
}

/// Whether an envelope or an object has one.
pub(crate) fn is_former(api_version: &str, kind: &str) -> bool {
    api_version == API_VERSION && kind == KIND
}

/// The envelope in `v1`, if it has a definition in `v1beta1`.
///
/// # Errors
/// When it is no such message.
pub(crate) fn convert(envelope: &mut protobuf::Envelope<'_>) -> Result<Option<Vec<u8>>, prost::DecodeError> {
    if !is_former(&envelope.api_version, &envelope.kind) {
        return Ok(None);
    }
    envelope.api_version = SERVED.into();
    message(envelope.raw).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::{Defaults, binary, json as read};
    use bytes::Bytes;
    use std::sync::Arc;

    fn served() -> Value {
        let versions = ["v1", "v2"].map(|name| {
            json!({"name": name, "served": true, "storage": name == "v2",
                "schema": {"openAPIV3Schema": {"type": "object"}}, "subresources": {"status": {}},
                "selectableFields": [{"jsonPath": ".spec.a"}],
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]})
        });
        json!({"kind": KIND, "apiVersion": SERVED, "metadata": {"name": "widgets.example.com", "uid": "u"},
            "spec": {"group": "example.com", "scope": "Namespaced", "versions": versions,
                "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
                "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"url": "https://a.example.com/"},
                    "conversionReviewVersions": ["v1"]}}},
            "status": {"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": null}})
    }

    fn former() -> Value {
        let mut former = served();
        former["apiVersion"] = API_VERSION.into();
        former["spec"]["preserveUnknownFields"] = false.into();
        let spec = former["spec"].as_object_mut().unwrap();
        let mut moved = Value::Null;
        for version in spec["versions"].as_array_mut().unwrap() {
            moved = version.clone();
            *version = json!({"name": version["name"], "served": true, "storage": version["storage"]});
        }
        spec.insert("version".into(), "v1".into());
        spec.insert("validation".into(), moved["schema"].clone());
        spec.insert("subresources".into(), moved["subresources"].clone());
        spec.insert("selectableFields".into(), moved["selectableFields"].clone());
        let columns = json!([{"name": "Size", "type": "integer", "JSONPath": ".spec.size"}]);
        spec.insert("additionalPrinterColumns".into(), columns);
        spec.insert(
            "conversion".into(),
            json!({"strategy": "Webhook", "webhookClientConfig": {"url": "https://a.example.com/"},
                "conversionReviewVersions": ["v1"]}),
        );
        former
    }

    fn message_of(definition: &Value) -> Definition {
        let sealed = binary("/x", definition.to_string().as_bytes()).unwrap().unwrap();
        Definition::decode(protobuf::open(&sealed).unwrap().raw).unwrap()
    }

    #[test]
    fn both_forms_of_a_definition_are_read_as_v1() {
        let defaults: Defaults = Arc::new(|_, _, _| {});
        let expected: Value = {
            let sealed = binary("/x", served().to_string().as_bytes()).unwrap().unwrap();
            serde_json::from_slice(&read("/x", sealed, &defaults).unwrap()).unwrap()
        };
        assert_eq!(expected["spec"]["versions"], served()["spec"]["versions"]);

        let text = read("/x", Bytes::from(format!("{}\n", former())), &defaults).unwrap();
        let mut found: Value = serde_json::from_slice(&text).unwrap();
        found["spec"].as_object_mut().unwrap().remove("preserveUnknownFields");
        assert_eq!(found["spec"], expected["spec"]);
        assert_eq!((&found["apiVersion"], &found["metadata"]["uid"]), (&json!(SERVED), &json!("u")));

        let mut definition = message_of(&served());
        let spec = definition.spec.as_mut().unwrap();
        let first = spec.versions[0].clone();
        for version in &mut spec.versions {
            *version = Version {
                name: version.name.clone(),
                served: true,
                storage: version.storage,
                ..Version::default()
            };
        }
        spec.version = "v1".into();
        (spec.validation, spec.subresources) = (first.schema, first.subresources);
        (spec.columns, spec.selectable_fields) = (first.columns, first.selectable_fields);
        spec.preserve_unknown_fields = Some(false);
        let conversion = Conversion::decode(&spec.conversion.take().unwrap()[..]).unwrap();
        let webhook = conversion.webhook.unwrap();
        let (client_config, review_versions) = (webhook.client_config, webhook.review_versions);
        let conversion = FormerConversion { strategy: conversion.strategy, client_config, review_versions };
        spec.conversion = Some(conversion.encode_to_vec());
        let sealed = protobuf::seal(API_VERSION, KIND, &definition.encode_to_vec());
        let text = read("/x", Bytes::from(sealed), &defaults).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&text).unwrap(), expected);
    }

    #[test]
    fn a_definition_with_a_version_only_has_a_list_of_versions() {
        let mut definition = json!({"spec": {"version": "v1", "validation": {"openAPIV3Schema": {}}}});
        object(&mut definition);
        let versions =
            json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {}}}]);
        assert_eq!(definition["spec"], json!({"versions": versions, "preserveUnknownFields": true}));
        let spec = Spec { version: "v1".into(), validation: Some(vec![]), ..Spec::default() };
        let former = Definition { spec: Some(spec), ..Definition::default() }.encode_to_vec();
        let spec = Definition::decode(&message(&former).unwrap()[..]).unwrap().spec.unwrap();
        assert_eq!(spec.preserve_unknown_fields, Some(true));
        assert_eq!((&*spec.versions[0].name, &spec.versions[0].schema), ("v1", &Some(vec![])));
    }
}
