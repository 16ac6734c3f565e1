//! Continue tokens: apiserver's format, base64url of `{"v":"meta.k8s.io/v1","rv":…,"start":…}`.
//!
//! Invariant: a decoded token never leads out of the prefix it is used under.

use crate::decode;
use base64::{
    Engine as _, alphabet,
    engine::{
        DecodePaddingMode,
        general_purpose::{GeneralPurpose, GeneralPurposeConfig, URL_SAFE_NO_PAD},
    },
};
use kaji_meta::{Status, object};
use kaji_store::Revision;
use serde::Serialize;
use serde_json::{Map, Value};
use std::borrow::Cow;

#[derive(Serialize)]
struct Wire<'a> {
    v: Cow<'a, str>,
    rv: i64,
    start: Cow<'a, str>,
}

impl Wire<'static> {
    /// Reads the JSON of a token as Go does.
    fn read(json: &[u8]) -> Result<Self, String> {
        let value = decode::json(json)?;
        let members = match value {
            Value::Object(members) => members,
            Value::Null => Map::new(),
            other => {
                let found = object::json_type(&other);
                return Err(format!(
                    "json: cannot unmarshal {found} into Go value of type storage.continueToken"
                ));
            }
        };
        let mismatch = |key: &str, found: &Value, wanted: &str| {
            let found = match found {
                Value::Number(n) if wanted != "string" => format!("number {n}"),
                other => object::json_type(other).to_owned(),
            };
            format!(
                "json: cannot unmarshal {found} into Go struct field continueToken.{key} of type {wanted}"
            )
        };
        let text = |key: &str| match members.get(key) {
            None | Some(Value::Null) => Ok(String::new()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(other) => Err(mismatch(key, other, "string")),
        };
        let rv = match members.get("rv") {
            None | Some(Value::Null) => 0,
            Some(n) => n.as_i64().ok_or_else(|| mismatch("rv", n, "int64"))?,
        };
        Ok(Wire { v: text("v")?.into(), rv, start: text("start")?.into() })
    }
}

/// Base64 for URLs without padding, as lenient as Go's and with its text.
fn decode_base64(token: &str) -> Result<Vec<u8>, String> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &alphabet::URL_SAFE,
        GeneralPurposeConfig::new()
            .with_decode_allow_trailing_bits(true)
            .with_decode_padding_mode(DecodePaddingMode::RequireNone),
    );
    let kept: String = token.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    LENIENT.decode(&kept).map_err(|_| {
        let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        let at = token.bytes().position(|b| !known(b) && !matches!(b, b'\r' | b'\n'));
        // Else one character is left over.
        format!("illegal base64 data at input byte {}", at.unwrap_or(token.len().saturating_sub(1)))
    })
}

/// Where a list continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Continue {
    /// The revision of the list; `None` for the latest (the rest of the list is then inconsistent with its beginning).
    pub revision: Option<Revision>,
    /// The first key, relative to the list's prefix.
    pub start: String,
}

impl Continue {
    /// The token.
    pub fn encode(&self) -> String {
        let rv = self.revision.map_or(-1, |r| i64::try_from(r).unwrap_or(i64::MAX));
        let wire = Wire { v: "meta.k8s.io/v1".into(), rv, start: self.start.as_str().into() };
        let json = serde_json::to_vec(&wire).unwrap_or_default();
        URL_SAFE_NO_PAD.encode(json)
    }

    /// Reads a token.
    ///
    /// # Errors
    /// 400 with apiserver's texts.
    pub fn decode(token: &str) -> Result<Self, Status> {
        Self::parse(token).map_err(|e| Status::bad_request(format!("invalid continue token: {e}")))
    }

    fn parse(token: &str) -> Result<Self, String> {
        let invalid = |e: String| format!("continue key is not valid: {e}");
        let json = decode_base64(token).map_err(invalid)?;
        let wire = Wire::read(&json).map_err(invalid)?;
        if wire.v != "meta.k8s.io/v1" {
            return Err(invalid(format!("server does not recognize this encoded version {}", wire.v)));
        }
        if wire.rv == 0 {
            return Err(invalid("incorrect encoded start resourceVersion (version meta.k8s.io/v1)".into()));
        }
        if wire.start.is_empty() {
            return Err(invalid("encoded start key empty (version meta.k8s.io/v1)".into()));
        }
        let relative = wire.start.strip_prefix('/').unwrap_or(&wire.start);
        if relative.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
            return Err(invalid(wire.start.into_owned()));
        }
        Ok(Continue { revision: u64::try_from(wire.rv).ok(), start: relative.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(json: &str) -> String {
        URL_SAFE_NO_PAD.encode(json)
    }

    #[test]
    fn decodes_what_it_encodes() {
        for revision in [Some(42), None] {
            let c = Continue { revision, start: "ns/name\0".into() };
            assert_eq!(Continue::decode(&c.encode()), Ok(c));
        }
        let c = Continue { revision: Some(7), start: "a\0".into() };
        let json = URL_SAFE_NO_PAD.decode(c.encode()).unwrap();
        assert_eq!(
            std::str::from_utf8(&json),
            Ok("{\"v\":\"meta.k8s.io/v1\",\"rv\":7,\"start\":\"a\\u0000\"}")
        );
    }

    #[test]
    fn rejects_invalid_tokens() {
        for (json, text) in [
            (r#"{"v":"v2","rv":1,"start":"a"}"#, "server does not recognize this encoded version v2"),
            (
                r#"{"v":"meta.k8s.io/v1","start":"a"}"#,
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
            ),
            (r#"{"v":"meta.k8s.io/v1","rv":1}"#, "encoded start key empty (version meta.k8s.io/v1)"),
            (r#"{"v":"meta.k8s.io/v1","rv":1,"start":"../b"}"#, "../b"),
            (r#"{"v":"meta.k8s.io/v1","rv":1,"start":"a//b"}"#, "a//b"),
        ] {
            let error = Continue::decode(&token(json)).unwrap_err();
            assert_eq!(
                (error.code, error.message),
                (400, format!("invalid continue token: continue key is not valid: {text}"))
            );
        }
    }

    #[test]
    fn broken_tokens_are_refused_in_gos_words() {
        let shown: Vec<String> = [
            "x",
            "%",
            "abc=",
            "abcde",
            &token("nojson"),
            &token("[]"),
            &token("null"),
            "eyJ2",
            &token(r#"{"v":1}"#),
            &token(r#"{"v":"meta.k8s.io/v1","rv":"s","start":"a"}"#),
            &token(r#"{"v":"meta.k8s.io/v1","rv":1.5,"start":"a"}"#),
        ]
        .into_iter()
        .map(|t| Continue::decode(t).unwrap_err().message)
        .map(|m| m.strip_prefix("invalid continue token: continue key is not valid: ").unwrap().to_owned())
        .collect();
        expect_test::expect![[r#"
            illegal base64 data at input byte 0
            illegal base64 data at input byte 0
            illegal base64 data at input byte 3
            illegal base64 data at input byte 4
            invalid character 'o' in literal null (expecting 'u')
            json: cannot unmarshal array into Go value of type storage.continueToken
            server does not recognize this encoded version 
            unexpected end of JSON input
            json: cannot unmarshal number into Go struct field continueToken.v of type string
            json: cannot unmarshal string into Go struct field continueToken.rv of type int64
            json: cannot unmarshal number 1.5 into Go struct field continueToken.rv of type int64"#]]
        .assert_eq(&shown.join("\n"));
    }
}
