//! Continue tokens: apiserver's format, base64url of `{"v":"meta.k8s.io/v1","rv":…,"start":…}`.
//!
//! Invariant: a decoded token never leads out of the prefix it is used under.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use kaji_meta::Status;
use kaji_store::Revision;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

#[derive(Serialize, Deserialize)]
struct Wire<'a> {
    #[serde(default, borrow)]
    v: Cow<'a, str>,
    #[serde(default)]
    rv: i64,
    #[serde(default, borrow)]
    start: Cow<'a, str>,
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
        let json = URL_SAFE_NO_PAD.decode(token).map_err(|e| invalid(format!("illegal base64 data: {e}")))?;
        let wire: Wire<'_> = serde_json::from_slice(&json).map_err(|e| invalid(e.to_string()))?;
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
    fn round_trip() {
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
    fn refused() {
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
        assert_eq!(Continue::decode("%").unwrap_err().code, 400);
        assert_eq!(Continue::decode(&token("[")).unwrap_err().code, 400);
    }
}
