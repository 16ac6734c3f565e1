//! JSON Web Tokens in compact form: parsing, signatures, times. Sources: RFC 7515, RFC 7519.
//!
//! Invariants:
//! - Parsing never panics and looks at a bounded number of bytes.
//! - Claims are not to be trusted before [`Token::verify`] said yes; what is read before that only selects the verifier.

use super::keys::{KeyError, PublicKey, SigningKey};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};

/// Longest token that is looked at, in bytes. Tokens of large identity providers are a few KiB.
pub const MAX_TOKEN: usize = 64 * 1024;

/// How far clocks may be apart, in seconds. Source: go-jose, `DefaultLeeway`.
pub const LEEWAY: i64 = 60;

/// A parsed token.
#[derive(Clone, Debug)]
pub struct Token<'a> {
    /// The header's `alg`.
    pub algorithm: String,
    /// The header's `kid`, `""` without one.
    pub key_id: String,
    /// The payload.
    pub claims: Claims,
    signed: &'a str,
    signature: Vec<u8>,
}

/// The payload of a token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claims(pub Map<String, Value>);

/// What a token's times say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untimely {
    /// `exp` is over.
    Expired,
    /// `nbf` is ahead.
    NotYet,
    /// `iat` is ahead.
    FromTheFuture,
    /// A time that is no number.
    Malformed,
}

impl<'a> Token<'a> {
    /// Parses; `None` for what is no signed JWT in compact form.
    pub fn parse(text: &'a str) -> Option<Token<'a>> {
        if text.len() > MAX_TOKEN {
            return None;
        }
        let (signed, signature) = text.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        if payload.contains('.') {
            return None;
        }
        let object = |part: &str| match serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?) {
            Ok(Value::Object(map)) => Some(map),
            _ => None,
        };
        let (header, claims) = (object(header)?, object(payload)?);
        // RFC 7515, 4.1.11: an extension that is critical and not understood makes a token invalid.
        if header.contains_key("crit") {
            return None;
        }
        let text = |key: &str| header.get(key).map_or(Some(""), Value::as_str).map(str::to_owned);
        Some(Token {
            algorithm: text("alg")?,
            key_id: text("kid")?,
            claims: Claims(claims),
            signed,
            signature: URL_SAFE_NO_PAD.decode(signature).ok()?,
        })
    }

    /// Whether one of the keys signed it.
    pub fn verify<'k>(&self, mut keys: impl Iterator<Item = &'k PublicKey>) -> bool {
        keys.any(|key| key.verifies(&self.algorithm, self.signed.as_bytes(), &self.signature))
    }
}

impl Claims {
    /// A text claim, `""` without it.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// `aud`: one text or several.
    pub fn audiences(&self) -> Vec<String> {
        strings(self.0.get("aud"))
    }

    /// Checks `exp`, `nbf` and `iat`, each where it is there, with [`LEEWAY`].
    pub fn check_times(&self, now: jiff::Timestamp) -> Result<(), Untimely> {
        let now = now.as_second();
        let date = |name: &str| self.0.get(name).filter(|v| !v.is_null()).map(seconds).transpose();
        let (from, until, issued) = (date("nbf")?, date("exp")?, date("iat")?);
        if from.is_some_and(|t| now.saturating_add(LEEWAY) < t) {
            return Err(Untimely::NotYet);
        }
        if until.is_some_and(|t| now.saturating_sub(LEEWAY) > t) {
            return Err(Untimely::Expired);
        }
        if issued.is_some_and(|t| now.saturating_add(LEEWAY) < t) {
            return Err(Untimely::FromTheFuture);
        }
        Ok(())
    }
}

/// A NumericDate (RFC 7519); fractions are cut.
pub fn seconds(value: &Value) -> Result<i64, Untimely> {
    // `as` saturates, which is what a date beyond all times should do.
    value.as_i64().or_else(|| value.as_f64().map(|f| f as i64)).ok_or(Untimely::Malformed)
}

/// One text or a list of texts.
pub fn strings(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => vec![],
    }
}

/// Signs claims.
pub fn sign(key: &SigningKey, claims: &Value) -> Result<String, KeyError> {
    let header = json!({"alg": key.public.algorithm(), "kid": key.id});
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(&header), part(claims));
    let signature = URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes())?);
    Ok(format!("{signed}.{signature}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claims(value: Value) -> Claims {
        Claims(value.as_object().unwrap().clone())
    }

    #[test]
    fn tolerates_a_minute_of_clock_skew() {
        let now = jiff::Timestamp::from_second(1_000_000).unwrap();
        let check = |value| claims(value).check_times(now);
        assert_eq!(check(json!({})), Ok(()));
        assert_eq!(check(json!({"exp": 999_940, "nbf": 1_000_060, "iat": 1_000_060.9})), Ok(()));
        assert_eq!(check(json!({"exp": 999_939})), Err(Untimely::Expired));
        assert_eq!(check(json!({"nbf": 1_000_061})), Err(Untimely::NotYet));
        assert_eq!(check(json!({"iat": 1_000_061})), Err(Untimely::FromTheFuture));
        assert_eq!(check(json!({"exp": "999999999999"})), Err(Untimely::Malformed));
        assert_eq!(check(json!({"exp": 1e300})), Ok(()));
        assert_eq!(check(json!({"exp": -1e300})), Err(Untimely::Expired));
    }

    #[test]
    fn rejects_malformed_tokens() {
        let part = |v: Value| URL_SAFE_NO_PAD.encode(v.to_string());
        let (header, body) = (part(json!({"alg": "ES256"})), part(json!({"iss": "x"})));
        assert!(Token::parse(&format!("{header}.{body}.c2ln")).is_some());
        let critical = part(json!({"alg": "ES256", "crit": ["exp"], "exp": 1}));
        for bad in [
            String::new(),
            "..".into(),
            format!("{header}.{body}"),
            format!("{header}.{body}.c2ln.c2ln"),
            format!("{header}.{body}.c2ln="),
            format!("{header}.{}.c2ln", part(json!(["x"]))),
            format!("{critical}.{body}.c2ln"),
            format!("{header}.{}.c2ln", part(json!({"pad": "x".repeat(MAX_TOKEN)}))),
        ] {
            assert!(Token::parse(&bad).is_none(), "{}", &bad[..bad.len().min(80)]);
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "\\PC*") {
            let _ = Token::parse(&text);
        }

        #[test]
        fn parsing_any_json_never_panics(header in any::<Vec<u8>>(), body in "[\\[\\]{}\",:0-9a-z]*", sig in any::<Vec<u8>>()) {
            let e = |b: &[u8]| URL_SAFE_NO_PAD.encode(b);
            let known = e(br#"{"alg":"RS256","kid":"a"}"#);
            for header in [e(&header), known] {
                if let Some(token) = Token::parse(&format!("{header}.{}.{}", e(body.as_bytes()), e(&sig))) {
                    let _ = token.claims.check_times(jiff::Timestamp::UNIX_EPOCH);
                    let _ = token.claims.audiences();
                }
            }
        }
    }
}
