//! Secrets. `stringData` is written into `data` when an object is decoded and never stored.

mod tls;

use super::configmaps::{MAX_DATA, frozen_data};
use crate::shared::{
    check, metadata,
    rules::{base64_bytes, base64_len},
    table::{age, name},
    value::{Fields, default_text, drop_field, ensure_object, put},
};
use base64::Engine;
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object, validation,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SelectableField, age_column, name_column};
use serde_json::Value;

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Type",
        "string",
        0,
        "Used to facilitate programmatic handling of secret data. More info: https://kubernetes.io/docs/concepts/configuration/secret/#secret-types",
    ),
    Column::new(
        "Data",
        "string",
        0,
        "Data contains the secret data. Each key must consist of alphanumeric characters, '-', '_' or '.'. The serialized form of the secret data is a base64 encoded string, representing the arbitrary (possibly non-string) data value here. Described in https://tools.ietf.org/html/rfc4648#section-4",
    ),
    age_column(),
];

const SERVICE_ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
const TLS: &str = "kubernetes.io/tls";

struct Secrets;

/// Go's words for bytes that are no JSON object.
fn not_an_object(bytes: &[u8]) -> Option<String> {
    if bytes.is_empty() {
        return Some("unexpected end of JSON input".into());
    }
    let kind = match serde_json::from_slice::<Value>(bytes) {
        Ok(Value::Object(_) | Value::Null) => return None,
        Ok(Value::String(_)) => "string",
        Ok(Value::Number(_)) => "number",
        Ok(Value::Bool(_)) => "bool",
        Ok(Value::Array(_)) => "array",
        Err(e) if e.is_eof() => return Some("unexpected end of JSON input".into()),
        Err(e) => {
            let at = bytes.get(e.column().saturating_sub(1)).or(bytes.first()).copied().unwrap_or(b' ');
            return Some(format!("invalid character {:?} looking for beginning of value", char::from(at)));
        }
    };
    Some(format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"))
}

fn json_key(errs: &mut ErrorList, data: &Value, key: &str) {
    let path = Path::new("data").key(key);
    match data.opt_text(key) {
        None => errs.push(Error::required(&path, "")),
        Some(text) => {
            if let Some(problem) = not_an_object(&base64_bytes(text)) {
                errs.push(Error::invalid(&path, "<secret contents redacted>", problem));
            }
        }
    }
}

fn type_rules(errs: &mut ErrorList, object: &Value) {
    let data = object.at("data");
    let has = |k: &str| data.get(k).is_some();
    let mut need = |k: &str| errs.push(Error::required(&Path::new("data").key(k), ""));
    match object.text("type") {
        "kubernetes.io/service-account-token"
            if object::annotation(object, SERVICE_ACCOUNT_NAME).unwrap_or("").is_empty() =>
        {
            let path = Path::new("metadata").child("annotations").key(SERVICE_ACCOUNT_NAME);
            errs.push(Error::required(&path, ""));
        }
        "kubernetes.io/dockercfg" => json_key(errs, data, ".dockercfg"),
        "kubernetes.io/dockerconfigjson" => json_key(errs, data, ".dockerconfigjson"),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            need("username");
            need("password");
        }
        "kubernetes.io/ssh-auth" if data.text("ssh-privatekey").is_empty() => need("ssh-privatekey"),
        TLS => ["tls.crt", "tls.key"].into_iter().filter(|k| !has(k)).for_each(need),
        _ => {}
    }
}

impl Hooks for Secrets {
    fn default(&self, _version: &str, object: &mut Value) {
        if object.has("stringData") {
            let plain: Vec<(String, String)> = object
                .string_map("stringData")
                .map(|(k, v)| (k.to_owned(), base64::engine::general_purpose::STANDARD.encode(v)))
                .collect();
            if !plain.is_empty() {
                let data = ensure_object(object, "data");
                plain.into_iter().for_each(|(k, v)| put(data, &k, v));
            }
        }
        drop_field(object, "stringData");
        default_text(object, "type", "Opaque");
    }

