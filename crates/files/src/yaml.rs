//! Configuration files in YAML or JSON, decoded by way of a JSON value, as upstream does: a scalar has the type that YAML gives
//! it, and a type is decoded by the reader of JSON values that it has anyway. A decoder of YAML for each type would be two
//! megabytes of the program.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Why a text is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum YamlError {
    /// It is no YAML.
    #[error("{0}")]
    Syntax(String),
    /// Its fields are not those of the type.
    #[error(transparent)]
    Fields(#[from] serde_json::Error),
}

/// Decodes the only document of a text. As in Go, a field that is `null` is absent, and an empty document has no fields.
///
/// # Errors
/// When it is no YAML, has keys twice or several documents, or does not have the fields of the type.
pub fn decode<T: DeserializeOwned>(text: &str) -> Result<T, YamlError> {
    decode_with(text, |_| {})
}

/// Decodes as [`decode`] does what `prepare` makes of the document.
///
/// # Errors
/// As [`decode`].
pub fn decode_with<T: DeserializeOwned>(
    text: &str,
    prepare: impl FnOnce(&mut Value),
) -> Result<T, YamlError> {
    let document: Value =
        serde_saphyr::from_str(text).map_err(|error| YamlError::Syntax(error.to_string()))?;
    let mut document = if document.is_null() { json!({}) } else { document };
    drop_null_fields(&mut document);
    prepare(&mut document);
    Ok(serde_json::from_value(document)?)
}

/// The documents of a text, such as a file of manifests, without empty ones.
///
/// # Errors
/// When it is no YAML, or has keys twice.
pub fn documents(text: &str) -> Result<Vec<Value>, YamlError> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|error| YamlError::Syntax(error.to_string()))?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

fn drop_null_fields(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_null_fields);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_null_fields),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Limits {
        name: String,
        #[serde(default)]
        most: Option<u32>,
    }

    #[test]
    fn splits_a_text_into_documents() {
        let text = "---\na: 1\n---\n# nothing\n---\n{\"b\": null}\n";
        assert_eq!(documents(text).unwrap(), [json!({"a": 1}), json!({"b": null})]);
        assert_eq!(documents("").unwrap(), [json!(null); 0]);
        assert!(documents("a: 1\n---\na: [").is_err());
    }

    #[test]
    fn decodes_yaml_and_json() {
        let found: Limits = decode("name: a\nmost: 3\n").unwrap();
        assert_eq!((found.name.as_str(), found.most), ("a", Some(3)));
        assert_eq!(decode::<Limits>(r#"{"name": "b"}"#).unwrap().name, "b");
        assert_eq!(decode::<Limits>("name: a\nmost:\n").unwrap().most, None);
        let named = |document: &mut Value| document["name"] = "c".into();
        assert_eq!(decode_with::<Limits>("", named).unwrap().name, "c");
    }

    #[test]
    fn rejects_what_is_not_of_the_type() {
        let refusal = |text: &str| decode::<Limits>(text).unwrap_err().to_string();
        assert!(refusal("name: a\nother: 1\n").starts_with("unknown field `other`"));
        assert!(refusal("name: 1.5\n").starts_with("invalid type: floating point `1.5`, expected a string"));
        assert!(matches!(decode::<Limits>("name: a\nname: b\n"), Err(YamlError::Syntax(_))));
        assert!(matches!(decode::<Limits>("name: a\n---\nname: b\n"), Err(YamlError::Syntax(_))));
        assert!(matches!(decode::<Limits>(": ["), Err(YamlError::Syntax(_))));
    }
}