    fn prepare_update(&self, _ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        default_text(new, "type", old.text("type"));
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = vec![];
        let path = Path::new("data");
        let mut size = 0;
        for (k, v) in object.string_map("data") {
            check::each(&mut errs, &path.key(k), k, validation::is_config_map_key(k));
            size += base64_len(v);
        }
        if size > MAX_DATA {
            errs.push(Error::too_long(&path, "", MAX_DATA));
        }
        type_rules(&mut errs, object);
        errs
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        check::immutable(&mut errs, &Path::new("type"), new.at("type"), old.at("type"));
        frozen_data(&mut errs, new, old, &["data"]);
        errs.extend(self.validate_create(ctx, new));
        errs
    }

    fn warnings(&self, _ctx: &Ctx<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        if new.text("type") != TLS {
            return vec![];
        }
        let bytes = |key: &str| base64_bytes(new.at("data").text(key));
        tls::problem(&bytes("tls.crt"), &bytes("tls.key")).into_iter().collect()
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let count = object.map("data").map_or(0, |m| m.len());
        vec![name(object), object.text("type").into(), count.into(), age(object, now)]
    }
}

/// The definition of Secrets.
pub fn def() -> ResourceDef {
    ResourceDef::builtin("", "v1", "Secret", "secrets", Scope::Namespaced, COLUMNS, Secrets)
        .optional_to_start()
        .metadata_checks(&[metadata::UPDATE, metadata::WHOLE], &[metadata::UPDATE])
        .select(&[SelectableField::new("type")])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, created, row, update_errors, warnings};
    use base64::engine::general_purpose::STANDARD;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn string_data_becomes_data() {
        expect![[r#"
            {
              "data": {
                "a": "MQ==",
                "b": "Mg=="
              },
              "type": "Opaque"
            }"#]]
        .assert_eq(&created(&def(), json!({"data": {"a": "eA==", "b": "Mg=="}, "stringData": {"a": "1"}})));
    }

    #[test]
    fn types_require_their_keys() {
        let all: Vec<String> = [
            json!({"type": "kubernetes.io/service-account-token"}),
            json!({"type": "kubernetes.io/dockercfg"}),
            json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "W10="}}),
            json!({"type": "kubernetes.io/basic-auth"}),
            json!({"type": "kubernetes.io/ssh-auth"}),
            json!({"type": "kubernetes.io/tls"}),
            json!({"type": "my/type"}),
        ]
        .into_iter()
        .map(|s| create_errors(&def(), s))
        .collect();
        expect![[r#"
            metadata.annotations[kubernetes.io/service-account.name]: Required value
            data[.dockercfg]: Required value
            data[.dockerconfigjson]: Invalid value: "<secret contents redacted>": json: cannot unmarshal array into Go value of type map[string]interface {}
            data[username]: Required value
            data[password]: Required value
            data[ssh-privatekey]: Required value
            data[tls.crt]: Required value
            data[tls.key]: Required value
        "#]]
        .assert_eq(&all.join("\n"));
    }

    #[test]
    fn rejects_changes_of_immutable_data() {
        let old = json!({"immutable": true, "data": {"a": "MQ=="}});
        expect![[r#"
            type: Invalid value: "x": field is immutable
            immutable: Forbidden: field is immutable when `immutable` is set
            data: Forbidden: field is immutable when `immutable` is set"#]]
        .assert_eq(&update_errors(&def(), "", json!({"type": "x", "data": {"a": "Mg=="}}), old));
    }

    #[test]
    fn warns_of_keys_of_other_certificates() {
        let made = || rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
        let secret = |ty: &str, crt: &str, key: &str| json!({"type": ty, "data": {"tls.crt": STANDARD.encode(crt), "tls.key": STANDARD.encode(key)}});
        let (one, other) = (made(), made());
        let (crt, key) = (one.cert.pem(), one.signing_key.serialize_pem());
        assert_eq!(warnings(&def(), &secret(TLS, &crt, &key)), "");
        let wrong = other.signing_key.serialize_pem();
        expect!["tls: private key does not match public key"]
            .assert_eq(&warnings(&def(), &secret(TLS, &crt, &wrong)));
        expect!["tls: failed to find any PEM data in key input"]
            .assert_eq(&warnings(&def(), &secret(TLS, &crt, "")));
        assert_eq!(warnings(&def(), &secret("Opaque", &crt, &wrong)), "");
    }

    #[test]
    fn prints_a_row() {
        let s = json!({"metadata": {"name": "s"}, "type": "Opaque", "data": {"a": "MQ=="}});
        assert_eq!(row(&def(), &s), "s | Opaque | 1 | <unknown>");
    }
}
